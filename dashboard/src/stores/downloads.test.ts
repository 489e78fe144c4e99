import { afterEach, expect, test, vi } from "vitest";
import { downloads } from "./downloads.svelte";

afterEach(() => vi.unstubAllGlobals());

test("where there are several machines, none of them fetches the whole model of a hub", async () => {
  const bodies: unknown[] = [];
  vi.stubGlobal("fetch", async (_: string, init: RequestInit) => (bodies.push(JSON.parse(String(init.body))), new Response("{}")));
  await downloads.fetch("hf.co/a/b", 1);
  await downloads.fetch("hf.co/a/b", 2);
  await downloads.fetch("qwen3:8b", 2);
  expect(bodies).toEqual([{ reference: "hf.co/a/b" }, { reference: "hf.co/a/b", layers_only: true }, { reference: "qwen3:8b" }]);
});
