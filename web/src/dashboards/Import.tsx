import { useState } from "preact/hooks";
import { go } from "../address";
import { Failure } from "../api";
import { Dialog } from "../frame/Dialog";
import { addressOf, createFrom } from "./store";

/** Import stores a dashboard of a file or a text, as it was exported. */
export function Import({ close }: { close: () => void }) {
  const [text, setText] = useState("");
  const [wrong, setWrong] = useState("");
  const [busy, setBusy] = useState(false);
  const failed = (err: unknown) => {
    setWrong(Failure.of(err).message);
    setBusy(false);
  };
  return (
    <Dialog title="Import a dashboard" close={close}>
      <form class="form" onSubmit={(e) => {
        e.preventDefault();
        if (!text.trim()) {
          setWrong("Choose a file, or paste what it contains.");
          return;
        }
        setWrong("");
        setBusy(true);
        createFrom(text).then((id) => go(addressOf(id)), failed);
      }}>
        <p class="note">The JSON of a dashboard, as exported here. The command <code>quern dashboard put FILE</code> takes one of Grafana.</p>
        <label><span>File</span><input type="file" accept=".json,application/json" onChange={(e) => {
          const file = e.currentTarget.files?.[0];
          if (file) file.text().then(setText, failed);
        }} /></label>
        <label><span>Or the text</span><textarea class="mono" rows={8} value={text} spellcheck={false} onInput={(e) => setText(e.currentTarget.value)} /></label>
        {wrong && <p class="banner bad" role="alert">{wrong}</p>}
        <div class="dialog-end"><button type="submit" class="primary" disabled={busy}>Save</button></div>
      </form>
    </Dialog>
  );
}
