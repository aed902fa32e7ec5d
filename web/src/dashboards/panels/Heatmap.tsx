import { useEffect, useMemo, useRef, useState } from "preact/hooks";
import { sizeOf, type Values } from "../../explore/evaluate";
import type { Unit } from "../../explore/units";
import { usePreferences } from "../../preferences";
import { formatTime } from "../../time";
import { nameOf, type Loaded } from "../data";

interface Row {
  name: string;
  values: Values;
}

const mostRows = 200;

/** boundOf reads the upper end of a histogram's bucket. */
const boundOf = (le: string): number => Number(le.replace("Inf", "Infinity"));

/** bucketsOf returns a row for each bucket of histograms, from what their series count up to each bound. Those of one bound are added up. */
function bucketsOf(series: { le: string; values: Values }[], size: number, unit: Unit): Row[] {
  const sums = new Map<number, Values>();
  for (const { le, values } of series) {
    const sum = sums.get(boundOf(le)) ?? new Array<number | null>(size).fill(null);
    values.forEach((v, i) => {
      if (v !== null) sum[i] = (sum[i] ?? 0) + v;
    });
    sums.set(boundOf(le), sum);
  }
  const bounds = [...sums.keys()].sort((a, b) => a - b);
  return bounds.map((b, n) => {
    const below = n ? sums.get(bounds[n - 1]!)! : undefined;
    // Counts of different moments can be a little less than those of the bucket below.
    return { name: b === Infinity ? `> ${n ? unit.write(bounds[n - 1]!) : "0"}` : `≤ ${unit.write(b)}`, values: sums.get(b)!.map((v, i) => (v === null ? null : Math.max(0, v - (below?.[i] ?? 0)))) };
  }).reverse();
}

export function rowsOf(loaded: Loaded, units: (n: number) => Unit): { rows: Row[]; buckets: boolean } {
  const size = sizeOf(loaded.grid);
  const all = loaded.parts.flatMap((p) => (p.found?.curves ?? []).map((c) => ({ p, c })));
  if (all.length && all.every(({ c }) => c.labels["le"] !== undefined)) return { rows: bucketsOf(all.map(({ c }) => ({ le: c.labels["le"]!, values: c.values })), size, units(all[0]!.p.n)), buckets: true };
  return { rows: all.map(({ p, c }) => ({ name: nameOf(p.legend, c.labels, c.text), values: c.values })), buckets: false };
}

const rgb = (text: string): number[] => {
  const hex = /^#(..)(..)(..)$/.exec(text);
  return hex ? hex.slice(1).map((x) => parseInt(x, 16)) : [0, 0, 0];
};

/** Heatmap shows a row for each bucket or series, and by the shade how much there is at each time. */
export function Heatmap({ title, loaded, units, height }: { title: string; loaded: Loaded; units: (n: number) => Unit; height: number }) {
  const { dark, zone } = usePreferences();
  const canvas = useRef<HTMLCanvasElement>(null);
  const [width, setWidth] = useState(0);
  const [at, setAt] = useState<{ row: number; column: number }>();
  const { rows: all, buckets } = useMemo(() => rowsOf(loaded, units), [loaded, units]);
  const rows = all.slice(0, mostRows);
  const columns = sizeOf(loaded.grid);
  const unit = units(loaded.parts[0]?.n ?? 0);
  const write = (v: number | null | undefined) => (typeof v !== "number" ? "–" : buckets ? String(Number(v.toPrecision(3))) : unit.write(v));
  const ends = useMemo(() => {
    let min = buckets ? 0 : Infinity, max = -Infinity;
    for (const r of rows) for (const v of r.values) if (v !== null) [min, max] = [Math.min(min, v), Math.max(max, v)];
    return max >= min ? { min, max } : undefined;
  }, [all]);
  useEffect(() => {
    const seen = new ResizeObserver(([e]) => setWidth(Math.floor(e!.contentRect.width)));
    seen.observe(canvas.current!);
    return () => seen.disconnect();
  }, []);
  const tall = Math.max(60, height - 78);
  useEffect(() => {
    const c = canvas.current!;
    const scale = devicePixelRatio;
    c.width = Math.max(1, width * scale);
    c.height = tall * scale;
    const ctx = c.getContext("2d")!;
    ctx.clearRect(0, 0, c.width, c.height);
    if (!ends || !rows.length) return;
    const style = getComputedStyle(document.documentElement);
    const [from, to] = ["level-0", "level-3"].map((name) => rgb(style.getPropertyValue(`--${name}`).trim())) as [number[], number[]];
    const w = c.width / columns, h = c.height / rows.length;
    rows.forEach((r, y) => r.values.forEach((v, x) => {
      if (v === null || (buckets && v === 0)) return;
      const share = (v - ends.min) / (ends.max - ends.min || 1);
      ctx.fillStyle = `rgb(${from.map((a, i) => Math.round(a + (to[i]! - a) * share)).join(",")})`;
      const left = Math.floor(x * w), top = Math.floor(y * h);
      ctx.fillRect(left, top, Math.max(1, Math.floor((x + 1) * w) - left), Math.max(1, Math.floor((y + 1) * h) - top - (h > 6 * scale ? scale : 0)));
    }));
    if (!at) return;
    ctx.strokeStyle = style.getPropertyValue("--ink").trim();
    ctx.lineWidth = scale;
    ctx.strokeRect(at.column * w + 0.5, at.row * h + 0.5, Math.max(2, w - 1), Math.max(2, h - 1));
  }, [all, width, tall, dark, at, ends]);
  const key = (e: KeyboardEvent) => {
    const dx = Number(e.key === "ArrowRight") - Number(e.key === "ArrowLeft");
    const dy = Number(e.key === "ArrowDown") - Number(e.key === "ArrowUp");
    if ((!dx && !dy) || !rows.length) return;
    e.preventDefault();
    const now = at ?? { row: 0, column: columns };
    setAt({ row: Math.min(Math.max(now.row + dy, 0), rows.length - 1), column: Math.min(Math.max(now.column + dx, 0), columns - 1) });
  };
  const start = loaded.grid.start, step = loaded.grid.step;
  const row = at && rows[at.row];
  return (
    <div class="heatmap">
      <canvas ref={canvas} tabIndex={0} role="application" style={{ height: `${tall}px` }}
        aria-label={`${title}: heat map of ${rows.length} ${buckets ? "buckets" : "series"}${ends ? `, values from ${write(ends.min)} to ${write(ends.max)}` : ""}. Arrow keys move the cursor.`}
        onKeyDown={key} onPointerLeave={() => setAt(undefined)}
        onPointerMove={(e) => {
          const box = e.currentTarget.getBoundingClientRect();
          const to = { row: Math.floor(((e.clientY - box.top) / box.height) * rows.length), column: Math.floor(((e.clientX - box.left) / box.width) * columns) };
          if (rows[to.row] && (to.row !== at?.row || to.column !== at.column)) setAt(to);
        }} />
      <div class="heatmap-ends"><span>{formatTime(start, zone)}</span><span>{formatTime(loaded.grid.end, zone)}</span></div>
      <div class="heatmap-key">
        {ends && <><span>{write(ends.min)}</span><i aria-hidden="true" /><span>{write(ends.max)}</span></>}
        <span class="mono" role="status">{row ? `${formatTime(start + at.column * step, zone)} · ${row.name}: ${write(row.values[at.column])}` : `${rows.length} ${buckets ? "buckets" : "series"}`}</span>
      </div>
      {all.length > mostRows && <p class="note">{all.length - mostRows} more series are not shown.</p>}
    </div>
  );
}
