// Asking the server. All failures are Failures with a text for people.

export class Failure extends Error {
  /** status is the code of the answer, 0 if there was none. */
  readonly status: number;

  constructor(message: string, status: number) {
    super(message);
    this.status = status;
  }

  /** position is where in an expression the server found the mistake, with the first line and column as 1. */
  get position(): { line: number; column: number } | undefined {
    const found = /(?:^|: )(\d+):(\d+): parse error: /.exec(this.message);
    return found ? { line: Number(found[1]), column: Number(found[2]) } : undefined;
  }

  /** plain is the message without the position and what stands before it. */
  get plain(): string {
    return this.message.replace(/^invalid parameter "query": (?:\d+:\d+: )?/, "");
  }
}

export type Params = [name: string, value: string][];

/** Reached is whether the server answered the last request. */
export type Reached = "unknown" | "yes" | "no";

let reached: Reached = "unknown";
const watchers = new Set<(r: Reached) => void>();

function reach(now: Reached): void {
  if (now === reached) return;
  reached = now;
  for (const w of watchers) w(now);
}

export function watchReached(watcher: (r: Reached) => void): () => void {
  watchers.add(watcher);
  watcher(reached);
  return () => void watchers.delete(watcher);
}

/** loginPath takes a user and a password, or a token, and answers with a cookie. */
export const loginPath = "/api/v1/login";

const locked = new Set<() => void>();

/** watchLocked calls the watcher whenever the server has not answered since it does not know who asks. */
export function watchLocked(watcher: () => void): () => void {
  locked.add(watcher);
  return () => void locked.delete(watcher);
}

export const gone = (err: unknown): boolean => err instanceof DOMException && err.name === "AbortError";

export type Method = "GET" | "POST" | "DELETE";

/** request sends parameters: in the body for POST, in the address otherwise. With a json, that is the body. */
export async function request(method: Method, path: string, params: Params, signal?: AbortSignal, json?: unknown): Promise<Response> {
  const form = new URLSearchParams(params);
  let answer: Response;
  try {
    answer = await fetch(method !== "POST" && params.length ? `${path}?${form}` : path, {
      method,
      signal: signal ?? null,
      ...(json !== undefined ? { body: JSON.stringify(json), headers: { "Content-Type": "application/json" } } : method === "POST" ? { body: form } : {}),
    });
  } catch (err) {
    if (gone(err)) throw err;
    reach("no");
    throw new Failure("The server does not answer.", 0);
  }
  reach("yes");
  if (answer.status === 401 && path !== loginPath) for (const w of locked) w();
  if (!answer.ok) throw new Failure(await reason(answer), answer.status);
  return answer;
}

async function reason(answer: Response): Promise<string> {
  const text = await answer.text();
  try {
    const { error } = JSON.parse(text) as { error?: unknown };
    if (typeof error === "string" && error) return error;
  } catch {
    // It is no JSON.
  }
  return text.trim().slice(0, 1000) || `The server answered ${answer.status}.`;
}

/** ask returns the JSON of an answer. */
export async function ask<T>(method: Method, path: string, params: Params = [], signal?: AbortSignal, json?: unknown): Promise<T> {
  const answer = await request(method, path, params, signal, json);
  try {
    return (await answer.json()) as T;
  } catch (err) {
    if (gone(err)) throw err;
    throw new Failure("The server's answer broke off.", answer.status);
  }
}

/** lines returns the JSON of each line of an answer, as they come. */
export async function* lines<T>(answer: Response): AsyncGenerator<T> {
  const reader = answer.body!.getReader();
  const decoder = new TextDecoder();
  let rest = "";
  for (;;) {
    const { done, value } = await reader.read();
    rest += decoder.decode(value, { stream: !done });
    const whole = rest.split("\n");
    rest = whole.pop()!;
    for (const line of whole) if (line) yield JSON.parse(line) as T;
    if (done) return;
  }
}

/** Answer is what Prometheus' endpoints answer. */
export interface Answer<T> {
  data: T;
  warnings?: string[];
  infos?: string[];
  levels?: Levels[];
}

export type Labels = Record<string, string>;

/** Levels say where the values of a selector were read. Times are Unix s. */
export interface Levels {
  selector: string;
  parts: LevelPart[];
}

export interface LevelPart {
  level: string;
  start: number;
  end: number;
  series?: number;
  late?: boolean;
  partial?: boolean;
}

export type Point = [time: number, value: string];

export type Result =
  | { resultType: "matrix"; result: { metric: Labels; values: Point[] }[] }
  | { resultType: "vector"; result: { metric: Labels; value: Point }[] }
  | { resultType: "scalar" | "string"; result: Point };
