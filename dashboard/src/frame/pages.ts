// The pages that there are: which file draws each, and who may see it. A page comes into the menu with its routes.

import type { Component } from "svelte";
import { session } from "../stores/session.svelte";
import type { Page } from "../stores/route.svelte";

type Entry = {
  page: Page;
  /** The second of two keys: `g`, then this. */
  key: string;
  load: () => Promise<{ default: Component }>;
  allowed: () => boolean;
  /** Not in the menu. */
  hidden?: boolean;
};

const owner = () => session.isOwner;
const viewer = () => session.seesCluster;
const anybody = () => true;

export const ENTRIES: Entry[] = [
  { page: "cluster", key: "c", load: () => import("../views/cluster/Cluster.svelte"), allowed: viewer },
  { page: "devices", key: "d", load: () => import("../views/devices/Devices.svelte"), allowed: viewer },
  { page: "instances", key: "i", load: () => import("../views/instances/Instances.svelte"), allowed: viewer },
  { page: "models", key: "m", load: () => import("../views/models/Models.svelte"), allowed: owner },
  { page: "chat", key: "t", load: () => import("../views/chat/Chat.svelte"), allowed: anybody },
  { page: "requests", key: "r", load: () => import("../views/requests/Requests.svelte"), allowed: owner },
  { page: "alerts", key: "a", load: () => import("../views/alerts/Alerts.svelte"), allowed: viewer },
  { page: "logs", key: "l", load: () => import("../views/logs/Logs.svelte"), allowed: owner },
  { page: "doctor", key: "h", load: () => import("../views/doctor/Doctor.svelte"), allowed: owner },
  { page: "metrics", key: "x", load: () => import("../views/metrics/Metrics.svelte"), allowed: owner },
  { page: "integrations", key: "o", load: () => import("../views/integrations/Integrations.svelte"), allowed: anybody },
  { page: "licences", key: "v", load: () => import("../views/licences/Licences.svelte"), allowed: anybody, hidden: true },
];

export const allowed = () => ENTRIES.filter((entry) => entry.allowed());

/** What is drawn for an address: the first page that is allowed if it is not one of those. */
export function entryOf(page: Page): Entry {
  const open = allowed();
  return open.find((entry) => entry.page === page) ?? open[0]!;
}
