import { useEffect, useState } from "preact/hooks";
import { gone, request, Failure, watchReached, type Reached } from "../api";
import { second } from "../time";

const every = 15 * second;

/** StatusLine says whether the server answers, and whether it can serve. */
export function StatusLine() {
  const [reached, reach] = useState<Reached>("unknown");
  const [unready, setUnready] = useState("");
  useEffect(() => watchReached(reach), []);
  useEffect(() => {
    const stop = new AbortController();
    let timer = 0;
    const look = async () => {
      try {
        // A tab that nobody sees asks nothing.
        if (!document.hidden) {
          await request("GET", "/-/ready", [], stop.signal);
          setUnready("");
        }
      } catch (err) {
        if (gone(err)) return;
        setUnready(err instanceof Failure && err.status ? err.message : "");
      }
      timer = window.setTimeout(look, every);
    };
    void look();
    return () => {
      stop.abort();
      clearTimeout(timer);
    };
  }, []);
  const [state, text] = reached === "no" ? ["bad", "The server does not answer"] : unready ? ["warn", unready] : reached === "yes" ? ["good", "Connected"] : ["", "Connecting…"];
  return (
    <footer class="status">
      <span role="status"><span class={`dot ${state}`} aria-hidden="true" />{text}</span>
      <span class="status-end">{location.host}</span>
    </footer>
  );
}
