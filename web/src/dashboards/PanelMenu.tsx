import { format } from "../address";
import { Link } from "../frame/Link";
import { writeRange } from "../time";
import { append, without } from "./arrange";
import { expressions, stepOf } from "./data";
import { Menu } from "./Menu";
import { nextId, type Panel } from "./model";
import type { Context } from "./PanelCard";
import { change } from "./state";

const Dots = () => <svg class="i" viewBox="0 0 16 16" width="16" height="16" fill="currentColor" aria-hidden="true"><circle cx="3.4" cy="8" r="1.3" /><circle cx="8" cy="8" r="1.3" /><circle cx="12.6" cy="8" r="1.3" /></svg>;

/** PanelMenu is what can be done to a panel. */
export function PanelMenu({ panel: p, context, fixed, alone, setPanels }: { panel: Panel; context: Context; fixed: boolean; alone: boolean; setPanels: (to: (panels: Panel[]) => Panel[]) => void }) {
  const asked = expressions(p, context.showing, stepOf(context.showing, 1000)).filter(Boolean);
  const explore = format("/explore", [...asked.map((q): [string, string] => ["q", q]), ...writeRange(context.range)]);
  return (
    <Menu class="push" label={`Menu of ${p.title || "the panel"}`} title="Menu" text={<Dots />}>
      {(close) => (
        <>
          <button type="button" class="quiet" onClick={() => (close(), change({ panel: alone ? undefined : String(p.id) }))}>{alone ? "All panels" : "View alone"}</button>
          {asked.length > 0 && <Link class="button quiet" href={explore}>Open in Explore</Link>}
          {!fixed && (
            <>
              <button type="button" class="quiet" onClick={() => (close(), change({ edit: "1", panel: String(p.id) }))}>Edit</button>
              <button type="button" class="quiet" onClick={() => {
                close();
                setPanels((panels) => append(panels, { ...p, id: nextId(panels) }));
                change({ edit: "1", panel: undefined });
              }}>Duplicate</button>
              <button type="button" class="quiet bad-text" onClick={() => {
                close();
                setPanels((panels) => without(panels, p.id));
                change({ edit: "1", panel: undefined });
              }}>Remove</button>
            </>
          )}
        </>
      )}
    </Menu>
  );
}
