import "fake-indexeddb/auto";

// What jsdom lacks.
Element.prototype.scrollIntoView ??= () => {};
window.matchMedia ??= (query: string) => ({ matches: false, media: query }) as MediaQueryList;
