/**
 * What mini-pi costs, beside yardsticks and peers in the same run:
 *
 *     npm run bench [-- --quick] [--pi <command>] [--claude <command>]
 *
 * The peers are left out where they are neither named nor on the PATH. Prints; asserts nothing: a busy
 * machine is not a fault.
 */
import { existsSync, realpathSync } from "node:fs";
import * as fs from "node:fs/promises";
import os from "node:os";
import path from "node:path";
import { parseArgs } from "node:util";
import { agents } from "./agents.ts";
import { tools } from "./tools.ts";

const { values } = parseArgs({
  options: { quick: { type: "boolean" }, pi: { type: "string" }, claude: { type: "string" } },
});

/** The file of a command that is named, or on the PATH. */
function command(name: "pi" | "claude"): string | undefined {
  const known = (process.env.PATH ?? "").split(path.delimiter).map((at) => path.join(at, name));
  const file = [values[name], ...known].find((file) => file && existsSync(file));
  if (values[name] && file !== values[name]) throw new Error(`there is no ${values[name]}`);
  return file && realpathSync(file);
}

const work = await fs.mkdtemp(path.join(os.tmpdir(), "mini-pi-bench-"));
try {
  const peers = { pi: command("pi"), claude: command("claude") };
  await agents(work, peers, values.quick ? 3 : 11);
  await tools(work, values.quick ?? false);
} finally {
  await fs.rm(work, { recursive: true, force: true });
}
