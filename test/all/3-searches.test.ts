// What starts ripgrep most often.

import "../guard.test.ts";
import "../offline.test.ts";
