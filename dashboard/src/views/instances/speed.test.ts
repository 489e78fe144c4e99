import { expect, test } from "vitest";
import { fixtures, instance, stage } from "../../../stub/fixtures.mjs";
import { heldOf, stageState, partsOf } from "../../parts/layers";
import { verdict } from "./speed";

const placed = (fields: Record<string, unknown>, stages = [stage(1, "desk", "cpu", 0, 8, { time_share: 0.7 }), stage(2, "tower", "cpu", 8, 12, { time_share: 0.3 })]) => instance("i", "m", stages, fields) as never;
const one = { running: 1 };

test("what was measured is compared with the range, not with the point", () => {
  expect(verdict(placed({ measured_tokens_per_s: 30, load: one }))).toBe("Within what was predicted.");
  expect(verdict(placed({ measured_tokens_per_s: 17.1, load: one }))).toBe("50 % slower than predicted; desk/cpu takes the largest share.");
  expect(verdict(placed({ measured_tokens_per_s: 68.4, load: one }))).toBe("100 % faster than predicted.");
  expect(verdict(placed({ measured_tokens_per_s: 90, load: { running: 3 } }))).toContain("Over 3 answers");
  expect(verdict(placed({ measured_tokens_per_s: null }))).toBe("");
});

test("what a node's state means for its layers", () => {
  const nodes = fixtures.lost().nodes as never[];
  const parts = partsOf(fixtures.lost().instances[0] as never, nodes, { missing: "missing", late: "late" });
  expect(parts.map((part) => [part.title, part.state])).toEqual([["desk/gpu0", "held"], ["tower/gpu0", "missing"], ["laptop/cpu", "late"]]);
  expect(stageState(stage(9, "gone", "cpu", 0, 1) as never, undefined)).toBe("missing");
});

test("a stage that is fetched is as far as its node says, before anything of it is in memory", () => {
  const attic = (fields: Record<string, unknown>) => stage(4, "attic", "cpu", 0, 8, { weight_bytes: 100e6, weight_bytes_held: 0, ...fields }) as never;
  expect(heldOf(attic({}))).toBe(0);
  expect(heldOf(attic({ progress: { phase: "fetching", done_bytes: 30e6, total_bytes: 120e6 } }))).toBe(0.25);
  expect(heldOf(attic({ weight_bytes_held: 50e6 }))).toBe(0.5);
  const parts = partsOf(fixtures.home().instances[1] as never, fixtures.home().nodes as never[], { missing: "missing", late: "late" });
  expect(parts[0]).toMatchObject({ state: "loading", note: "31 %" });
});
