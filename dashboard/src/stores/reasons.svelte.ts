// Why a device has no layers of a placed model: what the planner says now. A plan has the reasons of all devices, so each model is asked about
// once, one after the other, and anew once machines or placements have changed.

import { ask, messageOf } from "../api/client";
import type { InstanceView, PlanView } from "../api/types";
import { queryOf } from "./plan.svelte";

const PLAN_MS = 30_000;

/** By node and device; or why there are none. */
export type Reasons = { byDevice: ReadonlyMap<string, string>; problem: string };

const keyOf = (node: string, device: string) => `${node}/${device}`;

export class ReasonStore {
  /** By instance. */
  private known = $state.raw<ReadonlyMap<string, Reasons>>(new Map());
  private waiting: InstanceView[] = [];
  private machines = "";
  private round = 0;
  private busy = false;

  /** What is known of an instance; `undefined` while it is asked for. */
  of(instance: string): Reasons | undefined {
    return this.known.get(instance);
  }

  /** Why the device has no layers of that instance, in the planner's words; nothing where it does not count the device. */
  reason(reasons: Reasons, node: string, device: string): string | undefined {
    return reasons.byDevice.get(keyOf(node, device));
  }

  /** Asks soon, unless it is known or waited for. */
  want(instance: InstanceView): void {
    if (this.known.has(instance.id) || this.waiting.some((one) => one.id === instance.id)) return;
    this.waiting = [...this.waiting, instance];
    void this.work();
  }

  /** Forgets what was said of other machines. */
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
    for (let instance = this.waiting[0]; instance !== undefined; instance = this.waiting[0]) {
      const { id } = instance;
      const round = this.round;
      const reasons = await this.ask(instance);
      if (round !== this.round) continue;
      this.waiting = this.waiting.filter((one) => one.id !== id);
      this.known = new Map(this.known).set(id, reasons);
    }
    this.busy = false;
  }

  private async ask(instance: InstanceView): Promise<Reasons> {
    try {
      const { devices } = await ask<PlanView>("/exo/v1/plan", { method: "POST", body: queryOf(instance), deadline_ms: PLAN_MS });
      return { byDevice: new Map(devices.map(({ node, device, reason }) => [keyOf(node, device), reason])), problem: "" };
    } catch (error) {
      return { byDevice: new Map(), problem: messageOf(error) };
    }
  }
}

export const reasons = new ReasonStore();
