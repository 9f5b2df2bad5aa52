// Preloaded into each program of Node's that is measured: leaves what it used in the file BENCH_USAGE.
import { writeFileSync } from "node:fs";

process.on("exit", () => {
  const { userCPUTime, systemCPUTime, maxRSS } = process.resourceUsage();
  const usage = { cpu: (userCPUTime + systemCPUTime) / 1000, mb: maxRSS / 1024 };
  if (process.env.BENCH_USAGE) writeFileSync(process.env.BENCH_USAGE, JSON.stringify(usage));
});
