import { expect, test } from "vitest";
import { EventParser } from "./sse";

const STREAM = ': keep-alive\nid: a-1\nevent: snapshot\ndata: {"a":1}\n\n: waits\ndata: one\ndata: two\nid: 0:57\r\n\r\nevent: end\n\ndata:x\n\n';
const EVENTS = [
  { event: "snapshot", data: '{"a":1}', id: "a-1" },
  { event: "message", data: "one\ntwo", id: "0:57" },
  { event: "message", data: "x", id: null },
];

test("events come out whole wherever the stream is cut", () => {
  for (let cut = 0; cut <= STREAM.length; cut++) {
    const parser = new EventParser();
    expect([...parser.push(STREAM.slice(0, cut)), ...parser.push(STREAM.slice(cut))]).toEqual(EVENTS);
  }
});

test("a comment is heard, and is no event", () => {
  const parser = new EventParser();
  expect([parser.push(": loading 37 %\n"), parser.comment]).toEqual([[], "loading 37 %"]);
});

test("an event without its end does not come out", () => {
  expect(new EventParser().push("data: half\n")).toEqual([]);
});
