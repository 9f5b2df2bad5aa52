// What the tests of the guard and the tools share: temporary trees, agents, and calls as a model makes them.

import assert from "node:assert/strict";
import { mkdirSync, mkdtempSync, realpathSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { dirname, join } from "node:path";
import { after } from "node:test";
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

/** An agent about a new directory that holds these files. */
export async function agentWith(tree: Tree, ...given: Partial<Agent>[]): Promise<Agent> {
  const root = join(temporary(), "repo");
  mkdirSync(root);
  write(root, tree);
  return agentAt(root, ...given);
}

export const agentAt = async (root: string, ...given: Partial<Agent>[]): Promise<Agent> =>
  createAgent(root, Object.assign({}, await findModel("offline/search"), ...given));

export type Answer = { text: string; isError: boolean; image: string; mimeType: string };

/** One call of a tool, and what the model would see of its result. */
export async function call(
  agent: Agent,
  name: string,
  args: { [name: string]: unknown } = {},
  signal: AbortSignal = new AbortController().signal,
): Promise<Answer> {
  const toolCall = { type: "toolCall", id: "call_1", name, arguments: args } as const;
  const result = await runTool(agent, toolCall, signal);
  const answer = { text: "", isError: result.isError, image: "", mimeType: "" };
  for (const block of result.content)
    if (block.type === "text") answer.text += block.text;
    else Object.assign(answer, { image: block.data, mimeType: block.mimeType });
  // What holds for every result there is.
  assert.notEqual(answer.text.trim(), "", "no result is empty or blank");
  assert.ok(answer.text.isWellFormed(), "no result holds half a surrogate pair");
  return answer;
}

export const list = (agent: Agent, path?: string, glob?: string) =>
  call(agent, "list_files", { path, glob });
export const read = (agent: Agent, path: string, page: { offset?: unknown; limit?: unknown } = {}) =>
  call(agent, "read_file", { path, ...page });
export const search = (
  agent: Agent,
  pattern: string,
  more: { path?: string; glob?: string; context?: number; ignoreCase?: boolean } = {},
) => call(agent, "search_files", { pattern, ...more });
