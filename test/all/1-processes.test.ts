// What starts mini-pi as a process, or on a terminal.

import "../interrupt.test.ts";
import "../conversation.test.ts";
import "../readme.test.ts";
