// Which model is asked: the defaults against pi-ai's catalogue, the order of providers, and what
// a key, a name or their absence leads to. In this process, with an environment of its own.

import assert from "node:assert/strict";
import { mkdtempSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import path from "node:path";
import { after, before, test } from "node:test";
import { builtinModels } from "@earendil-works/pi-ai/providers/all";
import { defaultModel, findModel, providerOrder } from "../mini-pi.ts";

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
// The offline model is nobody's provider, and may or may not stand in the list.
const order = providerOrder(models).filter((provider) => provider !== "offline");
const withModels = order.filter((provider) => models.getModels(provider).length > 0);

test("every provider's default exists in the catalogue and can read a good deal of code", (t) => {
  for (const provider of withModels) {
    const model = defaultModel(models, provider);
    assert.ok(model, provider);
    assert.equal(models.getModel(provider, model.id), model);
    const { id, contextWindow, maxTokens, cost } = model;
    t.diagnostic(
      `${provider.padEnd(30)} ${id.padEnd(44)} ${contextWindow} tokens, $${cost.input}/$${cost.output}`,
    );
    assert.ok(contextWindow >= 100_000, `${provider}/${id} takes ${contextWindow} tokens`);
    assert.ok(maxTokens >= 8_000, `${provider}/${id} gives ${maxTokens} tokens`);
  }
});

test("a provider without models in the catalogue has no default, and the others all have one", () => {
  const without = order.filter((provider) => !defaultModel(models, provider));
  assert.deepEqual(
    without,
    order.filter((provider) => !withModels.includes(provider)),
  );
  assert.equal(order.length, models.getProviders().length);
});

test("no provider's default is merely the first of its list, unless it has nothing better", (t) => {
  const first = withModels.filter(
    (provider) =>
      models.getModels(provider).length > 2 &&
      defaultModel(models, provider) === models.getModels(provider)[0],
  );
  t.diagnostic(`the first of the list: ${first.join(", ")}`);
  // A 12B chat model is no reader of code, where the same host has models of 120B and more.
  assert.notEqual(defaultModel(models, "nvidia")?.id, "google/gemma-3-12b-it");
});

test("providers come in the order that suits people, ambient credentials last", () => {
  const first = [
    "anthropic",
    "openai",
    "google",
    "deepseek",
    "openrouter",
    "xai",
    "mistral",
    "groq",
  ];
  assert.deepEqual(order.slice(0, 8), first);
  assert.equal(order.at(-1), "amazon-bedrock");
  const ambient = ["huggingface", "github-copilot", "google-vertex", "amazon-bedrock"];
  assert.deepEqual(new Set(order.slice(-4)), new Set(ambient));
  assert.equal(new Set(order).size, order.length);
});

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
    const id = provider === "offline" ? "search" : defaultModel(models, provider)?.id;
    assert.equal(await chosen(env), `${provider}/${id}`, JSON.stringify(env));
  }
});

test("every provider is chosen when its key alone is set", async () => {
  for (const provider of withModels) {
    const key = await keyOf(provider);
    if (key) assert.notEqual(await chosen({ [key]: "k" }), "offline/search", provider);
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

const both = { ANTHROPIC_API_KEY: "k", OPENAI_API_KEY: "k" };
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
