import "../hostile.test.ts";
