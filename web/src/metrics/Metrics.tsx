import type { ComponentChildren } from "preact";
import { useEffect, useState } from "preact/hooks";
import { format, go, useAddress } from "../address";
import { ask, Failure, gone, type Answer, type Params } from "../api";
import { expressionFor, quote } from "../explore/selector";
import { noUnit, unitOfMetric, type Metadata } from "../explore/units";
import { Trash } from "../frame/icons";
import { Link } from "../frame/Link";
import { usePreferences } from "../preferences";
import { ago, formatTime } from "../time";
import { Delete } from "./Delete";
import { GroupBar, useGroups } from "./Groups";

const tabs = [["metrics", "Metrics"], ["sources", "Sources"], ["cardinality", "Cardinality"]] as const;
const most = 500; // rows shown at once

const n = (v: number) => v.toLocaleString("en");
const bytes = unitOfMetric("x_bytes", undefined).write;

/** Metrics shows what is stored, who sends it, and what makes it many. */
export function Metrics() {
  const { query } = useAddress();
  const tab = tabs.find(([t]) => t === query.get("tab"))?.[0] ?? "metrics";
  return (
    <div class="stack">
      <div class="row">
        <h1>Metrics</h1>
        <span class="group" role="group" aria-label="What is listed">
          {tabs.map(([t, name]) => <button key={t} type="button" aria-pressed={t === tab} onClick={() => go(format("/metrics-explorer", [["tab", t === "metrics" ? "" : t], ["group", query.get("group") ?? ""]]))}>{name}</button>)}
        </span>
      </div>
      {tab === "metrics" ? <Catalogue /> : tab === "sources" ? <Sources /> : <Cardinality />}
    </div>
  );
}

/** useAnswer asks once for each change of what is asked, and of the turn. */
function useAnswer<T>(path: string, params: Params, turn = 0): { answer?: T; failure?: string } {
  const [state, set] = useState<{ answer?: T; failure?: string }>({});
  const key = JSON.stringify([path, params, turn]);
  useEffect(() => {
    const stop = new AbortController();
    ask<T>("GET", path, params, stop.signal).then((answer) => set({ answer }), (err) => {
      if (!gone(err)) set({ failure: err instanceof Failure ? err.message : String(err) });
    });
    return () => stop.abort();
  }, [key]);
  return state;
}

function State({ failure, children }: { failure: string | undefined; children?: ComponentChildren }) {
  return failure ? <p class="banner bad" role="alert">{failure}</p> : <p class="note" role="status">{children ?? "Asking…"}</p>;
}

const set = (change: [string, string][]) => {
  const query = new URLSearchParams(location.search);
  for (const [name, value] of change) if (value) query.set(name, value); else query.delete(name);
  go(format("/metrics-explorer", [...query]), "replace");
};

interface Counted {
  series: number;
  label_names: number;
  label_pairs: number;
  metrics: { name: string; series: number }[];
  labels: { name: string; values: number; series: number; bytes: number }[];
  values: { label: string; value: string; series: number }[];
  sources: { name: string; series: number }[];
  days?: { start: number; last: number; met: number }[];
  met_since?: number;
  warnings?: string[];
}

function Catalogue() {
  const { query } = useAddress();
  const find = query.get("find") ?? "";
  const [turn, setTurn] = useState(0);
  const [deleting, setDeleting] = useState("");
  const names = useAnswer<Answer<string[]>>("/api/v1/label/__name__/values", [], turn);
  const known = useAnswer<Answer<Record<string, Metadata[]>>>("/api/v1/metadata", []);
  const counted = useAnswer<Counted>("/api/v1/cardinality", [["limit", "10000"]], turn);
  const chosen = query.get("group") ?? "";
  const groups = useGroups(chosen);
  if (!names.answer) return <State failure={names.failure} />;
  const series = new Map(counted.answer?.metrics.map((m) => [m.name, m.series]));
  const wanted = find.toLowerCase();
  const rows = names.answer.data.map((name) => ({ name, m: known.answer?.data[name]?.[0] })).filter(({ name }) => groups.has("metrics", name)).filter(({ name, m }) => !wanted || name.toLowerCase().includes(wanted) || m?.help.toLowerCase().includes(wanted));
  return (
    <section class="card">
      <header>
        <label class="field">Find <input type="search" value={find} spellcheck={false} onInput={(e) => set([["find", e.currentTarget.value]])} /></label>
        <GroupBar groups={groups} chosen={chosen} choose={(id) => set([["group", id]])} found={{ metrics: rows.map((r) => r.name), sources: [] }} />
        <span class="note">{rows.length === names.answer.data.length ? `${n(rows.length)} metrics` : `${n(rows.length)} of ${n(names.answer.data.length)} metrics`}</span>
        {[counted.failure, groups.failure].map((f) => f && <span key={f} class="note bad">{f}</span>)}
      </header>
      <div class="scroll" tabIndex={0} role="region" aria-label="Metrics, listed">
        <table>
          <thead><tr><th>Metric</th><th>Type</th><th>Unit</th><th class="n">Series</th><th>Help</th><th><span class="visually-hidden">Delete</span></th></tr></thead>
          <tbody>
            {rows.slice(0, most).map(({ name, m }) => (
              <tr key={name}>
                <td><Link class="mono" href={format("/explore", [["q", expressionFor(name, m?.type)], ["range", "1h"]])}>{name}</Link></td>
                <td>{m?.type && m.type !== "unknown" ? m.type : ""}</td>
                <td>{m?.unit || unitOfMetric(name, m).name}</td>
                <td class="n">{series.has(name) ? n(series.get(name)!) : ""}</td>
                <td class="text">{m?.help}</td>
                <td class="n"><button type="button" class="quiet icon" aria-label={`Delete samples of ${name}…`} title="Delete samples…" onClick={() => setDeleting(name)}><Trash /></button></td>
              </tr>
            ))}
          </tbody>
        </table>
      </div>
      {rows.length > most && <p class="note card-body">{n(rows.length - most)} more: find by a part of the name.</p>}
      {!names.answer.data.length && <p class="note card-body">Nothing is stored yet. <Link href="/send">Send</Link> says how to begin.</p>}
      {deleting && <Delete metric={deleting} close={(deleted) => {
        setDeleting("");
        if (deleted) setTurn((n) => n + 1);
      }} />}
    </section>
  );
}

interface SourceList {
  since: number;
  total: number;
  sources: { name: string; derived: boolean; series: number; last?: number; samples: number; bytes: number }[];
  metrics?: { name: string; series: number }[];
  forgotten?: number;
}

const orders = [["samples", "most samples"], ["bytes", "most bytes"], ["series", "most series"], ["last", "latest report"], ["silent", "longest silent"], ["name", "name"]] as const;

function Sources() {
  const { query } = useAddress();
  const { zone } = usePreferences();
  const sort = orders.find(([o]) => o === query.get("sort"))?.[0] ?? "samples";
  const source = query.get("source") ?? "";
  const derived = query.get("derived") ?? "";
  const chosen = query.get("group") ?? "";
  const { answer, failure } = useAnswer<SourceList>("/api/v1/sources", [["sort", sort], ["limit", chosen ? "10000" : "200"]]);
  const one = useAnswer<SourceList>("/api/v1/sources", source ? [["source", source], ["limit", "200"], ...(derived ? [["derived", derived] as [string, string]] : [])] : [["limit", "1"]]);
  const groups = useGroups(chosen);
  if (!answer) return <State failure={failure} />;
  const now = Date.now();
  const rows = answer.sources.filter((s) => groups.has("sources", s.name));
  return (
    <div class={`layout${source ? " with-panel" : ""}`}>
      <section class="card">
        <header>
          <label class="field">Order <select value={sort} onChange={(e) => set([["sort", e.currentTarget.value]])}>{orders.map(([o, text]) => <option key={o} value={o}>{text}</option>)}</select></label>
          <GroupBar groups={groups} chosen={chosen} choose={(id) => set([["group", id]])} found={{ metrics: [], sources: rows.map((s) => s.name) }} />
          {groups.failure && <span class="note bad">{groups.failure}</span>}
          <span class="note">{rows.length < answer.total ? `${n(rows.length)} of ${n(answer.total)} sources` : `${n(answer.total)} sources`}. Samples, bytes and reports since {formatTime(Math.round(answer.since / 1000) * 1000, zone)}, by this process.</span>
        </header>
        <div class="scroll" tabIndex={0} role="region" aria-label="Sources, listed">
          <table>
            <thead><tr><th>Source</th><th>Last report</th><th class="n">Series</th><th class="n">Samples</th><th class="n">Bytes</th></tr></thead>
            <tbody>
              {rows.map((s) => (
                <tr key={`${s.name} ${s.derived}`}>
                  <td><button type="button" class="sort link mono" aria-pressed={s.name === source} onClick={() => set([["source", s.name === source ? "" : s.name], ["derived", s.derived && s.name !== source ? "true" : ""]])}>{s.name}</button></td>
                  <td title={s.last === undefined ? "" : formatTime(s.last, zone)}>{s.last === undefined ? <span class="note">none</span> : ago(s.last, now)}</td>
                  <td class="n">{n(s.series)}</td><td class="n">{n(s.samples)}</td><td class="n">{bytes(s.bytes)}</td>
                </tr>
              ))}
            </tbody>
          </table>
        </div>
      </section>
      {source && (
        <aside class="card panel" aria-label="Metrics of the source">
          <header><h2>{source}</h2></header>
          {one.answer?.metrics ? (
            <table>
              <thead><tr><th>Metric</th><th class="n">Series</th></tr></thead>
              <tbody>{one.answer.metrics.filter((m) => groups.has("metrics", m.name)).map((m) => <tr key={m.name}><td><Link class="mono" href={format("/explore", [["q", derived ? expressionFor(m.name, undefined) : `{__name__=${quote(m.name)},source=${quote(source)}}`], ["range", "1h"]])}>{m.name}</Link></td><td class="n">{n(m.series)}</td></tr>)}</tbody>
            </table>
          ) : <div class="card-body"><State failure={one.failure} /></div>}
        </aside>
      )}
    </div>
  );
}

function Cardinality() {
  const { zone } = usePreferences();
  const { answer, failure } = useAnswer<Counted>("/api/v1/cardinality", [["limit", "30"], ["days", "8"]]);
  if (!answer) return <State failure={failure}>Counting…</State>;
  const table = (title: string, head: string[], rows: (string | number)[][]) => (
    <section class="card" aria-label={title}>
      <header><h2>{title}</h2></header>
      <div class="scroll" tabIndex={0} role="region" aria-label={`${title}, listed`}>
        <table>
          <thead><tr>{head.map((h, i) => <th key={h} class={typeof rows[0]?.[i] === "number" ? "n" : ""}>{h}</th>)}</tr></thead>
          <tbody>{rows.map((r, i) => <tr key={i}>{r.map((c, k) => (typeof c === "number" ? <td key={k} class="n">{n(c)}</td> : <td key={k} class="mono text">{c}</td>))}</tr>)}</tbody>
        </table>
      </div>
    </section>
  );
  return (
    <>
      {answer.warnings?.map((w) => <p key={w} class="banner warn">{w}</p>)}
      <div class="tiles">
        <div class="card tile"><span>Series</span><b>{noUnit.write(answer.series)}</b><span>{n(answer.series)} in all, also those that have ended</span></div>
        <div class="card tile"><span>Labels</span><b>{n(answer.label_names)}</b><span>with {n(answer.label_pairs)} values</span></div>
        {answer.days && answer.met_since !== undefined && <div class="card tile"><span>New series</span><b>{n(answer.days.reduce((s, d) => s + d.met, 0))}</b><span>since this process started, {formatTime(Math.round(answer.met_since / 1000) * 1000, zone)}</span></div>}
      </div>
      <div class="two">
        {table("Series by metric", ["Metric", "Series"], answer.metrics.map((m) => [m.name, m.series]))}
        {table("Series by label", ["Label", "Values", "Series", "Bytes in memory"], answer.labels.map((l) => [l.name, l.values, l.series, bytes(l.bytes)]))}
        {table("Series by value", ["Value", "Series"], answer.values.map((v) => [`${v.label}=${quote(v.value)}`, v.series]))}
        {table("Series by source", ["Source", "Series"], answer.sources.map((s) => [s.name, s.series]))}
        {answer.days && table("New and vanished by day (UTC)", ["Day", "New", "Last sample"], answer.days.map((d) => [new Date(d.start).toISOString().slice(0, 10), d.met, d.last]))}
      </div>
    </>
  );
}
