// What every node finds on its machine. Asked for when somebody wants to know: it starts processes there.

import { ask, messageOf } from "../api/client";
import type { CheckView, DoctorView } from "../api/types";

/** Longer than the node waits for the last member. */
const DEADLINE_MS = 50_000;

class DoctorStore {
  view = $state.raw<DoctorView | null>(null);
  problem = $state("");
  busy = $state(false);

  async look(): Promise<void> {
    if (this.busy) return;
    this.busy = true;
    try {
      this.view = await ask<DoctorView>("/exo/v1/doctor", { deadline_ms: DEADLINE_MS });
      this.problem = "";
    } catch (error) {
      this.problem = messageOf(error);
    }
    this.busy = false;
  }
}

const ORDER = ["broken", "warning", "note", "ok"];

/** The worst first; among equals as the node has them. A verdict of a newer node comes with what is wrong. */
export function sorted(checks: readonly CheckView[]): CheckView[] {
  return [...checks].sort((a, b) => ORDER.indexOf(a.verdict) - ORDER.indexOf(b.verdict));
}

export const doctor = new DoctorStore();
