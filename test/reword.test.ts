// The sentences that mini-pi says to the model are words, not state: a copy of the file in which all
// of them are others does the same, turn by turn.

import assert from "node:assert/strict";
import { readFileSync, symlinkSync, writeFileSync } from "node:fs";
import path from "node:path";
import { test } from "node:test";
import {
  type AssistantMessage,
  createModels,
  fauxAssistantMessage,
  fauxProvider,
  fauxToolCall,
} from "@earendil-works/pi-ai";
import * as original from "../mini-pi.ts";
import { temporary, write } from "./fixtures.ts";

const home = path.join(import.meta.dirname, "..");
const source = readFileSync(path.join(home, "mini-pi.ts"), "utf8");
const SENTENCE =
  /(?<=^const (?:MADE_ALREADY|CUT_CALL|LAST_CALL|GO_ON|CUT_OFF|NO_ANSWER|WRONG_SOURCES|LINE_CUT|TO_ESCAPE|NARROW) = ")[^"\n]+(?=";$)|(?<=text: ")[^"\n]+(?=" \}\];$)|Not run: |No match in |left out, as ignored|\(nothing\)|the same calls again and again/gm;

/** The module with each sentence said in other words. */
async function reworded(): Promise<typeof original> {
  const directory = temporary();
  for (const name of ["node_modules", "package.json"])
    symlinkSync(path.join(home, name), path.join(directory, name));
  let changed = 0;
  const text = source.replace(SENTENCE, () => `In other words ${changed++} `);
  assert.ok(changed >= 15, `only ${changed} sentences were found`);
  const file = path.join(directory, "mini-pi.ts");
  writeFileSync(file, text);
  return import(file);
}

const read = (args: object) =>
  fauxAssistantMessage([fauxToolCall("read_file", { path: "a.ts", ...args })], {
    stopReason: "toolUse",
  });
const part = (content: Parameters<typeof fauxAssistantMessage>[0]) =>
  fauxAssistantMessage(content, { stopReason: "length" });
const same = Array.from({ length: 4 }, () => read({}));

const SCRIPTS: [what: string, replies: (string | AssistantMessage)[], window?: number][] = [
  ["the same call again and again", [...same, "It is there."]],
  ["an answer in three parts", [part("One, "), part("two, "), "three."]],
  [
    "a cut call, made again",
    [part([fauxToolCall("read_file", { path: "a.ts" })]), read({}), "So."],
  ],
  ["an empty reply", ["", "It is there."]],
  ["two empty replies", ["", ""]],
  ["a wrong source, corrected", ["See a.ts:99.", read({}), "See a.ts:1."]],
  ["a wrong source that stays", ["See a.ts:99.", "See a.ts:99."]],
  ["a printed call", ['{"name": "read_file", "arguments": {"path": "a.ts"}}']],
  ["an unknown tool", [fauxAssistantMessage([fauxToolCall("grep", {})]), "No."]],
  ["results that are blanked", [read({}), read({ limit: 1 }), read({}), read({}), "So."], 600],
];

/** What is done for a script: how it ends, and who says how much how often. */
async function play(
  module: typeof original,
  root: string,
  [, replies, window = 128_000]: (typeof SCRIPTS)[number],
) {
  const faux = fauxProvider({ models: [{ id: "faux-1", contextWindow: window }] });
  faux.setResponses(replies.map((s) => (typeof s === "string" ? fauxAssistantMessage(s) : s)));
  const models = createModels();
  models.setProvider(faux.provider);
  const stream: original.Agent["stream"] = (...request) => models.streamSimple(...request);
  const agent = await module.createAgent(root, { model: faux.getModel(), stream, keyName: "" });
  const { ended, answer, turns, sources } = await module.runAgent(agent, "What is it?");
  const shape = agent.messages.map((m) => [
    m.role,
    m.role === "user" ? m.remark : undefined,
    m.role === "toolResult" ? m.details : undefined,
  ]);
  return { ended, answer, turns, sources, trimmed: agent.trimmed, shape };
}

test("rewording what mini-pi says to the model changes nothing in what it does", async (t) => {
  const root = temporary();
  write(root, { "a.ts": "export const a = 1;\n".repeat(60), "README.md": "# A\n" });
  const other = await reworded();
  for (const script of SCRIPTS)
    await t.test(script[0], async () =>
      assert.deepEqual(await play(other, root, script), await play(original, root, script)),
    );
  await t.test("the offline model", async () => {
    const ask = async ({ createAgent, findModel, runAgent }: typeof original) => {
      const agent = await createAgent(root, await findModel("offline/search"));
      const first = await runAgent(agent, "where is the constant a of export?");
      return [first.sources, (await runAgent(agent, "这是什么?")).sources];
    };
    assert.deepEqual(await ask(other), await ask(original));
  });
});
