import type { ComponentChildren } from "preact";
import { useLayoutEffect, useRef, useState } from "preact/hooks";
import { columns, move, resize, step } from "./arrange";
import type { Panel, Place } from "./model";

export const rowHeight = 30; // px, as in the style sheet
const gap = 8; // px, as in the style sheet

/** Drag is a panel that is being moved or resized by a pointer. */
interface Drag {
  id: number;
  size: boolean;
  /** from is where the pointer went down, to where it is, in px of the document. */
  from: { x: number; y: number };
  to: { x: number; y: number };
  panels: Panel[];
}

const area = ({ x, y, w, h }: Place) => ({ "--x": x + 1, "--y": y + 1, "--w": w, "--h": h });

const where = (p: Panel): string => `${p.title || "Panel"}: column ${p.at.x + 1}, row ${p.at.y + 1}, ${p.at.w} wide, ${p.at.h} high`;

/** Grid shows panels in their places. With arranged they can be moved and resized, and it is told where they lie then. */
export function Grid({ panels, arranged, show }: { panels: Panel[]; arranged?: ((panels: Panel[], what: string) => void) | undefined; show: (p: Panel, handle: ComponentChildren) => ComponentChildren }) {
  const box = useRef<HTMLDivElement>(null);
  const [drag, setDrag] = useState<Drag>();
  const now = useRef(drag);
  now.current = drag;
  const [said, say] = useState("");

  const dragged = drag ? at(drag, box.current!) : panels;
  const target = drag && dragged.find((p) => p.id === drag.id)!.at;

  // Before the next event, which may be the end already.
  useLayoutEffect(() => {
    if (!drag) return;
    const end = (e: Event) => {
      if (e instanceof KeyboardEvent && e.key !== "Escape") return;
      e.preventDefault();
      e.stopPropagation();
      const d = now.current;
      setDrag(undefined);
      if (d && e.type === "pointerup") {
        const to = at(d, box.current!);
        arranged?.(to, "");
        say(where(to.find((p) => p.id === d.id)!));
      }
    };
    const follow = (e: PointerEvent) => setDrag((d) => d && { ...d, to: { x: e.pageX, y: e.pageY } });
    addEventListener("pointermove", follow);
    addEventListener("pointerup", end, true);
    addEventListener("pointercancel", end, true);
    addEventListener("keydown", end, true);
    return () => {
      removeEventListener("pointermove", follow);
      removeEventListener("pointerup", end, true);
      removeEventListener("pointercancel", end, true);
      removeEventListener("keydown", end, true);
    };
  }, [!drag]);

  const begin = (e: PointerEvent, p: Panel, size: boolean) => {
    if (e.button || !arranged || (!size && (e.target as Element).closest("button:not(.grip), a, input"))) return;
    e.preventDefault(); // no text is selected on the way
    const from = { x: e.pageX, y: e.pageY };
    setDrag({ id: p.id, size, from, to: from, panels });
  };
  const key = (e: KeyboardEvent, p: Panel) => {
    if (!arranged || !e.key.startsWith("Arrow") || e.ctrlKey || e.metaKey || e.altKey) return;
    e.preventDefault();
    const to = step(panels, p.id, e.key, e.shiftKey);
    arranged(to, `keys ${p.id}`);
    const end = to.find((q) => q.id === p.id)!;
    say(where(end));
    document.getElementById(`panel-${p.id}`)?.scrollIntoView({ block: "nearest" });
  };

  return (
    <div class={`dash-grid${arranged ? " editing" : ""}${drag ? " dragging" : ""}`} ref={box}>
      {panels.map((p) => {
        const held = drag?.id === p.id;
        const shown = held && !drag.size ? p : dragged.find((q) => q.id === p.id)!;
        const handle = arranged && (
          <button type="button" class="quiet icon grip" aria-label={`Move ${p.title || "panel"}`} aria-describedby="grip-help" title="Drag to move. Arrow keys move, with Shift they resize." onKeyDown={(e) => key(e, p)}>
            <svg class="i" viewBox="0 0 16 16" width="16" height="16" fill="currentColor" aria-hidden="true"><circle cx="6" cy="4" r="1.2" /><circle cx="10" cy="4" r="1.2" /><circle cx="6" cy="8" r="1.2" /><circle cx="10" cy="8" r="1.2" /><circle cx="6" cy="12" r="1.2" /><circle cx="10" cy="12" r="1.2" /></svg>
          </button>
        );
        return (
          <section key={p.id} id={`panel-${p.id}`} class={`card dash-panel kind-${p.kind}${held ? " held" : ""}`} aria-label={p.title || "Panel without a title"}
            style={{ ...area(shown.at), transform: held && !drag.size ? `translate(${drag.to.x - drag.from.x}px, ${drag.to.y - drag.from.y}px)` : "" }}
            onPointerDown={(e) => (e.target as Element).closest(".dash-panel > header") && begin(e, p, false)}>
            {show(p, handle)}
            {arranged && <span class="corner" aria-hidden="true" onPointerDown={(e) => begin(e, p, true)} />}
          </section>
        );
      })}
      {target && <div class="place" style={area(target)} />}
      {arranged && (
        <>
          <p id="grip-help" class="visually-hidden">Arrow keys move the panel, with Shift they change its size.</p>
          <p class="visually-hidden" role="status" data-said>{said}</p>
        </>
      )}
    </div>
  );
}

/** at returns where the panels lie with what is dragged where the pointer is. */
function at(d: Drag, box: HTMLElement): Panel[] {
  const p = d.panels.find((q) => q.id === d.id)!;
  const dx = Math.round((d.to.x - d.from.x) / ((box.clientWidth + gap) / columns));
  const dy = Math.round((d.to.y - d.from.y) / (rowHeight + gap));
  return d.size ? resize(d.panels, d.id, { w: p.at.w + dx, h: p.at.h + dy }) : move(d.panels, d.id, { x: p.at.x + dx, y: p.at.y + dy });
}
