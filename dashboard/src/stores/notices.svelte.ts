// What the page says once: results of actions, and questions before work ends.

import { messageOf } from "../api/client";

export type Notice = { id: number; kind: "good" | "bad"; text: string };
export type Question = { title: string; lines: string[]; action: string; danger: boolean; answer: (yes: boolean) => void };

const SHOWN_MS = 8000;

class NoticeStore {
  list = $state<Notice[]>([]);
  question = $state.raw<Question | null>(null);
  private next = 0;

  say(kind: Notice["kind"], text: string): void {
    const id = this.next++;
    this.list = [...this.list.slice(-3), { id, kind, text }];
    setTimeout(() => this.drop(id), SHOWN_MS);
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
