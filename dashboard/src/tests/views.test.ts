// Every page in every state that its fixtures have: drawn, without an error, and with strangers' text as text.

import { flushSync, mount, unmount, type Component } from "svelte";
import { afterEach, expect, test, vi } from "vitest";
import { alert, fixtures, nodeId, plan } from "../../stub/fixtures.mjs";
import type { PullView } from "../api/types";
import { alerts } from "../stores/alerts.svelte";
import { ClusterStore, cluster } from "../stores/cluster.svelte";
import { conversations } from "../stores/conversations.svelte";
import { downloads } from "../stores/downloads.svelte";
import { merged } from "../stores/logs.svelte";
import { models } from "../stores/models.svelte";
import { notices } from "../stores/notices.svelte";
import { route } from "../stores/route.svelte";
import { session } from "../stores/session.svelte";
import { telemetry as measured } from "../stores/telemetry.svelte";
import * as telemetry from "../../stub/telemetry.mjs";
import { conversation, message } from "../history/types";
import { draftOf, editDraft, keepDraft } from "../lib/drafts";
import { t } from "../text";
import App from "../App.svelte";
import Confirm from "../frame/Confirm.svelte";
import Login from "../frame/Login.svelte";
import Shell from "../frame/Shell.svelte";
import Alerts from "../views/alerts/Alerts.svelte";
import Chat from "../views/chat/Chat.svelte";
import Composer from "../views/chat/Composer.svelte";
import List from "../views/chat/List.svelte";
import Cluster from "../views/cluster/Cluster.svelte";
import NodeDetails from "../views/cluster/NodeDetails.svelte";
import Tables from "../views/cluster/Tables.svelte";
import Doctor from "../views/doctor/Doctor.svelte";
import Devices from "../views/devices/Devices.svelte";
import Instances from "../views/instances/Instances.svelte";
import Integrations from "../views/integrations/Integrations.svelte";
import Logs from "../views/logs/Logs.svelte";
import Downloads from "../views/models/Downloads.svelte";
import ModelList from "../views/models/ModelList.svelte";
import OnDisk from "../views/models/OnDisk.svelte";
import Place from "../views/models/Place.svelte";
import Metrics from "../views/metrics/Metrics.svelte";
import Requests from "../views/requests/Requests.svelte";

const VIEWS: Record<string, Component> = { Cluster, Devices, Instances };

/** What the node answers, by path; everything else is an empty list. */
const ANSWERS: Record<string, (query: URLSearchParams) => unknown> = {
  "/exo/v1/doctor": () => telemetry.checks(fixtures.home().nodes),
  "/exo/v1/plan": () => plan({ model: "qwen3-32b-q4" }),
  "/exo/v1/logs": (query) => telemetry.logs(query, fixtures.home().nodes),
  "/exo/v1/requests/recent": () => telemetry.recent(),
  "/exo/v1/telemetry": () => telemetry.telemetry({ ...fixtures.home(), ...(cluster.view ?? {}) }),
  "/exo/v1/members": () => fixtures.lost().nodes.map((node: { id: string; name: string; is_self: boolean }) => ({ node: node.id, name: node.name, role: "worker", is_self: node.is_self })),
  "/exo/v1/series": (query) => telemetry.series([...query.values()][0]!, [...query.keys()][0]!),
};
vi.stubGlobal("fetch", async (path: string) => {
  const url = new URL(path, "http://stub");
  return new Response(JSON.stringify(ANSWERS[url.pathname]?.(url.searchParams) ?? []));
});
HTMLDialogElement.prototype.showModal ??= () => {};
Element.prototype.scrollTo ??= () => {};

function draw(view: Component, scenario: keyof typeof fixtures | null): HTMLElement {
  session.state = "in";
  session.view = { access: "owner", node: "n", name: "desk", version: "1" };
  cluster.stop();
  if (scenario) cluster.take({ event: "snapshot", id: "1-1", data: JSON.stringify({ at_unix_ms: Date.now(), cluster: fixtures[scenario]() }) });
  const target = document.createElement("div");
  const mounted = mount(view, { target });
  flushSync();
  undo.push(() => void unmount(mounted));
  return target;
}

function drawWith<Props extends Record<string, unknown>>(view: Component<Props>, props: Props): HTMLElement {
  const target = document.createElement("div");
  const mounted = mount(view, { target, props });
  flushSync();
  undo.push(() => void unmount(mounted));
  return target;
}

let undo: (() => void)[] = [];
afterEach(() => {
  undo.forEach((run) => run());
  undo = [];
});

for (const [name, view] of Object.entries(VIEWS)) {
  test(`${name} is drawn in every state`, () => {
    expect(draw(view, null).textContent).toContain("Asking the node");
    for (const scenario of Object.keys(fixtures) as (keyof typeof fixtures)[]) expect(draw(view, scenario).querySelector("h1"), scenario).not.toBeNull();
  });

  test(`${name} shows hostile names as text`, () => {
    const drawn = draw(view, "hostile");
    expect(drawn.textContent).toContain("<img src=x onerror=");
    expect(drawn.querySelector("img, script, b > b")).toBeNull();
    expect(drawn.textContent).not.toContain("\u202e");
  });
}

test("two models of one name can both be chosen, and neither takes the page away", async () => {
  const model = (id: string, needs_id: boolean) => ({ id: id.repeat(64), name: "twin", needs_id, nodes: ["desk"], architecture: "llama", format: "gguf", layers: 1, weight_bytes: 1, context_tokens_max: 1, chat: true });
  session.state = "in";
  session.view = { access: "owner", node: "n", name: "desk", version: "1" };
  ANSWERS["/exo/v1/models"] = () => [model("a", false), model("b", true)];
  await models.load();
  delete ANSWERS["/exo/v1/models"];
  undo.push(() => ((models.names = []), (models.list = null)));
  expect(models.names).toEqual(["twin", "b".repeat(64)]);
  const options = [...drawWith(Composer, { onedit: () => {} }).querySelectorAll("option")].map((one) => one.textContent);
  expect(options).toEqual(expect.arrayContaining(["twin", "twin (bbbbbbbbbbbb)"]));
  expect(draw(Integrations, null).textContent).toContain("twin");
});

test("a lost node says what is missing, since when and whose it was", () => {
  const text = draw(Instances, "lost").textContent!;
  expect(text).toContain("waiting");
  expect(text).toContain("layers 40..58 need 3.4 GiB more");
  // The instance waits for 2 s, and its layers are missing for longer.
  expect(text).toMatch(/was on tower\/gpu0, missing 12 min/);
  expect(text).toMatch(/missing for 12 min/);
});

test("one machine alone is told how to add another", () => {
  expect(draw(Cluster, "empty").textContent).toContain("Make a code");
  expect(draw(Instances, "empty").textContent).toContain("No model is placed.");
});

test("a sensor that answers no number is not reported, never zero", () => {
  const text = draw(Devices, "hostile").textContent!;
  expect(text).toContain("Temperature");
  expect(text).toContain("not reported");
  expect(text).not.toContain("NaN");
});

test("who asks to join is shown with its words and its own name", () => {
  const text = draw(Cluster, "home").textContent!;
  for (const word of ["pixel-8", "amber", "river", "violin", "seven", "Refuse…", "Shut now…"]) expect(text).toContain(word);
  expect(text).toMatch(/join by themselves\. \d:\d\d left/);
});

test("alerts say what to do, the worst first; what is silenced or over is not counted", () => {
  const shown = draw(Alerts, "lost");
  expect(shown.textContent).toContain("Start exo on tower");
  alerts.take([alert("a", "info", "x", "", ""), alert("b", "critical", "y", "", ""), alert("c", "warning", "z", "", "", { silenced_until_unix_s: 9e9 }), alert("d", "critical", "w", "", "", { resolved_unix_s: 1 }), alert("e", "weather", "v", "", "")]);
  expect(alerts.active.map((one) => one.rule)).toEqual(["b", "a", "e"]);
  flushSync();
  expect([...shown.querySelectorAll("li h2")].map((title) => title.textContent)).toEqual(["y", "z", "x", "v"]);
});

test("who does not see the menu hears how many alerts there are, and that there are none any more", () => {
  const shown = draw(Shell, "home");
  const said = () => shown.querySelector("p.hidden[role=status]")!.textContent;
  alerts.take([alert("a", "warning", "x", "", ""), alert("b", "info", "y", "", "", { resolved_unix_s: 1 })]);
  flushSync();
  expect(said()).toBe("1 alert");
  alerts.take([]);
  flushSync();
  expect(said()).toBe("");
});

test("what is seen beside the field for a secret is what it is called", () => {
  session.state = "out";
  const shown = drawWith(Login, {});
  const field = shown.querySelector("input")!;
  expect([field.labels![0]!.textContent, field.getAttribute("aria-label")]).toEqual([t.login.secret, null]);
  expect(shown.querySelector(`#${field.getAttribute("aria-describedby")}`)!.textContent).toBe(t.login.paste);
});

test("before the node has said what is wrong, the page does not say that nothing is", () => {
  alerts.list = null;
  expect(draw(Alerts, null).textContent).not.toContain(t.alerts.none);
  expect(draw(Alerts, "empty").textContent).toContain(t.alerts.none);
});

test("log lines of all nodes are shown as text, with who did not answer", async () => {
  const shown = draw(Logs, "home");
  await vi.waitFor(() => expect(shown.textContent).toContain("attic did not answer"));
  expect(shown.textContent).toContain("<script>window.__pwned=1</script> �");
  expect(shown.querySelector("script")).toBeNull();
});

test("the checks of every node are shown, the worst first, as text, with who did not answer", async () => {
  const shown = draw(Doctor, "home");
  await vi.waitFor(() => expect(shown.textContent).toContain("attic was not looked over: it did not answer within 35 s"));
  expect([...shown.querySelectorAll("h2")].map((title) => title.textContent)).toHaveLength(3);
  const rows = [...shown.querySelector("tbody")!.rows].map((row) => row.textContent);
  expect(rows[0]).toContain("say how much models may take");
  expect(rows[1]).toContain("<script>window.__pwned=1</script>");
  expect(rows[2]).toContain("works");
  expect(shown.textContent).toContain("1 broken, 1 warning");
  expect(shown.querySelector("script")).toBeNull();
});

test("an instance says on demand why each device has layers of it or none", async () => {
  const shown = draw(Instances, "lost");
  expect(shown.textContent).not.toContain("left out: its link costs");
  const details = [...shown.querySelectorAll("details")].find((one) => one.textContent!.includes("Why these devices"))!;
  details.open = true;
  await vi.waitFor(() => expect(details.textContent).toContain("left out: its link costs 3.8 ms for each token"));
  const yes = [...details.querySelectorAll("tbody tr")].map((row) => row.children[1]!.textContent);
  expect(yes).toEqual(["yes", "yes", "yes"]);
});

test("a device says on demand why it has no layers of what is placed, and one plan is asked for each model", async () => {
  const plans: string[] = [];
  const answer = globalThis.fetch;
  vi.stubGlobal("fetch", async (path: string, init?: RequestInit) => {
    if (path === "/exo/v1/plan") plans.push(JSON.parse(String(init!.body)).model);
    return answer(path, init);
  });
  const shown = draw(Devices, "home");
  const of = (device: string) => [...shown.querySelectorAll(`article[aria-label="${device}"] details`)].find((one) => one.textContent!.includes("Why it has no layers")) as HTMLDetailsElement | undefined;
  expect(plans).toEqual([]);
  // It has layers of the first model and none of the second; another device has none of either.
  of("laptop/cpu")!.open = true;
  await vi.waitFor(() => expect(of("laptop/cpu")!.textContent).toContain("llama-3.2-3b-q8: left out: its link costs 3.8 ms for each token"));
  expect(of("laptop/cpu")!.textContent).not.toContain("qwen3-32b-q4");
  of("desk/cpu")!.open = true;
  await vi.waitFor(() => expect(of("desk/cpu")!.textContent).toMatch(/qwen3-32b-q4: the planner does not count this device now/));
  expect(plans.map((model) => model.slice(0, 2))).toEqual(["i2", "i1"]);
  // What is in quarantine says so by itself.
  expect(of("desk/gpu1")).toBeUndefined();
  vi.stubGlobal("fetch", answer);
});

const placeable = { id: "a".repeat(64), name: "m", architecture: "llama", format: "gguf", weight_bytes: 1, layers: 1, context_tokens_max: 1, path: null, nodes: ["desk"], chat: true };

test("other plans stand below the plan with their speed, or with what is missing for them", async () => {
  draw(Instances, "home");
  const shown = drawWith(Place, { model: placeable });
  const row = (name: string) => [...shown.querySelectorAll("tbody tr")].find((row) => row.children[0]!.textContent!.includes(name));
  await vi.waitFor(() => expect(row("without tower/gpu0")).toBeDefined());
  expect(row("without tower/gpu0")!.textContent).toMatch(/laptop\/cpu \d+\.\.64.*9/);
  expect(row("alone on desk/gpu0")!.textContent).toMatch(/3\.50? GiB are missing/);
});

test("a number that is none is named where a model is placed, and nothing is placed with it", async () => {
  draw(Instances, "home");
  const shown = drawWith(Place, { model: placeable });
  const [context, slots] = [...shown.querySelectorAll<HTMLInputElement>(".fields input")];
  const button = () => shown.querySelector<HTMLButtonElement>("button.primary")!;
  const type = (input: HTMLInputElement, text: string) => {
    input.value = text;
    input.dispatchEvent(new Event("input", { bubbles: true }));
    flushSync();
  };
  await vi.waitFor(() => expect(button().disabled).toBe(false));
  for (const [input, text] of [[context!, "1k"], [slots!, "-5"], [context!, "0"]] as const) {
    type(input, text);
    expect(shown.textContent).toContain(`${text} is not a whole number`);
    expect([input.getAttribute("aria-invalid"), button().disabled]).toEqual(["true", true]);
    type(input, "2");
    await vi.waitFor(() => expect(button().disabled).toBe(false));
    expect(shown.textContent).not.toContain("is not a whole number");
  }
});

test("what another machine fetches for a placed model is among the downloads", () => {
  const text = draw(Downloads, "home").textContent!;
  expect(text).toContain("llama-3.2-3b-q8, layers 0 to 11 to attic");
  expect(text).toContain("31 %");
  expect(text).toContain("from desk, 11 MB/s, 3 min left");
  expect(draw(Downloads, "lost").textContent).not.toContain("For placed models");
});

test("a download from several at once says what each gave, and one from a single source does not", () => {
  const [several, single] = telemetry.pulls();
  downloads.take([several, single] as PullView[]);
  undo.push(() => (downloads.list = null));
  const rows = [...draw(Downloads, "home").querySelectorAll("[aria-label='What came from where']")].map((list) => [...list.children].map((row) => row.textContent));
  expect(rows).toEqual([["tower 1.3 GiB at 21 MB/s", "the hub 668 MiB at 10 MB/s"]]);
});

test("what another machine fetches from a hub is among the downloads", () => {
  Object.assign(measured, { view: null });
  expect(draw(Downloads, "home").textContent).not.toContain("Of other machines");
  Object.assign(measured, { view: telemetry.telemetry(fixtures.home()) });
  const text = draw(Downloads, "home").textContent!;
  Object.assign(measured, { view: null });
  for (const word of ["Of other machines", "hf.co/example/Tiny-GGUF:Q4_K_M", "fetching · to attic", "25 %", "from tower 1.3 GiB at 21 MB/s, the hub 668 MiB at 10 MB/s, 31 MB/s"]) expect(text).toContain(word);
});

test("shutting the node down asks once and names what stops", async () => {
  const shown = draw(Cluster, "home");
  const button = () => [...shown.querySelectorAll("button")].filter((one) => one.textContent === "Shut down…");
  await vi.waitFor(() => expect(button()).toHaveLength(1));
  const asked: string[] = [];
  const answer = globalThis.fetch;
  vi.stubGlobal("fetch", async (path: string, init?: RequestInit) => (asked.push(`${init?.method} ${path}`), answer(path, init)));
  button()[0]!.click();
  await vi.waitFor(() => expect(notices.question?.lines.join(" ")).toContain("qwen3-32b-q4"));
  expect(asked).not.toContain("POST /exo/v1/shutdown");
  notices.question!.answer(true);
  await vi.waitFor(() => expect(asked).toContain("POST /exo/v1/shutdown"));
  vi.stubGlobal("fetch", answer);
});

test("a log line that comes twice is shown once, and a node that is started again has new ones", () => {
  const line = (number: number, at_unix_ms: number) => ({ node: "n", name: "n", number, at_unix_ms, level: "info" as const, target: "t", text: "x" });
  expect(merged([line(1, 10), line(2, 20)], [line(2, 20), line(1, 30)]).map((one) => one.at_unix_ms)).toEqual([10, 20, 30]);
});

test("a device says what its memory holds, that it is slowed down, and why a sensor is silent", async () => {
  const shown = draw(Devices, "home");
  await vi.waitFor(() => expect(shown.textContent).toContain("slowed down for heat or power"));
  for (const word of ["workspace", "this driver does not tell it", "not used", "built-in graphics", "Why it is not used:"]) expect(shown.textContent).toContain(word);
});

test("a device shows its rates by type of weights and what its steps have taught", () => {
  const text = draw(Devices, "home").textContent!;
  for (const word of ["With Q4_K", "410 GFLOP/s", "With BF16", "(12 passes, 3 min ago)", "(1 pass, 2 d ago)", "31 passes, 2 h ago", "Corrected by its steps", "reading to 87 %"]) expect(text).toContain(word);
  expect(text).not.toContain("arithmetic to");
});

test("silences end by the node's clock", () => {
  draw(Alerts, "home");
  const hour_s = 3600;
  alerts.skew_ms = hour_s * 1000;
  alerts.take([alert("a", "warning", "x", "", "", { silenced_until_unix_s: Date.now() / 1000 + hour_s / 2 })]);
  expect(alerts.active).toHaveLength(1);
});

test("ended requests show where their time went, and lead to their log lines", async () => {
  const shown = draw(Requests, "home");
  await vi.waitFor(() => expect(shown.textContent).toContain("length limit"));
  expect(shown.querySelector("[role=img]")?.getAttribute("aria-label")).toBe("waits 0 ms, reads the prompt 420 ms, answers 5.98 s");
  expect(shown.querySelector("a[href^='#/logs/41aa']")).not.toBeNull();
});

test("a request's stages are bars, with the same numbers in a table", async () => {
  const shown = draw(Requests, "home");
  await vi.waitFor(() => expect(shown.querySelectorAll("details")).toHaveLength(2));
  expect(shown.querySelector("details table")).toBeNull();
  for (const details of shown.querySelectorAll("details")) details.open = true;
  await vi.waitFor(() => expect(shown.querySelectorAll("details table")).toHaveLength(2));
  const [first, second] = shown.querySelectorAll("details");
  const spoken = (details: Element) => [...details.querySelectorAll("[role=img]")].map((bar) => bar.getAttribute("aria-label"));
  expect(spoken(first!)).toEqual([
    "until the first token: stage 1: a1/cpu 120 ms, stage 2: b2/gpu0 210 ms, links, and waiting for other steps 30 ms",
    "a token behind it, on average: stage 1: a1/cpu 13.1 ms, stage 2: b2/gpu0 9.6 ms, links, and waiting for other steps 1.21 ms",
  ]);
  expect(spoken(second!)[0]).toContain("until the first token: waits 300 ms, stage 1");
  const cells = [...first!.querySelectorAll("tbody > tr")].map((row) => [...row.children].map((cell) => cell.textContent));
  expect(cells[0]).toEqual(["stage 1: a1/cpu", "120 ms", "2.6 s", "13.1 ms"]);
  expect(cells).toHaveLength(3);
});

test("an interrupted request says how long it may stay so", async () => {
  const request = { id: "ab".repeat(16), index: 0, model: "m", principal: "local", phase: "interrupted", waits_for: null, interrupted_ms: 3000, interrupted_left_ms: 57_000, prompt_tokens: 1, tokens: 2, age_ms: 9000, resumed: 1 };
  ANSWERS["/exo/v1/requests"] = () => [request, { ...request, index: 1, phase: "decode", interrupted_left_ms: null }];
  const shown = draw(Requests, "home");
  await vi.waitFor(() => expect(shown.querySelector("tbody")?.rows).toHaveLength(2));
  delete ANSWERS["/exo/v1/requests"];
  const [broken, whole] = [...shown.querySelector("tbody")!.rows].map((row) => row.cells[2]!.textContent);
  expect(broken).toContain("ends with an error in 57 s unless it goes on");
  expect(whole).not.toContain("ends with an error");
  expect(whole).toContain("went on once");
});

test("a link says what part of its packets is lost, small parts too, or that nobody knows", () => {
  const view = fixtures.home();
  Object.assign(view.links[0], { loss: { share: 0.004, packets: 5000, window_s: 60 } });
  const tables = drawWith(Tables, { view, selected: null, onselect: () => {} }).querySelectorAll("table");
  const at = [...tables[1]!.tHead!.rows[0]!.cells].findIndex((cell) => cell.textContent === "Loss");
  expect([...tables[1]!.tBodies[0]!.rows].slice(0, 2).map((row) => row.cells[at]!.textContent)).toEqual(["0.4 %", t.dash]);
});

test("the last hour is told in words beside its pictures", async () => {
  const shown = draw(Metrics, "home");
  await vi.waitFor(() => expect(shown.textContent).toMatch(/Tokens per second now [\d.]+, between [\d.]+ and [\d.]+/));
});

test("an event that cannot be read asks for a new snapshot; a delta before one changes nothing", () => {
  const store = new ClusterStore();
  store.take({ event: "delta", id: "1", data: '{"at_unix_ms":1,"changes":[{"kind":"node_gone","id":"x"}]}' });
  expect(store.view).toBeNull();
  expect(() => store.take({ event: "snapshot", id: "2", data: "{" })).toThrow();
});

test("a member says when it was last seen, and one that never came says so", async () => {
  const shown = draw(Cluster, "lost");
  await vi.waitFor(() => expect(shown.textContent).toContain("not since this node was started"));
  expect(shown.textContent).toContain("Last seen");
  expect(shown.textContent).toMatch(/\d+ (s|min) ago/);
});

test("an alert has its section of the runbook, and one of a newer node says where it stands", async () => {
  const shown = draw(Alerts, "home");
  alerts.take([alert("disk_low", "warning", "x", "", "", { runbook: "docs/runbook.md#disk_low" }), alert("weather", "info", "y", "", "", { runbook: "docs/runbook.md#weather" })]);
  flushSync();
  for (const details of shown.querySelectorAll("details")) details.open = true;
  await vi.waitFor(() => expect(shown.textContent).toContain("This page has no such section: see docs/runbook.md#weather."));
  await vi.waitFor(() => expect(shown.textContent).toContain("exo prune"));
});

test("the examples have the right kind of key", () => {
  const shown = draw(Integrations, "home");
  expect(shown.textContent).toContain("Bearer local");
  session.view = { ...session.view!, needs_key: true };
  flushSync();
  expect(shown.textContent).toContain("Bearer YOUR_KEY");
  expect(shown.textContent).not.toContain("Bearer local");
});

test("what was typed and not sent is there again once another page was looked at, in its conversation alone", async () => {
  const area = () => drawWith(Composer, { onedit: () => {} }).querySelector("textarea")!;
  const other = conversation({ title: "Other" });
  conversations.fresh("m");
  const typed = area();
  typed.value = "half a thought";
  typed.dispatchEvent(new Event("input", { bubbles: true }));
  undo.splice(0).forEach((run) => run());
  const again = area();
  await vi.waitFor(() => expect(again.value).toBe("half a thought"));
  conversations.current = other;
  await vi.waitFor(() => expect(again.value).toBe(""));
  expect(sessionStorage.getItem("exo-draft-new")).toBe("half a thought");
  conversations.current = null;
  keepDraft("new", "");
});

test("an edit that was begun goes on when its conversation is shown again, until it is given up", async () => {
  const mine = conversation({ title: "T", model: "m" });
  const said = message({ conversation: mine.id, parent: "", role: "user", content: "first" });
  conversations.current = mine;
  conversations.tree = new Map([[said.id, said]]);
  const area = () => drawWith(Chat, {}).querySelector<HTMLTextAreaElement>(`article textarea`);
  expect(area()).toBeNull();
  keepDraft(editDraft(said), "second");
  undo.splice(0).forEach((run) => run());
  const edit = area()!;
  expect(edit.value).toBe("second");
  edit.value = "third";
  edit.dispatchEvent(new Event("input", { bubbles: true }));
  expect(draftOf(editDraft(said))).toBe("third");
  edit.dispatchEvent(new KeyboardEvent("keydown", { key: "Escape", bubbles: true }));
  expect(draftOf(editDraft(said))).toBe("");
  conversations.current = null;
});

test("two machines of one name are told apart where a model is placed", async () => {
  const home = fixtures.home();
  const [other, desk] = [home.nodes.find((node: { name: string }) => node.name === "tower"), home.nodes.find((node: { name: string }) => node.name === "desk")];
  other.name = "desk";
  const free_gib = (gib: number) => gib * 1024 ** 3;
  desk.devices[1].memory_free_bytes = free_gib(100);
  other.devices[1].memory_free_bytes = free_gib(200);
  draw(Instances, null);
  cluster.take({ event: "snapshot", id: "1-1", data: JSON.stringify({ at_unix_ms: Date.now(), cluster: home }) });
  const shown = drawWith(Place, { model: placeable });
  await vi.waitFor(() => expect(shown.querySelectorAll("li small")).toHaveLength(2));
  expect([...shown.querySelectorAll("li small")].map((one) => one.textContent)).toEqual([expect.stringContaining("100 GiB free"), expect.stringContaining("200 GiB free")]);
  const selects = [...shown.querySelectorAll<HTMLSelectElement>(".device select")].filter((_, at) => shown.querySelectorAll(".device span")[at]!.textContent!.startsWith("desk/gpu0"));
  expect(selects).toHaveLength(2);
  const asked: string[][] = [];
  const answer = globalThis.fetch;
  vi.stubGlobal("fetch", async (path: string, init?: RequestInit) => (path === "/exo/v1/plan" && asked.push(JSON.parse(String(init!.body)).exclude), answer(path, init)));
  selects[1]!.value = "exclude";
  selects[1]!.dispatchEvent(new Event("change", { bubbles: true }));
  await vi.waitFor(() => expect(asked).toEqual([[`${home.nodes.filter((node: { name: string }) => node.name === "desk")[1].id}/gpu0`]]));
  vi.stubGlobal("fetch", answer);
});

test("a device says its driver, or that nothing tells it; a processor has none", () => {
  const shown = draw(Devices, "home");
  const header = (device: string) => shown.querySelector(`article[aria-label="${device}"] header`)!.textContent;
  expect(header("desk/gpu0")).toContain("Driver: CUDA 12.4, compute capability 8.9, NVIDIA 550.54.14");
  expect(header("tower/gpu0")).toContain("Driver: not reported");
  expect(header("desk/cpu")).not.toContain("Driver");
});

test("where the browser refuses to keep conversations the page says so", () => {
  expect(drawWith(List, { search: undefined }).textContent).not.toContain(t.chat.no_storage);
  conversations.isKept = false;
  expect(drawWith(List, { search: undefined }).textContent).toContain(t.chat.no_storage);
  conversations.isKept = true;
});

test("the title of an imported conversation is a stranger's", () => {
  const before = conversations.list;
  conversations.list = [conversation({ title: "<b>one</b>\u202eowt\n" }), conversation({ title: "\u0000" }), conversation({})];
  const shown = drawWith(List, { search: undefined });
  expect([...shown.querySelectorAll("li span")].map((one) => one.textContent)).toEqual(["<b>one</b>�owt�", "�", t.chat.untitled]);
  expect(shown.querySelectorAll("li button")[0]!.getAttribute("aria-label")).toBe(`${t.chat.remove} <b>one</b>�owt�`);
  conversations.list = before;
});

test("what a question names twice is asked about all the same", () => {
  void notices.confirm({ title: "Q", lines: ["m", "m"], action: "A", danger: true });
  expect([...drawWith(Confirm, {}).querySelectorAll("li")].map((one) => one.textContent)).toEqual(["m", "m"]);
  notices.question!.answer(false);
});

/** What is sent while `run` runs, as `POST PATH BODY`; `refuses` says which of these the node refuses. */
async function sentWhile(run: () => Promise<unknown>, refuses: (sent: string) => number | null = () => null): Promise<string[]> {
  const answer = globalThis.fetch;
  const sent: string[] = [];
  vi.stubGlobal("fetch", async (path: string, init?: RequestInit) => {
    if (!init?.method || init.method === "GET") return answer(path, init);
    sent.push(`${init.method} ${path} ${String(init.body ?? "")}`);
    const status = refuses(sent.at(-1)!);
    const code = status === 404 ? "not_found" : status === 409 ? "conflict" : "x";
    return status === null ? new Response(null, { status: 204 }) : new Response(JSON.stringify({ error: { code, message: "refused so" } }), { status });
  });
  await run().finally(() => vi.stubGlobal("fetch", answer));
  return sent;
}

test("a silence begins with its button, not on the way through the times", async () => {
  const shown = draw(Alerts, "home");
  alerts.take([alert("disk_low", "warning", "attic", "", "")]);
  flushSync();
  const select = shown.querySelector("select")!;
  const sent = await sentWhile(async () => {
    for (const seconds of ["28800", "86400"]) {
      select.value = seconds;
      select.dispatchEvent(new Event("change", { bubbles: true }));
      flushSync();
    }
    shown.querySelector("form")!.dispatchEvent(new Event("submit", { cancelable: true }));
    await vi.waitFor(() => expect(notices.list.at(-1)?.text).toBe(t.alerts.silenced));
  });
  expect(sent).toEqual(['POST /exo/v1/alerts/silence {"alert":"disk_low:attic","for_s":86400}']);
});

test("the end of a silence is called that, and that of a whole rule is asked about", async () => {
  const shown = draw(Alerts, "home");
  alerts.take([alert("disk_low", "warning", "attic", "", "", { silenced_until_unix_s: 9e9 })]);
  flushSync();
  const button = () => [...shown.querySelectorAll("button")].find((one) => one.textContent === t.alerts.unsilence)!;
  const press = async () => (button().click(), vi.waitFor(() => expect(notices.list.at(-1)?.text).toBe(t.alerts.unsilenced)));
  expect(await sentWhile(press)).toEqual(['POST /exo/v1/alerts/silence {"alert":"disk_low:attic","for_s":0}']);
  notices.list = [];
  let isWhole = true;
  const whole = async () => {
    button().click();
    await vi.waitFor(() => expect(notices.question?.title).toContain("disk_low"));
    isWhole = false;
    notices.question!.answer(true);
    await vi.waitFor(() => expect(notices.list.at(-1)?.text).toBe(t.alerts.unsilenced));
  };
  const bodies = await sentWhile(whole, () => (isWhole ? 400 : null));
  expect(bodies.map((one) => one.replace(/.*"alert":"([^"]*)".*/, "$1"))).toEqual(["disk_low:attic", "disk_low", "disk_low:attic"]);
  notices.list = [];
});

test("more alerts than the first page shows are said to be there", () => {
  const shown = draw(Cluster, "home");
  alerts.take(["a", "b", "c", "d", "e", "f"].map((rule) => alert(rule, "warning", rule, "", "")));
  flushSync();
  expect(shown.querySelector("a[href='#/alerts']")!.textContent).toBe("2 more alerts");
  alerts.take([]);
  flushSync();
  expect(shown.querySelector("a[href='#/alerts']")).toBeNull();
});

test("where it is not known whether answers run, no question says that none do", async () => {
  const answer = globalThis.fetch;
  vi.stubGlobal("fetch", async (path: string, init?: RequestInit) => {
    if (path === "/exo/v1/requests") throw new TypeError("refused");
    return answer(path, init);
  });
  const shown = draw(Cluster, "home");
  const button = (root: Element, text: string) => [...root.querySelectorAll("button")].find((one) => one.textContent === text);
  await vi.waitFor(() => expect(button(shown, "Shut down…")).toBeDefined());
  button(shown, "Shut down…")!.click();
  await vi.waitFor(() => expect(notices.question?.lines[0]).toContain("not known"));
  notices.question!.answer(false);
  vi.stubGlobal("fetch", answer);
  // Its first node has not said yet what it does.
  button(draw(Instances, "lost"), "Unload…")!.click();
  await vi.waitFor(() => expect(notices.question?.lines[0]).toContain("not known"));
  notices.question!.answer(false);
});

test("while another plan is looked for the button says so, and cannot be pressed again", async () => {
  const button = () => shown.querySelector<HTMLButtonElement>("button[aria-busy]")!;
  const shown = draw(Instances, "lost");
  const sent = await sentWhile(async () => {
    button().click();
    flushSync();
    expect([button().disabled, button().textContent]).toEqual([true, t.models.planning]);
    button().click();
    await vi.waitFor(() => expect(button().disabled).toBe(false));
  }, () => 500);
  expect(sent).toHaveLength(1);
  expect(notices.list.at(-1)?.text).toBe("refused so");
  notices.list = [];
});

test("the last hour stays where the node does not answer once", async () => {
  vi.useFakeTimers();
  let isThere = true;
  const answer = globalThis.fetch;
  vi.stubGlobal("fetch", async (path: string, init?: RequestInit) => (isThere ? answer(path, init) : Promise.reject(new TypeError("refused"))));
  const shown = draw(Metrics, "home");
  await vi.advanceTimersByTimeAsync(100);
  expect(shown.textContent).toContain("Tokens per second now");
  isThere = false;
  await vi.advanceTimersByTimeAsync(5100);
  expect(shown.querySelector("[role=alert]")?.textContent).toBe(t.errors.unreachable);
  expect(shown.textContent).toContain("Tokens per second now");
  vi.useRealTimers();
  vi.stubGlobal("fetch", answer);
});

test("links that the table leaves out are said to be there", () => {
  const view = fixtures.hundred();
  const note = () => drawWith(Tables, { view, selected: null, onselect: () => {} }).textContent;
  expect(note()).not.toContain("of 201 links");
  view.links.push({ ...view.links[0], to: "z" });
  expect(note()).toContain("200 of 201 links");
});

test("more conversations are called conversations", () => {
  const before = conversations.list;
  conversations.list = Array.from({ length: 130 }, (_, at) => conversation({ title: `T${at}` }));
  const shown = drawWith(List, { search: undefined });
  expect([...shown.querySelectorAll("button")].map((one) => one.textContent)).toContain("Show 30 more conversations");
  conversations.list = before;
});

test("where no model could be asked for, the field says why and asks again", async () => {
  const before = models.names;
  Object.assign(models, { names: [], problem: "the node is busy" });
  const shown = drawWith(Composer, { onedit: () => {} });
  expect(shown.querySelector("[role=alert]")!.textContent).toContain("the node is busy");
  ANSWERS["/exo/v1/models"] = () => [placeable];
  shown.querySelector<HTMLButtonElement>("[role=alert] button")!.click();
  await vi.waitFor(() => expect(shown.querySelector("[role=alert]")).toBeNull());
  delete ANSWERS["/exo/v1/models"];
  Object.assign(models, { names: before, list: null });
});

test("lines of one request are those of the level that is chosen", async () => {
  const asked: (string | null)[] = [];
  ANSWERS["/exo/v1/logs"] = (query) => (asked.push(query.get("level")), telemetry.logs(query, fixtures.home().nodes));
  route.rename("logs", "ab".repeat(16));
  const shown = draw(Logs, "home");
  await vi.waitFor(() => expect(asked).toEqual(["trace"]));
  const level = shown.querySelectorAll("select")[1]!;
  level.value = "error";
  level.dispatchEvent(new Event("change", { bubbles: true }));
  await vi.waitFor(() => expect(asked).toEqual(["trace", "error"]));
  route.rename("cluster");
});

test("a member that tells a device, a type of weights and a link twice takes no page away", () => {
  const view = fixtures.home();
  const [first] = view.nodes;
  first.devices.push({ ...first.devices[0] });
  view.nodes.forEach((node: { devices: { rates_by_type?: object[] }[] }) => node.devices.forEach((device) => (device.rates_by_type = [...(device.rates_by_type ?? []), ...(device.rates_by_type ?? [])])));
  view.links.push({ ...view.links[0] });
  for (const page of [Cluster, Devices, Metrics]) {
    const shown = draw(page, "home");
    cluster.take({ event: "snapshot", id: "2-1", data: JSON.stringify({ at_unix_ms: Date.now(), cluster: view }) });
    flushSync();
    expect(shown.querySelector("h1")).not.toBeNull();
  }
});

test("a node that refuses to tell is not called one that does not answer", () => {
  const shown = draw(Shell, "home");
  Object.assign(cluster, { connection: "gone", isRefused: true, problem: "64 readers\u202e read already" });
  flushSync();
  expect(shown.querySelector(".strip.bad")!.textContent).toContain("desk does not tell how things are: 64 readers� read already");
  expect(shown.textContent).not.toContain("does not answer");
  Object.assign(cluster, { isRefused: false });
  flushSync();
  expect(shown.querySelector(".strip.bad")!.textContent).toContain("desk does not answer");
});

test("a node that is gone says for how long, and why nothing of it is shown", () => {
  const view = fixtures.lost();
  const tower = view.nodes.find((node: { name: string }) => node.name === "tower");
  // As a node tells of a member that is away.
  Object.assign(tower, { devices: [], version: "", platform: "" });
  const row = [...drawWith(Tables, { view, selected: null, onselect: () => {} }).querySelectorAll("tr")].find((one) => one.textContent!.includes("tower"))!;
  expect(row.textContent).toContain("lost for 12 min");
  const details = drawWith(NodeDetails, { view, node: tower }).textContent!;
  for (const words of ["Gone for", "12 min", t.devices.away]) expect(details).toContain(words);
  view.links = [];
  expect(drawWith(NodeDetails, { view, node: tower }).textContent).toContain(t.cluster.no_links_of);
  expect(draw(Devices, "lost").textContent).not.toContain(t.devices.away);
  const shown = draw(Devices, "lost");
  cluster.take({ event: "snapshot", id: "3-2", data: JSON.stringify({ at_unix_ms: Date.now(), cluster: view }) });
  flushSync();
  expect(shown.querySelector("section.gone")!.textContent).toContain(t.devices.away);
});

test("a model whose file is gone says so, and its unloading does not promise that the file stays", async () => {
  const view = fixtures.home();
  const panel = () => shown.querySelector("section")!;
  const shown = draw(Instances, "home");
  expect(panel().textContent).not.toContain(t.instances.file_gone);
  Object.assign(view.instances[0], { is_file_gone: true, is_on_demand: true });
  cluster.take({ event: "snapshot", id: "2-1", data: JSON.stringify({ at_unix_ms: Date.now(), cluster: view }) });
  flushSync();
  expect(panel().textContent).toContain(t.instances.file_gone);
  expect(panel().textContent).toContain(t.instances.on_demand);
  panel().querySelector<HTMLButtonElement>("button.danger")!.click();
  await vi.waitFor(() => expect(notices.question?.lines.join(" ")).toContain("could not be loaded again"));
  expect(notices.question!.lines.join(" ")).not.toContain("files stay");
  notices.question!.answer(false);
});

test("a coordinator that this node does not reach is named, and is not being elected", () => {
  const shown = draw(Cluster, "home");
  const view = { ...fixtures.home(), epoch: null };
  const take = (fields: object) => {
    cluster.take({ event: "snapshot", id: "2-1", data: JSON.stringify({ at_unix_ms: Date.now(), cluster: { ...view, ...fields } }) });
    flushSync();
    return shown.querySelector("dl")!.textContent;
  };
  expect(take({})).toContain(t.cluster.electing);
  const tower = view.nodes.find((node: { name: string }) => node.name === "tower");
  expect(take({ unheard_coordinator: { coordinator: tower.id, followed_by: view.self_node } })).toContain("tower, which this node does not reach");
});

test("a disk that does not answer and a key in two places stand beside the node's name", () => {
  const view = fixtures.home();
  const [node] = view.nodes;
  const title = () => drawWith(NodeDetails, { view, node }).querySelector("h3")!.textContent;
  expect([title()!.includes(t.cluster.disk_hung), title()!.includes(t.cluster.forked)]).toEqual([false, false]);
  Object.assign(node, { is_disk_hung: true, has_forked: true });
  expect([title()!.includes(t.cluster.disk_hung), title()!.includes(t.cluster.forked)]).toEqual([true, true]);
});

test("placing anew what answers asks first, and says where nothing was replaced", async () => {
  draw(Instances, "home");
  const [first] = cluster.instances;
  const shown = drawWith(Place, { model: { ...placeable, id: first!.model_id } });
  const [form, box, button] = [shown.querySelector("form")!, shown.querySelector<HTMLInputElement>("input[type=checkbox]")!, shown.querySelector<HTMLButtonElement>("button.primary")!];
  box.checked = true;
  box.dispatchEvent(new Event("change", { bubbles: true }));
  flushSync();
  await vi.waitFor(() => expect(button.disabled).toBe(false));
  const answer = globalThis.fetch;
  const sent: unknown[] = [];
  vi.stubGlobal("fetch", async (path: string, init?: RequestInit) => {
    if (path !== "/exo/v1/instances") return answer(path, init);
    sent.push(JSON.parse(String(init!.body)).replace);
    return new Response(JSON.stringify(first));
  });
  const submit = () => form.dispatchEvent(new Event("submit", { cancelable: true }));
  submit();
  await vi.waitFor(() => expect(notices.question?.lines).toEqual(["2 running and 1 waiting answers end with an error."]));
  notices.question!.answer(false);
  await new Promise((soon) => setTimeout(soon));
  expect(sent).toEqual([]);
  submit();
  await vi.waitFor(() => expect(notices.question).not.toBeNull());
  notices.question!.answer(true);
  await vi.waitFor(() => expect(notices.list.at(-1)?.text).toContain("nothing was replaced"));
  expect(sent).toEqual([true]);
  vi.stubGlobal("fetch", answer);
  notices.list = [];
});

test("how long ago a member was seen grows while nothing new is told", async () => {
  const view = telemetry.telemetry(fixtures.lost());
  view.nodes.forEach((node: { age_s: number }) => (node.age_s = 2));
  const before = ANSWERS["/exo/v1/telemetry"]!;
  ANSWERS["/exo/v1/telemetry"] = () => {
    throw new TypeError("the node is away");
  };
  Object.assign(measured, { view, looks: [{ at_ms: Date.now() - 600_000, view }] });
  const shown = draw(Cluster, "lost");
  await vi.waitFor(() => expect(shown.textContent).toContain("10 min ago"));
  expect(shown.textContent).not.toContain("2 s ago");
  Object.assign(measured, { view: null, looks: [] });
  ANSWERS["/exo/v1/telemetry"] = before;
});

const buttonIn = (root: Element, text: string) => [...root.querySelectorAll("button")].find((one) => one.textContent === text);

/** Presses the first button that says so, and says yes to what is asked. */
async function agree(shown: Element, text: string) {
  await vi.waitFor(() => expect(buttonIn(shown, text)).toBeDefined());
  buttonIn(shown, text)!.click();
  await vi.waitFor(() => expect(notices.question).not.toBeNull());
  notices.question!.answer(true);
}

test("the silence of an alert that is over has ended, of it alone and of its whole rule", async () => {
  const shown = draw(Alerts, "home");
  alerts.take([alert("disk_low", "warning", "attic", "", "", { silenced_until_unix_s: 9e9 })]);
  flushSync();
  const says = (text: string) => vi.waitFor(() => expect(notices.list.at(-1)).toMatchObject({ kind: "good", text }));
  await sentWhile(async () => (buttonIn(shown, t.alerts.unsilence)!.click(), says(t.alerts.silence_over)), () => 404);
  notices.list = [];
  // It ends while the question about its rule is open.
  let isOver = false;
  const whole = async () => {
    buttonIn(shown, t.alerts.unsilence)!.click();
    await vi.waitFor(() => expect(notices.question).not.toBeNull());
    isOver = true;
    notices.question!.answer(true);
    await says(t.alerts.unsilenced);
  };
  await sentWhile(whole, (sent) => (!isOver ? 400 : sent.includes('"disk_low"') ? null : 404));
  notices.list = [];
});

const RUNNING = { id: "ab".repeat(16), index: 0, model: "m", principal: "local", phase: "decode", waits_for: null, interrupted_ms: null, interrupted_left_ms: null, prompt_tokens: 1, tokens: 2, age_ms: 9000, resumed: 0 };
const ENDINGS: Record<string, [() => HTMLElement, string, string]> = {
  "an instance": [() => draw(Instances, "home"), t.instances.unload, t.instances.unloaded("qwen3-32b-q4")],
  "who asks to join": [() => draw(Cluster, "home"), t.cluster.refuse, t.cluster.refused_gone("pixel-8")],
  "a member": [() => draw(Cluster, "home"), t.cluster.remove, t.cluster.removed("laptop")],
  "the work of a member": [() => draw(Cluster, "home"), t.cluster.drain, t.cluster.drained_done("desk")],
  "a request": [() => draw(Requests, "home"), t.requests.cancel, t.requests.ended],
  // A model that is placed is asked nothing about.
  "a model": [() => (draw(Instances, "home"), drawWith(ModelList, { list: [{ ...placeable, id: cluster.instances[0]!.model_id }] })), t.models.forget, t.models.forgotten("m")],
};

for (const [what, [page, button, said]] of Object.entries(ENDINGS)) {
  test(`where ${what} is gone already, ending it has not failed`, async () => {
    ANSWERS["/exo/v1/requests"] = () => [RUNNING];
    const shown = page();
    const end = async () => {
      await agree(shown, button);
      await vi.waitFor(() => expect(notices.list.at(-1)).toMatchObject({ kind: "good", text: said }));
    };
    await sentWhile(end, () => 404);
    notices.list = [];
    delete ANSWERS["/exo/v1/requests"];
  });
}

test("what is refused of a download that has ended has not failed, but to go on with one that is gone has", async () => {
  const [first, second] = telemetry.pulls() as [PullView, PullView];
  let looks = 0;
  ANSWERS["/exo/v1/pulls"] = () => ((looks += 1), [first, second]);
  const shown = draw(Downloads, "home");
  /** What is said once the list was asked for again. */
  const said = async (text: string, status: number, press: () => unknown = () => buttonIn(shown, text)!.click()) => {
    const end = async () => {
      await vi.waitFor(() => expect(buttonIn(shown, text)?.disabled).toBe(false));
      const before = looks;
      await press();
      await vi.waitFor(() => expect(looks).toBeGreaterThan(before));
    };
    await sentWhile(end, () => status);
    return notices.list.splice(0).map((one) => one.text);
  };
  const cancel = (status: number) => said(t.downloads.cancel, status, () => agree(shown, t.downloads.cancel));
  expect([await said(t.downloads.pause, 404), await said(t.downloads.pause, 409), await said(t.downloads.pause, 500)]).toEqual([[], [], ["refused so"]]);
  expect([await said(t.retry, 409), await said(t.retry, 404)]).toEqual([[], ["refused so"]]);
  expect([await cancel(404), await cancel(409)]).toEqual([[], ["refused so"]]);
  delete ANSWERS["/exo/v1/pulls"];
  downloads.list = null;
});

test("who was let in by somebody else is let in, and who only asks no more is not", async () => {
  const before = ANSWERS["/exo/v1/members"]!;
  const shown = draw(Cluster, "home");
  const said = async (kind: string, text: string) => {
    const admit = async () => {
      await agree(shown, t.cluster.admit);
      await vi.waitFor(() => expect(notices.list.at(-1)).toMatchObject({ kind, text }));
    };
    await sentWhile(admit, () => 404);
    notices.list = [];
  };
  await said("bad", "refused so");
  ANSWERS["/exo/v1/members"] = (query) => [...(before(query) as object[]), { node: nodeId(9), name: "pixel-8", role: "worker", is_self: false }];
  await said("good", t.cluster.admitted("pixel-8"));
  ANSWERS["/exo/v1/members"] = before;
});

test("a device that somebody else has tried again is used, and one that was lost meanwhile is not said to be", async () => {
  const view = fixtures.home();
  const gpu = view.nodes.find((node: { name: string }) => node.name === "attic").devices[1];
  ANSWERS["/exo/v1/cluster"] = () => view;
  const shown = draw(Devices, "home");
  const states = { usable: ["good", t.devices.usable_again(gpu.name)], verifying: ["good", t.devices.retried(gpu.name)], lost: ["bad", "refused so"] } as const;
  for (const [state, [kind, text]] of Object.entries(states)) {
    gpu.state = state;
    const retry = async () => {
      buttonIn(shown, t.devices.retry)!.click();
      await vi.waitFor(() => expect(notices.list.at(-1)).toMatchObject({ kind, text }));
    };
    await sentWhile(retry, () => 409);
    notices.list = [];
  }
  delete ANSWERS["/exo/v1/cluster"];
});

test("a model that has come says whether its bytes were checked, and nothing while that is not known", () => {
  const [pull] = telemetry.pulls() as PullView[];
  const done = (id: string, fields: Partial<PullView>) => ({ ...pull!, id, state: "done" as const, sources: [], ...fields });
  downloads.take([done("a", { is_verified: true }), done("b", { is_verified: false }), done("c", { is_verified: null }), done("d", { is_verified: false, state: "fetching" })]);
  undo.push(() => (downloads.list = null));
  const notes = [...draw(Downloads, "home").querySelectorAll("li")].map((row) => [t.downloads.verified, t.downloads.not_verified].filter((text) => row.textContent!.includes(text)));
  expect(notes.slice(-4)).toEqual([[t.downloads.verified], [t.downloads.not_verified], [], []]);
});

test("alerts that are over and not drawn at first are said to be there, and come when they are asked for", () => {
  const shown = draw(Alerts, "home");
  alerts.take(Array.from({ length: 260 }, (_, at) => alert("disk_low", "warning", `n${at}`, "", "", { resolved_unix_s: 1000 - at })));
  flushSync();
  const rows = () => shown.querySelector("tbody")!.rows.length;
  expect(rows()).toBe(200);
  buttonIn(shown, t.alerts.over_more(60))!.click();
  flushSync();
  expect([rows(), shown.querySelectorAll("section button").length]).toEqual([260, 0]);
  alerts.take([]);
});

test("what is said of actions stands in front of the page, so that nobody goes through it to get there", () => {
  session.state = "out";
  const shown = drawWith(App, {});
  const [said, main] = [shown.querySelector("#notices")!, shown.querySelector("main")!];
  expect(said.compareDocumentPosition(main) & Node.DOCUMENT_POSITION_FOLLOWING).not.toBe(0);
});

test("whoever chooses a model by keys stays at the list of models", () => {
  conversations.current = conversation({ model: "a" });
  const shown = drawWith(Composer, { onedit: () => {} });
  document.body.append(shown);
  undo.push(() => shown.remove(), () => (conversations.current = null));
  conversations.current = conversation({ model: "a" });
  flushSync();
  expect(document.activeElement?.tagName).toBe("TEXTAREA");
  shown.querySelector("select")!.focus();
  void conversations.change({ model: "b" });
  flushSync();
  expect(document.activeElement?.tagName).toBe("SELECT");
});

test("an edit in which nothing is typed yet stays open while another model is chosen", () => {
  const mine = conversation({ title: "T", model: "m" });
  const said = message({ conversation: mine.id, parent: "", role: "user", content: "first" });
  [conversations.current, conversations.tree] = [mine, new Map([[said.id, said]])];
  undo.push(() => (conversations.current = null));
  const shown = drawWith(Chat, {});
  const edit = () => shown.querySelector("article textarea");
  buttonIn(shown, t.chat.edit)!.click();
  flushSync();
  expect(edit()).not.toBeNull();
  void conversations.change({ model: "n" });
  flushSync();
  expect(edit()).not.toBeNull();
});

test("on a small screen the list of conversations goes when the open one is chosen", async () => {
  const mine = conversation({ title: "T", model: "m" });
  await conversations.start();
  await conversations.take({ conversations: [mine], messages: [message({ conversation: mine.id, parent: "", role: "user", content: "first" })] });
  await conversations.open(mine.id);
  route.rename("chat", mine.id);
  undo.push(() => route.rename("cluster"), () => (conversations.current = null));
  const shown = drawWith(Chat, {});
  const listed = () => shown.querySelector("aside")!.classList.contains("listed");
  // The address has been followed once.
  await new Promise((soon) => setTimeout(soon, 50));
  flushSync();
  shown.querySelector<HTMLButtonElement>("button.toggle")!.click();
  flushSync();
  expect(listed()).toBe(true);
  shown.querySelector<HTMLAnchorElement>("aside li a[aria-current]")!.click();
  flushSync();
  expect(listed()).toBe(false);
});

test("following the log scrolls its lines, not the page around them", async () => {
  const page = vi.spyOn(Element.prototype, "scrollIntoView");
  const shown = draw(Logs, "home");
  const lines = shown.querySelector("[role=log]")!;
  Object.defineProperty(lines, "scrollHeight", { value: 700 });
  await vi.waitFor(() => expect(lines.scrollTop).toBe(700));
  expect(page).not.toHaveBeenCalled();
  page.mockRestore();
});

test("the way from an instance to the chat asks its model by its id where the name means another one", async () => {
  models.list = null;
  const id = fixtures.home().instances[0].model_id;
  ANSWERS["/exo/v1/models"] = () => [{ ...placeable, name: "qwen3-32b-q4" }, { ...placeable, id, name: "qwen3-32b-q4", needs_id: true }];
  undo.push(() => ((models.names = []), (models.list = null)));
  const shown = draw(Instances, "home");
  await vi.waitFor(() => expect(shown.querySelector("a.button")!.getAttribute("href")).toBe(`#/chat/new/${id}`));
  delete ANSWERS["/exo/v1/models"];
});

test("a node that was chosen in the table is given up again, and one that has left hides no links", () => {
  const view = fixtures.hundred();
  const asked: (string | null)[] = [];
  const [first] = view.nodes as { id: string }[];
  const drawn = (selected: string | null) => drawWith(Tables, { view, selected, onselect: (id: string | null) => void asked.push(id) });
  const links = (shown: HTMLElement) => shown.querySelectorAll("tbody")[1]?.rows.length;
  expect([null, "f".repeat(64), first!.id].map((selected) => links(drawn(selected)))).toEqual([200, 200, 4]);
  for (const selected of [null, first!.id]) drawn(selected).querySelector<HTMLButtonElement>("button.name")!.click();
  expect(asked).toEqual([first!.id, null]);
  view.links = view.links.filter((link: { from: string; to: string }) => link.from !== first!.id && link.to !== first!.id);
  expect([drawn(first!.id).textContent!.includes(t.cluster.no_links_chosen), drawn(first!.id).textContent!.includes(t.cluster.no_links)]).toEqual([true, false]);
});

test("a plan is made anew when a machine has changed, not when its numbers waver", async () => {
  let plans = 0;
  const answer = globalThis.fetch;
  vi.stubGlobal("fetch", async (path: string, init?: RequestInit) => ((plans += path === "/exo/v1/plan" ? 1 : 0), answer(path, init)));
  draw(Instances, "home");
  const shown = drawWith(Place, { model: placeable });
  const take = (view: unknown) => (cluster.take({ event: "snapshot", id: "2-1", data: JSON.stringify({ at_unix_ms: Date.now(), cluster: view }) }), flushSync());
  await vi.waitFor(() => expect(shown.querySelector<HTMLButtonElement>("button.primary")!.disabled).toBe(false));
  const view = fixtures.home();
  view.nodes[0].process_bytes += 1;
  take(view);
  await new Promise((soon) => setTimeout(soon, 300));
  expect(plans).toBe(1);
  take(fixtures.lost());
  await vi.waitFor(() => expect(plans).toBe(2));
  vi.stubGlobal("fetch", answer);
});

test("two tags of one model of another program are both shown", async () => {
  const tag = (name: string) => ({ name, program: "ollama", path: "/blobs/sha256-1", bytes: 5e9, sha256: null, problem: null });
  ANSWERS["/exo/v1/found"] = () => [tag("qwen3:8b"), tag("qwen3:latest")];
  const shown = drawWith(OnDisk, {});
  await vi.waitFor(() => expect([...shown.querySelectorAll("li b")].map((one) => one.textContent)).toEqual(["qwen3:8b", "qwen3:latest"]));
  delete ANSWERS["/exo/v1/found"];
});

test("conversations that the browser does not give or delete are said to be there still", async () => {
  const before = conversations.list;
  conversations.list = [conversation({ title: "T" })];
  const [all, remove] = [vi.spyOn(conversations, "all"), vi.spyOn(conversations, "remove")];
  all.mockRejectedValue(new DOMException("", "UnknownError"));
  remove.mockRejectedValue(new DOMException("", "UnknownError"));
  const shown = drawWith(List, { search: undefined });
  buttonIn(shown, t.chat.export_all)!.click();
  await vi.waitFor(() => expect(notices.list.at(-1)).toMatchObject({ kind: "bad", text: t.chat.export_failed }));
  shown.querySelector<HTMLButtonElement>("li button")!.click();
  await vi.waitFor(() => expect(notices.question).not.toBeNull());
  notices.question!.answer(true);
  await vi.waitFor(() => expect(notices.list.at(-1)).toMatchObject({ kind: "bad", text: t.chat.remove_failed("T") }));
  all.mockRestore();
  remove.mockRestore();
  [conversations.list, notices.list] = [before, []];
});
