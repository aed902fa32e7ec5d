import { useMemo, useState } from "preact/hooks";
import { Chart, type Line } from "../../explore/Chart";
import { Legend } from "../../explore/Legend";
import type { Unit } from "../../explore/units";
import { nameOf, type Loaded } from "../data";
import type { Panel } from "../model";

/** stack puts each line on top of those before it. A line without a value at a time adds nothing there. */
function stack(lines: Line[]): Line[] {
  let sum: number[] = [];
  return lines.map((l) => {
    const below = sum;
    sum = l.values.map((v, i) => (below[i] ?? 0) + (v ?? 0));
    return { ...l, drawn: sum };
  });
}

const row = 26; // px of a row of the legend

/** TimeSeries shows curves. */
export function TimeSeries({ panel, title, loaded, units, height, zoom }: { panel: Panel; title: string; loaded: Loaded; units: (n: number) => Unit; height: number; zoom: (start: number, end: number) => void }) {
  const [only, show] = useState<string[]>([]);
  const all = useMemo(() => {
    const out: Line[] = [];
    for (const p of loaded.parts) for (const c of p.found?.curves ?? []) out.push({ ...c, text: nameOf(p.legend, c.labels, c.text), n: out.length, unit: units(p.n) });
    return out;
  }, [loaded, units]);
  const shown = useMemo(() => {
    const some = all.filter((l) => only.includes(l.text));
    const lines = some.length ? some : all;
    return panel.stack ? stack(lines) : lines;
  }, [all, only, panel.stack]);
  const limits = useMemo(() => panel.thresholds.map((t) => ({ at: t.from, colour: t.level === "ok" ? "good" as const : t.level })), [panel.thresholds]);
  const left = loaded.parts.reduce((sum, p) => sum + (p.found?.left ?? 0), 0);
  const legend = all.length ? Math.min((all.length + 1) * row + 4, Math.max(2 * row, Math.round(height * 0.32))) : 0;
  return (
    <>
      <Chart grid={loaded.grid} start={loaded.start} end={loaded.end} lines={shown} zoom={zoom} height={Math.max(90, height - legend - (left ? row : 0))} least={panel.min} most={panel.max} limits={limits}
        label={`${title}: ${shown.length ? `chart of ${shown.length} series` : "chart without data"}`} />
      {left > 0 && <p class="note">{left} more series are not drawn.</p>}
      {all.length > 0 && <div class="panel-legend" style={{ height: `${legend}px` }}><Legend lines={all} only={only.filter((t) => all.some((l) => l.text === t))} show={show} label={`Series of ${title}`} /></div>}
    </>
  );
}
