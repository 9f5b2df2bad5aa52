// The least that an agent on pi-ai costs: one provider, two trivial tools, no checks, no terminal.
import { readdirSync, readFileSync } from "node:fs";
import { createModels, type Message } from "@earendil-works/pi-ai";
import { anthropicProvider } from "@earendil-works/pi-ai/providers/anthropic";

const [, , baseUrl = "", root = ".", question = ""] = process.argv;
const models = createModels();
models.setProvider(anthropicProvider());
const known = models.getModel("anthropic", "claude-sonnet-5-5");
if (!known) throw new Error("no model");
const parameters = { type: "object", properties: { path: { type: "string" } }, required: ["path"] };
const tools = [
  { name: "list_files", description: "List a directory.", parameters },
  { name: "read_file", description: "Read a file.", parameters },
];
const messages: Message[] = [{ role: "user", content: question, timestamp: Date.now() }];
while (true) {
  const reply = await models.completeSimple({ ...known, baseUrl }, { messages, tools });
  messages.push(reply);
  const calls = reply.content.filter((block) => block.type === "toolCall");
  for (const { id: toolCallId, name: toolName, arguments: args } of calls) {
    const path = `${root}/${args.path}`;
    const text =
      toolName === "list_files" ? readdirSync(path).join("\n") : readFileSync(path, "utf8");
    const content = [{ type: "text" as const, text }];
    messages.push({
      role: "toolResult",
      toolCallId,
      toolName,
      content,
      isError: false,
      timestamp: 0,
    });
  }
  if (calls.length > 0) continue;
  console.log(reply.content.map((block) => (block.type === "text" ? block.text : "")).join(""));
  break;
}
