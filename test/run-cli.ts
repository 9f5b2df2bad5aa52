// Runs the command line under test, with an environment that holds no provider's key and a home
// directory that exists only for it: `runCli` as a user's shell would, the real file in a process of
// its own; `runHere` in this process, which is much cheaper, where a process proves nothing more.

import { type ChildProcess, spawn, spawnSync } from "node:child_process";
import { EventEmitter, once } from "node:events";
import { mkdtempSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { PassThrough, type Readable } from "node:stream";
import { setTimeout as sleep } from "node:timers/promises";
import { WriteStream } from "node:tty";

/** The file under test. */
export const MINI_PI = join(import.meta.dirname, "..", "mini-pi.ts");

export interface CliOptions {
  /** Added to PATH, HOME and XDG_STATE_HOME, or in place of them; mini-pi sees no others. */
  env?: Record<string, string>;
  /** The text on stdin; "ignore" (the default) is /dev/null; "open" a pipe that stays silent. */
  input?: string | "ignore" | "open";
  cwd?: string;
  /** After this long it is killed and the result says `timedOut`. Default: 60,000. */
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

export interface Watched {
  /** Its output so far. */
  stdout(): string;
  stderr(): string;
  /** The first match in its output, past or to come. Rejects when it ends without one. */
  waitFor(pattern: RegExp, stream?: "stdout" | "stderr"): Promise<RegExpExecArray>;
  /** Settles when it has ended and its output is read. A child's never rejects. */
  done: Promise<CliResult>;
}

export interface Cli extends Watched {
  child: ChildProcess;
}

/** A run in this process; it rejects if mini-pi throws, which in a process is a stack trace. */
export interface Here extends Watched {
  stdin: PassThrough;
  /** Stops it as a signal with this exit code does. */
  stop(code: number): void;
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
  const { input = "ignore", timeoutMs = TIMEOUT_MS, cwd } = options;
  const home = mkdtempSync(join(tmpdir(), "mini-pi-home-"));
  const stdin = input === "ignore" ? "ignore" : "pipe";
  // Every process compiles the same modules, which takes a third of a short run.
  const env = { ...environmentAt(home), NODE_COMPILE_CACHE: COMPILED, ...options.env };
  const child = spawn(command, args, { cwd, env, stdio: [stdin, "pipe", "pipe"] });
  // A child that ends before it has read its input is no error here.
  child.stdin?.on("error", () => undefined);
  if (input !== "open") child.stdin?.end(input);
  return watch(child, timeoutMs, () => rmSync(home, { recursive: true, force: true }));
}

/** Starts a line of bash in which `mini-pi` is mini-pi with these arguments. */
export const startShell = (args: string[], line: string, options?: CliOptions): Cli =>
  startCommand("bash", ["-c", `mini-pi() { ${command(...args)} "$@"; }\n${line}`], options);

/** Starts a shell's line on a pseudo-terminal, where stdout and stderr are one. */
export const startTerminal = (line: string, options?: CliOptions): Cli =>
  startCommand("script", ["-qec", line, "/dev/null"], options);

/** The command that runs mini-pi with these arguments, for a shell. */
export const command = (...args: string[]) =>
  [process.execPath, MINI_PI, ...args].map((arg) => `'${arg.replaceAll("'", "'\\''")}'`).join(" ");

const hasScript = /util-linux/.test(`${spawnSync("script", ["--version"]).stdout}`);
/** The options of a test that starts a terminal. */
export const onTerminal = { skip: hasScript ? false : "there is no script(1) of util-linux" };

const TIMEOUT_MS = 60_000;
const COMPILED = join(tmpdir(), "mini-pi-compile-cache");
const PATH = process.env.PATH;
const environmentAt = (home: string) => ({ PATH, HOME: home, XDG_STATE_HOME: join(home, "state") });

function watch(child: ChildProcess, timeoutMs: number, cleanUp: () => void): Cli {
  const output = { stdout: collect(child.stdout), stderr: collect(child.stderr) };
  const done = ended(child, output, timeoutMs).finally(cleanUp);
  return { child, ...views(output, done) };
}

function views(output: Record<"stdout" | "stderr", Output>, done: Promise<CliResult>): Watched {
  // Only who awaits a run is told that it failed.
  done.catch(() => undefined);
  return {
    stdout: () => output.stdout.text,
    stderr: () => output.stderr.text,
    waitFor: (pattern, stream = "stderr") => match(pattern, output[stream], done),
    done,
  };
}

// ----------------------------------------------------------------------------- In this process

export interface HereOptions extends CliOptions {
  /** Its three streams are terminals, and its output is one, in `stdout`. */
  terminal?: true;
}

/** Runs mini-pi in this process to its end, with streams of its own. */
export const runHere = (args: string[], options: HereOptions = {}): Promise<CliResult> =>
  startHere(args, options).done;

/** Starts mini-pi in this process, for a test that watches it, writes to it or stops it. */
export function startHere(args: string[], options: HereOptions = {}): Here {
  const { input = "ignore", timeoutMs = TIMEOUT_MS, cwd = process.cwd(), terminal } = options;
  const kind = terminal ? TERMINAL : {};
  const stream = () => Object.assign(new PassThrough(), kind);
  const [stdin, stdout, other] = [stream(), stream(), stream()];
  const stderr = terminal ? stdout : other;
  const output = { stdout: collect(stdout), stderr: collect(other) };
  if (input === "ignore") stdin.end();
  else if (input !== "open") stdin.end(input);
  const killer = new AbortController();
  const stop = (exitCode: number) =>
    killer.abort(Object.assign(new Error("stopped"), { exitCode }));
  const work = async () => {
    // Not above: a file that only starts processes needs no agent.
    const { run } = await import("../mini-pi.ts");
    return run(args, { stdin, stdout, stderr }, killer.signal);
  };
  const env = { ...environmentAt(home()), ...options.env };
  const done = within({ env, cwd }, () => settled(work, output, timeoutMs, stop));
  return { stdin, stop, ...views(output, done) };
}

/** What Node's streams of a terminal have, and the depth that they give by the environment. */
const TERMINAL = { isTTY: true, getColorDepth: () => WriteStream.prototype.getColorDepth() };

async function settled(
  work: () => Promise<number>,
  { stdout, stderr }: Record<"stdout" | "stderr", Output>,
  timeoutMs: number,
  stop: (code: number) => void,
): Promise<CliResult> {
  const [start, over] = [performance.now(), new AbortController()];
  const warn = (warning: Error) => (stderr.text += `${warning}\n`);
  process.on("warning", warn);
  const late = sleep(timeoutMs, null, { signal: over.signal }).catch(() => null);
  const code = await Promise.race([work(), late]).finally(async () => {
    over.abort();
    // What is written and not yet read comes first, as do warnings.
    await sleep(0);
    process.off("warning", warn);
  });
  const at = performance.now();
  if (code === null) stop(137);
  const times = { ms: at - start, msAfterOutput: at - stdout.at, timedOut: code === null };
  return { code, signal: null, stdout: stdout.text, stderr: stderr.text, ...times };
}

let HOME: string | undefined;

/** The home of all runs in this process that name none. */
function home(): string {
  if (HOME) return HOME;
  const made = mkdtempSync(join(tmpdir(), "mini-pi-home-"));
  process.on("exit", () => rmSync(made, { recursive: true, force: true }));
  HOME = made;
  return made;
}

type Place = { env: Record<string, string | undefined>; cwd: string };

/** Where the runs under way are: this process has one environment only. */
const current = { key: "", running: 0, freed: new EventEmitter().setMaxListeners(0) };
let outside: Place;

/** Runs that want the same place go side by side; one that wants another waits until it is free. */
async function within<T>(place: Place, work: () => Promise<T>): Promise<T> {
  const key = JSON.stringify(place);
  while (current.running > 0 && current.key !== key) await once(current.freed, "freed");
  if (current.running === 0) outside = { env: { ...process.env }, cwd: process.cwd() };
  if (current.running++ === 0) goTo(place);
  current.key = key;
  try {
    return await work();
  } finally {
    if (--current.running === 0) {
      goTo(outside);
      current.freed.emit("freed");
    }
  }
}

function goTo({ env, cwd }: Place): void {
  for (const name of Object.keys(process.env)) delete process.env[name];
  for (const [name, value] of Object.entries(env))
    if (value !== undefined) process.env[name] = value;
  process.chdir(cwd);
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
      if (!found) return;
      output.stream?.off("data", look);
      resolve(found);
    };
    output.stream?.on("data", look);
    look();
    const missed = () => reject(new Error(`It ended without ${pattern}:\n${output.text}`));
    done.then(missed, missed);
  });
}
