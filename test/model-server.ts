// A scripted model server for tests: a real HTTP server on loopback that speaks the streams of
// Anthropic Messages (POST .../v1/messages) and OpenAI Chat Completions (.../chat/completions).
//
// A test hands it a list of steps, and each request takes the next one: a reply, a fault, or a
// function that looks at the request and gives either. One script works for both APIs.
//
//   await using server = await startModelServer([
//     reply([thinking("Look.", "sig"), call("read_file", { path: "a.ts" })]),
//     status(529),
//     (request) => reply(`It says: ${results(request)[0]?.text}`),
//   ]);
//   ... point a client at server.url (Anthropic) or server.openaiUrl ...
//   assert.deepEqual(server.problems, []);
//
// Before it takes a step it checks the history it was sent as the strictest provider would. What
// is wrong becomes a sentence in `problems` and a 400, and the step stays for the next request.
//
// In reading order: the script, what a request holds, the rules, the two streams, the server.

import { randomUUID } from "node:crypto";
import { EventEmitter, once } from "node:events";
import * as http from "node:http";
import { text as readText } from "node:stream/consumers";
import { setTimeout as sleep } from "node:timers/promises";

export type Json = null | boolean | number | string | Json[] | JsonObject;
export type JsonObject = { [key: string]: Json | undefined };
export type Api = "anthropic" | "openai";

// ------------------------------------------------------------------------------ The script

/** Milliseconds, or a promise that the test settles. */
export type Pause = number | Promise<unknown>;

/** A part of a reply, made anew for each request that gets it. */
export type Block = () => Part;

/** How each API streams it. */
interface Part {
  /** Anthropic's complete block (a call has no input yet), and what is blank at its start. */
  block: JsonObject;
  blank?: JsonObject;
  /** Anthropic's deltas, and OpenAI's; `nth` is the number of calls before it. */
  deltas?: JsonObject[];
  openai: (nth: number) => JsonObject[];
  pause?: Pause;
}

/** Text, in one piece, or in several with a pause between every two. */
export const text = (chunks: string | string[], pause?: Pause): Block => {
  const list = [chunks].flat();
  return () => ({
    block: { type: "text", text: list.join("") },
    blank: { text: "" },
    deltas: list.map((text) => ({ type: "text_delta", text })),
    openai: () => list.map((content) => ({ content })),
    pause,
  });
};

/** Reasoning: a signed thinking block for Anthropic, reasoning_content for OpenAI. */
export const thinking = (thinking: string, signature = "signature"): Block => {
  const said = { type: "thinking_delta", thinking };
  return () => ({
    block: { type: "thinking", thinking, signature },
    blank: { thinking: "", signature: "" },
    deltas: [said, { type: "signature_delta", signature }],
    openai: () => [{ reasoning_content: thinking }],
  });
};

/** A redacted_thinking block. OpenAI has none, so there it sends nothing. */
export const redacted = (data: string): Block => {
  return () => ({ block: { type: "redacted_thinking", data }, openai: () => [] });
};

/** A block of a type that no client knows yet. For OpenAI, a field of that name in a delta. */
export const unknown = (type: string, fields: JsonObject = {}): Block => {
  return () => ({ block: { type, ...fields }, openai: () => [{ [type]: fields }] });
};

/** Stands for arguments that are left out. */
export const ABSENT = Symbol("absent");

/** An object, the raw text of it (so that it can be broken or cut), a JSON null, or ABSENT. */
export type Arguments = JsonObject | string | null | typeof ABSENT;
type CallOptions = { id?: string; extra?: JsonObject };

/** A tool call; without `id` it has a fresh one each time. `extra` is OpenAI's extra_content. */
export const call = (name: string, args: Arguments = {}, options: CallOptions = {}): Block => {
  const pieces = rawArguments(args).match(/.{1,16}/gsu) ?? [];
  const begun = args === ABSENT ? {} : { arguments: args === null ? null : "" };
  return () => {
    const id = options.id ?? `call_${randomUUID().slice(0, 13)}`;
    const first = { id, type: "function", extra_content: options.extra };
    const rest = pieces.map((piece) => ({ function: { arguments: piece } }));
    const items = [{ ...first, function: { name, ...begun } }, ...rest];
    return {
      block: { type: "tool_use", id, name, input: args === null ? null : {} },
      deltas: pieces.map((partial_json) => ({ type: "input_json_delta", partial_json })),
      openai: (index) => items.map((item) => ({ tool_calls: [{ index, ...item }] })),
    };
  };
};

function rawArguments(args: Arguments): string {
  if (args === null || args === ABSENT) return "";
  return typeof args === "string" ? args : JSON.stringify(args);
}

export type Usage = Record<"input" | "output" | "cacheRead" | "cacheWrite", number>;
type ReplyOptions = { stop?: string; usage?: Partial<Usage>; explanation?: string };
type Headers = Record<string, string>;
type StatusOptions = { message?: string; body?: string | JsonObject; headers?: Headers };

type Reply = { type: "reply"; blocks: Block[] } & ReplyOptions;
type Status = { type: "status"; code: number } & StatusOptions;
type Broken = { type: "broken"; after: Block[] | "headers" | "nothing"; ending: Ending };
type Ending = "cut" | "reset" | "end" | "silence" | "keepAlive" | "garbage" | { error: JsonObject };
type Decide = (request: ModelRequest) => Step | Promise<Step>;
export type Step = Reply | Status | Broken | Decide;

/**
 * A whole reply. `stop` is sent as it is, but OpenAI gets its own names for Anthropic's; left out,
 * it is what the blocks imply. `explanation` is the reason that Anthropic gives for a refusal.
 */
export const reply = (blocks: Block[] | string, options: ReplyOptions = {}): Step => {
  const list = typeof blocks === "string" ? [text(blocks)] : blocks;
  return { type: "reply", blocks: list, ...options };
};

/** One reply of `bytes` ASCII characters in many chunks; a lost piece breaks the row of digits. */
export const hugeReply = (bytes: number): Step => {
  const whole = "0123456789".repeat(Math.ceil(bytes / 10)).slice(0, bytes);
  return reply([text(whole.match(/.{1,65536}/g) ?? [])]);
};

/** An HTTP status. Without a body, the provider's own kind of error body, with `message` in it. */
export const status = (code: number, options: StatusOptions = {}): Step => {
  return { type: "status", code, ...options };
};

/** The 400 of a prompt that does not fit, in each provider's own words. */
export const contextOverflow = (): Step => (request) =>
  status(400, { message: OVERFLOW[request.api] });

const OVERFLOW = {
  anthropic: "prompt is too long: 1250000 tokens > 1000000 maximum",
  openai: "This model's maximum context length is 131072 tokens, your messages have 250000.",
};

/** Sends the client elsewhere. */
export const redirect = (location: string, code = 307): Step =>
  status(code, { body: "", headers: { location } });

/** The connection breaks before any header: closed in good order, or with a reset. */
export const cutBefore = (how: "cut" | "reset" = "cut"): Step => broken("nothing", how);

/** The headers and the blocks, the last one left open; then the connection breaks. */
export const cutMiddle = (blocks: Block[], how: "cut" | "reset" = "cut"): Step =>
  broken(blocks, how);

/** The headers and the blocks, the last one left open; then the stream ends as if complete. */
export const endEarly = (blocks: Block[] = []): Step => broken(blocks, "end");

/** Silence for ever: after the headers and the blocks of `after`, or else from the start. */
export const stall = ({ after }: { after?: Block[] } = {}): Step =>
  broken(after ?? "nothing", "silence");

/** The headers (and the blocks of `after`), then keep-alive comments and pings for ever. */
export const keepAliveStall = ({ after }: { after?: Block[] } = {}): Step =>
  broken(after ?? "headers", "keepAlive");

/** The blocks, then the provider's error event in the stream. */
export const midStreamError = (blocks: Block[] = [], error: JsonObject = OVERLOADED): Step =>
  broken(blocks, { error });

/** The blocks, then an event that is no JSON. */
export const garbage = (blocks: Block[] = []): Step => broken(blocks, "garbage");

const OVERLOADED = { type: "overloaded_error", message: "Overloaded" };

const broken = (after: Broken["after"], ending: Ending): Step => {
  return { type: "broken", after, ending };
};

// ------------------------------------------------------------------- What a request holds

export interface ModelRequest {
  api: Api;
  /** With the query. */
  path: string;
  headers: http.IncomingHttpHeaders;
  raw: string;
  /** Empty when the body is no JSON object. */
  body: JsonObject;
  /** The messages in Anthropic's shape, whichever API sent them. */
  history: Turn[];
  /** When it had arrived in full, in ms, by `performance.now()`. */
  at: number;
  /** Settles when the exchange is over, whoever ended it. */
  closed: Promise<unknown>;
}

/** A message. Tool messages of OpenAI that follow each other are one turn of the role "tool". */
export interface Turn {
  /** Of its first message in the request, 0-based. */
  index: number;
  role: string;
  /** Of the types text, thinking, redacted_thinking, tool_use and tool_result. */
  content: JsonObject[];
}

/** The tool results that end the history, in order. `isError` is known from Anthropic only. */
export function results(request: ModelRequest) {
  const last = request.history.findLast((turn) => turn.role !== "system");
  return ofType(last, "tool_result").map((block) => ({
    id: string(block.tool_use_id),
    text: contentText(block.content),
    isError: block.is_error === true,
  }));
}

/**
 * Whether `next` only adds to `previous`: the same system prompt and tools, and messages that begin
 * byte for byte with the previous ones. Cache markers may move, and a string counts as its one
 * text block, for that is how a client attaches a marker to it.
 */
export function isPrefix(previous: ModelRequest, next: ModelRequest): boolean {
  const before = objects(previous.body.messages);
  const same = (key: string) => unmarked(previous.body[key]) === unmarked(next.body[key]);
  const begun = objects(next.body.messages).slice(0, before.length);
  return same("system") && same("tools") && unmarked(before) === unmarked(begun);
}

const unmarked = (value: Json | undefined) =>
  JSON.stringify(value, (key, inner) => {
    if (key === "cache_control") return undefined;
    return key === "content" && typeof inner === "string" ? textBlocks(inner) : inner;
  });

const isObject = (value: Json | undefined): value is JsonObject =>
  typeof value === "object" && value !== null && !Array.isArray(value);

const objects = (value: Json | undefined) => (Array.isArray(value) ? value.filter(isObject) : []);

const string = (value: Json | undefined) => (typeof value === "string" ? value : "");

const textBlocks = (text: string): JsonObject[] => [{ type: "text", text }];

const contentBlocks = (content: Json | undefined) =>
  typeof content === "string" ? textBlocks(content) : objects(content);

const contentText = (content: Json | undefined) =>
  contentBlocks(content)
    .map((block) => string(block.text))
    .join("\n");

const ofType = (turn: Turn | undefined, type: string) =>
  turn?.content.filter((block) => block.type === type) ?? [];

function parse(raw: string): Json | undefined {
  try {
    return JSON.parse(raw);
  } catch {
    return undefined;
  }
}

function readHistory(api: Api, body: JsonObject): Turn[] {
  const turns: Turn[] = [];
  for (const [index, message] of objects(body.messages).entries()) {
    const content = api === "openai" ? fromOpenai(message) : contentBlocks(message.content);
    const last = turns.at(-1);
    if (message.role === "tool" && last?.role === "tool") last.content.push(...content);
    else turns.push({ index, role: string(message.role), content });
  }
  return turns;
}

function fromOpenai(message: JsonObject): JsonObject[] {
  const { role, content, reasoning_content: thinking, tool_calls, tool_call_id } = message;
  if (role === "tool") return [{ type: "tool_result", tool_use_id: tool_call_id, content }];
  return [
    ...(thinking ? [{ type: "thinking", thinking }] : []),
    ...(content === "" && tool_calls ? [] : contentBlocks(content)),
    ...objects(tool_calls).map(fromOpenaiCall),
  ];
}

function fromOpenaiCall(item: JsonObject): JsonObject {
  const { name, arguments: raw } = isObject(item.function) ? item.function : {};
  return { type: "tool_use", id: item.id, name, input: parse(string(raw)) };
}

// ------------------------------------------- The rules. Each gives sentences on what breaks it

/** A reply that was sent, to see whether it comes back as it was. */
type Sent = { api: Api; model: Json | undefined; content: JsonObject[] };
type Rule = (request: ModelRequest, sent: Sent[]) => Generator<string>;

const RULES: Rule[] = [wellFormed, parameters, roles, nothingEmpty, calls, pairs, replayed];

function* wellFormed({ raw, body }: ModelRequest) {
  if (!isObject(parse(raw))) yield "The body is not a JSON object.";
  const bad = strings(body).find((value) => !value.isWellFormed());
  if (bad !== undefined) yield `A string holds half a surrogate pair: ${JSON.stringify(bad)}.`;
}

function strings(value: Json | undefined): string[] {
  if (typeof value === "string") return [value];
  if (Array.isArray(value)) return value.flatMap(strings);
  return isObject(value) ? Object.entries(value).flat().flatMap(strings) : [];
}

function* parameters({ api, body, history }: ModelRequest) {
  if (api === "anthropic" && !(typeof body.max_tokens === "number" && body.max_tokens > 0))
    yield "max_tokens is missing or not positive.";
  const called = history.some((turn) => ofType(turn, "tool_use").length > 0);
  if (called && objects(body.tools).length === 0)
    yield "The history has tool calls, but no tools are declared.";
}

function* roles({ history }: ModelRequest) {
  const spoken = history.filter(({ role }) => role !== "system" && role !== "developer");
  if (spoken[0]?.role !== "user") yield "The first message is not the user's.";
  if (spoken.at(-1)?.role === "assistant") yield "The last message is the assistant's.";
  for (const [i, { index, role }] of spoken.entries()) {
    if (!["user", "assistant", "tool"].includes(role)) yield `messages.${index} has no known role.`;
    if (role === "assistant" && spoken[i - 1]?.role === "assistant")
      yield `messages.${index} is the assistant's, as is the one before it.`;
  }
}

function* nothingEmpty({ body, history }: ModelRequest) {
  const messages = objects(body.messages);
  for (const { index, content } of history) {
    const { output_config, tool_calls } = messages[index] ?? {};
    // A change of effort is a system message without content, which Anthropic takes.
    if (content.length === 0 && !output_config) yield `messages.${index} is empty.`;
    if (Array.isArray(tool_calls) && tool_calls.length === 0)
      yield `messages.${index} has an empty list of tool calls.`;
    for (const { type } of content.filter(isBlank)) yield `messages.${index}: empty ${type}.`;
  }
}

const isBlank = ({ type, text, content }: JsonObject) =>
  (type === "text" && string(text).trim() === "") ||
  (type === "tool_result" && contentText(content).trim() === "");

function* calls({ api, history }: ModelRequest) {
  const seen = new Set<string>();
  for (const turn of history)
    for (const { id, name, input } of ofType(turn, "tool_use")) {
      const key = string(id);
      if (key === "") yield `messages.${turn.index} has a call without an id.`;
      else if (seen.has(key)) yield `messages.${turn.index} uses the call id ${key} again.`;
      else if (api === "anthropic" && !/^[\w-]+$/.test(key)) yield `No valid call id: ${key}.`;
      if (string(name) === "") yield `messages.${turn.index} has a call without a name.`;
      if (!isObject(input)) yield `messages.${turn.index} has a call whose input is no object.`;
      seen.add(key);
    }
}

function* pairs({ history }: ModelRequest) {
  const end: Turn = { index: history.length, role: "", content: [] };
  for (const [i, turn] of [...history, end].entries()) {
    const called = ofType(history[i - 1], "tool_use").map(({ id }) => string(id));
    const answers = ofType(turn, "tool_result").map((block) => string(block.tool_use_id));
    for (const id of called) if (!answers.includes(id)) yield `Call ${id} has no result after it.`;
    for (const id of answers) if (!called.includes(id)) yield `Result ${id} has no call before it.`;
    if (new Set(answers).size < answers.length)
      yield `messages.${turn.index} answers a call twice.`;
    else if (answers.join() !== called.filter((id) => answers.includes(id)).join())
      yield `messages.${turn.index} has results in another order than their calls.`;
    if (turn.content.slice(0, answers.length).some(({ type }) => type !== "tool_result"))
      yield `messages.${turn.index} has something before a result.`;
  }
}

/**
 * Thinking comes back byte for byte and in its place. Which reply a message repeats is told by its
 * text and calls; a message that repeats none is not judged.
 */
function* replayed({ api, body, history }: ModelRequest, sent: Sent[]) {
  let rest = sent.filter((one) => one.api === api && one.model === body.model);
  for (const { index, content } of history.filter(({ role }) => role === "assistant")) {
    const found = rest.findIndex((one) => shape(api, one.content) === shape(api, content));
    if (found >= 0) rest = rest.slice(found + 1);
    else if (rest.some((one) => shape(api, spoken(one.content)) === shape(api, spoken(content))))
      yield `messages.${index} does not repeat the thinking as it was sent.`;
  }
}

const spoken = (content: JsonObject[]) =>
  content.filter(({ type }) => type !== "thinking" && type !== "redacted_thinking");

/** What must come back, without what cannot (blank text, unknown blocks). */
function shape(api: Api, content: JsonObject[]): string {
  const all = (type: string, key: string) =>
    content.map((block) => (block.type === type ? string(block[key]) : "")).join("");
  // There, a message has its reasoning and its text in one piece each.
  if (api === "openai")
    return [all("thinking", "thinking"), all("text", "text"), all("tool_use", "name")].join("\n");
  const known = content.filter((block) => KNOWN.includes(string(block.type)) && !isBlank(block));
  return JSON.stringify(known.map((block) => (block.type === "tool_use" ? block.name : block)));
}

const KNOWN = ["text", "thinking", "redacted_thinking", "tool_use"];

// ------------------------------------------------------------------------- The two streams

/** Bytes of the stream, or a wait. */
type Frame = string | Pause;
type Outgoing = ReplyOptions & { model: Json | undefined; parts: Part[]; usage: Usage };

interface Dialect {
  frame(data: JsonObject): string;
  errorBody(error: JsonObject): JsonObject;
  keepAlive: string;
  /** The beginning of the stream and the blocks, the last of them still open. */
  open(outgoing: Outgoing): Frame[];
  close(outgoing: Outgoing): Frame[];
}

const isCall = ({ block }: Part) => block.type === "tool_use";

const usualStop = (parts: Part[]) => (parts.some(isCall) ? "tool_use" : "end_turn");

const paced = ({ pause }: Part, frames: string[]): Frame[] =>
  frames.flatMap((frame, i) => (i > 0 && pause !== undefined ? [pause, frame] : [frame]));

const anthropic: Dialect = {
  frame: (data) => `event: ${data.type}\ndata: ${JSON.stringify(data)}\n\n`,
  errorBody: (error) => ({ type: "error", error }),
  keepAlive: ': keep-alive\n\nevent: ping\ndata: {"type": "ping"}\n\n',
  open: ({ model, parts, usage }) => {
    const message = { id: "msg_1", role: "assistant", model, usage: anthropicUsage(usage) };
    const start = anthropic.frame({ type: "message_start", message });
    return [start, anthropic.keepAlive, ...parts.flatMap(anthropicBlock)];
  },
  close: ({ parts, usage, explanation, stop = usualStop(parts) }) => {
    const delta = { stop_reason: stop, stop_details: { type: stop, explanation } };
    const end = { type: "message_delta", delta, usage: anthropicUsage(usage) };
    return [...blockStop(parts.length), anthropic.frame(end), anthropic.frame(MESSAGE_STOP)];
  },
};

const MESSAGE_STOP = { type: "message_stop" };

/** Ends the block before this one, if there is one. */
const blockStop = (next: number) =>
  next === 0 ? [] : [anthropic.frame({ type: "content_block_stop", index: next - 1 })];

function anthropicBlock(part: Part, index: number): Frame[] {
  const content_block = { ...part.block, ...part.blank };
  const deltas = (part.deltas ?? []).map((delta) =>
    anthropic.frame({ type: "content_block_delta", index, delta }),
  );
  const start = anthropic.frame({ type: "content_block_start", index, content_block });
  return [...blockStop(index), start, ...paced(part, deltas)];
}

const anthropicUsage = ({ input, output, cacheRead, cacheWrite }: Usage): JsonObject => ({
  input_tokens: input,
  output_tokens: output,
  cache_read_input_tokens: cacheRead,
  cache_creation_input_tokens: cacheWrite,
});

const openai: Dialect = {
  frame: (data) => `data: ${JSON.stringify(data)}\n\n`,
  errorBody: (error) => ({ error }),
  keepAlive: ": keep-alive\n\n",
  open: ({ model, parts }) => {
    const deltas = parts.flatMap((part, i) => {
      const list = part.openai(parts.slice(0, i).filter(isCall).length);
      const chunks = list.map((delta) => chunk(model, delta));
      return paced(part, chunks);
    });
    return [chunk(model, { role: "assistant", content: "" }), ...deltas];
  },
  close: ({ model, parts, usage, stop = usualStop(parts) }) => [
    chunk(model, {}, OPENAI_STOP[stop] ?? stop),
    openai.frame({ ...CHUNK, model, choices: [], usage: openaiUsage(usage) }),
    "data: [DONE]\n\n",
  ],
};

/** Its names for Anthropic's reasons to stop. */
const OPENAI_STOP: Record<string, string> = {
  end_turn: "stop",
  tool_use: "tool_calls",
  max_tokens: "length",
  refusal: "content_filter",
};

const CHUNK = { id: "chatcmpl-1", object: "chat.completion.chunk" };

const chunk = (model: Json | undefined, delta: JsonObject, finish_reason: string | null = null) =>
  openai.frame({ ...CHUNK, model, choices: [{ index: 0, delta, finish_reason }] });

const openaiUsage = ({ input, output, cacheRead, cacheWrite }: Usage): JsonObject => ({
  prompt_tokens: input + cacheRead + cacheWrite,
  completion_tokens: output,
  prompt_tokens_details: { cached_tokens: cacheRead, cache_write_tokens: cacheWrite },
});

// ------------------------------------------------------------------------------ The server

export interface ModelServer extends AsyncDisposable {
  /** The base URL for an Anthropic client, and for an OpenAI client. */
  url: string;
  openaiUrl: string;
  /** Those still to come; a test may push more. */
  steps: Step[];
  /** Every request to a model's address so far, faulty ones included. */
  requests: ModelRequest[];
  /** What was wrong with them, or with the script. A good run leaves this empty. */
  problems: string[];
  /** The nth request (1-based), as soon as it is there. Rejects if the server closes first. */
  request(n: number): Promise<ModelRequest>;
  /** The first request to arrive after this call. */
  nextRequest(): Promise<ModelRequest>;
  /** Ends at once, with every connection, whatever still streams or stalls. */
  close(): Promise<void>;
}

/** What a running server keeps beside its public record. */
interface State extends Pick<ModelServer, "steps" | "requests" | "problems"> {
  repeatLast: boolean;
  sent: Sent[];
  arrivals: EventEmitter;
  closed: AbortController;
}

/**
 * Starts a server on a free loopback port. A request beyond the last step is a problem, answered
 * with a 400, unless `repeatLast` has the last step answer all that follow.
 */
export async function startModelServer(
  script: Step[],
  { repeatLast = false } = {},
): Promise<ModelServer> {
  const record = { steps: [...script], requests: [], problems: [] };
  const signals = { arrivals: new EventEmitter(), closed: new AbortController() };
  const state: State = { ...record, ...signals, repeatLast, sent: [] };
  const server = http.createServer((incoming, response) => {
    // It says nothing of its models; that it was asked does not count.
    if (incoming.method === "GET") response.writeHead(404).end();
    else serve(state, incoming, response);
  });
  // Idle connections stay open for ever, so that a client that waits for their end is seen to hang.
  server.keepAliveTimeout = 0;
  await once(server.listen(0, "127.0.0.1"), "listening");
  const url = addressOf(server);
  const request = (n: number) => {
    const found = arrival(state, n);
    // Only who awaits it is told that the server closed first.
    found.catch(() => undefined);
    return found;
  };
  const nextRequest = () => request(state.requests.length + 1);
  const close = () => shut(state, server);
  const controls = { request, nextRequest, close, [Symbol.asyncDispose]: close };
  return { ...record, url, openaiUrl: `${url}/v1`, ...controls };
}

function addressOf(server: http.Server): string {
  const address = server.address();
  return `http://127.0.0.1:${typeof address === "object" ? address?.port : ""}`;
}

async function shut({ closed }: State, server: http.Server): Promise<void> {
  closed.abort(new Error("The model server closed."));
  await new Promise((done) => {
    server.close(done);
    server.closeAllConnections();
  });
}

async function arrival({ requests, arrivals, closed }: State, n: number): Promise<ModelRequest> {
  while (true) {
    const request = requests[n - 1];
    if (request) return request;
    await once(arrivals, "request", { signal: closed.signal });
  }
}

async function serve(state: State, incoming: http.IncomingMessage, response: http.ServerResponse) {
  // Writing to a client that has hung up is no error here.
  response.on("error", () => undefined);
  try {
    const request = await receive(incoming, response);
    if (request) return await answer({ state, request, response });
    state.problems.push(`${incoming.method} ${incoming.url} is no model's address.`);
    response.writeHead(404).end();
  } catch (error) {
    if (!response.destroyed) state.problems.push(String(error));
    response.destroy();
  }
}

async function receive(incoming: http.IncomingMessage, response: http.ServerResponse) {
  const { method, url: path = "", headers } = incoming;
  const [, end] = /\/(v1\/messages|chat\/completions)(?:\?|$)/.exec(path) ?? [];
  if (method !== "POST" || !end) return undefined;
  const api: Api = end === "v1/messages" ? "anthropic" : "openai";
  const closed = new Promise((done) => response.on("close", done));
  const raw = await readText(incoming);
  const parsed = parse(raw);
  const body = isObject(parsed) ? parsed : {};
  const [at, history] = [performance.now(), readHistory(api, body)];
  return { api, path, headers, raw, body, history, at, closed };
}

type Exchange = { state: State; request: ModelRequest; response: http.ServerResponse };

async function answer(exchange: Exchange) {
  const { state, request } = exchange;
  const n = state.requests.push(request);
  state.arrivals.emit("request");
  const wrong = RULES.flatMap((rule) => [...rule(request, state.sent)]);
  state.problems.push(...wrong.map((sentence) => `Request ${n}: ${sentence}`));
  let step = wrong[0] === undefined ? nextStep(state) : status(400, { message: wrong[0] });
  while (typeof step === "function") step = await step(request);
  if (step.type === "reply") await sendReply(exchange, step);
  if (step.type === "broken") await sendBroken(exchange, step);
  if (step.type === "status") sendStatus(exchange, step);
}

function nextStep({ steps, requests, problems, repeatLast }: State): Step {
  const step = repeatLast && steps.length === 1 ? steps[0] : steps.shift();
  if (step) return step;
  const message = `Request ${requests.length} has no step in the script.`;
  problems.push(message);
  return status(400, { message });
}

const DIALECTS = { anthropic, openai };
const STREAM = { "content-type": "text/event-stream" };
const USAGE = { input: 100, output: 10, cacheRead: 0, cacheWrite: 0 };

async function sendReply({ state, request, response }: Exchange, step: Reply) {
  const { api, body } = request;
  const [dialect, outgoing] = [DIALECTS[api], outgoingOf(request, step.blocks, step)];
  const content = outgoing.parts.map((part) => part.block);
  state.sent.push({ api, model: body.model, content });
  response.writeHead(200, STREAM);
  await write(response, [...dialect.open(outgoing), ...dialect.close(outgoing)]);
  response.end();
}

function outgoingOf({ body }: ModelRequest, blocks: Block[], options: ReplyOptions = {}): Outgoing {
  const parts = blocks.map((block) => block());
  return { ...options, model: body.model, parts, usage: { ...USAGE, ...options.usage } };
}

async function write(response: http.ServerResponse, frames: Frame[]) {
  for (const frame of frames) {
    if (typeof frame === "number") await sleep(frame, undefined, { ref: false });
    else if (typeof frame !== "string") await frame;
    else if (response.destroyed) return;
    // It has left before the next one, so that a pause is one and a cut comes after it.
    else await new Promise((done) => response.write(frame, done));
  }
}

async function sendBroken({ request, response }: Exchange, { after, ending }: Broken) {
  const { open, frame, errorBody, keepAlive } = DIALECTS[request.api];
  if (after !== "nothing") response.writeHead(200, STREAM).flushHeaders();
  if (Array.isArray(after)) await write(response, open(outgoingOf(request, after)));
  if (ending === "cut") response.destroy();
  else if (ending === "reset") response.socket?.resetAndDestroy();
  else if (ending === "end") response.end();
  else if (ending === "garbage") response.end(GARBAGE);
  else if (ending === "keepAlive") repeat(response, keepAlive);
  else if (ending !== "silence") response.end(frame(errorBody(ending.error)));
}

const GARBAGE = 'event: content_block_delta\ndata: {"choices": [{"delta": oops\n\n';

function repeat(response: http.ServerResponse, frame: string) {
  const timer = setInterval(() => response.write(frame), 20).unref();
  response.on("close", () => clearInterval(timer));
  if (response.destroyed) clearInterval(timer);
}

const ERROR_TYPES: Record<number, string> = {
  400: "invalid_request_error",
  401: "authentication_error",
  404: "not_found_error",
  429: "rate_limit_error",
  529: "overloaded_error",
};

function sendStatus({ request, response }: Exchange, step: Status) {
  const { code, message = http.STATUS_CODES[code] ?? "Overloaded" } = step;
  const error = { type: ERROR_TYPES[code] ?? "api_error", message };
  const body = step.body ?? DIALECTS[request.api].errorBody(error);
  const [type, bytes] =
    typeof body === "string" ? ["text/html", body] : ["application/json", JSON.stringify(body)];
  response.writeHead(code, { "content-type": type, ...step.headers }).end(bytes);
}
