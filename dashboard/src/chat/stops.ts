// Answers that were stopped here, until their node has heard it: a stop that is lost on its way would leave the node computing.

import { ApiError, ask } from "../api/client";
import type { Ticket } from "../history/types";
import { rest } from "../lib/wake";

type Stop = Pick<Ticket, "id" | "secret"> & { at_ms: number };

const KEY = "exo-stops";
const RETRY_MS = [300, 1000, 3000, 8000, 20_000];
/** No answer is worth asking about for longer. */
const KEPT_MS = 24 * 3600_000;
/** A request may reach its node behind the stop of it. */
const NOT_FOUND_MS = 5000;

class Stops {
  /** Where storage is refused, stops live as long as the page. */
  private memory: Stop[] = [];
  private running: Promise<void> | null = null;

  /** Ended by a stop that is new: it does not wait behind older ones. */
  private nap = new AbortController();

  get list(): Stop[] {
    try {
      return (JSON.parse(localStorage.getItem(KEY) ?? "[]") as Stop[]).filter((one) => typeof one.id === "string" && typeof one.secret === "string");
    } catch {
      return this.memory;
    }
  }

  private set(list: Stop[]): void {
    this.memory = list;
    try {
      localStorage.setItem(KEY, JSON.stringify(list));
    } catch {
      // it is in memory
    }
  }

  /** Ends an answer at its node, however often that has to be said. */
  add({ id, secret }: Ticket): void {
    this.set([...this.list.filter((one) => one.id !== id), { id, secret, at_ms: Date.now() }]);
    this.nap.abort();
    void this.run();
  }

  /** Tells the node what it has not heard yet. */
  run(): Promise<void> {
    this.running ??= this.tell().finally(() => (this.running = null));
    return this.running;
  }

  private async tell(): Promise<void> {
    for (let round = 0; ; round++) {
      this.nap = new AbortController();
      for (const one of this.list) {
        if (await this.isSettled(one)) this.set(this.list.filter((other) => other.id !== one.id));
      }
      if (this.list.length === 0) return;
      await rest(RETRY_MS[Math.min(round, RETRY_MS.length - 1)]!, this.nap.signal);
    }
  }

  private async isSettled({ id, secret, at_ms }: Stop): Promise<boolean> {
    const age_ms = Date.now() - at_ms;
    try {
      await ask(`/v1/requests/${id}`, { method: "DELETE", headers: { "exo-resume": `${id}.${secret}` }, keepalive: true });
      return true;
    } catch (error) {
      if (error instanceof ApiError && [404, 410].includes(error.status)) return age_ms > NOT_FOUND_MS;
      if (error instanceof ApiError && error.status === 400) return true;
      return age_ms > KEPT_MS;
    }
  }
}

export const stops = new Stops();
