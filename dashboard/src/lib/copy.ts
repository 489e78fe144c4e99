// Puts text on the clipboard. Over plain HTTP browsers have none; then it can still be marked by hand.

export async function copyText(text: string): Promise<boolean> {
  try {
    await navigator.clipboard.writeText(text);
    return true;
  } catch {
    return false;
  }
}
