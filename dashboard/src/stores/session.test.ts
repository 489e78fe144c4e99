import { afterEach, beforeEach, expect, test, vi } from "vitest";
import { ask, token } from "../api/client";
import { notices } from "./notices.svelte";
import { route } from "./route.svelte";
import { session, takeCode } from "./session.svelte";

const VIEW = { access: "owner", node: "n", name: "desk", version: "1" };
let answers: Record<string, () => Response> = {};
let sent: { method: string; path: string; headers: Record<string, string>; body: unknown }[] = [];

beforeEach(async () => {
  [answers, sent] = [{}, []];
  vi.stubGlobal("fetch", async (path: string, init: RequestInit) => {
    sent.push({ method: init.method!, path, headers: init.headers as Record<string, string>, body: init.body });
    const answer = answers[`${init.method} ${path}`];
    if (!answer) throw new TypeError("refused");
    return answer();
  });
  answers["GET /exo/v1/session"] = () => new Response(JSON.stringify(VIEW));
  token.set("exs_1");
  await session.start(null);
  notices.list = [];
});
afterEach(() => vi.unstubAllGlobals());

test("whoever signs out everywhere hears when that has not happened, and can try again", async () => {
  await session.signOut(true);
  expect([session.state, token.get(), notices.list[0]?.text]).toEqual(["in", "exs_1", "Nobody is signed out: The node cannot be reached."]);
  answers["DELETE /exo/v1/sessions"] = () => new Response('{"error":{"code":"internal","message":"it is back when the node starts again"}}', { status: 500 });
  await session.signOut(true);
  expect([session.state, notices.list[1]?.text]).toEqual(["in", "Nobody is signed out: it is back when the node starts again"]);
  answers["DELETE /exo/v1/sessions"] = () => new Response(null, { status: 204 });
  await session.signOut(true);
  expect([session.state, token.get(), session.problem]).toEqual(["out", null, ""]);
});

test("signing out here works without the node, which is said", async () => {
  await session.signOut(false);
  expect([session.state, token.get(), session.problem]).toEqual(["out", null, "Signed out here. The node could not be told: The node cannot be reached."]);
});

test("a link that is pasted into an open page is taken, and leaves its page and no code in the address", async () => {
  route.go("chat", "c1");
  await vi.waitFor(() => expect(route.current.page).toBe("chat"));
  location.hash = "#code=abc";
  await new Promise((soon) => setTimeout(soon, 10));
  expect(route.current).toEqual({ page: "chat", rest: ["c1"] });
  expect(takeCode("#/chat/c1")).toBe("abc");
  expect(location.hash).toBe("#/chat/c1");
  // A code that is too old does not put out who is in.
  answers["POST /exo/v1/session"] = () => new Response('{"error":{"code":"code_expired","message":"too late"}}', { status: 401 });
  await session.start("abc");
  expect([session.state, notices.list.at(-1)?.text]).toEqual(["in", "too late"]);
});

test("every POST is JSON, as the node wants it", async () => {
  answers["POST /exo/v1/pulls/p/pause"] = () => new Response(null, { status: 204 });
  await ask("/exo/v1/pulls/p/pause", { method: "POST" });
  expect(sent.at(-1)).toMatchObject({ headers: { "content-type": "application/json" }, body: "{}" });
  await ask("/exo/v1/session");
  expect(sent.at(-1)!.headers["content-type"]).toBeUndefined();
});

test("what a page asks by itself while nobody is at it says so", async () => {
  vi.useFakeTimers({ toFake: ["Date"] });
  answers["GET /exo/v1/telemetry"] = () => new Response("{}");
  session.noteUse();
  await ask("/exo/v1/telemetry");
  vi.setSystemTime(Date.now() + 11 * 60_000);
  await ask("/exo/v1/telemetry");
  session.noteUse();
  await ask("/exo/v1/telemetry");
  vi.useRealTimers();
  const marks = sent.filter(({ path }) => path === "/exo/v1/telemetry").map(({ headers }) => headers["exo-unattended"]);
  expect(marks).toEqual([undefined, "true", undefined]);
});

test("an answer to an old token puts nobody out who has signed in since", async () => {
  answers["GET /exo/v1/cluster"] = () => (token.set("exs_2"), new Response("{}", { status: 401 }));
  await ask("/exo/v1/cluster").catch(() => {});
  expect([session.state, token.get()]).toEqual(["in", "exs_2"]);
  answers["GET /exo/v1/cluster"] = () => new Response("{}", { status: 401 });
  await ask("/exo/v1/cluster").catch(() => {});
  expect(session.state).toBe("out");
});

test("a node that cannot be reached stays so while it is asked again, once at a time", async () => {
  delete answers["GET /exo/v1/session"];
  await session.check();
  expect(session.state).toBe("unreachable");
  sent = [];
  const [first, second] = [session.check(), session.check()];
  expect(session.state).toBe("unreachable");
  await Promise.all([first, second]);
  expect([session.state, sent.length]).toEqual(["unreachable", 1]);
  answers["GET /exo/v1/session"] = () => new Response(JSON.stringify(VIEW));
  await session.check();
  expect(session.state).toBe("in");
});

test("a secret that reached no node may be sent again, and one that was refused may not", async () => {
  await session.paste("word");
  expect([session.state, session.isUnheard]).toEqual(["out", true]);
  const refused = () => new Response('{"error":{"code":"wrong","message":"no"}}', { status: 401 });
  Object.assign(answers, { "POST /exo/v1/session": refused, "GET /exo/v1/session": refused });
  await session.paste("word");
  expect([session.state, session.isUnheard, session.problem]).toEqual(["out", false, "no"]);
});

test("what failed stays until it is closed, once, and without what a terminal or a direction would obey", () => {
  vi.useFakeTimers();
  for (const kind of ["good", "bad", "bad"] as const) notices.say(kind, `${kind}\u202e\nword`);
  vi.advanceTimersByTime(60_000);
  vi.useRealTimers();
  expect(notices.list.map((one) => one.text)).toEqual(["bad��word"]);
  notices.list = [];
});
