// What should be done about the cluster, as the node's rules say.

import type { AlertView } from "../api/types";

export type Alert = AlertView;

const ORDER = ["critical", "warning", "info"];

class AlertStore {
  /** The node's clock beside this browser's: times of alerts are the node's. */
  skew_ms = $state(0);
  /** `null` while the node has not told any: an older one never does. */
  list = $state.raw<Alert[] | null>(null);

  /** What is not over, the worst first; of the same severity in the node's order. */
  get open(): Alert[] {
    return (this.list ?? []).filter((alert) => !alert.resolved_unix_s).sort((a, b) => rank(a) - rank(b));
  }

  /** Of these, what is not silenced. */
  get active(): Alert[] {
    const now_s = (Date.now() + this.skew_ms) / 1000;
    return this.open.filter((alert) => !((alert.silenced_until_unix_s ?? 0) > now_s));
  }

  take(list: unknown): void {
    if (Array.isArray(list)) this.list = list as Alert[];
  }
}

/** A severity of a newer node comes last. */
const rank = (alert: Alert) => (ORDER.indexOf(alert.severity) + ORDER.length + 1) % (ORDER.length + 1);

export const alerts = new AlertStore();
