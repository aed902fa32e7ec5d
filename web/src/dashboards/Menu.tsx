import type { ComponentChildren } from "preact";
import { useLayoutEffect, useRef, useState } from "preact/hooks";

/** Menu shows what can be done below a button, until something else is done. */
export function Menu({ label, text, title, children, class: more = "" }: { label?: string; text: ComponentChildren; title?: string; children: (close: () => void) => ComponentChildren; class?: string }) {
  const [open, setOpen] = useState(false);
  const box = useRef<HTMLDivElement>(null);
  const button = useRef<HTMLButtonElement>(null);
  useLayoutEffect(() => {
    if (!open) return;
    const outside = (e: Event) => {
      if (!box.current?.contains(e.target as Node)) setOpen(false);
    };
    document.addEventListener("pointerdown", outside);
    box.current?.querySelector<HTMLElement>(".menu :is(a, button, input)")?.focus();
    return () => document.removeEventListener("pointerdown", outside);
  }, [open]);
  const close = () => {
    setOpen(false);
    button.current?.focus();
  };
  return (
    <div class={`menu-box ${more}`} ref={box}
      onFocusOut={(e) => {
        if (e.relatedTarget && !box.current?.contains(e.relatedTarget as Node)) setOpen(false);
      }}
      onKeyDown={(e) => {
        if (!open) return;
        if (e.key === "Escape") {
          e.stopPropagation();
          e.preventDefault();
          close();
        }
        const step = Number(e.key === "ArrowDown") - Number(e.key === "ArrowUp");
        if (!step) return;
        e.preventDefault();
        const all = [...box.current!.querySelectorAll<HTMLElement>(".menu :is(a, button, input):not(:disabled)")];
        all[(all.indexOf(document.activeElement as HTMLElement) + step + all.length) % all.length]?.focus();
      }}>
      <button type="button" ref={button} aria-expanded={open} {...(label ? { "aria-label": label } : {})} title={title ?? label} class={label ? "quiet icon" : ""} onClick={() => setOpen(!open)}>{text}</button>
      {/* It takes the focus where a pointer meets no control, so that the focus does not leave it then. */}
      {open && <div class="menu" tabIndex={-1}>{children(close)}</div>}
    </div>
  );
}
