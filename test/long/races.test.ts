// While a program swaps files and directories for links that lead outside, nothing of what lies there
// comes back from any look. MINI_PI_RUNS sets how many looks there are of each kind.

import assert from "node:assert/strict";
import path from "node:path";
import { test } from "node:test";
import { checkSources } from "../../mini-pi.ts";
import { afresh, agentAt, list, read, search, temporary, write } from "../fixtures.ts";
import { startSwapping } from "../swapper.ts";

const CANARY = "kwyjibo";
const RUNS = Number(process.env.MINI_PI_RUNS) || 200;

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
  await using _swapper = startSwapping(root, outside);
  const agent = await agentAt(root);
  const looks: { [kind: string]: [times: number, look: () => Promise<{ text: string }>] } = {
    "read a file": [20 * RUNS, () => read(agent, "file.ts")],
    "read in a directory": [20 * RUNS, () => read(agent, "dir/a.ts")],
    "list a directory": [20 * RUNS, () => list(agent, "dir")],
    "search all": [RUNS, () => search(afresh(agent), "needle|kwy", { context: 1 })],
    "search a directory": [RUNS, () => search(afresh(agent), "needle|kwy", { path: "dir" })],
    "search whole": [RUNS, () => search(afresh(agent), "needle|kwy.", { whole: true })],
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
  assert.deepEqual(leaks, []);
});
