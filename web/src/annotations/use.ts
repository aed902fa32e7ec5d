import { useEffect, useMemo, useState } from "preact/hooks";
import { Failure, gone, type Labels } from "../api";
import type { TimeMark } from "../explore/Chart";
import { concerns } from "./concerns";
import { find, isAlert, type Annotation, type Found } from "./wire";

const none: Annotation[] = [];

/** useAnnotations has the annotations of the time that is shown. */
export function useAnnotations(wanted: { on: boolean; tags: string[]; text: string }, shown: { start: number; end: number } | undefined, series: Labels[]) {
  const [found, setFound] = useState<Found>();
  const [failure, setFailure] = useState("");
  const [there, setThere] = useState(true); // false for a server that has none
  const [turn, setTurn] = useState(0);
  const { on, tags, text } = wanted;
  useEffect(() => {
    if (!on || !shown) {
      setFound(undefined);
      return;
    }
    const stop = new AbortController();
    find(shown.start, shown.end, tags, text, stop.signal).then((f) => {
      setFound(f);
      setFailure("");
      setThere(true);
    }, (err) => {
      if (gone(err)) return;
      setThere(!(err instanceof Failure && err.status === 404));
      setFailure(err instanceof Failure ? err.message : String(err));
    });
    return () => stop.abort();
  }, [on, shown, tags.join("\0"), text, turn]);

  const all = found?.annotations ?? none;
  const here = useMemo(() => all.filter((a) => concerns(a.selector, series)), [all, series]);
  const elsewhere = useMemo(() => new Set(all.filter((a) => !here.includes(a))), [all, here]);
  const marks = useMemo(() => here.map((a): TimeMark => ({ start: a.start, end: a.end, alert: isAlert(a) })), [here]);
  return { found, failure, there, here, elsewhere, marks, again: () => setTurn((n) => n + 1) };
}
