// The cluster as the node tells it: a snapshot, then changes. Knows how old what it has is, and whether the node is there.

import { applyAll, type Change } from "../api/deltas";
import { ApiError, ask, messageOf, open } from "../api/client";
import { distinctParts } from "../lib/distinct";
import { readEvents, type ServerEvent } from "../lib/sse";
import { rest, wake } from "../lib/wake";
import type { ClusterView, InstanceView, NodeView, PullView } from "../api/types";
import { alerts } from "./alerts.svelte";
import { downloads } from "./downloads.svelte";

/** The node says something every second. Without a byte for so long it is asked whether it is there; with the tick and the probe's deadline: within 3 s. */
const SILENCE_MS = 1500;
const TICK_MS = 400;
const PROBE_MS = 1000;
const DEAD_MS = 8000;
const RETRY_MS = [250, 500, 1000, 2000];

/** An event is missing before this one, or this one is older than what is known: only a snapshot helps. */
class OutOfOrder extends Error {}

export type Connection = "connecting" | "live" | "gone";

export class ClusterStore {
  view = $state.raw<ClusterView | null>(null);
  connection = $state<Connection>("connecting");
  /** When the node last said anything: what is shown is from then. */
  heard_ms = $state(0);
  /** The node's clock beside this browser's, for times that the node tells. */
  skew_ms = $state(0);
  problem = $state("");
  /** Whether the node answers, and says why it tells nothing: that is no absence. */
  isRefused = $state(false);

  private last_id: string | null = null;
  private heard = 0;
  private stopped = new AbortController();

  get nodes(): NodeView[] {
    return this.view?.nodes ?? [];
  }

  /** Machines that are there. */
  get alive(): number {
    return this.nodes.filter((node) => node.status === "alive").length;
  }

  get instances(): InstanceView[] {
    return this.view?.instances ?? [];
  }

  get self(): NodeView | undefined {
    return this.nodes.find((node) => node.is_self);
  }

  get isStale(): boolean {
    return this.connection === "gone";
  }

  node(id: string): NodeView | undefined {
    return this.nodes.find((node) => node.id === id);
  }

  /** What plans are made on, as one text: another one when a machine, a device or a placement has changed. */
  get machines(): string {
    const nodes = this.nodes.map((node) => `${node.id} ${node.status} ${node.devices.map((device) => device.id + device.state).join()}`);
    return `${nodes.join()} ${this.instances.map((one) => `${one.id} ${one.state.kind}`).join()}`;
  }

  nameOf(id: string): string {
    return this.node(id)?.name ?? id.slice(0, 8);
  }

  /** Reads the stream until `stop`, again whenever it ends. */
  async run(): Promise<void> {
    this.stopped = new AbortController();
    const { signal } = this.stopped;
    for (let failures = 0; !signal.aborted; failures++) {
      const began = Date.now();
      await this.read(signal).catch((error: unknown) => this.failed(error));
      if (signal.aborted) return;
      if (this.heard > began) failures = 0;
      await rest(RETRY_MS[Math.min(failures, RETRY_MS.length - 1)]!, signal);
    }
  }

  stop(): void {
    this.stopped.abort();
    this.view = null;
    this.last_id = null;
    this.connection = "connecting";
  }

  private async read(stopped: AbortSignal): Promise<void> {
    const cut = new AbortController();
    const signal = AbortSignal.any([stopped, cut.signal]);
    const headers: Record<string, string> = { accept: "text/event-stream" };
    if (this.last_id) headers["last-event-id"] = this.last_id;
    this.heard = Date.now();
    const watch = setInterval(() => void this.probe(cut), TICK_MS);
    let isOpen = false;
    try {
      const response = await open("/exo/v1/events", { headers, signal });
      isOpen = true;
      this.hear();
      await readEvents(response.body!, (event) => this.take(event), () => this.hear());
    } catch (error) {
      // A stream ends for many reasons, of which a node that is gone is one: the next attempt tells.
      const isCut = isOpen && (error instanceof TypeError || error instanceof OutOfOrder) && !signal.aborted;
      if (!isCut) throw error;
    } finally {
      clearInterval(watch);
      cut.abort();
    }
  }

  private probing = false;
  private probed = 0;

  /** A node that is silent is asked; one that does not answer is gone until it does. */
  private async probe(cut: AbortController): Promise<void> {
    const now = Date.now();
    if (now - this.heard > DEAD_MS) return cut.abort();
    if (now - Math.max(this.heard, this.probed) < SILENCE_MS || this.probing || document.hidden) return;
    this.probing = true;
    try {
      await ask("/health", { deadline_ms: PROBE_MS });
      this.probed = Date.now();
      this.heard_ms = this.probed;
      if (this.view) this.live();
    } catch (error) {
      // What was heard since is newer than a question without an answer.
      const isSilent = this.heard < now && !cut.signal.aborted;
      if (error instanceof ApiError && error.status === 0 && isSilent) this.lose(error.message, false);
    } finally {
      this.probing = false;
    }
  }

  private hear(): void {
    this.heard = Date.now();
    this.heard_ms = this.heard;
    if (this.view) this.live();
  }

  private live(): void {
    if (this.connection === "gone") wake();
    this.connection = "live";
  }

  private failed(error: unknown): void {
    if (error instanceof ApiError && error.status === 400) this.last_id = null;
    this.lose(messageOf(error), error instanceof ApiError && error.status !== 0);
  }

  private lose(problem: string, isRefused: boolean): void {
    this.problem = problem;
    this.isRefused = isRefused;
    this.connection = "gone";
  }

  /** One event of the stream. What cannot be read is an error: the next attempt begins with a snapshot. */
  take(event: ServerEvent): void {
    // Downloads have no part in the view, nor a place in the order of its changes.
    if (event.event === "pulls") return downloads.take(JSON.parse(event.data) as PullView[]);
    try {
      const data = JSON.parse(event.data) as { at_unix_ms: number; cluster?: ClusterView; changes?: Change[] };
      if (event.event === "snapshot" && data.cluster) this.replace(data.cluster);
      else if (event.event === "delta" && this.view && data.changes) {
        if (event.id !== null && event.id === this.last_id) return;
        if (!follows(event.id, this.last_id)) throw new OutOfOrder();
        this.change(data.changes);
      } else return;
      this.skew_ms = alerts.skew_ms = Math.round(data.at_unix_ms - Date.now()) || 0;
      this.last_id = event.id;
    } catch (error) {
      this.last_id = null;
      throw error;
    }
  }

  private replace(view: ClusterView): void {
    // An older node leaves out what it does not know.
    const empty = { nodes: [], links: [], instances: [], join_requests: [], warnings: [] };
    this.view = distinctParts({ ...empty, ...view });
    alerts.take((view as { alerts?: unknown }).alerts);
    this.live();
  }

  private change(changes: Change[]): void {
    this.view = distinctParts(applyAll(this.view!, changes));
    alerts.take(this.view.alerts);
  }
}

/** Ids are `RUN-NUMBER`, and the numbers of a run have no gaps. */
function follows(id: string | null, last: string | null): boolean {
  const [run, number] = id?.split("-") ?? [];
  const [last_run, last_number] = last?.split("-") ?? [];
  return run === last_run && Number(number) === Number(last_number) + 1;
}

export const cluster = new ClusterStore();
