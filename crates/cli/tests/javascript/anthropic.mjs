// Messages through Anthropic's own package.

import Anthropic from "@anthropic-ai/sdk";
import { betaZodTool } from "@anthropic-ai/sdk/helpers/beta/zod";
import { zodOutputFormat } from "@anthropic-ai/sdk/helpers/zod";
import { z } from "zod";
import { check, checkWeather, firstOf, node, question, refused, weather } from "./check.mjs";

const client = new Anthropic({ baseURL: node, apiKey: "local", maxRetries: 0, timeout: 60_000 });
const asked = { model: "tools", messages: question, max_tokens: 24, seed: 3 };
const tools = [{ name: "get_weather", description: "The weather.", strict: true, input_schema: weather }];

async function texts() {
  const whole = await client.messages.create(asked);
  const stream = client.messages.stream(asked);
  let text = "";
  stream.on("text", (piece) => (text += piece));
  const final = await stream.finalMessage();
  check("a stream says the same", text && text === whole.content[0].text && text === final.content[0].text, whole, final);
  check("its usage", final.usage.output_tokens === whole.usage.output_tokens, final.usage, whole.usage);
}

async function rounds() {
  const calling = { ...asked, tools, max_tokens: 150, tool_choice: { type: "any", disable_parallel_tool_use: true } };
  const answer = await client.messages.create(calling);
  const [call] = answer.content;
  check("it says that it calls", answer.stop_reason === "tool_use" && call.type === "tool_use", answer);
  checkWeather("a call", call.input);
  const final = await client.messages.stream(calling).finalMessage();
  check("a streamed call", JSON.stringify(final.content[0].input) === JSON.stringify(call.input), final);
  const result = { role: "user", content: [{ type: "tool_result", tool_use_id: call.id, content: "Sun." }] };
  const messages = [...question, { role: "assistant", content: answer.content }, result];
  const again = await client.messages.create({ ...asked, tools, messages, tool_choice: { type: "none" }, max_tokens: 8 });
  check("a second round", ["max_tokens", "end_turn"].includes(again.stop_reason), again);
  const counted = await client.messages.countTokens({ model: "tools", messages, tools });
  check("tokens are counted", counted.input_tokens > 10, counted);
}

async function parallel() {
  const calling = { ...asked, model: "equals", max_tokens: 500, tools, tool_choice: { type: "any" } };
  const { answer, seed } = await firstOf(async (seed) => {
    const answer = await client.messages.create({ ...calling, seed });
    return answer.stop_reason === "tool_use" && answer.content.length === 2 && { answer, seed };
  });
  const final = await client.messages.stream({ ...calling, seed }).finalMessage();
  const inputs = ({ content }) => JSON.stringify(content.map((block) => block.input));
  check("two streamed calls", inputs(final) === inputs(answer), final, answer);
  const content = answer.content.map((call) => ({ type: "tool_result", tool_use_id: call.id, content: "Sun." }));
  const messages = [...question, { role: "assistant", content: answer.content }, { role: "user", content }];
  const again = await client.messages.create({ ...calling, messages, tool_choice: { type: "none" }, max_tokens: 8 });
  check("two results go back", ["max_tokens", "end_turn"].includes(again.stop_reason), again);
}

// It asks for a thread on the server by itself, and goes on without one where there is none.
async function runner() {
  const ran = [];
  const tool = betaZodTool({
    name: "get_weather",
    description: "The weather.",
    inputSchema: z.object({ city: z.enum(["Rome", "Oslo"]) }),
    run: ({ city }) => ran.push(city) && "Sun.",
  });
  const choice = { type: "any", disable_parallel_tool_use: true };
  const calling = { ...asked, max_tokens: 150, tools: [tool], tool_choice: choice, max_iterations: 2 };
  const last = await client.beta.messages.toolRunner(calling);
  check("a runner of tools", ran.length === 2 && last.stop_reason === "tool_use", ran, last);
}

async function typed() {
  const Person = z.object({ name: z.enum(["Ann", "Bob"]), colour: z.enum(["red", "green"]) });
  const format = { output_config: { format: zodOutputFormat(Person) } };
  const answer = await client.messages.parse({ ...asked, max_tokens: 150, ...format });
  check("a typed answer", ["red", "green"].includes(answer.parsed_output.colour), answer);
}

async function thinking() {
  const format = { format: { type: "json_schema", schema: { type: "integer" } } };
  const body = { ...asked, model: "thinks", max_tokens: 64, output_config: format, temperature: 0, thinking: { type: "enabled", budget_tokens: 4 } };
  const answer = await client.messages.create(body);
  check("a thought with a budget", answer.content.map((block) => block.type).join() === "thinking,text", answer);
  const final = await client.messages.stream(body).finalMessage();
  check("a streamed thought", final.content[0].thinking === answer.content[0].thinking, final, answer);
}

async function errors() {
  await refused("a cancelled stream", Anthropic.APIUserAbortError, () => {
    const stream = client.messages.stream({ ...asked, max_tokens: 200 });
    stream.on("text", () => stream.abort());
    return stream.finalMessage();
  });
  const image = { type: "image", source: { type: "base64", media_type: "image/png", data: "AA==" } };
  const body = { ...asked, messages: [{ role: "user", content: [image] }] };
  const error = await refused("a picture", Anthropic.BadRequestError, () => client.messages.create(body));
  check("its id", error.requestID && error.error.type === "error", error);
  await refused("a model", Anthropic.NotFoundError, () => client.messages.create({ ...asked, model: "none" }));
  const long = [{ role: "user", content: "word ".repeat(20_000) }];
  await refused("a long prompt", Anthropic.BadRequestError, () => client.messages.create({ ...asked, messages: long }));
  let listed = 0;
  for await (const model of client.models.list()) listed += model.id === "tools";
  check("models", listed === 1, listed);
}

for (const part of [texts, rounds, parallel, runner, typed, thinking, errors]) await part();
console.log("ok");
