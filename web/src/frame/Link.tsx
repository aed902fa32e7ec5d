import type { ComponentProps } from "preact";
import { go } from "../address";

/** Link is a link within the page, which does not load it anew. */
export function Link(props: ComponentProps<"a"> & { href: string }) {
  return (
    <a
      {...props}
      onClick={(e) => {
        if (e.button || e.metaKey || e.ctrlKey || e.shiftKey || e.altKey) return; // a new tab, or a download
        e.preventDefault();
        go(props.href);
      }}
    />
  );
}
