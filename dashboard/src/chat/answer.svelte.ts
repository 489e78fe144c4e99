// One answer while it comes: text in blocks, its tokens, and where it can be picked up again.

import { ApiError, ask, messageOf, open } from "../api/client";
import { BlockList } from "../markdown/blocks.svelte";
import { readEvents, type ServerEvent } from "../lib/sse";
import { newTicket, type Message, type MessageState, type Ticket } from "../history/types";
import { rest } from "../lib/wake";
import { t } from "../text";
import { Fold } from "./fold";
import type { ChatBody } from "./request";
import { Sentences } from "./sentences";
import { stops } from "./stops";

export type Phase = "waiting" | "coming" | "reattaching";

/** Waits between attempts to pick an answer up again. */
const RETRY_MS = [300, 700, 1500, 3000, 5000, 8000, 10_000, 15_000, 20_000];
/** How an answer ends for this reader that goes on: it was too slow, or its node ends and another one has the copy. */
const GOES_ON_ELSEWHERE = ["slow_reader", "shutting_down"];
/** So long after it was last heard of, an answer is called interrupted: its node keeps it for some minutes behind its end. */
const GIVE_UP_MS = 3600_000;
/** A node gives a sign of life every five seconds, however slow its model is: a line that is silent for longer has gone without a word. */
const SILENT_MS = 30_000;
/** The same before the head, which a long prompt needs a while to be read for. */
const HEAD_MS = 90_000;
/** A node that has just come back may need a moment to find a copy. */
const NOT_FOUND_RETRIES = 3;

/** Lengths in characters: what is joined for saving keeps them. */
type Checkpoint = { content: number; reasoning: number; chances: number; fold: Fold };

export class Answer {
  phase = $state<Phase>("waiting");
  text = $state.raw(new BlockList());
  thought = $state.raw(new BlockList());
  hasThought = $state(false);
  tokens = $state(0);
  calls = $state.raw<Message["calls"]>([]);
  /** When the last token came; 0 before the first. */
  last_ms = $state(0);
  readonly began_ms = Date.now();
  /** Why nothing comes, in the node's words. */
  waits_for = $state("");
  /** What a screen reader hears. */
  spoken = $state.raw<{ number: number; text: string }[]>([]);

  private fold = new Fold();
  private pieces: string[] = [];
  private thoughts: string[] = [];
  private length = { content: 0, reasoning: 0 };
  private pending = { content: "", reasoning: "" };
  private frame = 0;
  private ticket: Ticket | null;
  /** Where the node goes on if it is asked again: behind the last event with an id. */
  private checkpoint: Checkpoint;
  private readonly stopped = new AbortController();
  /** Ends one attempt, not the answer. */
  private cut = new AbortController();
  private heard_ms = Date.now();
  private readonly sentences = new Sentences();
  private ended: MessageState | null = null;
  private error = "";

  constructor(
    readonly message: Message,
    private readonly save: (message: Message) => void,
  ) {
    this.ticket = message.ticket && { ...message.ticket };
    if (message.content) this.pieces = [message.content];
    if (message.reasoning) this.thoughts = [message.reasoning];
    Object.assign(this.fold, { calls: message.calls, chances: [...message.chances] });
    this.rebuild();
    this.checkpoint = this.position();
  }

  private position(): Checkpoint {
    return { ...this.length, chances: this.fold.chances.length, fold: Object.assign(new Fold(), this.fold) };
  }

  /** The message as it is now. While it can be picked up again, only as far as the node will not say it again. */
  get now(): Message {
    const { calls, stats, chances } = this.fold;
    const whole = { ...this.message, content: this.joined("pieces"), reasoning: this.joined("thoughts"), calls, stats, chances, ticket: this.ticket, state: this.ended ?? "streaming", error: this.error };
    if (this.ended !== null || this.ticket === null) return whole;
    const at = this.checkpoint;
    return { ...whole, content: whole.content.slice(0, at.content), reasoning: whole.reasoning.slice(0, at.reasoning), calls: at.fold.calls, chances: chances.slice(0, at.chances) };
  }

  private joined(which: "pieces" | "thoughts"): string {
    if (this[which].length > 1) this[which] = [this[which].join("")];
    return this[which][0] ?? "";
  }

  /** Asks for the answer and reads it to its end. */
  async ask(body: ChatBody): Promise<Message> {
    return this.run(() => this.post("/v1/chat/completions", body));
  }

  /** The answer has its id and its secret before it is asked for: a page that is loaded anew before the node has said anything finds it. */
  private post(path: string, body: unknown): Promise<Response> {
    const { id, secret } = (this.ticket ??= newTicket());
    return open(path, { method: "POST", body, headers: { accept: "text/event-stream", "exo-keep": `${id}.${secret}` }, signal: this.signal });
  }

  private get signal(): AbortSignal {
    return AbortSignal.any([this.stopped.signal, this.cut.signal]);
  }

  /** Goes on behind the text that there is: the model's own template, then that text, as a plain completion. */
  async goOn({ model, messages, stream_options, temperature, top_p, top_k, min_p, max_tokens, seed, stop }: ChatBody): Promise<Message> {
    return this.run(async () => {
      const { prompt } = await ask<{ prompt: string }>("/apply-template", { method: "POST", body: { model, messages } });
      const body = { model, prompt: prompt + this.thoughtBefore(prompt) + this.joined("pieces"), stream: true, stream_options, temperature, top_p, top_k, min_p, max_tokens, seed, stop };
      return this.post("/v1/completions", body);
    });
  }

  /** Where the template opens a thought, what there is of it, and its end: the text goes on behind it, not in it. */
  private thoughtBefore(prompt: string): string {
    const opened = /<(\w*think\w*)>\s*$/i.exec(prompt);
    return opened ? `${this.joined("thoughts").trim()}\n</${opened[1]}>\n\n` : "";
  }

  /** Goes on with an answer whose tab was closed. */
  async resume(): Promise<Message> {
    return this.run(null);
  }

  /** Stops the computing, not only the reading. */
  stop(): void {
    this.ended = "stopped";
    this.stopped.abort();
    if (this.ticket) stops.add(this.ticket);
  }

  private async run(first: (() => Promise<Response>) | null): Promise<Message> {
    const saver = setInterval(() => this.save(this.now), 1500);
    try {
      await this.read(first);
      this.ended ??= this.fold.finish === "length" ? "length" : "done";
    } catch (error) {
      if (this.ended === null) {
        const isCancelled = error instanceof ApiError && error.code === "cancelled";
        this.ended = isCancelled ? "stopped" : isLost(error) ? "interrupted" : "failed";
        this.error = isCancelled ? "" : messageOf(error);
      }
    } finally {
      clearInterval(saver);
      this.flush();
    }
    this.ticket = null;
    this.text.close();
    this.thought.close();
    this.say(this.sentences.rest());
    const whole = this.now;
    this.save(whole);
    return whole;
  }

  private async read(first: (() => Promise<Response>) | null): Promise<void> {
    let [missed, since_ms, next] = [0, Date.now(), first];
    for (let attempt = 0; ; attempt++) {
      const before = this.tokens;
      const isAsked = next !== null;
      let isOpen = false;
      const watch = this.watch(() => (isOpen ? SILENT_MS : HEAD_MS));
      try {
        const response = await (next ?? (() => this.reopen()))();
        isOpen = true;
        this.admit(response, isAsked);
        await readEvents(response.body!, (event) => this.take(event), (comment) => this.hear(comment));
        if (this.fold.done) return;
        throw new ApiError(0, "cut", t.errors.cut);
      } catch (caught) {
        const error = this.cut.signal.aborted ? new ApiError(0, "no_answer", t.errors.late) : caught;
        if (this.tokens > before) [attempt, missed] = [0, 0];
        if (isOpen) since_ms = Date.now();
        const isMissing = !isAsked && !isOpen && error instanceof ApiError && error.status === 404 && missed++ < NOT_FOUND_RETRIES;
        const again = isLost(error) || isMissing || (error instanceof ApiError && (isOpen ? GOES_ON_ELSEWHERE.includes(error.code) : !isAsked && isNotNow(error)));
        if (this.stopped.signal.aborted || this.ticket === null || Date.now() - since_ms > GIVE_UP_MS) throw error;
        if (again) next = null;
        // It never reached its node: it is sent once more.
        else if (first && !this.hadHead && !isAsked && isGone(error)) [next, first] = [first, null];
        else throw !isAsked && isGone(error) ? new ApiError(0, "gone", t.errors.rest_gone) : error;
        this.phase = "reattaching";
        this.rollBack();
        await rest(RETRY_MS[Math.min(attempt, RETRY_MS.length - 1)]!, this.stopped.signal);
      } finally {
        clearInterval(watch);
      }
    }
  }

  /** Cuts an attempt off of which nothing was heard for so long, if the rest can be had another way: a connection that a network or a sleep took away says nothing of it. */
  private watch(silent_ms: () => number): ReturnType<typeof setInterval> {
    this.cut = new AbortController();
    this.heard_ms = Date.now();
    return setInterval(() => this.ticket !== null && Date.now() - this.heard_ms > silent_ms() && this.cut.abort(), 1000);
  }

  private reopen(): Promise<Response> {
    const { id, secret, last } = this.ticket!;
    const headers: Record<string, string> = { accept: "text/event-stream", "exo-resume": `${id}.${secret}` };
    if (last) headers["last-event-id"] = last;
    return open(`/v1/requests/${id}`, { headers, signal: this.signal });
  }

  private hadHead = false;

  private admit(response: Response, isAsked: boolean): void {
    const [id, secret] = (response.headers.get("exo-resume") ?? "").split(".");
    if (id && secret) this.ticket = { id, secret, last: this.ticket?.last ?? null };
    // The node keeps as many as it can: this one ends with its connection.
    else if (isAsked) this.ticket = null;
    [this.hadHead, this.heard_ms] = [true, Date.now()];
    this.save(this.now);
    if (this.phase === "reattaching") this.phase = this.tokens > 0 ? "coming" : "waiting";
  }

  private hear(comment: string | null): void {
    this.heard_ms = Date.now();
    if (comment !== null) this.waits_for = comment === "keep-alive" ? "" : comment;
  }

  private take(event: ServerEvent): void {
    const { content, reasoning } = this.fold.take(event);
    if (content || reasoning || this.fold.calls !== this.calls) {
      this.pending.content += content;
      this.pending.reasoning += reasoning;
      this.tokens += content || reasoning ? 1 : 0;
      this.last_ms = Date.now();
      this.phase = "coming";
      this.waits_for = "";
      // A hidden tab draws no frames; what comes there is taken by time.
      this.frame ||= document.hidden ? window.setTimeout(() => this.flush(), 250) : requestAnimationFrame(() => this.flush());
    }
    if (event.id !== null && this.ticket) {
      this.ticket.last = event.id;
      this.flushPieces();
      this.checkpoint = this.position();
    }
  }

  private unshown = { content: "", reasoning: "" };

  private flushPieces(): void {
    const { content, reasoning } = this.pending;
    this.pending = { content: "", reasoning: "" };
    if (content) this.pieces.push(content);
    if (reasoning) this.thoughts.push(reasoning);
    this.length = { content: this.length.content + content.length, reasoning: this.length.reasoning + reasoning.length };
    this.unshown.content += content;
    this.unshown.reasoning += reasoning;
  }

  /** Shows what has come since the last frame. */
  private flush(): void {
    this.frame = 0;
    this.flushPieces();
    const { content, reasoning } = this.unshown;
    this.unshown = { content: "", reasoning: "" };
    if (reasoning) {
      this.hasThought = true;
      this.thought.append(reasoning);
    }
    if (content) {
      this.text.append(content);
      this.say(this.sentences.take(content));
    }
    this.calls = this.fold.calls;
  }

  /** What came behind the last id comes again. */
  private rollBack(): void {
    this.flush();
    const at = this.checkpoint;
    if (at.content === this.length.content && at.reasoning === this.length.reasoning) return;
    this.pieces = [this.joined("pieces").slice(0, at.content)];
    this.thoughts = [this.joined("thoughts").slice(0, at.reasoning)];
    this.fold = Object.assign(new Fold(), at.fold, { chances: at.fold.chances.slice(0, at.chances) });
    this.rebuild();
  }

  private rebuild(): void {
    this.text = new BlockList();
    this.thought = new BlockList();
    const [content, reasoning] = [this.joined("pieces"), this.joined("thoughts")];
    this.text.append(content);
    this.thought.append(reasoning);
    this.length = { content: content.length, reasoning: reasoning.length };
    this.hasThought = reasoning.length > 0;
  }

  private said = 0;

  private say(sentences: string[]): void {
    if (sentences.length > 0) this.spoken = [...this.spoken, ...sentences.map((text) => ({ number: this.said++, text }))].slice(-4);
  }
}

const isLost = (error: unknown) => error instanceof TypeError || (error instanceof ApiError && error.status === 0);
const isGone = (error: unknown) => error instanceof ApiError && [404, 410].includes(error.status);
/** The node says that it cannot tell now: it is busy, it ends, or nobody is signed in. */
const isNotNow = ({ status }: ApiError) => [401, 409, 429].includes(status) || status >= 500;
