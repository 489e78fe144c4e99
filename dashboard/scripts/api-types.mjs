// Writes src/api/types.ts from ../openapi.json: one TypeScript type per schema, with its description.
//
// `node scripts/api-types.mjs --write` writes the file; `--check` and a unit test fail when the file and the description differ.

import { readFileSync, writeFileSync } from "node:fs";
import { join } from "node:path";

const DESCRIPTION = join(import.meta.dirname, "../../openapi.json");
export const TARGET = join(import.meta.dirname, "../src/api/types.ts");

/** The whole file as text. */
export function generate() {
  const { components } = JSON.parse(readFileSync(DESCRIPTION, "utf8"));
  const names = Object.keys(components.schemas).sort();
  const types = names.map((name) => declare(name, components.schemas[name]));
  const head = "// Written by scripts/api-types.mjs from openapi.json. Change the API, then run `npm run types`.\n";
  return `${head}\n${types.join("\n\n")}\n`;
}

function declare(name, schema) {
  return `${comment(schema.description, "")}export type ${name} = ${typeOf(schema, "")};`;
}

function comment(text, indent) {
  const line = text?.replace(/\s+/g, " ").replaceAll("*/", "* /").trim();
  return line ? `${indent}/** ${line} */\n${indent}` : indent;
}

function typeOf(schema, indent) {
  if (schema === true || schema === undefined) return "unknown";
  if (schema.$ref) return schema.$ref.split("/").at(-1);
  if (schema.const !== undefined) return JSON.stringify(schema.const);
  if (schema.enum) return schema.enum.map((value) => JSON.stringify(value)).join(" | ");
  const several = schema.oneOf ?? schema.anyOf;
  if (several) return [...new Set(several.map((one) => typeOf(one, indent)))].join(" | ");
  if (schema.allOf) return schema.allOf.map((one) => `(${typeOf(one, indent)})`).join(" & ");
  const kinds = Array.isArray(schema.type) ? schema.type : [schema.type];
  return kinds.map((kind) => plain(kind, schema, indent)).join(" | ");
}

function plain(kind, schema, indent) {
  switch (kind) {
    case "integer":
    case "number":
      return "number";
    case "string":
    case "boolean":
    case "null":
      return kind;
    case "array":
      return `Array<${typeOf(schema.items, indent)}>`;
    case "object":
      return object(schema, indent);
    default:
      return "unknown";
  }
}

function object(schema, indent) {
  const values = schema.additionalProperties;
  if (!schema.properties) return `Record<string, ${values ? typeOf(values, indent) : "unknown"}>`;
  const inner = `${indent}  `;
  const required = new Set(schema.required ?? []);
  const fields = Object.keys(schema.properties)
    .sort()
    .map((key) => {
      const field = schema.properties[key];
      const mark = required.has(key) ? "" : "?";
      const name = /^[A-Za-z_]\w*$/.test(key) ? key : JSON.stringify(key);
      return `${comment(field.description, inner)}${name}${mark}: ${typeOf(field, inner)};`;
    });
  return `{\n${fields.join("\n")}\n${indent}}`;
}

if (process.argv.includes("--write")) writeFileSync(TARGET, generate());
if (process.argv.includes("--check") && readFileSync(TARGET, "utf8") !== generate()) {
  console.error("src/api/types.ts is not what openapi.json says: run `npm run types`");
  process.exit(1);
}
