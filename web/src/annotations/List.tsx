import { useEffect, useRef, useState } from "preact/hooks";
import { Flag } from "../frame/icons";
import { Words } from "./Flags";
import { keyOf, mostShown, type Annotation, type Found } from "./wire";

interface Props {
  on: boolean;
  turn: (on: boolean) => void;
  found: Found | undefined;
  failure: string;
  /** elsewhere are the annotations about other series. */
  elsewhere: ReadonlySet<Annotation>;
  /** picked are the keys of those whose flag was pressed. */
  picked: string[];
  tags: string[];
  filterTags: (tags: string[]) => void;
  text: string;
  filterText: (text: string) => void;
  annotate: () => void;
  edit: (a: Annotation) => void;
}

const mostListed = 200;
const mostTags = 24;

/** List has the annotations of the time that is shown, the last one first, and finds some of them. */
export function List(p: Props) {
  const [text, setText] = useState(p.text);
  useEffect(() => setText(p.text), [p.text]);
  const list = useRef<HTMLUListElement>(null);
  useEffect(() => {
    if (p.picked.length) list.current?.querySelector<HTMLElement>("li.picked button")?.focus();
  }, [p.picked]);
  const all = p.found?.annotations ?? [];
  const known = [...new Set([...p.tags, ...all.flatMap((a) => a.tags)])].slice(0, mostTags);
  return (
    <section class="card annotations" aria-label="Annotations">
      <header>
        <h2>Annotations</h2>
        <label class="check"><input type="checkbox" checked={p.on} onChange={(e) => p.turn(e.currentTarget.checked)} />Show</label>
        {p.on && (
          <form class="field" role="search" onSubmit={(e) => {
            e.preventDefault();
            p.filterText(text.trim());
          }}>
            <input type="search" aria-label="Find in the texts" placeholder="Find in the texts" value={text} onInput={(e) => setText(e.currentTarget.value)} onBlur={() => p.filterText(text.trim())} />
          </form>
        )}
        <button type="button" class="push" onClick={p.annotate}><Flag />Annotate</button>
      </header>
      {p.on && (
        <div class="card-body">
          {p.failure && <p class="banner bad" role="alert">{p.failure}</p>}
          {!!known.length && (
            <div class="tags" role="group" aria-label="Only with the tags">
              {known.map((t) => <button key={t} type="button" class="tag" aria-pressed={p.tags.includes(t)} onClick={() => p.filterTags(p.tags.includes(t) ? p.tags.filter((x) => x !== t) : [...p.tags, t])}>{t}</button>)}
            </div>
          )}
          {p.found && !all.length && <p class="note">{p.tags.length || p.text ? "None of this time has all of that." : "Nobody has written anything about this time. Press a on the chart to annotate what the cursor is at."}</p>}
          {!!all.length && (
            <ul ref={list} class="notes">
              {all.slice(-mostListed).reverse().map((a) => (
                <li key={keyOf(a)} class={`${p.elsewhere.has(a) ? "dim" : ""}${p.picked.includes(keyOf(a)) ? " picked" : ""}`}>
                  <Words of={a} />
                  {a.selector && <div class="note"><span class="mono">{a.selector}</span>{p.elsewhere.has(a) && " · about other series"}</div>}
                  <button type="button" class="quiet" aria-label={`Edit the annotation: ${a.text.slice(0, 60) || a.tags.join(", ")}`} onClick={() => p.edit(a)}>Edit</button>
                </li>
              ))}
            </ul>
          )}
          {all.length > mostListed && <p class="note">The last {mostListed} of {all.length} are listed.</p>}
          {p.found?.more && <p class="note">There are more than {mostShown} in this time: the last ones are here. Show less time, or find some of them.</p>}
        </div>
      )}
    </section>
  );
}
