// What the tests of the guard and the tools share: temporary trees, agents, and calls as a model makes them.

import assert from "node:assert/strict";
import { spawn } from "node:child_process";
import { once } from "node:events";
import { mkdirSync, mkdtempSync, realpathSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { dirname, join } from "node:path";
import { text } from "node:stream/consumers";
import { after } from "node:test";
import { deflateSync } from "node:zlib";
import type { ToolCall } from "@earendil-works/pi-ai";
import { type Agent, createAgent, findModel, runTool } from "../mini-pi.ts";

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

/** An agent about this directory. It needs no key, and no test here asks its model. */
export const agentAt = async (root: string): Promise<Agent> =>
  createAgent(root, await findModel("offline/search"));

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

export type Where = { path?: string; glob?: string; context?: number; ignoreCase?: boolean };

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

/**
 * One call in a process of its own, for what might hang or leave something running. The code is null
 * when the process had to be killed after ten seconds.
 */
export async function alone(root: string, name: string, args: object, abortMs = 60_000) {
  const file = JSON.stringify(join(import.meta.dirname, "..", "mini-pi.ts"));
  const toolCall = JSON.stringify({ type: "toolCall", id: "1", name, arguments: args });
  const script = `const { createAgent, findModel, runTool } = await import(${file});
    const agent = await createAgent(${JSON.stringify(root)}, await findModel("offline/search"));
    const result = await runTool(agent, ${toolCall}, AbortSignal.timeout(${abortMs}));
    process.stdout.write(result.content[0].text);`;
  const child = spawn(process.execPath, ["--input-type=module", "-e", script], {
    stdio: ["ignore", "pipe", "inherit"],
    timeout: 10_000,
  });
  const [stdout, [code]] = await Promise.all([text(child.stdout), once(child, "exit")]);
  return { stdout, code };
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
