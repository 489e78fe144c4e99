// Server-sent events out of a `fetch` body. `EventSource` cannot send the session's header, so it is of no use here.

import { t } from "../text";

export type ServerEvent = { event: string; data: string; id: string | null };

/** A longer line is no event of ours; whoever sends it is cut off. */
const LINE_CHARS_MAX = 64 << 20;

/** Splits text that comes in pieces into events. */
export class EventParser {
  /** The last comment that came: a sign of life, or why an answer waits. */
  comment: string | null = null;
  private rest = "";
  private event = "message";
  private data: string[] = [];
  private id: string | null = null;

  /** The events that end in this piece. */
  push(text: string): ServerEvent[] {
    const events: ServerEvent[] = [];
    this.rest += text;
    if (this.rest.length > LINE_CHARS_MAX) throw new Error(t.errors.event_too_long);
    let from = 0;
    for (let end = this.rest.indexOf("\n"); end >= 0; end = this.rest.indexOf("\n", from)) {
      const line = this.rest.slice(from, this.rest[end - 1] === "\r" ? end - 1 : end);
      from = end + 1;
      const whole = this.line(line);
      if (whole) events.push(whole);
    }
    this.rest = this.rest.slice(from);
    return events;
  }

  private line(line: string): ServerEvent | null {
    if (line === "") return this.finish();
    const colon = line.indexOf(":");
    if (colon === 0) {
      this.comment = line.slice(1).trim();
      return null;
    }
    const name = colon < 0 ? line : line.slice(0, colon);
    const value = colon < 0 ? "" : line.slice(colon + (line[colon + 1] === " " ? 2 : 1));
    if (name === "event") this.event = value;
    else if (name === "data") this.data.push(value);
    else if (name === "id") this.id = value;
    return null;
  }

  private finish(): ServerEvent | null {
    const whole = this.data.length > 0 ? { event: this.event, data: this.data.join("\n"), id: this.id } : null;
    this.event = "message";
    this.data = [];
    this.id = null;
    return whole;
  }
}

/** Reads a body to its end. `onBytes` hears of every piece before its events, with the comment in it if there is one. */
export async function readEvents(
  body: ReadableStream<Uint8Array>,
  onEvent: (event: ServerEvent) => void,
  onBytes: (comment: string | null) => void = () => {},
): Promise<void> {
  const parser = new EventParser();
  const decoder = new TextDecoder();
  const reader = body.getReader();
  try {
    for (;;) {
      const { done, value } = await reader.read();
      if (done) return;
      const events = parser.push(decoder.decode(value, { stream: true }));
      onBytes(parser.comment);
      parser.comment = null;
      for (const event of events) onEvent(event);
    }
  } finally {
    await reader.cancel().catch(() => {});
  }
}
