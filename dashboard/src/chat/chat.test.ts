import { afterEach, beforeEach, expect, test, vi } from "vitest";
import { conversation, message } from "../history/types";
import { Answer } from "./answer.svelte";
import { body, fields } from "./request";
import { Sentences } from "./sentences";
import { stops } from "./stops";
import { wake } from "../lib/wake";

const asked = () => message({ conversation: "c", parent: "q", role: "assistant", state: "streaming", model: "m" });
const chunk = (content: string, id: string) => `data: ${JSON.stringify({ choices: [{ index: 0, delta: { content } }] })}\nid: ${id}\n\n`;
const END = `data: ${JSON.stringify({ choices: [{ index: 0, delta: {}, finish_reason: "stop" }] })}\nid: 0:9\n\ndata: ${JSON.stringify({ choices: [], usage: { prompt_tokens: 4, completion_tokens: 2 }, exo: { request: "r", stages: 2, kernels: ["k"], timings: { queued_ms: 1, ttft_ms: 2 } } })}\n\ndata: [DONE]\n\n`;

type Reply = { status?: number; text: string; cut?: boolean; lost?: boolean };
let sent: { path: string; method: string; headers: Record<string, string>; body: string; keepalive: boolean }[] = [];
/** What a stop is answered with; nothing is a node that cannot be reached. */
let stopped: (number | null)[] = [];

/** Answers requests one after the other; one that is cut ends as a lost connection does. */
function answerWith(...replies: Reply[]) {
  sent = [];
  vi.stubGlobal("fetch", async (path: string, init: RequestInit) => {
    sent.push({ path, method: init.method!, headers: init.headers as Record<string, string>, body: String(init.body ?? ""), keepalive: init.keepalive ?? false });
    if (init.method === "DELETE") {
      const status = stopped.length > 0 ? stopped.shift()! : 204;
      if (!status) throw new TypeError("refused");
      return new Response(status === 204 ? null : "{}", { status });
    }
    const reply = replies.shift();
    if (!reply || reply.lost) throw new TypeError("refused");
    const stream = new ReadableStream<Uint8Array>({
      start(controller) {
        controller.enqueue(new TextEncoder().encode(reply.text));
        init.signal?.addEventListener("abort", () => controller.error(new DOMException("", "AbortError")));
        if (reply.cut) setTimeout(() => controller.error(new TypeError("network error")), 20);
        else if (reply.text.includes("[DONE]")) controller.close();
      },
    });
    return new Response(reply.status && reply.status >= 400 ? reply.text : stream, { status: reply.status ?? 200, headers: { "exo-resume": "r1.s1" } });
  });
}

beforeEach(() => localStorage.clear());
beforeEach(() => vi.stubGlobal("requestAnimationFrame", (run: () => void) => setTimeout(run, 1)));
afterEach(() => vi.unstubAllGlobals());

test("an answer comes token by token, with its numbers", async () => {
  answerWith({ text: chunk("He", "0:1") + chunk("llo.", "0:2") + END });
  const whole = await new Answer(asked(), () => {}).ask(body(conversation({ model: "m" }), []));
  expect([whole.content, whole.state, whole.ticket, whole.stats?.completion_tokens, whole.stats?.request]).toEqual(["Hello.", "done", null, 2, "r"]);
  expect(sent[0]!.headers["exo-keep"]).toMatch(/^[0-9a-f]{32}\.[0-9a-f]{32}$/);
});

test("a lost connection is picked up behind the last id, and nothing comes twice", async () => {
  const halfToken = `data: ${JSON.stringify({ choices: [{ index: 0, delta: { content: "l" } }] })}\n\n`;
  answerWith({ text: chunk("He", "0:1") + halfToken, cut: true }, { text: chunk("llo", "0:2") + END });
  const saved: string[] = [];
  const whole = await new Answer(asked(), (now) => saved.push(JSON.stringify(now.ticket))).ask(body(conversation({ model: "m" }), []));
  expect([whole.content, whole.state]).toEqual(["Hello", "done"]);
  expect(sent[1]).toMatchObject({ path: "/v1/requests/r1", headers: { "exo-resume": "r1.s1", "last-event-id": "0:1" } });
  expect(saved).toContain('{"id":"r1","secret":"s1","last":"0:1"}');
});

test("what came before the first id comes again from the start, once", async () => {
  answerWith({ text: `data: ${JSON.stringify({ choices: [{ index: 0, delta: { content: "He" } }] })}\n\n`, cut: true }, { text: chunk("Hello", "0:2") + END });
  const kept: string[] = [];
  const whole = await new Answer(asked(), (now) => now.state === "streaming" && kept.push(now.content)).ask(body(conversation({ model: "m" }), []));
  expect([whole.content, kept.every((text) => text === "" || text === "Hello")]).toEqual(["Hello", true]);
});

test("a tab that was closed goes on with what it had", async () => {
  answerWith({ text: chunk(" world", "0:3") + END });
  const before = { ...asked(), content: "Hello", ticket: { id: "r1", secret: "s1", last: "0:2" } };
  const whole = await new Answer(before, () => {}).resume();
  expect(whole.content).toBe("Hello world");
  expect(before.ticket.last).toBe("0:2");
});

test("stop ends the computing too, and keeps what there is", async () => {
  answerWith({ text: chunk("Hel", "0:1") });
  const answer = new Answer(asked(), () => {});
  const running = answer.ask(body(conversation({ model: "m" }), []));
  await vi.waitFor(() => expect(answer.tokens).toBe(1));
  answer.stop();
  const whole = await running;
  expect([whole.content, whole.state]).toEqual(["Hel", "stopped"]);
  expect(sent.find((one) => one.method === "DELETE")).toMatchObject({ path: "/v1/requests/r1", headers: { "exo-resume": "r1.s1" } });
});

test("an answer whose head never came is found under the id that the page drew, or is asked for once more", async () => {
  answerWith({ lost: true, text: "" }, { text: chunk("Hello", "0:1") + END });
  const one = asked();
  const whole = await new Answer(one, () => {}).ask(body(conversation({ model: "m" }), []));
  const [id, secret] = sent[0]!.headers["exo-keep"]!.split(".");
  expect([whole.content, sent[1]!.path, sent[1]!.headers["exo-resume"]]).toEqual(["Hello", `/v1/requests/${id}`, `${id}.${secret}`]);
  const missing = { status: 404, text: "{}" };
  answerWith({ lost: true, text: "" }, missing, missing, missing, missing, { text: chunk("Hello", "0:1") + END });
  const running = new Answer(asked(), () => {}).ask(body(conversation({ model: "m" }), []));
  const hurry = setInterval(wake, 20);
  expect((await running).content).toBe("Hello");
  clearInterval(hurry);
  expect(sent.map(({ method }) => method).join(" ")).toBe("POST GET GET GET GET POST");
  expect(sent.at(-1)!.headers["exo-keep"]).toBe(sent[0]!.headers["exo-keep"]);
});

test("a node that is busy, ends or knows nobody is asked again; one that has forgotten is not", async () => {
  const late = [409, 429, 500, 503, 504, 401].map((status) => ({ status, text: '{"error":{"code":"x","message":"not now"}}' }));
  answerWith({ text: chunk("He", "0:1"), cut: true }, ...late, { text: chunk("llo", "0:2") + END });
  const hurry = setInterval(wake, 20);
  const whole = await new Answer(asked(), () => {}).ask(body(conversation({ model: "m" }), []));
  expect([whole.content, whole.state]).toEqual(["Hello", "done"]);
  answerWith({ text: chunk("He", "0:1"), cut: true }, { status: 410, text: '{"error":{"code":"too_far_behind","message":"x"}}' });
  const gone = await new Answer(asked(), () => {}).ask(body(conversation({ model: "m" }), []));
  clearInterval(hurry);
  expect([gone.content, gone.state]).toEqual(["He", "interrupted"]);
});

test("an answer whose node says that it ends goes on where its copy is", async () => {
  const ending = `data: ${JSON.stringify({ error: { code: "shutting_down", message: "the node is shutting down" } })}\n\n`;
  answerWith({ text: chunk("He", "0:1") + ending }, { text: chunk("llo", "0:2") + END });
  const hurry = setInterval(wake, 20);
  const whole = await new Answer(asked(), () => {}).ask(body(conversation({ model: "m" }), []));
  clearInterval(hurry);
  expect([whole.content, whole.state]).toEqual(["Hello", "done"]);
});

test("a connection that goes without a word is told by its silence, and one that waits is not cut", async () => {
  vi.useFakeTimers({ toFake: ["setInterval", "clearInterval", "Date"] });
  // Neither ends: the first one is dead, the second one of a model that is slow.
  answerWith({ text: chunk("He", "0:1") }, { text: chunk("llo", "0:2") });
  const answer = new Answer(asked(), () => {});
  const running = answer.ask(body(conversation({ model: "m" }), []));
  await vi.waitFor(() => expect(answer.tokens).toBe(1));
  await vi.advanceTimersByTimeAsync(20_000);
  expect(sent).toHaveLength(1);
  await vi.advanceTimersByTimeAsync(12_000);
  vi.useRealTimers();
  await vi.waitFor(() => expect(answer.tokens).toBe(2));
  expect(sent[1]).toMatchObject({ path: "/v1/requests/r1", headers: { "last-event-id": "0:1" } });
  answer.stop();
  expect((await running).content).toBe("Hello");
});

test("an answer that cannot be reached is looked for as long as its node may have it", async () => {
  vi.useFakeTimers({ toFake: ["setTimeout", "clearTimeout", "Date"] });
  answerWith();
  const before = { ...asked(), content: "He", ticket: { id: "r1", secret: "s1", last: "0:1" } };
  const kept: unknown[] = [];
  const answer = new Answer(before, (now) => kept.push(now.ticket));
  const running = answer.resume();
  await vi.advanceTimersByTimeAsync(30 * 60_000);
  expect([answer.phase, answer.now.ticket?.id]).toEqual(["reattaching", "r1"]);
  await vi.advanceTimersByTimeAsync(31 * 60_000);
  expect((await running).state).toBe("interrupted");
  vi.useRealTimers();
});

test("a stop is said until the node has heard it, and goes out of a page that closes", async () => {
  answerWith({ text: chunk("Hel", "0:1") });
  stopped = [null, 503, 204];
  const answer = new Answer(asked(), () => {});
  const running = answer.ask(body(conversation({ model: "m" }), []));
  await vi.waitFor(() => expect(answer.tokens).toBe(1));
  answer.stop();
  expect((await running).state).toBe("stopped");
  expect(JSON.parse(localStorage.getItem("exo-stops")!)).toMatchObject([{ id: "r1", secret: "s1" }]);
  const hurry = setInterval(wake, 20);
  await stops.run();
  clearInterval(hurry);
  const told = sent.filter(({ method }) => method === "DELETE");
  expect([told.length, told.every(({ keepalive }) => keepalive), stops.list]).toEqual([3, true, []]);
});

test("a stop before the head is one too", async () => {
  answerWith();
  vi.stubGlobal("fetch", async (path: string, init: RequestInit) => {
    sent.push({ path, method: init.method!, headers: init.headers as Record<string, string>, body: "", keepalive: false });
    if (init.method === "DELETE") return new Response(null, { status: 204 });
    return new Promise((_, reject) => init.signal!.addEventListener("abort", () => reject(new DOMException("", "AbortError"))));
  });
  const answer = new Answer(asked(), () => {});
  const running = answer.ask(body(conversation({ model: "m" }), []));
  answer.stop();
  expect((await running).state).toBe("stopped");
  await vi.waitFor(() => expect(sent.find(({ method }) => method === "DELETE")?.path).toBe(`/v1/requests/${sent[0]!.headers["exo-keep"]!.split(".")[0]}`));
});

test("an answer that was stopped elsewhere is stopped, not broken", async () => {
  answerWith({ text: chunk("Hel", "0:1") + 'event: error\ndata: {"error":{"code":"cancelled","message":"it was cancelled"}}\n\n' });
  const whole = await new Answer(asked(), () => {}).ask(body(conversation({ model: "m" }), []));
  expect([whole.content, whole.state, whole.error]).toEqual(["Hel", "stopped", ""]);
});

test("an answer goes on behind its thought, and is kept as any other", async () => {
  answerWith({ text: '{"prompt":"<user>Hi<assistant><think>\\n"}' }, { text: 'data: {"choices":[{"index":0,"text":" world"}]}\nid: 0:1\n\n' + END });
  vi.stubGlobal("fetch", ((real) => async (path: string, init: RequestInit) => {
    const response = await real(path, init);
    return path === "/apply-template" ? new Response('{"prompt":"<user>Hi<assistant><think>\\n"}') : response;
  })(fetch));
  const before = { ...asked(), content: "Hello", reasoning: "A greeting." };
  const whole = await new Answer(before, () => {}).goOn(body(conversation({ model: "m" }), []));
  expect([whole.content, whole.reasoning]).toEqual(["Hello world", "A greeting."]);
  const request = sent.find(({ path }) => path === "/v1/completions")!;
  expect(JSON.parse(request.body).prompt).toBe("<user>Hi<assistant><think>\nA greeting.\n</think>\n\nHello");
  expect(request.headers["exo-keep"]).toMatch(/^[0-9a-f]{32}\./);
});

test("sentences have numbers of their own: the fifth does not make the others new", async () => {
  const text = "One. Two. Three. Four. Five. Six";
  answerWith({ text: chunk(text, "0:1") + END });
  const answer = new Answer(asked(), () => {});
  await answer.ask(body(conversation({ model: "m" }), []));
  expect(answer.spoken.map(({ number, text }) => `${number} ${text}`)).toEqual(["2 Three.", "3 Four.", "4 Five.", "5 Six"]);
});

test("what the node says went wrong is said, and what came before is kept", async () => {
  answerWith({ text: chunk("Hel", "0:1") + 'event: error\ndata: {"error":{"code":"stage_lost","message":"a stage is lost"}}\n\n' });
  const whole = await new Answer(asked(), () => {}).ask(body(conversation({ model: "m" }), []));
  expect([whole.content, whole.state, whole.error]).toEqual(["Hel", "failed", "a stage is lost"]);
  answerWith({ status: 429, text: '{"error":{"code":"queue_full","message":"64 wait already"}}' });
  expect((await new Answer(asked(), () => {}).ask(body(conversation({ model: "m" }), []))).error).toBe("64 wait already");
});

test("calls of tools are put together from their parts", async () => {
  const call = (fields: object) => `data: ${JSON.stringify({ choices: [{ index: 0, delta: { tool_calls: [{ index: 0, ...fields }] } }] })}\nid: 0:1\n\n`;
  answerWith({ text: call({ id: "c1", function: { name: "look", arguments: '{"a"' } }) + call({ function: { arguments: ":1}" } }) + END });
  const whole = await new Answer(asked(), () => {}).ask(body(conversation({ model: "m" }), []));
  expect(whole.calls).toEqual([{ id: "c1", name: "look", arguments: '{"a":1}' }]);
});

test("a request says the branch, the system prompt and only what was filled in", () => {
  const said = message({ conversation: "c", parent: "", role: "user", content: "Hi" });
  const request = body(conversation({ model: "m", system: "Be short.", params: { temperature: "0,3", stop: "a\n\nb", response_format: "json", top_p: "" } }), [said]);
  expect(request).toEqual({
    model: "m",
    messages: [{ role: "system", content: "Be short." }, { role: "user", content: "Hi" }],
    stream: true,
    stream_options: { include_usage: true },
    temperature: 0.3,
    stop: ["a", "b"],
    response_format: { type: "json_object" },
  });
  expect(() => fields({ seed: "x" })).toThrow("Seed is not a number");
  expect(() => fields({ tools: "[" })).toThrow("not JSON");
});

test("a screen reader hears sentences, and of code only that it is there", () => {
  const sentences = new Sentences();
  const heard = "# Head\n\nOne **two**. Three 3.14 is not an end! Then\n```py\nx = 1. y\n```\nLast".split("").flatMap((letter) => sentences.take(letter));
  expect([...heard, ...sentences.rest()]).toEqual(["Head", "One two.", "Three 3.14 is not an end!", "Then", "Code.", "Last"]);
});
