import type { ComponentType } from "preact";
import { useEffect, useState } from "preact/hooks";

/** lazy returns a component whose code is fetched when it is first shown. */
export function lazy<P extends object>(load: () => Promise<ComponentType<P>>): ComponentType<P> {
  let loaded: ComponentType<P> | undefined;
  return function Lazy(props: P) {
    const [Shown, show] = useState<ComponentType<P> | undefined>(() => loaded);
    const [failed, fail] = useState(false);
    useEffect(() => {
      if (Shown) return;
      let left = false;
      load().then(
        (c) => {
          loaded = c;
          if (!left) show(() => c);
        },
        () => !left && fail(true),
      );
      return () => {
        left = true;
      };
    }, []);
    // The server may have been upgraded, and then has other files.
    if (failed) return <p class="note bad" role="alert">This view cannot be loaded. <button type="button" onClick={() => location.reload()}>Load the page again</button></p>;
    return Shown ? <Shown {...props} /> : <p class="note" role="status">Loading…</p>;
  };
}
