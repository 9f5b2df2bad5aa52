// By itself, as it measures the memory of its process.

import "../memory.test.ts";
