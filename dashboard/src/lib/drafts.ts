// What was typed into a conversation and not sent: kept for this tab, while another page is looked at and over a reload.

const KEY = "exo-draft-";

/** Where storage is refused or full, drafts live as long as the page. */
const inMemory = new Map<string, string>();

export function draftOf(conversation: string): string {
  const own = inMemory.get(conversation);
  if (own !== undefined) return own;
  try {
    return sessionStorage.getItem(KEY + conversation) ?? "";
  } catch {
    return "";
  }
}

export function keepDraft(conversation: string, text: string): void {
  inMemory.set(conversation, text);
  try {
    if (text === "") sessionStorage.removeItem(KEY + conversation);
    else sessionStorage.setItem(KEY + conversation, text);
  } catch {
    // refused or full: it is in memory
  }
}
