// The offline model: what a first run without a key gives, on made trees and on real packages. In
// this process, through the same door as any program that embeds mini-pi; once by the command line.

import assert from "node:assert/strict";
import { readFileSync } from "node:fs";
import path from "node:path";
import { test } from "node:test";
import { createAgent, findModel, runAgent } from "../mini-pi.ts";
import { everyNth, isLong, temporary, write } from "./fixtures.ts";
import { runCli } from "./run-cli.ts";

/** A directory with these files. */
function tree(files: Record<string, string>): string {
  const root = temporary();
  write(root, files);
  return root;
}

const newAgent = async (dir: string) => createAgent(dir, await findModel("offline/search"));

/** The answer of a new conversation, which is asked for once, after what every answer must keep. */
const ask = (dir: string, question: string) =>
  (asked[`${dir}\n${question}`] ??= askAfresh(dir, question));
const asked: { [of: string]: ReturnType<typeof askAfresh> } = {};

async function askAfresh(dir: string, question: string) {
  const outcome = await runAgent(await newAgent(dir), question);
  assert.deepEqual([outcome.ended, outcome.message], ["answered", ""]);
  assert.match(outcome.answer, /offline\/search: a keyword search, no language model/);
  for (const { path: file, from, to, state } of outcome.sources)
    assert.equal(state, "seen", `${file}:${from}-${to}`);
  return outcome;
}

/** The lines of its sources, as they are in the files. */
const passages = (dir: string, { sources }: Awaited<ReturnType<typeof askAfresh>>) =>
  sources.map(({ path: file, from, to }) => {
    const lines = readFileSync(path.join(dir, file), "utf8").split(/\r?\n/);
    return { file, lines: lines.slice(from - 1, to) };
  });

// ------------------------------------------------------------------------------ A made tree

const FILLER = "// Nothing of interest stands in this line.\n".repeat(30);
const PROJECT = tree({
  "README.md": "# Ferry\n\nFerry carries parcels over the river.\n\nIt may retry. See docs.\n",
  "package.json": '{\n  "name": "ferry",\n  "description": "Carries parcels"\n}\n',
  "src/net/retry.ts": `${FILLER}export async function withRetry(work: () => Promise<void>) {\n  await work();\n}\n`,
  "src/net/client.ts":
    'import { withRetry } from "./retry.ts";\n\nawait withRetry(async () => {});\n',
  "src/config.ts": `${FILLER}/** Reads the file. */\nexport function parseConfig(text: string) {\n  return JSON.parse(text);\n}\n`,
  "src/use.ts":
    'import { parseConfig } from "./config.ts";\nparseConfig("{}");\nparseConfig("[]");\n',
  "src/dates.ts": `${FILLER}export const formatDate = (date: Date) => date.toISOString();\n`,
  "src/limits.ts": "export const MAX_PARCELS = 12;\n",
  "src/store.js": `${FILLER}export const $store = new Map();\n`,
  "server/session.py": `${"# A remark\n".repeat(20)}class SessionStore:\n    def load_settings(self):\n        pass\n`,
  "server/main.go": `package main\n\n${FILLER}func ServeParcels(port int) error {\n\treturn nil\n}\n`,
  "server/cache.rs": `${FILLER}pub struct LruCache<K, V> {\n    map: HashMap<K, V>,\n}\n`,
  "server/queue.ts": `${FILLER}// Очередь посылок.\nexport const queue = [];\n`,
  "test/retry.test.ts": "// retry, retry and retry again\ntest('retry', () => retry());\n".repeat(
    9,
  ),
  "docs/retry.md": "Retry is good. A retry is better than no retry.\n".repeat(9),
});

const PLACES: [question: string, file: string, holds: string][] = [
  ["where is retry handled?", "src/net/retry.ts", "export async function withRetry"],
  ["Where are retries handled?", "src/net/retry.ts", "export async function withRetry"],
  ["how does parseConfig work?", "src/config.ts", "export function parseConfig"],
  ["parseConfig", "src/config.ts", "export function parseConfig"],
  ["Where are dates formatted?", "src/dates.ts", "export const formatDate"],
  ["where is the session store?", "server/session.py", "class SessionStore:"],
  ["What does load_settings do?", "server/session.py", "    def load_settings(self):"],
  ["Explain LruCache to me, please.", "server/cache.rs", "pub struct LruCache<K, V> {"],
  ["who serves the parcels?", "server/main.go", "func ServeParcels(port int) error {"],
  ["where is $store defined?", "src/store.js", "export const $store = new Map();"],
  ["what does src/limits.ts do?", "src/limits.ts", "export const MAX_PARCELS = 12;"],
  ["What's MAX_PARCELS?", "src/limits.ts", "export const MAX_PARCELS = 12;"],
  ["где стоит очередь посылок?", "server/queue.ts", "// Очередь посылок."],
  ["parseConfig 在哪里定义？", "src/config.ts", "export function parseConfig"],
  ["函数parseConfig怎么用？", "src/config.ts", "export function parseConfig"],
  ["解释withRetry函数", "src/net/retry.ts", "export async function withRetry"],
  ["withRetry함수는 어디에 있나요?", "src/net/retry.ts", "export async function withRetry"],
];

// Rows next to each other are alike, so each kind has its turn in the short tests, too.
for (const [question, file, holds] of everyNth(5, PLACES))
  test(`"${question}" is answered with the place in ${file}`, async () => {
    const outcome = await ask(PROJECT, question);
    const found = passages(PROJECT, outcome);
    const [passage] = found.filter((one) => one.file === file);
    assert.ok(passage, `not in ${found.map((one) => one.file)}`);
    assert.ok(
      passage.lines.some((line) => line.includes(holds)),
      passage.lines.join("\n"),
    );
    // Each passage is quoted whole, under its source.
    for (const { lines } of found) assert.ok(outcome.answer.includes(lines.join("\n").trimEnd()));
    assert.equal(outcome.answer.match(/^`{4,}$/gm)?.length, 2 * found.length);
  });

test("of what it does not find it says so, also where it finds other words", async () => {
  const { answer } = await ask(PROJECT, "Is retry done by Kafka consumers?");
  assert.match(answer, /^Nothing here matches Kafka, consumer\. The places that match best:\n/);
  assert.doesNotMatch((await ask(PROJECT, "where is retry handled?")).answer, /Nothing here/);
});

const DEFINED: [name: string, file: string, source: string, at: number][] = [
  ["toJson", "Gson.java", "public String toJson(Object src) throws E {", 20],
  ["Execute", "command.go", "func (c *Command) Execute() error {", 20],
  ["main", "kilo.c", "int main(int argc, char **argv) {", 20],
  ["dispatch", "app.js", "app.dispatch = function dispatch(req, res) {", 20],
  ["union", "schemas.ts", "export function union<const T>(options: T) {", 20],
  ["render", "view.rb", "  def render(template)", 20],
];
for (const [name, file, source, at] of everyNth(6, DEFINED))
  test(`a definition of ${name} as in ${file} comes before its uses`, async () => {
    const uses = `// remain ${name}s\n  x.${name}(1);\n  y = ${name}(2)\n`.repeat(12);
    const root = tree({
      [file]: `${"// a line\n".repeat(at - 1)}${source}\n  1;\n}\n`,
      ...Object.fromEntries(["a", "b", "y", "z"].map((dir) => [`${dir}/use-${file}`, uses])),
    });
    const [first] = (await ask(root, `where is ${name} defined?`)).sources;
    assert.ok(first && first.path === file && first.from <= at && at <= first.to, `${first?.path}`);
  });

const ABOUT = [
  "what is this project?",
  "What is this and how does it work?",
  "the of and?",
  "???",
  "这个项目是做什么的？",
  "请问这个项目是什么？",
  "重试在哪里处理？",
];

for (const question of everyNth(3, ABOUT))
  test(`"${question}" is answered with the words of the README and the manifest`, async () => {
    const outcome = await ask(PROJECT, question);
    assert.match(outcome.answer, /Ferry carries parcels over the river\./);
    assert.match(outcome.answer, /"description": "Carries parcels"/);
    assert.deepEqual(
      outcome.sources.map((source) => source.path),
      ["README.md", "package.json"],
    );
    assert.doesNotMatch(outcome.answer, /[Nn]othing/);
  });

test("about nothing that is there it says so, and what the project is", async () => {
  const { answer } = await ask(PROJECT, "where is zyxwvut handled?");
  assert.match(answer, /[Nn]othing here matches.*zyxwvut/);
  assert.match(answer, /Ferry carries parcels/);
});

const TREES: [name: string, files: Record<string, string>, question: string, says: RegExp][] = [
  ["an empty directory", {}, "where is it?", /no README/],
  [
    "an empty directory, and a telling word",
    {},
    "where is parsing?",
    /[Nn]othing here matches.*no README/s,
  ],
  ["empty files", { "README.md": "", "a.ts": "" }, "where is parsing?", /[Nn]othing here matches/],
  ["a manifest alone", { "Cargo.toml": '[package]\nname = "x"\n' }, "what is it?", /Cargo\.toml:1/],
  ["a README of another kind", { "readme.rst": "Title\n=====\n" }, "what is it?", /readme\.rst:1/],
  [
    "a directory called README",
    { "README/a": "x", "go.mod": "module x\n" },
    "what is it?",
    /go\.mod:1/,
  ],
  ["neither", { "a.ts": "let one = 1;\n" }, "what is it?", /no README/],
  ["CRLF", { "a.ts": "one\r\nfunction two() {}\r\nthree\r\n" }, "where is two?", /function two/],
  [
    "a name with brackets",
    { "sub dir/odd (1).py": "def otter():\n  pass\n" },
    "where is otter?",
    /"sub dir\/odd \(1\)\.py":1-2/,
  ],
  ["a name with a space", { "my notes.md": "All about otters.\n" }, "otters?", /"my notes\.md":1-/],
  [
    "brackets in a name",
    { "app/[id]/page.tsx": "const otter = 1;\n" },
    "otter",
    /app\/\[id\]\/page\.tsx:1/,
  ],
  ["a Chinese name", { "文档/水獭.md": "水獭喜欢otter。\n" }, "otter?", /文档\/水獭\.md:1/],
  ["a hidden file", { ".github/ci.yml": "otter: 1\n" }, "otter", /\.github\/ci\.yml:1/],
  [
    "a fence in a file",
    { "a.md": "otter\n````\nnowhere.ts:99\n````\nelse.ts:98\n" },
    "otter",
    /a\.md:1/,
  ],
  ["citations in a file", { "a.md": "The otter: see nowhere.ts:99.\n" }, "otter", /a\.md:1/],
  ["one long line", { "a.min.js": `otter${"x".repeat(9000)}\n` }, "otter", /a\.min\.js:1/],
];

for (const [name, files, question, says] of everyNth(4, TREES))
  test(`it copes with ${name}`, async () => {
    const { answer } = await ask(tree(files), question);
    assert.match(answer, says);
  });

const LONG = Array.from({ length: 90 }, (_, i) => `        step_${i}()\n`).join("");
const SHOP = tree({
  "README.md": "# Shop\n\nIt sells boats.\n",
  "CONTRIBUTING.md": "# Contributing\n\nThanks!\n\n## Running the tests\n\nRun `make check`.\n",
  "CHANGES.rst": "1.0\n---\n\nThe tests run again. Run the tests, run!\n".repeat(5),
  ".github/workflows/ci.yml": "- name: run the tests\n  run: tests run\n".repeat(9),
  "setup.cfg": "[tests]\nrun = tests\n",
  "src/shop.py": `class Shop:\n    def register(self, boat):\n        return 1\n\n\n${FILLER.replaceAll("//", "#")}
class Harbour:
    # Takes a boat in.
    @logged
    def register(
        self,
        boat,
    ):
        if boat:
            return 2
        return self.register(boat)

    def long_one(self):
${LONG}

def url_for(name):
    return Harbour().register(name)
`,
  "src/a_uses.py": "from shop import url_for\nurl_for(1)\nHarbour.register(2)\n".repeat(60),
});

test("of a name that is used everywhere, the definition comes first, and all of it is shown", async () => {
  const [passage] = passages(SHOP, await ask(SHOP, "Where is url_for defined?"));
  assert.equal(passage?.file, "src/shop.py");
  assert.deepEqual(passage?.lines, ["def url_for(name):", "    return Harbour().register(name)"]);
});

test("two names with a dot are one place, with what stands above it and to its end", async () => {
  const [passage, ...more] = passages(SHOP, await ask(SHOP, "What does Harbour.register do?"));
  assert.equal(passage?.lines[0], "    # Takes a boat in.");
  assert.equal(passage?.lines.at(-1), "        return self.register(boat)");
  assert.ok(more.length < 3);
});

test("of a long definition the start is shown", async () => {
  const [passage] = passages(SHOP, await ask(SHOP, "Where is long_one defined?"));
  assert.match(passage?.lines[0] ?? "", /def long_one/);
  assert.equal(passage?.lines.length, 24);
});

test("how something is done is answered from the documents, not from workflows or change logs", async () => {
  const found = passages(SHOP, await ask(SHOP, "How do I run the tests?"));
  assert.equal(found[0]?.file, "CONTRIBUTING.md");
  assert.ok(found[0]?.lines.includes("Run `make check`."));
  for (const { file } of found) assert.doesNotMatch(file, /CHANGES|ci\.yml|setup\.cfg/);
});

test("for a name that is nowhere, the definition of the nearest is shown, and the name said", async () => {
  const outcome = await ask(SHOP, "Where is Harbuor defined?");
  assert.match(outcome.answer, /^Nothing here matches Harbuor \(there is Harbour\)\. The places/);
  assert.equal(passages(SHOP, outcome)[0]?.lines[0], "class Harbour:");
});

test("a file that was named and is not there is said, with what is near it", async () => {
  const { answer } = await ask(SHOP, "What does lib/shop.py do?");
  assert.match(answer, /^lib\/shop\.py does not exist.* Near it: src\/shop\.py\./);
  assert.doesNotMatch((await ask(SHOP, "What does shop.register do?")).answer, /not exist/);
});

test("a search that did not see everything is said in the answer", async () => {
  const agent = await newAgent(SHOP);
  // What ripgrep cannot read, it cannot search: here its search finds no time.
  agent.tools = agent.tools.map((tool) => ({
    ...tool,
    execute: (...[about, args]: Parameters<typeof tool.execute>) =>
      tool.execute(about, args, AbortSignal.abort(new Error("time"))),
  }));
  const { answer } = await runAgent(agent, "Where is url_for defined?");
  assert.match(answer, /^\[stopped for its time: there may be more\]/);
});

test("the words that it looks for are told, in a line, and none of its patterns", async () => {
  const { stderr } = await runCli([SHOP, "Where are Harbour and url_for defined?"]);
  assert.match(stderr, /^search_files Harbour, url_for$/m);
  assert.match(stderr, /^read_file src\/shop\.py$/m);
  assert.equal(stderr.match(/_file/g)?.length, 2);
  assert.doesNotMatch(stderr, /\\s/);
});

test("a secret in a file that is never read is not quoted", async () => {
  const dir = tree({ ".env": "OTTER_KEY=canary\n", "a.ts": "const otter = 1;\n" });
  const { answer } = await ask(dir, "where is otter?");
  assert.doesNotMatch(answer, /canary/);
  assert.match(answer, /a\.ts:1/);
});

test("in one conversation the same question again, and another one, are answered as at first", async () => {
  const agent = await newAgent(PROJECT);
  const questions = ["what is this project?", "where is retry handled?"];
  const first = await Promise.all(questions.map((question) => ask(PROJECT, question)));
  for (const [i, question] of [...questions, ...questions].slice(0, isLong ? 4 : 3).entries()) {
    const { answer, ended } = await runAgent(agent, question);
    assert.deepEqual([ended, answer], ["answered", first[i % 2]?.answer], question);
  }
});

test("a pasted question of 100 KB and one full of special characters end in an answer", async () => {
  for (const question of [
    "where is (?i)[a-z]+* handled? \\d{2}|$",
    "lorem ".repeat(17_000),
    "a\0b\u2028",
  ])
    await ask(PROJECT, question);
});

// ---------------------------------------------------------------------------- Real packages

const packageDir = (name: string) => path.join(import.meta.dirname, "../node_modules", name);
const TYPEBOX = packageDir("typebox");
const PI_AI = packageDir("@earendil-works/pi-ai");

const REAL: [dir: string, question: string, file: RegExp, holds: RegExp][] = [
  [TYPEBOX, "where is Assign handled?", /memory\/assign\.m?js$/, /export function Assign\(/],
  [TYPEBOX, "where is Clone defined?", /clone\.m?js$/, /export function Clone\(/],
  [TYPEBOX, "How does ParseError work?", /schema\/parse\.m?js$/, /class ParseError/],
  [TYPEBOX, "what is this project?", /readme\.md$/i, /JSON Schema Type Builder/],
  [TYPEBOX, "这个项目是什么？", /package\.json$/, /"description"/],
  [
    PI_AI,
    "where is validateToolCall handled?",
    /utils\/validation\.js$/,
    /function validateToolCall\(/,
  ],
  [
    PI_AI,
    "where is isContextOverflow defined?",
    /utils\/overflow\.js$/,
    /function isContextOverflow\(/,
  ],
  [PI_AI, "where is retryAssistantCall?", /utils\/retry\.js$/, /function retryAssistantCall\(/],
  [PI_AI, "fauxProvider 在哪里实现？", /providers\/faux\.js$/, /faux/],
  [PI_AI, "what is this project?", /README\.md$/, /Unified LLM API/],
];

for (const [dir, question, file, holds] of everyNth(5, REAL, 2))
  test(`of ${path.basename(dir)}, "${question}" is answered with ${file}`, async () => {
    const found = passages(dir, await ask(dir, question));
    const places = found.map((one) => `${one.file}\n${one.lines.join("\n")}`);
    const hit = found.find((one) => file.test(one.file) && holds.test(one.lines.join("\n")));
    assert.ok(hit, places.join("\n\n"));
  });

test("the command line gives the same bytes, exits with 0, finds every source seen and opens no connection", async () => {
  const question = "where is retryAssistantCall?";
  const preload = `import net from "node:net";
    net.Socket.prototype.connect = () => { throw new Error("CONNECTED"); };`;
  const NODE_OPTIONS = `--import=data:text/javascript,${encodeURIComponent(preload)}`;
  const { code, stdout, stderr } = await runCli([PI_AI, question], { env: { NODE_OPTIONS } });
  assert.equal(code, 0, stderr);
  assert.equal(stdout, `${(await ask(PI_AI, question)).answer}\n`);
  assert.match(stderr, /^sources: \d+ seen$/m);
  assert.doesNotMatch(stderr, /CONNECTED/);
});
