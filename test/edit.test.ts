// Changing files: never without a yes, never elsewhere, never torn, and nothing but what was meant.

import assert from "node:assert/strict";
import { execFileSync } from "node:child_process";
import {
  chmodSync,
  cpSync,
  existsSync,
  globSync,
  linkSync,
  mkdirSync,
  readdirSync,
  readFileSync,
  statSync,
  symlinkSync,
  writeFileSync,
} from "node:fs";
import { join } from "node:path";
import { describe, test } from "node:test";
import { type Agent, type Change, defaultTools, editTools, replace, runTool } from "../mini-pi.ts";
import { agentWith, type Tree, temporary, write } from "./fixtures.ts";
import {
  reply as answer,
  call as calls,
  type ModelRequest,
  results,
  startModelServer,
} from "./model-server.ts";
import {
  command,
  onTerminal,
  runHere,
  startHere,
  startTerminal,
  atServer as to,
} from "./run-cli.ts";

const NEVER = new AbortController().signal;

/** An agent that may change these files, and the changes that it was asked for: all get a yes. */
async function editor(tree: Tree) {
  const agent = await agentWith(tree);
  const asked: Change[] = [];
  agent.tools = [...defaultTools, ...editTools];
  agent.confirm = async (change) => {
    asked.push(change);
    return { isYes: true, reason: "" };
  };
  return { agent, asked, bytes: (name: string) => readFileSync(join(agent.root, name)) };
}

let n = 0;
/** One call of a tool; its result is part of the conversation. */
async function call(agent: Agent, name: string, args: object) {
  const toolCall = { type: "toolCall", id: `c${n++}`, name, arguments: { ...args } } as const;
  const result = await runTool(agent, toolCall, NEVER);
  agent.messages.push(result);
  const [block] = result.content;
  return { text: block?.type === "text" ? block.text : "", isError: result.isError };
}
const read = (agent: Agent, path: string) => call(agent, "read_file", { path });
const edit = (agent: Agent, path: string, ...edits: [old: string, put: string][]) =>
  call(agent, "edit_file", { path, edits: edits.map(([old, put]) => ({ old, new: put })) });
const put = (agent: Agent, path: string, content: string) =>
  call(agent, "write_file", { path, content });
const litter = (root: string) => readdirSync(root).filter((name) => name.startsWith(".mini-pi"));

const utf16 = (text: string, isBig = false) => {
  const bytes = Buffer.from(`\ufeff${text}`, "utf16le");
  return isBig ? bytes.swap16() : bytes;
};
const GBK = Buffer.from([0xd6, 0xd0, 0xce, 0xc4, 0xd7, 0xd6, 0xb7, 0xfb, 0xb1, 0xe0, 0xc2, 0xeb]);
const KEPT: { [what: string]: [before: Buffer, old: string, put: string, after: Buffer] } = {
  "CRLF line ends": [
    Buffer.from("a\r\nb\r\nc\r\n"),
    "a\nb",
    "x\ny\nz",
    Buffer.from("x\r\ny\r\nz\r\nc\r\n"),
  ],
  "mixed line ends": [Buffer.from("a\r\nb\nc\rd\n"), "b\n", "x\n", Buffer.from("a\r\nx\nc\rd\n")],
  "a BOM": [Buffer.from("\ufeffa\nb\n"), "a", "x", Buffer.from("\ufeffx\nb\n")],
  "no line end at the end": [Buffer.from("a\nb"), "b", "x", Buffer.from("a\nx")],
  "UTF-16": [utf16("größe\r\nb\r\n"), "größe\n", "länge\n", utf16("länge\r\nb\r\n")],
  "UTF-16, the other way round": [utf16("a\nb", true), "b", "ü", utf16("a\nü", true)],
  "Latin-1": [
    Buffer.from("die gr\xf6\xdfe ist f\xfcr \xe4lteres\nnull\n", "latin1"),
    "größe",
    "länge",
    Buffer.from("die l\xe4nge ist f\xfcr \xe4lteres\nnull\n", "latin1"),
  ],
  GBK: [
    Buffer.concat([GBK, GBK, GBK, Buffer.from("\nab\n"), GBK]),
    "ab",
    "中文",
    Buffer.concat([GBK, GBK, GBK, Buffer.from("\n"), GBK.subarray(0, 4), Buffer.from("\n"), GBK]),
  ],
  "stray bytes": [
    Buffer.from("größe \xff\nb\n", "latin1").fill("gr\u00f6", 0, 4, "utf8"),
    "b",
    "x",
    Buffer.from("größe \xff\nx\n", "latin1").fill("gr\u00f6", 0, 4, "utf8"),
  ],
};
describe("An edit keeps", () => {
  for (const [what, [before, old, text, after]] of Object.entries(KEPT))
    test(`${what}`, async () => {
      const { agent, bytes } = await editor({ "a.txt": before });
      await read(agent, "a.txt");
      const { text: said, isError } = await edit(agent, "a.txt", [old, text]);
      assert.equal(isError, false, said);
      assert.deepEqual(bytes("a.txt").toString("latin1"), after.toString("latin1"));
      assert.deepEqual(litter(agent.root), []);
    });

  test("the rights of a file", async () => {
    const { agent } = await editor({ "run.sh": "echo a\n" });
    chmodSync(join(agent.root, "run.sh"), 0o751);
    await read(agent, "run.sh");
    await edit(agent, "run.sh", ["a", "b"]);
    assert.equal(statSync(join(agent.root, "run.sh")).mode & 0o7777, 0o751);
  });
});

test("several edits of a file are all made, or none", async () => {
  const { agent, bytes, asked } = await editor({ "a.txt": "one\ntwo\nthree\nfour\n" });
  await read(agent, "a.txt");
  const no = await edit(agent, "a.txt", ["one", "1"], ["five", "5"]);
  assert.match(no.text, /An old text is not in a\.txt/);
  const over = await edit(agent, "a.txt", ["one\ntwo", "1"], ["two\nthree", "2"]);
  assert.match(over.text, /overlap/);
  assert.deepEqual([`${bytes("a.txt")}`, asked.length], ["one\ntwo\nthree\nfour\n", 0]);
  assert.equal((await edit(agent, "a.txt", ["four", "4\n4"], ["one\n", ""])).isError, false);
  assert.equal(`${bytes("a.txt")}`, "two\nthree\n4\n4\n");
  // The model knows the lines that it wrote, and where the others are now.
  const next = await edit(agent, "a.txt", ["4\n4", "5"]);
  assert.equal(next.isError, false, next.text);
  assert.equal(`${bytes("a.txt")}`, "two\nthree\n5\n");
});

describe("What cannot be found tells", () => {
  const CASES: [what: string, content: string, old: string, said: RegExp][] = [
    ["how often it is there", "a\nb\na\n", "a", /more than once \(lines 1, 3\)/],
    ["that places overlap", "aaa\n", "aa", /more than once/],
    [
      "of white space",
      "if (a) {\n\treturn 1;\n}\n",
      "if (a) {\n  return 1;",
      /white space.*\n1\tif/,
    ],
    ["of quotes", 'say("it’s");\n', 'say("it\'s");', /quotes.*\n1\tsay/],
    ["of line numbers", "one\ntwo\n", "1\tone\n2\ttwo", /line numbers.*\n1\tone/],
    ["that nothing is like it", "one\n", "two", /nothing there is like it/],
  ];
  for (const [what, content, old, said] of CASES)
    test(what, async () => {
      const { agent, bytes } = await editor({ "a.txt": content });
      await read(agent, "a.txt");
      const { text, isError } = await edit(agent, "a.txt", [old, "new"]);
      assert.match(text, said);
      assert.deepEqual([isError, `${bytes("a.txt")}`], [true, content]);
    });
});

test("lines that were not shown, or changed since, are not edited", async () => {
  const many = Array.from({ length: 500 }, (_, i) => `line ${i + 1}.\n`).join("");
  const { agent, bytes } = await editor({ "a.txt": many });
  const refused = /Lines 450-450 were not shown as they are now/;
  assert.match((await edit(agent, "a.txt", ["line 450.", "x"])).text, refused);
  await read(agent, "a.txt");
  assert.match((await edit(agent, "a.txt", ["line 450.", "x"])).text, refused);
  await call(agent, "search_files", { pattern: "line 45.\\.", context: 1 });
  assert.equal((await edit(agent, "a.txt", ["line 450.", "x"])).isError, false);
  writeFileSync(join(agent.root, "a.txt"), `${bytes("a.txt")}more\n`);
  assert.match((await edit(agent, "a.txt", ["line 1.", "x"])).text, /not shown as they are now/);
  await read(agent, "a.txt");
  assert.equal((await edit(agent, "a.txt", ["line 1.", "x"])).isError, false);
});

test("a file that changes while the user thinks is not written", async () => {
  const { agent, bytes } = await editor({ "a.txt": "one\n" });
  await read(agent, "a.txt");
  agent.confirm = async () => {
    writeFileSync(join(agent.root, "a.txt"), "one and more\n");
    return { isYes: true, reason: "" };
  };
  assert.match((await edit(agent, "a.txt", ["one", "two"])).text, /changed since it was read/);
  assert.equal(`${bytes("a.txt")}`, "one and more\n");
  agent.confirm = async () => {
    writeFileSync(join(agent.root, "new.txt"), "theirs\n");
    return { isYes: true, reason: "" };
  };
  assert.match((await put(agent, "new.txt", "ours\n")).text, /changed since/);
  assert.equal(`${bytes("new.txt")}`, "theirs\n");
  assert.deepEqual(litter(agent.root), []);
});

test("an edit that already stands says so, and is no error", async () => {
  const { agent, asked } = await editor({ "a.txt": "one\n" });
  await read(agent, "a.txt");
  await edit(agent, "a.txt", ["one", "two"]);
  const { text, isError } = await edit(agent, "a.txt", ["one", "two"]);
  assert.deepEqual([text, isError, asked.length], ["a.txt is so already.", false, 1]);
  assert.match((await put(agent, "a.txt", "two\n")).text, /so already/);
});

test("a new file has its directories made; one that is there must have been shown whole", async () => {
  const { agent, bytes } = await editor({ "a.txt": "one\ntwo\n", "b/c.txt": "x\r\n" });
  assert.equal((await put(agent, "x/y/new.ts", "export {};\n")).isError, false);
  assert.equal(`${bytes("x/y/new.ts")}`, "export {};\n");
  assert.match((await put(agent, "a.txt", "1\n")).text, /Not all of it was shown/);
  await call(agent, "read_file", { path: "a.txt", limit: 1 });
  assert.match((await put(agent, "a.txt", "1\n")).text, /Not all of it was shown/);
  await read(agent, "a.txt");
  assert.equal((await put(agent, "a.txt", "1\n")).isError, false);
  await read(agent, "b/c.txt");
  await put(agent, "b/c.txt", "y\nz\n");
  assert.equal(`${bytes("b/c.txt")}`, "y\r\nz\r\n");
});

test("nothing is written outside, in .git, in secrets, through links or into what is no file", async () => {
  const { agent, asked } = await editor({
    "a.txt": "one\n",
    "sub/b.txt": "b\n",
    ".git/config": "x",
  });
  const outside = temporary();
  write(outside, { "victim.txt": "one\n" });
  const { root } = agent;
  symlinkSync(outside, join(root, "out"));
  symlinkSync(join(outside, "victim.txt"), join(root, "link.txt"));
  symlinkSync(join(outside, "absent.txt"), join(root, "dangling.txt"));
  linkSync(join(outside, "victim.txt"), join(root, "hard.txt"));
  execFileSync("mkfifo", [join(root, "fifo")]);
  const names = [
    "../escape.txt",
    "out/new.txt",
    "out/deep/new.txt",
    "out/victim.txt",
    "link.txt",
    "dangling.txt",
    join(outside, "abs.txt"),
    ".git/hooks/post-checkout",
    ".GIT/hooks/x",
    "sub/.git/config",
    ".env",
    "sub/.env.local",
    "id_rsa",
    "fifo",
    "fifo/x",
    "a.txt/x",
    ".",
    "",
    "sub",
    `${"x/".repeat(3000)}y`,
    "a\0b",
  ];
  for (const name of names) {
    assert.equal((await put(agent, name, "bad\n")).isError, true, name);
    assert.equal((await edit(agent, name, ["one", "bad"])).isError, true, name);
  }
  await read(agent, "hard.txt");
  assert.match((await edit(agent, "hard.txt", ["one", "bad"])).text, /hard links/);
  assert.equal(asked.length, 0);
  assert.deepEqual(readdirSync(outside), ["victim.txt"]);
  assert.equal(`${readFileSync(join(outside, "victim.txt"))}`, "one\n");
  assert.deepEqual(readdirSync(join(root, ".git")), ["config"]);
});

test("what is ignored, or in node_modules, is marked: it takes a yes of its own", async () => {
  const tree = { ".gitignore": "*.log\n", "sub/.gitignore": "gen/\n", "a.log": "one\n" };
  const { agent, asked } = await editor({ ...tree, "node_modules/p/i.js": "one\n" });
  for (const path of ["a.log", "node_modules/p/i.js"]) {
    await read(agent, path);
    await edit(agent, path, ["one", "two"]);
  }
  for (const path of ["sub/gen/new.ts", "sub/new.log", "sub/new.ts"]) await put(agent, path, "x\n");
  assert.deepEqual(
    asked.map(({ isOdd }) => isOdd),
    [true, true, true, true, false],
  );
});

test("a character that the file's encoding lacks is refused", async () => {
  const latin = Buffer.from("die gr\xf6\xdfe ist f\xfcr \xe4lteres\n", "latin1");
  const { agent, bytes } = await editor({ "a.txt": latin });
  await read(agent, "a.txt");
  assert.match((await edit(agent, "a.txt", ["die", "中"])).text, /has no "中"/);
  assert.deepEqual(bytes("a.txt"), latin);
});

test("what a killed process left behind is removed, and what a living one writes is not", async () => {
  const { agent } = await editor({ "a.txt": "one\n" });
  const dead = execFileSync(process.execPath, ["-p", "process.pid"]).toString().trim();
  write(agent.root, {
    [`.mini-pi-${dead}-0123abcd.tmp`]: "",
    [`.mini-pi-${process.pid}-0123abcd.tmp`]: "",
  });
  await put(agent, "b.txt", "b\n");
  assert.deepEqual(litter(agent.root), [`.mini-pi-${process.pid}-0123abcd.tmp`]);
});

test("a directory that is swapped for a link has nothing written behind it", async () => {
  const { agent } = await editor({ "sub/a.txt": "one\n" });
  const outside = temporary();
  write(outside, { "a.txt": "one\n" });
  const { renameSync } = await import("node:fs");
  renameSync(join(agent.root, "sub"), join(agent.root, "was"));
  symlinkSync(outside, join(agent.root, "sub"));
  const change = { before: Buffer.from("one\n"), after: Buffer.from("bad\n") };
  await assert.rejects(replace(agent.root, "sub/a.txt", change));
  await assert.rejects(replace(agent.root, "sub/new.txt", { after: Buffer.from("bad\n") }));
  assert.deepEqual(
    [readdirSync(outside), `${readFileSync(join(outside, "a.txt"))}`],
    [["a.txt"], "one\n"],
  );
});

// ----------------------------------------------------------------- The command line

const KEYED = { ANTHROPIC_API_KEY: "key", MINI_PI_RETRY_MS: "10" };
const LOOK = answer([calls("read_file", { path: "a.txt" }), calls("read_file", { path: "b.txt" })]);
const change = (path: string, old: string, text: string) =>
  calls("edit_file", { path, edits: [{ old, new: text }] });
const toldIn = (request?: ModelRequest) => JSON.stringify(request && results(request));
const files = () => {
  const root = join(temporary(), "repo");
  mkdirSync(root);
  write(root, { "a.txt": "one\n", "b.txt": "two\n" });
  return root;
};
const contents = (root: string) =>
  ["a.txt", "b.txt"].map((name) => `${readFileSync(join(root, name))}`);

test("without --edit no tool that writes is offered, and the request is as it was", async () => {
  const root = files();
  await using server = await startModelServer([
    answer([change("a.txt", "one", "1")]),
    answer("No."),
  ]);
  const { code } = await runHere(to(server, "--yes", "--no-session", root, "q"), { env: KEYED });
  assert.equal(code, 0);
  assert.doesNotMatch(
    JSON.stringify(server.requests[0]?.body),
    /edit_file|write_file|show(n|s) each/,
  );
  assert.match(toldIn(server.requests[1]), /There is no tool/);
  assert.deepEqual(contents(root), ["one\n", "two\n"]);
});

test("--edit --yes writes, and tells what it wrote", async () => {
  const root = files();
  const both = answer([change("a.txt", "one", "1"), change("b.txt", "two", "2\n2")]);
  await using server = await startModelServer([LOOK, both, answer("Done.")]);
  const args = to(server, "--edit", "--yes", root, "change them");
  const { code, stdout, stderr } = await runHere(args, { env: KEYED });
  assert.deepEqual([code, stdout], [0, "Done.\n"], stderr);
  assert.match(stderr, /^changed: a\.txt \+1 -1, b\.txt \+2 -1; --undo puts it back$/m);
  assert.deepEqual(contents(root), ["1\n", "2\n2\n"]);
});

test("without a terminal and --yes nothing is written, and stdout is a patch that git applies", async () => {
  const root = files();
  const three = answer([
    change("a.txt", "one", "1"),
    change("b.txt", "two", "2"),
    calls("write_file", { path: "new/c.txt", content: "c\n" }),
  ]);
  await using server = await startModelServer([
    LOOK,
    three,
    answer("This would change three files."),
  ]);
  const { code, stdout } = await runHere(to(server, "--edit", root, "change them"), { env: KEYED });
  assert.equal(code, 3);
  assert.deepEqual([contents(root), existsSync(join(root, "new"))], [["one\n", "two\n"], false]);
  execFileSync("git", ["apply", "-"], { cwd: root, input: stdout });
  assert.deepEqual(contents(root), ["1\n", "2\n"]);
  assert.equal(`${readFileSync(join(root, "new/c.txt"))}`, "c\n");
  assert.match(toldIn(server.requests[2]), /Not written: there is nobody to ask/);
});

const ON_TERMINAL = { env: KEYED, terminal: true, input: "open" } as const;
const PROMPT = /say what should be different: /;

test("at a terminal each change is shown and asked for; a no has its reason told, and ends the rest", async () => {
  const root = files();
  const both = answer([change("a.txt", "one", "1"), change("b.txt", "two", "2")]);
  const again = answer([change("a.txt", "one", "eins")]);
  await using server = await startModelServer([LOOK, both, again, answer("Done.")]);
  const run = startHere(to(server, "--edit", "--no-session", root, "q"), ON_TERMINAL);
  await run.waitFor(PROMPT, "stdout");
  assert.match(run.stdout(), /-one[\s\S]*\+1[\s\S]*Write a\.txt \(\+1 -1\)\?/);
  run.stdin.write("in German, please\n");
  await run.waitFor(/\+eins[\s\S]*Write a\.txt[^\n]*different: /, "stdout");
  run.stdin.write("y\n");
  assert.equal((await run.done).code, 0);
  assert.deepEqual(contents(root), ["eins\n", "two\n"]);
  const told = toldIn(server.requests[2]);
  assert.match(told, /the user says: in German, please/);
  assert.match(told, /the user said no to the one before/);
});

test("an a holds for the rest of the question, but for what is ignored; a q for no more", async () => {
  for (const [key, after] of [
    ["a", ["1\n", "2\n"]],
    ["q", ["one\n", "two\n"]],
  ] as const) {
    const root = files();
    write(root, { ".gitignore": "b.txt\n" });
    const first = answer([change("a.txt", "one", "1")]);
    const second = answer([change("b.txt", "two", "2")]);
    await using server = await startModelServer([LOOK, first, second, answer("Done.")]);
    const run = startHere(to(server, "--edit", "--no-session", root, "q"), ON_TERMINAL);
    await run.waitFor(PROMPT, "stdout");
    run.stdin.write(`${key}\n`);
    if (key === "a") {
      await run.waitFor(/Write b\.txt[^\n]*different: /, "stdout");
      run.stdin.write("yes\n");
    }
    assert.equal((await run.done).code, 0);
    assert.deepEqual(contents(root), after);
  }
});

test("Ctrl-C while it asks writes nothing, and tells what was written before", async () => {
  const root = files();
  const both = answer([change("a.txt", "one", "1"), change("b.txt", "two", "2")]);
  await using server = await startModelServer([LOOK, both]);
  const run = startHere(to(server, "--edit", "--no-session", root, "q"), ON_TERMINAL);
  await run.waitFor(PROMPT, "stdout");
  run.stdin.write("y\n");
  await run.waitFor(/Write b\.txt[^\n]*different: /, "stdout");
  run.stop(130);
  assert.equal((await run.done).code, 130);
  assert.match(run.stdout(), /changed: a\.txt \+1 -1/);
  assert.deepEqual(contents(root), ["1\n", "two\n"]);
});

test("--undo puts back what the last question changed, unless it changed since", async () => {
  const root = files();
  const state = { XDG_STATE_HOME: temporary() };
  const all = answer([
    change("a.txt", "one", "1"),
    change("b.txt", "two", "2"),
    calls("write_file", { path: "new/c.txt", content: "c\n" }),
  ]);
  const more = answer([change("a.txt", "1", "11")]);
  await using server = await startModelServer([LOOK, all, more, answer("Done.")]);
  await runHere(to(server, "--edit", "--yes", root, "q"), { env: { ...KEYED, ...state } });
  assert.deepEqual(contents(root), ["11\n", "2\n"]);
  writeFileSync(join(root, "b.txt"), "mine\n");
  const undone = await runHere(["--undo", root], { env: state });
  assert.equal(undone.code, 3);
  assert.match(
    undone.stderr,
    /a\.txt: put back[\s\S]*b\.txt: changed since|b\.txt: changed since[\s\S]*a\.txt: put back/,
  );
  assert.deepEqual(contents(root), ["one\n", "mine\n"]);
  assert.equal(existsSync(join(root, "new/c.txt")), false);
});

test("with --no-session nothing is kept to undo, and where nothing can be kept it is told", async () => {
  for (const [more, env, said] of [
    [["--no-session"], {}, /^changed: a\.txt \+1 -1$/m],
    [[], { XDG_STATE_HOME: "/dev/null" }, /cannot be undone[\s\S]*^changed: a\.txt \+1 -1$/m],
  ] as const) {
    const root = files();
    await using server = await startModelServer([
      LOOK,
      answer([change("a.txt", "one", "1")]),
      answer("Done."),
    ]);
    const args = to(server, "--edit", "--yes", ...more, root, "q");
    const { stderr } = await runHere(args, { env: { ...KEYED, ...env } });
    assert.match(stderr, said);
    assert.equal(contents(root)[0], "1\n");
  }
});

test("the result of an edit is kept in the session, and the conversation goes on with it", async () => {
  const root = files();
  const session = join(temporary(), "talk.jsonl");
  await using server = await startModelServer([
    LOOK,
    answer([change("a.txt", "one", "1")]),
    answer("Done."),
    answer([change("a.txt", "1", "2")]),
    answer("Done again."),
  ]);
  const args = to(server, "--edit", "--yes", "--session", session, root);
  for (const question of ["q", "and on"])
    assert.equal((await runHere([...args, question], { env: KEYED })).code, 0);
  assert.equal(contents(root)[0], "2\n");
});

test("the README's transcript of a change is what is shown", async () => {
  const readme = readFileSync(join(import.meta.dirname, "..", "README.md"), "utf8");
  const [, shown = ""] = /\$ .*mini-pi\.ts --edit .*\n([\s\S]*?\n)`{3}\n/.exec(readme) ?? [];
  const root = join(temporary(), "repo");
  write(root, {
    "src/retry.ts": "/** How long to wait, in ms. */\nexport const retryDelay = 2000;\n",
    "src/index.ts": 'import { retryDelay } from "./retry.ts";\n\nsetTimeout(main, retryDelay);\n',
  });
  const rename = (path: string, ...old: string[]) =>
    calls("edit_file", {
      path,
      edits: old.map((text) => ({ old: text, new: text.replace("retryDelay", "backoff") })),
    });
  const edits = [
    rename("src/retry.ts", "const retryDelay"),
    rename("src/index.ts", "{ retryDelay", "main, retryDelay"),
  ];
  const look = calls("search_files", { pattern: "retryDelay", whole: true });
  const done = "`retryDelay` is `backoff` now, where it is defined and where it is used.";
  await using server = await startModelServer([answer([look]), answer(edits), answer(done)]);
  const run = startHere(to(server, "--edit", root, "q"), {
    ...ON_TERMINAL,
    env: { ...KEYED, NO_COLOR: "1" },
  });
  for (const file of ["retry", "index"]) {
    await run.waitFor(new RegExp(`Write src/${file}[^\\n]*different: `), "stdout");
    run.stdin.write("y\n");
  }
  const { stdout } = await run.done;
  const plain = stdout.replace(/\x1b\[[\d;?]*[A-Za-z]|\r/g, "").replace(/\d\.\d s, .*/, "1.0 s");
  assert.equal(plain, shown);
});

test(
  "a function is renamed across the files of a real package, at a real terminal",
  onTerminal,
  async () => {
    const root = join(temporary(), "repo");
    cpSync(join(import.meta.dirname, "../node_modules/chardet"), root, { recursive: true });
    const [from, to_] = ["__importDefault", "defaultOf"];
    const names = globSync("**/*.js", { cwd: root });
    const text = (name: string) => `${readFileSync(join(root, name))}`;
    const users = names.filter((name) => text(name).includes(from)).sort();
    assert.ok(users.length >= 5);
    const renames = users.map((path) => {
      const lines = text(path)
        .split("\n")
        .filter((line) => line.includes(from));
      const edits = lines.map((old) => ({ old, new: old.replaceAll(from, to_) }));
      return calls("edit_file", { path, edits });
    });
    const reads = users.map((path) => calls("read_file", { path }));
    await using server = await startModelServer([
      answer(reads),
      answer(renames),
      answer("Renamed."),
    ]);
    const run = startTerminal(command(...to(server, "--edit", root, "rename it")), {
      env: { ...KEYED, TERM: "xterm-256color" },
      input: "open",
    });
    await run.waitFor(PROMPT, "stdout");
    run.child.stdin?.write("a\r");
    const { code, stdout } = await run.done;
    assert.equal(code, 0);
    assert.match(stdout, /\x1b\[32m\+.*defaultOf/);
    assert.equal(stdout.match(/say what should be different/g)?.length, 1);
    for (const name of users) assert.doesNotMatch(text(name), new RegExp(from));
    const script = `console.log(require(${JSON.stringify(root)}).detect(Buffer.from("größe")))`;
    assert.equal(`${execFileSync(process.execPath, ["-e", script])}`, "UTF-8\n");
  },
);

test("in a conversation the answer is typed at the same prompt, and /undo takes changes back", async () => {
  const root = files();
  await using server = await startModelServer([
    LOOK,
    answer([change("a.txt", "one", "1")]),
    answer("Done."),
  ]);
  const run = startHere(to(server, "--edit", root), ON_TERMINAL);
  await run.waitFor(/help tells more[\s\S]*> /, "stdout");
  run.stdin.write("change it\n");
  await run.waitFor(PROMPT, "stdout");
  run.stdin.write("y\n");
  await run.waitFor(/changed: a\.txt \+1 -1; --undo puts it back[\s\S]*> /, "stdout");
  assert.deepEqual(contents(root), ["1\n", "two\n"]);
  run.stdin.write("/undo\n");
  await run.waitFor(/a\.txt: put back/, "stdout");
  run.stdin.write("/exit\n");
  assert.equal((await run.done).code, 0);
  assert.deepEqual(contents(root), ["one\n", "two\n"]);
  assert.equal(server.requests.length, 3);
});
