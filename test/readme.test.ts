/** The README's commands, transcript, help and program, run as they stand. */
import assert from "node:assert/strict";
import { execFile } from "node:child_process";
import { mkdtemp, readFile, rm, writeFile } from "node:fs/promises";
import path from "node:path";
import { test } from "node:test";
import { promisify } from "node:util";
import { runHere } from "./run-cli.ts";

const root = path.join(import.meta.dirname, "..");
const readme = await readFile(path.join(root, "README.md"), "utf8");

/** The words of a shell command with plain and double-quoted arguments. */
function words(command: string): string[] {
  return [...command.matchAll(/"([^"]*)"|(\S+)/g)].map(
    ([, quoted, plain]) => quoted ?? plain ?? "",
  );
}

test("the transcript on the first screen is what its command prints, byte for byte", async () => {
  const [, command = "", output = ""] =
    /`{5}console\n\$ (.*)\n([\s\S]*?\n)`{5}\n/.exec(readme) ?? [];
  const [, , file, ...args] = words(command);
  assert.equal(file, "mini-pi.ts");
  const { code, stdout } = await runHere(args, { cwd: root });
  assert.equal(stdout, output);
  assert.equal(code, 0);
});

test("the line that the transcript cites exists and says what was asked for", async () => {
  const [, file = "", from, to] = /^(lib\S+):(\d+)-(\d+)$/m.exec(readme) ?? [];
  const text = await readFile(path.join(root, "node_modules/chardet", file), "utf8");
  const cited = text.split("\n").slice(Number(from) - 1, Number(to));
  assert.ok(cited.some((line) => line.startsWith("const analyse =")));
});

test("the command that sets everything up answers about mini-pi itself", async () => {
  const [, command = ""] = /npm ci && npx node (mini-pi\.ts .*)/.exec(readme) ?? [];
  const { code, stdout, stderr } = await runHere(words(command).slice(1), { cwd: root });
  assert.equal(code, 0, stderr);
  assert.match(stdout, /mini-pi\.ts:\d+-\d+/);
  assert.match(stderr, /ANTHROPIC_API_KEY/);
});

test("the help in the README is what --help prints", async () => {
  const { stdout } = await runHere(["--help"]);
  assert.ok(readme.includes(`\`\`\`\n${stdout}\`\`\``));
});

test("the program in the README runs, with its own tool and listener", async () => {
  const [, program = ""] = /```ts\n([\s\S]*?)```/.exec(readme) ?? [];
  assert.ok(program.split("\n").length <= 20);
  const directory = await mkdtemp(path.join(root, "test", "tmp-"));
  try {
    const file = path.join(directory, "program.ts");
    await writeFile(file, program.replace("./mini-pi.ts", "../../mini-pi.ts"));
    const env = { PATH: process.env.PATH, HOME: directory, MINI_PI_MODEL: "" };
    const { stdout, stderr } = await promisify(execFile)(process.execPath, [file], {
      cwd: root,
      env,
    });
    assert.match(stdout, /package\.json:1-/);
    assert.match(stderr, /read_file/);
  } finally {
    await rm(directory, { recursive: true });
  }
});
