// Conversations: what is typed goes in as keys, and the scripted server says what the model came to
// hear. Most are in this process, whose streams play the terminal; some are on a real one, made by
// script(1), which must be left as it was.

import assert from "node:assert/strict";
import { spawnSync } from "node:child_process";
import { globSync, readFileSync, statSync } from "node:fs";
import path from "node:path";
import { test } from "node:test";
import { createAgent, findModel, saveSession } from "../mini-pi.ts";
import { temporary, write } from "./fixtures.ts";
import {
  call,
  type ModelRequest,
  type ModelServer,
  reply,
  type Step,
  stall,
  startModelServer,
  status,
  text,
} from "./model-server.ts";
import {
  atServer,
  command,
  MINI_PI,
  onTerminal,
  runHere,
  startHere,
  startTerminal,
  type Watched,
} from "./run-cli.ts";

const DIR = temporary();
write(DIR, { "a.ts": "export const answer = 42;\n", "b.ts": "export const other = 43;\n" });
const READ = reply([call("read_file", { path: "a.ts" })]);
const KEYS = {
  enter: "\r",
  up: "\x1b[A",
  discard: "\x15",
  suspend: "\x1a",
  interrupt: "\x03",
  end: "\x04",
  paste: (text: string) => `\x1b[200~${text.replaceAll("\n", "\r")}\x1b[201~`,
};

/** The turns, without notes on the effort that are no one's. */
const turns = (request: ModelRequest | undefined) =>
  request?.history.filter(({ role }) => role !== "system") ?? [];

/** What the user has said, of all turns that hold words of theirs. */
const said = (request: ModelRequest | undefined) =>
  request?.history.flatMap(({ role, content }) =>
    role === "user" ? content.flatMap((block) => (block.type === "text" ? [block.text] : [])) : [],
  ) ?? [];

interface Conversation {
  run: Watched;
  /** Waits for a match in what has come since the last one. */
  see(pattern: RegExp): Promise<RegExpExecArray>;
  type(keys: string): void;
  enter(line: string): void;
}

/** Starts a conversation in this process and waits for its prompt. */
async function begin(
  server: ModelServer,
  args: string[] = [],
  dir = DIR,
  env: Record<string, string> = {},
): Promise<Conversation> {
  const all = { ...environment(server), ...env };
  const options = { env: all, input: "open", terminal: true } as const;
  const run = startHere(atServer(server, ...args, dir), options);
  return prompted(run, (keys) => void run.stdin.write(keys));
}

/** Starts a conversation on a real terminal, whose settings go to a file before and after it. */
async function beginOnTerminal(server: ModelServer) {
  const state = path.join(temporary(), "terminal");
  const start = `stty rows 40 cols 150; tty >${state}.tty; stty -g >${state}`;
  const line = `${start}; ${command(...atServer(server, DIR))}; code=$?; stty -g >>${state}; exit $code`;
  const run = startTerminal(line, { env: environment(server), input: "open" });
  return { state, ...(await prompted(run, (keys) => void run.child.stdin?.write(keys))) };
}

/** Two keys. A request to any other host would meet the server as a proxy, and fail. */
const environment = (server: ModelServer) => {
  const proxy = { NODE_USE_ENV_PROXY: "1", HTTPS_PROXY: server.url, NO_PROXY: "127.0.0.1" };
  const keys = { ANTHROPIC_API_KEY: "key", DEEPSEEK_API_KEY: "key", MINI_PI_RETRY_MS: "10" };
  return { TERM: "xterm", NO_COLOR: "1", ...keys, ...proxy };
};

async function prompted(run: Watched, type: (keys: string) => void): Promise<Conversation> {
  let from = 0;
  const see = async (pattern: RegExp) => {
    const later = new RegExp(
      `(?<=^[\\s\\S]{${from}}[\\s\\S]*?)(?:${pattern.source})`,
      pattern.flags,
    );
    const found = await run.waitFor(later, "stdout");
    from = found.index + found[0].length;
    return found;
  };
  await see(/> /);
  return { run, see, type, enter: (line) => type(`${line}${KEYS.enter}`) };
}

/** Leaves it, if it is not left already; what must hold however it went. */
async function finish({ run, type }: Conversation, how: string = KEYS.end) {
  type(how);
  const result = await run.done;
  assert.equal(result.timedOut, false, result.stdout);
  assert.doesNotMatch(result.stdout + result.stderr, /\bERR_|\n {4}at |Unhandled|Warning/);
  return result;
}

async function finishOnTerminal(conversation: Conversation & { state: string }, how?: string) {
  const result = await finish(conversation, how);
  const [before, after] = readFileSync(conversation.state, "utf8").split("\n");
  assert.equal(after, before, "the terminal is as it was");
  return result;
}

/** Sees an answer, the summary after it, and the prompt. */
const answered = async ({ see }: Conversation, answer: RegExp) => {
  await see(answer);
  await see(/\d turns?, .*anthropic\/[\s\S]*?> /);
};

/** A step that waits until the test lets it go on. */
function held(step: Step): { step: Step; release(): void } {
  let release = () => {};
  const released = new Promise<void>((done) => {
    release = done;
  });
  const wait: Step = async () => {
    await released;
    return step;
  };
  return { step: wait, release: () => release() };
}

test("a second question is asked in the context of the first", async () => {
  await using server = await startModelServer([
    READ,
    reply("It is 42: a.ts:1."),
    reply("它在第一行。"),
  ]);
  const conversation = await begin(server);
  conversation.enter("what is it?");
  await answered(conversation, /It is 42: a\.ts:1\.\n/);
  conversation.enter("在哪里？");
  await answered(conversation, /它在第一行。\n/);
  assert.equal((await finish(conversation)).code, 0);
  assert.deepEqual(said(server.requests[2]), ["what is it?", "在哪里？"]);
  assert.equal(turns(server.requests[2]).length, 5);
  assert.deepEqual(server.problems, []);
});

test("what is typed while it works reaches the model before its next request", async () => {
  const first = held(READ);
  await using server = await startModelServer([first.step, reply("Both: a.ts:1.")]);
  const conversation = await begin(server);
  conversation.enter("what is it?");
  await server.request(1);
  conversation.enter("and b.ts, too");
  await conversation.see(/queued/);
  first.release();
  await answered(conversation, /Both: a\.ts:1\./);
  await finish(conversation);
  assert.deepEqual(said(server.requests[1]), ["what is it?", "and b.ts, too"]);
  const last = turns(server.requests[1]).slice(2);
  const types = last.flatMap(({ content }) => content.map(({ type }) => type));
  assert.deepEqual(types, ["tool_result", "text"]);
  assert.deepEqual([server.requests.length, server.problems], [2, []]);
});

test("what is typed as it ends is the next question, and starts by itself", async () => {
  const first = held(reply("The first answer."));
  await using server = await startModelServer([first.step, reply("The second answer.")]);
  const conversation = await begin(server);
  conversation.enter("one");
  await server.request(1);
  conversation.enter("two");
  await conversation.see(/queued/);
  first.release();
  await conversation.see(/The first answer\.\n/);
  await answered(conversation, /The second answer\.\n/);
  await finish(conversation);
  assert.deepEqual(said(server.requests[1]), ["one", "two"]);
});

test(
  "Ctrl-C stops the work and keeps the conversation; at the prompt it leaves",
  onTerminal,
  async () => {
    await using server = await startModelServer([
      stall({ after: [text("It c")] }),
      reply("It counts."),
    ]);
    const conversation = await beginOnTerminal(server);
    conversation.enter("one");
    await conversation.see(/It c/);
    conversation.type(KEYS.interrupt);
    await conversation.see(/interrupted[\s\S]*> /);
    conversation.enter("two");
    await answered(conversation, /It counts\.\r\n/);
    const { code } = await finishOnTerminal(conversation, KEYS.interrupt);
    assert.ok(code === 0 || code === 130, `${code}`);
    assert.deepEqual(server.problems, []);
    assert.ok(said(server.requests[1]).includes("two"));
  },
);

test("Ctrl-C before the model has said a word, and while it waits to try again, keeps it, too", async () => {
  const busy = status(529, { headers: { "retry-after": "30" } });
  await using server = await startModelServer([stall(), busy, reply("It counts.")]);
  const conversation = await begin(server);
  conversation.enter("one");
  await server.request(1);
  conversation.type(KEYS.interrupt);
  await conversation.see(/interrupted[\s\S]*> /);
  conversation.enter("two");
  await conversation.see(/retry 1/);
  conversation.type(KEYS.interrupt);
  await conversation.see(/interrupted[\s\S]*> /);
  conversation.enter("three");
  await answered(conversation, /It counts\.\n/);
  await finish(conversation);
  assert.deepEqual(server.problems, []);
});

test("Ctrl-C while tools run leaves every call answered", async () => {
  const patterns = ["a", "b", "c", "d", "e", "f"].map((c) => `${c}.*${c}{3}.*(x|${c})+q{7}`);
  const calls = patterns.map((pattern) => call("search_files", { pattern }));
  await using server = await startModelServer([reply(calls), reply("It counts.")]);
  const conversation = await begin(server, [], path.join(MINI_PI, "../node_modules"));
  conversation.enter("one");
  await conversation.see(/search_files f/);
  conversation.type(KEYS.interrupt);
  await conversation.see(/interrupted[\s\S]*> /);
  conversation.enter("two");
  await answered(conversation, /It counts\.\n/);
  await finish(conversation);
  const results = server.requests[1]?.history.flatMap(({ content }) =>
    content.filter(({ type }) => type === "tool_result"),
  );
  assert.deepEqual([results?.length, server.problems], [6, []]);
});

for (const [name, keys, codes] of [
  ["Ctrl-D", KEYS.end, [0]],
  ["Ctrl-C", KEYS.interrupt, [0, 130]],
  ["/exit", `/exit${KEYS.enter}`, [0]],
] as const)
  test(`${name} at the prompt leaves, before and after a question`, async () => {
    await using server = await startModelServer([reply("So.")]);
    const unasked = await finish(await begin(server), keys);
    const conversation = await begin(server);
    conversation.enter("one");
    await answered(conversation, /So\.\n/);
    const asked = await finish(conversation, keys);
    for (const { code } of [unasked, asked])
      assert.ok(
        codes.some((one) => one === code),
        `${code}`,
      );
  });

test("the end of input while it works lets the answer finish", async () => {
  const first = held(READ);
  const second = held(reply("It is 42: a.ts:1."));
  await using server = await startModelServer([first.step, second.step]);
  const conversation = await begin(server);
  conversation.enter("what is it?");
  await server.request(1);
  conversation.type(KEYS.end);
  first.release();
  await server.request(2);
  second.release();
  const { code, stdout } = await finish(conversation, "");
  assert.equal(code, 0);
  assert.match(stdout, /It is 42: a\.ts:1\.\n/);
  assert.match(stdout, /sources: 1 seen/);
});

test("lines that are pasted are one question", async () => {
  await using server = await startModelServer([reply("So."), reply("And so.")]);
  const conversation = await begin(server);
  conversation.type(KEYS.paste("what is this?\n\tat one (a.ts:1)\n\n\tat two (b.ts:1)"));
  conversation.type(KEYS.enter);
  await answered(conversation, /So\.\n/);
  conversation.type(`why ${KEYS.paste("one\ntwo\n")}`);
  conversation.enter("three?");
  await answered(conversation, /And so\.\n/);
  await finish(conversation);
  const [first = "", second] = said(server.requests[1]);
  assert.match(`${first}`, /^what is this\?\n\s*at one \(a\.ts:1\)\n\n\s*at two \(b\.ts:1\)$/);
  assert.equal(second, "why one\ntwo\nthree?");
  assert.equal(server.requests.length, 2);
});

test("the arrow keys bring back what was asked", async () => {
  await using server = await startModelServer([reply("So."), reply("So again.")]);
  const conversation = await begin(server);
  conversation.enter("what is it?");
  await answered(conversation, /So\.\n/);
  conversation.type(`${KEYS.up}${KEYS.enter}`);
  await answered(conversation, /So again\.\n/);
  await finish(conversation);
  assert.deepEqual(said(server.requests[1]), ["what is it?", "what is it?"]);
});

test("/help shows the commands; neither it, nor an unknown one, nor an empty line asks the model", async () => {
  await using server = await startModelServer([]);
  const conversation = await begin(server);
  for (const line of ["/help", "/frobnicate"]) {
    conversation.enter(line);
    await conversation.see(/\/model.*\/clear.*\/exit[\s\S]*?> /);
  }
  conversation.enter("");
  conversation.enter("   ");
  await finish(conversation);
  assert.equal(server.requests.length, 0);
});

test("a command that is typed while it works does not go to the model", async () => {
  const first = held(READ);
  await using server = await startModelServer([first.step, reply("So.")]);
  const conversation = await begin(server);
  conversation.enter("one");
  await server.request(1);
  conversation.enter("/help");
  conversation.enter("two");
  await conversation.see(/queued/);
  first.release();
  await answered(conversation, /So\.\n/);
  await finish(conversation);
  assert.deepEqual(said(server.requests[1]), ["one", "two"]);
});

test(
  "a terminal that is resized while one types, and while it works, loses nothing",
  onTerminal,
  async () => {
    const first = held(
      reply("It counts, as the long answer says that is wider than the terminal."),
    );
    await using server = await startModelServer([first.step, reply("Yes.")]);
    const talk = await beginOnTerminal(server);
    const resize = (rows: number, columns: number) => {
      const tty = readFileSync(`${talk.state}.tty`, "utf8").trim();
      spawnSync("stty", ["-F", tty, "rows", `${rows}`, "cols", `${columns}`]);
    };
    talk.type("what is a question that is wider ");
    await talk.see(/wider/);
    resize(10, 30);
    talk.enter("than the terminal?");
    await server.request(1);
    resize(3, 12);
    talk.type("sure");
    resize(40, 150);
    first.release();
    await talk.see(/It counts, as the long answer says that is wider than the terminal\./);
    talk.enter("?");
    await answered(talk, /Yes\./);
    await finishOnTerminal(talk, `/exit${KEYS.enter}`);
    assert.deepEqual(said(server.requests[1]), [
      "what is a question that is wider than the terminal?",
      "sure?",
    ]);
  },
);

test("/clear forgets what was said, also for a later resume", async () => {
  await using server = await startModelServer([reply("So."), reply("Anew.")]);
  const file = path.join(temporary(), "session.jsonl");
  const conversation = await begin(server, ["--session", file]);
  conversation.enter("one");
  await answered(conversation, /So\.\n/);
  conversation.enter("/clear");
  await conversation.see(/0 messages[\s\S]*?> /);
  conversation.enter("two");
  await answered(conversation, /Anew\.\n/);
  await finish(conversation);
  assert.deepEqual(said(server.requests[1]), ["two"]);
  const agent = await createAgent(DIR, await findModel("offline/search"));
  saveSession(agent, file);
  assert.deepEqual(
    agent.messages.map(({ role }) => role),
    ["user", "assistant"],
  );
});

test(
  "/model changes the model and keeps the conversation and the base URL",
  onTerminal,
  async () => {
    await using server = await startModelServer([reply("So."), reply("So, too.")]);
    const conversation = await beginOnTerminal(server);
    conversation.enter("one");
    await answered(conversation, /So\.\r\n/);
    conversation.enter("/model anthropic/claude-fable-5");
    await conversation.see(/anthropic\/claude-fable-5, 2 messages/);
    conversation.enter("two");
    await answered(conversation, /(So, too|mini-pi: ).*\r\n/);
    assert.equal((await finishOnTerminal(conversation)).code, 0);
    assert.equal(server.requests[1]?.body.model, "claude-fable-5");
    assert.deepEqual(said(server.requests[1]), ["one", "two"]);
  },
);

test("an error leaves the conversation usable", async () => {
  await using server = await startModelServer([status(400, { message: "bad" }), reply("So.")]);
  const conversation = await begin(server);
  conversation.enter("one");
  await conversation.see(/mini-pi: .*bad[\s\S]*?> /);
  conversation.enter("two");
  await answered(conversation, /So\.\n/);
  assert.equal((await finish(conversation)).code, 0);
  assert.deepEqual(server.problems, []);
});

test("the time after an answer is that of its question", async () => {
  await using server = await startModelServer([reply([text(["So", "."], 400)]), reply("So, too.")]);
  const conversation = await begin(server);
  conversation.enter("one");
  const [, first] = await conversation.see(/(\d+\.\d) s, anthropic[\s\S]*?> /);
  const start = performance.now();
  conversation.enter("two");
  const [, second] = await conversation.see(/(\d+\.\d) s, anthropic[\s\S]*?> /);
  const waited = (performance.now() - start) / 1000;
  await finish(conversation);
  assert.ok(Number(first) >= 0.4, `${first} s`);
  assert.ok(Number(second) <= waited + 0.1, `${second} s of ${waited} s`);
});

test("lines that were pasted and discarded are not sent", async () => {
  await using server = await startModelServer([reply("So."), reply("And so.")]);
  const conversation = await begin(server);
  conversation.type(KEYS.paste("secret one\nsecret two"));
  conversation.type(KEYS.discard);
  conversation.enter("what is it?");
  await answered(conversation, /So\.\n/);
  // A paste that ends in a line break leaves an empty line, at which Ctrl-C does not leave.
  conversation.type(KEYS.paste("secret three\nsecret four\n"));
  conversation.type(KEYS.interrupt);
  conversation.enter("and now?");
  await answered(conversation, /And so\.\n/);
  await finish(conversation);
  assert.deepEqual(said(server.requests[1]), ["what is it?", "and now?"]);
});

test("a line that ends in a backslash goes on in the next", async () => {
  await using server = await startModelServer([reply("So."), reply("And so.")]);
  const conversation = await begin(server);
  conversation.enter("what is\\");
  conversation.enter("this?");
  await answered(conversation, /So\.\n/);
  conversation.type(KEYS.paste("#define A \\\n  1"));
  conversation.enter("");
  await answered(conversation, /And so\.\n/);
  await finish(conversation);
  assert.deepEqual(said(server.requests[1]), ["what is\nthis?", "#define A \\\n  1"]);
});

test("what /clear forgot does not come back when one leaves and goes on with -c", async () => {
  await using server = await startModelServer([reply("So."), reply("Anew.")]);
  const env = { XDG_STATE_HOME: temporary() };
  const first = await begin(server, [], DIR, env);
  first.enter("the secret?");
  await answered(first, /So\.\n/);
  first.enter("/clear");
  await first.see(/0 messages[\s\S]*?> /);
  await finish(first, `/exit${KEYS.enter}`);
  const second = await begin(server, ["-c"], DIR, env);
  assert.doesNotMatch(second.run.stdout(), /the secret/);
  second.enter("two");
  await answered(second, /Anew\.\n/);
  await finish(second);
  assert.deepEqual(said(server.requests[1]), ["two"]);
});

test("-c on a terminal shows the last exchange, and the up-arrow what was typed in earlier runs", async () => {
  await using server = await startModelServer([
    reply("It is 42."),
    reply("Still 42."),
    reply("No."),
  ]);
  const state = temporary();
  const env = { XDG_STATE_HOME: state };
  const first = await begin(server, [], DIR, env);
  first.enter("what is it?");
  await answered(first, /It is 42\.\n/);
  await finish(first);
  const [history = ""] = globSync("mini-pi/*/history", { cwd: state });
  assert.equal(statSync(path.join(state, history)).mode & 0o777, 0o600);
  const second = await begin(server, ["-c"], DIR, env);
  assert.match(second.run.stdout(), /> what is it\?\nIt is 42\.\n.*\/help/);
  second.type(`${KEYS.up}${KEYS.enter}`);
  await answered(second, /Still 42\.\n/);
  await finish(second);
  assert.deepEqual(said(server.requests[1]), ["what is it?", "what is it?"]);
  const unkept = await begin(server, ["--no-session"], DIR, env);
  unkept.type(KEYS.up);
  unkept.enter("hidden");
  await answered(unkept, /No\.\n/);
  await finish(unkept);
  assert.deepEqual(said(server.requests[2]), ["hidden"]);
  assert.doesNotMatch(readFileSync(path.join(state, history), "utf8"), /hidden/);
});

test("once --max-cost is reached, a further question is refused without a request", async () => {
  await using server = await startModelServer([reply("So.")]);
  const env = { XDG_STATE_HOME: temporary() };
  const conversation = await begin(server, ["--max-cost", "0.0001"], DIR, env);
  conversation.enter("one");
  await answered(conversation, /So\.\n/);
  conversation.enter("two");
  await conversation.see(/not asked: \$0\.\d+ of --max-cost 0\.0001 are spent.*-c[\s\S]*?> /);
  conversation.enter("/cost");
  await conversation.see(/\$0\.\d+: 100 tokens in/);
  await finish(conversation);
  assert.equal(server.requests.length, 1);
  const args = atServer(server, "-c", "--max-cost", "0.0001", DIR, "three");
  const again = await runHere(args, { env: { ...environment(server), ...env } });
  assert.deepEqual([again.code, server.requests.length], [2, 1]);
  assert.match(again.stderr, /^mini-pi: not asked: /m);
});

test("the limits that were given hold for a model that /model takes, and /model alone lists some", async () => {
  await using server = await startModelServer([reply("So.")]);
  const conversation = await begin(server, ["--max-cost", "1", "--context", "5000"]);
  conversation.enter("/model");
  await conversation.see(
    /anthropic\/claude-sonnet-5-5, deepseek.*--list-models.*\nanthropic[\s\S]*?> /,
  );
  conversation.enter("/model some-model-without-a-price");
  await conversation.see(/some-model-without-a-price has no known price[\s\S]*?> /);
  conversation.enter("/model anthropic/claude-fable-5");
  await conversation.see(/anthropic\/claude-fable-5, 0 messages/);
  await finish(conversation);
});

test("what is printed does not run into a line that is half typed, which is drawn again below", async () => {
  const [first, second] = [held(READ), held(reply("It counts."))];
  await using server = await startModelServer([first.step, second.step, reply("Yes.")]);
  const conversation = await begin(server);
  conversation.enter("one");
  await server.request(1);
  conversation.type("are you su");
  await conversation.see(/are you su/);
  first.release();
  await server.request(2);
  // Wiped, the progress, and the line again.
  await conversation.see(/\r\x1b\[Jread_file a\.ts\n[\s\S]*> are you su/);
  second.release();
  await conversation.see(/\r\x1b\[J\n?It counts\.\n[\s\S]*> are you su/);
  conversation.enter("re?");
  await answered(conversation, /Yes\.\n/);
  await finish(conversation);
  assert.deepEqual(said(server.requests[2]), ["one", "are you sure?"]);
});

test("a dumb terminal gets no escape sequence", async () => {
  await using server = await startModelServer([reply("So.")]);
  const conversation = await begin(server, [], DIR, { TERM: "dumb" });
  conversation.type("what is it?\n");
  await answered(conversation, /So\.\n/);
  conversation.type("/exit\n");
  const { stdout } = await finish(conversation, "");
  assert.doesNotMatch(stdout, /\x1b/);
});

test("Ctrl-D leaves the shell's prompt on a line of its own", async () => {
  await using server = await startModelServer([]);
  const { stdout } = await finish(await begin(server));
  assert.match(stdout, /> [^\n]*\n$/);
});

test("Ctrl-Z at the prompt and fg bring the prompt back", onTerminal, async () => {
  await using server = await startModelServer([reply("So.")]);
  const run = startTerminal("bash --norc -i", { env: environment(server), input: "open" });
  const shell = (keys: string) => void run.child.stdin?.write(keys);
  shell(`PS1='sh$ '; stty cols 200; ${command(...atServer(server, DIR))}; echo code=$?\r`);
  await run.waitFor(/\/help tells more[\s\S]*> /, "stdout");
  shell(KEYS.suspend);
  await run.waitFor(/Stopped/, "stdout");
  shell("fg\r");
  await run.waitFor(/Stopped[\s\S]*fg\r\n[\s\S]*> /, "stdout");
  shell("what is it?\r");
  await run.waitFor(/So\.\r\n[\s\S]*anthropic\/[\s\S]*> /, "stdout");
  shell(KEYS.end);
  await run.waitFor(/anthropic\/[\s\S]*> .*\r\n.*sh\$ /, "stdout");
  shell("exit\r");
  const { stdout } = await run.done;
  assert.doesNotMatch(stdout, /unsettled|code=13/);
});
