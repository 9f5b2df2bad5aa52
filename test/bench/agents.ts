/**
 * Whole agents, beside each other: the same question, answered by a scripted server on loopback that
 * takes no time. Each in a process of its own, interleaved, the first round not counted.
 */
import { spawn } from "node:child_process";
import { once } from "node:events";
import * as fs from "node:fs/promises";
import path from "node:path";
import { build } from "esbuild";
import { call, reply, type Step, startModelServer, text } from "../model-server.ts";
import { median, table } from "./figures.ts";

const here = import.meta.dirname;
const SOURCE = path.join(here, "..", "..", "mini-pi.ts");
/** What the package's command runs. */
const PACKAGE = path.join(here, "..", "..", "dist", "cli.js");
const FLOOR = path.join(here, "floor.ts");
const MODEL = "claude-sonnet-5-5";

type Agent = {
  name: string;
  command: string[];
  env?: NodeJS.ProcessEnv;
  /** How it reads a file, so that the server can ask it to. */
  read: (file: string) => ReturnType<typeof call>;
};
export type Peers = { pi?: string | undefined; claude?: string | undefined };

type Measure = Record<"wall" | "cpu" | "mb" | "first" | "turn" | "tokens" | "all" | "kb", number>;

/** The yardsticks, mini-pi and its peers, each told to ask the server at `url`. */
async function contenders(work: string, url: string, peers: Peers): Promise<Agent[]> {
  const node = process.execPath;
  const byPath = (file: string) => call("read_file", { path: path.basename(file) });
  const asked = ["-q", "-m", `anthropic/${MODEL}`, "--base-url", url, ".", "where?"];
  const agents: Agent[] = [
    { name: "empty file", command: [node, path.join(here, "empty.ts")], read: byPath },
    { name: "floor", command: [node, FLOOR, url, ".", "where?"], read: byPath },
    {
      name: "floor, bundled",
      command: [node, path.join(work, "floor", "cli.js"), url, ".", "where?"],
      read: byPath,
    },
    { name: "mini-pi, from source", command: [node, SOURCE, ...asked], read: byPath },
    { name: "mini-pi, installed", command: [node, PACKAGE, ...asked], read: byPath },
  ];
  if (peers.pi) {
    const home = path.join(work, "pi");
    await fs.mkdir(home, { recursive: true });
    const providers = { anthropic: { baseUrl: url } };
    await fs.writeFile(path.join(home, "models.json"), JSON.stringify({ providers }));
    const args = ["--provider", "anthropic", "--model", MODEL, "--no-session", "-p", "where?"];
    const env = { PI_CODING_AGENT_DIR: home, PI_OFFLINE: "1" };
    const read = (file: string) => call("read", { path: path.basename(file) });
    agents.push({ name: "pi, installed", command: [peers.pi, ...args], env, read });
  }
  if (peers.claude) {
    const env = { ANTHROPIC_BASE_URL: url, CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC: "1" };
    const read = (file: string) => call("Read", { file_path: file });
    const command = [peers.claude, "-p", "where?", "--model", MODEL];
    agents.push({ name: "claude --bare", command: [...command, "--bare"], env, read });
    agents.push({ name: "claude", command, env, read });
  }
  return agents;
}

/** Makes of the floor what the build makes of mini-pi: a bundle with V8's compile cache. */
async function bundleFloor(outdir: string): Promise<void> {
  const banner = {
    js: 'import { createRequire } from "node:module"; const require = createRequire(import.meta.url);',
  };
  const as = { bundle: true, splitting: true, format: "esm", platform: "node", banner } as const;
  await build({ entryPoints: [FLOOR], outdir, minify: true, ...as });
  const entry =
    'import module from "node:module"; module.enableCompileCache(); import("./floor.js");';
  await fs.writeFile(path.join(outdir, "cli.js"), entry);
  await fs.writeFile(path.join(outdir, "package.json"), '{ "type": "module" }');
}

/** Runs one agent to its end, with a server that says these steps. */
async function measure(work: string, name: string, peers: Peers, script: Script): Promise<Measure> {
  await using server = await startModelServer([]);
  const agent = (await contenders(work, server.url, peers)).find((one) => one.name === name);
  if (!agent) throw new Error(`no agent ${name}`);
  server.steps.push(...script(agent, path.join(work, "files")));
  const usage = path.join(work, "usage.json");
  await fs.rm(usage, { force: true });
  const home = { HOME: work, XDG_STATE_HOME: path.join(work, "state"), PATH: process.env.PATH };
  const preload = `--import=${path.join(here, "usage.mjs")}`;
  const keys = { ANTHROPIC_API_KEY: "sk-none", BENCH_USAGE: usage, NODE_OPTIONS: preload };
  const [command = "", ...args] = agent.command;
  const before = performance.now();
  const child = spawn(command, args, {
    cwd: path.join(work, "files"),
    stdio: ["ignore", "ignore", "inherit"],
    env: { ...home, ...keys, ...agent.env },
  });
  const watched = watch(child.pid ?? 0);
  const [code] = await once(child, "close");
  const wall = performance.now() - before;
  if (code !== 0) console.error(`${name} ended with ${code}`);
  const own = await fs.readFile(usage, "utf8").then(JSON.parse, () => undefined);
  const { cpu, mb } = own ?? (await watched);
  const { requests } = server;
  const tokens = requests.map(({ raw }) => raw.length / 4);
  const all = tokens.reduce((a, b) => a + b, 0);
  const [start, end] = [requests[0]?.at ?? Number.NaN, requests.at(-1)?.at ?? Number.NaN];
  const turn = (end - start) / Math.max(1, requests.length - 1);
  const sent = { tokens: tokens[0] ?? Number.NaN, all, kb: (4 * all) / 1024 };
  return { wall, cpu, mb, first: start - before, turn, ...sent };
}

/** What a process that is not Node's uses: its last figures in /proc, where there is one. */
async function watch(pid: number): Promise<{ cpu: number; mb: number }> {
  const last = { cpu: Number.NaN, mb: Number.NaN };
  const read = (file: string) => fs.readFile(`/proc/${pid}/${file}`, "utf8").catch(() => "");
  for (;;) {
    const [status, stat] = await Promise.all([read("status"), read("stat")]);
    const [, kb] = /^VmHWM:\s+(\d+) kB$/m.exec(status) ?? [];
    if (!kb) return last;
    // Hundredths of a second in user and system mode, after the name in brackets.
    const fields = stat.replace(/^.*\) /, "").split(" ");
    Object.assign(last, {
      mb: Number(kb) / 1024,
      cpu: 10 * (Number(fields[11]) + Number(fields[12])),
    });
    await new Promise((resolve) => setTimeout(resolve, 5));
  }
}

type Script = (agent: Agent, files: string) => Step[];

const looks =
  (turns: number): Script =>
  ({ read }, files) => [
    ...Array.from({ length: turns - 1 }, (_, i) => reply([read(path.join(files, `${i}.txt`))])),
    reply("It is in 0.txt:1."),
  ];

/** 1 MB in pieces of 50 bytes, as a provider sends them. */
const longAnswer: Script = () => [
  reply([text(Array.from({ length: 20_000 }, () => `${"x".repeat(49)}\n`))]),
];

/** The medians of so many runs, by agent. */
async function medians(work: string, names: string[], peers: Peers, script: Script, runs: number) {
  const results = new Map<string, Measure[]>(names.map((name) => [name, []]));
  for (let run = 0; run <= runs; run++)
    for (const name of names) {
      const measured = await measure(work, name, peers, script);
      // The first round warms the caches.
      if (run > 0) results.get(name)?.push(measured);
    }
  return (name: string, key: keyof Measure) =>
    median((results.get(name) ?? []).map((one) => one[key]));
}

export async function agents(work: string, peers: Peers, runs: number): Promise<void> {
  const files = path.join(work, "files");
  await fs.mkdir(files);
  await bundleFloor(path.join(work, "floor"));
  const page = "a line of text, as long as lines of code are\n".repeat(100);
  for (let i = 0; i < 50; i++) await fs.writeFile(path.join(files, `${i}.txt`), page);
  const all = (await contenders(work, "http://localhost", peers)).map(({ name }) => name);
  const talking = all.filter((name) => name !== "empty file");

  const one = await medians(work, all, peers, looks(5), runs);
  const ratio = (of: typeof one, name: string, key: keyof Measure) =>
    `${of(name, key).toFixed(0)} (${(of(name, key) / of("floor", key)).toFixed(2)})`;
  const asked = (name: string, shown: string) => (name === "empty file" ? "-" : shown);
  table(
    `A question of 5 turns, median of ${runs} runs (in brackets: times the floor)`,
    all.map((name) => ({
      agent: name,
      "wall ms": ratio(one, name, "wall"),
      "cpu ms": ratio(one, name, "cpu"),
      "peak MB": ratio(one, name, "mb"),
      "first request ms": asked(name, ratio(one, name, "first")),
      "ms a turn": asked(name, one(name, "turn").toFixed(1)),
      "tokens, first request": asked(name, one(name, "tokens").toFixed(0)),
      "tokens, question": asked(name, one(name, "all").toFixed(0)),
      "KB sent": asked(name, one(name, "kb").toFixed(0)),
    })),
  );

  const few = Math.max(3, Math.floor(runs / 3));
  const many = await medians(work, talking, peers, looks(50), few);
  const long = await medians(work, talking, peers, longAnswer, few);
  table(
    `50 turns, and an answer of 1 MB in 20,000 pieces, median of ${few} runs`,
    talking.map((name) => ({
      agent: name,
      "50 turns: wall ms": ratio(many, name, "wall"),
      "peak MB": ratio(many, name, "mb"),
      "1 MB: wall ms": ratio(long, name, "wall"),
      "peak MB of it": ratio(long, name, "mb"),
    })),
  );
}
