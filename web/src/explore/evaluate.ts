// Asking for the values of an expression, and putting them on the grid that all curves of a chart share.
import { ask, type Answer, type Labels, type Levels, type Result } from "../api";
import { plainSelector, seriesText } from "./selector";
import { formatDuration } from "../time";

/** Grid are the times of a range query: from start to end, both included, in ms. */
export interface Grid {
  start: number;
  end: number;
  step: number;
}

/** gridOver returns times that are multiples of the step, so that they stay the same when a moving range is asked again. */
export function gridOver(start: number, end: number, step: number): Grid {
  const first = Math.floor(start / step) * step;
  return { start: first, end: Math.max(first, Math.floor(end / step) * step), step };
}

export const sizeOf = (g: Grid): number => Math.round((g.end - g.start) / g.step) + 1;

export type Values = (number | null)[];

export interface Curve {
  /** text names the series; it is also how an address names it. */
  text: string;
  labels: Labels;
  values: Values;
  /** low, high and quantile are there where values come from roll-ups. */
  low?: Values;
  high?: Values;
  quantile?: Values;
}

export interface Evaluated {
  curves: Curve[];
  /** left is how many series are not drawn. */
  left: number;
  levels: Levels[];
  notes: { text: string; warning: boolean }[];
  /** took is how long the server and the network took, in ms. */
  took: number;
}

/** mostCurves bounds what one expression draws: more lines than that show nothing. */
export const mostCurves = 500;

/** mostBands is up to how many curves have a band each. */
export const mostBands = 12;

export function formOf(expr: string, g: Grid): [string, string][] {
  return [["query", expr], ["start", String(g.start / 1000)], ["end", String(g.end / 1000)], ["step", String(g.step / 1000)]];
}

function onGrid(points: [number, string][], g: Grid): Values {
  const values: Values = new Array<number | null>(sizeOf(g)).fill(null);
  for (const [time, text] of points) {
    const v = Number(text); // "NaN", "+Inf" and "-Inf" are no points of a line
    values[Math.round((time * 1000 - g.start) / g.step)] = Number.isFinite(v) ? v : null;
  }
  return values;
}

async function range(expr: string, g: Grid, signal: AbortSignal, levels: boolean): Promise<Answer<Result>> {
  return ask<Answer<Result>>("POST", "/api/v1/query_range", [...formOf(expr, g), ...(levels ? [["levels", "1"] as [string, string]] : [])], signal);
}

export async function evaluate(expr: string, g: Grid, band: boolean, quantile: number, signal: AbortSignal): Promise<Evaluated> {
  const began = performance.now();
  const answer = await range(expr, g, signal, true);
  const result = answer.data.resultType === "matrix" ? answer.data.result : [];
  const curves = result.slice(0, mostCurves).map((s): Curve => ({ text: Object.keys(s.metric).length ? seriesText(s.metric) : expr.trim(), labels: s.metric, values: onGrid(s.values, g) }));
  const levels = answer.levels ?? [];
  const notes = [...(answer.warnings ?? []).map((text) => ({ text, warning: true })), ...(answer.infos ?? []).map((text) => ({ text, warning: false }))];
  const selector = plainSelector(expr);
  const rolled = levels.some((l) => l.parts.some((p) => p.level !== "raw"));
  if (selector && rolled && curves.length <= mostBands && (band || quantile)) await addBands(curves, selector, levels, g, band, quantile, signal);
  return { curves, left: result.length - curves.length, levels, notes, took: performance.now() - began };
}

/** addBands replaces what was read from roll-ups by the average of each step, with the extremes and a percentile. */
async function addBands(curves: Curve[], selector: string, levels: Levels[], g: Grid, band: boolean, quantile: number, signal: AbortSignal) {
  const window = `[${formatDuration(g.step)}]`;
  const wanted: [keyof Curve, string][] = [["values", `avg_over_time(${selector}${window})`]];
  if (band) wanted.push(["low", `min_over_time(${selector}${window})`], ["high", `max_over_time(${selector}${window})`]);
  if (quantile) wanted.push(["quantile", `quantile_over_time(${quantile}, ${selector}${window})`]);
  const answers = await Promise.all(wanted.map(([, expr]) => range(expr, g, signal, false)));
  // The window of a time is the step before it.
  const times = Array.from({ length: sizeOf(g) }, (_, i) => (g.start + i * g.step) / 1000);
  const parts = levels.flatMap((l) => l.parts).filter((p) => p.level !== "raw");
  const rolled = times.map((t) => parts.some((p) => p.start < t && t <= p.end));
  const nameless = (labels: Labels) => seriesText(Object.fromEntries(Object.entries(labels).filter(([l]) => l !== "__name__")));
  const byText = new Map(curves.map((c) => [nameless(c.labels), c]));
  wanted.forEach(([member], n) => {
    const data = answers[n]!.data;
    if (data.resultType !== "matrix") return;
    for (const s of data.result) {
      const curve = byText.get(nameless(s.metric));
      if (!curve) continue;
      const read = onGrid(s.values, g);
      if (member === "values") curve.values = curve.values.map((v, i) => (rolled[i] ? read[i]! : v));
      else (curve[member] as Values) = read.map((v, i) => (rolled[i] ? v : null));
    }
  });
}
