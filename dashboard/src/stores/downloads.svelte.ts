// Downloads of this node, as the event stream tells them to its owner.

import { ApiError, ask, messageOf } from "../api/client";
import type { PullView } from "../api/types";

/** The hub is somebody else's, and may be slow. */
const START_MS = 60_000;

class DownloadStore {
  /** `null` until the node has said. */
  list = $state.raw<PullView[] | null>(null);
  problem = $state("");
  /** Counts those that ended well: then there are new models. */
  done = $derived((this.list ?? []).filter((pull) => pull.state === "done").length);

  take(list: PullView[]): void {
    this.list = list;
    this.problem = "";
  }

  /** Begins one. Of several machines none needs more than its layers, and no disk the whole: then only the heads are read, until it is placed. */
  async fetch(reference: string, machines: number): Promise<void> {
    const layers_only = machines > 1 && reference.startsWith("hf.co/");
    await ask("/exo/v1/pulls", { method: "POST", body: layers_only ? { reference, layers_only } : { reference }, deadline_ms: START_MS });
  }

  /** Asks at once: after an action, and where the stream has not told them yet. */
  async load(): Promise<void> {
    try {
      this.take(await ask<PullView[]>("/exo/v1/pulls", { deadline_ms: 5000 }));
    } catch (error) {
      if (!(error instanceof ApiError && error.status === 404)) this.problem = messageOf(error);
    }
  }
}

export const downloads = new DownloadStore();
