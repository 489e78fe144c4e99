// What the page says once: results of actions, and questions before work ends.

import { isNotThere, messageOf } from "../api/client";
import { printable } from "../lib/format";
import { isTyping } from "./keys.svelte";

export type Notice = { id: number; kind: "good" | "bad"; text: string };
/** What is said where a refusal changes nothing about what was wished, be it nothing (`""`); `null` where the wish does not hold. */
export type Already = (error: unknown) => Promise<string | null> | string | null;
export type Question = { title: string; lines: string[]; action: string; danger: boolean; answer: (yes: boolean) => void };

const SHOWN_MS = 8000;
/** What a node answers may have words of strangers in it. */
const TEXT_CHARS_MAX = 800;

/** For an action that ends something: where that is gone, nothing has failed. */
export const ifGone = (said: string): Already => (error) => (isNotThere(error) ? said : null);

class NoticeStore {
  list = $state<Notice[]>([]);
  question = $state.raw<Question | null>(null);
  /** Where somebody was when something failed: from there Tab leads to what is said of it. */
  origin: HTMLElement | null = null;
  private next = 0;

  /** `begun` is what had the focus when the action began. */
  say(kind: Notice["kind"], text: string, begun = focused()): void {
    const id = this.next++;
    const notice = { id, kind, text: printable(text, TEXT_CHARS_MAX) };
    // What is said again stands there once.
    this.list = [...this.list.filter((other) => other.text !== notice.text).slice(-3), notice];
    // What failed is there until somebody has read it: nobody reads a long reason in seconds.
    if (kind === "good") setTimeout(() => this.drop(id), SHOWN_MS);
    else this.origin = originOf(begun) ?? this.origin;
  }

  drop(id: number): void {
    this.list = this.list.filter((notice) => notice.id !== id);
  }

  /** Asks once, naming what will stop. */
  confirm(question: Omit<Question, "answer">): Promise<boolean> {
    this.question?.answer(false);
    return new Promise((resolve) => {
      this.question = {
        ...question,
        answer: (yes) => {
          this.question = null;
          resolve(yes);
        },
      };
    });
  }

  /** Carries out an action and says how it went. What is refused has not failed where `already` says that what was wished holds. */
  async attempt(done: string, action: () => Promise<unknown>, already: Already = () => null): Promise<boolean> {
    const begun = focused();
    let said: string | null = done;
    try {
      await action();
    } catch (error) {
      said = await Promise.resolve(error).then(already).catch(() => null);
      if (said === null) {
        this.say("bad", messageOf(error), begun);
        return false;
      }
    }
    if (said) this.say("good", said);
    return true;
  }
}

/** What has the focus; nothing where that is the page itself. */
function focused(): HTMLElement | null {
  const now = document.activeElement;
  return now instanceof HTMLElement && now !== document.body ? now : null;
}

/** Where somebody is now, but for a field that they write in meanwhile and for the notices themselves. */
function originOf(begun: HTMLElement | null): HTMLElement | null {
  const now = focused();
  const at = now && (now === begun || !isTyping(now)) ? now : begun;
  return at?.closest("#notices") ? null : at;
}

export const notices = new NoticeStore();
