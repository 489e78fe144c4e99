// Where the time of a request's steps went, in words. Pure.

import type { StageTimeView, StepTimesView } from "../api/types";
import { t } from "../text";
import { isNumber, millis, printable } from "./format";

/** A line for each stage, by the name that it has, and one for what is between them; none where nothing is known. */
export function stageTimes(times: StepTimesView | null | undefined, nameOf: (stage: StageTimeView, at: number) => string): string[] {
  if (!times || times.stages.length === 0) return [];
  const line = (name: string, prompt: number, answer: number) => t.requests.took(name, millis(isNumber(prompt) ? prompt : 0), millis(isNumber(answer) ? answer : 0));
  const stages = times.stages.map((stage, at) => line(printable(nameOf(stage, at), 60), stage.prompt_ms, stage.answer_ms));
  return [...stages, line(t.requests.between, times.between_prompt_ms, times.between_answer_ms)];
}
