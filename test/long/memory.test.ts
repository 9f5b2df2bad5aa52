// The tests of the memory with longer answers and more turns.

process.env.MINI_PI_LONG = "1";
await import("../memory.test.ts");
