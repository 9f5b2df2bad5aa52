// Which model is asked: the preferred ones against pi-ai's catalogue, and what a key, a name or their
// absence leads to. In this process, with an environment of its own.

import assert from "node:assert/strict";
import { mkdtempSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import path from "node:path";
import { after, before, test } from "node:test";
import { builtinModels } from "@earendil-works/pi-ai/providers/all";
import { findModel, PREFERRED } from "../mini-pi.ts";

// Here are no keys, and no credentials in files below the home directory.
const HOME = mkdtempSync(path.join(tmpdir(), "mini-pi-models-"));
const outside = { ...process.env };
const setEnvironment = (env: NodeJS.ProcessEnv) => {
  for (const name of Object.keys(process.env)) delete process.env[name];
  Object.assign(process.env, env);
};
before(() => setEnvironment({ PATH: outside.PATH, HOME }));
after(() => {
  setEnvironment(outside);
  rmSync(HOME, { recursive: true, force: true });
});

/** What is chosen, as provider/id, when these variables are set. */
async function chosen(env: Record<string, string>, name?: string, baseUrl?: string) {
  setEnvironment({ PATH: outside.PATH, HOME, ...env });
  const { model } = await findModel(name, baseUrl);
  return `${model.provider}/${model.id}`;
}

const models = builtinModels();
const providers = models.getProviders().map(({ id }) => id);
const withModels = providers.filter((provider) => models.getModels(provider).length > 0);

/** The parts of an entry such as "openrouter/anthropic/claude-sonnet-5.5". */
function parts(name: string): [provider: string, id: string] {
  const slash = name.indexOf("/");
  return [name.slice(0, slash), name.slice(slash + 1)];
}
/** What a provider that is named alone means. */
const usual = (provider: string) =>
  PREFERRED.find((name) => parts(name)[0] === provider) ??
  `${provider}/${models.getModels(provider)[0]?.id}`;

test("every preferred model is in the catalogue and can read a good deal of code", (t) => {
  assert.ok(PREFERRED.length > 0);
  for (const name of PREFERRED) {
    if (name === "offline/search") continue;
    const model = models.getModel(...parts(name));
    assert.ok(model, `${name} is not in the catalogue`);
    const { contextWindow, maxTokens, cost } = model;
    t.diagnostic(`${name.padEnd(60)} ${contextWindow} tokens, $${cost.input}/$${cost.output}`);
    assert.ok(contextWindow >= 100_000, `${name} takes ${contextWindow} tokens`);
    assert.ok(maxTokens >= 8_000, `${name} gives ${maxTokens} tokens`);
  }
});

test("a provider has one preferred model at most", () => {
  const preferred = PREFERRED.map((name) => parts(name)[0]);
  assert.equal(new Set(preferred).size, preferred.length);
});

test("no model that a provider's name alone leads to is too small to read code", (t) => {
  const first = withModels.filter((provider) => !PREFERRED.includes(usual(provider)));
  t.diagnostic(`the first of the list: ${first.join(", ")}`);
  // A 12B chat model is no reader of code, where the same host has models of 120B and more.
  assert.notEqual(usual("nvidia"), "nvidia/google/gemma-3-12b-it");
  for (const provider of withModels) {
    const model = models.getModel(...parts(usual(provider)));
    assert.ok(model && model.contextWindow >= 32_000, usual(provider));
  }
});

test("preferred models come in the order that suits people, ambient credentials last", () => {
  const order = PREFERRED.map((name) => parts(name)[0]).filter((id) => id !== "offline");
  const first = "anthropic openai google deepseek openrouter xai mistral groq".split(" ");
  assert.deepEqual(order.slice(0, 8), first);
  // Keys of these are often there for other uses.
  const ambient = ["huggingface", "github-copilot", "google-vertex", "amazon-bedrock"];
  const last = order.filter((provider) => ambient.includes(provider));
  assert.deepEqual(last, last.length > 0 ? order.slice(-last.length) : []);
});

const both = { ANTHROPIC_API_KEY: "k", OPENAI_API_KEY: "k" };
const aws = { AWS_PROFILE: "default" };
const CHOICES: [env: Record<string, string>, provider: string][] = [
  [{}, "offline"],
  [{ ANTHROPIC_API_KEY: "k", OPENAI_API_KEY: "k", GEMINI_API_KEY: "k" }, "anthropic"],
  [{ OPENAI_API_KEY: "k", GEMINI_API_KEY: "k", DEEPSEEK_API_KEY: "k" }, "openai"],
  [{ GEMINI_API_KEY: "k", DEEPSEEK_API_KEY: "k" }, "google"],
  [{ GROQ_API_KEY: "k", DEEPSEEK_API_KEY: "k" }, "deepseek"],
  [{ MISTRAL_API_KEY: "k", OPENROUTER_API_KEY: "k" }, "openrouter"],
  [{ XAI_API_KEY: "k", MISTRAL_API_KEY: "k", GROQ_API_KEY: "k" }, "xai"],
  [{ CEREBRAS_API_KEY: "k", GROQ_API_KEY: "k" }, "groq"],
  [{ ZAI_API_KEY: "k", HF_TOKEN: "k" }, "zai"],
  [{ HF_TOKEN: "k", COPILOT_GITHUB_TOKEN: "k" }, "huggingface"],
  [{ ...aws, ZAI_API_KEY: "k" }, "zai"],
  [{ ...aws, HF_TOKEN: "k" }, "huggingface"],
  [aws, "amazon-bedrock"],
  [{ ANTHROPIC_API_KEY: "", DEEPSEEK_API_KEY: "k" }, "deepseek"],
  [{ ANTHROPIC_API_KEY: "" }, "offline"],
];

test("without a name the first provider with a key is asked, and without a key the offline model", async () => {
  for (const [env, provider] of CHOICES) {
    const expected = provider === "offline" ? "offline/search" : usual(provider);
    assert.equal(await chosen(env), expected, JSON.stringify(env));
  }
});

test("every provider with a preferred model is chosen when its key alone is set", async () => {
  // Some share a key, such as a company's hosts in two countries: the first of them is meant.
  const names = new Map<string, string>();
  for (const name of PREFERRED) {
    const [provider] = parts(name);
    const key = provider === "offline" ? "" : await keyOf(provider);
    if (key && !names.has(key)) names.set(key, name);
  }
  assert.ok(names.size >= 8);
  for (const [key, name] of names) assert.equal(await chosen({ [key]: "k" }), name);
});

test("a provider that is named alone means its preferred model, else its first", async () => {
  for (const provider of withModels) {
    const key = await keyOf(provider);
    if (key) assert.equal(await chosen({ ...both, [key]: "k" }, provider), usual(provider));
  }
});

/** The one variable that a provider's message names; "" where it takes several. */
async function keyOf(provider: string): Promise<string> {
  setEnvironment({ PATH: outside.PATH, HOME });
  const message = await findModel(provider).then(
    () => "",
    (error) => String(error.message),
  );
  return /: set ([A-Z\d_]+)$/.exec(message)?.[1] ?? "";
}

const NAMES: [name: string, env: Record<string, string>, model: string][] = [
  ["openai/gpt-6.2-sol", both, "openai/gpt-6.2-sol"],
  ["openai", both, "openai/gpt-6.2-sol"],
  [
    "openrouter/anthropic/claude-sonnet-5.5",
    { OPENROUTER_API_KEY: "k" },
    "openrouter/anthropic/claude-sonnet-5.5",
  ],
  ["claude-sonnet-5-5", both, "anthropic/claude-sonnet-5-5"],
  ["gpt-6.2-sol", both, "openai/gpt-6.2-sol"],
  ["gpt-6.2-sol", { AZURE_OPENAI_API_KEY: "k" }, "azure/gpt-6.2-sol"],
  ["offline", both, "offline/search"],
  ["offline/search", both, "offline/search"],
];

for (const [name, env, model] of NAMES)
  test(`with ${Object.keys(env)}, "${name}" means ${model}`, async () => {
    assert.equal(await chosen(env, name), model);
  });

test("a named model without its key says which variable to set, for every provider", async (t) => {
  const expected = {
    anthropic: "ANTHROPIC_API_KEY",
    openai: "OPENAI_API_KEY",
    google: "GEMINI_API_KEY",
  };
  for (const [provider, key] of Object.entries(expected))
    await assert.rejects(chosen({}, provider), {
      message: new RegExp(`${provider}.*\\b${key}\\b`),
    });
  for (const provider of withModels)
    await t.test(provider, () =>
      assert.rejects(chosen({}, provider), ({ message }) =>
        /\b[A-Z]+_[A-Z_]+\b|sign|log|subscription/.test(message),
      ),
    );
});

test("an unknown name is told from a missing key, and leads to the list", async () => {
  for (const name of ["nobody/nothing", "anthropic/claude-nothing", "nothing", "/", ""])
    await assert.rejects(chosen(both, name), { message: /no model.*--list-models/ });
});

test("a part of a name takes the first preferred model that has it and a key", async () => {
  assert.match(await chosen(both, "sonnet"), /^anthropic\/claude-sonnet/);
  assert.match(await chosen(both, "gpt-6"), /^openai\/gpt-6/);
});

test("a base URL changes the host of a catalogue's model and nothing else", async () => {
  setEnvironment({ ...both, HOME });
  const url = "http://127.0.0.1:1234";
  const { model, keyName } = await findModel("anthropic/claude-sonnet-5-5", url);
  assert.deepEqual(model, { ...models.getModel("anthropic", "claude-sonnet-5-5"), baseUrl: url });
  assert.equal(keyName, "ANTHROPIC_API_KEY");
  assert.notEqual(models.getModel("anthropic", "claude-sonnet-5-5")?.baseUrl, url);
});

test("a base URL with an unknown model is a local OpenAI-compatible server that costs nothing", async () => {
  setEnvironment({ HOME });
  const { model } = await findModel("qwen9:7b", "http://127.0.0.1:11434/v1");
  const { id, api, baseUrl, cost } = model;
  assert.deepEqual(
    [id, api, baseUrl],
    ["qwen9:7b", "openai-completions", "http://127.0.0.1:11434/v1"],
  );
  assert.deepEqual(cost, { input: 0, output: 0, cacheRead: 0, cacheWrite: 0 });
});
