// Chunks of a streamed answer folded into one message. Pure but for what is told to the listener.

import { ApiError } from "../api/client";
import type { ChatChunk, ErrorBody } from "../api/types";
import type { ServerEvent } from "../lib/sse";
import type { Call, Stats, TokenChance } from "../history/types";

export type Piece = { content: string; reasoning: string };

/** What an answer is so far, apart from its text. */
export class Fold {
  calls: Call[] = [];
  stats: Stats | null = null;
  chances: TokenChance[] = [];
  finish: string | null = null;
  done = false;

  /** The text that this event adds. Throws what the node says went wrong. */
  take(event: ServerEvent): Piece {
    const piece: Piece = { content: "", reasoning: "" };
    if (event.data === "[DONE]") {
      this.done = true;
      return piece;
    }
    const chunk = JSON.parse(event.data) as ChatChunk & Partial<ErrorBody>;
    if (chunk.error) throw new ApiError(500, String(chunk.error.code), String(chunk.error.message));
    for (const choice of chunk.choices ?? []) {
      // A completion has `text` where a chat has a delta.
      piece.content += choice.delta?.content ?? (choice as { text?: string }).text ?? "";
      piece.reasoning += choice.delta?.reasoning_content ?? "";
      this.finish = choice.finish_reason ?? this.finish;
      this.call(choice.delta?.tool_calls ?? []);
      for (const { token, logprob, top_logprobs } of choice.logprobs?.content ?? []) {
        this.chances.push({ token, logprob, others: (top_logprobs ?? []).filter((other) => other.token !== token).map((other) => ({ token: other.token, logprob: other.logprob })) });
      }
    }
    if (chunk.usage || chunk.exo) this.stats = { ...this.stats, ...stats(chunk) };
    return piece;
  }

  private call(deltas: NonNullable<ChatChunk["choices"][number]["delta"]["tool_calls"]>): void {
    for (const delta of deltas) {
      const before = this.calls[delta.index] ?? { id: "", name: "", arguments: "" };
      const after = { id: delta.id ?? before.id, name: delta.function?.name ?? before.name, arguments: before.arguments + (delta.function?.arguments ?? "") };
      this.calls = this.calls.toSpliced(delta.index, 1, after);
    }
  }
}

function stats({ usage, exo }: ChatChunk): Stats {
  const out: Stats = {};
  if (usage) {
    out.prompt_tokens = usage.prompt_tokens;
    out.completion_tokens = usage.completion_tokens;
    out.cached_tokens = usage.prompt_tokens_details?.cached_tokens;
  }
  if (exo) {
    const { queued_ms, ttft_ms, tokens_per_s, prompt_tokens_per_s } = exo.timings;
    Object.assign(out, { queued_ms, ttft_ms, tokens_per_s, prompt_tokens_per_s, stages: exo.stages, times: exo.times ?? undefined, kernels: exo.kernels, draft_acceptance_rate: exo.draft_acceptance_rate, request: exo.request });
  }
  return out;
}
