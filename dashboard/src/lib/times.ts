// Where the time of a request's steps went, in words and in numbers. Pure.

import type { RecentRequestView, StageTimeView, StepTimesView } from "../api/types";
import { t } from "../text";
import { isNumber, millis, printable } from "./format";

/** A line for each stage, by the name that it has, and one for what is between them; none where nothing is known. */
export function stageTimes(times: StepTimesView | null | undefined, nameOf: (stage: StageTimeView, at: number) => string): string[] {
  if (!times || times.stages.length === 0) return [];
  const line = (name: string, prompt: number, answer: number) => t.requests.took(name, millis(isNumber(prompt) ? prompt : 0), millis(isNumber(answer) ? answer : 0));
  const stages = times.stages.map((stage, at) => line(printable(nameOf(stage, at), 60), stage.prompt_ms, stage.answer_ms));
  return [...stages, line(t.requests.between, times.between_prompt_ms, times.between_answer_ms)];
}

/** A stage, or what is between them: milliseconds until the first token, behind it, and of a token behind it on average. */
export type TimeRow = { name: string; prompt_ms: number; answer_ms: number; token_ms: number | null };

/** Steps that took less than this part of the answer's time are the last part of one that was interrupted: its other tokens are not in them. */
const TOLD_MIN = 0.5;

/** A row for each stage, by its number and the name that it has, and the last for what is between them; none where nothing is known. */
export function timeRows(request: Pick<RecentRequestView, "times" | "tokens" | "total_ms" | "ttft_ms">, nameOf: (stage: StageTimeView, at: number) => string): TimeRow[] {
  const { times, tokens, total_ms, ttft_ms } = request;
  if (!times || times.stages.length === 0) return [];
  const row = (name: string, prompt: number, answer: number) => ({ name, prompt_ms: isNumber(prompt) ? Math.max(0, prompt) : 0, answer_ms: isNumber(answer) ? Math.max(0, answer) : 0 });
  const stages = times.stages.map((stage, at) => row(`${t.requests.stage(at + 1)}: ${printable(nameOf(stage, at), 60)}`, stage.prompt_ms, stage.answer_ms));
  const rows = [...stages, row(t.requests.between, times.between_prompt_ms, times.between_answer_ms)];
  const told_ms = rows.reduce((sum, { answer_ms }) => sum + answer_ms, 0);
  const isWhole = tokens > 1 && told_ms >= TOLD_MIN * (total_ms - (ttft_ms ?? total_ms));
  return rows.map((one) => ({ ...one, token_ms: isWhole ? one.answer_ms / (tokens - 1) : null }));
}
