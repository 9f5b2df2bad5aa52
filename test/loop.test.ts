// The loop, with pi-ai's faux provider in the place of a model: how each ending of a reply is taken,
// what becomes of calls that fail, and that the history is valid before every request and at the end.
//
// In reading order: endings, calls, limits, repeated calls, what is said meanwhile, trimming, helpers.

import assert from "node:assert/strict";
import { once } from "node:events";
import { mkdtempSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { after, describe, test } from "node:test";
import {
  type AssistantMessage,
  createModels,
  type FauxResponseStep,
  fauxAssistantMessage,
  fauxProvider,
  fauxText,
  fauxThinking,
  fauxToolCall,
  type JsonObject,
  type Message,
  type ToolCall,
  type ToolChoice,
} from "@earendil-works/pi-ai";
import { estimateContextTokens } from "@earendil-works/pi-ai/utils/estimate";
import { Type } from "typebox";
import {
  type Agent,
  type AgentEvent,
  type AgentTool,
  createAgent,
  type Outcome,
  runAgent,
  trimContext,
} from "../mini-pi.ts";

const DIRECTORY = directoryToAskAbout();

// ------------------------------------------------------------------------------- Endings

test("A reply that ends with stop is the answer", async () => {
  const { outcome, requests, agent } = await ask(["It is there."]);
  assert.deepEqual(ending(outcome), ["answered", "", "It is there."]);
  assert.equal(outcome.turns, 1);
  assert.deepEqual(shape(agent.messages), ["user What is it?", "assistant It is there."]);
  assert.deepEqual(shape(requests[0]?.messages), ["user What is it?"]);
});

test("A reply that ends with toolUse has its calls run, and their results sent", async () => {
  const { outcome, requests, agent } = await ask([calls(read("a.ts")), "It is there."]);
  assert.deepEqual(ending(outcome), ["answered", "", "It is there."]);
  const expected = ["user What is it?", "assistant read_file", "toolResult a.ts (2 lines)"];
  assert.deepEqual(shape(requests[1]?.messages), expected);
  assert.deepEqual(shape(agent.messages), [...expected, "assistant It is there."]);
});

test("Events tell the whole run in order, each result before the turn ends", async () => {
  const { events } = await ask([calls(read("a.ts")), "It is there."]);
  const told = events.filter(({ type }) => type !== "message_update").map(({ type }) => type);
  assert.deepEqual(told, [
    ...["agent_start", "turn_start", "message_start", "message_end"],
    ...["message_start", "message_end", "tool_execution_start", "tool_execution_end"],
    ...["message_start", "message_end", "turn_end"],
    ...["turn_start", "message_start", "message_end", "turn_end", "agent_end"],
  ]);
});

test("A reply that ends with length is gone on with, and its parts are one answer", async () => {
  const { outcome, requests } = await ask([cutOff("The qui"), cutOff("ck brown f"), "ox."]);
  assert.deepEqual(ending(outcome), ["answered", "", "The quick brown fox."]);
  assert.match(shape(requests[1]?.messages).at(-1) ?? "", /^user .*cut off.*Go on/);
});

test("A part that was cut off stays in the answer, also where a limit ends it", async () => {
  const steps = [cutOff("The quick "), "brown fox."];
  const { outcome } = await ask(steps, { limits: limits({ turns: 1 }) });
  assert.deepEqual([outcome.ended, outcome.answer], ["limit", "The quick brown fox."]);
});

test("A reply that ends with length for the fourth time is an answer that is cut off", async () => {
  const { outcome, requests } = await ask(["1", "2", "3", "4", "5"].map((part) => cutOff(part)));
  assert.equal(requests.length, 4);
  assert.deepEqual([outcome.ended, outcome.answer], ["incomplete", "1234"]);
  assert.match(outcome.message, /cut off/);
});

test("A reply that ends with length has its calls refused, and can make them again", async () => {
  const { tool, runs } = counted();
  const steps = [cutOff(fauxToolCall("count", {})), calls(fauxToolCall("count", {})), "Done."];
  const { outcome, requests } = await ask(steps, { tools: [tool] });
  assert.match(shape(requests[1]?.messages).at(-1) ?? "", /^toolResult Not run: .*cut off/);
  assert.match(shape(requests[2]?.messages).at(-1) ?? "", /^toolResult run 1/);
  assert.deepEqual([runs(), outcome.answer], [1, "Done."]);
});

test("A reply that ends with aborted keeps what came, and has its calls not run", async () => {
  const stop = new AbortController();
  const { tool, runs } = counted();
  const emit = (event: AgentEvent) => {
    const isCall =
      event.type === "message_update" && /^toolcall/.test(event.assistantMessageEvent.type);
    if (isCall) stop.abort(new Error("Stopped."));
  };
  const given = { tools: [tool], signal: stop.signal, emit, tokensPerSecond: 1000 };
  const reply = fauxAssistantMessage([fauxText("Half an ans"), fauxToolCall("count", {})]);
  const { outcome } = await ask([reply], given);
  assert.deepEqual(ending(outcome), ["aborted", "interrupted", "Half an ans"]);
  assert.equal(runs(), 0);
});

test("A reply that ends with error ends the run, with its message", async () => {
  const failed = fauxAssistantMessage("", { stopReason: "error", errorMessage: "It is broken." });
  const { outcome, requests } = await ask([failed]);
  assert.deepEqual([outcome.ended, outcome.answer, requests.length], ["error", "", 1]);
  assert.match(outcome.message, /It is broken\./);
});

test("A reply that ends with error has its calls not run, and they can be made again", async () => {
  const { tool, runs } = counted();
  const error = { stopReason: "error", errorMessage: "It is broken." } as const;
  const call = () => fauxToolCall("count", {});
  const steps = [fauxAssistantMessage([call()], error), calls(call()), "Done."];
  const { agent } = await ask(steps, { tools: [tool] });
  assert.equal(runs(), 0);
  assert.equal((await runAgent(agent, "And now?")).answer, "Done.");
  assert.equal(runs(), 1);
});

for (const rawStopReason of ["refusal", "content_filter", "SAFETY", "sensitive", "RECITATION"])
  test(`A reply that ends with ${rawStopReason} is no answer, and its reason is told`, async () => {
    const error = { stopReason: "error", errorMessage: "Not allowed." } as const;
    const { outcome } = await ask([{ ...fauxAssistantMessage("", error), rawStopReason }]);
    assert.equal(outcome.ended, "incomplete");
    assert.match(outcome.message, /Not allowed\./);
  });

test("A reply with an ending that nobody knows is an error that names it", async () => {
  const { outcome } = await ask([fauxAssistantMessage("Later.", { stopReason: "deferred" })]);
  assert.equal(outcome.ended, "error");
  assert.match(outcome.message, /deferred/);
});

test("Calls count as calls, and text as an answer, whatever the reply says of itself", async () => {
  const { outcome } = await ask([
    fauxAssistantMessage([read("a.ts")], { stopReason: "stop" }),
    fauxAssistantMessage("It is there.", { stopReason: "toolUse" }),
  ]);
  assert.deepEqual(ending(outcome), ["answered", "", "It is there."]);
});

describe("A reply without any text", () => {
  const blank = { nothing: [], "white space": [fauxText(" \n")], thinking: [fauxThinking("Hm.")] };
  for (const [what, content] of Object.entries(blank)) {
    const reply = () => fauxAssistantMessage(content);
    test(`that holds ${what} is asked for once more`, async () => {
      const { outcome, requests } = await ask([reply(), "It is there."]);
      assert.deepEqual(ending(outcome), ["answered", "", "It is there."]);
      assert.match(shape(requests[1]?.messages).at(-1) ?? "", /^user .*empty/);
    });
    test(`that holds ${what} twice is no answer`, async () => {
      const { outcome, requests } = await ask([reply(), reply()]);
      assert.deepEqual([outcome.ended, outcome.answer, requests.length], ["incomplete", "", 2]);
    });
  }
});

describe("A call that a server leaves in the text", () => {
  const printed = `{"name": "read_file", "arguments": {"path": "a.ts"}}`;
  const forms = {
    "as JSON": printed,
    "as JSON in another order": `{"arguments": {"path": "a.ts"}, "name": "read_file"}`,
    "with parameters": printed.replace("arguments", "parameters"),
    "as fenced JSON": `\`\`\`json\n${printed}\n\`\`\``,
    "in a tag": `<tool_call>${printed}</tool_call>`,
    "in a tag after thoughts": `<think>\nHm.\n</think>\n\n<tool_call>\n${printed}\n</tool_call>`,
    "in a tag after a line": `I will look.\n\n<tool_call>\n${printed}\n</tool_call>`,
    "in a list": `[${printed}]`,
    "of Qwen's coders": "<function=read_file>\n<parameter=path>\na.ts\n</parameter>\n</function>",
    "as XML": `<function_calls>\n<invoke name="read_file">\n<parameter name="path">a.ts</parameter>\n</invoke>\n</function_calls>`,
    "of Mistral": `[TOOL_CALLS][${printed}]`,
    "of Mistral's later models": `[TOOL_CALLS]read_file[ARGS]{"path":"a.ts"}`,
    "of Mistral's with an id": `[TOOL_CALLS]read_file[CALL_ID]abc123[ARGS]{"path":"a.ts"}`,
    "of Gemma": '```tool_code\nread_file(path="a.ts")\n```',
    "of Gemma, printed": "I look.\n```tool_code\nprint(default_api.read_file(path='a.ts'))\n```",
    "of Llama in Python's way": '<|python_tag|>read_file.call(path="a.ts")',
    "of Llama": `<|python_tag|>${printed}`,
  };
  for (const [form, text] of Object.entries(forms))
    test(`${form} is run as a call, and what to do about it is told once`, async () => {
      const notices: string[] = [];
      const emit = (event: AgentEvent) => {
        if (event.type === "notice") notices.push(event.message);
      };
      const again = text.replaceAll("a.ts", "b.ts");
      const { outcome, requests } = await ask([text, again, "It is a.ts:1."], { emit });
      assert.deepEqual(ending(outcome), ["answered", "", "It is a.ts:1."]);
      assert.match(shape(requests[1]?.messages).at(-1) ?? "", /^toolResult a\.ts \(/);
      assert.match(shape(requests[2]?.messages).at(-1) ?? "", /^toolResult b\.ts /);
      assert.equal(notices.length, 1);
      assert.match(notices[0] ?? "", /--jinja.*--enable-auto-tool-choice/);
    });

  const answers = {
    "a manifest": '```json\n{"name": "mini-pi", "type": "module"}\n```',
    "a call among other things": `The model answers with JSON such as ${printed}.`,
    "a call and what comes of it": `\`\`\`json\n${printed}\n\`\`\`\nis how a call looks.`,
    "two lines before a call": `It looks so:\n- as JSON\n\`\`\`json\n${printed}\n\`\`\``,
    "a tag of thoughts": "The parser cuts at `</think>`\nand goes on.",
  };
  for (const [what, text] of Object.entries(answers))
    test(`is something else than an answer that shows ${what}`, async () => {
      assert.deepEqual(ending((await ask([text])).outcome), ["answered", "", text]);
    });

  test("Thoughts in the text are no part of the answer", async () => {
    for (const thoughts of ["<think>\nHm.\n</think>\n\n", "Hm, so.\n</think>\n\n"])
      assert.equal((await ask([`${thoughts}It is a.ts:1.`])).outcome.answer, "It is a.ts:1.");
  });
});

// --------------------------------------------------------------------------------- Calls

test("Calls of one reply run side by side, and their results keep the order of the calls", async () => {
  // Each one ends only when the next one has ended, so they must all have started before.
  const names = ["first", "second", "third"];
  const gates = [...names, ""].map(() => Promise.withResolvers<void>());
  gates.at(-1)?.resolve();
  const tools = names.map((name, i) =>
    tool(name, async () => {
      await gates[i + 1]?.promise;
      gates[i]?.resolve();
      return `result of ${name}`;
    }),
  );
  const steps = [calls(...names.map((name) => fauxToolCall(name, {}))), "Done."];
  const { requests, events } = await ask(steps, { tools });
  const expected = names.map((name) => `toolResult result of ${name}`);
  assert.deepEqual(shape(requests[1]?.messages).slice(2), expected);
  const ended = events.flatMap((e) => (e.type === "tool_execution_end" ? [e.toolName] : []));
  assert.deepEqual(ended, names.toReversed());
});

test("A tool may be declared with TypeBox, too: its schema types and checks the arguments", async () => {
  const parameters = Type.Object({ n: Type.Integer(), unit: Type.Optional(Type.String()) });
  const square: AgentTool<typeof parameters> = {
    ...{ name: "square", description: "Square a number.", parameters },
    execute: async (_, { n, unit = "" }) => ({ text: `${n * n} ${unit.trim()}` }),
  };
  const use = (args: JsonObject) => fauxToolCall("square", args);
  const steps = [calls(use({ n: "12", unit: " m " }), use({ n: 3 }), use({ n: "many" })), "Done."];
  const { requests } = await ask(steps, { tools: [square] });
  const [twelve, three, many = ""] = shape(requests[1]?.messages).slice(2);
  assert.deepEqual([twelve, three], ["toolResult 144 m", "toolResult 9 "]);
  assert.match(many, /Validation failed/);
});

describe("A call that fails gets a result, marked as an error, that says why", () => {
  const broken = { ...fauxToolCall("read_file", {}), argumentsError: "Invalid arguments: {pa" };
  const fails = (message: string) => tool("fail", () => Promise.reject(new Error(message)));
  const cases: [failure: string, call: ToolCall, result: RegExp, tools?: AgentTool[]][] = [
    ["a tool that is not there", fauxToolCall("grep", {}), /^There is no tool "grep".*read_file/],
    ["arguments that are no JSON", broken, /Invalid arguments/],
    ["an argument that is missing", fauxToolCall("read_file", {}), /path/],
    ["an argument of the wrong type", fauxToolCall("read_file", { path: {} }), /path/],
    ["an argument that is not there", fauxToolCall("list_files", { all: true }), /all|additional/],
    ["a file that is not there", read("missing.ts"), /missing\.ts does not exist/],
    ["a tool that throws", fauxToolCall("fail", {}), /^Out of order$/, [fails("Out of order")]],
    [
      "a tool that throws a very long text",
      fauxToolCall("fail", {}),
      /^x{900,1000}…?$/,
      [fails("x".repeat(50_000))],
    ],
    [
      "a tool that throws the place of the directory",
      fauxToolCall("fail", {}),
      /^ENOENT, open '\.\/a\.ts'$/,
      [fails(`ENOENT, open '${DIRECTORY}/a.ts'`)],
    ],
  ];
  for (const [failure, failing, result, tools] of cases)
    test(failure, async () => {
      const given = tools ? { tools } : {};
      const { agent, outcome, events } = await ask([calls(failing), "Done."], given);
      assert.equal(outcome.answer, "Done.");
      const message = agent.messages.findLast(({ role }) => role === "toolResult");
      assert.match(textOf(message), result);
      assert.equal(message?.role === "toolResult" && message.isError, true);
      const end = events.findLast(({ type }) => type === "tool_execution_end");
      assert.equal(end?.type === "tool_execution_end" && end.isError, true);
    });
});

test("A result is never empty, and never holds half a surrogate pair", async () => {
  const tools = [tool("blank", async () => " \n"), tool("half", async () => "half \ud83d a pair")];
  const steps = [calls(fauxToolCall("blank", {}), fauxToolCall("half", {})), "Done."];
  const { agent } = await ask(steps, { tools });
  const results = shape(agent.messages).slice(2, 4);
  assert.deepEqual(results, ["toolResult (nothing)", "toolResult half \ufffd a pair"]);
});

test("Of more than 50 calls in one reply the rest get a result that says so", async () => {
  const { tool, runs } = counted();
  const sixty = Array.from({ length: 60 }, (_, n) => fauxToolCall("count", { n }));
  const { agent, outcome } = await ask([calls(...sixty), "Done."], { tools: [tool] });
  const results = shape(agent.messages).filter((line) => line.startsWith("toolResult"));
  assert.equal(results.length, 60);
  assert.equal(runs(), 50);
  for (const result of results.slice(50)) assert.match(result, /Not run: more than 50 calls/);
  assert.equal(outcome.answer, "Done.");
});

describe("Results of one reply are bounded together", () => {
  const bytes = 40_000;
  const large = tool("large", async () => "x".repeat(bytes));
  const eight = Array.from({ length: 8 }, (_, n) => fauxToolCall("large", { n }));
  const again = fauxToolCall("large", { n: 7 });
  const windows: [contextWindow: number, bound: number][] = [
    [1_000_000, 256 * 1024],
    [64_000, 96_000],
  ];
  for (const [contextWindow, bound] of windows)
    test(`for a window of ${contextWindow} tokens, and what is left out can be asked for`, async () => {
      const steps = [calls(...eight), calls(again), "Done."];
      const { requests, agent } = await ask(steps, { tools: [large], contextWindow });
      const results = shape(requests[1]?.messages).slice(2);
      assert.ok(results.join("").length < bound + 1000);
      assert.match(results[0] ?? "", /^toolResult x/);
      assert.match(results[7] ?? "", /^toolResult Not shown: /);
      assert.match(shape(agent.messages).at(-2) ?? "", /^toolResult x/);
    });
});

test("Calls get ids of their own, though the model uses none or one again", async () => {
  const call = (path: string, id: string) => fauxToolCall("read_file", { path }, { id });
  const steps = [
    calls(call("a.ts", "same"), call("b.ts", "same"), { ...read("c.ts"), id: "" }),
    calls(call("d.ts", "same"), { ...read("e.ts"), id: "" }),
    "Done.",
    calls(call("f.ts", "same")),
    "Done again.",
  ];
  const { agent, outcome } = await ask(steps);
  assert.equal(outcome.answer, "Done.");
  assert.equal((await runAgent(agent, "And then?")).answer, "Done again.");
  assertValid(agent.messages);
});

// -------------------------------------------------------------------------------- Limits

test("At the turn limit the model gets one last call for an answer, without tools", async () => {
  const steps = [calls(read("a.ts")), calls(read("b.ts")), "As far as I know."];
  const { outcome, requests } = await ask(steps, { limits: limits({ turns: 2 }) });
  assert.deepEqual([outcome.ended, outcome.answer], ["limit", "As far as I know."]);
  assert.match(outcome.message, /2 turns.*--max-turns/);
  const choices = requests.map(({ toolChoice }) => toolChoice);
  assert.deepEqual(choices, ["auto", "auto", "none"]);
  assert.match(JSON.stringify(requests[2]?.messages.at(-1)), /toolResult.*Answer now/);
});

test("Calls in the last reply are refused, and still get their results", async () => {
  const { tool, runs } = counted();
  const steps = [1, 2].map((n) => calls(fauxToolCall("count", { n })));
  const { outcome, agent } = await ask(steps, { tools: [tool], limits: limits({ turns: 1 }) });
  assert.deepEqual([outcome.ended, outcome.answer, runs()], ["limit", "", 1]);
  assert.match(shape(agent.messages).at(-1) ?? "", /^toolResult Not run: /);
});

test("The turn limit counts the replies to one question only", async () => {
  const steps = [calls(read("a.ts")), "One.", calls(read("b.ts")), "Two."];
  const { agent, outcome } = await ask(steps, { limits: limits({ turns: 2 }) });
  assert.equal(outcome.ended, "answered");
  assert.deepEqual(ending(await runAgent(agent, "And then?")), ["answered", "", "Two."]);
});

test("The cost limit counts the whole conversation", async () => {
  const earlier = fauxAssistantMessage("Earlier.");
  earlier.usage = { ...earlier.usage, cost: { ...earlier.usage.cost, total: 2 } };
  const question = { role: "user", content: "What was it?", timestamp: 0 } as const;
  const messages = [question, earlier];
  const { outcome, requests } = await ask(["Enough."], { messages, limits: limits({ cost: 1.5 }) });
  assert.deepEqual([outcome.ended, outcome.answer], ["limit", "Enough."]);
  assert.match(outcome.message, /\$1\.5.*--max-cost/);
  assert.deepEqual(
    requests.map(({ toolChoice }) => toolChoice),
    ["none"],
  );
});

test("The last tenth of the time is for an answer", async (t) => {
  const late = async () => {
    t.mock.timers.enable({ apis: ["Date"], now: Date.now() + 55_000 });
    return calls(read("a.ts"));
  };
  const steps = [late, "As far as I know."];
  const { outcome, requests } = await ask(steps, { limits: limits({ ms: 60_000 }) });
  assert.deepEqual([outcome.ended, outcome.answer], ["limit", "As far as I know."]);
  assert.match(outcome.message, /60 s.*--timeout/);
  assert.equal(requests[1]?.toolChoice, "none");
});

test("At the end of the time a reply is broken off, and what came of it is kept", async () => {
  const { outcome } = await ask(["It is there. ".repeat(1000)], {
    limits: limits({ ms: 500 }),
    tokensPerSecond: 100,
  });
  assert.equal(outcome.ended, "limit");
  assert.match(outcome.message, /0\.5 s.*--timeout/);
  assert.match(outcome.answer, /^It is there\./);
});

test("At the end of the time a tool is ended", async () => {
  const endless = tool("endless", (signal) => once(signal, "abort").then(() => "stopped"));
  const steps = [calls(fauxToolCall("endless", {})), "Never asked for."];
  const { outcome } = await ask(steps, { tools: [endless], limits: limits({ ms: 200 }) });
  assert.equal(outcome.ended, "limit");
});

// ------------------------------------------------------------------------ Repeated calls

test("The same call again is not run again while its result stands", async () => {
  const { tool, runs } = counted();
  const same = () => calls(fauxToolCall("count", { n: 1 }));
  const other = calls(fauxToolCall("count", { n: 2 }));
  const { agent, outcome } = await ask([same(), same(), other, same(), "Done."], { tools: [tool] });
  assert.deepEqual(
    shape(agent.messages).filter((line) => line.startsWith("toolResult")),
    [
      "toolResult run 1",
      "toolResult You made this call already; its result is above.",
      "toolResult run 2",
      "toolResult You made this call already; its result is above.",
    ],
  );
  assert.deepEqual([runs(), outcome.ended], [2, "answered"]);
});

for (const [kind, path] of [
  ["works", "a.ts"],
  ["fails", "missing.ts"],
] as const)
  test(`The third time in a row of a call that ${kind} ends with a last call`, async () => {
    const same = () => calls(read(path));
    const { outcome, requests } = await ask([same(), same(), same(), "As far as I know."]);
    assert.deepEqual([outcome.ended, outcome.answer], ["limit", "As far as I know."]);
    assert.match(outcome.message, /same call/);
    const choices = requests.map(({ toolChoice }) => toolChoice);
    assert.deepEqual(choices, ["auto", "auto", "auto", "none"]);
  });

test("Of the same calls in one reply, one is run", async () => {
  const { tool, runs } = counted();
  const [a, b] = [fauxToolCall("count", {}), fauxToolCall("count", {})];
  const { requests } = await ask([calls(a, b), "Done."], { tools: [tool] });
  assert.equal(runs(), 1);
  const [one, two = ""] = shape(requests[1]?.messages).slice(2);
  assert.equal(one, "toolResult run 1");
  assert.match(two, /You made this call already/);
});

test("The same call is run again for the next question after it was only refused", async () => {
  const { tool, runs } = counted();
  const same = () => calls(fauxToolCall("count", { n: 1 }));
  const steps = [calls(fauxToolCall("count", { n: 0 })), same(), same(), "Done."];
  const { agent } = await ask(steps, { tools: [tool], limits: limits({ turns: 1 }) });
  assert.match(shape(agent.messages).at(-1) ?? "", /^toolResult Not run: /);
  agent.limits = limits({});
  assert.equal((await runAgent(agent, "And then?")).answer, "Done.");
  assert.equal(runs(), 2);
});

test("The same call is run again once its result is blanked", async () => {
  const { tool, runs } = counted(30_000);
  const numbers = [1, 2, 3, 4, 5, 1];
  const steps = [...numbers.map((n) => calls(fauxToolCall("count", { n }))), "Done."];
  const { agent, outcome } = await ask(steps, { tools: [tool], contextWindow: 32_000 });
  assert.ok(agent.trimmed > 0);
  assert.deepEqual([runs(), outcome.ended], [6, "answered"]);
});

// -------------------------------------------------------------- What is said meanwhile

test("What the user says during a tool is heard before the next request", async () => {
  const busy = tool("busy", async (_, agent) => {
    agent.queue.push("Only the tests.", "And be brief.");
    return "done";
  });
  const { requests, outcome, agent } = await ask([calls(fauxToolCall("busy", {})), "Done."], {
    tools: [busy],
  });
  const expected = ["toolResult done", "user Only the tests.And be brief."];
  assert.deepEqual(shape(requests[1]?.messages).slice(-2), expected);
  assert.deepEqual([outcome.answer, requests.length, agent.queue.length], ["Done.", 2, 0]);
});

test("What the user says during the answer is answered, too", async () => {
  const follow = async () => {
    agentOf.agent?.queue.push("And then?");
    return fauxAssistantMessage("First.");
  };
  const agentOf: { agent?: Agent } = {};
  const { requests, outcome } = await ask([follow, "Second."], {}, (agent) => {
    agentOf.agent = agent;
  });
  assert.deepEqual(shape(requests[1]?.messages).slice(-2), ["assistant First.", "user And then?"]);
  assert.deepEqual(ending(outcome), ["answered", "", "Second."]);
});

test("A second question goes on with the same conversation", async () => {
  const { agent, requests } = await ask([calls(read("a.ts")), "First.", "Second."]);
  const outcome = await runAgent(agent, "And then?");
  assert.deepEqual([outcome.answer, outcome.turns], ["Second.", 1]);
  const sent = shape(requests[2]?.messages);
  assert.deepEqual(sent, shape(agent.messages).slice(0, -1));
  assert.equal(sent.length, 5);
});

// ------------------------------------------------------------------------------ Trimming

describe("trimContext", () => {
  const contextWindow = 32_000;
  const large = tool("large", async () => "x".repeat(12_000));
  /** Turns of one large result each, and how the history was sent before each of them. */
  const conversation = async (turns: number) => {
    const call = (_: unknown, n: number) => calls(fauxToolCall("large", { n }));
    const steps = [...Array.from({ length: turns }, call), "Done."];
    return ask(steps, { tools: [large], contextWindow, limits: limits({ turns: 100 }) });
  };
  const isBlank = (message: Message) => textOf(message).startsWith("[removed");
  /** One of 40 turns, which is looked at from several sides. */
  const long = () => (asked ??= conversation(40));
  let asked: ReturnType<typeof conversation> | undefined;

  test("sends everything as it is while it fits", async () => {
    const { requests, agent } = await conversation(5);
    assert.deepEqual(requests.at(-1)?.messages, agent.messages.slice(0, -1));
    assert.equal(agent.trimmed, 0);
  });

  test("keeps every request of a long conversation within the model's window", async () => {
    const { requests, outcome } = await long();
    assert.deepEqual([outcome.ended, requests.length], ["answered", 41]);
    for (const { messages } of requests) {
      const unused = messages.map((m) => (m.role === "assistant" ? { ...m, usage: NO_USAGE } : m));
      assert.ok(estimateContextTokens(unused).tokens < 0.9 * contextWindow);
    }
  });

  test("blanks the oldest results and keeps the newest, and all that is no result", async () => {
    const { requests, agent } = await long();
    for (const { messages } of requests) {
      const results = messages.filter(({ role }) => role === "toolResult").map(isBlank);
      assert.deepEqual(
        results,
        results.toSorted((a, b) => Number(b) - Number(a)),
      );
      assert.notEqual(results.at(-1), true);
      const rest = (list: Message[]) => list.filter(({ role }) => role !== "toolResult");
      assert.deepEqual(rest(messages), rest(agent.messages).slice(0, rest(messages).length));
    }
  });

  test("leaves the stored history untouched", async () => {
    const { agent } = await long();
    assert.ok(agent.trimmed > 0);
    assert.ok(!agent.messages.some(isBlank));
    const before = structuredClone(agent.messages);
    trimContext(agent);
    assert.deepEqual(agent.messages, before);
  });

  test("changes what was sent before seldom, so that the provider's cache holds", async () => {
    const { requests } = await long();
    const changes = requests.slice(1).filter(({ messages }, i) => {
      const before = requests[i]?.messages ?? [];
      return JSON.stringify(messages.slice(0, before.length)) !== JSON.stringify(before);
    });
    // 40 results of 3,000 tokens: a window is filled from 40 % to 75 % by four of them.
    assert.ok(changes.length > 0 && changes.length <= 12, `${changes.length} changes`);
  });

  test("keeps the results of the newest turn, however large they are together", async () => {
    const [a, b, c, d] = [1, 2, 3, 4].map((n) => fauxToolCall("large", { n }));
    assert.ok(a && b && c && d);
    const steps = [calls(a), calls(b), calls(c, d), "Done."];
    const { requests } = await ask(steps, { tools: [large], contextWindow: 16_000 });
    const results = requests.at(-1)?.messages.filter(({ role }) => role === "toolResult") ?? [];
    assert.deepEqual(results.map(isBlank), [true, true, false, false]);
  });
});

// ------------------------------------------------------------------------------- Helpers

type Request = { messages: Message[]; toolChoice?: ToolChoice };
type Given = Partial<Agent> & { contextWindow?: number; tokensPerSecond?: number };
type Steps = (FauxResponseStep | string)[];

const NO_USAGE = fauxAssistantMessage("").usage;

/** Asks an agent whose model replies with these steps. Whatever it sends or keeps must be valid. */
async function ask(steps: Steps, given: Given = {}, onAgent: (agent: Agent) => void = () => {}) {
  const { contextWindow = 128_000, tokensPerSecond, emit, ...overrides } = given;
  const faux = fauxProvider({ models: [{ id: "faux-1", contextWindow }], tokensPerSecond });
  faux.setResponses(steps.map((s) => (typeof s === "string" ? fauxAssistantMessage(s) : s)));
  const models = createModels();
  models.setProvider(faux.provider);
  const requests: Request[] = [];
  const events: AgentEvent[] = [];
  const stream: Agent["stream"] = (model, context, options) => {
    const messages = structuredClone(context.messages);
    assertValid(messages);
    requests.push({ messages, toolChoice: options?.toolChoice });
    return models.streamSimple(model, context, options);
  };
  const agent = await createAgent(DIRECTORY, {
    ...{ model: faux.getModel(), stream, keyName: "" },
    ...overrides,
    emit: (event) => {
      events.push(event);
      emit?.(event);
    },
  });
  onAgent(agent);
  const outcome = await runAgent(agent, "What is it?");
  assertValid(agent.messages);
  return { agent, outcome, requests, events };
}

/**
 * Each call has its one result, right after its message and in order, and nothing is empty. Replies
 * that failed are not sent, so their calls have none.
 */
function assertValid(messages: Message[]): void {
  const ids = messages.flatMap((m) => (m.role === "assistant" ? callIds(m) : []));
  assert.equal(new Set(ids).size, ids.length, "an id is used twice");
  for (const [i, message] of messages.entries()) {
    const following = messages.slice(i + 1);
    const end = following.findIndex(({ role }) => role !== "toolResult");
    const results = end < 0 ? following : following.slice(0, end);
    const answered = results.flatMap((m) => (m.role === "toolResult" ? [m.toolCallId] : []));
    if (message.role === "assistant") assert.deepEqual(answered, callIds(message));
    else assert.notEqual(textOf(message).trim(), "");
    assert.ok(message.role !== "user" || answered.length === 0, "a result follows no call");
    assert.ok(textOf(message).isWellFormed());
  }
}

function callIds({ content, stopReason }: AssistantMessage): string[] {
  if (stopReason === "error" || stopReason === "aborted") return [];
  return content.flatMap((block) => (block.type === "toolCall" ? [block.id] : []));
}

function textOf(message?: Message): string {
  const content = message?.content ?? "";
  if (typeof content === "string") return content;
  return content.map((block) => (block.type === "text" ? block.text : "")).join("");
}

/** The messages, a line each: the role, and the first line of the text or the names of the calls. */
function shape(messages: Message[] = []): string[] {
  return messages.map((message) => {
    const called = message.role === "assistant" ? message.content.filter(isCall) : [];
    const names = called.map(({ name }) => name).join(", ");
    return `${message.role} ${names || textOf(message).split("\n")[0]}`;
  });
}

const isCall = (block: AssistantMessage["content"][number]) => block.type === "toolCall";

const ending = ({ ended, message, answer }: Outcome) => [ended, message, answer];

function read(path: string): ToolCall {
  return fauxToolCall("read_file", { path });
}

const calls = (...content: ToolCall[]) => fauxAssistantMessage(content, { stopReason: "toolUse" });

const cutOff = (content: string | ToolCall) =>
  fauxAssistantMessage(content, { stopReason: "length" });

const limits = (some: Partial<Agent["limits"]>): Agent["limits"] => {
  return { turns: 50, ms: 60_000, cost: Number.POSITIVE_INFINITY, ...some };
};

function tool(
  name: string,
  text: (signal: AbortSignal, agent: Agent) => Promise<string>,
): AgentTool {
  const parameters = Type.Object({});
  return {
    ...{ name, description: name, parameters },
    execute: async (agent, _, signal) => ({ text: await text(signal, agent) }),
  };
}

/** A tool that tells how often it was run, in a text of so many characters. */
function counted(length = 0): { tool: AgentTool; runs: () => number } {
  let runs = 0;
  const count = tool("count", async () => `run ${++runs}`.padEnd(length, "."));
  return { tool: count, runs: () => runs };
}

function directoryToAskAbout(): string {
  const directory = mkdtempSync(join(tmpdir(), "mini-pi-loop-"));
  after(() => rmSync(directory, { recursive: true }));
  for (const name of "abcdef")
    writeFileSync(join(directory, `${name}.ts`), `one ${name}\ntwo ${name}\n`);
  return directory;
}
