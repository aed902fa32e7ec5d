// A dashboard, as the server stores it.

export const kinds = ["timeseries", "stat", "gauge", "heatmap", "table", "text"] as const;
export type Kind = (typeof kinds)[number];

export const kindNames: Record<Kind, string> = { timeseries: "Time series", stat: "Number", gauge: "Gauge", heatmap: "Heat map", table: "Table", text: "Text" };

/** Place is where a panel lies, in columns and rows of the grid. */
export interface Place {
  x: number;
  y: number;
  w: number;
  h: number;
}

export interface Query {
  expr: string;
  /** legend names the series; {{label}} stands for the value of a label. */
  legend: string;
}

export const levels = ["ok", "warn", "bad"] as const;
export type Level = (typeof levels)[number];

/** Threshold gives values from a number on a level. */
export interface Threshold {
  from: number;
  level: Level;
}

export interface Panel {
  id: number;
  title: string;
  description: string;
  kind: Kind;
  at: Place;
  queries: Query[];
  /** unit is a name of explore/units.ts, "" for that of the metric. */
  unit: string;
  decimals?: number | undefined;
  min?: number | undefined;
  max?: number | undefined;
  stack: boolean;
  thresholds: Threshold[];
  text: string;
}

export const variableKinds = ["label", "list", "text"] as const;

export interface Variable {
  name: string;
  label: string;
  kind: (typeof variableKinds)[number];
  of: string;
  selector: string;
  multi: boolean;
  values: string[];
  /** value is what is chosen first; with multi none means all. */
  value: string[];
}

export interface Dashboard {
  format: 1;
  title: string;
  description: string;
  tags: string[];
  range: string;
  refresh: string;
  variables: Variable[];
  panels: Panel[];
}

export const emptyDashboard = (title: string): Dashboard => ({ format: 1, title, description: "", tags: [], range: "", refresh: "", variables: [], panels: [] });

/** Sent is a dashboard as the server sends it: without what is empty. */
export type Sent = Partial<Omit<Dashboard, "panels" | "variables">> & {
  variables?: (Partial<Variable> & Pick<Variable, "name" | "kind">)[] | null;
  panels?: (Partial<Panel> & Pick<Panel, "id" | "kind">)[] | null;
};

/** complete fills in what is empty. Equal dashboards are equal texts of JSON then. */
export function complete(d: Sent): Dashboard {
  return {
    format: 1,
    title: d.title ?? "",
    description: d.description ?? "",
    tags: d.tags ?? [],
    range: d.range ?? "",
    refresh: d.refresh ?? "",
    variables: (d.variables ?? []).map((v) => ({
      name: v.name, label: v.label ?? "", kind: v.kind, of: v.of ?? "", selector: v.selector ?? "", multi: v.multi ?? false, values: v.values ?? [], value: v.value ?? [],
    })),
    panels: (d.panels ?? []).map((p) => {
      const { x, y, w, h } = p.at ?? newPanel(p.id, p.kind).at;
      return {
        id: p.id, title: p.title ?? "", description: p.description ?? "", kind: p.kind, at: { x, y, w, h },
        queries: (p.queries ?? []).map((q) => ({ expr: q.expr, legend: q.legend ?? "" })),
        unit: p.unit ?? "", decimals: p.decimals ?? undefined, min: p.min ?? undefined, max: p.max ?? undefined, stack: p.stack ?? false,
        thresholds: (p.thresholds ?? []).map(({ from, level }) => ({ from, level })), text: p.text ?? "",
      };
    }),
  };
}

export const newVariable = (name: string): Variable => ({ name, label: "", kind: "label", of: "", selector: "", multi: true, values: [], value: [] });

const sizes: Record<Kind, [w: number, h: number]> = { timeseries: [12, 8], stat: [6, 5], gauge: [6, 6], heatmap: [12, 8], table: [12, 8], text: [8, 5] };

export const newPanel = (id: number, kind: Kind): Panel => ({
  id, title: "", description: "", kind, at: { x: 0, y: 0, w: sizes[kind][0], h: sizes[kind][1] },
  queries: kind === "text" ? [] : [{ expr: "", legend: "" }], unit: "", stack: false, thresholds: [], text: "",
});

export const nextId = (panels: Panel[]): number => Math.max(0, ...panels.map((p) => p.id)) + 1;

/** levelOf returns the level of a value: that of the highest threshold that it reaches. */
export function levelOf(value: number, thresholds: Threshold[]): Level | undefined {
  let best: Threshold | undefined;
  for (const t of thresholds) if (value >= t.from && (!best || t.from >= best.from)) best = t;
  return best?.level;
}

export const levelNames: Record<Level, string> = { ok: "good", warn: "warning", bad: "bad" };

/** idOf makes an id from a title. */
export const idOf = (title: string): string => title.toLowerCase().replace(/[^a-z0-9_.]+/g, "-").replace(/^-+|-+$/g, "").slice(0, 120) || "dashboard";

export const isId = (id: string): boolean => /^[a-z0-9_.-]{1,128}$/.test(id);

/** Stored is a version of a dashboard. */
export interface Stored {
  id: string;
  version: number;
  updated: number;
  author: string;
  /** origin is "" for one that can be changed. */
  origin: string;
  /** problem is why what its file has now cannot be used. */
  problem?: string;
  dashboard: Dashboard;
}
