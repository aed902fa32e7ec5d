import type { ComponentChildren } from "preact";
import { useEffect, useMemo, useRef, useState } from "preact/hooks";
import { go, guardLeaving, useAddress } from "../address";
import { Failure, gone } from "../api";
import { save as saveFile } from "../explore/download";
import { metadata } from "../explore/names";
import { moved, RangeBar, RefreshPicker, wider, zoomed } from "../explore/RangeBar";
import type { Metadata } from "../explore/units";
import { Plus } from "../frame/icons";
import { Link } from "../frame/Link";
import { useShownShortcuts } from "../frame/shortcuts";
import { usePreferences } from "../preferences";
import { formatDuration, formatTime, second, spanOf } from "../time";
import { append, arrange } from "./arrange";
import type { Showing } from "./data";
import { Confirm, Conflict, Copy, History } from "./dialogs";
import { forget, useDraft, type Draft } from "./draft";
import { Grid } from "./Grid";
import { Menu } from "./Menu";
import { idOf, kindNames, kinds, newPanel, nextId, type Dashboard as Board, type Kind, type Panel, type Stored } from "./model";
import { PanelCard, type Context } from "./PanelCard";
import { PanelEditor } from "./PanelEditor";
import { PanelMenu } from "./PanelMenu";
import { Settings } from "./Settings";
import { change, changeRange, changeVariable, read, versionOf } from "./state";
import { addressOf, create, inReadingOrder, load, put, remove, restore } from "./store";
import { VariableBar } from "./VariableBar";
import { chosen, textsOf, useOptions } from "./variables";

/** Dashboard shows a dashboard, and edits it. */
export function Dashboard({ id }: { id: string }) {
  const { query } = useAddress();
  const version = versionOf(query);
  const [loaded, setLoaded] = useState<{ stored: Stored; looking: boolean }>();
  const [failure, fail] = useState<Failure>();
  useEffect(() => {
    const stop = new AbortController();
    load(id, version, stop.signal).then((s) => {
      setLoaded({ stored: s, looking: version > 0 });
      fail(undefined);
    }, (err) => {
      if (!gone(err)) fail(Failure.of(err));
    });
    return () => stop.abort();
  }, [id, version]);
  if (failure) {
    return (
      <section class="empty">
        <h1>{failure.status === 404 ? "There is no such dashboard" : "The dashboard cannot be shown"}</h1>
        <p role="alert">{failure.message}</p>
        <p><Link href="/dashboards?deleted=true">Deleted dashboards</Link> can be restored. <Link href="/dashboards">All dashboards</Link></p>
      </section>
    );
  }
  if (!loaded) return <p class="note" role="status">Asking…</p>;
  return <Shown {...loaded} show={(stored) => setLoaded({ stored, looking: false })} />;
}

/** Asked is what is asked above the page. */
type Asked = { what: "settings" | "copy" | "history" | "delete" | "discard" } | { what: "conflict"; newest: number } | { what: "leave"; leave: () => void };

function Shown({ stored, looking, show }: { stored: Stored; looking: boolean; show: (s: Stored) => void }) {
  const { query } = useAddress();
  const search = query.toString();
  const { zone } = usePreferences();
  const { id, origin } = stored;
  const fixed = looking || !!origin;
  const draft = useDraft(stored, fixed);
  const d = draft.now;
  const state = useMemo(() => read(query, d), [search, d.range, d.refresh]);
  const editing = !fixed && (state.edit || draft.changed);
  const [asked, ask] = useState<Asked>();
  const [wrong, setWrong] = useState("");
  const [done, setDone] = useState("");
  const [saving, setSaving] = useState(false);
  const free = useRef(false); // to leave without a question

  const options = useOptions(d.variables, query);
  const values = useMemo(() => chosen(d.variables, query, options), [search, d.variables, options]);
  const [turn, setTurn] = useState(0);
  const range = JSON.stringify(state.range);
  const span = useMemo(() => spanOf(state.range, Date.now()), [range, turn]);
  const showing = useMemo((): Showing => ({ ...span, turn, variables: d.variables, texts: textsOf(d.variables, values) }), [span, d.variables, values]);
  const [known, setKnown] = useState<ReadonlyMap<string, Metadata>>(new Map());
  useEffect(() => void metadata().then(setKnown), []);
  const context: Context = { range: state.range, showing, chosen: values, known, zoom: (start, end) => changeRange(zoomed(start, end)) };

  useEffect(() => {
    if (!state.refresh || !("back" in state.range)) return;
    const timer = setInterval(() => document.hidden || setTurn((n) => n + 1), Math.max(state.refresh, second));
    return () => clearInterval(timer);
  }, [state.refresh, "back" in state.range]);
  useEffect(() => {
    document.title = `${d.title || id} · Quern`;
    return () => {
      document.title = "Dashboards · Quern";
    };
  }, [d.title]);
  useEffect(() => {
    if (!draft.changed) return;
    const unload = (e: Event) => e.preventDefault();
    addEventListener("beforeunload", unload);
    const unguard = guardLeaving((leave) => (free.current ? leave() : ask({ what: "leave", leave })));
    return () => {
      removeEventListener("beforeunload", unload);
      unguard();
    };
  }, [draft.changed]);

  /** saved shows what is stored now. */
  const saved = async () => {
    forget(id);
    show(await load(id));
    ask(undefined);
    setDone("Saved.");
  };
  const saveOver = async (base: number) => {
    try {
      await put(id, base, draft.now);
    } catch (err) {
      const newest = err instanceof Failure && err.status === 409 ? Number(err.details["newest"]) : 0;
      if (!newest) throw err;
      ask({ what: "conflict", newest });
      return false;
    }
    await saved();
    return true;
  };
  const save = async () => {
    setWrong("");
    setDone("");
    setSaving(true);
    try {
      return await saveOver(draft.base);
    } catch (err) {
      setWrong(Failure.of(err).message);
      return false;
    } finally {
      setSaving(false);
    }
  };
  const leaveFor = (to: string) => {
    if (!fixed) forget(id);
    free.current = true;
    go(to);
  };
  const edit = (to: (b: Board) => Board, what?: string) => {
    setDone("");
    draft.change(to, what);
  };
  const setPanels = (to: (panels: Panel[]) => Panel[], what = "") => edit((b) => ({ ...b, panels: to(b.panels) }), what);
  const add = (kind: Kind) => {
    const panel = newPanel(nextId(d.panels), kind);
    setPanels((panels) => append(panels, panel));
    change({ edit: "1", panel: String(panel.id) });
  };

  useEffect(() => {
    if (!editing) return;
    const key = (e: KeyboardEvent) => {
      if (!(e.ctrlKey || e.metaKey) || e.key.toLowerCase() !== "z" || document.querySelector("dialog[open]") || (e.target as Element).closest("input, textarea, select, .cm-editor")) return;
      e.preventDefault();
      (e.shiftKey ? draft.redo : draft.undo)?.();
    };
    addEventListener("keydown", key);
    return () => removeEventListener("keydown", key);
  });
  useShownShortcuts({
    r: ["Ask again", () => setTurn((n) => n + 1)],
    z: ["Zoom out", () => changeRange(wider(state.range, span))],
    "[": ["Earlier", () => changeRange(moved(span, -0.5))],
    "]": ["Later", () => changeRange(moved(span, 0.5))],
    e: ["Edit the dashboard", () => fixed || change({ edit: "1" })],
    Escape: ["Back to all panels", () => state.panel !== undefined && change({ panel: undefined })],
  });

  const alone = state.panel === undefined ? undefined : d.panels.find((p) => p.id === state.panel);
  const actions = { fixed, context, setPanels, alone: !!alone };
  const card = (p: Panel, handle?: ComponentChildren) => <PanelCard panel={p} context={context} handle={handle} menu={<PanelMenu panel={p} {...actions} />} />;
  return (
    <div class="stack dashboard">
      <div class="row">
        <h1>{d.title || id}</h1>
        {origin && <span class="tag">{origin}</span>}
        {draft.changed && <span class="tag warn">not saved</span>}
        <span class="note" role="status">{done}</span>
        <span class="row push">
          {editing ? <EditBar draft={draft} saving={saving} add={add} save={() => void save()} ask={(what) => ask({ what })} />
            : fixed ? !looking && <button type="button" onClick={() => ask({ what: "copy" })}>Save a copy to edit</button>
            : <button type="button" onClick={() => change({ edit: "1" })}>Edit</button>}
          <Menu text="More">
            {(close) => (
              <>
                <button type="button" class="quiet" onClick={() => (close(), ask({ what: "history" }))}>History</button>
                <button type="button" class="quiet" onClick={() => (close(), saveFile(`${idOf(d.title || id)}.json`, new Blob([`${JSON.stringify(inReadingOrder(d), null, 2)}\n`], { type: "application/json" })))}>Export as a file</button>
                <button type="button" class="quiet" onClick={() => (close(), ask({ what: "copy" }))}>Save as a copy…</button>
                {!fixed && <button type="button" class="quiet bad-text" onClick={() => (close(), ask({ what: "delete" }))}>Delete…</button>}
              </>
            )}
          </Menu>
        </span>
      </div>
      {d.description && !editing && <p class="note">{d.description}</p>}
      {looking && (
        <div class="banner row" role="status">
          <span>This is version {stored.version}{stored.author && <>, saved by {stored.author}</>}, {formatTime(Math.round(stored.updated / 1000) * 1000, zone)}.</span>
          <Link href={addressOf(id)}>Show the newest</Link>
        </div>
      )}
      {stored.problem && <p class="banner warn">{stored.problem}</p>}
      {wrong && <p class="banner bad" role="alert">{wrong}</p>}
      <div class="toolbar" role="toolbar" aria-label="What is shown">
        <RangeBar range={state.range} span={span} choose={changeRange} />
        <RefreshPicker every={state.refresh} choose={(every) => change({ refresh: every ? formatDuration(every) : "off" }, "replace")} now={() => setTurn((n) => n + 1)} />
        {alone && <button type="button" class="push" onClick={() => change({ panel: undefined })}>All panels</button>}
      </div>
      <VariableBar variables={d.variables} values={values} options={options} choose={changeVariable} />
      {alone && editing && state.edit ? (
        <PanelEditor key={alone.id} panel={alone} context={context} close={() => change({ panel: undefined })}
          change={(p, what) => setPanels((panels) => panels.map((x) => (x.id === alone.id ? { ...x, ...p } : x)), what)} />
      ) : alone ? <section key={alone.id} class={`card dash-panel alone kind-${alone.kind}`} aria-label={alone.title || "Panel"}>{card(alone)}</section>
        : state.panel !== undefined ? <p class="banner">This dashboard has no panel {state.panel}. <Link href={addressOf(id)}>Show all</Link></p>
        : d.panels.length ? <Grid panels={editing ? d.panels : arrange(d.panels)} arranged={editing ? (panels, what) => setPanels(() => panels, what) : undefined} show={card} />
        : <Empty fixed={fixed} add={add} />}
      {asked && <Questions asked={asked} ask={ask} stored={stored} draft={draft} edit={edit} save={save} saveOver={saveOver} saved={saved} leaveFor={leaveFor} />}
    </div>
  );
}

function Empty({ fixed, add }: { fixed: boolean; add: (kind: Kind) => void }) {
  return (
    <section class="card card-body">
      <p class="note">This dashboard has no panels yet.</p>
      {!fixed && <div class="row">{kinds.map((k) => <button key={k} type="button" onClick={() => add(k)}><Plus />{kindNames[k]}</button>)}</div>}
    </section>
  );
}

function EditBar({ draft, saving, add, save, ask }: { draft: Draft; saving: boolean; add: (kind: Kind) => void; save: () => void; ask: (what: "settings" | "discard") => void }) {
  return (
    <>
      <Menu class="add" text={<><Plus />Panel</>}>
        {(close) => kinds.map((k) => <button key={k} type="button" class="quiet" onClick={() => (close(), add(k))}>{kindNames[k]}</button>)}
      </Menu>
      <button type="button" onClick={() => ask("settings")}>Settings</button>
      <span class="group">
        <button type="button" disabled={!draft.undo} onClick={draft.undo} title="Ctrl+Z">Undo</button>
        <button type="button" disabled={!draft.redo} onClick={draft.redo} title="Ctrl+Shift+Z">Redo</button>
      </span>
      <button type="button" onClick={() => (draft.changed ? ask("discard") : change({ edit: undefined, panel: undefined }))}>{draft.changed ? "Discard" : "Done"}</button>
      <button type="button" class="primary" disabled={!draft.changed || saving} onClick={save}>Save</button>
    </>
  );
}

interface QuestionsProps {
  asked: Asked;
  ask: (a: Asked | undefined) => void;
  stored: Stored;
  draft: Draft;
  edit: (to: (b: Board) => Board, what: string) => void;
  save: () => Promise<boolean>;
  saveOver: (base: number) => Promise<boolean>;
  saved: () => Promise<void>;
  leaveFor: (to: string) => void;
}

function Questions({ asked, ask, stored: { id, version, origin }, draft, edit, save, saveOver, saved, leaveFor }: QuestionsProps) {
  const close = () => ask(undefined);
  switch (asked.what) {
    case "settings":
      return <Settings dashboard={draft.now} change={edit} close={close} />;
    case "copy":
      return <Copy title={draft.now.title} close={close} save={async (title) => leaveFor(addressOf(await create({ ...draft.now, title })))} />;
    case "history":
      return (
        <History id={id} shown={version} changed={draft.changed} close={close}
          look={(v) => (close(), change({ version: String(v), edit: undefined, panel: undefined }))}
          restore={origin || draft.changed ? undefined : async (v) => {
            await restore(id, v);
            change({ version: undefined });
            await saved();
          }} />
      );
    case "delete":
      return <Confirm title="Delete this dashboard?" text="Its versions stay: the list of deleted dashboards restores it." danger close={close} act={["Delete", async () => {
        await remove(id, version);
        leaveFor("/dashboards");
      }]} />;
    case "discard":
      return <Confirm title="Discard the changes?" text="The dashboard is shown as it was saved last." danger close={close} act={["Discard", async () => {
        draft.discard();
        change({ edit: undefined, panel: undefined }, "replace");
        close();
      }]} />;
    case "leave":
      return (
        <Confirm title="Leave with changes that are not saved?" text="Discarded changes cannot be had back." danger close={close}
          also={["Save and leave", async () => {
            if (await save()) asked.leave();
          }]}
          act={["Discard and leave", async () => {
            draft.discard();
            asked.leave();
          }]} />
      );
    case "conflict":
      return <Conflict key={asked.newest} id={id} base={draft.base} newest={asked.newest} look={`${addressOf(id)}?version=${asked.newest}`} copy={() => ask({ what: "copy" })} overwrite={() => saveOver(asked.newest)} close={close} />;
  }
}
