import { afterEach, expect, test, vi } from "vitest";
import { conversations } from "./conversations.svelte";

const ANSWER = `data: ${JSON.stringify({ choices: [{ index: 0, delta: { content: "Hello" } }] })}\n\ndata: ${JSON.stringify({ choices: [{ index: 0, delta: {}, finish_reason: "stop" }] })}\n\ndata: [DONE]\n\n`;

afterEach(() => vi.unstubAllGlobals());

test("an answer stays in its conversation, whatever is opened while it is asked for", async () => {
  vi.stubGlobal("fetch", async () => new Response(ANSWER));
  await conversations.start();
  conversations.fresh("m");
  const asked = conversations.current!.id;
  const saying = conversations.say("Hi", "");
  conversations.fresh("m");
  const other = conversations.current!.id;
  await saying;
  expect([conversations.current!.id, conversations.branch]).toEqual([other, []]);
  expect(await conversations.open(asked)).toBe(true);
  expect(conversations.branch.map((one) => one.content)).toEqual(["Hi", "Hello"]);
});

test("an edit and another answer are branches: nothing is lost", async () => {
  vi.stubGlobal("fetch", async () => new Response(ANSWER));
  conversations.fresh("m");
  await conversations.say("first", "");
  await conversations.say("second", "");
  const [second] = conversations.branch;
  await conversations.answer(second!.id);
  expect(conversations.branch[0]!.content).toBe("second");
  expect([...conversations.tree.values()].map((one) => one.content).sort()).toEqual(["Hello", "Hello", "Hello", "first", "second"]);
  conversations.choose([...conversations.tree.values()].find((one) => one.content === "first")!);
  expect(conversations.branch[0]!.content).toBe("first");
});
