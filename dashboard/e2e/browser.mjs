// The system's Chromium, as every scenario uses it.

import { chromium } from "playwright-core";

const FLAGS = ["--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking", "--disable-component-update", "--disable-sync"];

/** Runs `scenario` in a browser that is closed afterwards, whatever happens. */
export async function browse(scenario) {
  const executablePath = process.env.CHROMIUM ?? "/usr/bin/chromium";
  const browser = await chromium.launch({ executablePath, args: FLAGS, headless: true });
  try {
    return await scenario(browser);
  } finally {
    await browser.close();
  }
}
