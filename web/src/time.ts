// Times are Unix ms, durations ms.
import { kept } from "./kept";

export const second = 1000;
export const minute = 60 * second;
export const hour = 60 * minute;
export const day = 24 * hour;

const units: [unit: string, ms: number][] = [["y", 365 * day], ["w", 7 * day], ["d", day], ["h", hour], ["m", minute], ["s", second], ["ms", 1]];

/** parseDuration reads what Prometheus writes, such as 1h30m. */
export function parseDuration(text: string): number | undefined {
  const t = text.trim();
  if (!/^(\d+(ms|[ywdhms]))+$/.test(t)) return undefined;
  let ms = 0;
  for (const [, n, unit] of t.matchAll(/(\d+)(ms|[ywdhms])/g)) ms += Number(n) * units.find(([u]) => u === unit)![1];
  return ms > 0 && ms <= 100 * 365 * day ? ms : undefined;
}

export function formatDuration(ms: number): string {
  let out = "";
  let left = Math.round(ms);
  for (const [unit, size] of units) {
    if (unit === "w" || unit === "y") continue; // 7d and 365d say the same to more people
    const n = Math.floor(left / size);
    if (n) out += n + unit;
    left -= n * size;
  }
  return out || "0s";
}

/** about writes a duration for people: two units at most. */
export function about(ms: number): string {
  if (ms < 0) return `-${about(-ms)}`;
  if (ms < 1000) return `${Math.round(ms)} ms`;
  const parts: string[] = [];
  let left = Math.round(ms / second) * second;
  for (const [unit, size] of [["d", day], ["h", hour], ["min", minute], ["s", second]] as const) {
    const n = Math.floor(left / size);
    left -= n * size;
    if (n) parts.push(`${n} ${unit}`);
    else if (parts.length) break;
    if (parts.length === 2) break;
  }
  return parts.join(" ") || "0 s";
}

/** ago writes how long before now a time is. */
export function ago(ms: number, now: number): string {
  const d = now - ms;
  return d < -second ? `in ${about(-d)}` : d < 5 * second ? "just now" : `${about(d)} ago`;
}

export type Zone = "utc" | "local";

export const keptZone = (): Zone => (kept("zone") === "utc" ? "utc" : "local");

const pad = (n: number, width = 2) => String(n).padStart(width, "0");

export function dateIn(ms: number, zone: Zone): { y: number; mo: number; d: number; h: number; mi: number; s: number; ms: number } {
  const t = new Date(ms);
  return zone === "utc"
    ? { y: t.getUTCFullYear(), mo: t.getUTCMonth() + 1, d: t.getUTCDate(), h: t.getUTCHours(), mi: t.getUTCMinutes(), s: t.getUTCSeconds(), ms: t.getUTCMilliseconds() }
    : { y: t.getFullYear(), mo: t.getMonth() + 1, d: t.getDate(), h: t.getHours(), mi: t.getMinutes(), s: t.getSeconds(), ms: t.getMilliseconds() };
}

/** formatTime writes a time in a form that parseTime reads. */
export function formatTime(ms: number, zone: Zone): string {
  const t = dateIn(ms, zone);
  const fraction = t.ms ? `.${pad(t.ms, 3)}` : "";
  const seconds = t.s || t.ms ? `:${pad(t.s)}${fraction}` : "";
  return `${t.y}-${pad(t.mo)}-${pad(t.d)} ${pad(t.h)}:${pad(t.mi)}${seconds}`;
}

/** parseTime reads a date, or a date and a time, in the zone unless it names one; or a number of Unix seconds or ms. */
export function parseTime(text: string, zone: Zone): number | undefined {
  const t = text.trim();
  if (/^\d{9,13}(\.\d+)?$/.test(t)) {
    const n = Number(t);
    return n >= 1e11 ? n : n * 1000;
  }
  const found = /^(\d{4})-(\d\d)-(\d\d)(?:[ T](\d\d):(\d\d)(?::(\d\d)(?:\.(\d{1,3}))?)?)?\s*(Z|[+-]\d\d:\d\d)?$/i.exec(t);
  if (!found) return undefined;
  const [, y, mo, d, h = "00", mi = "00", s = "00", f = "", offset] = found;
  const suffix = offset ?? (zone === "utc" ? "Z" : "");
  const ms = Date.parse(`${y}-${mo}-${d}T${h}:${mi}:${s}.${f.padEnd(3, "0")}${suffix.toUpperCase()}`);
  return Number.isNaN(ms) ? undefined : ms;
}

/** Range is what is shown: up to now, or between two times. */
export type Range = { back: number } | { start: number; end: number };

export const defaultRange: Range = { back: hour };

export function readRange(query: URLSearchParams): Range {
  const start = parseTime(query.get("start") ?? "", "utc");
  const end = parseTime(query.get("end") ?? "", "utc");
  if (start !== undefined && end !== undefined && start < end) return { start, end };
  const back = parseDuration(query.get("range") ?? "");
  return back === undefined ? defaultRange : { back };
}

export function writeRange(r: Range): [string, string | undefined][] {
  if ("back" in r) return [["range", formatDuration(r.back)]];
  return [["start", stamp(r.start)], ["end", stamp(r.end)]];
}

const stamp = (ms: number) => new Date(ms).toISOString().replace(".000Z", "Z");

export const spanOf = (r: Range, now: number): { start: number; end: number } => ("back" in r ? { start: now - r.back, end: now } : r);

export const describeRange = (r: Range, zone: Zone): string =>
  "back" in r ? `Last ${formatDuration(r.back)}` : `${formatTime(r.start, zone)} – ${formatTime(r.end, zone)}`;

const niceSteps = [1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 10800, 21600, 43200, 86400, 172800, 604800].map((s) => s * second);

/** autoStep returns a round step with at most about `points` of them in a span. */
export const autoStep = (span: number, points: number): number =>
  niceSteps.find((s) => span / s <= points) ?? Math.ceil(span / points / day) * day;
