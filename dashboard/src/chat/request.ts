// A branch of a conversation as the API asks for it. Pure.

import type { Conversation, Message, Params } from "../history/types";
import { t } from "../text";

export type ChatBody = Record<string, unknown> & { model: string; messages: unknown[]; stream: true };

/** The body of a request for the next message. Throws what is wrong with a parameter, for people. */
export function body(conversation: Conversation, branch: readonly Message[]): ChatBody {
  const system = conversation.system.trim() === "" ? [] : [{ role: "system", content: conversation.system }];
  return {
    model: conversation.model,
    messages: [...system, ...branch.map(spoken)],
    stream: true,
    stream_options: { include_usage: true },
    ...fields(conversation.params),
  };
}

function spoken(message: Message): Record<string, unknown> {
  if (message.role === "tool") return { role: "tool", content: message.content, tool_call_id: message.call };
  if (message.role === "user") return { role: "user", content: message.content };
  const thought = message.reasoning ? { reasoning_content: message.reasoning } : {};
  if (message.calls.length === 0) return { role: "assistant", content: message.content, ...thought };
  const tool_calls = message.calls.map(({ id, name, arguments: args }) => ({ id, type: "function", function: { name, arguments: args || "{}" } }));
  return { role: "assistant", content: message.content, tool_calls, ...thought };
}

/** Parameters that were filled in. */
export function fields(params: Params): Record<string, unknown> {
  const out: Record<string, unknown> = {};
  for (const name of ["temperature", "top_p", "top_k", "min_p", "max_tokens", "seed"] as const) {
    const text = params[name]?.trim();
    if (!text) continue;
    const value = Number(text.replace(",", "."));
    if (!Number.isFinite(value)) throw new Error(t.chat.bad_number(t.chat.params[name] ?? name));
    out[name] = value;
  }
  if (params.reasoning_effort?.trim()) out.reasoning_effort = params.reasoning_effort.trim();
  const stop = (params.stop ?? "").split("\n").filter((line) => line !== "");
  if (stop.length > 0) out.stop = stop;
  if (params.response_format?.trim()) out.response_format = format(params.response_format.trim());
  if (params.tools?.trim()) out.tools = json(params.tools, t.chat.params.tools ?? "tools");
  if (params.logprobs) Object.assign(out, { logprobs: true, top_logprobs: 5 });
  return out;
}

function format(text: string): unknown {
  if (text === "json") return { type: "json_object" };
  return { type: "json_schema", json_schema: { name: "answer", schema: json(text, t.chat.params.response_format ?? "") } };
}

function json(text: string, what: string): unknown {
  try {
    return JSON.parse(text);
  } catch {
    throw new Error(t.chat.bad_json(what));
  }
}
