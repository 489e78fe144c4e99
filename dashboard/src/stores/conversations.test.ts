import { afterEach, expect, test, vi } from "vitest";
import { openHistory } from "../history/db";
import { conversation, message } from "../history/types";
import { draftOf, keepDraft } from "../lib/drafts";
import { t } from "../text";
import { conversations } from "./conversations.svelte";
import { notices } from "./notices.svelte";

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

/** An answer that comes when `finish` is called. */
function slow() {
  let finish = () => {};
  vi.stubGlobal("fetch", async (_: string, init: RequestInit) => {
    if (init.method === "DELETE") return new Response(null, { status: 204 });
    return new Promise<Response>((resolve, reject) => {
      finish = () => resolve(new Response(ANSWER));
      init.signal?.addEventListener("abort", () => reject(new DOMException("", "AbortError")));
    });
  });
  return () => finish();
}

test("a conversation that is deleted while its answer comes leaves nothing behind", async () => {
  slow();
  conversations.fresh("m");
  const { id } = conversations.current!;
  const saying = conversations.say("secret", "");
  await vi.waitFor(() => expect(conversations.busy).toBeDefined());
  const drafts = [id, `${id}/message`, `${id}0`];
  drafts.forEach((key) => keepDraft(key, "and then"));
  await conversations.remove(id);
  await saying;
  expect(drafts.map((key) => [draftOf(key), sessionStorage.getItem(`exo-draft-${key}`)])).toEqual([["", null], ["", null], ["and then", "and then"]]);
  expect(conversations.running.size).toBe(0);
  const history = await openHistory();
  await vi.waitFor(async () => expect(await history.messages(id)).toEqual([]));
  expect((await history.conversations()).some((one) => one.id === id)).toBe(false);
});

test("the ticket of an answer is kept before it is asked for", async () => {
  const finish = slow();
  conversations.fresh("m");
  const { id } = conversations.current!;
  const saying = conversations.say("Hi", "");
  await vi.waitFor(() => expect(conversations.busy).toBeDefined());
  const asked = (await (await openHistory()).messages(id)).find((one) => one.role === "assistant")!;
  expect([asked.state, asked.ticket?.id.length]).toEqual(["streaming", 32]);
  finish();
  await saying;
});

test("an answer of another tab is shown, stopped and taken over", async () => {
  const other = new BroadcastChannel("exo-conversations");
  const heard: unknown[] = [];
  other.onmessage = (event) => heard.push(event.data);
  const history = await openHistory();
  const [mine, locks] = [conversation({ title: "T" }), new Map<string, Promise<void>>()];
  const theirs = message({ conversation: mine.id, parent: "", role: "assistant", state: "streaming", ticket: { id: "a".repeat(32), secret: "b".repeat(32), last: null } });
  await history.put([mine], []);
  await conversations.start();
  await conversations.open(mine.id);
  // That tab holds the lock of its answer.
  let release = () => {};
  locks.set(`exo-answer-${theirs.id}`, new Promise((resolve) => (release = resolve)));
  Object.defineProperty(navigator, "locks", { configurable: true, value: { request: async (name: string, run: () => Promise<void>) => (await locks.get(name), run()) } });
  const deleted: string[] = [];
  vi.stubGlobal("fetch", async (path: string, init: RequestInit) => (init.method === "DELETE" ? (deleted.push(path), new Response(null, { status: 204 })) : new Response(ANSWER)));
  await history.put([], [theirs]);
  other.postMessage({ conversation: mine.id, message: theirs.id });
  await vi.waitFor(() => expect(conversations.elsewhere?.id).toBe(theirs.id));
  expect(conversations.busy).toBeUndefined();
  conversations.stop();
  await vi.waitFor(() => expect(heard).toContainEqual({ conversation: mine.id, message: theirs.id, stop: true }));
  await vi.waitFor(() => expect(deleted).toEqual([`/v1/requests/${"a".repeat(32)}`]));
  // It is closed in mid-answer.
  release();
  await vi.waitFor(() => expect(conversations.branch.at(-1)?.content).toBe("Hello"));
  expect(conversations.elsewhere).toBeUndefined();
  Reflect.deleteProperty(navigator, "locks");
  other.close();
});

test("a conversation that another tab deletes stops here", async () => {
  slow();
  conversations.fresh("m");
  const { id } = conversations.current!;
  const saying = conversations.say("Hi", "");
  await vi.waitFor(() => expect(conversations.busy).toBeDefined());
  await (await openHistory()).remove(id);
  const other = new BroadcastChannel("exo-conversations");
  other.postMessage({ conversation: id });
  await saying;
  expect([conversations.current, conversations.running.size]).toEqual([null, 0]);
  other.close();
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

test("what is said after the browser has deleted what it kept is kept again", async () => {
  vi.stubGlobal("fetch", async () => new Response(ANSWER));
  await conversations.start();
  conversations.fresh("m");
  await conversations.say("before", "");
  await new Promise((done) => (indexedDB.deleteDatabase("exo").onsuccess = done));
  const told = vi.spyOn(notices, "say");
  await conversations.say("after", conversations.branch.at(-1)!.id);
  expect(told).not.toHaveBeenCalled();
  told.mockRestore();
  const history = await openHistory();
  await vi.waitFor(async () => expect((await history.messages(conversations.current!.id)).map((one) => one.content)).toEqual(expect.arrayContaining(["after", "Hello"])));
});

test("a full storage is told once, what was said stays on the page, and nothing is imported by halves", async () => {
  vi.stubGlobal("fetch", async () => new Response(ANSWER));
  await conversations.start();
  conversations.fresh("m");
  const told = vi.spyOn(notices, "say");
  const put = vi.spyOn(IDBObjectStore.prototype, "put").mockImplementation(() => {
    throw new DOMException("", "QuotaExceededError");
  });
  await conversations.say("Hi", "");
  await vi.waitFor(() => expect(told.mock.calls).toEqual([["bad", t.chat.storage_full]]));
  expect(conversations.branch.map((one) => one.content)).toEqual(["Hi", "Hello"]);
  const known = conversations.list.length;
  await expect(conversations.take({ conversations: [conversation({ id: "imported" })], messages: [] })).rejects.toThrow(t.chat.import_full);
  put.mockRestore();
  told.mockRestore();
  expect((await (await openHistory()).conversations()).some((one) => one.id === "imported")).toBe(false);
  expect(conversations.list).toHaveLength(known);
});
