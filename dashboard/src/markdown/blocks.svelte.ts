// The blocks of a text that grows. What is settled is not looked at again, so a token costs the same at the end of a long answer.

import { lex, type Block } from "./parse";

/** An open block of code is not lexed while it grows: its lines settle in pieces of about so many characters. */
const CODE_PIECE = 4000;
const FENCE = /^(`{3,}|~{3,})[ \t]*([^\n`]{0,60})\n/;

export class BlockList {
  /** These will not change any more. */
  settled = $state.raw<Block[]>([]);
  /** These may. */
  open = $state.raw<Block[]>([]);
  /** Lines of an open block of code that will not change any more. */
  code = $state.raw<string[]>([]);
  private rest = "";
  private fence: { mark: string; language: string; pieces: string[] } | null = null;

  static of(text: string): BlockList {
    const list = new BlockList();
    list.append(text);
    list.close();
    return list;
  }

  append(piece: string): void {
    this.rest += piece;
    if (this.fence) this.appendCode();
    if (!this.fence) this.appendText();
  }

  /** No more comes. */
  close(): void {
    if (this.fence) this.endCode(this.rest);
    this.settle(lex(this.rest).map(({ block }) => block));
    this.rest = "";
    this.open = [];
  }

  private appendText(): void {
    for (;;) {
      const lexed = lex(this.rest);
      const ready = lexed.slice(0, -1);
      this.settle(ready.map(({ block }) => block));
      this.rest = this.rest.slice(ready.reduce((sum, { length }) => sum + length, 0));
      const fence = FENCE.exec(this.rest);
      if (!fence) {
        this.open = lexed.slice(-1).map(({ block }) => block);
        return;
      }
      this.fence = { mark: fence[1]!, language: fence[2]!.trim().split(/\s/, 1)[0]!, pieces: [] };
      this.rest = this.rest.slice(fence[0].length);
      this.appendCode();
      if (this.fence) return;
    }
  }

  private appendCode(): void {
    const { mark, language } = this.fence!;
    const end = new RegExp(`^ {0,3}${mark[0] === "`" ? "`" : "~"}{${mark.length},}[ \\t]*(?:\\n|$)`, "m").exec(this.rest);
    // A fence at the very end may still get more behind it.
    if (end && (end[0].endsWith("\n") || this.rest.length > end.index + end[0].length)) {
      const text = this.rest.slice(0, end.index);
      this.rest = this.rest.slice(end.index + end[0].length);
      return this.endCode(text);
    }
    if (this.rest.length > CODE_PIECE) {
      const cut = this.rest.lastIndexOf("\n") + 1;
      if (cut > 0) {
        this.fence!.pieces.push(this.rest.slice(0, cut));
        this.code = [...this.fence!.pieces];
        this.rest = this.rest.slice(cut);
      }
    }
    this.open = [{ kind: "code", language, text: this.rest }];
  }

  private endCode(last: string): void {
    const { language, pieces, mark } = this.fence!;
    const end = new RegExp(`(?:^|\\n) {0,3}[\`~]{${mark.length},}[ \\t]*$`).exec(last);
    const text = [...pieces, end ? last.slice(0, end.index) : last].join("").replace(/\n$/, "");
    this.fence = null;
    this.code = [];
    this.open = [];
    if (last === this.rest) this.rest = "";
    this.settle([{ kind: "code", language, text }]);
  }

  private settle(blocks: Block[]): void {
    if (blocks.length > 0) this.settled = [...this.settled, ...blocks];
  }
}
