// Random edits against a model of the file in memory, and a process that is killed while it writes.

import assert from "node:assert/strict";
import { spawn } from "node:child_process";
import { once } from "node:events";
import { readdirSync, readFileSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import { test } from "node:test";
import { setTimeout as sleep } from "node:timers/promises";
import { defaultTools, editTools, replace, runTool } from "../../mini-pi.ts";
import { agentWith, freshSeed, random, temporary } from "../fixtures.ts";

const NEVER = new AbortController().signal;
const runs = (usual: number) => Number(process.env.MINI_PI_RUNS) || usual;

test("random edits do to a file what they do to a text in memory, and nothing else", async (t) => {
  const { below, pick } = random(freshSeed(t));
  const agent = await agentWith({ "a.txt": "" });
  agent.tools = [...defaultTools, ...editTools];
  const file = join(agent.root, "a.txt");
  let meddle = () => {};
  agent.confirm = async () => {
    meddle();
    return { isYes: below(10) > 0, reason: "" };
  };
  const PIECES = [
    "a",
    "b",
    " ",
    "\t",
    "ü",
    "中",
    "𝄞",
    "\n",
    "\r\n",
    "\n",
    "x = 1",
    "()",
    "\\d",
    "$&",
  ];
  const text = (length: number) => Array.from({ length }, () => pick(PIECES)).join("");
  const counts: Record<string, number> = {};
  const call = async (name: string, args: object) => {
    const toolCall = { type: "toolCall", id: "c", name, arguments: { ...args } } as const;
    const result = await runTool(agent, toolCall, NEVER);
    agent.messages.push(result);
    return result;
  };
  for (let i = 0; i < runs(20_000); i++) {
    agent.messages.splice(1);
    const isUtf16 = below(4) === 0;
    const encode = (some: string) => Buffer.from(some, isUtf16 ? "utf16le" : "utf8");
    // A tail of bytes that are no text stays as it is.
    const hasTail = !isUtf16 && below(3) === 0;
    const tail = Buffer.from(hasTail ? "\xff\xfe\n" : "", "latin1");
    const start = isUtf16 ? "\ufeff" : pick(["üüü", "\ufeff"]);
    const before = start + text(1 + below(60)) + (hasTail ? "\nz" : "");
    writeFileSync(file, Buffer.concat([encode(before), tail]));
    await call("read_file", { path: "a.txt" });
    const isStale = below(20) === 0;
    const theirs = encode(`${before}theirs`);
    if (isStale) writeFileSync(file, theirs);
    const isRace = below(20) === 0;
    meddle = () => isRace && writeFileSync(file, theirs);
    const edits = Array.from({ length: 1 + below(3) }, () => {
      const at = below(before.length);
      const old = before
        .slice(at, at + 1 + below(12))
        .replaceAll("\r\n", "\n")
        .toWellFormed();
      return {
        old: below(10) === 0 ? text(3).replaceAll("\r\n", "\n") : old,
        new: text(below(6)).replaceAll("\r\n", "\n"),
      };
    });
    const then = readFileSync(file);
    const { isError, details } = await call("edit_file", { path: "a.txt", edits });
    const after = readFileSync(file);
    const what = details?.withheld ?? (isError ? "error" : "written");
    counts[what] = (counts[what] ?? 0) + 1;
    const about = `${i}: ${JSON.stringify({ before, edits, what })}`;
    if (what !== "written") {
      const same = isRace && !isStale && after.equals(theirs) ? theirs : then;
      assert.deepEqual(after, same, about);
      continue;
    }
    assert.ok(!isStale && !isRace, about);
    // Each old text is replaced where it is, with the line ends that are there.
    let expected = before;
    const spans = edits.flatMap((edit) => {
      const form = edit.old.replace(/[\\^$.*+?()[\]{}|/]/g, "\\$&").replaceAll("\n", "\\r?\\n");
      const found = [...expected.matchAll(new RegExp(form, "g"))];
      const [place] = found;
      if (!place || found.length > 1) return [];
      const like = place[0].includes("\n") ? place[0] : before;
      const end = /^[^\n]*\r\n/.test(like) ? "\r\n" : "\n";
      return {
        start: place.index,
        end: place.index + place[0].length,
        put: edit.new.replaceAll("\n", end),
      };
    });
    for (const { start: from, end, put } of spans.sort((a, b) => b.start - a.start))
      expected = expected.slice(0, from) + put + expected.slice(end);
    assert.deepEqual(after, Buffer.concat([encode(expected), tail]), about);
  }
  t.diagnostic(JSON.stringify(counts));
  assert.ok((counts.written ?? 0) > runs(20_000) / 10);
  assert.deepEqual(readdirSync(agent.root), ["a.txt"]);
});

test("a process that is killed while it writes leaves the old file or the new one, whole", async (t) => {
  const root = temporary();
  const file = join(root, "big.txt");
  const [a, b] = ["a", "b"].map((letter) => Buffer.alloc(5 * 1024 ** 2, letter));
  assert.ok(a && b);
  writeFileSync(file, a);
  const script = `const { replace } = await import(${JSON.stringify(join(import.meta.dirname, "../../mini-pi.ts"))});
    const [a, b] = ["a", "b"].map((letter) => Buffer.alloc(5 * 1024 ** 2, letter));
    const { readFileSync } = await import("node:fs");
    let now = readFileSync(${JSON.stringify(file)});
    console.log("ready");
    for (;;) {
      const next = now[0] === 97 ? b : a;
      await replace(${JSON.stringify(root)}, "big.txt", { before: now, after: next });
      now = next;
    }`;
  const seen: Record<string, number> = {};
  for (let i = 0; i < runs(200); i++) {
    const stdio = ["ignore", "pipe", "inherit"] as const;
    const child = spawn(process.execPath, ["--input-type=module", "-e", script], {
      stdio: [...stdio],
    });
    await once(child.stdout, "data");
    await sleep(Math.random() * 60);
    child.kill("SIGKILL");
    await once(child, "close");
    const now = readFileSync(file);
    assert.ok(now.equals(a) || now.equals(b), `torn: ${now.length} bytes`);
    const letter = String.fromCharCode(now[0] ?? 0);
    seen[letter] = (seen[letter] ?? 0) + 1;
  }
  t.diagnostic(
    `${JSON.stringify(seen)}, ${readdirSync(root).length - 1} left behind before the next write`,
  );
  await replace(root, "c.txt", { after: a });
  assert.deepEqual(readdirSync(root).sort(), ["big.txt", "c.txt"]);
});
