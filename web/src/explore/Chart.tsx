import { useEffect, useId, useRef, useState } from "preact/hooks";
import uPlot from "uplot";
import { usePreferences } from "../preferences";
import { dateIn, day, formatTime, minute, type Zone } from "../time";
import { sizeOf, type Grid, type Values } from "./evaluate";
import { colourOf, dashOf } from "./palette";
import type { Unit } from "./units";

/** Line is a curve with how it is drawn. */
export interface Line {
  text: string;
  /** n is the number by which the line has its colour and dashes. */
  n: number;
  unit: Unit;
  values: Values;
  /** drawn is where the line runs if that is not at its values: on top of those that it is stacked on. */
  drawn?: Values;
  low?: Values;
  high?: Values;
  quantile?: Values;
}

/** Place is where the plot lies within the box of the chart, in px. */
export interface Place {
  left: number;
  width: number;
}

/** TimeMark is a time that the plot shows: a line for a moment, a band for a span. */
export interface TimeMark {
  start: number;
  end: number;
  alert: boolean;
}

interface Props {
  grid: Grid;
  /** Times are shown from start to end, in ms. */
  start: number;
  end: number;
  lines: Line[];
  quantileName?: string;
  /** marked is the time that is explained. */
  marked?: number | undefined;
  zoom: (start: number, end: number) => void;
  /** pick explains a point. Without it points are not explained. */
  pick?: (time: number, line: Line | undefined) => void;
  placed?: (p: Place) => void;
  drawn?: (u: uPlot) => void;
  label: string;
  /** marks are drawn behind the lines. */
  marks?: TimeMark[];
  /** annotate is called for the key a, with the time of the cursor if there is one. */
  annotate?: (time: number | undefined) => void;
  /** height is that of the chart in px; without it the chart takes a part of the window's. */
  height?: number;
  /** least and most are the ends of the axis of values, where they are given. */
  least?: number | undefined;
  most?: number | undefined;
  /** limits are drawn across the chart. */
  limits?: { at: number; colour: "good" | "warn" | "bad" }[];
}

const drawnOf = (l: Line): Values => l.drawn ?? l.values;

const pad = (n: number) => String(n).padStart(2, "0");

/** ticks writes the times of an axis: the date where it is new, seconds only where they differ. */
function ticks(splits: number[], step: number, zone: Zone): string[] {
  let before = "";
  return splits.map((s) => {
    const t = dateIn(s * 1000, zone);
    const date = `${pad(t.mo)}-${pad(t.d)}`;
    const clock = `${pad(t.h)}:${pad(t.mi)}${step * 1000 < minute ? `:${pad(t.s)}` : ""}`;
    const isNew = date !== before;
    before = date;
    if (step * 1000 >= 365 * day) return String(t.y);
    if (step * 1000 >= day) return date;
    return isNew && (t.h || t.mi) === 0 ? date : isNew && splits[0] === s ? `${clock}\n${date}` : clock;
  });
}

const longest = (values: string[] | null): number => Math.max(0, ...(values ?? []).map((v) => v.length));

/** drawMarks draws the marks that lie within the plot. */
function drawMarks(u: uPlot, marks: TimeMark[], start: number, end: number, colours: { alert: string; note: string }) {
  const { ctx, bbox } = u;
  ctx.save();
  ctx.beginPath();
  ctx.rect(bbox.left, bbox.top, bbox.width, bbox.height);
  ctx.clip();
  for (const alert of [false, true]) {
    ctx.fillStyle = ctx.strokeStyle = alert ? colours.alert : colours.note;
    // Bands that overlap are filled once, and each line is drawn once: many would hide the curves.
    const bands: [from: number, to: number][] = [];
    const lines = new Set<number>();
    for (const m of marks) { // by start
      if (m.alert !== alert || m.start > end || m.end < start) continue;
      const from = Math.round(u.valToPos(m.start / 1000, "x", true));
      const to = Math.round(u.valToPos(m.end / 1000, "x", true));
      const last = bands.at(-1);
      if (m.end === m.start || to === from) lines.add(from);
      else if (last && from <= last[1]) last[1] = Math.max(last[1], to);
      else bands.push([from, to]);
    }
    ctx.globalAlpha = 0.1;
    for (const [from, to] of bands) {
      ctx.fillRect(from, bbox.top, to - from, bbox.height);
      lines.add(from).add(to);
    }
    ctx.globalAlpha = 0.75;
    ctx.lineWidth = devicePixelRatio;
    ctx.beginPath();
    for (const x of lines) {
      ctx.moveTo(x, bbox.top);
      ctx.lineTo(x, bbox.top + bbox.height);
    }
    ctx.stroke();
  }
  ctx.restore();
}

/** Hover is what is under the cursor. */
interface Hover {
  left: number;
  top: number;
  time: number;
  line: Line | undefined;
  at: number;
}

const near = 32; // px, up to which a line is what the cursor points at

export function Chart(props: Props) {
  const { zone, dark } = usePreferences();
  const box = useRef<HTMLDivElement>(null);
  const tip = useId();
  const now = useRef(props);
  now.current = props;
  const [hover, setHover] = useState<Hover>();
  const [width, setWidth] = useState(0);
  const plot = useRef<uPlot | undefined>(undefined);
  const hovered = useRef<Hover | undefined>(undefined);

  /** point puts the cursor at a step of the grid and on a line. */
  const point = (u: uPlot, at: number, line: Line | undefined) => {
    const { grid, lines } = now.current;
    const time = grid.start + at * grid.step;
    const v = line && drawnOf(line)[at];
    const scale = `y${Math.max(0, [...new Set(lines.map((l) => l.unit.name))].indexOf(line?.unit.name ?? ""))}`;
    u.setCursor({ left: u.valToPos(time / 1000, "x"), top: typeof v === "number" ? u.valToPos(v, scale) : 10 });
    // Lines that cross are told apart by the keys, not by which is nearer.
    if (hovered.current && line) {
      hovered.current = { ...hovered.current, line: typeof v === "number" ? line : undefined, time, at };
      setHover(hovered.current);
    }
  };

  useEffect(() => {
    const seen = new ResizeObserver(([e]) => setWidth(Math.floor(e!.contentRect.width)));
    seen.observe(box.current!);
    return () => seen.disconnect();
  }, []);

  useEffect(() => {
    if (!width) return;
    const { grid, lines, start, end } = props;
    const style = getComputedStyle(document.documentElement);
    const colour = (name: string) => style.getPropertyValue(`--${name}`).trim();
    const size = sizeOf(grid);
    const xs = Array.from({ length: size }, (_, i) => (grid.start + i * grid.step) / 1000);
    const font = `12px ${style.fontFamily}`;
    const was = hovered.current;
    hovered.current = undefined;
    setHover(undefined);

    const scales = [...new Set(lines.map((l) => l.unit.name))];
    const scaleOf = (l: Line) => `y${Math.max(0, scales.indexOf(l.unit.name))}`;
    const unitOf = (i: number) => lines.find((l) => l.unit.name === scales[i])?.unit;

    const data: (number | null)[][] = [xs];
    const series: uPlot.Series[] = [{}];
    const bands: uPlot.Band[] = [];
    const owner: (Line | undefined)[] = [undefined];
    const add = (line: Line, values: Values, s: uPlot.Series) => {
      data.push(values);
      owner.push(line);
      return series.push({ scale: scaleOf(line), spanGaps: false, ...s }) - 1;
    };
    // From the top of a stack, so that each area reaches down to the next.
    const stacked = lines.filter((l) => l.drawn);
    for (const line of lines) {
      const stroke = colourOf(line.n, dark);
      if (line.low && line.high) {
        const high = add(line, line.high, { points: { show: false } });
        const low = add(line, line.low, { points: { show: false } });
        bands.push({ series: [high, low], fill: `${stroke}${dark ? "3a" : "2e"}` });
      }
      if (line.quantile) add(line, line.quantile, { stroke, width: 1, dash: [3, 3], points: { show: false } });
      const n = add(line, drawnOf(line), { stroke, width: lines.length > 40 ? 1 : 1.6, dash: dashOf(line.n), points: { size: 5, fill: stroke } });
      if (!line.drawn) continue;
      const fill = `${stroke}${dark ? "5c" : "4d"}`;
      if (line === stacked[0]) series[n]!.fill = fill;
      else bands.push({ series: [n, n - 1], fill });
    }

    const axis = { stroke: colour("muted"), font, grid: { stroke: colour("grid"), width: 1 }, ticks: { stroke: colour("grid"), width: 1, size: 5 } };
    const u = new uPlot({
      width,
      height: props.height ?? Math.max(260, Math.min(460, Math.round(innerHeight * 0.44))),
      padding: [12, scales.length > 1 ? 0 : 16, 0, 0],
      legend: { show: false },
      tzDate: (s) => (zone === "utc" ? uPlot.tzDate(new Date(s * 1000), "Etc/UTC") : new Date(s * 1000)),
      cursor: {
        drag: { x: true, y: false, setScale: false, dist: 5 },
        points: { show: false },
        y: false,
      },
      scales: {
        x: { time: true, range: [start / 1000, end / 1000] },
        ...Object.fromEntries((scales.length ? scales : [""]).map((_, i) => [`y${i}`, {
          range: (_u: uPlot, min: number | null, max: number | null): [number, number] => {
            const { least, most } = now.current;
            const [low, high] = around(min, max, stacked.length > 0);
            const from = least ?? low;
            const to = most ?? high;
            return from < to ? [from, to] : [from, from + 1];
          },
        }])),
      },
      axes: [
        { ...axis, values: (_u, splits, _i, _s, step) => ticks(splits, step, zone), space: 74, size: 44, gap: 4 },
        ...(scales.length ? scales : [""]).slice(0, 2).map((_, i): uPlot.Axis => ({
          ...axis,
          scale: `y${i}`,
          side: i ? 1 : 3,
          grid: { ...axis.grid, show: i === 0 },
          gap: 6,
          ...(unitOf(i)?.steps ? { incrs: unitOf(i)!.steps! } : {}),
          values: (_u, splits) => splits.map((v) => unitOf(i)?.write(v) ?? String(v)),
          size: (_u, values) => Math.max(44, 18 + 7 * longest(values)),
        })),
      ],
      series,
      bands,
      hooks: {
        setSelect: [(self) => {
          if (self.select.width < 5) return;
          const from = self.posToVal(self.select.left, "x") * 1000;
          const to = self.posToVal(self.select.left + self.select.width, "x") * 1000;
          self.setSelect({ left: 0, top: 0, width: 0, height: 0 }, false);
          now.current.zoom(from, to);
        }],
        setCursor: [(self) => {
          const { left, top, idx } = self.cursor;
          if (left === undefined || top === undefined || left < 0 || idx === null || idx === undefined) {
            hovered.current = undefined;
            setHover(undefined);
            return;
          }
          let line: Line | undefined;
          let best = near;
          for (let n = 1; n < series.length; n++) {
            const v = data[n]![idx];
            if (typeof v !== "number" || drawnOf(owner[n]!) !== data[n]) continue;
            const d = Math.abs(self.valToPos(v, series[n]!.scale!) - top);
            if (d < best) [best, line] = [d, owner[n]];
          }
          hovered.current = { left: left + self.bbox.left / devicePixelRatio, top, time: xs[idx]! * 1000, line, at: idx };
          setHover(hovered.current);
        }],
        drawAxes: [(self) => drawMarks(self, now.current.marks ?? [], start, end, { alert: colour("bad"), note: colour("accent") })],
        draw: [(self) => {
          const { marked, limits = [] } = now.current;
          for (const { at, colour: name } of limits) {
            const y = Math.round(self.valToPos(at, "y0", true));
            if (y < self.bbox.top || y > self.bbox.top + self.bbox.height) continue;
            self.ctx.save();
            self.ctx.strokeStyle = colour(name);
            self.ctx.lineWidth = devicePixelRatio;
            self.ctx.setLineDash([6 * devicePixelRatio, 4 * devicePixelRatio]);
            self.ctx.beginPath();
            self.ctx.moveTo(self.bbox.left, y);
            self.ctx.lineTo(self.bbox.left + self.bbox.width, y);
            self.ctx.stroke();
            self.ctx.restore();
          }
          if (marked === undefined || marked < start || marked > end) return;
          const x = Math.round(self.valToPos(marked / 1000, "x", true));
          self.ctx.save();
          self.ctx.strokeStyle = colour("ink");
          self.ctx.lineWidth = devicePixelRatio;
          self.ctx.setLineDash([4 * devicePixelRatio, 3 * devicePixelRatio]);
          self.ctx.beginPath();
          self.ctx.moveTo(x, self.bbox.top);
          self.ctx.lineTo(x, self.bbox.top + self.bbox.height);
          self.ctx.stroke();
          self.ctx.restore();
        }],
        ready: [(self) => {
          now.current.placed?.({ left: self.bbox.left / devicePixelRatio, width: self.bbox.width / devicePixelRatio });
          now.current.drawn?.(self);
          // The cursor outlives a chart that is drawn again: units come after the values, and a refresh adds some.
          const at = was ? Math.round((was.time - grid.start) / grid.step) : -1;
          if (was && at >= 0 && at < size) point(self, at, was.line && lines.find((l) => l.text === was.line!.text));
        }],
      },
    }, data as uPlot.AlignedData, box.current!);
    let pressed = 0;
    u.over.addEventListener("pointerdown", (e) => {
      pressed = e.clientX;
    });
    u.over.addEventListener("click", (e) => {
      if (Math.abs(e.clientX - pressed) >= 5) return; // the end of a drag
      const over = u.over.getBoundingClientRect();
      u.setCursor({ left: e.clientX - over.left, top: e.clientY - over.top }); // a finger has not moved there before
      const h = hovered.current;
      if (h) now.current.pick?.(h.time, h.line);
    });
    plot.current = u;
    return () => {
      plot.current = undefined;
      u.destroy();
    };
  }, [props.grid, props.lines, props.start, props.end, props.height, props.least, props.most, props.limits, width, dark, zone]);

  useEffect(() => {
    plot.current?.redraw(false);
  }, [props.marked, props.marks]);

  const onKey = (e: KeyboardEvent) => {
    const u = plot.current;
    if (!u) return;
    const size = sizeOf(props.grid);
    const at = hovered.current?.at ?? size;
    const line = hovered.current?.line ?? props.lines[0];
    const by = e.shiftKey ? 10 : 1;
    let to: number;
    let next = line;
    if (e.key === "ArrowLeft") to = Math.max(0, at - by);
    else if (e.key === "ArrowRight") to = Math.min(size - 1, at + by);
    else if ((e.key === "ArrowUp" || e.key === "ArrowDown") && line) {
      to = Math.min(at, size - 1);
      next = props.lines[(props.lines.indexOf(line) + (e.key === "ArrowUp" ? -1 : 1) + props.lines.length) % props.lines.length];
    } else if (e.key === "Enter" && hovered.current) {
      props.pick?.(hovered.current.time, hovered.current.line ?? line);
      return;
    } else if (e.key === "a" && props.annotate && !e.ctrlKey && !e.metaKey && !e.altKey) {
      e.preventDefault();
      props.annotate(hovered.current?.time);
      return;
    } else return;
    e.preventDefault();
    point(u, to, next);
  };

  const h = hover;
  return (
    <div class="chart" style={props.height ? { height: `${props.height}px` } : {}}>
      {/* The keys move the cursor, so the box takes the focus like a slider. */}
      <div ref={box} class="chart-box" tabIndex={0} role="application" aria-label={`${props.label}. Arrow keys move the cursor${props.pick ? ", Enter explains the point" : ""}${props.annotate ? ", a annotates it" : ""}.`} aria-describedby={tip} onKeyDown={onKey} />
      <div id={tip} class={h ? "tip" : "visually-hidden"} role="status" style={h ? { left: `${h.left > width / 2 ? h.left - 14 : h.left + 14}px`, top: `${h.top + 12}px`, transform: h.left > width / 2 ? "translateX(-100%)" : "none" } : {}}>
        {h && <Tip hover={h} zone={zone} dark={dark} quantileName={props.quantileName ?? ""} explains={!!props.pick} />}
      </div>
    </div>
  );
}

/** around returns the ends of an axis that shows values. */
function around(min: number | null, max: number | null, fromZero: boolean): [number, number] {
  if (min === null || max === null) return [0, 1];
  if (min === max && min !== 0 && !fromZero) return [min - Math.abs(min) * 0.1, max + Math.abs(max) * 0.1];
  if (min === max && min === 0) return [0, 1];
  // From zero, unless that flattens what differs.
  const low = min >= 0 && (fromZero || min < max * 0.6) ? 0 : min - (max - min) * 0.06;
  return [low, max + (max - (fromZero ? low : min)) * 0.06];
}

function Tip({ hover: { time, line, at }, zone, dark, quantileName, explains }: { hover: Hover; zone: Zone; dark: boolean; quantileName: string; explains: boolean }) {
  const value = line?.values[at];
  const write = (v: number | null | undefined) => (typeof v === "number" ? line!.unit.write(v) : "–");
  return (
    <>
      <div>{formatTime(time, zone)}{typeof value === "number" && <> · <b>{write(value)}</b></>}</div>
      {line && typeof line.low?.[at] === "number" && <div>min {write(line.low[at])} · average {write(value)} · max {write(line.high?.[at])}</div>}
      {line && typeof line.quantile?.[at] === "number" && <div>{quantileName} {write(line.quantile[at])}</div>}
      {line ? <div class="who"><span class="swatch" style={{ background: colourOf(line.n, dark) }} /><span class="mono">{line.text}</span></div> : <div class="hint">No point here.{explains && " Click to read why."}</div>}
    </>
  );
}
