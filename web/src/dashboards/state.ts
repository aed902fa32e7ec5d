// What the address of a dashboard says.
import { go } from "../address";
import { defaultRange, parseDuration, readRange, writeRange, type Range } from "../time";
import type { Dashboard } from "./model";
import { parameterOf } from "./variables";

export interface State {
  range: Range;
  /** refresh is how often the dashboard asks again, in ms; 0 for never. */
  refresh: number;
  /** panel is the one that is shown alone. */
  panel: number | undefined;
  edit: boolean;
  /** version is an older one that is looked at. */
  version: number;
}

export const versionOf = (query: URLSearchParams): number => Number(query.get("version")) || 0;

/** read returns what the address says, and the dashboard where that says nothing. */
export function read(query: URLSearchParams, d: Dashboard): State {
  const back = parseDuration(d.range);
  const every = query.get("refresh");
  return {
    range: query.has("range") || query.has("start") ? readRange(query) : back === undefined ? defaultRange : { back },
    refresh: parseDuration(every ?? d.refresh) ?? 0,
    panel: query.has("panel") ? Number(query.get("panel")) : undefined,
    edit: query.get("edit") === "1",
    version: versionOf(query),
  };
}

/** change shows what the address says with other values; undefined and no values take a name away. */
export function change(values: Record<string, string | string[] | undefined>, how: "push" | "replace" = "push"): void {
  const query = new URLSearchParams(location.search);
  for (const [name, value] of Object.entries(values)) {
    query.delete(name);
    for (const v of Array.isArray(value) ? value : value === undefined ? [] : [value]) query.append(name, v);
  }
  const text = query.toString();
  go(location.pathname + (text ? `?${text}` : ""), how);
}

export const changeRange = (r: Range): void => change({ range: undefined, start: undefined, end: undefined, ...Object.fromEntries(writeRange(r)) });

/** changeVariable chooses values; none at all is written too, since it says all where the dashboard says some. */
export const changeVariable = (name: string, value: string[]): void => change({ [parameterOf(name)]: value.length ? value : [""] });
