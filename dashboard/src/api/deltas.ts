// Applies what the event stream says to the view of the cluster. Pure: the view that comes back shares every part that did not change.
// The other half is `crates/api/src/live.rs`; both are held against the same steps (`deltas.json`).

import type { AlertView, Change, ClusterView, DeviceView, InstanceView, NodeView } from "./types";

export type { Change };

/** The changes of an event, one after the other. A kind that is not known here is from a newer node and is passed over. */
export function applyAll(view: ClusterView, changes: readonly Change[]): ClusterView {
  return changes.reduce(apply, view);
}

type Of<K extends Change["kind"]> = Extract<Change, { kind: K }>;

export function apply(view: ClusterView, change: Change): ClusterView {
  switch (change.kind) {
    case "header": {
      const { kind: _, ...fields } = change;
      return { ...view, ...fields };
    }
    case "node": {
      const nodes = put(view.nodes, change.node, (a) => a.id === change.node.id);
      return { ...view, nodes: nodes.sort((a, b) => ordered(a.name, b.name) || ordered(a.id, b.id)) };
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
    case "alert":
      return { ...view, alerts: put(view.alerts ?? [], change.alert, (a) => a.id === change.alert.id && a.since_unix_s === change.alert.since_unix_s).sort(listed) };
    case "alert_gone":
      return { ...view, alerts: (view.alerts ?? []).filter((a) => a.id !== change.id || a.since_unix_s !== change.since_unix_s) };
    case "warnings":
      return { ...view, warnings: change.warnings };
    default:
      return view;
  }
}

/** As the node sorts: by code units, which for its UTF-8 is all but the same. */
const ordered = (a: string, b: string) => (a < b ? -1 : a > b ? 1 : 0);

/** What lasts, the newest first, and behind it what is over, the last first. */
function listed(a: AlertView, b: AlertView): number {
  const over = (alert: AlertView) => alert.resolved_unix_s ?? Infinity;
  return over(b) - over(a) || b.since_unix_s - a.since_unix_s || ordered(a.id, b.id);
}

function put<T>(list: readonly T[], item: T, same: (other: T) => boolean): T[] {
  const at = list.findIndex(same);
  return at < 0 ? [...list, item] : list.with(at, item);
}

function gauged(node: NodeView, change: Of<"gauges">): NodeView {
  const devices = node.devices.map((device): DeviceView => {
    const gauges = change.devices.find((g) => g.device === device.id);
    if (!gauges) return device;
    const [domain, free] = [device.memory_domain, gauges.memory_domain_free_bytes];
    const memory_domain = domain && typeof free === "number" ? { ...domain, free_bytes: free } : domain;
    return { ...device, memory_free_bytes: gauges.memory_free_bytes, memory_domain, sensors: gauges.sensors };
  });
  return { ...node, devices, process_bytes: change.process_bytes ?? null };
}

/** All that the node has said, what it does not know any more included. */
function loaded(instance: InstanceView, { kind: _kind, id: _id, time_shares, stages_measured = [], ...fields }: Of<"load">): InstanceView {
  const stages = instance.stages.map((stage, at) => {
    const shared = at < time_shares.length ? { ...stage, time_share: time_shares[at] ?? null } : stage;
    return at < stages_measured.length ? { ...shared, measured: stages_measured[at] ?? null } : shared;
  });
  return { ...instance, stages, load: null, measured_tokens_per_s: null, measured_alone: null, predicted_tokens_per_s: null, predicted: null, ...fields };
}
