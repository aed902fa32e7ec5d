import { useEffect, useState } from "preact/hooks";
import { ask, Failure, gone, type Answer } from "../api";
import { useDoing } from "../dashboards/dialogs";
import { idOf } from "../dashboards/model";
import { Dialog } from "../frame/Dialog";
import { Plus } from "../frame/icons";
import { may, useWho } from "../frame/who";

/** Group names some metrics and sources. An empty list stands for all. */
export interface Group {
  name: string;
  metrics: string[];
  sources: string[];
}

interface Stored {
  id: string;
  version: number;
  group: Group;
}

const path = "/api/v1/groups";
const at = (id: string) => `${path}/${encodeURIComponent(id)}`;
const mostNames = 1000;

export interface Groups {
  all: [id: string, name: string][];
  /** group is the chosen one, once it is known. */
  group: Stored | undefined;
  failure: string;
  again: () => void;
  /** has returns whether a name is shown: nothing is until the chosen group is known. */
  has: (what: "metrics" | "sources", name: string) => boolean;
}

/** useGroups returns the groups of the server. */
export function useGroups(chosen: string): Groups {
  const [all, setAll] = useState<[string, string][]>([]);
  const [group, setGroup] = useState<Stored>();
  const [failure, fail] = useState("");
  const [turn, setTurn] = useState(0);
  const failed = (err: unknown) => {
    if (!gone(err)) fail(Failure.of(err).message);
  };
  useEffect(() => {
    const stop = new AbortController();
    ask<Answer<{ id: string; name: string }[]>>("GET", path, [], stop.signal).then(({ data }) => setAll(data.map((g) => [g.id, g.name])), failed);
    return () => stop.abort();
  }, [turn]);
  useEffect(() => {
    setGroup(undefined);
    fail("");
    if (!chosen) return;
    const stop = new AbortController();
    ask<Answer<Stored>>("GET", at(chosen), [], stop.signal).then(({ data }) => setGroup(data), failed);
    return () => stop.abort();
  }, [chosen, turn]);
  const known = group?.id === chosen ? group : undefined;
  const has: Groups["has"] = (what, name) => {
    if (!known) return !chosen || !!failure;
    const names = known.group[what];
    return !names.length || names.includes(name);
  };
  return { all, group: known, failure, again: () => setTurn((n) => n + 1), has };
}

/** GroupBar chooses a group. Found are the names that a new one begins with. */
export function GroupBar({ groups, chosen, choose, found }: { groups: Groups; chosen: string; choose: (id: string) => void; found: Omit<Group, "name"> }) {
  const who = useWho();
  const [editing, setEditing] = useState<Stored>();
  const { all, group, again } = groups;
  return (
    <span class="row">
      <label class="field">Group
        <select name="group" value={chosen} onChange={(e) => choose(e.currentTarget.value)}>
          <option value="">all</option>
          {all.map(([id, name]) => <option key={id} value={id}>{name}</option>)}
          {chosen && !all.some(([id]) => id === chosen) && <option value={chosen}>{chosen}</option>}
        </select>
      </label>
      {may(who, "write") && (
        <>
          {group && <button type="button" onClick={() => setEditing(group)}>Change group…</button>}
          <button type="button" onClick={() => setEditing({ id: "", version: 0, group: { name: "", metrics: found.metrics.slice(0, mostNames), sources: found.sources.slice(0, mostNames) } })}><Plus />New group</button>
        </>
      )}
      {editing && <Editor was={editing} close={() => setEditing(undefined)} saved={(id) => {
        setEditing(undefined);
        again();
        choose(id);
      }} />}
    </span>
  );
}

const namesOf = (text: string): string[] => [...new Set(text.split("\n").map((l) => l.trim()).filter(Boolean))];

function Editor({ was, saved, close }: { was: Stored; saved: (id: string) => void; close: () => void }) {
  const [name, setName] = useState(was.group.name);
  const [metrics, setMetrics] = useState(was.group.metrics.join("\n"));
  const [sources, setSources] = useState(was.group.sources.join("\n"));
  const { busy, wrong, run } = useDoing();
  const save = async () => {
    const id = was.id || idOf(name.trim());
    const body: Group = { name: name.trim(), metrics: namesOf(metrics), sources: namesOf(sources) };
    // The number of a deletion is the base of a new group under its id.
    const put = (base: number) => ask("PUT", at(id), [["base", String(base)]], undefined, JSON.stringify(body));
    try {
      await put(was.version);
    } catch (err) {
      if (!(err instanceof Failure && err.status === 409)) throw err;
      const there = await ask("GET", at(id)).then(() => true, () => false);
      if (there && was.id) throw new Failure("Somebody else has changed this group meanwhile. Close this, and look at what it has now.", 409);
      if (there) throw new Failure(`There is a group ${id} already: choose another name.`, 409);
      await put(Number(err.details["newest"]));
    }
    saved(id);
  };
  const names = (label: string, field: string, text: string, set: (t: string) => void) => (
    <label><span>{label}, one in a line; none for all</span><textarea name={field} class="mono" rows={7} value={text} spellcheck={false} onInput={(e) => set(e.currentTarget.value)} /></label>
  );
  return (
    <Dialog title={was.id ? "Change the group" : "New group"} close={close}>
      <form class="form" onSubmit={(e) => {
        e.preventDefault();
        run(save);
      }}>
        <label><span>Name</span><input type="text" name="name" required value={name} autocomplete="off" onInput={(e) => setName(e.currentTarget.value)} /></label>
        {names("Metrics", "metrics", metrics, setMetrics)}
        {names("Sources", "sources", sources, setSources)}
        {wrong && <p class="banner bad" role="alert">{wrong}</p>}
        <div class="dialog-end">
          {was.id && <button type="button" class="first danger" disabled={busy} onClick={() => run(async () => {
            await ask("DELETE", at(was.id), [["base", String(was.version)]]);
            saved("");
          })}>Delete the group</button>}
          <button type="submit" class="primary" disabled={busy || !name.trim()}>Save</button>
        </div>
      </form>
    </Dialog>
  );
}
