// What the page says once: results of actions, and questions before work ends.

import { messageOf } from "../api/client";
import { printable } from "../lib/format";

export type Notice = { id: number; kind: "good" | "bad"; text: string };
export type Question = { title: string; lines: string[]; action: string; danger: boolean; answer: (yes: boolean) => void };

const SHOWN_MS = 8000;
/** What a node answers may have words of strangers in it. */
const TEXT_CHARS_MAX = 800;

class NoticeStore {
  list = $state<Notice[]>([]);
  question = $state.raw<Question | null>(null);
  private next = 0;

  say(kind: Notice["kind"], text: string): void {
    const id = this.next++;
    const notice = { id, kind, text: printable(text, TEXT_CHARS_MAX) };
    // What is said again stands there once.
    this.list = [...this.list.filter((other) => other.text !== notice.text).slice(-3), notice];
    // What failed is there until somebody has read it: nobody reads a long reason in seconds.
    if (kind === "good") setTimeout(() => this.drop(id), SHOWN_MS);
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

  /** Carries out an action and says how it went. */
  async attempt(done: string, action: () => Promise<unknown>): Promise<boolean> {
    try {
      await action();
      if (done) this.say("good", done);
      return true;
    } catch (error) {
      this.say("bad", messageOf(error));
      return false;
    }
  }
}

export const notices = new NoticeStore();
