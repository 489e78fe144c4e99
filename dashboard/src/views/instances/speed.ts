// Predicted against measured, and what the difference says. Pure.

import type { InstanceView } from "../../api/types";
import { isNumber, percent, printable } from "../../lib/format";
import { t } from "../../text";

/** One sentence; empty when there is nothing to compare. */
export function verdict(instance: InstanceView): string {
  const measured = instance.measured_tokens_per_s;
  const range = instance.predicted?.tokens_per_s;
  const expected = range?.expected ?? instance.predicted_tokens_per_s;
  if (!isNumber(measured) || !isNumber(expected) || expected <= 0) return "";
  const running = instance.load?.running ?? 0;
  if (running > 1) return t.instances.streams_note(running);
  if (measured >= (range?.low ?? expected) && measured <= (range?.high ?? expected)) return t.instances.as_predicted;
  if (measured > expected) return t.instances.faster(percent(measured / expected - 1));
  return t.instances.slower(percent(1 - measured / expected), slowest(instance));
}

/** The stage that takes the largest part of a token's time; empty while it is not measured. */
export function slowest(instance: InstanceView): string {
  const measured = instance.stages.filter((stage) => isNumber(stage.time_share));
  const worst = measured.sort((a, b) => (b.time_share ?? 0) - (a.time_share ?? 0))[0];
  return worst && instance.stages.length > 1 ? `${printable(worst.node_name, 40)}/${printable(worst.device, 20)}` : "";
}
