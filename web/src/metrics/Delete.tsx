import { useEffect, useRef, useState } from "preact/hooks";
import { ask, Failure, gone, request, type Answer, type Params, type Result } from "../api";
import { quote } from "../explore/selector";
import { Dialog } from "../frame/Dialog";
import { may, useWho } from "../frame/who";
import type { Status } from "../grinding/wire";
import { usePreferences } from "../preferences";
import { day, formatTime, hour, minute, parseDuration, parseTime, second } from "../time";

const parts = 100; // into which the range is cut to find where samples are

interface Found {
  series: number;
  samples: number;
  /** first and last are when the first and the last part with samples begin and end. */
  first?: number;
  last?: number;
  /** unknown says why the samples cannot be counted. */
  unknown?: string;
}

interface Deleted {
  series: string;
  samples: string;
  rows: string;
  warnings: string[];
}

const n = (v: number | string) => Number(v).toLocaleString("en");
const message = (err: unknown) => (err instanceof Failure ? err.message : String(err));

/** Delete takes samples of a metric back, after it has shown how many there are. */
export function Delete({ metric, close }: { metric: string; close: (deleted: boolean) => void }) {
  const { zone } = usePreferences();
  const who = useWho();
  const [where, setWhere] = useState("");
  const [from, setFrom] = useState("");
  const [to, setTo] = useState("");
  const [wrong, setWrong] = useState("");
  const [range, setRange] = useState<{ start?: number; end?: number }>();
  const [found, setFound] = useState<Found>();
  const [typed, setTyped] = useState("");
  const [busy, setBusy] = useState(false);
  const [deleted, setDeleted] = useState<Deleted>();
  const stop = useRef(new AbortController());
  useEffect(() => () => stop.current.abort(), []);

  const selector = `{__name__=${quote(metric)}${where.trim() ? `,${where.trim()}` : ""}}`;
  // An empty time is no bound.
  const read = (text: string): number | undefined => {
    const t = text.trim();
    if (t === "now") return Date.now();
    const back = t.startsWith("-") ? parseDuration(t.slice(1)) : undefined;
    return back === undefined ? parseTime(t, zone) : Date.now() - back;
  };

  const look = async (e: Event) => {
    e.preventDefault();
    const start = from.trim() ? read(from) : undefined;
    const end = to.trim() ? read(to) : undefined;
    if ((from.trim() && start === undefined) || (to.trim() && end === undefined)) return setWrong("Write times as 2026-01-31 12:00, -6h for six hours ago, or now. Leave them empty for all samples.");
    if (start !== undefined && end !== undefined && start >= end) return setWrong("The range ends before it begins.");
    setWrong("");
    setBusy(true);
    try {
      setFound(await count(selector, start, end, stop.current.signal));
      setRange({ ...(start === undefined ? {} : { start }), ...(end === undefined ? {} : { end }) });
    } catch (err) {
      if (gone(err)) return;
      setWrong(message(err));
    }
    setBusy(false);
  };

  const run = async (e: Event) => {
    e.preventDefault();
    setBusy(true);
    setWrong("");
    const params: Params = [["match[]", selector]];
    if (range!.start !== undefined) params.push(["start", String(range!.start / second)]);
    if (range!.end !== undefined) params.push(["end", String(range!.end / second)]);
    try {
      const answer = await request("POST", "/api/v1/admin/tsdb/delete_series", params, stop.current.signal);
      const counts = Object.fromEntries([...(answer.headers.get("Quern-Deleted") ?? "").matchAll(/(\w+)=(\d+)/g)].map(([, name, v]) => [name!, v!]));
      const warning = answer.headers.get("Quern-Warning");
      setDeleted({ series: counts["series"] ?? "0", samples: counts["samples"] ?? "0", rows: counts["rows"] ?? "0", warnings: warning ? [warning] : [] });
    } catch (err) {
      if (gone(err)) return;
      setWrong(err instanceof Failure && !err.status ? `${err.message} A part may be deleted: ask again to delete the rest.` : message(err));
    }
    setBusy(false);
  };

  const refused = who && !may(who, "admin");
  const bounds = range && (range.start === undefined && range.end === undefined ? "all that is stored" : `${range.start === undefined ? "the first sample" : formatTime(range.start, zone)} to ${range.end === undefined ? "the last" : formatTime(range.end, zone)}`);
  return (
    <Dialog title={`Delete samples of ${metric}`} close={() => close(!!deleted)}>
      {refused ? (
        <p class="banner bad" role="alert">Deleting needs the role admin, and {who.name || "you"} {who.name ? "has" : "have"} only {who.roles.join(" and ") || "none"}.</p>
      ) : deleted ? (
        <div class="form" role="status">
          <p class="banner"><span><b>{n(deleted.samples)} samples of {n(deleted.series)} series are deleted.</b> {n(deleted.rows)} roll-up rows had them: the next runs compute these again, or take them back.</span></p>
          {deleted.warnings.map((w) => <p key={w} class="banner warn">{w}</p>)}
          <div class="dialog-end"><button type="button" class="primary" onClick={() => close(true)}>Close</button></div>
        </div>
      ) : !found ? (
        <form class="form" onSubmit={look}>
          <p class="note">Nothing restores deleted samples. Roll-ups whose raw samples have expired stay.</p>
          <label><span>Only series with, or empty for all</span><input type="text" name="where" class="mono" value={where} placeholder={'source="web-1"'} spellcheck={false} autocomplete="off" onInput={(e) => setWhere(e.currentTarget.value)} /></label>
          <label><span>From, or empty for the first sample</span><input type="text" name="from" class="mono" value={from} placeholder="2026-01-31 12:00" spellcheck={false} autocomplete="off" onInput={(e) => setFrom(e.currentTarget.value)} /></label>
          <label><span>To, or empty for the last sample</span><input type="text" name="to" class="mono" value={to} placeholder="-6h" spellcheck={false} autocomplete="off" onInput={(e) => setTo(e.currentTarget.value)} /></label>
          {wrong && <p class="banner bad" role="alert">{wrong}</p>}
          <div class="dialog-end"><button type="submit" class="primary" disabled={busy}>{busy ? "Looking…" : "Look what that is"}</button></div>
        </form>
      ) : (
        <form class="form" onSubmit={run}>
          <p><code>{selector}</code>, {bounds}</p>
          <p class={`banner ${found.series ? "warn" : ""}`} role="status"><span>
            {found.series === 0 ? "No series matches." : <>
              <b>{n(found.series)} series</b>{found.unknown !== undefined ? <>. Their samples cannot be counted: {found.unknown}</> : <>, <b>about {n(found.samples)} samples</b>{found.first !== undefined && <> from {formatTime(found.first, zone)} to {formatTime(found.last!, zone)}</>}</>}
            </>}
          </span></p>
          {found.series > 0 && <label><span>Write the name of the metric to delete them</span><input type="text" name="typed" class="mono" value={typed} spellcheck={false} autocomplete="off" onInput={(e) => setTyped(e.currentTarget.value)} /></label>}
          {busy && <p class="note">Deleting… If you close this, the deletion ends, and a part is deleted.</p>}
          {wrong && <p class="banner bad" role="alert">{wrong}</p>}
          <div class="dialog-end">
            <button type="button" disabled={busy} onClick={() => {
              setFound(undefined);
              setTyped("");
              setWrong("");
            }}>Back</button>
            <button type="submit" class="danger" disabled={busy || typed !== metric}>Delete</button>
          </div>
        </form>
      )}
    </Dialog>
  );
}

/** count asks how many series and samples a selector matches, and where the samples are. */
async function count(selector: string, start: number | undefined, end: number | undefined, signal: AbortSignal): Promise<Found> {
  const [{ series }, { levels }] = await Promise.all([
    ask<{ series: number }>("POST", "/api/v1/cardinality", [["match[]", selector], ["limit", "1"]], signal),
    ask<Status>("GET", "/api/v1/status/aggregation", [], signal),
  ]);
  if (!series) return { series, samples: 0 };
  const to = end ?? Date.now() + 10 * minute; // reports may be ahead by that much
  const from = start ?? levels[0]?.whole_from ?? to - 365 * day;
  // Where rows are read, counts are exact if the steps are whole rows.
  const size = (to - from) / parts;
  const unit = size <= hour ? minute : size <= 6 * hour ? hour : size <= day ? 6 * hour : day;
  const step = Math.ceil(size / unit) * unit;
  const begin = Math.floor(from / step) * step;
  try {
    const { data } = await ask<Answer<Result>>("POST", "/api/v1/query_range", [
      ["query", `sum(count_over_time(${selector}[${step / second}s]))`], ["start", String((begin + step) / second)], ["end", String((to + step) / second)], ["step", String(step / second)],
    ], signal);
    const values = data.resultType === "matrix" ? (data.result[0]?.values ?? []).filter(([, v]) => Number(v) > 0) : [];
    const samples = values.reduce((sum, [, v]) => sum + Number(v), 0);
    if (!values.length) return { series, samples };
    return { series, samples: Math.round(samples), first: Math.max(values[0]![0] * second - step, from), last: Math.min(values.at(-1)![0] * second, to) };
  } catch (err) {
    if (gone(err)) throw err;
    return { series, samples: 0, unknown: message(err) };
  }
}
