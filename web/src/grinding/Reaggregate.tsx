import { useEffect, useRef, useState } from "preact/hooks";
import { Failure, gone, lines, request, type Params } from "../api";
import { Dialog } from "../frame/Dialog";
import { usePreferences } from "../preferences";
import { formatTime, parseDuration, parseTime } from "../time";

interface Progress {
  status?: string;
  error?: string;
  done: number;
  total: number;
  blocks: number;
  skipped: number;
  series?: number;
  slices?: { marked: number; not_closed: number; expired: number };
  rows?: { level: string; by: number }[];
}

/** Reaggregate has rows computed again from the samples, after a question. */
export function Reaggregate({ close }: { close: () => void }) {
  const { zone } = usePreferences();
  const [match, setMatch] = useState("");
  const [from, setFrom] = useState("-6h");
  const [to, setTo] = useState("now");
  const [wrong, setWrong] = useState("");
  const [asked, setAsked] = useState<Params>();
  const [running, setRunning] = useState(false);
  const [progress, setProgress] = useState<Progress>();
  const stop = useRef(new AbortController());
  useEffect(() => () => stop.current.abort(), []);

  // A time as the server takes it: relative ones as they are, others in Unix ms.
  const read = (text: string): string | undefined => {
    const t = text.trim();
    if (t === "now" || (t.startsWith("-") && parseDuration(t.slice(1)) !== undefined)) return t;
    const ms = parseTime(t, zone);
    return ms === undefined ? undefined : String(ms);
  };
  const check = (e: Event) => {
    e.preventDefault();
    const start = read(from);
    const end = read(to);
    if (!match.trim()) setWrong("Name the series by a selector, such as cpu_usage_ratio or {__name__!=\"\"} for all.");
    else if (!start || !end) setWrong("Write times as 2026-01-31 12:00, -6h for six hours ago, or now.");
    else {
      setWrong("");
      setAsked([["match[]", match.trim()], ["start", start], ["end", end]]);
    }
  };
  const run = async () => {
    setRunning(true);
    try {
      const answer = await request("POST", "/api/v1/reaggregate", asked!, stop.current.signal);
      let last: Progress | undefined;
      for await (const line of lines<Progress>(answer)) setProgress(last = line);
      if (last?.status !== "success") setWrong(last?.error ?? "The answer broke off: a part may be marked. Ask again to mark all.");
    } catch (err) {
      if (gone(err)) return;
      setWrong(err instanceof Failure ? err.message : String(err));
      setAsked(undefined);
    }
    setRunning(false);
  };
  const done = progress?.status === "success";
  return (
    <Dialog title="Compute rows again" close={close}>
      {!asked ? (
        <form class="form" onSubmit={check}>
          <p class="note">Roll-up rows are computed again from the raw samples by the next runs. It changes nothing where rows and samples agree.</p>
          <label><span>Series</span><input type="text" name="match" class="mono" value={match} placeholder={'cpu_usage_ratio{source="web-1"}'} spellcheck={false} autocomplete="off" onInput={(e) => setMatch(e.currentTarget.value)} /></label>
          <label><span>From</span><input type="text" name="from" class="mono" value={from} spellcheck={false} autocomplete="off" onInput={(e) => setFrom(e.currentTarget.value)} /></label>
          <label><span>To</span><input type="text" name="to" class="mono" value={to} spellcheck={false} autocomplete="off" onInput={(e) => setTo(e.currentTarget.value)} /></label>
          {wrong && <p class="banner bad" role="alert">{wrong}</p>}
          <div class="dialog-end"><button type="submit" class="primary">Continue</button></div>
        </form>
      ) : (
        <div class="form">
          <p>Have all rows of <code>{match}</code> computed again, from {from} to {to}?</p>
          {progress && <p role="status">{progress.done.toLocaleString("en")} of {progress.total.toLocaleString("en")} blocks: {progress.blocks.toLocaleString("en")} marked, {progress.skipped.toLocaleString("en")} skipped</p>}
          {running && <progress aria-label="Progress" max={progress?.total ?? 1} value={progress?.done ?? 0} />}
          {wrong && <p class="banner bad" role="alert">{wrong}</p>}
          {done && (
            <>
              <p class="banner">{progress.series!.toLocaleString("en")} series; slices: {progress.slices!.marked} marked{progress.slices!.not_closed ? `, ${progress.slices!.not_closed} not over and ground anyway` : ""}{progress.slices!.expired ? `, ${progress.slices!.expired} left because samples have expired` : ""}.</p>
              {progress.rows!.map((r) => <p key={r.level}>All {r.level} rows are computed by {formatTime(r.by, zone)}.</p>)}
            </>
          )}
          <div class="dialog-end">
            {done || wrong ? <button type="button" class="primary" onClick={close}>Close</button> : (
              <>
                <button type="button" onClick={() => setAsked(undefined)} disabled={running}>Back</button>
                <button type="button" class="primary" onClick={() => void run()} disabled={running}>Compute again</button>
              </>
            )}
          </div>
        </div>
      )}
    </Dialog>
  );
}
