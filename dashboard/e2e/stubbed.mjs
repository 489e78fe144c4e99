// Scenarios on described clusters: a stub of a node, a browser, and what fails a run whatever it looks at. Nothing here sleeps: what is
// waited for is named, with a deadline.

import assert from "node:assert/strict";
import { start } from "../stub/server.mjs";
import { browse } from "./browser.mjs";

/** For one step on a busy machine. */
export const STEP_MS = 40_000;

/** Where the stub is, and the link that lets the browser in. */
export let [origin, login] = ["", ""];
export const control = (body) => fetch(`${origin}/stub`, { method: "POST", body: JSON.stringify(body) });

/** A page that fails the run for whatever the browser complains about. */
export async function open(browser, options, complaints) {
  const context = await browser.newContext({ reducedMotion: "reduce", ...options });
  const page = await context.newPage();
  page.setDefaultTimeout(STEP_MS);
  page.on("pageerror", (error) => complaints.push(`error: ${error.message}`));
  page.on("console", (message) => message.type() === "error" && !/ERR_|Failed to load resource/.test(message.text()) && complaints.push(`console: ${message.text()}`));
  page.on("request", (request) => new URL(request.url()).origin !== origin && !request.url().startsWith("blob:") && complaints.push(`asked ${request.url()}`));
  await page.addInitScript(() => addEventListener("securitypolicyviolation", (event) => console.error(`CSP ${event.violatedDirective} ${event.blockedURI}`)));
  return page;
}

/** Opens a route, and waits until its page is there and has what it shows. */
export async function go(page, route) {
  await page.evaluate((hash) => (location.hash = hash), `#/${route}`);
  await page.waitForFunction((route) => {
    const [name, ...below] = route.split("/");
    const main = document.querySelector(`main[data-page="${name}"]`);
    const title = main?.querySelector("h1")?.textContent;
    return title?.includes(below.join("/")) && !main.querySelector(".opening") && !main.innerText.includes("Asking the node");
  }, route);
  await page.evaluate(() => new Promise((drawn) => requestAnimationFrame(() => requestAnimationFrame(drawn))));
}

/** The messages that the browser keeps. */
export const kept = (page) =>
  page.evaluate(
    () =>
      new Promise((done, failed) => {
        const opened = indexedDB.open("exo");
        opened.onerror = () => failed(opened.error);
        opened.onsuccess = () => {
          const all = opened.result.transaction("messages").objectStore("messages").getAll();
          all.onsuccess = () => (opened.result.close(), done(all.result));
        };
      }),
  );

/** Asks again and again until `is` holds. */
export async function until(what, is) {
  const end = Date.now() + STEP_MS;
  while (!(await is())) {
    assert.ok(Date.now() < end, `${what}: not within ${STEP_MS} ms`);
    await new Promise((soon) => setTimeout(soon, 50));
  }
}

/** Runs the scenarios whose names begin with one of these words, all without any; `--list` names them. Ends the process. */
export async function run(scenarios, words) {
  if (words[0] === "--list") {
    for (const name of Object.keys(scenarios)) console.log(name.split(":")[0]);
    process.exit(0);
  }
  const chosen = Object.entries(scenarios).filter(([name]) => words.length === 0 || words.some((word) => name.startsWith(`${word}:`)));
  const stub = start(0, { tokens_per_s: 100 });
  await new Promise((ready) => stub.server.once("listening", ready));
  origin = `http://127.0.0.1:${stub.server.address().port}`;
  login = `${origin}/#code=${"c".repeat(64)}`;
  let failed = chosen.length === 0 ? 1 : 0;
  await browse(async (browser) => {
    for (const [name, scenario] of chosen) {
      const [complaints, began] = [[], Date.now()];
      try {
        await scenario(browser, complaints);
        assert.deepEqual(complaints, []);
        console.log(`ok ${name} (${Date.now() - began} ms)`);
      } catch (error) {
        failed += 1;
        console.log(`FAILED ${name}\n  ${error.stack}\n  ${complaints.join("\n  ")}`);
      }
      await control({ scenario: "home", frozen: false, refusing: false, head_ms: 0, tokens_per_s: 100 });
      for (const context of browser.contexts()) await context.close();
    }
  });
  await stub.close();
  console.log(`${chosen.length - failed} passed, ${failed} failed`);
  process.exit(failed > 0 ? 1 : 0);
}
