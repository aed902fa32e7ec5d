import { useMemo, useState } from "preact/hooks";
import { letter } from "../../explore/Query";
import type { Unit } from "../../explore/units";
import type { Loaded } from "../data";
import { levelNames, levelOf, type Panel } from "../model";

const most = 500; // rows that are shown

interface Row {
  labels: Record<string, string>;
  values: Map<number, number>;
}

/** Values shows a row for each set of labels, with a column for each query. */
export function Values({ panel, title, loaded, units }: { panel: Panel; title: string; loaded: Loaded; units: (n: number) => Unit }) {
  const [sort, setSort] = useState<{ by: string; down: boolean }>({ by: "", down: false });
  const { rows, columns } = useMemo(() => {
    const byLabels = new Map<string, Row>();
    const one = loaded.parts.length === 1;
    for (const p of loaded.parts) for (const { labels, value } of p.values ?? []) {
      // The name of the metric tells the queries apart, which have columns of their own.
      const own = Object.entries(labels).filter(([l]) => one || l !== "__name__").sort(([a], [b]) => (a < b ? -1 : 1));
      const key = JSON.stringify(own);
      const row = byLabels.get(key) ?? { labels: Object.fromEntries(own), values: new Map<number, number>() };
      row.values.set(p.n, value);
      byLabels.set(key, row);
    }
    const seen = new Set([...byLabels.values()].flatMap((r) => Object.keys(r.labels)));
    return { rows: [...byLabels.values()], columns: [...(seen.delete("__name__") ? ["__name__"] : []), ...[...seen].sort()] };
  }, [loaded]);
  const sorted = useMemo(() => {
    if (!sort.by) return rows;
    const sign = sort.down ? -1 : 1;
    const n = sort.by.startsWith("#") ? Number(sort.by.slice(1)) : undefined;
    return [...rows].sort((a, b) => sign * (n === undefined ? (a.labels[sort.by.slice(1)] ?? "").localeCompare(b.labels[sort.by.slice(1)] ?? "", "en", { numeric: true }) : (a.values.get(n) ?? -Infinity) - (b.values.get(n) ?? -Infinity)));
  }, [rows, sort]);
  const head = (by: string, text: string, n = false) => (
    <th key={by} class={n ? "n" : ""} aria-sort={sort.by === by ? (sort.down ? "descending" : "ascending") : "none"}><button type="button" class="sort" onClick={() => setSort({ by, down: sort.by === by && !sort.down })}>{text}{sort.by === by ? (sort.down ? " ↓" : " ↑") : ""}</button></th>
  );
  return (
    <div class="scroll values-box" tabIndex={0} role="region" aria-label={`Values of ${title}`}>
      <table class="values">
        <thead><tr>{columns.map((c) => head(`.${c}`, c === "__name__" ? "metric" : c))}{loaded.parts.map((p) => head(`#${p.n}`, p.legend.trim() && !p.legend.includes("{{") ? p.legend : loaded.parts.length > 1 ? letter(p.n) : "value", true))}</tr></thead>
        <tbody>
          {sorted.slice(0, most).map((r, i) => (
            <tr key={i}>
              {columns.map((c) => <td key={c} class="mono">{r.labels[c] ?? ""}</td>)}
              {loaded.parts.map((p) => {
                const v = r.values.get(p.n);
                const level = v === undefined ? undefined : levelOf(v, panel.thresholds);
                return <td key={p.n} class={`n${level ? ` is-${level}` : ""}`}>{v === undefined ? "" : Number.isFinite(v) ? units(p.n).write(v) : String(v)}{level && <span class="level"> {levelNames[level]}</span>}</td>;
              })}
            </tr>
          ))}
        </tbody>
      </table>
      {sorted.length > most && <p class="note">{sorted.length - most} more rows are not shown.</p>}
    </div>
  );
}
