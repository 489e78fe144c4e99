// `node e2e/use.mjs LINK MODEL`: places a model of a real node after its plan, asks it, branches, finds the conversation again, and unloads.

import assert from "node:assert/strict";
import { browse } from "./browser.mjs";

const [link, model] = process.argv.slice(2);

await browse(async (browser) => {
  const faults = [];
  const context = await browser.newContext({ reducedMotion: "reduce" });
  await context.addInitScript(() => addEventListener("securitypolicyviolation", (event) => console.error(`policy: ${event.effectiveDirective} ${event.blockedURI}`)));
  const page = await context.newPage();
  page.setDefaultTimeout(30_000);
  page.on("pageerror", (error) => faults.push(`error: ${error.message}`));
  page.on("console", (message) => message.type() === "error" && faults.push(`console: ${message.text()}`));
  const go = (route) => page.evaluate((hash) => (location.hash = hash), `#/${route}`);

  await page.goto(link);
  await page.waitForSelector("p.state.live");
  for (const title of ["Devices", "Instances", "Models", "Cluster"]) {
    await go(title.toLowerCase());
    await page.getByRole("heading", { level: 1, name: title }).waitFor();
  }

  await go(`models/${encodeURIComponent(model)}`);
  await page.getByRole("heading", { name: "Every device, with its reason" }).waitFor();
  await page.getByRole("button", { name: "Place it" }).click();
  await page.getByRole("heading", { level: 1, name: "Instances" }).waitFor();
  await page.getByText(/ready for/).waitFor();

  await go("chat/new");
  const field = page.getByLabel("Message", { exact: true });
  await page.getByRole("combobox", { name: "Model" }).selectOption(model);
  await field.fill("What is 47 + 38?");
  await field.press("Enter");
  await page.getByRole("button", { name: "Numbers" }).waitFor();
  const answer = page.locator("article.assistant .text");
  assert.ok((await answer.innerText()).trim().length > 0, "the model answers");
  await page.getByRole("button", { name: "Numbers" }).click();
  await page.getByText("First token").waitFor();
  await page.getByRole("button", { name: "Answer again" }).click();
  await page.getByText("2 of 2").waitFor();
  await page.getByRole("button", { name: "Numbers" }).waitFor();
  await page.reload();
  await page.getByText("2 of 2").waitFor();
  await page.getByRole("button", { name: "Previous version" }).click();
  await page.getByText("1 of 2").waitFor();

  await go("instances");
  await page.getByRole("button", { name: "Unload…" }).click();
  await page.getByRole("button", { name: "Unload", exact: true }).click();
  await page.getByText("No model is placed.").waitFor();
  assert.deepEqual(faults, []);
});
