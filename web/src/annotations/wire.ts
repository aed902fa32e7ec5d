// Annotations as the server has them. Times are Unix ms.
import { ask, type Params } from "../api";

export interface Annotation {
  id: string;
  start: number;
  end: number;
  text: string;
  tags: string[];
  selector: string;
  author: string;
  updated: number;
}

export interface Found {
  annotations: Annotation[];
  more: boolean;
}

/** Draft is what a person writes; id is empty for a new annotation. moved_from is where it was before. */
export interface Draft {
  id?: string;
  start: number;
  end: number;
  text: string;
  tags: string[];
  selector: string;
  moved_from?: number;
}

const path = "/api/v1/annotations";

/** mostShown bounds what a view asks for: the last ones of its time. */
export const mostShown = 1000;

// The server takes a number below 1e11 for seconds.
const stamp = (ms: number): string => new Date(ms).toISOString();

export function find(start: number, end: number, tags: string[], text: string, signal: AbortSignal): Promise<Found> {
  const params: Params = [["start", stamp(start)], ["end", stamp(end)], ["limit", String(mostShown)]];
  for (const tag of tags) params.push(["tag", tag]);
  if (text) params.push(["text", text]);
  return ask<Found>("GET", path, params, signal);
}

export function save(d: Draft): Promise<unknown> {
  const { moved_from: was, ...rest } = d;
  return ask("POST", path, [], undefined, JSON.stringify({ ...rest, start: stamp(d.start), end: stamp(d.end), ...(was === undefined ? {} : { moved_from: stamp(was) }) }));
}

export function remove(a: Annotation): Promise<unknown> {
  return ask("DELETE", path, [["id", a.id], ["start", stamp(a.start)]]);
}

export const isAlert = (a: Annotation): boolean => a.tags.includes("alert");

/** keyOf names an annotation: an id alone may have several starts. */
export const keyOf = (a: Annotation): string => `${a.start} ${a.id}`;
