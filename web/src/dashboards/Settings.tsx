import { Dialog } from "../frame/Dialog";
import { Cross, Plus } from "../frame/icons";
import { ListField, SpanField, TextField } from "./fields";
import { newVariable, variableKinds, type Dashboard, type Variable } from "./model";

const kindNames: Record<Variable["kind"], string> = { label: "values of a label", list: "a list", text: "any text" };

/** Settings changes what a dashboard is besides its panels. */
export function Settings({ dashboard: d, change, close }: { dashboard: Dashboard; change: (to: (d: Dashboard) => Dashboard, what: string) => void; close: () => void }) {
  const set = (s: Partial<Dashboard>) => change((before) => ({ ...before, ...s }), `settings ${Object.keys(s).join(" ")}`);
  const setVariable = (n: number, v: Partial<Variable>) => change((before) => ({ ...before, variables: before.variables.map((x, i) => (i === n ? { ...x, ...v } : x)) }), `variable ${n} ${Object.keys(v).join(" ")}`);
  const setVariables = (variables: Variable[]) => change((before) => ({ ...before, variables }), "");
  return (
    <Dialog title="Settings of the dashboard" close={close}>
      <div class="form settings">
        <TextField label="Title" value={d.title} set={(title) => set({ title })} />
        <label><span>Description</span><textarea rows={2} value={d.description} onInput={(e) => set({ description: e.currentTarget.value })} /></label>
        <div class="columns">
          <ListField label="Tags" value={d.tags} set={(tags) => set({ tags })} hint="host, production" />
          <SpanField label="Range" value={d.range} set={(range) => set({ range })} hint="1h" />
          <SpanField label="Ask again every" value={d.refresh} set={(refresh) => set({ refresh })} hint="never" />
        </div>
        <h3>Variables</h3>
        <p class="note">In expressions, <code>$name</code> becomes the chosen value. One that takes several is used with <code>=~</code>.</p>
        {d.variables.map((v, n) => (
          <fieldset key={n}>
            <legend>{v.name ? `$${v.name}` : "New variable"}</legend>
            <div class="columns">
              <TextField label="Name" value={v.name} set={(name) => setVariable(n, { name: name.trim() })} mono hint="host" />
              <TextField label="Label" value={v.label} set={(label) => setVariable(n, { label })} hint={v.name} />
              <label><span>Values</span><select value={v.kind} onChange={(e) => setVariable(n, { kind: e.currentTarget.value as Variable["kind"] })}>{variableKinds.map((k) => <option key={k} value={k}>{kindNames[k]}</option>)}</select></label>
            </div>
            <div class="columns">
              {v.kind === "label" && <TextField label="Of the label" value={v.of} set={(of) => setVariable(n, { of: of.trim() })} mono hint="host" />}
              {v.kind === "label" && <TextField label="Among the series of" value={v.selector} set={(selector) => setVariable(n, { selector })} mono hint="all, or cpu_usage_ratio" />}
              {v.kind === "list" && <ListField label="List" value={v.values} set={(values) => setVariable(n, { values })} hint="0.5, 0.99" />}
              {v.kind === "text" ? <TextField label="Chosen at first" value={v.value[0] ?? ""} set={(text) => setVariable(n, { value: [text] })} mono />
                : <ListField label="Chosen at first" value={v.value} set={(value) => setVariable(n, { value })} hint={v.multi ? "all" : "the first"} />}
            </div>
            <div class="row">
              {v.kind !== "text" && <label class="check"><input type="checkbox" checked={v.multi} onChange={(e) => setVariable(n, { multi: e.currentTarget.checked })} />Several values</label>}
              <button type="button" class="quiet push" onClick={() => setVariables(d.variables.filter((_, i) => i !== n))}><Cross />Remove</button>
            </div>
          </fieldset>
        ))}
        <div><button type="button" onClick={() => setVariables([...d.variables, newVariable("")])}><Plus />Variable</button></div>
        <div class="dialog-end"><button type="button" class="primary" onClick={close}>Done</button></div>
      </div>
    </Dialog>
  );
}
