// The editor of expressions. It is fetched after the page has been shown, so others import nothing but its types.
import { autocompletion, closeBrackets, closeBracketsKeymap, completionKeymap, completionStatus } from "@codemirror/autocomplete";
import { defaultKeymap, history, historyKeymap, insertNewlineAndIndent } from "@codemirror/commands";
import { bracketMatching, HighlightStyle, syntaxHighlighting } from "@codemirror/language";
import { linter, lintKeymap, type Diagnostic } from "@codemirror/lint";
import { EditorState, Prec, StateEffect, StateField } from "@codemirror/state";
import { drawSelection, EditorView, keymap, placeholder } from "@codemirror/view";
import { tags } from "@lezer/highlight";
import { PromQLExtension } from "@prometheus-io/codemirror-promql";
import { labelMatchersToString } from "@prometheus-io/codemirror-promql/dist/esm/parser/matcher";
import type { PrometheusClient } from "@prometheus-io/codemirror-promql/dist/esm/client/prometheus";
import { names, metadata } from "./names";

/** Mark is a mistake at a place of an expression. */
export interface Mark {
  line: number;
  column: number;
  message: string;
}

export interface MountOptions {
  text: string;
  caret?: number | undefined;
  label: string;
  placeholder: string;
  changed: (text: string) => void;
  run: () => void;
}

export interface Mounted {
  set: (text: string) => void;
  mark: (m: Mark | undefined) => void;
  focus: () => void;
  destroy: () => void;
}

const server: PrometheusClient = {
  labelNames: (metric) => names("/api/v1/labels", metric ? [["match[]", metric]] : []),
  labelValues: (label, metric, matchers) => {
    const match = metric ? labelMatchersToString(metric, matchers, label) : "";
    return names(`/api/v1/label/${encodeURIComponent(label)}/values`, match ? [["match[]", match]] : []);
  },
  metricNames: () => names("/api/v1/label/__name__/values", []),
  metricMetadata: async () => Object.fromEntries([...(await metadata())].map(([name, m]) => [name, [m]])),
  // Completion of values after labels goes by labelValues.
  series: () => Promise.resolve([]),
  flags: () => Promise.resolve({}),
};

const highlight = HighlightStyle.define([
  { tag: [tags.keyword, tags.operatorKeyword, tags.modifier, tags.function(tags.variableName)], color: "var(--accent)", fontWeight: "560" },
  { tag: tags.string, color: "var(--good)" },
  { tag: tags.number, color: "var(--warn)" },
  { tag: tags.labelName, color: "var(--focus)" },
  { tag: [tags.comment, tags.operator, tags.punctuation], color: "var(--muted)" },
  { tag: tags.invalid, color: "var(--bad)" },
]);

const look = EditorView.theme({
  "&": { fontSize: "13px", backgroundColor: "transparent" },
  "&.cm-focused": { outline: "none" },
  ".cm-scroller": { fontFamily: "var(--mono)", lineHeight: "20px" },
  ".cm-content": { padding: "5px 0", caretColor: "var(--ink)" },
  ".cm-line": { padding: "0 9px" },
  ".cm-cursor": { borderLeftColor: "var(--ink)" },
  ".cm-selectionBackground, &.cm-focused > .cm-scroller > .cm-selectionLayer .cm-selectionBackground": { background: "color-mix(in srgb, var(--focus) 26%, transparent)" },
  ".cm-placeholder": { color: "var(--muted)" },
  "&:not(.cm-focused) .cm-matchingBracket": { background: "none" },
  "&.cm-focused .cm-matchingBracket": { backgroundColor: "var(--accent-soft)", outline: "1px solid var(--line-strong)" },
  ".cm-tooltip": { background: "var(--raised)", color: "var(--ink)", border: "1px solid var(--line)", borderRadius: "6px", boxShadow: "var(--shadow)", overflow: "hidden" },
  ".cm-tooltip-autocomplete > ul": { fontFamily: "var(--mono)", fontSize: "12.5px", maxHeight: "264px" },
  ".cm-tooltip.cm-tooltip-autocomplete > ul > li": { padding: "2px 10px", display: "flex", gap: "12px" },
  ".cm-tooltip-autocomplete ul li[aria-selected]": { background: "var(--accent)", color: "var(--on-accent)" },
  ".cm-completionDetail": { marginLeft: "auto", fontStyle: "normal", fontFamily: "system-ui, sans-serif", opacity: ".8" },
  ".cm-completionMatchedText": { textDecoration: "none", fontWeight: "700" },
  ".cm-completionIcon": { display: "none" },
  ".cm-completionInfo": { padding: "8px 10px", maxWidth: "340px", fontFamily: "system-ui, sans-serif", whiteSpace: "pre-wrap" },
  ".cm-diagnostic": { padding: "5px 10px", fontFamily: "system-ui, sans-serif" },
  ".cm-diagnostic-error": { borderLeft: "3px solid var(--bad)" },
  ".cm-lintRange-error": { backgroundImage: "none", textDecoration: "underline wavy var(--bad) 1.4px", textUnderlineOffset: "3px", textDecorationSkipInk: "none" },
  ".cm-lintPoint-error:after": { borderBottomColor: "var(--bad)" },
});

const setMark = StateEffect.define<Mark | undefined>();

// What the server said of the text, until the text changes.
const marked = StateField.define<Mark | undefined>({
  create: () => undefined,
  update: (value, tr) => {
    for (const e of tr.effects) if (e.is(setMark)) return e.value;
    return tr.docChanged ? undefined : value;
  },
});

// Chromium keeps the colour of text that is typed over in a style attribute. The policy refuses and reports that, so the
// editor replaces the text by itself.
const typeOver = EditorView.domEventHandlers({
  beforeinput: (e, view) => {
    const { from, to, empty } = view.state.selection.main;
    const { data } = e;
    if (e.inputType !== "insertText" || empty || !data || view.composing) return false;
    const insert = () => view.state.update({ ...view.state.replaceSelection(data), userEvent: "input.type", scrollIntoView: true });
    if (!view.state.facet(EditorView.inputHandler).some((handle) => handle(view, from, to, data, insert))) view.dispatch(insert());
    return true;
  },
});

/** offsetOf returns where a position of the server is: lines and bytes count from 1. */
function offsetOf(view: EditorView, mark: Mark): number {
  const line = view.state.doc.line(Math.min(Math.max(mark.line, 1), view.state.doc.lines));
  const before = new TextDecoder().decode(new TextEncoder().encode(line.text).slice(0, Math.max(0, mark.column - 1)));
  return Math.min(line.from + before.length, line.to);
}

function diagnostics(view: EditorView): Diagnostic[] {
  const mark = view.state.field(marked);
  if (!mark) return [];
  const at = offsetOf(view, mark);
  const word = /^(?:[\w:.]+|\S)/.exec(view.state.sliceDoc(at, view.state.doc.lineAt(at).to))?.[0].length ?? 0;
  // At the end of the text there is nothing to underline but what stands before.
  const from = word ? at : Math.max(view.state.doc.lineAt(at).from, at - 1);
  return [{ from, to: at + word, severity: "error", message: mark.message, source: "server" }];
}

export function mount(parent: HTMLElement, o: MountOptions): Mounted {
  const run = (view: EditorView) => {
    // A list that is being renewed takes nothing yet.
    if (completionStatus(view.state) !== "active") o.run();
    return true;
  };
  const promql = new PromQLExtension().setComplete({ remote: server, maxMetricsMetadata: 10_000 });
  const view = new EditorView({
    parent,
    state: EditorState.create({
      doc: o.text,
      selection: { anchor: Math.min(o.caret ?? o.text.length, o.text.length) },
      extensions: [
        EditorView.cspNonce.of(document.querySelector<HTMLMetaElement>("meta[name=style-nonce]")?.nonce ?? ""),
        look,
        syntaxHighlighting(highlight),
        history(),
        drawSelection(),
        bracketMatching(),
        closeBrackets(),
        autocompletion({ icons: false, maxRenderedOptions: 60, interactionDelay: 0 }),
        EditorView.lineWrapping,
        placeholder(o.placeholder),
        EditorView.contentAttributes.of({ "aria-label": o.label, spellcheck: "false", autocorrect: "off", autocapitalize: "off" }),
        promql.asExtension(),
        typeOver,
        marked,
        linter(diagnostics, { delay: 0, needsRefresh: (u) => u.transactions.some((tr) => tr.effects.some((e) => e.is(setMark))) }),
        Prec.high(keymap.of([{ key: "Mod-Enter", run: () => (o.run(), true) }])),
        keymap.of([...completionKeymap, { key: "Enter", run }, { key: "Shift-Enter", run: insertNewlineAndIndent }, ...closeBracketsKeymap, ...historyKeymap, ...lintKeymap, ...defaultKeymap]),
        EditorView.updateListener.of((u) => u.docChanged && o.changed(u.state.doc.toString())),
      ],
    }),
  });
  return {
    set: (text) => {
      if (text !== view.state.doc.toString()) view.dispatch({ changes: { from: 0, to: view.state.doc.length, insert: text } });
    },
    mark: (mark) => view.dispatch({ effects: setMark.of(mark) }),
    focus: () => view.focus(),
    destroy: () => {
      promql.destroy();
      view.destroy();
    },
  };
}
