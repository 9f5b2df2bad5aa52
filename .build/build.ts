// Makes dist/, which is what the package runs: mini-pi.ts and its libraries in one file, and providers
// in chunks that are loaded when they are used. `npm ci`, `npm pack` and `npm link` do it, too.
// ripgrep stays a dependency, as it is a program.

import { execFileSync } from "node:child_process";
import {
  copyFileSync,
  cpSync,
  existsSync,
  readdirSync,
  readFileSync,
  rmSync,
  writeFileSync,
} from "node:fs";
import path from "node:path";
import { build, type Plugin, transformSync } from "esbuild";

const root = path.dirname(import.meta.dirname);
const dist = path.join(root, "dist");

/** A crash prints the line it is in. */
const LINE_LIMIT = 200;

/** pi-ai's catalogues of models are a megabyte, and a question needs one provider's: each stays a
 * file that is read when its models are asked for, which saves 70 ms and 6 MB of a start. */
const LAZY: [from: RegExp, to: string][] = [
  [
    /^import values from "\.\/(data\/.+?)".*$/m,
    `import { readFileSync } from "node:fs";
    let known;
    const values = () => known ??= JSON.parse(readFileSync(new URL("$1", import.meta.url), "utf8"));`,
  ],
  // GROQ_MODELS = flattenChatModelCatalog("groq", values), and models: Object.values(GROQ_MODELS)
  [/= (flatten\w+\(.*), values\)/g, "= () => $1, values())"],
  [/(?<=Object\.values\(\w+_MODELS)/g, "()"],
  [
    /(?<=^ *models: )(\[[^\]]*\]|Object\.values.*\))(?=,$)/m,
    "{ *[Symbol.iterator]() { yield* $1; } }",
  ],
  // The SDK for Amazon Bedrock is loaded in a way that no bundler sees.
  [/importNodeOnlyApi\("(.*)\.ts"\)/, 'import("$1.js")'],
];
const lazy: Plugin = {
  name: "lazy",
  setup: ({ onLoad }) =>
    onLoad(
      { filter: /(pi-ai.dist.providers.[\w.-]+|bedrock-converse-stream\.lazy)\.js$/ },
      (file) => {
        const text = readFileSync(file.path, "utf8");
        return { contents: LAZY.reduce((text, [from, to]) => text.replace(from, to), text) };
      },
    ),
};

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
  lineLimit: LINE_LIMIT,
  legalComments: "none",
  external: ["@vscode/ripgrep"],
  // Some libraries are CommonJS, and ask for Node's modules by require.
  banner: {
    js: `import { createRequire } from "node:module"; const require = createRequire(import.meta.url);
      const besideMiniPi = \`\${import.meta.dirname}/..\`;`,
  },
  define: { "import.meta.main": "false", "import.meta.dirname": "besideMiniPi" },
  plugins: [lazy],
  metafile: true,
  logLevel: "warning",
});
if (Object.keys(metafile.inputs).some((file) => /data.[\w-]+\.json$/.test(file)))
  throw new Error("a catalogue of pi-ai is read in another way now");
// Of the providers' SDKs, which are most of it, the names of methods are enough.
for (const [file, { bytes }] of Object.entries(metafile.outputs)) {
  if (bytes < 10_000 || !file.includes("chunks")) continue;
  const code = readFileSync(path.join(root, file), "utf8");
  const minified = transformSync(code, { minify: true, format: "esm", lineLimit: LINE_LIMIT });
  writeFileSync(path.join(root, file), minified.code);
}
copyFileSync(path.join(import.meta.dirname, "cli.js"), path.join(dist, "cli.js"));
const data = path.join(root, "node_modules/@earendil-works/pi-ai/dist/providers/data");
const filter = (file: string) => !file.endsWith(".manifest.json");
cpSync(data, path.join(dist, "data"), { recursive: true, filter });
execFileSync("tsc", ["-p", import.meta.dirname], {
  stdio: "inherit",
  shell: process.platform === "win32",
});

/** The packages that are in the bundle, by the texts of their licences. */
const licences = new Map<string, string[]>();
const bundled = Object.keys(metafile.inputs).flatMap(
  (file) => /^.*node_modules\/(?:@[^/]+\/)?[^/]+/.exec(file)?.[0] ?? [],
);
for (const directory of [...new Set(bundled)].sort()) {
  const read = (file: string) => readFileSync(path.join(root, directory, file), "utf8").trim();
  const { name, version, license } = JSON.parse(read("package.json"));
  const files = readdirSync(path.join(root, directory));
  const texts = files.filter((file) => /^(licen[cs]e|notice)/i.test(file)).map(read);
  const text = texts.join("\n\n");
  licences.set(text, [...(licences.get(text) ?? []), `${name} ${version} (${license})`]);
}
const notices = [...licences].map(([text, names]) => `${names.join("\n")}\n\n${text}`);
writeFileSync(path.join(dist, "LICENSES.txt"), `${notices.join(`\n\n${"-".repeat(80)}\n\n`)}\n`);
if (!existsSync(path.join(dist, "mini-pi.d.ts"))) throw new Error("no types were made");
