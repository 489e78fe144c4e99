// `node e2e/journey.mjs LOOK LINK MODEL REFERENCE READY PID`: what a person does with three real nodes, from the link of `exo open` to the
// removal of a machine, in dark colours, with keys alone or on a telephone. The node `three` asks to join a shut door; it has the process PID,
// which is killed here, and is started again by whoever reads READY. REFERENCE is a model of a hub that stops half way.

import assert from "node:assert/strict";
import { writeFileSync } from "node:fs";
import { browse } from "./browser.mjs";
import { Person } from "./person.mjs";

const [look, link, model, reference, ready, pid] = process.argv.slice(2);
/** An answer of this schema is long, whatever is asked. */
const LONG = '{"type":"array","items":{"type":"integer"},"minItems":900}';
/** From a change at the node to the page. */
const SOON_MS = 500;

async function admit(person) {
  const { page } = person;
  const asks = page.getByRole("heading", { name: "Asks to join" });
  await asks.waitFor();
  const words = (await page.getByRole("list", { name: "Check words" }).innerText()).split(/\s+/);
  assert.ok(words.length >= 4, `${words}`);
  await person.press(person.button("Let in"));
  await page.locator("dialog").getByText(words.join(" ")).waitFor();
  await person.press(page.locator("dialog").getByRole("button", { name: "Let in" }));
  await asks.waitFor({ state: "detached" });
  await person.press(person.button("Table"));
  await page.locator("tr", { hasText: "three" }).getByText("alive").first().waitFor();
}

/** A plan over three devices is shown before anything is loaded. */
async function place(person) {
  const { page } = person;
  await person.go("m", "Models");
  await person.press(page.getByRole("link", { name: model, exact: true }).first());
  await page.getByRole("heading", { name: "Every device, with its reason" }).waitFor();
  await person.write(page.getByRole("textbox", { name: "Answers at once" }), "40");
  await page.waitForFunction(() => document.querySelectorAll(".part").length === 3);
  await person.press(person.button("Place it"));
  await page.getByText(/ready for/).waitFor();
  // One part for each node, whatever was drawn in between.
  await page.waitForFunction(() => document.querySelectorAll(".part").length === 3);
}

async function settings(person, fill) {
  await person.press(person.button("Settings of this conversation"));
  await fill();
  await person.page.keyboard.press("Escape");
  await person.page.locator("dialog").waitFor({ state: "detached" });
}

async function talk(person) {
  const { page } = person;
  await person.go("t", "Chat");
  await person.choose(page.getByRole("combobox", { name: "Model" }), model);
  await person.say("What is 47 + 38?");
  await page.getByText("85").last().waitFor();
  await person.press(person.button("Answer again"));
  await page.getByText("2 of 2").waitFor();
  await person.button("Numbers").waitFor();
  await person.press(person.button("Previous version"));
  await page.getByText("1 of 2").waitFor();

  await settings(person, async () => {
    await person.write(page.getByLabel("Longest answer, tokens"), "440");
    await person.write(page.getByLabel("Answer as JSON schema, or the word json"), LONG);
  });
  const answer = page.locator("article.assistant .text").last();
  const isStopped = page.getByText("You stopped it here.");
  await person.say("Count.");
  // A fast machine may be done before a person is: then they ask again.
  for (let round = 0; ; round++) {
    await person.stop();
    await isStopped.or(page.getByText("The answer reached its length limit.")).waitFor();
    if (await isStopped.count()) break;
    assert.ok(round < 9, "every answer was whole before it was stopped");
    await person.press(person.button("Answer again").last());
  }
  const stopped = (await answer.innerText()).length;

  // It goes on at the node while the page is loaded anew.
  await person.press(person.button("Answer again").last());
  await person.button("Stop").waitFor();
  await page.reload();
  await page.waitForSelector("p.state.live");
  await page.getByText("The answer reached its length limit.").waitFor();
  assert.ok((await page.locator("article.assistant .text").last().innerText()).length > stopped, "the whole of it is there");
}

/** The last request is found, and by its id what each node wrote of it. */
async function traced(person) {
  const { page } = person;
  await person.go("r", "Requests");
  await person.press(page.locator("tbody a.mono").first());
  const lines = page.getByRole("log");
  await lines.getByText(/tokens/).first().waitFor();
  await page.waitForFunction(() => new Set([...document.querySelectorAll("[role=log] p i")].map((name) => name.textContent)).size >= 2);
}

async function lost(person) {
  const { page } = person;
  process.kill(Number(pid), "SIGKILL");
  await person.go("i", "Instances");
  await page.getByText(/was on three\/\w+, missing \d+/).first().waitFor();
  await page.getByText(/waiting for/).first().waitFor();
  await person.go("a", "Alerts");
  await page.getByText(/three is not there/).first().waitFor();
  // The machines that are there are looked over, and the one that is not is named.
  await person.go("h", "Doctor");
  await page.getByText("three was not looked over: it is not there").waitFor();
  const folders = page.getByRole("rowheader", { name: "data folder" });
  await folders.nth(1).waitFor();
  assert.equal(await folders.count(), 2);
  writeFileSync(ready, "");
  await person.go("i", "Instances");
  await page.getByText(/ready for/).waitFor();
  await page.getByText(/missing \d+/).first().waitFor({ state: "detached" });
}

async function download(person) {
  const { page } = person;
  await person.go("m", "Models");
  // What is placed says so; what another model would need is asked of the node.
  await page.locator("tr", { hasText: model }).getByText("ready").waitFor();
  await person.write(page.locator("#reference"), reference);
  await person.press(page.locator("form", { has: page.locator("#reference") }).getByRole("button"));
  const row = page.locator("li", { hasText: reference });
  await row.getByText(/asks the hub|fetching/).waitFor();
  await person.press(row.getByRole("button", { name: /^Cancel/ }));
  await person.press(page.locator("dialog").getByRole("button", { name: /^Cancel the/ }));
  await row.waitFor({ state: "detached" });
}

/** Milliseconds until the page shows that the door is open, or shut, from the moment at which the node is told. */
function changed(page, method, shown) {
  return page.evaluate(
    async ([method, shown]) => {
      const began = performance.now();
      const headers = { authorization: `Bearer ${localStorage.getItem("exo-session").match(/exs_[0-9a-f]+/)[0]}`, "content-type": "application/json" };
      void fetch("/exo/v1/join_window", { method, headers, ...(method === "POST" ? { body: '{"minutes":5}' } : {}) });
      while (document.body.innerText.includes("The door is open: new") !== shown) {
        if (performance.now() - began > 20_000) throw new Error("the page does not follow");
        await new Promise((drawn) => requestAnimationFrame(drawn));
      }
      return performance.now() - began;
    },
    [method, shown],
  );
}

async function follows(person) {
  await person.go("c", "Cluster");
  const times = [];
  for (const [method, shown] of [["POST", true], ["DELETE", false], ["POST", true], ["DELETE", false]]) times.push(await changed(person.page, method, shown));
  const [, middle] = times.sort((a, b) => a - b);
  const slack = Number(process.env.EXO_SLACK ?? 1);
  console.log(`  from a change at a real node to the page, median of 4: ${middle.toFixed(0)} ms (bound ${SOON_MS * slack})`);
  assert.ok(middle <= SOON_MS * slack, `${times}`);
}

async function removed(person) {
  const { page } = person;
  const row = page.locator("tr", { hasText: "three" }).filter({ has: page.getByRole("button", { name: "Remove…" }) });
  await person.press(row.getByRole("button", { name: "Remove…" }));
  await page.locator("dialog").getByText(model).first().waitFor();
  await person.press(page.locator("dialog").getByRole("button", { name: "Remove", exact: true }));
  await row.waitFor({ state: "detached" });
}

await browse(async (browser) => {
  const person = await Person.at(browser, link, look);
  for (const step of [admit, place, talk, traced, lost, download, follows, removed]) {
    const began = Date.now();
    try {
      await step(person);
    } catch (error) {
      console.log(`${step.name} failed at ${person.page.url()}\n${await person.page.locator("main").innerText().catch(() => "")}`);
      throw error;
    }
    console.log(`  ${step.name}: ${Date.now() - began} ms`);
  }
  assert.deepEqual(person.faults, []);
});
