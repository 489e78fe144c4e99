// What axe-core finds: of what is shown now, and of each state that is no route of its own.

import assert from "node:assert/strict";
import { createRequire } from "node:module";
import { readFileSync } from "node:fs";
import { control, go, login, open, origin } from "./stubbed.mjs";

const AXE = readFileSync(createRequire(import.meta.url).resolve("axe-core/axe.min.js"), "utf8");
export const LOOKS = {
  light: { colorScheme: "light", viewport: { width: 1280, height: 900 } },
  dark: { colorScheme: "dark", viewport: { width: 1280, height: 900 } },
  small: { colorScheme: "dark", viewport: { width: 360, height: 800 }, hasTouch: true },
};

/** No serious finding of axe, and nothing wider than the window. */
export async function passes(page, what) {
  // Playwright's evaluation is outside of the page's policy.
  await page.evaluate(AXE);
  const { violations } = await page.evaluate(() => globalThis.axe.run(document, { resultTypes: ["violations"] }));
  const serious = violations.filter(({ impact }) => ["serious", "critical"].includes(impact));
  assert.deepEqual(serious.map(({ id, nodes }) => `${id}: ${nodes[0].html.slice(0, 200)} ${nodes[0].failureSummary}`), [], what);
  const overflow = await page.evaluate(() => document.scrollingElement.scrollWidth > innerWidth || document.querySelector("main").scrollWidth > document.querySelector("main").clientWidth + 1);
  assert.equal(overflow, false, `${what} is wider than the window`);
}

/** The ways in: unknown, with a wrong secret, with all that is folded away, and where no node answers. */
export async function wayIn(browser, complaints, look) {
  const page = await open(browser, LOOKS[look], complaints);
  await page.goto(origin);
  await page.getByLabel("Secret or API key").waitFor();
  await passes(page, "the way in");
  await page.getByText("From another machine").click();
  await page.getByLabel("Secret or API key").fill("wrong");
  await page.keyboard.press("Enter");
  await page.getByRole("alert").waitFor();
  await passes(page, "a wrong secret");
  const lonely = await open(browser, LOOKS[look], complaints);
  await lonely.route("**/exo/v1/**", (route) => route.abort());
  await lonely.goto(login);
  await lonely.getByText("The node cannot be reached.").waitFor();
  await passes(lonely, "a node that cannot be reached");
}

/** What is grey and what is said when the node is gone. */
export async function gone(browser, complaints, look) {
  const page = await open(browser, LOOKS[look], complaints);
  await control({ scenario: "home" });
  await page.goto(login);
  const routes = ["instances", "devices", "models", "cluster"];
  // A node that is gone serves no part of the page either.
  for (const route of routes) await go(page, route);
  await control({ frozen: true });
  await page.waitForSelector("[role=alert] >> text=does not answer");
  for (const route of routes.toReversed()) {
    await go(page, route);
    assert.ok(await page.locator(".stale, [role=alert]").count(), route);
    await passes(page, `${route} of a node that is gone`);
  }
}

/** How each dialog is opened: on which route, and by what. */
const DIALOGS = [
  ["cluster", "the keys", (page) => page.keyboard.press("?")],
  ["cluster", "the menu", (page) => page.getByRole("button", { name: "Session and settings" }).click()],
  ["cluster", "letting a node in", (page) => page.getByRole("button", { name: "Let in" }).click()],
  ["cluster", "shutting the door", (page) => page.getByRole("button", { name: "Shut now…" }).click()],
  ["cluster", "shutting the node down", (page) => page.getByRole("button", { name: "Shut down…" }).click()],
  ["instances", "unloading", (page) => page.getByRole("button", { name: "Unload…" }).first().click()],
  ["models", "forgetting a model", (page) => page.getByRole("button", { name: "Forget…" }).first().click()],
  ["models", "ending a download", (page) => page.getByRole("button", { name: "Cancel…" }).first().click()],
  ["chat", "the settings of a conversation", async (page) => {
    await page.getByLabel("Message", { exact: true }).fill("raw [out](https://example.org/away)");
    await page.keyboard.press("Enter");
    await page.getByRole("link", { name: "out", exact: true }).waitFor();
    await page.getByRole("button", { name: "Settings of this conversation" }).click();
  }],
  // In the conversation that is open.
  [null, "a link that leads elsewhere", (page) => page.getByRole("link", { name: "out", exact: true }).click()],
];

/** Every dialog while it is open. */
export async function dialogs(browser, complaints, look) {
  const page = await open(browser, LOOKS[look], complaints);
  await control({ scenario: "home" });
  await page.goto(login);
  await page.waitForSelector("nav");
  for (const [route, what, press] of DIALOGS) {
    if (route) await go(page, route);
    await press(page);
    await page.waitForSelector("dialog[open]").catch((error) => assert.fail(`${what}: no dialog: ${error.message}`));
    await passes(page, what);
    const { left, right, top, bottom } = await page.locator("dialog[open]").evaluate((dialog) => dialog.getBoundingClientRect().toJSON());
    const { innerWidth, innerHeight } = await page.evaluate(() => ({ innerWidth, innerHeight }));
    assert.ok(left >= 0 && top >= 0 && right <= innerWidth && bottom <= innerHeight, `${what} is larger than the window`);
    await page.keyboard.press("Escape");
    await page.waitForSelector("dialog[open]", { state: "detached" });
  }
}

/** What is folded away on routes, opened: pictures, reasons, tables. */
export async function unfolded(browser, complaints, look) {
  const page = await open(browser, LOOKS[look], complaints);
  await control({ scenario: "home" });
  await page.goto(login);
  await page.waitForSelector("nav");
  for (const route of ["devices", "instances", "alerts", "cluster"]) {
    await go(page, route);
    await page.evaluate(() => document.querySelectorAll("main details").forEach((details) => (details.open = true)));
    if (route !== "alerts") await page.waitForFunction(() => !document.querySelector("main").innerText.includes("Planning"));
    await passes(page, `${route}, unfolded`);
  }
}
