// Chat, Responses and embeddings through OpenAI's own package.

import OpenAI from "openai";
import { zodFunction, zodResponseFormat, zodTextFormat } from "openai/helpers/zod";
import { z } from "zod";
import { check, checkWeather, firstOf, node, question, refused, weather } from "./check.mjs";

const client = new OpenAI({ baseURL: `${node}/v1`, apiKey: "local", maxRetries: 0, timeout: 60_000 });
const asked = { model: "tools", messages: question, max_tokens: 150, temperature: 1, seed: 3 };
const Person = z.object({ name: z.enum(["Ann", "Bob"]), age: z.number().int().min(0).max(120) });
const Weather = z.object({ city: z.enum(["Rome", "Oslo"]), days: z.number().int().min(1).max(9) });

async function texts() {
  const whole = await client.chat.completions.create({ ...asked, max_tokens: 12 });
  let text = "";
  const options = { include_usage: true };
  for await (const chunk of await client.chat.completions.create({ ...asked, max_tokens: 12, stream: true, stream_options: options })) {
    text += chunk.choices[0]?.delta.content ?? "";
    if (chunk.usage) check("its usage", chunk.usage.completion_tokens === whole.usage.completion_tokens, chunk);
  }
  check("a stream says the same", text && text === whole.choices[0].message.content, text, whole);
}

async function typed() {
  const format = zodResponseFormat(Person, "person");
  const answer = await client.chat.completions.parse({ ...asked, response_format: format });
  const person = answer.choices[0].message.parsed;
  check("a typed answer", person && person.age <= 120 && ["Ann", "Bob"].includes(person.name), answer);
  const final = await client.chat.completions.stream({ ...asked, response_format: format }).finalChatCompletion();
  check("a streamed typed answer", final.choices[0].message.parsed.age === person.age, final);
}

async function rounds() {
  const tool = zodFunction({ name: "get_weather", parameters: Weather });
  const calling = { ...asked, tools: [tool], tool_choice: "required", parallel_tool_calls: false };
  const answer = await client.chat.completions.parse(calling);
  const { message, finish_reason } = answer.choices[0];
  checkWeather("a typed call", message.tool_calls[0].function.parsed_arguments);
  check("it says that it calls", finish_reason === "tool_calls" && message.content === null, answer);
  const final = await client.chat.completions.stream(calling).finalChatCompletion();
  const [call] = final.choices[0].message.tool_calls;
  check("a streamed call", call.function.arguments === message.tool_calls[0].function.arguments, final);
  const result = { role: "tool", tool_call_id: message.tool_calls[0].id, content: "Sun." };
  const again = { ...asked, messages: [...question, message, result], tools: [tool], tool_choice: "none", max_tokens: 8 };
  check("a second round", !(await client.chat.completions.create(again)).choices[0].message.tool_calls);
  const beside = { ...calling, tool_choice: "auto", response_format: zodResponseFormat(Person, "person"), temperature: 0 };
  const either = (await client.chat.completions.parse(beside)).choices[0].message;
  check("calls or an answer of the format", either.parsed?.age <= 120 || either.tool_calls?.length > 0, either);
}

async function runner() {
  const told = [];
  const answered = (args) => told.push(args) && "Sun.";
  const tool = zodFunction({ name: "get_weather", parameters: Weather, function: answered });
  const calling = { ...asked, tools: [tool], tool_choice: "required", parallel_tool_calls: false };
  for (const stream of [false, true]) {
    const run = client.chat.completions.runTools({ ...calling, stream }, { maxChatCompletions: 2 });
    await run.done();
    const results = run.messages.filter(({ role, content }) => role === "tool" && content === "Sun.");
    check("the runner's two rounds", results.length === 2, run.messages);
  }
  for (const args of told) checkWeather("what the runner calls with", args);
}

async function parallel() {
  const tool = zodFunction({ name: "get_weather", parameters: Weather });
  const calling = { ...asked, model: "equals", tools: [tool], tool_choice: "required", max_tokens: 500 };
  const answer = await firstOf(async (seed) => {
    const { choices } = await client.chat.completions.create({ ...calling, seed });
    const [{ message, finish_reason }] = choices;
    return finish_reason === "tool_calls" && message.tool_calls.length === 2 && { message, seed };
  });
  const { message, seed } = answer;
  const final = await client.chat.completions.stream({ ...calling, seed }).finalChatCompletion();
  const streamed = final.choices[0].message.tool_calls.map((call) => call.function.arguments);
  check("two streamed calls", streamed.join() === message.tool_calls.map((call) => call.function.arguments).join(), final);
  for (const text of streamed) checkWeather("a call of two", JSON.parse(text));
  const results = message.tool_calls.map((call) => ({ role: "tool", tool_call_id: call.id, content: "Sun." }));
  const again = { ...calling, messages: [...question, message, ...results], tool_choice: "none", max_tokens: 8 };
  check("two results go back", !(await client.chat.completions.create(again)).choices[0].message.tool_calls);
}

async function responses() {
  const input = { model: "tools", input: question[0].content, max_output_tokens: 150, seed: 3 };
  const text = { format: zodTextFormat(Person, "person") };
  const answer = await client.responses.parse({ ...input, text });
  check("a typed response", answer.output_parsed.age <= 120, answer);
  const tools = [{ type: "function", name: "get_weather", strict: true, parameters: weather }];
  const calling = { ...input, tools, tool_choice: "required", parallel_tool_calls: false };
  const stream = client.responses.stream(calling);
  const kinds = new Set();
  for await (const event of stream) kinds.add(event.type);
  const [call] = (await stream.finalResponse()).output;
  checkWeather("a streamed call", JSON.parse(call.arguments));
  check("its events", kinds.has("response.function_call_arguments.delta") && kinds.has("response.completed"), [...kinds]);
}

async function others() {
  const { data } = await client.embeddings.create({ model: "tools", input: ["a", "b"], pooling: "mean" });
  check("vectors", data.length === 2 && data[0].embedding.length > 10, data.length);
  check("models", (await client.models.list()).data.some((model) => model.id === "tools"));
  const stream = await client.chat.completions.create({ ...asked, stream: true, ignore_eos: true });
  for await (const _ of stream) break;
  const schema = { type: "array", items: { not: { type: "null" } } };
  const format = { type: "json_schema", json_schema: { name: "x", schema } };
  const place = await refused("a schema", OpenAI.BadRequestError, () => client.chat.completions.create({ ...asked, response_format: format }));
  check("the place is named", String(place).includes("#/items/not"), String(place));
  await refused("a model", OpenAI.NotFoundError, () => client.chat.completions.create({ ...asked, model: "none" }));
  const long = [{ role: "user", content: "word ".repeat(20_000) }];
  const error = await refused("a long prompt", OpenAI.BadRequestError, () => client.chat.completions.create({ ...asked, messages: long }));
  check("its code", error.code === "context_length_exceeded", error.code);
}

for (const part of [texts, typed, rounds, runner, parallel, responses, others]) await part();
console.log("ok");
