// The package as a user has it: packed, installed into an empty directory, and run by its command.

import assert from "node:assert/strict";
import { execFileSync, spawnSync } from "node:child_process";
import { existsSync, readdirSync, readFileSync, writeFileSync } from "node:fs";
import path from "node:path";
import { before, describe, test } from "node:test";
import { temporary, write } from "../fixtures.ts";
import { call, reply, startModelServer } from "../model-server.ts";
import { type CliOptions, startCommand, atServer as to } from "../run-cli.ts";

const root = path.join(import.meta.dirname, "..", "..");
const { version } = JSON.parse(readFileSync(path.join(root, "package.json"), "utf8"));

describe("The installed package", () => {
  const [place, repo] = [temporary(), temporary()];
  write(repo, { "a.ts": "export function answer() {\n  return 42;\n}\n" });
  const command = path.join(place, "node_modules", ".bin", "mini-pi");
  const mini = (args: string[], options: CliOptions = {}) =>
    startCommand(process.execPath, [command, ...args], options).done;

  before(() => {
    const run = (...args: string[]) =>
      execFileSync("npm", args, {
        cwd: place,
        encoding: "utf8",
        stdio: ["ignore", "pipe", "pipe"],
      });
    const packed = run("pack", root, "--silent").trim().split("\n").at(-1) ?? "";
    writeFileSync(path.join(place, "package.json"), "{}");
    run("install", "--no-audit", "--no-fund", "--ignore-scripts", path.join(place, packed));
  });

  test("holds what is needed and nothing else, and depends on ripgrep alone", () => {
    const files = readdirSync(path.join(place, "node_modules", "mini-pi")).sort();
    assert.deepEqual(files, ["LICENSE", "README.md", "dist", "mini-pi.ts", "package.json"]);
    const installed = readdirSync(path.join(place, "node_modules")).filter(
      (name) => !name.startsWith("."),
    );
    assert.deepEqual(installed.sort(), ["@vscode", "mini-pi"]);
    const licences = readFileSync(
      path.join(place, "node_modules/mini-pi/dist/LICENSES.txt"),
      "utf8",
    );
    for (const name of ["@earendil-works/pi-ai", "typebox", "chardet", "ignore", "openai"])
      assert.match(licences, new RegExp(`^${name} \\d`, "m"));
  });

  test("tells its version and its help", async () => {
    assert.equal((await mini(["--version"])).stdout, `${version}\n`);
    assert.match((await mini(["--help"])).stdout, /^Usage: /);
  });

  test("answers without a key", async () => {
    const { code, stdout } = await mini([repo, "where is answer defined?"]);
    assert.equal(code, 0);
    assert.match(stdout, /a\.ts:1-3[\s\S]*return 42/);
  });

  test("asks a model, runs its calls, keeps the session and goes on with it", async () => {
    const look = reply([call("search_files", { pattern: "answer" })]);
    await using server = await startModelServer([look, reply("In a.ts:1."), reply("Yes.")]);
    const session = path.join(place, "s.jsonl");
    const args = to(server, "--session", session, repo);
    const options = { env: { ANTHROPIC_API_KEY: "key" } };
    const { code, stdout, stderr } = await mini([...args, "where is it?"], options);
    assert.deepEqual([code, stdout], [0, "In a.ts:1.\n"], stderr);
    assert.match(stderr, /sources: 1 seen/);
    assert.ok(existsSync(session));
    assert.equal((await mini([...args, "sure?"], options)).stdout, "Yes.\n");
    assert.deepEqual(server.problems, []);
  });

  test("can be imported, and has types", async () => {
    const script = `import { createAgent, findModel, runAgent } from "mini-pi";
      const agent = await createAgent(${JSON.stringify(repo)}, await findModel("offline/search"));
      console.log((await runAgent(agent, "where is answer defined?")).ended);`;
    const file = path.join(place, "embed.mjs");
    writeFileSync(file, script);
    const { stdout, stderr } = spawnSync(process.execPath, [file], { encoding: "utf8" });
    assert.equal(stdout, "answered\n", stderr);
    const types = readFileSync(path.join(place, "node_modules/mini-pi/dist/mini-pi.d.ts"), "utf8");
    assert.match(types, /export declare function runAgent\(agent: Agent, question: string\)/);
  });

  test("says in one line which Node it needs, where that is too old", async (t) => {
    const nodes = (process.env.PATH ?? "")
      .split(path.delimiter)
      .map((one) => path.join(one, "node"));
    const versions = nodes.map(
      (node) => spawnSync(node, ["--version"], { encoding: "utf8" }).stdout,
    );
    const old = nodes.find((_, i) => /^v(1[89]|2[01])\./.test(versions[i] ?? ""));
    if (!old) return t.skip("there is no old Node on the PATH");
    const { status, stderr } = spawnSync(old, [command, "--help"], { encoding: "utf8" });
    assert.equal(status, 2);
    assert.match(stderr, /^mini-pi needs Node 22\.19 or newer, and this is v\d+\.\d+\.\d+\.\n$/);
  });
});
