// The tests of the tools with every combination, and at full size, of what the short ones take some of.

process.env.MINI_PI_LONG = "1";
await import("../tools.test.ts");
