import type { ComponentChildren } from "preact";
import { usePopover } from "../frame/popover";

/** Menu shows what can be done below a button, until something else is done. */
export function Menu({ label, text, title, children, class: more = "" }: { label?: string; text: ComponentChildren; title?: string; children: (close: () => void) => ComponentChildren; class?: string }) {
  const { open, setOpen, box, button, close, onKeyDown } = usePopover(".menu :is(a, button, input)");
  return (
    <div class={`menu-box ${more}`} ref={box}
      onFocusOut={(e) => {
        if (e.relatedTarget && !box.current?.contains(e.relatedTarget as Node)) setOpen(false);
      }}
      onKeyDown={(e) => {
        onKeyDown(e);
        const step = Number(e.key === "ArrowDown") - Number(e.key === "ArrowUp");
        if (!open || !step) return;
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
