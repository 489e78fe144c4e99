// The page against described clusters: every route in every state, without a violation of the content security policy, a console error or a
// serious finding of axe-core; and what it does when the node is gone. `npm run build` first; `node e2e/described.mjs`.

import assert from "node:assert/strict";
import { createRequire } from "node:module";
import { readFileSync } from "node:fs";
import { start } from "../stub/server.mjs";
import { fixtures } from "../stub/fixtures.mjs";
import { browse } from "./browser.mjs";

const AXE = readFileSync(createRequire(import.meta.url).resolve("axe-core/axe.min.js"), "utf8");
const ROUTES = ["cluster", "devices", "instances", "models", "models/llama-3.1-70b-q4", "chat", "requests", "alerts", "logs", "metrics", "integrations", "licences"];
const LOOKS = [
  { name: "light", colorScheme: "light", viewport: { width: 1280, height: 900 } },
  { name: "dark", colorScheme: "dark", viewport: { width: 1280, height: 900 } },
  { name: "360 x 800", colorScheme: "dark", viewport: { width: 360, height: 800 }, hasTouch: true },
];

const stub = start(0, { tokens_per_s: 100 });
await new Promise((ready) => stub.server.once("listening", ready));
const origin = `http://127.0.0.1:${stub.server.address().port}`;
const login = `${origin}/#code=${"c".repeat(64)}`;
const control = (body) => fetch(`${origin}/stub`, { method: "POST", body: JSON.stringify(body) });

/** A page that fails the run for whatever the browser complains about. */
async function open(browser, options, complaints) {
  const context = await browser.newContext({ reducedMotion: "reduce", ...options });
  const page = await context.newPage();
  page.setDefaultTimeout(15_000);
  page.on("pageerror", (error) => complaints.push(`error: ${error.message}`));
  page.on("console", (message) => message.type() === "error" && !/ERR_|Failed to load resource/.test(message.text()) && complaints.push(`console: ${message.text()}`));
  page.on("request", (request) => new URL(request.url()).origin !== origin && !request.url().startsWith("blob:") && complaints.push(`asked ${request.url()}`));
  await page.addInitScript(() => addEventListener("securitypolicyviolation", (event) => console.error(`CSP ${event.violatedDirective} ${event.blockedURI}`)));
  return page;
}

async function go(page, route) {
  await page.evaluate((hash) => (location.hash = hash), `#/${route}`);
  await page.waitForFunction(() => document.querySelector("main h1") && !document.querySelector("main .opening"));
  await page.waitForTimeout(150);
}

const scenarios = {
  async "a code opens the page once and leaves the address bar"(browser, complaints) {
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

  async "every route in every state passes axe and the content security policy"(browser, complaints) {
    for (const look of LOOKS) {
      const page = await open(browser, look, complaints);
      await page.goto(login);
      await page.waitForSelector("nav");
      for (const scenario of look.name === "light" ? Object.keys(fixtures) : ["home"]) {
        await control({ scenario });
        for (const route of ROUTES) {
          await go(page, route);
          // Playwright's evaluation is outside of the page's policy.
          await page.evaluate(AXE);
          const { violations } = await page.evaluate(() => globalThis.axe.run(document, { resultTypes: ["violations"] }));
          const serious = violations.filter(({ impact }) => ["serious", "critical"].includes(impact));
          assert.deepEqual(serious.map(({ id, nodes }) => `${id}: ${nodes[0].html.slice(0, 200)} ${nodes[0].failureSummary}`), [], `${route}, ${scenario}, ${look.name}`);
          const overflow = await page.evaluate(() => document.scrollingElement.scrollWidth > innerWidth || document.querySelector("main").scrollWidth > document.querySelector("main").clientWidth + 1);
          assert.equal(overflow, false, `${route} is wider than ${look.name}`);
        }
      }
      await control({ scenario: "home" });
      assert.equal(await page.evaluate(() => globalThis.__pwned), undefined);
      await page.context().close();
    }
  },

  async "a node that is gone is said within 3 s, and the page comes back by itself"(browser, complaints) {
    const page = await open(browser, {}, complaints);
    await page.goto(login);
    await page.waitForSelector("p.state.live");
    await control({ frozen: true });
    const began = Date.now();
    await page.waitForSelector("[role=alert] >> text=does not answer");
    assert.ok(Date.now() - began < 3000, `said after ${Date.now() - began} ms`);
    assert.ok(await page.locator(".stale").count());
    await control({ frozen: false });
    await page.waitForSelector("p.state.live");
    assert.equal(await page.locator(".stale").count(), 0);
  },

  async "an answer is streamed, stopped, branched and found again after a reload"(browser, complaints) {
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
    await page.waitForTimeout(2000); // it is saved every 1.5 s
    await page.reload();
    await page.waitForSelector("text=Where the time goes");
    const before = await page.locator(".thread").innerText();
    await page.waitForTimeout(1500);
    assert.ok((await page.locator(".thread").innerText()).length > before.length + 100, "it goes on after a reload");
    await page.getByRole("button", { name: "Stop" }).click();
    await page.waitForSelector("text=You stopped it here.");
    const { calls } = await (await control({})).json();
    assert.ok(calls.some(({ method, path }) => method === "DELETE" && path.startsWith("/v1/requests/")), "stop reaches the node");
  },

  async "answers that attack the page are text"(browser, complaints) {
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

  async "all of it by keyboard: open pages, choose a node, place a model"(browser, complaints) {
    const page = await open(browser, {}, complaints);
    await page.goto(login);
    await page.waitForSelector("nav");
    await page.keyboard.press("?");
    await page.waitForSelector("dialog[open]");
    await page.keyboard.press("Escape");
    await page.keyboard.press("g");
    await page.keyboard.press("m");
    await page.waitForSelector("h1:has-text('Models')");
    await page.getByRole("link", { name: "llama-3.1-70b-q4" }).focus();
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
  },

  async "the first load is small, and the page is useful within a second"(browser, complaints) {
    const page = await open(browser, {}, complaints);
    const sizes = new Map();
    page.on("response", async (response) => /\.(js|css)$/.test(response.url()) && sizes.set(response.url(), await response.body().catch(() => Buffer.alloc(0))));
    await page.goto(login);
    await page.waitForSelector("text=coordinator");
    await page.waitForTimeout(300);
    const { gzipSync } = await import("node:zlib");
    const bytes = [...sizes.values()].reduce((sum, body) => sum + gzipSync(body).length, 0);
    console.log(`  first load: ${bytes} bytes of JavaScript and CSS, gzip`);
    assert.ok(bytes < 150_000, `${bytes} bytes`);
  },

  async "100 nodes, 400 devices and 126 layers are shown"(browser, complaints) {
    const page = await open(browser, {}, complaints);
    await control({ scenario: "hundred" });
    const began = Date.now();
    await page.goto(login);
    await page.waitForSelector(".graph >> text=rack-100");
    console.log(`  100 nodes drawn after ${Date.now() - began} ms`);
    await go(page, "instances");
    assert.equal(await page.locator(".part").count(), 42);
    await control({ scenario: "home" });
  },
};

const only = process.argv.slice(2);
let [passed, failed] = [0, 0];
await browse(async (browser) => {
  for (const [name, run] of Object.entries(scenarios)) {
    if (only.length > 0 && !only.some((word) => name.includes(word))) continue;
    const complaints = [];
    try {
      await run(browser, complaints);
      assert.deepEqual(complaints, []);
      passed += 1;
      console.log(`ok ${name}`);
    } catch (error) {
      failed += 1;
      console.log(`FAILED ${name}\n  ${error.message}`);
      await control({ scenario: "home", frozen: false });
    }
    for (const context of browser.contexts()) await context.close();
  }
});
await stub.close();
console.log(`${passed} passed, ${failed} failed`);
process.exit(failed > 0 ? 1 : 0);
