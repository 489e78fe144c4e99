// How much of the time each stage computes, and how long a step takes it: from two looks at what nodes have counted. Pure.

import type { InstanceView, TelemetryView } from "../../api/types";
import { isNumber } from "../../lib/format";

/** What a node had counted when it was asked, and when that was. */
export type Look = { at_ms: number; view: TelemetryView };

export type Pace = {
  /** Milliseconds of computing in a step; nothing where no step was counted. */
  step_ms: number | null;
  /** Part of the time without computing, 0 to 1. */
  idle: number;
};

/** Less than this between two looks says little: nodes report once a second. */
const WINDOW_MIN_S = 4;

type Count = { at_s: number; value: number };

/** What `of` counts in one look, at the time by which its node had counted it. */
function count(look: Look, of: (node: TelemetryView["nodes"][number]) => number | undefined): Count | null {
  for (const node of look.view.nodes) {
    const value = of(node);
    if (isNumber(value) && isNumber(node.age_s)) return { at_s: look.at_ms / 1000 - node.age_s, value };
  }
  return null;
}

/** How fast it grows; nothing where it was counted anew, or too little time has passed. */
function growth(before: Count | null, now: Count | null): number | null {
  if (!before || !now || now.at_s - before.at_s < WINDOW_MIN_S || now.value < before.value) return null;
  return (now.value - before.value) / (now.at_s - before.at_s);
}

/** By stage of an instance. Nothing is said of one that has computed nothing meanwhile, or whose node says nothing. */
export function paces(instance: InstanceView, looks: readonly Look[]): (Pace | null)[] {
  const [first, last] = [looks[0], looks.at(-1)];
  if (!first || !last) return instance.stages.map(() => null);
  const steps = (look: Look) => count(look, (node) => node.instances.find((one) => one.instance === instance.id)?.steps);
  const steps_per_s = growth(steps(first), steps(last));
  return instance.stages.map((stage, at) => {
    const busy = (look: Look) => count(look, (node) => (node.node === stage.node ? node.stages.find((one) => one.instance === instance.id && one.stage === at)?.busy_s : undefined));
    const part = growth(busy(first), busy(last));
    if (part === null || part === 0) return null;
    return { step_ms: steps_per_s ? (1000 * part) / steps_per_s : null, idle: Math.max(0, 1 - part) };
  });
}
