import type { ComponentChildren } from "preact";
import { useCallback, useEffect, useRef, useState } from "preact/hooks";
import { letter } from "../explore/Query";
import { unitNamed, unitOf, type Metadata } from "../explore/units";
import type { Range } from "../time";
import { usePanel, type Loaded, type Showing } from "./data";
import type { Panel } from "./model";
import { Gauge } from "./panels/Gauge";
import { Heatmap } from "./panels/Heatmap";
import { Stat } from "./panels/Stat";
import { Text } from "./panels/Text";
import { TimeSeries } from "./panels/TimeSeries";
import { Values } from "./panels/Values";
import { inText, type Chosen } from "./variables";

/** Context is what the panels of a dashboard share. */
export interface Context {
  range: Range;
  showing: Showing;
  chosen: Chosen;
  known: ReadonlyMap<string, Metadata>;
  zoom: (start: number, end: number) => void;
}

/** useSeen returns whether an element is in view or close to it, and how large it is. */
function useSeen<E extends HTMLElement>() {
  const ref = useRef<E>(null);
  const [seen, see] = useState(false);
  const [size, setSize] = useState({ width: 0, height: 0 });
  useEffect(() => {
    const near = new IntersectionObserver((all) => see(all[all.length - 1]!.isIntersecting), { rootMargin: "160px" });
    const sized = new ResizeObserver(([e]) => setSize({ width: Math.floor(e!.contentRect.width), height: Math.floor(e!.contentRect.height) }));
    near.observe(ref.current!);
    sized.observe(ref.current!);
    return () => {
      near.disconnect();
      sized.disconnect();
    };
  }, []);
  return { ref, seen, ...size };
}

/** marksOf says what the rows lack that values were read from. */
function marksOf(loaded: Loaded | undefined): { late: boolean; partial: boolean } {
  const parts = (loaded?.parts ?? []).flatMap((p) => p.found?.levels ?? []).flatMap((l) => l.parts);
  return { late: parts.some((p) => p.late), partial: parts.some((p) => p.partial) };
}

const isEmpty = (l: Loaded): boolean => l.parts.every((p) => !p.failure && !p.found?.curves.length && !p.values?.length);

/** PanelCard shows a panel. What it can do to it and where it lies is whose who shows it. */
export function PanelCard({ panel, context, handle, menu, level = 2 }: { panel: Panel; context: Context; handle?: ComponentChildren; menu?: ComponentChildren; level?: 2 | 3 }) {
  const { showing, chosen, known, zoom } = context;
  const { ref, seen, width, height } = useSeen<HTMLDivElement>();
  const { loaded, busy } = usePanel(panel, showing, seen, width);
  const title = inText(panel.title, chosen).trim() || "Panel without a title";
  const units = useCallback((n: number) => {
    const guessed = panel.unit || unitOf(loaded?.parts.find((p) => p.n === n)?.expr ?? "", known).name;
    return panel.unit || panel.decimals !== undefined ? unitNamed(guessed, panel.decimals) : unitOf(loaded?.parts.find((p) => p.n === n)?.expr ?? "", known);
  }, [panel.unit, panel.decimals, loaded, known]);
  const marks = marksOf(loaded);
  const Heading = `h${level}` as "h2" | "h3";
  return (
    <>
      <header>
        {handle}
        <Heading title={panel.description || title}>{title}</Heading>
        {marks.late && <span class="tag warn" title="Late data is not in the rows that values were read from">late data</span>}
        {marks.partial && <span class="tag bad" title="Samples or rows are damaged or missing">partial</span>}
        {menu}
      </header>
      <div class="panel-body" ref={ref} aria-busy={busy}>
        {panel.kind === "text" ? <Text text={inText(panel.text, chosen)} title={title} /> : (
          <Body panel={panel} title={title} loaded={loaded} busy={busy} units={units} height={height} zoom={zoom} />
        )}
      </div>
    </>
  );
}

function Body({ panel, title, loaded, busy, units, height, zoom }: { panel: Panel; title: string; loaded: Loaded | undefined; busy: boolean; units: (n: number) => ReturnType<typeof unitNamed>; height: number; zoom: Context["zoom"] }) {
  if (!panel.queries.some((q) => q.expr.trim())) return <p class="note panel-note">This panel asks nothing yet. Edit it to give it an expression.</p>;
  if (!loaded) return busy ? <p class="note panel-note" role="status">Asking…</p> : null;
  const failures = loaded.parts.filter((p) => p.failure);
  const notes = new Set(loaded.parts.flatMap((p) => p.found?.notes ?? []).filter((n) => n.warning).map((n) => n.text));
  // Without values there is a chart nevertheless: it is where one zooms out of what has none.
  const Kind = { stat: Stat, gauge: Gauge, table: Values }[panel.kind as string];
  return (
    <>
      {failures.map((p) => <p key={p.n} class="banner bad" role="alert">{loaded.parts.length > 1 && `${letter(p.n)}: `}{p.failure!.plain}</p>)}
      {[...notes].map((n) => <p key={n} class="banner warn">{n}</p>)}
      {isEmpty(loaded) ? <p class="note panel-note">No series has a value in this time.</p>
        : failures.length === loaded.parts.length ? null
        : panel.kind === "timeseries" ? <TimeSeries panel={panel} title={title} loaded={loaded} units={units} height={height} zoom={zoom} />
        : panel.kind === "heatmap" ? <Heatmap title={title} loaded={loaded} units={units} height={height} />
        : Kind ? <Kind panel={panel} title={title} loaded={loaded} units={units} /> : null}
    </>
  );
}
