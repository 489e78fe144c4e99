// Measurements, log lines, downloads and requests of a node that is not there.

const now_s = () => Math.floor(Date.now() / 1000);

/** An hour of one subject: values that wander, with a gap. */
export function series(subject, kind) {
  const names = { device: ["temperature_c", "power_w", "utilisation", "memory_free_bytes"], instance: ["running", "waiting", "tokens_per_s", "pages_used"], node: ["process_bytes", "memory_available_bytes", "battery"] }[kind];
  const scale = { temperature_c: 60, power_w: 120, utilisation: 0.6, memory_free_bytes: 8e9, running: 3, waiting: 2, tokens_per_s: 30, pages_used: 300, process_bytes: 1.4e9, memory_available_bytes: 20e9, battery: 0.7 };
  const points = (name) => Array.from({ length: 720 }, (_, at) => (at > 300 && at < 330 ? null : scale[name] * (1 + 0.2 * Math.sin(at / 40) + 0.05 * Math.sin(at / 3))));
  return { subject, step_s: 5, end_unix_s: now_s(), series: names.map((name) => ({ name, points: points(name) })) };
}

export function logs(query, nodes) {
  if (query.get("after")) return { lines: [], next: query.get("after"), silent: [] };
  const texts = ["placed qwen3-32b-q4 over 3 devices", "request 41aa: 41 prompt tokens, 199 tokens in 6.4 s", "laptop: jitter 2.1 ms on Wi-Fi", "<script>window.__pwned=1</script> \u202e is a name"];
  const lines = nodes.flatMap((node, n) => texts.map((text, at) => ({ node: node.id, name: node.name, number: at, at_unix_ms: Date.now() - 60_000 + at * 900 + n, level: ["info", "info", "warn", "error"][at], target: "exo_cluster::scheduler", request: null, text })));
  const wanted = lines.filter((line) => !query.get("node") || line.node === query.get("node"));
  return { lines: wanted.sort((a, b) => a.at_unix_ms - b.at_unix_ms), next: "1", silent: [{ node: "x", name: "attic", reason: "it did not answer within 2 s" }] };
}

/** What each node finds on its machine; one is silent, and one says what a stranger would. */
export function checks(nodes) {
  const check = (check, verdict, found, next = "") => ({ check, verdict, found, next });
  const found = (node) => [check("disk", "ok", "212 GiB free for models fetched from other nodes"), check("graphics", "warning", `${node.name}: <script>window.__pwned=1</script>`, "install the driver"), check("memory", "broken", "the system does not say how much memory there is", "say how much models may take with --memory-mib")];
  return { nodes: nodes.slice(0, 3).map((node) => ({ node: node.id, name: node.name, checks: found(node) })), silent: [{ node: "x", name: "attic", reason: "it did not answer within 35 s" }] };
}

export const pulls = () => [pull("p1", "fetching", { sources: [{ member: "tower", bytes: 1.4e9, bytes_per_s: 21e6 }, { bytes: 0.7e9, bytes_per_s: 10e6 }] }), pull("p2", "failed", { error: "the hub answered 429", hint: "it goes on by itself in 40 s" })];

function pull(id, state, fields) {
  return { id, reference: "hf.co/Qwen/Qwen3-8B-GGUF:Q4_K_M", state, node: "n", node_name: "desk", source: "huggingface.co", label: "Q4_K_M", reason: null, commit: "9f", licence: "apache-2.0", terms: null, file: "a.gguf", files: 1, verified_bytes: 2.1e9, total_bytes: 5e9, ranges: 4, bytes_per_s: 31e6, seconds_left: 94, model: null, path: null, was_here: false, is_verified: null, error: null, hint: null, started_unix_s: now_s() - 70, ...fields };
}

export const recent = () =>
  ["stop", "length", "cancelled", "client_left", "queue_full"].map((end, at) => ({ id: `41aa${at}`.padEnd(32, "0"), endpoint: "chat", model: "qwen3-32b-q4", principal: "u1f0", started_unix_ms: Date.now() - at * 9000, total_ms: 6400 - at * 900, end, prompt_tokens: 41, cached_tokens: 16, tokens: 199, queue_ms: 300 * at, ttft_ms: 420 + 300 * at, tokens_per_s: 31, stages: 2, times: at > 1 ? null : { stages: [{ node: "a1", device: "cpu", prompt_ms: 120, answer_ms: 2600 }, { node: "b2", device: "gpu0", prompt_ms: 210, answer_ms: 1900 }], between_prompt_ms: 30, between_answer_ms: 240 } }));

/** Models and whether they fit: one that does, one that is too large, and a stranger's repository. */
export function fits(query = {}) {
  const range = (expected) => ({ low: expected * 0.9, expected, high: expected * 1.1 });
  const model = (name, title, verdict, summary, best, fields = {}) => ({ name, title, reference: `hf.co/org/${name}`, good_for: "writing, summaries", licence: "Apache-2.0", terms: null, parameters: 8e9, context_tokens_max: 131072, verdict, summary, best, sizes: [{ quantisation: "Q4_K_M", bytes: 5e9, tokens_per_s: best ? 21 : null }], changes: best ? [] : ["12 GiB more memory on desk"], ...fields });
  const best = { quantisation: "Q4_K_M", download_bytes: 5e9, predicted: { ttft_ms: range(900), tokens_per_s: range(21), hop_ms: range(1), streams: 1, total_tokens_per_s: range(21), fetch_bytes: 0, fetch_ms: 0 }, context_tokens_max: 65536, stages: [] };
  const catalogue = [model("qwen3-8b", "Qwen 3 8B", "comfortable", "runs well on desk", best), model("llama-3.1-405b", "Llama 3.1 405B", "too_large", "does not fit", null), model("gemma", "Gemma", "comfortable", "runs well", best, { terms: "no use that the policy forbids", licence: "Gemma" })];
  // A known model is asked for by its id: the largest of them fits nowhere.
  const isLarge = query.reference?.startsWith("llama-3.1-70b");
  const asked = query.reference ? [isLarge ? model("asked", query.reference, "too_large", "too large", null) : model("asked", query.reference, "slow", "runs slowly on <b>attic</b>", best)] : null;
  return { context_tokens: 4096, machines: 4, memory_free_bytes: 93e9, models: asked ?? catalogue };
}

export const repos = () => [
  { repo: "org/Qwen3-8B-GGUF", downloads: 120400, likes: 311, gated: false, format: "gguf" },
  { repo: "evil/<img src=x onerror=window.__pwned=1>", downloads: 3, likes: 0, gated: true, format: null },
];

export const found = () => [
  { name: "qwen3:8b", program: "ollama", path: "/home/x/.ollama/models/blobs/sha256-1", bytes: 5e9, sha256: null, problem: null },
  { name: "broken", program: "LM Studio", path: "/home/x/broken.gguf", bytes: 1e9, sha256: null, problem: "the file is cut off" },
];

/** Memory by what it holds, one driver that tells little, one device that is slowed down. */
export const telemetry = (view) => ({
  self_node: view.self_node,
  nodes: view.nodes.map((node) => ({
    node: node.id,
    name: node.name,
    age_s: node.status === "alive" ? 1.2 : node.status === "lost" ? null : 140,
    disk_free_bytes: node.name === "attic" ? null : 212e9,
    disk_room_bytes: node.name === "attic" ? null : 40e9,
    pulls: node.name !== "attic" ? [] : [{ reference: "hf.co/example/Tiny-GGUF:Q4_K_M", state: "fetching", verified_bytes: 3e9, total_bytes: 12e9, bytes_per_s: 31e6, sources: [{ member: "tower", bytes: 1.4e9, bytes_per_s: 21e6 }, { bytes: 0.7e9, bytes_per_s: 10e6 }] }],
    // Counts that grow, as of a model that answers.
    stages: view.instances.flatMap((instance) => instance.stages.flatMap((stage, at) => (stage.node === node.id ? [{ instance: instance.id, model: instance.model, stage: at, device: stage.device, layers: stage.layers, busy_s: (Date.now() / 1000) * (stage.time_share ?? 0), weight_bytes: stage.weight_bytes }] : []))),
    instances: view.instances.filter((instance) => instance.load && instance.stages[0].node === node.id).map((instance) => ({ instance: instance.id, model: instance.model, load: instance.load, steps: Math.floor(Date.now() / 32) })),
    devices: node.devices.map((device, n) => {
      const used = Math.max(0, device.memory_total_bytes - device.memory_free_bytes);
      const memory = { total_bytes: device.memory_total_bytes, free_bytes: device.memory_free_bytes, weights_bytes: used * 0.7, kv_bytes: used * 0.15, workspace_bytes: used * 0.05, others_bytes: used * 0.1 };
      return { device: device.id, sensors: device.sensors, throttled: n === 1, memory, missing: [{ what: "power_w", reason: "this driver does not tell it" }] };
    }),
  })),
});
