import { expect, test } from "vitest";
import { link, nodeId, instance, stage } from "../../../stub/fixtures.mjs";
import { asCards, positions } from "./layout";
import { edges, hops, width } from "./links";

const ids = (count: number) => Array.from({ length: count }, (_, at) => nodeId(at + 1));

test("positions depend on who is there, not on order or time, and lie in the drawing", () => {
  for (const count of [1, 2, 3, 4, 12, 13, 40, 100]) {
    const some = ids(count);
    const at = positions(some);
    expect(positions([...some].reverse())).toEqual(at);
    expect(at.size).toBe(count);
    const seen = new Set([...at.values()].map(({ x, y }) => `${x.toFixed(2)} ${y.toFixed(2)}`));
    expect(seen.size, `${count} nodes`).toBe(count);
    for (const { x, y } of at.values()) expect(Math.min(x, y) >= 0 && Math.max(x, y) <= 100).toBe(true);
  }
});

test("a line shows the slower of both directions", () => {
  const [edge] = edges([link(1, 2, 0.3, 100e6), link(2, 1, 0.5, 80e6)] as never);
  expect([edge?.rtt_ms, edge?.bytes_per_s]).toEqual([0.5, 80e6]);
  expect(edges([link(1, 2, 0.3, null)] as never)[0]?.bytes_per_s).toBeNull();
});

test("faster links are thicker, within bounds", () => {
  expect([null, 0, 1e6, 118e6, 1e12].map((rate) => Math.round(width(rate)))).toEqual([1, 1, 1, 4, 5]);
});

test("a request goes from stage to stage and back to the first", () => {
  const placed = instance("i", "m", [stage(1, "a", "cpu", 0, 2), stage(1, "a", "gpu", 2, 4), stage(2, "b", "cpu", 4, 6)]);
  expect(hops(placed as never).map(({ from, to }) => [from, to])).toEqual([[nodeId(1), nodeId(2)], [nodeId(2), nodeId(1)]]);
  expect(hops(undefined)).toEqual([]);
});

test("a link that a request crosses twice is drawn once", () => {
  const placed = instance("i", "m", [stage(1, "a", "gpu0", 0, 2), stage(2, "b", "gpu0", 2, 4), stage(1, "a", "gpu1", 4, 6), stage(2, "b", "gpu1", 6, 8)]);
  expect(hops(placed as never).map(({ from, to }) => [from, to])).toEqual([[nodeId(1), nodeId(2)], [nodeId(2), nodeId(1)]]);
});

test("cards that would lie on each other are dots", () => {
  expect([1, 3, 6, 7, 12, 13].map((count) => asCards(count, 360))).toEqual([true, true, true, false, false, false]);
  expect([12, 13].map((count) => asCards(count, 900))).toEqual([true, false]);
});
