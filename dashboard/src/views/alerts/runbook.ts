// The runbook's section about a rule. The whole of it comes with the page and is loaded when somebody reads it: no internet is needed.

import { inTime } from "../../lib/late";

/** What stands in the runbook about the rule that `where` names (`docs/runbook.md#RULE`); `null` for a rule that it does not know. */
export async function section(where: string): Promise<string | null> {
  const { default: runbook } = await inTime(import("../../../../docs/runbook.md?raw"));
  return sectionOf(runbook, where.slice(where.lastIndexOf("#") + 1));
}

export function sectionOf(runbook: string, rule: string): string | null {
  const found = runbook.split(/^## /m).slice(1).find((part) => part.split("\n", 1)[0]!.trim() === rule);
  return found === undefined ? null : found.slice(found.indexOf("\n") + 1).trim();
}
