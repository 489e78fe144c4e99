// `node e2e/screenshots.mjs LINK FOLDER MODEL`: pictures of the page on real nodes, for the documentation. Each waits for what it is to show.

import { mkdirSync } from "node:fs";
import { browse } from "./browser.mjs";

const [link, folder, model] = process.argv.slice(2);
mkdirSync(folder, { recursive: true });

const PICTURES = [
  ["plan", `models/${model}`, (page) => page.getByRole("heading", { name: "Every device, with its reason" }).waitFor()],
];

async function ask(page, text) {
  await page.getByLabel("Message", { exact: true }).fill(text);
  await page.keyboard.press("Enter");
  await page.getByRole("button", { name: "Numbers" }).last().waitFor();
}

await browse(async (browser) => {
  const context = await browser.newContext({ colorScheme: "light", viewport: { width: 1200, height: 760 }, reducedMotion: "reduce" });
  const page = await context.newPage();
  page.setDefaultTimeout(60_000);
  await page.goto(link);
  await page.waitForSelector("p.state.live");
  await page.evaluate((hash) => (location.hash = hash), "#/chat/new");
  await page.getByRole("combobox", { name: "Model" }).selectOption(model);
  await ask(page, "What is 47 + 38?");
  await page.getByRole("button", { name: "Numbers" }).click();
  await page.getByText("First token").waitFor();
  await page.screenshot({ path: `${folder}/chat.png` });
  for (const [name, route, shown] of PICTURES) {
    await page.evaluate((hash) => (location.hash = hash), `#/${route}`);
    await shown(page);
    await page.evaluate(() => new Promise((drawn) => requestAnimationFrame(() => requestAnimationFrame(drawn))));
    await page.screenshot({ path: `${folder}/${name}.png` });
  }
});
