// Conversations to files and back. What is read is a stranger's: every field is checked, and what is not one of ours is left out.

import { bytes } from "../lib/format";
import { t } from "../text";
import { children, path, type Tree } from "./tree";
import { conversation, message, newId, PARAM_NAMES, type Call, type Conversation, type Message, type MessageState, type Params, type Stats, type TokenChance } from "./types";

const FORMAT = "exo-conversations";
export const FILE_BYTES_MAX = 128 << 20;
export const MESSAGES_MAX = 200_000;
/** Of one answer: its tokens, for each what else was likely, and the stages that it went through. */
const [CHANCES_MAX, OTHERS_MAX, STAGES_MAX] = [200_000, 20, 256];
const STAT_NAMES = ["prompt_tokens", "cached_tokens", "completion_tokens", "queued_ms", "ttft_ms", "tokens_per_s", "prompt_tokens_per_s", "stages", "draft_acceptance_rate"] as const;

export type Bundle = { conversations: Conversation[]; messages: Message[] };

export function toJson({ conversations, messages }: Bundle): string {
  // A ticket is a secret of this browser, and worth nothing an hour later.
  const kept = messages.map((one) => ({ ...one, ticket: null }));
  return JSON.stringify({ format: FORMAT, version: 1, conversations, messages: kept });
}

/** The branch that is shown. */
export function toMarkdown(one: Conversation, tree: Tree, words: { you: string; thought: string }): string {
  const parts = path(one, tree).map((each) => {
    const head = each.role === "assistant" ? `## ${each.model || "assistant"}` : `## ${each.role === "user" ? words.you : each.role}`;
    const thought = each.reasoning ? `<details><summary>${words.thought}</summary>\n\n${each.reasoning}\n\n</details>\n\n` : "";
    const calls = each.calls.map((call) => `\n\n\`\`\`json\n${JSON.stringify({ name: call.name, arguments: call.arguments })}\n\`\`\``).join("");
    return `${head}\n\n${thought}${each.content}${calls}`;
  });
  const system = one.system ? [`## System\n\n${one.system}`] : [];
  return `# ${one.title}\n\n${[...system, ...parts].join("\n\n")}\n`;
}

/** Reads a file that somebody chose; what is too large is refused before any of it is in memory. `drawn` lets the page say why it is held up. */
export async function fromFile(file: Pick<Blob, "size" | "text">, drawn: () => Promise<unknown> = async () => {}): Promise<Bundle> {
  if (file.size > FILE_BYTES_MAX) throw new Error(t.chat.too_large(bytes(file.size), bytes(FILE_BYTES_MAX)));
  const text = await file.text();
  await drawn();
  return fromJson(text);
}

/** Reads a file that `toJson` wrote. Ids are given anew, so that nothing that is here is written over. */
export function fromJson(text: string): Bundle {
  const file = parse(text);
  if (!isObject(file) || file.format !== FORMAT) throw new Error(t.errors.not_ours);
  const conversations = list(file.conversations);
  const messages = list(file.messages);
  if (messages.length > MESSAGES_MAX) throw new Error(t.errors.too_many_messages(messages.length, MESSAGES_MAX));
  const ids = new Map<string, string>([["", ""]]);
  const renamed = (id: unknown) => (typeof id === "string" ? (ids.get(id) ?? "") : "");
  for (const one of [...conversations, ...messages]) if (isObject(one) && typeof one.id === "string" && one.id) ids.set(one.id, newId());

  const readConversations = conversations.filter(isObject).map((one) =>
    conversation({
      id: renamed(one.id) || newId(),
      title: string(one.title, 200),
      created_ms: number(one.created_ms),
      updated_ms: number(one.updated_ms),
      model: string(one.model, 400),
      system: string(one.system),
      params: params(one.params),
      chosen: Object.fromEntries(Object.entries(isObject(one.chosen) ? one.chosen : {}).map(([from, to]) => [renamed(from), renamed(to)])),
    }),
  );
  const known = new Set(readConversations.map((one) => one.id));
  const read = messages.filter(isObject).map(readMessage(renamed)).filter((one) => known.has(one.conversation));
  return { conversations: readConversations, messages: rooted(read) };
}

const readMessage = (renamed: (id: unknown) => string) => (one: Record<string, unknown>): Message =>
  message({
    id: renamed(one.id) || newId(),
    conversation: renamed(one.conversation),
    parent: renamed(one.parent),
    role: one.role === "assistant" || one.role === "tool" ? one.role : "user",
    created_ms: number(one.created_ms),
    content: string(one.content),
    reasoning: string(one.reasoning),
    calls: list(one.calls).filter(isObject).slice(0, 128).map((call): Call => ({ id: string(call.id, 200), name: string(call.name, 200), arguments: string(call.arguments) })),
    call: typeof one.call === "string" ? one.call.slice(0, 200) : null,
    state: state(one.state),
    error: string(one.error, 1000),
    model: string(one.model, 400),
    stats: stats(one.stats),
    chances: list(one.chances).filter(isChance).slice(0, CHANCES_MAX).map(({ others, ...chance }): TokenChance => ({ ...likely(chance), others: list(others).filter(isChance).slice(0, OTHERS_MAX).map(likely) })),
  });

type Likely = Omit<TokenChance, "others">;
const isChance = (value: unknown): value is Likely & { others: unknown } => isObject(value) && typeof value.token === "string" && isFinite(value.logprob);
const likely = ({ token, logprob }: Likely): Likely => ({ token: token.slice(0, 400), logprob });

/** What of it is a number stays one; which kernels there were is of no use elsewhere. */
function stats(value: unknown): Stats | null {
  if (!isObject(value)) return null;
  const numbers = STAT_NAMES.filter((name) => isFinite(value[name])).map((name) => [name, value[name]]);
  const request = string(value.request, 64);
  const kept: Stats = { ...Object.fromEntries(numbers), ...(request ? { request } : {}), ...times(value.times) };
  return Object.keys(kept).length > 0 ? kept : null;
}

function times(value: unknown): Pick<Stats, "times"> {
  if (!isObject(value)) return {};
  const ms = (one: unknown) => (isFinite(one) ? one : 0);
  const stages = list(value.stages).filter(isObject).slice(0, STAGES_MAX).map((one) => ({ prompt_ms: ms(one.prompt_ms), answer_ms: ms(one.answer_ms) }));
  return stages.length === 0 ? {} : { times: { stages, between_prompt_ms: ms(value.between_prompt_ms), between_answer_ms: ms(value.between_answer_ms) } };
}

/** A message that hangs on nothing, on itself or on one of another conversation becomes a first message. */
function rooted(read: Message[]): Message[] {
  const conversations = new Map(read.map((one) => [one.id, one.conversation]));
  const messages = read.map((one) => (conversations.get(one.parent) === one.conversation ? one : { ...one, parent: "" }));
  const tree = new Map(messages.map((one) => [one.id, one]));
  const reached = new Set<string>();
  for (let ends = children(tree, ""); ends.length > 0; ends = ends.flatMap((one) => children(tree, one.id))) {
    for (const one of ends) reached.add(one.id);
  }
  const hanging = messages.filter((one) => !reached.has(one.id));
  const lost = new Set(hanging.map((one) => one.id));
  return messages.map((one) => (lost.has(one.id) ? { ...one, parent: lost.has(one.parent) ? "" : tree.has(one.parent) ? one.parent : "" } : one));
}

function parse(text: string): unknown {
  try {
    return JSON.parse(text);
  } catch {
    throw new Error(t.errors.file_not_json);
  }
}

const isObject = (value: unknown): value is Record<string, unknown> => typeof value === "object" && value !== null && !Array.isArray(value);
const list = (value: unknown): unknown[] => (Array.isArray(value) ? value : []);
const isFinite = (value: unknown): value is number => Number.isFinite(value);
const string = (value: unknown, length_max = 16 << 20): string => (typeof value === "string" ? value.slice(0, length_max) : "");
const number = (value: unknown): number => (typeof value === "number" && Number.isFinite(value) ? value : Date.now());

function params(value: unknown): Params {
  if (!isObject(value)) return {};
  const kept = PARAM_NAMES.filter((name) => typeof value[name] === "string").map((name) => [name, string(value[name], 100_000)]);
  return { ...Object.fromEntries(kept), ...(value.logprobs === true ? { logprobs: true } : {}) };
}

/** An answer of another browser is never under way here. */
function state(value: unknown): MessageState {
  return value === "stopped" || value === "length" || value === "failed" ? value : value === "streaming" || value === "interrupted" ? "interrupted" : "done";
}
