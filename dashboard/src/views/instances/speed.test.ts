import { expect, test } from "vitest";
import { alert, fixtures, instance, nodeId, stage } from "../../../stub/fixtures.mjs";
import { heldOf, missingSince, stageState, partsOf } from "../../parts/layers";
import { paces } from "./pace";
import { alone, verdict } from "./speed";

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
  const parts = partsOf(fixtures.lost().instances[0] as never, nodes, { missing: () => "missing", late: "late", unloaded: "not loaded" });
  expect(parts.map((part) => [part.title, part.state])).toEqual([["desk/gpu0", "held"], ["tower/gpu0", "missing"], ["laptop/cpu", "late"]]);
  expect(stageState(stage(9, "gone", "cpu", 0, 1) as never, undefined)).toBe("missing");
});

test("a device that is being checked, or that was pulled out, holds no layers", () => {
  const { nodes } = fixtures.home() as never as { nodes: { id: string; devices: { id: string; state: string }[] }[] };
  const desk = nodes.find((node) => node.id === nodeId(1))!;
  const on = (device: string) => stageState(stage(1, "desk", device, 0, 8) as never, desk as never);
  expect([on("cpu"), on("gpu9")]).toEqual(["held", "missing"]);
  for (const state of ["lost", "verifying", "quarantined"]) {
    desk.devices.find((device) => device.id === "gpu0")!.state = state;
    expect(on("gpu0"), state).toBe("missing");
  }
  // One that has told none yet may have it all the same.
  desk.devices = [];
  expect(on("gpu0")).toBe("held");
});

test("of an instance that waits or was given up nothing is on its way", () => {
  const half = [stage(1, "desk", "cpu", 0, 8, { weight_bytes_held: 0 })];
  const state = (kind: string) => partsOf(placed({ state: { kind, reason: "", progress: 0 } }, half as never), fixtures.home().nodes as never[], { missing: () => "", late: "", unloaded: "not loaded" }).map((part) => [part.state, part.note])[0];
  expect(["loading", "degraded", "waiting", "failed"].map(state)).toEqual([["loading", "0 %"], ["loading", "0 %"], ["unloaded", "not loaded"], ["unloaded", "not loaded"]]);
});

test("a stage that is fetched is as far as its node says, before anything of it is in memory", () => {
  const attic = (fields: Record<string, unknown>) => stage(4, "attic", "cpu", 0, 8, { weight_bytes: 100e6, weight_bytes_held: 0, ...fields }) as never;
  expect(heldOf(attic({}))).toBe(0);
  expect(heldOf(attic({ progress: { phase: "fetching", done_bytes: 30e6, total_bytes: 120e6 } }))).toBe(0.25);
  expect(heldOf(attic({ weight_bytes_held: 50e6 }))).toBe(0.5);
  const parts = partsOf(fixtures.home().instances[1] as never, fixtures.home().nodes as never[], { missing: () => "missing", late: "late", unloaded: "not loaded" });
  expect(parts[0]).toMatchObject({ state: "loading", note: "31 %" });
});

test("a stage is missing since its node or its device was lost, whatever the instance has become since", () => {
  const { nodes, instances } = fixtures.lost() as never as { nodes: never[]; instances: { stages: never[] }[] };
  const named = (name: string) => nodes.find((node: { name: string }) => node.name === name) as never as { id: string; gone_since_unix_s: number };
  const [desk, tower] = [named("desk"), named("tower")];
  const [first, second] = instances[0]!.stages as [never, never];
  expect(missingSince(second, tower as never, [])).toBe(tower.gone_since_unix_s);
  expect(missingSince(second, undefined, [])).toBeNull();
  const lost = (fields: Record<string, unknown>) => alert("device_lost", "critical", "desk/gpu0", "", "", { node: desk.id, device: "gpu0", since_unix_s: 500, ...fields });
  expect(missingSince(first, desk as never, [lost({ resolved_unix_s: 600 }), lost({ device: "cpu", since_unix_s: 400 }), lost({})])).toBe(500);
  expect(missingSince(first, desk as never, [])).toBeNull();
});

test("the first token as it came is told beside the prediction, with the part that explains the difference", () => {
  const first_token = { measured_ms: 300, predicted_ms: 200, off: { stage: 1, measured_ms: 180, predicted_ms: 90 } };
  const measured_alone = { prompt_tokens: 512, first_token, answer_tokens: 40, token: { measured_ms: 31, predicted_ms: 33, off: null } };
  expect(alone(placed({ measured_alone }))).toEqual([
    "First token of 512 after 300 ms (last answer alone), predicted 200 ms (+50 %). Of it tower/cpu took 180 ms, predicted 90 ms.",
    "Each token behind it 31 ms, predicted 33 ms (-6 %).",
  ]);
  const between = { ...measured_alone, first_token: { measured_ms: 9, predicted_ms: 0, off: { stage: null, measured_ms: 5, predicted_ms: 1 } }, token: null };
  expect(alone(placed({ measured_alone: between }))).toEqual(["First token of 512 after 9 ms (last answer alone), predicted 0 ms. Of it the way between stages took 5 ms, predicted 1 ms."]);
  expect(alone(placed({}))).toEqual([]);
});

test("of times below ten milliseconds the milliseconds are told and no difference in per cent", () => {
  const token = (measured_ms: number, predicted_ms: number) => {
    const time = { measured_ms, predicted_ms, off: null };
    return alone(placed({ measured_alone: { prompt_tokens: 2, first_token: time, answer_tokens: 9, token: time } }))[1];
  };
  expect(token(4, 2)).toBe("Each token behind it 4 ms, predicted 2 ms.");
  expect(token(12, 9.9)).toBe("Each token behind it 12 ms, predicted 9.9 ms.");
  expect(token(9.9, 12)).toBe("Each token behind it 9.9 ms, predicted 12 ms.");
  expect(token(12, 10)).toBe("Each token behind it 12 ms, predicted 10 ms (+20 %).");
});

test("a stage's time in a step and its idle part are of the time between two reports of its node", () => {
  // The second node's reports are a second older each time, and its stage computes half as long.
  const look = (at_s: number, steps: number, busy: [number, number], age_s: [number | null, number]) => ({
    at_ms: at_s * 1000,
    view: { nodes: busy.map((busy_s, n) => ({ node: nodeId(n + 1), age_s: age_s[n], stages: [{ instance: "i", stage: n, busy_s }], instances: n === 0 ? [{ instance: "i", steps }] : [] })) },
  });
  const of = (...looks: unknown[]) => paces(placed({}), looks as never);
  const [first, second] = of(look(100, 1000, [50, 20], [0, 1]), look(110, 1100, [54, 22], [0, 1]));
  expect(first).toEqual({ step_ms: 40, idle: 0.6 });
  expect(second).toEqual({ step_ms: 20, idle: 0.8 });
  // Nothing is said of too short a time, of a stage that was loaded anew, one that rested, and a node that is silent.
  expect(of(look(100, 0, [50, 20], [0, 1]), look(102, 9, [51, 21], [0, 1]))).toEqual([null, null]);
  expect(of(look(100, 0, [50, 20], [0, 1]), look(110, 0, [3, 20], [0, 1]))).toEqual([null, null]);
  expect(of(look(100, 0, [50, 20], [0, 1]), look(110, 0, [52, 21], [null, 1]))).toEqual([null, { step_ms: null, idle: 0.9 }]);
  expect(of()).toEqual([null, null]);
});
