// The memory of several devices together: what some of them share counts once. Pure.

import type { DeviceView } from "../api/types";

type Memory = Pick<DeviceView, "memory_free_bytes" | "memory_total_bytes" | "memory_domain">;

/**
 * Free and whole bytes of all of them. Devices of one memory domain (a processor and the graphics unit in it, or
 * nodes of one machine) have no more than the largest of them may take, or than is free of the domain.
 */
export function memoryOf(devices: Memory[]): { free: number; total: number } {
  const domains = new Map<string, { free: number; total: number; largest: number; free_of_domain: number }>();
  const all = { free: 0, total: 0 };
  for (const device of devices) {
    const [free, total, domain] = [device.memory_free_bytes, device.memory_total_bytes, device.memory_domain];
    if (!domain) {
      all.free += free;
      all.total += total;
      continue;
    }
    const known = domains.get(domain.id) ?? { free: 0, total: 0, largest: 0, free_of_domain: Infinity };
    domains.set(domain.id, {
      free: known.free + free,
      total: known.total + total,
      largest: Math.max(known.largest, total),
      free_of_domain: Math.min(known.free_of_domain, domain.free_bytes),
    });
  }
  for (const { free, total, largest, free_of_domain } of domains.values()) {
    all.free += Math.min(free, free_of_domain);
    all.total += Math.min(total, Math.max(largest, free_of_domain));
  }
  return all;
}
