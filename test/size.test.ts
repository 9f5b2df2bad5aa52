/** mini-pi is small enough to be read: the figures that the README's readers can count on. */
import assert from "node:assert/strict";
import { readFile } from "node:fs/promises";
import path from "node:path";
import { test } from "node:test";
import { defaultTools, systemPrompt } from "../mini-pi.ts";

const source = await readFile(path.join(import.meta.dirname, "..", "mini-pi.ts"), "utf8");
const lines = source.trimEnd().split("\n");

const indentOf = (line = "") => line.search(/\S|$/);

/**
 * The last line (0-based) of what begins in line `at`: all that is indented deeper, and a closing
 * bracket below it, from which it may go on. The formatter sees to it that this is so.
 */
function endOf(at: number): number {
  for (let end = at, i = at + 1; ; i++) {
    const line = lines[i];
    if (line === undefined) return end;
    if (line === "") continue;
    const isDeeper = indentOf(line) > indentOf(lines[at]);
    const closes = indentOf(line) === indentOf(lines[at]) && /^\s*[)}\]]/.test(line);
    if (!isDeeper && !closes) return end;
    end = i;
    if (closes && !/([{([:?]|=>)$/.test(line)) return end;
  }
}

const NAMED = /^\s*(?:export )?(?:async )?function\*? (\w+)/;
const ASSIGNED =
  /^\s*(?:export )?const (\w+)(?:: .+?)? = (?:async )?(?:\((?:[^()]|\([^()]*\))*\)(?:: .+?)?|\w+) =>/;
/** Its parameters have lines of their own. */
const ASSIGNED_LONG = /^\s*(?:export )?const (\w+)(?:: .+?)? = (?:async )?\($/;
const METHOD =
  /^\s+(?:async )?\*?(?!(?:if|for|while|switch|catch|function)\b)(\w+)\(.*\)(?:: .+)? \{$/;

/** The functions that have a name, one-liners and nested ones among them, and their lengths. */
const functions = lines.flatMap((line, at) => {
  const end = endOf(at);
  const isArrow = lines.slice(at, end + 1).some((other) => /^\s*\).* =>/.test(other));
  const [, name] =
    [NAMED, ASSIGNED, METHOD].map((form) => form.exec(line)).find(Boolean) ??
    ((isArrow && ASSIGNED_LONG.exec(line)) || []);
  return name ? [{ name, length: end - at + 1 }] : [];
});

// The promise is 1,600 with reading alone, and 1,900 with all that is planned; this is what holds.
test("the file has at most 3,420 lines, and no line is wider than 100 columns", (t) => {
  t.diagnostic(`${lines.length} lines`);
  assert.deepEqual(
    lines.filter((line) => line.length > 100),
    [],
  );
  assert.ok(lines.length <= 3420, `mini-pi.ts has ${lines.length} lines`);
});

test("Part I, the agent, has at most 450 lines", (t) => {
  const [from, to] = ["Part I:", "Part II:"].map((part) =>
    lines.findIndex((line) => line.startsWith(`// === ${part}`)),
  );
  assert.ok(from !== undefined && to !== undefined && from >= 0 && to > from);
  t.diagnostic(`${to - from} lines`);
  assert.ok(to - from <= 450, `Part I has ${to - from} lines`);
});

test("the loop has at most 45 lines, nothing is longer, and half of all functions have 8 at most", (t) => {
  const sorted = functions.toSorted((a, b) => b.length - a.length);
  const loop = functions.find(({ name }) => name === "runAgent")?.length ?? Number.NaN;
  const median = sorted[Math.floor(sorted.length / 2)]?.length ?? Number.NaN;
  const longest = sorted.slice(0, 5).map(({ name, length }) => `${name} ${length}`);
  t.diagnostic(`${functions.length} functions, median ${median}; ${longest.join(", ")}`);
  assert.ok(functions.length > 100);
  assert.ok(loop <= 45, `the loop has ${loop} lines`);
  assert.ok(
    sorted.every(({ length }) => length <= loop),
    `longer than the loop: ${longest}`,
  );
  assert.ok(median <= 8, `the median function has ${median} lines`);
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
