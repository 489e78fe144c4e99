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

/** A chat, or a completion: that has `prompt` and answers in `text`. With `keep` it outlives its reader, under the name that `keep` has. */
export function chat(body, response, keep, { tokens_per_s, head_ms = 0 }) {
  const last = String(body.messages?.at(-1)?.content ?? body.prompt ?? "");
  const id = Array.from({ length: 32 }, () => Math.floor(Math.random() * 16).toString(16)).join("");
  const answer = /long (\d+)/.exec(last) ? ANSWER.repeat(Number(/long (\d+)/.exec(last)[1])) : /raw ([\s\S]+)/.exec(last)?.[1] ?? ANSWER;
  const parts = body.prompt ? tokens(answer).map((text) => ({ text })) : [...tokens(THOUGHT).map((reasoning_content) => ({ reasoning_content })), ...tokens(answer).map((content) => ({ content }))];
  const request = { id, parts, at: 0, isCancelled: false, model: body.model, secret: keep?.secret ?? "5".repeat(32), began: Date.now(), logprobs: body.logprobs, readers: new Set(), timer: null };
  running.set(id, request);
  if (keep?.id) running.set(keep.id, request);
  request.timer = setInterval(() => step(request), 1000 / tokens_per_s);
  // A node that reads a long prompt says nothing for a while.
  setTimeout(() => attach(request, response, 0, Boolean(keep)), head_ms);
  return id;
}

/** The rest of a stream, behind `Last-Event-ID`. */
export function resume(id, secret, after, response) {
  const request = running.get(id);
  if (request?.secret !== secret || !request) return false;
  attach(request, response, after, true);
  return true;
}

/** Ends one, for who has its secret, or for the owner (`null`). Its readers hear it. */
export function cancel(id, secret) {
  const request = running.get(id);
  if (!request || (secret !== null && secret !== request.secret)) return false;
  if (!request.timer) return true;
  request.isCancelled = true;
  for (const reader of request.readers) refuse(reader);
  end(request);
  return true;
}

const refuse = (response) => response.end(`event: error\ndata: ${JSON.stringify({ error: { code: "cancelled", message: "The request was cancelled.", type: "invalid_request_error" } })}\n\n`);

export const requests = () => [...new Set(running.values())].filter((r) => r.timer).map((r) => ({ id: r.id, index: 0, model: r.model, principal: "u1f0", phase: "decode", waits_for: null, interrupted_ms: null, prompt_tokens: 41, tokens: r.at, age_ms: Date.now() - r.began, resumed: 0 }));

function attach(request, response, after, keep) {
  if (response.destroyed) return keep || end(request);
  response.writeHead(200, { "content-type": "text/event-stream", "exo-resume": `${request.id}.${request.secret}`, "x-request-id": request.id });
  response.flushHeaders();
  for (let at = after; at < request.at; at++) write(response, request, at);
  if (!request.timer) return request.isCancelled ? refuse(response) : finish(response, request);
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
  if (request.parts[at].text !== undefined) return send(response, request, { choices: [{ index: 0, text: request.parts[at].text, finish_reason: null }] }, at + 1);
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
