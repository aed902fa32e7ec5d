import type { Values } from "../../explore/evaluate";
import type { Unit } from "../../explore/units";
import { nameOf, type Loaded } from "../data";
import { levelNames, levelOf, type Panel } from "../model";

const most = 24; // numbers in a panel

const lastOf = (values: Values): number | undefined => values.findLast((v) => v !== null) ?? undefined;

/** lineOf writes the path of a curve in a box of 100 by 30. Gaps interrupt it. */
function lineOf(values: Values): string {
  const there = values.filter((v) => v !== null);
  const min = Math.min(...there);
  const span = Math.max(...there) - min || 1;
  let path = "";
  let before = false;
  values.forEach((v, i) => {
    if (v !== null) path += `${before ? "L" : "M"}${((i / Math.max(1, values.length - 1)) * 100).toFixed(2)} ${(28 - ((v - min) / span) * 26).toFixed(2)}`;
    before = v !== null;
  });
  return path;
}

/** Stat shows the last value of each series as a number, with its course below. */
export function Stat({ panel, loaded, units }: { panel: Panel; loaded: Loaded; units: (n: number) => Unit }) {
  const all = loaded.parts.flatMap((p) => (p.found?.curves ?? []).map((c) => ({ name: nameOf(p.legend, c.labels, c.text), values: c.values, unit: units(p.n), last: lastOf(c.values) })));
  return (
    <div class="stats" tabIndex={0} role="group" aria-label="Values">
      {all.slice(0, most).map((s, i) => {
        const level = s.last === undefined ? undefined : levelOf(s.last, panel.thresholds);
        return (
          <div key={`${i} ${s.name}`} class={`stat${level ? ` is-${level}` : ""}`}>
            <b>{s.last === undefined ? "–" : s.unit.write(s.last)}</b>
            {level && <span class="level">{levelNames[level]}</span>}
            {all.length > 1 && <span class="name mono" title={s.name}>{s.name}</span>}
            <svg class="spark" viewBox="0 0 100 30" preserveAspectRatio="none" aria-hidden="true"><path d={lineOf(s.values)} vector-effect="non-scaling-stroke" /></svg>
          </div>
        );
      })}
      {all.length > most && <p class="note">{all.length - most} more series are not shown.</p>}
    </div>
  );
}
