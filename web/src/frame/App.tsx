import type { ComponentType } from "preact";
import { useEffect, useMemo, useState } from "preact/hooks";
import { go, useAddress } from "../address";
import { watchLocked } from "../api";
import { Explore } from "../explore/Explore";
import { keep, kept } from "../kept";
import { PreferencesContext } from "../preferences";
import { chooseTheme, chosenTheme, isDark, nextTheme, onSystemTheme, type Theme } from "../theme/theme";
import { keptZone, type Zone } from "../time";
import { Boundary } from "./Boundary";
import { Clock, Help, Mark, Moon, Sun, System } from "./icons";
import { lazy } from "./lazy";
import { Link } from "./Link";
import { forgetLogin, loggedIn, Login, logOut } from "./Login";
import { StatusLine } from "./StatusLine";
import { Shortcuts, useShortcuts } from "./shortcuts";

interface View {
  path: string;
  name: string;
  key: string;
  show: ComponentType;
  /** below says that the view also shows the addresses below its own. */
  below?: boolean;
}

const views: View[] = [
  { path: "/explore", name: "Explore", key: "e", show: Explore },
  { path: "/dashboards", name: "Dashboards", key: "d", below: true, show: lazy(() => import("../dashboards/Dashboards").then((m) => m.Dashboards)) },
  { path: "/grinding", name: "Grinding", key: "g", show: lazy(() => import("../grinding/Grinding").then((m) => m.Grinding)) },
  { path: "/metrics-explorer", name: "Metrics", key: "m", show: lazy(() => import("../metrics/Metrics").then((m) => m.Metrics)) },
  { path: "/send", name: "Send", key: "s", show: lazy(() => import("../send/Send").then((m) => m.Send)) },
];

const themeNames: Record<Theme, string> = { system: "as the system", light: "light", dark: "dark" };
const themeIcons: Record<Theme, ComponentType> = { system: System, light: Sun, dark: Moon };

export function App() {
  const { path } = useAddress();
  const view = views.find((v) => v.path === path || (v.below && path.startsWith(`${v.path}/`)) || (path === "/" && v.path === "/explore"));

  const [theme, setTheme] = useState(chosenTheme);
  const [dark, setDark] = useState(() => isDark(theme));
  useEffect(() => {
    setDark(isDark(theme));
    return onSystemTheme(() => setDark(isDark(theme)));
  }, [theme]);
  const switchTheme = () => {
    const next = nextTheme(theme);
    chooseTheme(next);
    setTheme(next);
  };

  const [zone, setZone] = useState<Zone>(keptZone);
  const switchZone = () => {
    const next = zone === "utc" ? "local" : "utc";
    keep("zone", next);
    setZone(next);
  };

  const [help, setHelp] = useState(false);
  const [keys, setKeys] = useState(() => kept("shortcuts") !== "off");
  const allowKeys = (on: boolean) => {
    keep("shortcuts", on ? "on" : "off");
    setKeys(on);
  };
  useShortcuts(keys, {
    "?": ["Show this list", () => setHelp(true)],
    ...Object.fromEntries(views.map((v) => [`g ${v.key}`, [`Go to ${v.name}`, () => go(v.path)] as const])),
    T: ["Switch between the themes", switchTheme],
    U: ["Switch between UTC and local time", switchZone],
  });

  const [locked, setLocked] = useState(false);
  const [login, setLogin] = useState(false);
  useEffect(() => watchLocked(() => {
    forgetLogin();
    setLocked(true);
  }), []);
  useEffect(() => setLogin(locked), [locked]);

  useEffect(() => {
    document.title = view ? `${view.name} · Quern` : "Quern";
  }, [view]);

  const preferences = useMemo(() => ({ theme, dark, zone }), [theme, dark, zone]);
  const ThemeIcon = themeIcons[theme];
  const Shown = view?.show ?? Nothing;
  return (
    <PreferencesContext.Provider value={preferences}>
      <a class="skip" href="#content" onClick={(e) => {
        e.preventDefault();
        document.getElementById("content")?.focus();
      }}>Skip to content</a>
      <header class="bar">
        <Link class="brand" href="/explore" aria-label="Quern, to the start"><Mark /><span>Quern</span></Link>
        <nav aria-label="Views">
          {views.map((v) => <Link key={v.path} href={v.path} aria-current={v === view ? "page" : undefined}>{v.name}</Link>)}
        </nav>
        <div class="bar-end">
          {locked && <button type="button" onClick={() => setLogin(true)}>Log in</button>}
          {!locked && loggedIn() && <button type="button" class="quiet" onClick={() => void logOut()} title={`Logged in as ${loggedIn()}`}>Log out</button>}
          <button type="button" class="quiet" onClick={switchZone} title="Switch between UTC and local time">
            <Clock />{zone === "utc" ? "UTC" : "Local time"}
          </button>
          <button type="button" class="quiet icon" onClick={switchTheme} aria-label={`Theme: ${themeNames[theme]}. Switch`} title={`Theme: ${themeNames[theme]}`}>
            <ThemeIcon />
          </button>
          <button type="button" class="quiet icon" onClick={() => setHelp(true)} aria-label="Keyboard shortcuts" title="Keyboard shortcuts (?)"><Help /></button>
        </div>
      </header>
      <main id="content" tabIndex={-1}>
        <Boundary key={view?.path ?? path}><Shown /></Boundary>
      </main>
      <StatusLine />
      {login && <Login close={() => setLogin(false)} />}
      {help && <Shortcuts allowed={keys} allow={allowKeys} close={() => setHelp(false)} />}
    </PreferencesContext.Provider>
  );
}

function Nothing() {
  return (
    <section class="empty">
      <h1>There is nothing here</h1>
      <p>This address leads to no view of this server. <Link href="/explore">Explore</Link> shows what it stores.</p>
    </section>
  );
}
