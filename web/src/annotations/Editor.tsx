import { useState } from "preact/hooks";
import { Failure } from "../api";
import { Dialog } from "../frame/Dialog";
import { usePreferences } from "../preferences";
import { formatTime, parseTime } from "../time";
import { remove, save, type Annotation } from "./wire";

/** Subject is what an editor begins with: an annotation that exists, or a time. */
export interface Subject {
  start: number;
  end: number;
  was?: Annotation;
}

/** Editor makes, changes and deletes an annotation. */
export function Editor({ subject, choices, close, changed }: { subject: Subject; choices: string[]; close: () => void; changed: () => void }) {
  const { zone } = usePreferences();
  const { was } = subject;
  const [from, setFrom] = useState(formatTime(subject.start, zone));
  const [to, setTo] = useState(subject.end === subject.start ? "" : formatTime(subject.end, zone));
  const [text, setText] = useState(was?.text ?? "");
  const [tags, setTags] = useState(was?.tags.join("\n") ?? "");
  const [selector, setSelector] = useState(was?.selector ?? "");
  const [wrong, setWrong] = useState("");
  const [busy, setBusy] = useState(false);
  const [sure, setSure] = useState(false);

  const run = async (work: () => Promise<unknown>) => {
    setBusy(true);
    setWrong("");
    try {
      await work();
      changed();
      close();
    } catch (err) {
      setWrong(err instanceof Failure ? err.message : String(err));
      setBusy(false);
    }
  };
  const submit = (e: Event) => {
    e.preventDefault();
    const start = parseTime(from, zone);
    const end = to.trim() ? parseTime(to, zone) : start;
    const names = tags.split("\n").map((t) => t.trim()).filter(Boolean);
    if (start === undefined || end === undefined) setWrong("Write times as 2026-01-31 12:00.");
    else if (end < start) setWrong("The end is before the start.");
    else if (!text.trim() && !names.length) setWrong("Write a text or a tag.");
    else {
      void run(() => save({
        start, end, text: text.trim(), tags: names, selector: selector.trim(),
        ...(was ? { id: was.id, moved_from: was.start } : {}),
      }));
    }
  };
  const area = (name: string, rows: number, value: string, set: (v: string) => void) => (
    <textarea name={name} autofocus={name === "text"} rows={rows} value={value} onInput={(e) => set(e.currentTarget.value)} onKeyDown={(e) => {
      if (e.key === "Enter" && (e.ctrlKey || e.metaKey)) submit(e);
    }} />
  );
  return (
    <Dialog title={was ? "Annotation" : "Annotate"} close={close}>
      <form class="form annotate" onSubmit={submit}>
        <div class="pair">
          <label><span>From</span><input type="text" name="from" class="mono" value={from} spellcheck={false} autocomplete="off" onInput={(e) => setFrom(e.currentTarget.value)} /></label>
          <label><span>To; empty for a moment</span><input type="text" name="to" class="mono" value={to} spellcheck={false} autocomplete="off" onInput={(e) => setTo(e.currentTarget.value)} /></label>
        </div>
        <label><span>Text</span>{area("text", 3, text, setText)}</label>
        <label><span>Tags, one in a line</span>{area("tags", 2, tags, setTags)}</label>
        <label><span>Series that it is about; empty for all</span><input type="text" name="selector" class="mono" list="annotation-selectors" value={selector} placeholder={'{source="web-1"}'} spellcheck={false} autocomplete="off" onInput={(e) => setSelector(e.currentTarget.value)} /></label>
        <datalist id="annotation-selectors">{choices.map((c) => <option key={c} value={c} />)}</datalist>
        {wrong && <p class="banner bad" role="alert">{wrong}</p>}
        <div class="dialog-end">
          {was && <button type="button" class={`first${sure ? " danger" : ""}`} disabled={busy} onClick={() => (sure ? void run(() => remove(was)) : setSure(true))}>{sure ? "Delete it for good" : "Delete"}</button>}
          <button type="submit" class="primary" disabled={busy}>Save</button>
        </div>
      </form>
    </Dialog>
  );
}
