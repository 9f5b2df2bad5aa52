// The tests of the guard with every combination of what the short ones take some of.

process.env.MINI_PI_LONG = "1";
await import("../guard.test.ts");
