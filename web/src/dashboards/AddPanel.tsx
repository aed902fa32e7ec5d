import { useEffect, useState } from "preact/hooks";
import { Failure, gone } from "../api";
import { Dialog } from "../frame/Dialog";
import { Link } from "../frame/Link";
import { may, useWho } from "../frame/who";
import { append } from "./arrange";
import { useDoing } from "./dialogs";
import { emptyDashboard, newPanel, nextId, type Dashboard, type Kind } from "./model";
import { addressOf, create, list, load, put, type Listed } from "./store";

const attempts = 5; // to save, while others save the same dashboard

/** Added is what becomes a panel. */
export interface Added {
  kind: Kind;
  exprs: string[];
  /** range is what a new dashboard shows, "" for the page's default. */
  range: string;
}

function withPanel(d: Dashboard, { kind, exprs }: Added, title: string): Dashboard {
  const panel = { ...newPanel(nextId(d.panels), kind), title, queries: exprs.map((expr) => ({ expr, legend: "" })) };
  return { ...d, panels: append(d.panels, panel) };
}

/** addTo adds a panel to the newest version of a dashboard. What somebody else saves meanwhile stays. */
async function addTo(id: string, added: Added, title: string): Promise<void> {
  for (let n = 1; ; n++) {
    const { version, dashboard } = await load(id);
    try {
      await put(id, version, withPanel(dashboard, added, title));
      return;
    } catch (err) {
      if (!(err instanceof Failure && err.status === 409) || n === attempts) throw err;
    }
  }
}

/** AddPanel makes expressions a panel of a dashboard. */
export function AddPanel({ added, close }: { added: Added; close: () => void }) {
  const who = useWho();
  const [all, setAll] = useState<Listed[]>();
  const [id, setId] = useState(""); // "" for a new one
  const [name, setName] = useState("");
  const [title, setTitle] = useState(added.exprs[0] ?? "");
  const [failure, fail] = useState("");
  const [done, setDone] = useState<{ id: string; name: string }>();
  const { busy, wrong, run } = useDoing();
  useEffect(() => {
    const stop = new AbortController();
    list(stop.signal).then((found) => setAll(found.filter((d) => !d.deleted && !d.origin)), (err) => {
      if (!gone(err)) fail(Failure.of(err).message);
    });
    return () => stop.abort();
  }, []);
  const save = async () => {
    const panel = title.trim();
    const to = id || await create(withPanel({ ...emptyDashboard(name.trim()), range: added.range }, added, panel));
    if (id) await addTo(id, added, panel);
    setDone({ id: to, name: id ? (all!.find((d) => d.id === id)!.title || id) : name.trim() });
  };
  return (
    <Dialog title="Add to a dashboard" close={close}>
      {who && !may(who, "write") ? (
        <p class="banner bad" role="alert">Saving needs the role write, and {who.name || "you"} {who.name ? "has" : "have"} only {who.roles.join(" and ") || "none"}.</p>
      ) : done ? (
        <div class="form">
          <p class="banner good" role="status"><span>The panel is on <Link href={addressOf(done.id)}>{done.name}</Link>.</span></p>
          <div class="dialog-end"><button type="button" class="primary" onClick={close}>Close</button></div>
        </div>
      ) : !all ? (
        failure ? <p class="banner bad" role="alert">{failure}</p> : <p class="note" role="status">Asking…</p>
      ) : (
        <form class="form" onSubmit={(e) => {
          e.preventDefault();
          run(save);
        }}>
          <label><span>Dashboard</span>
            <select name="dashboard" value={id} onChange={(e) => setId(e.currentTarget.value)}>
              <option value="">A new one</option>
              {all.map((d) => <option key={d.id} value={d.id}>{d.title || d.id}</option>)}
            </select>
          </label>
          {!id && <label><span>Title of the dashboard</span><input type="text" name="name" required value={name} autocomplete="off" onInput={(e) => setName(e.currentTarget.value)} /></label>}
          <label><span>Title of the panel</span><input type="text" name="title" value={title} autocomplete="off" onInput={(e) => setTitle(e.currentTarget.value)} /></label>
          <p class="note">{added.exprs.length === 1 ? "The expression becomes" : `The ${added.exprs.length} expressions become`} a panel. Its kind, unit and place can be changed there.</p>
          {wrong && <p class="banner bad" role="alert">{wrong}</p>}
          <div class="dialog-end"><button type="submit" class="primary" disabled={busy || (!id && !name.trim())}>Add</button></div>
        </form>
      )}
    </Dialog>
  );
}
