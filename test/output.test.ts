// What a terminal shows of replies as they come, over failed attempts, calls, and several questions.

import assert from "node:assert/strict";
import { test } from "node:test";
import { fauxAssistantMessage } from "@earendil-works/pi-ai";
import { type AgentEvent, showText } from "../mini-pi.ts";

const usage = fauxAssistantMessage("").usage;
const partial = fauxAssistantMessage("");

/** A question begins; pieces of a reply come; it ends as it says. */
type Step = "ask" | { pieces: string[]; ends: "stop" | "toolUse" | "length" | "error" | "aborted" };

function eventsOf(step: Step): AgentEvent[] {
  if (step === "ask") return [{ type: "agent_start" }];
  const pieces = step.pieces.map((delta): AgentEvent => {
    const update = { type: "text_delta", contentIndex: 0, delta, partial } as const;
    return { type: "message_update", usage, assistantMessageEvent: update };
  });
  const message = fauxAssistantMessage(step.pieces.join(""), { stopReason: step.ends });
  return [...pieces, { type: "message_end", message }];
}

const failed = (...pieces: string[]): Step => ({ pieces, ends: "error" });
const stopped = (...pieces: string[]): Step => ({ pieces, ends: "stop" });

const SHOWN: [what: string, steps: Step[], shown: string][] = [
  ["an answer", ["ask", stopped("One", " two.")], "One two.\n"],
  ["an answer that ends its line", ["ask", stopped("One.\n")], "One.\n"],
  [
    "the same again after a failure",
    ["ask", failed("One t"), stopped("One", " two.")],
    "One two.\n",
  ],
  ["a failure before any text", ["ask", failed(), stopped("One.")], "One.\n"],
  [
    "another text after a failure",
    ["ask", failed("One two"), stopped("Three.")],
    "One two\nThree.\n",
  ],
  [
    "a text that differs from its second piece on",
    ["ask", failed("One two"), stopped("One", " three.")],
    "One two\nOne three.\n",
  ],
  [
    "less than a failed attempt had shown",
    ["ask", failed("One two and more"), stopped("One", " two")],
    "One two and more\nOne two\n",
  ],
  ["two failures", ["ask", failed("O"), failed("One t"), stopped("One two.")], "One two.\n"],
  [
    "parts of one answer",
    ["ask", { pieces: ["One t"], ends: "length" }, stopped("wo.")],
    "One two.\n",
  ],
  [
    "words beside calls, and an answer that begins like them",
    ["ask", { pieces: ["Let me"], ends: "toolUse" }, stopped("Let me say it.")],
    "Let me\nLet me say it.\n",
  ],
  [
    "the next question after one that failed",
    ["ask", failed("One"), "ask", stopped("One two.")],
    "OneOne two.\n",
  ],
  ["an emoji in two halves", ["ask", stopped("a\ud83d", "\ude00b")], "a😀b\n"],
  ["an empty piece", ["ask", failed("One"), stopped("", "One", "", " two.")], "One two.\n"],
];

for (const [what, steps, expected] of SHOWN)
  test(`a terminal shows ${what}`, () => {
    const written: string[] = [];
    const show = showText((text) => written.push(text));
    for (const event of steps.flatMap(eventsOf)) show(event);
    assert.equal(written.join(""), expected);
    assert.ok(written.every((text) => text.isWellFormed()));
  });
