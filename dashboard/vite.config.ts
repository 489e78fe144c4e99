import { svelte } from "@sveltejs/vite-plugin-svelte";
import { defineConfig } from "vitest/config";

/** Where the development server finds a node: the stub, or a real one by `EXO_API=http://127.0.0.1:52415 npm run dev`. */
const api = process.env.EXO_API ?? "http://127.0.0.1:5280";
const proxied = ["/exo", "/v1", "/health", "/apply-template", "/tokenize", "/metrics"];

export default defineConfig(({ mode }) => ({
  plugins: [svelte()],
  build: {
    target: "es2023",
    assetsInlineLimit: 0, // `data:` addresses are not in the content security policy
    modulePreload: { polyfill: false }, // it would be an inline script
    reportCompressedSize: false,
    license: { fileName: "licences.json" },
  },
  server: {
    host: "127.0.0.1",
    port: 5281,
    fs: { allow: [".."] }, // the runbook is a page of `docs/`
    proxy: Object.fromEntries(proxied.map((path) => [path, { target: api, changeOrigin: true, headers: { origin: api } }])),
  },
  // Components are mounted in unit tests: Svelte's browser build, not its server build.
  resolve: mode === "test" ? { conditions: ["browser"] } : {},
  test: { environment: "jsdom", testTimeout: 30_000, include: ["src/**/*.test.ts", "stub/**/*.test.ts"], setupFiles: ["src/test-setup.ts"] },
}));
