// Applies what the event stream says to the view of the cluster. Pure: the view that comes back shares every part that did not change.

import type { ClusterView, DeviceView, InstanceView, JoinRequestView, LinkView, LoadView, NodeView, OtherClusterView, SensorsView, WarningView } from "./types";

/** One change; see docs/dashboard.md. A kind that is not known here is from a newer node and is passed over. */
export type Change =
  | ({ kind: "header" } & Partial<Pick<ClusterView, "cluster" | "self_node" | "epoch" | "join_window" | "journal">>)
  | { kind: "node"; node: NodeView }
  | { kind: "node_gone"; id: string }
  | { kind: "gauges"; node: string; process_bytes?: number | null; devices: Gauges[] }
  | { kind: "link"; link: LinkView }
  | { kind: "link_gone"; from: string; to: string }
  | { kind: "instance"; instance: InstanceView }
  | { kind: "instance_gone"; id: string }
  | { kind: "load"; id: string; load?: LoadView | null; measured_tokens_per_s?: number | null; time_shares?: (number | null)[] }
  | { kind: "join_requests"; join_requests: JoinRequestView[] }
  | { kind: "other_clusters"; other_clusters: OtherClusterView[] }
  | { kind: "warnings"; warnings: WarningView[] };

export type Gauges = { device: string; memory_free_bytes: number; sensors: SensorsView };

export function applyAll(view: ClusterView, changes: readonly Change[]): ClusterView {
  return changes.reduce(apply, view);
}

export function apply(view: ClusterView, change: Change): ClusterView {
  switch (change.kind) {
    case "header": {
      const { kind: _, ...fields } = change;
      return { ...view, ...fields };
    }
    case "node": {
      const nodes = put(view.nodes, change.node, (a) => a.id === change.node.id);
      return { ...view, nodes: nodes.sort((a, b) => (a.name < b.name ? -1 : a.name > b.name ? 1 : 0)) };
    }
    case "node_gone":
      return { ...view, nodes: view.nodes.filter((a) => a.id !== change.id) };
    case "gauges":
      return { ...view, nodes: view.nodes.map((a) => (a.id === change.node ? gauged(a, change) : a)) };
    case "link":
      return { ...view, links: put(view.links, change.link, (a) => a.from === change.link.from && a.to === change.link.to) };
    case "link_gone":
      return { ...view, links: view.links.filter((a) => a.from !== change.from || a.to !== change.to) };
    case "instance":
      return { ...view, instances: put(view.instances, change.instance, (a) => a.id === change.instance.id) };
    case "instance_gone":
      return { ...view, instances: view.instances.filter((a) => a.id !== change.id) };
    case "load":
      return { ...view, instances: view.instances.map((a) => (a.id === change.id ? loaded(a, change) : a)) };
    case "join_requests":
      return { ...view, join_requests: change.join_requests };
    case "other_clusters":
      return { ...view, other_clusters: change.other_clusters };
    case "warnings":
      return { ...view, warnings: change.warnings };
    default:
      return view;
  }
}

function put<T>(list: readonly T[], item: T, same: (other: T) => boolean): T[] {
  const at = list.findIndex(same);
  return at < 0 ? [...list, item] : list.with(at, item);
}

function gauged(node: NodeView, change: { process_bytes?: number | null; devices: Gauges[] }): NodeView {
  const devices = node.devices.map((device): DeviceView => {
    const gauges = change.devices.find((g) => g.device === device.id);
    return gauges ? { ...device, memory_free_bytes: gauges.memory_free_bytes, sensors: gauges.sensors } : device;
  });
  return { ...node, devices, process_bytes: change.process_bytes ?? node.process_bytes ?? null };
}

function loaded(instance: InstanceView, change: Extract<Change, { kind: "load" }>): InstanceView {
  const stages = instance.stages.map((stage, at) => ({ ...stage, time_share: change.time_shares?.[at] ?? stage.time_share ?? null }));
  return { ...instance, stages, load: change.load ?? null, measured_tokens_per_s: change.measured_tokens_per_s ?? null };
}
