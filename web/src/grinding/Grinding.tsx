import { useEffect, useState } from "preact/hooks";
import { format, go, useAddress } from "../address";
import { ask } from "../api";
import { shadeOf } from "../explore/Strip";
import { useShownShortcuts } from "../frame/shortcuts";
import { may, useWho } from "../frame/who";
import { poll } from "../poll";
import { usePreferences } from "../preferences";
import { about, ago, day, formatDuration, formatTime, parseDuration, second } from "../time";
import { Reaggregate } from "./Reaggregate";
import { Verify } from "./Verify";
import type { SliceState, Slices, Status } from "./wire";

const spans = ["6h", "1d", "3d", "7d", "30d"];

const words: Record<string, string> = {
  open: "not over yet", outstanding: "over, and not ground", complete: "ground", late: "ground, late data waits", partial: "ground, some input had expired",
  expired: "not ground, input has expired", ahead: "begins after now",
};

const count = (n: number, one: string, many = `${one}s`) => `${n.toLocaleString("en")} ${n === 1 ? one : many}`;

/** Grinding shows what has been ground, what is left, and who does it. */
export function Grinding() {
  const { query } = useAddress();
  const { zone } = usePreferences();
  const back = parseDuration(query.get("range") ?? "") ?? day;
  const picked = query.get("slice") ?? "";
  const show = (range: string, slice: string) => go(format("/grinding", [["range", range], ["slice", slice]]));

  const [status, setStatus] = useState<Status>();
  const [slices, setSlices] = useState<Slices>();
  const [failure, setFailure] = useState("");
  const [turn, setTurn] = useState(0);
  const [now, setNow] = useState(Date.now);
  const who = useWho();
  const [dialog, setDialog] = useState<"verify" | "reaggregate">();
  const close = () => {
    setDialog(undefined);
    setTurn((n) => n + 1);
  };
  useEffect(() => poll({
    every: 15 * second,
    look: async (signal) => {
      const [a, b] = await Promise.all([
        ask<Status>("GET", "/api/v1/status/aggregation", [], signal),
        ask<Slices>("GET", "/api/v1/status/slices", [["start", `-${formatDuration(back)}`]], signal),
      ]);
      setStatus(a);
      setSlices(b);
      setFailure("");
      setNow(Date.now());
    },
    failed: (err) => setFailure(err.message),
  }), [back, turn]);
  useShownShortcuts({ r: ["Ask again", () => setTurn((n) => n + 1)] });

  const at = (ms: number) => <span title={formatTime(ms, zone)}>{ago(ms, now)}</span>;
  const runs = status?.runs ?? [];
  const asked = runs.reduce((n, r) => n + r.block_queries + r.index_queries, 0);
  const single = runs.reduce((n, r) => n + r.schedules + 1, 0);
  const shown = slices?.buckets.flatMap((b) => b.slices.map((s) => ({ bucket: b.bucket, s }))).find(({ bucket, s }) => `${bucket}:${s.start}` === picked);
  const problems = [...(status?.clock_doubt ? [`Nothing expires by the clock now: ${status.clock_doubt}`] : []), ...new Set([...(status?.unread ?? []), ...(slices?.unread ?? [])])];

  return (
    <div class="stack">
      <div class="row">
        <h1>Grinding</h1>
        <span class="group" role="group" aria-label="Time shown">
          {spans.map((s) => <button key={s} type="button" aria-pressed={parseDuration(s) === back} onClick={() => show(s, picked)}>{s}</button>)}
        </span>
        {may(who, "admin") && (
          <span class="group push">
            <button type="button" onClick={() => setDialog("verify")}>Verify rows…</button>
            <button type="button" onClick={() => setDialog("reaggregate")}>Compute rows again…</button>
          </span>
        )}
      </div>
      {failure && <p class="banner bad" role="alert">{failure}</p>}
      {problems.map((p) => <p key={p} class="banner warn">{p}</p>)}
      {!status || !slices ? !failure && <p class="note" role="status">Asking…</p> : (
        <>
          <div class="tiles">
            {status.buckets.map((b) => {
              const line = slices.buckets.find((x) => x.bucket === b.bucket)?.slices ?? [];
              const left = line.filter((s) => s.marks > 0 && s.state !== "open");
              const due = Math.max(0, ...left.map((s) => s.run_at ?? 0));
              return (
                <div key={b.bucket} class="card tile">
                  <span>Grinding of {b.bucket}</span>
                  <b>{b.outstanding.length ? `${about(b.lag_seconds * 1000)} behind` : "Up to date"}</b>
                  <span>{b.outstanding.length ? `${count(b.outstanding.length, "slice")} outstanding. ` : ""}{left.length && due ? `What is left of ${count(left.length, "slice")} is made up for by ${formatTime(due, zone)}` : b.outstanding.length ? "" : "Nothing is left"}</span>
                </div>
              );
            })}
            <div class="card tile">
              <span>Queries of the last {count(runs.length, "run")}</span>
              <b>{asked.toLocaleString("en")}</b>
              <span>{single > runs.length ? `by single schedules it would be ${single.toLocaleString("en")}, ${(single / Math.max(asked, 1)).toFixed(0)} times as many` : "nothing was ground yet"}</span>
            </div>
            {status.packing && (
              <div class="card tile">
                <span>Packing of raw samples</span>
                <b>{status.packing.left ? `${count(status.packing.left, "slice")} left` : "Up to date"}</b>
                <span>{(status.packing.slices - status.packing.left).toLocaleString("en")} of {count(status.packing.slices, "slice")} packed between runs, the newest first</span>
              </div>
            )}
            <div class="card tile">
              <span>Workers</span>
              <b>{status.workers.filter((w) => w.aggregates).length}</b>
              <span>{count(status.shards.length, "shard")}, {status.shards.filter((s) => s.owner).length} leased now</span>
            </div>
          </div>
          <section class="card" aria-label="Slices">
            <header><h2>Slices</h2><span class="note">{formatTime(Math.round((now - back) / 60_000) * 60_000, zone)} to now. Choose one to see its runs.</span></header>
            <div class="card-body lanes">
              {slices.buckets.map((b) => <Lane key={b.bucket} bucket={b.bucket} slices={b.slices} unknown={b.unknown ?? []} start={Math.min(b.start, now - back)} end={Math.max(b.end, now)} picked={picked} pick={(s) => show(formatDuration(back), `${b.bucket}:${s.start}` === picked ? "" : `${b.bucket}:${s.start}`)} />)}
              <div class="level-key">{Object.keys(words).filter((w) => slices.buckets.some((b) => b.slices.some((s) => s.state === w))).map((w) => <span key={w}><i class={`slot-${w}`} />{w}: {words[w]}</span>)}<span>no box: nothing on record</span></div>
            </div>
            {shown && <Slice bucket={shown.bucket} s={shown.s} />}
          </section>
          <section class="card" aria-label="Last runs">
            <header><h2>Last runs</h2></header>
            <div class="scroll runs" tabIndex={0} role="region" aria-label="Last runs, listed">
              <table>
                <thead><tr><th>Slice</th><th>Begun</th><th class="n">Took</th><th class="n">Blocks</th><th class="n">Schedules</th><th class="n">Queries</th><th class="n">N+1</th><th class="n">Late</th><th>Worker</th></tr></thead>
                <tbody>
                  {runs.slice(0, 20).map((r, i) => (
                    <tr key={i}>
                      <td><span class={`tag level-${shadeOf(r.bucket)}`}>{r.bucket}</span> {formatTime(r.slice, zone)}{r.error && <div class="bad-text">{r.error}</div>}</td>
                      <td>{at(r.started)}</td><td class="n">{about(r.seconds * 1000)}</td><td class="n">{r.blocks.toLocaleString("en")}</td><td class="n">{r.schedules.toLocaleString("en")}</td>
                      <td class="n">{(r.block_queries + r.index_queries).toLocaleString("en")}</td><td class="n">{(r.schedules + 1).toLocaleString("en")}</td><td class="n">{r.late.toLocaleString("en")}</td><td>{r.worker}</td>
                    </tr>
                  ))}
                </tbody>
              </table>
              {!runs.length && <p class="note card-body">No run is on record.</p>}
            </div>
          </section>
          <div class="two">
            <section class="card" aria-label="Workers">
              <header><h2>Workers</h2></header>
              <div class="scroll" tabIndex={0} role="region" aria-label="Workers, listed">
                <table>
                  <thead><tr><th>Worker</th><th>Host</th><th>Heartbeat</th><th class="n">Its shards</th><th class="n">Leases</th></tr></thead>
                  <tbody>{status.workers.map((w) => (
                    <tr key={w.id}><td>{w.id}{!w.aggregates && <span class="note"> (no grinding)</span>}</td><td>{w.host}</td><td>{at(w.seen)}</td><td class="n">{status.shards.filter((s) => s.worker === w.id).length}</td><td class="n">{status.shards.filter((s) => s.owner === w.id).length}</td></tr>
                  ))}</tbody>
                </table>
              </div>
            </section>
            <section class="card" aria-label="Levels">
              <header><h2>Levels</h2></header>
              <table>
                <thead><tr><th>Level</th><th class="n">Kept for</th><th>Whole from</th></tr></thead>
                <tbody>{status.levels.map((l) => <tr key={l.level}><td><span class={`tag level-${shadeOf(l.level)}`}>{l.level}</span></td><td class="n">{l.retention_seconds ? formatDuration(l.retention_seconds * 1000) : "ever"}</td><td>{l.whole_from === undefined ? "always" : formatTime(Math.round(l.whole_from / 1000) * 1000, zone)}</td></tr>)}</tbody>
              </table>
            </section>
          </div>
          <section class="card" aria-label="Errors">
            <header><h2>Last errors</h2></header>
            {status.errors.length ? (
              <div class="scroll" tabIndex={0} role="region" aria-label="Errors, listed">
                <table>
                  <thead><tr><th>When</th><th>Component</th><th>About</th><th>Message</th></tr></thead>
                  <tbody>{status.errors.map((e, i) => <tr key={i}><td>{at(e.time)}</td><td>{e.component}</td><td>{e.bucket} {formatTime(e.slice, zone)}{e.start !== undefined && `, block ${e.start}`}</td><td class="text">{e.message}</td></tr>)}</tbody>
                </table>
              </div>
            ) : <p class="note card-body">None on record.</p>}
          </section>
          {!!status.unkept?.length && (
            <section class="card" aria-label="Lost without a word to the sender">
              <header><h2>What senders lost without being told</h2><span class="note">since this process started</span></header>
              <table>
                <thead><tr><th>Sender</th><th>Path</th><th>Reason</th><th class="n">Count</th><th>Last</th><th>Message</th></tr></thead>
                <tbody>{status.unkept.map((u, i) => <tr key={i}><td>{u.sender}</td><td>{u.path}</td><td>{u.reason}</td><td class="n">{u.count.toLocaleString("en")}</td><td>{at(u.last)}</td><td class="text">{u.message}</td></tr>)}</tbody>
              </table>
            </section>
          )}
        </>
      )}
      {dialog === "verify" && <Verify levels={status?.levels.slice(1).map((l) => l.level) ?? []} close={close} />}
      {dialog === "reaggregate" && <Reaggregate close={close} />}
    </div>
  );
}

function Lane({ bucket, slices, unknown, start, end, picked, pick }: {
  bucket: string; slices: SliceState[]; unknown: { start: number; end: number }[]; start: number; end: number; picked: string; pick: (s: SliceState) => void;
}) {
  const { zone } = usePreferences();
  const share = (ms: number) => ((Math.min(Math.max(ms, start), end) - start) / (end - start)) * 100;
  const place = (from: number, to: number) => ({ left: `${share(from)}%`, width: `calc(${share(to) - share(from)}% - 2px)` });
  return (
    <div class="lane">
      <b>{bucket}</b>
      <div class="slots">
        {unknown.map((u) => <span key={u.start} class="slot slot-unknown" style={place(u.start, u.end)} title="out of reach" />)}
        {slices.map((s) => (
          <button key={s.start} type="button" class={`slot slot-${s.state}`} style={place(s.start, s.end)} aria-pressed={`${bucket}:${s.start}` === picked}
            aria-label={`Slice of ${bucket}, ${formatTime(s.start, zone)} to ${formatTime(s.end, zone)}: ${words[s.state] ?? s.state}`}
            title={`${formatTime(s.start, zone)} to ${formatTime(s.end, zone)}: ${words[s.state] ?? s.state}${s.marks ? `, ${count(s.marks, "mark")} left` : ""}`} onClick={() => pick(s)} />
        ))}
      </div>
    </div>
  );
}

function Slice({ bucket, s }: { bucket: string; s: SliceState }) {
  const { zone } = usePreferences();
  const t = (ms: number) => formatTime(ms, zone);
  return (
    <div class="card-body slice">
      <h3>{bucket}, {t(s.start)} to {t(s.end)}</h3>
      <p>It is {words[s.state] ?? s.state}.{s.begun && s.state === "open" && " A run has begun already."}{s.expired && " Its input has expired, at least in part."}{s.marks > 0 && <> {count(s.marks, "mark")} wait{s.marks === 1 ? "s" : ""}{s.late > 0 && `, ${s.late} of them for the run of another slice`}{s.run_at !== undefined && `; the last is due at ${t(s.run_at)}`}.</>}</p>
      {s.runs > 0 ? (
        <p>{count(s.runs, "run")} by {s.worker} took {about(s.duration * 1000)}: {count(s.blocks, "block")}, {count(s.schedules, "row")}, {count(s.queries, "query", "queries")} instead of {s.n_plus_1.toLocaleString("en")}{s.dropped > 0 && <span class="bad-text">, {count(s.dropped, "mark")} given up because the input had expired</span>}.{s.runs_unknown && " Earlier runs are not known any more."}</p>
      ) : <p class="note">{s.runs_unknown ? "Its runs are not known any more." : "No run is on record."}</p>}
      {s.errors?.map((e, i) => <p key={i} class="bad-text">{e}</p>)}
    </div>
  );
}
