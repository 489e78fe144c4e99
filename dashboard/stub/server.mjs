// A node that is not there, for work on the page: `npm run stub`, then `npm run dev`. Serves fixtures, changes them a little every second
// and answers chats. `POST /stub {"scenario": "lost"}` shows another cluster; `{"frozen": true}` makes it swallow everything, and
// `{"refusing": true}` cut every connection. It is as strict as a node: what it lets pass, a node does.

import { createServer } from "node:http";
import { readFile } from "node:fs/promises";
import { extname, join, normalize, resolve } from "node:path";
import { fileURLToPath } from "node:url";
import * as fixtures from "./fixtures.mjs";
import * as telemetry from "./telemetry.mjs";
import { cancel, chat, requests, resume } from "./chat.mjs";

/** What is built: by `npm run build`, or by `cargo xtask web` in the folder that a test names. */
const DIST = resolve(process.env.EXO_PAGE ?? fileURLToPath(new URL("../dist", import.meta.url)));
const CSP =
  "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; font-src 'self'; connect-src 'self'; manifest-src 'self'; worker-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'; require-trusted-types-for 'script'; trusted-types svelte-trusted-html";
const TYPES = { ".html": "text/html", ".js": "text/javascript", ".css": "text/css", ".svg": "image/svg+xml", ".json": "application/json", ".woff2": "font/woff2" };
const BODY_BYTES_MAX = 64 << 20;

/** Starts a stub; port 0 finds a free one. */
export function start(port = 5280, { scenario = "home", tokens_per_s = 40, access = "owner" } = {}) {
  const state = { scenario, tokens_per_s, access, frozen: false, refusing: false, plain_http: false, head_ms: 0, pulls: telemetry.pulls(), view: fixtures.fixtures[scenario](), readers: new Set(), code: "c".repeat(64), last: 0, placed: 1, calls: [], ticks: 0, timer: null };
  const server = createServer((request, response) => void serve(state, request, response).catch((error) => reply(response, 500, refusal("stub", String(error)))));
  ticking(state, 1000);
  // Signs of life, as a node gives them.
  const alive = setInterval(() => state.frozen || [...state.readers].forEach((reader) => reader.write(": keep-alive\n")), 1000);
  server.on("close", () => clearInterval(alive));
  server.on("close", () => clearInterval(state.timer));
  server.listen(port, "127.0.0.1");
  return { server, state, close: () => (server.closeAllConnections(), new Promise((done) => server.close(done))) };
}

async function serve(state, request, response) {
  const { pathname } = new URL(request.url, "http://stub");
  if (state.refusing && pathname !== "/stub") return request.socket.destroy();
  const body = await read(request);
  if (pathname === "/stub") return control(state, body, response);
  if (state.frozen) return;
  if (["POST", "PUT"].includes(request.method) && request.headers["content-type"] !== "application/json") return reply(response, 415, refusal("unsupported_media_type", "a POST needs `Content-Type: application/json`"));
  if (!["GET"].includes(request.method)) state.calls.push({ method: request.method, path: pathname, body });
  if (pathname === "/health") return reply(response, 200, { status: "ok", version: "0.3.0", uptime_s: 4 });
  if (pathname === "/exo/v1/session" && request.method === "POST") return signIn(state, body, response);
  if (pathname.startsWith("/exo/") || pathname.startsWith("/v1/") || pathname === "/apply-template") {
    const bearer = request.headers.authorization?.replace("Bearer ", "");
    if (!["exs_stub", "key"].includes(bearer)) return reply(response, 401, refusal("session_ended", "The session has ended."));
    return api(state, request, pathname, body, response);
  }
  return file(pathname, response);
}

function api(state, request, path, body, response) {
  const { method, headers } = request;
  const view = { access: state.access, node: state.view.self_node, name: "desk", version: "0.3.0", idle_max_s: 43200, plain_http: state.plain_http, needs_key: false };
  if (path === "/exo/v1/session") return method === "DELETE" ? reply(response, 204) : reply(response, 200, view);
  if (path === "/exo/v1/events") return events(state, response);
  if (path === "/exo/v1/cluster") return reply(response, 200, state.view);
  if (path === "/exo/v1/members") return members(state, method, body, response);
  if (path.startsWith("/exo/v1/join_")) return joining(state, method, path, body, response);
  if (path === "/exo/v1/invites") return reply(response, 200, { code: "418 207 993", uses: 1, expires_at_unix_s: Math.floor(Date.now() / 1000) + 300, node: state.view.self_node, addresses: ["192.0.2.1:52416"] });
  if (path === "/exo/v1/models") return reply(response, 200, fixtures.models());
  if (path === "/exo/v1/plan") return body.context_tokens > 200000 ? reply(response, 409, refusal("no_plan", `${body.model} with 200,001 tokens of context needs 9.1 GiB more than is free; 65,536 would fit`)) : reply(response, 200, fixtures.plan(body));
  if (path === "/exo/v1/instances" && method === "POST") return place(state, body, response);
  if (path.startsWith("/exo/v1/instances/") && method === "DELETE") return unload(state, path, response);
  if (path === "/exo/v1/requests") return reply(response, 200, requests());
  if (path === "/exo/v1/requests/recent") return reply(response, 200, telemetry.recent());
  const { searchParams } = new URL(request.url, "http://stub");
  if (path === "/exo/v1/telemetry") return reply(response, 200, telemetry.telemetry(state.view));
  if (path === "/exo/v1/logs") return reply(response, 200, telemetry.logs(searchParams, state.view.nodes));
  if (path === "/exo/v1/doctor") return reply(response, 200, telemetry.checks(state.view.nodes));
  if (path === "/exo/v1/fits") return reply(response, 200, telemetry.fits(body));
  if (path === "/exo/v1/hub/search") return reply(response, 200, telemetry.repos());
  if (path === "/exo/v1/found") return reply(response, 200, telemetry.found());
  if (path.startsWith("/exo/v1/pulls")) return pulls(state, method, path, response);
  if (path === "/exo/v1/series") {
    const [kind, subject] = [...searchParams][0];
    return reply(response, 200, telemetry.series(subject, kind));
  }
  if (path.startsWith("/exo/v1/requests/") && method === "DELETE") return reply(response, cancel(path.split("/").at(-1), null) ? 204 : 404, refusal("not_found", "It does not run here."));
  if (path === "/v1/models") return reply(response, 200, { object: "list", data: fixtures.models().map(({ name }) => ({ id: name, object: "model", created: 0, owned_by: "exo", context_length: 16384 })) });
  if (path === "/apply-template") return reply(response, 200, { prompt: `${body.messages.map((one) => one.content).join("\n")}\n<think>\n` });
  if (path === "/v1/chat/completions" || path === "/v1/completions") return chat(body, response, keepOf(headers["exo-keep"]), state);
  if (path.startsWith("/v1/requests/")) {
    const [id, secret] = [path.split("/").at(-1), headers["exo-resume"]?.split(".").at(-1)];
    const unknown = refusal("request_not_found", "There is no such request.");
    if (method === "DELETE") return reply(response, cancel(id, secret) ? 204 : 404, unknown);
    const after = Number(headers["last-event-id"]?.split(":")[1] ?? 0);
    return resume(id, secret, after, response) || reply(response, 404, unknown);
  }
  if (DONE.some(([verb, pattern]) => verb === method && pattern.test(path))) return reply(response, 204);
  return reply(response, 404, refusal("no_such_route", `there is no ${method} ${path}`));
}

/** What is done without a trace in the fixtures. */
const DONE = [
  ["POST", /^\/exo\/v1\/members\/[^/]+\/devices\/[^/]+\/retry$/],
  ["POST", /^\/exo\/v1\/members\/[^/]+\/(role|drain)$/],
  ["DELETE", /^\/exo\/v1\/(members|models)\/.+$/],
  ["POST", /^\/exo\/v1\/(alerts\/silence|logs\/level|models|model_checks|kept_models|instances\/[^/]+\/replan)$/],
  ["DELETE", /^\/exo\/v1\/sessions$/],
  ["POST", /^\/exo\/v1\/shutdown$/],
];

const tellPulls = (state, response) => response.write(`event: pulls\ndata: ${JSON.stringify(state.pulls)}\n\n`);

function pulls(state, method, path, response) {
  const [id, verb] = path.split("/").slice(4);
  if (!id) return reply(response, 200, method === "GET" ? state.pulls : state.pulls[0]);
  const pull = state.pulls.find((one) => one.id === id);
  if (!pull) return reply(response, 404, refusal("not_found", `there is no download ${id}`));
  if (method === "DELETE") state.pulls = state.pulls.filter((one) => one !== pull);
  else pull.state = verb === "pause" ? "paused" : "fetching";
  for (const reader of state.readers) tellPulls(state, reader);
  return method === "DELETE" ? reply(response, 204) : reply(response, 200, pull);
}

/** Whether an answer is kept, and what its client calls it. */
function keepOf(header) {
  const [, id, secret] = /^([0-9a-f]{32})\.([0-9a-f]{32})$/.exec(header ?? "") ?? [];
  return header === "true" || id ? { id, secret } : null;
}

function signIn(state, body, response) {
  const good = body.code === state.code || body.secret === "stub";
  if (!good) return reply(response, 401, refusal(body.code ? "code_used" : "invalid_local_secret", body.code ? "This code was used already." : "That is not this node's secret."));
  return reply(response, 200, { token: "exs_stub", access: state.access, node: state.view.self_node, name: "desk", version: "0.3.0", idle_max_s: 43200, plain_http: state.plain_http, needs_key: false });
}

function events(state, response) {
  response.writeHead(200, { "content-type": "text/event-stream" });
  response.flushHeaders();
  state.readers.add(response);
  response.on("close", () => state.readers.delete(response));
  send(state, response, "snapshot", { cluster: state.view });
  if (state.access === "owner") tellPulls(state, response);
}

function ticking(state, every_ms) {
  clearInterval(state.timer);
  state.timer = setInterval(() => tick(state), every_ms);
}

/** What wavers, of every node. */
function tick(state) {
  if (state.frozen) return;
  state.ticks += 1;
  const wander = (value, by, low, high) => (value === null ? null : Math.min(high, Math.max(low, value + (Math.random() - 0.5) * by)));
  const changes = state.view.nodes.map((node) => ({
    kind: "gauges",
    node: node.id,
    process_bytes: node.process_bytes,
    devices: node.devices.map((d) => ({ device: d.id, memory_free_bytes: d.memory_free_bytes, sensors: { ...d.sensors, temperature_c: wander(d.sensors.temperature_c, 2, 30, 99), utilisation: wander(d.sensors.utilisation, 0.1, 0, 1) } })),
  }));
  publish(state, changes);
}

function publish(state, changes) {
  // Numbers have no gaps, for every reader.
  state.last += 1;
  for (const reader of state.readers) send(state, reader, "delta", { changes });
}

function send(state, response, event, data) {
  response.write(`id: 57b-${state.last}\nevent: ${event}\ndata: ${JSON.stringify({ at_unix_ms: Date.now(), ...data })}\n\n`);
}

function members(state, method, body, response) {
  if (method === "POST") {
    state.view.join_requests = state.view.join_requests.filter((r) => r.node !== body.node);
    publish(state, [{ kind: "join_requests", join_requests: state.view.join_requests }]);
    return reply(response, 200, { node: body.node, name: "pixel-8", role: "worker", is_self: false });
  }
  return reply(response, 200, state.view.nodes.map((n) => ({ node: n.id, name: n.name, role: n.role, is_self: n.is_self, check_words: n.is_self ? null : "copper lake seven fern" })));
}

function joining(state, method, path, body, response) {
  const { view } = state;
  if (path.startsWith("/exo/v1/join_requests/")) {
    view.join_requests = view.join_requests.filter((r) => r.node !== path.split("/").at(-1));
    publish(state, [{ kind: "join_requests", join_requests: view.join_requests }]);
  } else {
    const until = method === "POST" ? Math.floor(Date.now() / 1000) + 60 * (body.minutes ?? 10) : null;
    view.join_window = { open: until !== null, open_until_unix_s: until };
    const { cluster, self_node, epoch, join_window, journal } = view;
    publish(state, [{ kind: "header", cluster, self_node, epoch, join_window, journal }]);
  }
  return reply(response, 204);
}

function place(state, body, response) {
  const planned = fixtures.plan(body);
  const stages = planned.stages.map((s, n) => fixtures.stage(n + 1, s.node_name, s.device, s.layers.start, s.layers.end));
  const placed = fixtures.instance(`i${state.placed++}`, body.model, stages, { state: { kind: "loading", progress: 0.1 }, load: null, measured_tokens_per_s: null });
  state.view.instances = [...state.view.instances, placed];
  publish(state, [{ kind: "instance", instance: placed }]);
  return reply(response, 200, placed);
}

function unload(state, path, response) {
  const id = path.split("/").at(-1);
  state.view.instances = state.view.instances.filter((i) => i.id !== id);
  publish(state, [{ kind: "instance_gone", id }]);
  return reply(response, 204);
}

function control(state, body, response) {
  if (body.scenario) {
    state.view = fixtures.fixtures[body.scenario]();
    for (const reader of state.readers) send(state, reader, "snapshot", { cluster: state.view });
  }
  if (body.changes) publish(state, body.changes);
  if (body.frozen !== undefined) state.frozen = body.frozen;
  if (body.refusing !== undefined) state.refusing = body.refusing;
  if (body.ends) for (const reader of state.readers) reader.end();
  if (body.tokens_per_s) state.tokens_per_s = body.tokens_per_s;
  if (body.head_ms !== undefined) state.head_ms = body.head_ms;
  if (body.tick_ms) ticking(state, body.tick_ms);
  if (body.access) state.access = body.access;
  if (body.plain_http !== undefined) state.plain_http = body.plain_http;
  const calls = state.calls.splice(0);
  return reply(response, 200, { calls, ticks: state.ticks, view: state.view });
}

async function file(pathname, response) {
  const path = normalize(join(DIST, pathname === "/" ? "index.html" : pathname));
  const bytes = path.startsWith(DIST) ? await readFile(path).catch(() => null) : null;
  if (!bytes) return reply(response, 404, refusal("not_found", "There is no such file."));
  response.writeHead(200, { "content-type": TYPES[extname(path)] ?? "application/octet-stream", "content-security-policy": CSP });
  response.end(bytes);
}

async function read(request) {
  const pieces = [];
  let length = 0;
  for await (const piece of request) {
    length += piece.length;
    if (length > BODY_BYTES_MAX) throw new Error("the body is too long");
    pieces.push(piece);
  }
  const text = Buffer.concat(pieces).toString();
  return text === "" ? {} : JSON.parse(text);
}

const refusal = (code, message) => ({ error: { code, message, type: "invalid_request_error" } });

function reply(response, status, value) {
  response.writeHead(status, { "content-type": "application/json" });
  response.end(status === 204 || value === undefined ? "" : JSON.stringify(value));
}

if (process.argv[1] === fileURLToPath(import.meta.url)) {
  start(Number(process.env.PORT ?? 5280), { scenario: process.env.SCENARIO ?? "home" });
  console.log("stub: http://127.0.0.1:5280/#code=" + "c".repeat(64));
}
