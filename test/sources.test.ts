// Sources: which citations a text holds, what the tools have shown, and what becomes of a citation
// that is wrong.

import assert from "node:assert/strict";
import { symlinkSync } from "node:fs";
import path from "node:path";
import { before, test } from "node:test";
import {
  type Agent,
  checkSources,
  createAgent,
  findCitations,
  findModel,
  runAgent,
  runTool,
} from "../mini-pi.ts";
import { agentAt, freshSeed, isLong, random, type Tree, temporary, write } from "./fixtures.ts";
import { call, type ModelRequest, reply, type Step, startModelServer } from "./model-server.ts";
import { MODEL, runHere, atServer as to } from "./run-cli.ts";

// ------------------------------------------------------------------- The citations in a text

const place = ({ path: file, from, to }: { path: string; from: number; to: number }) =>
  `${file}:${from}${to === from ? "" : `-${to}`}`;

/** A text, and the citations it holds, in order. */
const TEXTS: [text: string, citations: string][] = [
  // Plain, with a range, at the end of a sentence, several of them.
  ["src/a.ts:12", "src/a.ts:12"],
  ["src/a.ts:12-40", "src/a.ts:12-40"],
  ["It is in src/a.ts:12.", "src/a.ts:12"],
  ["Is it in src/a.ts:12-40?", "src/a.ts:12-40"],
  ["a.ts:12, b.ts:3; src/c.ts:4-5 and d.ts:6", "a.ts:12 b.ts:3 src/c.ts:4-5 d.ts:6"],
  ["src/a.ts:12 and again src/a.ts:12", "src/a.ts:12"],
  ["a.ts:12, 40 times a day", "a.ts:12"],
  ["a.ts:L12 and a.ts:L14-L40", "a.ts:12 a.ts:14-40"],
  ["a.ts:40-12", "a.ts:40-12"],
  ["src/a.ts:12:34 is a line and a column", "src/a.ts:12"],
  ["- src/a.ts:12: the guard", "src/a.ts:12"],
  ["a.ts#L12", "a.ts:12"],
  ["a.ts#L12-L40", "a.ts:12-40"],
  // In brackets, quotes and Markdown.
  ["`a.ts:12`", "a.ts:12"],
  ["`src/a.ts`:12-40", "src/a.ts:12-40"],
  ["**src/a.ts:12**", "src/a.ts:12"],
  ["**`src/a.ts:12`**", "src/a.ts:12"],
  ['"a.ts":12', "a.ts:12"],
  ["(src/a.ts:12)", "src/a.ts:12"],
  ["[src/a.ts:12]", "src/a.ts:12"],
  ["<src/a.ts:12>", "src/a.ts:12"],
  ["| `src/a.ts:12` | the guard |", "src/a.ts:12"],
  ["> src/a.ts:12", "src/a.ts:12"],
  ["[a.ts](a.ts#L12-L40)", "a.ts:12-40"],
  ["[the guard](src/a.ts#L12)", "src/a.ts:12"],
  ["[src/a.ts:12](src/a.ts#L12)", "src/a.ts:12"],
  ["[src/a.ts:12](src/a.ts:12)", "src/a.ts:12"],
  // A bare line is one of the file that was named last, with a line or without.
  ["`src/a.ts` does it (:12) and `:40-44`", "src/a.ts:12 src/a.ts:40-44"],
  ["src/a.ts:3 checks it, [:9] takes it", "src/a.ts:3 src/a.ts:9"],
  ["In src/a.ts, see :12.", "src/a.ts:12"],
  ["`a.ts` (:1), then b.ts (:2-3), :4", "a.ts:1 b.ts:2-3 b.ts:4"],
  ["a.ts:1, :5, :7-9 and b.ts:2, :6", "a.ts:1 a.ts:5 a.ts:7-9 b.ts:2 b.ts:6"],
  ["[a.ts](a.ts) has it.\n\nMore of it: `:12`", "a.ts:12"],
  ["(:12) and `:3-4`", ""],
  ["a.ts at 10:30, 16:9, std::io, node:fs, x:1", ""],
  ["`a.py` takes `list[:12]` and `x[1:2]`", ""],
  ["See https://example.com/a.ts (:12)", ""],
  // Beside Chinese, and in other letters.
  ["重试在 src/a.ts:12 处理。", "src/a.ts:12"],
  ["见（src/a.ts:12）。", "src/a.ts:12"],
  ["见「src/a.ts:12-40」", "src/a.ts:12-40"],
  ["是的。src/a.ts:12，b.ts:3、c.ts:4", "src/a.ts:12 b.ts:3 c.ts:4"],
  ["`说明.md:3`", "说明.md:3"],
  ["文档/水獭.md:3 and 佐々木.ts:12", "文档/水獭.md:3 佐々木.ts:12"],
  ["src/größe.ts:12 and src/размер.ts:3", "src/größe.ts:12 src/размер.ts:3"],
  // Paths of all kinds.
  ["./src/a.ts:12", "src/a.ts:12"],
  ["src\\win\\a.ts:12", "src/win/a.ts:12"],
  ["Makefile:3 and Dockerfile:10", "Makefile:3 Dockerfile:10"],
  ["LICENSE:1", "LICENSE:1"],
  [".gitignore:2 and .github/workflows/ci.yml:7", ".gitignore:2 .github/workflows/ci.yml:7"],
  ["bin/run:3", "bin/run:3"],
  ["app/[id]/page.tsx:5 and app/(group)/page.tsx:6", "app/[id]/page.tsx:5 app/(group)/page.tsx:6"],
  ["node_modules/@types/node/fs.d.ts:9", "node_modules/@types/node/fs.d.ts:9"],
  ["src/a-b_c.test.tsx:8", "src/a-b_c.test.tsx:8"],
  ["src/naïve.ts:3", "src/naïve.ts:3"],
  ["`my notes.md:3`", "my notes.md:3"],
  ['"my notes.md":3 and "sub dir/odd (1).py":12-14', "my notes.md:3 sub dir/odd (1).py:12-14"],
  ["It is in my notes.md:3", "notes.md:3"],
  ["main.c:10 and lib.rs:20 and x.h:1", "main.c:10 lib.rs:20 x.h:1"],
  // Addresses, modules, times, versions, images, ports.
  ["127.0.0.1:8080", ""],
  ["[::1]:8080 and fe80::1:2", ""],
  ["localhost:3000", ""],
  ["http://localhost:3000/a.ts:12", ""],
  ["https://example.com:8443", ""],
  ["https://github.com/o/r/blob/main/src/a.ts#L12", ""],
  ["[docs](https://example.com/a.md#L3)", ""],
  ["example.com:443, db.internal:5432 and printer.local:631", ""],
  ["git@github.com:22", ""],
  ["node:fs and node:fs/promises", ""],
  ["std::io and std::io::Read", ""],
  ["at 10:30, from 10:30-11:00", ""],
  ["2026-01-02T10:30:00 and 10:30:45.123", ""],
  ["v1.2.3:4 and 1.2.3:4 and 2.0.0-rc.1:5", ""],
  ["node:20, postgres:16 and python:3.12", ""],
  ["ratio 16:9, scale 1:50", ""],
  ["sha256:123", ""],
  ["{ port:80, x:1 } and list[1:2]", ""],
  ["Step 1:2 and note:3", ""],
  // Half a citation is none, nor is one in words.
  ["a.ts", ""],
  ["line 12", ""],
  ["lines 12-40 of it", ""],
  ["#L12", ""],
  ["a.ts: 12 lines long", ""],
  ["a.ts:", ""],
  ["line 12 of a.ts and a.ts, lines 3-4", ""],
  ["", ""],
  // Code is no prose; inline code is.
  ["```\nsrc/a.ts:12\n```", ""],
  ["~~~ts\n// see src/a.ts:12\n~~~\nsrc/b.ts:3", "src/b.ts:3"],
  ["```\nsrc/a.ts:12\n", ""],
  ["````md\n```\nsrc/a.ts:12\n```\n````", ""],
  ["src/a.ts:3\n```\nf(x):12\n```\nand :9", "src/a.ts:3 src/a.ts:9"],
];

test("a text holds the citations that it holds, and no others", async (t) => {
  for (const [text, citations] of TEXTS)
    await t.test(JSON.stringify(text), () => {
      assert.equal(findCitations(text).map(place).join(" "), citations);
    });
});

const PIECES =
  `src/a.ts|:12|:|-40|#L1|\`|\`\`\`\n|~~~|\n|(:3)|, :7-9|（|）：|。|[x](|)|[|]|**|./|..\\
  |/|.|a|Z|9|\u0000|\u2028|\ud800|\udc00|👍|汉字|é|e\u0301|\t|"|'|,|，|、|@|$|+|~|\\|http://|node:|::|0|9999999999|\u202e|\r\n`.split(
    "|",
  );

function randomTexts(count: number, seed: number): string[] {
  const { below, pick } = random(seed);
  const text = () => Array.from({ length: below(60) }, () => pick(PIECES)).join("");
  return Array.from({ length: count }, text);
}

test("no random text crashes it, and what it finds are files and lines", (t) => {
  const seed = isLong ? freshSeed(t) : 5;
  const found = randomTexts(isLong ? 100_000 : 2000, seed).flatMap((text) => findCitations(text));
  assert.ok(found.length > 200, `${found.length}`);
  for (const { path: file, from, to } of found)
    assert.ok(file !== "" && Number.isSafeInteger(from) && Number.isSafeInteger(to));
});

/** Parts that make a long text of which an expression may go over the same places again and again. */
const PARTS = [
  ...[
    "a",
    "a/",
    "a.",
    "a.b",
    "a.b/",
    "a-",
    "汉",
    "汉.",
    "。",
    "é",
    "1",
    "0.",
    "-",
    " ",
    "\t",
    "\n",
  ],
  ...[
    "`",
    "` a",
    " a",
    "`a ",
    "`a` ",
    '"',
    '"a',
    '"a b',
    "'",
    "*",
    "**a",
    "[",
    "]",
    "[a]",
    "[a].",
    "[a](",
  ],
  ...[
    "(",
    ")",
    "()",
    "(a)/",
    "](",
    "[](",
    "<",
    "#",
    "#L",
    "#L1",
    "a#L1",
    "a.ts#L1-L",
    "@",
    "~",
    "\\",
    "\\a",
  ],
  ...[
    ":",
    "::",
    ":1",
    ":1 ",
    "(:1)",
    "`:1` ",
    ":1-",
    ":1-2",
    "a:1",
    "a.ts:1",
    "a.ts:1 ",
    "a.ts :1 ",
    "1:",
    "1:1",
  ],
  ...[
    "a.ts:1,",
    ",1",
    "L1",
    "http://",
    "http://a ",
    "a+b-c.",
    "a://",
    "```\n",
    "```ts\n",
    "~~~\n",
    "> ```\n",
  ],
  ...["a.ts:1\n```\nx\n```\n", "lines 1,", "line 1 of ", "\ud83d\ude00", "\ud83d", "\u2028", "\0"],
];

test("the time to look for citations grows with a text and no faster, whatever it is made of", () => {
  const texts = PARTS.flatMap((part) => {
    const long = part.repeat(100_000 / part.length);
    return isLong ? [long, `\`${long}`, `src/a.ts ${long}`, `"${long}`] : [long];
  });
  texts.push(Array.from({ length: 9000 }, (_, i) => `a.ts:${i}\n`).join(""));
  texts.push(Array.from({ length: 9000 }, (_, i) => `a${i}.ts (:${i})\n`).join(""));
  for (const text of texts) {
    const start = performance.now();
    findCitations(text);
    const ms = performance.now() - start;
    // Looking at each place once takes 20 ms; looking on from each place takes minutes.
    assert.ok(ms < 5000, `${Math.round(ms)} ms for ${JSON.stringify(text.slice(0, 40))}...`);
  }
});

// ------------------------------------------------------------------------- Seen, exists, wrong

const numbered = (count: number, end = "\n") =>
  Array.from({ length: count }, (_, i) => `const x${i + 1} = ${i + 1};`).join(end);

const TREE: Tree = {
  "a.ts": `${numbered(120)}\n`,
  "src/deep/only.ts": `${numbered(30)}\n`,
  "src/one/index.ts": `${numbered(30)}\n`,
  "src/two/index.ts": `${numbered(30)}\n`,
  "x/page.ts": `${numbered(30)}\n`,
  "y/page.ts": `${numbered(30)}\n`,
  "crlf.ts": numbered(10, "\r\n"),
  "utf16.ts": Buffer.from(`\ufeff${numbered(10)}`, "utf16le"),
  "empty.ts": "",
  "last.ts": "one\ntwo",
  "my notes.md": "Otters.\n",
  "build/out.ts": `${numbered(9)}\n`,
  ".gitignore": "build\n",
  ".env": "KEY=canary\n",
  Makefile: "all:\n\ttrue\n",
};

// The key of the questions that are asked in this process.
process.env.ANTHROPIC_API_KEY = "key";

const ROOT = temporary();
let agent: Agent;
before(async () => {
  write(ROOT, TREE);
  agent = await agentAt(ROOT);
  symlinkSync("a.ts", path.join(agent.root, "link.ts"));
  symlinkSync("/etc", path.join(agent.root, "out"));
  const looks: [name: string, args: { [name: string]: string | number }][] = [
    ["read_file", { path: "a.ts", offset: 10, limit: 11 }],
    ["read_file", { path: "a.ts", offset: 21, limit: 10 }],
    ["read_file", { path: "a.ts", offset: 25, limit: 10 }],
    ["read_file", { path: "./a.ts", offset: 118 }],
    ["read_file", { path: "a.ts", offset: 900 }],
    ["read_file", { path: "nowhere.ts" }],
    ["read_file", { path: ".env" }],
    ["read_file", { path: "src/two/index.ts" }],
    ["read_file", { path: "build/out.ts", limit: 3 }],
    ["read_file", { path: "my notes.md" }],
    ["read_file", { path: "utf16.ts", limit: 4 }],
    ["search_files", { pattern: "x5[05] = ", path: "a.ts", context: 2 }],
    ["search_files", { pattern: "const x7 ", path: "src/deep" }],
    ["search_files", { pattern: "const x7 ", path: "crlf.ts" }],
    ["list_files", {}],
  ];
  for (const [i, [name, args]] of looks.entries()) {
    const toolCall = { type: "toolCall", id: `call_${i}`, name, arguments: args } as const;
    agent.messages.push(await runTool(agent, toolCall, new AbortController().signal));
  }
});

/** An answer, the states of its sources, and, where there is one, a reason. */
const STATES: [answer: string, states: string, reason?: RegExp][] = [
  // read_file: pages that touch or overlap are one.
  ["a.ts:10", "seen"],
  ["a.ts:10-34", "seen"],
  ["a.ts:9-20", "exists", /never shown/],
  ["a.ts:34-35", "exists"],
  ["a.ts:118-120", "seen"],
  ["a.ts:10-120", "exists"],
  // search_files: matches and their context.
  ["a.ts:48-57", "seen"],
  ["a.ts:47", "exists"],
  ["crlf.ts:7, src/deep/only.ts:7", "seen seen"],
  ["`a.ts` does it (:10-12), and :40", "seen exists"],
  ["src/deep/only.ts:6-7", "exists"],
  // Places that are not there.
  ["a.ts:121", "wrong", /120 lines/],
  ["a.ts:100-990", "wrong", /120 lines/],
  ["a.ts:0", "wrong"],
  ["a.ts:20-10", "wrong"],
  ["nowhere.ts:1", "wrong", /no such file/],
  ["src/a.ts:10", "wrong", /no such file/],
  ["empty.ts:1", "wrong"],
  ["last.ts:2", "exists"],
  ["last.ts:3", "wrong", /2 lines/],
  ["crlf.ts:10", "exists"],
  ["crlf.ts:11", "wrong", /10 lines/],
  ["utf16.ts:4", "seen"],
  ["utf16.ts:10", "exists"],
  ["utf16.ts:11", "wrong"],
  // Other names of the file.
  ["link.ts:10", "seen"],
  ["./a.ts:10", "seen"],
  ["only.ts:7 and deep/only.ts:7", "seen seen"],
  ["only.ts:31", "wrong", /30 lines/],
  ["index.ts:3", "seen"],
  ["one/index.ts:3", "exists"],
  ["page.ts:3", "wrong", /several|more than one|ambiguous|which/],
  ["build/out.ts:3", "seen"],
  ["build/out.ts:4", "exists"],
  ["`my notes.md:1`", "seen"],
  ["Makefile:2", "exists"],
  // Nothing outside, and no secret, is ever looked at.
  ["/etc/passwd.txt:1", "wrong", /no such file/],
  ["../../../etc/hosts.allow:1", "wrong", /no such file/],
  ["../etc/passwd:1", "wrong", /no such file/],
  ["src/../../x/passwd:1", "wrong", /no such file/],
  ["/etc/passwd:1", "wrong", /no such file/],
  ["~/notes/todo:1", "wrong", /no such file/],
  ["out/passwd:1", "wrong", /no such file/],
  ["src/nothing:1", "wrong", /no such file/],
  [".env:1", "wrong"],
  // It has the form, but nobody misses a file.
  ["TCP/IP:80, and/or:1, HTTP:80, ghcr.io/o/app:12, /users:200", ""],
];

test("each source is seen, or exists, or is wrong with a reason", async (t) => {
  for (const [answer, states, reason] of STATES)
    await t.test(answer, async () => {
      const sources = await checkSources(agent, answer);
      assert.equal(sources.map(({ state }) => state).join(" "), states);
      if (reason) assert.match(sources[0]?.reason ?? "", reason);
      for (const { state, reason } of sources) assert.equal(reason === "", state === "seen");
    });
});

test("what was shown is remembered after trimming, and after a resume", async () => {
  const messages = JSON.parse(JSON.stringify(agent.messages));
  for (const later of [
    { ...agent, trimmed: agent.messages.length },
    { ...agent, messages },
  ]) {
    const sources = await checkSources(later, "a.ts:10-34, a.ts:48, a.ts:99");
    assert.deepEqual(
      sources.map(({ state }) => state),
      ["seen", "seen", "exists"],
    );
  }
});

test("an answer of a thousand sources, all wrong, costs one look at the names that there are", async () => {
  const names = Array.from({ length: 1000 }, (_, i) => `nowhere${i}.ts:1`);
  const start = performance.now();
  const sources = await checkSources(agent, names.join("\n"));
  // To look at them for each would take a minute.
  assert.ok(performance.now() - start < 20_000, `${Math.round(performance.now() - start)} ms`);
  assert.equal(sources[0]?.state, "wrong");
});

test("random answers are checked without a crash", async (t) => {
  const seed = isLong ? freshSeed(t) : 6;
  for (const text of randomTexts(isLong ? 1000 : 50, seed)) await checkSources(agent, text);
});

// -------------------------------------------------------------------------- The correction round

const env = { ANTHROPIC_API_KEY: "key", NO_COLOR: "1" };
const READ = reply([call("read_file", { path: "a.ts" })]);
const WRONG = reply("The guard is at a.ts:990.");
const RIGHT = reply("The guard is at a.ts:12.");

/** Asks in this process, over a real connection. */
async function ask(steps: Step[]) {
  await using server = await startModelServer(steps);
  const { stream, model, keyName } = await findModel(MODEL, server.url);
  const asked = await createAgent(ROOT, { stream, model, keyName });
  const outcome = await runAgent(asked, "where is the guard?");
  assert.deepEqual([server.problems, server.steps], [[], []]);
  const sources = outcome.sources.map((source) => `${place(source)} ${source.state}`);
  return { ...outcome, sources, reason: outcome.sources[0]?.reason, requests: server.requests };
}

/** Asks by the command line. */
async function askCli(steps: Step[], ...args: string[]) {
  await using server = await startModelServer(steps);
  const result = await runHere(to(server, ...args, ROOT, "where is the guard?"), { env });
  assert.deepEqual([server.problems, server.steps], [[], []]);
  return result;
}

const lastWords = (request: ModelRequest | undefined) =>
  request?.history
    .findLast(({ role }) => role === "user")
    ?.content.map(({ text }) => text)
    .join("") ?? "";

test("a wrong source goes back to the model once, and the corrected answer takes its place", async () => {
  const { ended, answer, sources, requests } = await ask([READ, WRONG, RIGHT]);
  assert.deepEqual([ended, answer], ["answered", "The guard is at a.ts:12."]);
  assert.match(lastWords(requests[2]), /a\.ts:990: .*120 lines/);
  assert.deepEqual(sources, ["a.ts:12 seen"]);
});

test("the model may look again before it corrects itself", async () => {
  const again = reply([call("search_files", { pattern: "x12 " })]);
  const { answer, sources } = await ask([WRONG, again, RIGHT]);
  assert.deepEqual([answer, sources], ["The guard is at a.ts:12.", ["a.ts:12 seen"]]);
});

test("what is wrong again is named, and the answer stays", async () => {
  const { ended, answer, sources, reason } = await ask([READ, WRONG, reply("a.ts:12, a.ts:990")]);
  assert.deepEqual([ended, answer], ["answered", "a.ts:12, a.ts:990"]);
  assert.deepEqual([sources, reason], [["a.ts:12 seen", "a.ts:990 wrong"], ""]);
});

test("with --strict, a source that stays wrong fails the call, and is named in a line", async () => {
  const { code, stdout, stderr } = await askCli([READ, WRONG, WRONG], "--strict");
  assert.deepEqual([code, stdout], [3, "The guard is at a.ts:990.\n"]);
  assert.match(stderr, /^sources: 0 seen; a\.ts:990: .*120 lines$/m);
});

const GROUND: [name: string, steps: Step[], code: number, said: RegExp][] = [
  ["a greeting", [reply("Hello!")], 3, /^sources: answered without looking at any file$/m],
  ["a guess", [RIGHT], 3, /^sources: answered without looking at any file$/m],
  [
    "failed looks",
    [reply([call("read_file", { path: "b.ts" })]), reply("So.")],
    3,
    /^sources: answered without looking at any file$/m,
  ],
  ["what it saw and does not cite", [READ, reply("So.")], 3, /^sources: none cited$/m],
  ["what it cites", [READ, RIGHT], 0, /^sources: 1 seen$/m],
  [
    "that nothing is there",
    [reply([call("search_files", { pattern: "otter.*wolf" })]), reply("There is none.")],
    0,
    /^2 turns/m,
  ],
];

for (const [name, steps, code, said] of GROUND)
  test(`with --strict, an answer with ${name} ends with ${code}; without it, with 0`, async () => {
    const strict = await askCli(steps.slice(), "--strict");
    assert.deepEqual([strict.code, (await askCli(steps.slice())).code], [code, 0]);
    assert.match(strict.stderr, said);
    assert.equal(/^sources: (answered|none)/m.test(strict.stderr), code === 3);
  });

test("a check ends when the run does, keeps the answer, and says that it did not get to the end", async () => {
  const stop = new AbortController();
  const { stream, model, keyName } = await findModel("offline/search");
  const asked = await createAgent(ROOT, { stream, model, keyName, signal: stop.signal });
  // The model has answered, and the check has not begun.
  asked.emit = (event) => {
    const isAnswer = event.type === "turn_end" && event.message.stopReason === "stop";
    if (isAnswer) stop.abort();
  };
  const { ended, answer, sources, doubt } = await runAgent(asked, "where are otters?");
  assert.deepEqual([ended, sources, doubt], ["answered", [], "not checked to the end"]);
  assert.match(answer, /Otters/);
  assert.deepEqual(await checkSources(asked, "nowhere.ts:1", stop.signal), []);
});

test("a source that exists but was never shown costs no request and fails no call; JSON lists it", async () => {
  const glance = reply([call("list_files", {})]);
  const { code, stdout } = await askCli([glance, RIGHT], "--json", "--strict");
  assert.equal(code, 0);
  const end = JSON.parse(stdout.trimEnd().split("\n").at(-1) ?? "");
  assert.deepEqual([end.type, end.answer], ["agent_end", "The guard is at a.ts:12."]);
  const states = end.sources.map((source: { state: string }) => source.state);
  assert.deepEqual(states, ["exists"]);
  assert.match(end.sources[0].reason, /never shown/);
});

test("an answer without sources has none", async () => {
  const { ended, sources } = await ask([reply("There is none.")]);
  assert.deepEqual([ended, sources], ["answered", []]);
});

test("on a terminal the corrected answer follows the first, and without --strict nothing fails", async () => {
  const corrected = reply("The guard is at a.ts:12, not a.ts:991.");
  await using server = await startModelServer([READ, WRONG, corrected]);
  const { code, stdout } = await runHere(to(server, ROOT, "where"), { env, terminal: true });
  assert.equal(code, 0);
  assert.match(
    stdout,
    /at a\.ts:990\.\n\s*Corrected[^\n]*:\n\s*The guard is at a\.ts:12, not a\.ts:991\.\n/,
  );
  assert.match(stdout, /^sources: 1 seen; a\.ts:991: .*120 lines$/m);
});
