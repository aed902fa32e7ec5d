import { useLayoutEffect, useState } from "preact/hooks";
import { ask, Failure, loginPath, request } from "../api";
import { keep, kept } from "../kept";
import { Dialog } from "./Dialog";

// Only the name is kept here. What shows who asks is a cookie that no script can read.
const nameOfUser = "user";

/** loggedIn is the name under which somebody has logged in with this browser, "" for nobody. */
export const loggedIn = (): string => kept(nameOfUser) ?? "";

/** forgetLogin is for a login that the server does not accept any more. */
export const forgetLogin = (): void => keep(nameOfUser, "");

/** logOut ends the session at the server, and shows the page anew. If the server does not answer, the session goes on. */
export async function logOut(): Promise<void> {
  try {
    await request("POST", "/api/v1/logout", []);
  } catch {
    return; // the status line says so
  }
  forgetLogin();
  location.reload();
}

/** Login asks who somebody is. The view is shown anew afterwards: its address says all that it shows. */
export function Login({ close }: { close: () => void }) {
  const [user, setUser] = useState("");
  const [secret, setSecret] = useState("");
  const [wrong, setWrong] = useState("");
  const [busy, setBusy] = useState(false);
  useLayoutEffect(() => document.getElementById("login-user")?.focus(), []); // before anybody can type

  const logIn = async (e: Event) => {
    e.preventDefault();
    setBusy(true);
    try {
      const { name } = await ask<{ name: string }>("POST", loginPath, user.trim() ? [["user", user.trim()], ["password", secret]] : [["token", secret.trim()]]);
      keep(nameOfUser, name);
      location.reload();
    } catch (err) {
      setWrong(err instanceof Failure ? err.message : String(err));
      setSecret("");
      setBusy(false);
    }
  };
  return (
    <Dialog title="Log in" close={close}>
      <form class="form" onSubmit={logIn}>
        <label>
          <span>User; leave it empty to use a token</span>
          <input id="login-user" type="text" autocomplete="username" autocapitalize="none" spellcheck={false} value={user} onInput={(e) => setUser(e.currentTarget.value)} />
        </label>
        <label>
          <span>Password or token</span>
          <input type="password" autocomplete="current-password" required value={secret} onInput={(e) => setSecret(e.currentTarget.value)} />
        </label>
        {wrong && <p class="banner bad" role="alert">{wrong}</p>}
        <div class="dialog-end"><button type="submit" class="primary" disabled={busy}>Log in</button></div>
      </form>
    </Dialog>
  );
}
