#!/usr/bin/env node
// The command of the installed package. It has to be read by a Node that is too old for the rest.
import module from "node:module";

const [major, minor] = process.versions.node.split(".").map(Number);
if (major < 22 || (major === 22 && minor < 19)) {
  console.error(`mini-pi needs Node 22.19 or newer, and this is ${process.version}.`);
  process.exitCode = 2;
} else {
  module.enableCompileCache();
  import("./mini-pi.js").then(({ main }) => main());
}
