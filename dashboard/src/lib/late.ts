// Parts of the page that are loaded when somebody wants them.

import { ApiError } from "../api/client";
import { t } from "../text";

/** A node that answers nothing would leave one waiting for good. */
const LOAD_MS = 10_000;

/** What is loaded; fails where it does not come in time. */
export function inTime<T>(loaded: Promise<T>): Promise<T> {
  const late = new Promise<never>((_, reject) => setTimeout(() => reject(new ApiError(0, "no_answer", t.errors.late)), LOAD_MS));
  return Promise.race([loaded, late]);
}
