// Sources: which citations a text holds, what the tools have shown, and what becomes of a citation
// that is wrong.

import assert from "node:assert/strict";
import { spawnSync } from "node:child_process";
import { symlinkSync } from "node:fs";
import path from "node:path";
import { before, test } from "node:test";
import { type Agent, checkSources, findCitations, runTool } from "../mini-pi.ts";
import { agentAt, type Tree, temporary, write } from "./fixtures.ts";
import { call, type ModelRequest, reply, type Step, startModelServer } from "./model-server.ts";
import { MINI_PI, runCli, startCommand, atServer as to } from "./run-cli.ts";

// ------------------------------------------------------------------- The citations in a text

const place = ({ path: file, from, to }: { path: string; from: number; to: number }) =>
  `${file}:${from}${to === from ? "" : `-${to}`}`;

/** A text, and the citations it holds, in order. */
const TEXTS: [text: string, citations: string][] = [
  // Plain, with a range, a list, at the end of a sentence, several of them.
  ["src/a.ts:12", "src/a.ts:12"],
  ["src/a.ts:12-40", "src/a.ts:12-40"],
  ["a.ts:12,18", "a.ts:12 a.ts:18"],
  ["a.ts:12,18-20,31", "a.ts:12 a.ts:18-20 a.ts:31"],
  ["It is in src/a.ts:12.", "src/a.ts:12"],
  ["Is it in src/a.ts:12-40?", "src/a.ts:12-40"],
  [
    "src/a.ts:12, src/b.ts:3; src/c.ts:4-5 and d.ts:6",
    "src/a.ts:12 src/b.ts:3 src/c.ts:4-5 d.ts:6",
  ],
  ["src/a.ts:12 and again src/a.ts:12", "src/a.ts:12"],
  ["a.ts:12, 40 times a day", "a.ts:12"],
  ["a.ts:12–40", "a.ts:12-40"],
  ["a.ts:12—40", "a.ts:12-40"],
  ["a.ts:L12-L40", "a.ts:12-40"],
  ["a.ts:40-12", "a.ts:40-12"],
  ["src/a.ts:12:34 is a line and a column", "src/a.ts:12"],
  ["- src/a.ts:12: the guard", "src/a.ts:12"],
  // In brackets, quotes and Markdown.
  ["`a.ts:12`", "a.ts:12"],
  ["`src/a.ts`:12-40", "src/a.ts:12-40"],
  ["**src/a.ts:12**", "src/a.ts:12"],
  ["**`src/a.ts`**:12", "src/a.ts:12"],
  ['"a.ts":12', "a.ts:12"],
  ["(src/a.ts:12)", "src/a.ts:12"],
  ["[src/a.ts:12]", "src/a.ts:12"],
  ["<src/a.ts:12>", "src/a.ts:12"],
  ["| `src/a.ts:12` | the guard |", "src/a.ts:12"],
  ["> src/a.ts:12", "src/a.ts:12"],
  ["→src/a.ts:12 ✅b.ts:3 👉c.ts:4 …d.ts:5", "src/a.ts:12 b.ts:3 c.ts:4 d.ts:5"],
  ["佐々木.ts:12, §a.ts:3 «b.ts:4» a²b.md:5", "佐々木.ts:12 a.ts:3 b.ts:4 a²b.md:5"],
  ["src/größe.ts:12 and src/размер.ts:3", "src/größe.ts:12 src/размер.ts:3"],
  ["app/[slug]/page.tsx:12, app/(auth)/b.tsx:3", "app/[slug]/page.tsx:12 app/(auth)/b.tsx:3"],
  ["[a.ts](a.ts#L12-L40)", "a.ts:12-40"],
  ["[the guard](src/a.ts#L12)", "src/a.ts:12"],
  ["[src/a.ts:12](src/a.ts#L12)", "src/a.ts:12"],
  ["[src/a.ts:12](src/a.ts:12)", "src/a.ts:12"],
  ["a.ts#L12", "a.ts:12"],
  ["a.ts#L12-40", "a.ts:12-40"],
  // In words.
  ["a.ts, line 12", "a.ts:12"],
  ["a.ts line 12", "a.ts:12"],
  ["a.ts (line 12)", "a.ts:12"],
  ["`a.ts` (lines 12-40)", "a.ts:12-40"],
  ["`a.ts` at line 12", "a.ts:12"],
  ["a.ts on line 12", "a.ts:12"],
  ["lines 12-40 of `a.ts`", "a.ts:12-40"],
  ["Line 12 of a.ts", "a.ts:12"],
  ["lines 12–40 in src/a.ts", "src/a.ts:12-40"],
  ["lines 12 to 40 of a.ts", "a.ts:12-40"],
  // In Chinese.
  ["重试在 src/a.ts:12 处理。", "src/a.ts:12"],
  ["重试在src/a.ts:12处理。", "src/a.ts:12"],
  ["见（src/a.ts：12）。", "src/a.ts:12"],
  ["见「src/a.ts：12-40」", "src/a.ts:12-40"],
  ["src/a.ts:12，b.ts:3、c.ts:4", "src/a.ts:12 b.ts:3 c.ts:4"],
  ["`a.ts` 第 12 行", "a.ts:12"],
  ["a.ts第12-40行", "a.ts:12-40"],
  ["`a.ts` 的第 12 至 40 行", "a.ts:12-40"],
  ["a.ts 第 12 到 40 行", "a.ts:12-40"],
  ["`说明.md:3`", "说明.md:3"],
  ["文档/水獭.md:3", "文档/水獭.md:3"],
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
  ["`my notes.md:3`", "notes.md:3"],
  ["`node --test src/a.ts:12`", "src/a.ts:12"],
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
  // Half a citation is none.
  ["a.ts", ""],
  ["line 12", ""],
  ["lines 12-40 of it", ""],
  ["#L12", ""],
  ["a.ts: 12 lines long", ""],
  ["a.ts:", ""],
  ["", ""],
  // Code is no prose; inline code is.
  ["```\nsrc/a.ts:12\n```", ""],
  ["~~~ts\n// see src/a.ts:12\n~~~\nsrc/b.ts:3", "src/b.ts:3"],
  ["```\nsrc/a.ts:12\n", ""],
  ["````md\n```\nsrc/a.ts:12\n```\n````", ""],
];

test(`of ${TEXTS.length} texts, each is found to hold the citations it holds and no others`, async (t) => {
  assert.ok(TEXTS.length >= 60);
  for (const [text, citations] of TEXTS)
    await t.test(JSON.stringify(text), () => {
      assert.equal(findCitations(text).map(place).join(" "), citations);
    });
});

const CODE = "```ts\nconst x = 1;\n```";
const BLOCKS: [text: string, code: (string | undefined)[]][] = [
  [`src/a.ts:12\n${CODE}`, ["const x = 1;\n"]],
  [`In \`src/a.ts:12-14\`:\n\n${CODE}`, ["const x = 1;\n"]],
  [`**src/a.ts:12**:\n${CODE}`, ["const x = 1;\n"]],
  ["```ts src/a.ts:12\nconst x = 1;\n```", ["const x = 1;\n"]],
  [`See src/a.ts:12. Then run this:\n${CODE}`, [undefined]],
  [`src/a.ts:12 and src/b.ts:3\n${CODE}`, [undefined, undefined]],
  [`src/a.ts:12\n\nIt is short.\n\n${CODE}`, [undefined]],
];

test("a block of code belongs to the one citation right before it", () => {
  for (const [text, code] of BLOCKS)
    assert.deepEqual(
      findCitations(text).map((citation) => citation.code),
      code,
      text,
    );
});

/** Numbers below 1, the same ones for the same seed. */
function* random(seed: number) {
  for (let state = seed; ; ) {
    state = (Math.imul(state, 1664525) + 1013904223) >>> 0;
    yield state / 2 ** 32;
  }
}

const PIECES =
  `src/a.ts|:12|:|-40|#L1|\`|\`\`\`\n|~~~|\n|lines 3 of |, line |（|）：|第 3 行|[x](|)|[|]|**|./|..\\
  |/|.|a|Z|9|\u0000|\u2028|\ud800|\udc00|👍|汉字|é|e\u0301|\t|"|'|,|，|、|@|$|+|~|\\|http://|node:|::|0|9999999999|\u202e|\r\n`.split(
    "|",
  );

function randomTexts(count: number, seed: number): string[] {
  const numbers = random(seed);
  const next = (below: number) => Math.floor((numbers.next().value ?? 0) * below);
  return Array.from({ length: count }, () =>
    Array.from({ length: next(60) }, () => PIECES[next(PIECES.length)]).join(""),
  );
}

test("10,000 random texts take less than a second in all, and none of them crashes it", (t) => {
  const texts = randomTexts(10_000, 5);
  const timed = () => {
    const start = performance.now();
    texts.flatMap((text) => findCitations(text));
    return performance.now() - start;
  };
  // The best of some rounds: a busy machine is no slow expression.
  const best = Math.min(...Array.from({ length: 5 }, timed));
  t.diagnostic(`${best.toFixed(0)} ms`);
  assert.ok(best < 1000, `${best} ms`);
  const found = texts.flatMap((text) => findCitations(text));
  assert.ok(found.length > 1000);
  for (const { path: file, from, to } of found)
    assert.ok(file !== "" && Number.isSafeInteger(from) && Number.isSafeInteger(to));
});

const LONG: [name: string, text: string][] = [
  ["a dotted word", "a.".repeat(50_000)],
  ["a path", "a/".repeat(50_000)],
  ["a backtick and words", `\`${" a".repeat(50_000)}`],
  ["backticks and words", "` a".repeat(33_000)],
  ["a list of numbers", `a.ts:1${",1".repeat(50_000)}`],
  ["numbers", "lines 1,".repeat(12_000)],
  ["open fences", "```ts\n".repeat(16_000)],
  ["citations", "src/a.ts:1 ".repeat(9_000)],
  ["different citations", Array.from({ length: 9_000 }, (_, i) => `a.ts:${i}\n`).join("")],
  ["fences with citations", "a.ts:1\n```\nx\n```\n".repeat(2_000)],
  ["brackets", "[".repeat(100_000)],
  ["closed brackets", "[a]".repeat(33_000)],
  ["spaces", " ".repeat(100_000)],
  ["Chinese", "汉".repeat(100_000)],
  ["schemes", "a+b-c.".repeat(16_000)],
];

for (const [name, text] of LONG)
  test(`a long text of ${name} takes less than half a second`, () => {
    const start = performance.now();
    findCitations(text);
    assert.ok(performance.now() - start < 500, `${Math.round(performance.now() - start)} ms`);
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

const ROOT = temporary();
let agent: Agent;
before(async () => {
  write(ROOT, TREE);
  agent = await agentAt(ROOT);
  symlinkSync("a.ts", path.join(agent.root, "link.ts"));
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
  [".env:1", "wrong"],
  // It has the form, but nobody misses a file.
  ["TCP/IP:80, and/or:1, HTTP:80, ghcr.io/o/app:12", ""],
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

const quote = (citation: string, code: string) => `${citation}\n\`\`\`ts\n${code}\n\`\`\``;
const QUOTES: [name: string, answer: string, state: string][] = [
  ["as it is", quote("a.ts:10-11", "const x10 = 10;\nconst x11 = 11;"), "seen"],
  ["indented otherwise", quote("a.ts:10-11", "    const x10  = 10;\n\tconst x11 = 11;\n"), "seen"],
  [
    "with its line numbers",
    quote("a.ts:10-12", "10\tconst x10 = 10;\n11: const x11 = 11;\n12= const x12 = 12;"),
    "seen",
  ],
  ["with a gap", quote("a.ts:10-20", "const x10 = 10;\n// ...\nconst x20 = 20;"), "seen"],
  ["longer than the one line cited", quote("a.ts:10", "const x10 = 10;\nconst x11 = 11;"), "seen"],
  ["from a file with CRLF", quote("crlf.ts:7", "const x7 = 7;"), "seen"],
  ["from a file in UTF-16", quote("utf16.ts:3", "const x3 = 3;"), "seen"],
  ["made up", quote("a.ts:10-11", "const y = 10;"), "wrong"],
  ["half made up", quote("a.ts:10-11", "const x10 = 10;\nlaunchMissiles();"), "wrong"],
  ["from another place", quote("a.ts:10-11", "const x90 = 90;\nconst x91 = 91;"), "wrong"],
  ["after other words", quote("See a.ts:10-11. To run it, type", "npm start"), "seen"],
];

test("code that is said to come from a cited place must be there", async (t) => {
  for (const [name, answer, state] of QUOTES)
    await t.test(name, async () => {
      const [source, ...more] = await checkSources(agent, answer);
      assert.deepEqual([source?.state, more], [state, []]);
      if (state === "wrong") assert.match(source?.reason ?? "", /code is not there/);
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

test("an answer of a thousand sources, all wrong, is checked in under a second", async () => {
  const names = Array.from({ length: 1000 }, (_, i) => `nowhere${i}.ts:1`);
  const start = performance.now();
  const sources = await checkSources(agent, names.join("\n"));
  assert.ok(performance.now() - start < 20_000, `${Math.round(performance.now() - start)} ms`);
  assert.equal(sources[0]?.state, "wrong");
});

test("random answers are checked without a crash", async () => {
  for (const text of randomTexts(100, 6)) await checkSources(agent, text);
});

// -------------------------------------------------------------------------- The correction round

const env = { ANTHROPIC_API_KEY: "key", NO_COLOR: "1" };
const READ = reply([call("read_file", { path: "a.ts" })]);
const WRONG = reply("The guard is at a.ts:990.");
const RIGHT = reply("The guard is at a.ts:12.");

async function ask(steps: Step[], ...args: string[]) {
  await using server = await startModelServer(steps);
  const result = await runCli(to(server, ...args, agent.root, "where is the guard?"), { env });
  assert.deepEqual([server.problems, server.steps], [[], []]);
  return { ...result, requests: server.requests };
}

const lastWords = (request: ModelRequest | undefined) =>
  request?.history
    .findLast(({ role }) => role === "user")
    ?.content.map(({ text }) => text)
    .join("") ?? "";

test("a wrong source goes back to the model once, and the corrected answer takes its place", async () => {
  const { code, stdout, stderr, requests } = await ask([READ, WRONG, RIGHT], "--strict");
  assert.deepEqual([code, stdout], [0, "The guard is at a.ts:12.\n"]);
  assert.match(lastWords(requests[2]), /a\.ts:990: .*120 lines/);
  assert.match(stderr, /^sources: 1 seen$/m);
});

test("the model may look again before it corrects itself", async () => {
  const again = reply([call("search_files", { pattern: "x12 " })]);
  const { code, stdout, stderr } = await ask([WRONG, again, RIGHT]);
  assert.deepEqual([code, stdout], [0, "The guard is at a.ts:12.\n"]);
  assert.match(stderr, /^sources: 1 seen$/m);
});

test("what is wrong again is named, and fails the call only if that was asked for", async () => {
  const [lenient, strict] = await Promise.all([
    ask([READ, WRONG, WRONG]),
    ask([READ, WRONG, WRONG], "--strict"),
  ]);
  assert.deepEqual([lenient.code, strict.code], [0, 3]);
  for (const { stdout, stderr } of [lenient, strict]) {
    assert.equal(stdout, "The guard is at a.ts:990.\n");
    assert.match(stderr, /^sources: 0 seen; a\.ts:990: .*120 lines$/m);
  }
});

test("a source that exists but was never shown is named, and costs no request", async () => {
  const { code, stdout, stderr } = await ask([RIGHT], "--strict");
  assert.deepEqual([code, stdout], [0, "The guard is at a.ts:12.\n"]);
  assert.match(stderr, /^sources: 0 seen; a\.ts:12: never shown/m);
});

test("made-up code goes back to the model, too", async () => {
  const { stdout, requests } = await ask([READ, reply(quote("a.ts:12", "guard();")), RIGHT]);
  assert.equal(stdout, "The guard is at a.ts:12.\n");
  assert.match(lastWords(requests[2]), /a\.ts:12: .*code is not there/);
});

test("an answer without sources gets no line about them", async () => {
  const { code, stderr } = await ask([reply("There is none.")]);
  assert.equal(code, 0);
  assert.doesNotMatch(stderr, /sources/);
});

test("in JSON the end holds the corrected answer and the list of its sources", async () => {
  const { code, stdout } = await ask(
    [READ, WRONG, reply("a.ts:12, a.ts:990")],
    "--json",
    "--strict",
  );
  assert.equal(code, 3);
  const end = JSON.parse(stdout.trimEnd().split("\n").at(-1) ?? "");
  assert.deepEqual([end.type, end.answer], ["agent_end", "a.ts:12, a.ts:990"]);
  const states = end.sources.map((source: { state: string }) => source.state);
  assert.deepEqual(states, ["seen", "wrong"]);
  assert.match(end.sources[1].reason, /120 lines/);
});

const hasScript = /util-linux/.test(`${spawnSync("script", ["--version"]).stdout}`);
const onTerminal = { skip: hasScript ? false : "there is no script(1) of util-linux" };

test(
  "on a terminal the corrected answer follows the first under a heading",
  onTerminal,
  async () => {
    await using server = await startModelServer([READ, WRONG, RIGHT]);
    const args = [process.execPath, MINI_PI, ...to(server, agent.root, "where")];
    const script = ["-qec", `exec ${args.map((arg) => `'${arg}'`).join(" ")}`, "/dev/null"];
    const { code, stdout } = await startCommand("script", script, { env }).done;
    assert.equal(code, 0);
    assert.match(
      stdout,
      /at a\.ts:990\.\r\n\s*Corrected[^\n]*:\r\n\s*The guard is at a\.ts:12\.\r\n/,
    );
    assert.match(stdout, /^sources: 1 seen\r?$/m);
  },
);
