// Asking the server. All failures are Failures with a text for people.

export class Failure extends Error {
  /** status is the code of the answer, 0 if there was none. */
  readonly status: number;
  /** details is what the answer has beside the text. */
  readonly details: Record<string, unknown>;

  constructor(message: string, status: number, details: Record<string, unknown> = {}) {
    super(message);
    this.status = status;
    this.details = details;
  }

  /** of makes a Failure of whatever was thrown. */
  static of(err: unknown): Failure {
    return err instanceof Failure ? err : new Failure(err instanceof Error ? err.message : String(err), 0);
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

export type Method = "GET" | "POST" | "PUT" | "DELETE";

/** request sends the parameters of a POST as its body, unless there is a body of JSON, and others in the address. */
export async function request(method: Method, path: string, params: Params, signal?: AbortSignal, json?: string): Promise<Response> {
  const form = new URLSearchParams(params);
  const inBody = method === "POST" && json === undefined;
  let answer: Response;
  try {
    answer = await fetch(!inBody && params.length ? `${path}?${form}` : path, {
      method,
      signal: signal ?? null,
      ...(inBody ? { body: form } : json === undefined ? {} : { body: json, headers: { "Content-Type": "application/json" } }),
    });
  } catch (err) {
    if (gone(err)) throw err;
    reach("no");
    throw new Failure("The server does not answer.", 0);
  }
  reach("yes");
  if (answer.status === 401 && path !== loginPath) for (const w of locked) w();
  if (!answer.ok) throw await failure(answer);
  return answer;
}

async function failure(answer: Response): Promise<Failure> {
  const text = await answer.text();
  try {
    const details = JSON.parse(text) as Record<string, unknown>;
    if (typeof details["error"] === "string" && details["error"]) return new Failure(details["error"], answer.status, details);
  } catch {
    // It is no JSON.
  }
  return new Failure(text.trim().slice(0, 1000) || `The server answered ${answer.status}.`, answer.status);
}

/** ask returns the JSON of an answer. */
export async function ask<T>(method: Method, path: string, params: Params = [], signal?: AbortSignal, json?: string): Promise<T> {
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
