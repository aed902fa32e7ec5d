import { useEffect, useState } from "preact/hooks";
import { ask, gone, loginPath } from "../api";

/** Who is as whom the server knows this browser, and what it may do here. */
export interface Who {
  name: string;
  roles: string[];
}

/** may returns whether somebody has a role. */
export const may = (who: Who | undefined, role: "read" | "write" | "admin"): boolean => !!who && (who.roles.includes(role) || who.roles.includes("admin"));

/** useWho is undefined until the server has answered. */
export function useWho(): Who | undefined {
  const [who, set] = useState<Who>();
  useEffect(() => {
    const stop = new AbortController();
    ask<Who>("GET", loginPath, [], stop.signal).then(set, (err) => {
      if (!gone(err)) set({ name: "", roles: [] }); // the status line says that the server does not answer
    });
    return () => stop.abort();
  }, []);
  return who;
}
