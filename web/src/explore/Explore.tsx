import type uPlot from "uplot";
import { useCallback, useEffect, useMemo, useRef, useState } from "preact/hooks";
import { Editor, type Subject } from "../annotations/Editor";
import { Flags } from "../annotations/Flags";
import { List } from "../annotations/List";
import { useAnnotations } from "../annotations/use";
import { keyOf, type Annotation } from "../annotations/wire";
import { go, steps, useAddress } from "../address";
import { ask, Failure, gone, type Answer } from "../api";
import { Dialog } from "../frame/Dialog";
import { Down, Plus } from "../frame/icons";
import { lazy } from "../frame/lazy";
import { useShownShortcuts } from "../frame/shortcuts";
import { usePreferences } from "../preferences";
import { autoStep, formatDuration, parseDuration, second, spanOf, type Range } from "../time";
import { Chart, type Line, type Place } from "./Chart";
import { curl, saveLines, savePicture, saveRows } from "./download";
import { evaluate, formOf, gridOver, mostBands, type Curve, type Evaluated, type Grid } from "./evaluate";
import { Explain } from "./Explain";
import { Legend } from "./Legend";
import { metadata } from "./names";
import type { Mark } from "./editor";
import { letter, Query } from "./Query";
import { moved, RangeBar, RefreshPicker, wider, zoomed } from "./RangeBar";
import { bareSelector, expressionFor, plainSelector, seriesText } from "./selector";
import { read, write, type State } from "./state";
import { Strips } from "./Strip";
import { Table, type TableRow } from "./Table";
import { unitOf, type Metadata, type Unit } from "./units";

/** Part is what is known of one expression. */
interface Part {
  text: string;
  running: boolean;
  failure?: Failure | undefined;
  found?: Evaluated | undefined;
}

/** Field is where an expression is typed. */
interface Field {
  id: number;
  text: string;
}

let nextField = 1;

const fieldOf = (text: string): Field => ({ id: nextField++, text });

/** Shown is what the chart shows. */
interface Shown {
  grid: Grid;
  start: number;
  end: number;
}

const AddPanel = lazy(() => import("../dashboards/AddPanel").then((m) => m.AddPanel));

const percentiles = [50, 75, 90, 95, 99];

export function Explore() {
  const { query } = useAddress();
  const search = query.toString();
  const state = useMemo(() => read(query), [search]);
  const change = useCallback((s: Partial<State>, how: "push" | "replace" = "push") => go(write({ ...read(new URLSearchParams(location.search)), ...s }), how), []);

  // The fields, with what the address has of each. What is typed and not run yet is in drafts.
  const [fields, setFields] = useState<Field[]>(() => state.queries.map(fieldOf));
  const drafts = useRef(new Map<number, string>());
  const draftOf = (f: Field) => drafts.current.get(f.id) ?? f.text;
  const asked = JSON.stringify(state.queries);
  useEffect(() => {
    drafts.current.clear();
    setFields((before) => state.queries.map((text, n) => (before[n] ? { ...before[n], text } : fieldOf(text))));
  }, [asked]);
  const [turn, setTurn] = useState(0); // another one asks again
  const run = () => {
    const queries = fields.map(draftOf);
    if (JSON.stringify(queries) === asked) setTurn((n) => n + 1);
    else change({ queries, only: [] });
  };

  const [known, setKnown] = useState<ReadonlyMap<string, Metadata>>(new Map());
  const some = state.queries.some(Boolean);
  useEffect(() => {
    if (some) void metadata().then(setKnown);
  }, [some]);

  const [parts, setParts] = useState<Part[]>([]);
  const [shown, setShown] = useState<Shown>();
  const box = useRef<HTMLDivElement>(null);
  const what = JSON.stringify([state.queries, state.hidden, state.range, state.step, state.band, state.quantile, state.view]);
  useEffect(() => {
    const { start, end } = spanOf(state.range, Date.now());
    const points = Math.max(100, Math.min(1000, Math.floor((box.current?.clientWidth ?? 1000) / 2)));
    const step = Math.max(state.step || autoStep(end - start, points), Math.ceil((end - start) / 10_900));
    const grid = gridOver(start, end, step);
    if (state.view === "table") {
      setParts(state.queries.map((text) => ({ text, running: false })));
      setShown({ grid, start, end });
      return;
    }
    const stop = new AbortController();
    setParts((before) => state.queries.map((text, n) => {
      const old = before[n];
      const on = !!text.trim() && !state.hidden.includes(n);
      return { text, running: on, ...(on && old?.text === text ? { found: old.found, failure: old.failure } : {}) };
    }));
    const all = state.queries.map(async (text, n): Promise<Part> => {
      if (!text.trim() || state.hidden.includes(n)) return { text, running: false };
      try {
        return { text, running: false, found: await evaluate(text, grid, state.band, state.quantile, stop.signal) };
      } catch (err) {
        if (gone(err)) throw err;
        return { text, running: false, failure: err instanceof Failure ? err : new Failure(String(err), 0) };
      }
    });
    // All at once: curves of two times would not fit together.
    Promise.all(all).then((done) => {
      performance.mark("quern.answer");
      setParts(done);
      setShown({ grid, start, end });
    }, () => undefined);
    return () => stop.abort();
  }, [what, turn]);

  useEffect(() => {
    if (!state.refresh || !("back" in state.range)) return;
    const timer = setInterval(() => document.hidden || setTurn((n) => n + 1), Math.max(state.refresh, second));
    return () => clearInterval(timer);
  }, [state.refresh, "back" in state.range]);

  const units = useMemo(() => new Map(state.queries.map((q, n) => [n, unitOf(q, known)] as [number, Unit])), [asked, known]);
  const curves = useMemo(() => {
    const out: (Line & { curve: Curve; part: number })[] = [];
    const several = parts.filter((p) => p.found?.curves.length).length > 1;
    parts.forEach((p, part) => p.found?.curves.forEach((curve) => {
      const text = several ? `${letter(part)} ${curve.text}` : curve.text;
      out.push({ ...curve, text, n: out.length, unit: units.get(part)!, curve, part });
    }));
    return out;
  }, [parts, units]);
  const only = useMemo(() => state.only.filter((t) => curves.some((c) => c.text === t)), [curves, state.only.join("\0")]);
  const lines = useMemo(() => (only.length ? curves.filter((c) => only.includes(c.text)) : curves), [curves, only]);
  const levels = useMemo(() => parts.flatMap((p) => p.found?.levels ?? []), [parts]);

  // Explaining takes a selector. Where the series of a plain one is known, that names it.
  const choices = useMemo(() => [...new Set(levels.map((l) => bareSelector(l.selector)).filter(Boolean))], [levels]);
  const explain = (time: number, line?: Line) => {
    const c = curves.find((x) => x === line);
    const plain = c ? plainSelector(state.queries[c.part] ?? "") : undefined;
    const of = plain && c ? seriesText(c.curve.labels) : (choices[0] ?? plainSelector(state.queries.find(Boolean) ?? "") ?? "");
    change({ at: { time: Math.round(time), of } });
  };
  const unexplain = () => {
    const { at: _, ...rest } = read(new URLSearchParams(location.search));
    go(write(rest));
  };

  const labels = useMemo(() => lines.map((l) => curves.find((c) => c === l)?.curve.labels ?? {}), [lines, curves]);
  const noted = useAnnotations(state.annotations, shown, labels);
  const [subject, setSubject] = useState<Subject>();
  const [picked, setPicked] = useState<string[]>([]);
  const filter = (a: Partial<State["annotations"]>) => change({ annotations: { ...state.annotations, ...a } }, "replace");
  const annotate = (time: number | undefined) => {
    const at = time ?? state.at?.time;
    if (at !== undefined) setSubject({ start: Math.round(at), end: Math.round(at) });
    else if ("start" in state.range) setSubject({ start: state.range.start, end: state.range.end });
    else {
      const now = Math.floor(Date.now() / second) * second;
      setSubject({ start: now, end: now });
    }
  };
  const [place, setPlace] = useState<Place>({ left: 0, width: 0 });
  const picture = useRef<uPlot | undefined>(undefined);
  const { dark } = usePreferences();
  const rows = useRef<{ rows: TableRow[]; columns: string[] }>({ rows: [], columns: [] });
  const [copying, setCopying] = useState(false);
  const [adding, setAdding] = useState(false);

  const show = (range: Range) => change({ range });
  const span = shown ?? spanOf(state.range, Date.now());
  const zoom = (start: number, end: number) => show(zoomed(start, end));

  const focuses = useRef<((() => void) | undefined)[]>([]);
  useShownShortcuts({
    "/": ["Edit the first expression", () => focuses.current[0]?.()],
    r: ["Ask again", () => setTurn((n) => n + 1)],
    b: ["Step back", () => steps() > 0 && history.back()],
    z: ["Zoom out", () => show(wider(state.range, span))],
    "[": ["Earlier", () => show(moved(span, -0.5))],
    "]": ["Later", () => show(moved(span, 0.5))],
    v: ["Chart or table", () => change({ view: state.view === "chart" ? "table" : "chart" })],
    a: ["Show all series", () => change({ only: [] })],
    Escape: ["Close the explanation", () => state.at && unexplain()],
  });

  const failed = (n: number, failure: Failure | undefined) => setParts((p) => p.map((x, i) => (i === n && x.failure !== failure ? { ...x, failure } : x)));
  const live = state.queries.map((text, n) => ({ n, text })).filter(({ n, text }) => text.trim() && !state.hidden.includes(n));
  const commands = () => live.map(({ text }) =>
    state.view === "table" ? curl("/api/v1/query", [["query", text], ["time", String((shown?.end ?? Date.now()) / 1000)]]) : curl("/api/v1/query_range", formOf(text, shown!.grid))).join("\n\n");
  const notes = parts.flatMap((p) => p.found?.notes ?? []);
  const rolled = levels.some((l) => l.parts.some((p) => p.level !== "raw"));
  const bandable = rolled && live.some(({ text }) => plainSelector(text));
  const running = parts.some((p) => p.running);
  const quantileName = `${Math.round(state.quantile * 1e4) / 100}th percentile`;

  return (
    <div class="stack" ref={box}>
      <h1 class="visually-hidden">Explore</h1>
      <section class="queries" aria-label="Expressions">
        {fields.map((field, n) => (
          <Query key={field.id} n={n} text={field.text} hidden={state.hidden.includes(n)} alone={fields.length === 1} mark={markOf(parts[n])}
            changed={(t) => drafts.current.set(field.id, t)}
            run={run}
            hide={() => change({ hidden: state.hidden.includes(n) ? state.hidden.filter((x) => x !== n) : [...state.hidden, n].sort() })}
            remove={() => {
              const left = fields.filter((f) => f !== field).map((f) => ({ ...f, text: draftOf(f) }));
              const rest = left.length ? left : [fieldOf("")];
              setFields(rest);
              change({ queries: rest.map((f) => f.text), only: [], hidden: state.hidden.filter((x) => x !== n).map((x) => (x > n ? x - 1 : x)) });
            }}
            focusBy={(f) => {
              focuses.current[n] = f;
            }}
            under={<Under part={parts[n]} chart={state.view === "chart"} />}
          />
        ))}
      </section>
      <div class="toolbar" role="toolbar" aria-label="What is shown">
        <button type="button" class="primary" onClick={run}>Run</button>
        <button type="button" onClick={() => setFields((f) => [...f, fieldOf("")])}><Plus />Expression</button>
        <RangeBar range={state.range} span={span} choose={show} />
        <StepField step={state.step} used={shown?.grid.step} choose={(step) => change({ step })} />
        <RefreshPicker every={state.refresh} choose={(refresh) => change({ refresh }, "replace")} now={() => setTurn((n) => n + 1)} />
        <span class="group" role="group" aria-label="View">
          <button type="button" aria-pressed={state.view === "chart"} onClick={() => change({ view: "chart" })}>Chart</button>
          <button type="button" aria-pressed={state.view === "table"} onClick={() => change({ view: "table" })}>Table</button>
        </span>
        <span class="row push">
          <button type="button" class="quiet" disabled={!live.length || !shown} onClick={() => setAdding(true)}><Plus />Add to dashboard</button>
          <button type="button" class="quiet" disabled={!live.length || !shown} onClick={() => setCopying(true)}>curl</button>
          <button type="button" class="quiet" disabled={!live.length || !shown} onClick={() => (state.view === "table" ? saveRows(rows.current.rows, rows.current.columns) : saveLines(shown!.grid, lines))}><Down />CSV</button>
          {state.view === "chart" && <button type="button" class="quiet" disabled={!lines.length} onClick={() => picture.current && savePicture(picture.current, lines, dark)}><Down />PNG</button>}
        </span>
      </div>
      {!!notes.length && <Notes notes={notes} />}
      {!some ? <Start choose={(text) => change({ queries: [text] })} /> : (
        <div class={`layout${state.at ? " with-panel" : ""}`}>
          <section class="card" aria-label={state.view === "chart" ? "Chart" : "Table"} aria-busy={running}>
            {state.view === "table" ? (
              shown && <Table queries={live} time={shown.end} units={units} failed={failed} loaded={(r, columns) => {
                rows.current = { rows: r, columns };
              }} />
            ) : shown && (
              <>
                {bandable && (
                  <header>
                    <label class="check"><input type="checkbox" checked={state.band} onChange={(e) => change({ band: e.currentTarget.checked })} />Minimum to maximum</label>
                    <label class="field">Percentile
                      <select value={state.quantile ? String(Math.round(state.quantile * 1e4) / 100) : ""} onChange={(e) => change({ quantile: Number(e.currentTarget.value) / 100 })}>
                        <option value="">none</option>
                        {[...new Set([...percentiles, ...(state.quantile ? [Math.round(state.quantile * 1e4) / 100] : [])])].sort((a, b) => a - b).map((p) => <option key={p} value={String(p)}>{p}</option>)}
                      </select>
                    </label>
                    <PercentileField choose={(quantile) => change({ quantile })} />
                    <span class="note">where values come from roll-ups, for up to {mostBands} series</span>
                  </header>
                )}
                {noted.there && state.annotations.on && <Flags all={noted.here} start={shown.start} end={shown.end} place={place} pick={(some) => setPicked(some.map(keyOf))} />}
                <Chart grid={shown.grid} start={shown.start} end={shown.end} lines={lines} quantileName={quantileName} marks={noted.marks} {...(noted.there ? { annotate } : {})} marked={state.at?.time} zoom={zoom} pick={explain} placed={setPlace}
                  drawn={(u) => {
                    picture.current = u;
                    // For whoever measures how long drawing takes, in a browser's tools or in a benchmark.
                    if (performance.getEntriesByName("quern.answer").length) performance.measure("quern.draw", "quern.answer");
                  }}
                  label={lines.length ? `Chart of ${lines.length} series` : "Chart without data"} />
                <Strips levels={levels} start={shown.start} end={shown.end} place={place} pick={(time, of) => change({ at: { time, of: bareSelector(of) } })} />
                {!!curves.length && <Legend lines={curves} only={only} show={(o) => change({ only: o })} />}
                {!curves.length && !running && !parts.some((p) => p.failure) && <p class="note card-body">No series has a value in this time. Click into the chart to read why.</p>}
              </>
            )}
          </section>
          {state.at && <Explain time={state.at.time} of={state.at.of} choices={choices} choose={(of) => change({ at: { time: state.at!.time, of } })} close={unexplain} />}
        </div>
      )}
      {some && shown && noted.there && state.view === "chart" && (
        <List on={state.annotations.on} turn={(on) => filter({ on })} found={noted.found} failure={noted.failure} elsewhere={noted.elsewhere} picked={picked}
          tags={state.annotations.tags} filterTags={(tags) => filter({ tags })} text={state.annotations.text} filterText={(text) => text !== state.annotations.text && filter({ text })}
          annotate={() => annotate(undefined)} edit={(a: Annotation) => setSubject({ start: a.start, end: a.end, was: a })} />
      )}
      {subject && <Editor subject={subject} choices={choices} close={() => setSubject(undefined)} changed={noted.again} />}
      {adding && <AddPanel close={() => setAdding(false)} added={{
        kind: state.view === "table" ? "table" : "timeseries", exprs: live.map(({ text }) => text.trim()), range: "back" in state.range ? formatDuration(state.range.back) : "",
      }} />}
      {copying && <Copy text={commands()} close={() => setCopying(false)} />}
    </div>
  );
}

const markOf = (p: Part | undefined): Mark | undefined => {
  const at = p?.failure?.position;
  return at && { ...at, message: p!.failure!.plain };
};

function Under({ part, chart }: { part: Part | undefined; chart: boolean }) {
  if (!part) return null;
  if (part.failure) return <span class="bad-text" role="alert">{part.failure.plain}</span>;
  if (part.running && !part.found) return <span role="status">Asking…</span>;
  if (!part.found || !chart) return null;
  const n = part.found.curves.length + part.found.left;
  return <span>{n === 1 ? "1 series" : `${n} series`}{part.found.left > 0 && <>, of which {part.found.curves.length} are drawn</>} in {Math.round(part.found.took)} ms</span>;
}

function Notes({ notes }: { notes: Evaluated["notes"] }) {
  const seen = [...new Map(notes.map((n) => [n.text, { ...n, text: n.text.replace(/^PromQL (?:info|warning): /, "") }])).values()];
  return <div class="warnings" role="status">{seen.map((n) => <p key={n.text} class={`banner${n.warning ? " warn" : ""}`}>{n.text}</p>)}</div>;
}

function StepField({ step, used, choose }: { step: number; used: number | undefined; choose: (step: number) => void }) {
  const [text, setText] = useState(step ? formatDuration(step) : "");
  useEffect(() => setText(step ? formatDuration(step) : ""), [step]);
  const wrong = !!text.trim() && parseDuration(text) === undefined;
  return (
    <form class="field" onSubmit={(e) => {
      e.preventDefault();
      if (!wrong) choose(parseDuration(text) ?? 0);
    }}>
      <label class="field">Step <input type="text" size={6} value={text} placeholder={used ? formatDuration(used) : "auto"} aria-invalid={wrong} spellcheck={false} onInput={(e) => setText(e.currentTarget.value)} onBlur={() => !wrong && (parseDuration(text) ?? 0) !== step && choose(parseDuration(text) ?? 0)} /></label>
    </form>
  );
}

function PercentileField({ choose }: { choose: (quantile: number) => void }) {
  return (
    <form class="field" onSubmit={(e) => {
      e.preventDefault();
      const input = e.currentTarget.elements.namedItem("percentile") as HTMLInputElement;
      const p = Number(input.value);
      if (p > 0 && p < 100) choose(p / 100);
      input.value = "";
    }}>
      <label class="field">or <input type="number" name="percentile" min="0.01" max="99.99" step="any" placeholder="99.9" aria-label="Another percentile" /></label>
    </form>
  );
}

function Copy({ text, close }: { text: string; close: () => void }) {
  const area = useRef<HTMLTextAreaElement>(null);
  const [copied, setCopied] = useState(false);
  return (
    <Dialog title="The same with curl" close={close}>
      <textarea ref={area} class="mono copy" readOnly rows={Math.min(16, text.split("\n").length + 1)} cols={72} value={text} aria-label="Commands" onFocus={(e) => e.currentTarget.select()} />
      <div class="dialog-end">
        <button type="button" class="primary" onClick={() => {
          // Over plain HTTP from another machine browsers have no clipboard for pages, so the text can be selected too.
          if (navigator.clipboard) void navigator.clipboard.writeText(text).then(() => setCopied(true), () => area.current?.select());
          else area.current?.select();
        }}>{copied ? "Copied" : "Copy"}</button>
      </div>
    </Dialog>
  );
}

/** Start is shown before anything is asked: what there is to look at. */
function Start({ choose }: { choose: (query: string) => void }) {
  const [found, setFound] = useState<{ name: string; query: string; help: string }[]>();
  const [failure, setFailure] = useState<Failure>();
  useEffect(() => {
    const stop = new AbortController();
    ask<Answer<string[]>>("GET", "/api/v1/label/__name__/values", [["limit", "24"]], stop.signal).then(async ({ data }) => {
      const known = await metadata();
      setFound(data.map((name) => {
        const m = known.get(name);
        return { name, help: m?.help ?? "", query: expressionFor(name, m?.type) };
      }));
    }).catch((err) => {
      if (!gone(err)) setFailure(err instanceof Failure ? err : new Failure(String(err), 0));
    });
    return () => stop.abort();
  }, []);
  if (failure?.status === 404) return <p class="banner">This process only grinds: it answers no queries. Ask one that takes reports.</p>;
  if (failure) return <p class="banner bad" role="alert">{failure.message}</p>;
  if (!found) return <p class="note" role="status">Asking…</p>;
  return (
    <section class="card">
      <header><h2>{found.length ? "Look at a metric" : "Nothing is stored yet"}</h2></header>
      <div class="card-body">
        {found.length ? <ul class="start">{found.map((f) => <li key={f.name}><button type="button" class="quiet mono" onClick={() => choose(f.query)}>{f.name}</button> <span class="note">{f.help}</span></li>)}</ul> : <p>As soon as something sends measurements to this server, it is here.</p>}
      </div>
    </section>
  );
}
