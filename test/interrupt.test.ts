// The user, the terminal and the pipes around a run: it ends at once when it is told to, it is never
// held up by what it inherits, and its output arrives whole or is given up quietly.
//
// In reading order: signals, readers that go away or are slow, stdin of every kind, and helpers.

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
import { type Cli, type CliOptions, MINI_PI, startCommand } from "./run-cli.ts";

const ANSWER = "It is there.";
const HUGE = 300 * 1024;
const HUGE_ANSWER = "0123456789".repeat(HUGE / 10);
const DIRECTORY = directoryToAskAbout();
/** In ms, with some for a machine that is busy. */
const WITHIN_A_SECOND = 1500;
const ENV = {
  ANTHROPIC_API_KEY: "sk-test-0123456789",
  NODE_COMPILE_CACHE: join(tmpdir(), "mini-pi-compile-cache"),
};
const NO_FULL_DISK = !existsSync("/dev/full");
/** script(1) gives a command a terminal. */
const NO_TERMINAL = !existsSync("/usr/bin/script");

// -------------------------------------------------------------------------------- Signals

interface Moment {
  moment: string;
  steps: Step[];
  args?: string[];
  /** Settles as soon as it has come. */
  comes: (cli: Cli, server: ModelServer) => Promise<unknown>;
}

const read = (path: string) => call("read_file", { path });
const patience = status(529, { headers: { "retry-after": "30" } });

const MOMENTS: Moment[] = [
  { moment: "before the model answers", steps: [stall()], comes: (_, server) => server.request(1) },
  {
    moment: "in the middle of the answer",
    steps: [stall({ after: [text("Half an ans")] })],
    args: ["--json"],
    comes: (cli) => cli.waitFor(/Half an ans/, "stdout"),
  },
  {
    moment: "in a read of 64 GB",
    steps: [reply([read("endless.txt")])],
    comes: (cli) => cli.waitFor(/^read_file endless/m),
  },
  {
    moment: "in a search that takes long",
    steps: [reply([call("search_files", { pattern: "(\\w{1,40}\\s){40}\\d" })])],
    comes: (cli) => cli.waitFor(/^search_files /m),
  },
  {
    moment: "in the wait before another try",
    steps: [patience],
    comes: (cli) => cli.waitFor(/^retry 1\/4 in 30 s/m),
  },
];

describe("A signal ends a run within a second, with its own exit code", { concurrency: 2 }, () => {
  for (const { moment, steps, args = [], comes } of MOMENTS)
    for (const [signal, code] of [
      ["SIGINT", 130],
      ["SIGTERM", 143],
    ] as const)
      test(`${signal} ${moment} gives ${code}`, async () => {
        await using server = await startModelServer(steps);
        const cli = start(server, args);
        await comes(cli, server);
        const ms = await killed(cli, signal);
        const result = await cli.done;
        assert.equal(result.code, code, result.stderr);
        assert.ok(ms < WITHIN_A_SECOND, `${ms} ms`);
        assert.match(result.stderr, /^mini-pi: (interrupted|terminated)/m);
        assert.doesNotMatch(result.stderr, /^ +at /m);
        if (args.length === 0) assert.equal(result.stdout, "");
        assert.deepEqual(server.problems, []);
      });

  test("What had come of the answer is kept, in the last event and in the session", async () => {
    await using server = await startModelServer([stall({ after: [text("Half an ans")] })]);
    const session = join(DIRECTORY, "..", "kept.jsonl");
    const cli = start(server, ["--json", "--session", session]);
    await cli.waitFor(/Half an ans/, "stdout");
    await killed(cli, "SIGINT");
    const last = JSON.parse((await cli.done).stdout.trim().split("\n").at(-1) ?? "");
    assert.deepEqual([last.type, last.ended, last.answer], ["agent_end", "aborted", "Half an ans"]);
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
      const first = start(server, ["--json", ...session]);
      await first.waitFor(sign, "stdout");
      await killed(first, "SIGINT");
      assert.equal((await first.done).code, 130);
      const { code, stdout } = await start(server, session).done;
      assert.deepEqual([code, stdout], [0, `${ANSWER}\n`]);
      assert.deepEqual(server.problems, []);
    });

  test("A second Ctrl-C ends at once what the first one could not end", async () => {
    await using server = await startModelServer([hugeReply(HUGE)]);
    // Nobody reads what it prints, so it cannot end by itself.
    const child = spawn(process.execPath, words(server), {
      stdio: "pipe",
      env: { ...ENV, HOME: "/nowhere" },
    });
    const exit = once(child, "exit");
    await once(child.stdout, "readable");
    child.kill("SIGINT");
    await sleep(100);
    const start = performance.now();
    child.kill("SIGINT");
    const [code] = await exit;
    assert.equal(code, 130);
    assert.ok(performance.now() - start < 500, "it waited");
  });

  test("SIGINT while stdin is read gives 130", async () => {
    await using server = await startModelServer([]);
    const cli = start(server, [], { input: "open", last: ["-"] });
    // More than a pipe holds, so it is reading when that has gone.
    await new Promise((written) => cli.child.stdin?.write("x".repeat(HUGE), written));
    assert.ok((await killed(cli, "SIGINT")) < WITHIN_A_SECOND);
    const { code, stdout } = await cli.done;
    assert.deepEqual([code, stdout], [130, ""]);
  });

  test("Ctrl-C typed at a terminal gives 130", { skip: NO_TERMINAL }, async () => {
    await using server = await startModelServer([stall({ after: [text("Half an ans")] })]);
    const cli = onTerminal(server);
    await cli.waitFor(/Half an ans/, "stdout");
    cli.child.stdin?.write("\x03");
    const { code, stdout } = await cli.done;
    assert.equal(code, 130, stdout);
    assert.match(stdout, /Half an ans.*\r\nmini-pi: interrupted/);
  });
});

// ------------------------------------------------------ Readers that go away, or are slow

describe("A reader that goes away ends the run quietly", { concurrency: 4 }, () => {
  const pipelines = {
    "mini-pi | head -1": 20,
    "mini-pi --json | head -1": 4,
    "mini-pi 2>&1 | head -1": 4,
    "mini-pi --json 2>&1 | head -c 1": 4,
    "mini-pi 2>&1 >/dev/null | head -1": 4,
    "mini-pi | true": 4,
  };
  for (const [pipeline, runs] of Object.entries(pipelines))
    test(`${pipeline}, ${runs} times`, async () => {
      const lines = reply("one line\n".repeat(HUGE / 9));
      for (let run = 0; run < runs; run++) {
        await using server = await startModelServer([reply([read("a.ts")]), lines]);
        const result = await shell(server, pipeline).done;
        assert.equal(result.timedOut, false);
        assert.doesNotMatch(result.stderr, /EPIPE|Error|^ +at /m);
        assert.ok(result.stdout.split("\n").length <= 2);
      }
    });

  test("mini-pi --json | head -1 does not go on to ask the model", async () => {
    await using server = await startModelServer([reply([read("a.ts")]), stall()]);
    const { timedOut } = await shell(server, "mini-pi --json | head -1").done;
    assert.equal(timedOut, false);
  });
});

test("A reader of stderr that goes away takes nothing from the answer", async () => {
  await using server = await startModelServer([
    ...["a.ts", "b.ts", "words.txt"].map((path) => reply([read(path)])),
    reply(ANSWER),
  ]);
  const { code, stdout } = await shell(server, "mini-pi 2> >(head -1 >/dev/null)").done;
  assert.deepEqual([code, stdout], [0, `${ANSWER}\n`]);
});

test("An answer that cannot be written is no success", { skip: NO_FULL_DISK }, async () => {
  await using server = await startModelServer([reply(ANSWER)]);
  const { code, stderr } = await shell(server, "mini-pi >/dev/full").done;
  assert.notEqual(code, 0);
  assert.match(stderr, /^mini-pi: .*(ENOSPC|no space)/m);
});

describe("An answer of 300 KB arrives whole", { concurrency: 4 }, () => {
  const pipelines = ["mini-pi | (sleep 1; cat)", "mini-pi | dd bs=1000 status=none", "mini-pi"];
  for (const pipeline of pipelines)
    test(pipeline, async () => {
      await using server = await startModelServer([hugeReply(HUGE)]);
      const result = await shell(server, pipeline).done;
      assert.equal(result.code, 0);
      assert.ok(result.stdout === `${HUGE_ANSWER}\n`, `${result.stdout.length} bytes`);
    });

  test("mini-pi --json | (sleep 1; tail -n 1)", async () => {
    await using server = await startModelServer([hugeReply(HUGE)]);
    const { stdout } = await shell(server, "mini-pi --json | (sleep 1; tail -n 1)").done;
    assert.ok(JSON.parse(stdout).answer === HUGE_ANSWER);
  });
});

// -------------------------------------------------------------------- Stdin of every kind

describe("A question that is an argument leaves stdin alone, whatever it is", {
  concurrency: 4,
}, () => {
  const kinds: [kind: string, run: (server: ModelServer, args: string[]) => Cli][] = [
    ["/dev/null", (server, args) => start(server, args)],
    ["a pipe that nobody writes to", (server, args) => start(server, args, { input: "open" })],
    ["a pipe that is full", (server, args) => start(server, args, { input: "x".repeat(HUGE) })],
    ["closed", (server, args) => shell(server, `mini-pi ${args.join(" ")} <&-`)],
    ["a directory", (server, args) => shell(server, `mini-pi ${args.join(" ")} <.`)],
  ];
  for (const [kind, run] of kinds)
    for (const args of [[], ["--json"]])
      test(`${["mini-pi", ...args].join(" ")} answers when stdin is ${kind}`, async () => {
        await using server = await startModelServer([reply([read("a.ts")]), reply(ANSWER)]);
        const { code, stdout, msAfterOutput, stderr } = await run(server, args).done;
        assert.equal(code, 0, stderr);
        assert.ok(stdout.includes(ANSWER));
        // The server keeps the connection open; that must not hold up the end.
        assert.ok(msAfterOutput < 3000, `${msAfterOutput} ms`);
      });

  test("It answers when stdin is a terminal", { skip: NO_TERMINAL }, async () => {
    await using server = await startModelServer([reply(ANSWER)]);
    const { code, stdout } = await onTerminal(server).done;
    assert.equal(code, 0);
    assert.match(stdout, /^It is there\.\r$/m);
  });

  test("It leaves a terminal's settings as they were", { skip: NO_TERMINAL }, async () => {
    await using server = await startModelServer([reply(ANSWER)]);
    const { stdout } = await onTerminal(server, (asked) => `stty -g; ${asked}; stty -g`).done;
    const [before = "", ...rest] = stdout.trim().split("\r\n");
    assert.equal(rest.at(-1), before);
    assert.match(before, /^[\da-f:]+$/);
  });

  test("It answers when only stdout is open", async () => {
    await using server = await startModelServer([reply(ANSWER)]);
    const { code, stdout } = await shell(server, "mini-pi <&- 2>&-").done;
    assert.deepEqual([code, stdout], [0, `${ANSWER}\n`]);
  });

  test("It answers each time in a loop that reads stdin itself", async () => {
    await using server = await startModelServer([reply("one"), reply("two")]);
    const loop = "printf '1\\n2\\n' | while read n; do mini-pi; done";
    assert.equal((await shell(server, loop).done).stdout, "one\ntwo\n");
  });

  test("It goes on with a conversation while a pipe is held open, as it began it", async () => {
    await using server = await startModelServer([reply("one"), reply("two")]);
    const session = ["--session", join(DIRECTORY, "..", "open.jsonl")];
    for (const answer of ["one", "two"]) {
      const { code, stdout } = await start(server, session, { input: "open" }).done;
      assert.deepEqual([code, stdout], [0, `${answer}\n`]);
    }
    assert.deepEqual(server.problems, []);
  });

  test("It ends although its parent holds more pipes open", async () => {
    await using server = await startModelServer([reply(ANSWER)]);
    const stdio = Array(7).fill("pipe");
    const child = spawn(process.execPath, words(server), {
      stdio,
      env: { ...ENV, HOME: "/nowhere" },
    });
    child.stdout?.resume();
    const [code] = await once(child, "exit", { signal: AbortSignal.timeout(15_000) });
    assert.equal(code, 0);
  });
});

describe("Stdin is read to its end where that is asked for", { concurrency: 4 }, () => {
  test("A last argument - adds it below the question, however slowly it comes", async () => {
    await using server = await startModelServer([reply(ANSWER)]);
    const cli = start(server, [], { input: "open", last: ["What changed?", "-"] });
    cli.child.stdin?.write("FIRST HALF");
    await sleep(1000);
    assert.equal(server.requests.length, 0);
    cli.child.stdin?.end(" SECOND HALF");
    assert.equal((await cli.done).stdout, `${ANSWER}\n`);
    assert.match(server.requests[0]?.raw ?? "", /What changed\?\\n\\nFIRST HALF SECOND HALF/);
  });

  for (const last of [[], ["-"]])
    test(`The question is read from it with the arguments <dir> ${last.join()}`, async () => {
      await using server = await startModelServer([reply(ANSWER)]);
      const cli = start(server, [], { input: "Where is it?\n", last });
      assert.equal((await cli.done).stdout, `${ANSWER}\n`);
      assert.match(server.requests[0]?.raw ?? "", /"Where is it\?"/);
    });

  test("A stdin that somebody has read already never ends in success without an answer", async () => {
    await using server = await startModelServer([reply(ANSWER)]);
    const NODE_OPTIONS = "--import=data:text/javascript,process.stdin.resume()";
    const cli = start(server, [], { input: "Where is it?\n", last: ["-"], env: { NODE_OPTIONS } });
    const { code, stdout } = await cli.done;
    assert.ok(code !== 0 || stdout !== "");
  });

  test("A stdin that is closed or empty holds no question, which is the user's mistake", async () => {
    await using server = await startModelServer([]);
    const results = [
      start(server, [], { last: [] }),
      start(server, [], { input: " \n", last: ["-"] }),
    ];
    for (const { done } of results) {
      const { code, stderr } = await done;
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
  return [MINI_PI, ...model, ...session, ...args, DIRECTORY, ...last];
}

function start(
  server: ModelServer,
  args: string[],
  options: CliOptions & { last?: string[] } = {},
): Cli {
  const { last, env, ...rest } = options;
  return startCommand(process.execPath, words(server, args, last), {
    ...rest,
    env: { ...ENV, ...env },
  });
}

/** Runs a line of bash in which `mini-pi` asks the question. */
function shell(server: ModelServer, line: string): Cli {
  const quoted = words(server).map((word) => `'${word}'`);
  const define = `mini-pi() { '${process.execPath}' ${quoted.join(" ")} "$@"; }`;
  return startCommand("bash", ["-c", `${define}\n${line}`], { env: ENV, cwd: DIRECTORY });
}

/** Runs mini-pi with a terminal for stdin, stdout and stderr. */
function onTerminal(server: ModelServer, line = (asked: string) => asked): Cli {
  const asked = [process.execPath, ...words(server)].map((word) => `'${word}'`).join(" ");
  return startCommand("script", ["-qec", line(asked), "/dev/null"], { env: ENV, input: "open" });
}

/** Sends a signal, and gives the milliseconds until the child has ended. */
async function killed({ child }: Cli, signal: NodeJS.Signals): Promise<number> {
  const start = performance.now();
  child.kill(signal);
  await once(child, "exit");
  return performance.now() - start;
}
