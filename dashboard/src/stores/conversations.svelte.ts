// Conversations of this browser: the list, the one that is open, and its answers that are under way.

import { SvelteMap, SvelteSet } from "svelte/reactivity";
import { messageOf } from "../api/client";
import { Answer } from "../chat/answer.svelte";
import { body } from "../chat/request";
import { stops } from "../chat/stops";
import { openHistory, type History } from "../history/db";
import type { Bundle } from "../history/transfer";
import { ancestry, choose, path, titleOf, type Tree } from "../history/tree";
import { conversation, message, newId, newTicket, type Conversation, type Message } from "../history/types";
import { forgetDrafts } from "../lib/drafts";
import { notices } from "./notices.svelte";
import { t } from "../text";

const EMPTY: Tree = new Map();

/** What tabs tell each other: a conversation changed, one message of it did, or an answer is to stop. */
type Word = { conversation: string; message?: string; stop?: boolean };

class ConversationStore {
  list = $state.raw<Conversation[]>([]);
  current = $state.raw<Conversation | null>(null);
  tree = $state.raw<Tree>(EMPTY);
  isKept = $state(true);
  running = new SvelteMap<string, Answer>();
  branch = $derived(this.current ? path(this.current, this.tree) : []);

  private history: History | null = null;
  private opening: Promise<History> | null = null;
  /** Answers that this tab begins. */
  private readonly own = new SvelteSet<string>();
  /** Answers of another tab whose end this one waits for. */
  private readonly awaited = new Set<string>();
  private readonly removed = new Set<string>();
  private isFull = false;
  private readonly tabs = typeof BroadcastChannel === "undefined" ? null : new BroadcastChannel("exo-conversations");

  constructor() {
    if (this.tabs) this.tabs.onmessage = (event: MessageEvent<Word>) => void this.hear(event.data);
  }

  async start(): Promise<void> {
    await this.store();
    await this.reload();
  }

  private async store(): Promise<History> {
    if (this.history && !this.history.isOpen) [this.history, this.opening] = [null, null];
    this.opening ??= openHistory();
    this.history = await this.opening;
    this.isKept = this.history.isKept;
    return this.history;
  }

  private async reload(): Promise<void> {
    const all = await (await this.store()).conversations().catch(() => this.list);
    this.list = [...all].sort((a, b) => b.updated_ms - a.updated_ms);
  }

  /** Opens one, and picks up answers of it that nobody reads. */
  async open(id: string): Promise<boolean> {
    if (this.current?.id === id) return true;
    const found = this.list.find((one) => one.id === id) ?? (await (await this.store()).conversations()).find((one) => one.id === id);
    if (!found) return false;
    const messages = await (await this.store()).messages(id);
    this.current = found;
    this.tree = new Map(messages.map((one) => [one.id, one]));
    for (const one of messages) void this.pickUp(one);
    return true;
  }

  /** An empty one; it is kept from its first message on. */
  fresh(model: string): void {
    const before = this.current ?? this.list[0];
    this.current = conversation({ model: model || before?.model || "" });
    this.tree = EMPTY;
  }

  async change(fields: Partial<Conversation>): Promise<void> {
    if (!this.current) return;
    this.current = { ...this.current, ...fields };
    if (this.list.some((one) => one.id === this.current?.id)) await this.put([this.current], []);
  }

  async rename(id: string, title: string): Promise<void> {
    const one = this.list.find((other) => other.id === id);
    if (!one) return;
    const renamed = { ...one, title };
    if (this.current?.id === id) this.current = renamed;
    await this.put([renamed], []);
  }

  async remove(id: string): Promise<void> {
    this.forget(id);
    await (await this.store()).remove(id);
    this.tell({ conversation: id });
  }

  /** What is still under way in a conversation ends with it. */
  private forget(id: string): void {
    this.removed.add(id);
    forgetDrafts(id);
    for (const [key, answer] of this.running) {
      if (answer.message.conversation !== id) continue;
      answer.stop();
      this.running.delete(key);
    }
    this.list = this.list.filter((one) => one.id !== id);
    if (this.current?.id === id) this.current = null;
  }

  private tell(word: Word): void {
    this.tabs?.postMessage(word);
  }

  async search(text: string, signal: AbortSignal): Promise<Set<string>> {
    return (await this.store()).search(text, signal);
  }

  /** Everything there is, for export. */
  async all(id?: string): Promise<Bundle> {
    const history = await this.store();
    const conversations = (await history.conversations()).filter((one) => !id || one.id === id);
    const messages = await Promise.all(conversations.map((one) => history.messages(one.id)));
    return { conversations, messages: messages.flat() };
  }

  async take({ conversations, messages }: Bundle): Promise<void> {
    try {
      await (await this.store()).put(conversations, messages);
    } catch (error) {
      // What browsers say of it is for programs, or nothing.
      throw (error as Error | null)?.name === "QuotaExceededError" ? new Error(t.chat.import_full) : error;
    }
    await this.reload();
    this.tell({ conversation: "" });
  }

  /** Says something behind `parent` and asks for the answer. An edit has the parent of what it edits. */
  async say(content: string, parent: string): Promise<void> {
    const [to, branch] = [this.current!, ancestry(this.tree, parent)];
    const said = message({ conversation: to.id, parent, role: "user", content });
    await this.add(to, [said], to.title ? {} : { title: titleOf(content) });
    await this.answer(said.id, to, [...branch, said]);
  }

  /** Results of tools that an answer has called. */
  async giveResults(parent: Message, results: string[]): Promise<void> {
    const [to, branch] = [this.current!, ancestry(this.tree, parent.id)];
    let behind = parent.id;
    const said = results.map((content, at) => {
      const one = message({ conversation: to.id, parent: behind, role: "tool", content, call: parent.calls[at]!.id, created_ms: Date.now() + at });
      behind = one.id;
      return one;
    });
    await this.add(to, said);
    await this.answer(behind, to, [...branch, ...said]);
  }

  /** Another answer to the message `parent`, the last of `branch`. Another conversation may be opened while this one is written down. */
  async answer(parent: string, to = this.current!, branch = ancestry(this.tree, parent)): Promise<void> {
    const asked = message({ conversation: to.id, parent, role: "assistant", model: to.model, state: "streaming", ticket: newTicket() });
    let request;
    try {
      request = body(to, branch);
    } catch (error) {
      notices.say("bad", messageOf(error));
      return;
    }
    await this.begin(to, asked, (answer) => answer.ask(request));
  }

  /** Goes on behind what there is of an answer: a sibling that begins with it. */
  async goOn(one: Message): Promise<void> {
    const [to, branch] = [this.current!, ancestry(this.tree, one.parent)];
    const more = message({ ...one, id: newId(), created_ms: Date.now(), state: "streaming", error: "", ticket: newTicket(), stats: null, chances: [] });
    await this.begin(to, more, (answer) => answer.goOn(body(to, branch)));
  }

  /** Its ticket is kept before anything is asked. */
  private async begin(to: Conversation, one: Message, run: (answer: Answer) => Promise<Message>): Promise<void> {
    this.own.add(one.id);
    try {
      await this.add(to, [one]);
      await this.follow(one, run);
    } finally {
      this.own.delete(one.id);
    }
  }

  choose(one: Message): void {
    void this.change(choose(this.current!, one));
  }

  /** The answer of the open conversation that is under way, if there is one on the branch that is shown. */
  get busy(): Answer | undefined {
    return this.branch.map((one) => this.running.get(one.id)).find((answer) => answer);
  }

  /** An answer on the branch that is shown which another tab reads. */
  get elsewhere(): Message | undefined {
    return this.branch.findLast((one) => one.state === "streaming" && !this.running.has(one.id) && !this.own.has(one.id));
  }

  /** Stops what comes, whichever tab reads it. */
  stop(): void {
    const { busy, elsewhere } = this;
    if (busy) return busy.stop();
    if (!elsewhere) return;
    this.tell({ conversation: elsewhere.conversation, message: elsewhere.id, stop: true });
    // That tab may be asleep.
    if (elsewhere.ticket) stops.add(elsewhere.ticket);
  }

  /** Goes on with an answer of a tab that is gone. While another tab is at it, this one waits for its end. */
  private async pickUp(one: Message): Promise<void> {
    if (one.state !== "streaming" || this.running.has(one.id) || this.own.has(one.id) || this.awaited.has(one.id)) return;
    this.awaited.add(one.id);
    try {
      await this.takeOver(one);
    } finally {
      this.awaited.delete(one.id);
    }
  }

  private async takeOver(one: Message): Promise<void> {
    await this.follow(one, async (answer) => answer.resume(), async () => {
      const kept = (await (await this.store()).messages(one.conversation)).find((other) => other.id === one.id);
      if (!kept || kept.state !== "streaming") return null;
      if (kept.ticket) return kept;
      this.finish({ ...kept, state: "interrupted" });
      return null;
    });
  }

  /** Runs one answer in one tab at a time. */
  private async follow(one: Message, run: (answer: Answer) => Promise<Message>, still: () => Promise<Message | null> = async () => one): Promise<void> {
    await exclusively(`exo-answer-${one.id}`, async () => {
      const now = await still();
      if (!now) return;
      const answer = new Answer(now, (saved) => void this.put([], [saved]));
      this.running.set(one.id, answer);
      const whole = await run(answer);
      this.finish(whole);
      this.running.delete(one.id);
    });
  }

  private finish(whole: Message): void {
    if (this.tree.has(whole.id)) this.tree = new Map(this.tree).set(whole.id, whole);
    void this.put([], [whole]);
  }

  private async add(to: Conversation, messages: Message[], fields: Partial<Conversation> = {}): Promise<void> {
    const isOpen = this.current?.id === to.id;
    const before = (isOpen ? this.current : this.list.find((one) => one.id === to.id)) ?? to;
    const changed = messages.reduce(choose, { ...before, ...fields, updated_ms: Date.now() });
    if (isOpen) {
      const tree = new Map(this.tree);
      for (const one of messages) tree.set(one.id, one);
      [this.tree, this.current] = [tree, changed];
    }
    await this.put([changed], messages);
  }

  private async put(all: Conversation[], messages: Message[]): Promise<void> {
    const conversations = all.filter((one) => !this.removed.has(one.id));
    const ids = new Set(conversations.map((one) => one.id));
    if (ids.size > 0) this.list = [...conversations, ...this.list.filter((one) => !ids.has(one.id))].sort((a, b) => b.updated_ms - a.updated_ms);
    try {
      await (await this.store()).put(conversations, messages);
      this.isFull = false;
      // While an answer comes, the others need to read no more than it.
      if (conversations[0]) this.tell({ conversation: conversations[0].id });
      else if (messages[0]) this.tell({ conversation: messages[0].conversation, message: messages[0].id });
    } catch {
      if (this.isKept && !this.isFull) notices.say("bad", t.chat.storage_full);
      this.isFull = true;
    }
  }

  /** What another tab says. */
  private async hear({ conversation: id, message: key, stop }: Word): Promise<void> {
    if (stop) return this.running.get(key ?? "")?.stop();
    if (!key) {
      await this.reload();
      const isOpen = this.current?.id === id && this.current.title !== "";
      const isKept = isOpen || [...this.running.values()].some((answer) => answer.message.conversation === id);
      if (isKept && !this.list.some((one) => one.id === id)) return this.forget(id);
    }
    if (!this.current || this.current.id !== id) return;
    const history = await this.store();
    const changed = key ? [await history.message(key)].filter((one) => one !== undefined) : await history.messages(id);
    if (this.current.id !== id) return;
    const tree = new Map(key ? this.tree : []);
    for (const one of changed) tree.set(one.id, one);
    // What this tab is at is newer here than what the other one knows.
    for (const [own, answer] of this.running) if (tree.has(own)) tree.set(own, answer.message);
    this.tree = tree;
    this.current = this.list.find((one) => one.id === id) ?? this.current;
    // Only where one waits for the other: without locks both would read it.
    if ("locks" in navigator) for (const one of changed) void this.pickUp(one);
  }
}

async function exclusively(name: string, run: () => Promise<void>): Promise<void> {
  if (!navigator.locks) return run();
  await navigator.locks.request(name, run);
}

export const conversations = new ConversationStore();
