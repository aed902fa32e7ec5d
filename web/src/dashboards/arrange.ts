// Where panels lie. No two overlap, and each lies as high as those above it let it.
import type { Panel, Place } from "./model";

export const columns = 24;
export const mostRows = 60;

const clamp = (n: number, from: number, to: number) => Math.min(Math.max(Math.round(n), from), to);

/** within returns the place on the grid that is nearest. */
export function within(p: Place): Place {
  const w = clamp(p.w, 1, columns);
  return { x: clamp(p.x, 0, columns - w), y: Math.max(0, Math.round(p.y)), w, h: clamp(p.h, 1, mostRows) };
}

const above = (a: Place, b: Place): number => a.y - b.y || a.x - b.x;

/** meet returns whether one place would fall onto the other. */
const meet = (a: Place, b: Place): boolean => a.x < b.x + b.w && b.x < a.x + a.w;

/** pile lets panels fall up, in their order. */
function pile(panels: Panel[]): Panel[] {
  const tops = new Array<number>(columns).fill(0);
  return panels.map((p) => {
    const { x, w, h } = within(p.at);
    const y = Math.max(...tops.slice(x, x + w));
    tops.fill(y + h, x, x + w);
    return { ...p, at: { x, y, w, h } };
  });
}

/** arrange returns the panels in the order in which they are read. */
export const arrange = (panels: Panel[]): Panel[] => pile([...panels].sort((a, b) => above(a.at, b.at))).sort((a, b) => above(a.at, b.at));

/** inOrder returns panels that were arranged in the order that they had before, so that no element of the page moves. */
const inOrder = (arranged: Panel[], before: Panel[]): Panel[] => {
  const byId = new Map(arranged.map((p) => [p.id, p]));
  return before.map((p) => byId.get(p.id)!);
};

/** move puts a panel elsewhere. Panels that it passes by more than half make room. */
export function move(panels: Panel[], id: number, to: { x: number; y: number }): Panel[] {
  const moved = panels.find((p) => p.id === id);
  if (!moved) return panels;
  const from = moved.at;
  const at = within({ ...from, ...to });
  const before: Panel[] = [];
  const after: Panel[] = [];
  for (const p of [...panels].sort((a, b) => above(a.at, b.at))) {
    if (p === moved) continue;
    const middle = p.at.y + p.at.h / 2;
    const first = !meet(p.at, at) ? p.at.y <= at.y : !meet(p.at, from) || above(p.at, from) < 0 ? at.y >= middle : at.y + at.h > middle;
    (first ? before : after).push(p);
  }
  return inOrder(pile([...before, { ...moved, at }, ...after]), panels);
}

export const resize = (panels: Panel[], id: number, to: { w: number; h: number }): Panel[] =>
  inOrder(arrange(panels.map((p) => (p.id === id ? { ...p, at: within({ ...p.at, w: Math.min(to.w, columns - p.at.x), h: to.h }) } : p))), panels);

/** step moves a panel by an arrow key: by a column, or past the next panel above or below; with size it resizes the panel by one. */
export function step(panels: Panel[], id: number, key: string, size: boolean): Panel[] {
  const p = panels.find((q) => q.id === id);
  const dx = Number(key === "ArrowRight") - Number(key === "ArrowLeft");
  const dy = Number(key === "ArrowDown") - Number(key === "ArrowUp");
  if (!p || (!dx && !dy)) return panels;
  const { at } = p;
  if (size) return resize(panels, id, { w: at.w + dx, h: at.h + dy });
  if (dx) return move(panels, id, { x: at.x + dx, y: at.y });
  const others = panels.filter((q) => q !== p && meet(q.at, at));
  if (dy < 0) {
    const next = Math.max(-1, ...others.filter((q) => q.at.y < at.y).map((q) => q.at.y));
    return next < 0 ? panels : move(panels, id, { x: at.x, y: next });
  }
  const next = Math.min(...others.filter((q) => q.at.y > at.y).map((q) => q.at.y + q.at.h / 2));
  return next === Infinity ? panels : move(panels, id, { x: at.x, y: Math.floor(next) - at.h + 1 });
}

/** append puts a panel beside the last one, or below all others if there is no room. */
export function append(panels: Panel[], p: Panel): Panel[] {
  const last = [...panels].sort((a, b) => above(a.at, b.at)).at(-1)?.at;
  const beside = last && last.x + last.w + p.at.w <= columns;
  const at = beside ? { x: last.x + last.w, y: last.y } : { x: 0, y: Math.max(0, ...panels.map((q) => q.at.y + q.at.h)) };
  return inOrder(arrange([...panels, { ...p, at: { ...p.at, ...at } }]), [...panels, p]);
}

/** without takes a panel away. */
export const without = (panels: Panel[], id: number): Panel[] => {
  const left = panels.filter((p) => p.id !== id);
  return inOrder(arrange(left), left);
};
