import type { Unit } from "../../explore/units";
import { nameOf, type Loaded } from "../data";
import { levelNames, levelOf, type Panel } from "../model";

const most = 12; // gauges in a panel

const at = (share: number, r: number): string => {
  const angle = Math.PI * (1.12 - 1.24 * share); // a bit more than a half circle, from the left
  return `${(60 + r * Math.cos(angle)).toFixed(2)} ${(58 - r * Math.sin(angle)).toFixed(2)}`;
};

const arc = (from: number, to: number, r: number): string => `M${at(from, r)}A${r} ${r} 0 ${1.24 * (to - from) > 1 ? 1 : 0} 1 ${at(to, r)}`;

/** topOf returns the end of a gauge that has none given. */
function topOf(panel: Panel, unit: Unit, values: number[]): number {
  if (panel.max !== undefined) return panel.max;
  if (unit.name === "ratio") return 1;
  if (unit.name === "percent") return 100;
  return Math.max(1, ...values, ...panel.thresholds.map((t) => t.from * 1.2));
}

/** Gauge shows where values lie between two ends. */
export function Gauge({ panel, loaded, units }: { panel: Panel; loaded: Loaded; units: (n: number) => Unit }) {
  const all = loaded.parts.flatMap((p) => (p.values ?? []).map((v) => ({ name: nameOf(p.legend, v.labels, Object.entries(v.labels).filter(([l]) => l !== "__name__").map(([, x]) => x).join(" ") || p.expr), value: v.value, unit: units(p.n) })));
  const low = panel.min ?? 0;
  const high = all[0] ? topOf(panel, all[0].unit, all.map((g) => g.value).filter(Number.isFinite)) : 1;
  const share = (v: number) => Math.min(1, Math.max(0, (v - low) / (high - low || 1)));
  const marks = [...panel.thresholds].sort((a, b) => a.from - b.from);
  return (
    <div class="gauges" tabIndex={0} role="group" aria-label="Gauges">
      {all.slice(0, most).map((g, i) => {
        const level = levelOf(g.value, panel.thresholds);
        const text = Number.isFinite(g.value) ? g.unit.write(g.value) : "–";
        return (
          <figure key={`${i} ${g.name}`} class={`gauge${level ? ` is-${level}` : ""}`}>
            <svg viewBox="0 0 120 84" role="img" aria-label={`${text}${level ? `, ${levelNames[level]}` : ""}, between ${g.unit.write(low)} and ${g.unit.write(high)}`}>
              <path class="track" d={arc(0, 1, 48)} />
              {Number.isFinite(g.value) && share(g.value) > 0 && <path class="arc" d={arc(0, share(g.value), 48)} />}
              {marks.map((t, n) => share(t.from) < share(marks[n + 1]?.from ?? high) && <path key={n} class={`mark is-${t.level}`} d={arc(share(t.from), share(marks[n + 1]?.from ?? high), 55.5)} />)}
              <text x="60" y="60" text-anchor="middle">{text}</text>
              {level && <text class="level" x="60" y="74" text-anchor="middle">{levelNames[level]}</text>}
            </svg>
            {all.length > 1 && <figcaption class="mono" title={g.name}>{g.name}</figcaption>}
          </figure>
        );
      })}
      {all.length > most && <p class="note">{all.length - most} more series are not shown.</p>}
    </div>
  );
}
