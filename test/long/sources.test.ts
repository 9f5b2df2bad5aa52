// The tests of the sources with more random texts, of a new seed: MINI_PI_SEED gives it back.

process.env.MINI_PI_LONG = "1";
await import("../sources.test.ts");
