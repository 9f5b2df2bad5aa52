// What the three tools show: every file as it is, every bound named, every name one that works.

import assert from "node:assert/strict";
import { execFileSync } from "node:child_process";
import { mkdirSync, readFileSync, rmSync, symlinkSync, truncateSync, writeFileSync } from "node:fs";
import path from "node:path";
import { test } from "node:test";
import type { Agent } from "../mini-pi.ts";
import {
  afresh,
  agentAt,
  agentWith,
  call,
  everyNth,
  isLong,
  list,
  namesOf,
  png,
  read,
  rowsOf,
  search,
  temporary,
  words,
  write,
} from "./fixtures.ts";

const KB = 1024;
const bytes = (text: string) => Buffer.byteLength(text);
const repeat = (n: number, line: (i: number) => string) =>
  Array.from({ length: n }, (_, i) => line(i + 1)).join("");

// ─── Calls as models make them ─────────────────────────────────────────────────────────────────

test("numbers that come as text are numbers, and null is an argument left out", async () => {
  const agent = await agentWith({ "a.ts": repeat(9, (i) => `line ${i}\n`) });
  for (const [offset, first] of [
    ["3", 3],
    [" 3 ", 3],
    ["+3", 3],
    [3, 3],
    [3.0, 3],
    [null, 1],
    [0, 1],
    ["0", 1],
  ] as const) {
    const { text } = await call(agent, "read_file", { path: "a.ts", offset, limit: "2" });
    assert.deepEqual([...rowsOf(text).keys()], [first, first + 1], `${offset}: ${text}`);
  }
  const args = { pattern: "LINE 1", path: null, glob: null, context: "1", ignoreCase: "true" };
  assert.equal((await call(agent, "search_files", args)).text, "a.ts\n1: line 1\n2- line 2");
  assert.equal(
    (await call(agent, "list_files", { path: null, glob: null })).text,
    "a.ts (63 bytes)",
  );
});

test("half a line is no line: a fraction is rounded down or refused", async () => {
  const agent = await agentWith({ "a.ts": "one\ntwo\nthree\n" });
  const { text, isError } = await call(agent, "read_file", { path: "a.ts", offset: 2.5 });
  if (isError) assert.match(text, /offset/);
  else
    assert.deepEqual(
      [...rowsOf(text)],
      [
        [2, "two"],
        [3, "three"],
      ],
    );
});

test("a call that does not fit names what is wrong, briefly, and never throws", async () => {
  const agent = await agentWith({ "a.ts": "one\n" });
  for (const [name, args, says] of [
    ["grep", {}, /no tool "grep".*list_files, read_file, search_files/],
    ["", {}, /list_files, read_file, search_files/],
    ["x".repeat(10_000), {}, /list_files, read_file, search_files/],
    ["read_file", {}, /path/],
    ["search_files", {}, /pattern/],
    ["read_file", { file_path: "a.ts" }, /file_path|path/],
    ["read_file", { path: "a.ts", lines: 5 }, /lines/],
    ["read_file", { path: "a.ts", ranges: "1-2" }, /ranges/],
    ["read_file", { path: "a.ts", offset: -1 }, /offset/],
    ["read_file", { path: "a.ts", offset: "end" }, /offset/],
    ["read_file", { path: "a.ts", offset: { from: 1 } }, /offset/],
    ["read_file", { path: ["a.ts"] }, /path/],
    ["read_file", { path: { name: "a.ts" } }, /path/],
    ["list_files", { path: ".", junk: "y".repeat(1_000_000) }, /junk/],
    ["search_files", { pattern: "a", context: -1 }, /context/],
    ["search_files", { pattern: "a", ignoreCase: "perhaps" }, /ignoreCase/],
    ["search_files", { pattern: "x".repeat(300_000) }, /\w/],
    ["search_files", { pattern: "a\0b" }, /\w/],
    ["list_files", { glob: "a\0b" }, /\w/],
  ] as const) {
    const { text, isError } = await call(agent, name, args);
    assert.ok(isError, `${name}: ${text}`);
    assert.match(text, says);
    assert.ok(text.length <= 1100, text.slice(0, 200));
  }
});

test("a call that was stopped before it began does nothing", async () => {
  const agent = await agentWith({ "a.ts": "one\n" });
  const { text, isError } = await call(
    agent,
    "read_file",
    { path: "a.ts" },
    AbortSignal.abort(new Error("Not run: stopped.")),
  );
  assert.deepEqual([text, isError], ["Not run: stopped.", true]);
});

test("nothing to show is said in words: no result is empty or blank", async () => {
  const agent = await agentWith({
    "empty.txt": "",
    "newline.txt": "\n",
    "blank.txt": "   \n\t\n",
    "bom.txt": "\ufeff",
    "a/empty.ipynb": "",
    "u.txt": Buffer.from("fffe", "hex"),
  });
  mkdirSync(path.join(agent.root, "nothing"));
  assert.equal((await list(agent, "nothing")).text, "(empty directory)");
  assert.match((await list(agent, ".", "*.none")).text, /^No file matches \*\.none/);
  assert.match((await search(agent, "absent")).text, /^No match in \d files/);
  assert.match((await search(agent, "absent", { path: "nothing" })).text, /^No match in 0 files/);
  assert.match(
    (await search(agent, "absent", { path: "empty.txt" })).text,
    /^No match in 1 files?/,
  );
  assert.equal((await read(agent, "empty.txt")).text, "empty.txt (empty file, 0 bytes)");
  assert.match((await read(agent, "empty.txt", { offset: 50 })).text, /empty file, 0 bytes/);
  assert.match((await read(agent, "a/empty.ipynb")).text, /empty file, 0 bytes/);
  assert.deepEqual([...rowsOf((await read(agent, "newline.txt")).text)], [[1, ""]]);
  assert.deepEqual(
    [...rowsOf((await read(agent, "blank.txt")).text)],
    [
      [1, "   "],
      [2, "\t"],
    ],
  );
  for (const name of ["bom.txt", "u.txt"])
    assert.ok((await read(agent, name)).text.startsWith(name));
});

// ─── Pages of a file ───────────────────────────────────────────────────────────────────────────

/** Reads a file page by page, as the results say, and gives its rows. */
async function readAll(
  agent: Agent,
  name: string,
): Promise<{ rows: Map<number, string>; pages: string[] }> {
  const rows = new Map<number, string>();
  const pages: string[] = [];
  for (let offset = 1; offset > 0; ) {
    const { text, isError } = await read(agent, name, { offset });
    assert.ok(!isError, text);
    pages.push(text);
    for (const [n, line] of rowsOf(text)) {
      assert.ok(!rows.has(n), `line ${n} comes twice`);
      rows.set(n, line);
    }
    const [, first, last, total, next] =
      /\n\[lines (\d+)-(\d+) of (\d+); offset=(\d+) reads on;.*search_files.*\]$/.exec(text) ?? [];
    if (next) assert.deepEqual([Number(first), Number(next)], [offset, Number(last) + 1]);
    if (total) assert.equal(text.match(/\((\d+) lines/)?.[1], total);
    offset = Number(next ?? 0);
  }
  return { rows, pages };
}

/** The rows of `cat -n`, without the carriage returns that end lines. */
function catN(file: string): Map<number, string> {
  const rows = execFileSync("cat", ["-n", file], { maxBuffer: 1024 ** 3 })
    .toString()
    .split(/\n(?= *\d+\t)/);
  const last = rows.length - 1;
  return new Map(
    rows.map((row, i) => {
      const [, n, line = ""] =
        /^ *(\d+)\t([\s\S]*)$/.exec(i === last ? row.replace(/\n$/, "") : row) ?? [];
      return [Number(n), line.replace(/\r$/, "")];
    }),
  );
}

test("the pages of a file of thousands of lines add up to exactly the file, numbered as by cat -n", async () => {
  const count = isLong ? 10_000 : 3000;
  const odd = [
    "",
    "x",
    "漢字 ".repeat(9),
    "é",
    "😀😀",
    "\t\ttabs",
    "ends in blanks  ",
    "12\tlooks like a row",
  ];
  const content = repeat(
    count,
    (i) =>
      `${odd[i % odd.length]}${"abcdefg ".repeat((i * i) % 23)}${i % 977 === 0 ? "y".repeat(1700) : ""}\n`,
  );
  const agent = await agentWith({ "long.txt": content, "cut.txt": content.slice(0, -1) });
  for (const name of ["long.txt", "cut.txt"]) {
    const { rows, pages } = await readAll(agent, name);
    assert.equal(rows.size, count);
    assert.equal([...rows.values()].map((line) => `${line}\n`).join(""), content);
    assert.deepEqual(rows, catN(path.join(agent.root, name)));
    for (const page of pages) {
      assert.ok(rowsOf(page).size <= 400);
      assert.ok(bytes(page) <= 32 * KB + 400 * 6 + 200, `${bytes(page)} bytes`);
    }
  }
});

test("line numbers are those of cat -n, whatever ends a line", async () => {
  const tree = {
    "lf.txt": "a\nb\nc\n",
    "no-end.txt": "a\nb\nc",
    "crlf.txt": "a\r\nb\r\n\r\nc\r\n",
    "cr.txt": "a\rb\rc",
    "cr-end.txt": "a\rb\rc\r",
    "mixed.txt": "a\rb\r\nc\nd\n\re\r\r\nf",
    "separators.txt": "a\u2028b\u2029c\u0085d\ve\ff\nsecond\u2028line\n",
    "blank.txt": "\n\n\n",
    "bare.txt": "a",
    "spaces.txt": "  a  \n\tb\t\n",
  };
  const agent = await agentWith(tree);
  for (const name of Object.keys(tree)) {
    const { text } = await read(agent, name);
    const expected = catN(path.join(agent.root, name));
    assert.deepEqual(rowsOf(text), expected, name);
    assert.match(text, new RegExp(`^${name} \\(${expected.size} lines?\\)\n`));
    for (const [n, line] of expected) {
      assert.deepEqual(
        [...rowsOf((await read(agent, name, { offset: n, limit: 1 })).text)],
        [[n, line]],
        name,
      );
    }
  }
  // search_files gives each line the same number.
  const { text } = await search(agent, "[a-z]$");
  for (const name of Object.keys(tree)) {
    const [, found = ""] = text.split(new RegExp(`^${name}$`, "m"));
    const numbers = [...(found.split(/^\S+\.txt$/m)[0]?.matchAll(/^(\d+): /gm) ?? [])].map(
      ([, n]) => Number(n),
    );
    for (const [n, line] of catN(path.join(agent.root, name)))
      if (/[a-z]$/.test(line)) assert.ok(numbers.includes(n), `${name}:${n}`);
  }
});

test("offset and limit at, before and after the end give the line, or the number of lines", async () => {
  const agent = await agentWith({ "five.txt": "1\n2\n3\n4\n5\n", "cut.txt": "1\n2\n3\n4\n5" });
  for (const name of ["five.txt", "cut.txt"]) {
    assert.deepEqual([...rowsOf((await read(agent, name, { offset: 5 })).text)], [[5, "5"]]);
    assert.deepEqual(
      [...rowsOf((await read(agent, name, { offset: 2, limit: 2 })).text).keys()],
      [2, 3],
    );
    assert.equal(
      (await read(agent, name, { offset: 2, limit: 2 })).text,
      `${name} (5 lines)\n2\t2\n3\t3`,
      "nothing remains that was asked for",
    );
    assert.doesNotMatch((await read(agent, name, { offset: 4, limit: 2 })).text, /reads on/);
    for (const offset of [6, 100, 2 ** 31, Number.MAX_SAFE_INTEGER]) {
      const { text, isError } = await read(agent, name, { offset });
      assert.ok(isError);
      assert.match(text, /has 5 lines/);
    }
  }
});

test("a page has at most 400 lines, also when more are asked for, and names its bound", async () => {
  const agent = await agentWith({
    "n400.txt": repeat(400, (i) => `${i}\n`),
    "n401.txt": repeat(401, (i) => `${i}\n`),
  });
  assert.doesNotMatch((await read(agent, "n400.txt")).text, /reads on/);
  assert.doesNotMatch((await read(agent, "n401.txt", { limit: 400 })).text, /reads on/);
  for (const limit of [undefined, 401, 100_000]) {
    const { text } = await read(agent, "n401.txt", { limit });
    assert.equal(rowsOf(text).size, 400);
    assert.match(
      text,
      /\n\[lines 1-400 of 401; offset=401 reads on; search_files finds a place in it\]$/,
    );
  }
});

test("a page cut by its bytes counts characters of several bytes, and shows whole lines only", async () => {
  const agent = await agentWith({ "a.ts": repeat(300, (i) => `${i} ${"漢".repeat(100)}\n`) });
  const { text } = await read(agent, "a.ts");
  assert.ok(bytes(text) < 33 * KB, `${bytes(text)} bytes`);
  const rows = [...rowsOf(text)];
  for (const [at, row] of rows) assert.equal(row, `${at} ${"漢".repeat(100)}`);
  assert.match(text, new RegExp(`\\[lines 1-${rows.length} of 300; offset=${rows.length + 1} `));
});

test("a page is no larger than a small model's window, but has a line at least", async () => {
  const agent = await agentWith({
    "a.ts": repeat(300, (i) => `${i} ${"x".repeat(100)}\n`),
    "b.ts": `${"y".repeat(1900)}\n`.repeat(3),
  });
  Object.assign(agent, { model: { ...agent.model, contextWindow: 1024 } });
  const { text } = await read(agent, "a.ts");
  assert.ok(bytes(text) < 1500 && rowsOf(text).size > 5, text);
  assert.equal(rowsOf((await read(agent, "b.ts")).text).size, 1);
});

test("a page is decoded by what it shows, and not by what follows it", async () => {
  const later = Buffer.from("\xe9\xe8\xe0\n".repeat(20_000), "latin1");
  const agent = await agentWith({
    "a.txt": Buffer.concat([Buffer.from(repeat(4500, () => "é字 ok\n")), later]),
  });
  const { text } = await read(agent, "a.txt");
  assert.match(text, /^a\.txt \(24500 lines\)\n1\té字 ok\n/);
});

test("a line has at most 2,000 characters, is marked where it is cut, and never ends in half a character", async () => {
  for (const pad of [0, 1]) {
    const wide = `${"x".repeat(pad)}${"😀".repeat(3000)}`;
    const exact = "é".repeat(2000);
    const agent = await agentWith({ "wide.txt": `${wide}\n${exact}\nshort\n` });
    const rows = rowsOf((await read(agent, "wide.txt")).text);
    const [, shown = "", mark] = /^(x?😀+)(.*)$/u.exec(rows.get(1) ?? "") ?? [];
    assert.ok(shown.length <= 2000 && shown.length >= 1998 && wide.startsWith(shown));
    assert.match(mark ?? "", /cut.*search_files/);
    assert.equal(rows.get(2), exact);
    assert.equal(rows.get(3), "short");
  }
});

test("a line longer than a page does not stop the reading: the next offset passes it", async () => {
  const agent = await agentWith({
    "a.txt": `${"é".repeat(100_000)}\n${"z".repeat(70_000)}\nlast\n`,
  });
  const { rows } = await readAll(agent, "a.txt");
  assert.equal(rows.size, 3);
  assert.equal(rows.get(3), "last");
});

test("a character of many bytes is whole, wherever a chunk or a page ends", async () => {
  // A page of 32 KB ends, and a chunk of 256 KB, inside of a character for all but one pad.
  const contents = ["é", "漢", "😀"].flatMap((character) => {
    const line = `${character.repeat(300)}\n`;
    const whole = line.repeat(Math.ceil((280 * KB) / bytes(line)));
    return Array.from({ length: bytes(character) }, (_, pad) => `${"x".repeat(pad)}\n${whole}`);
  });
  const agent = await agentWith(Object.fromEntries(contents.map((text, i) => [`${i}.txt`, text])));
  for (const [i, content] of contents.entries()) {
    const { rows, pages } = await readAll(agent, `${i}.txt`);
    assert.ok(!pages.join("").includes("\ufffd"), content.slice(0, 5));
    assert.equal([...rows.values()].map((row) => `${row}\n`).join(""), content);
  }
});

test("a line that begins or ends where a chunk or a page does is neither lost nor doubled", async () => {
  const contents = [32 * KB, 256 * KB].flatMap((size) =>
    (isLong ? [-2, -1, 0, 1, 2] : [-1, 0, 1]).flatMap((shift) => {
      const first = `${"x".repeat(127)}\n`.repeat(size / 128 - 1);
      const whole = `${first}${"y".repeat(127 + shift)}\nlast`;
      return [whole, whole.slice(0, size)];
    }),
  );
  const agent = await agentWith(Object.fromEntries(contents.map((text, i) => [`${i}.txt`, text])));
  for (const [i, content] of contents.entries()) {
    const { rows } = await readAll(agent, `${i}.txt`);
    assert.equal([...rows.values()].join("\n"), content.replace(/\n$/, ""), `${i}`);
  }
});

// ─── Encodings ─────────────────────────────────────────────────────────────────────────────────

const PROSE = {
  gbk: "这是一个测试文件，用来检查编码的识别。函数返回用户的名字和密码。",
  shift_jis: "これは文字コードの判定を調べるためのファイルです。関数は名前を返します。",
  "windows-1252": "Le café est très élégant, déjà vu à l’été, naïveté, où ça?",
};

/** The bytes of each character in an encoding of one or two, by the decoder turned round. */
function tableOf(encoding: string): Map<string, number[]> {
  const decoder = new TextDecoder(encoding);
  const table = new Map<string, number[]>();
  for (let high = 0x80; high < 0x100; high++) {
    table.set(decoder.decode(Uint8Array.of(high)), [high]);
    for (let low = 0x40; low < 0x100; low++) {
      const pair = decoder.decode(Uint8Array.of(high, low));
      if ([...pair].length === 1) table.set(pair, [high, low]);
    }
  }
  return table;
}
const TABLES = new Map<string, Map<string, number[]>>();

function encode(text: string, encoding: string): Buffer {
  const table = TABLES.get(encoding) ?? tableOf(encoding);
  TABLES.set(encoding, table);
  return Buffer.from(
    [...text].flatMap((c) => (c < "\x80" ? [c.charCodeAt(0)] : (table.get(c) ?? []))),
  );
}

test("a file in a legacy encoding is read by a guess that is named", async () => {
  for (const [encoding, prose] of Object.entries(PROSE)) {
    const content = `// ${prose}\nconst a = 1; // ${prose}\n${`# ${prose}\n`.repeat(20)}`;
    const encoded = encode(content, encoding);
    assert.equal(new TextDecoder(encoding).decode(encoded), content);
    const agent = await agentWith({ "old.c": encoded });
    const { text, isError } = await read(agent, "old.c");
    assert.ok(!isError);
    assert.match(text.split("\n")[0] ?? "", /not UTF-8/, encoding);
    assert.equal(rowsOf(text).get(2), `const a = 1; // ${prose}`, encoding);
    assert.match(
      (await search(agent, "const a")).text,
      new RegExp(`^old\\.c\n2: const a = 1; // ${prose}$`.replace("?", "\\?")),
    );
  }
});

test("one stray byte makes neither a binary nor a mess of a file", async () => {
  const agent = await agentWith({
    "quote.txt": Buffer.concat([
      Buffer.from("it"),
      Buffer.of(0x92),
      Buffer.from("s plain\nsecond\n"),
    ]),
    "utf8.txt": Buffer.concat([
      Buffer.from("héllo wörld ça va\n"),
      Buffer.of(0xff),
      Buffer.from("\nnaïve café\n"),
    ]),
    "late.txt": Buffer.concat([Buffer.from("plain\n".repeat(100_000)), Buffer.of(0xe9, 10)]),
  });
  const quote = (await read(agent, "quote.txt")).text;
  assert.match(quote, /^quote\.txt \(2 lines.*UTF-8.*\)\n1\tit[’\ufffd]s plain\n2\tsecond$/);
  const utf8 = (await read(agent, "utf8.txt")).text;
  assert.match(utf8, /^utf8\.txt \(3 lines.*UTF-8.*\)\n1\théllo wörld ça va\n2\t.\n3\tnaïve café$/);
  assert.match(
    (await read(agent, "late.txt", { offset: 100_001 })).text,
    /UTF-8.*\n100001\t[é\ufffd]$/,
  );
  assert.match(
    (await search(agent, "plain", { path: "quote.txt" })).text,
    /^quote\.txt\n1: it[’\ufffd]s plain$/,
  );
});

function utf16(text: string, big: boolean): Buffer {
  const encoded = Buffer.from(`\ufeff${text}`, "utf16le");
  return big ? encoded.swap16() : encoded;
}

test("UTF-16 is decoded by its mark, in pages and in searches, also where a chunk ends in a pair", async () => {
  const many = `${"😀ab".repeat(40)}\n`.repeat(900);
  const files = [false, true].flatMap((big) =>
    ["", "\n", "\r\n"].flatMap((end) =>
      ["", "x"].map((pad) => ({
        name: `${big ? "BE" : "LE"}-${pad}-${end.length}.txt`,
        content: `${pad}first é 漢\r\nsecond 😀\n\n${many}last needle${end}`,
        big,
      })),
    ),
  );
  const agent = await agentWith(
    Object.fromEntries(files.map(({ name, content, big }) => [name, utf16(content, big)])),
  );
  const { text: found } = await search(agent, "last needle$");
  for (const { name, content } of everyNth(2, files)) {
    const { rows, pages } = await readAll(agent, name);
    const lines = content
      .replace(/\r?\n$/, "")
      .split("\n")
      .map((line) => line.replace(/\r$/, ""));
    assert.deepEqual([...rows.values()], lines, name);
    assert.ok(pages.every((page) => !/\ufffd|\0|binary/.test(page)));
    assert.ok(found.includes(`${name}\n${lines.length}: last needle`), found);
  }
});

test("a UTF-8 mark is not part of the first line", async () => {
  const agent = await agentWith({ "a.ts": "\ufeffconst a = 1;\n" });
  assert.equal(rowsOf((await read(agent, "a.ts")).text).get(1), "const a = 1;");
  assert.match((await search(agent, "^const")).text, /^a\.ts\n1: \ufeff?const a = 1;$/);
});

// ─── Binary files and pictures ───────────────────────────────────────────────────────────────────

test("a binary file is named with its size, never dumped, by whatever tool", async () => {
  const tree = {
    "a.zip": Buffer.from("PK\x03\x04\x14\0\0\0\x08\0needle\0\0", "latin1"),
    "a.sqlite": Buffer.from(`SQLite format 3\0${"\x10\0".repeat(100)}needle\n`, "latin1"),
    "a.pdf": Buffer.from("%PDF-1.7\n%\xe2\xe3\xcf\xd3\nneedle\n", "latin1"),
    "a.out": Buffer.from(`\x7fELF\x02\x01\x01\0${"\0".repeat(99)}\nneedle \0\n`, "latin1"),
    "late.bin": Buffer.from(`${"x".repeat(8000)}\0\nneedle\0\n`, "latin1"),
  };
  const agent = await agentWith({ ...tree, "a.ts": "needle\n" });
  for (const [name, content] of Object.entries(tree)) {
    const { text } = await read(agent, name);
    assert.match(
      text,
      new RegExp(
        `^${name.replace(".", "\\.")} is a binary file.*${content.length < KB ? `${content.length} bytes` : " KB"}`,
      ),
    );
    assert.doesNotMatch((await search(agent, "needle", { path: name })).text, /\0|\ufffd/, name);
  }
  assert.match((await search(agent, "needle", { glob: "*.ts" })).text, /^a\.ts\n1: needle/);
  assert.doesNotMatch((await search(agent, "needle")).text, /a\.zip|a\.out|\0/);
});

const base64 = (text: string) => Buffer.from(text, "base64");
const PICTURES = {
  "dot.png": ["image/png", png(3, 2)],
  "dot.gif": ["image/gif", base64("R0lGODlhAQABAIAAAAAAAP///yH5BAEAAAAALAAAAAABAAEAAAIBRAA7")],
  "dot.webp": ["image/webp", base64("UklGRiIAAABXRUJQVlA4IBYAAAAwAQCdASoBAAEADsD+JaQAA3AAAAAA")],
  "dot.jpg": [
    "image/jpeg",
    base64(
      `/9j/4AAQSkZJRgABAQEASABIAAD/2wBDAP${"/".repeat(86)}wgALCAABAAEBAREA/8QAFBABAAAAAAAAAAAAAAAAAAAAAP/aAAgBAQABPxA=`,
    ),
  ],
} as const;
const seeing = (agent: Agent): Agent => ({
  ...agent,
  model: { ...agent.model, input: ["text", "image"] },
});

test("a picture goes to a model that sees, and is a binary file with its size to one that does not", async () => {
  const agent = await agentWith(
    Object.fromEntries(Object.entries(PICTURES).map(([name, [, data]]) => [name, data])),
  );
  symlinkSync("dot.png", path.join(agent.root, "text.txt"));
  for (const [name, [mimeType, data]] of Object.entries(PICTURES)) {
    const blind = await read(agent, name);
    assert.deepEqual([blind.image, blind.isError], ["", false]);
    assert.equal(blind.text, `${name} is a binary file, ${data.length} bytes: no text to read.`);
    const seen = await read(seeing(agent), name);
    assert.ok(!seen.isError);
    assert.deepEqual([seen.image, seen.mimeType], [data.toString("base64"), mimeType]);
    assert.equal(seen.text, `${name}: ${mimeType}`);
  }
  // The kind of a picture is told by what it holds.
  assert.equal((await read(seeing(agent), "text.txt")).mimeType, "image/png");
});

test("a picture that is too large is named with its size, not sent", async () => {
  const agent = await agentWith({ "large.png": png(10, 10, 5 * KB * KB) });
  const { text, image } = await read(seeing(agent), "large.png");
  assert.equal(image, "");
  assert.match(text, /^large\.png is a binary file, 5\.0 MB/);
});

test("what only begins like a picture is named with its size, and no failure", async () => {
  const tree = {
    "a.png": Buffer.from("\x89PNG\r\n\x1a\n\0\0\0\rIH", "latin1"),
    "b.jpg": Buffer.from("\xff\xd8\xff\xe0\0\x10J", "latin1"),
    "c.gif": Buffer.from("GIF89a\0"),
    "d.webp": Buffer.from("RIFF\x10\0\0\0WEBPVP8X", "latin1"),
  };
  const agent = await agentWith(tree);
  for (const [name, { length }] of Object.entries(tree)) {
    const { text, isError } = await read(agent, name);
    assert.ok(!isError, text);
    assert.match(text, new RegExp(`^${name.replace(".", "\\.")} .*${length} bytes`), text);
  }
});

test("a notebook is read as the JSON that it is: a line has the number that searches give it", async () => {
  const cells = [{ cell_type: "code", source: ["first = 1\n", "needle = 2\n"], outputs: [] }];
  const content = JSON.stringify({ cells, nbformat: 4 }, undefined, 1);
  const agent = await agentWith({ "a.ipynb": content });
  const rows = rowsOf((await read(agent, "a.ipynb")).text);
  assert.equal([...rows.values()].join("\n"), content);
  const { text } = await search(agent, "needle");
  const [, n, line] = /^(\d+): (.*)$/m.exec(text) ?? [];
  assert.equal(rows.get(Number(n)), line);
});

// ─── Names ─────────────────────────────────────────────────────────────────────────────────────

const NAMES = [
  ...words(
    String.raw`-rf --help -n.md back\slash.md quote"d.md "all" 'single' it's.md #hash.md $(touch$IFS) ${"`id`"} %41.md $HOME`,
  ),
  ...words(
    "[id].tsx [...all].tsx {a,b}.ts a*b.ts what?.ts !not.ts .hidden ... ..dots a:1 12: c:d file: ~x @x a,b a;b a|b <b> &amp;",
  ),
  ...words(
    "café.md cafe\u0301.md 日本語.md emoji😀.md İ.md ﬁ.md ①.md a\u200db.md e\u0301\u0302.md \ud83d\udc68\u200d\ud83d\udc69.md",
  ),
  ...[
    "with space.md",
    "  lead.md",
    "trail.md  ",
    "a (12 bytes)",
    "x (3 entries)",
    "two  spaces.md",
    " ",
    "' '",
  ],
  ...[
    "new\nline.md",
    "\nfirst.md",
    "last.md\n",
    "a\rb.md",
    "tab\tbed.md",
    "esc\x1b[31mred.md",
    "bell\x07.md",
    "del\x7f.md",
    "c1\x9b.md",
  ],
  ...[
    "bidi\u202egpj.md",
    "iso\u2066late.md",
    "mark\u061c.md",
    "nbsp\u00a0.md",
    "nnbsp\u202f.md",
    "zero\u200bwidth.md",
    "\ufeffbom.md",
  ],
  ...[
    "line\u2028sep.md",
    "para\u2029sep.md",
    "soft\u00adhyphen.md",
    "ideo\u3000graphic.md",
    "tag\u{e0041}\u{e007f}.md",
    "vs\u180e.md",
  ],
  ...["x".repeat(255), "é".repeat(127), '\\"', "\\n.md", '"a\\nb"', '{"path":"x"}'],
].filter((name, i, all) => all.indexOf(name) === i);

test("what a result shows as a name can be passed back as it is, and works in every tool", async () => {
  // Each name is one of a directory and of the file in it, and the files hold a word of their own.
  const agent = await agentWith(
    Object.fromEntries(NAMES.map((name, i) => [`${i}/${name}/${name}`, `word${i} here\n`])),
  );
  const files: string[] = [];
  for (const [i, name] of NAMES.entries()) {
    const about = JSON.stringify(name);
    const entry = (await list(agent, `${i}`)).text.replace(/ \(1 entries: .*$/, "");
    const [file = "", more] = namesOf((await list(agent, entry)).text);
    assert.equal(more, undefined, about);
    const { text } = await read(agent, file);
    assert.equal(text, `${file} (1 lines)\n1\tword${i} here`, about);
    // Nothing unseen or misleading reaches the model or a terminal by way of a name.
    assert.doesNotMatch(file, /[\p{Cc}\p{Cf}\p{Zl}\p{Zp}\u00a0\u202f\u3000]/u);
    files.push(file);
    // A search takes the file's name and the directory's.
    const found = `${file}\n1: word${i} here`;
    for (const path of everyNth(12, [file, entry, ...Array(11).fill("")], i).filter(Boolean))
      assert.equal((await search(agent, "word", { path })).text, found, about);
  }
  // A search of them all and a list by a glob show the same names.
  assert.ok(NAMES.length < 100);
  const all = (await search(agent, "word")).text.split("\n");
  const heads = all.filter((line) => !/^1: word\d+ here$/.test(line));
  const globbed = (await list(agent, ".", "**")).text.split("\n");
  assert.deepEqual([heads.sort(), globbed.sort()], [files.sort(), files]);
});

test("a name that is no valid UTF-8 is listed with the others, and answered in a sentence", async () => {
  const agent = await agentWith({ "a.ts": "needle\n", "z.ts": "needle\n" });
  try {
    writeFileSync(Buffer.from(path.join(agent.root, "caf\xe9.ts"), "latin1"), "needle\n");
  } catch {
    return; // A file system that has no such names.
  }
  const { text, isError } = await list(agent);
  assert.ok(!isError, text);
  assert.match(text, /^a\.ts \(7 bytes\)\ncaf\S*ts.*\nz\.ts \(7 bytes\)$/);
  assert.match((await list(agent, ".", "*.ts")).text, /^a\.ts\ncaf.*\nz\.ts$/);
  const found = await search(agent, "needle");
  assert.match(found.text, /^a\.ts\n1: needle\ncaf\S*\n1: needle\nz\.ts\n1: needle$/);
  assert.match(
    (await read(agent, namesOf(text)[1] ?? "")).text,
    /does not exist|no such file|needle/,
  );
});

test("a name asked for in another spelling of the same characters is found", async () => {
  const table = [
    ["café.md", "café.md"],
    ["cafe\u0301.md", "café.md"],
    ["cafe\u0301/x/deep.md", "café/x/deep.md"],
    ["docs/Capture d\u2019\u00e9cran.png.md", "docs/Capture d'e\u0301cran.png.md"],
    ["Screenshot 1.23\u202fPM.txt", "Screenshot 1.23 PM.txt"],
    ["no\u00a0break.md", "no break.md"],
    ["no break.md", "no\u00a0break.md"],
    ["한글.md".normalize("NFD"), "한글.md".normalize("NFC")],
  ] as const;
  const agent = await agentWith({
    ...Object.fromEntries(table.map(([name], i) => [`${i}/${name}`, `the words ${i}\n`])),
    "a/b.md": "others\n",
  });
  for (const [i, [name, given]] of table.entries()) {
    const asked = `${i}/${given}`;
    const about = JSON.stringify(name);
    const forms = [asked, `./${asked}`, `a/../${asked}`, path.join(agent.root, asked)];
    for (const where of everyNth(4, forms, i))
      assert.match((await read(agent, where)).text, new RegExp(`\n1\tthe words ${i}$`), about);
    if (!isLong && i % 3 > 0) continue;
    const found = await search(agent, "words", { path: asked });
    assert.match(found.text, new RegExp(`\n1: the words ${i}$`), about);
    const above = path.dirname(asked);
    assert.match((await list(agent, i % 2 ? above : `${above}/`)).text, /\.(md|txt)/, above);
  }
});

test("of two names that look alike, each is found by its own", async () => {
  const agent = await agentWith({ "café.md": "composed\n", "cafe\u0301.md": "decomposed\n" });
  assert.match((await read(agent, "café.md")).text, /composed/);
  assert.match((await read(agent, "cafe\u0301.md")).text, /decomposed/);
});

test("a file that does not exist is answered with the nearest that do", async () => {
  const agent = await agentWith({
    "src/loop.ts": "x\n",
    "src/Parser.ts": "x\n",
    "README.md": "x\n",
    "lib/deep/config.yaml": "x\n",
    "dist/gone.js": "x\n",
  });
  for (const [asked, near] of [
    ["readme.md", "README.md"],
    ["README", "README.md"],
    ["README.rst", "README.md"],
    ["src/parser.ts", "src/Parser.ts"],
    ["src/loop.js", "src/loop.ts"],
    ["loop.ts", "src/loop.ts"],
    ["lib/loop.ts", "src/loop.ts"],
    ["config.yml", "lib/deep/config.yaml"],
  ] as const)
    for (const { text, isError } of [
      await read(agent, asked),
      ...(isLong || asked === "loop.ts" ? [await search(agent, "x", { path: asked })] : []),
    ]) {
      assert.ok(isError);
      assert.ok(text.startsWith(asked) || text.startsWith(JSON.stringify(asked)), text);
      assert.match(text, /does not exist/);
      assert.ok(text.includes(near), `${asked}: ${text}`);
    }
  const { text } = await read(agent, "nothing-like-it.ts");
  assert.match(text, /list_files/);
});

// ─── Listing ───────────────────────────────────────────────────────────────────────────────────

test("a directory lists its directories first with their number of entries, then files with their size", async () => {
  const agent = await agentWith({
    "b.ts": "12345",
    "a.md": "x".repeat(1536),
    "z/1": "",
    "z/2": "",
    "c/d/e": "",
    "big.bin": Buffer.alloc(3 * KB * KB),
    ".dot": "",
  });
  mkdirSync(path.join(agent.root, "empty"));
  const expected = [
    "c/ (1 entries: d/)",
    "empty/ (0 entries)",
    "z/ (2 entries: 1, 2)",
    ".dot (0 bytes)",
    "a.md (1.5 KB)",
    "b.ts (5 bytes)",
    "big.bin (3.0 MB)",
  ];
  assert.equal((await list(agent)).text, expected.join("\n"));
  assert.equal((await list(agent, "c")).text, "c/d/ (1 entries: e)");
  assert.equal((await list(agent, "z/")).text, "z/1 (0 bytes)\nz/2 (0 bytes)");
});

test("what is in a directory is told up to 100 bytes, directories first, but of no secret one", async () => {
  const agent = await agentWith({
    "src/b.ts": "",
    "src/a/x.ts": "",
    ".git/config": "",
    "odd/a\nb": "",
    "odd/ c": "",
    ...Object.fromEntries(Array.from({ length: 40 }, (_, i) => [`wide/file-${i}.ts`, ""])),
  });
  const lines = (await list(agent)).text.split("\n");
  assert.equal(lines[0], ".git/ (1 entries)");
  assert.equal(lines[1], 'odd/ (2 entries: " c", "a\\nb")');
  assert.equal(lines[2], "src/ (2 entries: a/, b.ts)");
  assert.match(lines[3] ?? "", /^wide\/ \(40 entries: file-0\.ts, .*file-\d+\.ts, \.\.\.\)$/);
  assert.ok(bytes(lines[3] ?? "") < 150);
});

test("of many directories less is told of what they hold", async () => {
  const directories = (n: number) =>
    Object.fromEntries(
      Array.from({ length: 12 * n }, (_, i) => [`d${i % n}/file-${Math.floor(i / n)}.ts`, ""]),
    );
  const few = await agentWith(directories(3));
  assert.match(
    (await list(few)).text,
    /^d0\/ \(12 entries: file-0\.ts, (file-\d+\.ts, ){8}\.\.\.\)$/m,
  );
  const many = await agentWith(directories(400));
  assert.match((await list(many)).text, /^d0\/ \(12 entries: file-0\.ts, \.\.\.\)$/m);
});

test("a list has at most 1,000 entries, says how many more there are, and how to go on", async () => {
  const files = (from: number, to: number) =>
    Object.fromEntries(Array.from({ length: to - from }, (_, i) => [`many/f${from + i}.txt`, ""]));
  const agent = await agentWith(files(0, 1000));
  assert.equal((await list(agent, "many", "*.txt")).text.split("\n").length, 1000);
  write(agent.root, files(1000, 1005));
  for (const glob of [undefined, "*.txt"]) {
    const lines = (await list(afresh(agent), "many", glob)).text.split("\n");
    assert.equal(lines.length, 1001);
    assert.equal(lines.at(-1), "... 5 more; list a subdirectory or pass a glob");
  }
});

const GLOBS = [
  [".", "*.ts", "a.ts src/b.test.ts src/b.ts src/deep/c.ts"],
  [".", "**/*.ts", "a.ts src/b.test.ts src/b.ts src/deep/c.ts"],
  [".", "src/*.ts", "src/b.test.ts src/b.ts"],
  [".", "./src/*.ts", "src/b.test.ts src/b.ts"],
  [".", "/src/*.ts", "src/b.test.ts src/b.ts"],
  [".", "src/**", "src/b.test.ts src/b.ts src/d.js src/deep/c.ts"],
  [".", "*.{js,md}", "app/[id]/parts/p.md odd[name/q.md src/d.js x.md {brace/r.md"],
  [".", "b.*", "src/b.test.ts src/b.ts"],
  [".", "**/deep/**", "src/deep/c.ts"],
  [".", "[ab].ts", "a.ts src/b.ts"],
  [".", "!*.ts", "app/[id]/parts/p.md odd[name/q.md src/d.js x.md {brace/r.md"],
  ["src", "*.ts", "src/b.test.ts src/b.ts src/deep/c.ts"],
  ["src", "**/*.ts", "src/b.test.ts src/b.ts src/deep/c.ts"],
  ["src", "deep/*.ts", "src/deep/c.ts"],
  ["src", "src/*.ts", "src/b.test.ts src/b.ts"],
  ["src", "!*.ts", "src/d.js"],
  ["src", "!*.test.ts", "src/b.ts src/d.js src/deep/c.ts"],
  ["app/[id]", "parts/*.md", "app/[id]/parts/p.md"],
  ["app/[id]", "*.md", "app/[id]/parts/p.md"],
  ["odd[name", "*.md", "odd[name/q.md"],
  ["{brace", "*.md", "{brace/r.md"],
] as const;

test("a glob gives every matching file below the path, and limits a search to the same files", async () => {
  const names = words(
    "a.ts src/b.ts src/b.test.ts src/d.js src/deep/c.ts x.md app/[id]/parts/p.md odd[name/q.md {brace/r.md",
  );
  const agent = await agentWith(Object.fromEntries(names.map((name) => [name, "needle\n"])));
  const ways: ((path: string, glob: string) => ReturnType<typeof list>)[] = [
    (path, glob) => list(agent, path, glob),
    (path, glob) => search(agent, "needle", { path, glob }),
  ];
  for (const [i, [where, glob, expected]] of everyNth(2, GLOBS).entries())
    for (const way of everyNth(2, ways, i)) {
      const { text } = await way(where, glob);
      const files = text.replace(/\n\[.*/, "").replaceAll("\n1: needle", "");
      assert.deepEqual(files.split("\n"), words(expected), `${glob} below ${where}`);
    }
});

test("a glob that is none is called so, and not taken for one without matches", async () => {
  const agent = await agentWith({ "a.ts": "needle\n" });
  for (const glob of everyNth(2, ["[", "{a,b"])) {
    assert.match((await list(agent, ".", glob)).text, /glob/, glob);
    assert.match((await search(agent, "needle", { glob })).text, /glob/, glob);
  }
});

// ─── Ignored files ─────────────────────────────────────────────────────────────────────────────

const IGNORE: { [name: string]: string } = {
  ".gitignore": "*.log\n!keep.log\n/only-top.txt\nbuild/\n# a comment\ndoc/*.txt\nsp\\ ace/\n",
  ".ignore": "private.md\n",
  "sub/.gitignore": "nested.ts\n!again.log\n/gen/\n/top.ts\n",
};
const KEPT =
  "keep.log kept.ts sub/again.log sub/deep/kept.ts sub/deep/top.ts sub/only-top.txt doc/sub/x.txt nested.ts top.ts gen/x.ts";
const LEFT_OUT =
  "x.log sub/x.log only-top.txt build/out.js sub/build/out.js doc/a.txt private.md sub/private.md sub/nested.ts sub/deep/nested.ts sub/gen/x.ts sub/top.ts node_modules/lib/i.js sub/node_modules/lib/i.js";

test("ignored files are left out of searches and globs by every rule of git, and listed and read by name", async () => {
  const files = Object.fromEntries(words(`${KEPT} ${LEFT_OUT}`).map((name) => [name, "needle\n"]));
  const agent = await agentWith({ ...IGNORE, ...files });
  for (const where of [".", "sub", "sub/deep"]) {
    const below = (name: string) => where === "." || name.startsWith(`${where}/`);
    const expected = words(KEPT).filter(below).sort();
    const found = (await search(agent, "needle", { path: where })).text;
    const heads = found.replace(/\n\[.*/, "").replaceAll("\n1: needle", "");
    assert.deepEqual(heads.split("\n").sort(), expected, `search below ${where}`);
    for (const glob of everyNth(2, ["**/*", "*.{ts,txt,log,js,md}"], where.length)) {
      const listed = (await list(agent, where, glob)).text;
      const names = namesOf(listed).filter((name) => !/ignore$/.test(name));
      assert.deepEqual(names.sort(), expected, `${glob} below ${where}`);
      assert.match(listed, /\n\[left out.*\]$/);
    }
    assert.match(found, /\n\[left out.*\]$/);
  }
  assert.match((await search(agent, "absent")).text, /^No match in \d+ files.*\n\[left out.*\]$/);
  for (const [i, name] of words(LEFT_OUT).entries()) {
    assert.match((await read(agent, name)).text, /\n1\tneedle$/, name);
    assert.match((await list(agent, path.dirname(name))).text, new RegExp(`^${name} `, "m"));
    if (isLong || i % 4 === 0)
      assert.equal((await search(agent, "needle", { path: name })).text, `${name}\n1: needle`);
  }
  for (const [where, file] of [
    ["node_modules/lib", "node_modules/lib/i.js"],
    ["build", "build/out.js"],
  ] as const) {
    const { text } = await search(agent, "needle", { path: where });
    assert.ok(text.startsWith(`${file}\n1: needle`), text);
  }
});

test("a rule that names a path holds below, too, where a search begins deeper than the rule stands", async () => {
  const agent = await agentWith({
    "sub/.gitignore": "/deep/gen/\n",
    "sub/deep/gen/x.ts": "needle\n",
    "sub/deep/y.ts": "needle\n",
  });
  assert.match(
    (await search(agent, "needle", { path: "sub/deep" })).text,
    /^sub\/deep\/y\.ts\n1: needle(\n\[.*)?$/,
  );
});

/** The names in the note on what a walk left out, without the slash of a directory. */
function leftOut(text: string): string[] {
  const [, names = ""] = /\n\[left out[^:]*: (.*)\]$/m.exec(text) ?? [];
  return names
    .split(", ")
    .map((name) => name.replace(/\/$/, ""))
    .filter(Boolean);
}

test("a walk names the entries at its top of which it left out everything, and no others", async () => {
  const agent = await agentWith({
    ".gitignore": "*.log\ntarget/\n",
    "x.log": "",
    "a.ts": "",
    "target/deep/a.ts": "",
    "logs/a.log": "",
    "logs/deep/b.log": "",
    "some/a.log": "",
    "some/deep/a.ts": "",
    "some/target/a.ts": "",
    "node_modules/a/i.js": "",
    "link.ts": "",
    ".git/HEAD": "",
    ".env": "KEY=1\n",
  });
  rmSync(path.join(agent.root, "link.ts"));
  symlinkSync("a.ts", path.join(agent.root, "link.ts"));
  const hidden = ["logs", "node_modules", "target", "x.log"];
  const shown = /a\.ts|some|deep|\*|!|[ab]\.log|gitignore/;
  for (const { text } of [await search(agent, "absent"), await list(agent, ".", "*")]) {
    const names = leftOut(text);
    for (const name of hidden) assert.ok(names.includes(name), `${name}: ${text}`);
    assert.doesNotMatch(names.join(), shown, text);
  }
  assert.ok(leftOut((await search(agent, "absent")).text).includes(".env"));
  // Of a glob, what it could match.
  for (const [glob, expected] of [
    ["*.log", "logs node_modules x.log"],
    ["target/**", "target"],
    ["some/*.none", ""],
  ] as const)
    assert.equal(
      leftOut((await search(agent, "absent", { glob })).text)
        .sort()
        .join(" "),
      expected,
    );
  // Of a place below, what stands at its top.
  const below = leftOut((await search(agent, "absent", { path: "some" })).text);
  assert.deepEqual(below.sort(), ["a.log", "target"]);
  const all = await agentWith({ "a.ts": "" });
  for (const { text } of [await search(all, "absent"), await list(all, ".", "*")])
    assert.doesNotMatch(text, /left out/, "where nothing is left out, nothing is said");
});

test("nothing is called left out that is not: no binary beside an ignored file, no file at a bound", async () => {
  const binary = Buffer.from("needle\0needle\n");
  const many = repeat(300, (n) => `needle ${n}\n`);
  const agent = await agentWith({
    ".gitignore": "dist/\nnotes/\n",
    "a.bin": binary,
    "b.bin": binary,
    "dist/x.ts": "needle\n",
    "notes/x.ts": "needle\n",
    ...Object.fromEntries(Array.from({ length: 20 }, (_, i) => [`src/${i}.ts`, many])),
  });
  const { text } = await search(agent, "needle");
  assert.doesNotMatch(text, /left out.*(bin|src|DEBUG|rg:)/);
  assert.deepEqual(leftOut((await search(agent, "needle 299")).text), ["dist", "notes"]);
  assert.deepEqual(leftOut((await search(agent, "needle", { path: "src" })).text), []);
});

test("rules above the directory, and rules that a user has set for git and ripgrep, do not count", async () => {
  const above = temporary();
  write(above, {
    ".gitignore": "*\n",
    ".ignore": "*\n",
    ".rgignore": "*\n",
    ".git/info/exclude": "*\n",
    "repo/a.ts": "needle\n",
    config: "--ignore-case\n--glob=!*.ts\n",
  });
  const agent = await agentAt(path.join(above, "repo"));
  const before = process.env.RIPGREP_CONFIG_PATH;
  process.env.RIPGREP_CONFIG_PATH = path.join(above, "config");
  try {
    assert.equal((await search(agent, "needle")).text, "a.ts\n1: needle");
    assert.equal((await list(agent, ".", "*")).text, "a.ts");
    assert.match((await search(agent, "NEEDLE")).text, /^No match in 1 files/);
  } finally {
    if (before === undefined) delete process.env.RIPGREP_CONFIG_PATH;
    else process.env.RIPGREP_CONFIG_PATH = before;
  }
});

test("an ignored file with a line end in its name confuses neither a search nor a list", async () => {
  const agent = await agentWith({
    ".gitignore": "*.log\n",
    "a\nb.log": "needle\n",
    "a.ts": "needle\n",
    "c\nrg: regex.log": "x\n",
  });
  const { text, isError } = await search(agent, "absent");
  assert.ok(!isError, text);
  assert.match(text, /^No match in 2 files/);
  assert.equal(namesOf((await list(agent, ".", "*")).text).join(" "), ".gitignore a.ts");
  assert.match((await search(agent, "(")).text, /taken literally/);
});

test("thousands of ignored files are left out of a glob as few are", async () => {
  // In a long test there are more of them than fit the arguments of a command.
  const agent = await agentWith({ ".gitignore": "*.o\n", "a.c": "needle\n" });
  const deep = "a-long-name-of-a-directory/".repeat(8);
  const count = isLong ? 12_000 : 300;
  write(
    agent.root,
    Object.fromEntries(Array.from({ length: count }, (_, i) => [`${deep}${i}.o`, ""])),
  );
  assert.deepEqual(namesOf((await list(agent, ".", "**/*.{c,o}")).text), ["a.c"]);
  assert.match((await search(agent, "needle", { glob: "**/*.{c,o}" })).text, /^a\.c\n1: needle/);
});

// ─── Searching ─────────────────────────────────────────────────────────────────────────────────

test("a search groups its lines by file, sorted, with the lines around where asked for", async () => {
  const agent = await agentWith({
    "b.ts": "one\ntwo\nthree\nfour\nfive\n",
    "a/x.ts": "two\n",
    "c.ts": "TWO\n",
  });
  assert.equal((await search(agent, "two")).text, "a/x.ts\n1: two\nb.ts\n2: two");
  assert.equal(
    (await search(agent, "two", { ignoreCase: true })).text,
    "a/x.ts\n1: two\nb.ts\n2: two\nc.ts\n1: TWO",
  );
  assert.equal(
    (await search(agent, "three", { context: 1 })).text,
    "b.ts\n2- two\n3: three\n4- four",
  );
  assert.equal(
    (await search(agent, "o|four", { path: "b.ts", context: 9 })).text,
    "b.ts\n1: one\n2: two\n3- three\n4: four\n5- five",
  );
  assert.equal((await search(agent, "^t.o$", { path: "a" })).text, "a/x.ts\n1: two");
  assert.equal((await search(agent, "two", { path: "b.ts" })).text, "b.ts\n2: two");
});

test("a pattern that is no regular expression is taken literally, and that is said", async () => {
  const agent = await agentWith({ "a.ts": "call(\nx[0\n*p++\n(?<=a)b\n" });
  for (const pattern of everyNth(2, ["call(", "x[0", "*p++", "(?<=a)b"])) {
    const { text } = await search(agent, pattern);
    assert.match(text, /literal/, pattern);
    assert.ok(text.includes(`: ${pattern}`), `${pattern}: ${text}`);
  }
  assert.match((await search(agent, "absent(")).text, /literal[\s\S]*No match in 1 files/);
});

test("no pattern is a flag, hangs the search or breaks it", async () => {
  const agent = await agentWith({ "a.ts": `${"a".repeat(30)}!\n--files -e --pre\n` });
  assert.match((await search(agent, "--files")).text, /^a\.ts\n2: --files/);
  assert.match((await search(agent, "-e")).text, /^a\.ts\n2: /);
  const patterns = ["(a+)+$", "(a|aa)+$", "(.*)*x", "a{1,100}{1,100}", "(?i)(?s).*", "\\p{Nope}"];
  if (isLong) patterns.push("a{1,1000}{1,1000}");
  patterns.push("a\nb", "(?x) a # c", "[[:alpha:]]", "");
  for (const pattern of everyNth(2, patterns)) {
    const start = Date.now();
    const { text } = await search(agent, pattern);
    assert.doesNotMatch(text, /stopped for its time/, pattern);
    assert.ok(Date.now() - start < 15_000, pattern);
  }
});

test("a search without a match says what was not searched, and why a pattern was taken literally", async () => {
  const agent = await agentWith({ "a.ts": "one\n" });
  const none = await search(agent, "two", { glob: "*.ts,*.js" });
  assert.match(
    none.text,
    /^No match in 0 files. None is there, or the glob matches none. A \\ takes/,
  );
  const literal = await search(agent, "(?<=x)one");
  assert.match(
    literal.text,
    /^\[no valid regular expression \(look-around, .*not supported.*\), so taken literally\]/,
  );
});

test("a pattern that holds a line end is answered with what to do", async () => {
  const agent = await agentWith({ "a.ts": "one\ntwo\n" });
  for (const pattern of everyNth(2, ["one\\ntwo", "one\ntwo"])) {
    const { text } = await search(agent, pattern);
    assert.match(text, /line|\\n/, text);
    assert.doesNotMatch(text, /--multiline|-U/, "no advice that cannot be followed");
  }
});

test("a search shows at most 100 matches, says that there are more, and how to go on", async () => {
  const agent = await agentWith(
    Object.fromEntries(Array.from({ length: 150 }, (_, i) => [`f${i}.ts`, "needle\n"])),
  );
  const { text } = await search(agent, "needle");
  assert.equal(text.match(/^1: needle$/gm)?.length, 100);
  const [note = ""] = /^\[first 100 matches.*\]$/m.exec(text) ?? [];
  assert.match(note, /\b150\b.*narrow the pattern or pass path or glob/);
  const few = await search(agent, "needle", { glob: "f1?.ts" });
  assert.equal(few.text.match(/^1: needle$/gm)?.length, 10);
  assert.doesNotMatch(few.text, /first/);
});

test("a search that shows all of its matches does not say that there are more", async () => {
  const many = (n: number) => "needle\n".repeat(n);
  const agent = await agentWith({ a: many(25), b: many(25), c: many(25), d: many(25) });
  assert.doesNotMatch((await search(agent, "needle")).text, /\[first/);
});

test("the count of a search with too many matches has neither secret nor ignored ones", async () => {
  const agent = await agentWith({
    ...Object.fromEntries(Array.from({ length: 120 }, (_, i) => [`a/f${i}.ts`, "needle\n"])),
    "z/more\nlines.ts": repeat(200, () => "needle\n"),
    "z/.env": repeat(400, () => "needle\n"),
    "z/ignored.ts": repeat(400, () => "needle\n"),
    ".gitignore": "z/ignored.ts\n",
  });
  for (const glob of [undefined, "**/*"]) {
    const { text } = await search(agent, "needle", glob ? { glob } : {});
    assert.match(text, /^\[first 100 matches of 320 in 121 files; /m);
  }
});

test("what is ignored is not shown or counted by a search with a glob", async () => {
  const agent = await agentWith({
    ".gitignore": "*.log.ts\n",
    ...Object.fromEntries(Array.from({ length: 150 }, (_, i) => [`d/x${i}.log.ts`, "needle\n"])),
    ...Object.fromEntries(
      [60, 80, 700, 100, 90].map((n) => [`m${n}.ts`, repeat(n, () => "needle\n")]),
    ),
  });
  const { text } = await search(agent, "needle", { glob: "**/*.ts" });
  assert.doesNotMatch(text.replace(/^\[left out.*$/m, ""), /log/);
  assert.match(text, /^\[first 100 matches of 1030 in 5 files; /m);
});

test("a file with many matches gives its count, and leaves room for the others", async () => {
  const agent = await agentWith({
    "a.ts": repeat(500, (i) => `needle ${i}\n`),
    "b.ts": "needle b\n",
    "c.ts": repeat(30, () => "needle\n"),
  });
  const { text } = await search(agent, "needle");
  assert.match(text, /^\[first 51 matches of 531 in 3 files; others: 480 in \.\/; narrow.*\]$/m);
  assert.match(text, /^b\.ts\n1: needle b$/m);
  assert.match(text, /^c\.ts$/m);
  assert.ok((text.match(/^\d+: /gm) ?? []).length <= 100);
  const { text: one } = await search(agent, "needle", { path: "a.ts" });
  assert.match(one, /\[first 100 matches of 500 in 1 files; others: 400 in a\.ts; narrow/);
  assert.equal(one.match(/^\d+: /gm)?.length, 100);
});

test("a result of a search has at most 20 KB, whatever the lines and the names", async () => {
  const long = `${"d".repeat(250)}/`.repeat(14);
  const trees = {
    lines: {
      "a.ts": repeat(90, () => `needle ${"é".repeat(5000)}\n`),
      "b.ts": repeat(90, () => `${"漢".repeat(900)}needle\n`),
    },
    context: { "a.ts": repeat(5000, (i) => `${i % 41 ? "" : "needle"}${"x".repeat(280)}\n`) },
    names: Object.fromEntries(
      Array.from({ length: 120 }, (_, i) => [`${long}${i}.ts`, "needle\n"]),
    ),
    controls: Object.fromEntries(
      Array.from({ length: 120 }, (_, i) => [`${i}${"\x01".repeat(240)}`, "needle\n"]),
    ),
  };
  for (const [kind, tree] of Object.entries(trees)) {
    const agent = await agentWith(tree);
    const { text } = await search(agent, "needle", { context: kind === "context" ? 20 : 0 });
    assert.ok(bytes(text) <= 22 * KB + 4 * KB, `${kind}: ${bytes(text)} bytes`);
    assert.match(text, /narrow the pattern or pass path or glob|matches in this file/, kind);
  }
});

test("a line of a search has at most 300 characters around its match, cut between characters", async () => {
  const sides = [0, 1].flatMap((pad) =>
    ["x", "é", "漢", "😀"].map((fill) => `${"y".repeat(pad)}${fill.repeat(2000)}`),
  );
  const agent = await agentWith(
    Object.fromEntries(
      sides.flatMap((side, i) => [
        [`a${i}.ts`, `${side}needle${side}\n`],
        [`b${i}.ts`, `${side}needle`],
        [`c${i}.ts`, `needle${side}\n`],
      ]),
    ),
  );
  const { text } = await search(agent, "needle", { context: 2 });
  const rows = text.match(/^1: .*$/gm) ?? [];
  assert.equal(rows.length, 24);
  for (const row of rows) {
    assert.ok(row.includes("needle"), row);
    assert.ok(row.length <= 3 + 302, `${row.length}`);
    assert.ok(!row.includes("\ufffd") && row.isWellFormed());
  }
});

test("the match is in the part that is shown, also in a long line of UTF-16", async () => {
  const agent = await agentWith({ "16.txt": utf16(`${"漢é".repeat(3000)}needle\n`, true) });
  assert.match((await search(agent, "needle")).text, /^16\.txt\n1: .*needle/);
});

test("every part of a single line, however long, can be reached by search_files, by any pattern", async () => {
  const part = "function a(b,c){return b+c};";
  // In a long test it is one of 5 MB. Each character may be a match, which is 50 bytes of ripgrep's.
  const half = part.repeat(isLong ? 90_000 : 7000);
  const content = `${half}NEEDLE_ONE${half}NEEDLE_TWO`;
  const agent = await agentWith({ "app.min.js": content, "b.js": "return b\n" });
  const { text } = await read(agent, "app.min.js");
  assert.ok(text.length < 2200);
  assert.match(text, /^app\.min\.js \(1 lines?\)\n1\t.*cut.*search_files/);
  for (const needle of ["NEEDLE_ONE", "NEEDLE_TWO", "NEEDLE_TWO$"]) {
    const found = (await search(agent, needle)).text;
    assert.match(found, /^app\.min\.js\n1: .*NEEDLE/);
    assert.ok(found.length < 400);
  }
  for (const pattern of everyNth(3, ["", "b", ".", "return", "\\w+", "[a-z]"])) {
    const found = (await search(agent, pattern)).text;
    assert.match(found, /^app\.min\.js\n1: .*return b/, pattern);
    // What comes after the long line is found, too.
    assert.match(found, /^b\.js\n1: return b$/m, pattern);
    assert.doesNotMatch(found, /stopped for its time/, pattern);
  }
});

test("no list floods the model, whatever the names and the rules are like", async () => {
  const bound = 80 * KB;
  const deep = `${"d".repeat(250)}/`.repeat(14);
  const rule = `[x${"a".repeat(isLong ? 200_000 : 10_000)}]*`;
  const agent = await agentWith({
    ".gitignore": `${rule}\n${"b*".repeat(isLong ? 50_000 : 2000)}\nc?\n`,
    xx: "",
    bbb: "",
    cc: "",
    ...Object.fromEntries(Array.from({ length: 100 }, (_, i) => [`${deep}${i}.ts`, ""])),
    ...Object.fromEntries(
      Array.from({ length: 300 }, (_, i) => [`flat/${i}${"\x01".repeat(240)}`, ""]),
    ),
  });
  for (const { text } of [
    await list(agent, "."),
    await list(agent, "flat"),
    await list(agent, ".", "*.ts"),
    await list(agent, "flat", "*"),
    await list(agent, deep),
  ])
    assert.ok(bytes(text) <= bound, `${bytes(text)} bytes`);
  for (const { text } of [
    await search(agent, "absent"),
    await search(agent, "absent", { glob: "*.ts" }),
  ])
    assert.ok(bytes(text) < 4 * KB, `${bytes(text)} bytes for nothing found`);
});

test("the pages of a file that is no UTF-8 are bounded, too", async () => {
  const agent = await agentWith({
    "a.txt": Buffer.concat(
      Array.from({ length: 700 }, () => Buffer.from(`${"\xe9".repeat(100)}\n`, "latin1")),
    ),
    "b.txt": utf16(`${"é".repeat(100)}\n`.repeat(700), false),
  });
  for (const name of ["a.txt", "b.txt"])
    for (const page of (await readAll(agent, name)).pages)
      assert.ok(page.length <= 36 * KB, `${name}: ${page.length}`);
});

test("numbers and paths are the same whether a search has one file or many, a glob or none", async () => {
  const agent = await agentWith({ "src/a.ts": "x\nneedle\n", "b.ts": "" });
  for (const args of everyNth(2, [
    {},
    { path: "." },
    { path: "src/a.ts" },
    { path: "./src/" },
    { path: "src", glob: "a.ts" },
    { path: agent.root },
    { glob: "*.ts" },
    { glob: "src/**" },
  ]))
    assert.equal(
      (await search(agent, "needle", args)).text,
      "src/a.ts\n2: needle",
      JSON.stringify(args),
    );
});

test("files of a directory are searched that have no git repository, hidden ones too", async () => {
  const agent = await agentWith({
    ".github/ci.yml": "needle\n",
    ".hidden": "needle\n",
    "a/.b/c": "needle\n",
  });
  assert.equal(
    (await search(agent, "needle")).text,
    ".github/ci.yml\n1: needle\n.hidden\n1: needle\na/.b/c\n1: needle",
  );
});

test("no tool changes anything in the directory", async () => {
  const agent = await agentWith({ "a.ts": "needle\n", ".gitignore": "*.log\n" });
  const state = () => execFileSync("find", [agent.root, "-printf", "%P %s %T@ %m\n"]).toString();
  const before = state();
  await Promise.all([
    list(agent),
    list(agent, ".", "*"),
    read(agent, "a.ts"),
    read(agent, "b.ts"),
    search(agent, "needle"),
    search(agent, "("),
  ]);
  assert.equal(state(), before);
  assert.equal(readFileSync(path.join(agent.root, "a.ts"), "utf8"), "needle\n");
});

// ─── Bounds and searches that say what they left ───────────────────────────────────────────────

test("a context beyond its bound is cut, and that is said; parts that are apart are separated", async () => {
  const lines = repeat(200, (i) => (i % 60 === 30 ? "needle\n" : `${i}\n`));
  const agent = await agentWith({ "a.txt": lines });
  const { text } = await search(agent, "needle", { context: 50 });
  assert.match(text, /^a\.txt\n10- 10\n/);
  assert.equal(text.match(/^…$/gm)?.length, 2);
  assert.match(text, /\n50- 50\n…\n70- 70\n/);
  assert.match(text, /\n\[context: at most 20 lines\]$/);
  assert.doesNotMatch((await search(agent, "needle", { context: 20 })).text, /context/);
  assert.doesNotMatch((await search(agent, "needle")).text, /…/);
});

test("what a file holds that is not UTF-8 is found as it is read", async () => {
  const source = (prose: string) => `int a;\n// ${prose}\n${`# ${prose}\n`.repeat(20)}`;
  const files = Object.entries(PROSE).map(([encoding, prose]): [string, Buffer, string] => [
    `src/${encoding}.c`,
    Buffer.from(encode(source(prose), encoding)),
    prose,
  ]);
  const [german, mixed] = ["Die Größe für alle, schön", "größe 中文 日本語"];
  files.push(["src/short.c", Buffer.from(`int a;\n// ${german}\n`, "latin1"), german]);
  files.push(["src/stray.c", Buffer.from([0xff, 10, ...Buffer.from(source(mixed))]), mixed]);
  files.push(["src/marked.c", Buffer.from(`\ufeff${source(mixed)}`, "utf16le"), mixed]);
  files.push(["src/nul.c", Buffer.from(source(`${"// plain\n".repeat(1000)}\0 ${mixed}`)), mixed]);
  const agent = await agentWith(Object.fromEntries(files));
  for (const [name, , prose] of files) {
    const word = prose.match(/[^\0-\x7f]\p{L}+/u)?.[0] ?? "";
    assert.ok(word, name);
    for (const [i, pattern] of [
      word,
      word.replace(/^../u, ".."),
      `[^a]${word.slice(1)}`,
    ].entries()) {
      const where = [{}, { path: name }, { glob: "*.c" }][i];
      const { text } = await search(agent, pattern, where);
      const [, at = "0", line] = new RegExp(`^${name}\n(\\d+): (.*)$`, "m").exec(text) ?? [];
      const page = rowsOf((await read(agent, name, { offset: Number(at) })).text);
      assert.ok(line, `${pattern} in ${name}: ${text}`);
      assert.equal(page.get(Number(at)), line, `${pattern} in ${name}: ${text}`);
    }
  }
  // Each line is counted once, though it is looked at twice.
  const { text } = await search(agent, "int .;");
  assert.equal(text.match(/^[12]: int a;/gm)?.length, files.length);
  assert.doesNotMatch(text, /first|not searched/);
});

test("files that are not UTF-8 and too many to be searched are named", async () => {
  const bytes = Buffer.from("// Die Größe für alle, schön\n", "latin1");
  const agent = await agentWith(
    Object.fromEntries(Array.from({ length: 205 }, (_, i) => [`f${100 + i}.c`, bytes])),
  );
  const { text } = await search(agent, "Größe");
  assert.match(text, /\[first 100 matches of 200 in 200 files; others: 100 in \.\//);
  assert.match(
    text,
    /\[not searched, as they are not UTF-8: f300\.c, f301\.c, f302\.c, f303\.c, f304\.c\]$/,
  );
});

test("a walk and a search that were stopped say so, and never that there is nothing", async () => {
  const agent = await agentWith({ "a.ts": "needle\n" });
  const stopped = AbortSignal.abort();
  for (const [name, args] of [
    ["list_files", { glob: "*.ts" }],
    ["search_files", { pattern: "needle" }],
    ["search_files", { pattern: "größe", glob: "*.ts" }],
  ] as const) {
    const tool = agent.tools.find((one) => one.name === name);
    const { text = "" } = (await tool?.execute(afresh(agent), args, stopped)) ?? {};
    assert.match(text, /\[stopped for its time: there may be more\]/);
    assert.doesNotMatch(text, /No file matches|No match in \d/);
  }
});

test("a page of a file that is too large to be counted is shown, with that there is more", async () => {
  const agent = await agentWith({ "log.txt": "0123456789 a line of some length\n".repeat(3000) });
  truncateSync(path.join(agent.root, "log.txt"), 2 ** 42);
  const tool = agent.tools.find(({ name }) => name === "read_file");
  const signal = AbortSignal.timeout(500);
  const { text = "" } = (await tool?.execute(agent, { path: "log.txt" }, signal)) ?? {};
  const [first, ...rows] = text.split("\n");
  assert.match(first ?? "", /^log\.txt \(more than 3000 lines/);
  assert.match(rows.at(-1) ?? "", /^\[lines 1-400 of more than 3000; offset=401 reads on;/);
});

test("a submodule's files are not hidden by the rules around it, and no other place is opened so", async () => {
  const agent = await agentWith({
    ".gitignore": "*.log\ngen/\n/local/\n",
    ".gitmodules": repeat(
      6,
      (i) =>
        `[submodule "${i}"]\n\tpath = ${["vendor/lib", "../outside", ".git", ".", "/etc", "absent"][i - 1]}\n`,
    ),
    ".git/needle.log": "needle\n",
    "a.log": "needle\n",
    "vendor/lib/.git": "gitdir: ../../.git/modules/lib\n",
    "vendor/lib/a.log": "needle\n",
    "vendor/lib/gen/b.ts": "needle\n",
    "vendor/lib/.gitignore": "own/\n",
    "vendor/lib/own/c.ts": "needle\n",
    "vendor/d.log": "needle\n",
  });
  write(path.join(agent.root, "..", "outside"), { "e.ts": "needle\n" });
  const expected = ["vendor/lib/a.log", "vendor/lib/gen/b.ts"];
  for (const where of [{}, { path: "vendor" }, { glob: "**/*.{log,ts}" }]) {
    const { text } = await search(agent, "needle", where);
    const files = text.split("\n").filter((line) => /^[\w./]+\.(log|ts)$/.test(line));
    assert.deepEqual(files.sort(), expected, text);
  }
  const listed = (await list(agent, ".", "**/*.{log,ts}")).text.split("\n");
  assert.deepEqual(listed.filter((line) => !line.startsWith("[")).sort(), expected);
});

test("what a glob takes as a sign can be escaped, as a glob without a match says", async () => {
  const agent = await agentWith({ "[x]/a{1}.ts": "needle\n" });
  for (const { text } of [
    await list(agent, ".", "[x]/*.ts"),
    await search(agent, "needle", { glob: "[x]/*.ts" }),
  ])
    assert.match(text, /A \\ takes \*, \?, \[, \], \{ and \} as they are\./);
  const [named] = (await list(agent, ".", "\\[x\\]/*.ts")).text.split("\n");
  assert.equal(named, "[x]/a{1}.ts");
  for (const where of [{ path: named }, { path: "[x]" }, { glob: "\\[x\\]/a\\{1\\}.ts" }])
    assert.equal((await search(agent, "needle", where)).text, "[x]/a{1}.ts\n1: needle");
});

test("a recursive listing names the links that it does not follow", async () => {
  const agent = await agentWith({ "src/a.ts": "needle\n", "lib/b.ts": "needle\n" });
  symlinkSync("../lib", path.join(agent.root, "src/link"));
  // Where one leads outside, there is nothing to follow.
  symlinkSync("..", path.join(agent.root, "src/out"));
  symlinkSync("../..", path.join(agent.root, "src/far"));
  const { text } = await list(agent, ".", "**/*.ts");
  assert.equal(text, "lib/b.ts\nsrc/a.ts\n[links, not followed: src/link, src/out]");
  assert.equal((await list(agent, "lib", "*.ts")).text, "lib/b.ts");
});
