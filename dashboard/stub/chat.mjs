// Answers of a model that is not there: tokens at a rate, with everything a page has to show.

const THOUGHT = "The user asks something. I should answer with a table and code, and keep it short.";

const ANSWER = `## Where the time goes

A pipeline of three stages spends its time **in memory**, not in arithmetic: each token reads every weight once.

| stage | device | share |
|---|---|---:|
| 0–39 | desk/gpu0 | 48 % |
| 40–57 | tower/gpu0 | 33 % |
| 58–63 | laptop/cpu | 19 % |

So the bound is $t \\approx \\sum_i \\frac{w_i}{b_i}$ with \`w\` the bytes of a stage and \`b\` its bandwidth:

\`\`\`python
def bound(stages):
    """Seconds per token, at least."""
    return sum(weights / bandwidth for weights, bandwidth in stages)
\`\`\`

1. Move layers from the laptop to *tower*.
2. Use a cable; Wi-Fi costs 3.8 ms per token.

> A [longer account](https://example.org/pipelines) and a picture: ![diagram](https://example.org/d.png)
`;

/** Tokens of about four letters. */
export const tokens = (text) => text.match(/[\s\S]{1,4}/g) ?? [];

const running = new Map();

export function chat(body, response, keep, tokens_per_s) {
  const last = String(body.messages?.at(-1)?.content ?? "");
  const id = Array.from({ length: 32 }, () => Math.floor(Math.random() * 16).toString(16)).join("");
  const answer = /long (\d+)/.exec(last) ? ANSWER.repeat(Number(/long (\d+)/.exec(last)[1])) : /raw ([\s\S]+)/.exec(last)?.[1] ?? ANSWER;
  const parts = [...tokens(THOUGHT).map((reasoning_content) => ({ reasoning_content })), ...tokens(answer).map((content) => ({ content }))];
  const request = { id, parts, at: 0, model: body.model, secret: "5".repeat(32), began: Date.now(), logprobs: body.logprobs, readers: new Set(), timer: null };
  running.set(id, request);
  request.timer = setInterval(() => step(request), 1000 / tokens_per_s);
  attach(request, response, 0, keep);
  return id;
}

/** The rest of a stream, behind `Last-Event-ID`. */
export function resume(id, ticket, after, response) {
  const request = running.get(id);
  if (!request || ticket !== `${id}.${request.secret}`) return false;
  attach(request, response, after, true);
  return true;
}

export function cancel(id) {
  const request = running.get(id);
  if (request) end(request);
  return Boolean(request);
}

export const requests = () => [...running.values()].filter((r) => r.timer).map((r) => ({ id: r.id, index: 0, model: r.model, principal: "u1f0", phase: "decode", waits_for: null, interrupted_ms: null, prompt_tokens: 41, tokens: r.at, age_ms: Date.now() - r.began, resumed: 0 }));

function attach(request, response, after, keep) {
  response.writeHead(200, { "content-type": "text/event-stream", "exo-resume": `${request.id}.${request.secret}`, "x-request-id": request.id });
  response.flushHeaders();
  for (let at = after; at < request.at; at++) write(response, request, at);
  if (!request.timer) return finish(response, request);
  request.readers.add(response);
  response.on("close", () => {
    request.readers.delete(response);
    if (!keep && request.readers.size === 0) end(request);
  });
}

function step(request) {
  if (request.at >= request.parts.length) {
    for (const reader of request.readers) finish(reader, request);
    return end(request);
  }
  for (const reader of request.readers) write(reader, request, request.at);
  request.at += 1;
}

function end(request) {
  clearInterval(request.timer);
  request.timer = null;
}

function write(response, request, at) {
  const delta = at === 0 ? { role: "assistant", ...request.parts[at] } : request.parts[at];
  const token = delta.content ?? delta.reasoning_content;
  const logprobs = request.logprobs ? { content: [{ token, logprob: -((at * 7) % 11) / 6, bytes: [], top_logprobs: [{ token, logprob: -0.1, bytes: [] }, { token: "other", logprob: -2.4, bytes: [] }] }] } : null;
  send(response, request, { choices: [{ index: 0, delta, finish_reason: null, logprobs }] }, at + 1);
}

function finish(response, request) {
  send(response, request, { choices: [{ index: 0, delta: {}, finish_reason: "stop" }] }, request.at + 2);
  const count = request.parts.length;
  const exo = { request: request.id, model_id: "m", kernels: ["cuda/sm_89"], stages: 3, timings: { queued_ms: 4, ttft_ms: 391, prompt_tokens_per_s: 812, tokens_per_s: 31.2 } };
  send(response, request, { choices: [], usage: { prompt_tokens: 41, completion_tokens: count, total_tokens: count + 41, completion_tokens_details: {}, prompt_tokens_details: { cached_tokens: 16 } }, exo }, request.at + 2);
  response.end("data: [DONE]\n\n");
}

function send(response, request, fields, id) {
  response.write(`data: ${JSON.stringify({ id: `chatcmpl-${request.id}`, object: "chat.completion.chunk", created: Math.floor(request.began / 1000), model: request.model, ...fields })}\nid: 0:${id}\n\n`);
}
