// The page against described clusters: every route in every state, without a violation of the content security policy, a console error or a
// serious finding of axe-core; and what it does when the node is gone. `npm run build` first; `node e2e/described.mjs [NAME…]` runs the
// scenarios whose names begin so, `--list` names them all.

import assert from "node:assert/strict";
import { gzipSync } from "node:zlib";
import { fixtures } from "../stub/fixtures.mjs";
import { dialogs, gone, LOOKS, passes, unfolded, wayIn } from "./axe.mjs";
import { control, go, kept, login, open, origin, run, until } from "./stubbed.mjs";

const ROUTES = ["cluster", "devices", "instances", "models", "models/llama-3.1-70b-q4", "chat", "requests", "alerts", "logs", "doctor", "metrics", "integrations", "licences"];

/** Every route of one described cluster in one look: no serious finding of axe, and nothing wider than the window. */
async function looksWell(browser, complaints, look, scenario) {
  const page = await open(browser, LOOKS[look], complaints);
  await control({ scenario });
  await page.goto(login);
  await page.waitForSelector("nav");
  for (const route of ROUTES) {
    await go(page, route);
    await passes(page, route);
  }
  assert.equal(await page.evaluate(() => globalThis.__pwned), undefined);
}

const scenarios = {
  async "enter: a code opens the page once and leaves the address bar"(browser, complaints) {
    const page = await open(browser, {}, complaints);
    await page.goto(login);
    await page.waitForSelector("nav");
    assert.equal(await page.evaluate(() => location.hash.includes("code")), false);
    await page.reload();
    await page.waitForSelector("nav");
    const other = await open(browser, {}, complaints);
    await other.goto(`${origin}/#code=${"d".repeat(64)}`);
    await other.waitForSelector("text=exo open");
    await other.getByLabel("Secret or API key").fill("stub");
    await other.keyboard.press("Enter");
    await other.waitForSelector("nav");
  },

  async "gone: a node that is gone is said, and the page comes back by itself"(browser, complaints) {
    const page = await open(browser, {}, complaints);
    await page.goto(login);
    await page.waitForSelector("p.state.live");
    // A node that is gone serves no part of the page either.
    await page.waitForSelector("h1");
    await control({ frozen: true });
    const began = Date.now();
    await page.waitForSelector("[role=alert] >> text=does not answer");
    // Within 3 s on a machine that is idle: the page's own waits add up to 2.6 s, the rest is what a busy one adds.
    console.log(`  said after ${Date.now() - began} ms`);
    assert.ok(Date.now() - began < 8000, `said after ${Date.now() - began} ms`);
    await page.locator(".stale").first().waitFor({ state: "attached" });
    await control({ frozen: false });
    await page.waitForFunction(() => document.querySelector("p.state.live") && !document.querySelector(".stale"));
  },

  async "chat: an answer is streamed, stopped, branched and found again after a reload"(browser, complaints) {
    const page = await open(browser, {}, complaints);
    await page.goto(login);
    await page.waitForSelector("nav");
    await go(page, "chat");
    const field = page.getByLabel("Message", { exact: true });
    await field.fill("raw one two three four five six seven eight nine ten. The end of it.");
    await page.keyboard.press("Enter");
    await page.waitForSelector("text=The end of it.");
    await page.getByRole("button", { name: "Answer again" }).click();
    await page.waitForSelector("text=2 of 2");
    await page.getByRole("button", { name: "Previous version" }).click();
    await page.waitForSelector("text=1 of 2");
    // A conversation that has begun keeps nobody on its page.
    await page.getByRole("link", { name: "Instances", exact: true }).click();
    await page.waitForSelector("h1:has-text('Instances')");
    await page.goBack();
    await page.waitForSelector("text=1 of 2");
    await field.fill("long 40");
    await page.keyboard.press("Enter");
    await page.waitForSelector("text=Where the time goes");
    // It is saved from time to time: what a reload finds is what is kept.
    await until("a part of the answer is kept", async () => (await kept(page)).some(({ role, content }) => role === "assistant" && content.includes("Where the time goes")));
    await page.reload();
    await page.waitForSelector("text=Where the time goes");
    const before = (await page.locator(".thread").innerText()).length;
    await page.waitForFunction((before) => document.querySelector(".thread").innerText.length > before + 100, before);
    await page.getByRole("button", { name: "Stop" }).click();
    await page.waitForSelector("text=You stopped it here.");
    const { calls } = await (await control({})).json();
    assert.ok(calls.some(({ method, path }) => method === "DELETE" && path.startsWith("/v1/requests/")), "stop reaches the node");
  },

  async "kept: an answer is found again when the page is loaded anew before its head, and goes on where it was stopped"(browser, complaints) {
    const page = await open(browser, {}, complaints);
    await page.goto(login);
    await page.waitForSelector("nav");
    await go(page, "chat");
    await control({ head_ms: 3000, tokens_per_s: 20 });
    await page.getByLabel("Message", { exact: true }).fill("raw one two three four five six seven eight nine ten. The end of it.");
    await page.keyboard.press("Enter");
    await until("its ticket is kept", async () => (await kept(page)).some(({ role, ticket }) => role === "assistant" && ticket));
    await page.reload();
    await page.waitForSelector("text=The end of it.");

    // A stop that the node does not hear at once is said again, also by the page that comes after it.
    await control({ head_ms: 0, tokens_per_s: 5 });
    await page.getByLabel("Message", { exact: true }).fill("long 5");
    await page.keyboard.press("Enter");
    await page.getByRole("button", { name: "Stop" }).waitFor();
    await until("the node has it", async () => (await kept(page)).some(({ state, ticket }) => state === "streaming" && ticket));
    await control({ refusing: true });
    await page.getByRole("button", { name: "Stop" }).click();
    await page.waitForSelector("text=You stopped it here.");
    await control({ refusing: false });
    await page.reload();
    await until("the stop has come", async () => {
      const { calls } = await (await control({})).json();
      return calls.some(({ method, path }) => method === "DELETE" && path.startsWith("/v1/requests/"));
    });
    await until("it is not said for ever", () => page.evaluate(() => JSON.parse(localStorage.getItem("exo-stops") ?? "[]").length === 0));
  },

  async "tabs: a second tab shows the answer of the first, and stops it"(browser, complaints) {
    const page = await open(browser, {}, complaints);
    await page.goto(login);
    await page.waitForSelector("nav");
    await go(page, "chat");
    await page.getByLabel("Message", { exact: true }).fill("raw Hi.");
    await page.keyboard.press("Enter");
    await page.getByRole("button", { name: "Numbers" }).waitFor();
    const other = await page.context().newPage();
    await other.goto(page.url());
    await other.waitForSelector("text=Hi.");
    await control({ tokens_per_s: 5 });
    await page.getByLabel("Message", { exact: true }).fill("long 5");
    await page.keyboard.press("Enter");
    await other.waitForSelector("text=Another tab reads this answer.");
    await other.getByRole("button", { name: "Stop" }).click();
    await page.waitForSelector("text=You stopped it here.");
    await other.waitForSelector("text=You stopped it here.");
    // An answer is taken over from a tab that is closed.
    await page.getByLabel("Message", { exact: true }).fill("long 1");
    await page.keyboard.press("Enter");
    await other.waitForSelector("text=Another tab reads this answer.");
    await control({ tokens_per_s: 100 });
    await page.close();
    await other.waitForFunction(() => document.querySelectorAll("article.assistant").length === 3 && !document.body.innerText.includes("Another tab reads"));
  },

  async "actions: downloads wait and go on, and a device is tried again"(browser, complaints) {
    const page = await open(browser, {}, complaints);
    await page.goto(login);
    await page.waitForSelector("nav");
    await go(page, "models");
    await page.getByRole("button", { name: "Pause" }).first().click();
    await page.getByRole("button", { name: "Go on" }).first().click();
    await go(page, "devices");
    await page.getByRole("button", { name: "Try it again" }).first().click();
    await page.getByText(/is being checked/).first().waitFor();
    const { calls } = await (await control({})).json();
    for (const path of [/pulls\/.*\/pause$/, /pulls\/.*\/resume$/, /devices\/.*\/retry$/]) assert.ok(calls.some((call) => call.method === "POST" && path.test(call.path)), `${path}`);
    assert.equal(await page.locator("[role=alert]").filter({ hasText: "JSON" }).count(), 0);
  },

  async "hostile: answers that attack the page are text"(browser, complaints) {
    const page = await open(browser, {}, complaints);
    await page.goto(login);
    await page.waitForSelector("nav");
    await go(page, "chat");
    await page.getByLabel("Message", { exact: true }).fill("raw <img src=x onerror='window.__pwned=1'> [x](javascript:window.__pwned=1) ![p](https://example.org/p.png) $\\href{javascript:1}{x}$ [out](https://example.org/away)");
    await page.keyboard.press("Enter");
    await page.waitForSelector("a:has-text('out')");
    await page.getByRole("link", { name: "out" }).click();
    await page.waitForSelector("dialog >> text=https://example.org/away");
    await page.keyboard.press("Escape");
    assert.equal(await page.evaluate(() => globalThis.__pwned), undefined);
    assert.equal(await page.locator(".thread img").count(), 0);
  },

  async "keyboard: all of it: open pages, choose a node, place a model"(browser, complaints) {
    const page = await open(browser, {}, complaints);
    await page.goto(login);
    await page.waitForSelector("nav");
    await page.keyboard.press("?");
    await page.waitForSelector("dialog[open]");
    await page.keyboard.press("Escape");
    await page.keyboard.press("g");
    await page.keyboard.press("m");
    await page.waitForSelector("h1:has-text('Models')");
    await page.getByRole("link", { name: "llama-3.1-70b-q4", exact: true }).focus();
    await page.keyboard.press("Enter");
    await page.waitForSelector("text=Every device, with its reason");
    await page.getByLabel("Context, tokens").focus();
    await page.keyboard.type("250000");
    await page.waitForSelector("[role=alert] >> text=65,536 would fit");
    for (let at = 0; at < 6; at++) await page.keyboard.press("Backspace");
    await page.getByRole("button", { name: "Place it" }).focus();
    await page.waitForSelector("button:has-text('Place it'):enabled");
    await page.keyboard.press("Enter");
    await page.waitForSelector("h1:has-text('Instances')");
    await page.waitForSelector("text=llama-3.1-70b-q4");

    // What failed is one Tab away from where it began, and behind it comes what follows there.
    const body = '{"error":{"code":"conflict","message":"no code today"}}';
    await page.route("**/exo/v1/invites", (route) => route.fulfill({ status: 409, contentType: "application/json", body }));
    await go(page, "cluster");
    await page.getByRole("button", { name: /^Remove…/ }).first().waitFor();
    const make = page.getByRole("button", { name: "Make a code" });
    await make.focus();
    await page.keyboard.press("Enter");
    await page.getByText("no code today").waitFor();
    await page.keyboard.press("Tab");
    assert.equal(await page.evaluate(() => document.activeElement.closest("#notices p")?.innerText.trim()), "no code today");
    await page.keyboard.press("Tab");
    assert.ok(await make.evaluate((button) => button.compareDocumentPosition(document.activeElement) === Node.DOCUMENT_POSITION_FOLLOWING), "Tab goes on behind the action");
  },

  async "door: a person shuts the door, opens it and refuses who asks"(browser, complaints) {
    const page = await open(browser, {}, complaints);
    await page.goto(login);
    const calls = async () => (await (await control({})).json()).calls.map(({ method, path, body }) => `${method} ${path} ${JSON.stringify(body)}`);
    await page.getByText("The door is open: new").waitFor();
    await page.getByRole("button", { name: "Shut now…" }).click();
    await page.getByRole("button", { name: "Shut", exact: true }).click();
    await page.getByText("The door is open: new").waitFor({ state: "detached" });
    await page.getByRole("button", { name: "Open the door for 10 minutes…" }).click();
    await page.getByRole("button", { name: "Cancel" }).click();
    assert.deepEqual(await calls(), ["POST /exo/v1/session {\"code\":\"" + "c".repeat(64) + "\"}", "DELETE /exo/v1/join_window {}"], "who cancels opens nothing");
    await page.getByRole("button", { name: "Open the door for 10 minutes…" }).click();
    await page.getByRole("button", { name: "Open", exact: true }).click();
    await page.getByText("The door is open: new").waitFor();
    await page.getByRole("button", { name: "Refuse…" }).click();
    await page.getByRole("button", { name: "Refuse", exact: true }).click();
    await page.getByText("pixel-8 is refused.").waitFor();
    await page.getByText("Asks to join").waitFor({ state: "detached" });
    const [opened, refused] = await calls();
    assert.equal(opened, 'POST /exo/v1/join_window {"minutes":10}');
    assert.match(refused, /^DELETE \/exo\/v1\/join_requests\/[0-9a-f]{64} \{\}$/);
  },

  async "retry: a device in quarantine is tried again, of this node and of another"(browser, complaints) {
    const page = await open(browser, {}, complaints);
    await page.goto(login);
    await page.waitForSelector("nav");
    await go(page, "devices");
    await page.getByText("its driver ended 4 times").first().waitFor();
    const { nodes } = (await (await control({})).json()).view;
    const tried = [];
    for (const [node, device, name] of [["desk", "gpu1", "GeForce GTX 1060"], ["attic", "gpu0", "Intel UHD"]]) {
      await page.getByLabel(`${node}/${device}`).getByRole("button", { name: "Try it again" }).click();
      await page.getByText(`${name} is being checked`).waitFor();
      tried.push(`/exo/v1/members/${nodes.find((one) => one.name === node).id}/devices/${device}/retry`);
    }
    const { calls } = await (await control({})).json();
    assert.deepEqual(calls.slice(-2).map(({ path }) => path), tried);
  },

  async "find: what fits, what the hub has and what is on the disk"(browser, complaints) {
    const page = await open(browser, {}, complaints);
    await page.goto(login);
    await page.waitForSelector("nav");
    await go(page, "models");
    const row = page.locator("tr", { hasText: "llama-3.1-70b-q4" });
    await row.getByText("too large").waitFor();
    await row.getByText("would fit with 12 GiB more memory on desk").waitFor();
    await page.getByRole("button", { name: "Does it fit? mistral-7b-q8" }).click();
    await page.locator("tr", { hasText: "mistral-7b-q8" }).getByText("21 tokens/s, first token after 900 ms").waitFor();
    await page.getByText("212 GB free").or(page.getByText("197 GiB free")).first().waitFor();
    await page.getByText("the file is cut off").waitFor();
    await page.getByRole("button", { name: "Use it in place qwen3:8b" }).click();
    await page.getByText("qwen3:8b is known now.").waitFor();
    await page.getByRole("button", { name: "Look", exact: true }).click();
    await page.getByText("12 GiB more memory on desk", { exact: true }).waitFor();
    await page.getByRole("button", { name: "Fetch Gemma" }).click();
    await page.locator("dialog").getByText("no use that the policy forbids").waitFor();
    await page.locator("dialog").getByRole("button", { name: "Fetch" }).click();
    await page.getByText("hf.co/org/gemma is being fetched.").waitFor();
    await page.getByLabel("Words; the most downloaded comes first").fill("qwen3");
    await page.keyboard.press("Enter");
    await page.getByText("evil/<img src=x").waitFor();
    await page.getByRole("button", { name: "Does it fit? org/Qwen3-8B-GGUF" }).click();
    await page.getByText("runs slowly on <b>attic</b>").waitFor();
    await page.getByRole("button", { name: "Fetch org/Qwen3-8B-GGUF" }).click();
    await page.getByText("org/Qwen3-8B-GGUF is being fetched.").waitFor();
    const { calls } = await (await control({})).json();
    // Whether known models fit is asked for beside what a person does.
    const bodies = calls.filter(({ path, body }) => path !== "/exo/v1/fits" || body.reference.startsWith("hf.co/")).map(({ path, body }) => [path, body]);
    assert.deepEqual(bodies.slice(-5), [
      ["/exo/v1/models", { path: "/home/x/.ollama/models/blobs/sha256-1" }],
      ["/exo/v1/pulls", { reference: "hf.co/org/gemma", layers_only: true }],
      ["/exo/v1/hub/search", { text: "qwen3" }],
      ["/exo/v1/fits", { reference: "hf.co/org/Qwen3-8B-GGUF" }],
      ["/exo/v1/pulls", { reference: "hf.co/org/Qwen3-8B-GGUF", layers_only: true }],
    ]);
    assert.equal(await page.evaluate(() => globalThis.__pwned), undefined);
  },

  async "size: the first load is small"(browser, complaints) {
    const page = await open(browser, {}, complaints);
    const bodies = new Map();
    page.on("response", (response) => /\.(js|css)$/.test(response.url()) && bodies.set(response.url(), response.body()));
    await page.goto(login);
    await page.waitForSelector("text=coordinator");
    const bytes = (await Promise.all(bodies.values())).reduce((sum, body) => sum + gzipSync(body).length, 0);
    assert.ok(bytes > 10_000, `${bytes} bytes were seen`);
    console.log(`  first load: ${bytes} bytes of JavaScript and CSS, gzip`);
    assert.ok(bytes < 150_000, `${bytes} bytes`);
  },

  async "readers: who may only look, or only chat, gets no button that the node would refuse"(browser, complaints) {
    const pages = { viewer: ["Cluster", "Devices", "Instances"], chat: ["Chat", "Connect"] };
    for (const [access, names] of Object.entries(pages)) {
      await control({ access, plain_http: true, scenario: "home" });
      const page = await open(browser, {}, complaints);
      await page.goto(login);
      await page.waitForSelector("text=This connection is not encrypted");
      const menu = await page.locator("nav a").allInnerTexts();
      for (const name of names) assert.ok(menu.some((one) => one.includes(name)), `${access} has ${name}: ${menu}`);
      assert.ok(!menu.some((one) => /Requests|Logs|Models/.test(one)), `${access}: ${menu}`);
      for (const name of names) {
        await go(page, name === "Connect" ? "integrations" : name.toLowerCase());
        assert.equal(await page.getByRole("button", { name: /^(Let in|Refuse…|Remove… .*|Unload…|Make a code|Try it again)$/ }).count(), 0, `${access}: ${name}`);
      }
      await page.context().close();
    }
    await control({ access: "owner", plain_http: false });
  },

  async "zoom: every page fits at twice the size, and nothing moves for whom that is too much"(browser, complaints) {
    // 1280 x 900 at 200 % has so many pixels of its own.
    const page = await open(browser, { viewport: { width: 640, height: 450 } }, complaints);
    await control({ scenario: "home" });
    await page.goto(login);
    for (const route of ROUTES) {
      await go(page, route);
      const wide = await page.evaluate(() => [document.scrollingElement.scrollWidth - innerWidth, document.querySelector("main").scrollWidth - document.querySelector("main").clientWidth]);
      assert.ok(wide.every((by) => by <= 1), `${route} is wider than the window by ${wide}`);
      const moving = await page.evaluate(() => document.getAnimations().filter((one) => one.playState === "running" && one.effect.getComputedTiming().endTime > 50).length);
      assert.equal(moving, 0, `${route} moves`);
    }
  },

  async "hundred: 100 nodes, 400 devices and 126 layers are shown"(browser, complaints) {
    const page = await open(browser, {}, complaints);
    await control({ scenario: "hundred" });
    const began = Date.now();
    await page.goto(login);
    await page.waitForSelector(".graph >> text=rack-100");
    console.log(`  100 nodes drawn after ${Date.now() - began} ms`);
    await go(page, "instances");
    assert.equal(await page.locator(".part").count(), 42);
  },
};

for (const look of Object.keys(LOOKS)) {
  for (const scenario of look === "light" ? Object.keys(fixtures) : ["home"]) {
    scenarios[`axe-${look}-${scenario}: every route passes axe and fits the window`] = (browser, complaints) => looksWell(browser, complaints, look, scenario);
  }
}

// The small look is the dark one, too.
for (const look of ["light", "small"]) {
  scenarios[`axe-${look}-states: the way in, the gone node, open dialogs and what is folded away pass axe and fit the window`] = async (browser, complaints) => {
    for (const state of [wayIn, dialogs, unfolded, gone]) await state(browser, complaints, look);
  };
}

await run(scenarios, process.argv.slice(2));
