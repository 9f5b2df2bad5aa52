// Proves the tools that the other tests stand on: that the scripted server says what pi-ai's real
// clients understand, that each fault is the fault it is named for, that the rules catch what they
// forbid, and that nothing outlives its test.

import assert from "node:assert/strict";
import { test } from "node:test";
import type { AssistantMessage, Context, Message } from "@earendil-works/pi-ai";
import { builtinModels } from "@earendil-works/pi-ai/providers/all";
import {
  ABSENT,
  type Api,
  type Arguments,
  call,
  contextOverflow,
  cutBefore,
  cutMiddle,
  endEarly,
  garbage,
  hugeReply,
  isPrefix,
  type JsonObject,
  keepAliveStall,
  type ModelServer,
  midStreamError,
  redacted,
  redirect,
  reply,
  results,
  type Step,
  stall,
  startModelServer,
  status,
  text,
  thinking,
  unknown,
} from "./model-server.ts";
import { runHere, startCommand, startHere } from "./run-cli.ts";

const APIS = ["anthropic", "openai"] as const;
const models = builtinModels();
const MODELS = {
  anthropic: models.getModel("anthropic", "claude-sonnet-5-5"),
  openai: models.getModel("deepseek", "deepseek-flash"),
};

const tool = { name: "read_file", description: "Reads.", parameters: { type: "object" } };
const question: Message = { role: "user", content: "What is it?", timestamp: 0 };

/** One request of pi-ai's client for the API. */
function ask(
  server: ModelServer,
  api: Api,
  messages: Message[] = [question],
  signal?: AbortSignal,
) {
  const model = MODELS[api];
  assert.ok(model);
  const baseUrl = api === "anthropic" ? server.url : server.openaiUrl;
  const context: Context = { systemPrompt: "Be brief.", messages, tools: [tool] };
  const options = { apiKey: "x", reasoning: "high", signal } as const;
  return models.streamSimple({ ...model, baseUrl }, context, options);
}

const outcome = ({ stopReason, errorMessage }: AssistantMessage) =>
  errorMessage === undefined ? stopReason : `${stopReason}: ${errorMessage}`;

const toolCalls = (message: AssistantMessage) =>
  message.content.filter((block) => block.type === "toolCall");

/** A result for each call of the message, as an agent would add it. */
const answers = (message: AssistantMessage): Message[] =>
  toolCalls(message).map(({ id, name }) => ({
    role: "toolResult",
    toolCallId: id,
    toolName: name,
    content: [{ type: "text", text: `result of ${id}` }],
    isError: false,
    timestamp: 0,
  }));

for (const api of APIS) {
  test(`a scripted conversation arrives as pi-ai's ${api} client reads it, and is valid`, async () => {
    await using server = await startModelServer([
      reply(
        [
          thinking("Look first."),
          text(["I look", " at it."]),
          call("read_file", { path: "ä/😀.ts" }, { id: "one" }),
          call("read_file", { path: "b" }),
        ],
        { usage: { input: 7, output: 5, cacheRead: 3 } },
      ),
      (request) => reply(results(request).map((result) => text(`${result.text}. `))),
    ]);
    const first = await ask(server, api).result();
    assert.equal(outcome(first), "toolUse");
    assert.deepEqual(
      first.content.map((block) => block.type),
      ["thinking", "text", "toolCall", "toolCall"],
    );
    assert.deepEqual(toolCalls(first)[0]?.arguments, { path: "ä/😀.ts" });
    const { input, output, cacheRead } = first.usage;
    assert.deepEqual({ input, output, cacheRead }, { input: 7, output: 5, cacheRead: 3 });

    const second = await ask(server, api, [question, first, ...answers(first)]).result();
    const said = second.content.map((block) => (block.type === "text" ? block.text : "")).join("");
    assert.match(said, /^result of one\. result of call_[\w-]+\. $/);
    assert.equal(outcome(second), "stop");
    assert.deepEqual(server.problems, []);
    const [one, two] = server.requests;
    assert.ok(one && two && isPrefix(one, two) && !isPrefix(two, one));
  });

  test(`thinking that comes back changed or misplaced is a problem (${api})`, async () => {
    const blocks = [thinking("A."), call("read_file"), thinking("B."), call("read_file")];
    await using server = await startModelServer([reply(blocks), reply("Done.")]);
    const first = await ask(server, api).result();
    const changed = structuredClone(first);
    const block = changed.content.find((block) => block.type === "thinking");
    assert.ok(block);
    block.thinking = "C.";
    const dropped = first.content.filter((block) => block.type !== "thinking");
    // At OpenAI reasoning has no place of its own in a message.
    const moved = api === "anthropic" ? first.content.toReversed() : dropped;
    for (const content of [changed.content, dropped, moved]) {
      const broken = { ...first, content };
      const refused = await ask(server, api, [question, broken, ...answers(broken)]).result();
      assert.match(refused.errorMessage ?? "", /does not repeat the thinking/);
    }
    const accepted = await ask(server, api, [question, first, ...answers(first)]).result();
    assert.equal(outcome(accepted), "stop");
    assert.equal(server.problems.length, 3);
  });

  test(`arguments of every odd kind reach the ${api} client as scripted`, async () => {
    const odd: Arguments[] = ["", "null", '{"path":"a', null, ABSENT, " 12 "];
    const blocks = odd.map((args, i) => call("read_file", args, { id: i === 0 ? "" : `id${i}` }));
    await using server = await startModelServer([reply(blocks, { stop: "max_tokens" })]);
    const message = await ask(server, api).result();
    assert.equal(message.stopReason, "length");
    const errors = toolCalls(message).map((item) => item.argumentsError !== undefined);
    assert.deepEqual(errors, [false, true, true, false, false, true]);
    assert.deepEqual(
      toolCalls(message).map((item) => item.id),
      ["", "id1", "id2", "id3", "id4", "id5"],
    );
  });

  const stops: [stop: string | undefined, expected: RegExp][] = [
    [undefined, /^stop$/],
    ["max_tokens", /^length$/],
    ["refusal", /^error: (.*too risky|.*content_filter)/],
    ["model_length", /^error: .*model_length/],
  ];
  for (const [stop, expected] of stops)
    test(`the stop reason ${stop} ends a reply of ${api} as ${expected}`, async () => {
      const step = reply("Hm.", { stop, explanation: "This is too risky." });
      await using server = await startModelServer([step]);
      assert.match(outcome(await ask(server, api).result()), expected);
    });

  const some = [text("Some"), call("read_file", '{"path": "a')];
  const faults: [name: string, step: Step, error: RegExp][] = [
    ["401", status(401, { message: "invalid x-api-key" }), /401.*invalid x-api-key/],
    ["529", status(529), /529.*Overloaded/],
    ["429 with html", status(429, { body: "<h1>Slow down</h1>" }), /429.*Slow down/s],
    ["context overflow", contextOverflow(), /prompt is too long|maximum context length is/],
    ["cut before the headers", cutBefore(), /Connection error/],
    ["reset before the headers", cutBefore("reset"), /Connection error.*ECONNRESET/s],
    ["cut in the middle", cutMiddle(some), /terminated/],
    ["reset in the middle", cutMiddle(some, "reset"), /terminated/],
    ["an early end", endEarly(some), /ended (before message_stop|without)/],
    ["an error event", midStreamError(some), /Overloaded/],
    ["garbage", garbage(some), /JSON|oops/],
  ];
  for (const [name, step, error] of faults)
    test(`the ${api} client sees ${name} as an error that says so`, async () => {
      await using server = await startModelServer([step]);
      const message = await ask(server, api).result();
      assert.equal(message.stopReason, "error");
      assert.match(message.errorMessage ?? "", error);
      assert.deepEqual(server.problems, []);
    });

  const stalls: [name: string, step: Step, events: string[]][] = [
    ["without headers", stall(), []],
    ["after a part", stall({ after: [text("Some")] }), ["start", "text_start", "text_delta"]],
    ["behind keep-alive comments", keepAliveStall(), ["start"]],
  ];
  for (const [name, step, events] of stalls)
    test(`a stall ${name} of ${api} lasts until the client hangs up`, async () => {
      await using server = await startModelServer([step]);
      const abort = new AbortController();
      const stream = ask(server, api, [question], abort.signal);
      const request = await server.request(1);
      if (events.length === 0) abort.abort();
      const seen: string[] = [];
      for await (const { type } of stream) if (seen.push(type) === events.length) abort.abort();
      await request.closed;
      assert.deepEqual(seen.slice(0, events.length), events);
      assert.equal((await stream.result()).stopReason, "aborted");
    });
}

test("redacted thinking, unknown blocks and blank text do no harm to a conversation", async () => {
  const blocks = [unknown("server_note", { a: 1 }), redacted("xyz"), text(""), call("read_file")];
  await using server = await startModelServer([reply(blocks), reply("Done.")]);
  const first = await ask(server, "anthropic").result();
  const second = await ask(server, "anthropic", [question, first, ...answers(first)]).result();
  assert.equal(outcome(second), "stop");
  assert.deepEqual(server.problems, []);
  const sent = server.requests[1]?.history.find(({ role }) => role === "assistant")?.content;
  assert.deepEqual(sent?.[0], { type: "redacted_thinking", data: "xyz" });
});

// ---------------------------------------------------------------------------- The rules

const user = { role: "user", content: "Hello." };
const used = (id: string) => ({ type: "tool_use", id, name: "read_file", input: {} });
const result = (id: string) => ({ type: "tool_result", tool_use_id: id, content: "text" });
const assistant = (...content: JsonObject[]) => ({ role: "assistant", content });
const answer = (...content: JsonObject[]) => ({ role: "user", content });
const called = (id: string, args = "{}") => ({
  id,
  type: "function",
  function: { name: "read_file", arguments: args },
});
const calling = (...tool_calls: JsonObject[]) => ({ role: "assistant", content: null, tool_calls });
const toolMessage = (tool_call_id: string, content = "text") => {
  return { role: "tool", tool_call_id, content };
};

const VALID: Record<Api, JsonObject[]> = {
  anthropic: [user, assistant(used("a"), used("b")), answer(result("a"), result("b"))],
  openai: [user, calling(called("a"), called("b")), toolMessage("a"), toolMessage("b")],
};

/** The server's answer to this history, by status. */
async function post(server: ModelServer, api: Api, messages: JsonObject[], more: JsonObject = {}) {
  const url =
    api === "anthropic" ? `${server.url}/v1/messages` : `${server.openaiUrl}/chat/completions`;
  const body = { model: "m", max_tokens: 10, tools: [{ name: "read_file" }], messages, ...more };
  const response = await fetch(url, { method: "POST", body: JSON.stringify(body) });
  return { status: response.status, text: await response.text() };
}

const wrong: [says: RegExp, api: Api, messages: JsonObject[], more?: JsonObject][] = [
  [/half a surrogate pair/, "openai", [{ role: "user", content: "\ud83d" }]],
  [/max_tokens/, "anthropic", [user], { max_tokens: 0 }],
  [/no tools are declared/, "anthropic", VALID.anthropic, { tools: [] }],
  [/no tools are declared/, "openai", VALID.openai, { tools: undefined }],
  [/first message/, "openai", []],
  [/first message/, "anthropic", [assistant({ type: "text", text: "Hi." }), user]],
  [/last message/, "openai", [user, { role: "assistant", content: "Hi." }]],
  [/as is the one before it/, "openai", [user, calling(called("a")), calling(called("b")), user]],
  [/no known role/, "openai", [user, { role: "model", content: "Hi." }, user]],
  [/messages.0 is empty/, "anthropic", [answer(), user]],
  [/messages.0: empty text/, "anthropic", [{ role: "user", content: " \n" }]],
  [/messages.1 is empty/, "openai", [user, { role: "assistant", content: null }, user]],
  [/empty list of tool calls/, "openai", [user, { ...calling(), content: "Hi." }, user]],
  [/empty tool_result/, "openai", [user, calling(called("a")), toolMessage("a", "")]],
  [
    /empty tool_result/,
    "anthropic",
    [user, assistant(used("a")), answer({ ...result("a"), content: [{ type: "text", text: "" }] })],
  ],
  [/without an id/, "openai", [user, calling(called("")), toolMessage("")]],
  [/uses the call id a again/, "anthropic", [...VALID.anthropic, ...VALID.anthropic.slice(1)]],
  [/uses the call id a again/, "openai", [...VALID.openai, ...VALID.openai.slice(1)]],
  [/No valid call id/, "anthropic", [user, assistant(used("a#2")), answer(result("a#2"))]],
  [
    /without a name/,
    "anthropic",
    [user, assistant({ ...used("a"), name: "" }), answer(result("a"))],
  ],
  [/input is no object/, "openai", [user, calling(called("a", '{"path":')), toolMessage("a")]],
  [/input is no object/, "openai", [user, calling(called("a", "[]")), toolMessage("a")]],
  [
    /input is no object/,
    "anthropic",
    [user, assistant({ ...used("a"), input: null }), answer(result("a"))],
  ],
  [
    /Call b has no result/,
    "anthropic",
    [user, assistant(used("a"), used("b")), answer(result("a"))],
  ],
  [/Call a has no result/, "openai", [user, calling(called("a")), user, toolMessage("a")]],
  [/Call a has no result/, "openai", [user, calling(called("a"))]],
  [/Result c has no call/, "openai", [user, toolMessage("c")]],
  [/Result a has no call/, "anthropic", [...VALID.anthropic, answer(result("a"))]],
  [/answers a call twice/, "openai", [...VALID.openai, toolMessage("b")]],
  [
    /in another order/,
    "anthropic",
    [user, assistant(used("a"), used("b")), answer(result("b"), result("a"))],
  ],
  [
    /in another order/,
    "openai",
    [user, calling(called("a"), called("b")), toolMessage("b"), toolMessage("a")],
  ],
  [
    /before a result/,
    "anthropic",
    [user, assistant(used("a")), answer({ type: "text", text: "Here:" }, result("a"))],
  ],
];

test("every history that a strict provider refuses is refused with the reason", async (t) => {
  await using server = await startModelServer([reply("Fine.")], { repeatLast: true });
  for (const api of APIS) assert.equal((await post(server, api, VALID[api])).status, 200);
  assert.deepEqual(server.problems, []);
  for (const [says, api, messages, more] of wrong)
    await t.test(`${api}: ${says}`, async () => {
      const { status, text } = await post(server, api, messages, more);
      assert.equal(status, 400);
      assert.match(text, /"error"/);
      assert.match(server.problems.splice(0).join(" "), says);
    });
});

test("a request that is no JSON or goes elsewhere is a problem", async () => {
  await using server = await startModelServer([reply("Never.")]);
  const broken = await fetch(`${server.url}/v1/messages`, { method: "POST", body: "{" });
  assert.deepEqual([broken.status, (await fetch(server.url)).status], [400, 404]);
  assert.match(server.problems.join(), /not a JSON object/);
});

// ---------------------------------------------------------------------------- The server

test("a script that is used up is a problem, unless its last step is repeated", async () => {
  await using once = await startModelServer([reply("One.")]);
  await post(once, "openai", [user]);
  assert.equal((await post(once, "openai", [user])).status, 400);
  assert.match(once.problems.join(), /Request 2 has no step/);
  once.steps.push(reply("Pushed."));
  assert.match((await post(once, "openai", [user])).text, /Pushed/);
});

test("a status carries its headers and body, and a redirect its target", async () => {
  const headers = { "retry-after": "7" };
  await using server = await startModelServer([
    status(429, { headers, body: "<h1>Slow</h1>" }),
    redirect("http://127.0.0.1:9/elsewhere"),
  ]);
  const options = { method: "POST", redirect: "manual" } as const;
  const send = () => fetch(`${server.url}/v1/messages`, { ...options, body: VALID_BODY });
  const [slow, moved] = [await send(), await send()];
  assert.equal(slow.headers.get("retry-after"), "7");
  assert.match(slow.headers.get("content-type") ?? "", /html/);
  assert.equal(moved.headers.get("location"), "http://127.0.0.1:9/elsewhere");
});
const VALID_BODY = JSON.stringify({ max_tokens: 1, messages: [user] });

test("text waits for its gate between two chunks", async () => {
  const gate = Promise.withResolvers<void>();
  await using server = await startModelServer([reply([text(["Hel", "lo"], gate.promise)])]);
  const stream = ask(server, "anthropic");
  let said = "";
  for await (const event of stream) {
    if (event.type !== "text_delta") continue;
    said += `${event.delta}|`;
    gate.resolve();
  }
  assert.equal(said, "Hel|lo|");
});

test("a huge reply arrives whole", async () => {
  await using server = await startModelServer([hugeReply(1_000_003)]);
  const [block] = (await ask(server, "openai").result()).content;
  assert.ok(block?.type === "text" && block.text.length === 1_000_003);
  assert.ok(block.text.endsWith("9012"));
});

test("close ends at once whatever is pending, and nothing keeps the process alive", async () => {
  const script = `
    import { keepAliveStall, reply, stall, startModelServer, text } from ${JSON.stringify(SERVER)};
    const slow = reply([text(["a", "b"], 600_000)]);
    const steps = [reply("Done."), stall(), keepAliveStall(), slow, () => new Promise(() => {})];
    const server = await startModelServer(steps);
    const body = ${JSON.stringify(VALID_BODY)};
    for (let n = 1; n <= steps.length; n++) {
      fetch(server.url + "/v1/messages", { method: "POST", body }).catch(() => {});
      await server.request(n);
    }
    const next = server.nextRequest();
    await server.close();
    await server.close();
    await next.catch(() => console.log("closed"));`;
  const args = ["--input-type=module", "-e", script];
  // Each pause that it leaves behind is longer than what a command may take.
  const { code, stdout, stderr } = await startCommand(process.execPath, args).done;
  assert.deepEqual([code, stdout, stderr], [0, "closed\n", ""]);
});
const SERVER = new URL("./model-server.ts", import.meta.url).href;

// ----------------------------------------------------------------------- Running commands

const node = (code: string, options = {}) => startCommand(process.execPath, ["-e", code], options);

test("a command runs without the keys of this process and in a home of its own", async () => {
  process.env.ANTHROPIC_API_KEY = "secret";
  const { stdout } = await node("console.log(JSON.stringify(process.env))", { env: { X: "1" } })
    .done;
  delete process.env.ANTHROPIC_API_KEY;
  const { PATH, HOME, XDG_STATE_HOME, X, ...others } = JSON.parse(stdout);
  assert.ok(PATH && XDG_STATE_HOME.startsWith(HOME) && HOME !== process.env.HOME && X === "1");
  assert.deepEqual(Object.keys(others), ["NODE_COMPILE_CACHE"]);
});

test("a command gets its text on stdin, an end of file, or a pipe that stays open", async () => {
  const echo =
    "process.stdin.pipe(process.stdout); process.stdin.on('end', () => console.log('.'))";
  assert.equal((await node(echo, { input: "hello" }).done).stdout, "hello.\n");
  assert.equal((await node(echo).done).stdout, ".\n");
  const open = node(echo, { input: "open" });
  open.child.stdin?.write("a");
  await open.waitFor(/a/, "stdout");
  open.child.kill();
  assert.equal((await open.done).stdout, "a");
});

test("a command that does not end is killed in time, even if its child holds the pipes", async () => {
  const args = ["-c", "sleep 2 & sleep 2"];
  const { timedOut, signal } = await startCommand("sh", args, { timeoutMs: 50 }).done;
  assert.deepEqual([timedOut, signal], [true, "SIGKILL"]);
});

test("a command that does not exist is a result, not an exception", async () => {
  const { code, stderr } = await startCommand("no-such-command", []).done;
  assert.ok(code !== 0 && /ENOENT/.test(stderr));
});

test("a test can wait for a line and send a signal", async () => {
  const cli = node("console.error('ready 7'); setInterval(() => {}, 1000)");
  assert.equal((await cli.waitFor(/ready (\d)/))[1], "7");
  assert.equal((await cli.waitFor(/ready/))[0], "ready");
  cli.child.kill("SIGTERM");
  assert.equal((await cli.done).signal, "SIGTERM");
  await assert.rejects(cli.waitFor(/never/, "stdout"), /ended without/);
});

test("runs in this process have an environment each, and leave this one's as it was", async () => {
  process.env.ANTHROPIC_API_KEY = "secret";
  const before = { ...process.env };
  const options = { cwd: "/", env: { DEEPSEEK_API_KEY: "k" } };
  const [none, some] = await Promise.all([
    runHere(["--list-models"]),
    runHere(["--list-models"], options),
  ]);
  assert.match(none.stdout, /^offline\/search .*\n$/);
  assert.match(some.stdout, /^deepseek\/[\s\S]*^offline\/search /m);
  assert.doesNotMatch(some.stdout, /^anthropic/m);
  assert.deepEqual({ ...process.env }, before);
  assert.notEqual(process.cwd(), "/");
  delete process.env.ANTHROPIC_API_KEY;
});

test("a run in this process can be watched, is given up in time, and is stopped by its exit code", async () => {
  await using server = await startModelServer([stall(), stall()]);
  const args = ["-m", "m", "--base-url", server.openaiUrl, "--no-session", ".", "q"];
  const late = await runHere(args, { timeoutMs: 300 });
  assert.deepEqual([late.code, late.timedOut], [null, true]);
  const run = startHere(args);
  await server.nextRequest();
  run.stop(143);
  const { code, stdout, stderr } = await run.done;
  assert.deepEqual([code, stdout], [143, ""]);
  assert.match(stderr, /^mini-pi: /);
  await assert.rejects(run.waitFor(/never/), /ended without/);
});
