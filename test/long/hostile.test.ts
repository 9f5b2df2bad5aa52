// The tests of hostile replies with many more of them, and a new seed each time.

process.env.MINI_PI_LONG = "1";
await import("../hostile.test.ts");
