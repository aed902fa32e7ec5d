import { useEffect, useRef, useState } from "preact/hooks";
import { Dialog } from "./Dialog";

/** A shortcut is a key, or a key after "g ", with what it does. */
export type ShortcutList = Record<string, readonly [does: string, run: () => void]>;

// What is shown registers its shortcuts while it is shown.
const active = new Set<{ current: ShortcutList }>();
let allowed = true;
let pending = "";

const typing = (e: Event) => {
  const at = e.composedPath()[0];
  return at instanceof HTMLElement && (at.isContentEditable || /^(INPUT|TEXTAREA|SELECT)$/.test(at.tagName));
};

addEventListener("keydown", (e) => {
  if (!allowed || e.ctrlKey || e.metaKey || e.altKey || e.isComposing || e.defaultPrevented || typing(e) || document.querySelector("dialog[open]")) return;
  const name = pending + e.key;
  if (e.key === "g" && !pending) {
    pending = "g ";
    return;
  }
  if (e.key !== "Shift") pending = "";
  for (const list of active) {
    const found = list.current[name];
    if (!found) continue;
    e.preventDefault();
    found[1]();
    return;
  }
});

export function useShortcuts(on: boolean, list: ShortcutList): void {
  useShownShortcuts(list);
  useEffect(() => {
    allowed = on;
  }, [on]);
}

/** useShownShortcuts adds shortcuts while a component is shown. */
export function useShownShortcuts(list: ShortcutList): void {
  const ref = useRef(list);
  ref.current = list;
  useEffect(() => {
    active.add(ref);
    return () => void active.delete(ref);
  }, []);
}

export function Shortcuts({ allowed, allow, close }: { allowed: boolean; allow: (on: boolean) => void; close: () => void }) {
  const [list] = useState(() => [...active].flatMap((l) => Object.entries(l.current)));
  return (
    <Dialog title="Keyboard shortcuts" close={close}>
      <dl class="keys">
        {list.map(([keys, [does]]) => (
          <div key={keys}><dt>{keys.split(" ").map((k, i) => <kbd key={i}>{k}</kbd>)}</dt><dd>{does}</dd></div>
        ))}
        <div><dt><kbd>Enter</kbd></dt><dd>In an expression: run it</dd></div>
        <div><dt><kbd>←</kbd><kbd>→</kbd></dt><dd>On the chart: move the cursor. Enter explains the point</dd></div>
        <div><dt><kbd>a</kbd></dt><dd>On the chart: annotate the time of the cursor</dd></div>
      </dl>
      <label class="check"><input type="checkbox" checked={allowed} onChange={(e) => allow(e.currentTarget.checked)} />Shortcuts of single keys</label>
    </Dialog>
  );
}
