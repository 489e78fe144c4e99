// Whether models that the cluster has would fit beside what runs. Each is planned when it is looked at, one after the other, and again once
// machines or placements have changed.

import { ask } from "../api/client";
import type { FitsView, FitView } from "../api/types";

const PLAN_MS = 30_000;
/** More than stand on any screen: who scrolls past hundreds waits for the last of them only. */
const WAITING_MAX = 40;

export class FitStore {
  /** By the model's id. `null` where the node could not say. */
  known = $state.raw<ReadonlyMap<string, FitView | null>>(new Map());
  private waiting: string[] = [];
  private machines = "";
  private round = 0;
  private busy = false;

  /** Asks soon, unless it is known or waited for. */
  want(id: string): void {
    if (this.known.has(id) || this.waiting.includes(id)) return;
    this.waiting = [...this.waiting, id].slice(-WAITING_MAX);
    void this.work();
  }

  /** Forgets what was planned for other machines. */
  on(machines: string): void {
    if (machines === this.machines) return;
    this.machines = machines;
    this.round += 1;
    this.waiting = [];
    this.known = new Map();
  }

  private async work(): Promise<void> {
    if (this.busy) return;
    this.busy = true;
    for (let id = this.waiting.at(-1); id !== undefined; id = this.waiting.at(-1)) {
      const round = this.round;
      const [fit] = await ask<FitsView>("/exo/v1/fits", { method: "POST", body: { reference: id }, deadline_ms: PLAN_MS }).then(({ models }) => models, () => []);
      if (round !== this.round) continue;
      this.waiting = this.waiting.filter((one) => one !== id);
      this.known = new Map(this.known).set(id, fit ?? null);
    }
    this.busy = false;
  }
}

export const fits = new FitStore();
