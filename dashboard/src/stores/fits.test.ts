import { expect, test, vi } from "vitest";
import { FitStore } from "./fits.svelte";

/** Answers of the node that come when they are let: `asked` names what waits. */
function node() {
  const asked: { id: string; answer: (models: unknown[]) => void; fail: () => void }[] = [];
  vi.stubGlobal("fetch", (_path: string, options: { body: string }) => {
    return new Promise<Response>((resolve, reject) => {
      const answer = (models: unknown[]) => resolve(new Response(JSON.stringify({ models })));
      asked.push({ id: JSON.parse(options.body).reference, answer, fail: () => reject(new TypeError("gone")) });
    });
  });
  return asked;
}

const settled = () => new Promise((resolve) => setTimeout(resolve, 5));

test("models are asked about one after the other, once, the last one wanted first", async () => {
  const [asked, store] = [node(), new FitStore()];
  for (const id of ["a", "b", "c", "a", "c"]) store.want(id);
  expect(asked.map(({ id }) => id)).toEqual(["a"]);
  asked[0]!.answer([{ verdict: "slow" }]);
  await settled();
  expect(store.known.get("a")).toEqual({ verdict: "slow" });
  expect(asked.map(({ id }) => id)).toEqual(["a", "c"]);
  asked[1]!.fail();
  await settled();
  expect(store.known.get("c")).toBeNull();
  asked[2]!.answer([]);
  await settled();
  store.want("a");
  expect(asked.map(({ id }) => id)).toEqual(["a", "c", "b"]);
});

test("what was planned for other machines is forgotten, an answer that is still on its way too", async () => {
  const [asked, store] = [node(), new FitStore()];
  store.on("one machine");
  store.want("a");
  store.on("two machines");
  store.want("a");
  asked[0]!.answer([{ verdict: "too_large" }]);
  await settled();
  expect(store.known.size).toBe(0);
  asked[1]!.answer([{ verdict: "slow" }]);
  await settled();
  expect(store.known.get("a")).toEqual({ verdict: "slow" });
});

test("of hundreds that were scrolled past, the last ones are asked about", async () => {
  const [asked, store] = [node(), new FitStore()];
  for (let at = 0; at < 500; at++) store.want(`m${at}`);
  for (let at = 0; at < 200 && asked[at]; at++) {
    asked[at]!.answer([]);
    await settled();
  }
  expect(asked.length).toBe(41);
  expect(asked[1]!.id).toBe("m499");
});
