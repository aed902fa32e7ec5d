// Taking away what is shown.
import type uPlot from "uplot";
import { formDataText } from "./shell";
import { colourOf } from "./palette";
import type { Line } from "./Chart";
import { sizeOf, type Grid } from "./evaluate";
import type { TableRow } from "./Table";

/** save has the browser save a file. */
export function save(name: string, contents: Blob) {
  const a = document.createElement("a");
  a.href = URL.createObjectURL(contents);
  a.download = name;
  a.click();
  // The browser has taken the contents when the click has been handled.
  setTimeout(() => URL.revokeObjectURL(a.href), 1000);
}

/** cell writes a text for CSV. A program for sheets must not take it for a formula. */
const cell = (text: string): string => {
  const safe = /^[=+\-@\t\r]/.test(text) && !/^-?[\d.]+(e[+-]?\d+)?$/i.test(text) ? `'${text}` : text;
  return /[",\n\r]/.test(safe) ? `"${safe.replace(/"/g, '""')}"` : safe;
};

const iso = (ms: number) => new Date(ms).toISOString();

const csv = (rows: string[][]) => new Blob([rows.map((r) => r.map(cell).join(",")).join("\r\n") + "\r\n"], { type: "text/csv" });

export function saveLines(grid: Grid, lines: Line[]) {
  const columns: [string, (number | null)[]][] = lines.flatMap((l) => [
    [l.text, l.values] as [string, (number | null)[]],
    ...(l.low ? [[`min ${l.text}`, l.low] as [string, (number | null)[]]] : []),
    ...(l.high ? [[`max ${l.text}`, l.high] as [string, (number | null)[]]] : []),
    ...(l.quantile ? [[`percentile ${l.text}`, l.quantile] as [string, (number | null)[]]] : []),
  ]);
  const rows = [["time", ...columns.map(([name]) => name)]];
  for (let i = 0; i < sizeOf(grid); i++) rows.push([iso(grid.start + i * grid.step), ...columns.map(([, v]) => String(v[i] ?? ""))]);
  save("quern.csv", csv(rows));
}

export function saveRows(rows: TableRow[], columns: string[]) {
  save("quern.csv", csv([["time", ...columns, "value"], ...rows.map((r) => [iso(r.time), ...columns.map((c) => r.labels[c] ?? ""), r.value])]));
}

/** savePicture saves the chart with the names of its lines. */
export function savePicture(u: uPlot, lines: Line[], dark: boolean) {
  const style = getComputedStyle(document.documentElement);
  const scale = devicePixelRatio;
  const named = lines.slice(0, 40);
  const row = 18 * scale;
  const canvas = document.createElement("canvas");
  const from = u.ctx.canvas;
  canvas.width = from.width;
  canvas.height = from.height + row * (named.length + 1);
  const to = canvas.getContext("2d")!;
  to.fillStyle = style.getPropertyValue("--raised").trim();
  to.fillRect(0, 0, canvas.width, canvas.height);
  to.drawImage(from, 0, 0);
  to.font = `${12 * scale}px ${style.getPropertyValue("--mono")}`;
  to.textBaseline = "middle";
  named.forEach((l, i) => {
    const y = from.height + row * (i + 0.6);
    to.fillStyle = colourOf(l.n, dark);
    to.fillRect(12 * scale, y - 2 * scale, 14 * scale, 4 * scale);
    to.fillStyle = style.getPropertyValue("--ink").trim();
    to.fillText(l.text, 34 * scale, y, canvas.width - 46 * scale);
  });
  canvas.toBlob((png) => png && save("quern.png", png));
}

export const curl = (path: string, form: [string, string][]): string => `curl '${location.origin}${path}'${formDataText(form)}`;
