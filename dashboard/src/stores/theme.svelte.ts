// Light, dark or as the system says.

export const THEMES = ["system", "light", "dark"] as const;
export type Theme = (typeof THEMES)[number];

const KEY = "exo-theme";

class ThemeStore {
  choice = $state<Theme>(kept());

  constructor() {
    this.show();
  }

  set(choice: Theme): void {
    this.choice = choice;
    this.show();
    try {
      localStorage.setItem(KEY, choice);
    } catch {
      // refused: it holds until the page is closed
    }
  }

  private show(): void {
    if (this.choice === "system") delete document.documentElement.dataset.theme;
    else document.documentElement.dataset.theme = this.choice;
  }
}

function kept(): Theme {
  try {
    const word = localStorage.getItem(KEY);
    return THEMES.find((theme) => theme === word) ?? "system";
  } catch {
    return "system";
  }
}

export const theme = new ThemeStore();
