// The variables of a dashboard: what is chosen, and what expressions become by it.
import { useEffect, useRef, useState } from "preact/hooks";
import { ask, Failure, gone, type Answer } from "../api";
import { formatDuration, minute } from "../time";
import type { Variable } from "./model";

/** Chosen are the values of variables by name, without those that are not known yet. */
export type Chosen = ReadonlyMap<string, string[]>;

/** Options are the values that a variable of kind label can have, or why they are not known. */
export type Options = ReadonlyMap<string, { values: string[]; failure?: string }>;

export const parameterOf = (name: string): string => `var-${name}`;

/** chosenOf returns what is chosen: by the address, else by the dashboard, else the first value of those that take only one. */
function chosenOf(v: Variable, query: URLSearchParams, options: Options): string[] | undefined {
  const name = parameterOf(v.name);
  const said = query.has(name) ? query.getAll(name) : v.value;
  const some = v.kind === "text" ? said : said.filter(Boolean);
  if (v.multi && v.kind !== "text") return some;
  if (some.length) return some.slice(0, 1);
  if (v.kind === "text") return [""];
  const all = v.kind === "list" ? v.values : options.get(v.name)?.values;
  return all?.slice(0, 1);
}

export function chosen(variables: Variable[], query: URLSearchParams, options: Options): Chosen {
  const out = new Map<string, string[]>();
  for (const v of variables) {
    const found = chosenOf(v, query, options);
    if (found) out.set(v.name, found);
  }
  return out;
}

const escaped = (text: string) => text.replace(/[\\^$.*+?()[\]{}|]/g, "\\$&");

/** textsOf returns what stands for each variable in an expression. */
export function textsOf(variables: Variable[], values: Chosen): Map<string, string> {
  const out = new Map<string, string>();
  for (const v of variables) {
    const some = values.get(v.name);
    if (!some) continue;
    if (!v.multi || v.kind === "text") out.set(v.name, some[0] ?? "");
    else out.set(v.name, some.length === 0 ? ".*" : some.length === 1 ? escaped(some[0]!) : `(${some.map(escaped).join("|")})`);
  }
  return out;
}

/** timesOf adds the variables that say what is shown. Both are in ms. */
export function timesOf(texts: Map<string, string>, span: number, step: number): Map<string, string> {
  return new Map([...texts,
    ["__range", formatDuration(Math.max(1000, Math.round(span / 1000) * 1000))],
    ["__interval", formatDuration(step)],
    ["__rate_interval", formatDuration(Math.max(4 * step, minute))],
  ]);
}

const reference = /\$(?:\{([A-Za-z_]\w*)\}|([A-Za-z_]\w*))/y;
const references = new RegExp(reference, "g");

/** inExpression puts values into an expression. What stands within quotes stays within them, whatever the value is. */
export function inExpression(expr: string, texts: ReadonlyMap<string, string>): string {
  let out = "";
  let quoted = "";
  for (let i = 0; i < expr.length;) {
    const c = expr[i]!;
    reference.lastIndex = i;
    const found = c === "$" ? reference.exec(expr) : null;
    const text = found && texts.get(found[1] ?? found[2]!);
    if (found && text !== undefined && text !== null) {
      out += quoted && quoted !== "`" ? text.replace(/\\/g, "\\\\").replaceAll(quoted, `\\${quoted}`).replace(/\n/g, "\\n") : text;
      i += found[0].length;
      continue;
    }
    if (quoted && quoted !== "`" && c === "\\") {
      out += expr.slice(i, i + 2);
      i += 2;
      continue;
    }
    if (quoted) quoted = c === quoted ? "" : quoted;
    else if (c === '"' || c === "'" || c === "`") quoted = c;
    out += c;
    i++;
  }
  return out;
}

/** inText puts values into what people read. */
export const inText = (text: string, values: Chosen): string =>
  text.replace(references, (whole, a: string | undefined, b: string | undefined) => {
    const some = values.get(a ?? b!);
    return some ? some.join(", ") || "all" : whole;
  });

const mostValues = "1000";

/** missing returns whether a text names a variable of the dashboard whose value is not known yet. */
export const missing = (text: string, variables: Variable[], known: ReadonlyMap<string, unknown>): boolean =>
  [...text.matchAll(references)].some(([, a, b]) => !known.has(a ?? b!) && variables.some((v) => v.name === (a ?? b)));

/** useOptions asks for the values of labels. A selector may name other variables. */
export function useOptions(variables: Variable[], query: URLSearchParams): Options {
  const [options, set] = useState<Options>(new Map());
  const asked = useRef(new Map<string, string>());
  const texts = textsOf(variables, chosen(variables, query, options));
  const wanted = variables.filter((v) => v.kind === "label" && v.of && !missing(v.selector, variables, texts))
    .map((v) => ({ name: v.name, of: v.of, match: inExpression(v.selector, texts) }));
  const key = JSON.stringify(wanted);
  const stop = useRef(new AbortController());
  useEffect(() => {
    stop.current = new AbortController();
    return () => {
      stop.current.abort();
      asked.current.clear();
    };
  }, []);
  useEffect(() => {
    for (const { name, of, match } of wanted) {
      const what = JSON.stringify([of, match]);
      if (asked.current.get(name) === what) continue;
      asked.current.set(name, what);
      const answered = (values: string[], failure?: string) => {
        if (asked.current.get(name) === what) set((all) => new Map([...all, [name, failure === undefined ? { values } : { values, failure }]]));
      };
      ask<Answer<string[]>>("GET", `/api/v1/label/${encodeURIComponent(of)}/values`, [...(match ? [["match[]", match] as [string, string]] : []), ["limit", mostValues]], stop.current.signal)
        .then((a) => answered(a.data), (err) => {
          if (!gone(err)) answered([], Failure.of(err).message);
        });
    }
  }, [key]);
  return options;
}
