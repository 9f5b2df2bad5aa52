// The calls of the fuzz: whatever a model asks for, no byte of what lies outside of the directory, or
// in a secret, is in the result. The calls are random, and the same for the same seed.

import assert from "node:assert/strict";
import { execFileSync } from "node:child_process";
import { mkdirSync, symlinkSync } from "node:fs";
import path from "node:path";
import {
  type Answer,
  agentAt,
  call,
  png,
  type Random,
  random,
  type Tree,
  words,
  write,
} from "./fixtures.ts";

/** Calls that start ripgrep cost a hundred times as much as the others: every so many is one. */
export type Dear = { missing: number; search: number };
const SIDE_BY_SIDE = 16;

/** The word that no result may hold, as text or in base64 at any offset. */
const CANARY = "kwyjibo";
const CANARIES = new RegExp(
  [
    CANARY,
    ...["", "x", "xx"].map((pad) =>
      Buffer.from(`${pad}${CANARY}`)
        .toString("base64")
        .slice(pad.length && 4, -4),
    ),
  ].join("|"),
);

const SECRETS = words(
  ".env .env.local sub/.env.production .git/config .git/HEAD id_rsa sub/id_ed25519 tls/server.key a.p12 .npmrc .envrc prod.env .aws/credentials .netrc",
);
const KEY = `-----BEGIN RSA PRIVATE KEY-----\n${CANARY}\n-----END RSA PRIVATE KEY-----\n`;
const PLAIN: Tree = {
  "README.md": "# Title\n\nwords of the file\n",
  "file.ts": "words inside\n",
  "dir/a.ts": "words inside\n",
  "src/a.ts": "export const a = 1; // KEY=\n",
  "src/b.test.ts": "a();\n".repeat(900),
  "src/deep/er/c.ts": "const c = 'é漢😀';\r\n".repeat(50),
  "src/[id]/page.tsx": "page\n",
  "..hidden/x": "dots\n",
  "sub/.gitignore": "*.log\n/gen/\n",
  "sub/x.log": "log\n",
  "sub/gen/g.ts": "gen\n",
  "with space/new\nline.md": "name\n",
  "with space/cafe\u0301.md": "name\n",
  "with space/-rf": "name\n",
  "docs/empty.md": "",
  "docs/wide.txt": `${"wide ".repeat(1500)}\n`,
  "docs/long.txt": `${"a line of eighty characters ".repeat(3)}\n`.repeat(5000),
  "docs/16.txt": Buffer.from("\ufeffsixteen\n", "utf16le"),
  "docs/latin.txt": Buffer.from("\xe9t\xe9 \x92\n", "latin1"),
  "docs/a.bin": Buffer.from("\0\x01\x02"),
  "docs/dot.png": png(2, 2),
  "docs/n.ipynb": JSON.stringify({ cells: [{ cell_type: "code", source: ["x"], outputs: [] }] }),
  "node_modules/lib/index.js": "lib\n",
  ".env.example": "KEY=example\n",
};

/** Links in the directory, to where it ends or beyond. */
const LINKS = {
  ...{
    "out.txt": "../outside/secret.txt",
    out: "../outside",
    "src/out": "../../outside",
    chain: "src/out",
  },
  ...{
    "docs/out.png": "../../outside/picture.png",
    "docs/out.ipynb": "../../outside/n.ipynb",
    top: "/",
    up: "..",
  },
  ...{
    evil: "../repo-evil",
    dangling: "../outside/nothing",
    nowhere: "nothing",
    loop: "loop",
    ping: "pong",
    pong: "ping",
  },
  ...{
    "src/self": ".",
    "sub/root": "..",
    lib: "src",
    "lib.ts": "src/a.ts",
    back: "../outside/back",
  },
  ...{
    "plain.txt": ".env",
    "sub/plain": "../.git",
    "docs/key.txt": "../key.txt",
    "absolute.txt": "/etc/passwd",
  },
  ...{
    ".gitignore": "../outside/rules",
    "docs/.ignore": "../../outside/rules",
    "src/pipe": "../pipe",
  },
};

/** Lays out a directory in `base` with traps in and around it, and counts them. */
export function makeTraps(base: string): number {
  const root = path.join(base, "repo");
  const inside = Object.fromEntries([
    ...SECRETS.map((name) => [name, `KEY=${CANARY}\n`]),
    ["key.txt", KEY],
    ["sub/deploy_key", KEY],
  ]);
  const outside: Tree = {
    ...{
      "secret.txt": CANARY,
      "repo-evil/secret.txt": CANARY,
      "repo.env": CANARY,
      "outside/secret.txt": `KEY=${CANARY}\n`,
    },
    "outside/a.ts": `${CANARY}\n`,
    [`outside/${CANARY}.txt`]: `${CANARY}\n`,
    [`outside/${CANARY}/a.ts`]: `const a = "${CANARY}";\n`,
    "outside/picture.png": Buffer.concat([png(3, 3), Buffer.from(CANARY.repeat(9))]),
    "outside/n.ipynb": JSON.stringify({ cells: [{ cell_type: "code", source: [CANARY] }] }),
    "outside/rules": `*.log\n[${CANARY}\n{${CANARY}${"x".repeat(600)}\n*${CANARY}*\ngen\n`,
    ".gitignore": `[${CANARY}\n{${CANARY}${"x".repeat(600)}\n`,
  };
  write(root, { ...PLAIN, ...inside });
  write(base, outside);
  symlinkSync("../repo/src", path.join(base, "outside/back"));
  for (const [name, target] of Object.entries(LINKS)) symlinkSync(target, path.join(root, name));
  execFileSync("mkfifo", [path.join(root, "pipe"), path.join(root, "docs/pipe.md")]);
  mkdirSync(path.join(root, "docs/empty"));
  return Object.keys({ ...inside, ...outside, ...LINKS }).length + 2;
}

/** What exists and is cheap to ask for: files, directories, secrets, pipes, and links to them. */
const TARGETS = [
  ...Object.keys(PLAIN),
  "with space",
  ...SECRETS,
  ...words(
    ". src src/deep sub docs tls ..hidden .git .git/config docs/empty src/[id] node_modules key.txt",
  ),
  ...words(
    "pipe docs/pipe.md src/pipe plain.txt sub/plain/config docs/key.txt lib lib.ts lib/a.ts back back/a.ts src/self",
  ),
  ...words(
    "sub/root sub/root/src/a.ts sub/root/.env src/self/self/a.ts up/repo/.env up/repo/src/a.ts out/back/a.ts sub/deploy_key",
  ),
];
/** What is outside, by names and by links. */
const OUTSIDE =
  words(`../repo-evil/secret.txt ../repo-evil evil evil/secret.txt ../outside/secret.txt ../outside out out/secret.txt
  out.txt src/out/secret.txt chain/secret.txt /etc/passwd /etc top/etc/passwd up up/secret.txt ../secret.txt ../repo.env .. docs/out.png
  docs/out.ipynb absolute.txt BASE/secret.txt BASE/repo-evil/secret.txt BASE ROOT-evil/secret.txt lib/out/secret.txt ../outside/rules
  .gitignore docs/.ignore src/self/out/picture.png sub/root/evil/secret.txt back/../../repo-evil/secret.txt up/repo-evil/secret.txt`);
/** Ways round that change nothing, if nothing is wrong. */
const DETOURS = words(
  "./ .// src/../ sub/../ docs/../src/../ nothing/../ src/self/../../ ./././ sub/root/ lib/../ ROOT/ ROOT/./ BASE/repo/ ../repo/",
);
/** What no tool takes for a path. */
const NO_PATHS = words(
  String.raw`~ ~/ ~/.ssh/id_rsa file:///etc/passwd file:ROOT/.env http://x/ C:\x c:/x \\server\x \\?\C:\x ssh://x vscode://file/x`,
);
/** Of these, paths are put together that lead anywhere. */
const PARTS =
  words(`.. ... . src sub docs out evil up top etc passwd outside secret.txt repo repo-evil chain loop ping dangling
  nothing .env .git config id_rsa BASE ROOT / // ~ * ** %2e%2e %2f ..%2f \\ ..\\ C: a.ts A.TS back self root plain lib
  ․․ ‥ ／ ．． -rf --pre proc self environ .. .. .. ..`);
const SUFFIXES = [
  "",
  "",
  "",
  "/",
  "/.",
  "/..",
  "\0",
  "\0.md",
  " ",
  "\n",
  "/*",
  "?x",
  "#x",
  ":1",
  "\ud800",
  "/../a.ts",
];
const GLOBS =
  words(String.raw`* ** **/* *.ts *.{ts,md} .env* **/.env* ../** ../*/secret.txt /** out/** up/** **/secret.txt !*.ts !.gitignore
  --pre=cat --follow -L [ { \ **/.git/** .git/** BASE/** ROOT/** src/[[]id]/** *.pem **/*key* {..,src}/** node_modules/** sub/*.log`);
const PATTERNS = words(
  String.raw`. .* ^ $ KEY KEY=(.*) kw[y]j\w+ (?i)KW.JIBO [a-z]{7} \S+ BEGIN|END a ( [ \x6bwy \w+ --files -e --pre root: :x?: const`,
);

function anyPath({ pick, chance, below }: Random, base: string): string {
  const parts = Array.from({ length: 1 + below(6) }, () => pick(PARTS));
  const joined = parts.join(chance(9) ? "" : "/") + pick(SUFFIXES);
  return real(chance(8) ? JSON.stringify(joined) : joined, base);
}

function cheapPath(r: Random, base: string): string {
  if (r.chance(12)) return real(r.pick(NO_PATHS) + (r.chance(3) ? r.pick(TARGETS) : ""), base);
  const detours = Array.from({ length: r.below(4) }, () => r.pick(DETOURS));
  // What is absolute stands first, or it would be no detour.
  const first = detours.findLastIndex((part) => /^(ROOT|BASE|\.\.\/repo)/.test(part));
  const target = r.pick(r.chance(4) ? OUTSIDE : TARGETS);
  const way = /^(ROOT|BASE|\/)/.test(target) ? "" : detours.slice(Math.max(0, first)).join("");
  const where = real(way + target, base);
  return r.chance(20) ? JSON.stringify(where) : where;
}

const real = (where: string, base: string) =>
  where.replaceAll("ROOT", path.join(base, "repo")).replaceAll("BASE", base);

type Tool = "list_files" | "read_file" | "search_files";
type Call = [tool: Tool, args: { [name: string]: string | number | boolean }];

function anyCall(r: Random, base: string, i: number, dear: Dear): Call {
  const where = i % dear.missing === 0 ? anyPath(r, base) : cheapPath(r, base);
  if (i % dear.search === 0) {
    const limited = {
      ...(r.chance(2) && { path: where }),
      ...(r.chance(3) && { glob: real(r.pick(GLOBS), base) }),
    };
    const how = {
      ...(r.chance(3) && { context: r.below(30) }),
      ...(r.chance(3) && { ignoreCase: true }),
    };
    return ["search_files", { pattern: r.pick(PATTERNS), ...limited, ...how }];
  }
  if (i % dear.search === 1 && r.chance(8))
    return ["list_files", { path: where, glob: real(r.pick(GLOBS), base) }];
  if (r.chance(4)) return ["list_files", r.chance(50) ? {} : { path: where }];
  const page = {
    ...(r.chance(3) && { offset: r.below(1000) }),
    ...(r.chance(3) && { limit: r.below(500) }),
  };
  return ["read_file", { path: where, ...page }];
}

const NONE = { list_files: 0, read_file: 0, search_files: 0, refused: 0, pictures: 0, largest: 0 };
export type Counts = typeof NONE;

/** Makes so many calls, some side by side, and counts them. Throws at the first that tells. */
export async function fuzz(base: string, seed: number, calls: number, dear: Dear) {
  const blind = await agentAt(path.join(base, "repo"));
  const agent = { ...blind, model: { ...blind.model, input: ["text" as const, "image" as const] } };
  const r = random(seed);
  const counts: Counts = { ...NONE };
  const check = ([tool, args]: Call, { text, image, isError }: Answer) => {
    const told = () => `${tool} ${JSON.stringify(args)} gave ${text.slice(0, 2000)}`;
    assert.ok(!CANARIES.test(text) && !CANARIES.test(image), told());
    // Nor where all of it lies, but for what the model said itself.
    if (!JSON.stringify(args).includes(base)) assert.ok(!text.includes(base), told());
    assert.ok(Buffer.byteLength(text) < 64 * 1024, told());
    counts[tool]++;
    counts.refused += isError ? 1 : 0;
    counts.pictures += image ? 1 : 0;
    counts.largest = Math.max(counts.largest, text.length);
  };
  let made = 0;
  const work = async () => {
    while (made < calls) {
      const one = anyCall(r, base, made++, dear);
      check(one, await call(agent, ...one));
    }
  };
  await Promise.all(Array.from({ length: SIDE_BY_SIDE }, work));
  return counts;
}
