import { useEffect, useState } from "preact/hooks";
import { format } from "../address";
import { ask, request } from "../api";
import { expressionFor, quote } from "../explore/selector";
import { Link } from "../frame/Link";
import { poll } from "../poll";
import { usePreferences } from "../preferences";
import { ago, formatTime, second } from "../time";
import { listensForLines, readCounters, refusals, type Counters } from "./counters";

const most = 10_000; // sources that are remembered, which is what the server lists at most

interface Source {
  name: string;
  derived: boolean;
  series: number;
  last?: number;
  samples: number;
}

interface SourceList {
  total: number;
  sources: Source[];
  metrics?: { name: string; series: number }[];
}

interface Unkept {
  path: string;
  sender: string;
  reason: string;
  count: number;
  message: string;
}

/** Seen is what the server says at one time. */
interface Seen {
  sources: SourceList;
  counters: Counters;
  unkept: Unkept[];
  lines: boolean;
}

/** Arrived is what a source has sent since the view was opened. */
interface Arrived extends Source {
  isNew: boolean;
}

const keyOf = (s: Source) => `${s.derived} ${s.name}`;
const nameOf = (s: Source) => s.name || "a sender whose series name no source";
const unkeptKey = (u: Unkept) => `${u.path} ${u.sender} ${u.reason}`;
const n = (v: number) => v.toLocaleString("en");

async function look(limit: number, signal: AbortSignal): Promise<Seen> {
  const [sources, text, { unkept }] = await Promise.all([
    ask<SourceList>("GET", "/api/v1/sources", [["sort", "last"], ["limit", String(limit)]], signal),
    request("GET", "/metrics", [], signal).then((r) => r.text()),
    ask<{ unkept?: Unkept[] }>("GET", "/api/v1/status/aggregation", [], signal),
  ]);
  return { sources, counters: readCounters(text), unkept: unkept ?? [], lines: listensForLines(text) };
}

/** arrived returns what came since the first look, new sources first. */
function arrived(first: SourceList, now: SourceList): Arrived[] {
  const before = new Map(first.sources.map((s) => [keyOf(s), s]));
  const whole = first.sources.length === first.total; // otherwise an unknown source need not be new
  const out: Arrived[] = [];
  for (const s of now.sources) {
    const was = before.get(keyOf(s));
    const samples = s.samples - (was?.samples ?? 0);
    if (samples > 0) out.push({ ...s, samples, isNew: !was && whole });
  }
  return out.sort((a, b) => Number(b.isNew) - Number(a.isNew) || (b.last ?? 0) - (a.last ?? 0));
}

/** Arrivals shows what has arrived since the view was opened, and what the server did not take meanwhile. */
export function Arrivals({ setListens }: { setListens: (listens: boolean) => void }) {
  const { zone } = usePreferences();
  const [since] = useState(Date.now);
  const [first, setFirst] = useState<Seen>();
  const [now, setNow] = useState<Seen>();
  const [failure, setFailure] = useState("");
  const [metrics, setMetrics] = useState<{ of: string; names: string[]; more: number }>();

  useEffect(() => {
    let begun = false;
    return poll({
      every: 2 * second,
      look: async (signal) => {
        const seen = await look(begun ? 200 : most, signal);
        if (!begun) setFirst(seen);
        begun = true;
        setNow(seen);
        setListens(seen.lines);
        setFailure("");
      },
      failed: (err) => setFailure(err.message),
      // The first look is what the later ones are compared with.
      asksHidden: () => !begun,
    });
  }, []);

  const list = first && now ? arrived(first.sources, now.sources) : [];
  const found = list[0]?.isNew ? list[0] : undefined;
  useEffect(() => {
    if (!found) return;
    const stop = new AbortController();
    ask<SourceList>("GET", "/api/v1/sources", [["source", found.name], ["derived", String(found.derived)], ["limit", "8"]], stop.signal).then((s) => {
      const all = s.metrics ?? [];
      setMetrics({ of: keyOf(found), names: all.map((m) => m.name), more: found.series - all.reduce((sum, m) => sum + m.series, 0) });
    }, () => undefined); // the list of sources says as much as is known
    return () => stop.abort();
  }, [found && keyOf(found), found?.series]);

  const refused = first && now ? refusals(first.counters, now.counters) : [];
  const before = new Map(first?.unkept.map((u) => [unkeptKey(u), u.count]));
  const lost = (now?.unkept ?? []).filter((u) => u.count > (before.get(unkeptKey(u)) ?? 0));
  const link = (metric: string, s: Source) => format("/explore", [["q", s.derived ? expressionFor(metric, undefined) : `{__name__=${quote(metric)},source=${quote(s.name)}}`], ["range", "15m"]]);
  return (
    <aside class="card panel arrivals" aria-label="What arrives">
      <header><h2>What arrives</h2><span class="note">since {formatTime(Math.floor(since / 1000) * 1000, zone)}</span></header>
      <div class="card-body">
        {failure && <p class="banner bad" role="alert">{failure}</p>}
        {!now ? !failure && <p class="note" role="status">Asking…</p> : (
          <>
            <div role="status">
              {found ? (
                <p class="banner good"><span><b>{nameOf(found)}</b> sends: {n(found.samples)} {found.samples === 1 ? "sample" : "samples"} of {n(found.series)} series.</span></p>
              ) : (
                <p class="waiting"><span class="pulse" aria-hidden="true" />Waiting for the first report of a new sender…</p>
              )}
            </div>
            {found && metrics?.of === keyOf(found) && (
              <ul class="arrived-metrics">
                {metrics.names.map((m) => <li key={m}><Link class="mono" href={link(m, found)}>{m}</Link></li>)}
                {metrics.more > 0 && <li class="note">and {n(metrics.more)} more series: <Link href={format("/metrics-explorer", [["tab", "sources"], ["source", found.name], ["derived", found.derived ? "true" : ""]])}>all its metrics</Link></li>}
              </ul>
            )}
            {list.length > (found ? 1 : 0) && (
              <>
                <h3>{found ? "Others" : "Known senders"} that report</h3>
                <table>
                  <thead><tr><th>Source</th><th class="n">Samples</th><th>Last</th></tr></thead>
                  <tbody>{list.slice(found ? 1 : 0, 9).map((s) => <tr key={keyOf(s)}><td class="mono">{nameOf(s)}{s.isNew && <span class="tag good">new</span>}</td><td class="n">{n(s.samples)}</td><td>{s.last === undefined ? "" : ago(s.last, Date.now())}</td></tr>)}</tbody>
                </table>
                {list.length > 9 && <p class="note">and {n(list.length - 9)} more sources</p>}
              </>
            )}
            <h3>Not taken meanwhile</h3>
            <div role="status">{refused.length + lost.length === 0 ? <p class="note">Nothing was refused or lost.</p> : (
              <ul class="refused">
                {refused.map((r) => <li key={r.what}><b>{r.what}: {n(r.count)}</b><br />{r.help}</li>)}
                {lost.map((u) => <li key={unkeptKey(u)}><b>{u.sender}</b>, {u.path}: {u.message}</li>)}
              </ul>
            )}</div>
            <p class="note">Only what this process takes is counted{first!.sources.total > first!.sources.sources.length && "; there are too many sources to tell new ones from known ones"}.</p>
          </>
        )}
      </div>
    </aside>
  );
}
