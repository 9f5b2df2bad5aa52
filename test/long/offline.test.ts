// The tests of the offline model with every question, of which the short ones ask some.

process.env.MINI_PI_LONG = "1";
await import("../offline.test.ts");
