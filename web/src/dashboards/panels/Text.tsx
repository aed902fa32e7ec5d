import type { ComponentChildren } from "preact";

/** linkOf returns an address that a text may lead to: of this server, or of the web. */
const linkOf = (address: string): string | undefined => (/^(https?:\/\/|\/(?!\/))[^\s\\]*$/i.test(address) ? address : undefined);

/** inline makes elements of a line: `code`, **bold**, [text](address) and bare addresses. All else is text. */
export function inline(line: string): ComponentChildren[] {
  const out: ComponentChildren[] = [];
  let last = 0;
  for (const m of line.matchAll(/`([^`]+)`|\*\*([^*]+)\*\*|\[([^\]]+)\]\(([^()\s]+)\)|https?:\/\/[^\s<>"')\]]+/g)) {
    const [whole, code, bold, text, to] = m;
    const address = linkOf(to ?? whole);
    let made: ComponentChildren;
    if (code !== undefined) made = <code>{code}</code>;
    else if (bold !== undefined) made = <b>{bold}</b>;
    else if (address) made = <a href={address} {...(address.startsWith("/") ? {} : { target: "_blank", rel: "noopener noreferrer" })}>{text ?? whole}</a>;
    else continue;
    if (m.index > last) out.push(line.slice(last, m.index));
    out.push(made);
    last = m.index + whole.length;
  }
  if (last < line.length) out.push(line.slice(last));
  return out;
}

/** Text shows paragraphs, headings and lists. */
export function Text({ text, title }: { text: string; title: string }) {
  const blocks: ComponentChildren[] = [];
  let paragraph: string[] = [];
  let list: string[] = [];
  const end = () => {
    if (paragraph.length) blocks.push(<p key={blocks.length}>{paragraph.flatMap((l, i) => (i ? ["\n", ...inline(l)] : inline(l)))}</p>);
    if (list.length) blocks.push(<ul key={blocks.length}>{list.map((l, i) => <li key={i}>{inline(l)}</li>)}</ul>);
    paragraph = [];
    list = [];
  };
  for (const line of text.split(/\r?\n/)) {
    const heading = /^#{1,6}\s+(.*)$/.exec(line);
    const item = /^\s*[-*]\s+(.*)$/.exec(line);
    if (heading || !line.trim() || (item ? paragraph.length : list.length)) end();
    if (heading) blocks.push(<h3 key={blocks.length}>{inline(heading[1]!)}</h3>);
    else if (item) list.push(item[1]!);
    else if (line.trim()) paragraph.push(line);
  }
  end();
  return <div class="panel-text" tabIndex={0} role="group" aria-label={title}>{blocks}</div>;
}
