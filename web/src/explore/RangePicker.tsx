import { useState } from "preact/hooks";
import { Clock } from "../frame/icons";
import { usePopover } from "../frame/popover";
import { usePreferences } from "../preferences";
import { describeRange, formatDuration, formatTime, parseDuration, parseTime, spanOf, type Range } from "../time";

const quick = ["5m", "15m", "30m", "1h", "3h", "6h", "12h", "1d", "2d", "7d", "30d", "90d", "180d", "365d"];

/** readTime reads a time, or a duration back from now. */
function readTime(text: string, zone: "utc" | "local"): { back: number } | { time: number } | undefined {
  const t = text.trim();
  if (/^now$/i.test(t)) return { back: 0 };
  const back = parseDuration(t.replace(/^(?:now)?\s*-\s*/i, ""));
  if (/^(?:now)?\s*-/i.test(t) && back !== undefined) return { back };
  const time = parseTime(t, zone);
  return time === undefined ? undefined : { time };
}

export function RangePicker({ range, choose }: { range: Range; choose: (r: Range) => void }) {
  const { zone } = usePreferences();
  const { open, setOpen, box, button, close, onKeyDown } = usePopover(".popover button[aria-pressed=true]", ".popover button");
  const done = (r: Range) => {
    close();
    choose(r);
  };
  return (
    <div class="picker" ref={box} onKeyDown={onKeyDown}>
      <button type="button" ref={button} aria-haspopup="dialog" aria-expanded={open} onClick={() => setOpen(!open)}><Clock />{describeRange(range, zone)}</button>
      {open && (
        <div class="popover" role="dialog" aria-label="Time range">
          <div class="quick">
            {quick.map((q) => {
              const back = parseDuration(q)!;
              return <button key={q} type="button" class="quiet" aria-pressed={"back" in range && range.back === back} onClick={() => done({ back })}>Last {q}</button>;
            })}
          </div>
          <Absolute range={range} choose={done} />
        </div>
      )}
    </div>
  );
}

function Absolute({ range, choose }: { range: Range; choose: (r: Range) => void }) {
  const { zone } = usePreferences();
  const written = () => {
    if ("back" in range) return [`-${formatDuration(range.back)}`, "now"] as const;
    return [formatTime(range.start, zone), formatTime(range.end, zone)] as const;
  };
  const [from, setFrom] = useState(() => written()[0]);
  const [to, setTo] = useState(() => written()[1]);
  const [wrong, setWrong] = useState("");
  const submit = (e: Event) => {
    e.preventDefault();
    const a = readTime(from, zone);
    const b = readTime(to, zone);
    if (!a || !b) {
      setWrong(`${a ? "The end" : "The start"} is no time. Write 2026-01-31 12:00, or -6h for six hours ago, or now.`);
      return;
    }
    if ("back" in a && "back" in b && b.back === 0 && a.back > 0) {
      choose({ back: a.back });
      return;
    }
    const now = Date.now();
    const start = "back" in a ? now - a.back : a.time;
    const end = "back" in b ? now - b.back : b.time;
    if (start >= end) {
      setWrong("The start is not before the end.");
      return;
    }
    choose({ start, end });
  };
  const span = spanOf(range, Date.now());
  return (
    <form onSubmit={submit}>
      <label>From<input type="text" name="from" value={from} spellcheck={false} autocomplete="off" aria-invalid={!!wrong} onInput={(e) => setFrom(e.currentTarget.value)} /></label>
      <label>To<input type="text" name="to" value={to} spellcheck={false} autocomplete="off" aria-invalid={!!wrong} onInput={(e) => setTo(e.currentTarget.value)} /></label>
      {wrong && <p class="note bad" role="alert">{wrong}</p>}
      <p class="note">In {zone === "utc" ? "UTC" : "local time"}. Shown now: {formatTime(Math.round(span.start / 1000) * 1000, zone)} to {formatTime(Math.round(span.end / 1000) * 1000, zone)}</p>
      <button type="submit" class="primary">Show</button>
    </form>
  );
}
