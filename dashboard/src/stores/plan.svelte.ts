// The plan of a placement that nobody has asked for yet: computed again whenever what is asked changes.

import { ask, isAbort, messageOf } from "../api/client";
import type { InstanceView, PlanQuery, PlanView } from "../api/types";

/** While somebody types, nothing is asked. */
const WAIT_MS = 150;
const DEADLINE_MS = 30_000;

/** What a model was placed with. */
export function queryOf(instance: InstanceView): PlanQuery {
  return {
    model: instance.model_id,
    context_tokens: instance.context_tokens,
    slots: instance.slots,
    ...(instance.cache_tokens ? { cache_tokens: instance.cache_tokens } : {}),
    kv: instance.kv,
    objective: instance.objective ?? "latency",
    ...(instance.streams ? { streams: instance.streams } : {}),
    pins: instance.pins ?? [],
    exclude: instance.exclude ?? [],
  };
}

export class PlanStore {
  plan = $state.raw<PlanView | null>(null);
  /** Why there is none; what would make it possible stands in it. */
  problem = $state("");
  busy = $state(false);
  private cut = new AbortController();

  /** Asks for a plan, and forgets what was asked before. */
  async preview(query: PlanQuery): Promise<void> {
    this.stop();
    const { signal } = this.cut;
    this.busy = true;
    await new Promise((resolve) => setTimeout(resolve, WAIT_MS));
    if (signal.aborted) return;
    try {
      const plan = await ask<PlanView>("/exo/v1/plan", { method: "POST", body: query, signal, deadline_ms: DEADLINE_MS });
      if (signal.aborted) return;
      this.plan = plan;
      this.problem = "";
    } catch (error) {
      if (isAbort(error) || signal.aborted) return;
      this.plan = null;
      this.problem = messageOf(error);
    }
    this.busy = false;
  }

  /** There is no plan of what cannot be asked. */
  refuse(problem: string): void {
    this.stop();
    this.plan = null;
    this.problem = problem;
  }

  stop(): void {
    this.cut.abort();
    this.cut = new AbortController();
    this.busy = false;
  }
}
