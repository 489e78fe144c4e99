// `node e2e/enter.mjs LINK`: in with the link of `exo open`, and without it not. Fails on any violation of the page's policy, any error of
// its scripts, and any request to another origin.

import assert from "node:assert/strict";
import { browse } from "./browser.mjs";

const [link] = process.argv.slice(2);
const origin = new URL(link).origin;
const WAIT = { timeout: 30_000 };

/** A page of its own, with everything in `faults` that should not happen. */
async function open(browser, address, faults) {
  const context = await browser.newContext();
  await context.exposeFunction("toldViolation", (text) => faults.push(`policy: ${text}`));
  await context.addInitScript(() => {
    document.addEventListener("securitypolicyviolation", (event) => {
      globalThis.toldViolation(`${event.effectiveDirective} ${event.blockedURI} ${event.sample}`);
    });
  });
  const page = await context.newPage();
  // The first answer of an unknown session is a 401, which Chromium logs as an error: that one is meant.
  const isMeant = (message) => /status of 401/.test(message.text());
  page.on("console", (message) => message.type() === "error" && !isMeant(message) && faults.push(`console: ${message.text()}`));
  page.on("pageerror", (error) => faults.push(`error: ${error.message}`));
  page.on("request", (request) => {
    const to = new URL(request.url());
    if (to.origin !== origin && to.protocol !== "data:") faults.push(`request: ${request.url()}`);
  });
  await page.goto(address, WAIT);
  return page;
}

await browse(async (browser) => {
  const faults = [];
  const page = await open(browser, link, faults);
  await page.waitForSelector("nav", WAIT);
  assert.equal(await page.evaluate(() => location.hash.includes("code")), false, "the code is out of the address bar");
  assert.equal(await page.evaluate(() => document.cookie), "", "no cookie");
  assert.match(await page.evaluate(() => localStorage.getItem("exo-session") ?? ""), /exs_[0-9a-f]{64}/);
  await page.reload(WAIT);
  await page.waitForSelector("nav", WAIT);

  // Another browser: the code is used, and the bare address says how to get in.
  for (const address of [link, `${origin}/`]) {
    const stranger = await open(browser, address, faults);
    await stranger.getByText("exo open").first().waitFor(WAIT);
    assert.equal(await stranger.locator("nav").count(), 0, `${address} lets nobody in`);
  }

  assert.deepEqual(faults, []);

  // The policy itself: what an answer of a model could try.
  const tried = await page.evaluate(async () => {
    const ran = [];
    globalThis.ranInline = () => ran.push("inline");
    const script = document.createElement("script");
    try {
      script.textContent = "globalThis.ranInline()";
      document.body.append(script);
    } catch {
      // Trusted Types refuse it before the policy does.
    }
    try {
      document.body.insertAdjacentHTML("beforeend", "<img src=x onerror='globalThis.ranInline()'>");
    } catch {
      // The same.
    }
    const image = new Image();
    const loaded = await new Promise((resolve) => {
      image.onload = () => resolve("loaded");
      image.onerror = () => resolve("refused");
      image.src = "http://127.0.0.1:9/beacon.png";
    });
    // Long enough for what must not run.
    await new Promise((resolve) => setTimeout(resolve, 200));
    return { ran, loaded };
  });
  // The browser tells of what it refused when it comes to that, by a call of its own.
  const isTold = () => faults.some((fault) => fault.startsWith("policy: img-src"));
  for (const end = Date.now() + WAIT.timeout; !isTold() && Date.now() < end; ) await page.waitForTimeout(50);
  assert.deepEqual(tried, { ran: [], loaded: "refused" });
  assert.ok(isTold(), `the picture was refused by the policy: ${faults}`);
});
