// How values are written, as the metadata of a metric and the convention for names say.

export interface Unit {
  /** name tells scales apart. */
  name: string;
  write: (v: number) => string;
  /** steps are the round steps of an axis, where those are not of tens. */
  steps?: number[];
}

const digits = (v: number): string => {
  const a = Math.abs(v);
  if (a === 0) return "0";
  if (a >= 1e15 || a < 1e-6) return v.toExponential(2);
  const most = a >= 100 ? 1 : a >= 10 ? 2 : a >= 1 ? 3 : Math.min(8, 2 - Math.floor(Math.log10(a)));
  return String(Number(v.toFixed(most)));
};

/** unitsOf returns the units, with numbers as a function writes them. */
function unitsOf(digits: (v: number) => string) {
  const scaled = (steps: readonly (readonly [size: number, suffix: string])[]) => (v: number): string => {
    const a = Math.abs(v);
    const [size, suffix] = steps.find(([s]) => a >= s) ?? steps[steps.length - 1]!;
    return a === 0 ? `${digits(0)} ${steps.find(([s]) => s === 1)?.[1] ?? ""}`.trim() : `${digits(v / size)}${suffix && ` ${suffix}`}`;
  };
  const plain: Unit = {
    name: "",
    write: (v) => {
      for (const [size, suffix] of [[1e12, "T"], [1e9, "G"], [1e6, "M"], [1e3, "k"]] as const) if (Math.abs(v) >= size * 10) return digits(v / size) + suffix;
      return digits(v);
    },
  };
  const bytes = scaled([[2 ** 50, "PiB"], [2 ** 40, "TiB"], [2 ** 30, "GiB"], [2 ** 20, "MiB"], [1024, "KiB"], [1, "B"]]);
  const seconds = scaled([[86400, "d"], [3600, "h"], [60, "min"], [1, "s"], [1e-3, "ms"], [1e-6, "µs"], [1e-9, "ns"]]);
  // Names come from metrics and people, so they must meet none that all objects have.
  const named: Record<string, Unit> = Object.assign(Object.create(null) as object, {
    bytes: { name: "bytes", write: bytes, steps: Array.from({ length: 61 }, (_, n) => 2 ** n) },
    seconds: { name: "seconds", write: seconds, steps: [...[1e-9, 1e-6, 1e-3].flatMap((s) => [1, 2, 5, 10, 20, 50, 100, 200, 500].map((n) => n * s)), 1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 10800, 21600, 43200, 86400, 172800, 432000, 864000, 8640000, 86400000] },
    ratio: { name: "ratio", write: (v) => `${digits(v * 100)} %` },
    percent: { name: "percent", write: (v) => `${digits(v)} %` },
    celsius: { name: "celsius", write: (v) => `${digits(v)} °C` },
    volts: { name: "volts", write: (v) => `${digits(v)} V` },
    amperes: { name: "amperes", write: (v) => `${digits(v)} A` },
    joules: { name: "joules", write: (v) => `${digits(v)} J` },
    watts: { name: "watts", write: (v) => `${digits(v)} W` },
    meters: { name: "meters", write: (v) => `${digits(v)} m` },
    grams: { name: "grams", write: (v) => `${digits(v)} g` },
    hertz: { name: "hertz", write: (v) => `${digits(v)} Hz` },
    ms: { name: "ms", write: (v) => seconds(v / 1000) },
  } satisfies Record<string, Unit>);
  return { plain, named };
}

const { plain, named: units } = unitsOf(digits);

/** unitNames are the units that a person can choose. */
export const unitNames: readonly string[] = Object.keys(units);

/** unitNamed returns the unit with a name, which writes so many decimals if that is given. Any other name is written behind the numbers. */
export function unitNamed(name: string, decimals?: number): Unit {
  const kit = decimals === undefined ? { plain, named: units } : unitsOf((v) => v.toFixed(Math.min(Math.max(decimals, 0), 20)));
  const found = kit.named[name];
  if (found || !name) return found ?? kit.plain;
  const base = /^(.*)\/s$/.exec(name)?.[1];
  if (base !== undefined && kit.named[base]) return { name, write: (v) => `${kit.named[base]!.write(v)}/s` };
  return { name, write: (v) => `${kit.plain.write(v)} ${name}` };
}

// What senders other than Prometheus' clients say.
const otherNames: Record<string, string> = { b: "bytes", by: "bytes", byte: "bytes", s: "seconds", second: "seconds", "%": "percent", "1": "ratio", v: "volts", w: "watts", j: "joules", cel: "celsius", hz: "hertz", milliseconds: "ms" };

const perSecond = (u: Unit): Unit => (u.name === "seconds" ? plain : { name: `${u.name}/s`, write: (v) => `${u.write(v)}/s` });

export interface Metadata {
  type: string;
  help: string;
  unit: string;
}

export function unitOfMetric(name: string, known: Metadata | undefined): Unit {
  const said = (known?.unit ?? "").toLowerCase();
  if (said === "ms" || otherNames[said] === "ms") return units["ms"]!;
  const found = units[said] ?? units[otherNames[said] ?? ""];
  if (found) return found;
  if (said) return { name: said, write: (v) => `${plain.write(v)} ${known!.unit}` };
  const base = name.replace(/_(total|sum|bucket|min|max|avg)$/, "");
  const last = base.slice(base.lastIndexOf("_") + 1).toLowerCase();
  return units[last] ?? (last === "milliseconds" || last === "ms" ? units["ms"]! : plain);
}

/** unitOf returns the unit of an expression's values, as far as the metrics in it and its functions tell. */
export function unitOf(expr: string, metadata: ReadonlyMap<string, Metadata>): Unit {
  // Strings and label lists hold no metrics. What stands before a parenthesis is a function.
  const bare = expr.replace(/"(?:\\.|[^"\\])*"|'(?:\\.|[^'\\])*'|`[^`]*`/g, "").replace(/\b(?:by|without|on|ignoring|group_left|group_right)\s*\([^)]*\)/g, "");
  const outside = bare.replace(/\{[^}]*\}/g, " ").replace(/\[[^\]]*\]/g, " ");
  if (/\b(count|count_over_time|changes|resets|absent|absent_over_time|present_over_time|group|timestamp|count_values)\s*\(/.test(outside)) return plain;
  const found = new Map<string, Unit>();
  for (const [name] of outside.matchAll(/[a-zA-Z_:][a-zA-Z0-9_:]*(?![a-zA-Z0-9_:]*\s*\()/g)) {
    if (/^(and|or|unless|bool|offset|by|without|on|ignoring|group_left|group_right|start|end|inf|nan|anchored|smoothed|e\d*|[smhdwy]|ms)$/i.test(name)) continue;
    const unit = unitOfMetric(name, metadata.get(name));
    found.set(unit.name, unit);
  }
  const quoted = /\{\s*"([^"]+)"|__name__\s*=\s*"([^"]+)"/.exec(expr);
  const named = quoted?.[1] ?? quoted?.[2];
  if (named) {
    const unit = unitOfMetric(named, metadata.get(named));
    found.set(unit.name, unit);
  }
  if (found.size !== 1 || /[^\s(,*+\-/%^]\s*[*/^%]\s*[a-zA-Z_({]/.test(outside)) return plain;
  const unit = [...found.values()][0]!;
  return /\b(rate|irate|deriv)\s*\(/.test(outside) ? perSecond(unit) : unit;
}

export const noUnit = plain;
