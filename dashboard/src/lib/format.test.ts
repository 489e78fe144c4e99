import { expect, test } from "vitest";
import * as format from "./format";

test("numbers read as people write them", () => {
  expect([0, 999, 1000, 1536, 24 * 1024 ** 3].map(format.bytes)).toEqual(["0 B", "999 B", "0.98 KiB", "1.5 KiB", "24 GiB"]);
  expect([999, 118e6, 1.1e9].map(format.rate)).toEqual(["999 B/s", "118 MB/s", "1.1 GB/s"]);
  expect([0.31, 420, 4100, 600_000].map(format.millis)).toEqual(["0.31 ms", "420 ms", "4.1 s", "10 min"]);
  expect([1, 89, 240, 12_000, 400_000].map(format.duration)).toEqual(["1 s", "89 s", "4 min", "3 h 20 min", "4 d"]);
  expect(format.countdown(61.2)).toBe("1:02");
  expect([0.004, -0.004, -0.12].map(format.percent)).toEqual(["0 %", "0 %", "-12 %"]);
});

test("what nobody measured is a dash and never a zero", () => {
  for (const missing of [null, undefined, NaN, Infinity]) {
    for (const show of [format.bytes, format.rate, format.millis, format.duration, format.percent, format.integer, format.digits]) expect(show(missing)).toBe("–");
  }
});

test("a stranger's number fills no screen, and its time is none", () => {
  for (const huge of [1e15, 3.4e38, -1e300]) for (const show of [format.bytes, format.rate, format.millis, format.duration, format.percent, format.integer, format.digits]) expect(show(huge).length).toBeLessThan(20);
  expect([format.digits(123_456), format.integer(9e14)]).toEqual(["123,456", "900,000,000,000,000"]);
  for (const time of [NaN, 1e18, Infinity]) expect(format.clock(time)).toBe("–");
});

test("a stranger's word stays on its line and in its direction", () => {
  expect(format.printable("a\u202eb\nc\u0000")).toBe("a�b�c�");
  expect(format.printable("x".repeat(500), 10)).toBe("xxxxxxxxx…");
});
