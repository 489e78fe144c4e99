// Measurements of the last hour of one device, instance or node. Asked for while somebody looks at them.

import { ask, messageOf } from "../api/client";
import type { SeriesView } from "../api/types";

/** The node has a point every five seconds. */
const EVERY_MS = 5000;

export class SeriesStore {
  view = $state.raw<SeriesView | null>(null);
  problem = $state("");

  /** `device=NODE/DEVICE`, `instance=ID` or `node=ID`; until the answer is called. */
  watch(kind: "device" | "instance" | "node", subject: string): () => void {
    let over = false;
    const load = async () => {
      try {
        const view = await ask<SeriesView>(`/exo/v1/series?${new URLSearchParams({ [kind]: subject })}`, { deadline_ms: 8000 });
        if (!over) [this.view, this.problem] = [view, ""];
      } catch (error) {
        if (!over) this.problem = messageOf(error);
      }
    };
    void load();
    const timer = setInterval(() => document.hidden || void load(), EVERY_MS);
    return () => {
      over = true;
      clearInterval(timer);
    };
  }
}
