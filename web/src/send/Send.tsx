import { useRef, useState } from "preact/hooks";
import { format, go, useAddress } from "../address";
import { ask, Failure } from "../api";
import { CopyButton } from "../frame/CopyButton";
import { may, useWho } from "../frame/who";
import { Arrivals } from "./Arrivals";
import { programs, type Snippet, type Target } from "./snippets";

const placeholder = "YOUR_TOKEN";
const local = /^(localhost|127(\.\d+){3}|::1)$/;

/** Send says how to send to this server, and shows what arrives. */
export function Send() {
  const { query } = useAddress();
  const who = useWho();
  const [secret, setSecret] = useState("");
  const [listens, setListens] = useState(true);
  const program = programs.find((p) => p.id === query.get("with")) ?? programs[0]!;
  const lines = /^\d{1,5}$/.test(query.get("port") ?? "") ? query.get("port")! : "2003";
  const show = (id: string, port: string) => go(format("/send", [["with", id === programs[0]!.id ? "" : id], ["port", port === "2003" ? "" : port]]), "replace");

  // Who had to show who it is here asks a server that lets nobody in without that.
  const locked = !!who && (who.name !== "" || !may(who, "write"));
  const host = location.hostname.replace(/^\[|\]$/g, "");
  const tls = location.protocol === "https:";
  const target: Target = { origin: location.origin, host, tls, lines, token: locked ? secret || placeholder : "" };
  return (
    <div class="stack">
      <div class="row"><h1>Send</h1><span class="note">What to paste where, so that a program sends to this server.</span></div>
      <div class="layout with-panel">
        <section class="card" aria-label="How to send">
          <div class="tabs" role="tablist" aria-label="Programs" onKeyDown={(e) => {
            const step = e.key === "ArrowRight" ? 1 : e.key === "ArrowLeft" ? -1 : 0;
            if (!step) return;
            e.preventDefault();
            const next = programs[(programs.indexOf(program) + step + programs.length) % programs.length]!;
            show(next.id, lines);
            document.getElementById(`tab-${next.id}`)?.focus();
          }}>
            {programs.map((p) => (
              <button key={p.id} id={`tab-${p.id}`} type="button" role="tab" aria-selected={p === program} aria-controls="how" tabIndex={p === program ? 0 : -1} onClick={() => show(p.id, lines)}>{p.name}</button>
            ))}
          </div>
          <div id="how" class="card-body how" role="tabpanel" aria-labelledby={`tab-${program.id}`}>
            {!who ? <p class="note" role="status">Asking…</p> : (
              <>
                {program.lines && (
                  <>
                    {!listens && <p class="banner warn"><span>This server does not listen for Graphite's lines. Start it with <code>--graphite-listen :{lines}</code>{locked && ", and with client certificates in the web config file"}.</span></p>}
                    <label class="field">Port for Graphite's lines <input type="number" min={1} max={65535} value={lines} onInput={(e) => show(program.id, e.currentTarget.value)} /></label>
                    {locked && <p class="note">Graphite's lines carry no token. A locked server takes them from programs with a client certificate, or on its own machine.</p>}
                  </>
                )}
                {locked && !program.lines && <Token secret={secret} make={may(who, "admin")} made={setSecret} />}
                {program.snippets(target).map((s) => <Paste key={`${program.id} ${s.where}`} snippet={s} />)}
                {program.notes(target).map((n) => <p key={n} class="note">{n}</p>)}
                {tls && program.ownCA && <p class="note">If the certificate of this server is of your own authority, add <code>{program.ownCA}</code>.</p>}
                {local.test(host) && <p class="note">{host} is this machine. For programs on other machines open this page by the name of the host: the texts have the address by which you came.</p>}
              </>
            )}
          </div>
        </section>
        <Arrivals setListens={setListens} />
      </div>
    </div>
  );
}

function Paste({ snippet }: { snippet: Snippet }) {
  const text = useRef<HTMLPreElement>(null);
  return (
    <figure class="paste">
      <figcaption>{snippet.where}<CopyButton of={() => text.current} label={snippet.where} /></figcaption>
      <pre ref={text} tabIndex={0} aria-label={snippet.where}>{snippet.text}</pre>
    </figure>
  );
}

/** Token makes a token for the texts. The server shows it once, and so does the page: it is kept nowhere. */
function Token({ secret, make, made }: { secret: string; make: boolean; made: (secret: string) => void }) {
  const [name, setName] = useState("");
  const [wrong, setWrong] = useState("");
  const [busy, setBusy] = useState(false);
  const command = useRef<HTMLPreElement>(null);
  if (secret) return <p class="banner" role="status"><span>The token is in the text below. It is shown only now: copy the text before you leave this view. It may write for 90 days, and is listed by <code>quern token list</code>.</span></p>;
  if (!make) {
    return (
      <figure class="paste">
        <figcaption><span>This server asks senders for a token. An administrator makes one; put it in the place of <code>{placeholder}</code></span><CopyButton of={() => command.current} label="the command that makes a token" /></figcaption>
        <pre ref={command} tabIndex={0} aria-label="The command that makes a token">{`quern token create --url ${location.origin} --name my-host --role write`}</pre>
      </figure>
    );
  }
  const create = async (e: Event) => {
    e.preventDefault();
    setBusy(true);
    try {
      made((await ask<{ secret: string }>("POST", "/api/v1/tokens", [["name", name.trim()], ["role", "write"], ["expires", "90d"]])).secret);
    } catch (err) {
      setWrong(err instanceof Failure ? err.message : String(err));
    }
    setBusy(false);
  };
  return (
    <form class="token" onSubmit={create}>
      <p class="note">This server asks senders for a token. Make one for each program, so that you can revoke them one by one.</p>
      <label class="field">Name <input type="text" required maxLength={100} value={name} placeholder="my-host" spellcheck={false} autocomplete="off" onInput={(e) => setName(e.currentTarget.value)} /></label>
      <button type="submit" class="primary" disabled={busy}>Make a token</button>
      {wrong && <p class="banner bad" role="alert">{wrong}</p>}
    </form>
  );
}
