// A dashboard that is being edited. It outlives a reload of the tab, and every change can be undone.
import { useCallback, useEffect, useMemo, useRef, useState } from "preact/hooks";
import { complete, type Dashboard, type Stored } from "./model";
import { same } from "./store";

/** Kept is what is kept of a draft in the tab. */
interface Kept {
  /** base is the version that was edited. */
  base: number;
  draft: Dashboard;
}

const nameOf = (id: string) => `quern.dashboard.${id}`;

function kept(id: string): Kept | undefined {
  try {
    const text = sessionStorage.getItem(nameOf(id));
    return text ? (JSON.parse(text) as Kept) : undefined;
  } catch {
    return undefined;
  }
}

function keep(id: string, k: Kept | undefined): void {
  try {
    if (k) sessionStorage.setItem(nameOf(id), JSON.stringify(k));
    else sessionStorage.removeItem(nameOf(id));
  } catch {
    // The browser refuses to keep it, so it lasts until the tab is loaded anew.
  }
}

const mostSteps = 200;

interface Steps {
  past: Dashboard[];
  now: Dashboard;
  future: Dashboard[];
  /** what names the last change: more of the same, such as typing, is undone together with it. */
  what: string;
}

export interface Draft {
  now: Dashboard;
  /** base is the version that the draft was made from. */
  base: number;
  changed: boolean;
  change: (to: (d: Dashboard) => Dashboard, what?: string) => void;
  undo: (() => void) | undefined;
  redo: (() => void) | undefined;
  /** discard returns to what is stored. */
  discard: () => void;
}

/** useDraft returns the draft of what is stored. Its tab keeps it until it is discarded. What is fixed has none. */
export function useDraft(stored: Stored, fixed: boolean): Draft {
  const { id, version, dashboard } = stored;
  const [base, setBase] = useState(version);
  const [steps, set] = useState<Steps>(() => ({ past: [], now: dashboard, future: [], what: "" }));
  const of = useRef<Stored>(undefined);
  if (of.current !== stored) {
    // Another dashboard, or another version of it: what the tab keeps, else what is stored.
    const before = of.current;
    of.current = stored;
    const k = fixed ? undefined : kept(id);
    const now = k ? complete(k.draft) : dashboard;
    setBase(k?.base ?? version);
    // What was just saved can still be undone.
    if (before?.id !== id || !same(steps.now, now)) set({ past: k ? [dashboard] : [], now, future: [], what: "" });
  }
  const changed = useMemo(() => !fixed && !same(steps.now, dashboard), [steps.now, dashboard, fixed]);
  useEffect(() => {
    if (!fixed) keep(id, changed ? { base, draft: steps.now } : undefined);
  }, [id, fixed, changed, base, steps.now]);

  const change = useCallback((to: (d: Dashboard) => Dashboard, what = "") => set((s) => {
    const now = to(s.now);
    if (now === s.now) return s;
    if (what && what === s.what) return { ...s, now, future: [] };
    return { past: [...s.past, s.now].slice(-mostSteps), now, future: [], what };
  }), []);
  const undo = () => set((s) => (s.past.length ? { past: s.past.slice(0, -1), now: s.past[s.past.length - 1]!, future: [s.now, ...s.future], what: "" } : s));
  const redo = () => set((s) => (s.future.length ? { past: [...s.past, s.now], now: s.future[0]!, future: s.future.slice(1), what: "" } : s));
  const discard = () => {
    keep(id, undefined);
    setBase(version);
    set({ past: [], now: dashboard, future: [], what: "" });
  };
  return { now: steps.now, base, changed, change, undo: steps.past.length ? undo : undefined, redo: steps.future.length ? redo : undefined, discard };
}

/** forget forgets the draft of a dashboard. */
export const forget = (id: string): void => keep(id, undefined);
