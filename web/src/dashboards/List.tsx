import { useEffect, useLayoutEffect, useState } from "preact/hooks";
import { format, go, useAddress } from "../address";
import { Failure, gone } from "../api";
import { Dialog } from "../frame/Dialog";
import { Plus } from "../frame/icons";
import { Link } from "../frame/Link";
import { usePreferences } from "../preferences";
import { ago, formatTime } from "../time";
import { emptyDashboard } from "./model";
import { Import } from "./Import";
import { addressOf, create, list, undelete, type Listed } from "./store";

/** List shows which dashboards there are. */
export function List() {
  const { query } = useAddress();
  const { zone } = usePreferences();
  const find = query.get("find") ?? "";
  const deleted = query.get("deleted") === "true";
  const [all, setAll] = useState<Listed[]>();
  const [failure, fail] = useState("");
  const [turn, setTurn] = useState(0);
  const [open, setOpen] = useState<"" | "new" | "import">("");
  useEffect(() => {
    const stop = new AbortController();
    list(stop.signal).then(setAll, (err) => {
      if (!gone(err)) fail(Failure.of(err).message);
    });
    return () => stop.abort();
  }, [turn]);
  const set = (change: Record<string, string>) => go(format("/dashboards", Object.entries({ find, deleted: deleted ? "true" : "", ...change })), "replace");
  const restore = (d: Listed) => {
    fail("");
    undelete(d.id).then(() => setTurn((n) => n + 1), (err) => fail(Failure.of(err).message));
  };
  const now = Date.now();
  const wanted = find.toLowerCase();
  const there = (all ?? []).filter((d) => !!d.deleted === deleted);
  const rows = there.filter((d) => !wanted || `${d.title} ${d.id}`.toLowerCase().includes(wanted));
  const gones = (all ?? []).filter((d) => d.deleted).length;
  return (
    <div class="stack">
      <div class="row">
        <h1>Dashboards</h1>
        <span class="row push">
          <button type="button" onClick={() => setOpen("import")}>Import…</button>
          <button type="button" class="primary" onClick={() => setOpen("new")}><Plus />New</button>
        </span>
      </div>
      {failure && <p class="banner bad" role="alert">{failure}</p>}
      {all && (
        <section class="card" aria-label="Dashboards">
          <header>
            <label class="field">Find <input type="search" value={find} spellcheck={false} onInput={(e) => set({ find: e.currentTarget.value })} /></label>
            <span class="note">{rows.length === there.length ? there.length : `${rows.length} of ${there.length}`} {deleted ? "deleted" : there.length === 1 ? "dashboard" : "dashboards"}</span>
            {(gones > 0 || deleted) && <label class="check push"><input type="checkbox" checked={deleted} onChange={(e) => set({ deleted: e.currentTarget.checked ? "true" : "" })} />Deleted</label>}
          </header>
          {rows.length > 0 && (
            <div class="scroll" tabIndex={0} role="region" aria-label="Dashboards, listed">
              <table>
                <thead><tr><th>Title</th><th>Changed</th><th class="wide">By</th><th class="wide">Origin</th>{deleted && <th />}</tr></thead>
                <tbody>
                  {rows.map((d) => (
                    <tr key={d.id}>
                      <td>{d.deleted ? d.title || d.id : <Link href={addressOf(d.id)}>{d.title || d.id}</Link>}</td>
                      <td title={d.updated ? formatTime(d.updated, zone) : ""}>{d.updated ? ago(d.updated, now) : ""}</td>
                      <td class="wide">{d.author}</td>
                      <td class="wide">{d.origin && <span class="tag">{d.origin}</span>}</td>
                      {deleted && <td class="n"><button type="button" aria-label={`Restore ${d.title || d.id}`} onClick={() => restore(d)}>Restore</button></td>}
                    </tr>
                  ))}
                </tbody>
              </table>
            </div>
          )}
          {!there.length && <p class="note card-body">{deleted ? "Nothing is deleted." : "There is no dashboard yet. New makes an empty one; Import takes one from a file."}</p>}
          {!!there.length && !rows.length && <p class="note card-body">None has “{find}” in its title.</p>}
        </section>
      )}
      {!all && !failure && <p class="note" role="status">Asking…</p>}
      {open === "new" && <New close={() => setOpen("")} />}
      {open === "import" && <Import close={() => setOpen("")} />}
    </div>
  );
}

function New({ close }: { close: () => void }) {
  const [title, setTitle] = useState("");
  const [wrong, setWrong] = useState("");
  const [busy, setBusy] = useState(false);
  useLayoutEffect(() => document.getElementById("new-title")?.focus(), []);
  return (
    <Dialog title="New dashboard" close={close}>
      <form class="form" onSubmit={(e) => {
        e.preventDefault();
        setBusy(true);
        create(emptyDashboard(title.trim())).then((id) => go(`${addressOf(id)}?edit=1`), (err) => {
          setWrong(Failure.of(err).message);
          setBusy(false);
        });
      }}>
        <label><span>Title</span><input id="new-title" type="text" required value={title} autocomplete="off" onInput={(e) => setTitle(e.currentTarget.value)} /></label>
        {wrong && <p class="banner bad" role="alert">{wrong}</p>}
        <div class="dialog-end"><button type="submit" class="primary" disabled={busy || !title.trim()}>Make it</button></div>
      </form>
    </Dialog>
  );
}
