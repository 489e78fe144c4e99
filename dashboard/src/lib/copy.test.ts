import { afterEach, expect, test, vi } from "vitest";
import { notices } from "../stores/notices.svelte";
import { t } from "../text";
import { copyText } from "./copy";

afterEach(() => {
  Reflect.deleteProperty(document, "execCommand");
  notices.list = [];
});

test("where a page has no clipboard, what is marked is copied, and a copy that fails is said", async () => {
  vi.stubGlobal("navigator", {});
  const marked: (string | undefined)[] = [];
  let isAllowed = true;
  const copy = () => (marked.push((document.activeElement as HTMLTextAreaElement | null)?.value), isAllowed);
  Object.defineProperty(document, "execCommand", { configurable: true, value: copy });
  expect([await copyText("exo open"), marked, notices.list.length]).toEqual([true, ["exo open"], 0]);
  isAllowed = false;
  expect([await copyText("exo open"), notices.list[0]?.text, document.querySelector("textarea")]).toEqual([false, t.copy_failed, null]);
  vi.unstubAllGlobals();
});
