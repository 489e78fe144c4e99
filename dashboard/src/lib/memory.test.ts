import { expect, test } from "vitest";
import { memoryOf } from "./memory";

const device = (free: number, total: number, domain?: [string, number]) => ({
  memory_free_bytes: free,
  memory_total_bytes: total,
  memory_domain: domain ? { id: domain[0], free_bytes: domain[1] } : null,
});

test("what two nodes of one machine share counts once", () => {
  expect(memoryOf([device(10, 16, ["a", 10]), device(10, 16, ["a", 10])])).toEqual({ free: 10, total: 16 });
});

test("nodes that are limited have their parts of it", () => {
  expect(memoryOf([device(4, 4, ["a", 12]), device(3, 4, ["a", 12])])).toEqual({ free: 7, total: 8 });
});

test("memory that is not shared is added up", () => {
  expect(memoryOf([device(10, 16, ["a", 10]), device(20, 24), device(5, 8, ["b", 5])])).toEqual({ free: 35, total: 48 });
  expect(memoryOf([])).toEqual({ free: 0, total: 0 });
});
