import "fake-indexeddb/auto";

// What jsdom lacks.
window.matchMedia ??= (query: string) => ({ matches: false, media: query }) as MediaQueryList;
