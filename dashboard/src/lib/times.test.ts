import { expect, test } from "vitest";
import { stageTimes, timeRows } from "./times";

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

/** An answer of 11 tokens, whose ten behind the first took 2 s. */
const request = (fields = {}) => ({ tokens: 11, total_ms: 2500, ttft_ms: 500, times: { stages: [stage("a", 300, 1200), stage("b", 100, 600)], between_prompt_ms: 60, between_answer_ms: 200 }, ...fields });

test("each part has what it took before and behind the first token, and of a token on average", () => {
  const rows = timeRows(request(), (stage) => `node\u0007${stage.node}`);
  expect(rows.map((row) => [row.prompt_ms, row.answer_ms, row.token_ms])).toEqual([
    [300, 1200, 120],
    [100, 600, 60],
    [60, 200, 20],
  ]);
  expect(rows.map((row) => row.name)).toEqual(["stage 1: node\ufffda", "stage 2: node\ufffdb", "links, and waiting for other steps"]);
  const odd = timeRows(request({ times: { stages: [stage("a", Number.NaN, -5)], between_prompt_ms: 1, between_answer_ms: 2000 } }), () => "a");
  expect(odd[0]).toEqual({ name: "stage 1: a", prompt_ms: 0, answer_ms: 0, token_ms: 0 });
});

test("no mean of a token is told where there is but one, or where the steps are not those of all tokens", () => {
  const means = (fields: object) => timeRows(request(fields), () => "").map((row) => row.token_ms);
  expect(means({ tokens: 1 })).toEqual([null, null, null]);
  expect(means({ total_ms: 9000 })).toEqual([null, null, null]);
  expect(means({ ttft_ms: null })).toEqual([120, 60, 20]);
  expect(timeRows(request({ times: null }), () => "")).toEqual([]);
});
