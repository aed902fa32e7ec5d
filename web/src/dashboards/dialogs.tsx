// What is asked before something is done to a dashboard.
import { useEffect, useLayoutEffect, useState } from "preact/hooks";
import { Failure, gone } from "../api";
import { Dialog } from "../frame/Dialog";
import { usePreferences } from "../preferences";
import { ago, formatTime } from "../time";
import { versions, type Version } from "./store";

const bytes = (n: number): string => (n < 1024 ? `${n} B` : `${(n / 1024).toFixed(1)} KiB`);

/** useVersions returns the versions of a dashboard that are kept, newest first. */
function useVersions(id: string): { all?: Version[] | undefined; failure: string } {
  const [all, setAll] = useState<Version[]>();
  const [failure, fail] = useState("");
  useEffect(() => {
    const stop = new AbortController();
    versions(id, stop.signal).then(setAll, (err) => {
      if (!gone(err)) fail(Failure.of(err).message);
    });
    return () => stop.abort();
  }, [id]);
  return { all, failure };
}

/** useDoing runs what may fail, and says why it did. */
export function useDoing(): { busy: boolean; wrong: string; run: (what: () => Promise<unknown>) => void } {
  const [busy, setBusy] = useState(false);
  const [wrong, setWrong] = useState("");
  const run = (what: () => Promise<unknown>) => {
    setBusy(true);
    setWrong("");
    what().then(() => setBusy(false), (err) => {
      setWrong(Failure.of(err).message);
      setBusy(false);
    });
  };
  return { busy, wrong, run };
}

/** Conflict says that somebody else has saved meanwhile. Whatever is chosen, both stay. */
export function Conflict({ id, base, newest, look, copy, overwrite, close }: { id: string; base: number; newest: number; look: string; copy: () => void; overwrite: () => Promise<unknown>; close: () => void }) {
  const { zone } = usePreferences();
  const { all } = useVersions(id);
  const theirs = all?.find((v) => v.version === newest);
  const { busy, wrong, run } = useDoing();
  return (
    <Dialog title="Somebody has saved this dashboard meanwhile" close={close}>
      <div class="form">
        <p>
          Version {newest} was {theirs?.deleted ? "deleted" : "saved"}{theirs?.author && <> by <b>{theirs.author}</b></>}{theirs && <>, {formatTime(Math.round(theirs.updated / 1000) * 1000, zone)}</>}.
          {" "}You have edited version {base}. Your changes stay in this tab until you save or discard them.
        </p>
        {wrong && <p class="banner bad" role="alert">{wrong}</p>}
        <div class="choices">
          {!theirs?.deleted && <a class="button" href={look} target="_blank">Look at theirs, in a new tab</a>}
          <button type="button" class="primary" onClick={copy}>Save mine as a copy…</button>
          <button type="button" disabled={busy} onClick={() => run(overwrite)}>Save mine over theirs. Theirs stays in the history as version {newest}</button>
        </div>
      </div>
    </Dialog>
  );
}

/** Copy asks for the title of a copy. */
export function Copy({ title, save, close }: { title: string; save: (title: string) => Promise<unknown>; close: () => void }) {
  const [text, setText] = useState(`${title} (copy)`);
  const { busy, wrong, run } = useDoing();
  useLayoutEffect(() => {
    const field = document.getElementById("copy-title") as HTMLInputElement | null;
    field?.focus();
    field?.select();
  }, []);
  return (
    <Dialog title="Save as a copy" close={close}>
      <form class="form" onSubmit={(e) => {
        e.preventDefault();
        run(() => save(text.trim()));
      }}>
        <label><span>Title</span><input id="copy-title" type="text" required value={text} autocomplete="off" onInput={(e) => setText(e.currentTarget.value)} /></label>
        {wrong && <p class="banner bad" role="alert">{wrong}</p>}
        <div class="dialog-end"><button type="submit" class="primary" disabled={busy || !text.trim()}>Save</button></div>
      </form>
    </Dialog>
  );
}

/** Confirm asks before something is done. */
export function Confirm({ title, text, act, danger = false, also, close }: { title: string; text: string; act: [name: string, run: () => Promise<unknown>]; danger?: boolean; also?: [name: string, run: () => Promise<unknown>]; close: () => void }) {
  const { busy, wrong, run } = useDoing();
  return (
    <Dialog title={title} close={close}>
      <div class="form">
        <p>{text}</p>
        {wrong && <p class="banner bad" role="alert">{wrong}</p>}
        <div class="dialog-end">
          <button type="button" onClick={close}>Cancel</button>
          {also && <button type="button" disabled={busy} onClick={() => run(also[1])}>{also[0]}</button>}
          <button type="button" class={danger ? "danger" : "primary"} disabled={busy} onClick={() => run(act[1])}>{act[0]}</button>
        </div>
      </div>
    </Dialog>
  );
}

/** History lists the versions that are kept. */
export function History({ id, shown, changed, look, restore, close }: { id: string; shown: number; changed: boolean; look: (version: number) => void; restore: ((version: number) => Promise<unknown>) | undefined; close: () => void }) {
  const { zone } = usePreferences();
  const { all, failure } = useVersions(id);
  const { busy, wrong, run } = useDoing();
  const now = Date.now();
  return (
    <Dialog title="History" close={close}>
      {failure && <p class="banner bad" role="alert">{failure}</p>}
      {wrong && <p class="banner bad" role="alert">{wrong}</p>}
      {!all && !failure && <p class="note" role="status">Asking…</p>}
      {all && (
        <div class="scroll history" tabIndex={0} role="region" aria-label="Versions">
          <table>
            <thead><tr><th class="n">Version</th><th>Saved</th><th>By</th><th>Title</th><th class="n wide">Size</th><th /></tr></thead>
            <tbody>
              {all.map((v, i) => (
                <tr key={v.version}>
                  <td class="n">{v.version}</td>
                  <td title={formatTime(v.updated, zone)}>{ago(v.updated, now)}</td>
                  <td>{v.author}</td>
                  <td>{v.deleted ? <span class="note">deleted</span> : v.title}</td>
                  <td class="n wide">{v.deleted ? "" : bytes(v.bytes)}</td>
                  <td class="n">{!v.deleted && (
                    <span class="group">
                      <button type="button" disabled={v.version === shown} aria-label={`Look at version ${v.version}`} onClick={() => look(v.version)}>Look</button>
                      {restore && i > 0 && <button type="button" disabled={busy} aria-label={`Restore version ${v.version}`} onClick={() => run(() => restore(v.version))}>Restore</button>}
                    </span>
                  )}</td>
                </tr>
              ))}
            </tbody>
          </table>
        </div>
      )}
      <p class="note">{changed ? "Save or discard your changes to restore a version." : "Restoring makes an older version the newest one. Nothing is lost by it."}</p>
    </Dialog>
  );
}
