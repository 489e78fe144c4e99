import { expect, test, vi } from "vitest";
import { inTime } from "./late";

test("what does not come is an error after ten seconds, and what came stays", async () => {
  vi.useFakeTimers({ toFake: ["setTimeout"] });
  const never = expect(inTime(new Promise(() => {}))).rejects.toThrow("did not answer in time");
  expect(await inTime(Promise.resolve(7))).toBe(7);
  await vi.advanceTimersByTimeAsync(10_000);
  await never;
  vi.useRealTimers();
});
