// What asks the scripted server, mostly in this process.

import "../faults.test.ts";
import "../loop.test.ts";
import "../definitions.test.ts";
import "../output.test.ts";
