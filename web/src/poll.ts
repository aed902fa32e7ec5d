import { Failure, gone } from "./api";

export interface Poll {
  /** every is the time from the end of one look to the next, in ms. */
  every: number;
  look: (signal: AbortSignal) => Promise<void>;
  failed: (err: Failure) => void;
  /** asksHidden says that the next look is made even if nobody sees the tab. */
  asksHidden?: () => boolean;
}

/** poll looks at once, and then again and again until what it returns is called. A tab that nobody sees asks nothing. */
export function poll({ every, look, failed, asksHidden }: Poll): () => void {
  const stop = new AbortController();
  let timer = 0;
  const again = async () => {
    try {
      if (!document.hidden || asksHidden?.()) await look(stop.signal);
    } catch (err) {
      if (gone(err)) return;
      failed(Failure.of(err));
    }
    if (!stop.signal.aborted) timer = window.setTimeout(again, every);
  };
  void again();
  return () => {
    stop.abort();
    clearTimeout(timer);
  };
}
