// While a program swaps files and directories for links that lead outside, nothing of what lies there
// comes back from any look. MINI_PI_RUNS sets how many looks there are of each kind.

import assert from "node:assert/strict";
import { existsSync, mkdirSync, renameSync, rmSync, symlinkSync, writeFileSync } from "node:fs";
import path from "node:path";
import { test } from "node:test";
import { isMainThread, Worker, workerData } from "node:worker_threads";
import { checkSources } from "../../mini-pi.ts";
import { afresh, agentAt, list, read, search, temporary, write } from "../fixtures.ts";

const CANARY = "kwyjibo";
const RUNS = Number(process.env.MINI_PI_RUNS) || 200;

const STILL = new Int32Array(new SharedArrayBuffer(4));

/** Swaps for as long as the thread lives; each swap is one rename, so there is always something. */
function swap({ root, outside }: { root: string; outside: string }): void {
  const aside = path.join(path.dirname(root), "aside");
  mkdirSync(aside, { recursive: true });
  const put = (make: (at: string) => void, target: string) => {
    const made = path.join(aside, "made");
    rmSync(made, { recursive: true, force: true });
    make(made);
    rmSync(path.join(aside, "old"), { recursive: true, force: true });
    renameSync(target, path.join(aside, "old"));
    renameSync(made, target);
    Atomics.wait(STILL, 0, 0, 1);
  };
  const directory = (at: string) => {
    mkdirSync(at);
    writeFileSync(path.join(at, "a.ts"), "needle inside\n");
  };
  for (;;) {
    put((at) => symlinkSync(outside, at), path.join(root, "dir"));
    put((at) => symlinkSync(path.join(outside, "a.ts"), at), path.join(root, "file.ts"));
    put((at) => symlinkSync(path.join(outside, "a.ts"), at), path.join(root, ".gitignore"));
    put(directory, path.join(root, "dir"));
    put((at) => writeFileSync(at, "needle inside\n"), path.join(root, "file.ts"));
    put((at) => writeFileSync(at, "*.log\n"), path.join(root, ".gitignore"));
  }
}

if (isMainThread)
  test("no look leads outside while files and directories are swapped for links", async (t) => {
    const base = temporary();
    const [root, outside] = [path.join(base, "repo"), path.join(base, "outside")];
    write(root, {
      "file.ts": "needle inside\n",
      "dir/a.ts": "needle inside\n",
      ".gitignore": "*.log\n",
      "still.ts": "needle inside\n",
    });
    write(outside, { "a.ts": `needle ${CANARY}\n`, [`${CANARY}.ts`]: `needle ${CANARY}\n` });
    const worker = new Worker(import.meta.filename, { workerData: { root, outside } });
    t.after(() => worker.terminate());
    const agent = await agentAt(root);
    const looks: { [kind: string]: [times: number, look: () => Promise<{ text: string }>] } = {
      "read a file": [20 * RUNS, () => read(agent, "file.ts")],
      "read in a directory": [20 * RUNS, () => read(agent, "dir/a.ts")],
      "list a directory": [20 * RUNS, () => list(agent, "dir")],
      "search all": [RUNS, () => search(afresh(agent), "needle|kwy", { context: 1 })],
      "search a directory": [RUNS, () => search(afresh(agent), "needle|kwy", { path: "dir" })],
      "search a file": [RUNS, () => search(afresh(agent), "needle|kwy", { path: "file.ts" })],
      "search by a glob": [RUNS, () => search(afresh(agent), "needle|kwy", { glob: "*.ts" })],
      "list by a glob": [RUNS, () => list(afresh(agent), ".", "**/*.ts")],
      "check a source": [
        RUNS,
        async () => ({ text: JSON.stringify(await checkSources(agent, "See dir/a.ts:1-9.")) }),
      ],
    };
    const leaks: string[] = [];
    for (const [kind, [times, look]] of Object.entries(looks)) {
      let [led, inside] = [0, 0];
      for (let i = 0; i < times; i += 4)
        for (const { text } of await Promise.all([look(), look(), look(), look()])) {
          if (text.includes(CANARY)) led += 1;
          if (/needle inside|a\.ts|file\.ts/.test(text)) inside += 1;
        }
      t.diagnostic(`${kind}: ${led} of ${times} led outside, ${inside} inside`);
      if (led > 0) leaks.push(kind);
      assert.ok(inside > 0, `${kind} is no idle look`);
    }
    // Before the directory is removed.
    await worker.terminate();
    assert.deepEqual(leaks, []);
  });
else
  try {
    swap(workerData);
  } catch (error) {
    // After the test, the directory is gone.
    if (existsSync(workerData.root)) throw error;
  }
