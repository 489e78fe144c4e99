import { readFileSync } from "node:fs";
import { expect, test } from "vitest";
import { generate, TARGET } from "../../scripts/api-types.mjs";

test("types are those of openapi.json: `npm run types` writes them", () => {
  expect(readFileSync(TARGET as string, "utf8")).toBe(generate());
});
