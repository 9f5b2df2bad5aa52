// What a terminal shows of replies as they come, over broken connections, calls, and several parts;
// in what colours, and what it says meanwhile.

import assert from "node:assert/strict";
import { once } from "node:events";
import { realpathSync, symlinkSync } from "node:fs";
import path from "node:path";
import { PassThrough } from "node:stream";
import { test } from "node:test";
import { pathToFileURL } from "node:url";
import { stripVTControlCharacters } from "node:util";
import { fauxAssistantMessage, fauxToolCall } from "@earendil-works/pi-ai";
import { Type } from "typebox";
import { type AgentTool, createAgent, findModel, printText, runTool } from "../mini-pi.ts";
import { random, temporary, write } from "./fixtures.ts";
import {
  call,
  cutMiddle,
  midStreamError,
  reply,
  type Step,
  stall,
  startModelServer,
  text,
} from "./model-server.ts";
import { atServer, runHere, startHere, startShell } from "./run-cli.ts";

const DIR = temporary();
write(DIR, { "a.ts": "export const answer = 42;\n" });
const env = { ANTHROPIC_API_KEY: "key", NO_COLOR: "1", MINI_PI_RETRY_MS: "5" };

const AGAIN = "(the connection broke; starting again)\n";
const READ = call("read_file", { path: "a.ts" });
const cut = (...pieces: string[]) => cutMiddle([text(pieces)]);
const answer = (...pieces: string[]) => reply([text(pieces)]);

const SHOWN: [what: string, steps: Step[], shown: string][] = [
  ["an answer", [answer("One", " two.")], "One two.\n"],
  ["an answer that ends its line with one line break", [answer("One.\n")], "One.\n"],
  ["nothing of an attempt that broke before any text", [cut(), answer("One.")], "\nOne.\n"],
  [
    "that the connection broke, and the new text from its start",
    [cut("One t"), answer("One", " two.")],
    `One t\n${AGAIN}\nOne two.\n`,
  ],
  [
    "one line break only after an attempt that broke at the end of a line",
    [cut("One\n"), answer("One\ntwo.")],
    `One\n${AGAIN}\nOne\ntwo.\n`,
  ],
  [
    "each of two attempts that broke",
    [cut("O"), cut("One t"), answer("One two.")],
    `O\n${AGAIN}\nOne t\n${AGAIN}\nOne two.\n`,
  ],
  [
    "the parts of an answer as one",
    [reply([text("One t")], { stop: "max_tokens" }), answer("wo.")],
    "One two.\n",
  ],
  [
    "words beside calls on a line of their own, and a blank line below the calls",
    [reply([text("Let me"), READ]), answer("Let me say it.")],
    "Let me\n\nLet me say it.\n",
  ],
  [
    "an answer that is given again for its sources with a title between",
    [answer("See b.ts:9."), answer("It is not there.")],
    "See b.ts:9.\n\nCorrected answer:\nIt is not there.\n",
  ],
  ["an emoji that comes in two halves as one", [answer("a\ud83d", "\ude00b")], "a😀b\n"],
  ["an answer with an empty piece in it whole", [answer("", "One", "", " two.")], "One two.\n"],
];

/** What is on stderr beside it: calls, tries, sources, the cost. */
const NOTES = /^(read_file|retry|sources:|\d+ turns?,) ?.*\n/gm;

for (const [what, steps, expected] of SHOWN)
  test(`a terminal shows ${what}`, async () => {
    await using server = await startModelServer(steps);
    const args = [...atServer(server), "--no-session", DIR, "q"];
    const { code, stdout } = await runHere(args, { env, terminal: true });
    assert.deepEqual([code, server.problems], [0, []]);
    assert.equal(stdout.replace(NOTES, ""), expected);
  });

test("a pipe gets the answer only, however often the connection broke before it", async () => {
  await using server = await startModelServer([cut("One t"), cut("One"), answer("One two.")]);
  const { code, stdout } = await runHere([...atServer(server), "--no-session", DIR, "q"], { env });
  assert.deepEqual([code, stdout], [0, "One two.\n"]);
});

test("a terminal ends the line of an answer that was cut off by an error before it tells why", async () => {
  const error = { type: "invalid_request_error", message: "Bad thing." };
  await using server = await startModelServer([midStreamError([text(["Half an"])], error)]);
  const args = [...atServer(server), "--no-session", DIR, "q"];
  const { code, stdout, stderr } = await runHere(args, { env, terminal: true });
  assert.equal(code, 1);
  assert.match(`${stdout}${stderr}`, /Half an\n[\s\S]*^mini-pi: .*Bad thing/m);
});

// ---------------------------------------------------------------------------------- Colours

const COLOURS = { ANTHROPIC_API_KEY: "key", TERM: "xterm-256color", MINI_PI_RETRY_MS: "5" };
const [BOLD, DIM, CODE, PLAIN] = ["\x1b[1m", "\x1b[2m", "\x1b[36m", "\x1b[22m"];

/** What a terminal gets of an answer that comes in these pieces. */
async function shown(pieces: string[], more: Record<string, string> = {}, dir = DIR) {
  await using server = await startModelServer([answer(...pieces), answer(...pieces)]);
  const args = [...atServer(server), "--no-session", "-q", dir, "q"];
  const result = await runHere(args, { env: { ...COLOURS, ...more }, terminal: true });
  assert.equal(result.code, 0, result.stdout);
  const whole = result.stdout.replaceAll("\x1b[K", "");
  return whole.replace(/\nCorrected answer:[\s\S]*/, "");
}

const COLOURED: [what: string, answer: string, coloured: string][] = [
  ["a heading", "## A b\nc", `${BOLD}## A b${PLAIN}\nc`],
  ["bold words", "So **it is**, so", `So ${BOLD}**it is**${PLAIN}, so`],
  ["code", "Call `run it` now", `Call ${CODE}\`run it\`\x1b[39m now`],
  ["code with backticks in it", "A ``b`c`` d", `A ${CODE}\`\`b\`c\`\`\x1b[39m d`],
  ["the mark of a list", "- one **two**\n", `${DIM}-${PLAIN} one ${BOLD}**two**${PLAIN}`],
  ["the number of a list", "  12. one\n", `  ${DIM}12.${PLAIN} one`],
  ["a quote", "> one two\nthree", `${DIM}> one two${PLAIN}\nthree`],
  [
    "a block of code",
    "```ts\n# a **b**\n```\n- c",
    `${CODE}\`\`\`ts\x1b[39m\n${CODE}# a **b**\x1b[39m\n${CODE}\`\`\`\x1b[39m\n${DIM}-${PLAIN} c`,
  ],
  [
    "a block in a longer fence",
    "````\n```\n````\n`a`",
    `${CODE}\`\`\`\`\x1b[39m\n${CODE}\`\`\`\x1b[39m\n${CODE}\`\`\`\`\x1b[39m\n${CODE}\`a\`\x1b[39m`,
  ],
  ["code with spaces in it, in two backticks", "``a b`` c", `${CODE}\`\`a b\`\`\x1b[39m c`],
  [
    "code in three backticks, which begins no block",
    "```a``` b\n`c`",
    `${CODE}\`\`\`a\`\`\`\x1b[39m b\n${CODE}\`c\`\x1b[39m`,
  ],
  ["no marks that are not closed", "2 ** 3, a `b and **c\nd", "2 ** 3, a `b and **c\nd"],
  ["no sign that only looks like a mark", "#1 -x 1.5 *", "#1 -x 1.5 *"],
];

for (const [what, given, expected] of COLOURED)
  test(`a terminal gets in colours, however it comes: ${what}`, async () => {
    const plain = await shown([given], { NO_COLOR: "1" });
    for (const pieces of [[given], [...given]]) {
      const text = await shown(pieces);
      assert.equal(text.trimEnd(), expected);
      assert.equal(stripVTControlCharacters(text), plain);
    }
  });

test("a block that a broken connection left open does not go on in the new text", async () => {
  await using server = await startModelServer([cut("```\na b"), answer("c d")]);
  const args = [...atServer(server), "--no-session", "-q", DIR, "q"];
  const { stdout } = await runHere(args, { env: COLOURS, terminal: true });
  const parts = [`${CODE}\`\`\`\x1b[39m\n${CODE}a \x1b[39m${CODE}b\x1b[39m\n`, AGAIN, "c d\n"];
  assert.equal(stdout.replaceAll("\x1b[K", ""), parts.join(""));
});

test("an answer is plain with NO_COLOR, with TERM=dumb, in a pipe and as JSON", async () => {
  const given = "# A\n`a.ts:1` **b**\n- c\n";
  assert.equal(await shown([given], { NO_COLOR: "1" }), given);
  assert.equal(await shown([given], { TERM: "dumb" }), given);
  for (const how of [["-q"], ["--json"]]) {
    await using server = await startModelServer([answer(given)]);
    const { stdout } = await runHere([...atServer(server), ...how, DIR, "q"], { env: COLOURS });
    if (how[0] === "-q") assert.equal(stdout, given);
    assert.doesNotMatch(stdout, /\x1b/);
  }
});

/** The sequences that colours, links and the status line are made of. */
const OURS =
  /\x1b\[(?:[12]|22|3[1369])m|\x1b\]8;;[!-~]*\x1b\\|\x1b\[K|\x1b\[\?7[lh]|(?<=\x1b\[K)\r/g;
const ACTS = /[\0-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]/;

const HOSTILE = [
  ..."`*#>-~1. \n\ta中😀，",
  "**",
  "```",
  "\n```ts\n",
  "a.ts:1",
  "\x1b]8;;http://evil/\x1b\\x\x1b]8;;\x07",
  "\x1b]0;t\x07\x1b[2J\x9b31m\r\f\0\x7f",
  "\u202e\u2066",
  "\ud83d",
  "\ude00",
  "](b:1)",
  "x".repeat(401),
  "/etc/passwd:1",
  "../a.ts:2",
];

test("whatever an answer holds, and however it is cut, a terminal gets its characters, and colours", async () => {
  const { pick } = random(7);
  const long = ["`", "*", "a ", "**a", "> ", "```", "#", "中", "a.ts:1,"].map((one) =>
    one.repeat(100 * 1024),
  );
  const answers = Array.from({ length: 300 }, () =>
    Array.from({ length: 30 }, () => pick(HOSTILE)),
  );
  for (const pieces of [...answers, ...long.map((line) => [line])]) {
    const text = await printed(pieces, 8);
    assert.doesNotMatch(text.replace(OURS, ""), ACTS, JSON.stringify(pieces).slice(0, 500));
    assert.equal(
      Buffer.from(stripVTControlCharacters(text)).toString(),
      Buffer.from(await printed(pieces, 1)).toString(),
      JSON.stringify(pieces).slice(0, 500),
    );
  }
});

/** The same by hand, without a server; a depth of 1 is that of a terminal without colours. */
async function printed(pieces: string[], depth: number) {
  const { agent, output } = await byHand(depth);
  const partial = fauxAssistantMessage("");
  for (const delta of pieces) {
    const update = { type: "text_delta", contentIndex: 0, delta, partial } as const;
    const { usage } = partial;
    agent.emit({ type: "message_update", usage, assistantMessageEvent: update });
  }
  agent.emit({ type: "message_end", message: partial });
  return output.join("");
}

/** An agent whose events go to a terminal, and what that gets. */
async function byHand(depth: number) {
  const output: string[] = [];
  const terminal = Object.assign(new PassThrough(), {
    isTTY: true,
    getColorDepth: () => depth,
    write: (text: string) => output.push(text) > 0,
  });
  const agent = await createAgent(DIR, await OFFLINE);
  agent.emit = printText({ stdin: terminal, stdout: terminal, stderr: terminal }, agent, {});
  return { agent, output };
}
const OFFLINE = findModel("offline");

// ------------------------------------------------------------------------------------ Links

test("cited places that are there, and inside, are links, with their targets percent-encoded", async () => {
  const dir = path.join(temporary(), "a b%;\x1b]8;;x");
  const odd = "c#d.ts";
  write(dir, { "a.ts": "1\n2\n", [odd]: "1\n", "sub/b.ts": "1\n" });
  symlinkSync("/etc/passwd", path.join(dir, "out.ts"));
  const target = (file: string) => pathToFileURL(path.join(realpathSync(dir), file)).pathname;
  const link = (url: string, text: string) => `\x1b]8;;${url}\x1b\\${text}\x1b]8;;\x1b\\`;
  const code = (text: string) => `${CODE}${text}\x1b[39m`;
  const given = `See a.ts:2, \`sub/b.ts:1\` and (${odd}:1). Not out.ts:1 /etc/passwd:1 no.ts:1`;
  const expected = (url: (file: string, line: number) => string) =>
    `See ${link(url("a.ts", 2), "a.ts:2")}, ${link(url("sub/b.ts", 1), code("`sub/b.ts:1`"))} and ` +
    `${link(url(odd, 1), `(${odd}:1).`)} Not out.ts:1 /etc/passwd:1 no.ts:1\n`;
  const plain = await shown([given], {}, dir);
  assert.equal(
    plain,
    expected((file, line) => `file://${target(file)}#${line}`),
  );
  assert.match(plain, /a%20b%25;%1B%5D8;;x|a%20b%25;%1B]8;;x/);
  const form = { MINI_PI_LINK: "vscode://file{path}:{line}" };
  assert.equal(
    await shown([given], form, dir),
    expected((file, line) => `vscode://file${target(file)}:${line}`),
  );
});

// ----------------------------------------------------------------------------------- Status

/** The lines of a terminal that is so wide after this output. */
function screen(output: string, columns: number): string[] {
  const lines = [""];
  let [row, column, wraps] = [0, 0, true];
  for (const [one] of output.matchAll(/\x1b\[\??\d*[a-zA-Z]|\x1b\][^\x1b]*\x1b\\|[\s\S]/gu)) {
    const line = lines[row] ?? "";
    if (one === "\x1b[?7l" || one === "\x1b[?7h") wraps = one.endsWith("h");
    else if (one === "\x1b[K") lines[row] = line.slice(0, column);
    else if (one.startsWith("\x1b")) continue;
    else if (one === "\r") column = 0;
    else if (one === "\n") [row, column] = [row + 1, 0];
    else {
      if (column === columns && wraps) [row, column] = [row + 1, 0];
      column = Math.min(column, columns - 1);
      const old = lines[row] ?? "";
      lines[row] = `${old.slice(0, column).padEnd(column)}${one}${old.slice(column + 1)}`;
      column += 1;
    }
    lines[row] ??= "";
  }
  return lines;
}

test("while the model is silent a line says who is asked and for how long, and is wiped, at any width", async () => {
  const gate = Promise.withResolvers<void>();
  const late: Step = async () => {
    await gate.promise;
    return answer("It is so: a.ts:1.");
  };
  await using server = await startModelServer([reply([READ]), late]);
  const args = [...atServer(server), "--no-session", DIR, "q"];
  const run = startHere(args, { env: COLOURS, terminal: true });
  await run.waitFor(/claude-sonnet-5-5 thinks… 1 s.*\r[\s\S]*thinks… 2 s.*\r/, "stdout");
  const meanwhile = run.stdout();
  gate.resolve();
  const { stdout } = await run.done;
  for (const columns of [20, 80]) {
    const line = "claude-sonnet-5-5 thinks… 2 s";
    const last = columns === 20 ? /^claude-sonnet-5-5 t/ : new RegExp(`^${line}$`);
    assert.match(screen(meanwhile, columns).at(-1) ?? "", last);
    assert.doesNotMatch(screen(stdout, columns).join("\n"), /thinks|5-5 t.{0,2}$/m);
    assert.ok(screen(stdout, columns).join("\n").includes("\n\nIt is so: a.ts:1.\n"));
  }
});

test("the line is wiped before the answer goes into a pipe, whose reader may print on the same terminal", async () => {
  const drawn = Promise.withResolvers<void>();
  let output = "";
  const stream = (isTTY: boolean) =>
    Object.assign(new PassThrough(), {
      isTTY,
      getColorDepth: () => 8,
      write: (text: string) => {
        output += text;
        if (text.includes("1 s")) drawn.resolve();
        return true;
      },
    });
  const io = { stdin: stream(false), stdout: stream(false), stderr: stream(true) };
  const agent = await createAgent(DIR, await findModel("offline"));
  const show = printText(io, agent, {});
  // The clock of the line keeps no process alive.
  const alive = setInterval(() => {}, 1000);
  show({ type: "turn_start" });
  await drawn.promise;
  clearInterval(alive);
  const totals = { input: 0, cached: 0, output: 0, cost: 0 };
  const ended = { ended: "answered", message: "", usage: totals, turns: 1 } as const;
  const outcome = { ...ended, sources: [], doubt: "" };
  const answer = "So.";
  show({ type: "agent_end", messages: [], willRetry: false, ...outcome, answer });
  assert.match(screen(output, 80).join("\n"), /^So\.\n/);
});

test("there is no such line with -q, with NO_COLOR or with TERM=dumb", async () => {
  const ask = async (args: string[], more: Record<string, string>) => {
    await using server = await startModelServer([stall()]);
    const all = [...atServer(server), "--no-session", ...args, DIR, "q"];
    // The line would be there after a second.
    const env = { ...COLOURS, ...more, MINI_PI_IDLE_MS: "1200" };
    return (await runHere(all, { env, terminal: true })).stdout;
  };
  const texts = [ask(["-q"], {}), ask([], { NO_COLOR: "1" }), ask([], { TERM: "dumb" })];
  assert.doesNotMatch((await Promise.all(texts)).join(""), /…/);
});

test("a key wipes the line before it is echoed, and the half typed line is left alone", async () => {
  await using server = await startModelServer([stall()]);
  const options = { env: COLOURS, input: "open", terminal: true } as const;
  const run = startHere([...atServer(server), "--no-session", DIR], options);
  await run.waitFor(/> /, "stdout");
  run.stdin.write("why?\r");
  await run.waitFor(/thinks… 1 s.*\r$/, "stdout");
  run.stdin.write("and");
  await run.waitFor(/and$/, "stdout");
  assert.equal(screen(run.stdout(), 80).at(-1), "and");
  run.stdin.write("\x03");
  await run.waitFor(/interrupted[\s\S]*> /, "stdout");
  run.stdin.write("\x03\x04");
  await run.done;
});

test("a tool that was ended for its time, with what it found by then, is told", async (t) => {
  const wait = AbortSignal.timeout;
  t.mock.method(AbortSignal, "timeout", (ms: number) => wait.call(AbortSignal, ms / 500));
  const { agent, output } = await byHand(1);
  const slow: AgentTool = {
    name: "slow",
    description: "",
    parameters: Type.Object({}),
    async execute(_agent, _args, signal) {
      await once(signal, "abort");
      return { text: "a.ts" };
    },
  };
  agent.tools = [slow, ...agent.tools];
  agent.model = { ...agent.model, provider: "local" };
  const alive = setInterval(() => {}, 1000);
  for (const name of ["list_files", "slow"])
    await runTool(agent, fauxToolCall(name, {}), new AbortController().signal);
  clearInterval(alive);
  assert.match(output.join(""), /^list_files \nslow \n {2}slow was ended for its time[^\n]*\n$/);
});

test("the summary has the sum of a conversation of more than one question", async () => {
  const session = path.join(temporary(), "session.jsonl");
  await using server = await startModelServer([answer("One."), answer("Two.")]);
  const ask = () => runHere([...atServer(server), "--session", session, DIR, "q"], { env });
  const [first, second] = [await ask(), await ask()];
  assert.doesNotMatch(first.stderr, /in all/);
  const [, one] = /\$([\d.]+), /.exec(first.stderr) ?? [];
  const [, two, all] = /\$([\d.]+), .*; \$([\d.]+) in all$/m.exec(second.stderr) ?? [];
  assert.ok(Math.abs(Number(one) + Number(two) - Number(all)) < 0.0002, second.stderr);
});

// ------------------------------------------------------------------------------------ Pipes

test("a piped answer keeps the indentation of its first line, and loses blank lines around it", async () => {
  await using server = await startModelServer([answer("\n  \n    one\n  two\n\n ")]);
  const { stdout } = await runHere([...atServer(server), "--no-session", DIR, "q"], { env });
  assert.equal(stdout, "    one\n  two\n");
});

test("a reader that has enough, or a full disk, ends it without a word, or in one line", async () => {
  const offline = ["-m", "offline", "--no-session"];
  const lines: [line: string, stderr: RegExp][] = [
    ["mini-pi --help | true", /^$/],
    ["mini-pi --version | true", /^$/],
    ["mini-pi --list-models | true", /^$/],
    [`mini-pi --json '${DIR}' "what is it?" | head -2 >/dev/null`, /^$/],
    ["mini-pi --help >/dev/full", /^mini-pi: .*no space.*\n$/],
    [`mini-pi --json '${DIR}' "what is it?" >/dev/full`, /^mini-pi: .*no space.*\n$/],
  ];
  for (const [line, expected] of lines)
    assert.match((await startShell(offline, line).done).stderr, expected, line);
});

test("with --json, an end for a closed stdout in the middle of a question is no news either", async () => {
  await using server = await startModelServer([stall()]);
  const run = startHere([...atServer(server), "--no-session", "--json", DIR, "q"], { env });
  await run.waitFor(/turn_start/, "stdout");
  run.stop(3);
  const { code, stderr } = await run.done;
  assert.deepEqual([code, stderr], [3, ""]);
});
