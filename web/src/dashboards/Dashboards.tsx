import { useAddress } from "../address";
import { Link } from "../frame/Link";
import { Dashboard } from "./Dashboard";
import sheet from "./dashboards.sheet.css";
import { List } from "./List";
import { isId } from "./model";

// The styles come with this file, so that the first view does not wait for them.
const styles = new CSSStyleSheet();
styles.replaceSync(sheet);
document.adoptedStyleSheets = [...document.adoptedStyleSheets, styles];

/** Dashboards shows the list of dashboards, or one of them. */
export function Dashboards() {
  const { path } = useAddress();
  const id = path.replace(/^\/dashboards\/?/, "");
  if (!id) return <List />;
  if (isId(id)) return <Dashboard key={id} id={id} />;
  return (
    <section class="empty">
      <h1>There is nothing here</h1>
      <p>No dashboard has such an address. <Link href="/dashboards">The list of dashboards</Link></p>
    </section>
  );
}
