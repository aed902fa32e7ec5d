import type { ComponentChildren } from "preact";
import { useId, useLayoutEffect, useRef } from "preact/hooks";
import { Cross } from "./icons";

/** Dialog is shown above the page until it is closed. */
export function Dialog({ title, close, children }: { title: string; close: () => void; children: ComponentChildren }) {
  const ref = useRef<HTMLDialogElement>(null);
  const id = useId();
  const left = useRef(false);
  useLayoutEffect(() => {
    const d = ref.current!;
    d.showModal();
    return () => {
      // The browser tells of it later, when another dialog may be open.
      left.current = true;
      d.close();
    };
  }, []);
  return (
    <dialog ref={ref} aria-labelledby={id} onClose={() => left.current || close()} onClick={(e) => e.target === ref.current && close()}>
      <div class="dialog">
        <header><h2 id={id}>{title}</h2><button type="button" class="quiet icon" aria-label="Close" onClick={close}><Cross /></button></header>
        {children}
      </div>
    </dialog>
  );
}
