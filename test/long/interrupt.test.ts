// Pipelines, each of them often: what goes wrong in one run of twenty goes wrong here.

import assert from "node:assert/strict";
import { describe, test } from "node:test";
import { temporary, write } from "../fixtures.ts";
import { call, hugeReply, reply, type Step, startModelServer } from "../model-server.ts";
import { atServer, type CliOptions, runCli, startShell } from "../run-cli.ts";

const HUGE = 300 * 1024;
const HUGE_ANSWER = "0123456789".repeat(HUGE / 10);
const DIR = temporary();
write(DIR, { "a.ts": "export const a = 1;\n" });
const READ = reply([call("read_file", { path: "a.ts" })]);

/** Runs a line of bash in which `mini-pi` asks a server with this script. */
async function shell(steps: Step[], line: string, input: CliOptions["input"] = "ignore") {
  await using server = await startModelServer(steps);
  const args = [...atServer(server), "--no-session", DIR, "What is it?"];
  const options = { env: { ANTHROPIC_API_KEY: "key" }, cwd: DIR, input };
  return await startShell(args, line, options).done;
}

describe("A reader that goes away ends the run quietly", { concurrency: 2 }, () => {
  const pipelines = {
    "mini-pi | head -1": 20,
    "mini-pi | true": 10,
    "mini-pi 2>&1 | head -1": 10,
    "mini-pi 2>&1 | true": 10,
    "mini-pi 2>&1 >/dev/null | head -1": 10,
    "mini-pi --json | head -1": 10,
    "mini-pi --json 2>&1 | head -c 1": 10,
  };
  for (const [pipeline, runs] of Object.entries(pipelines))
    test(`${pipeline}, ${runs} times`, async () => {
      const lines = reply("one line\n".repeat(HUGE / 9));
      for (let run = 0; run < runs; run++) {
        const { stdout, stderr, timedOut } = await shell([READ, lines], pipeline);
        assert.equal(timedOut, false);
        assert.doesNotMatch(stderr, /EPIPE|Error|^ +at /m);
        assert.ok(stdout.split("\n").length <= 2);
      }
    });
});

describe("An answer of 300 KB arrives whole", { concurrency: 2 }, () => {
  for (const pipeline of [
    "mini-pi | (sleep 1; cat)",
    "mini-pi | dd bs=1000 status=none",
    "mini-pi",
  ])
    test(`${pipeline}, 5 times`, async () => {
      for (let run = 0; run < 5; run++) {
        const { code, stdout } = await shell([hugeReply(HUGE)], pipeline);
        assert.equal(code, 0);
        assert.ok(stdout === `${HUGE_ANSWER}\n`, `${stdout.length} bytes`);
      }
    });

  test("mini-pi --json | (sleep 1; tail -n 1), 5 times", async () => {
    for (let run = 0; run < 5; run++) {
      const { stdout } = await shell([hugeReply(HUGE)], "mini-pi --json | (sleep 1; tail -n 1)");
      assert.ok(JSON.parse(stdout).answer === HUGE_ANSWER);
    }
  });
});

test("A stdin that somebody has read already never ends in success without an answer", async () => {
  await using server = await startModelServer([reply("So.")]);
  const NODE_OPTIONS = "--import=data:text/javascript,process.stdin.resume()";
  const env = { ANTHROPIC_API_KEY: "key", NODE_OPTIONS };
  const args = [...atServer(server), DIR, "-"];
  const { code, stdout } = await runCli(args, { env, input: "Where is it?\n" });
  assert.ok(code !== 0 || stdout !== "");
});

describe("A question that is an argument leaves stdin alone", { concurrency: 2 }, () => {
  const kinds: [kind: string, line: string, input?: CliOptions["input"]][] = [
    ["/dev/null", "mini-pi ARGS"],
    ["a pipe that nobody writes to", "mini-pi ARGS", "open"],
    ["a pipe that is full", "mini-pi ARGS", "x".repeat(HUGE)],
    ["closed", "mini-pi ARGS <&-"],
    ["a directory", "mini-pi ARGS <."],
  ];
  for (const [kind, line, input] of kinds)
    for (const args of ["", "--json"])
      test(`mini-pi ${args} answers when stdin is ${kind}`, async () => {
        const asked = line.replace("ARGS", args);
        const { stdout, timedOut } = await shell([READ, reply("So.")], asked, input);
        assert.equal(timedOut, false);
        assert.match(stdout, args ? /"answer":"So\."/ : /^So\.\n$/);
      });

  test("It answers each time in a loop that reads stdin itself", async () => {
    const loop = "seq 5 | while read n; do mini-pi; done";
    const answers = ["1", "2", "3", "4", "5"];
    const { stdout } = await shell(
      answers.map((answer) => reply(answer)),
      loop,
    );
    assert.deepEqual(stdout.split("\n"), [...answers, ""]);
  });
});
