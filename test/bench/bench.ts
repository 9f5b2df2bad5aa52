/**
 * What mini-pi costs, beside yardsticks in the same run: `npm run bench [-- --pi <command>] [-- --quick]`.
 *
 * Agents: the same question against a scripted server on loopback that answers at once, interleaved,
 * medians. Tools: trees and files made here, each beside the plain command for the same thing.
 * Prints; asserts nothing: a busy machine is not a fault.
 */
import { execFileSync, spawn } from "node:child_process";
import { once } from "node:events";
import { createWriteStream } from "node:fs";
import * as fs from "node:fs/promises";
import os from "node:os";
import path from "node:path";
import { parseArgs } from "node:util";
import { rgPath } from "@vscode/ripgrep";
import { type Agent, createAgent, findModel, runTool } from "../../mini-pi.ts";
import { call, reply, startModelServer, text } from "../model-server.ts";

const { values } = parseArgs({ options: { pi: { type: "string" }, quick: { type: "boolean" } } });
const here = import.meta.dirname;
const root = path.join(here, "..", "..");
const work = await fs.mkdtemp(path.join(os.tmpdir(), "mini-pi-bench-"));
const RUNS = values.quick ? 3 : 11;
const TURNS = 5;

const median = (numbers: number[]) =>
  numbers.toSorted((a, b) => a - b)[numbers.length >> 1] ?? Number.NaN;

function table(rows: Record<string, string | number>[]): void {
  const names = Object.keys(rows[0] ?? {});
  const cells = [names, ...rows.map((row) => names.map((name) => String(row[name])))];
  const widths = names.map((_, i) => Math.max(...cells.map((row) => row[i]?.length ?? 0)));
  for (const row of cells)
    console.log(row.map((cell, i) => cell.padEnd(widths[i] ?? 0)).join("  "));
  console.log();
}

// --- Agents ------------------------------------------------------------------------------------

type Contender = {
  name: string;
  command: string;
  args: (url: string) => string[];
  env?: NodeJS.ProcessEnv;
};
type Measure = {
  wallMs: number;
  cpuMs: number;
  rssMb: number;
  firstMs: number;
  turnMs: number;
  firstTokens: number;
  allTokens: number;
  wireKb: number;
};

/** A tool call for every turn but the last, in whatever names the agent's tools have. */
function script(name: string) {
  const tool = name === "pi" ? "read" : "read_file";
  const turns = Array.from({ length: TURNS - 1 }, (_, i) =>
    reply([call(tool, { path: `file-${i}.txt` })]),
  );
  return [...turns, reply([text("It is in file-0.txt:1.")])];
}

async function measure({ name, command, args, env }: Contender): Promise<Measure> {
  const server = await startModelServer(script(name));
  const usage = path.join(work, "usage.json");
  const preload = `--import=${path.join(here, "usage.mjs")}`;
  const home = { HOME: work, XDG_STATE_HOME: path.join(work, "state"), PATH: process.env.PATH };
  const keys = { ANTHROPIC_API_KEY: "sk-none", BENCH_USAGE: usage, NODE_OPTIONS: preload };
  const before = performance.now();
  const child = spawn(command, args(server.url), {
    cwd: path.join(work, "files"),
    stdio: ["ignore", "ignore", "inherit"],
    env: { ...home, ...keys, ...env },
  });
  const [code] = await once(child, "close");
  const wallMs = performance.now() - before;
  if (code !== 0) console.error(`${name} ended with ${code}`);
  const { cpuMs, rssMb } = JSON.parse(await fs.readFile(usage, "utf8"));
  const { requests } = server;
  const [first, last] = [requests[0], requests.at(-1)];
  const tokens = requests.map(({ raw }) => raw.length / 4);
  const firstMs = (first?.at ?? Number.NaN) - before;
  const turnMs =
    ((last?.at ?? Number.NaN) - (first?.at ?? Number.NaN)) / Math.max(1, requests.length - 1);
  const sum = tokens.reduce((a, b) => a + b, 0);
  await server.close();
  return {
    wallMs,
    cpuMs,
    rssMb,
    firstMs,
    turnMs,
    firstTokens: tokens[0] ?? Number.NaN,
    allTokens: sum,
    wireKb: (sum * 4) / 1024,
  };
}

async function agents(): Promise<void> {
  const files = path.join(work, "files");
  await fs.mkdir(files);
  for (let i = 0; i < TURNS; i++)
    await fs.writeFile(
      path.join(files, `file-${i}.txt`),
      "a line of text, as long as lines of code are\n".repeat(100),
    );
  const node = process.execPath;
  const contenders: Contender[] = [
    { name: "empty file", command: node, args: () => [path.join(here, "empty.ts")] },
    {
      name: "floor",
      command: node,
      args: (url) => [path.join(here, "floor.ts"), url, ".", "where?"],
    },
    {
      name: "mini-pi",
      command: node,
      args: (url) => [
        path.join(root, "mini-pi.ts"),
        "-m",
        "anthropic/claude-sonnet-5-5",
        "--base-url",
        url,
        "-q",
        ".",
        "where?",
      ],
    },
  ];
  if (values.pi) contenders.push(await piContender(values.pi));
  const results = new Map<string, Measure[]>(contenders.map(({ name }) => [name, []]));
  for (let run = 0; run <= RUNS; run++)
    for (const contender of contenders) {
      const measured = await measure(contender);
      // The first round warms the caches.
      if (run > 0) results.get(contender.name)?.push(measured);
    }
  const of = (name: string, key: keyof Measure) =>
    median((results.get(name) ?? []).map((m) => m[key]));
  const ratio = (name: string, key: keyof Measure) =>
    `${of(name, key).toFixed(0)} (${(of(name, key) / of("floor", key)).toFixed(2)})`;
  console.log(
    `One question in ${TURNS} turns, median of ${RUNS} runs (in brackets: times the floor)`,
  );
  table(
    contenders.map(({ name }) => ({
      agent: name,
      "wall ms": ratio(name, "wallMs"),
      "cpu ms": ratio(name, "cpuMs"),
      "peak MB": ratio(name, "rssMb"),
      "first request ms": name === "empty file" ? "-" : ratio(name, "firstMs"),
      "ms a turn": name === "empty file" ? "-" : of(name, "turnMs").toFixed(1),
      "tokens, first request": name === "empty file" ? "-" : of(name, "firstTokens").toFixed(0),
      "tokens, question": name === "empty file" ? "-" : of(name, "allTokens").toFixed(0),
      "KB sent": name === "empty file" ? "-" : of(name, "wireKb").toFixed(0),
    })),
  );
}

/** pi, told by its configuration to ask the same server. */
async function piContender(command: string): Promise<Contender> {
  const home = path.join(work, "pi");
  await fs.mkdir(home, { recursive: true });
  const args = (url: string) => {
    const providers = { anthropic: { baseUrl: url } };
    execFileSync(process.execPath, [
      "-e",
      `require("fs").writeFileSync(${JSON.stringify(path.join(home, "models.json"))}, ${JSON.stringify(JSON.stringify({ providers }))})`,
    ]);
    return [
      command,
      "--provider",
      "anthropic",
      "--model",
      "claude-sonnet-5-5",
      "--no-session",
      "-p",
      "where?",
    ];
  };
  return {
    name: "pi",
    command: process.execPath,
    args,
    env: { PI_CODING_AGENT_DIR: home, PI_OFFLINE: "1" },
  };
}

// --- Tools -------------------------------------------------------------------------------------

async function timed(run: () => unknown): Promise<number> {
  const started = performance.now();
  await run();
  return performance.now() - started;
}

async function compare(
  what: string,
  ours: () => Promise<number>,
  yardstick: string,
  theirs: () => unknown,
) {
  const times: [number[], number[]] = [[], []];
  let bytes = 0;
  for (let run = 0; run < (values.quick ? 3 : 7); run++) {
    times[0].push(
      await timed(async () => {
        bytes = await ours();
      }),
    );
    times[1].push(await timed(theirs));
  }
  const [a, b] = times.map(median);
  const ratio = ((a ?? 0) / (b ?? 1)).toFixed(2);
  return {
    what,
    "mini-pi ms": (a ?? 0).toFixed(1),
    yardstick,
    "its ms": (b ?? 0).toFixed(1),
    ratio,
    "result bytes": bytes,
  };
}

/** Runs one call of a tool; gives the bytes of its result. */
async function use(
  agent: Agent,
  name: string,
  args: { [name: string]: string | number },
): Promise<number> {
  agent.messages.length = 0;
  const result = await runTool(
    agent,
    { type: "toolCall", id: "1", name, arguments: args },
    agent.signal,
  );
  const shown = result.content.map((block) => (block.type === "text" ? block.text : "")).join("");
  if (result.isError) throw new Error(shown);
  return Buffer.byteLength(shown);
}

async function makeTrees(): Promise<void> {
  const count = values.quick ? 10_000 : 100_000;
  for (let i = 0; i < count / 100; i++) {
    const directory = path.join(work, "tree", `d${i % 10}`, `e${i}`);
    await fs.mkdir(directory, { recursive: true });
    const write = (j: number) =>
      fs.writeFile(
        path.join(directory, `f${j}.ts`),
        `export const value${j} = ${i};\nreturn value;\n`,
      );
    await Promise.all(Array.from({ length: 100 }, (_, j) => write(j)));
  }
  await fs.mkdir(path.join(work, "wide"));
  for (let i = 0; i < count / 2; i += 500)
    await Promise.all(
      Array.from({ length: 500 }, (_, j) => fs.writeFile(path.join(work, "wide", `f${i + j}`), "")),
    );
  const big = createWriteStream(path.join(work, "big.txt"));
  const block = Array.from(
    { length: 10_000 },
    (_, i) => `line ${i} of a block in a large file of text, such as a log\n`,
  ).join("");
  for (let written = 0; written < (values.quick ? 20e6 : 200e6); written += block.length)
    if (!big.write(block)) await once(big, "drain");
  big.end();
  await once(big, "close");
  await fs.writeFile(
    path.join(work, "line.js"),
    `${"var a=1;".repeat(400_000)}needle();${"var b=2;".repeat(225_000)}`,
  );
}

async function tools(): Promise<void> {
  await makeTrees();
  const agent = await createAgent(work, await findModel("offline/search"));
  const lines = Number(
    execFileSync("wc", ["-l", path.join(work, "big.txt")], { encoding: "utf8" }).split(" ")[0],
  );
  const rg = (...args: string[]) =>
    execFileSync(rgPath, ["--no-config", "--json", "--sort=path", ...args], {
      cwd: work,
      maxBuffer: 1e9,
      stdio: ["ignore", "pipe", "pipe"],
    });
  const before = process.memoryUsage.rss();
  const page = await compare(
    "page at the end of 200 MB",
    () => use(agent, "read_file", { path: "big.txt", offset: lines - 100 }),
    "sed -n",
    () => execFileSync("sed", ["-n", `${lines - 100},$p`, path.join(work, "big.txt")]),
  );
  const grown = (process.memoryUsage.rss() - before) / 1024 ** 2;
  const rows = [
    page,
    await compare(
      "list 50,000 entries",
      () => use(agent, "list_files", { path: "wide" }),
      "readdir",
      () => fs.readdir(path.join(work, "wide"), { withFileTypes: true }),
    ),
    await compare(
      "search, no match, 100,000 files",
      () => use(agent, "search_files", { pattern: "nowhere_at_all", path: "tree" }),
      "rg",
      () => {
        try {
          rg("nowhere_at_all", "tree");
        } catch {
          /* exit code 1: no match */
        }
      },
    ),
    await compare(
      "search, one match in a line of 5 MB",
      () => use(agent, "search_files", { pattern: "needle", path: "line.js" }),
      "rg",
      () => rg("needle", "line.js"),
    ),
    await compare(
      "search, common word, 100,000 files",
      () => use(agent, "search_files", { pattern: "return", path: "tree" }),
      "rg",
      () => rg("return", "tree"),
    ),
    await compare(
      "glob, 100,000 files",
      () => use(agent, "list_files", { path: "tree", glob: "**/f1.ts" }),
      "rg --files",
      () =>
        execFileSync(rgPath, ["--files", "--sort=path", "-g", "**/f1.ts", "tree"], {
          cwd: work,
          maxBuffer: 1e9,
        }),
    ),
  ];
  console.log("Tools, beside the plain command for the same");
  table(rows);
  console.log(`memory for pages of 200 MB: ${grown.toFixed(1)} MB above what was there before`);
}

try {
  await agents();
  await tools();
} finally {
  await fs.rm(work, { recursive: true, force: true });
}
