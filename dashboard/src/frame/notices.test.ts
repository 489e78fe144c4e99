import { flushSync, mount, unmount } from "svelte";
import { afterEach, expect, test, vi } from "vitest";
import { ApiError } from "../api/client";
import { ifGone, notices } from "../stores/notices.svelte";
import Notices from "./Notices.svelte";

let undo: (() => void)[] = [];
afterEach(() => {
  undo.forEach((run) => run());
  undo = [];
  notices.list = [];
  notices.origin = null;
});

/** The notices, and behind them a page with an action and a field. */
function page() {
  const mounted = mount(Notices, { target: document.body });
  const action = document.body.appendChild(document.createElement("button"));
  const field = document.body.appendChild(document.createElement("input"));
  flushSync();
  undo.push(() => void unmount(mounted), () => action.remove(), () => field.remove());
  return { action, field, closers: () => [...document.querySelectorAll<HTMLButtonElement>("#notices button")] };
}

/** Whether the page itself says where Tab leads. */
function tab(shiftKey = false): boolean {
  const event = new KeyboardEvent("keydown", { key: "Tab", shiftKey, bubbles: true, cancelable: true });
  document.activeElement!.dispatchEvent(event);
  return event.defaultPrevented;
}

async function fail(message = "no code today") {
  await notices.attempt("", async () => Promise.reject(new ApiError(500, "failed", message)));
  flushSync();
}

test("from where an action failed Tab leads to what is said of it, and on behind the action", async () => {
  const { action, closers } = page();
  action.focus();
  await fail();
  expect(document.activeElement).toBe(action);
  expect([tab(), document.activeElement]).toEqual([true, closers()[0]]);
  // From here the browser takes the next stop.
  expect([tab(), document.activeElement]).toEqual([false, action]);
  expect([tab(), document.activeElement]).toEqual([true, closers()[0]]);
  expect([tab(true), document.activeElement]).toEqual([true, action]);
});

test("where a button that was pressed has lost the focus, Tab leads to what failed and from there behind the button", async () => {
  const { action, closers } = page();
  action.focus();
  await notices.attempt("", async () => {
    action.blur();
    throw new ApiError(500, "failed", "no code today");
  });
  flushSync();
  expect([tab(), document.activeElement]).toEqual([true, closers()[0]]);
  expect([tab(), document.activeElement]).toEqual([false, action]);
});

test("who writes is led away from no field, neither from another one nor from that of the action", async () => {
  const { action, field, closers } = page();
  action.focus();
  await notices.attempt("", async () => {
    field.focus();
    throw new ApiError(500, "failed", "no code today");
  });
  flushSync();
  expect([tab(), document.activeElement]).toEqual([false, field]);
  await fail("again");
  expect([tab(), document.activeElement]).toEqual([true, closers().at(-1)]);
  field.focus();
  field.dispatchEvent(new Event("input", { bubbles: true }));
  expect([tab(), document.activeElement]).toEqual([false, field]);
});

test("who closes what failed by keys goes on with the next, and then where they were", async () => {
  const { action, closers } = page();
  action.focus();
  await fail("first");
  await fail("second");
  tab();
  expect(document.activeElement).toBe(closers()[1]);
  closers()[1]!.click();
  await vi.waitFor(() => expect([closers().length, document.activeElement]).toEqual([1, closers()[0]]));
  closers()[0]!.click();
  await vi.waitFor(() => expect(document.activeElement).toBe(action));
});

test("what went well leads nobody away", async () => {
  const { action } = page();
  action.focus();
  await notices.attempt("done", async () => {});
  flushSync();
  expect([notices.list.length, tab(), document.activeElement]).toEqual([1, false, action]);
});

test("what is refused has failed, but where that which was wished holds", async () => {
  const refuse = (status: number, code: string) => async () => Promise.reject(new ApiError(status, code, "no such thing"));
  const said = () => notices.list.splice(0).map(({ kind, text }) => `${kind} ${text}`);
  expect([await notices.attempt("done", refuse(404, "not_found"), ifGone("gone")), said()]).toEqual([true, ["good gone"]]);
  expect([await notices.attempt("done", refuse(404, "not_found"), ifGone("")), said()]).toEqual([true, []]);
  for (const [status, code] of [[404, "no_such_route"], [500, "not_found"], [409, "conflict"]] as const) {
    expect([await notices.attempt("done", refuse(status, code), ifGone("gone")), said()]).toEqual([false, ["bad no such thing"]]);
  }
  const unsure = async () => Promise.reject(new Error("nor can this be asked"));
  expect([await notices.attempt("done", refuse(404, "not_found"), unsure), said()]).toEqual([false, ["bad no such thing"]]);
});
