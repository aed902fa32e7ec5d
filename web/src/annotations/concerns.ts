// Whether an annotation is about the series that are shown.
import type { Labels } from "../api";

interface Matcher {
  label: string;
  op: string;
  value: string;
}

const part = /\s*(?:([a-zA-Z_:][a-zA-Z0-9_:.]*)|("(?:[^"\\]|\\.)*"))\s*(?:(=~|!~|!=|=)\s*("(?:[^"\\]|\\.)*"|'(?:[^'\\]|\\.)*'|`[^`]*`))?\s*(,|$)/y;

function unquote(text: string): string {
  const inner = text.slice(1, -1);
  return text[0] === "`" ? inner : inner.replace(/\\(.)/g, (_, c: string) => (c === "n" ? "\n" : c === "t" ? "\t" : c));
}

/** matchersOf reads a selector, undefined if it is written in a way that only the server understands. */
export function matchersOf(selector: string): Matcher[] | undefined {
  const found = /^\s*([a-zA-Z_:][a-zA-Z0-9_:]*)?\s*(?:\{([\s\S]*)\})?\s*$/.exec(selector);
  if (!found) return undefined;
  const out: Matcher[] = found[1] ? [{ label: "__name__", op: "=", value: found[1] }] : [];
  const inside = (found[2] ?? "").trim().replace(/,$/, "");
  part.lastIndex = 0;
  while (part.lastIndex < inside.length) {
    const m = part.exec(inside);
    if (!m) return undefined;
    const [, name, quoted, op, value] = m;
    if (op) out.push({ label: name ?? unquote(quoted!), op, value: unquote(value!) });
    else if (quoted) out.push({ label: "__name__", op: "=", value: unquote(quoted) });
    else return undefined;
  }
  return out;
}

// An expression is read only if it is words between bars, each with .* or .+ around it at most: the server's expressions
// take time in proportion to the text, and the browser's may take for ever.
const simple = /^(?:\.[*+])?[^.*+?^${}()|[\]\\]*(?:\.[*+])?$/;

function matches(pattern: string, text: string): boolean | undefined {
  let any = false;
  for (const word of pattern.split("|")) {
    if (!simple.test(word)) return undefined;
    const open = /^\.[*+]/.test(word);
    const rest = open ? word.slice(2) : word;
    const close = /\.[*+]$/.test(rest);
    const core = close ? rest.slice(0, -2) : rest;
    const before = open ? (word[1] === "+" ? 1 : 0) : 0;
    const after = close ? (rest.at(-1) === "+" ? 1 : 0) : 0;
    const at = open ? (close ? text.indexOf(core, before) : text.length - core.length) : 0;
    const ends = close ? at + core.length + after <= text.length : at + core.length === text.length;
    if (at >= before && text.startsWith(core, at) && ends) any = true;
  }
  return any;
}

/** concerns returns whether a selector may be about a series. A label that the series does not show decides nothing: an aggregation has left it out. */
export function concerns(selector: string, series: Labels[]): boolean {
  const matchers = selector.trim() ? matchersOf(selector) : [];
  if (!matchers?.length || !series.length) return true;
  return series.some((labels) => matchers.every(({ label, op, value }) => {
    const has = labels[label];
    if (has === undefined) return true;
    if (op === "=") return has === value;
    if (op === "!=") return has !== value;
    const m = matches(value, has);
    return m === undefined || (op === "=~") === m;
  }));
}
