// Measurements of every node that the cluster's view does not have: memory by what it holds, and what drivers do not tell.

import { ask } from "../api/client";
import type { DeviceTelemetryView, TelemetryView } from "../api/types";

const EVERY_MS = 5000;

class TelemetryStore {
  view = $state.raw<TelemetryView | null>(null);
  private busy = false;

  device(node: string, device: string): DeviceTelemetryView | undefined {
    return this.view?.nodes.find((one) => one.node === node)?.devices.find((one) => one.device === device);
  }

  /** Asks again and again until the answer is called. What fails leaves what was there: its age shows in the frame. */
  watch(): () => void {
    const load = async () => {
      if (this.busy || document.hidden) return;
      this.busy = true;
      this.view = await ask<TelemetryView>("/exo/v1/telemetry", { deadline_ms: 8000 }).catch(() => this.view);
      this.busy = false;
    };
    void load();
    const timer = setInterval(() => void load(), EVERY_MS);
    return () => clearInterval(timer);
  }
}

export const telemetry = new TelemetryStore();
