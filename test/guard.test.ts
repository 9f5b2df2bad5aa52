// The first promise: nothing from outside of the directory reaches the model, whatever the model or
// the files in the directory ask for. Every canary below is a word that no result may hold.

import assert from "node:assert/strict";
import { execFileSync } from "node:child_process";
import { once } from "node:events";
import { mkdirSync, rmSync, symlinkSync, writeFileSync } from "node:fs";
import { createServer } from "node:net";
import path from "node:path";
import { after, test } from "node:test";
import { type Agent, checkSources, insideRoot, isInside, isSecret } from "../mini-pi.ts";
import {
  agentAt,
  agentWith,
  alone,
  everyNth,
  isLong,
  list,
  read,
  search,
  type Tree,
  temporary,
  words,
  write,
} from "./fixtures.ts";

const CANARY = "kwyjibo";

const base = temporary();
const root = path.join(base, "repo");
write(base, {
  "repo/src/a.ts": "const answer = 42;\n",
  "repo/src/deep/b.ts": "const other = 43;\n",
  "repo/..hidden/x": "const dots = 44;\n",
  "repo/...": "const more = 45;\n",
  "repo/node_modules/lib/index.js": "const lib = 46;\n",
  "repo-evil/secret.txt": `${CANARY} sibling\n`,
  "outside/secret.txt": `${CANARY} outside\n`,
  [`outside/${CANARY}-name.txt`]: `${CANARY} name\n`,
  "outside/back": "",
  "secret.txt": `${CANARY} parent\n`,
  ".gitignore": "*\n",
});
rmSync(path.join(base, "outside/back"));
const link = (name: string, target: string) => symlinkSync(target, path.join(base, name));
link("alias-of-repo", "repo");
link("outside/back", "../repo/src");
// Links that leave the directory: file, directory, chain, relative, absolute, in the middle of a path.
link("repo/out.txt", "../outside/secret.txt");
link("repo/out-absolute.txt", path.join(base, "outside/secret.txt"));
link("repo/vendor", "../outside");
link("repo/chain1", "chain2");
link("repo/chain2", "src/chain3");
link("repo/src/chain3", "../../outside/secret.txt");
link("repo/up", "..");
link("repo/top", "/");
link("repo/evil", "../repo-evil");
link("repo/dangling-out", "../outside/nothing");
// Links that stay inside, and links that lead nowhere.
link("repo/alias.ts", "src/a.ts");
link("repo/lib", "src");
link("repo/lib2", "lib");
link("repo/there-and-back", "../repo/src");
link("repo/absolute", path.join(root, "src"));
link("repo/src/self", ".");
link("repo/dangling", "nothing");
link("repo/loop", "loop");
link("repo/ping", "pong");
link("repo/pong", "ping");
const agent = await agentAt(root);

/** Every tool about the same path. */
const everyTool = (where: string, on = agent) =>
  Promise.all([list(on, where), read(on, where), search(on, ".", { path: where })]);

/** Paths that lead outside, or nowhere. Here and below BASE and ROOT stand for the real paths. */
const OUTSIDE = [
  ...words(`
    .. ../ ../. ../.. ../secret.txt ../outside ../outside/secret.txt ./../outside/secret.txt src/../..
    src/../../outside/secret.txt nothing/../../secret.txt src/a.ts/../../../outside/secret.txt
    ../../../../../../../../../../etc/passwd /etc/passwd /etc / //etc/passwd /proc/self/environ
    ../repo-evil/secret.txt ../repo-evil ROOT-evil/secret.txt ROOT/../outside/secret.txt
    BASE BASE/secret.txt BASE/alias-of-repo/../secret.txt BASE/outside/secret.txt
    out.txt out-absolute.txt vendor vendor/ vendor/secret.txt vendor/. chain1 chain2 src/chain3 lib/chain3
    up up/secret.txt up/repo-evil/secret.txt top/etc/passwd top src/../vendor/secret.txt evil/secret.txt
    vendor/../vendor/secret.txt dangling-out dangling loop loop/x ping pong src/nothing.ts
    ~ ~/ ~/.ssh/id_rsa ~root/.bashrc $HOME/.bashrc %USERPROFILE% @../outside/secret.txt
    file:///etc/passwd file:/etc/passwd FILE:///etc/passwd file://localhost/etc/passwd http://127.0.0.1/x
    %2e%2e%2foutside%2fsecret.txt %2e%2e/outside/secret.txt ..%2foutside/secret.txt ..%c0%af
    ․․/outside/secret.txt ．．/outside/secret.txt ..／outside／secret.txt ‥/outside/secret.txt
    C:secret.txt C: c:/Windows/win.ini //server/share/x - -- --help --files --pre=cat -f../outside/secret.txt`),
  ...words(String.raw`
    ..\outside\secret.txt src\..\..\outside \etc\passwd \\server\share\x \\?\C:\x C:\Windows\win.ini
    "../outside/secret.txt" "\u002e\u002e/outside/secret.txt" "/etc/passwd" "vendor/secret.txt" "\u0000"`),
  ...["\0", "src/a.ts\0", "\0../outside/secret.txt", "../outside/secret.txt\0.ts", "\ud800"],
  ...["../outside/secret.txt ", " ../outside/secret.txt", "../outside/secret.txt\n"],
  ...[`${"../".repeat(2000)}etc/passwd`, `${"a/".repeat(3000)}x`, "x".repeat(100_000)],
].map((where) => where.replace("BASE", base).replace("ROOT", root));

const TOOLS = [
  (where: string) => list(agent, where),
  (where: string) => read(agent, where),
  (where: string) => search(agent, ".", { path: where }),
];

test("no form of a path leads any tool out of the directory, and each is refused in a sentence", async () => {
  for (const [i, where] of OUTSIDE.entries())
    for (const tool of everyNth(TOOLS.length, TOOLS, i)) {
      const { text, isError } = await tool(where);
      const label = `${where.slice(0, 80)}: ${text}`;
      assert.ok(isError, label);
      assert.match(text, /outside|no path here|does not exist/, label);
      // What the model wrote itself may be repeated, but not what stands there.
      assert.doesNotMatch(text.replaceAll(where, ""), /kwyjibo|root:|PATH=|\n\d+[\t:]/, label);
      assert.ok(text.length <= 1100, label);
    }
});

test("a refusal does not tell whether there is something outside", async () => {
  for (const [there, not] of [
    ["../outside/secret.txt", "../outside/nothing.txt"],
    ["../outside", "../nowhere"],
    ["vendor/secret.txt", "vendor/nothing.txt"],
    ["/etc/passwd", "/etc/no-such-file"],
    ["out.txt", "dangling-out"],
  ] as const) {
    const texts = async (where: string) =>
      (await everyTool(where)).map(({ text }) => text.replaceAll(where, "PATH"));
    assert.deepEqual(await texts(there), await texts(not), there);
  }
});

test("a refusal does not tell whether a link leads to something, not even by its hints", async () => {
  const on = await agentWith({ "there.md": "", "gone.md": "", "x/there.md": "", "x/gone.md": "" });
  write(path.dirname(on.root), { "outside/there.txt": CANARY, "outside/there/there.txt": CANARY });
  symlinkSync("../outside", path.join(on.root, "vendor"));
  for (const name of ["there", "gone"])
    symlinkSync(`../outside/${name}.txt`, path.join(on.root, `${name}.txt`));
  const forms = words(
    "vendor/NAME.txt NAME.txt ../outside/NAME.txt vendor/NAME/NAME.txt vendor/NAME vendor/NAME/",
  );
  for (const where of forms) {
    const texts = async (name: string) =>
      (await everyTool(where.replaceAll("NAME", name), on)).map(({ text }) =>
        text.replaceAll(name, "NAME"),
      );
    assert.deepEqual(await texts("there"), await texts("gone"), where);
  }
});

test("a refusal says that the path points outside, and nothing of where the directory is", async () => {
  for (const { text } of await everyTool("vendor/secret.txt")) {
    assert.match(text, /points outside/);
    assert.ok(!text.includes(base), text);
  }
});

const INSIDE = words(String.raw`
  src/a.ts ./src/a.ts ././src//a.ts src/../src/a.ts src/deep/../a.ts src/a.ts/ nothing/../src/a.ts
  ROOT/src/a.ts BASE/alias-of-repo/src/a.ts ../repo/src/a.ts ../alias-of-repo/src/a.ts "src/a.ts" "src\u002fa.ts"
  alias.ts lib/a.ts lib2/a.ts there-and-back/a.ts absolute/a.ts src/self/self/a.ts vendor/back/a.ts up/repo/src/a.ts
`);

test("every form of a path that stays inside works in every tool, and is shown by its real name", async () => {
  const forms = INSIDE.map((where) => [where, "src/a.ts"] as const);
  const odd = words("..hidden/x ... node_modules/lib/index.js").map(
    (name) => [name, name] as const,
  );
  for (const [i, [form, real]] of [...forms, ...odd].entries()) {
    const where = form.replace("BASE", base).replace("ROOT", root);
    const { text } = await read(agent, where);
    const line = text.replace(/^.*\n1\t/, "");
    assert.match(line, /^const \w+ = 4\d;$/, where);
    assert.match(text, /^\S+ \(1 lines?\)\n/);
    assert.ok(text.startsWith(`${real} (`), `${where}: ${text}`);
    assert.match((await list(agent, where)).text, /is a file.*read_file/, where);
    if (!isLong && i % 4 > 0) continue;
    const found = await search(agent, ".", { path: where });
    assert.equal(found.text, `${real}\n1: ${line}`, where);
  }
  const directories = words(
    "src src/ ./src ROOT/src/ lib lib2/ there-and-back src/self vendor/back",
  );
  for (const [i, form] of directories.entries()) {
    const where = form.replace("ROOT", root);
    const { text, isError } = await list(agent, where);
    assert.ok(!isError && text.includes("src/a.ts (19 bytes)"), `${where}: ${text}`);
    assert.match((await read(agent, where)).text, /src is a directory.*list_files/);
    if (!isLong && i % 4 > 0) continue;
    assert.match((await search(agent, "answer", { path: where })).text, /^src\/a\.ts\n1: const/);
  }
  for (const where of ["", ".", "./", root, `${root}/`, `${base}/alias-of-repo`, "src/.."])
    assert.match((await list(agent, where)).text, /^src\/ \(\d+ entries: .*\)$/m, where);
});

test("a directory that is itself given by a link works, and links are measured by its real place", async () => {
  const aliased = await agentAt(path.join(base, "alias-of-repo"));
  assert.equal(aliased.root, root);
  assert.match((await read(aliased, "src/a.ts")).text, /answer = 42/);
  assert.match((await read(aliased, `${base}/alias-of-repo/lib/a.ts`)).text, /answer = 42/);
  assert.ok((await read(aliased, "vendor/secret.txt")).isError);
});

test("a root of / has no outside, and its paths are shown without a slash before them", async () => {
  const name = path.join(root, "src/a.ts").slice(1);
  const all = await agentAt("/");
  for (const where of [name, `/${name}`]) {
    assert.ok((await read(all, where)).text.startsWith(`${name} (1 lines)`));
    const found = await search(all, "answer", { path: where });
    assert.equal(found.text, `${name}\n1: const answer = 42;`);
  }
  assert.match((await list(all, path.join(root, "src"))).text, new RegExp(`^${name} `, "m"));
});

test("globs and patterns are no flags and lead nowhere else", async () => {
  const tricks =
    words(String.raw`--pre=cat --help -f../secret.txt --follow -L ../** ../outside/* /etc/* vendor/**
    **/secret.txt ../{outside,repo}/** /** **/../** BASE/** -- !--follow up/** chain1 { [ \ **`);
  const all = [...tricks.map((trick) => trick.replace("BASE", base)), "", "\0", "a\nb"];
  const ways: ((trick: string) => ReturnType<typeof list>)[] = [
    (trick) => list(agent, ".", trick),
    (trick) => search(agent, CANARY, { glob: trick }),
    (trick) => search(agent, `${CANARY}|${trick}`),
    (trick) => search(agent, trick, { context: 5 }),
    (trick) => search(agent, trick, { path: "src", glob: trick, ignoreCase: true }),
  ];
  for (const [i, trick] of everyNth(2, [...all.entries()]))
    for (const way of everyNth(ways.length, ways, i)) {
      const { text } = await way(trick);
      assert.doesNotMatch(text, /kwyjibo (sibling|outside|parent)|root:|ripgrep \d|USAGE/, trick);
    }
  // What looks like a flag is tried in every place.
  for (const flag of isLong ? [] : words("--pre=cat --follow"))
    for (const way of ways.slice(2))
      assert.doesNotMatch((await way(flag)).text, /kwyjibo \w|USAGE/, flag);
});

test("no walk follows a link, so links out and link cycles add nothing", async () => {
  assert.doesNotMatch((await search(agent, ".")).text, /kwyjibo/);
  const { text } = await list(agent, ".", "**/*");
  assert.doesNotMatch(text, /kwyjibo|secret\.txt|self\//);
  assert.match(text, /^src\/deep\/b\.ts$/m);
});

test("a listing keeps every link, says where it leads inside, and not where it leads outside", async () => {
  const { text } = await list(agent);
  for (const name of words("dangling loop ping pong out.txt vendor up top dangling-out chain1"))
    assert.match(text, new RegExp(`^${name.replace(".", "\\.")} \\(link to nowhere\\)$`, "m"));
  assert.match(text, /^alias\.ts \(link to src\/a\.ts\)$/m);
  assert.match(text, /^lib2 \(link to src\)$/m);
  assert.doesNotMatch(text, /kwyjibo|outside\//);
});

test("insideRoot gives a real path inside of the root, and never one outside", async () => {
  assert.equal(await insideRoot(agent, "lib2/deep/b.ts"), path.join(root, "src/deep/b.ts"));
  assert.equal(await insideRoot(agent, "."), root);
  for (const where of everyNth(5, OUTSIDE))
    await assert.rejects(insideRoot(agent, where), /outside|no path/);
});

const POSIX = [
  ["/repo", true],
  ["/repo/", true],
  ["/repo/a", true],
  ["/repo/..a", true],
  ["/repo/..a/b", true],
  ["/repo/...", true],
  ["/repo/a/../b", true],
  ["/repo/a\\..\\..\\b", true],
  ["/repo/..", false],
  ["/", false],
  ["/repo-evil", false],
  ["/repo-evil/a", false],
  ["/rep", false],
  ["/Repo/a", false],
  ["/repo/../repo-evil", false],
  ["/other", false],
] as const;

const WIN32 = [
  ["C:\\Repo", true],
  ["C:\\Repo\\a", true],
  ["c:\\repo\\A", true],
  ["C:/Repo/a", true],
  ["C:\\Repo\\..a\\b", true],
  ["C:\\Repo\\a\\..\\b", true],
  ["C:\\Repo\\..", false],
  ["C:\\", false],
  ["C:\\Repo-evil\\a", false],
  ["C:\\Repo\\..\\Repo-evil", false],
  ["C:\\Repo/../x", false],
  ["D:\\Repo\\a", false],
  ["D:\\", false],
  ["\\\\server\\share\\Repo", false],
  ["\\\\?\\C:\\Windows", false],
  ["\\\\.\\CON", false],
  ["\\\\.\\PhysicalDrive0", false],
  ["\\\\?\\UNC\\server\\share", false],
] as const;

test("inside is decided by whole components, by the rules of the system", () => {
  for (const [target, inside] of POSIX)
    assert.equal(isInside("/repo", target, path.posix), inside, target);
  assert.ok(isInside("/", "/etc", path.posix));
  for (const [target, inside] of WIN32)
    assert.equal(isInside("C:\\Repo", target, path.win32), inside, target);
  // A share: case does not count, another share and another server do.
  const share = "\\\\server\\share\\repo";
  for (const [target, inside] of [
    ["\\\\SERVER\\share\\Repo\\a", true],
    ["\\\\server\\share\\repo-evil", false],
    ["\\\\server\\other\\repo\\a", false],
    ["\\\\other\\share\\repo\\a", false],
    ["C:\\share\\repo", false],
  ] as const)
    assert.equal(isInside(share, target, path.win32), inside, target);
  // As the guard resolves what a model may write on Windows.
  for (const [given, inside] of [
    ["src\\a.ts", true],
    ["src/a.ts", true],
    ["..\\Repo\\a", true],
    ["..\\x", false],
    ["..hidden\\x", true],
    ["\\Windows", false],
    ["/Windows", false],
    ["D:x", false],
    ["\\\\?\\C:\\Repo-evil", false],
  ] as const)
    assert.equal(
      isInside("C:\\Repo", path.win32.resolve("C:\\Repo", given), path.win32),
      inside,
      given,
    );
});

const SECRET = words(`
  .env .env.local .env.production .ENV sub/.env .env.development.local .git/config .git/objects/x sub/.git/HEAD
  .netrc _netrc .npmrc .pypirc .git-credentials id_rsa .ssh/id_ed25519 id_ecdsa id_dsa server.KEY
  cert.p12 cert.pfx a/b.ppk .envrc prod.env .env~ .env-prod config/.env.bak id_rsa.bak id_ed25519.old .pgpass
  .aws/credentials home/.docker/config.json terraform.tfstate x/a.tfstate.backup repo.git/config .npmrc.orig`);
const PLAIN = words(`
  .env.example .env.sample .env.template sub/.env.example env environment.ts .github/x.yml .gitignore .gitattributes
  git/config id_rsa.pub key.ts pem.md monkey npmrc src/env.ts my.git/x keys.json x.environment id_rsa_test.ts
  aws/credentials docker/config.json vite-env.d.ts config.env.ts tfstate.go server.pem example.env .env.production.sample`);

test("secrets are listed as present, but no tool reads or searches them, by whatever name", async () => {
  const names = SECRET.filter((name) => name !== ".ENV");
  const secrets = Object.fromEntries(names.map((name) => [name, `KEY=${CANARY}\n`]));
  const on = await agentWith({ ...secrets, "a.ts": "KEY=1\n", ".env.example": "KEY=2\n" });
  for (const [i, name] of names.entries()) {
    const full = path.join(on.root, name);
    symlinkSync(full, path.join(on.root, `innocent${i}.txt`));
    for (const where of [name, `./${name}`, full, `innocent${i}.txt`, `"${name}"`])
      for (const { text, isError } of (await everyTool(where, on)).slice(1)) {
        assert.ok(isError, where);
        assert.match(text, /secret.*neither read nor searched/, where);
      }
    assert.match((await list(on, path.dirname(name))).text, new RegExp(`^${name} `, "m"));
  }
  const globs = words("* **/* .env* **/.git/** .git/** !*.ts *.pem **/.e*");
  const combinations = globs.flatMap((glob) =>
    words(". .git sub .ssh").flatMap((where) =>
      ["KEY", "", ".*", "^", "[a-z]+$"].map((pattern) => ({ glob, where, pattern })),
    ),
  );
  // 27 divides none of their numbers, so that each of them has its turn.
  for (const { glob, where, pattern } of everyNth(27, combinations)) {
    const { text } = await search(on, pattern, { context: 3, path: where, glob });
    assert.doesNotMatch(text, /kwyjibo/, `${glob} ${where}`);
  }
  assert.match((await read(on, ".env.example")).text, /KEY=2/);
  assert.match((await search(on, "KEY")).text, /^\.env\.example\n1: KEY=2\na\.ts\n1: KEY=1/);
});

test("what only looks like a secret is read", async () => {
  const agent = await agentWith({});
  for (const name of SECRET) assert.ok(isSecret(agent, name), name);
  for (const name of PLAIN) assert.ok(!isSecret(agent, name), name);
});

const BEGIN = "-----BEGIN OPENSSH PRIVATE KEY-----";
const KEYS = {
  deploy_key: `${BEGIN}\n${CANARY}\n-----END OPENSSH PRIVATE KEY-----\n`,
  "keys/backup.txt": `-----BEGIN RSA PRIVATE KEY-----\n${CANARY}\n`,
  "keys/bom.txt": `\ufeff-----BEGIN PRIVATE KEY-----\n${CANARY}\n`,
  "keys/bundle.txt": `-----BEGIN CERTIFICATE-----\nx\n-----END CERTIFICATE-----\n-----BEGIN EC PRIVATE KEY-----\n${CANARY}\n`,
  "keys/attributes.txt": `\nBag Attributes\n    localKeyID: 01\n-----BEGIN ENCRYPTED PRIVATE KEY-----\n${CANARY}\n`,
  "keys/chain.pem": `${"-----BEGIN CERTIFICATE-----\nMIIB\n-----END CERTIFICATE-----\n".repeat(400)}${BEGIN}\n${CANARY}\n`,
  "keys/named.pem": `subject=/CN=x\n${BEGIN}\n${CANARY}\n`,
  "keys/service.json": `{\n  "type": "service_account",\n  "private_key": "${BEGIN}\\n${CANARY}"\n}\n`,
  "bare/config": `[core]\n\trepositoryformatversion = 0\n[remote "o"]\n\turl = https://u:${CANARY}@host/r\n`,
  "keys/dos.txt": `\r\n-----BEGIN PRIVATE KEY-----\r\n${CANARY}\r\n`,
};

test("certificates without a private key are no secret, whatever the file is called", async () => {
  const chain = "-----BEGIN CERTIFICATE-----\nMIIBneedle\n-----END CERTIFICATE-----\n".repeat(3);
  const on = await agentWith({ "ca.pem": chain, "ca.crt": chain, "pins.pem": "needle\n" });
  for (const name of ["ca.pem", "ca.crt", "pins.pem"])
    assert.match((await read(on, name)).text, /needle/, name);
  assert.equal((await search(on, "needle")).text.match(/: .*needle/g)?.length, 7);
});

test("a private key is a secret by what it holds: it is not read", async () => {
  const on = await agentWith(KEYS);
  for (const name of Object.keys(KEYS)) {
    const { text, isError } = await read(on, name);
    assert.ok(isError && /secret/.test(text), `${name}: ${text}`);
    assert.doesNotMatch((await search(on, "\\w+", { glob: name, context: 9 })).text, /kwyjibo/);
  }
});

test("a private key is a secret by what it holds: no search of it or of the directories above shows it", async () => {
  const on = await agentWith({ ...KEYS, "a.ts": "const a = 1;\n" });
  for (const pattern of everyNth(2, ["", CANARY, "const|END", "BEGIN"]))
    for (const where of [undefined, ".", "keys", ...Object.keys(KEYS)]) {
      const { text } = await search(on, pattern, { context: 5, ...(where && { path: where }) });
      assert.doesNotMatch(text, /[:-] kwyjibo/, `${pattern} in ${where}`);
    }
  assert.match((await search(on, "const")).text, /^a\.ts\n1: const a = 1;/);
});

test("a private key is a secret, too, where its name is no valid UTF-8 or looks like another", async () => {
  const on = await agentWith({ "caf\u00e9": "plain\n", "a.ts": "plain\n" });
  try {
    const name = Buffer.from(path.join(on.root, "caf\xe9"), "latin1");
    writeFileSync(name, `-----BEGIN RSA PRIVATE KEY-----\n${CANARY}\n`);
  } catch {
    return; // A file system that has no such names.
  }
  for (const pattern of ["BEGIN", ".", "^kw"])
    assert.doesNotMatch((await search(on, pattern, { context: 3 })).text, /[:-] kwyjibo/);
});

test("a search that passes secrets over says so when it finds nothing", async () => {
  const on = await agentWith({
    ".env": `KEY=${CANARY}\n`,
    "a.ts": "const a = 1;\n",
    ".git/config": "[core]\n",
  });
  const { text } = await search(on, "KEY");
  assert.match(text, /No match/);
  assert.match(text, /secret/i);
  // The same words whatever they hold, or a search would tell a secret letter by letter.
  assert.equal((await search(on, "KEY=q")).text, text);
  const { text: git } = await search(on, "core", { path: ".git" });
  assert.match(
    git,
    /secret|not searched|neither/i,
    "a directory of secrets is refused, not searched in vain",
  );
});

// ─── Rules that a repository brings ────────────────────────────────────────────────────────────

const RULE_FILES = [".gitignore", ".ignore", ".rgignore", "sub/.gitignore", ".git/info/exclude"];

/** Every way to learn something of the rules below a place. */
const looksAt = (on: Agent, where: string) => [
  () => search(on, "zzz", { path: where }),
  () => search(on, "zzz", { path: where, glob: "*.log" }),
  () => search(on, "zzz", { path: where, glob: "[" }),
  () => search(on, "[", { path: where }),
  () => search(on, "a\nb", { path: where }),
  () => list(on, where, "*"),
  () => list(on, where, "["),
  () => list(on, where, "*.none"),
  () => read(on, `${where}/missing`),
];

test("rules that link to a file outside tell no line of that file, and hide no file", async () => {
  const on = await agentWith({
    "secret-1.log": "x\n",
    "sub/secret-2.log": "y\n",
    "sub/deep/a.ts": "z\n",
    ".git/info/x": "",
  });
  write(path.dirname(on.root), {
    rules: `secret-*.log\n[${CANARY}\n{${CANARY}${"x".repeat(600)}\n/**/secret-?.l[o]g\ndeep\n`,
  });
  for (const name of RULE_FILES)
    symlinkSync(path.join(on.root, "../rules"), path.join(on.root, name));
  for (const [i, where] of [".", "sub"].entries())
    for (const look of everyNth(2, looksAt(on, where), i)) {
      const { text } = await look();
      assert.doesNotMatch(text, /kwyjibo|secret-[*?]/, `below ${where}`);
      assert.doesNotMatch(text, /left out.*(secret-|deep|sub)/, `below ${where}`);
    }
  const { text } = await search(on, ".");
  for (const file of ["secret-1.log\n1: x", "sub/deep/a.ts\n1: z", "sub/secret-2.log\n1: y"])
    assert.ok(text.includes(file), text);
  assert.match((await list(on, ".", "*.log")).text, /^secret-1\.log\nsub\/secret-2\.log(\n\[|$)/);
});

test("a name that reads like an error of the search brings no line of a linked rule file along", async () => {
  const on = await agentWith({
    "a/.gitignore": "x*\n",
    "a/x\nrg: regex parse error": "needle\n",
    "a/x\nrg: regex parse error:\nrg: ./b/.gitignore: line 1": "needle\n",
    "b/y.ts": "needle\n",
    [`b/${CANARY.toUpperCase()}{[`]: "needle\n",
  });
  write(path.dirname(on.root), { rules: `${CANARY}{[\n*y*\n` });
  symlinkSync("../../rules", path.join(on.root, "b/.gitignore"));
  for (const [i, where] of [".", "b", "a"].entries())
    for (const look of everyNth(3, looksAt(on, where), i))
      assert.doesNotMatch((await look()).text, /kwyjibo/, `below ${where}`);
  const found = await search(on, "needle");
  assert.ok(!found.isError, found.text);
  // No rule is obeyed where one is not to be read, and that is said.
  assert.match(found.text, /^b\/KWYJIBO\{\[\n1: needle\nb\/y\.ts\n1: needle$/m);
  assert.match(found.text, /no ignore rules are obeyed.*b\/\.gitignore\]/);
});

test("two thousand names that read like errors of the search do not slow it down", async () => {
  const names = Array.from({ length: 2000 }, (_, i) => {
    const end = i % 3 ? "" : "\nrg: .";
    return `${i % 2 ? "hidden" : "seen"}/rg: ./: : :${end} ${i}`;
  });
  const on = await agentWith({
    ".gitignore": "hidden/\n",
    "a.ts": "needle\n",
    ...Object.fromEntries(names.map((name) => [name, ""])),
  });
  const start = performance.now();
  for (const [pattern, says] of [
    ["needle", /^a\.ts\n1: needle/],
    ["absent", /^No match in 1002 files/],
  ] as const) {
    const { text, isError } = await search(on, pattern);
    assert.ok(!isError, text);
    assert.match(text, says);
  }
  // It takes hours if an expression looks from each of them for the end of each.
  assert.ok(performance.now() - start < 15_000, `${performance.now() - start} ms`);
});

test("rules that stand above the directory tell nothing, not even by their mistakes", async () => {
  const on = await agentWith({ "sub/deep/a.ts": "x\n", ".gitignore": "{here\n" });
  const broken = `{${CANARY}${"x".repeat(600)}\n[${CANARY}\n${CANARY}\\\n`;
  const names = [".gitignore", ".ignore", ".rgignore", ".git/info/exclude"];
  write(path.dirname(on.root), Object.fromEntries(names.map((name) => [name, broken])));
  for (const [i, where] of everyNth(3, words(". sub sub/deep sub/deep/a.ts")).entries())
    for (const look of everyNth(3, looksAt(on, where), i))
      assert.doesNotMatch((await look()).text, /kwyjibo/, `below ${where}`);
});

test("the rules that git keeps outside of the directory tell nothing", async () => {
  const on = await agentWith({ ".git": "gitdir: ../gitdir\n", "secret-1.log": "x\n" });
  write(path.dirname(on.root), {
    "gitdir/info/exclude": "secret-*.log\n",
    "gitdir/commondir": ".\n",
    "gitdir/HEAD": "ref: x\n",
  });
  for (const { text } of [await search(on, "zzz"), await list(on, ".", "*"), await search(on, "x")])
    assert.doesNotMatch(text, /secret-\*/);
});

test("rules that are broken do no harm to a search, and the others beside them are obeyed", async () => {
  const on = await agentWith({ "x.log": "needle\n", "a.ts": "needle\n" });
  writeFileSync(path.join(on.root, ".gitignore"), "[\n{\n\\\n!\n/\n[z-a]\na\\\n\0\n\xff\n*.log\n");
  assert.match((await search(on, "needle")).text, /^a\.ts\n1: needle\n\[left out.*x\.log\]$/);
});

test("rules that are a directory or a link to nowhere do no harm to a search", async () => {
  const on = await agentWith({});
  const kinds: [kind: string, make: (file: string) => void][] = [
    ["directory", (file) => mkdirSync(file)],
    ["dangling", (file) => symlinkSync("nothing", file)],
    ["itself", (file) => symlinkSync(".gitignore", file)],
  ];
  for (const [kind, make] of kinds) {
    write(path.join(on.root, kind), { "src/a.ts": "needle\n", "src/[b].ts": "needle\n" });
    make(path.join(on.root, kind, ".gitignore"));
  }
  const found = (await search(on, "needle")).text;
  const listed = (await list(on, ".", "*.ts")).text;
  for (const [kind] of kinds) {
    const expected = `${kind}/src/[b].ts\n1: needle\n${kind}/src/a.ts\n1: needle`;
    assert.ok(found.includes(expected), found);
    assert.match(listed, new RegExp(`^${kind}/src/\\[b\\]\\.ts\n${kind}/src/a\\.ts$`, "m"));
    const { text, isError } = await search(on, "absent", { path: `${kind}/src` });
    assert.ok(!isError && /^No match in 2/.test(text), `${kind}: ${text}`);
  }
});

test("a rule file that is a FIFO or a device, or leads to one, is not opened: every call ends at once", async () => {
  const on = await agentWith({ "src/a.ts": "needle\n" });
  const at = (name: string) => path.join(on.root, name);
  const made: [directory: string, make: (file: string) => void][] = [
    ["fifo", (file) => execFileSync("mkfifo", [file])],
    ["link-to-fifo", (file) => symlinkSync("../../fifo", file)],
    ["endless", (file) => symlinkSync("/dev/zero", file)],
    ["stdin", (file) => symlinkSync("/dev/stdin", file)],
  ];
  execFileSync("mkfifo", [path.join(on.root, "../fifo")]);
  for (const [i, [directory, make]] of made.entries()) {
    write(on.root, { [`${directory}/sub/a.ts`]: "needle\n" });
    make(at(`${directory}/${i % 2 ? ".ignore" : ".gitignore"}`));
  }
  symlinkSync("/dev/zero", at(".gitignore"));
  execFileSync("mkfifo", [at(".ignore")]);
  // Only root may make a device.
  if (process.geteuid?.() === 0) execFileSync("mknod", [at("src/.gitignore"), "c", "1", "5"]);
  const { texts, code } = await alone(
    on.root,
    [
      ["search_files", { pattern: "needle" }],
      ["search_files", { pattern: "needle", path: "fifo/sub" }],
      ["search_files", { pattern: "needle", path: "endless", glob: "*.ts" }],
      ["search_files", { pattern: "absent", path: "link-to-fifo" }],
      ["list_files", { glob: "*.ts" }],
      ["list_files", { path: "endless/sub", glob: "*.ts" }],
      ["read_file", { path: "missing.ts" }],
    ],
    5000,
  );
  assert.equal(code, 0, "a call kept the process alive");
  const files = [...made.map(([directory]) => `${directory}/sub/a.ts`), "src/a.ts"].sort();
  const starts = [
    files.map((file) => `${file}\n1: needle`).join("\n"),
    "fifo/sub/a.ts\n1: needle",
    "endless/sub/a.ts\n1: needle",
    "No match in 1 files",
    files.join("\n"),
    "endless/sub/a.ts",
    "missing.ts does not exist",
  ];
  for (const [i, start] of starts.entries()) {
    assert.ok(texts[i]?.startsWith(start), `${start} is not how this starts: ${texts[i]}`);
    assert.doesNotMatch(texts[i] ?? "", /stopped|left out.*(\.ts|sub|src)/);
  }
  // Nor is an answer lost for a source whose file has to be looked for.
  const [source] = await checkSources(on, "It is in absent.ts:3.");
  assert.deepEqual([source?.state, source?.reason], ["wrong", "no such file in the directory"]);
});

/** Rules in a directory of their own, the files there that they leave, and those that they ignore. */
const RULES: [rules: string, kept: string[], ignored: string[]][] = [
  ["*.log\n!keep.log", ["keep.log", "d/keep.log"], ["x.log", "d/x.log"]],
  ["/x", ["d/x"], ["x"]],
  ["/only/x", ["d/only/x"], ["only/x"]],
  ["dir/", ["d/dir"], ["dir/a", "e/dir/a"]],
  ["\\#name", ["name"], ["#name"]],
  ["# comment", ["# comment", "comment"], []],
  ["\\!bang", ["bang"], ["!bang"]],
  ["name\\ ", ["name"], ["name "]],
  ["tail  ", ["tail  "], ["tail"]],
  ["**/gen/", ["d/e/gen"], ["gen/a", "d/gen/a", "f/e/gen/a"]],
  ["a/**/b", ["a/c", "d/a/b"], ["a/b", "a/x/b", "a/x/y/b"]],
  ["[ab].txt", ["c.txt", "ab.txt"], ["a.txt", "d/b.txt"]],
  ["[!ab].txt", ["a.txt", "b.txt"], ["c.txt"]],
  ["[a-c]\\[.md", ["d[.md", "a.md"], ["b[.md"]],
  ["\\{x\\}", ["x"], ["{x}"]],
  ["?.js", ["ab.js"], ["a.js", "d/b.js"]],
  ["doc/*.txt", ["doc/sub/a.txt", "d/doc/a.txt"], ["doc/a.txt"]],
  ["all/**", ["d/all/a"], ["all/a", "all/d/a"]],
  ["/*\n!/keep\n!.gitignore", ["keep/a"], ["a", "d/a"]],
  ["out/\n!out/keep", [], ["out/keep", "out/a"]],
  ["part/*\n!part/keep", ["part/keep"], ["part/a"]],
  ["a\\*b", ["axb"], ["a*b"]],
  ["*.LOG", ["x.log"], ["x.LOG"]],
  ["x.tmp\r\ny.tmp\r\n", ["z.tmp"], ["x.tmp", "y.tmp"]],
  ["\ufeffx.bom", ["y.bom"], ["x.bom"]],
  ["[z-a]\n[\na\\\n*.log", ["a", "b", "[x"], ["x.log"]],
];

/** What git lists as neither tracked nor ignored; undefined where there is no git. */
function listedByGit(directory: string): string[] | undefined {
  const env = { PATH: process.env.PATH, HOME: directory, GIT_CONFIG_NOSYSTEM: "1" };
  const git = (...args: string[]) =>
    execFileSync("git", args, { cwd: directory, env, stdio: ["ignore", "pipe", "ignore"] });
  try {
    git("init");
  } catch {
    return undefined;
  }
  return `${git("ls-files", "--others", "--exclude-standard", "-z")}`.split("\0").filter(Boolean);
}

test("the rules of a directory leave out what git leaves out, at the root and below, and no more", async () => {
  const tree: Tree = { ".gitignore": "*.top\n", "a.top": "needle\n" };
  const kept: string[] = [];
  for (const [i, [rules, keep, ignored]] of RULES.entries()) {
    tree[`${i}/.gitignore`] = rules;
    for (const name of [...keep, ...ignored, "x.top"]) tree[`${i}/${name}`] = "needle\n";
    kept.push(...keep.map((name) => `${i}/${name}`));
  }
  // Rules further down overrule those above.
  tree["0/d/.gitignore"] = "!x.log\n";
  kept.push("0/d/x.log");
  const on = await agentWith(tree);
  const isFile = (line: string) => !/ignore"?$|^\[/.test(line);
  const listed = (await list(on, ".", "**")).text.split("\n").filter(isFile);
  assert.deepEqual(listed.map(plainName).sort(), kept.sort());
  const found = (await search(on, "needle")).text.split("\n");
  const heads = found.filter((line) => isFile(line) && !/^1: needle/.test(line));
  assert.deepEqual(heads.map(plainName).sort(), kept.sort());
  for (const [where, expected] of [
    ["9/d/e", "9/d/e/gen"],
    ["16/doc/sub", "16/doc/sub/a.txt"],
    ["0/d", "0/d/keep.log\n0/d/x.log"],
  ] as const)
    assert.equal(
      (await list(on, where, "**")).text.replace(/^.*ignore$\n|\n\[.*$/gm, ""),
      expected,
    );
  const byGit = listedByGit(on.root)?.filter(isFile);
  if (byGit) assert.deepEqual(byGit.sort(), kept.sort(), "the table is not what git does");
});

/** The name that a result shows as it is, or as a JSON string. */
const plainName = (shown: string) => (shown.startsWith('"') ? String(JSON.parse(shown)) : shown);

// ─── Special files ─────────────────────────────────────────────────────────────────────────────

test("a FIFO, a socket, a device and links to them are refused at once and stop nothing", async () => {
  const on = await agentWith({ "a.ts": "needle\n", "z.ts": "needle\n" });
  const at = (name: string) => path.join(on.root, name);
  execFileSync("mkfifo", [at("pipe"), at("README.md")]);
  const server = createServer().listen(at("socket"));
  after(() => server.close());
  await once(server, "listening");
  const special = ["pipe", "README.md", "socket"];
  try {
    execFileSync("mknod", [at("zero"), "c", "1", "5"], { stdio: "ignore" });
    special.push("zero");
  } catch {
    // Only root may make a device.
  }
  symlinkSync("pipe", at("to-pipe"));
  for (const name of [...special, "to-pipe"]) {
    const start = Date.now();
    const [, page, found] = await everyTool(name, on);
    for (const answer of [page, found]) {
      assert.ok(answer.isError, name);
      assert.match(answer.text, /no regular file/, name);
    }
    assert.ok(Date.now() - start < 10_000, name);
  }
  const { text } = await list(on);
  for (const name of special)
    assert.match(text, new RegExp(`^${name.replace(".", "\\.")} \\(no regular file\\)$`, "m"));
  assert.match(text, /^to-pipe \(link to pipe\)$/m);
  assert.equal((await search(on, "needle")).text, "a.ts\n1: needle\nz.ts\n1: needle");
});

test("a message keeps the model's own words, even where they hold the path of the directory", async () => {
  const inner = `copy${root}/src`;
  write(root, { [`${inner}/only-here.ts`]: "x\n" });
  after(() => rmSync(path.join(root, "copy"), { recursive: true }));
  const on = await agentAt(root);
  assert.match((await read(on, "only-here.js")).text, new RegExp(`${inner}/only-here\\.ts`));
  assert.match((await read(on, `${inner}/absent.ts`)).text, new RegExp(`^${inner}/absent\\.ts`));
});
