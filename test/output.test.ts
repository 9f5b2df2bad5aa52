// What a terminal shows of replies as they come, over broken connections, calls, and several parts.

import assert from "node:assert/strict";
import { test } from "node:test";
import { temporary, write } from "./fixtures.ts";
import {
  call,
  cutMiddle,
  midStreamError,
  reply,
  type Step,
  startModelServer,
  text,
} from "./model-server.ts";
import { atServer, runHere } from "./run-cli.ts";

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
