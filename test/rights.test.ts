// What the user may not read. In a file of its own, as it gives up root's rights for good: root may
// read everything.

import assert from "node:assert/strict";
import { execFileSync } from "node:child_process";
import { statSync } from "node:fs";
import path from "node:path";
import { test } from "node:test";
import type { Agent } from "../mini-pi.ts";
import { agentWith, list, read, search } from "./fixtures.ts";

const NOBODY = 65534;

/** From here on this process is a user's that has no rights of its own, but owns `directory`. */
function withoutRights(directory: string): void {
  if (process.geteuid?.() !== 0) return;
  execFileSync("chown", ["-R", `${NOBODY}`, directory]);
  process.setuid?.(NOBODY);
}

const everyTool = (where: string, on: Agent) =>
  Promise.all([list(on, where), read(on, where), search(on, ".", { path: where })]);

test("what may not be read is said to be so, and everything else is still found", async () => {
  const on = await agentWith({
    "a/x.ts": "needle\n",
    "c/x.ts": "needle\n",
    "f/x.ts": "needle\n",
    "f/.gitignore": "*\n",
    "e.ts": "needle\n",
    "g.ts": "needle\n",
  });
  const at = (name: string) => path.join(on.root, name);
  execFileSync("chmod", ["000", at("c"), at("e.ts"), at("f/.gitignore")]);
  withoutRights(path.dirname(on.root));
  const { text: listed } = await list(on);
  assert.match(listed, /^c\/ \(may not be read\)$/m);
  assert.match(listed, /^e\.ts \(7 bytes\)$/m);
  for (const { text, isError } of await everyTool("e.ts", on)) {
    assert.ok(isError);
    assert.match(text, /permission|not be read|is a file/i);
  }
  for (const { text, isError } of await everyTool("c", on))
    assert.ok(isError || /unreadable|may not be read/.test(text), text);
  assert.ok((await read(on, "c/x.ts")).isError);
  const found = await search(on, "needle");
  assert.ok(!found.isError);
  assert.match(found.text, /^a\/x\.ts\n1: needle\nf\/x\.ts\n1: needle\ng\.ts\n1: needle\n\[/);
  const none = await search(on, "absent");
  assert.ok(!none.isError, none.text);
  assert.match(none.text, /^No match in what was looked at.*\n\[not all of it may be read/);
  for (const { text } of [found, none]) {
    const [, names = ""] = /\n\[left out.*unreadable: (.*)\]$/.exec(text) ?? [];
    const left = names.split(", ").map((name) => name.replace(/\/$/, ""));
    assert.ok(left.includes("c"), text);
    assert.match(text, /not all of it may be read/);
    assert.ok(!left.some((name) => /^(a|f|g\.ts)$/.test(name)), text);
  }
  const walked = (await list(on, ".", "*.ts")).text;
  // Nobody knows whether the glob fits a file in there: the note on the walk says that.
  assert.match(walked, /^a\/x\.ts\ne\.ts\nf\/x\.ts\ng\.ts\n\[not all of it may be read/);
  execFileSync("chmod", ["755", at("c")]);
  assert.equal(statSync(at("c")).mode & 0o777, 0o755);
});
