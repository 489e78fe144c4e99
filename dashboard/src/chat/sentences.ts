// An answer in sentences, for screen readers: tokens would be noise. Code is named, not read.

import { t } from "../text";

const END = /[.!?…:](?=\s)|\n/;
const LENGTH_MAX = 400;

export class Sentences {
  private text = "";
  private inCode = false;

  /** Sentences that are whole now. */
  take(piece: string): string[] {
    this.text += piece;
    const out: string[] = [];
    for (let end = END.exec(this.text); end || this.text.length > LENGTH_MAX; end = END.exec(this.text)) {
      const length = end ? end.index + end[0].length : LENGTH_MAX;
      this.add(out, this.text.slice(0, length));
      this.text = this.text.slice(length);
    }
    return out;
  }

  rest(): string[] {
    const out: string[] = [];
    this.add(out, this.text);
    this.text = "";
    return out;
  }

  private add(out: string[], sentence: string): void {
    if (/^\s*(```|~~~)/.test(sentence)) {
      this.inCode = !this.inCode;
      if (this.inCode) out.push(t.chat.spoken_code);
      return;
    }
    const words = sentence.replace(/[*_`]+/g, "").replace(/[#>|]+/g, " ").replace(/\s+/g, " ").trim();
    if (!this.inCode && /[\p{L}\p{N}]/u.test(words)) out.push(words);
  }
}
