import { useEffect, useRef, useState } from "preact/hooks";
import { Failure, gone, lines, request, type Params } from "../api";
import { Dialog } from "../frame/Dialog";
import { usePreferences } from "../preferences";
import { formatTime } from "../time";
import { RangeFields, useRead } from "./Range";

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
  const [{ match, from, to }, write] = useState({ match: "", from: "-6h", to: "now" });
  const read = useRead();
  const [wrong, setWrong] = useState("");
  const [asked, setAsked] = useState<Params>();
  const [running, setRunning] = useState(false);
  const [progress, setProgress] = useState<Progress>();
  const stop = useRef(new AbortController());
  useEffect(() => () => stop.current.abort(), []);

  const check = (e: Event) => {
    e.preventDefault();
    const times = read({ match, from, to });
    if ("wrong" in times) return setWrong(times.wrong);
    setWrong("");
    setAsked([["match[]", match.trim()], ["start", times.start], ["end", times.end]]);
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
          <RangeFields asked={{ match, from, to }} change={write} />
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
