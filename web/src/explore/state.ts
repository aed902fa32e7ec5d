// What Explore shows, as its address has it.
import { format } from "../address";
import { formatDuration, parseDuration, readRange, writeRange, type Range } from "../time";

export interface State {
  queries: string[];
  /** hidden are the numbers of the expressions that are not evaluated. */
  hidden: number[];
  range: Range;
  /** step is 0 if the page chooses one. */
  step: number;
  /** refresh is how often the page asks again, 0 for never. */
  refresh: number;
  view: "chart" | "table";
  /** only are the texts of the series that are shown, all if there are none. */
  only: string[];
  band: boolean;
  /** quantile is drawn as well where values come from roll-ups, 0 for none. */
  quantile: number;
  /** annotations says whether annotations are shown: those with all of the tags, and with the text as a part of theirs. */
  annotations: { on: boolean; tags: string[]; text: string };
  /** at is the time that is explained, with the selector that it is explained for. */
  at?: { time: number; of: string };
}

export function read(query: URLSearchParams): State {
  const at = Number(query.get("at") ?? Number.NaN);
  const quantile = Number(query.get("p") ?? 0) / 100;
  const queries = query.getAll("q");
  return {
    queries: queries.length ? queries : [""],
    hidden: (query.get("hide") ?? "").split(",").filter(Boolean).map(Number),
    range: readRange(query),
    step: parseDuration(query.get("step") ?? "") ?? 0,
    refresh: parseDuration(query.get("refresh") ?? "") ?? 0,
    view: query.get("view") === "table" ? "table" : "chart",
    only: query.getAll("only"),
    band: query.get("band") !== "off",
    quantile: quantile > 0 && quantile < 1 ? quantile : 0,
    annotations: { on: query.get("annotations") !== "off", tags: query.getAll("tag"), text: query.get("text") ?? "" },
    ...(Number.isFinite(at) ? { at: { time: at, of: query.get("of") ?? "" } } : {}),
  };
}

export function write(s: State): string {
  return format("/explore", [
    ...s.queries.map((q): [string, string] => ["q", q]),
    ["hide", s.hidden.join(",")],
    ...writeRange(s.range),
    ["step", s.step ? formatDuration(s.step) : ""],
    ["refresh", s.refresh ? formatDuration(s.refresh) : ""],
    ["view", s.view === "chart" ? "" : s.view],
    ...s.only.map((text): [string, string] => ["only", text]),
    ["band", s.band ? "" : "off"],
    ["p", s.quantile ? String(Math.round(s.quantile * 1e6) / 1e4) : ""],
    ["annotations", s.annotations.on ? "" : "off"],
    ...s.annotations.tags.map((tag): [string, string] => ["tag", tag]),
    ["text", s.annotations.text],
    ["at", s.at ? String(s.at.time) : ""],
    ["of", s.at?.of],
  ]);
}
