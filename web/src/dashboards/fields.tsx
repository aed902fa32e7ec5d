import { useEffect, useState } from "preact/hooks";
import { parseDuration } from "../time";

/** TextField is a line of text. */
export function TextField({ label, value, set, hint = "", mono = false, id }: { label: string; value: string; set: (text: string) => void; hint?: string; mono?: boolean; id?: string }) {
  return <label><span>{label}</span><input type="text" {...(id ? { id } : {})} class={mono ? "mono" : ""} value={value} placeholder={hint} spellcheck={!mono} autocomplete="off" onInput={(e) => set(e.currentTarget.value)} /></label>;
}

/** Checked is a field whose text is taken once it can be read. */
function Checked<T>({ label, value, hint, read, write, set }: { label: string; value: T; hint: string; read: (text: string) => T | undefined; write: (value: T) => string; set: (value: T) => void }) {
  const [text, setText] = useState(() => write(value));
  // Undoing changes the value from outside.
  useEffect(() => {
    if (read(text) !== value) setText(write(value));
  }, [value]);
  return (
    <label><span>{label}</span><input type="text" value={text} placeholder={hint} spellcheck={false} autocomplete="off" aria-invalid={read(text) === undefined} onInput={(e) => {
      setText(e.currentTarget.value);
      const found = read(e.currentTarget.value);
      if (found !== undefined) set(found);
    }} /></label>
  );
}

/** NumberField is a number, or none where it is empty. */
export function NumberField({ label, value, set, hint = "" }: { label: string; value: number | undefined; set: (n: number | undefined) => void; hint?: string }) {
  const read = (text: string): number | null | undefined => {
    const n = Number(text.trim().replace(",", "."));
    return !text.trim() ? null : Number.isFinite(n) ? n : undefined;
  };
  return <Checked<number | null> label={label} hint={hint} value={value ?? null} read={read} write={(n) => (n === null ? "" : String(n))} set={(n) => set(n ?? undefined)} />;
}

/** SpanField is a duration such as 6h, or nothing. */
export const SpanField = ({ label, value, set, hint = "" }: { label: string; value: string; set: (text: string) => void; hint?: string }) =>
  <Checked label={label} hint={hint} value={value} read={(text) => (!text.trim() || parseDuration(text) !== undefined ? text.trim() : undefined)} write={(text) => text} set={set} />;

/** ListField is a list of texts, with commas between them. */
export function ListField({ label, value, set, hint = "" }: { label: string; value: string[]; set: (all: string[]) => void; hint?: string }) {
  const read = (text: string) => text.split(",").map((t) => t.trim()).filter(Boolean);
  const [text, setText] = useState(value.join(", "));
  const key = value.join("\0");
  useEffect(() => {
    if (read(text).join("\0") !== key) setText(value.join(", "));
  }, [key]);
  return (
    <label><span>{label}</span><input type="text" value={text} placeholder={hint} spellcheck={false} autocomplete="off" onInput={(e) => {
      setText(e.currentTarget.value);
      set(read(e.currentTarget.value));
    }} /></label>
  );
}
