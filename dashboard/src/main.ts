// Starts the page. The code in the address is taken out before anything else is drawn.

import { mount } from "svelte";
import "./styles/tokens.css";
import "./styles/base.css";
import "./stores/theme.svelte";
import { href, route } from "./stores/route.svelte";
import { session, takeCode } from "./stores/session.svelte";
import App from "./App.svelte";

const code = takeCode();
mount(App, { target: document.body });
void session.start(code);
// A link of `exo open --print` that is pasted into a page that is open: no browser loads it anew.
addEventListener("hashchange", () => {
  const pasted = takeCode(href(route.current.page, ...route.current.rest));
  if (pasted) void session.start(pasted);
});
