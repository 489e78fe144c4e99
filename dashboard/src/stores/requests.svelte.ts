// Requests of this node's clients, without their text. Asked for while their page is open.

import { ask, messageOf } from "../api/client";
import type { RecentRequestView, RequestView } from "../api/types";

const EVERY_MS = 1500;

class RequestStore {
  running = $state.raw<RequestView[] | null>(null);
  recent = $state.raw<RecentRequestView[]>([]);
  problem = $state("");

  async load(): Promise<void> {
    try {
      this.running = await ask<RequestView[]>("/exo/v1/requests", { deadline_ms: 5000 });
      this.recent = await ask<RecentRequestView[]>("/exo/v1/requests/recent", { deadline_ms: 5000 });
      this.problem = "";
    } catch (error) {
      this.problem = messageOf(error);
    }
  }

  /** Asks again and again until the answer is called. */
  watch(): () => void {
    void this.load();
    const timer = setInterval(() => document.hidden || void this.load(), EVERY_MS);
    return () => clearInterval(timer);
  }
}

export const requests = new RequestStore();
