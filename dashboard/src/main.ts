// Starts the page. The code in the address is taken out before anything else is drawn.

import { mount } from "svelte";
import "./styles/tokens.css";
import "./styles/base.css";
import "./stores/theme.svelte";
import { session, takeCode } from "./stores/session.svelte";
import App from "./App.svelte";

const code = takeCode();
mount(App, { target: document.body });
void session.start(code);
