// Pictures of the page: `node e2e/shots.mjs URL FOLDER [ROUTE…]`, in light, dark and at 360 x 800.

import { mkdirSync } from "node:fs";
import { browse } from "./browser.mjs";

const [url, folder, ...routes] = process.argv.slice(2);
mkdirSync(folder, { recursive: true });

const LOOKS = [
  ["light", { colorScheme: "light", viewport: { width: 1360, height: 900 } }],
  ["dark", { colorScheme: "dark", viewport: { width: 1360, height: 900 } }],
  ["small", { colorScheme: "dark", viewport: { width: 360, height: 800 }, hasTouch: true }],
];

await browse(async (browser) => {
  for (const [look, options] of LOOKS) {
    const context = await browser.newContext({ ...options, reducedMotion: "reduce" });
    const page = await context.newPage();
    page.on("console", (message) => message.type() === "error" && console.log("console:", message.text()));
    page.on("pageerror", (error) => console.log("error:", error.message));
    await page.goto(url);
    await page.waitForSelector("nav", { timeout: 20_000 }).catch(async (error) => { console.log(await page.locator("body").innerText()); throw error; });
    for (const route of routes) {
      await page.evaluate((hash) => (location.hash = hash), `#/${route}`);
      await page.waitForTimeout(1200);
      await page.screenshot({ path: `${folder}/${route.replaceAll("/", "-")}-${look}.png`, fullPage: false });
    }
    await context.close();
  }
});
