// What can go wrong, and what the user then sees: a table of faults and their outcome. A real server
// injects each of them into a run of the command line, once for a model of Anthropic and once for a
// local server that speaks OpenAI's protocol. Most runs are in this process; some of each kind have a
// process of their own, which must also end by itself, with its output and its exit code.
//
// A row names the fault, what the server does request by request, and the outcome: the exit code, the
// whole of stdout, a line on stderr, and the number of requests (that of the steps, if not said).
// Whatever the row, `run` sees to what always holds: the history that was sent is valid, no key and
// no stack trace is shown, a failure is told in one line, and the run ends with its output.
//
// In reading order: the rows, one table a group; what does not fit a row; the directory that is
// asked about, and how a row is run.

import assert from "node:assert/strict";
import { once } from "node:events";
import { mkdirSync, mkdtempSync, rmSync, writeFileSync } from "node:fs";
import * as http from "node:http";
import * as https from "node:https";
import type * as net from "node:net";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { after, describe, test } from "node:test";
import { everyNth } from "./fixtures.ts";
import {
  ABSENT,
  type Api,
  type Arguments,
  type Block,
  call,
  contextOverflow,
  cutBefore,
  cutMiddle,
  endEarly,
  garbage,
  isPrefix,
  keepAliveStall,
  type ModelRequest,
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
import { type CliOptions, type CliResult, runCli, runHere } from "./run-cli.ts";

type Row = [fault: string, steps: Step[], outcome: Outcome];

interface Outcome {
  code: number;
  /** The whole of it, but for the newline at its end. Default: nothing. */
  stdout?: string;
  stderr?: RegExp;
  requests?: number;
  /** What must be true of them. */
  sent?: (requests: ModelRequest[]) => void;
  /** For a fault that one API only knows, or that does not depend on it. */
  api?: Api;
  /** With this API the row may be run in a process of its own. None of these waits for a clock. */
  real?: Api;
  args?: string[];
  env?: Record<string, string>;
  /** The last step answers all further requests, too. */
  forever?: true;
  /** Why it cannot be true yet: once it is, the test says so by failing. */
  fails?: string;
}

const APIS = ["anthropic", "openai"] as const;
const [FAILED, WRONG_CALL, INCOMPLETE] = [1, 2, 3];
const ok = reply("Recovered.");
const recovered = { code: 0, stdout: "Recovered." };
const KEY = "sk-test-0123456789-abcdef";
const DIRECTORY = directoryToAskAbout();
const SESSIONS = temporary();
const ENV = { ANTHROPIC_API_KEY: KEY, MINI_PI_API_KEY: KEY, MINI_PI_RETRY_MS: "5" };
const IDLE = { MINI_PI_IDLE_MS: "800" };
const NO_ANSWER = /^mini-pi: .*no answer for 0\.8 s/m;
const wait = (seconds: string) => ({ headers: { "retry-after": seconds } });

/** Calls that read a whole file, and one line of another. */
const read = (path: string) => call("read_file", { path });
const line = (offset: number) => call("read_file", { path: "a.ts", offset, limit: 1 });

// ------------------------------------------------------------------------------- The table

const quotaUsedUp = { error: { message: "You exceeded your quota.", code: "insufficient_quota" } };
const perMinute = "Quota exceeded for metric 'Requests' and limit 'Requests per minute'";
const colours = "bad\x1b]52;c;aGk=\x07 \x1b[2Jthing\nmini-pi: all is well";

const STATUSES: Row[] = [
  ...[408, 429, 500, 502, 503, 504, 529].map((code): Row => {
    const stderr = /^retry 1\/4 in 1 s: .*^retry 2\/4 in 1 s: /ms;
    const real = code === 529 ? "anthropic" : undefined;
    return [`a ${code}, twice`, [status(code), status(code), ok], { real, ...recovered, stderr }];
  }),
  [
    "a 529 for ever",
    [status(529)],
    { forever: true, code: FAILED, stderr: /^retry 4\/4 .*^mini-pi: .*overloaded/ims, requests: 5 },
  ],
  [
    "a 429 for ever, to be tried again at once",
    [status(429, wait("0"))],
    { forever: true, code: FAILED, stderr: /^mini-pi: .*Too Many Requests/m, requests: 5 },
  ],
  [
    "a 500 for ever, with a page of HTML",
    [status(500, { body: "<html>\n<body><h1>Sorry,\nbroken</h1>" })],
    { forever: true, code: FAILED, stderr: /^mini-pi: [^<>]*Sorry, broken/m, requests: 5 },
  ],
  [
    "a 502 for ever, with a page of 1 MB",
    [status(502, { body: "<p>Bad gateway</p>\n".repeat(50_000) })],
    { api: "openai", forever: true, code: FAILED, stderr: /Bad gateway/, requests: 5 },
  ],
  [
    "a 503 that asks for patience in words",
    [status(503, wait("a while")), ok],
    { api: "openai", ...recovered, stderr: /^retry 1\/4 in 1 s: /m },
  ],
  [
    "a 529 that asks for a little patience",
    [status(529, wait("0.2")), ok],
    {
      ...recovered,
      stderr: /^retry 1\/4 in 1 s: /m,
      sent: (requests) => assert.ok(at(requests, 1).at - at(requests, 0).at > 190),
    },
  ],
  [
    "a 529 that asks for patience until a moment",
    [() => status(529, wait(new Date(Date.now() + 50_000).toUTCString()))],
    {
      api: "anthropic",
      args: ["--timeout", "1"],
      code: INCOMPLETE,
      stderr: /^retry 1\/4 in (4\d|50) s: .*^mini-pi: .*--timeout/ms,
    },
  ],
  [
    "a 429 that asks for an hour's patience",
    [status(429, wait("3600"))],
    { code: FAILED, stderr: /^mini-pi: .*(3600|1 h|60 min)/m },
  ],
  ["a 429 for a quota a minute", [status(429, { message: perMinute }), ok], recovered],
  [
    "a 429 for a quota that is used up",
    [status(429, { body: quotaUsedUp })],
    { code: FAILED, stderr: /^mini-pi: .*exceeded your quota.*billing/m },
  ],
  ...[401, 403].map((code): Row => {
    const stderr = /^mini-pi: .*invalid x-api-key.* (ANTHROPIC|MINI_PI)_API_KEY/m;
    return [
      `a ${code}`,
      [status(code, { message: "invalid x-api-key" })],
      { real: code === 401 ? "openai" : undefined, code: FAILED, stderr },
    ];
  }),
  [
    "a 401 that repeats the key",
    [status(401, { message: `Incorrect API key provided: ${KEY}.` })],
    { code: FAILED, stderr: /^mini-pi: .*Incorrect API key/m },
  ],
  [
    "a 404",
    [status(404, { message: "model: nothing-5" })],
    { code: FAILED, stderr: /^mini-pi: .*model: nothing-5.*--list-models/m },
  ],
  [
    "a 400 for a model that the server does not have",
    [status(400, { message: "model 'some-model' not found" })],
    { code: FAILED, stderr: /^mini-pi: .*model 'some-model' not found/m },
  ],
  [
    "a 400",
    [status(400, { message: "messages.1: something is wrong" })],
    { code: FAILED, stderr: /^mini-pi: [^{}]*messages\.1: something is wrong/m },
  ],
  [
    "a 422 in a third form of JSON",
    [status(422, { body: { detail: "temperature is too high" } })],
    { code: FAILED, stderr: /^mini-pi: [^{}]*temperature is too high/m },
  ],
  [
    "a 400 with escape sequences and line breaks in its message",
    [status(400, { message: colours })],
    { code: FAILED, stderr: /^mini-pi: .*bad.*thing/m },
  ],
  [
    "a 307 to another host",
    [redirect("http://127.0.0.1:9/v1/messages")],
    { code: FAILED, stderr: /^mini-pi: .*(redirect|307)/im },
  ],
  [
    "a call, and then a 500 for ever",
    [reply([read("a.ts")]), status(500)],
    {
      forever: true,
      code: FAILED,
      stderr: /^read_file a\.ts\n.*^mini-pi: .*Internal Server Error/ms,
      requests: 6,
    },
  ],
  [
    "a 500 on each turn",
    [status(500), reply([read("a.ts")]), status(500), status(500), ok],
    recovered,
  ],
];

const CONNECTIONS: Row[] = [
  ...(["cut", "reset"] as const).flatMap((how): Row[] => [
    [
      `a connection ${how} before the headers`,
      [cutBefore(how), ok],
      { ...recovered, stderr: /^retry 1\/4 in 1 s: /m },
    ],
    [
      `a connection ${how} in the middle of the answer`,
      [cutMiddle([text("Reco")], how), ok],
      {
        real: how === "reset" ? "openai" : undefined,
        ...recovered,
        stderr: /^retry 1\/4 in 1 s: /m,
        sent: lastTwoAlike,
      },
    ],
    [
      `a connection ${how} in the middle of a call`,
      [reply([read("a.ts")]), cutMiddle([call("read_file", '{"path":"b')], how), ok],
      { ...recovered, sent: lastTwoAlike },
    ],
  ]),
  [
    "a stream that ends in the middle as if complete",
    [endEarly([text("Reco")]), ok],
    { ...recovered, sent: lastTwoAlike },
  ],
  ["a stream that ends before it began", [endEarly(), ok], recovered],
  [
    "a page of HTML where a stream should be",
    [status(200, { body: "<html>Welcome" })],
    { code: FAILED, stderr: /^mini-pi: .*a page: <?/m },
  ],
  [
    "an overload in the middle of the stream",
    [midStreamError([text("Reco")]), ok],
    { ...recovered, stderr: /^retry 1\/4 .*overloaded/im, sent: lastTwoAlike },
  ],
  [
    "a final error in the middle of the stream",
    [midStreamError([text("Reco")], { type: "invalid_request_error", message: "Bad thing." })],
    { code: FAILED, stderr: /^mini-pi: .*Bad thing\./m },
  ],
  [
    "an event that is no JSON",
    [garbage([text("Reco")])],
    { code: FAILED, stderr: /^mini-pi: .*JSON/m },
  ],
  ["silence instead of headers", [stall()], { env: IDLE, code: FAILED, stderr: NO_ANSWER }],
  [
    "silence in the middle of the answer",
    [stall({ after: [text("Half")] })],
    { env: IDLE, code: FAILED, stderr: NO_ANSWER },
  ],
  [
    "keep-alive comments for ever instead of an answer",
    [keepAliveStall()],
    { env: IDLE, code: FAILED, stderr: NO_ANSWER },
  ],
  [
    "keep-alive comments for ever in the middle of the answer",
    [keepAliveStall({ after: [text("Half")] })],
    { env: IDLE, code: FAILED, stderr: NO_ANSWER },
  ],
  [
    "an answer that takes longer than any one silence may",
    [reply([text([..."Recovered."], 100)])],
    { env: IDLE, ...recovered },
  ],
];

const TIME_IS_UP = /^mini-pi: .*1 s.*--timeout/m;

const LIMITS: Row[] = [
  [
    "the time limit before an answer",
    [stall()],
    { args: ["--timeout", "1"], code: INCOMPLETE, stderr: TIME_IS_UP },
  ],
  [
    "the time limit in the middle of an answer",
    [keepAliveStall({ after: [text("Half an ans")] })],
    { args: ["--timeout", "1"], code: INCOMPLETE, stdout: "Half an ans", stderr: TIME_IS_UP },
  ],
  [
    "the time limit in the wait before another try",
    [status(529, wait("30"))],
    { args: ["--timeout", "1"], code: INCOMPLETE, stderr: TIME_IS_UP },
  ],
  [
    "the turn limit",
    [reply([line(1)]), reply([line(2)]), reply("As far as I know.")],
    {
      real: "openai",
      args: ["--max-turns", "2"],
      code: INCOMPLETE,
      stdout: "As far as I know.",
      stderr: /^mini-pi: .*2 turns.*--max-turns/m,
      sent: endsInLastCall,
    },
  ],
  [
    "the turn limit, and a last reply that calls a tool even so",
    [reply([line(1)]), reply([text("Let me see."), line(2)])],
    {
      args: ["--max-turns", "1"],
      code: INCOMPLETE,
      stdout: "Let me see.",
      stderr: /^mini-pi: .*1 turn.*--max-turns/m,
      sent: endsInLastCall,
    },
  ],
  [
    "an answer in the last reply that the turn limit allows",
    [reply([line(1)]), ok],
    { args: ["--max-turns", "2"], ...recovered },
  ],
  [
    "the cost limit",
    [reply([line(1)], { usage: { output: 1000 } }), reply("As far as I know.")],
    {
      api: "anthropic",
      args: ["--max-cost", "0.001"],
      code: INCOMPLETE,
      stdout: "As far as I know.",
      stderr: /^mini-pi: .*\$0\.001.*--max-cost/m,
      sent: endsInLastCall,
    },
  ],
  ...["a.ts", "missing.ts"].map((path): Row => {
    const again = () => reply([read(path)]);
    return [
      `the same call for ${path} again and again`,
      [again(), again(), again(), reply("As far as I know.")],
      {
        code: INCOMPLETE,
        stdout: "As far as I know.",
        stderr: /^mini-pi: .*same call/m,
        sent: (requests) => {
          assert.match(resultIn(requests, 2), /made this call already/);
          endsInLastCall(requests);
        },
      },
    ];
  }),
  [
    "the same read of an empty file again and again",
    [reply([read("empty.ts")]), reply([read("empty.ts")]), ok],
    {
      ...recovered,
      sent: (requests) => assert.match(resultIn(requests, 1), /empty file, 0 bytes/),
    },
  ],
];

const cutOff = (...blocks: Block[]) => reply(blocks, { stop: "max_tokens" });
const REFUSED = { stop: "refusal", explanation: "That is not allowed." };
const WHY_REFUSED = /^mini-pi: .*(That is not allowed|content_filter)/m;
const EMPTY = {
  "nothing at all": [],
  "an empty text": [text("")],
  "white space": [text(" \n\n ")],
  "thinking without a text": [thinking("Hm.")],
};

const ENDINGS: Row[] = [
  [
    "an answer cut off in the middle of a word",
    [cutOff(text("The quick brown f")), reply("ox jumps.")],
    { code: 0, stdout: "The quick brown fox jumps." },
  ],
  [
    "an answer cut off at a space and before a line break",
    [cutOff(text("one ")), cutOff(text("two")), reply("\nthree")],
    { code: 0, stdout: "one two\nthree" },
  ],
  [
    "an answer cut off four times",
    [1, 2, 3, 4].map((n) => cutOff(text(`part ${n},`))),
    {
      code: INCOMPLETE,
      stdout: "part 1,part 2,part 3,part 4,",
      stderr: /^mini-pi: .*cut off at the output limit/m,
    },
  ],
  [
    "an output limit that leaves no room for a word, as in a small context",
    [cutOff()],
    { forever: true, code: INCOMPLETE, stderr: /^mini-pi: .*context/m, requests: 4 },
  ],
  [
    "a call cut off in its arguments",
    [cutOff(call("read_file", '{"path":"a.t')), ok],
    { ...recovered, sent: callWasNotRun },
  ],
  [
    "a call cut off before its arguments",
    [cutOff(call("list_files", ABSENT)), ok],
    { ...recovered, sent: callWasNotRun },
  ],
  [
    "a call cut off where its arguments happen to be complete",
    [cutOff(text("I look."), read("a.ts")), ok],
    { ...recovered, sent: callWasNotRun },
  ],
  ...Object.entries(EMPTY).flatMap(([name, blocks]): Row[] => [
    [`${name} instead of an answer`, [reply(blocks), ok], recovered],
    [
      `${name} instead of an answer, twice`,
      [reply(blocks), reply(blocks)],
      { code: INCOMPLETE, stderr: /^mini-pi: .*no answer/m },
    ],
  ]),
  ["a refusal", [reply([], REFUSED)], { code: INCOMPLETE, stderr: WHY_REFUSED }],
  [
    "a refusal after some text",
    [reply("Well, I", REFUSED)],
    { real: "anthropic", code: INCOMPLETE, stdout: "Well, I", stderr: WHY_REFUSED },
  ],
  ...["model_length", "weird"].map((stop): Row => {
    const stderr = new RegExp(`^mini-pi: .*${stop}`, "m");
    const steps = [reply("Perhaps.", { stop })];
    return [`the unknown ending ${stop}`, steps, { code: FAILED, stdout: "Perhaps.", stderr }];
  }),
  ["an empty text after the answer", [reply([text("Recovered."), text("")])], recovered],
  [
    "thinking and line breaks around the answer",
    [reply([thinking("Hm."), text("\n\nRecovered.\n\n")])],
    recovered,
  ],
  ["words beside the calls", [reply([text("I look."), read("a.ts")]), ok], recovered],
  [
    "calls in a reply that claims to be the answer",
    [reply([read("a.ts")], { stop: "end_turn" }), ok],
    { ...recovered, sent: (requests) => assert.match(resultIn(requests, 1), /1\texport/) },
  ],
  [
    "a reply that claims to call and does not",
    [reply("Recovered.", { stop: "tool_use" })],
    recovered,
  ],
  [
    "a block of a type that nobody knows",
    [reply([unknown("hologram", { depth: 3 }), read("a.ts")]), ok],
    recovered,
  ],
];

const wideReads = [1, 2, 3, 4, 5, 6, 7, 8].map((n) => read(`wide${n}.txt`));

const CONTEXT: Row[] = [
  [
    "a context that overflows",
    [reply([line(1)]), reply([line(2)]), contextOverflow(), ok],
    {
      ...recovered,
      sent: (requests) => {
        assert.match(toolTexts(at(requests, 2)).join("\n"), /\n1\texport.*\n2\texport/s);
        assert.match(toolTexts(at(requests, 3)).join("\n"), /^\[removed.*\n2\texport/s);
      },
    },
  ],
  [
    "a context that overflows whatever is left out",
    [reply([line(1)]), reply([line(2)]), contextOverflow(), contextOverflow()],
    { code: FAILED, stderr: /^mini-pi: .*context/m },
  ],
  [
    "a context that overflows with the question",
    [contextOverflow()],
    { code: FAILED, stderr: /^mini-pi: .*context/m },
  ],
  [
    "a context that overflows with the first result",
    [reply([line(1)]), contextOverflow()],
    { real: "anthropic", code: FAILED, stderr: /^mini-pi: .*context/m },
  ],
  [
    "a local server's context that has lost the question",
    [status(500, { message: "no user query found in messages" })],
    { api: "openai", forever: true, code: FAILED, stderr: /^mini-pi: .*num_ctx/m, requests: 1 },
  ],
  [
    "a local model that takes no tools",
    [status(400, { message: "registry.ollama.ai/library/gemma:1b does not support tools" })],
    { api: "openai", code: FAILED, stderr: /^mini-pi: .*model that can call tools/m },
  ],
  [
    "a read of 12 MB in one line",
    [reply([read("line.json")]), ok],
    { ...recovered, sent: (requests) => assert.ok(at(requests, 1).raw.length < 20_000) },
  ],
  [
    "a read of 300 KB of JSON",
    [reply([read("big.json")]), ok],
    {
      ...recovered,
      sent: (requests) => {
        assert.match(resultIn(requests, 1), /\[lines 1-400 of 20000; offset=401 reads on/);
        assert.ok(at(requests, 1).raw.length < 50_000);
      },
    },
  ],
  [
    "eight reads of 200 KB in one reply",
    [reply(wideReads), ok],
    { ...recovered, sent: (requests) => assert.ok(at(requests, 1).raw.length < 320_000) },
  ],
  [
    "eight reads of 200 KB in one reply of a model that holds 32,000 tokens",
    [reply(wideReads), ok],
    {
      api: "openai",
      ...recovered,
      sent: (requests) => assert.ok(at(requests, 1).raw.length < 4 * 0.75 * 32_000),
    },
  ],
];

const withId = (id: string, path: string) => call("read_file", { path }, { id });
const signature = { google: { thought_signature: "c2lnbmF0dXJl" } };

const HISTORY: Row[] = [
  [
    "three calls at once, the second of which fails",
    [reply([read("a.ts"), read("missing.ts"), call("list_files")]), ok],
    {
      ...recovered,
      stderr: /^ {2}failed: .*missing\.ts/m,
      sent: (requests) => {
        const texts = results(at(requests, 1)).map(({ text }) => text);
        const expected = [/\n1\texport/, /missing\.ts.* does not exist/, /^a\.ts \(/m];
        for (const [i, pattern] of expected.entries()) assert.match(texts[i] ?? "", pattern);
        assert.equal(texts.length, expected.length);
      },
    },
  ],
  [
    "a call that fails on each of three turns",
    [...["x", "y", "z"].map((path) => reply([read(path)])), ok],
    { ...recovered, stderr: /(failed: .*){3}/s },
  ],
  [
    "fifteen turns",
    [...Array.from({ length: 14 }, (_, n) => reply([line(n + 1)])), ok],
    { ...recovered, sent: onlyAppended },
  ],
  [
    "a call id that comes again in one reply and in the next",
    [reply([withId("same", "a.ts"), withId("same", "b.ts")]), reply([withId("same", "z.ts")]), ok],
    { ...recovered, sent: onlyAppended },
  ],
  ["calls with an empty id", [reply([withId("", "a.ts"), withId("", "b.ts")]), ok], recovered],
  [
    "call ids as mini-pi itself could have made them",
    [reply(["call_1", "", "same_3", "same", "same"].map((id, i) => withId(id, `${i}.ts`))), ok],
    recovered,
  ],
  [
    "results without any text",
    [reply([read("empty.ts"), call("list_files", { path: "void" })]), ok],
    {
      ...recovered,
      sent: (requests) => {
        const texts = toolTexts(at(requests, 1)).join("\n");
        assert.match(texts, /^empty\.ts \(empty file, 0 bytes\)\n\(empty directory\)$/);
      },
    },
  ],
  ["an empty text beside a call", [reply([text(""), read("a.ts")]), ok], recovered],
  [
    "thinking between the calls",
    [reply([thinking("First.", "one"), read("a.ts"), thinking("Then.", "two"), read("b.ts")]), ok],
    { ...recovered, sent: (requests) => assert.match(at(requests, 1).raw, /First\..*Then\./) },
  ],
  [
    "redacted thinking, and thinking with only a signature",
    [reply([redacted("c2VjcmV0"), thinking("", "only"), read("a.ts")]), ok],
    {
      api: "anthropic",
      ...recovered,
      sent: (requests) => assert.match(at(requests, 1).raw, /c2VjcmV0.*"only"/),
    },
  ],
  [
    "a thought signature in Gemini's OpenAI protocol",
    [reply([call("list_files", {}, { extra: signature })]), ok],
    {
      api: "openai",
      fails: "pi-ai 1.6.0 keeps nothing of tool_calls[].extra_content",
      ...recovered,
      sent: (requests) => assert.match(at(requests, 1).raw, /"thought_signature":"c2lnbmF0dXJl"/),
    },
  ],
  [
    "half a surrogate pair in a reply that must be sent back",
    [reply([text("Look \ud83d"), call("search_files", '{"pattern":"\\ud83d"}')]), ok],
    recovered,
  ],
  [
    "half a surrogate pair in the name of a file",
    [reply([call("read_file", '{"path":"a\\ud83d.ts"}')]), ok],
    recovered,
  ],
  [
    "emoji where long lines are cut",
    [
      reply([read("emoji0.txt"), read("emoji1.txt")]),
      reply([call("search_files", { pattern: "needle", path: "emoji1.txt" })]),
      ok,
    ],
    { ...recovered, sent: (requests) => assert.match(toolTexts(at(requests, 2)).join(), /😀/) },
  ],
];

/** Calls as no model should make them, and the result that each gets. */
const CALLS: [fault: string, tool: string, args: Arguments, result: RegExp][] = [
  ["arguments that are an empty text", "list_files", "", /^a\.ts \(/m],
  ["arguments that are null", "list_files", null, /^a\.ts \(/m],
  ["arguments that are missing", "list_files", ABSENT, /^a\.ts \(/m],
  ["arguments that are the text null", "list_files", "null", /^a\.ts \(/m],
  ["arguments that are a number", "read_file", "5", /arguments/i],
  ["arguments that are a list", "read_file", '["a.ts"]', /arguments/i],
  ["arguments that are a text", "read_file", '"a.ts"', /arguments/i],
  ["arguments that end too early", "read_file", '{"path":"a', /arguments/i],
  ["arguments that are no JSON", "read_file", "path=a.ts", /arguments/i],
  ["no path where one is needed", "read_file", {}, /path/],
  [
    "an argument that is not there",
    "read_file",
    { path: "a.ts", lines: "1-2" },
    /lines|additional/,
  ],
  ["a number as text", "read_file", { path: "a.ts", offset: "2" }, /\n2\texport/],
  ["a number as text with spaces", "read_file", { path: "a.ts", offset: " 2 " }, /\n2\texport/],
  ["a number as text with a sign", "read_file", { path: "a.ts", offset: "+2" }, /\n2\texport/],
  ["a number with a fraction", "read_file", { path: "a.ts", offset: 1.5 }, /integer|\n1\texport/],
  ["a number below zero", "read_file", { path: "a.ts", offset: -1 }, /offset|\n1\texport/],
  ["null for what may be left out", "read_file", { path: "a.ts", offset: null }, /\n1\texport/],
  ["an empty path", "list_files", { path: "" }, /^a\.ts \(/m],
  ["a path in quotes", "read_file", { path: '"a.ts"' }, /\n1\texport/],
  ["a tool that is not there", "grep", { pattern: "x" }, /list_files, read_file, search_files/],
  ["a tool without a name", "", { path: "a.ts" }, /list_files, read_file, search_files/],
  ["a tool with a name that no API takes back", "run it.now", {}, /list_files, read_file/],
  ["a tool with a very long name", "x".repeat(3000), {}, /list_files, read_file/],
];

const BAD_CALLS = CALLS.map(([fault, tool, args, result]): Row => {
  const sent = (requests: ModelRequest[]) => {
    assert.match(resultIn(requests, 1), result);
    assert.ok(resultIn(requests, 1).length < 2000);
    for (const { type, name } of at(requests, 1).history.flatMap(({ content }) => content))
      if (type === "tool_use") assert.match(String(name), /^[\w-]{1,64}$/);
  };
  // How arguments look on the wire depends on the API, all else does not.
  const api = typeof args === "object" && args !== null ? "openai" : undefined;
  return [fault, [reply([call(tool, args)]), ok], { api, ...recovered, sent }];
});

const TABLE = {
  "a status": STATUSES,
  "a broken or silent connection": CONNECTIONS,
  "a limit": LIMITS,
  "an odd ending": ENDINGS,
  "too much for the context": CONTEXT,
  "a history that is hard to send back": HISTORY,
  "a call as no model should make it": BAD_CALLS,
};

const processes = Object.values(TABLE).flatMap((rows) => rows.filter(([, , { real }]) => real));
/** The rows that have a process now: half of those that may, and in a long test all. */
const REAL = new Set(everyNth(2, processes));
/** The others are tried with one API each, and in a long test with both. */
const API_MATTERS = new Set([STATUSES, CONNECTIONS, ENDINGS, HISTORY, BAD_CALLS]);

for (const [group, rows] of Object.entries(TABLE))
  describe(`After ${group}`, { concurrency: 8 }, () => {
    for (const [i, row] of rows.entries()) {
      const [fault, steps, outcome] = row;
      const both = API_MATTERS.has(rows) ? APIS : everyNth(2, APIS, i);
      for (const api of outcome.api ? [outcome.api] : outcome.real ? APIS : both) {
        const requests = outcome.requests ?? steps.length;
        const end = `exit code ${outcome.code} after ${requests} requests`;
        const isReal = outcome.real === api && REAL.has(row);
        const where = isReal ? ", also as a process" : "";
        test(`${api}: ${fault} ends with ${end}${where}`, { expectFailure: outcome.fails }, () =>
          run(api, steps, { ...outcome, real: isReal ? api : undefined }, requests),
        );
      }
    }
  });

// ---------------------------------------------------------------- What does not fit a row

describe("A connection that cannot be made", { concurrency: 8 }, () => {
  /** Ends with one line that says what to do; nothing is tried again, for it would fail again. */
  async function fails(baseUrl: string, advice: RegExp) {
    for (const api of APIS) {
      const model = api === "anthropic" ? "anthropic/claude-sonnet-5-5" : "some-model";
      const result = await mini(["-m", model, "--base-url", baseUrl]);
      isWell(result, { code: FAILED, stderr: advice });
      assert.doesNotMatch(result.stderr, /^retry/m);
    }
  }

  test("to a port where nothing listens ends at once, and says to start the server", async () => {
    const server = http.createServer();
    const port = await listen(server);
    await new Promise((closed) => server.close(closed));
    await fails(`http://127.0.0.1:${port}/v1`, /^mini-pi: .*[Ss]tart the server/m);
  });

  test("to a port that fetch does not go to ends at once", () =>
    fails("http://127.0.0.1:9/v1", /^mini-pi: .*bad port/m));

  test("to a host that does not exist ends at once, and says how to name a proxy", () =>
    fails("https://model.invalid/v1", /^mini-pi: .*NODE_USE_ENV_PROXY=1/m));

  test("to a server with an unknown certificate ends at once, and says how to trust it", async () => {
    await using server = https.createServer(SELF_SIGNED, (_, response) => response.end());
    const port = await listen(server);
    await fails(`https://127.0.0.1:${port}/v1`, /^mini-pi: .*NODE_EXTRA_CA_CERTS/m);
  });

  test("to a server that speaks no TLS ends at once, with one line", async () => {
    await using server = await startModelServer([]);
    await fails(server.url.replace("http", "https"), /^mini-pi: .*(TLS|SSL|http:)/im);
  });

  test("goes through the proxy that HTTPS_PROXY names, under NODE_USE_ENV_PROXY=1", async () => {
    const asked: string[] = [];
    await using proxy = http.createServer().on("connect", (request, socket) => {
      asked.push(request.url ?? "");
      socket.end("HTTP/1.1 403 Forbidden\r\n\r\n");
    });
    const HTTPS_PROXY = `http://127.0.0.1:${await listen(proxy)}`;
    const env = { ...ENV, NODE_USE_ENV_PROXY: "1", HTTPS_PROXY };
    const model = ["-m", "anthropic/claude-sonnet-5-5", "--base-url", "https://model.invalid"];
    // Node reads the variable once, as a process starts.
    isWell(await mini(model, { env }, runCli), { code: FAILED, stderr: /^mini-pi: .*403/m });
    assert.equal(asked[0], "model.invalid:443");
  });
});

test("The gaps between tries grow, are not all alike, and are told before they are waited", async () => {
  await using server = await startModelServer([status(529)], { repeatLast: true });
  const env = { ...ENV, MINI_PI_RETRY_MS: "40" };
  const result = await mini([...modelAt(server, "anthropic"), "--json"], { env });
  const told = eventsIn(result)
    .filter(({ type }) => type === "auto_retry_start")
    .map(({ delayMs }) => Number(delayMs));
  const waited = told.map((_, i) => at(server.requests, i + 1).at - at(server.requests, i).at);
  for (const [i, delayMs] of told.entries()) {
    assert.ok(delayMs >= 20 * 2 ** i && delayMs <= 60 * 2 ** i, `try ${i}: ${delayMs} ms`);
    assert.ok((waited[i] ?? 0) >= delayMs - 5, `told ${delayMs} ms, waited ${waited[i]} ms`);
  }
  assert.equal(new Set(told.map((delayMs, i) => Math.round(delayMs / 2 ** i))).size > 1, true);
  assert.equal(told.length, 4);
});

describe("A conversation can be continued after", { concurrency: 8 }, () => {
  const broken = { type: "invalid_request_error", message: "Bad thing." };
  const endings: [ending: string, steps: Step[], args?: string[]][] = [
    ["an error that is final", [status(400)]],
    ["an error in the middle of a call", [midStreamError([read("a.ts")], broken)]],
    ["an error after a call", [midStreamError([read("a.ts"), text("Well")], broken)]],
    ["a silence after a call", [stall({ after: [read("a.ts"), text("Well")] })]],
    [
      "a time limit after a call",
      [keepAliveStall({ after: [read("a.ts"), text("Well")] })],
      ["--timeout", "1"],
    ],
    ["a refusal", [reply([], REFUSED)]],
    ["a refusal with a call in it", [reply([text("Well"), read("a.ts")], REFUSED)]],
    ["two empty answers", [reply([]), reply([])]],
    ["an unknown ending", [reply("Perhaps.", { stop: "weird" })]],
    ["an answer that was cut off", [1, 2, 3, 4].map(() => cutOff(text("part")))],
    ["four times nothing but the output limit", [1, 2, 3, 4].map(() => cutOff())],
    ["a last reply with a call in it", [reply([line(1)]), reply([line(2)])], ["--max-turns", "1"]],
    ["a context that overflows", [reply([line(1)]), contextOverflow()]],
  ];
  for (const [i, [ending, steps, args = []]] of endings.entries()) {
    const api = i % 2 === 0 ? "anthropic" : "openai";
    test(`${ending} (${api})`, async () => {
      await using server = await startModelServer([...steps, ok]);
      const session = join(SESSIONS, `${i}.jsonl`);
      const asked = [...modelAt(server, api), "--session", session];
      const env = { ...ENV, ...(ending.startsWith("a silence") && IDLE) };
      const first = await runHere([...asked, ...args, DIRECTORY, "What is it?"], { env });
      assert.notEqual(first.code, 0);
      assert.equal(server.requests.length, steps.length, first.stderr);
      isWell(await runHere([...asked, DIRECTORY, "And now?"], { env }), recovered);
      assert.deepEqual(server.problems, []);
    });
  }
});

describe("JSON mode tells the same truth as the exit code", { concurrency: 8 }, () => {
  const again = () => reply([read("a.ts")]);
  const cases: [ended: string, code: number, steps: Step[]][] = [
    ["answered", 0, [again(), ok]],
    ["error", FAILED, [again(), status(400, { message: "Bad." })]],
    ["error", FAILED, [status(401)]],
    ["limit", INCOMPLETE, [again(), again(), again(), ok]],
    ["incomplete", INCOMPLETE, [reply([]), reply([])]],
    ["incomplete", INCOMPLETE, [reply([], REFUSED)]],
  ];
  for (const [ended, code, steps] of cases)
    test(`"${ended}" after ${steps.length} requests goes with exit code ${code}`, async () => {
      await using server = await startModelServer(steps);
      const args = [...modelAt(server, "anthropic"), "--json"];
      const result = await mini(args);
      const [header, ...events] = eventsIn(result);
      assert.equal(header?.type, "session");
      assert.equal(events.at(-1)?.type, "agent_end");
      assert.equal(events.at(-1)?.ended, ended);
      assert.equal(events.at(-1)?.message === "", code === 0);
      assert.equal(result.code, code);
      assert.deepEqual(server.problems, []);
    });
});

describe("Without a key for the model that is named", { concurrency: 8 }, () => {
  const cases: [by: string, args: string[], stderr: RegExp, env: Record<string, string>][] = [
    ["an option", ["-m", "anthropic/claude-sonnet-5-5"], /ANTHROPIC_API_KEY/, {}],
    ["its provider", ["-m", "google"], /GEMINI_API_KEY/, {}],
    ["the environment", [], /OPENAI_API_KEY/, { MINI_PI_MODEL: "openai/gpt-6.2-sol" }],
  ];
  for (const [by, args, stderr, env] of cases)
    test(`by ${by} nothing is sent, and one line names the variable to set`, async () => {
      await using server = await startModelServer([]);
      const result = await mini([...args, "--base-url", server.url], { env });
      isWell(result, { code: WRONG_CALL, stderr });
      assert.equal(result.stderr.trim().split("\n").length, 1);
      assert.equal(server.requests.length, 0);
    });
});

test("Without any key the offline model answers, and stderr names the variables to set", async () => {
  const result = await mini([], { env: {} });
  assert.equal(result.code, 0);
  assert.match(result.stderr, /offline.*ANTHROPIC_API_KEY/s);
  assert.match(result.stdout, /\S/);
});

describe("What is printed", () => {
  const evil = "\x1b]52;c;aGk=\x07\x1b]0;title\x07\x1b[2J\x9b31m\rover\u202ewritten\tend";
  const evilFile = call("read_file", { path: `no\x1b[2J\x07\u202e.ts` });

  test("to a pipe is the answer byte for byte, whatever is in it", async () => {
    await using server = await startModelServer([reply([evilFile]), reply(evil)]);
    const result = await mini(modelAt(server, "anthropic"));
    assert.equal(result.stdout, `${evil}\n`);
    assert.doesNotMatch(result.stderr, /[\x1b\x07\x9b\u202e]/);
  });

  test("in JSON mode can be parsed line by line, and holds the bytes", async () => {
    await using server = await startModelServer([reply([evilFile]), reply(`${evil}\u2028`)]);
    const result = await mini([...modelAt(server, "anthropic"), "--json"]);
    assert.equal(eventsIn(result).at(-1)?.answer, evil);
    assert.doesNotMatch(result.stdout, /[\x1b\u2028]/);
  });

  test("on stderr is nothing with --quiet, but for an error", async () => {
    await using server = await startModelServer([
      status(529),
      reply([read("z.ts")]),
      ok,
      status(401),
    ]);
    const args = [...modelAt(server, "anthropic"), "--quiet"];
    assert.equal((await mini(args)).stderr, "");
    assert.match((await mini(args)).stderr, /^mini-pi: .*\n$/);
  });
});

// ------------------------------------------------------- The directory, and how a row is run

const SELF_SIGNED = {
  key: `-----BEGIN PRIVATE KEY-----
MIGHAgEAMBMGByqGSM49AgEGCCqGSM49AwEHBG0wawIBAQQgFct2j22De5nZfJ5l
LpPbSB+1vByvvjBq00Ji6kqswI2hRANCAATsQaFGZNkxGE3hmyLOStqOlacE+Yht
b6NXePf5JyT2vH2oVzHLPh72arQzJC42saK0KvcAyrdEHNd8q/yHICaD
-----END PRIVATE KEY-----`,
  cert: `-----BEGIN CERTIFICATE-----
MIIBkTCCATagAwIBAgIUIAqpr2vnFz6yun1tsrlpro1giZ8wCgYIKoZIzj0EAwIw
FDESMBAGA1UEAwwJbG9jYWxob3N0MCAXDTI2MTEzMDA2NDAxNFoYDzIxMjYxMTA2
MDY0MDE0WjAUMRIwEAYDVQQDDAlsb2NhbGhvc3QwWTATBgcqhkjOPQIBBggqhkjO
PQMBBwNCAATsQaFGZNkxGE3hmyLOStqOlacE+Yhtb6NXePf5JyT2vH2oVzHLPh72
arQzJC42saK0KvcAyrdEHNd8q/yHICaDo2QwYjAdBgNVHQ4EFgQUQmn06ynIsEJI
7k7APb+Hxw7ped8wHwYDVR0jBBgwFoAUQmn06ynIsEJI7k7APb+Hxw7ped8wDwYD
VR0TAQH/BAUwAwEB/zAPBgNVHREECDAGhwR/AAABMAoGCCqGSM49BAMCA0kAMEYC
IQD2D9nMxlDbdkZnVz9aOh08NM30+2NdCMkk4g+K2Z8KxAIhAPVZAWc+rucs2cWa
P9rtBXiDQ1SuNTx6dJcXKyrP8sV3
-----END CERTIFICATE-----`,
};

/** Forty lines of code, and files that are too large, too wide, or empty. */
function directoryToAskAbout(): string {
  const directory = temporary();
  const lines = (n: number, of: (i: number) => string) =>
    Array.from({ length: n }, (_, i) => of(i));
  const wide = lines(2000, () => `${"wide ".repeat(20)}\n`).join("");
  const files = {
    "a.ts": lines(40, (i) => `export const a${i} = ${i};\n`).join(""),
    "b.ts": "export const b = 1;\n",
    "empty.ts": "",
    "line.json": `{"data":"${"x".repeat(12 * 1024 ** 2)}"}`,
    "big.json": lines(20_000, (i) => `{"id": ${i}},\n`).join(""),
    ...Object.fromEntries(lines(8, (i) => `wide${i + 1}.txt`).map((name) => [name, wide])),
    // One of them has its pairs where the other has the middle of a pair.
    "emoji0.txt": "😀".repeat(3000),
    "emoji1.txt": `.${"😀".repeat(1500)}needle${"😀".repeat(1500)}`,
  };
  for (const [name, content] of Object.entries(files))
    writeFileSync(join(directory, name), content);
  mkdirSync(join(directory, "void"));
  return directory;
}

function temporary(): string {
  const directory = mkdtempSync(join(tmpdir(), "mini-pi-faults-"));
  after(() => rmSync(directory, { recursive: true }));
  return directory;
}

function modelAt(server: ModelServer, api: Api): string[] {
  return api === "anthropic"
    ? ["-m", "anthropic/claude-sonnet-5-5", "--base-url", server.url]
    : ["-m", "some-model", "--base-url", server.openaiUrl];
}

/** Asks about the directory, with keys and small gaps between tries, and keeps no session. */
function mini(args: string[], options: CliOptions = {}, start = runHere): Promise<CliResult> {
  const all = [...args, "--no-session", DIRECTORY, "What is it?"];
  return start(all, { env: ENV, ...options });
}

async function run(api: Api, steps: Step[], outcome: Outcome, requests: number): Promise<void> {
  await using server = await startModelServer(steps, { repeatLast: outcome.forever });
  const args = [...modelAt(server, api), ...(outcome.args ?? [])];
  const start = outcome.real === api ? runCli : runHere;
  const result = await mini(args, { env: { ...ENV, ...outcome.env } }, start);
  isWell(result, outcome);
  assert.deepEqual(server.problems, []);
  assert.equal(server.requests.length, requests, result.stderr);
  outcome.sent?.(server.requests);
}

/** The outcome that is wanted, and what is true of any. */
function isWell(result: CliResult, { code, stdout = "", stderr = /^/ }: Outcome): void {
  assert.equal(result.timedOut, false);
  assert.equal(result.stdout, stdout && `${stdout}\n`, result.stderr);
  assert.match(result.stderr, stderr);
  assert.equal(result.code, code, result.stderr);
  const failures = result.stderr.split("\n").filter((line) => line.startsWith("mini-pi: "));
  assert.equal(failures.length, code === 0 ? 0 : 1, result.stderr);
  assert.doesNotMatch(result.stderr, /^ +at |\x1b|Error: .*\n.*Error: /m);
  assert.ok(!result.stderr.includes(KEY));
  assert.ok(result.stderr.split("\n").every((line) => line.length < 800));
  if (stdout) assert.ok(result.msAfterOutput < 8000, `${result.msAfterOutput} ms after the answer`);
}

function at(requests: ModelRequest[], index: number): ModelRequest {
  const request = requests[index];
  assert.ok(request, `there is no request ${index}`);
  return request;
}

/** The text of the first result that ends the history. */
const resultIn = (requests: ModelRequest[], index: number) =>
  results(at(requests, index))[0]?.text ?? "";

/** The texts of all results in the history. */
function toolTexts({ history }: ModelRequest): string[] {
  const found = history.flatMap((turn) =>
    turn.content.filter(({ type }) => type === "tool_result"),
  );
  return found.map(({ content = "" }) => {
    const parts = Array.isArray(content) ? content : [content];
    return parts.map((part) => String(Object(part).text ?? part)).join("");
  });
}

function lastTwoAlike(requests: ModelRequest[]): void {
  const [before, after] = requests.slice(-2);
  assert.deepEqual(after?.body, before?.body);
}

function onlyAppended(requests: ModelRequest[]): void {
  for (const [i, request] of requests.slice(1).entries())
    assert.ok(isPrefix(at(requests, i), request), `request ${i + 1} changes what came before`);
}

/** The last request forbids tools, though it still declares them, and says why. */
function endsInLastCall(requests: ModelRequest[]): void {
  const choices = requests.map(({ body }) => Object(body.tool_choice).type ?? body.tool_choice);
  assert.equal(choices.at(-1), "none");
  assert.ok(!choices.slice(0, -1).includes("none"));
  const said = requests.at(-1)?.history.findLast(({ role }) => role !== "system");
  assert.match(JSON.stringify(said), /Answer now/);
  onlyAppended(requests);
}

function callWasNotRun(requests: ModelRequest[]): void {
  const texts = toolTexts(at(requests, 1)).join();
  assert.match(texts, /^Not run: .*cut off/);
  assert.doesNotMatch(texts, /export/);
}

function eventsIn({ stdout }: CliResult): { [key: string]: unknown }[] {
  const lines = stdout.split("\n");
  assert.equal(lines.pop(), "");
  return lines.map((line) => JSON.parse(line));
}

async function listen(server: net.Server): Promise<number> {
  await once(server.listen(0, "127.0.0.1"), "listening");
  return Object(server.address()).port;
}
