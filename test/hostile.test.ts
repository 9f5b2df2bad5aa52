// What a hostile model or server sends: any value in the place of any field, texts and bytes without
// end. A question ends with one of its outcomes, throws nothing, and takes bounded memory.

import assert from "node:assert/strict";
import { once } from "node:events";
import { existsSync } from "node:fs";
import * as http from "node:http";
import type { AddressInfo } from "node:net";
import path from "node:path";
import { PassThrough } from "node:stream";
import { after, test } from "node:test";
import { createAgent, findModel, printText, runAgent, trimContext } from "../mini-pi.ts";
import {
  agentAt,
  agentWith,
  everyNth,
  freshSeed,
  isLong,
  png,
  type Random,
  random,
  read,
  search,
  temporary,
  write,
} from "./fixtures.ts";
import { reply as answer, call, results, startModelServer } from "./model-server.ts";
import { runCli, runHere, atServer as to } from "./run-cli.ts";

const DIR = temporary();
write(DIR, { "a.ts": "export const answer = 42;\n", "b.md": "# Words\n" });
process.env.ANTHROPIC_API_KEY = "key-of-a-test";
const keyed = { ANTHROPIC_API_KEY: "key", MINI_PI_RETRY_MS: "10" };

// ----------------------------------------------------------------- Any value in any field

type Json = { [key: string]: unknown } | unknown[];

const USAGE = { input_tokens: 10, output_tokens: 5, cache_read_input_tokens: 1 };
const ANTHROPIC: Json[] = [
  { type: "message_start", message: { id: "m", role: "assistant", content: [], usage: USAGE } },
  { type: "content_block_start", index: 0, content_block: { type: "thinking", thinking: "" } },
  { type: "content_block_delta", index: 0, delta: { type: "thinking_delta", thinking: "Hm." } },
  { type: "content_block_delta", index: 0, delta: { type: "signature_delta", signature: "s" } },
  { type: "content_block_stop", index: 0 },
  { type: "content_block_start", index: 1, content_block: { type: "text", text: "" } },
  { type: "content_block_delta", index: 1, delta: { type: "text_delta", text: "See a.ts:1." } },
  { type: "content_block_stop", index: 1 },
  {
    type: "content_block_start",
    index: 2,
    content_block: { type: "tool_use", id: "c", name: "read_file", input: {} },
  },
  {
    type: "content_block_delta",
    index: 2,
    delta: { type: "input_json_delta", partial_json: '{"path":"a.ts"}' },
  },
  { type: "content_block_stop", index: 2 },
  { type: "message_delta", delta: { stop_reason: "tool_use" }, usage: { output_tokens: 9 } },
  { type: "message_stop" },
];
const chunk = (delta: object, finish_reason: string | null = null) => ({
  id: "c",
  choices: [{ index: 0, delta, finish_reason }],
});
const arguments_ = '{"path":"a.ts"}';
const OPENAI: Json[] = [
  chunk({ role: "assistant", content: "" }),
  chunk({ reasoning_content: "Hm." }),
  chunk({ content: "See a.ts:1." }),
  chunk({
    tool_calls: [
      { index: 0, id: "c", type: "function", function: { name: "read_file", arguments: "" } },
    ],
  }),
  chunk({ tool_calls: [{ index: 0, function: { arguments: arguments_ } }] }),
  chunk({}, "tool_calls"),
  {
    ...chunk({}),
    usage: { prompt_tokens: 10, completion_tokens: 5, prompt_tokens_details: { cached_tokens: 1 } },
  },
];

const deep = (n: number) => JSON.parse(`${'{"a":'.repeat(n)}1${"}".repeat(n)}`);
const HOSTILE: readonly unknown[] = [
  null,
  0,
  -1,
  1e308,
  true,
  "",
  "\ud800",
  "__proto__",
  "x\nsources: 9 seen",
  "\u001b]0;title\u0007",
  [],
  {},
  { toString: 1 },
  { length: -1 },
  [{ toString: 1 }, null],
  '{"path":{"toString":1}}',
  '{"\ud800":1,"path":"a.ts"}',
];
/** These take most of the time, and are seldom sent. */
const LARGE: readonly unknown[] = [
  "[a].".repeat(20_000),
  ".".repeat(300_000),
  "‹<".repeat(50_000),
  `${" ".repeat(300_000)}</think>x`,
  `${"<function=a>".repeat(25_000)}</function>`,
  `${'{"path":'.repeat(3000)}1`,
  deep(3000),
];

/** A copy in which a random field, at any depth, has a hostile value. */
function spoilt(events: Json[], { below, pick }: Random): Json[] {
  const copy: Json[] = structuredClone(events);
  for (let n = 1 + below(3); n > 0; n--) {
    let place: Json = copy;
    for (;;) {
      const key: string = pick(Object.keys(place).concat("extra"));
      const inner: unknown = Reflect.get(place, key);
      if (typeof inner === "object" && inner !== null && below(4) > 0) place = inner as Json;
      else {
        // A copy, as a later round may spoil it, too.
        if (place !== copy)
          Reflect.set(
            place,
            key,
            JSON.parse(JSON.stringify(pick(below(20) > 0 ? HOSTILE : LARGE))),
          );
        break;
      }
    }
  }
  return copy;
}

/** A server that sends a spoilt stream to each request, in turn in both APIs' forms. */
async function spoiltServer(chance: Random) {
  const server = http.createServer(async (request, response) => {
    request.resume();
    await once(request, "end");
    const isOpenAi = request.url?.endsWith("/chat/completions");
    const events = spoilt(isOpenAi ? OPENAI : ANTHROPIC, chance);
    const code = chance.below(20) === 0 ? 400 + chance.below(200) : 200;
    response.writeHead(code, {
      "content-type": code === 200 ? "text/event-stream" : "application/json",
      "retry-after": chance.below(2) ? "0" : "9".repeat(4000),
    });
    if (code !== 200) return response.end(JSON.stringify({ error: { message: events[3] } }));
    for (const event of events) {
      const type = Reflect.get(Object(event), "type");
      const name = isOpenAi || typeof type !== "string" ? "" : `event: ${type.slice(0, 50)}\n`;
      response.write(`${name.replace(/\n(?=.)/g, "")}data: ${JSON.stringify(event)}\n\n`);
    }
    response.end(isOpenAi ? "data: [DONE]\n\n" : "");
  });
  server.listen(0, "127.0.0.1");
  await once(server, "listening");
  after(() => server.close().closeAllConnections());
  return `http://127.0.0.1:${(server.address() as AddressInfo).port}`;
}

const RUNS = Number(process.env.MINI_PI_RUNS) || (isLong ? 1000 : 30);

test("whatever is sent in the place of any field, a question ends, and throws nothing", async (t) => {
  const chance = random(isLong ? freshSeed(t) : 12);
  process.env.MINI_PI_RETRY_MS = "1";
  const url = await spoiltServer(chance);
  const choices = [
    await findModel("anthropic/claude-sonnet-5-5", url),
    await findModel("some-model", `${url}/v1`),
  ];
  const counts: Record<string, number> = {};
  let [last, longest] = [performance.now(), 0];
  const beat = setInterval(() => {
    longest = Math.max(longest, performance.now() - last - 10);
    last = performance.now();
  }, 10);
  for (let i = 0; i < RUNS; i++) {
    const [stdout, stderr] = [new PassThrough(), new PassThrough()];
    const told: string[] = [];
    stderr.on("data", (data) => told.push(`${data}`));
    stdout.resume();
    const limits = { turns: 3, ms: 60_000, cost: 100 };
    const choice = choices[i % 2];
    assert.ok(choice);
    const agent = await createAgent(DIR, { ...choice, limits });
    const show = printText({ stdin: process.stdin, stdout, stderr }, agent, {});
    const lines: string[] = [];
    agent.emit = (event) => {
      show(event);
      lines.push(JSON.stringify(event));
    };
    const { ended } = await runAgent(agent, "What is the answer?");
    counts[ended] = (counts[ended] ?? 0) + 1;
    // The conversation can go on, and be kept and resumed.
    JSON.stringify(trimContext(agent));
    assert.doesNotMatch(told.join(""), /^sources: 9 seen/m, "no line is forged");
  }
  clearInterval(beat);
  t.diagnostic(`${RUNS} runs: ${JSON.stringify(counts)}; longest wait ${longest.toFixed(0)} ms`);
  assert.ok((counts.answered ?? 0) + (counts.limit ?? 0) > 0 && (counts.error ?? 0) > 0);
});

// ----------------------------------------------------------------- Without end

test("a response of more than 16 MB ends the question, with its memory bounded", async () => {
  for (const kind of everyNth(3, ["text", "arguments", "error"] as const)) {
    const server = http.createServer((_, response) => {
      const isError = kind === "error";
      response.writeHead(isError ? 400 : 200, { "content-type": "text/event-stream" });
      const part = { content: "x".repeat(256 * 1024) };
      const call_ = { index: 0, function: { arguments: '"'.padEnd(256 * 1024, "x") } };
      const first = { index: 0, id: "c", function: { name: "read_file", arguments: '{"path":' } };
      const send = (delta: object) =>
        response.write(isError ? "x".repeat(65_536) : `data: ${JSON.stringify(chunk(delta))}\n\n`);
      if (kind === "arguments") send({ tool_calls: [first] });
      const more = () => {
        while (!response.destroyed && send(kind === "text" ? part : { tool_calls: [call_] }));
      };
      response.on("drain", more);
      more();
    });
    server.listen(0, "127.0.0.1");
    await once(server, "listening");
    const url = `http://127.0.0.1:${(server.address() as AddressInfo).port}/v1`;
    const args = ["-m", "some-model", "--base-url", url, "--no-session", "-q", DIR, "what?"];
    const { code, stderr } = await runHere(args, { env: { MINI_PI_RETRY_MS: "1" } });
    server.close().closeAllConnections();
    assert.equal(code, 1, kind);
    assert.match(stderr, /16 MB/, kind);
  }
  assert.ok(process.memoryUsage().rss < 900 * 1024 ** 2);
});

test("pictures count in the room of a turn", async () => {
  const agent = await agentWith(
    Object.fromEntries(Array.from({ length: 5 }, (_, i) => [`${i}.png`, png(2, 2, 2_900_000)])),
  );
  await using server = await startModelServer([
    answer(Array.from({ length: 5 }, (_, i) => call("read_file", { path: `${i}.png` }))),
    answer("Black."),
  ]);
  const args = to(server, "--no-session", agent.root, "what is in them?");
  assert.equal((await runHere(args, { env: keyed })).code, 0);
  const sent = JSON.stringify(server.requests[1]?.body ?? "").length;
  assert.ok(sent > 3_000_000 && sent < 10_000_000, `${sent} bytes`);
});

// ----------------------------------------------------------------- What the user hides

test("what the user hides is listed, but neither read, searched nor cited", async () => {
  const agent = await agentWith({
    "a.ts": "needle\n",
    "notes/plan.md": "needle\n",
    "dump.sql": "needle\n",
    "deep/er/dump.sql": "needle\n",
    "x,y.txt": "needle\n",
  });
  const look = answer([
    call("read_file", { path: "notes/plan.md" }),
    call("search_files", { pattern: "needle", context: 2 }),
    call("search_files", { pattern: "needle", path: "notes" }),
    call("search_files", { pattern: "needle", glob: "*.sql" }),
    call("list_files", {}),
  ]);
  await using server = await startModelServer([
    look,
    answer("See notes/plan.md:1."),
    answer("So."),
  ]);
  const hide = ["--hide", "notes", "--hide", "x,y.txt"];
  const args = to(server, "--no-session", ...hide, agent.root, "what is it?");
  await runHere(args, { env: { ...keyed, MINI_PI_HIDE: "*.sql,*.none" } });
  const [plan = "", all = "", ...others] = server.requests[1]
    ? results(server.requests[1]).map((r) => r.text)
    : [];
  assert.match(plan, /neither read nor searched/);
  assert.match(all, /^a\.ts\n1: needle\n\[left out.*: deep, notes, dump\.sql, x,y\.txt\]$/);
  assert.doesNotMatch([plan, all, ...others].join("\n"), /(plan|sql|y\.txt)\n1: needle/);
  assert.match(others.at(-1) ?? "", /^notes\/ \(1 entries\)\n[\s\S]*^dump\.sql \(7 bytes, secret/m);
  const again = JSON.stringify(server.requests[2]?.body);
  assert.match(again, /notes\/plan\.md:1: notes\/plan\.md holds secrets/);
});

// ----------------------------------------------------------------- Odd directories

const onLinux = { skip: process.platform === "linux" ? false : "there is no /proc" };

test(
  "in /proc, whose files say that they are empty, no secret of a process is read",
  onLinux,
  async () => {
    const paths = { "/": `proc/${process.pid}`, "/proc": `${process.pid}`, "/proc/self": "." };
    for (const [root, place] of Object.entries(paths)) {
      const agent = await agentAt(root);
      for (const name of ["environ", "mem", "cmdline", "auxv"]) {
        const { text, isError } = await read(agent, `${place}/${name}`);
        assert.ok(isError, `${root} ${name}: ${text}`);
        if (!name.startsWith("task")) assert.match(text, /neither read nor searched/);
      }
      assert.match((await read(agent, `${place}/status`)).text, /\n1\tName:/);
      const { text } = await search(agent, "KEY", { path: `${place}/environ` });
      assert.match(text, /neither read nor searched/);
    }
  },
);

test("the bound of a page holds for a path of control characters, too", async () => {
  const deep = Array.from({ length: 15 }, () => "\x01".repeat(200)).join("/");
  const agent = await agentWith({ [`${deep}/a.txt`]: "a line of words\n".repeat(9000) });
  const { text } = await read(agent, `${deep}/a.txt`);
  assert.match(text, /\n1\ta line of words\n/);
  assert.ok(Buffer.byteLength(text) < 34 * 1024, `${Buffer.byteLength(text)} bytes`);
});

test("no variable of the environment decides which ripgrep runs, or what the shell does before", async () => {
  const marker = path.join(temporary(), "ran");
  const env = {
    npm_config_arch: "nothing",
    BASH_ENV: marker,
    ENV: marker,
    "BASH_FUNC_ulimit%%": `() { touch ${marker}; }`,
    RIPGREP_CONFIG_PATH: marker,
  };
  const { code, stdout } = await runCli(["--no-session", DIR, "where is answer defined?"], { env });
  assert.equal(code, 0);
  assert.match(stdout, /a\.ts:1/);
  assert.ok(!existsSync(marker));
});
