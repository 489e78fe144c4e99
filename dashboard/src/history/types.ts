// A conversation is a tree of messages: an edit or another answer is a sibling, so nothing that was said is ever replaced.

import type { StepTimesView } from "../api/types";

export type Params = Partial<Record<ParamName, string>> & { logprobs?: boolean };

export const PARAM_NAMES = ["temperature", "top_p", "top_k", "min_p", "max_tokens", "seed", "reasoning_effort", "stop", "response_format", "tools"] as const;
export type ParamName = (typeof PARAM_NAMES)[number];

export type Conversation = {
  id: string;
  title: string;
  created_ms: number;
  updated_ms: number;
  model: string;
  system: string;
  params: Params;
  /** Which child of a message is shown, by the parent's id; the first message's parent is "". */
  chosen: Record<string, string>;
};

export type Call = { id: string; name: string; arguments: string };
export type TokenChance = { token: string; logprob: number; others: { token: string; logprob: number }[] };

/** `streaming` is what a tab was at when it last wrote: it may have been closed since. */
export type MessageState = "done" | "streaming" | "stopped" | "length" | "failed" | "interrupted";

/** Numbers of an answer, as the node told them. */
export type Stats = {
  prompt_tokens?: number;
  cached_tokens?: number;
  completion_tokens?: number;
  queued_ms?: number;
  ttft_ms?: number;
  tokens_per_s?: number | null;
  prompt_tokens_per_s?: number | null;
  stages?: number;
  times?: StepTimesView;
  kernels?: string[];
  draft_acceptance_rate?: number | null;
  request?: string;
};

/** What gets the rest of an answer, or ends it: see docs/decisions/0038. */
export type Ticket = { id: string; secret: string; last: string | null };

export type Message = {
  id: string;
  conversation: string;
  parent: string;
  role: "user" | "assistant" | "tool";
  created_ms: number;
  content: string;
  reasoning: string;
  calls: Call[];
  /** Of a tool's result: the call that it answers. */
  call: string | null;
  state: MessageState;
  error: string;
  model: string;
  ticket: Ticket | null;
  stats: Stats | null;
  chances: TokenChance[];
};

/** `crypto.randomUUID` is not there over plain HTTP from another machine. */
export const newId = (): string => Array.from(crypto.getRandomValues(new Uint8Array(16)), (byte) => byte.toString(16).padStart(2, "0")).join("");

/** Drawn here, so that an answer can be found again before its node has said anything of it. */
export const newTicket = (): Ticket => ({ id: newId(), secret: newId(), last: null });

export function message(fields: Pick<Message, "conversation" | "parent" | "role"> & Partial<Message>): Message {
  return { id: newId(), created_ms: Date.now(), content: "", reasoning: "", calls: [], call: null, state: "done", error: "", model: "", ticket: null, stats: null, chances: [], ...fields };
}

export function conversation(fields: Partial<Conversation>): Conversation {
  const now_ms = Date.now();
  return { id: newId(), title: "", created_ms: now_ms, updated_ms: now_ms, model: "", system: "", params: {}, chosen: {}, ...fields };
}
