// What a map of layers shows, from an instance's stages. Pure.

import type { AlertView, InstanceView, NodeView, StageView } from "../api/types";
import { percent, printable } from "../lib/format";
import { isGone } from "../lib/tones";

export type Part = {
  key: string;
  start: number;
  end: number;
  title: string;
  note: string;
  state: "held" | "loading" | "missing" | "late" | "unloaded";
  /** 0 to 1. */
  held: number;
  color: number;
};

export type StageState = Part["state"];

/** A device in such a state takes no work. */
const AWAY = ["lost", "verifying", "quarantined"];

/** How a stage is: what its node is decides before what it has loaded. `isLoading`: whether its instance loads what is not there. */
export function stageState(stage: StageView, node: NodeView | undefined, isLoading = true): StageState {
  const device = node?.devices.find((one) => one.id === stage.device);
  // A node that has told none of its devices yet may have it all the same.
  const isPulled = !device && (node?.devices.length ?? 0) > 0;
  if (!node || isGone(node.status) || isPulled || AWAY.includes(device?.state ?? "")) return "missing";
  if (stage.weight_bytes_held < stage.weight_bytes) return isLoading || stage.progress ? "loading" : "unloaded";
  return node.status === "suspected" ? "late" : "held";
}

/** One that waits or was given up loads nothing. */
export const loads = (instance: InstanceView): boolean => !["waiting", "failed"].includes(instance.state.kind);

const DEVICE_RULES = ["device_lost", "device_quarantined"];

/** Since when a stage is missing, in seconds since 1970: its node, or its device by the alert for that. Nothing where nobody here saw it go. */
export function missingSince(stage: StageView, node: NodeView | undefined, alerts: readonly AlertView[]): number | null {
  if (!node || isGone(node.status)) return node?.gone_since_unix_s ?? null;
  const of = (alert: AlertView) => DEVICE_RULES.includes(alert.rule) && !alert.resolved_unix_s && alert.node === stage.node && alert.device === stage.device;
  return alerts.find(of)?.since_unix_s ?? null;
}

/** How much of a stage is in place, 0 to 1; while it comes, by what the node says of that. */
export function heldOf(stage: StageView): number {
  if (stage.progress && stage.progress.total_bytes > 0) return Math.min(1, stage.progress.done_bytes / stage.progress.total_bytes);
  return stage.weight_bytes > 0 ? Math.min(1, stage.weight_bytes_held / stage.weight_bytes) : 1;
}

export function partsOf(instance: InstanceView, nodes: readonly NodeView[], words: { missing: (stage: StageView) => string; late: string; unloaded: string }): Part[] {
  const isLoading = loads(instance);
  const colors = new Map<string, number>();
  return instance.stages.map((stage, at) => {
    const place = `${stage.node}/${stage.device}`;
    if (!colors.has(place)) colors.set(place, colors.size);
    const state = stageState(stage, nodes.find((node) => node.id === stage.node), isLoading);
    const held = heldOf(stage);
    const note = { held: "", late: words.late, loading: percent(held), unloaded: words.unloaded, missing: words.missing(stage) }[state];
    return { key: `${at} ${place}`, ...stage.layers, title: `${printable(stage.node_name, 40)}/${printable(stage.device, 20)}`, note, state, held, color: colors.get(place)! };
  });
}
