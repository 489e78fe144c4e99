// What all scenarios share.

import process from "node:process";

/** The address of a node, with the model `tools`. */
export const node = process.argv[2];
export const question = [{ role: "user", content: "What is the weather in Rome?" }];
export const weather = {
  type: "object",
  properties: { city: { enum: ["Rome", "Oslo"] }, days: { type: "integer", minimum: 1, maximum: 9 } },
  required: ["city", "days"],
  additionalProperties: false,
};

export function check(what, good, ...shown) {
  if (good) return;
  console.log("FAILED:", what, ...shown.map((value) => JSON.stringify(value)));
  process.exit(1);
}

export function checkWeather(what, { city, days }) {
  check(what, ["Rome", "Oslo"].includes(city) && days >= 1 && days <= 9, { city, days });
}

/** What `ask` gives for the first seed for which it gives anything. */
export async function firstOf(ask) {
  for (let seed = 0; seed < 160; seed += 1) {
    const found = await ask(seed);
    if (found) return found;
  }
  check("one of many seeds", false);
}

/** The error that `call` ends with, which is of this kind. */
export async function refused(what, kind, call) {
  try {
    await call();
  } catch (error) {
    check(what, error instanceof kind, String(error));
    return error;
  }
  check(what, false, "was not refused");
}
