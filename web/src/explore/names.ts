// Names and metadata of what the server stores, asked once in a while.
import { ask, type Answer, type Params } from "../api";
import { minute } from "../time";
import type { Metadata } from "./units";

const fresh = minute;

const answers = new Map<string, { at: number; answer: Promise<unknown> }>();

function once<T>(key: string, load: () => Promise<T>): Promise<T> {
  const before = answers.get(key);
  if (before && performance.now() - before.at < fresh) return before.answer as Promise<T>;
  if (answers.size > 200) answers.clear();
  const answer = load();
  answers.set(key, { at: performance.now(), answer });
  answer.catch(() => answers.delete(key));
  return answer;
}

const mostNames = "10000";

/** names returns a list of names or values. One that cannot be had is empty: it only completes what people type. */
export const names = (path: string, params: Params): Promise<string[]> =>
  once(`${path}?${new URLSearchParams(params)}`, () => ask<Answer<string[]>>("GET", path, [...params, ["limit", mostNames]]).then((a) => a.data)).catch(() => []);

/** metadata returns what is known of metrics by name, nothing if it cannot be had. */
export const metadata = (): Promise<Map<string, Metadata>> =>
  once("metadata", async () => {
    const { data } = await ask<Answer<Record<string, Metadata[]>>>("GET", "/api/v1/metadata");
    return new Map(Object.entries(data).flatMap(([name, all]) => (all[0] ? [[name, all[0]] as const] : [])));
  }).catch(() => new Map<string, Metadata>());
