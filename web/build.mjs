// Builds the page into internal/api/page/dist, or into the directory that the first argument names. The same sources and
// packages give the same bytes, wherever and whenever they are built: a test compares.
import { createHash } from "node:crypto";
import { mkdirSync, readFileSync, readdirSync, rmSync, writeFileSync } from "node:fs";
import path from "node:path";
import { fileURLToPath } from "node:url";
import { build, transform } from "esbuild";

const here = path.dirname(fileURLToPath(import.meta.url));
const dist = path.resolve(process.argv[2] ?? path.join(here, "../internal/api/page/dist"));
const assets = path.join(dist, "assets");

rmSync(dist, { recursive: true, force: true });
mkdirSync(assets, { recursive: true });

// Style sheets that come with the script that needs them.
const sheets = {
  name: "sheets",
  setup: (b) => b.onLoad({ filter: /\.sheet\.css$/ }, async ({ path: name }) => ({
    contents: (await transform(readFileSync(name, "utf8"), { loader: "css", minify: true })).code,
    loader: "text",
  })),
};

const common = {
  absWorkingDir: here,
  outdir: assets,
  bundle: true,
  minify: true,
  target: "es2022",
  jsx: "automatic",
  jsxImportSource: "preact",
  entryNames: "[name]-[hash]",
  chunkNames: "[name]-[hash]",
  legalComments: "none", // licenses.txt has them all
  charset: "utf8",
  metafile: true,
  logLevel: "warning",
};

const { metafile } = await build({
  ...common,
  entryPoints: { main: "src/main.tsx" },
  format: "esm",
  plugins: [sheets],
  splitting: true, // what is imported dynamically is a file of its own
});

// It runs before the page is painted, which modules do not.
const first = await build({ ...common, entryPoints: { theme: "src/theme/first.ts" }, format: "iife" });

// write stores a file under a name with the hash of its contents, so that browsers may keep it for ever.
function write(name, contents) {
  const { name: stem, ext } = path.parse(name);
  const hash = createHash("sha256").update(contents).digest("hex").slice(0, 8).toUpperCase();
  writeFileSync(path.join(assets, `${stem}-${hash}${ext}`), contents);
  return `/assets/${stem}-${hash}${ext}`;
}

const built = ({ outputs }, entry) => {
  const found = Object.entries(outputs).find(([, o]) => o.entryPoint === entry);
  return { js: "/assets/" + path.basename(found[0]), css: found[1].cssBundle && "/assets/" + path.basename(found[1].cssBundle) };
};

// licenses returns the licences of all packages that the page contains.
function licenses() {
  const packages = new Set();
  for (const input of Object.keys(metafile.inputs)) {
    const found = /(?:^|\/)node_modules\/((?:@[^/]+\/)?[^/]+)\//.exec(input);
    if (found) packages.add(found[1]);
  }
  return [...packages].sort().map((name) => {
    const dir = path.join(here, "node_modules", name);
    const { version, license } = JSON.parse(readFileSync(path.join(dir, "package.json"), "utf8"));
    const file = readdirSync(dir).sort().find((f) => /^licen[cs]e/i.test(f));
    if (!file) throw new Error(`${name} has no file with its licence`);
    return `${name} ${version} (${license})\n\n${readFileSync(path.join(dir, file), "utf8").trim()}\n`;
  }).join(`\n${"-".repeat(80)}\n\n`);
}

const main = built(metafile, "src/main.tsx");
const html = readFileSync(path.join(here, "src/index.html"), "utf8")
  .replace("{{theme.js}}", built(first.metafile, "src/theme/first.ts").js)
  .replace("{{main.js}}", main.js)
  .replace("{{main.css}}", main.css)
  .replace("{{icon.svg}}", write("icon.svg", readFileSync(path.join(here, "src/icon.svg"))))
  .replace("{{licenses.txt}}", write("licenses.txt", licenses()));
writeFileSync(path.join(dist, "index.html"), html);
