// Log lines of all nodes. Asked for while their page is open; what follows comes behind the last answer's cursor.

import { ask, messageOf } from "../api/client";
import type { LogLineView, LogsView } from "../api/types";

export type LogFilter = { node: string; level: string; target: string; request: string };

const EVERY_MS = 1500;
/** Lines that are kept here; the nodes have more. */
const LINES_MAX = 2000;

class LogStore {
  lines = $state.raw<LogLineView[] | null>(null);
  silent = $state.raw<LogsView["silent"]>([]);
  problem = $state("");
  private next = "";
  private round = 0;
  /** The round that an answer is awaited of: a member that is silent makes it take seconds. */
  private asked = 0;

  /** Shows lines that match, and what follows while `follow` says so, until the answer is called. */
  watch(filter: LogFilter, follow: () => boolean): () => void {
    const round = ++this.round;
    this.lines = null;
    this.next = "";
    void this.more(filter, round);
    const timer = setInterval(() => follow() && !document.hidden && void this.more(filter, round), EVERY_MS);
    return () => {
      clearInterval(timer);
      if (this.round === round) this.round += 1;
    };
  }

  private async more(filter: LogFilter, round: number): Promise<void> {
    if (this.asked === round) return;
    this.asked = round;
    const query = new URLSearchParams(Object.entries({ ...filter, after: this.next, limit: "500" }).filter(([, value]) => value !== ""));
    try {
      const answer = await ask<LogsView>(`/exo/v1/logs?${query}`, { deadline_ms: 10_000 });
      if (round !== this.round) return;
      this.lines = merged(this.lines ?? [], answer.lines);
      this.silent = answer.silent;
      this.next = answer.next;
      this.problem = "";
    } catch (error) {
      if (round === this.round) this.problem = messageOf(error);
    } finally {
      if (this.asked === round) this.asked = 0;
    }
  }
}

/** Names a line: a node that is started again counts from 1 again. */
export const keyOf = (line: LogLineView) => `${line.node} ${line.number} ${line.at_unix_ms}`;

/** The last lines of both; what is there already does not come twice. */
export function merged(before: readonly LogLineView[], more: readonly LogLineView[]): LogLineView[] {
  return [...new Map([...before, ...more].map((line) => [keyOf(line), line])).values()].slice(-LINES_MAX);
}

export const logs = new LogStore();
