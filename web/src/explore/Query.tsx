import type { ComponentChildren } from "preact";
import { useEffect, useRef, useState } from "preact/hooks";
import { Cross, Eye, EyeOff } from "../frame/icons";
import type { Mark, Mounted } from "./editor";

interface Props {
  n: number;
  /** text is what the address has. What is typed since then stays here, so that nothing else is drawn for each key. */
  text: string;
  hidden?: boolean;
  alone: boolean;
  mark: Mark | undefined;
  changed: (text: string) => void;
  run: () => void;
  /** hide switches whether the expression is evaluated, where that can be chosen. */
  hide?: () => void;
  remove: () => void;
  /** under is what is said below the expression, as long as it is the one of the address. */
  under: ComponentChildren;
  /** registers a function that moves the focus here */
  focusBy?: (focus: (() => void) | undefined) => void;
}

export const letter = (n: number): string => (n < 26 ? String.fromCharCode(65 + n) : String(n + 1));

const hint = "Expression, such as rate(requests_total[5m])";

export function Query(props: Props) {
  const box = useRef<HTMLDivElement>(null);
  const area = useRef<HTMLTextAreaElement>(null);
  const editor = useRef<Mounted | undefined>(undefined);
  const now = useRef(props);
  now.current = props;
  const [mounted, setMounted] = useState(false);
  const [draft, setDraft] = useState(props.text);
  const typed = useRef(draft);
  typed.current = draft;
  const change = (text: string) => {
    setDraft(text);
    now.current.changed(text);
  };
  const label = `Expression ${letter(props.n)}`;

  // Until the editor is there, and if it cannot be fetched, this is a plain field.
  useEffect(() => {
    let left = false;
    void import("./editor").then(({ mount }) => {
      if (left) return;
      const focused = document.activeElement === area.current;
      editor.current = mount(box.current!, {
        text: typed.current, caret: area.current?.selectionStart, label, placeholder: hint,
        changed: change,
        run: () => now.current.run(),
      });
      setMounted(true);
      editor.current.mark(now.current.mark);
      if (focused) editor.current.focus();
    }, () => undefined);
    now.current.focusBy?.(() => (editor.current ?? area.current)?.focus());
    return () => {
      left = true;
      editor.current?.destroy();
      editor.current = undefined;
      now.current.focusBy?.(undefined);
    };
  }, []);
  useEffect(() => {
    setDraft(props.text);
    editor.current?.set(props.text);
  }, [props.text]);
  useEffect(() => editor.current?.mark(props.mark), [props.mark]);

  return (
    <div class="query">
      <span class="letter" aria-hidden="true">{letter(props.n)}</span>
      <div class="editor" ref={box} data-mounted={mounted}>
        {!mounted && (
          <textarea ref={area} rows={1} aria-label={label} placeholder={hint} value={draft} spellcheck={false} autocapitalize="off" autocomplete="off"
            onInput={(e) => change(e.currentTarget.value)}
            onKeyDown={(e) => {
              if (e.key === "Enter" && !e.shiftKey) {
                e.preventDefault();
                props.run();
              }
            }} />
        )}
      </div>
      <span class="acts">
        {props.hide && <button type="button" class="quiet icon" aria-pressed={!!props.hidden} aria-label={`${props.hidden ? "Show" : "Hide"} ${label.toLowerCase()}`} title={props.hidden ? "Show" : "Hide"} onClick={props.hide}>{props.hidden ? <EyeOff /> : <Eye />}</button>}
        <button type="button" class="quiet icon" disabled={props.alone && !draft} aria-label={`Remove ${label.toLowerCase()}`} title="Remove" onClick={props.remove}><Cross /></button>
      </span>
      <div class="under">{draft === props.text && props.under}</div>
    </div>
  );
}
