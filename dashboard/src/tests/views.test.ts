// Every page in every state that its fixtures have: drawn, without an error, and with strangers' text as text.

import { flushSync, mount, unmount, type Component } from "svelte";
import { afterEach, expect, test, vi } from "vitest";
import { fixtures } from "../../stub/fixtures.mjs";
import { ClusterStore, cluster } from "../stores/cluster.svelte";
import { session } from "../stores/session.svelte";
import Cluster from "../views/cluster/Cluster.svelte";
import Devices from "../views/devices/Devices.svelte";
import Instances from "../views/instances/Instances.svelte";

const VIEWS: Record<string, Component> = { Cluster, Devices, Instances };

vi.stubGlobal("fetch", async () => new Response("[]"));
HTMLDialogElement.prototype.showModal ??= () => {};

function draw(view: Component, scenario: keyof typeof fixtures | null): HTMLElement {
  session.state = "in";
  session.view = { access: "owner", node: "n", name: "desk", version: "1" };
  cluster.stop();
  if (scenario) cluster.take({ event: "snapshot", id: "a", data: JSON.stringify({ at_unix_ms: Date.now(), cluster: fixtures[scenario]() }) });
  const target = document.createElement("div");
  const mounted = mount(view, { target });
  flushSync();
  undo.push(() => void unmount(mounted));
  return target;
}

let undo: (() => void)[] = [];
afterEach(() => {
  undo.forEach((run) => run());
  undo = [];
});

for (const [name, view] of Object.entries(VIEWS)) {
  test(`${name} is drawn in every state`, () => {
    expect(draw(view, null).textContent).toContain("Asking the node");
    for (const scenario of Object.keys(fixtures) as (keyof typeof fixtures)[]) expect(draw(view, scenario).querySelector("h1"), scenario).not.toBeNull();
  });

  test(`${name} shows hostile names as text`, () => {
    const drawn = draw(view, "hostile");
    expect(drawn.textContent).toContain("<img src=x onerror=");
    expect(drawn.querySelector("img, script, b > b")).toBeNull();
    expect(drawn.textContent).not.toContain("\u202e");
  });
}

test("a lost node says what is missing, since when and whose it was", () => {
  const text = draw(Instances, "lost").textContent!;
  expect(text).toContain("waiting");
  expect(text).toContain("layers 40..58 need 3.4 GiB more");
  expect(text).toMatch(/was on tower, missing \d+ s/);
});

test("one machine alone is told how to add another", () => {
  expect(draw(Cluster, "empty").textContent).toContain("Make a code");
  expect(draw(Instances, "empty").textContent).toContain("No model is placed.");
});

test("a sensor that answers no number is not reported, never zero", () => {
  const text = draw(Devices, "hostile").textContent!;
  expect(text).toContain("Temperature");
  expect(text).toContain("not reported");
  expect(text).not.toContain("NaN");
});

test("who asks to join is shown with its words and its own name", () => {
  const text = draw(Cluster, "home").textContent!;
  for (const word of ["pixel-8", "amber", "river", "violin", "seven", "4:1"]) expect(text).toContain(word);
});

test("an event that cannot be read asks for a new snapshot; a delta before one changes nothing", () => {
  const store = new ClusterStore();
  store.take({ event: "delta", id: "1", data: '{"at_unix_ms":1,"changes":[{"kind":"node_gone","id":"x"}]}' });
  expect(store.view).toBeNull();
  expect(() => store.take({ event: "snapshot", id: "2", data: "{" })).toThrow();
});
