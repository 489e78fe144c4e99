import { beforeEach, expect, test, vi } from "vitest";
import { openHistory } from "./db";
import { FILE_BYTES_MAX, fromFile, fromJson, MESSAGES_MAX, toJson, toMarkdown } from "./transfer";
import { ancestry, children, choose, path, titleOf } from "./tree";
import { conversation, message, type Message } from "./types";

/** A tree from `id<parent` words, oldest first. */
function tree(words: string) {
  const list = words.split(" ").map((word, at) => {
    const [id, parent] = word.split("<");
    return message({ conversation: "c", parent: parent ?? "", role: at % 2 ? "assistant" : "user", id: id!, content: id!, created_ms: at });
  });
  return new Map(list.map((one) => [one.id, one]));
}
const ids = (list: Message[]) => list.map((one) => one.id).join(" ");

test("the newest version is shown until another one is chosen, and every version stays", () => {
  const all = tree("q a<q q2 b<q2 a2<q");
  let open = conversation({ id: "c" });
  expect(ids(path(open, all))).toBe("q2 b");
  open = choose(open, all.get("q")!);
  expect(ids(path(open, all))).toBe("q a2");
  open = choose(open, all.get("a")!);
  expect(ids(path(open, all))).toBe("q a");
  expect(ids(children(all, ""))).toBe("q q2");
  expect(ids(ancestry(all, "a2"))).toBe("q a2");
});

test("a message that is its own ancestor ends the chain", () => {
  expect(ids(ancestry(tree("a<b b<a"), "a"))).toBe("b a");
});

test("a title is the first line, not all of it", () => {
  expect(titleOf("  Where?\nThere.")).toBe("Where?");
  expect(titleOf("x".repeat(100))).toHaveLength(58);
});

test("what is exported comes back under new ids, with its branches", () => {
  const all = tree("q a<q q2 b<q2 a2<q");
  const open = choose(choose(conversation({ id: "c", title: "T", params: { temperature: "0.2" } }), all.get("q")!), all.get("a")!);
  const text = toJson({ conversations: [open], messages: [...all.values()] });
  const back = fromJson(text);
  const [one] = back.conversations;
  expect(one!.id).not.toBe("c");
  expect(one!.params).toEqual({ temperature: "0.2" });
  expect(path(one!, new Map(back.messages.map((m) => [m.id, m]))).map((m) => m.content)).toEqual(["q", "a"]);
  expect(toMarkdown(open, all, { you: "You", thought: "Thought" })).toBe("# T\n\n## You\n\nq\n\n## assistant\n\na\n");
});

test("the numbers of an answer come back with it, and nothing that is no number", () => {
  const times = { stages: [{ prompt_ms: 5, answer_ms: 70 }], between_prompt_ms: 1, between_answer_ms: 2 };
  const chances = [{ token: "a", logprob: -0.1, others: [{ token: "b", logprob: -2 }] }];
  const told = message({ id: "m", conversation: "c", parent: "", role: "assistant", stats: { ttft_ms: 420, tokens_per_s: null, times, request: "r" }, chances });
  const [back] = fromJson(toJson({ conversations: [conversation({ id: "c" })], messages: [told] })).messages;
  expect([back!.stats, back!.chances]).toEqual([{ ttft_ms: 420, times, request: "r" }, chances]);
  const hostile = { ...told, stats: { ttft_ms: "<b>", times: { stages: [{ prompt_ms: {} }, 3] } }, chances: [{ token: {}, logprob: 1 }, { token: "x", logprob: "y" }, { token: "z", logprob: 0, others: "no" }] };
  const [read] = fromJson(JSON.stringify({ format: "exo-conversations", conversations: [{ id: "c" }], messages: [hostile] })).messages;
  expect([read!.stats, read!.chances]).toEqual([{ times: { stages: [{ prompt_ms: 0, answer_ms: 0 }], between_prompt_ms: 0, between_answer_ms: 0 } }, [{ token: "z", logprob: 0, others: [] }]]);
});

test("a file of a stranger is read field by field", () => {
  const hostile = {
    format: "exo-conversations",
    conversations: [{ id: "c", title: ["<script>"], params: { temperature: 7, tools: "[]", evil: "x" }, chosen: { "": "m" }, __proto__: { polluted: 1 } }, null, 3],
    messages: [{ id: "m", conversation: "c", role: "system", content: { a: 1 }, state: "streaming", ticket: { id: "x", secret: "y" }, calls: [{ name: 5 }, null] }, { id: "n", conversation: "other" }, { id: "loop", conversation: "c", parent: "loop" }, "x"],
  };
  const { conversations, messages } = fromJson(JSON.stringify(hostile));
  expect(conversations).toHaveLength(1);
  expect([conversations[0]!.title, conversations[0]!.params]).toEqual(["", { tools: "[]" }]);
  expect(messages.map((one) => [one.role, one.content, one.state, one.ticket, one.parent])).toEqual([
    ["user", "", "interrupted", null, ""],
    ["user", "", "done", null, ""],
  ]);
  expect(messages[0]!.calls).toEqual([{ id: "", name: "", arguments: "" }]);
});

test("a message that hangs on one of another conversation is a first message: nothing is kept that is not shown", () => {
  const messages = [{ id: "a", conversation: "c", content: "A" }, { id: "b", conversation: "d", parent: "a", content: "B" }];
  const read = fromJson(JSON.stringify({ format: "exo-conversations", conversations: [{ id: "c" }, { id: "d" }], messages }));
  expect(read.messages.map((one) => one.parent)).toEqual(["", ""]);
});

test("what is no export is refused by a sentence", () => {
  expect(() => fromJson("{")).toThrow("not JSON");
  expect(() => fromJson("[]")).toThrow("no conversations");
  expect(() => fromJson(JSON.stringify({ format: "exo-conversations", messages: Array(MESSAGES_MAX + 1).fill(0) }))).toThrow("at most");
});

test("a file of 200 MB is refused before any of it is read", async () => {
  const text = vi.fn(async () => toJson({ conversations: [conversation({ id: "c" })], messages: [] }));
  await expect(fromFile({ size: 200e6, text })).rejects.toThrow("at most 128 MiB");
  expect(text).not.toHaveBeenCalled();
  expect((await fromFile({ size: FILE_BYTES_MAX, text })).conversations).toHaveLength(1);
});

test("100,000 messages are read and kept", async () => {
  const many = Array.from({ length: 100_000 }, (_, at) => message({ id: `m${at}`, conversation: "big", parent: at ? `m${at - 1}` : "", role: "user", content: "x" }));
  const { conversations, messages } = fromJson(toJson({ conversations: [conversation({ id: "big" })], messages: many }));
  expect([conversations.length, messages.length]).toEqual([1, 100_000]);
  expect(path(conversations[0]!, new Map(messages.map((one) => [one.id, one])))).toHaveLength(100_000);
}, 30_000);

beforeEach(() => indexedDB.deleteDatabase("exo"));

test("conversations are kept, searched and removed", async () => {
  const history = await openHistory();
  expect(history.isKept).toBe(true);
  await history.put([conversation({ id: "c" }), conversation({ id: "d" })], [message({ conversation: "c", parent: "", role: "user", content: "Needle" }), message({ conversation: "d", parent: "", role: "user", content: "hay" })]);
  expect(await history.search("needle", new AbortController().signal)).toEqual(new Set(["c"]));
  await history.remove("c");
  expect([(await history.conversations()).map((one) => one.id), await history.messages("c")]).toEqual([["d"], []]);
});

test("messages without a conversation are not kept, and those of earlier versions go", async () => {
  const orphan = message({ conversation: "gone", parent: "", role: "user", content: "x" });
  const history = await openHistory();
  await history.put([conversation({ id: "c" })], [orphan, message({ conversation: "c", parent: "", role: "user", content: "y" })]);
  expect([(await history.messages("gone")).length, (await history.messages("c")).length]).toEqual([0, 1]);
  const raw = await new Promise<IDBDatabase>((resolve) => (indexedDB.open("exo").onsuccess = (event) => resolve((event.target as IDBOpenDBRequest).result)));
  await new Promise((done) => (raw.transaction("messages", "readwrite").objectStore("messages").put(orphan).onsuccess = done));
  raw.close();
  const again = await openHistory();
  await vi.waitFor(async () => expect(await again.messages("gone")).toEqual([]));
  expect(await again.messages("c")).toHaveLength(1);
});

test("a browser that refuses to keep anything still has a conversation", async () => {
  const real = globalThis.indexedDB;
  Object.defineProperty(globalThis, "indexedDB", { configurable: true, get: () => { throw new Error("refused"); } });
  const history = await openHistory();
  Object.defineProperty(globalThis, "indexedDB", { configurable: true, value: real });
  expect(history.isKept).toBe(false);
  await history.put([conversation({ id: "c" })], [message({ conversation: "c", parent: "", role: "user", content: "x" })]);
  expect(await history.messages("c")).toHaveLength(1);
});
