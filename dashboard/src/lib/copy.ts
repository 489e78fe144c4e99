// Puts text on the clipboard. Over plain HTTP browsers have none for pages: then what is marked is copied, as a person would.

import { notices } from "../stores/notices.svelte";
import { t } from "../text";

/** Whether it is there; if not, the page has said so. */
export async function copyText(text: string): Promise<boolean> {
  try {
    await navigator.clipboard.writeText(text);
    return true;
  } catch {
    const done = copyMarked(text);
    if (!done) notices.say("bad", t.copy_failed);
    return done;
  }
}

function copyMarked(text: string): boolean {
  const before = document.activeElement;
  const area = document.createElement("textarea");
  area.className = "hidden";
  area.style.whiteSpace = "pre"; // lines stay lines
  area.value = text;
  document.body.append(area);
  area.focus({ preventScroll: true });
  area.select();
  try {
    return document.execCommand("copy");
  } catch {
    return false;
  } finally {
    area.remove();
    if (before instanceof HTMLElement) before.focus({ preventScroll: true });
  }
}
