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

/** go shows an address. A replaced address cannot be stepped back to. */
export function go(to: string, how: "push" | "replace" = "push"): void {
  if (to === location.pathname + location.search) return;
  if (how === "push") history.pushState({ steps: steps() + 1 }, "", to);
  else history.replaceState({ steps: steps() }, "", to);
  for (const changed of listeners) changed();
}

addEventListener("popstate", () => {
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
