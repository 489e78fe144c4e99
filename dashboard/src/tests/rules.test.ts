// Rules that hold for every source file of the page.

import { readdirSync, readFileSync } from "node:fs";
import { join } from "node:path";
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
