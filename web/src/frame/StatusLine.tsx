import { useEffect, useState } from "preact/hooks";
import { request, watchReached, type Reached } from "../api";
import { poll } from "../poll";
import { second } from "../time";

/** StatusLine says whether the server answers, and whether it can serve. */
export function StatusLine() {
  const [reached, reach] = useState<Reached>("unknown");
  const [unready, setUnready] = useState("");
  useEffect(() => watchReached(reach), []);
  useEffect(() => poll({
    every: 15 * second,
    look: async (signal) => {
      await request("GET", "/-/ready", [], signal);
      setUnready("");
    },
    failed: (err) => setUnready(err.status ? err.message : ""),
  }), []);
  const [state, text] = reached === "no" ? ["bad", "The server does not answer"] : unready ? ["warn", unready] : reached === "yes" ? ["good", "Connected"] : ["", "Connecting…"];
  return (
    <footer class="status">
      <span role="status"><span class={`dot ${state}`} aria-hidden="true" />{text}</span>
      <span class="status-end">{location.host}</span>
    </footer>
  );
}
