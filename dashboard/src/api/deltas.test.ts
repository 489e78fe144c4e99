import { readFileSync } from "node:fs";
import { expect, test } from "vitest";
import { fixtures, link, node, nodeId } from "../../stub/fixtures.mjs";
import { applyAll, type Change } from "./deltas";
import type { ClusterView } from "./types";

const home = () => fixtures.home() as unknown as ClusterView;

test("whoever applies what the node tells has what the node has", () => {
  // Written by the test of the node's half, `the_page_is_tested_with_the_changes_that_are_told`.
  const { before, steps, after } = JSON.parse(readFileSync("src/api/deltas.json", "utf8")) as { before: ClusterView; steps: Change[][]; after: ClusterView };
  expect(steps.reduce(applyAll, before)).toEqual(after);
  const kinds = new Set(steps.flat().map(({ kind }) => kind));
  expect([...kinds].sort()).toEqual(["alert", "alert_gone", "gauges", "header", "instance", "instance_gone", "join_requests", "link", "link_gone", "load", "node", "node_gone", "warnings"]);
});

test("what the node does not know any more is not shown as it was", () => {
  const told = { kind: "load", id: "i1", load: null, measured_tokens_per_s: null, predicted_tokens_per_s: 31, predicted: null, time_shares: [null, 0.4, 0.6] } satisfies Change;
  const [first] = applyAll(home(), [told, { kind: "gauges", node: nodeId(1), process_bytes: null, devices: [] }]).instances;
  expect([first!.predicted_tokens_per_s, first!.measured_tokens_per_s, ...first!.stages.map((stage) => stage.time_share)]).toEqual([31, null, null, 0.4, 0.6]);
});

test("a part that did not change is the same as before, and nodes are in the order of their names", () => {
  const before = home();
  const added = node(7, "a-first", []) as unknown as ClusterView["nodes"][number];
  const after = applyAll(before, [{ kind: "node", node: added }, { kind: "node_gone", id: nodeId(4) }]);
  expect(after.nodes.map((one) => one.name)).toEqual(["a-first", "desk", "laptop", "tower"]);
  expect(after.nodes.find((one) => one.name === "laptop")).toBe(before.nodes.find((one) => one.name === "laptop"));
});

test("a change of a newer node, or about what is not there, changes nothing", () => {
  const before = home();
  const strange = [{ kind: "weather", rain: true }, { kind: "load", id: "i99", time_shares: [] }, { kind: "gauges", node: "?", devices: [] }, { kind: "node_gone", id: "?" }];
  expect(applyAll(before, strange as unknown as Change[])).toEqual(before);
});

test("the same change twice is the same as once", () => {
  const change: Change = { kind: "link", link: link(1, 2, 99, 1e6) as never };
  expect(applyAll(home(), [change, change]).links).toEqual(applyAll(home(), [change]).links);
});
