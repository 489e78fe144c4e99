import { expect, test } from "vitest";
import { stageTimes } from "./times";

const stage = (node: string, prompt_ms: number, answer_ms: number) => ({ node, device: "cpu", prompt_ms, answer_ms });

test("each stage has its line, and what is between them one", () => {
  const times = { stages: [stage("a", 20, 340), stage("b", 1500, Number.NaN)], between_prompt_ms: 2, between_answer_ms: 40 };
  const lines = stageTimes(times, (stage) => `node\u0007${stage.node}`);
  expect(lines.length).toBe(3);
  expect(lines[0]).toContain("20 ms");
  expect(lines[0]).toContain("340 ms");
  expect(lines[1]).toContain("1.5 s");
  expect(lines[2]).toContain("40 ms");
  expect(lines.join("")).not.toContain("\u0007");
});

test("what is not known has no line", () => {
  expect(stageTimes(null, () => "")).toEqual([]);
  expect(stageTimes({ stages: [], between_prompt_ms: 0, between_answer_ms: 0 }, () => "")).toEqual([]);
});
