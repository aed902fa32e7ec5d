// The address of the page holds everything that a person sees, so that a link shows the same to others.
import { useEffect, useState } from "preact/hooks";

export interface Address {
  path: string;
  query: URLSearchParams;
}

const listeners = new Set<() => void>();

export const address = (): Address => ({ path: location.pathname, query: new URLSearchParams(location.search) });

/** steps is how many addresses of this page lie behind the present one, as far as this tab knows. */
export const steps = (): number => (history.state as { steps?: number } | null)?.steps ?? 0;

/** Guard is asked before a view is left that has something unsaved. It calls leave, now, later or never. */
export type Guard = (leave: () => void) => void;

let guard: Guard | undefined;
let shown = location.pathname + location.search;

/** guardLeaving asks the guard whenever another path is to be shown, until the returned function is called. */
export function guardLeaving(g: Guard): () => void {
  guard = g;
  return () => {
    if (guard === g) guard = undefined;
  };
}

const leaves = (to: string): boolean => guard !== undefined && to.split("?")[0] !== shown.split("?")[0];

function leaveBy(leave: () => void): void {
  guard!(() => {
    guard = undefined;
    leave();
  });
}

/** go shows an address. A replaced address cannot be stepped back to. */
export function go(to: string, how: "push" | "replace" = "push"): void {
  if (to === location.pathname + location.search) return;
  if (leaves(to)) return leaveBy(() => go(to, how));
  shown = to;
  if (how === "push") history.pushState({ steps: steps() + 1 }, "", to);
  else history.replaceState({ steps: steps() }, "", to);
  for (const changed of listeners) changed();
}

addEventListener("popstate", () => {
  const to = location.pathname + location.search;
  if (leaves(to)) {
    // The browser is there already, so it returns until the guard has let go.
    history.pushState({ steps: steps() + 1 }, "", shown);
    return leaveBy(() => go(to));
  }
  shown = to;
  for (const changed of listeners) changed();
});

export function useAddress(): Address {
  const [now, set] = useState(address);
  useEffect(() => {
    const changed = () => set(address());
    listeners.add(changed);
    changed(); // it may have changed since the first drawing
    return () => void listeners.delete(changed);
  }, []);
  return now;
}

/** format writes an address. Parameters without a value are left out. */
export function format(path: string, params: [name: string, value: string | undefined][]): string {
  const query = new URLSearchParams();
  for (const [name, value] of params) if (value !== undefined && value !== "") query.append(name, value);
  const text = query.toString();
  return text ? `${path}?${text}` : path;
}
