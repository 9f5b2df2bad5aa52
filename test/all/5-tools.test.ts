// The tools, and the size of it all.

import "../tools.test.ts";
import "../size.test.ts";
