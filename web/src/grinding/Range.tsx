import { usePreferences } from "../preferences";
import { parseDuration, parseTime } from "../time";

/** Asked is which series are meant, and when, as somebody has written it. */
export interface Asked {
  match: string;
  from: string;
  to: string;
}

export const allSeries = '{__name__!=""}';

/** useRead returns what reads what was asked: the parameters, or what is wrong with it. */
export function useRead(): (asked: Asked) => { start: string; end: string } | { wrong: string } {
  const { zone } = usePreferences();
  // A time as the server takes it: relative ones as they are, others in Unix ms.
  const read = (text: string): string | undefined => {
    const t = text.trim();
    if (t === "now" || (t.startsWith("-") && parseDuration(t.slice(1)) !== undefined)) return t;
    const ms = parseTime(t, zone);
    return ms === undefined ? undefined : String(ms);
  };
  return ({ match, from, to }) => {
    if (!match.trim()) return { wrong: `Name the series by a selector, such as cpu_usage_ratio or ${allSeries} for all.` };
    const start = read(from);
    const end = read(to);
    return start && end ? { start, end } : { wrong: "Write times as 2026-01-31 12:00, -6h for six hours ago, or now." };
  };
}

/** RangeFields are the fields for what is asked. */
export function RangeFields({ asked, change }: { asked: Asked; change: (a: Asked) => void }) {
  const field = (name: keyof Asked, label: string, placeholder?: string) => (
    <label><span>{label}</span><input type="text" name={name} class="mono" value={asked[name]} placeholder={placeholder} spellcheck={false} autocomplete="off" onInput={(e) => change({ ...asked, [name]: e.currentTarget.value })} /></label>
  );
  return <>{field("match", "Series", 'cpu_usage_ratio{source="web-1"}')}{field("from", "From")}{field("to", "To")}</>;
}
