// `node e2e/lost.mjs LINK NAME READY`: a model over three real nodes. Once the page shows it the file READY is written; then somebody kills the node
// NAME. The page says who and what is missing, and since when; and it shows the model whole again once that node is back.

import assert from "node:assert/strict";
import { writeFileSync } from "node:fs";
import { browse } from "./browser.mjs";

const [link, lost, ready] = process.argv.slice(2);

await browse(async (browser) => {
  const faults = [];
  const context = await browser.newContext({ reducedMotion: "reduce" });
  const page = await context.newPage();
  page.setDefaultTimeout(60_000);
  page.on("pageerror", (error) => faults.push(`error: ${error.message}`));
  const go = (route) => page.evaluate((hash) => (location.hash = hash), `#/${route}`);

  await page.goto(link);
  await page.waitForSelector("p.state.live");
  await go("instances");
  await page.getByText(/ready for/).waitFor();
  assert.equal(await page.locator(".part").count(), 3, "one part for each node");
  writeFileSync(ready, "");

  await page.getByText(new RegExp(`was on ${lost}, missing \\d+`)).first().waitFor();
  await page.getByText(/waiting for/).first().waitFor();
  await go("cluster");
  await page.getByRole("button", { name: "Table" }).click();
  await page.locator("tr", { hasText: lost }).getByText("lost").first().waitFor();
  await go("alerts");
  await page.getByText(new RegExp(`${lost} `)).first().waitFor();
  writeFileSync(`${ready}.seen`, "");

  await go("instances");
  await page.getByText(/ready for/).waitFor();
  assert.equal(await page.getByText(/missing \d+/).count(), 0);
  assert.deepEqual(faults, []);
});
