// The dashboards of the server.
import { ask, Failure, type Answer } from "../api";
import { arrange } from "./arrange";
import { complete, idOf, type Dashboard, type Sent, type Stored } from "./model";

const path = "/api/v1/dashboards";
export const addressOf = (id: string): string => `/dashboards/${id}`;

const at = (id: string) => `${path}/${encodeURIComponent(id)}`;

export interface Listed {
  id: string;
  title: string;
  version: number;
  updated: number;
  author: string;
  origin: string;
  bytes: number;
  deleted?: boolean;
}

export interface Version {
  version: number;
  updated: number;
  author: string;
  title: string;
  deleted?: boolean;
  bytes: number;
}

const dataOf = <T>(a: Answer<T>): T => a.data;

export const list = (signal: AbortSignal): Promise<Listed[]> => ask<Answer<Listed[] | null>>("GET", path, [["deleted", "true"]], signal).then((a) => a.data ?? []);

/** load returns a version of a dashboard, the newest if none is named, with its panels in the order in which they are read. */
export async function load(id: string, version?: number, signal?: AbortSignal): Promise<Stored> {
  const found = dataOf(await ask<Answer<Omit<Stored, "dashboard"> & { dashboard: Sent }>>("GET", at(id), version ? [["version", String(version)]] : [], signal));
  return { ...found, dashboard: inReadingOrder(found.dashboard) };
}

/** inReadingOrder returns what is stored and shown of a dashboard, whatever order its panels were edited in. */
export function inReadingOrder(d: Sent): Dashboard {
  const all = complete(d);
  return { ...all, panels: arrange(all.panels).map((p) => ({ ...p, thresholds: [...p.thresholds].sort((a, b) => a.from - b.from) })) };
}

export const same = (a: Dashboard, b: Dashboard): boolean => JSON.stringify(inReadingOrder(a)) === JSON.stringify(inReadingOrder(b));

/** put stores a dashboard that was edited from version base, and returns its version. Somebody else's since is a Failure 409. */
export const put = (id: string, base: number, d: Dashboard, signal?: AbortSignal): Promise<number> =>
  putText(id, base, JSON.stringify(inReadingOrder(d)), signal);

const putText = (id: string, base: number, json: string, signal?: AbortSignal): Promise<number> =>
  ask<Answer<{ id: string; version: number }>>("PUT", at(id), [["base", String(base)]], signal, json).then((a) => a.data.version);

const mostNames = 100;

/** create stores a new dashboard under an id from its title that is not taken, and returns the id. */
export const create = (d: Dashboard): Promise<string> => createAs(d.title, JSON.stringify(inReadingOrder(d)));

/** createFrom is create for a text. It is sent as it is: the server says what it does not know. */
export async function createFrom(json: string): Promise<string> {
  const d: unknown = JSON.parse(json);
  const title = d !== null && typeof d === "object" && "title" in d ? d.title : "";
  return createAs(typeof title === "string" ? title : "", json);
}

async function createAs(title: string, json: string): Promise<string> {
  const stem = idOf(title);
  for (let n = 1; ; n++) {
    const id = n === 1 ? stem : `${stem}-${n}`;
    try {
      await putText(id, 0, json);
      return id;
    } catch (err) {
      // Those that are built in, or come from files, take their ids too.
      const taken = err instanceof Failure && (err.status === 409 || (err.status === 403 && (await load(id).then((s) => s.origin !== "", () => false))));
      if (!taken || n === mostNames) throw err;
    }
  }
}

export const remove = (id: string, base: number): Promise<unknown> => ask("DELETE", at(id), [["base", String(base)]]);

export const versions = (id: string, signal?: AbortSignal): Promise<Version[]> => ask<Answer<Version[]>>("GET", `${at(id)}/versions`, [], signal).then(dataOf);

/** restore makes an older version the newest one. */
export async function restore(id: string, version: number): Promise<void> {
  const [all, old] = await Promise.all([versions(id), load(id, version)]);
  await put(id, all[0]!.version, old.dashboard);
}

/** undelete restores the newest version that is not a deletion. */
export async function undelete(id: string): Promise<void> {
  const last = (await versions(id)).find((v) => !v.deleted);
  if (!last) throw new Failure("No version of this dashboard is kept.", 404);
  await restore(id, last.version);
}

