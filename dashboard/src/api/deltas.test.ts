import { expect, test } from "vitest";
import { fixtures, link, node, nodeId } from "../../stub/fixtures.mjs";
import { applyAll, type Change } from "./deltas";
import type { ClusterView } from "./types";

const home = () => fixtures.home() as unknown as ClusterView;

test("each kind of change does what its name says, and leaves the rest as it is", () => {
  const before = home();
  const tower = before.nodes.find((one) => one.name === "tower")!;
  const added = node(7, "a-first", []) as unknown as ClusterView["nodes"][number];
  const changes: Change[] = [
    { kind: "header", epoch: { counter: 8, coordinator: nodeId(2) } },
    { kind: "node", node: { ...tower, status: "lost" } },
    { kind: "node", node: added },
    { kind: "node_gone", id: nodeId(4) },
    { kind: "gauges", node: nodeId(1), devices: [{ device: "gpu0", memory_free_bytes: 5, sensors: { temperature_c: 80 } }] },
    { kind: "link", link: link(1, 2, 99, 1e6) as never },
    { kind: "link_gone", from: nodeId(3), to: nodeId(4) },
    { kind: "load", id: "i1", load: null, measured_tokens_per_s: 12, time_shares: [0.1, 0.2, 0.7] },
    { kind: "instance_gone", id: "i2" },
    { kind: "join_requests", join_requests: [] },
    { kind: "warnings", warnings: [{ at_unix_s: 1, text: "w" }] },
  ];
  const after = applyAll(before, changes);
  expect(after.epoch?.counter).toBe(8);
  expect(after.nodes.map((one) => one.name)).toEqual(["a-first", "desk", "laptop", "tower"]);
  expect(after.nodes.find((one) => one.name === "tower")?.status).toBe("lost");
  expect(after.nodes.find((one) => one.name === "desk")?.devices[1]?.memory_free_bytes).toBe(5);
  expect(after.links.find((one) => one.from === nodeId(1) && one.to === nodeId(2))?.rtt_ms).toBe(99);
  expect(after.links).toHaveLength(before.links.length - 1);
  expect(after.instances.map((one) => [one.id, one.measured_tokens_per_s, one.stages[2]?.time_share])).toEqual([["i1", 12, 0.7]]);
  expect([after.join_requests.length, after.warnings?.length]).toEqual([0, 1]);
  expect(after.nodes.find((one) => one.name === "laptop")).toBe(before.nodes.find((one) => one.name === "laptop"));
});

test("a change of a newer node, or about what is not there, changes nothing", () => {
  const before = home();
  const strange = [{ kind: "weather", rain: true }, { kind: "load", id: "i99" }, { kind: "gauges", node: "?", devices: [] }, { kind: "node_gone", id: "?" }];
  expect(applyAll(before, strange as unknown as Change[])).toEqual(before);
});

test("the same change twice is the same as once", () => {
  const change: Change = { kind: "link", link: link(1, 2, 99, 1e6) as never };
  expect(applyAll(home(), [change, change]).links).toEqual(applyAll(home(), [change]).links);
});
