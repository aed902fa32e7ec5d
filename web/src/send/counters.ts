// What the server did not take, from the metrics that it has of itself.

/** Counters are values by name and labels, as they are written. */
export type Counters = Map<string, number>;

interface Refusal {
  /** what says what happened, for people. */
  what: string;
  /** help says what to do. */
  help: string;
}

const told = (reason: string) => `Its sender was told why (${reason}).`;

// Each metric that counts something that is lost or refused, with what it means.
const meanings: Record<string, (labels: Record<string, string>) => Refusal | undefined> = {
  quern_http_requests_total: ({ path, code }) => {
    const taken = path === "unmatched" || senders.has(path!);
    if (!taken || !/^[45]/.test(code!) || (path === "unmatched" && code !== "404" && code !== "405")) return undefined;
    const where = path === "unmatched" ? "an address that is none of this server's" : path!;
    return { what: `Requests to ${where}, answered ${code}`, help: codes[code!] ?? "The answer said why." };
  },
  quern_ingest_samples_rejected_total: ({ reason }) => ({ what: `Samples rejected as ${reason}`, help: reasons[reason!] ?? told(reason!) }),
  quern_ingest_samples_refused_total: () => ({ what: "Samples refused by the store", help: "The server's log says why." }),
  quern_ingest_samples_overwritten_total: () => ({ what: "Samples replaced by another of the same series and millisecond", help: "Add a label that tells the series apart, or send less often." }),
  quern_http_undecodable_measurements_total: ({ path }) => ({ what: `Measurements that cannot be read, at ${path}`, help: "The answer named them." }),
  quern_http_unkept_total: ({ path, reason }) => ({ what: `Samples lost at ${path} as ${reason}`, help: "Grinding lists the senders." }),
  quern_graphite_lines_invalid_total: () => ({ what: "Graphite lines that cannot be read", help: "The server's log has an example." }),
  quern_graphite_lines_refused_total: () => ({ what: "Graphite lines that the store refused", help: "The server's log says why." }),
  quern_graphite_strangers_total: () => ({ what: "Connections to Graphite's port that began as HTTP or TLS", help: "Use the address of this page for HTTP, and a plain connection for lines." }),
};

const senders = new Set(["/api/v1/reports", "/api/v1/write", "/write", "/influx/write", "/api/v2/write", "/v1/metrics", "/api/v1/otlp/v1/metrics", "/api/v1/push/collectd", "/api/v1/import"]);

const codes: Record<string, string> = {
  400: "Something in them cannot be stored; the answer says what.", 401: "They show no valid token.", 403: "Their token lacks the role write.", 404: "Look for a mistake in the path.",
  405: "Senders use POST.", 413: "They are too large: send smaller batches.", 415: "Their Content-Type or Content-Encoding is not known here.", 429: "Too much waits: senders are to try again.", 503: "The store is away: senders are to try again.",
};

const reasons: Record<string, string> = {
  too_old: "They are older than the age cap, or their times are in another unit. Look at the clock of the sender.",
  too_far_ahead: "They are ahead of the server's clock. Look at the clocks, and at the unit of times.",
  limit_exceeded: "They have too many or too long labels, or would make too many series.",
  unsupported: "They are of a kind that is not stored.",
};

const named = new RegExp(`^(${Object.keys(meanings).join("|")})(?:\\{(.*)\\})? (\\S+)$`);

/** readCounters returns the counters of what is lost or refused from a text in Prometheus' format. */
export function readCounters(text: string): Counters {
  const out: Counters = new Map();
  for (const line of text.split("\n")) {
    const found = named.exec(line);
    if (found) out.set(`${found[1]}{${found[2] ?? ""}}`, Number(found[3]));
  }
  return out;
}

/** listensForLines returns whether the server has a port for Graphite. */
export const listensForLines = (text: string): boolean => text.includes("\nquern_graphite_connections ");

/** refusals returns what has been counted since the counters were `before`, the largest number first. */
export function refusals(before: Counters, now: Counters): (Refusal & { count: number })[] {
  const out: (Refusal & { count: number })[] = [];
  for (const [key, value] of now) {
    const count = value - (before.get(key) ?? 0);
    if (count <= 0) continue;
    const [, name, rest] = /^(\w+)\{(.*)\}$/s.exec(key)!;
    const labels = Object.fromEntries([...rest!.matchAll(/(\w+)="((?:[^"\\]|\\.)*)"/g)].map(([, l, v]) => [l!, v!.replace(/\\(.)/g, (_, c: string) => (c === "n" ? "\n" : c))]));
    const meaning = meanings[name!]!(labels);
    if (meaning) out.push({ ...meaning, count });
  }
  return out.sort((a, b) => b.count - a.count);
}
