// Rules that hold for every source file of the page.

import { readdirSync, readFileSync } from "node:fs";
import { join } from "node:path";
import { parse } from "svelte/compiler";
import { expect, test } from "vitest";

const ROOT = join(import.meta.dirname, "..");
const sources = (readdirSync(ROOT, { recursive: true }) as string[]).filter((name) => /\.(svelte|ts|css)$/.test(name) && !name.endsWith(".test.ts"));
const text = (name: string) => readFileSync(join(ROOT, name), "utf8");

function offenders(pattern: RegExp, among = sources): string[] {
  return among.filter((name) => pattern.test(text(name)));
}

test("no text ever becomes markup, and nothing breaks the content security policy", () => {
  expect(offenders(/\{@html/)).toEqual([]);
  expect(offenders(/\.(innerHTML|outerHTML|insertAdjacentHTML)|document\.write|\beval\(|new Function\(/)).toEqual([]);
  expect(offenders(/<[a-zA-Z][^>]*\sstyle="/)).toEqual([]);
  expect(offenders(/\son[a-z]+="/)).toEqual([]);
});

test("no other origin is asked for anything", () => {
  expect(offenders(/(src|href)="https?:|url\(["']?https?:|@import/)).toEqual([]);
  expect(offenders(/new (EventSource|WebSocket|Worker|SharedWorker)\(/)).toEqual([]);
});

test("components stay near 200 lines of their own", () => {
  const long = sources.filter((name) => name.endsWith(".svelte")).filter((name) => text(name).split("<style>")[0]!.split("\n").length > 200);
  expect(long).toEqual([]);
});

test("colours and sizes of type are named in one file", () => {
  const named = sources.filter((name) => !name.endsWith("tokens.css"));
  expect(offenders(/#[0-9a-f]{3,8}\b(?![^{]*\})/i, named.filter((name) => name.endsWith(".css")))).toEqual([]);
});

/** Of each colour: in the light scheme and in the dark one. */
const COLOURS = new Map([...text("styles/tokens.css").matchAll(/--([\w-]+): light-dark\(#(\w{6}), #(\w{6})\)/g)].map(([, name, light, dark]) => [name!, [light!, dark!]]));

function luminance(colour: string): number {
  const [red, green, blue] = [0, 2, 4].map((at) => parseInt(colour.slice(at, at + 2), 16) / 255).map((part) => (part <= 0.03928 ? part / 12.92 : ((part + 0.055) / 1.055) ** 2.4));
  return 0.2126 * red! + 0.7152 * green! + 0.0722 * blue!;
}

/** How many times as bright one is as the other, as WCAG counts it; of the scheme in which that is less. */
function contrast(over: string, under: string): number {
  const of = (scheme: number) => [over, under].map((name) => luminance(COLOURS.get(name)![scheme]!) + 0.05).sort((a, b) => b - a);
  return Math.min(...[0, 1].map((scheme) => of(scheme)[0]! / of(scheme)[1]!));
}

test("text and what it stands on are 4.5 times apart in both schemes, frames and rings 3 times", () => {
  const surfaces = ["page", "surface", "raised", "sunken"];
  const states = ["good", "warn", "bad", "accent"];
  const soft = states.map((state) => `${state}-soft`);
  const pairs = (over: string[], under: string[]) => over.flatMap((one) => under.map((other) => [one, other] as const));
  const parts = [0, 1, 2, 3, 4, 5].map((part) => `part-${part}`);
  const words = [...pairs(["ink", "ink-2", "ink-3"], [...surfaces, ...soft]), ...pairs(states, surfaces), ...states.map((state) => [state, `${state}-soft`] as const), ...pairs(["on-part"], parts), ["accent-ink", "accent"] as const];
  const low = (among: (readonly [string, string])[], least: number) => among.filter(([over, under]) => contrast(over, under) < least);
  expect(low(words, 4.5)).toEqual([]);
  expect(low(pairs(["line-strong", "ring"], surfaces), 3)).toEqual([]);
});

/** Two plain words beside each other, or one that is a sentence: what only a reader of the page needs. */
const PROSE = /[A-Za-z]{2,}[,.:;]? [a-z]{2,}|^[A-Z][a-z]+[.…]$/;
/** Looks like it and is for the browser or for a shell. */
const FOR_PROGRAMS = /^(11px system-ui|input, textarea, select|\(pointer: coarse\)|noopener noreferrer nofollow)$|^exo (open|join|pull)\b/;

/** The literals and the texts of a source, but for names of classes. */
function texts(name: string): string[] {
  const source = name.endsWith(".svelte") ? text(name) : `<script lang="ts">${text(name)}</script>`;
  const found: string[] = [];
  const walk = (node: unknown): void => {
    if (Array.isArray(node)) return node.forEach(walk);
    if (typeof node !== "object" || node === null) return;
    const { type, name, value, data } = node as { type?: string; name?: string; value?: unknown; data?: string };
    if (type === "Comment" || type === "StyleSheet" || (type === "Attribute" && name === "class")) return;
    if (type === "Text" && data) found.push(data);
    if (type === "Literal" && typeof value === "string") found.push(value);
    if (type === "TemplateElement") found.push((value as { raw: string }).raw);
    Object.values(node).forEach(walk);
  };
  walk(parse(source, { modern: true }));
  return found.filter((one) => PROSE.test(one.trim()) && !FOR_PROGRAMS.test(one));
}

test("texts are in the file of the language and nowhere else", () => {
  const among = sources.filter((name) => !/^text\/|snippets\.ts$|\.css$/.test(name));
  expect(among.flatMap((name) => texts(name).map((one) => `${name}: ${one}`))).toEqual([]);
  expect(texts("text/en.ts").length).toBeGreaterThan(100);
});
