// Which page is open: `#/chat/ID` and nothing else of the address. Pages read their own rest of the path.

export const PAGES = ["cluster", "devices", "instances", "models", "chat", "requests", "alerts", "logs", "doctor", "metrics", "integrations", "licences"] as const;
export type Page = (typeof PAGES)[number];

export type Route = { page: Page; rest: string[] };

/** What an address means; what means nothing is the first page. */
export function parse(hash: string): Route {
  const [page, ...rest] = hash.replace(/^#\/?/, "").split("/").map(decode);
  return PAGES.includes(page as Page) ? { page: page as Page, rest } : { page: "cluster", rest: [] };
}

export function href(page: Page, ...rest: string[]): string {
  return `#/${[page, ...rest].map(encodeURIComponent).join("/")}`;
}

function decode(part: string): string {
  try {
    return decodeURIComponent(part);
  } catch {
    return part;
  }
}

class Router {
  current = $state<Route>(parse(location.hash));

  constructor() {
    addEventListener("hashchange", () => {
      // A link that lets somebody in leaves the page where it is.
      if (!location.hash.startsWith("#code=")) this.current = parse(location.hash);
    });
  }

  /** Another address for what is open already. */
  rename(page: Page, ...rest: string[]): void {
    history.replaceState(null, "", href(page, ...rest));
    this.current = { page, rest };
  }

  go(page: Page, ...rest: string[]): void {
    location.hash = href(page, ...rest);
  }
}

export const route = new Router();
