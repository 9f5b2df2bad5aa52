// What searches show of the definitions around a match.

import assert from "node:assert/strict";
import { describe, test } from "node:test";
import { checkSources, definitionsAround, enclosing, runTool } from "../mini-pi.ts";
import { agentWith, search } from "./fixtures.ts";

/** A source in which one line holds HIT, and the lines that are to be shown with it. */
const AROUND: [language: string, source: string, around: string[]][] = [
  [
    "a TypeScript method",
    `
export class Server extends Base {
  #open = false;
  async handle(request: Request): Promise<Response> {
    if (request.body) {
      return HIT;
    }
  }
}`,
    ["export class Server extends Base {", "async handle(request: Request): Promise<Response> {"],
  ],
  [
    "a TypeScript function with its parameters on lines of their own",
    `
export async function build(
  root: string,
): Promise<void> {
  HIT;
}`,
    ["export async function build("],
  ],
  [
    "an arrow function, in the else of an if",
    `
const plain = 1;
export const build = async (root: string) => {
  if (root) {
    other();
  } else {
    HIT;
  }
};`,
    ["export const build = async (root: string) => {"],
  ],
  [
    "an object that is passed on",
    `
const readFile = tool({
  name: "read_file",
  async execute(agent, { path }) {
    HIT;
  },
});`,
    ["const readFile = tool({", "async execute(agent, { path }) {"],
  ],
  [
    "a function that is assigned, as in old JavaScript",
    `
res.send = function send(body) {
  switch (typeof body) {
    case 'string':
      HIT
  }
};`,
    ["res.send = function send(body) {"],
  ],
  [
    "a test",
    `
describe("the guard", () => {
  test("refuses links", async () => {
    HIT;
  });
});`,
    ['describe("the guard", () => {', 'test("refuses links", async () => {'],
  ],
  [
    "an interface",
    `
export interface Agent {
  HIT: string;
}`,
    ["export interface Agent {"],
  ],
  [
    "Python",
    `
class Session(Base):
    timeout = 3

    @property
    def adapter(
        self, url,
    ) -> Adapter:
        # a comment
# and one at the margin
        try:
            pass
        except OSError:
            HIT`,
    ["class Session(Base):", "def adapter("],
  ],
  [
    "Go",
    `
func helper() {
}

func (c *Command) Execute(args []string) (cmd *Command, err error) {
	if err != nil {
		for _, x := range args {
			HIT
		}
	}
}`,
    ["func (c *Command) Execute(args []string) (cmd *Command, err error) {"],
  ],
  [
    "Rust",
    `
impl<R: io::Read> IoState<R> {
    pub(crate) fn join(
        mut self,
    ) -> CliResult<()> {
        match self.next() {
            Some(x) => {
                HIT
            }
        }
    }
}`,
    ["impl<R: io::Read> IoState<R> {", "pub(crate) fn join("],
  ],
  [
    "Java, with the brace on the next line",
    `
public final class Gson
{
    @Override
    public <T> T fromJson(String json, Class<T> type) throws IOException
    {
        while (true)
        {
            HIT;
        }
    }
}`,
    [
      "public final class Gson",
      "public <T> T fromJson(String json, Class<T> type) throws IOException",
    ],
  ],
  [
    "C",
    `
struct config E;

static int editorOpen(char *filename)
{
#ifdef LINUX
    if (!fp) {
        HIT;
    }
retry:
    ;
#endif
}`,
    ["static int editorOpen(char *filename)"],
  ],
  [
    "C# in a namespace",
    `
namespace Shop
{
    public sealed class Cart
    {
        public int Total(bool all)
        {
            return HIT;
        }
    }
}`,
    ["namespace Shop", "public sealed class Cart", "public int Total(bool all)"],
  ],
  [
    "Ruby",
    `
module Thor
  class Shell
    def self.print(message)
      words.each do |word|
        HIT
      end
    end
  end
end`,
    ["module Thor", "class Shell", "def self.print(message)"],
  ],
  [
    "PHP",
    `
final class Router {
    private static function match(string $path): ?Route {
        foreach ($this->routes as $route) {
            HIT
        }
    }
}`,
    ["final class Router {", "private static function match(string $path): ?Route {"],
  ],
  [
    "Kotlin and Swift",
    `
data class Point(val x: Int) {
    override suspend fun move(by: Int) {
        HIT
    }
}`,
    ["data class Point(val x: Int) {", "override suspend fun move(by: Int) {"],
  ],
  [
    "a shell script",
    `
deploy() {
  if [ -n "$1" ]; then
    HIT
  fi
}`,
    ["deploy() {"],
  ],
  [
    "a call over several lines is no definition, nor is what returns or throws",
    `
function f() {
  return build({
    deep: {
      HIT,
    },
  });
}`,
    ["function f() {"],
  ],
  [
    "no call with a callback, no condition over several lines, no arm of a match",
    `
function main() {
  setImmediate(function () {
    if (
      is_separator(*(p+1))
    ) {
      next(createError(406, {
        move(c == UP ? A:
          Some(x) => {
            HIT
`,
    ["function main() {"],
  ],
  [
    "no text that only reads like a definition",
    `
const help = \`
  Simply type \\\` + name + \\\` to see (more):
    HIT
\`;`,
    ["const help = `"].slice(1),
  ],
  [
    "a block that has a text as its name, as in tests and in Ruby",
    `
RSpec.describe Thor do
  describe "#invoke" do
    app.get('/users', function (req, res) {
      HIT`,
    ['describe "#invoke" do', "app.get('/users', function (req, res) {"],
  ],
  ["a line at the margin", "function f() {\n}\nHIT", []],
  [
    "what stands before, at the same depth",
    "class A:\n    def f(self):\n        pass\n    HIT",
    ["class A:"],
  ],
  ["the first line", "HIT", []],
];

describe("the definitions around a line are told by indentation, the outermost first", () => {
  for (const [language, source, expected] of AROUND)
    test(language, () => {
      const lines = source.split("\n");
      const at = 1 + lines.findIndex((line) => line.includes("HIT"));
      const around = definitionsAround(enclosing(lines), at).map((n) => lines[n - 1]?.trim());
      assert.deepEqual(around, expected);
    });
});

test("a line that is not there stands in nothing", () => {
  for (const at of [0, 3, 1e9])
    assert.deepEqual(definitionsAround(enclosing(["class A {", "  b"]), at), []);
});

// ─── In searches ───────────────────────────────────────────────────────────────────────────────

const SERVER = `import { log } from "./log.ts";

export class Server {
  start(port: number) {
    this.needle = 1;
    this.needle = 2;
  }

  stop() {
    log(this.needle);
  }
}
`;

test("a search shows each definition once, above its first match, with its last line", async () => {
  const agent = await agentWith({ "src/server.ts": SERVER, "top.ts": "const needle = 1;\n" });
  const expected = [
    "src/server.ts",
    "3-12= export class Server {",
    "4-7=   start(port: number) {",
    "5:     this.needle = 1;",
    "6:     this.needle = 2;",
    "9-11=   stop() {",
    "10:     log(this.needle);",
    "top.ts",
    "1: const needle = 1;",
  ];
  assert.equal((await search(agent, "needle")).text, expected.join("\n"));
});

test("a definition that is itself a match, or a line around one, is not shown again", async () => {
  const agent = await agentWith({
    "a.ts": "class Needle {\n  b() {\n    return needle;\n  }\n}\n",
  });
  const { text } = await search(agent, "needle", { ignoreCase: true });
  assert.equal(text, "a.ts\n1-5: class Needle {\n2-4=   b() {\n3:     return needle;");
  const around = await search(agent, "return", { context: 1 });
  const rows = "a.ts\n1-5= class Needle {\n2-4=   b() {\n3:     return needle;\n4-   }";
  assert.equal(around.text, rows);
});

test("no definition of a secret file, of a binary or of a line out of reach is shown", async () => {
  const deep = `class Far {\n${"  x\n".repeat(21_000)}  needle\n}\n`;
  const agent = await agentWith({
    ".env": "class Secret {\n  needle\n}\n",
    "a.bin": "class Binary {\n  needle\n}\n\0",
    "far.ts": deep,
    "wide.ts": `class Wide {${" ".repeat(400)}\n  needle\n}\n`,
  });
  const { text } = await search(agent, "needle");
  assert.match(text, /^far\.ts\n21002: {3}needle\nwide\.ts\n2: {3}needle\n\[left out.*\.env\]$/);
});

test("a definition that was shown counts as seen", async () => {
  const agent = await agentWith({ "src/server.ts": SERVER });
  const args = { pattern: "log\\(" };
  const call = { type: "toolCall", id: "1", name: "search_files", arguments: args } as const;
  agent.messages.push(await runTool(agent, call, agent.signal));
  const states = await checkSources(agent, "src/server.ts:9, src/server.ts:10, src/server.ts:4");
  assert.deepEqual(
    states.map(({ from, state }) => [from, state]),
    [
      [9, "seen"],
      [10, "seen"],
      [4, "exists"],
    ],
  );
});

test("a line in a staircase of definitions is shown with the three nearest, and is shown", async () => {
  const stairs = (i: number) => `${" ".repeat(i)}f${"(".padEnd(200, "x")}) {\n`;
  const agent = await agentWith({
    "a.ts": `${Array.from({ length: 60 }, (_, i) => stairs(i)).join("")}${" ".repeat(60)}needle\n`,
  });
  for (const context of [0, 2]) {
    const { text } = await search(agent, "needle", { context });
    assert.match(text, /^61: +needle$/m);
    assert.ok(Buffer.byteLength(text) < 3 * 1024, `${text.length} characters`);
    assert.ok((text.match(/^[\d-]+= /gm)?.length ?? 0) <= 3 + 2 * context);
  }
});

test("definitions are shown as the file has them, whatever ends its lines and encodes it", async () => {
  const source = "class Café {\n  const tools = tool({\n    needle\n";
  const crlf = source.replaceAll("\n", "\r\n");
  const agent = await agentWith({
    "bom.ts": `\ufeff${source}`,
    "crlf.ts": crlf,
    "latin.ts": Buffer.from(source, "latin1"),
    "utf16.ts": Buffer.from(`\ufeff${crlf}`, "utf16le"),
  });
  for (const name of ["bom.ts", "crlf.ts", "latin.ts", "utf16.ts"]) {
    const { text } = await search(agent, "needle", { path: name });
    const expected = `${name}\n1-3= class Café {\n2-3=   const tools = tool({\n3:     needle`;
    assert.equal(text, expected, name);
  }
});

test("a file made to be slow does not hold up a search", async () => {
  const steps = Array.from(
    { length: 250 },
    (_, i) => `${" ".repeat(i)}${"a (".repeat((290 - i) / 3)}`,
  );
  const agent = await agentWith({
    "steps.ts": [...steps, ...Array.from({ length: 100 }, () => `${" ".repeat(255)}needle`)].join(
      "\n",
    ),
    "closers.ts": `f(\n${" }\n".repeat(100_000)}  needle\n`.repeat(2),
    "spaces.ts": `${`${" ".repeat(290)}x\n`.repeat(1500)}${" ".repeat(290)}needle\n`,
  });
  const start = performance.now();
  await search(agent, "needle");
  // It would take minutes if each line were compared with each.
  assert.ok(performance.now() - start < 15_000, `${performance.now() - start} ms`);
});
