// What was typed into a conversation and not sent: kept for this tab, while another page is looked at and over a reload.
// The key is the conversation for its next message, and begins with it and a slash for what belongs to one of its messages.

const KEY = "exo-draft-";

/** Where storage is refused or full, drafts live as long as the page. */
const inMemory = new Map<string, string>();

export function draftOf(key: string): string {
  const own = inMemory.get(key);
  if (own !== undefined) return own;
  try {
    return sessionStorage.getItem(KEY + key) ?? "";
  } catch {
    return "";
  }
}

export function keepDraft(key: string, text: string): void {
  inMemory.set(key, text);
  try {
    if (text === "") sessionStorage.removeItem(KEY + key);
    else sessionStorage.setItem(KEY + key, text);
  } catch {
    // refused or full: it is in memory
  }
}

/** What edits another version of a message. */
export const editDraft = (message: { conversation: string; id: string }): string => `${message.conversation}/${message.id}`;

/** All of a conversation. */
export function forgetDrafts(conversation: string): void {
  const isOf = (key: string) => key === conversation || key.startsWith(`${conversation}/`);
  for (const key of [...inMemory.keys()].filter(isOf)) inMemory.delete(key);
  try {
    const keys = Object.keys(sessionStorage).filter((key) => key.startsWith(KEY) && isOf(key.slice(KEY.length)));
    for (const key of keys) sessionStorage.removeItem(key);
  } catch {
    // refused: nothing is there
  }
}
