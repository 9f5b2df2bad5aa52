// The user, the terminal and the pipes around a run: it ends at once when it is told to, it is never
// held up by what it inherits, and its output arrives whole or is given up quietly.
//
// In reading order: signals, readers that go away or are slow, stdin of every kind, and helpers. What
// needs no process is stopped in this one; each pipeline is run here once, and in test/long/ often.

import assert from "node:assert/strict";
import { spawn } from "node:child_process";
import { once } from "node:events";
import {
  existsSync,
  mkdirSync,
  mkdtempSync,
  readFileSync,
  rmSync,
  truncateSync,
  writeFileSync,
} from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { after, describe, test } from "node:test";
import { setTimeout as sleep } from "node:timers/promises";
import {
  call,
  hugeReply,
  type ModelServer,
  reply,
  type Step,
  stall,
  startModelServer,
  status,
  text,
} from "./model-server.ts";
import {
  type Cli,
  type CliOptions,
  command,
  MINI_PI,
  onTerminal,
  runHere,
  startCli,
  startHere,
  startShell,
  startTerminal,
  type Watched,
} from "./run-cli.ts";

const ANSWER = "It is there.";
const HUGE = 300 * 1024;
const HUGE_ANSWER = "0123456789".repeat(HUGE / 10);
const DIRECTORY = directoryToAskAbout();
/** What ends at once ends within this, on the busiest machine. */
const LONG_MS = 20_000;
const ENV = { ANTHROPIC_API_KEY: "sk-test-0123456789" };
const NO_FULL_DISK = { skip: !existsSync("/dev/full") };

// -------------------------------------------------------------------------------- Signals

interface Moment {
  moment: string;
  steps: Step[];
  args?: string[];
  /** Settles as soon as it has come. */
  comes: (run: Watched, server: ModelServer) => Promise<unknown>;
}

const read = (path: string) => call("read_file", { path });
const patience = status(529, { headers: { "retry-after": "30" } });

const LONG_SEARCH = reply([call("search_files", { pattern: "(\\w{1,40}\\s){40}\\d" })]);

const MOMENTS: Moment[] = [
  { moment: "before the model answers", steps: [stall()], comes: (_, server) => server.request(1) },
  {
    moment: "in the middle of the answer",
    steps: [stall({ after: [text("Half an ans")] })],
    args: ["--json"],
    comes: (run) => run.waitFor(/Half an ans/, "stdout"),
  },
  {
    moment: "in a read of 64 GB",
    steps: [reply([read("endless.txt")])],
    comes: (run) => run.waitFor(/^read_file endless/m),
  },
  {
    moment: "in a search that takes long",
    steps: [LONG_SEARCH],
    comes: (run) => run.waitFor(/^search_files /m),
  },
  {
    moment: "in the wait before another try",
    steps: [patience],
    comes: (run) => run.waitFor(/^retry 1\/4 in 30 s/m),
  },
];

describe("A signal ends a run at once, with its own exit code", () => {
  for (const { moment, steps, args = [], comes } of MOMENTS)
    test(`The signal ${moment} ends the run, with one line and what came of the answer`, async () => {
      await using server = await startModelServer(steps);
      const run = startHere(words(server, args), { env: ENV, timeoutMs: LONG_MS });
      await comes(run, server);
      run.stop(143);
      const result = await run.done;
      assert.equal(result.code, 143, result.stderr);
      assert.equal(result.timedOut, false);
      assert.match(result.stderr, /^mini-pi: (interrupted|terminated)$/m);
      if (args.length === 0) assert.equal(result.stdout, "");
      assert.deepEqual(server.problems, []);
    });

  test("SIGTERM in a search that takes long ends the process with 143 and a clean stdout", async () => {
    await using server = await startModelServer([LONG_SEARCH]);
    // A tool has more time than that.
    const cli = start(server, [], { timeoutMs: LONG_MS });
    await cli.waitFor(/^search_files /m);
    cli.child.kill("SIGTERM");
    const { code, stdout, stderr, timedOut } = await cli.done;
    assert.deepEqual([code, stdout, timedOut], [143, "", false], stderr);
    assert.match(stderr, /^mini-pi: (interrupted|terminated)$/m);
    assert.doesNotMatch(stderr, /^ +at /m);
  });

  test("SIGINT in the answer gives 130, and keeps what came in the last event and the session", async () => {
    await using server = await startModelServer([stall({ after: [text("Half an ans")] })]);
    const session = join(DIRECTORY, "..", "kept.jsonl");
    const cli = start(server, ["--json", "--session", session]);
    await cli.waitFor(/Half an ans/, "stdout");
    cli.child.kill("SIGINT");
    const { code, stdout } = await cli.done;
    const last = JSON.parse(stdout.trim().split("\n").at(-1) ?? "");
    assert.deepEqual([last.type, last.ended, last.answer], ["agent_end", "aborted", "Half an ans"]);
    assert.equal(code, 130);
    assert.match(readFileSync(session, "utf8"), /Half an ans/);
  });

  const three = [read("a.ts"), read("endless.txt"), read("b.ts")];
  const interrupted: [where: string, step: Step, sign: RegExp][] = [
    ["a tool", reply(three), /"tool_execution_start".*b\.ts/],
    ["the answer", stall({ after: [text("Half an ans")] }), /Half an ans/],
    ["a reply that holds calls", stall({ after: [...three, text("And")] }), /"And"/],
    ["the wait before another try", patience, /auto_retry_start/],
  ];
  for (const [where, step, sign] of interrupted)
    test(`A conversation that was interrupted in ${where} can be continued`, async () => {
      await using server = await startModelServer([step, reply(ANSWER)]);
      const session = ["--session", join(DIRECTORY, "..", `${where}.jsonl`)];
      const first = startHere(words(server, ["--json", ...session]), { env: ENV });
      await first.waitFor(sign, "stdout");
      first.stop(130);
      assert.equal((await first.done).code, 130);
      const { code, stdout } = await runHere(words(server, session), { env: ENV });
      assert.deepEqual([code, stdout], [0, `${ANSWER}\n`]);
      assert.deepEqual(server.problems, []);
    });

  test("Ctrl-C ends what nobody reads, and a second one does so sooner", async () => {
    await using server = await startModelServer([hugeReply(HUGE)], { repeatLast: true });
    const runs = [1, 2].map(() => {
      const env = { ...ENV, HOME: "/nowhere" };
      return spawn(process.execPath, [MINI_PI, ...words(server)], { stdio: "pipe", env });
    });
    const [one, two] = runs;
    assert.ok(one && two);
    await Promise.all(runs.map(({ stdout }) => once(stdout, "readable")));
    const ends: string[] = [];
    one.on("exit", (code) => ends.push(`one ${code}`));
    two.on("exit", (code) => ends.push(`two ${code}`));
    one.kill("SIGINT");
    // Two signals at once would come as one.
    const again = setInterval(() => two.kill("SIGINT"), 100);
    await Promise.all(runs.map((run) => once(run, "exit")));
    clearInterval(again);
    assert.deepEqual(ends, ["two 130", "one 130"]);
  });

  test("SIGINT while stdin is read gives 130", async () => {
    await using server = await startModelServer([]);
    const cli = start(server, [], { input: "open", last: ["-"] });
    // More than a pipe holds, so it is reading when that has gone.
    await new Promise((written) => cli.child.stdin?.write("x".repeat(HUGE), written));
    cli.child.kill("SIGINT");
    const { code, stdout, timedOut } = await cli.done;
    assert.deepEqual([code, stdout, timedOut], [130, "", false]);
  });

  test(
    "Ctrl-C at a terminal gives 130, keeps what came, and leaves the settings alone",
    onTerminal,
    async () => {
      await using server = await startModelServer([stall({ after: [text("Half an ans")] })]);
      const line = `trap : INT; stty -g; ${command(...words(server))}; echo $?; stty -g`;
      const cli = startTerminal(line, { env: ENV, input: "open" });
      await cli.waitFor(/Half an ans/, "stdout");
      cli.child.stdin?.write("\x03");
      const { stdout } = await cli.done;
      assert.match(stdout, /Half an ans[\s\S]*^mini-pi: interrupted[\s\S]*^130\r$/m);
      const [before = "", ...rest] = stdout.trim().split("\r\n");
      assert.equal(rest.at(-1), before);
      assert.match(before, /^[\da-f:]+$/);
    },
  );
});

// ------------------------------------------------------ Readers that go away, or are slow

test("A reader that goes away ends the run quietly: mini-pi | head -1", async () => {
  const lines = reply("one line\n".repeat(HUGE / 9));
  await using server = await startModelServer([reply([read("a.ts")]), lines]);
  const { stdout, stderr, timedOut } = await shell(server, "mini-pi | head -1").done;
  assert.deepEqual([stdout, timedOut], ["one line\n", false]);
  assert.doesNotMatch(stderr, /EPIPE|Error|^ +at /m);
});

test("A reader that goes away ends the run before its answer: mini-pi --json 2>&1 | head -1", async () => {
  await using server = await startModelServer([reply([read("a.ts")]), stall()]);
  const { stdout, stderr, timedOut } = await shell(server, "mini-pi --json 2>&1 | head -1").done;
  assert.equal(timedOut, false);
  assert.match(stdout, /^\{"type":"session".*\n$/);
  assert.equal(stderr, "");
});

test("An answer that cannot be written is no success", NO_FULL_DISK, async () => {
  await using server = await startModelServer([reply(ANSWER)]);
  const { code, stderr } = await shell(server, "mini-pi >/dev/full").done;
  assert.notEqual(code, 0);
  assert.match(stderr, /^mini-pi: .*(ENOSPC|no space)/m);
});

// -------------------------------------------------------------------- Stdin of every kind

describe("A question that is an argument leaves stdin alone, whatever it is", () => {
  test("A pipe that is full is left as it was, 300 KB of answer reach a slow reader, and a reader of stderr that goes away takes nothing from it", async () => {
    await using server = await startModelServer([
      ...["a.ts", "b.ts", "words.txt"].map((path) => reply([read(path)])),
      hugeReply(HUGE),
    ]);
    const options = { env: ENV, cwd: DIRECTORY, input: "x".repeat(HUGE) };
    const line = "mini-pi 2> >(head -1 >/dev/null) | (sleep 0.5; cat); wc -c";
    const { stdout } = await startShell(words(server), line, options).done;
    const [answer, left] = stdout.split("\n");
    assert.ok(answer === HUGE_ANSWER, `${answer?.length} bytes`);
    assert.equal(Number(left), HUGE);
  });

  test("It answers, and ends with its answer, when stdin and stderr are closed", async () => {
    await using server = await startModelServer([reply([read("a.ts")]), reply(ANSWER)]);
    const { code, stdout, msAfterOutput } = await shell(server, "mini-pi <&- 2>&-").done;
    assert.deepEqual([code, stdout], [0, `${ANSWER}\n`]);
    // The server keeps the connection open; that must not hold up the end.
    assert.ok(msAfterOutput < LONG_MS, `${msAfterOutput} ms`);
  });

  test("It goes on with a conversation while a pipe is held open, as it began it", async () => {
    await using server = await startModelServer([reply("one"), reply("two")]);
    const session = ["--session", join(DIRECTORY, "..", "open.jsonl"), "--json"];
    for (const answer of ["one", "two"]) {
      const options = { env: ENV, input: "open" } as const;
      const { code, stdout } = await runHere(words(server, session), options);
      const end = JSON.parse(stdout.trim().split("\n").at(-1) ?? "");
      assert.deepEqual([code, end.answer], [0, answer]);
    }
    assert.deepEqual(server.problems, []);
  });

  test("It ends although its parent holds stdin and more pipes open", async () => {
    await using server = await startModelServer([reply(ANSWER)]);
    const env = { ...ENV, HOME: "/nowhere" };
    const stdio = Array(7).fill("pipe");
    const child = spawn(process.execPath, [MINI_PI, ...words(server)], { stdio, env });
    child.stdout?.resume();
    const [code] = await once(child, "exit", { signal: AbortSignal.timeout(LONG_MS) });
    assert.equal(code, 0);
  });
});

describe("Stdin is read to its end where that is asked for", () => {
  test("A last argument - adds it below the question, however slowly it comes", async () => {
    await using server = await startModelServer([reply(ANSWER)]);
    const run = startHere(words(server, [], ["What changed?", "-"]), { env: ENV, input: "open" });
    run.stdin.write("FIRST HALF");
    await sleep(100);
    assert.equal(server.requests.length, 0);
    run.stdin.end(" SECOND HALF");
    assert.equal((await run.done).stdout, `${ANSWER}\n`);
    assert.match(server.requests[0]?.raw ?? "", /What changed\?\\n\\nFIRST HALF SECOND HALF/);
  });

  for (const last of [[], ["-"]])
    test(`The question is read from it with the arguments <dir> ${last.join()}`, async () => {
      await using server = await startModelServer([reply(ANSWER)]);
      const options = { env: ENV, input: "Where is it?\n" };
      const { stdout } = await runHere(words(server, [], last), options);
      assert.equal(stdout, `${ANSWER}\n`);
      assert.match(server.requests[0]?.raw ?? "", /"Where is it\?"/);
    });

  test("A stdin that is closed or empty holds no question, which is the user's mistake", async () => {
    await using server = await startModelServer([]);
    const runs = [
      runHere(words(server, [], []), { env: ENV }),
      runHere(words(server, [], ["-"]), { env: ENV, input: " \n" }),
    ];
    for (const { code, stderr } of await Promise.all(runs)) {
      assert.equal(code, 2);
      assert.match(stderr, /^mini-pi: there is no question/m);
    }
  });
});

// ------------------------------------------------------------------------------- Helpers

/** A little code, text that is slow to search, and 64 GB that take no space. */
function directoryToAskAbout(): string {
  const home = mkdtempSync(join(tmpdir(), "mini-pi-interrupt-"));
  after(() => rmSync(home, { recursive: true }));
  const directory = join(home, "repo");
  const files = {
    "a.ts": "export const a = 1;\n",
    "b.ts": "export const b = 2;\n",
    "words.txt": `${"some words and some more of them ".repeat(100)}\n`.repeat(10_000),
    "endless.txt": "A line of text.\n".repeat(1000),
  };
  mkdirSync(directory);
  for (const [name, content] of Object.entries(files))
    writeFileSync(join(directory, name), content);
  truncateSync(join(directory, "endless.txt"), 64 * 1024 ** 3);
  return directory;
}

/** The arguments of a question, or what else is to stand at their end. */
function words(server: ModelServer, args: string[] = [], last = ["What is it?"]): string[] {
  const model = ["-m", "anthropic/claude-sonnet-5-5", "--base-url", server.url];
  const session = args.includes("--session") ? [] : ["--no-session"];
  return [...model, ...session, ...args, DIRECTORY, ...last];
}

/** Asks in a process of its own. */
function start(
  server: ModelServer,
  args: string[],
  options: CliOptions & { last?: string[] } = {},
): Cli {
  const { last, env, ...rest } = options;
  return startCli(words(server, args, last), { ...rest, env: { ...ENV, ...env } });
}

/** Runs a line of bash in which `mini-pi` asks the question. */
const shell = (server: ModelServer, line: string) =>
  startShell(words(server), line, { env: ENV, cwd: DIRECTORY });
