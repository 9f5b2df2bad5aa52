// The tests of the command line with every provider's library.

process.env.MINI_PI_LONG = "1";
await import("../cli.test.ts");
