/** mini-pi is small enough to be read: the figures that the README's readers can count on. */
import assert from "node:assert/strict";
import { readFile } from "node:fs/promises";
import path from "node:path";
import { test } from "node:test";
import { defaultTools, systemPrompt } from "../mini-pi.ts";

const source = await readFile(path.join(import.meta.dirname, "..", "mini-pi.ts"), "utf8");
const lines = source.split("\n");

/** Top-level functions with their lengths: from their first line to the closing brace. */
const functions = [
  ...source.matchAll(/^(?:export )?(?:async )?function\*? (\w+)[\s\S]*?^}$/gm),
].map(([text, name]) => ({ name, length: text.split("\n").length }));

test("no line is wider than 100 columns", () => {
  const wide = lines.filter((line) => line.length > 100);
  assert.deepEqual(wide, []);
});

test("the loop fits on one screen, nothing is longer, and half of all functions have 12 lines at most", (t) => {
  const code = lines.filter((line) => !/^\s*(\/\/|\/\*|\*|$)/.test(line)).length;
  const sorted = functions.map(({ length }) => length).sort((a, b) => a - b);
  const loop = functions.find(({ name }) => name === "runAgent")?.length ?? Number.NaN;
  const longest = functions.reduce((a, b) => (b.length > a.length ? b : a));
  const median = sorted[Math.floor(sorted.length / 2)] ?? Number.NaN;
  t.diagnostic(
    `${lines.length} lines, ${code} of code; loop ${loop}, longest ${longest.name} ${longest.length}, median ${median}`,
  );
  assert.ok(loop <= 45, `the loop has ${loop} lines`);
  assert.ok(longest.length <= 45, `${longest.name} has ${longest.length} lines`);
  assert.ok(median <= 12, `the median function has ${median} lines`);
});

test("the instructions and the tools cost less than 600 tokens, at four characters each", (t) => {
  const tools = defaultTools.map(({ name, description, parameters }) => ({
    name,
    description,
    parameters,
  }));
  const [prompt, schemas] = [systemPrompt().length / 4, JSON.stringify(tools).length / 4];
  t.diagnostic(`system prompt ${prompt} tokens, tools ${schemas} tokens`);
  assert.ok(prompt < 250, `the system prompt has ${prompt} tokens`);
  assert.ok(prompt + schemas < 600, `together ${prompt + schemas} tokens`);
});
