// What the tests of the guard and the tools share: temporary trees, agents, and calls as a model makes them.

import assert from "node:assert/strict";
import { spawn } from "node:child_process";
import { once } from "node:events";
import { mkdirSync, mkdtempSync, realpathSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { dirname, join } from "node:path";
import { text } from "node:stream/consumers";
import { after, type TestContext } from "node:test";
import { deflateSync } from "node:zlib";
import type { ToolCall } from "@earendil-works/pi-ai";
import { type Agent, createAgent, findModel, runTool } from "../mini-pi.ts";

/** Whether this is a long test: every combination, and at full size. */
export const isLong = process.env.MINI_PI_LONG !== undefined;

/** Every nth of these cases, from the one at `start` on; in a long test, each of them. */
export const everyNth = <T>(n: number, cases: readonly T[], start = 0): readonly T[] =>
  isLong ? cases : cases.filter((_, i) => i % n === start % n);

export type Tree = { [path: string]: string | Uint8Array };

/** An empty directory, by its real path, that is removed after the tests of the file. */
export function temporary(): string {
  const made = realpathSync(mkdtempSync(join(tmpdir(), "mini-pi-test-")));
  after(() => rmSync(made, { recursive: true, force: true }));
  return made;
}

/** Writes files, with the directories above them. */
export function write(directory: string, tree: Tree): void {
  for (const [name, content] of Object.entries(tree)) {
    const file = join(directory, name);
    mkdirSync(dirname(file), { recursive: true });
    writeFileSync(file, content);
  }
}

/** An agent about a new directory, `repo` in a directory of its own, that holds these files. */
export async function agentWith(tree: Tree): Promise<Agent> {
  const root = join(temporary(), "repo");
  mkdirSync(root);
  write(root, tree);
  return agentAt(root);
}

/**
 * An agent about this directory. It needs no key, and no test here asks its model. As something was
 * said, its calls share one walk of the directory, like those of a reply; `afresh` walks again.
 */
export async function agentAt(root: string): Promise<Agent> {
  const agent = await createAgent(root, await OFFLINE);
  agent.messages.push({ role: "user", content: "What is it?", timestamp: 0 });
  return agent;
}
export const afresh = (agent: Agent): Agent => ({ ...agent, messages: [] });
const OFFLINE = findModel("offline/search");

export type Answer = { text: string; isError: boolean; image: string; mimeType: string };

/** One call of a tool, and what the model would see of its result. */
export async function call(
  agent: Agent,
  name: string,
  args: ToolCall["arguments"] = {},
  signal: AbortSignal = new AbortController().signal,
): Promise<Answer> {
  const toolCall = { type: "toolCall", id: "call_1", name, arguments: args } as const;
  const result = await runTool(agent, toolCall, signal);
  const answer = { text: "", isError: result.isError, image: "", mimeType: "" };
  for (const block of result.content)
    if (block.type === "text") answer.text += block.text;
    else Object.assign(answer, { image: block.data, mimeType: block.mimeType });
  // This holds for every result there is.
  assert.notEqual(answer.text.trim(), "", `${name} gave an empty or blank result`);
  assert.ok(answer.text.isWellFormed(), `${name} gave half a surrogate pair`);
  return answer;
}

type Given = { [name: string]: string | number | boolean | undefined };

/** Arguments without those that are not given. */
const given = (args: Given) =>
  Object.fromEntries(
    Object.entries(args).flatMap(([name, value]) => (value === undefined ? [] : [[name, value]])),
  );

export type Where = {
  path?: string;
  glob?: string;
  context?: number;
  ignoreCase?: boolean;
  whole?: boolean;
};

export const list = (agent: Agent, path?: string, glob?: string) =>
  call(agent, "list_files", given({ path, glob }));
export const read = (agent: Agent, path: string, page: { offset?: number; limit?: number } = {}) =>
  call(agent, "read_file", given({ path, ...page }));
export const search = (agent: Agent, pattern: string, where: Where = {}) =>
  call(agent, "search_files", given({ pattern, ...where }));

/** The numbered lines of a page, by number. */
export function rowsOf(text: string): Map<number, string> {
  const rows = text.split("\n").map((row) => /^(\d+)\t([\s\S]*)$/.exec(row) ?? []);
  return new Map(rows.flatMap(([all, n, line = ""]) => (all ? [[Number(n), line]] : [])));
}

/** The names that a listing shows, as it shows them: without sizes, counts and notes. */
export function namesOf(text: string): string[] {
  const entries = text.split("\n").filter((line) => !/^(\[|\.\.\. \d)/.test(line));
  return entries.map((line) => line.replace(/ \((?!.* \()[^"]*\)$/, ""));
}

export type Calls = [name: string, args: object][];

/**
 * Calls one after another in a process of its own, for what might hang or leave something running:
 * what they gave, and its exit code, null when the process had to be killed after 30 seconds.
 */
export async function alone(root: string, calls: Calls, abortMs = 60_000) {
  const file = JSON.stringify(join(import.meta.dirname, "..", "mini-pi.ts"));
  const toolCalls = calls.map(([name, args]) => ({ id: "1", name, arguments: args }));
  const script = `const { createAgent, findModel, runTool } = await import(${file});
    const agent = await createAgent(${JSON.stringify(root)}, await findModel("offline/search"));
    const texts = [];
    for (const call of ${JSON.stringify(toolCalls)}) {
      const toolCall = { type: "toolCall", ...call };
      const result = await runTool(agent, toolCall, AbortSignal.timeout(${abortMs}));
      texts.push(result.content[0].text);
    }
    process.stdout.write(JSON.stringify(texts));`;
  const child = spawn(process.execPath, ["--input-type=module", "-e", script], {
    stdio: ["ignore", "pipe", "inherit"],
    timeout: 30_000,
  });
  const [stdout, [code]] = await Promise.all([text(child.stdout), once(child, "exit")]);
  const texts: string[] = stdout ? JSON.parse(stdout) : [];
  return { texts, code };
}

/** A small generator of random numbers (mulberry32): the same seed gives the same ones. */
export function random(seed: number) {
  let state = seed;
  const next = () => {
    state = (state + 0x6d2b79f5) | 0;
    let t = Math.imul(state ^ (state >>> 15), 1 | state);
    t = (t + Math.imul(t ^ (t >>> 7), 61 | t)) ^ t;
    return ((t ^ (t >>> 14)) >>> 0) / 2 ** 32;
  };
  const below = (n: number) => Math.floor(next() * n);
  const pick = <T>(from: readonly [T, ...T[]] | readonly T[]): T => {
    const chosen = from[below(from.length)];
    assert.ok(chosen !== undefined);
    return chosen;
  };
  return { below, pick, chance: (n: number) => below(n) === 0 };
}

export type Random = ReturnType<typeof random>;

/** The seed of a long test: a new one each run, printed, or that in MINI_PI_SEED. */
export function freshSeed(t: TestContext): number {
  const seed = Number(process.env.MINI_PI_SEED) || 1 + Math.floor(Math.random() * 2 ** 31);
  t.diagnostic(`MINI_PI_SEED=${seed}`);
  return seed;
}

/** A table of words, written as one text. */
export const words = (table: string) => table.trim().split(/\s+/);

/** A black picture; `filler` bytes are added that nobody looks at. */
export function png(width: number, height: number, filler = 0): Buffer {
  const chunk = (type: string, data: Buffer) => {
    const length = Buffer.alloc(4);
    length.writeUInt32BE(data.length);
    // Nobody here checks the sum.
    return Buffer.concat([length, Buffer.from(type), data, Buffer.alloc(4)]);
  };
  const header = Buffer.alloc(13);
  header.writeUInt32BE(width, 0);
  header.writeUInt32BE(height, 4);
  header.set([8, 0, 0, 0, 0], 8);
  const parts = [
    chunk("IHDR", header),
    chunk("tEXt", Buffer.alloc(filler)),
    chunk("IDAT", deflateSync(Buffer.alloc(height * (width + 1)))),
    chunk("IEND", Buffer.alloc(0)),
  ];
  return Buffer.concat([Buffer.from("\x89PNG\r\n\x1a\n", "latin1"), ...parts]);
}
