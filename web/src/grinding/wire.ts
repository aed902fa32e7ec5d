// What the server answers about aggregation. Times are Unix ms.

export interface Status {
  clock_doubt?: string;
  unread?: string[];
  levels: { level: string; width_seconds: number; retention_seconds: number; whole_from?: number }[];
  buckets: { bucket: string; outstanding: { slice: number; marks: number }[]; lag_seconds: number }[];
  runs: { bucket: string; slice: number; worker: string; started: number; seconds: number; blocks: number; schedules: number; block_queries: number; index_queries: number; late: number; rescheduled: number; dropped: number; error?: string }[];
  workers: { id: string; host: string; started: number; seen: number; aggregates: boolean }[];
  packing?: { slices: number; left: number };
  shards: { shard: number; worker: string; owner?: string; fence?: number; expires?: number }[];
  errors: { component: string; worker: string; time: number; bucket: string; slice: number; start?: number; message: string }[];
  unkept?: { path: string; sender: string; reason: string; count: number; last: number; message: string }[];
}

export interface Slices {
  buckets: { bucket: string; start: number; end: number; slices: SliceState[]; unknown?: { start: number; end: number }[] }[];
  runs_since?: number;
  unread?: string[];
}

/** Verification is a line of the answer of /api/v1/verify. */
export interface Verification {
  status?: string;
  error?: string;
  progress?: { done: number; total: number };
  difference?: Difference;
  verified?: Verified;
}

export interface Difference {
  kind: string;
  metric?: Record<string, string>;
  level?: string;
  start?: number;
  end?: number;
  fields?: { name: string; row: string; samples: string }[];
  message?: string;
}

export interface Verified {
  start: number;
  end: number;
  series: number;
  samples: number;
  levels: { level: string; compared: number; different: number; pending: number; not_ground: number; expired: number; unreadable: number }[];
  damaged: number;
  damaged_rows: number;
  repaired?: { series: number; slices: number; surplus: number; rows: { level: string; after: number }[] };
}

export interface SliceState {
  start: number;
  end: number;
  state: string;
  begun: boolean;
  expired: boolean;
  marks: number;
  late: number;
  run_at?: number;
  runs: number;
  runs_unknown?: boolean;
  blocks: number;
  schedules: number;
  queries: number;
  n_plus_1: number;
  dropped: number;
  duration: number;
  worker: string;
  errors?: string[];
}
