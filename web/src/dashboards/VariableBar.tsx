import { useState } from "preact/hooks";
import { Menu } from "./Menu";
import type { Variable } from "./model";
import type { Chosen, Options } from "./variables";

const mostShown = 200;

const nameOf = (v: Variable): string => v.label || v.name;

/** VariableBar chooses the values of variables. */
export function VariableBar({ variables, values, options, choose }: { variables: Variable[]; values: Chosen; options: Options; choose: (name: string, value: string[]) => void }) {
  const named = variables.filter((v) => v.name);
  if (!named.length) return null;
  return (
    <div class="toolbar variables" role="group" aria-label="Variables">
      {named.map((v) => {
        const now = values.get(v.name) ?? [];
        const found = v.kind === "label" ? options.get(v.name) : { values: v.values };
        const all = [...new Set([...(found?.values ?? []), ...now])];
        const set = (value: string[]) => choose(v.name, value);
        return (
          <span key={v.name} class="variable">
            {v.kind === "text" ? <TextField name={nameOf(v)} value={now[0] ?? ""} set={(text) => set([text])} />
              : v.multi ? <Several name={nameOf(v)} all={all} now={now} set={set} />
              : (
                <label class="field">{nameOf(v)}
                  <select value={now[0] ?? ""} onChange={(e) => set([e.currentTarget.value])}>{all.map((x) => <option key={x} value={x}>{x}</option>)}</select>
                </label>
              )}
            {found?.failure && <span class="note bad" role="alert">{nameOf(v)}: {found.failure}</span>}
          </span>
        );
      })}
    </div>
  );
}

function TextField({ name, value, set }: { name: string; value: string; set: (text: string) => void }) {
  const [text, setText] = useState<string>();
  const done = () => {
    if (text !== undefined && text !== value) set(text);
    setText(undefined);
  };
  return (
    <form class="field" onSubmit={(e) => {
      e.preventDefault();
      done();
    }}>
      <label class="field">{name} <input type="text" size={14} class="mono" value={text ?? value} spellcheck={false} autocomplete="off" onInput={(e) => setText(e.currentTarget.value)} onBlur={done} /></label>
    </form>
  );
}

/** Several chooses any number of values; none means all. */
function Several({ name, all, now, set }: { name: string; all: string[]; now: string[]; set: (value: string[]) => void }) {
  const [find, setFind] = useState("");
  const some = all.filter((x) => x.toLowerCase().includes(find.toLowerCase()));
  const text = now.length === 0 ? "all" : now.length <= 2 ? now.join(", ") : `${now.length} of ${all.length}`;
  return (
    <Menu class="several" text={<><span class="variable-name">{name}</span> <b>{text}</b></>}>
      {() => (
        <>
          <input type="search" aria-label={`Find in ${name}`} placeholder="Find" value={find} spellcheck={false} onInput={(e) => setFind(e.currentTarget.value)} />
          <label class="check"><input type="checkbox" checked={now.length === 0} onChange={() => set([])} />all</label>
          {some.slice(0, mostShown).map((x) => (
            <label key={x} class="check"><input type="checkbox" checked={now.includes(x)} onChange={(e) => set(e.currentTarget.checked ? [...now, x] : now.filter((y) => y !== x))} /><span class="mono">{x}</span></label>
          ))}
          {some.length > mostShown && <p class="note">{some.length - mostShown} more: find by a part.</p>}
        </>
      )}
    </Menu>
  );
}
