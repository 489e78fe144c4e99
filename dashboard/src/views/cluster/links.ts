// Two measured directions as one line of the drawing. Pure.

import { isNumber } from "../../lib/format";
import type { InstanceView, LinkView } from "../../api/types";

export type Edge = { key: string; a: string; b: string; rtt_ms: number | null; bytes_per_s: number | null; age_s: number | null; transport: string };

/** The slower number of both directions: it is what a request waits for. */
export function edges(links: readonly LinkView[]): Edge[] {
  const pairs = new Map<string, Edge>();
  for (const link of links) {
    const [a, b] = link.from < link.to ? [link.from, link.to] : [link.to, link.from];
    const key = `${a} ${b}`;
    const before = pairs.get(key);
    pairs.set(key, {
      key,
      a,
      b,
      rtt_ms: pick(Math.max, before?.rtt_ms, link.rtt_ms),
      bytes_per_s: pick(Math.min, before?.bytes_per_s, link.bytes_per_s),
      age_s: pick(Math.max, before?.age_s, link.rtt_age_s),
      transport: link.transport,
    });
  }
  return [...pairs.values()];
}

function pick(choose: (a: number, b: number) => number, a: number | null | undefined, b: number | null | undefined): number | null {
  if (!isNumber(a)) return isNumber(b) ? b : null;
  return isNumber(b) ? choose(a, b) : a;
}

/** 1 to 5, by the logarithm of the rate: 1 MB/s is thin, 1 GB/s is thick. */
export function width(bytes_per_s: number | null): number {
  if (!isNumber(bytes_per_s) || bytes_per_s <= 0) return 1;
  return Math.min(5, Math.max(1, 1 + (Math.log10(bytes_per_s) - 6) * 1.3));
}

export type Hop = { from: string; to: string };

/** The links that a token crosses: stage to stage, and back to the first. One that it crosses again is there once. */
export function hops(instance: InstanceView | undefined): Hop[] {
  const nodes = (instance?.stages ?? []).map((stage) => stage.node).filter((node, at, all) => node !== all[at - 1]);
  if (nodes.length < 2) return [];
  const all = nodes.map((from, at) => ({ from, to: nodes[(at + 1) % nodes.length]! })).filter((hop) => hop.from !== hop.to);
  return [...new Map(all.map((hop) => [`${hop.from} ${hop.to}`, hop])).values()];
}
