// The property of test/fuzz.test.ts, tried a million times with a new seed each run: it is printed, and
// MINI_PI_SEED makes the same calls again. Meanwhile a thread swaps some files for links.

import assert from "node:assert/strict";
import { once } from "node:events";
import path from "node:path";
import { type TestContext, test } from "node:test";
import { isMainThread, parentPort, Worker, workerData } from "node:worker_threads";
import { freshSeed, temporary } from "../fixtures.ts";
import { type Counts, fuzz, makeTraps } from "../fuzz.ts";
import { startSwapping } from "../swapper.ts";

const CALLS = Number(process.env.MINI_PI_RUNS) || 1_000_000;
const DEAR = { missing: 1000, search: 500 };
/** Threads: the test runner follows each step in its own, and that takes a third of the time. */
const WORKERS = 2;

async function fuzzAll(t: TestContext) {
  const seed = freshSeed(t);
  const base = temporary();
  const traps = makeTraps(base);
  const places = { root: path.join(base, "repo"), outside: path.join(base, "outside") };
  await using _swapper = startSwapping(places.root, places.outside);
  const start = Date.now();
  const run = async (seed: number): Promise<Counts> => {
    const workerData = { base, seed, calls: CALLS / WORKERS };
    const worker = new Worker(import.meta.filename, { workerData });
    // An error in a worker rejects this, and nobody waits for the others.
    t.after(() => worker.terminate());
    const [counts] = await once(worker, "message");
    return counts;
  };
  const counts = await Promise.all(Array.from({ length: WORKERS }, (_, i) => run(seed + i)));
  const seconds = (Date.now() - start) / 1000;
  const sum = (of: keyof Counts) => counts.reduce((total, count) => total + count[of], 0);
  const [refused, pictures] = [sum("refused"), sum("pictures")];
  const tools = (["read_file", "list_files", "search_files"] as const).map(
    (name) => `${sum(name)} ${name}`,
  );
  const largest = Math.max(...counts.map((count) => count.largest));
  t.diagnostic(`${CALLS} calls in ${seconds.toFixed(1)} s: ${tools.join(", ")}`);
  t.diagnostic(
    `${traps} traps; ${refused} calls refused, ${pictures} pictures, largest result ${largest} characters`,
  );
  // The calls are no idle ones: many are answered, and many are refused.
  assert.ok(refused > CALLS / 10 && refused < CALLS * 0.9, `${refused} refused`);
  assert.ok(pictures > 100 && largest > 20_000);
}

if (isMainThread)
  test(
    `in ${CALLS.toLocaleString("en")} random calls no canary comes back from outside or from a secret`,
    fuzzAll,
  );
else parentPort?.postMessage(await fuzz(workerData.base, workerData.seed, workerData.calls, DEAR));
