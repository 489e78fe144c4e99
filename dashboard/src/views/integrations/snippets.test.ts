import { execFileSync } from "node:child_process";
import { expect, test } from "vitest";
import { shellWord, snippets } from "./snippets";

const EVIL = `it's "a" $(touch /tmp/x) \`y\` \\ model`;

test("every snippet has the address and the model", () => {
  for (const { name, text } of snippets("http://127.0.0.1:52415", "qwen3-32b", "local")) {
    expect(text, name).toContain("http://127.0.0.1:52415");
    expect(text, name).toContain("qwen3-32b");
  }
});

test("every snippet has the key, and what sends it is right", () => {
  for (const { name, text } of snippets("http://127.0.0.1:52415", "m", "a-key")) expect(text, name).toContain("a-key");
});

test("the name of a model stays a word, whatever it is", () => {
  expect(execFileSync("sh", ["-c", `printf %s ${shellWord(EVIL)}`]).toString()).toBe(EVIL);
  const curl = snippets("http://h", EVIL, "k").find((one) => one.name === "curl")!.text;
  const body = execFileSync("sh", ["-c", curl.replace(/^curl \S+/, 'f() { eval "printf %s \\"\\${$#}\\""; }; f')]).toString();
  expect((JSON.parse(body) as { model: string }).model).toBe(EVIL);
});

test("Ollama's snippet is JSON", () => {
  const text = snippets("http://h", "m", "k").find((one) => one.name === "Ollama")!.text;
  expect(JSON.parse(/-d '(.*)'$/s.exec(text)![1]!)).toMatchObject({ model: "m", stream: false });
});
