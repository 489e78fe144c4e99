// Answers of three packages at once, while a node is lost inside of all of them. Says `ready` when it knows each answer, waits for a
// line, asks again, says `inside` when every answer has begun.

import process from "node:process";
import { createInterface } from "node:readline";
import Anthropic from "@anthropic-ai/sdk";
import { Ollama } from "ollama";
import OpenAI from "openai";
import { check, node } from "./check.mjs";

const items = { type: "array", items: { enum: ["red", "green", "blue"] }, minItems: 40, maxItems: 40 };
const schema = { type: "object", properties: { colours: items }, required: ["colours"], additionalProperties: false };
const messages = [{ role: "user", content: "Colours?" }];
/** Pieces of an answer that are read before the node is lost. */
const beginning = 3;

const openai = new OpenAI({ baseURL: `${node}/v1`, apiKey: "local", maxRetries: 0, timeout: 60_000 });
const anthropic = new Anthropic({ baseURL: node, apiKey: "local", maxRetries: 0, timeout: 60_000 });
const ollama = new Ollama({ host: node });
const chat = { model: "demo", messages, max_tokens: 400, temperature: 1, seed: 7, stream: true, stream_options: { include_usage: true } };

async function* chatSchema(seen) {
  const response_format = { type: "json_schema", json_schema: { name: "colours", schema } };
  for await (const chunk of await openai.chat.completions.create({ ...chat, response_format })) {
    seen.push(chunk);
    yield chunk.choices[0]?.delta.content ?? "";
  }
}

async function* chatCall(seen) {
  const tools = [{ type: "function", function: { name: "paint", strict: true, parameters: schema } }];
  const asked = { ...chat, tools, tool_choice: "required", parallel_tool_calls: false };
  for await (const chunk of await openai.chat.completions.create(asked)) {
    seen.push(chunk);
    for (const call of chunk.choices[0]?.delta.tool_calls ?? []) yield call.function?.arguments ?? "";
  }
}

async function* messageCall() {
  const tools = [{ name: "paint", strict: true, input_schema: schema }];
  const tool_choice = { type: "any", disable_parallel_tool_use: true };
  for await (const event of await anthropic.messages.create({ model: "demo", messages, max_tokens: 400, seed: 7, tools, tool_choice, stream: true })) {
    if (event.delta?.type === "input_json_delta") yield event.delta.partial_json;
  }
}

async function* ollamaSchema() {
  const options = { seed: 7, num_predict: 400 };
  for await (const part of await ollama.chat({ model: "demo", messages, format: schema, options, stream: true })) yield part.message.content;
}

const answers = [chatSchema, chatCall, messageCall, ollamaSchema];

async function whole(pieces) {
  let text = "";
  for await (const piece of pieces) text += piece;
  return text;
}

const expected = await Promise.all(answers.map((answer) => whole(answer([]))));
for (const text of expected) check("an answer is whole", JSON.parse(text).colours.length === 40, text);
console.log("ready");
const input = createInterface({ input: process.stdin });
await new Promise((resolve) => input.once("line", resolve));
input.close();

let begun = 0;

async function follow(answer, at) {
  const seen = [];
  let text = "";
  let count = 0;
  for await (const piece of answer(seen)) {
    text += piece;
    count += 1;
    if (count === beginning && ++begun === answers.length) console.log("inside");
  }
  check(`${answer.name} is the same`, text === expected[at], text, expected[at]);
  // The chat's last chunk says where its answer was interrupted.
  if (seen.length > 0) check(`${answer.name} was interrupted`, seen.at(-1).exo?.resumed?.length > 0, seen.at(-1));
}

await Promise.all(answers.map(follow));
console.log("ok");
