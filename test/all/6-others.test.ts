// `npm test` runs the files of this directory, a process each: a process costs a second before its
// first test, so most of them run several files of tests. What must be alone in its process is.

import assert from "node:assert/strict";
import { readdirSync, readFileSync } from "node:fs";
import path from "node:path";
import { test } from "node:test";
import "../edit.test.ts";
import "../fuzz.test.ts";
import "../model-server.test.ts";
import "../reword.test.ts";
import "../servers.test.ts";

test("npm test runs each file of tests, and none of them twice", () => {
  const here = import.meta.dirname;
  const texts = readdirSync(here).map((name) => readFileSync(path.join(here, name), "utf8"));
  const run = texts.flatMap((text) => text.match(/(?<=^import "\.\.\/)\S+(?=";$)/gm) ?? []);
  const files = readdirSync(path.dirname(here)).filter((name) => name.endsWith(".test.ts"));
  assert.deepEqual(run.sort(), files.sort());
});
