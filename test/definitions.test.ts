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
    "above.ts": `${"// needle\n".repeat(50_000)}function f() {\n${"  {\nneedle\n".repeat(50_000)}`,
    "spaces.ts": `${`${" ".repeat(290)}x\n`.repeat(1500)}${" ".repeat(290)}needle\n`,
  });
  const start = performance.now();
  await search(agent, "needle");
  await search(agent, "needle", { whole: true });
  // It would take minutes if each line were compared with each.
  assert.ok(performance.now() - start < 15_000, `${performance.now() - start} ms`);
});

// ─── Whole definitions ─────────────────────────────────────────────────────────────────────────

/** A source in which one line holds HIT; its lines from the one with FROM to that with TO, or to
 * HIT, are what is to be shown. */
const WHOLE: [what: string, source: string][] = [
  [
    "a function with its comment and decorators, to the bracket that closes it",
    `
const before = 1;

/** FROM what it
 * does. */
@log
@route({
  path: "/",
})
export async function f(
  a: string,
): Promise<void> {
  HIT
} // TO
const after = 2;`,
  ],
  [
    "a method, and not the class",
    `
class A {
  before() {}
  // FROM
  f() {
    if (a) {
      HIT
    } else {
      b();
    }
  } // TO

  after() {}
}`,
  ],
  [
    "Python, with a comment at the margin, its last line, and no line behind",
    `
class A:
    @property # FROM
    @cached(
        60,
    )
    def f(
        self,
    ) -> str:
        """Doc."""
# a comment at the margin
        HIT
        return 1 # TO

    # of the next
    def g(self):
        pass`,
  ],
  [
    "Rust, with attributes, and what it asks of its types",
    `
/// FROM Doc.
#[inline]
pub fn f<T>(
    self,
) -> Result<T>
where
    T: Copy,
{
    HIT
} // TO

fn g() {}`,
  ],
  [
    "Go",
    `
// FROM f does.
func (c *C) f(a int) (b int,
	err error) {
	HIT
} // TO
func g() {
}`,
  ],
  [
    "C, with its type and its brace on lines of their own, and directives at the margin",
    `
#include <a.h>
static int /* FROM */
f(struct state *s, int a,
  int b)
{
#ifdef A
    if (a)
        HIT;
retry:
    b();
#endif
} // TO
int g(void) { return 1; }`.replace("static int /* FROM */", "// FROM\nstatic int"),
  ],
  [
    "Java, with an annotation and its parameters on lines of their own",
    `
public class A {
  @Override // FROM
  public Map<String, Integer> f(
      String a, List<String> b)
      throws IOException {
    return HIT;
  } // TO

  int g() { return 1; }
}`,
  ],
  [
    "Ruby",
    `
class A
  # FROM
  def f(a)
    HIT
  rescue Error
    1
  ensure
    2
  end # TO

  def g
  end
end`,
  ],
  [
    "a text at the margin is inside",
    `
function f() { // FROM
  const text = \`
There is a class of texts at the margin
which end nothing
\`;
  HIT
} // TO
function g() {}`,
  ],
  [
    "a text at the margin that is itself the match",
    `
class A {
  f() { // FROM
    const text = \`
at the HIT
\`;
    b();
  } // TO

  g() {}
}`,
  ],
  [
    "a table at the margin",
    `
A = 1

# FROM
RESERVED: set[str] = frozenset([
    "a",
    "HIT",
]) # TO

B = 2`,
  ],
  [
    "a definition that is the match itself",
    `
const a = 1;
// FROM
export const HIT = (b: string) => {
  c(b);
}; // TO
const d = 1;`,
  ],
  [
    "a definition whose comment holds the match",
    `
const a = 1;
// FROM
// HIT
function f() {
  b();
} // TO`,
  ],
  [
    "the line that closes its parameters",
    `
function f( // FROM
  a: string,
): HIT {
  b();
} // TO

function g() {}`,
  ],
  [
    "of no definition, the paragraph",
    `
# A title

A text FROM
with HIT
in TO

another`,
  ],
  ["a single line", "\nimport b\n\nimport HIT, FROM, TO\n\nimport c"],
];

describe("a search for the whole shows exactly", () => {
  for (const [what, source] of WHOLE)
    test(what, async () => {
      const lines = source.trimStart().split("\n");
      // A definition is no paragraph.
      const last = lines.findIndex((line) => line.includes("TO"));
      if (!/paragraph|single/.test(what)) lines.splice(last, 0, "");
      const at = (mark: string) => 1 + lines.findIndex((line) => line.includes(mark));
      const agent = await agentWith({ a: lines.join("\n") });
      const { text } = await search(agent, "HIT", { whole: true });
      // An outer head, marked "=", may stand above.
      const rows = [...text.matchAll(/^(\d+)(?:-(\d+))?([=:-]) (.*)$/gm)];
      const shown = rows.flatMap(([, n, , mark]) =>
        mark === "=" && Number(n) < at("FROM") ? [] : [n],
      );
      const expected = lines.map((_, i) => `${i + 1}`).slice(at("FROM") - 1, at("TO"));
      assert.deepEqual(shown, expected, text);
      for (const [, n, , , line] of rows) assert.equal(line, lines[Number(n) - 1]);
    });
});

const FUNCTION = (name: string, lines: number) =>
  `function ${name}() {\n${"  body();\n".repeat(lines - 2)}}\n`;

test("a whole definition is shown once, however many of its lines match", async () => {
  const agent = await agentWith({ "a.ts": FUNCTION("f", 40), "b.ts": FUNCTION("g", 4) });
  const { text } = await search(agent, "body", { whole: true });
  assert.equal(text.match(/^1-40= function f/gm)?.length, 1);
  assert.equal(text.match(/^\d+: {3}body/gm)?.length, 38 + 2);
  assert.doesNotMatch(text, /…|\[first/);
});

test("of a definition of more than 150 lines, its head, what is around, its end, and the way on", async () => {
  const long = FUNCTION("f", 700).replace(/(body\(\);\n {2}){350}/, (all) => `${all}needle;\n  `);
  const agent = await agentWith({ "a.ts": `// Doc.\n${long}` });
  const { text } = await search(agent, "needle", { whole: true });
  assert.match(text, /^a\.ts\n1- \/\/ Doc\.\n2-702= function f\(\) \{\n3- {3}body/);
  assert.match(text, /^11- .*\n… \[offset=11\]$|^10- .*\n… \[offset=11\]\n3\d\d- /m);
  assert.match(text, /\n35\d: {3}needle;\n/);
  assert.match(text, /\n… \[offset=\d+\]\n702- \}$/);
  assert.ok(text.split("\n").length < 150, text);
});

test("whole definitions that do not fit are told with their spans; nothing is over 32 KB", async () => {
  const files = Array.from({ length: 30 }, (_, i) => [
    `f${i}.ts`,
    `// ${i}\n${FUNCTION(`f${i}`, 120).replace("body", "needle")}`,
  ]);
  const agent = await agentWith(Object.fromEntries(files));
  const { text } = await search(agent, "needle", { whole: true });
  assert.ok(Buffer.byteLength(text) < 33 * 1024, `${text.length}`);
  assert.equal(text.match(/^2-121= function f\d+\(\) \{$/gm)?.length, 30);
  assert.equal(text.match(/^3: {3}needle/gm)?.length, 30);
  const wholes = text.match(/^121- \}$/gm)?.length ?? 0;
  assert.ok(wholes > 10 && wholes < 30, `${wholes}`);
});

test("every line of a whole definition counts as seen, and no other", async () => {
  const agent = await agentWith({ "src/server.ts": SERVER });
  const args = { pattern: "this.needle = 1", whole: true };
  const call = { type: "toolCall", id: "1", name: "search_files", arguments: args } as const;
  agent.messages.push(await runTool(agent, call, agent.signal));
  const states = await checkSources(agent, "src/server.ts:3-7, src/server.ts:8, src/server.ts:9");
  assert.deepEqual(
    states.map(({ from, state }) => [from, state]),
    [
      [3, "seen"],
      [8, "exists"],
      [9, "exists"],
    ],
  );
});

test("of more matches than are shown, definitions come first, and the rest is told by place", async () => {
  const uses = (n: number) => "needle(1);\n".repeat(n);
  const agent = await agentWith({
    ...Object.fromEntries(Array.from({ length: 8 }, (_, i) => [`plugins/p${i}.js`, uses(20)])),
    "app.js": uses(300),
    "a.test.js": 'it("has a needle", function (needle) {\n});\n'.repeat(10),
    "z/core.js": `${uses(30)}function needle(a) {\n  return a;\n}\n`,
    "z/more.rs": "pub(crate) struct needle {\n}\n",
    "z/some.go": "func (a *A) needle() {\n}\n",
  });
  const { text } = await search(agent, "needle");
  assert.match(
    text,
    /^z\/core\.js\n31-33: function needle\(a\) \{\nz\/more\.rs\n1-2: .*\nz\/some\.go\n1-2: .*\na\.test\.js\n1-2: it/,
  );
  const [, first, rest] =
    /\[first (\d+) matches of 503 in 13 files; others: (.*); narrow/.exec(text) ?? [];
  assert.equal(first, "100");
  assert.match(rest ?? "", /^275 in app\.js, 98 in plugins\/, 30 in z\/core\.js$/);
  // So it is, too, where the definition is shown whole.
  const whole = await search(agent, "needle", { whole: true });
  assert.match(whole.text, /^z\/core\.js\n31-33: .*\n32- {3}return a;\n33- \}\nz\/more/);
});

test("a match in a long file is told the class it stands in, however deep", async () => {
  const deep =
    '    describe("a", () => {\n      it("b", () => {\n        const c = () => {\n          needle();\n        };\n      });\n    });\n';
  const agent = await agentWith({
    "a.ts": `class Big {\n${"  x = 1;\n".repeat(1500)}  f() {\n${deep}  }\n${"  y = 1;\n".repeat(1500)}  g() {\n    needle();\n  }\n}\n`,
  });
  const { text } = await search(agent, "needle");
  const heads = text.match(/^\d+-\d+= .*$/gm)?.map((row) => row.replace(/= +/, "= "));
  assert.deepEqual(heads, [
    "1-3014= class Big {",
    '1504-1508= it("b", () => {',
    "1505-1507= const c = () => {",
    "3011-3013= g() {",
  ]);
});
