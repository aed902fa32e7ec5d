import { useEffect, useRef, useState } from "preact/hooks";
import { Failure, gone, lines, request, type Params } from "../api";
import { seriesText } from "../explore/selector";
import { Dialog } from "../frame/Dialog";
import { usePreferences } from "../preferences";
import { formatTime } from "../time";
import { allSeries, RangeFields, useRead } from "./Range";
import type { Difference, Verification, Verified } from "./wire";

const listed = 200; // differences, at most

const n = (v: number) => v.toLocaleString("en");
const rows = (v: number) => `${n(v)} ${v === 1 ? "row" : "rows"}`;

/** Verify compares rows with their samples, shows what differs, and has it ground again. */
export function Verify({ levels, close }: { levels: string[]; close: () => void }) {
  const { zone } = usePreferences();
  const [asked, write] = useState({ match: allSeries, from: "-2d", to: "now" });
  const [level, setLevel] = useState("");
  const read = useRead();
  const [wrong, setWrong] = useState("");
  const [params, setParams] = useState<Params>();
  const [running, setRunning] = useState<"comparing" | "repairing">();
  const [progress, setProgress] = useState<Verification["progress"]>();
  const [found, setFound] = useState<Difference[]>([]);
  const [verified, setVerified] = useState<Verified>();
  const stop = useRef(new AbortController());
  useEffect(() => () => stop.current.abort(), []);

  const run = async (ask: Params, repair: boolean) => {
    setParams(ask);
    setRunning(repair ? "repairing" : "comparing");
    setWrong("");
    setProgress(undefined);
    setFound([]);
    setVerified(undefined);
    const differences: Difference[] = [];
    let last: Verification | undefined;
    try {
      const answer = await request("POST", "/api/v1/verify", repair ? [...ask, ["repair", "true"]] : ask, stop.current.signal);
      for await (const line of lines<Verification>(answer)) {
        last = line;
        if (line.difference) differences.push(line.difference);
        if (!line.progress) continue;
        setProgress(line.progress);
        setFound([...differences]);
      }
      setFound(differences);
      setVerified(last?.verified);
      if (last?.status !== "success") setWrong(last?.error ?? "The answer broke off: not all rows were compared. Verify again.");
    } catch (err) {
      if (gone(err)) return;
      setWrong(err instanceof Failure ? err.message : String(err));
    }
    setRunning(undefined);
  };
  const check = (e: Event) => {
    e.preventDefault();
    const times = read(asked);
    if ("wrong" in times) return setWrong(times.wrong);
    void run([["match[]", asked.match.trim()], ["level", level], ["start", times.start], ["end", times.end], ["limit", String(listed)]], false);
  };
  const differ = verified?.levels.reduce((sum, l) => sum + l.different, 0) ?? 0;
  const unclean = differ + (verified?.damaged ?? 0) + (verified?.damaged_rows ?? 0);
  const repaired = verified?.repaired;
  return (
    <Dialog title="Verify rows" close={close}>
      {!params ? (
        <form class="form" onSubmit={check}>
          <p class="note">Roll-up rows are computed from the raw samples, by other code than that of the grinding, and compared. It changes nothing.</p>
          <RangeFields asked={asked} change={write} />
          <label><span>Level</span><select name="level" value={level} onChange={(e) => setLevel(e.currentTarget.value)}><option value="">all</option>{levels.map((l) => <option key={l} value={l}>{l}</option>)}</select></label>
          {wrong && <p class="banner bad" role="alert">{wrong}</p>}
          <div class="dialog-end"><button type="submit" class="primary">Verify</button></div>
        </form>
      ) : (
        <div class="form">
          <p><code>{asked.match}</code>, {level || "all levels"}, from {asked.from} to {asked.to}</p>
          {running && (
            <>
              <p role="status">{running === "repairing" ? "Comparing again, to repair" : "Comparing"}: {n(progress?.done ?? 0)} of {progress ? n(progress.total) : "…"} windows of time</p>
              <progress aria-label="Progress" max={progress?.total ?? 1} value={progress?.done ?? 0} />
            </>
          )}
          {wrong && <p class="banner bad" role="alert">{wrong}</p>}
          {verified && (
            <>
              <p class={`banner ${repaired ? "" : verified.series === 0 ? "warn" : unclean ? "bad" : "good"}`} role="status"><span>
                {verified.series === 0 ? "Nothing was compared: no series has samples or rows in this time." : (
                  <><b>{differ ? `${rows(differ)} ${differ === 1 ? "differs" : "differ"} from the samples.` : "All rows that were compared are as their samples say."}</b> {n(verified.series)} series, {n(verified.samples)} samples.</>
                )}
                {verified.damaged > 0 && ` ${n(verified.damaged)} raw chunks are damaged: restore them from a backup.`}
                {verified.damaged_rows > 0 && ` ${n(verified.damaged_rows)} rows cannot be read, at least in part.`}
              </span></p>
              <ul class="verified">
                {verified.levels.map((l) => (
                  <li key={l.level}><b>{l.level}</b>: {rows(l.compared)} compared, {n(l.different)} differ{([["pending", l.pending], ["not ground yet", l.not_ground], ["expired", l.expired], ["with damaged samples", l.unreadable]] as const).map(([what, v]) => v > 0 && `, ${n(v)} ${what}`)}</li>
                ))}
              </ul>
              {repaired && (
                <p class="banner good" role="status"><span>
                  <b>{n(repaired.series)} series in {n(repaired.slices)} {repaired.slices === 1 ? "slice" : "slices"} will be ground again.</b>
                  {repaired.rows.map((r) => ` The ${r.level} rows are right with the run after ${formatTime(r.after, zone)}.`)}
                  {repaired.surplus > 0 && ` ${rows(repaired.surplus)} without samples stay.`}
                </span></p>
              )}
            </>
          )}
          {found.length > 0 && <Differences found={found} all={unclean} />}
          <div class="dialog-end">
            <button type="button" class="first" disabled={!!running} onClick={() => {
              setParams(undefined);
              setWrong("");
            }}>Back</button>
            {verified && !running && !repaired && differ > 0 && <button type="button" class="danger" onClick={() => void run(params, true)}>Repair {rows(differ)}</button>}
            <button type="button" class="primary" onClick={close}>{running ? "Stop" : "Close"}</button>
          </div>
        </div>
      )}
    </Dialog>
  );
}

function Differences({ found, all }: { found: Difference[]; all: number }) {
  const { zone } = usePreferences();
  return (
    <div class="scroll differences" tabIndex={0} role="region" aria-label="Differences">
      <table>
        <thead><tr><th>Series</th><th>Row</th><th>Field</th><th>The row says</th><th>The samples say</th></tr></thead>
        <tbody>
          {found.map((d, i) => d.kind === "damaged" ? (
            <tr key={i}><td colSpan={5} class="text"><span class="tag bad">damaged</span> {d.message}</td></tr>
          ) : (d.fields?.length ? d.fields : [{ name: "", row: "", samples: "" }]).map((f, k) => (
            <tr key={`${i} ${k}`}>
              <td class="mono text">{k === 0 && seriesText(d.metric ?? {})}</td>
              <td>{k === 0 && <>{d.level} {formatTime(d.start!, zone)} <span class="tag bad">{d.kind}</span></>}</td>
              <td>{f.name}</td>
              <td>{d.kind === "missing" ? "no row" : d.kind === "doubled" ? "several rows" : f.row}</td>
              <td>{d.kind === "surplus" ? "no samples" : f.samples}</td>
            </tr>
          )))}
        </tbody>
      </table>
      {all > found.length && <p class="note card-body">The first {n(found.length)} of {n(all)} are listed.</p>}
    </div>
  );
}
