// Who uses the page. A code from `exo open` or a secret is exchanged for a token; the token is kept for this origin.

import { ApiError, ask, isGone, messageOf, noteUsed, token, whenUnauthorised } from "../api/client";
import { wake } from "../lib/wake";
import { t } from "../text";
import { notices } from "./notices.svelte";

export type Access = "owner" | "viewer" | "chat";
export type SessionView = { access: Access; node: string; name: string; version: string; plain_http?: boolean; needs_key?: boolean; token?: string };

/** The code in an address that `exo open` made, taken out of the address bar before anything else happens; there is `left` instead. */
export function takeCode(left = "/"): string | null {
  if (!location.hash.startsWith("#code=")) return null;
  const code = location.hash.slice("#code=".length);
  history.replaceState(null, "", left);
  return code;
}

/** A session ends when nobody was at its page for hours: neither the event stream nor what an unattended page asks is a use of it. */
const NOTE_USE_EVERY_MS = 10 * 60_000;

class SessionStore {
  private noted_ms = Date.now();
  /** `checking` ends by itself: every request has a deadline. */
  state = $state<"checking" | "out" | "in" | "unreachable">("checking");
  view = $state.raw<SessionView | null>(null);
  /** Why nobody is in. */
  problem = $state("");

  get access(): Access {
    return this.view?.access ?? "chat";
  }

  get isOwner(): boolean {
    return this.state === "in" && this.access === "owner";
  }

  get seesCluster(): boolean {
    return this.state === "in" && this.access !== "chat";
  }

  async start(code: string | null): Promise<void> {
    whenUnauthorised(() => this.end(t.login.ended));
    if (code) return this.exchange({ code });
    if (!token.get()) return this.end("");
    await this.check();
  }

  /** Whether the last word that was pasted reached no node. */
  isUnheard = false;
  private asking = false;

  /** Asks whether the kept token is good. A node that cannot be reached stays so until it answers: what says it, and the button beside it, stay where they are. */
  async check(): Promise<void> {
    if (this.asking) return;
    this.asking = true;
    if (this.state !== "unreachable") this.state = "checking";
    try {
      this.enter(await ask<SessionView>("/exo/v1/session", { deadline_ms: 5000 }));
    } catch (error) {
      if (error instanceof ApiError && [401, 403].includes(error.status)) this.end(messageOf(error));
      else {
        this.problem = messageOf(error);
        this.state = "unreachable";
      }
    }
    this.asking = false;
  }

  /** A pasted word: the node's secret, or else an API key. */
  async paste(word: string): Promise<void> {
    const trimmed = word.trim();
    if (trimmed === "") return;
    this.problem = "";
    this.isUnheard = false;
    try {
      return this.enter(await ask<SessionView>("/exo/v1/session", { method: "POST", body: { secret: trimmed } }));
    } catch (error) {
      if (isGone(error)) return this.unheard(error);
    }
    try {
      this.enter({ ...(await ask<SessionView>("/exo/v1/session", { bearer: trimmed })), token: trimmed });
    } catch (error) {
      if (isGone(error)) return this.unheard(error);
      this.end(messageOf(error), false);
    }
  }

  private unheard(error: unknown): void {
    this.isUnheard = true;
    this.end(messageOf(error), false);
  }

  async signOut(everywhere: boolean): Promise<void> {
    try {
      // A key is no session: it is only forgotten here.
      if (this.isOwner) await ask(everywhere ? "/exo/v1/sessions" : "/exo/v1/session", { method: "DELETE" });
    } catch (error) {
      const isOut = error instanceof ApiError && error.status === 401;
      // Who means all browsers must know that they are still in, and needs the token to try it again.
      if (everywhere && !isOut) return notices.say("bad", t.frame.sign_out_failed(messageOf(error)));
      if (!isOut) return this.end(t.login.not_told(messageOf(error)));
    }
    this.end("");
  }

  /** Somebody is here: the node hears it now and then, also from a page that asks nothing by itself. */
  noteUse(): void {
    noteUsed();
    if (this.state !== "in" || Date.now() - this.noted_ms < NOTE_USE_EVERY_MS) return;
    this.noted_ms = Date.now();
    // A session that has ended says so by itself.
    void ask("/exo/v1/session").catch(() => {});
  }

  private async exchange(body: { code: string }): Promise<void> {
    try {
      this.enter(await ask<SessionView>("/exo/v1/session", { method: "POST", body }));
    } catch (error) {
      if (this.state === "in") notices.say("bad", messageOf(error));
      else this.end(messageOf(error), false);
    }
  }

  private enter(view: SessionView): void {
    if (view.token) token.set(view.token);
    this.view = { ...view, token: undefined };
    this.problem = "";
    this.state = "in";
    wake();
  }

  private end(problem: string, forget = true): void {
    if (forget) token.forget();
    this.view = null;
    this.problem = problem;
    this.state = "out";
  }
}

export const session = new SessionStore();
