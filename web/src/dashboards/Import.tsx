import { useState } from "preact/hooks";
import { go } from "../address";
import { Failure } from "../api";
import { Dialog } from "../frame/Dialog";
import type { Dashboard } from "./model";
import { addressOf, convert, create } from "./store";

/** Import makes a dashboard from a file or a text, Grafana's or ours. What of it is left out is said before anything is stored. */
export function Import({ close }: { close: () => void }) {
  const [text, setText] = useState("");
  const [wrong, setWrong] = useState("");
  const [busy, setBusy] = useState(false);
  const [found, setFound] = useState<{ dashboard: Dashboard; notes: string[] }>();
  const failed = (err: unknown) => {
    setWrong(Failure.of(err).message);
    setBusy(false);
  };
  const read = (json: string) => {
    setWrong("");
    setBusy(true);
    convert(json).then((f) => {
      setFound(f);
      setBusy(false);
    }, failed);
  };
  if (found) {
    const { dashboard: d, notes } = found;
    return (
      <Dialog title="Import a dashboard" close={close}>
        <form class="form" onSubmit={(e) => {
          e.preventDefault();
          setBusy(true);
          setWrong("");
          create(d).then((id) => go(addressOf(id)), failed);
        }}>
          <label><span>Title</span><input type="text" required value={d.title} autocomplete="off" onInput={(e) => setFound({ notes, dashboard: { ...d, title: e.currentTarget.value } })} /></label>
          <p>{d.panels.length} {d.panels.length === 1 ? "panel" : "panels"}, {d.variables.length} {d.variables.length === 1 ? "variable" : "variables"}.</p>
          {notes.length > 0 ? (
            <div>
              <h3>{notes.length === 1 ? "One thing differs" : `${notes.length} things differ`} from the file</h3>
              <ul class="notes" tabIndex={0} aria-label="What differs">{notes.map((n, i) => <li key={i}>{n}</li>)}</ul>
            </div>
          ) : <p class="note">Nothing of the file is left out.</p>}
          {wrong && <p class="banner bad" role="alert">{wrong}</p>}
          <div class="dialog-end"><button type="button" onClick={() => setFound(undefined)}>Back</button><button type="submit" class="primary" disabled={busy}>Save</button></div>
        </form>
      </Dialog>
    );
  }
  return (
    <Dialog title="Import a dashboard" close={close}>
      <form class="form" onSubmit={(e) => {
        e.preventDefault();
        if (text.trim()) read(text);
        else setWrong("Choose a file, or paste what it contains.");
      }}>
        <p class="note">The JSON of a dashboard: exported here, or by Grafana (Export, Save as JSON).</p>
        <label><span>File</span><input type="file" accept=".json,application/json" onChange={(e) => {
          const file = e.currentTarget.files?.[0];
          if (file) file.text().then(read, failed);
        }} /></label>
        <label><span>Or the text</span><textarea class="mono" rows={8} value={text} spellcheck={false} onInput={(e) => setText(e.currentTarget.value)} /></label>
        {wrong && <p class="banner bad" role="alert">{wrong}</p>}
        <div class="dialog-end"><button type="submit" class="primary" disabled={busy}>Continue</button></div>
      </form>
    </Dialog>
  );
}
