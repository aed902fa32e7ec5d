import type { LevelPart, Levels } from "../api";
import { usePreferences } from "../preferences";
import { formatTime, hour, parseDuration } from "../time";
import type { Place } from "./Chart";

/** shadeOf returns the shade of a level: the wider its rows, the darker. */
export function shadeOf(level: string): number {
  if (level === "raw") return 0;
  const width = parseDuration(level) ?? hour;
  return width <= hour ? 1 : width <= 6 * hour ? 2 : 3;
}

const nameOf = (level: string) => (level === "raw" ? "raw samples" : `${level} rows`);

/** lanesOf puts parts that overlap below each other. */
function lanesOf(parts: LevelPart[]): LevelPart[][] {
  const lanes: LevelPart[][] = [];
  for (const p of [...parts].sort((a, b) => a.start - b.start)) {
    const lane = lanes.find((l) => l[l.length - 1]!.end <= p.start);
    if (lane) lane.push(p);
    else if (lanes.length < 4) lanes.push([p]);
  }
  return lanes;
}

const mostSelectors = 8;

/** Strips show from which level each part of each selector was read. */
export function Strips({ levels, start, end, place, pick }: { levels: Levels[]; start: number; end: number; place: Place; pick: (time: number, of: string) => void }) {
  const { zone } = usePreferences();
  const shown = levels.filter((l) => l.parts.length).slice(0, mostSelectors);
  if (!shown.length) return null;
  const seen = new Set(shown.flatMap((l) => l.parts.map((p) => p.level)));
  const x = (s: number) => ((Math.min(Math.max(s * 1000, start), end) - start) / (end - start)) * place.width;
  const all = shown.flatMap((l) => l.parts);
  return (
    <div class="strips" role="group" aria-label="Levels that the values were read from">
      {shown.map((l, n) => (
        <div key={n}>
          {shown.length > 1 && <div class="strip-name" title={l.selector}>{l.selector}</div>}
          {lanesOf(l.parts).map((lane, k) => (
            <div key={k} class="strip">
              {lane.map((p) => {
                const left = x(p.start);
                const width = x(p.end) - left;
                if (width <= 0) return null;
                const from = Math.max(Math.floor(p.start) * 1000, start);
                const to = Math.min(Math.floor(p.end) * 1000, end); // the end is beside the last sample's millisecond
                const marks = [p.late && "late data is not in these rows yet", p.partial && "samples or rows are missing"].filter(Boolean).join("; ");
                const series = p.series === undefined ? "" : `, ${p.series} series`;
                return (
                  <button key={`${p.level} ${p.start}`} type="button"
                    class={`level-${shadeOf(p.level)}${p.late ? " hatched" : ""}${p.partial ? " dotted" : ""}`}
                    style={{ left: `${place.left + left}px`, width: `${width}px` }}
                    title={`${nameOf(p.level)}, ${formatTime(from, zone)} to ${formatTime(to, zone)}${series}${marks && `: ${marks}`}. Click to read why.`}
                    aria-label={`${nameOf(p.level)} from ${formatTime(from, zone)} to ${formatTime(to, zone)}${series}${marks && `: ${marks}`}. Explain`}
                    onClick={(e) => {
                      // The time under the pointer, or the middle by the keyboard.
                      const over = e.currentTarget.getBoundingClientRect();
                      const share = e.detail ? (e.clientX - over.left) / over.width : 0.5;
                      pick(Math.round(from + (to - from) * share), l.selector);
                    }}>
                    <span>{width > 34 ? p.level : ""}</span>
                  </button>
                );
              })}
            </div>
          ))}
        </div>
      ))}
      <div class="level-key">
        <span>Read from:</span>
        {["raw", ...[...seen].filter((l) => l !== "raw").sort((a, b) => (parseDuration(a) ?? 0) - (parseDuration(b) ?? 0))].filter((l) => seen.has(l)).map((l) => <span key={l}><i class={`level-${shadeOf(l)}`} />{nameOf(l)}</span>)}
        {all.some((p) => p.late) && <span><i class="level-0 hatched" />late data outstanding</span>}
        {all.some((p) => p.partial) && <span><i class="level-0 dotted" />partial</span>}
        {levels.length > mostSelectors && <span>{levels.length - mostSelectors} more selectors</span>}
      </div>
    </div>
  );
}
