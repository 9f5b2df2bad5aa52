// Runs the command line under test as a user's shell would: the real file, in a process of its own,
// with an environment that holds no provider's key and a home directory that exists only for it.

import { type ChildProcess, spawn } from "node:child_process";
import { mkdtempSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import type { Readable } from "node:stream";

/** The file under test. */
export const MINI_PI = join(import.meta.dirname, "..", "mini-pi.ts");

export interface CliOptions {
  /** Added to PATH, HOME and XDG_STATE_HOME, or in place of them; the child gets no others. */
  env?: Record<string, string>;
  /** The text on stdin; "ignore" (the default) is /dev/null; "open" a pipe that stays silent. */
  input?: string | "ignore" | "open";
  cwd?: string;
  /** After this long the child is killed and the result says `timedOut`. Default: 20,000. */
  timeoutMs?: number;
}

export interface CliResult {
  code: number | null;
  signal: NodeJS.Signals | null;
  stdout: string;
  stderr: string;
  /** From the start to the exit. */
  ms: number;
  /** From the last byte on stdout to the exit. */
  msAfterOutput: number;
  timedOut: boolean;
}

export interface Cli {
  child: ChildProcess;
  /** Its output so far. */
  stdout(): string;
  stderr(): string;
  /** The first match in its output, past or to come. Rejects when the child ends without one. */
  waitFor(pattern: RegExp, stream?: "stdout" | "stderr"): Promise<RegExpExecArray>;
  /** Settles when the child has ended and its output is read. Never rejects. */
  done: Promise<CliResult>;
}

/** A model of the catalogue, and the arguments that send its requests to a test's server. */
export const MODEL = "anthropic/claude-sonnet-5-5";
export const atServer = ({ url }: { url: string }, ...args: string[]) => [
  "-m",
  MODEL,
  "--base-url",
  url,
  ...args,
];

/** Runs mini-pi with these arguments to its end. Never rejects, and is bounded by `timeoutMs`. */
export const runCli = (args: string[], options: CliOptions = {}): Promise<CliResult> =>
  startCli(args, options).done;

/** Starts mini-pi, for a test that watches it, writes to it or sends it a signal. */
export const startCli = (args: string[], options: CliOptions = {}): Cli =>
  startCommand(process.execPath, [MINI_PI, ...args], options);

/** Starts any command in the same clean environment, such as a shell with mini-pi in a pipeline. */
export function startCommand(command: string, args: string[], options: CliOptions = {}): Cli {
  const { input = "ignore", timeoutMs = 20_000, cwd } = options;
  const home = mkdtempSync(join(tmpdir(), "mini-pi-home-"));
  const base = { PATH: process.env.PATH, HOME: home, XDG_STATE_HOME: join(home, "state") };
  const stdin = input === "ignore" ? "ignore" : "pipe";
  const env = { ...base, ...options.env };
  const child = spawn(command, args, { cwd, env, stdio: [stdin, "pipe", "pipe"] });
  // A child that ends before it has read its input is no error here.
  child.stdin?.on("error", () => undefined);
  if (input !== "open") child.stdin?.end(input);
  return watch(child, timeoutMs, () => rmSync(home, { recursive: true, force: true }));
}

function watch(child: ChildProcess, timeoutMs: number, cleanUp: () => void): Cli {
  const output = { stdout: collect(child.stdout), stderr: collect(child.stderr) };
  const done = ended(child, output, timeoutMs).finally(cleanUp);
  return {
    child,
    stdout: () => output.stdout.text,
    stderr: () => output.stderr.text,
    waitFor: (pattern, stream = "stderr") => match(pattern, output[stream], done),
    done,
  };
}

interface Output {
  stream: Readable | null;
  text: string;
  /** When the last of it came. */
  at: number;
}

function collect(stream: Readable | null): Output {
  const output: Output = { stream, text: "", at: performance.now() };
  stream?.setEncoding("utf8").on("data", (chunk: string) => {
    output.text += chunk;
    output.at = performance.now();
  });
  return output;
}

async function ended(
  child: ChildProcess,
  { stdout, stderr }: Record<"stdout" | "stderr", Output>,
  timeoutMs: number,
): Promise<CliResult> {
  const start = performance.now();
  const end = { at: start, timedOut: false };
  const limit = setTimeout(() => {
    end.timedOut = true;
    kill(child);
  }, timeoutMs);
  child.on("error", (error) => (stderr.text += `${error}\n`));
  child.on("exit", () => (end.at = performance.now()));
  await new Promise((done) => child.on("close", done));
  clearTimeout(limit);
  return {
    code: child.exitCode,
    signal: child.signalCode,
    stdout: stdout.text,
    stderr: stderr.text,
    ms: end.at - start,
    msAfterOutput: end.at - stdout.at,
    timedOut: end.timedOut,
  };
}

function kill(child: ChildProcess) {
  child.kill("SIGKILL");
  // A process that it started may hold the other ends of the pipes.
  child.stdout?.destroy();
  child.stderr?.destroy();
}

function match(pattern: RegExp, output: Output, done: Promise<unknown>): Promise<RegExpExecArray> {
  return new Promise((resolve, reject) => {
    const look = () => {
      const found = pattern.exec(output.text);
      if (found) resolve(found);
    };
    look();
    output.stream?.on("data", look);
    done.then(() => reject(new Error(`The child ended without ${pattern}:\n${output.text}`)));
  });
}
