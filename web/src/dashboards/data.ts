// What the panels show. Panels that are not in view ask nothing, and few ask at once.
import { useEffect, useState } from "preact/hooks";
import { ask, Failure, gone, type Answer, type Labels, type Result } from "../api";
import { evaluate, gridOver, type Evaluated, type Grid } from "../explore/evaluate";
import { autoStep } from "../time";
import { inExpression, missing, timesOf } from "./variables";
import type { Panel, Variable } from "./model";

/** Showing is what all panels of a dashboard share: the time, in ms, and the texts of the variables. */
export interface Showing {
  start: number;
  end: number;
  /** turn counts how often the dashboard was asked again. */
  turn: number;
  variables: Variable[];
  texts: Map<string, string>;
}

export interface Value {
  labels: Labels;
  value: number;
}

/** Part is what one query of a panel gave. */
export interface Part {
  n: number;
  expr: string;
  legend: string;
  found?: Evaluated;
  values?: Value[];
  failure?: Failure;
}

export interface Loaded {
  grid: Grid;
  start: number;
  end: number;
  parts: Part[];
}

const mostAtOnce = 6;
let free = mostAtOnce;
const waiting: (() => void)[] = [];

/** inTurn runs what asks the server when fewer than six of them do. */
async function inTurn<T>(run: () => Promise<T>, signal: AbortSignal): Promise<T> {
  if (free > 0) free--;
  else await new Promise<void>((turn) => waiting.push(turn)); // who ends passes its place on
  try {
    signal.throwIfAborted();
    return await run();
  } finally {
    const next = waiting.shift();
    if (next) next();
    else free++;
  }
}

/** valuesOf returns the numbers of an answer at one time. */
function valuesOf(r: Result): Value[] {
  switch (r.resultType) {
    case "vector":
      return r.result.map((s) => ({ labels: s.metric, value: Number(s.value[1].replace("Inf", "Infinity")) }));
    case "matrix":
      return r.result.flatMap((s) => {
        const last = s.values[s.values.length - 1];
        return last ? [{ labels: s.metric, value: Number(last[1].replace("Inf", "Infinity")) }] : [];
      });
    default:
      return [{ labels: {}, value: Number(r.result[1]) }];
  }
}

/** atOneTime says which kinds show values at the end of the range. */
const atOneTime = (p: Panel): boolean => p.kind === "table" || p.kind === "gauge";

async function part(n: number, expr: string, legend: string, instant: boolean, grid: Grid, end: number, signal: AbortSignal): Promise<Part> {
  const asked = { n, expr, legend };
  try {
    if (!instant) return { ...asked, found: await inTurn(() => evaluate(expr, grid, false, 0, signal), signal) };
    const answer = await inTurn(() => ask<Answer<Result>>("POST", "/api/v1/query", [["query", expr], ["time", String(end / 1000)]], signal), signal);
    return { ...asked, values: valuesOf(answer.data) };
  } catch (err) {
    if (gone(err)) throw err;
    return { ...asked, failure: Failure.of(err) };
  }
}

/** expressions returns what the queries of a panel are with all variables replaced. */
export const expressions = (p: Panel, s: Showing, step: number): string[] => {
  const texts = timesOf(s.texts, s.end - s.start, step);
  return p.queries.map((q) => inExpression(q.expr, texts).trim());
};

/** stepOf returns the step in ms for a panel of a width in px. */
export const stepOf = (s: Showing, width: number): number =>
  Math.max(autoStep(s.end - s.start, Math.max(50, Math.min(1000, Math.floor(width / 2)))), Math.ceil((s.end - s.start) / 10_900));

/** usePanel returns what a panel shows, and whether newer data is on its way. What was shown stays until that has come. */
export function usePanel(p: Panel, s: Showing, seen: boolean, width: number): { loaded?: Loaded | undefined; busy: boolean } {
  const step = stepOf(s, width);
  const exprs = expressions(p, s, step);
  const ready = width > 0 && p.kind !== "text" && !p.queries.some((q) => missing(q.expr, s.variables, s.texts));
  const key = JSON.stringify([exprs, p.queries.map((q) => q.legend), atOneTime(p), s.start, s.end, s.turn, step]);
  const [state, set] = useState<{ key: string; loaded: Loaded }>();
  const due = ready && state?.key !== key;
  useEffect(() => {
    if (!due || !seen) return;
    const stop = new AbortController();
    const grid = gridOver(s.start, s.end, step);
    const asked = exprs.map((expr, n) => ({ expr, n, legend: p.queries[n]!.legend })).filter((q) => q.expr);
    Promise.all(asked.map((q) => part(q.n, q.expr, q.legend, atOneTime(p), grid, s.end, stop.signal))).then(
      (parts) => set({ key, loaded: { grid, start: s.start, end: s.end, parts } }),
      () => undefined, // it was given up
    );
    return () => stop.abort();
  }, [key, due, seen]);
  return { loaded: state?.loaded, busy: due && seen };
}

/** nameOf returns the name of a series: by the legend of its query, else by its labels. */
export const nameOf = (legend: string, labels: Labels, text: string): string =>
  legend ? legend.replace(/\{\{\s*([^{}]+?)\s*\}\}/g, (_, name: string) => labels[name] ?? "") : text;
