#!/usr/bin/env node
// The command of the installed package. It has to be read by a Node that is too old for the rest.
import module from "node:module";
import os from "node:os";
import path from "node:path";

const [major, minor] = process.versions.node.split(".").map(Number);
if (major < 22 || (major === 22 && minor < 19)) {
  console.error(`mini-pi needs Node 22.19 or newer, and this is ${process.version}.`);
  process.exitCode = 2;
} else {
  // Not in Node's default place, where other users could lay something down beforehand, and not in
  // the directory that is looked at.
  const caches = process.env.XDG_CACHE_HOME || path.join(os.homedir(), ".cache");
  const holds = (directory) => !path.relative(path.resolve(directory), caches).startsWith("..");
  if (path.isAbsolute(caches) && !process.argv.slice(2).some(holds))
    module.enableCompileCache(path.join(caches, "mini-pi"));
  import("./mini-pi.js").then(({ main }) => main());
}
