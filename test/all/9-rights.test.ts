// By itself, as it gives up the rights of its process.

import "../rights.test.ts";
