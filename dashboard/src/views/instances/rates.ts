// How fast stages load, from two looks at what they hold.

import type { InstanceView } from "../../api/types";

/** Looks closer together than this say nothing. */
const WINDOW_MS = 1500;

type Look = { at_ms: number; held: number; rate: number | null };

export class LoadingRates {
  private looks: Look[] = [];
  private placement = "";

  /** Bytes per second of each stage; `null` while it is not known or nothing comes. */
  take(instance: InstanceView, now_ms: number): (number | null)[] {
    if (instance.placement !== this.placement) {
      this.placement = instance.placement;
      this.looks = [];
    }
    return instance.stages.map((stage, at) => {
      const before = this.looks[at];
      const held = stage.weight_bytes_held;
      if (!before || held < before.held) {
        this.looks[at] = { at_ms: now_ms, held, rate: null };
        return null;
      }
      const passed_ms = now_ms - before.at_ms;
      if (passed_ms < WINDOW_MS) return before.rate;
      const bytes_per_s = (1000 * (held - before.held)) / passed_ms;
      const rate = bytes_per_s <= 0 ? null : before.rate === null ? bytes_per_s : before.rate * 0.6 + bytes_per_s * 0.4;
      this.looks[at] = { at_ms: now_ms, held, rate };
      return rate;
    });
  }
}
