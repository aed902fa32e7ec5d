import { useId, useState } from "preact/hooks";
import type { Place } from "../explore/Chart";
import { usePreferences } from "../preferences";
import { formatTime, type Zone } from "../time";
import { isAlert, keyOf, type Annotation } from "./wire";

/** Group are annotations whose flags would cover each other. */
interface Group {
  x: number;
  all: Annotation[];
}

const apart = 24; // px between two flags

function groups(all: Annotation[], start: number, end: number, place: Place): Group[] {
  const out: Group[] = [];
  for (const a of all) {
    const x = place.left + ((Math.max(a.start, start) - start) / (end - start)) * place.width;
    const last = out.at(-1);
    if (last && x - last.x < apart) last.all.push(a);
    else out.push({ x, all: [a] });
  }
  return out;
}

/** whenOf writes the time of an annotation. */
export function whenOf(a: Annotation, zone: Zone): string {
  return a.end === a.start ? formatTime(a.start, zone) : `${formatTime(a.start, zone)} – ${formatTime(a.end, zone)}`;
}

const mostInTip = 4;

/** Flags stand above the plot, at the starts of annotations. */
export function Flags({ all, start, end, place, pick }: { all: Annotation[]; start: number; end: number; place: Place; pick: (some: Annotation[]) => void }) {
  const { zone } = usePreferences();
  const [shown, setShown] = useState(-1);
  const id = useId();
  if (!place.width) return null;
  const list = groups(all, start, end, place);
  return (
    <div class="flags" role="group" aria-label="Annotations" onMouseLeave={() => setShown(-1)} onKeyDown={(e) => e.key === "Escape" && setShown(-1)}>
      {list.map((g, n) => {
        const first = g.all[0]!;
        const left = g.x > place.left + place.width / 2;
        return (
          <span key={keyOf(first)}>
            <button type="button" class={`flag${g.all.every(isAlert) ? " alert" : ""}`} style={{ left: `${g.x}px` }} aria-describedby={shown === n ? id : undefined}
              aria-label={g.all.length > 1 ? `${g.all.length} annotations from ${formatTime(first.start, zone)}` : `Annotation ${whenOf(first, zone)}`}
              onMouseEnter={() => setShown(n)} onFocus={() => setShown(n)} onBlur={() => setShown(-1)} onClick={() => pick(g.all)}>
              {g.all.length > 1 ? g.all.length : ""}
            </button>
            {shown === n && (
              <div id={id} role="tooltip" class="tip flag-tip" style={{ left: `${g.x}px`, transform: left ? "translateX(-100%)" : "none" }}>
                {g.all.slice(0, mostInTip).map((a) => <Words key={keyOf(a)} of={a} />)}
                {g.all.length > mostInTip && <div class="hint">and {g.all.length - mostInTip} more</div>}
              </div>
            )}
          </span>
        );
      })}
    </div>
  );
}

/** Words are what an annotation says. All of it is text, whatever it looks like. */
export function Words({ of: a }: { of: Annotation }) {
  const { zone } = usePreferences();
  return (
    <div class="words">
      <div class="note">{whenOf(a, zone)}{a.author && ` · ${a.author}`}</div>
      {a.text && <div class="said">{a.text}</div>}
      {!!a.tags.length && <div class="tags">{a.tags.map((t) => <span key={t} class="tag">{t}</span>)}</div>}
    </div>
  );
}
