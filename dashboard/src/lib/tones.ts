// Which tone a state has. A state that a newer node brings is shown by its own word, without a tone.

import type { Tone } from "../parts/Badge.svelte";

/** Whether nothing of a node in this state is there. */
export const isGone = (status: string | undefined) => status === "lost" || status === "left";

const TONES: Record<string, Tone> = {
  alive: "good",
  suspected: "warn",
  lost: "bad",
  left: "off",
  ready: "good",
  loading: "busy",
  placing: "busy",
  degraded: "warn",
  waiting: "bad",
  failed: "bad",
  usable: "good",
  verifying: "busy",
  quarantined: "bad",
  full: "good",
  partial: "warn",
  experimental: "warn",
  unsupported: "off",
  ok: "good",
  note: "off",
  broken: "bad",
  critical: "bad",
  warning: "warn",
  info: "busy",
  comfortable: "good",
  slow: "warn",
  too_large: "bad",
  context_too_long: "bad",
  not_supported: "off",
};

export const tone = (state: string): Tone => TONES[state] ?? "off";

/** Our word for a state, or the state's own. */
export const word = (words: Record<string, string>, state: string): string => words[state] ?? state;
