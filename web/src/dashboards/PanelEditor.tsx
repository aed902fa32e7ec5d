import { useLayoutEffect, useRef, useState } from "preact/hooks";
import { Query } from "../explore/Query";
import { unitNames } from "../explore/units";
import { Cross, Plus } from "../frame/icons";
import { NumberField, TextField } from "./fields";
import { kindNames, kinds, levelNames, levels, type Kind, type Level, type Panel, type Query as PanelQuery, type Threshold } from "./model";
import { PanelCard, type Context } from "./PanelCard";

/** above returns a threshold above those that there are. */
function above(all: Threshold[]): Threshold {
  const top = Math.max(...all.map((t) => t.from));
  return all.length ? { from: Number((top + (Math.abs(top) || 1) * 0.2).toPrecision(3)), level: "bad" } : { from: 0, level: "warn" };
}

/** PanelEditor changes one panel, beside a picture of it. Expressions are asked when they are run or left. */
export function PanelEditor({ panel: p, context, change, close }: { panel: Panel; context: Context; change: (p: Partial<Panel>, what: string) => void; close: () => void }) {
  const exprs = p.queries.map((q) => q.expr);
  const [ran, setRan] = useState(exprs);
  const run = () => setRan(exprs);
  useLayoutEffect(() => document.getElementById("panel-title")?.focus(), []);
  const set = (s: Partial<Panel>) => change(s, `panel ${p.id} ${Object.keys(s).join(" ")}`);
  const setQuery = (n: number, q: Partial<PanelQuery>) => change({ queries: p.queries.map((x, i) => (i === n ? { ...x, ...q } : x)) }, `panel ${p.id} query ${n} ${Object.keys(q).join(" ")}`);
  const setQueries = (queries: PanelQuery[]) => {
    change({ queries }, "");
    setRan(queries.map((q) => q.expr));
  };
  const preview = { ...p, queries: p.queries.map((q, n) => ({ ...q, expr: ran[n] ?? q.expr })) };
  const curves = p.kind === "timeseries";
  return (
    <div class="panel-editor">
      <section class={`card dash-panel preview kind-${p.kind}`} aria-label="Preview"><PanelCard panel={preview} context={context} /></section>
      <section class="card form card-body" aria-label="Panel">
        <div class="columns">
          <TextField id="panel-title" label="Title" value={p.title} set={(title) => set({ title })} />
          <label><span>Kind</span><select value={p.kind} onChange={(e) => {
            const kind = e.currentTarget.value as Kind;
            change({ kind, ...(kind !== "text" && !p.queries.length ? { queries: [{ expr: "", legend: "" }] } : {}) }, "");
          }}>{kinds.map((k) => <option key={k} value={k}>{kindNames[k]}</option>)}</select></label>
        </div>
        <TextField label="Description" value={p.description} set={(description) => set({ description })} />
        {p.kind === "text" ? (
          <label><span>Text, with <code># </code>headings, <code>- </code>lists, <code>**bold**</code>, <code>`code`</code> and [links](https://…)</span><textarea class="mono" rows={12} value={p.text} onInput={(e) => set({ text: e.currentTarget.value })} /></label>
        ) : (
          <>
            <div class="queries" role="group" aria-label="Expressions" onFocusOut={run}>
              {p.queries.map((q, n) => (
                <div key={n} class="panel-query">
                  <Expression n={n} expr={q.expr} alone={p.queries.length === 1} changed={(expr) => setQuery(n, { expr })} run={run}
                    remove={() => setQueries(p.queries.length > 1 ? p.queries.filter((_, i) => i !== n) : [{ expr: "", legend: "" }])} />
                  <label class="field">Legend <input type="text" class="mono" value={q.legend} placeholder="{{host}}" spellcheck={false} autocomplete="off" onInput={(e) => setQuery(n, { legend: e.currentTarget.value })} /></label>
                </div>
              ))}
            </div>
            <div class="row">
              <button type="button" onClick={run}>Run</button>
              <button type="button" onClick={() => setQueries([...p.queries, { expr: "", legend: "" }])}><Plus />Expression</button>
            </div>
            <div class="columns">
              <label><span>Unit</span><input type="text" list="unit-names" value={p.unit} placeholder="of the metric" spellcheck={false} onInput={(e) => set({ unit: e.currentTarget.value.trim() })} /></label>
              <datalist id="unit-names">{unitNames.map((u) => <option key={u} value={u} />)}</datalist>
              <NumberField label="Decimals" value={p.decimals} set={(n) => set({ decimals: n === undefined ? undefined : Math.min(Math.max(Math.round(n), 0), 10) })} hint="as needed" />
              {(curves || p.kind === "gauge") && <NumberField label="Minimum" value={p.min} set={(min) => set({ min })} hint={curves ? "of the values" : "0"} />}
              {(curves || p.kind === "gauge") && <NumberField label="Maximum" value={p.max} set={(max) => set({ max })} hint={curves ? "of the values" : "by the unit"} />}
            </div>
            {curves && <label class="check"><input type="checkbox" checked={p.stack} onChange={(e) => set({ stack: e.currentTarget.checked })} />Stacked</label>}
            {p.kind !== "heatmap" && (
              <fieldset>
                <legend>Thresholds</legend>
                {p.thresholds.map((t, n) => {
                  const setOne = (s: Partial<typeof t>) => change({ thresholds: p.thresholds.map((x, i) => (i === n ? { ...x, ...s } : x)) }, `panel ${p.id} threshold ${n}`);
                  return (
                    <div key={n} class="row">
                      <NumberField label="From" value={t.from} set={(from) => from !== undefined && setOne({ from })} />
                      <label><span>Level</span><select value={t.level} onChange={(e) => setOne({ level: e.currentTarget.value as Level })}>{levels.map((l) => <option key={l} value={l}>{levelNames[l]}</option>)}</select></label>
                      <button type="button" class="quiet icon" aria-label={`Remove threshold ${n + 1}`} onClick={() => change({ thresholds: p.thresholds.filter((_, i) => i !== n) }, "")}><Cross /></button>
                    </div>
                  );
                })}
                <button type="button" onClick={() => change({ thresholds: [...p.thresholds, above(p.thresholds)] }, "")}><Plus />Threshold</button>
              </fieldset>
            )}
          </>
        )}
        <div class="dialog-end"><button type="button" class="primary" onClick={close}>Done</button></div>
      </section>
    </div>
  );
}

/** Expression is an editor of what is changed by typing, and also from outside, such as by undoing. */
function Expression({ n, expr, alone, changed, run, remove }: { n: number; expr: string; alone: boolean; changed: (expr: string) => void; run: () => void; remove: () => void }) {
  // What was typed here comes back a moment later, when more may have been typed. Only another text makes another editor.
  const typed = useRef(expr);
  const given = useRef({ text: expr, turn: 0 });
  if (expr !== typed.current) {
    typed.current = expr;
    given.current = { text: expr, turn: given.current.turn + 1 };
  }
  return (
    <Query key={given.current.turn} n={n} text={given.current.text} alone={alone} mark={undefined} run={run} remove={remove} under={null} changed={(text) => {
      typed.current = text;
      changed(text);
    }} />
  );
}
