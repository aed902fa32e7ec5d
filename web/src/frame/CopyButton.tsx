import { useEffect, useState } from "preact/hooks";

/** CopyButton copies the text of an element. Over plain HTTP from another machine browsers have no clipboard for pages: then
 *  the text is selected, for the keyboard to copy it. */
export function CopyButton({ of, label }: { of: () => HTMLElement | null; label: string }) {
  const [done, set] = useState("");
  useEffect(() => {
    if (!done) return;
    const timer = window.setTimeout(() => set(""), 2000);
    return () => clearTimeout(timer);
  }, [done]);
  const select = () => {
    getSelection()?.selectAllChildren(of()!);
    set("Selected");
  };
  const copy = () => {
    const text = of()!.textContent ?? "";
    if (navigator.clipboard) navigator.clipboard.writeText(text).then(() => set("Copied"), select);
    else select();
  };
  return <button type="button" class="copy-button" aria-label={`Copy: ${label}`} onClick={copy}><span role="status">{done || "Copy"}</span></button>;
}
