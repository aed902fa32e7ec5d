import { steps } from "../address";
import { Back, Left, Refresh, Right, ZoomOut } from "../frame/icons";
import { formatDuration, parseDuration, type Range } from "../time";
import { RangePicker } from "./RangePicker";

/** Span is a time, from start to end in ms. */
export interface Span {
  start: number;
  end: number;
}

/** wider returns a range that is twice as long, around the same middle or up to now. */
export function wider(range: Range, { start, end }: Span): Range {
  if ("back" in range) return { back: Math.min(range.back * 2, 100 * 365 * 86_400_000) };
  return { start: Math.round(start - (end - start) / 2), end: Math.round(end + (end - start) / 2) };
}

/** moved returns the range that lies so many of its lengths later. */
export const moved = ({ start, end }: Span, by: number): Range => ({ start: Math.round(start + by * (end - start)), end: Math.round(end + by * (end - start)) });

/** zoomed returns the range of what was chosen in a chart: whole seconds, and ten of them at least. */
export const zoomed = (start: number, end: number): Range => ({ start: Math.floor(start / 1000) * 1000, end: Math.max(Math.ceil(end / 1000), Math.floor(start / 1000) + 10) * 1000 });

/** RangeBar chooses the time that is shown. */
export function RangeBar({ range, span, choose }: { range: Range; span: Span; choose: (r: Range) => void }) {
  return (
    <>
      <span class="group">
        <button type="button" class="icon" aria-label="Earlier" title="Earlier ([)" onClick={() => choose(moved(span, -0.5))}><Left /></button>
        <button type="button" class="icon" aria-label="Later" title="Later (])" onClick={() => choose(moved(span, 0.5))}><Right /></button>
      </span>
      <RangePicker range={range} choose={choose} />
      <span class="group">
        <button type="button" class="icon" aria-label="Zoom out" title="Zoom out (z)" onClick={() => choose(wider(range, span))}><ZoomOut /></button>
        <button type="button" class="icon" aria-label="Step back" title="Step back (b)" disabled={steps() === 0} onClick={() => history.back()}><Back /></button>
      </span>
    </>
  );
}

export const refreshes = ["5s", "15s", "30s", "1m", "5m", "15m"];

/** RefreshPicker asks again, now or every so often. */
export function RefreshPicker({ every, choose, now }: { every: number; choose: (every: number) => void; now: () => void }) {
  const chosen = every ? formatDuration(every) : "";
  return (
    <span class="group">
      <button type="button" class="icon" aria-label="Ask again" title="Ask again (r)" onClick={now}><Refresh /></button>
      <select aria-label="Ask again every" value={chosen} onChange={(e) => choose(parseDuration(e.currentTarget.value) ?? 0)}>
        <option value="">Off</option>
        {[...refreshes, ...(chosen && !refreshes.includes(chosen) ? [chosen] : [])].map((r) => <option key={r} value={r}>{r}</option>)}
      </select>
    </span>
  );
}
