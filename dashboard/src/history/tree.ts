// Branches of a conversation. Pure.

import type { Conversation, Message } from "./types";

export type Tree = ReadonlyMap<string, Message>;

/** Longer chains are cut: an imported file may name a message as its own ancestor. */
const DEPTH_MAX = 100_000;

/** Answers to one message, or first messages (`""`), the oldest first. */
export function children(tree: Tree, parent: string): Message[] {
  return index(tree).get(parent) ?? [];
}

const indices = new WeakMap<Tree, Map<string, Message[]>>();

function index(tree: Tree): Map<string, Message[]> {
  const known = indices.get(tree);
  if (known) return known;
  const byParent = new Map<string, Message[]>();
  for (const message of tree.values()) {
    const siblings = byParent.get(message.parent);
    if (siblings) siblings.push(message);
    else byParent.set(message.parent, [message]);
  }
  for (const siblings of byParent.values()) siblings.sort((a, b) => a.created_ms - b.created_ms || (a.id < b.id ? -1 : 1));
  indices.set(tree, byParent);
  return byParent;
}

/** The branch that is shown, from its first message to its last. */
export function path(conversation: Conversation, tree: Tree): Message[] {
  const branch: Message[] = [];
  let parent = "";
  while (branch.length < DEPTH_MAX) {
    const options = children(tree, parent);
    const next = options.find((one) => one.id === conversation.chosen[parent]) ?? options.at(-1);
    if (!next) return branch;
    branch.push(next);
    parent = next.id;
  }
  return branch;
}

/** From the first message to this one. */
export function ancestry(tree: Tree, id: string): Message[] {
  const chain: Message[] = [];
  const seen = new Set<string>();
  for (let one = tree.get(id); one && !seen.has(one.id); one = tree.get(one.parent)) {
    seen.add(one.id);
    chain.push(one);
  }
  return chain.reverse();
}

export const choose = (conversation: Conversation, message: Message): Conversation => ({ ...conversation, chosen: { ...conversation.chosen, [message.parent]: message.id } });

/** The first words of the first message. */
export function titleOf(text: string): string {
  const line = text.trim().split("\n", 1)[0] ?? "";
  return line.length > 60 ? `${line.slice(0, 57).trimEnd()}…` : line;
}
