import "fake-indexeddb/auto";

// What jsdom lacks.
Element.prototype.scrollIntoView ??= () => {};
globalThis.ResizeObserver ??= class {
  observe() {}
  unobserve() {}
  disconnect() {}
};
window.matchMedia ??= (query: string) => ({ matches: false, media: query }) as MediaQueryList;
