// Keys of one letter. They are off inside of text fields, and can be switched off altogether.

const KEY = "exo-keys";

type Action = { run: () => void };

class KeyStore {
  enabled = $state(kept());
  open = $state(false);
  private actions = new Map<string, Action>();
  private first = "";
  private first_ms = 0;

  /** Adds keys (`n`, `g c`) until the answer is called. */
  add(actions: Record<string, () => void>): () => void {
    const added = Object.entries(actions).map(([keys, run]) => [keys, { run }] as const);
    for (const [keys, action] of added) this.actions.set(keys, action);
    return () => {
      for (const [keys, action] of added) if (this.actions.get(keys) === action) this.actions.delete(keys);
    };
  }

  toggle(): void {
    this.enabled = !this.enabled;
    try {
      localStorage.setItem(KEY, this.enabled ? "on" : "off");
    } catch {
      // refused: it holds until the page is closed
    }
  }

  press(event: KeyboardEvent): void {
    if (!this.enabled || event.ctrlKey || event.metaKey || event.altKey || isTyping(event.target)) return;
    if (document.querySelector("dialog[open]")) return;
    const pair = event.timeStamp - this.first_ms < 1500 ? this.actions.get(`${this.first} ${event.key}`) : undefined;
    const action = pair ?? this.actions.get(event.key);
    this.first = event.key;
    this.first_ms = event.timeStamp;
    if (!action) return;
    event.preventDefault();
    action.run();
  }
}

function kept(): boolean {
  try {
    return localStorage.getItem(KEY) !== "off";
  } catch {
    return true;
  }
}

export function isTyping(target: EventTarget | null): boolean {
  return target instanceof HTMLElement && (target.isContentEditable || target.matches("input, textarea, select"));
}

export const keys = new KeyStore();
