// The command line, its sessions and its sources.

import "../cli.test.ts";
import "../session.test.ts";
import "../sources.test.ts";
