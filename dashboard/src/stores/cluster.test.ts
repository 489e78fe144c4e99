import { afterEach, beforeEach, expect, test, vi } from "vitest";
import { fixtures } from "../../stub/fixtures.mjs";
import { ClusterStore } from "./cluster.svelte";

const SNAPSHOT = `id: 1-1\nevent: snapshot\ndata: ${JSON.stringify({ at_unix_ms: Date.now(), cluster: fixtures.home() })}\n\n`;

beforeEach(() => Object.defineProperty(document, "hidden", { configurable: true, value: false }));
afterEach(() => {
  vi.useRealTimers();
  vi.restoreAllMocks();
  vi.unstubAllGlobals();
});

type Stream = { say: (text: string) => void; end: () => void; cut: () => void };

/** A node whose event streams are held here; `null` is none. */
function node(): { streams: Stream[]; asked: (string | null)[]; probes: number; isThere: boolean } {
  const all = { streams: [] as Stream[], asked: [] as (string | null)[], probes: 0, isThere: true };
  vi.stubGlobal("fetch", async (path: string, init: RequestInit) => {
    if (path === "/health") all.probes += 1;
    if (!all.isThere) throw new TypeError("refused");
    if (path === "/health") return new Response('{"status":"ok"}');
    all.asked.push(new Headers(init.headers).get("last-event-id"));
    const body = new ReadableStream<Uint8Array>({
      start(controller) {
        const say = (text: string) => controller.enqueue(new TextEncoder().encode(text));
        init.signal?.addEventListener("abort", () => controller.error(new DOMException("", "AbortError")));
        all.streams.push({ say, end: () => controller.close(), cut: () => controller.error(new TypeError("network error")) });
        say(SNAPSHOT);
      },
    });
    return new Response(body);
  });
  return all;
}

/** Every state of the connection since then. */
function watched(store: ClusterStore): string[] {
  const seen = [store.connection as string];
  // It ends with the fake timers of its test.
  setInterval(() => seen.at(-1) !== store.connection && seen.push(store.connection), 10);
  return seen;
}

test("a stream that ends for another reason is no node that is gone", async () => {
  vi.useFakeTimers();
  const there = node();
  const store = new ClusterStore();
  void store.run();
  await vi.advanceTimersByTimeAsync(50);
  const seen = watched(store);
  expect(store.connection).toBe("live");
  there.streams[0]!.say('event: end\ndata: {"reason":"slow"}\n\n');
  there.streams[0]!.end();
  await vi.advanceTimersByTimeAsync(1000);
  there.streams[1]!.cut();
  await vi.advanceTimersByTimeAsync(1000);
  expect([there.streams.length, seen]).toEqual([3, ["live"]]);
  // It is gone when it does not answer.
  there.isThere = false;
  there.streams[2]!.cut();
  await vi.advanceTimersByTimeAsync(1500);
  expect(store.connection).toBe("gone");
  there.isThere = true;
  await vi.advanceTimersByTimeAsync(3000);
  expect(store.connection).toBe("live");
  store.stop();
});

test("a node that gives signs of life is not asked for them, and one that is silent is gone within 3 s", async () => {
  vi.useFakeTimers();
  const there = node();
  const store = new ClusterStore();
  void store.run();
  for (let second = 0; second < 20; second++) {
    await vi.advanceTimersByTimeAsync(1000);
    there.streams[0]!.say(": keep-alive\n");
  }
  expect([there.probes, store.connection]).toEqual([0, "live"]);
  vi.spyOn(AbortSignal, "timeout").mockImplementation((ms) => {
    const late = new AbortController();
    setTimeout(() => late.abort(new DOMException("", "TimeoutError")), ms);
    return late.signal;
  });
  vi.stubGlobal("fetch", (_: string, init: RequestInit) => new Promise((_, reject) => init.signal!.addEventListener("abort", () => reject(init.signal!.reason))));
  await vi.advanceTimersByTimeAsync(3000);
  expect(store.connection).toBe("gone");
  store.stop();
});

for (const [name, ids] of Object.entries({ lost: ["1-2", "1-4"], swapped: ["1-3", "1-2"], old: ["1-2", "1-1"], "of another run": ["1-2", "2-3"] })) {
  test(`an event that is ${name} asks for a snapshot, and the node is not called gone`, async () => {
    vi.useFakeTimers();
    const there = node();
    const store = new ClusterStore();
    void store.run();
    await vi.advanceTimersByTimeAsync(50);
    const seen = watched(store);
    for (const id of ids) there.streams[0]!.say(`id: ${id}\nevent: delta\ndata: {"at_unix_ms":1,"changes":[]}\n\n`);
    await vi.advanceTimersByTimeAsync(1000);
    expect([there.asked, seen]).toEqual([[null, null], ["live"]]);
    store.stop();
  });
}

test("an event that comes twice changes nothing, and the stream goes on behind it", async () => {
  vi.useFakeTimers();
  const there = node();
  const store = new ClusterStore();
  void store.run();
  await vi.advanceTimersByTimeAsync(50);
  for (const id of ["1-2", "1-2", "1-3"]) there.streams[0]!.say(`id: ${id}\nevent: delta\ndata: {"at_unix_ms":1,"changes":[]}\n\n`);
  await vi.advanceTimersByTimeAsync(50);
  there.streams[0]!.end();
  await vi.advanceTimersByTimeAsync(1000);
  expect(there.asked).toEqual([null, "1-3"]);
  store.stop();
});

test("a node that answers and refuses is not called one that does not answer", async () => {
  vi.useFakeTimers();
  const there = node();
  const store = new ClusterStore();
  vi.stubGlobal("fetch", async () => new Response('{"error":{"code":"too_many","message":"64 readers read already"}}', { status: 429 }));
  void store.run();
  await vi.advanceTimersByTimeAsync(50);
  expect([store.connection, store.isRefused, store.problem]).toEqual(["gone", true, "64 readers read already"]);
  vi.stubGlobal("fetch", async () => Promise.reject(new TypeError("refused")));
  await vi.advanceTimersByTimeAsync(3000);
  expect([store.connection, store.isRefused, there.streams]).toEqual(["gone", false, []]);
  store.stop();
});

test("what a member tells twice of its devices and links is there once", () => {
  const store = new ClusterStore();
  const view = fixtures.home() as never as { nodes: { devices: object[] }[]; links: object[] };
  const [devices, links] = [view.nodes[0]!.devices.length, view.links.length];
  view.nodes[0]!.devices.push({ ...view.nodes[0]!.devices[0] });
  view.links.push({ ...view.links[0] });
  store.take({ event: "snapshot", id: "1-1", data: JSON.stringify({ at_unix_ms: 1, cluster: view }) });
  expect([store.nodes[0]!.devices.length, store.view!.links.length]).toEqual([devices, links]);
  const [kept] = store.nodes;
  store.take({ event: "delta", id: "1-2", data: JSON.stringify({ at_unix_ms: 1, changes: [{ kind: "link", link: { ...view.links[0] } }] }) });
  expect(store.nodes[0], "what is in order is shared").toBe(kept);
});
