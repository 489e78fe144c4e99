// What the page may take, against described clusters: time to a first view, long conversations, frames while an answer comes, memory beside a
// hundred nodes. `node e2e/numbers.mjs [NAME…]`; EXO_SLACK multiplies the bounds of time, for machines that are slow or busy. Each number is
// printed beside its bound.

import assert from "node:assert/strict";
import { control, go, login, open, run, until } from "./stubbed.mjs";

const SLACK = Number(process.env.EXO_SLACK ?? 1);
/** What a browser that does nothing takes between two frames, and what a person does not notice. */
const FRAME_MS = 50;
const MEBI = 1 << 20;

/** Fails where more was measured than may be. */
function bound(what, value, max, unit) {
  console.log(`  ${what}: ${value.toFixed(value < 10 ? 2 : 0)} ${unit} (bound ${max.toFixed(max < 10 ? 2 : 0)})`);
  assert.ok(value <= max, `${what}: ${value} ${unit}, at most ${max}`);
}

const timed = async (work) => {
  const began = performance.now();
  await work();
  return performance.now() - began;
};

/** The browser's own counters: seconds of its main thread, and the heap after all that is not needed has gone. */
async function counters(page) {
  const session = await page.context().newCDPSession(page);
  await session.send("Performance.enable");
  return {
    session,
    async busy_s() {
      const { metrics } = await session.send("Performance.getMetrics");
      return metrics.find(({ name }) => name === "TaskDuration").value;
    },
    async heap_bytes() {
      for (let round = 0; round < 3; round++) await session.send("HeapProfiler.collectGarbage");
      return (await session.send("Runtime.getHeapUsage")).usedSize;
    },
  };
}

/** A cold load, until the cluster is drawn. */
async function firstView(browser, complaints, rate) {
  const page = await open(browser, {}, complaints);
  const { session } = await counters(page);
  await session.send("Emulation.setCPUThrottlingRate", { rate });
  return timed(async () => {
    await page.goto(login);
    await page.waitForSelector(".graph >> text=tower");
  });
}

/** Puts a conversation of `count` messages with `bytes` bytes into the browser's history; the page is loaded anew afterwards. */
async function converse(page, count, bytes) {
  const paragraph = "A pipeline of three stages spends its time **in memory**, not in arithmetic; each token reads `every weight` once.\n\n| stage | share |\n|---|---:|\n| 0 | 48 % |\n| 1 | 52 % |\n\n";
  const each = Math.ceil(bytes / count);
  const texts = Array.from({ length: count }, (_, at) => `Message ${at}. ${paragraph.repeat(Math.ceil(each / paragraph.length))}`.slice(0, each));
  await page.evaluate(
    (texts) =>
      new Promise((done, failed) => {
        const opened = indexedDB.open("exo");
        opened.onerror = () => failed(opened.error);
        opened.onsuccess = () => {
          const writing = opened.result.transaction(["conversations", "messages"], "readwrite");
          writing.objectStore("conversations").put({ id: "long", title: "A long one", created_ms: 1, updated_ms: 1, model: "qwen3-32b-q4", system: "", params: {}, chosen: {} });
          texts.forEach((content, at) => {
            const role = at % 2 === 0 ? "user" : "assistant";
            const parent = at === 0 ? "" : `m${at - 1}`;
            writing.objectStore("messages").put({ id: `m${at}`, conversation: "long", parent, role, created_ms: at, content, reasoning: "", calls: [], call: null, state: "done", error: "", model: "", ticket: null, stats: null, chances: [] });
          });
          writing.oncomplete = () => (opened.result.close(), done());
          writing.onerror = () => failed(writing.error);
        };
      }),
    texts,
  );
}

const scenarios = {
  async "view: a first useful view with a cold cache"(browser, complaints) {
    bound("first view", await firstView(browser, complaints, 1), 1000 * SLACK, "ms");
    bound("first view, the browser's processor slowed fourfold", await firstView(browser, complaints, 4), 3000 * SLACK, "ms");
  },

  async "thread: a conversation of 500 messages and 1 MB is opened, and one types into it while an answer comes"(browser, complaints) {
    const page = await open(browser, {}, complaints);
    await page.goto(login);
    await page.waitForSelector("nav");
    await go(page, "chat");
    await converse(page, 500, 1 << 20);
    await page.reload();
    await page.waitForSelector("nav");
    const opened = await timed(async () => {
      await page.evaluate(() => (location.hash = "#/chat/long"));
      await page.waitForSelector(".thread >> text=Message 499.");
      await page.evaluate(() => new Promise((drawn) => requestAnimationFrame(() => requestAnimationFrame(drawn))));
    });
    bound("500 messages opened", opened, 1000 * SLACK, "ms");
    const field = page.getByLabel("Message", { exact: true });
    await field.fill("long 40");
    await page.keyboard.press("Enter");
    await page.waitForSelector("text=Where the time goes");
    await page.evaluate(() => {
      globalThis.__frames = [];
      let last = performance.now();
      const frame = (now) => (__frames.push(now - last), (last = now), requestAnimationFrame(frame));
      requestAnimationFrame(frame);
    });
    await field.pressSequentially("A question that is typed while the answer of a hundred tokens a second comes.", { delay: 40 });
    const frames = (await page.evaluate(() => __frames)).sort((a, b) => a - b);
    assert.ok(frames.length > 20, `${frames.length} frames`);
    bound("of 20 frames while typing, the longest but one", frames[Math.floor(frames.length * 0.95)], FRAME_MS * SLACK, "ms");
    await page.getByRole("button", { name: "Stop" }).click();
  },

  async "token: a token costs as much at the end of a long answer as at its beginning"(browser, complaints) {
    const page = await open(browser, {}, complaints);
    const { busy_s } = await counters(page);
    await page.goto(login);
    await page.waitForSelector("nav");
    await go(page, "chat");
    await control({ tokens_per_s: 400 });
    await page.getByLabel("Message", { exact: true }).fill("long 40");
    await page.keyboard.press("Enter");
    const length = () => page.evaluate(() => document.querySelector("article.assistant .text")?.textContent.length ?? 0);
    /** Microseconds of the main thread for each character between two lengths. */
    const cost = async (from, to) => {
      await until(`${from} characters`, async () => (await length()) >= from);
      const [busy, at] = [await busy_s(), await length()];
      await until(`${to} characters`, async () => (await length()) >= to);
      return ((await busy_s()) - busy) / ((await length()) - at);
    };
    const early = await cost(1000, 5000);
    const late = await cost(16_000, 20_000);
    await control({ tokens_per_s: 100 });
    bound("a character after 16,000 others, beside one after 1,000", late / early, 2, "times");
    await page.getByRole("button", { name: "Stop" }).click();
  },

  async "memory: 100 nodes, 400 devices and 126 layers, and as many changes as ten minutes bring"(browser, complaints) {
    const page = await open(browser, {}, complaints);
    const { heap_bytes } = await counters(page);
    await control({ scenario: "hundred" });
    const interactive = await timed(async () => {
      await page.goto(login);
      await page.waitForSelector(".graph >> text=rack-100");
      await page.getByRole("button", { name: "Table" }).click();
      await page.locator("td,th", { hasText: "rack-100" }).first().waitFor();
    });
    bound("100 nodes, until it answers a click", interactive, 2000 * SLACK, "ms");
    await go(page, "devices");
    await go(page, "instances");
    await go(page, "cluster");
    const before = await heap_bytes();
    // A node tells what wavers every two seconds: 300 times in ten minutes, here of all nodes at once.
    const ticks = async () => (await (await control({})).json()).ticks;
    const began = await ticks();
    await control({ tick_ms: 40 });
    await until("300 changes of every node", async () => (await ticks()) >= began + 300);
    await control({ tick_ms: 1000 });
    await page.waitForSelector("p.state.live");
    const after = await heap_bytes();
    bound("heap with 100 nodes", after / MEBI, 150, "MiB");
    bound("heap after ten minutes of changes, beside before", after / before, 1.2, "times");
  },

  async "change: what changes at the node is on the page soon"(browser, complaints) {
    const page = await open(browser, {}, complaints);
    await page.goto(login);
    await page.waitForSelector("p.state.live");
    const times = [];
    for (let round = 0; round < 5; round++) {
      const text = `round ${round} of changes`;
      times.push(await timed(() => Promise.all([control({ changes: [{ kind: "alert", alert: { id: `r${round}`, rule: "r", severity: "warning", since_unix_s: 4e9 + round, resolved_unix_s: null, silenced_until_unix_s: null, node: null, device: null, instance: null, subject: "s", text, what_to_do: "", runbook: "r" } }] }), page.waitForSelector(`text=${text}`)])));
    }
    bound("from a change to the page, median of 5", times.sort((a, b) => a - b)[2], 300 * SLACK, "ms");
  },
};

await run(scenarios, process.argv.slice(2));
