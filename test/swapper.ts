// A program that swaps files, directories and ignore files of a repository for links that lead outside,
// and back, as quickly as it can. It is a process of its own: a thread could not be ended in a wait.

import { spawn } from "node:child_process";
import { once } from "node:events";
import { mkdirSync, renameSync, rmSync, symlinkSync, writeFileSync } from "node:fs";
import path from "node:path";

/** Starts swapping in `root`; disposing of it ends that. */
export function startSwapping(root: string, outside: string): AsyncDisposable {
  const env = { ...process.env, NODE_TEST_CONTEXT: undefined };
  const child = spawn(process.execPath, [import.meta.filename, root, outside], {
    env,
    stdio: "ignore",
  });
  const ended = once(child, "exit");
  const dispose = async () => {
    child.kill("SIGKILL");
    await ended;
  };
  return { [Symbol.asyncDispose]: dispose };
}

const STILL = new Int32Array(new SharedArrayBuffer(4));

/** Swaps for as long as the process lives; each swap is two renames, so there is nearly always something. */
function swap(root: string, outside: string): void {
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

const [, , root, outside] = process.argv;
if (import.meta.main && root && outside) swap(root, outside);
