// Downloads of this node. Asked for while their page is open.

import { ApiError, ask } from "../api/client";
import type { PullView } from "../api/types";

const EVERY_MS = 1500;

class DownloadStore {
  /** `null` until the node has said. */
  list = $state.raw<PullView[] | null>(null);
  problem = $state("");
  /** Counts those that ended well: then there are new models. */
  done = $derived((this.list ?? []).filter((pull) => pull.state === "done").length);

  async load(): Promise<void> {
    try {
      this.list = await ask<PullView[]>("/exo/v1/pulls", { deadline_ms: 5000 });
      this.problem = "";
    } catch (error) {
      if (!(error instanceof ApiError && error.status === 404)) this.problem = error instanceof Error ? error.message : String(error);
    }
  }

  /** Asks again and again until the answer is called. */
  watch(): () => void {
    void this.load();
    const timer = setInterval(() => document.hidden || void this.load(), EVERY_MS);
    return () => clearInterval(timer);
  }
}

export const downloads = new DownloadStore();
