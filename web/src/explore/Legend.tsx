import { usePreferences } from "../preferences";
import type { Line } from "./Chart";
import type { Values } from "./evaluate";
import { colourOf } from "./palette";

const most = 300; // rows of the legend; the chart has all lines

function statsOf(values: Values) {
  let min = Infinity, max = -Infinity, sum = 0, n = 0;
  let last: number | undefined;
  for (const v of values) {
    if (v === null) continue;
    min = Math.min(min, v);
    max = Math.max(max, v);
    sum += v;
    n++;
    last = v;
  }
  return n ? { last: last!, min, avg: sum / n, max } : undefined;
}

/** Legend names the lines. A click shows one alone, with Ctrl or Shift it adds or removes one. */
export function Legend({ lines, only, show, label = "Series" }: { lines: Line[]; only: string[]; show: (only: string[]) => void; label?: string }) {
  const { dark } = usePreferences();
  const pick = (text: string, more: boolean) => {
    const has = only.includes(text);
    if (more) show(has ? only.filter((t) => t !== text) : [...only, text]);
    else show(has && only.length === 1 ? [] : [text]);
  };
  return (
    <div class="legend" tabIndex={0} role="region" aria-label={label}>
      <table>
        <thead><tr><th>{lines.length === 1 ? "1 series" : `${lines.length} series`}{only.length > 0 && <> · <button type="button" class="sort" onClick={() => show([])}>show all</button></>}</th><th class="n">Last</th><th class="n wide">Min</th><th class="n wide">Average</th><th class="n wide">Max</th></tr></thead>
        <tbody>
          {lines.slice(0, most).map((l) => {
            const on = only.length === 0 || only.includes(l.text);
            const s = statsOf(l.values);
            const w = (v: number | undefined) => (v === undefined ? "–" : l.unit.write(v));
            return (
              <tr key={`${l.n} ${l.text}`} class={on ? "" : "dim"}>
                <td><button type="button" class="series" aria-pressed={only.includes(l.text)} title={l.text} onClick={(e) => pick(l.text, e.ctrlKey || e.metaKey || e.shiftKey)}><span class={`swatch${l.n >= 8 ? " dashed" : ""}`} style={l.n >= 8 ? { color: colourOf(l.n, dark) } : { background: colourOf(l.n, dark) }} /><span>{l.text}</span></button></td>
                <td class="n">{w(s?.last)}</td><td class="n wide">{w(s?.min)}</td><td class="n wide">{w(s?.avg)}</td><td class="n wide">{w(s?.max)}</td>
              </tr>
            );
          })}
        </tbody>
      </table>
      {lines.length > most && <p class="note card-body">{lines.length - most} more are drawn and not listed.</p>}
    </div>
  );
}
