// Markdown to a tree of our own nodes: an allow-list. HTML in the text is text, and no string ever becomes markup.

import { Marked, type Token, type Tokens, type TokenizerAndRendererExtension } from "marked";

export type Inline =
  | { kind: "text" | "code"; text: string }
  | { kind: "math"; text: string; display: boolean }
  | { kind: "strong" | "em" | "del"; inner: Inline[] }
  | { kind: "link"; href: string; inner: Inline[] }
  | { kind: "picture"; href: string | null; alt: string }
  | { kind: "break" };

export type Block =
  | { kind: "paragraph"; inner: Inline[] }
  | { kind: "heading"; level: number; inner: Inline[] }
  | { kind: "code"; language: string; text: string }
  | { kind: "math"; text: string }
  | { kind: "quote"; blocks: Block[] }
  | { kind: "list"; start: number | null; items: { blocks: Block[]; checked: boolean | null }[] }
  | { kind: "table"; align: ("left" | "center" | "right" | null)[]; head: Inline[][]; rows: Inline[][][] }
  | { kind: "rule" };

/** Deeper than this is shown as plain text. */
const DEPTH_MAX = 24;
/** A table wider than this is not read as one. */
const CELLS_MAX = 20_000;

/** Whether a whole text is a JSON object or array: its signs mean nothing else. */
export function isJson(text: string): boolean {
  if (!/^\s*[[{][\s\S]*[\]}]\s*$/.test(text)) return false;
  try {
    JSON.parse(text);
    return true;
  } catch {
    return false;
  }
}

const blockMath: TokenizerAndRendererExtension = {
  name: "blockMath",
  level: "block",
  start: (source) => source.match(/^(\$\$|\\\[)/m)?.index,
  tokenizer: (source) => {
    const match = /^\$\$([^$]{1,4000}?)\$\$(?:\n|$)/.exec(source) ?? /^\\\[([\s\S]{1,4000}?)\\\](?:\n|$)/.exec(source);
    return match ? { type: "blockMath", raw: match[0], text: match[1]!.trim() } : undefined;
  },
};

const inlineMath: TokenizerAndRendererExtension = {
  name: "inlineMath",
  level: "inline",
  start: (source) => source.match(/\$|\\[([]/)?.index,
  tokenizer: (source) => {
    const match =
      /^\$\$([^$\n]{1,1000}?)\$\$/.exec(source) ??
      /^\$((?![\s\d])[^$\n]{1,400}?[^\s$\\]|[^\s\d$\\])\$(?!\d)/.exec(source) ??
      /^\\\(([\s\S]{1,1000}?)\\\)/.exec(source) ??
      /^\\\[([\s\S]{1,1000}?)\\\]/.exec(source);
    return match ? { type: "inlineMath", raw: match[0], text: match[1]!.trim(), display: match[0].startsWith("$$") || match[0].startsWith("\\[") } : undefined;
  },
};

const marked = new Marked({ gfm: true });
marked.use({ extensions: [blockMath, inlineMath] });

/** `items` are the lengths of a list's items, whose text follows one another. */
export type Lexed = { block: Block; length: number; items?: number[] };

/** The blocks of a text, with how much of it each takes. What cannot be read is a paragraph of plain text. */
export function lex(text: string): Lexed[] {
  try {
    const out: Lexed[] = [];
    // Empty lines belong to the block before them, and at the beginning to the one behind them.
    let lead = 0;
    for (const token of marked.lexer(text)) {
      const last = out.at(-1);
      const block = toBlock(token, 0);
      const items = token.type === "list" ? { items: (token as Tokens.List).items.map(({ raw }) => raw.length) } : {};
      if (block) out.push({ block, length: lead + token.raw.length, ...items });
      else if (last) last.length += token.raw.length;
      else lead += token.raw.length;
      if (block) lead = 0;
    }
    return out;
  } catch {
    return [{ block: { kind: "paragraph", inner: [{ kind: "text", text }] }, length: text.length }];
  }
}

export const parse = (text: string): Block[] => lex(text).map(({ block }) => block);

const plain = (text: string): Block => ({ kind: "paragraph", inner: [{ kind: "text", text }] });

function toBlock(token: Token, depth: number): Block | null {
  if (depth > DEPTH_MAX) return plain(token.raw);
  const nested = (tokens: Token[] | undefined) => (tokens ?? []).map((one) => toBlock(one, depth + 1)).filter((one) => one !== null);
  switch (token.type) {
    case "space":
    case "def":
      return null;
    case "heading":
      return { kind: "heading", level: (token as Tokens.Heading).depth, inner: inlines(token.tokens, depth) };
    case "code":
      return { kind: "code", language: ((token as Tokens.Code).lang ?? "").split(/\s/, 1)[0]!.slice(0, 40), text: token.text };
    case "blockMath":
      return { kind: "math", text: token.text };
    case "blockquote":
      return { kind: "quote", blocks: nested(token.tokens) };
    case "hr":
      return { kind: "rule" };
    case "list": {
      const list = token as Tokens.List;
      const items = list.items.map((item) => ({ blocks: nested(item.tokens.filter((one) => one.type !== "checkbox")), checked: item.task ? Boolean(item.checked) : null }));
      return { kind: "list", start: list.ordered ? Number(list.start) || 1 : null, items };
    }
    case "table": {
      const table = token as Tokens.Table;
      if (table.rows.length * table.header.length > CELLS_MAX) return plain(token.raw);
      const cells = (row: Tokens.TableCell[]) => row.map((cell) => inlines(cell.tokens, depth));
      return { kind: "table", align: table.align, head: cells(table.header), rows: table.rows.map(cells) };
    }
    default:
      // Paragraphs, text of list items, and HTML, which is text.
      return { kind: "paragraph", inner: token.type === "html" ? [{ kind: "text", text: token.raw.trimEnd() }] : inlines((token as Tokens.Generic).tokens ?? [token], depth) };
  }
}

function inlines(tokens: Token[] | undefined, depth: number): Inline[] {
  return (tokens ?? []).map((token) => inline(token, depth + 1));
}

function inline(token: Token, depth: number): Inline {
  if (depth > DEPTH_MAX) return { kind: "text", text: token.raw };
  switch (token.type) {
    case "strong":
    case "em":
    case "del":
      return { kind: token.type, inner: inlines(token.tokens, depth) };
    case "codespan":
      return { kind: "code", text: token.text };
    case "inlineMath":
      return { kind: "math", text: token.text, display: token.display };
    case "br":
      return { kind: "break" };
    case "link": {
      const href = address(token.href);
      return href ? { kind: "link", href, inner: inlines(token.tokens, depth) } : { kind: "text", text: token.raw };
    }
    case "image":
      return { kind: "picture", href: address(token.href), alt: token.text };
    case "text":
      return token.tokens ? { kind: "text", text: token.raw } : { kind: "text", text: unescaped(token.text) };
    case "escape":
      return { kind: "text", text: token.text };
    default:
      return { kind: "text", text: token.raw };
  }
}

/** An address that a link may lead to: the web and mail, nothing that runs or carries its own content. */
export function address(href: unknown): string | null {
  if (typeof href !== "string" || href.length > 4000) return null;
  try {
    const url = new URL(href);
    return ["http:", "https:", "mailto:"].includes(url.protocol) ? url.href : null;
  } catch {
    return null; // relative addresses would lead into this page
  }
}

const ENTITIES: Record<string, string> = { amp: "&", lt: "<", gt: ">", quot: '"', apos: "'", nbsp: "\u00a0", "#39": "'" };
const unescaped = (text: string) => text.replace(/&(amp|lt|gt|quot|apos|nbsp|#39);/g, (_, name: string) => ENTITIES[name]!);
