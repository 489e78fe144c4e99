// A person before the page of a real node: with a mouse or a finger, or with keys alone. What they do is waited for, with a deadline; whatever
// the browser complains about is kept in `faults`.

import assert from "node:assert/strict";

const STEP_MS = 60_000;
/** Presses of Tab after which an element counts as out of reach. */
const TABS_MAX = 300;

export const LOOKS = {
  dark: { colorScheme: "dark", viewport: { width: 1280, height: 900 } },
  keys: { colorScheme: "light", viewport: { width: 1280, height: 900 } },
  small: { colorScheme: "light", viewport: { width: 360, height: 800 }, hasTouch: true, isMobile: true },
};

export class Person {
  faults = [];

  static async at(browser, link, look) {
    const context = await browser.newContext({ reducedMotion: "reduce", ...LOOKS[look] });
    await context.addInitScript(() => addEventListener("securitypolicyviolation", (event) => console.error(`policy: ${event.effectiveDirective} ${event.blockedURI}`)));
    const person = new Person();
    person.page = await context.newPage();
    person.byKeys = look === "keys";
    person.page.setDefaultTimeout(STEP_MS);
    person.page.on("pageerror", (error) => person.faults.push(`error: ${error.message}`));
    // A node that refuses, as one does that is asked for a plan that fits nowhere, is no fault of the page.
    person.page.on("console", (message) => message.type() === "error" && !/Failed to load resource/.test(message.text()) && person.faults.push(`console: ${message.text()}`));
    await person.page.goto(link);
    await person.page.waitForSelector("p.state.live");
    return person;
  }

  /** Opens a page from the menu, or by its two keys. */
  async go(key, title) {
    if (this.byKeys) {
      await this.page.evaluate(() => document.activeElement.blur());
      await this.page.keyboard.press("g");
      await this.page.keyboard.press(key);
    } else {
      await this.page.getByRole("navigation").getByRole("link", { name: title }).click();
    }
    await this.page.locator("main h1", { hasText: title }).waitFor({ state: "attached" });
  }

  button = (name) => this.page.getByRole("button", { name, exact: true });

  async press(locator) {
    if (!this.byKeys) return locator.click();
    await this.reach(locator);
    await this.page.keyboard.press("Enter");
  }

  async write(locator, text) {
    if (!this.byKeys) return locator.fill(text);
    await this.reach(locator);
    await this.page.keyboard.press("ControlOrMeta+a");
    await this.page.keyboard.press("Delete");
    await this.page.keyboard.type(text);
    // A field of a form tells what it has when it is left.
    await this.page.keyboard.press("Tab");
  }

  async choose(select, value) {
    if (!this.byKeys) return void (await select.selectOption(value));
    await this.reach(select);
    for (let at = 0; (await select.inputValue()) !== value; at++) {
      assert.ok(at < 100, `${value} is not to be chosen`);
      await this.page.keyboard.press("ArrowDown");
    }
  }

  /** Stops the answer that comes, if it still does: by its button, or by its key. */
  async stop() {
    const button = this.button("Stop");
    await button.waitFor({ timeout: 5000 }).catch(() => {});
    if (this.byKeys) return this.page.keyboard.press("Escape");
    await button.click({ timeout: 1000 }).catch(() => {});
  }

  /** Says something in the open conversation. */
  async say(text) {
    const field = this.page.getByLabel("Message", { exact: true });
    if (this.byKeys) {
      await this.reach(field);
      await this.page.keyboard.type(text);
    } else {
      await field.fill(text);
    }
    await this.page.keyboard.press("Enter");
  }

  /** Tab after Tab until it has the focus: it can be reached without a mouse, and the focus is on nothing that is not there. */
  async reach(locator) {
    await locator.waitFor();
    await this.page.waitForFunction((element) => !element.disabled, await locator.elementHandle());
    for (let at = 0; at < TABS_MAX; at++) {
      if (await locator.evaluate((element) => element === document.activeElement)) return;
      await this.page.keyboard.press("Tab");
    }
    assert.fail(`${locator} is out of reach of the keyboard`);
  }
}
