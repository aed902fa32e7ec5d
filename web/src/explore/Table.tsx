import { useEffect, useMemo, useState } from "preact/hooks";
import { ask, Failure, gone, type Answer, type Labels, type Result } from "../api";
import { usePreferences } from "../preferences";
import { formatTime } from "../time";
import { letter } from "./Query";
import type { Unit } from "./units";

export interface TableRow {
  n: number;
  labels: Labels;
  value: string;
  time: number;
}

const most = 1000; // rows that are shown at once

/** rowsOf returns the rows of an answer at one time. */
function rowsOf(n: number, r: Result): TableRow[] {
  switch (r.resultType) {
    case "vector":
      return r.result.map((s) => ({ n, labels: s.metric, value: s.value[1], time: s.value[0] * 1000 }));
    case "matrix": // a range selector: its newest sample
      return r.result.flatMap((s) => {
        const last = s.values[s.values.length - 1];
        return last ? [{ n, labels: s.metric, value: last[1], time: last[0] * 1000 }] : [];
      });
    default:
      return [{ n, labels: {}, value: r.result[1], time: r.result[0] * 1000 }];
  }
}

/** Table shows the values at the end of the range. */
export function Table({ queries, time, units, loaded, failed }: {
  queries: { n: number; text: string }[];
  time: number;
  units: Map<number, Unit>;
  loaded: (rows: TableRow[], columns: string[]) => void;
  failed: (n: number, f: Failure | undefined) => void;
}) {
  const { zone } = usePreferences();
  const [rows, setRows] = useState<TableRow[]>();
  const [sort, setSort] = useState<{ by: string; down: boolean }>({ by: "", down: false });
  const key = JSON.stringify(queries);
  useEffect(() => {
    const stop = new AbortController();
    const all: Promise<TableRow[]>[] = queries.map(({ n, text }) =>
      ask<Answer<Result>>("POST", "/api/v1/query", [["query", text], ["time", String(time / 1000)]], stop.signal).then(
        (a) => {
          failed(n, undefined);
          return rowsOf(n, a.data);
        },
        (err) => {
          if (!gone(err)) failed(n, err instanceof Failure ? err : new Failure(String(err), 0));
          return [];
        },
      ));
    void Promise.all(all).then((found) => !stop.signal.aborted && setRows(found.flat()));
    return () => stop.abort();
  }, [key, time]);

  const columns = useMemo(() => {
    const seen = new Set((rows ?? []).flatMap((r) => Object.keys(r.labels)));
    return [...(seen.delete("__name__") ? ["__name__"] : []), ...[...seen].sort()];
  }, [rows]);
  const sorted = useMemo(() => {
    const out = [...(rows ?? [])];
    if (!sort.by) return out;
    const sign = sort.down ? -1 : 1;
    return out.sort((a, b) => sign * (sort.by === "value" ? Number(a.value) - Number(b.value) : (a.labels[sort.by] ?? "").localeCompare(b.labels[sort.by] ?? "", "en", { numeric: true })));
  }, [rows, sort]);
  useEffect(() => {
    if (rows) loaded(sorted, columns);
  }, [sorted]);

  if (!rows) return <p class="note card-body" role="status">Asking…</p>;
  if (!rows.length) return <p class="note card-body">No series has a value at {formatTime(time, zone)}.</p>;
  const head = (by: string, text: string, n = false) => (
    <th class={n ? "n" : ""} aria-sort={sort.by === by ? (sort.down ? "descending" : "ascending") : "none"}><button type="button" class="sort" onClick={() => setSort({ by, down: sort.by === by && !sort.down })}>{text}{sort.by === by ? (sort.down ? " ↓" : " ↑") : ""}</button></th>
  );
  return (
    <div class="scroll" tabIndex={0} role="region" aria-label="Values">
      <table class="values">
        <thead><tr>{queries.length > 1 && <th>Expression</th>}{columns.map((c) => head(c, c === "__name__" ? "metric" : c))}{head("value", "value", true)}</tr></thead>
        <tbody>
          {sorted.slice(0, most).map((r, i) => (
            <tr key={i}>{queries.length > 1 && <td>{letter(r.n)}</td>}{columns.map((c) => <td key={c} class="mono">{r.labels[c] ?? ""}</td>)}<td class="n" title={r.value}>{Number.isFinite(Number(r.value)) && r.value !== "" ? (units.get(r.n)?.write(Number(r.value)) ?? r.value) : r.value}</td></tr>
          ))}
        </tbody>
      </table>
      {sorted.length > most && <p class="note card-body">{sorted.length - most} more rows are in the CSV.</p>}
    </div>
  );
}
