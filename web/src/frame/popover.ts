import { useLayoutEffect, useRef, useState } from "preact/hooks";

/**
 * usePopover is for what a button opens below itself, in one box with the button. It closes by a press of Escape, which
 * leads the focus back to the button, and by a pointer elsewhere. First selects what has the focus when it opens, the
 * best first.
 */
export function usePopover(...first: string[]) {
  const [open, setOpen] = useState(false);
  const box = useRef<HTMLDivElement>(null);
  const button = useRef<HTMLButtonElement>(null);
  useLayoutEffect(() => {
    if (!open) return;
    const outside = (e: Event) => {
      if (!box.current?.contains(e.target as Node)) setOpen(false);
    };
    document.addEventListener("pointerdown", outside);
    for (const selector of first) {
      const found = box.current?.querySelector<HTMLElement>(selector);
      if (!found) continue;
      found.focus();
      break;
    }
    return () => document.removeEventListener("pointerdown", outside);
  }, [open]);
  const close = () => {
    setOpen(false);
    button.current?.focus();
  };
  const onKeyDown = (e: KeyboardEvent) => {
    if (e.key !== "Escape" || !open) return;
    e.stopPropagation();
    e.preventDefault();
    close();
  };
  return { open, setOpen, box, button, close, onKeyDown };
}
