// A property, tried with a few thousand random calls that are the same in every run. The long tests
// make 100,000, with a new seed each time.

import assert from "node:assert/strict";
import { test } from "node:test";
import { temporary } from "./fixtures.ts";
import { fuzz, makeTraps } from "./fuzz.ts";

const CALLS = 2000;

test("in 2,000 random calls no canary comes back from outside or from a secret", async (t) => {
  const base = temporary();
  const traps = makeTraps(base);
  const counts = await fuzz(base, 20_240_607, CALLS, { missing: 400, search: 150 });
  t.diagnostic(`${traps} traps: ${JSON.stringify(counts)}`);
  // The calls are no idle ones: many are answered, and many are refused.
  assert.ok(counts.refused > CALLS / 10 && counts.refused < CALLS * 0.9, `${counts.refused}`);
  assert.ok(counts.pictures > 10 && counts.largest > 20_000);
});
