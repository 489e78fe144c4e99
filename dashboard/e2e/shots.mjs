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
  // A code is good once: the other looks use the session of the first.
  let [address, storageState] = [url, undefined];
  for (const [look, options] of LOOKS) {
    const context = await browser.newContext({ ...options, storageState, reducedMotion: "reduce" });
    const page = await context.newPage();
    page.on("console", (message) => message.type() === "error" && console.log("console:", message.text()));
    page.on("pageerror", (error) => console.log("error:", error.message));
    await page.goto(address);
    await page.waitForSelector("nav", { timeout: 20_000 });
    for (const route of routes) {
      await page.evaluate((hash) => (location.hash = hash), `#/${route}`);
      await page.waitForTimeout(1200);
      await page.screenshot({ path: `${folder}/${route.replaceAll("/", "-")}-${look}.png`, fullPage: false });
    }
    [address, storageState] = [new URL(url).origin, await context.storageState()];
    await context.close();
  }
});
