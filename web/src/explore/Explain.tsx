import { useEffect, useState } from "preact/hooks";
import { ask, Failure, gone, type Labels } from "../api";
import { Cross } from "../frame/icons";
import { usePreferences } from "../preferences";
import { about, formatTime } from "../time";
import { seriesText } from "./selector";
import { shadeOf } from "./Strip";

// What /api/v1/explain answers. Times are Unix ms.
interface Explained {
  time: number;
  now: number;
  matched: number;
  series: { metric: Labels; schedule?: number; source: string; levels: Level[] }[];
}

interface Level {
  level: string;
  verdict: string;
  why: string;
  next?: string;
  next_at?: number;
  slice: number;
  slice_end: number;
  state: string;
  worker?: string;
  input?: { bucket: string; chunks?: number; rows?: number; samples: number; not_finite?: number; damaged?: number };
  row?: { count: number; sum?: number; min: number; max: number; partial?: boolean };
  marks?: { kind: string }[];
  runs?: { worker: string; started: number; seconds: number }[];
  errors?: { time: number; message: string }[];
}

/** Explain says in words why the rows of a time are as they are. */
export function Explain({ time, of, choices, choose, close }: { time: number; of: string; choices: string[]; choose: (of: string) => void; close: () => void }) {
  const { zone } = usePreferences();
  const [answer, setAnswer] = useState<Explained>();
  const [failure, setFailure] = useState("");
  useEffect(() => {
    const stop = new AbortController();
    setAnswer(undefined);
    setFailure("");
    if (!of) return;
    ask<Explained>("POST", "/api/v1/explain", [["match[]", of], ["time", String(Math.round(time))], ["limit", "5"]], stop.signal).then(setAnswer, (err) => {
      if (!gone(err)) setFailure(err instanceof Failure ? err.message : String(err));
    });
    return () => stop.abort();
  }, [time, of]);
  return (
    <aside class="card panel" aria-label="Explanation">
      <header>
        <h2>What is stored at {formatTime(time, zone)}</h2>
        <button type="button" class="quiet icon push" aria-label="Close the explanation" title="Close (Esc)" onClick={close}><Cross /></button>
      </header>
      <div class="card-body">
        {choices.length > 1 && (
          <label class="field">Series <select value={of} onChange={(e) => choose(e.currentTarget.value)}>{[...new Set([of, ...choices])].map((c) => <option key={c} value={c}>{c}</option>)}</select></label>
        )}
        {!of && <p class="note">The expression has no selector, so it reads nothing from the store.</p>}
        {failure && <p class="banner bad" role="alert">{failure}</p>}
        {of && !answer && !failure && <p class="note" role="status">Asking…</p>}
        {answer?.matched === 0 && <p>The store knows no series that <code>{of}</code> matches.</p>}
        {answer?.series.map((s) => (
          <section key={seriesText(s.metric)}>
            <h3>{seriesText(s.metric)}</h3>
            <p class="note">{s.schedule === undefined ? "Of" : `Schedule ${s.schedule} of`} the source {s.source}</p>
            {s.levels.map((l) => <LevelOf key={l.level} level={l} now={answer.now} />)}
          </section>
        ))}
        {answer && answer.matched > answer.series.length && <p class="note">{answer.matched - answer.series.length} more series match.</p>}
      </div>
    </aside>
  );
}

// A verdict that is not here is nothing to do about, such as that a run is due.
const tones: Record<string, string> = { complete: "good", late: "warn", put_off: "warn", partial: "bad", expired: "bad", missing: "bad", differs: "bad" };

function LevelOf({ level: l, now }: { level: Level; now: number }) {
  const { zone } = usePreferences();
  const t = (ms: number) => formatTime(ms, zone);
  const run = l.runs?.[0];
  return (
    <div class="verdict">
      <p><span class={`tag level-${shadeOf(l.level)}`}>{l.level}</span> <span class={`tag ${tones[l.verdict] ?? ""}`}>{l.verdict.replace("_", " ")}</span></p>
      <p>{l.why}</p>
      {l.next && <p><b>Next:</b> {l.next}{l.next_at !== undefined && <>, {t(l.next_at)}{l.next_at > now && ` (in ${about(l.next_at - now)})`}</>}</p>}
      <dl>
        <dt>Row of</dt><dd>{t(l.slice)} – {t(l.slice_end)}, slice {l.state}</dd>
        {l.row && <><dt>Row has</dt><dd>{l.row.count.toLocaleString("en")} samples, {l.row.min} to {l.row.max}{l.row.partial && <span class="bad-text">, partial</span>}</dd></>}
        {l.input && <><dt>Input</dt><dd>{l.input.samples.toLocaleString("en")} samples in {l.input.bucket}{l.input.not_finite ? `, ${l.input.not_finite} not finite` : ""}{l.input.damaged ? <span class="bad-text">, {l.input.damaged} damaged</span> : ""}</dd></>}
        {!!l.marks?.length && <><dt>Work left</dt><dd>{l.marks.length} {l.marks.length === 1 ? "mark" : "marks"}: {[...new Set(l.marks.map((m) => m.kind))].join(", ")}</dd></>}
        {run && <><dt>Last run</dt><dd>{t(run.started)} by {run.worker}, {about(run.seconds * 1000)}</dd></>}
        {l.errors?.map((e) => <><dt>Error</dt><dd class="bad-text">{t(e.time)}: {e.message}</dd></>)}
      </dl>
    </div>
  );
}
