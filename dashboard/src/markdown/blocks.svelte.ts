// The blocks of a text that grows. What is settled is not looked at again, so a token costs the same at the end of a long answer.

import { isJson, lex, type Block, type Lexed } from "./parse";

/** An open block of code is not lexed while it grows: its lines settle in pieces of about so many characters. */
const CODE_PIECE = 4000;
/** A list or a table that is longer settles but for its last item or row: with each token all of the open block is lexed and drawn. */
const SPLIT_FROM = 4000;
/** Any other block that is longer ends here: its reader sees two paragraphs. */
const CUT_FROM = 6000;
/** A whole text is taken in such pieces, so that no more than a block is ever lexed at once. */
const PIECE = 4000;
const FENCE = /^(`{3,}|~{3,})[ \t]*([^\n`]{0,60})\n/;

export class BlockList {
  /** These will not change any more. */
  settled = $state.raw<Block[]>([]);
  /** These may. */
  open = $state.raw<Block[]>([]);
  /** Lines of an open block of code that will not change any more. */
  code = $state.raw<string[]>([]);
  private rest = "";
  /** The head of a table whose first rows have settled: what is open begins with it again. */
  private tableHead = "";
  private fence: { mark: string; language: string; pieces: string[] } | null = null;

  static of(text: string): BlockList {
    const list = new BlockList();
    if (isJson(text)) {
      list.settle([{ kind: "code", language: "json", text: text.trim() }]);
      return list;
    }
    list.append(text);
    list.close();
    return list;
  }

  append(text: string): void {
    for (let at = 0; at < text.length; at += PIECE) {
      this.rest += text.slice(at, at + PIECE);
      if (this.fence) this.appendCode();
      if (!this.fence) this.appendText();
    }
  }

  /** No more comes. */
  close(): void {
    if (this.fence) this.endCode(this.rest);
    this.settle(this.lexed().map(({ block }) => block));
    this.rest = "";
    this.open = [];
  }

  /** The blocks of what is open; of a table that goes on, the head is shown already. */
  private lexed(): Lexed[] {
    const [first, ...more] = lex(this.rest);
    if (!first || !this.tableHead) return first ? [first, ...more] : [];
    const block: Block = first.block.kind === "table" ? { ...first.block, head: [] } : first.block;
    return [{ ...first, block }, ...more];
  }

  private appendText(): void {
    for (;;) {
      const lexed = this.lexed();
      const ready = lexed.slice(0, -1);
      this.settle(ready.map(({ block }) => block));
      this.rest = this.rest.slice(ready.reduce((sum, { length }) => sum + length, 0));
      if (ready.length > 0) this.tableHead = "";
      if (this.split(lexed.at(-1))) continue;
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

  /** Settles what will not change any more of a block that has become long; whether there was something. */
  private split(last: Lexed | undefined): boolean {
    const length = this.rest.length;
    if (!last || length <= SPLIT_FROM) return false;
    let cut = 0;
    let head = "";
    if (last.block.kind === "list" && last.items && last.items.length > 1) {
      cut = this.rest.search(/\S/) + last.items.slice(0, -1).reduce((sum, item) => sum + item, 0);
    } else if (last.block.kind === "table" && last.block.rows.length > 2) {
      head = /^\s*[^\n]*\n[^\n]*\n/.exec(this.rest)?.[0] ?? "";
      cut = this.rest.lastIndexOf("\n", length - 2) + 1;
    }
    if (cut <= head.length && length > CUT_FROM && last.block.kind !== "code") {
      // At the end of a line or a word, if there is one.
      cut = Math.max(this.rest.lastIndexOf("\n") + 1, this.rest.lastIndexOf(" ") + 1);
      if (cut < length / 2) cut = length;
      head = "";
    }
    if (cut <= head.length) return false;
    const rest = head + this.rest.slice(cut);
    this.rest = this.rest.slice(0, cut);
    this.settle(this.lexed().map(({ block }) => block));
    [this.rest, this.tableHead] = [rest, head];
    return rest.length > head.length;
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
