// What compiles once serves each process of `npm test`, where a start is mostly that. It is JavaScript,
// as stripping types is a part of it. The directory is that of run-cli.ts.

import { enableCompileCache } from "node:module";
import { tmpdir } from "node:os";
import { join } from "node:path";

enableCompileCache(join(tmpdir(), "mini-pi-compile-cache"));
