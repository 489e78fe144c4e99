// Predicted against measured, and what the difference says. Pure.

import type { InstanceView, MeasuredTimeView } from "../../api/types";
import { integer, isNumber, millis, percent, printable } from "../../lib/format";
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

/** What the last answer took that ran alone, beside what was predicted of the same, and the part that explains the difference. */
export function alone(instance: InstanceView): string[] {
  const last = instance.measured_alone;
  if (!last) return [];
  const { first_token, token } = last;
  const lines = [t.instances.first(millis(first_token.measured_ms), integer(last.prompt_tokens), millis(first_token.predicted_ms), difference(first_token)) + explained(instance, first_token)];
  if (token) lines.push(t.instances.each(millis(token.measured_ms), millis(token.predicted_ms), difference(token)) + explained(instance, token));
  return lines;
}

/** Of times that are shorter a difference in per cent says nothing: what no plan counts is most of them. `exo status` has the same bound. */
const PERCENT_FROM_MS = 10;

/** `+12 %`; empty where nothing was predicted, or the times are so short that their milliseconds say all. */
function difference({ measured_ms, predicted_ms }: MeasuredTimeView): string {
  if (!(measured_ms >= PERCENT_FROM_MS && predicted_ms >= PERCENT_FROM_MS)) return "";
  const part = measured_ms / predicted_ms - 1;
  return `${part >= 0 ? "+" : ""}${percent(part)}`;
}

function explained(instance: InstanceView, { off }: MeasuredTimeView): string {
  if (!off) return "";
  const stage = isNumber(off.stage) ? instance.stages[off.stage] : undefined;
  const what = stage ? placeOf(stage) : t.instances.off_between;
  return t.instances.off(what, millis(off.measured_ms), millis(off.predicted_ms));
}

const placeOf = (stage: { node_name: string; device: string }) => `${printable(stage.node_name, 40)}/${printable(stage.device, 20)}`;

/** The stage that takes the largest part of a token's time; empty while it is not measured. */
export function slowest(instance: InstanceView): string {
  const measured = instance.stages.filter((stage) => isNumber(stage.time_share));
  const worst = measured.sort((a, b) => (b.time_share ?? 0) - (a.time_share ?? 0))[0];
  return worst && instance.stages.length > 1 ? placeOf(worst) : "";
}
