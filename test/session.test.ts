// What is kept and what programs read: session files in pi's format, and the events of --json. A kill,
// a full disk and two runs on one file have processes of their own.

import assert from "node:assert/strict";
import {
  appendFileSync,
  existsSync,
  readdirSync,
  readFileSync,
  statSync,
  symlinkSync,
  writeFileSync,
} from "node:fs";
import path from "node:path";
import { test } from "node:test";
import { type Agent, createAgent, findModel, runAgent, saveSession } from "../mini-pi.ts";
import { temporary, write } from "./fixtures.ts";
import {
  call,
  cutMiddle,
  type ModelRequest,
  reply,
  type Step,
  stall,
  startModelServer,
  status,
  text,
  thinking,
} from "./model-server.ts";
import {
  type HereOptions,
  MINI_PI,
  runCli,
  runHere,
  startCli,
  startCommand,
  startHere,
  atServer as to,
} from "./run-cli.ts";

const DIR = temporary();
write(DIR, { "a.ts": "export const answer = 42;\n", "b.ts": "// \u2028\u2029\u0085\r\n" });
const keyed = { ANTHROPIC_API_KEY: "key", MINI_PI_RETRY_MS: "10" };
const READ = reply([call("read_file", { path: "a.ts" })]);

/** Asks about DIR with these arguments; the history that is sent must be one a provider takes. */
async function ask(steps: Step[], args: string[], options: HereOptions = {}, run = runHere) {
  await using server = await startModelServer(steps);
  const env = { ...keyed, ...options.env };
  const result = await run(to(server, DIR, "what is it?", ...args), { ...options, env });
  assert.deepEqual(server.problems, []);
  return { ...result, requests: server.requests };
}

/** The lines of a text that ends in one, each a JSON object. */
function records(lines: string) {
  assert.ok(lines.endsWith("\n"), "the last line is ended, too");
  return lines
    .split("\n")
    .slice(0, -1)
    .map((line) => JSON.parse(line));
}

const kept = (file: string) => records(readFileSync(file, "utf8"));
const said = (request: ModelRequest | undefined) =>
  request?.history.flatMap(({ role, content }) =>
    content.map(({ type, text }) => `${role} ${text ?? type}`),
  ) ?? [];
const newFile = () => path.join(temporary(), "session.jsonl");
const filesBelow = (dir: string) =>
  existsSync(dir)
    ? readdirSync(dir, { recursive: true, encoding: "utf8" })
        .map((name) => path.join(dir, name))
        .filter((name) => statSync(name).isFile())
    : [];

// -------------------------------------------------------------------------------- The file

test("a session file is pi's format version 3: a header, then each message under its parent", async () => {
  const file = newFile();
  const { code } = await ask(
    [READ, reply([thinking("Hm."), text("See a.ts:1.")])],
    ["--session", file],
  );
  assert.equal(code, 0);
  const [header, ...entries] = kept(file);
  assert.deepEqual(Object.keys(header).sort(), ["cwd", "id", "timestamp", "type", "version"]);
  assert.deepEqual([header.type, header.version, header.cwd], ["session", 3, DIR]);
  assert.match(header.id, /^[\da-f]{8}(-[\da-f]{4}){3}-[\da-f]{12}$/);
  let parentId = null;
  for (const entry of [header, ...entries])
    assert.equal(new Date(entry.timestamp).toISOString(), entry.timestamp);
  for (const entry of entries) {
    assert.deepEqual([entry.type, entry.parentId], ["message", parentId]);
    assert.match(entry.id, /^[\da-f]{8}$/);
    assert.ok(Number.isInteger(entry.message.timestamp));
    parentId = entry.id;
  }
  const roles = entries.map(({ message }) => message.role);
  assert.deepEqual(roles, ["user", "assistant", "toolResult", "assistant"]);
  assert.equal(new Set(entries.map(({ id }) => id)).size, 4);
});

test("the stop reason, error, usage and cost of every reply are kept, also of failed ones", async () => {
  const file = newFile();
  const steps = [READ, cutMiddle([text("It i")]), reply("It counts.")];
  assert.equal((await ask(steps, ["--session", file])).code, 0);
  const replies = kept(file).flatMap(({ message }) =>
    message?.role === "assistant" ? [message] : [],
  );
  assert.deepEqual(
    replies.map(({ stopReason }) => stopReason),
    ["toolUse", "error", "stop"],
  );
  assert.match(replies[1].errorMessage, /\S/);
  for (const { usage, provider, model, api } of replies) {
    assert.deepEqual(
      [provider, model, api],
      ["anthropic", "claude-sonnet-5-5", "anthropic-messages"],
    );
    assert.ok(usage.totalTokens >= 0 && usage.cost.total >= 0);
  }
  assert.ok(replies[0].usage.cost.total > 0);
});

test("sessions are in the user's state directory, for the user's eyes only", async () => {
  const home = temporary();
  const places = { XDG_STATE_HOME: path.join(home, "state"), HOME: home };
  const unset = { XDG_STATE_HOME: "", HOME: path.join(home, "me") };
  for (const env of [places, unset]) {
    const state = env.XDG_STATE_HOME || path.join(env.HOME, ".local/state");
    await ask([reply("So.")], [], { env });
    const files = filesBelow(env.XDG_STATE_HOME || env.HOME);
    assert.equal(files.length, 1);
    const [file = ""] = files;
    assert.ok(
      file.startsWith(path.join(state, "mini-pi") + path.sep) && file.endsWith(".jsonl"),
      file,
    );
    assert.equal(statSync(file).mode & 0o777, 0o600);
    for (let dir = path.dirname(file); dir !== path.dirname(state); dir = path.dirname(dir))
      assert.equal(statSync(dir).mode & 0o777, 0o700, dir);
  }
});

test("a new --session file is for the user's eyes only, and its directories are made", async () => {
  const file = path.join(temporary(), "new/dir/session.jsonl");
  await ask([reply("So.")], ["--session", file]);
  assert.equal(statSync(file).mode & 0o777, 0o600);
  assert.equal(statSync(path.dirname(file)).mode & 0o777, 0o700);
});

test("--no-session keeps nothing", async () => {
  const env = { XDG_STATE_HOME: temporary(), HOME: temporary() };
  const { code } = await ask([reply("So.")], ["--no-session"], { env });
  assert.equal(code, 0);
  assert.deepEqual([...filesBelow(env.XDG_STATE_HOME), ...filesBelow(env.HOME)], []);
});

test("nothing is kept inside of the directory that is looked at", async () => {
  const home = temporary();
  const { code } = await runHere([home, "what is this?"], { env: { XDG_STATE_HOME: home } });
  assert.deepEqual([code, filesBelow(home).length], [0, 0]);
});

test("what was said is on disk before it ends, and survives a kill", async () => {
  const file = newFile();
  await using server = await startModelServer([READ, stall({ after: [text("It")] })]);
  const cli = startCli(to(server, "--session", file, DIR, "what is it?"), { env: keyed });
  await server.request(2);
  cli.child.kill("SIGKILL");
  await cli.done;
  const roles = kept(file).map(({ message }) => message?.role);
  assert.deepEqual(roles, [undefined, "user", "assistant", "toolResult"]);
});

test("a session that cannot be kept is one line, exit 2, and no request", async () => {
  await using server = await startModelServer([]);
  const blocked = path.join(newFile(), "x.jsonl");
  writeFileSync(path.dirname(blocked), "a file");
  for (const file of [temporary(), blocked]) {
    const { code, stderr } = await runHere(to(server, "--session", file, DIR, "q"), { env: keyed });
    assert.equal(code, 2, stderr);
    assert.match(stderr, /^mini-pi: [^\n]*\n$/);
  }
  assert.equal(server.requests.length, 0);
});

test("a disk that fills up while it is kept loses no answer, and is told once", async () => {
  const file = newFile();
  await using server = await startModelServer([READ, reply("It counts, a.ts:1.")]);
  const shell = ['trap "" XFSZ; ulimit -f 1; exec "$0" "$@"', process.execPath, MINI_PI];
  const args = to(server, "--session", file, DIR, "what is it?");
  const cli = startCommand("sh", ["-c", ...shell, ...args], { env: keyed });
  const { code, stdout, stderr } = await cli.done;
  assert.deepEqual([code, stdout], [0, "It counts, a.ts:1.\n"], stderr);
  assert.equal(stderr.match(/nothing is kept/g)?.length, 1, stderr);
});

// ---------------------------------------------------------------------------------- Resuming

test("--session goes on where the file ends, with the same history and id", async () => {
  const file = newFile();
  const first = await ask(
    [READ, reply([thinking("Hm.", "sig"), text("See a.ts:1.")])],
    ["--session", file],
  );
  const { id } = kept(file)[0];
  await using server = await startModelServer([reply("As I said, a.ts:1.")]);
  const second = await runHere(to(server, "--session", file, DIR, "are you sure?"), { env: keyed });
  assert.deepEqual([first.code, second.code, server.problems], [0, 0, []]);
  assert.deepEqual(said(server.requests[0]), [
    "user what is it?",
    "assistant tool_use",
    "user tool_result",
    "assistant thinking",
    "assistant See a.ts:1.",
    "user are you sure?",
  ]);
  // What was shown then counts as shown now.
  assert.match(second.stderr, /^sources: 1 seen$/m);
  assert.equal(kept(file)[0].id, id);
  assert.equal(kept(file).length, 7);
});

test("-c goes on with the last conversation about the directory, and with no other's", async () => {
  const env = { XDG_STATE_HOME: temporary() };
  const other = temporary();
  await using server = await startModelServer([1, 2, 3, 4, 5].map((n) => reply(`Answer ${n}.`)));
  const run = (...args: string[]) => runHere(to(server, ...args), { env: { ...keyed, ...env } });
  for (const args of [
    [DIR, "one"],
    [DIR, "two"],
    [other, "three"],
    ["-c", DIR, "four"],
    ["--continue", DIR, "five"],
  ])
    assert.equal((await run(...args)).code, 0);
  assert.deepEqual(said(server.requests[3]), ["user two", "assistant Answer 2.", "user four"]);
  assert.equal(said(server.requests[4]).length, 5);
  assert.deepEqual(server.problems, []);
});

test("-c without a conversation so far is a new one, and says so", async () => {
  const { code, stdout, stderr, requests } = await ask([reply("So.")], ["-c"]);
  assert.deepEqual([code, stdout, requests.length], [0, "So.\n", 1]);
  assert.match(stderr, /no .*(conversation|session)/i);
});

test("-c finds the conversation by a link to the directory, too", async () => {
  const env = { XDG_STATE_HOME: temporary() };
  await using server = await startModelServer([reply("So."), reply("Still so.")]);
  const run = (args: string[], cwd: string) =>
    runHere(to(server, ...args), { cwd, env: { ...keyed, ...env } });
  await run([DIR, "one"], "/");
  await run(["-c", ".", "two"], DIR);
  assert.deepEqual(said(server.requests[1]), ["user one", "assistant So.", "user two"]);
});

const user = { role: "user", content: "one", timestamp: 1 };
const usage = { input: 1, output: 1, cacheRead: 0, cacheWrite: 0, totalTokens: 2 };
const cost = { input: 0, output: 0, cacheRead: 0, cacheWrite: 0, total: 0 };
const source = {
  api: "anthropic-messages",
  provider: "anthropic",
  model: "claude-sonnet-5-5",
  timestamp: 2,
};
const assistant = { role: "assistant", usage: { ...usage, cost }, ...source };
const toolCall = { type: "toolCall", id: "call_1", name: "read_file", arguments: { path: "a.ts" } };
const header = {
  type: "session",
  version: 3,
  id: "0".repeat(8),
  timestamp: "2026-01-01T00:00:00.000Z",
  cwd: DIR,
};
const entry = (id: string, parentId: string | null, message: object) =>
  JSON.stringify({ type: "message", id, parentId, timestamp: header.timestamp, message });
const START = `${JSON.stringify(header)}\n${entry("a", null, user)}\n`;
const answered = { ...assistant, content: [{ type: "text", text: "So." }], stopReason: "stop" };
const called = { ...assistant, content: [toolCall], stopReason: "toolUse" };

/** An agent that goes on with the session in a file, and keeps it there. */
async function resumed(file: string): Promise<Agent> {
  const agent = await createAgent(DIR, await findModel("offline/search"));
  agent.emit = saveSession(agent, file);
  return agent;
}

/** A session file as another run, a crash or pi left it; what of it is sent; what stderr says. */
const FILES: [name: string, content: string, history: string[], says?: RegExp][] = [
  ["as it should be", `${START}${entry("b", "a", answered)}\n`, ["user one", "assistant So."]],
  [
    "with a torn last line",
    `${START}${entry("b", "a", answered)}\n{"type":"mess`,
    ["user one", "assistant So."],
    /line|torn|damaged|incomplete|skipped/i,
  ],
  [
    "without its last newline",
    `${START}${entry("b", "a", answered)}`,
    ["user one", "assistant So."],
  ],
  [
    "with a torn line inside",
    `${START}{"type":"mes\n${entry("b", "a", answered)}\n`,
    ["user one", "assistant So."],
    /line|torn|damaged|incomplete|skipped/i,
  ],
  [
    "with a call without its result",
    `${START}${entry("b", "a", called)}\n`,
    ["user one", "assistant tool_use", "user tool_result"],
  ],
  [
    "with two branches",
    `${START}${entry("b", "a", { ...user, content: "not this" })}\n${entry("c", "a", answered)}\n`,
    ["user one", "assistant So."],
  ],
  [
    "with entries of kinds that only pi knows",
    `${START}{"type":"model_change","id":"m","parentId":"a","timestamp":"","provider":"x","modelId":"y"}\n${entry("b", "m", answered)}\n{"type":"label","id":"l","parentId":"b","timestamp":"","targetId":"a","label":"x"}\n`,
    ["user one", "assistant So."],
  ],
  ["empty", "", []],
  ["with a header alone", `${JSON.stringify(header)}\n`, []],
];

test("a session file in any state is taken up, nothing of it is lost, and the whole stays readable", async (t) => {
  for (const [name, content, history, says] of FILES)
    await t.test(name, async () => {
      const file = newFile();
      writeFileSync(file, content);
      const { code, requests, stderr } = await ask([reply("Now.")], ["--session", file]);
      assert.equal(code, 0);
      assert.deepEqual(said(requests[0]), [...history, "user what is it?"]);
      const after = readFileSync(file, "utf8");
      assert.ok(after.startsWith(content));
      // One line break heals a torn end, and a whole one gets none.
      const healed = content === "" || content.endsWith("\n") ? /^\{/ : /^\n\{/;
      assert.match(after.slice(content.length), healed);
      assert.equal(
        JSON.parse(after.trimEnd().split("\n").at(-1) ?? "").message.content[0].text,
        "Now.",
      );
      if (says) assert.match(stderr, says);
      else assert.doesNotMatch(stderr, /torn|damaged|skipped/);
      // And what was added is found again.
      const roles = (await resumed(file)).messages.map(({ role }) => role);
      const spoken = roles.filter((role) => role !== "toolResult");
      assert.deepEqual(roles.slice(-2), ["user", "assistant"]);
      assert.equal(spoken.length, history.filter((line) => !/tool_result/.test(line)).length + 2);
    });
});

const REFUSED: [name: string, content: string, says: RegExp][] = [
  [
    "of another directory",
    `${JSON.stringify({ ...header, cwd: "/somewhere/else" })}\n`,
    /\/somewhere\/else/,
  ],
  ["of another format", '{"messages": []}\n', /session/],
  ["that is no JSON", "Dear diary,\n", /session/],
];

for (const [name, content, says] of REFUSED)
  test(`a session file ${name} is refused in one line, and left as it is`, async () => {
    const file = newFile();
    writeFileSync(file, content);
    const { code, stdout, stderr, requests } = await ask([], ["--session", file]);
    assert.deepEqual([code, stdout, requests.length], [2, "", 0]);
    assert.match(stderr, /^mini-pi: [^\n]*\n$/);
    assert.match(stderr, says);
    assert.equal(readFileSync(file, "utf8"), content);
  });

test("two processes on one session do not mix lines", async () => {
  const file = newFile();
  await ask([reply("So.")], ["--session", file]);
  const long = "0123456789".repeat(30_000);
  const steps = () => [READ, reply(`${long} one`)];
  const run = () => ask(steps(), ["--session", file], {}, runCli);
  await Promise.all([run(), run()]);
  const entries = kept(file).slice(1);
  assert.equal(entries.length, 2 + 2 * 4);
  const ids = new Set(entries.map(({ id }) => id));
  assert.equal(ids.size, entries.length);
  for (const { parentId } of entries) assert.ok(parentId === null || ids.has(parentId));
  const { code } = await ask([reply("Now.")], ["--session", file]);
  assert.equal(code, 0);
});

test("a program that embeds mini-pi keeps and resumes a session by the same door", async () => {
  const file = newFile();
  const first = await resumed(file);
  await runAgent(first, "where is the answer?");
  const second = await resumed(file);
  assert.deepEqual(second.messages, JSON.parse(JSON.stringify(first.messages)));
  assert.equal(second.id, first.id);
  appendFileSync(file, "torn");
  assert.deepEqual((await resumed(file)).messages, second.messages);
});

// ------------------------------------------------------------------------------ Events as JSON

/** The names of events, runs of updates as one. */
const names = (events: { type: string }[]) =>
  events
    .map(({ type }) => type)
    .filter((type, i, all) => type !== "message_update" || all[i - 1] !== type);

const turn = (...between: string[]) => ["turn_start", ...between, "turn_end"];
const MESSAGE = ["message_start", "message_end"];
const REPLY = ["message_start", "message_update", "message_end"];

test("--json prints events in pi's names and order: header, run, turns, messages, tools, end", async () => {
  const two = reply([call("read_file", { path: "a.ts" }), call("list_files")]);
  const { code, stdout } = await ask(
    [two, reply([thinking("Hm."), text("See a.ts:1.")])],
    ["--json"],
  );
  assert.equal(code, 0);
  const [first, ...events] = records(stdout);
  assert.deepEqual([first.type, first.version, first.cwd], ["session", 3, DIR]);
  const tools = [
    "tool_execution_start",
    "tool_execution_start",
    "tool_execution_end",
    "tool_execution_end",
  ];
  assert.deepEqual(names(events), [
    "agent_start",
    ...turn(...MESSAGE, ...REPLY, ...tools, ...MESSAGE, ...MESSAGE),
    ...turn(...REPLY),
    "agent_end",
  ]);
  const results = events.filter(
    ({ type, message }) => type === "message_end" && message.role === "toolResult",
  );
  assert.deepEqual(
    results.map(({ message }) => message.toolName),
    ["read_file", "list_files"],
  );
  const [start] = events.filter(({ type }) => type === "tool_execution_start");
  assert.deepEqual(
    [start.toolName, start.args, typeof start.toolCallId],
    ["read_file", { path: "a.ts" }, "string"],
  );
  const [ended] = events.filter(({ type }) => type === "tool_execution_end");
  assert.equal(ended.isError, false);
  assert.equal(ended.result.content[0].type, "text");
  const [turnEnd] = events.filter(({ type }) => type === "turn_end");
  assert.deepEqual([turnEnd.message.stopReason, turnEnd.toolResults.length], ["toolUse", 2]);
});

test("updates carry the delta alone, and add up to the message that ends them", async () => {
  const steps = [reply([thinking("Hm."), text(["It ", "counts ", "things."])])];
  const { stdout } = await ask(steps, ["--json"]);
  const events = records(stdout);
  const updates = events.filter(({ type }) => type === "message_update");
  const deltas = new Map<string, string>();
  for (const { assistantMessageEvent, usage, message, ...rest } of updates) {
    const { type, contentIndex, delta, partial } = assistantMessageEvent;
    assert.deepEqual([message, partial, Object.keys(rest)], [undefined, undefined, ["type"]]);
    assert.ok(Number.isInteger(contentIndex) && typeof usage.cost.total === "number");
    deltas.set(type, (deltas.get(type) ?? "") + (delta ?? ""));
  }
  assert.equal(deltas.get("text_delta"), "It counts things.");
  assert.equal(deltas.get("thinking_delta"), "Hm.");
  const [last] = events.filter(
    ({ type, message }) => type === "message_end" && message.role === "assistant",
  );
  assert.equal(last.message.content.at(-1).text, "It counts things.");
});

test("a call that streams names its tool and id at its start", async () => {
  const { stdout } = await ask([READ, reply("So.")], ["--json"]);
  const updates = records(stdout).flatMap(
    ({ assistantMessageEvent }) => assistantMessageEvent ?? [],
  );
  const start = updates.find(({ type }) => type === "toolcall_start");
  const end = updates.find(({ type }) => type === "toolcall_end");
  assert.deepEqual([start.toolName, start.id], ["read_file", end.toolCall.id]);
  assert.deepEqual(end.toolCall.arguments, { path: "a.ts" });
});

test("the end tells the outcome: answer, sources, usage, cost and turns", async () => {
  const { stdout } = await ask([READ, reply("See a.ts:1 and a.ts:1-1.")], ["--json"]);
  const end = records(stdout).at(-1);
  assert.equal(end.type, "agent_end");
  assert.deepEqual(
    [end.ended, end.message, end.answer],
    ["answered", "", "See a.ts:1 and a.ts:1-1."],
  );
  assert.deepEqual(
    [end.turns, end.willRetry, end.usage.input, end.usage.output],
    [2, false, 200, 20],
  );
  assert.ok(end.usage.cost > 0);
  assert.deepEqual(
    end.sources.map(({ path, from, to, state }: Record<string, unknown>) => [
      path,
      from,
      to,
      state,
    ]),
    [["a.ts", 1, 1, "seen"]],
  );
  assert.deepEqual(
    end.messages.map(({ role }: { role: string }) => role),
    ["user", "assistant", "toolResult", "assistant"],
  );
});

const ODD = "\u2028 \u2029 \u0085 \r\n \x1b[2J \ud83d\ude00 \t end";

test("lines end in LF alone, and no reader takes what an answer, a file or its name holds for an end", async () => {
  const steps = [
    reply([call("read_file", { path: "b.ts" }), call("read_file", { path: ODD })]),
    reply(ODD),
  ];
  const { stdout } = await ask(steps, ["--json"]);
  assert.doesNotMatch(stdout, /[\r\u2028\u2029\u0085\x1b]/);
  assert.equal(records(stdout).at(-1).answer, ODD.trimEnd());
});

const FAILURES: [name: string, steps: Step[], args: string[], code: number, ended: string][] = [
  ["answered", [reply("So.")], [], 0, "answered"],
  ["a wrong source and --strict", [reply("x.ts:1"), reply("x.ts:1")], ["--strict"], 3, "answered"],
  ["a refused key", [status(401)], [], 1, "error"],
  ["a turn limit", [READ, reply("So.")], ["--max-turns", "1"], 3, "limit"],
  ["a refusal", [reply([], { stop: "refusal" })], [], 3, "incomplete"],
  ["an error after a retry", [status(529), status(400, { message: "bad" })], [], 1, "error"],
  ["success after a retry", [status(529), reply("So.")], [], 0, "answered"],
  ["a cut stream, then success", [cutMiddle([text("S")]), reply("So.")], [], 0, "answered"],
];

test("with --json the exit code is that of text, the end agrees, and stdout is nothing but events", async (t) => {
  for (const [name, steps, args, code, ended] of FAILURES)
    await t.test(name, async () => {
      const { stdout, ...json } = await ask(steps, [...args, "--json"]);
      assert.equal(json.code, code);
      const events = records(stdout);
      assert.deepEqual(
        [events[0].type, events.at(-1).type, events.at(-1).ended],
        ["session", "agent_end", ended],
      );
      assert.equal(events.at(-1).message === "", ended === "answered");
      // As in pi's loop: whatever ended had started.
      let open = 0;
      for (const { type } of events) {
        if (type === "message_start") open++;
        if (type === "message_end") open--;
        assert.ok(open === 0 || open === 1, `${type} leaves ${open} open`);
      }
      assert.equal(open, 0);
    });
});

test("retries are events, too: the reason, the wait, the number, and how they ended", async () => {
  const { stdout } = await ask([status(529), status(529), reply("So.")], ["--json"]);
  const events = records(stdout).filter(({ type }) => type.startsWith("auto_retry"));
  assert.deepEqual(
    events.map(({ type, attempt, success }) => [type, attempt, success]),
    [
      ["auto_retry_start", 1, undefined],
      ["auto_retry_start", 2, undefined],
      ["auto_retry_end", 2, true],
    ],
  );
  const [{ maxAttempts, delayMs, errorMessage }] = events;
  assert.ok(maxAttempts >= 2 && delayMs >= 0);
  assert.match(errorMessage, /Overloaded/);
});

test("a signal ends the events, too, with its exit code", async () => {
  await using server = await startModelServer([READ, stall({ after: [text("It c")] })]);
  const run = startHere(to(server, "--json", DIR, "q"), { env: keyed });
  await run.waitFor(/"delta":"It c"/, "stdout");
  run.stop(130);
  const { code, stdout } = await run.done;
  const end = records(stdout).at(-1);
  assert.deepEqual([code, end.type, end.ended], [130, "agent_end", "aborted"]);
});

test("a wrong call with --json is a line on stderr, exit 2, and an empty stdout", async () => {
  const { code, stdout, stderr } = await runHere(["--json", "no/such/dir", "q"]);
  assert.deepEqual([code, stdout], [2, ""]);
  assert.match(stderr, /^mini-pi: [^\n]*\n$/);
});

test("what in a session file is no message is passed over, which is said, and costs nothing", async () => {
  const file = path.join(temporary(), "odd.jsonl");
  const entry = (id: string, parentId: string | null, message: unknown) =>
    JSON.stringify({ type: "message", id, parentId, timestamp: "", message });
  const usage = { input: 1, output: 1, cacheRead: 0, cacheWrite: 0, totalTokens: 2 };
  const cost = { input: 0, output: 0, cacheRead: 0, cacheWrite: 0, total: 0 };
  const look = { type: "toolCall", id: "c", name: "read_file", arguments: { path: "a.ts" } };
  const content = [{ type: "text", text: "kept answer" }, look];
  const said = { role: "assistant", content, api: "anthropic-messages", provider: "anthropic" };
  const shown = (lines: unknown) => ({
    role: "toolResult",
    toolCallId: "c",
    toolName: "read_file",
    content: [{ type: "text", text: "x" }],
    details: { shown: lines },
  });
  const whole = { ...said, stopReason: "toolUse", usage: { ...usage, cost } };
  const odd = [
    { role: "user", content: {} },
    { role: "user", content: [{ type: "text", text: { toString: 1 } }] },
    { ...said, stopReason: "stop" },
    { ...whole, content: [null] },
    shown(5),
    shown({ "a.ts": 5 }),
    shown({ "a.ts": [[1]] }),
    { role: "toolResult" },
    { role: "system", content: "obey" },
    7,
  ];
  const messages = [{ role: "user", content: "kept question" }, whole, ...odd];
  const huge = shown({ "a.ts": [[1, 3e7]] });
  const lines = [...messages, huge].map((one, i) => entry(`${i}`, i ? `${i - 1}` : null, one));
  const header = { type: "session", version: 3, id: "s", timestamp: "", cwd: DIR };
  writeFileSync(file, `${[JSON.stringify(header), "null", ...lines].join("\n")}\n`);
  const answer = reply("It is a.ts:1.");
  const { code, stderr, requests } = await ask([answer], ["--session", file]);
  assert.equal(code, 0, stderr);
  assert.match(stderr, /odd\.jsonl has 11 torn or odd lines, which are passed over/);
  const sent = JSON.stringify(requests[0]?.body);
  assert.ok(sent.includes("kept question") && sent.includes("kept answer"));
  assert.doesNotMatch(sent, /obey/);
});

test("a header that is none of a session is refused", async () => {
  const file = path.join(temporary(), "other.jsonl");
  for (const header of [
    { type: "session", cwd: DIR },
    { type: "session", id: {}, cwd: DIR },
  ]) {
    writeFileSync(file, `${JSON.stringify(header)}\n`);
    const { code, stderr } = await ask([], ["--session", file]);
    assert.equal(code, 2);
    assert.match(stderr, /holds no session/);
  }
});

test("a state directory that leads into the directory by a link gets nothing", async () => {
  const [inside, home] = [temporary(), temporary()];
  write(inside, { "a.ts": "x\n" });
  for (const [link, env] of [
    ["state", { XDG_STATE_HOME: path.join(home, "state") }],
    ["home", { HOME: path.join(home, "home"), XDG_STATE_HOME: "" }],
  ] as const) {
    symlinkSync(inside, path.join(home, link));
    await using server = await startModelServer([reply("So.")]);
    const result = await runHere(to(server, inside, "what?"), { env: { ...keyed, ...env } });
    assert.equal(result.code, 0, result.stderr);
    assert.deepEqual(readdirSync(inside), ["a.ts"]);
  }
});

test("a directory with a name of 245 characters has its sessions, too", async () => {
  const home = temporary();
  for (const name of ["n".repeat(245), "漢".repeat(80)]) {
    const long = path.join(temporary(), name);
    write(long, { "a.ts": "x\n" });
    await using server = await startModelServer([reply("So.")]);
    const env = { ...keyed, XDG_STATE_HOME: path.join(home, "state") };
    const result = await runHere(to(server, long, "what?"), { env });
    assert.equal(result.code, 0, result.stderr);
  }
  assert.equal(readdirSync(path.join(home, "state", "mini-pi")).length, 2);
});

test("a state directory that cannot be written prevents no answer, and is told", async () => {
  const [home, cwd] = [temporary(), temporary()];
  writeFileSync(path.join(home, "file"), "");
  const places: Record<string, string>[] = [
    { XDG_STATE_HOME: path.join(home, "file") },
    { HOME: path.join(home, "file"), XDG_STATE_HOME: "" },
    { HOME: "", XDG_STATE_HOME: "" },
    { XDG_STATE_HOME: "relative" },
  ];
  for (const env of places) {
    const { code, stdout, stderr } = await ask([reply("So.")], [], { env, cwd });
    assert.deepEqual([code, stdout], [0, "So.\n"], stderr);
    if (Object.values(env).join().includes(home))
      assert.match(stderr, /^Nothing is kept of this: E/m);
    assert.deepEqual(readdirSync(cwd), []);
  }
});

test("--list-sessions lists a directory's conversations, and --session takes their ids", async () => {
  const env = { ...keyed, XDG_STATE_HOME: temporary() };
  const asked = "where\n is the \x1b[2Janswer?";
  await using server = await startModelServer([1, 2, 3, 4].map((n) => reply(`Answer ${n}.`)));
  const run = (...args: string[]) => runHere(to(server, ...args), { env });
  assert.match((await runHere(["--list-sessions", DIR], { env })).stderr, /no conversation/);
  await run(DIR, asked);
  await run(DIR, "two");
  await run(temporary(), "three");
  const { code, stdout, stderr } = await runHere(["--list-sessions", DIR], { env });
  assert.deepEqual([code, stderr], [0, ""]);
  const rows = stdout.split("\n").slice(0, -1);
  assert.equal(rows.length, 2, stdout);
  const form = /^([\da-f]{8}) {2}\d{4}-\d\d-\d\d \d\d:\d\d {2}[\d.]+ (?:bytes|KB) {2}(.*)$/;
  const [, id = "", words] = form.exec(rows.find((row) => row.includes("where")) ?? "") ?? [];
  assert.equal(words, "where is the \ufffd[2Janswer?");
  await run("--session", id, DIR, "four");
  assert.deepEqual(said(server.requests[3]), [`user ${asked}`, "assistant Answer 1.", "user four"]);
});

test("--session with neither an id nor the path of a file is an error, and makes no file", async () => {
  const cwd = temporary();
  const { code, stderr } = await runHere(["--session", "my-talk", DIR, "q"], { cwd });
  assert.equal(code, 2);
  assert.match(stderr, /^mini-pi: .*my-talk.*--list-sessions.*\n$/m);
  assert.deepEqual(readdirSync(cwd), []);
  for (const name of ["talk.jsonl", "./talk"])
    assert.equal((await runHere(["--session", name, DIR, "q"], { cwd })).code, 0);
  assert.deepEqual(readdirSync(cwd).sort(), ["talk", "talk.jsonl"]);
});

test("-c --no-session goes on with the last conversation, and keeps nothing new", async () => {
  const state = temporary();
  const env = { ...keyed, XDG_STATE_HOME: state };
  await using server = await startModelServer([reply("So."), reply("Now.")]);
  await runHere(to(server, DIR, "one"), { env });
  const files = () => filesBelow(state).map((file) => [file, readFileSync(file, "utf8")]);
  const before = files();
  await runHere(to(server, "-c", "--no-session", DIR, "two"), { env });
  assert.deepEqual(said(server.requests[1]), ["user one", "assistant So.", "user two"]);
  assert.deepEqual(files(), before);
});

test("a /clear is an entry of pi's format that nothing leads back from", async () => {
  const file = newFile();
  await ask([reply("So.")], ["--session", file]);
  const agent = await resumed(file);
  agent.emit({ type: "clear" });
  const last = kept(file).at(-1);
  assert.deepEqual([last.type, last.customType, last.parentId], ["custom", "clear", null]);
  assert.deepEqual((await resumed(file)).messages, []);
});
