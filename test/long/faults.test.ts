// The tests of the faults with every row that may have a process of its own.

process.env.MINI_PI_LONG = "1";
await import("../faults.test.ts");
