import type { Labels } from "../api";

export const quote = (text: string): string => `"${text.replace(/\\/g, "\\\\").replace(/"/g, '\\"').replace(/\n/g, "\\n")}"`;

const plainName = /^[a-zA-Z_:][a-zA-Z0-9_:]*$/;

/** seriesText writes labels as a selector, which matches the series. */
export function seriesText(labels: Labels): string {
  const name = labels["__name__"] ?? "";
  const inside = Object.keys(labels).filter((l) => l !== "__name__").sort().map((l) => `${plainName.test(l) && !l.includes(":") ? l : quote(l)}=${quote(labels[l]!)}`);
  if (name && !plainName.test(name)) inside.unshift(quote(name));
  const shown = plainName.test(name) ? name : "";
  return inside.length || !shown ? `${shown}{${inside.join(",")}}` : shown;
}

/** braces returns the end of what a brace at `from` opens, -1 if nothing closes it. */
function braces(text: string, from: number): number {
  let quoted = "";
  for (let i = from; i < text.length; i++) {
    const c = text[i]!;
    if (quoted) {
      if (c === "\\" && quoted !== "`") i++;
      else if (c === quoted) quoted = "";
    } else if (c === '"' || c === "'" || c === "`") quoted = c;
    else if (c === "}") return i + 1;
  }
  return -1;
}

/** plainSelector returns an expression that is a vector selector and nothing else, undefined for any other. */
export function plainSelector(expr: string): string | undefined {
  const text = expr.trim();
  const rest = text.slice(bareSelector(text).length).trim();
  return text && !rest && !/^(nan|inf)$/i.test(text) ? text : undefined;
}

/** bareSelector returns what a selector matches, without its range, offset and time. */
export function bareSelector(text: string): string {
  const name = /^[a-zA-Z_:][a-zA-Z0-9_:]*/.exec(text)?.[0] ?? "";
  const open = name.length + (/^\s*\{/.exec(text.slice(name.length))?.[0].length ?? 0) - 1;
  if (text[open] !== "{") return name;
  const end = braces(text, open + 1);
  return end < 0 ? "" : text.slice(0, end);
}

/** expressionFor returns the expression that shows a metric. */
export function expressionFor(name: string, type: string | undefined): string {
  const selector = plainName.test(name) ? name : `{${quote(name)}}`;
  return type === "counter" || /_total$/.test(name) ? `rate(${selector}[5m])` : selector;
}
