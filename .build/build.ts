// Makes dist/, which is what the package runs: mini-pi.ts and its libraries in one file, and providers
// in chunks that are loaded when they are used.
// ripgrep stays a dependency, as it is a program.

import { execFileSync } from "node:child_process";
import {
  copyFileSync,
  existsSync,
  readdirSync,
  readFileSync,
  rmSync,
  writeFileSync,
} from "node:fs";
import path from "node:path";
import { build } from "esbuild";

const root = path.dirname(import.meta.dirname);
const dist = path.join(root, "dist");
rmSync(dist, { recursive: true, force: true });
const { metafile } = await build({
  absWorkingDir: root,
  entryPoints: ["mini-pi.ts"],
  outdir: "dist",
  chunkNames: "chunks/[name]-[hash]",
  bundle: true,
  splitting: true,
  format: "esm",
  platform: "node",
  target: "node22",
  // White space is a third of it; names stay, so that a stack trace tells where it comes from.
  minifyWhitespace: true,
  keepNames: true,
  legalComments: "none",
  external: ["@vscode/ripgrep"],
  // Some libraries are CommonJS, and ask for Node's modules by require.
  banner: {
    js: 'import { createRequire } from "node:module"; const require = createRequire(import.meta.url);',
  },
  define: { "import.meta.main": "false" },
  metafile: true,
  logLevel: "warning",
});
copyFileSync(path.join(import.meta.dirname, "cli.js"), path.join(dist, "cli.js"));
execFileSync("tsc", ["-p", import.meta.dirname], {
  stdio: "inherit",
  shell: process.platform === "win32",
});

/** The directories of the packages that are in the bundle. */
const bundled = Object.keys(metafile.inputs).flatMap(
  (file) => /^.*node_modules\/(?:@[^/]+\/)?[^/]+/.exec(file)?.[0] ?? [],
);
const notices = [...new Set(bundled)].sort().map((directory) => {
  const { name, version, license } = JSON.parse(
    readFileSync(path.join(root, directory, "package.json"), "utf8"),
  );
  const files = readdirSync(path.join(root, directory)).filter((file) =>
    /^(licen[cs]e|notice)/i.test(file),
  );
  const texts = files.map((file) => readFileSync(path.join(root, directory, file), "utf8").trim());
  return [`${name} ${version} (${license})`, ...texts].join("\n\n");
});
writeFileSync(path.join(dist, "LICENSES.txt"), `${notices.join(`\n\n${"-".repeat(80)}\n\n`)}\n`);
if (!existsSync(path.join(dist, "mini-pi.d.ts"))) throw new Error("no types were made");
