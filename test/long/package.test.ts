// The package as a user has it: packed, installed into an empty directory, and run by its command.

import assert from "node:assert/strict";
import { execFileSync, spawnSync } from "node:child_process";
import {
  type Dirent,
  existsSync,
  globSync,
  readdirSync,
  readFileSync,
  rmSync,
  statSync,
  symlinkSync,
  writeFileSync,
} from "node:fs";
import path from "node:path";
import { before, describe, test } from "node:test";
import { temporary, write } from "../fixtures.ts";
import { call, reply, startModelServer } from "../model-server.ts";
import { type CliOptions, runCli, startCommand, atServer as to } from "../run-cli.ts";

const root = path.join(import.meta.dirname, "..", "..");
const { version } = JSON.parse(readFileSync(path.join(root, "package.json"), "utf8"));

const sizeOf = ({ parentPath, name }: Dirent) => statSync(path.join(parentPath, name)).size;

describe("The installed package", () => {
  const [place, repo] = [temporary(), temporary()];
  write(repo, { "a.ts": "export function answer() {\n  return 42;\n}\n" });
  const command = path.join(place, "node_modules", ".bin", "mini-pi");
  const mini = (args: string[], options: CliOptions = {}) =>
    startCommand(process.execPath, [command, ...args], options).done;

  let packed = "";
  const run = (cwd: string, command: string, args: string[], env = {}) =>
    execFileSync(command, args, {
      cwd,
      env: { ...process.env, ...env },
      encoding: "utf8",
      stdio: ["ignore", "pipe", "pipe"],
    });

  before(() => {
    packed = run(place, "npm", ["pack", root, "--silent"]).trim().split("\n").at(-1) ?? "";
    writeFileSync(path.join(place, "package.json"), "{}");
    const plainly = ["--no-audit", "--no-fund", "--ignore-scripts"];
    run(place, "npm", ["install", ...plainly, `./${packed}`]);
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

  test("takes less than 10 MB with what it depends on", () => {
    const files = globSync("node_modules/**", { cwd: place, withFileTypes: true });
    const sizes = files.filter((file) => file.isFile()).map(sizeOf);
    assert.ok(sizes.reduce((sum, size) => sum + size, 0) < 10e6);
  });

  test("runs from the tarball and from a link to the clone, in an empty directory", () => {
    const question = [repo, "where is answer defined?"];
    const prefix = temporary();
    const answer = /a\.ts:1-3[\s\S]*return 42/;
    assert.match(run(place, "npx", ["--yes", `./${packed}`, ...question]), answer);
    run(root, "npm", ["link", "--no-audit", "--no-fund"], { npm_config_prefix: prefix });
    assert.match(run(temporary(), path.join(prefix, "bin", "mini-pi"), question), answer);
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

  test("reads a .env beside its mini-pi.ts", async () => {
    await using server = await startModelServer([reply("Yes.")]);
    write(path.join(place, "node_modules", "mini-pi"), { ".env": "ANTHROPIC_API_KEY=key\n" });
    assert.equal((await mini(to(server, repo, "is it?"))).stdout, "Yes.\n");
    rmSync(path.join(place, "node_modules", "mini-pi", ".env"));
  });

  test("has all models, and asks each kind of provider as the source does", async () => {
    const pi = path.join(root, "node_modules/@earendil-works/pi-ai/dist");
    const files = [...globSync(`${pi}/providers/*.js`), path.join(pi, "env-api-keys.js")];
    const text = files.map((file) => readFileSync(file, "utf8")).join("\n");
    const names = text.match(/\b[A-Z\d_]+_(API_KEY|TOKEN)\b/g) ?? [];
    const aws = { AWS_ACCESS_KEY_ID: "key", AWS_SECRET_ACCESS_KEY: "key" };
    const keys = { ...Object.fromEntries(names.map((name) => [name, "key"])), ...aws };
    const options = { env: { ...keys, MINI_PI_RETRY_MS: "1" } };
    const { stdout } = await runCli(["--list-models"], options);
    assert.equal((await mini(["--list-models"], options)).stdout, stdout);
    const models = new Map(stdout.split("\n").map((row) => [row.split("/")[0], row.split(" ")[0]]));
    assert.ok(models.size > 35);
    for (const provider of ["amazon-bedrock", "google", "mistral", "openai", "anthropic"]) {
      const model = models.get(provider) ?? "";
      const args = ["-q", "-m", model, "--base-url", "http://127.0.0.1:9", repo, "what?"];
      const { code, stderr } = await mini(args, options);
      assert.deepEqual([code, stderr], [1, (await runCli(args, options)).stderr]);
      assert.match(stderr, new RegExp(`^mini-pi: ${model} at 127\\.0\\.0\\.1:9: `));
    }
  });

  test("can be imported, and a stack trace names its functions in lines that can be read", () => {
    const script = `import { createAgent, findModel, runAgent } from "mini-pi";
      const agent = await createAgent(${JSON.stringify(repo)}, await findModel("offline/search"));
      console.log((await runAgent(agent, "where is answer defined?")).ended);
      await createAgent("nowhere", agent);`;
    const file = path.join(place, "embed.mjs");
    writeFileSync(file, script);
    const { stdout, stderr } = spawnSync(process.execPath, [file], { encoding: "utf8" });
    assert.equal(stdout, "answered\n", stderr);
    assert.match(
      stderr,
      /no directory nowhere.*\n +at (async )?createAgent \(.*mini-pi\.js:\d+:\d+\)/,
    );
    assert.ok(stderr.split("\n").every((line) => line.length < 1000));
  });

  test("runs the program in the README, and its types fit", () => {
    const readme = readFileSync(path.join(root, "README.md"), "utf8");
    const [, program = ""] = /```ts\n([\s\S]*?)```/.exec(readme) ?? [];
    const file = path.join(place, "program.mts");
    writeFileSync(file, program.replace("./mini-pi.ts", "mini-pi"));
    // What the README says to install for it.
    for (const name of ["@earendil-works", "@types", "ignore", "typebox"])
      symlinkSync(path.join(root, "node_modules", name), path.join(place, "node_modules", name));
    const tsc = path.join(root, "node_modules", ".bin", "tsc");
    const strict = "--ignoreConfig --noEmit --strict --skipLibCheck --types node".split(" ");
    const options = ["--module", "nodenext", "--target", "esnext", file];
    const { status, stdout } = spawnSync(tsc, [...strict, ...options], {
      cwd: place,
      encoding: "utf8",
    });
    assert.deepEqual([status, stdout], [0, ""]);
    const env = { PATH: process.env.PATH, HOME: place, MINI_PI_MODEL: "" };
    const done = spawnSync(process.execPath, [file], { cwd: place, env, encoding: "utf8" });
    assert.match(done.stdout, /package\.json:1-/, done.stderr);
    assert.match(done.stderr, /read_file/);
  });

  test("keeps compiled code for its user, and not in the directory that is looked at", async () => {
    const [home, own] = [temporary(), temporary()];
    const env = { NODE_COMPILE_CACHE: "", XDG_CACHE_HOME: path.join(home, "cache"), HOME: home };
    const args = ["--no-session", home, "what?"];
    assert.equal((await mini(args, { env })).code, 0);
    assert.deepEqual(readdirSync(home), []);
    assert.equal((await mini(["--no-session", own, "what?"], { env, cwd: own })).code, 0);
    assert.deepEqual(readdirSync(path.join(home, "cache")), ["mini-pi"]);
    for (const none of [{ XDG_CACHE_HOME: "", HOME: "" }, { XDG_CACHE_HOME: "here" }])
      await mini(["--no-session", repo, "what?"], { env: { ...env, ...none }, cwd: own });
    assert.deepEqual(readdirSync(own), []);
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
