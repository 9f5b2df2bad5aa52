/** The tools, each beside the plain command for the same, on trees and files that are made here. */
import { spawnSync } from "node:child_process";
import { once } from "node:events";
import { createWriteStream } from "node:fs";
import * as fs from "node:fs/promises";
import path from "node:path";
import type { JsonObject } from "@earendil-works/pi-ai";
import { rgPath } from "@vscode/ripgrep";
import { createAgent, findModel, runTool } from "../../mini-pi.ts";
import { median, table } from "./figures.ts";

type Case = [what: string, tool: string, args: JsonObject, yardstick: string[]];

/** 100,000 small files in 1,000 directories, 50,000 in one, a file of 200 MB, and a line of 5 MB. */
async function makeTrees(work: string, files: number): Promise<number> {
  for (let i = 0; i < files / 100; i++) {
    const directory = path.join(work, "tree", `d${i % 10}`, `e${i}`);
    await fs.mkdir(directory, { recursive: true });
    const text = (j: number) =>
      `export const value${j} = ${i};\nfunction f() {\n  return value;\n}\n`;
    const write = (j: number) => fs.writeFile(path.join(directory, `f${j}.ts`), text(j));
    await Promise.all(Array.from({ length: 100 }, (_, j) => write(j)));
  }
  await fs.mkdir(path.join(work, "wide"));
  for (let i = 0; i < files / 2; i += 500) {
    const write = (j: number) => fs.writeFile(path.join(work, "wide", `f${i + j}`), "");
    await Promise.all(Array.from({ length: 500 }, (_, j) => write(j)));
  }
  const line = (i: number) => `line ${i} of a block in a large file of text, such as a log\n`;
  const block = Array.from({ length: 10_000 }, (_, i) => line(i)).join("");
  const blocks = Math.ceil((2000 * files) / block.length);
  const big = createWriteStream(path.join(work, "big.txt"));
  for (let i = 0; i < blocks; i++) if (!big.write(block)) await once(big, "drain");
  big.end();
  await once(big, "close");
  const [before, after] = ["var a=1;".repeat(400_000), "var b=2;".repeat(225_000)];
  await fs.writeFile(path.join(work, "line.js"), `${before}needle();${after}`);
  return 10_000 * blocks;
}

export async function tools(work: string, isQuick: boolean): Promise<void> {
  const lines = await makeTrees(work, isQuick ? 10_000 : 100_000);
  const agent = await createAgent(work, await findModel("offline/search"));
  const rg = (...args: string[]) => [rgPath, "--no-config", "--sort=path", ...args];
  const offset = lines - 100;
  const search = (pattern: string, path: string) => ({ pattern, path });
  const cases: Case[] = [
    [
      "last page of a large file",
      "read_file",
      { path: "big.txt", offset },
      ["sed", "-n", `${offset},$p`, "big.txt"],
    ],
    ["first page of it", "read_file", { path: "big.txt" }, ["wc", "-l", "big.txt"]],
    ["a list of many entries", "list_files", { path: "wide" }, ["ls", "-f", "wide"]],
    [
      "no match in many files",
      "search_files",
      search("nowhere", "tree"),
      rg("--json", "nowhere", "tree"),
    ],
    [
      "a word of all of many files",
      "search_files",
      search("return", "tree"),
      rg("--json", "return", "tree"),
    ],
    [
      "a match in a line of 5 MB",
      "search_files",
      search("needle", "line.js"),
      rg("--json", "needle", "line.js"),
    ],
    [
      "a glob for many files",
      "list_files",
      { path: "tree", glob: "**/f1.ts" },
      rg("--files", "-g", "**/f1.ts", "tree"),
    ],
  ];
  const rows = [];
  for (const [what, name, args, [command = "", ...words]] of cases) {
    const times: [number[], number[]] = [[], []];
    let bytes = 0;
    const before = process.memoryUsage.rss();
    for (let run = 0; run < (isQuick ? 3 : 7); run++) {
      agent.messages.length = 0;
      const call = { type: "toolCall", id: "1", name, arguments: args } as const;
      const started = performance.now();
      const result = await runTool(agent, call, agent.signal);
      const middle = performance.now();
      spawnSync(command, words, { cwd: work, maxBuffer: 1e9 });
      times[0].push(middle - started);
      times[1].push(performance.now() - middle);
      bytes = Buffer.byteLength(JSON.stringify(result.content));
      if (result.isError) throw new Error(JSON.stringify(result.content));
    }
    const [ours = Number.NaN, its = Number.NaN] = times.map(median);
    rows.push({
      "what is asked for": what,
      "mini-pi ms": ours.toFixed(1),
      beside: path.basename(command),
      "its ms": its.toFixed(1),
      ratio: (ours / its).toFixed(2),
      "bytes of the result": bytes,
      "MB more": ((process.memoryUsage.rss() - before) / 1024 ** 2).toFixed(1),
    });
  }
  table("Tools, beside the plain command for the same", rows);
}
