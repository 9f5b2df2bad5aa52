// The dialects of the servers that people run themselves: what each tells of its models, and the ways
// in which it strays from OpenAI's API. One real server on loopback speaks them all.

import assert from "node:assert/strict";
import { once } from "node:events";
import * as http from "node:http";
import type { AddressInfo } from "node:net";
import { text as textOf } from "node:stream/consumers";
import { after, test } from "node:test";
import * as ai from "@earendil-works/pi-ai";
import { createAgent, findModel, trimContext } from "../mini-pi.ts";
import { temporary, write } from "./fixtures.ts";
import { type HereOptions, runHere } from "./run-cli.ts";

const DIR = temporary();
write(DIR, { "a.ts": "export const answer = 42;\n" });

type Handler = (body: string, request: http.IncomingMessage) => Sent;
type Sent = { status?: number; type?: string; headers?: object; body?: unknown } | undefined;
type Places = { [place: string]: Handler };

const json = (body: unknown, status = 200): Sent => ({ status, body });
const models =
  (...data: object[]): Handler =>
  () =>
    json({ data });
const finish = (finish_reason: string) => ({ choices: [{ index: 0, delta: {}, finish_reason }] });
const stream = (...events: object[]): Sent => ({
  type: "text/event-stream",
  body: [...events, "[DONE]"]
    .map((event) => `data: ${typeof event === "string" ? event : JSON.stringify(event)}\n\n`)
    .join(""),
});
const say = (content: string, usage = {}) =>
  stream({ choices: [{ index: 0, delta: { content } }] }, { ...finish("stop"), usage });

/** Serves these places, and keeps the requests for replies. */
async function serve(places: Places) {
  const asked: { url: string; headers: http.IncomingHttpHeaders; body: Asked }[] = [];
  const server = http.createServer(async (request, response) => {
    const body = await textOf(request);
    const url = `${request.url}`;
    if (url.endsWith("/chat/completions") && places[url])
      asked.push({ url, headers: request.headers, body: JSON.parse(body) });
    const sent = places[url]?.(body, request) ?? json({ error: "Unexpected endpoint" }, 404);
    const { status = 200, type = "application/json", headers, body: said } = sent ?? { body: "" };
    response.writeHead(status, { "content-type": type, ...headers });
    response.end(typeof said === "string" ? said : JSON.stringify(said));
  });
  server.listen(0, "127.0.0.1");
  await once(server, "listening");
  after(() => server.close().closeAllConnections());
  return { host: `127.0.0.1:${(server.address() as AddressInfo).port}`, asked };
}
type Asked = { model: string; max_tokens: number; messages: { role: string; content: unknown }[] };

const CHAT = "/v1/chat/completions";
const ask = (host: string, args: string[], options: HereOptions = {}) =>
  runHere(["--base-url", `http://${host}/v1`, "--no-session", ...args, DIR, "what is it?"], {
    ...options,
    env: { MINI_PI_RETRY_MS: "1", ...options.env },
  });

const WINDOWS: { [server: string]: [tokens: number, places: Places] } = {
  "vLLM and SGLang": [131_072, { "/v1/models": models({ id: "m", max_model_len: 131_072 }) }],
  "llama.cpp": [8192, { "/v1/models": models({ id: "m", meta: { n_ctx: 8192 } }) }],
  "LM Studio": [
    16_384,
    {
      "/v1/models": models({ id: "m" }),
      "/api/v0/models": models({ id: "m", loaded_context_length: 16_384 }),
    },
  ],
  Ollama: [
    4096,
    {
      "/v1/models": models({ id: "m" }),
      "/api/ps": () => json({ models: [{ name: "m", model: "m", context_length: 4096 }] }),
    },
  ],
  "llama.cpp that tells it of itself": [
    16_384,
    {
      "/v1/models": models({ id: "m" }),
      "/props": () => json({ default_generation_settings: { n_ctx: 16_384 } }),
    },
  ],
  "Ollama, not loaded yet": [
    8192,
    {
      "/v1/models": models({ id: "m:latest" }),
      "/api/ps": () => json({ models: [] }),
      "/api/show": (body) =>
        JSON.parse(body).model === "m:latest"
          ? json({ parameters: "stop x\nnum_ctx 8192", model_info: { "a.context_length": 9 } })
          : json({ error: "no such model" }, 404),
    },
  ],
  "Ollama, with the window it was trained with": [
    40_960,
    {
      "/v1/models": models({ id: "m" }),
      "/api/ps": () => json({ models: [] }),
      "/api/show": () => json({ model_info: { "qwen3.context_length": 40_960 } }),
    },
  ],
  "a server that does not tell": [32_768, { "/v1/models": models({ id: "m" }) }],
  "a server that tells nonsense": [
    32_768,
    { "/v1/models": models({ id: { toString: 1 } }, { id: "m", max_model_len: { toString: 1 } }) },
  ],
  "a server that lists nothing": [32_768, {}],
};
for (const [server, [tokens, places]] of Object.entries(WINDOWS))
  test(`the window of a model of ${server} is taken, and its replies fit in`, async () => {
    const { host, asked } = await serve({ ...places, [CHAT]: () => say("So.") });
    const { model } = await findModel("m", `http://${host}/v1`);
    assert.equal(model.contextWindow, tokens);
    const { code, stdout, stderr } = await ask(host, ["-m", "m"]);
    assert.deepEqual([code, stdout], [0, "So.\n"], stderr);
    assert.ok((asked[0]?.body.max_tokens ?? 0) <= tokens / 4, `${asked[0]?.body.max_tokens}`);
    const given = await ask(host, ["-m", "m", "--context", "2000"]);
    assert.equal(given.code, 0);
    assert.ok((asked[1]?.body.max_tokens ?? 0) < 2000);
  });

test("a server that reads less than was sent is named, with what to raise", async () => {
  const { host } = await serve({ [CHAT]: () => say("So.", { prompt_tokens: 3 }) });
  const long = "word ".repeat(2000);
  const args = ["--base-url", `http://${host}/v1`, "--no-session", "-m", "m", DIR, long];
  const { code, stderr } = await runHere(args);
  assert.equal(code, 0);
  assert.match(stderr, /the server read 3 tokens of about \d+.*num_ctx/);
});

test("the only model of a server needs no name; of several, they are named", async () => {
  const one = await serve({ "/v1/models": models({ id: "only" }), [CHAT]: () => say("So.") });
  assert.equal((await ask(one.host, [])).stdout, "So.\n");
  assert.equal(one.asked[0]?.body.model, "only");
  const two = await serve({
    "/v1/models": models({ id: "big" }, { id: "small:latest" }),
    [CHAT]: () => say("So."),
  });
  const none = await ask(two.host, []);
  assert.equal(none.code, 2);
  assert.match(none.stderr, /--model: it has big, small:latest/);
  const wrong = await ask(two.host, ["-m", "claude-sonnet-99"]);
  assert.equal(wrong.code, 2);
  assert.match(wrong.stderr, /the server has no model claude-sonnet-99: it has big, small:latest/);
  assert.equal((await ask(two.host, ["-m", "small"])).code, 0);
  assert.equal(two.asked[0]?.body.model, "small:latest");
});

test("a name that neither a catalogue nor the server confirms is told", async () => {
  const { host } = await serve({ [CHAT]: () => say("So.") });
  const { stderr } = await ask(host, ["-m", "claude-sonnet-99"]);
  assert.match(stderr, /No catalogue has claude-sonnet-99/);
});

test("--list-models with a base URL lists the models of the server", async () => {
  const { host } = await serve({
    "/v1/models": models({ id: "big", max_model_len: 9 }, { id: "small" }),
  });
  const list = (...args: string[]) =>
    runHere(["--base-url", `http://${host}/v1`, "--list-models", ...args]);
  assert.equal((await list()).stdout, "big  9 tokens\nsmall\n");
  assert.equal((await list("sm")).stdout, "small\n");
});

test("an address without /v1 is taken with it, which is told", async () => {
  const { host, asked } = await serve({
    "/v1/models": models({ id: "m" }),
    [CHAT]: () => say("So."),
  });
  const args = ["--base-url", `http://${host}/`, "--no-session", DIR, "what?"];
  const { stdout, stderr } = await runHere(args);
  assert.equal(stdout, "So.\n");
  assert.match(stderr, /The server speaks at http:\/\/127\.0\.0\.1:\d+\/v1/);
  assert.equal(asked[0]?.url, CHAT);
});

test("a password in the address is sent as a header, and never shown", async () => {
  let seen: string | undefined;
  const { host, asked } = await serve({
    "/v1/models": (_, { headers }) => {
      seen = headers.authorization;
      return json({ data: [{ id: "m" }] });
    },
    [CHAT]: () => json({ error: { message: "no such user" } }, 401),
  });
  const url = `http://user:se%20cret@${host}/v1`;
  const { code, stderr } = await runHere(["--base-url", url, "--no-session", DIR, "what?"]);
  const basic = `Basic ${Buffer.from("user:se cret").toString("base64")}`;
  assert.deepEqual([code, seen, asked[0]?.headers.authorization], [1, basic, basic]);
  assert.doesNotMatch(stderr, /se.{0,3}cret/);
  const broken = `http://%ff%zz:secret@${host}/v1`;
  assert.equal((await runHere(["--base-url", broken, "--no-session", DIR, "what?"])).code, 1);
  const odd = await runHere(["--base-url", "ftp://user:secret@host", DIR, "what?"]);
  assert.equal(odd.code, 2);
  assert.doesNotMatch(odd.stderr, /secret/);
});

const message = { role: "assistant", content: "It is a.ts:1." };
const REPLIES: { [what: string]: [Handler, code: number, stdout: string, stderr: RegExp] } = {
  "a whole completion": [
    () =>
      json({
        choices: [{ index: 0, message, finish_reason: "stop" }],
        usage: { prompt_tokens: 5 },
      }),
    0,
    "It is a.ts:1.\n",
    /sources: 0 seen; a\.ts:1: never shown/,
  ],
  "an error with status 200": [
    () => json({ error: "Unexpected endpoint" }),
    1,
    "",
    /^mini-pi: .*Unexpected endpoint/m,
  ],
  "a page with status 200": [
    () => ({ type: "text/html", body: "<html><h1>Welcome to nginx" }),
    1,
    "",
    /^mini-pi: .*a page: +Welcome to nginx/m,
  ],
};
for (const [what, [handler, code, stdout, stderr]] of Object.entries(REPLIES))
  test(`${what} takes one request, and is an answer or told as it is`, async () => {
    const { host, asked } = await serve({ [CHAT]: handler });
    const result = await ask(host, ["-m", "m"]);
    assert.deepEqual([result.code, result.stdout, asked.length], [code, stdout, 1], result.stderr);
    assert.match(result.stderr, stderr);
  });

test("a whole completion with calls has them run", async () => {
  const call = (id: string) => ({
    id,
    type: "function",
    function: { name: "read_file", arguments: '{"path":"a.ts"}' },
  });
  let n = 0;
  const { host, asked } = await serve({
    [CHAT]: () =>
      n++ > 0
        ? say("So.")
        : json({
            choices: [
              {
                message: { content: null, tool_calls: [call("1"), call("2")] },
                finish_reason: "tool_calls",
              },
            ],
          }),
  });
  assert.equal((await ask(host, ["-m", "m"])).stdout, "So.\n");
  const roles = asked[1]?.body.messages.map(({ role }) => role);
  assert.deepEqual(roles, ["system", "user", "assistant", "tool", "tool"]);
});

const call = (index: number, id: string | undefined, path: string) => ({
  ...(id && { id }),
  index,
  type: "function",
  function: { name: "read_file", arguments: JSON.stringify({ path }) },
});
const CALLS: { [shape: string]: object[] } = {
  "with arguments that are an object": [
    { ...call(0, "a", ""), function: { name: "read_file", arguments: { path: "a.ts" } } },
    { ...call(1, "b", ""), function: { name: "read_file", arguments: { path: "b.ts" } } },
  ],
  "with one id": [call(0, "same", "a.ts"), call(1, "same", "b.ts")],
  "with one index": [call(0, "a", "a.ts"), call(0, "b", "b.ts")],
  "with one index and pieces": [
    call(0, "a", "a.ts"),
    { ...call(0, "b", ""), function: { name: "read_file", arguments: '{"path":' } },
    { index: 0, function: { arguments: '"b.ts"}' } },
  ],
  "without ids": [call(0, undefined, "a.ts"), call(1, undefined, "b.ts")],
};
for (const [shape, calls] of Object.entries(CALLS))
  for (const isWhole of [false, true])
    test(`two calls ${shape} are two calls, ${isWhole ? "in one piece" : "one after the other"}`, async () => {
      const delta = (tool_calls: object[]) => ({ choices: [{ index: 0, delta: { tool_calls } }] });
      const chunks = isWhole ? [delta(calls)] : calls.map((one) => delta([one]));
      let n = 0;
      const { host, asked } = await serve({
        [CHAT]: () => (n++ > 0 ? say("So.") : stream(...chunks, finish("tool_calls"))),
      });
      assert.equal((await ask(host, ["-m", "m"])).stdout, "So.\n");
      const sent = asked[1]?.body.messages.filter(({ role }) => role === "tool") ?? [];
      assert.match(`${sent[0]?.content}`, /answer = 42/);
      assert.match(`${sent[1]?.content}`, /b\.ts does not exist/);
      assert.equal(sent.length, 2);
    });

test("a refusal is shown, and is no answer", async () => {
  const refusal = { choices: [{ index: 0, delta: { refusal: "I will not." } }] };
  const { host, asked } = await serve({ [CHAT]: () => stream(refusal, finish("stop")) });
  const { code, stdout, stderr } = await ask(host, ["-m", "m"]);
  assert.deepEqual([code, stdout, asked.length], [3, "I will not.\n", 1], stderr);
});

test("a status inside of a stream decides about another try", async () => {
  for (const [code, tries] of [
    [502, 2],
    [400, 1],
  ] as const) {
    const error = { message: "Something is odd.", code };
    let n = 0;
    const { host, asked } = await serve({
      [CHAT]: () => (n++ > 0 ? say("So.") : stream({ id: "x", error, choices: [] })),
    });
    const { stderr } = await ask(host, ["-m", "m"]);
    assert.equal(asked.length, tries, stderr);
    assert.match(stderr, new RegExp(`${code}: Something is odd`));
  }
});

test("a redirect is not followed, and says where to", async () => {
  const to = { location: "https://login.example/" };
  const { host, asked } = await serve({ [CHAT]: () => ({ status: 302, headers: to, body: "" }) });
  const { code, stderr } = await ask(host, ["-m", "m"]);
  assert.deepEqual([code, asked.length], [1, 1]);
  assert.match(stderr, /redirect to https:\/\/login\.example\//);
});

test("what the user says after a result comes to a strict template after a reply", async () => {
  const { model, stream: ask_ } = await findModel("m", "http://127.0.0.1:9/v1");
  const agent = await createAgent(DIR, { model, stream: ask_, keyName: "" });
  const now = { timestamp: 0 };
  const calls = ai.fauxAssistantMessage(ai.fauxToolCall("list_files", {}, { id: "c" }));
  const content = [{ type: "text" as const, text: "a.ts" }];
  const result = { toolCallId: "c", toolName: "list_files", content, isError: false, ...now };
  agent.messages = [
    { role: "user", content: "what?", ...now },
    calls,
    { role: "toolResult", ...result },
    { role: "user", content: "and why?", ...now },
  ];
  const roles = trimContext(agent).map(({ role }) => role);
  assert.deepEqual(roles, ["user", "assistant", "toolResult", "assistant", "user"]);
});

test("a template that demands alternating roles gets them, whatever was said", async () => {
  let requests = 0;
  const strict: Handler = (body) => {
    const { messages, tool_choice }: Asked & { tool_choice: string } = JSON.parse(body);
    const roles = messages.map(({ role }) => role).filter((role) => role !== "system");
    const odd = roles.findIndex(
      (role, i) => role === "user" && i > 0 && roles[i - 1] !== "assistant",
    );
    if (odd >= 0) return json({ error: { message: `roles must alternate: ${roles}` } }, 400);
    if (tool_choice === "none") return say("As far as I know.");
    const tool_calls = [
      {
        index: 0,
        id: `c${roles.length}`,
        type: "function",
        function: { name: "list_files", arguments: JSON.stringify({ glob: `*${roles.length}` }) },
      },
    ];
    if (requests++ === 0) return say("");
    return stream({ choices: [{ index: 0, delta: { tool_calls } }] }, finish("tool_calls"));
  };
  const { host, asked } = await serve({ [CHAT]: strict });
  const { code, stdout, stderr } = await ask(host, ["-m", "m", "--max-turns", "3"]);
  assert.deepEqual(
    [code, stdout],
    [3, "As far as I know.\n"],
    `${stderr}${JSON.stringify(asked.at(-1)?.body.messages)}`,
  );
});

test("a wait that stands only in the text of an error is honoured", async () => {
  let n = 0;
  const { host } = await serve({
    [CHAT]: () =>
      n++ > 0
        ? say("So.")
        : json({ error: { message: "Rate limit reached: try again in 50ms" } }, 429),
  });
  const { code, stderr } = await ask(host, ["-m", "m"], { env: { MINI_PI_RETRY_MS: "60000" } });
  assert.equal(code, 0, stderr);
});

test("a wait that stands in a header of the server's own is honoured", async () => {
  const headers = [{ "x-ratelimit-reset": "0.05" }, { "x-ratelimit-reset": `${Date.now() + 100}` }];
  for (const told of [...headers, { "retry-after-ms": "50" }]) {
    let n = 0;
    const { host } = await serve({
      [CHAT]: () =>
        n++ > 0 ? say("So.") : { ...json({ error: { message: "slow" } }, 429), headers: told },
    });
    const { code, stderr } = await ask(host, ["-m", "m"], { env: { MINI_PI_RETRY_MS: "60000" } });
    assert.equal(code, 0, stderr);
  }
});

test("a model without a price has no cost that is known, and no limit on it", async () => {
  const { host } = await serve({
    [CHAT]: () => say("So.", { prompt_tokens: 100, completion_tokens: 5 }),
  });
  assert.match((await ask(host, ["-m", "m"])).stderr, /cost unknown/);
  const limited = await ask(host, ["-m", "m", "--max-cost", "1"]);
  assert.equal(limited.code, 2);
  assert.match(limited.stderr, /--max-cost.*local\/m has no known price/);
});

test("a level of thinking that was asked for reaches the template, and none is sent otherwise", async () => {
  const { host, asked } = await serve({ [CHAT]: () => say("So.") });
  for (const level of [[], ["--thinking", "off"], ["--thinking", "high"]])
    assert.equal((await ask(host, ["-m", "m", ...level])).code, 0);
  const told = asked.map(({ body }) => Object(body).chat_template_kwargs?.enable_thinking);
  assert.deepEqual(told, [undefined, false, true]);
});

test("in a conversation, too, a name that nobody confirms is told", async () => {
  const { host } = await serve({ [CHAT]: () => say("So.") });
  const args = ["--base-url", `http://${host}/v1`, "-m", "m", "--no-session", DIR];
  const input = "/model claude-sonnet-99\n";
  const { code, stdout } = await runHere(args, { input, terminal: true });
  assert.equal(code, 0);
  assert.match(
    stdout,
    /No catalogue has claude-sonnet-99[\s\S]*local\/claude-sonnet-99, 0 messages/,
  );
});
