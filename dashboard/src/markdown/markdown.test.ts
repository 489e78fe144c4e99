import { mount, unmount } from "svelte";
import { expect, test } from "vitest";
import { BlockList } from "./blocks.svelte";
import Blocks from "./Blocks.svelte";
import { address, parse } from "./parse";

/** Markdown to the markup that is drawn, without comments and classes of our own. */
function drawn(text: string): string {
  const target = document.createElement("div");
  const view = mount(Blocks, { target, props: { blocks: parse(text) } });
  const html = target.innerHTML.replace(/<!--.*?-->/g, "").replace(/ class="[^"]*"/g, "");
  void unmount(view);
  return html;
}

test("what people write is drawn by our own elements", () => {
  expect(drawn("a **b** `c` ~~d~~")).toBe("<p>a <strong>b</strong> <code>c</code> <del>d</del></p>");
  expect(drawn("# T")).toBe("<h3>T</h3>");
  expect(drawn("3. x\n4. y")).toContain('<ol start="3">');
  expect(drawn("| a | b |\n|---|--:|\n| 1 | 2 |")).toContain("<td>2</td>");
  expect(drawn("- [x] done")).toContain("☑");
  expect(parse("costs $5 and $6")).toEqual([{ kind: "paragraph", inner: [{ kind: "text", text: "costs $5 and $6" }] }]);
  expect(parse("$$x^2$$")).toEqual([{ kind: "math", text: "x^2" }]);
});

const HOSTILE = [
  "<script>window.pwned=1</script>",
  "<img src=x onerror=pwned()>",
  "a <svg onload=pwned()><animate/></svg> b",
  "[x](javascript:pwned())",
  "[x](JaVaScRiPt:pwned())",
  "[x](data:text/html,<script>pwned()</script>)",
  "[x](&#106;avascript:pwned())",
  "[x](vbscript:pwned())",
  "<a href='javascript:pwned()'>x</a>",
  "![x](https://example.org/track.png)",
  "![x](data:image/svg+xml,<svg onload=pwned()>)",
  "| <img src=x onerror=pwned()> |\n|---|\n| [x](javascript:pwned()) |",
  "```html onload=pwned()\n<img src=x onerror=pwned()>\n```",
  "[x]: javascript:pwned()\n\n[x]",
  "<iframe srcdoc='<script>pwned()</script>'>",
  "<style>*{background:url(https://example.org)}</style>",
  "[x](//example.org/phish)",
  "[x](/exo/v1/shutdown)",
];

test("hostile text is text: no element, no attribute and no address of its own comes out of it", () => {
  for (const text of HOSTILE) {
    const target = document.createElement("div");
    const view = mount(Blocks, { target, props: { blocks: parse(text) } });
    expect(target.querySelector("script, img, svg:not([aria-hidden]), iframe, style, object, embed, form"), text).toBeNull();
    for (const element of target.querySelectorAll("*")) {
      for (const name of element.getAttributeNames()) expect(name.startsWith("on"), `${text}: ${name}`).toBe(false);
      const href = element.getAttribute("href");
      if (href !== null) expect(href, text).toMatch(/^(https?|mailto):/);
    }
    void unmount(view);
  }
});

test("only the web and mail are addresses", () => {
  expect(["https://a.b/c", "mailto:a@b.c"].map(address)).toEqual(["https://a.b/c", "mailto:a@b.c"]);
  expect(["javascript:1", " javascript:1", "data:,a", "file:///etc", "blob:x", "/x", "#x", "", 7, "https://" + "a".repeat(5000)].map(address)).toEqual(Array(10).fill(null));
});

test("deep nesting and long lines neither fail nor hang", () => {
  const started = performance.now();
  for (const text of [">".repeat(5000), "*".repeat(20_000), "[".repeat(5000), "- ".repeat(3000), "`".repeat(9999), "$".repeat(9999), "|".repeat(5000) + "\n" + "|-".repeat(5000)]) parse(text);
  expect(performance.now() - started).toBeLessThan(8000);
});

const ANSWER = "# T\n\nSome *text* with `code`\nand more.\n\n| a | b |\n|---|---|\n| 1 | 2 |\n\n```py\nx = 1\n\n# no heading\n```\n\n1. one\n2. two\n\n   more of two\n\n> quote\n\n~~~\ntilde ``` inside\n~~~\nend\n\n$$\nx\n$$\n";

test("a text that comes in pieces becomes the same blocks as the whole", () => {
  const whole = BlockList.of(ANSWER).settled;
  expect(whole).toEqual(parse(ANSWER));
  for (let size = 1; size < 40; size++) {
    const list = new BlockList();
    for (let at = 0; at < ANSWER.length; at += size) list.append(ANSWER.slice(at, at + size));
    list.close();
    expect(list.settled, `pieces of ${size}`).toEqual(whole);
  }
});

/** The least time of the processor, in ms, that a piece of work took in three runs: others have the processor as well. */
function least(work: () => void): number {
  return Math.min(
    ...Array.from({ length: 3 }, () => {
      const started = process.cpuUsage();
      work();
      return process.cpuUsage(started).user / 1000;
    }),
  );
}

test("a token costs the same at the end of a long answer", () => {
  const list = new BlockList();
  let at = 0;
  const append = (sentences: number) => {
    for (const until = at + sentences; at < until; at++) list.append(`Sentence ${at}. `.concat(at % 5 === 4 ? "\n\n" : ""));
  };
  append(300);
  const early = least(() => append(300));
  append(16_000);
  expect(least(() => append(300))).toBeLessThan(early * 6 + 20);
});

/** What a reader sees: texts of items, cells and words, whichever blocks they are in. */
const seen = (blocks: unknown): string => JSON.stringify(blocks).match(/"text":"[^"]*"/g)!.join("").replace(/"text":"|"/g, "").replace(/\s|\\n/g, "");

const LONG: Record<string, (at: number) => string> = {
  "a numbered list": (at) => `${at + 1}. item **${at}** of it\n`,
  "a loose list": (at) => `- item ${at} of it\n\n`,
  "a table": (at) => (at === 0 ? "| a | b |\n|---|---|\n" : "") + `| cell ${at} | ${at} |\n`,
  "a quote": (at) => `> line ${at} of it\n`,
  "words without an end": (at) => `word ${at} and more, `,
  "brackets": () => "[".repeat(300),
};

for (const [name, line] of Object.entries(LONG)) {
  test(`a token costs the same at the end of a long block: ${name}`, () => {
    const list = new BlockList();
    let at = 0;
    const append = (lines: number) => {
      for (const until = at + lines; at < until; at++) list.append(line(at));
    };
    // A block is cut after some 6,000 characters at the latest, and what a token costs grows until then.
    const cut = Math.ceil(6000 / line(1).length);
    append(cut);
    const early = least(() => append(cut));
    append(cut * 4);
    expect(least(() => append(cut))).toBeLessThan(early * 2 + 20);
    list.close();
    const whole = Array.from({ length: at }, (_, each) => line(each)).join("");
    if (name !== "brackets") expect(seen(list.settled)).toBe(seen(parse(whole)));
    expect(seen(BlockList.of(whole).settled)).toBe(seen(list.settled));
  });
}

test("a list and a table that were split go on with their numbers and under their head", () => {
  const list = BlockList.of(Array.from({ length: 500 }, (_, at) => LONG["a numbered list"]!(at)).join("")).settled as { kind: string; start: number; items: unknown[] }[];
  expect(list.length).toBeGreaterThan(1);
  expect([list.every(({ kind }) => kind === "list"), list.reduce((sum, { items }) => sum + items.length, 0)]).toEqual([true, 500]);
  for (const [at, one] of list.entries()) if (at > 0) expect(one.start).toBe(list[at - 1]!.start + list[at - 1]!.items.length);
  const table = BlockList.of(Array.from({ length: 500 }, (_, at) => LONG["a table"]!(at)).join("") + "\nEnd.").settled as { kind: string; head: unknown[]; rows: unknown[] }[];
  expect([table.pop()!.kind, table.reduce((sum, { rows }) => sum + rows.length, 0)]).toEqual(["paragraph", 500]);
  expect(table.map(({ head }) => head.length > 0)).toEqual(table.map((_, at) => at === 0));
});

test("what is slow to read does not hang the page", () => {
  // Not by the clock: others have the processor as well.
  const started = process.cpuUsage();
  for (const one of ["[", "> ", "_a_b"]) BlockList.of(one.repeat(100_000 / one.length));
  expect(process.cpuUsage(started).user / 1000).toBeLessThan(15_000);
});

test("an open block of code shows what there is of it", () => {
  const list = new BlockList();
  list.append("```py\nx = ");
  expect(list.open).toEqual([{ kind: "code", language: "py", text: "x = " }]);
  list.append("1\n".repeat(5000));
  expect(list.code.join("").length + (list.open[0] as { text: string }).text.length).toBe("x = ".length + 10_000);
  list.append("```\ndone");
  list.close();
  expect(list.settled.map((block) => block.kind)).toEqual(["code", "paragraph"]);
});

test("an answer that is JSON is shown as such, and one that only begins like it is not", () => {
  const json = `{ "note": "*not* _emphasis_ [a](https://b.example) $x$", "list": [1, 2] }`;
  expect(BlockList.of(`\n${json}\n`).settled).toEqual([{ kind: "code", language: "json", text: json }]);
  expect(BlockList.of(`["a", "b"]`).settled.map(({ kind }) => kind)).toEqual(["code"]);
  for (const prose of ["{ not json }", "[a](https://b.example)", "[1] and more", "3", '"a"']) expect(BlockList.of(prose).settled.map(({ kind }) => kind), prose).toEqual(["paragraph"]);
});
