// Measurements of every node that the cluster's view does not have: memory by what it holds, and what drivers do not tell.

import { ask } from "../api/client";
import type { DeviceTelemetryView, TelemetryView } from "../api/types";

const EVERY_MS = 5000;
const LOOKS_MS = 30_000;

class TelemetryStore {
  view = $state.raw<TelemetryView | null>(null);
  /** The looks of the last half minute, the oldest first: what is counted is told as a rate. */
  looks = $state.raw<readonly { at_ms: number; view: TelemetryView }[]>([]);
  private busy = false;

  device(node: string, device: string): DeviceTelemetryView | undefined {
    return this.view?.nodes.find((one) => one.node === node)?.devices.find((one) => one.device === device);
  }

  /** Asks again and again until the answer is called. What fails leaves what was there: its age shows in the frame. */
  watch(): () => void {
    const load = async () => {
      if (this.busy || document.hidden) return;
      this.busy = true;
      const view = await ask<TelemetryView>("/exo/v1/telemetry", { deadline_ms: 8000 }).catch(() => null);
      this.busy = false;
      if (!view) return;
      this.view = view;
      const now_ms = Date.now();
      this.looks = [...this.looks.filter((look) => now_ms - look.at_ms < LOOKS_MS), { at_ms: now_ms, view }];
    };
    void load();
    const timer = setInterval(() => void load(), EVERY_MS);
    return () => clearInterval(timer);
  }
}

export const telemetry = new TelemetryStore();
