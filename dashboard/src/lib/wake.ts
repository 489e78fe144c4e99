// Waits that end early where there is reason to think that the node can be reached again.

const sleepers = new Set<() => void>();

/** Ends all waits: the node has answered, the network is back, or somebody looks at the page. */
export function wake(): void {
  for (const end of [...sleepers]) end();
}

/** Waits so long, or until `wake` or the signal. */
export function rest(ms: number, signal?: AbortSignal): Promise<void> {
  if (signal?.aborted) return Promise.resolve();
  return new Promise((resolve) => {
    const end = () => {
      clearTimeout(timer);
      sleepers.delete(end);
      signal?.removeEventListener("abort", end);
      resolve();
    };
    const timer = setTimeout(end, ms);
    sleepers.add(end);
    signal?.addEventListener("abort", end, { once: true });
  });
}

addEventListener("online", wake);
document.addEventListener("visibilitychange", () => document.hidden || wake());
