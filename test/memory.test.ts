// What is left over: nothing but the messages, after many turns and long answers. And what is sent: each
// request begins with the bytes of the one before, so that the provider's cache holds.

import assert from "node:assert/strict";
import { getEventListeners } from "node:events";
import path from "node:path";
import { test } from "node:test";
import { setFlagsFromString } from "node:v8";
import { runInNewContext } from "node:vm";
import {
  createModels,
  fauxAssistantMessage,
  fauxProvider,
  fauxToolCall,
  type ToolCall,
} from "@earendil-works/pi-ai";
import { type Agent, createAgent, findModel, runAgent, saveSession, showText } from "../mini-pi.ts";
import { everyNth, isLong, temporary, write } from "./fixtures.ts";
import {
  call,
  isPrefix,
  type ModelRequest,
  reply,
  startModelServer,
  text,
} from "./model-server.ts";
import { atServer, MODEL, runHere } from "./run-cli.ts";

setFlagsFromString("--expose-gc");
const collectGarbage: () => void = runInNewContext("gc");
const MB = 1024 ** 2;
const KEY = { ANTHROPIC_API_KEY: "sk-none" };

function heap(): number {
  collectGarbage();
  return process.memoryUsage().heapUsed / MB;
}

/** An agent whose model makes these calls, a turn each, and then answers. */
async function agentThatCalls(calls: ToolCall[], given: Partial<Agent> = {}): Promise<Agent> {
  const root = temporary();
  write(root, { "a.ts": `${"x".repeat(39)}\n`.repeat(4400), "b.ts": "const needle = 1;\n" });
  const faux = fauxProvider();
  faux.setResponses([
    ...calls.map((one) => fauxAssistantMessage([one], { stopReason: "toolUse" })),
    fauxAssistantMessage("It is in b.ts:1."),
  ]);
  const models = createModels();
  models.setProvider(faux.provider);
  const stream: Agent["stream"] = (...request) => models.streamSimple(...request);
  return createAgent(root, { ...{ model: faux.getModel(), stream, keyName: "" }, ...given });
}

/** Each tenth call is a search, as a search takes twenty times as long as a page. */
const look = (i: number) =>
  i % 10
    ? fauxToolCall("read_file", { path: "a.ts", offset: 1 + 40 * i })
    : fauxToolCall("search_files", { pattern: `needle|${i}` });

test("fifty turns leave nothing behind but their messages: no memory, and no listener", async (t) => {
  const warnings: Error[] = [];
  process.on("warning", (warning) => warnings.push(warning));
  const { signal } = new AbortController();
  const limits = { turns: 100, ms: 60_000, cost: Number.POSITIVE_INFINITY };
  const run = async (turns: number) => {
    const calls = Array.from({ length: turns }, (_, i) => look(i));
    const agent = await agentThatCalls(calls, { signal, limits });
    const { ended, turns: made } = await runAgent(agent, "Where is the needle?");
    assert.deepEqual([ended, made], ["answered", turns + 1]);
  };
  await run(10);
  const before = heap();
  for (let i = 0; i < 4; i++) await run(50);
  // A page left behind by each would be 3 MB. What a call's time limit holds goes after 31 s.
  t.diagnostic(`${(heap() - before).toFixed(2)} MB`);
  assert.ok(heap() - before < 3, `${(heap() - before).toFixed(2)} MB more after 200 turns`);
  assert.equal(getEventListeners(signal, "abort").length, 0);
  assert.deepEqual(warnings, []);
});

test("in fifty turns, memory grows by what is in the messages, and by no copy of it", async () => {
  const used: number[] = [];
  let turns = 0;
  const calls = Array.from({ length: 50 }, (_, i) => look(2 * i + 1));
  const agent = await agentThatCalls(calls, {
    emit: ({ type }) => {
      if (type === "turn_end" && ++turns % 40 === 10) used.push(heap());
    },
  });
  await runAgent(agent, "Where is the needle?");
  const kept = Buffer.byteLength(JSON.stringify(agent.messages.slice(22))) / MB;
  const [before = Number.NaN, after = Number.NaN] = used;
  const grown = after - before;
  assert.ok(grown < kept + 1, `${grown.toFixed(2)} MB for ${kept.toFixed(2)} MB of messages`);
});

test("a long answer costs its length, however small its pieces: no piece copies what came before", async () => {
  let length = 0;
  const emit = showText((text) => (length += text.length));
  const usage = fauxAssistantMessage("").usage;
  const partial = fauxAssistantMessage("");
  const start = performance.now();
  emit({ type: "agent_start" });
  for (let i = 0; i < 100_000; i++) {
    const delta = "a piece of the answer\n";
    const update = { type: "text_delta", contentIndex: 0, delta, partial } as const;
    emit({ type: "message_update", usage, assistantMessageEvent: update });
  }
  assert.equal(length, 2_200_000);
  // It would take minutes if each piece were compared with all before it.
  assert.ok(performance.now() - start < 20_000, `${performance.now() - start} ms`);
});

test("an answer in thousands of pieces arrives whole, as text and as events", async () => {
  const count = isLong ? 20_000 : 4000;
  const pieces = Array.from({ length: count }, (_, i) => `${i} `.padEnd(49, "x").concat("\n"));
  for (const args of everyNth(2, [["--json"], []])) {
    await using server = await startModelServer([reply([text(pieces)])]);
    const root = temporary();
    const all = [...atServer(server), ...args, root, "what?"];
    const { code, stdout } = await runHere(all, { env: KEY });
    assert.equal(code, 0);
    if (args.length === 0) assert.equal(stdout, `${pieces.join("").trim()}\n`);
    else assert.equal(JSON.parse(stdout.split("\n").at(-2) ?? "").answer, pieces.join("").trim());
  }
});

// ─── The provider's cache ──────────────────────────────────────────────────────────────────────

const TURNS = Array.from({ length: isLong ? 12 : 3 }, (_, i) => {
  const page = call("read_file", { path: "a.ts", offset: 1 + 300 * i, limit: 300 });
  return reply([page, call("search_files", { pattern: `needle|${i}` })]);
});

/** What each API is sent in two questions, the second by a process that resumes the session. */
async function requestsOf(api: "anthropic" | "openai"): Promise<ModelRequest[]> {
  const root = temporary();
  write(root, { "a.ts": "a line of text\n".repeat(5000), "b.ts": "const needle = 1;\n" });
  const file = path.join(temporary(), "session.jsonl");
  const answer = reply("It is in b.ts:1.");
  await using server = await startModelServer([...TURNS, answer, ...TURNS, answer]);
  for (const question of ["where?", "and why?"]) {
    const choice = await (api === "anthropic"
      ? findModel(MODEL, server.url)
      : findModel("local-model", server.openaiUrl));
    const agent = await createAgent(root, choice);
    agent.emit = saveSession(agent, file);
    const { ended, message } = await runAgent(agent, question);
    assert.equal(ended, "answered", message);
  }
  assert.deepEqual(server.problems, []);
  return server.requests;
}

// The key of the questions that are asked in this process.
Object.assign(process.env, KEY);
const asked: { [api: string]: ReturnType<typeof requestsOf> } = {};
/** The same for every test, and nothing before there is one that wants them. */
const requests = (api: "anthropic" | "openai") => (asked[api] ??= requestsOf(api));

for (const api of ["anthropic", "openai"] as const)
  test(`each request of ${api} begins with the bytes of the one before, over turns and questions`, async () => {
    const all = await requests(api);
    assert.equal(all.length, 2 * (TURNS.length + 1));
    for (const [i, request] of all.slice(1).entries()) {
      const before = all[i];
      assert.ok(before && isPrefix(before, request), `request ${i + 2} changes what came before`);
    }
  });

test("Anthropic is told to cache: the instructions, the tools and all that was said so far", async () => {
  const isMarked = (value: unknown) => JSON.stringify(value).includes('"cache_control":{');
  for (const { body } of await requests("anthropic")) {
    const said = [body.messages].flat().filter((m) => Object(m).role === "user");
    assert.deepEqual([body.system, body.tools, said.at(-1)].map(isMarked), [true, true, true]);
    assert.ok((JSON.stringify(body).match(/"cache_control":\{/g)?.length ?? 0) <= 4, "its bound");
  }
});

test("instructions and tools are under 600 tokens at four characters each, on every wire", async () => {
  for (const api of ["anthropic", "openai"] as const) {
    const [request] = await requests(api);
    const { system, tools, messages } = request?.body ?? {};
    const instructions = system ?? [messages].flat()[0];
    const tokens = JSON.stringify([instructions, tools]).length / 4;
    assert.ok(tokens > 200 && tokens < 600, `${api}: ${tokens} tokens`);
  }
});
