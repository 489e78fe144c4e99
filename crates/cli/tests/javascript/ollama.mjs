// Chat, generate and vectors through Ollama's own package.

import { Ollama } from "ollama";
import { check, checkWeather, firstOf, node, question, refused, weather } from "./check.mjs";

const client = new Ollama({ host: node });
const asked = { model: "tools", messages: question, options: { seed: 5, num_predict: 60 } };

async function texts() {
  const whole = await client.chat(asked);
  let text = "";
  let last;
  for await (const piece of await client.chat({ ...asked, stream: true })) {
    text += piece.message.content;
    last = piece;
  }
  check("a stream says the same", text && text === whole.message.content, text, whole);
  check("the last line counts", last.done && last.eval_count === whole.eval_count, last);
  const answer = await client.chat({ ...asked, format: weather });
  checkWeather("a schema", JSON.parse(answer.message.content));
  const raw = await client.generate({ model: "tools", prompt: "Once", raw: true, options: asked.options });
  check("raw text", raw.response && ["stop", "length"].includes(raw.done_reason), raw);
}

async function tools() {
  const tool = { type: "function", function: { name: "get_weather", description: "The weather.", parameters: weather } };
  check("tools are taken", (await client.chat({ ...asked, tools: [tool] })).done);
  const call = { role: "assistant", content: "", tool_calls: [{ function: { name: "get_weather", arguments: { city: "Rome" } } }] };
  const messages = [...question, call, { role: "tool", tool_name: "get_weather", content: "Sun." }];
  check("and results", (await client.chat({ ...asked, messages, tools: [tool] })).done);
}

async function parallel() {
  const tool = { type: "function", function: { name: "get_weather", parameters: weather } };
  // Nobody can require a call here: beside a format, an answer is of it or calls.
  const calling = { model: "equals", messages: question, tools: [tool], format: { const: 7 } };
  const sampling = { num_predict: 500, temperature: 1, top_p: 1, top_k: 0 };
  const { calls, seed } = await firstOf(async (seed) => {
    const { message, done_reason } = await client.chat({ ...calling, options: { ...sampling, seed } });
    return done_reason === "stop" && message.tool_calls?.length === 2 && { calls: message.tool_calls, seed };
  });
  const streamed = [];
  for await (const piece of await client.chat({ ...calling, options: { ...sampling, seed }, stream: true })) {
    streamed.push(...(piece.message.tool_calls ?? []));
  }
  const inputs = (calls) => JSON.stringify(calls.map((call) => call.function));
  check("two streamed calls", inputs(streamed) === inputs(calls), streamed, calls);
  const results = ["Sun.", "Rain."].map((content) => ({ role: "tool", tool_name: "get_weather", content }));
  const messages = [...question, { role: "assistant", content: "", tool_calls: calls }, ...results];
  check("two results go back", (await client.chat({ model: "equals", messages, options: { num_predict: 8 } })).done);
}

async function thinking() {
  const body = { ...asked, model: "thinks", options: { temperature: 0, num_predict: 8 } };
  check("a thought", (await client.chat({ ...body, think: true })).message.thinking);
}

async function others() {
  const vectors = await client.embed({ model: "tools", input: ["a", "b"], options: {}, pooling: "mean" });
  check("vectors", vectors.embeddings.length === 2, vectors);
  check("a list", (await client.list()).models.some((model) => model.model === "tools"));
  check("what is placed", (await client.ps()).models.some((model) => model.model === "tools"));
  check("a model", (await client.show({ model: "tools" })).capabilities.includes("tools"));
  check("pull", (await client.pull({ model: "tools" })).status === "success");
  const stream = await client.chat({ ...asked, stream: true });
  stream.abort();
  const error = await refused("a model", Error, () => client.chat({ ...asked, model: "none" }));
  check("its status and name", error.status_code === 404 && error.message.includes("none"), error.message);
  const option = await refused("an option", Error, () => client.chat({ ...asked, options: { mirostat: 1 } }));
  check("named", option.status_code === 400 && option.message.includes("mirostat"), option.message);
  await refused("delete", Error, () => client.delete({ model: "tools" }));
}

for (const part of [texts, tools, parallel, thinking, others]) await part();
console.log("ok");
