// Clusters to draw: one for each state that a page must show. The same in unit tests, in the stub server and in pictures.

const GIB = 1024 ** 3;
const now_s = () => Math.floor(Date.now() / 1000);

/** A node id that looks like one, from a small number. */
export const nodeId = (n) => (n * 2654435761 + 40503).toString(16).padStart(8, "0").repeat(8).slice(0, 64);

export function device(id, kind, name, total_gib, fields = {}) {
  return {
    id,
    kind,
    name,
    backend: kind === "cpu" ? "cpu/avx2" : "wgpu/vulkan",
    memory_total_bytes: total_gib * GIB,
    memory_free_bytes: total_gib * GIB * 0.62,
    compute_units: kind === "cpu" ? 16 : 40,
    read_bytes_per_s: kind === "cpu" ? 41e9 : 402e9,
    flops_per_s: kind === "cpu" ? 0.6e12 : 18e12,
    support: "full",
    support_reason: "",
    state: "usable",
    state_reason: "",
    sensors: { temperature_c: 54, power_w: 61, clock_mhz: 2400, utilisation: 0.37 },
    ...fields,
  };
}

export function node(n, name, devices, fields = {}) {
  return {
    id: nodeId(n),
    name,
    is_self: n === 1,
    role: n < 3 ? "admin" : "worker",
    status: "alive",
    version: "0.3.0",
    platform: "linux x86_64",
    devices,
    addresses: [`192.0.2.${n}:52416`],
    mains_power: true,
    process_bytes: 1.4 * GIB,
    card_events: [],
    is_drained: false,
    ...fields,
  };
}

export function link(from, to, rtt_ms, bytes_per_s, fields = {}) {
  return {
    from: nodeId(from),
    to: nodeId(to),
    rtt_ms,
    rtt_samples: 16,
    rtt_age_s: 2.4,
    jitter_ms: rtt_ms / 8,
    bytes_per_s,
    bandwidth_samples: 3,
    bandwidth_age_s: 84,
    transport: "quic",
    ...fields,
  };
}

const both = (a, b, rtt_ms, rate) => [link(a, b, rtt_ms, rate), link(b, a, rtt_ms * 1.03, rate * 0.97)];

export function stage(n, name, device, start, end, fields = {}) {
  const weight_bytes = (end - start) * 0.19 * GIB;
  return {
    node: nodeId(n),
    node_name: name,
    device,
    layers: { start, end },
    embedding: start === 0,
    head: false,
    weight_bytes,
    weight_bytes_held: weight_bytes,
    weight_bytes_waiting: 0,
    kv_bytes: (end - start) * 0.02 * GIB,
    time_share: null,
    fetched_from: null,
    ...fields,
  };
}

export function instance(id, model, stages, fields = {}) {
  const range = (low, expected, high) => ({ low, expected, high });
  return {
    id,
    model_id: `${id}${"0".repeat(60)}`,
    model,
    state: { kind: "ready" },
    state_since_unix_s: now_s() - 4210,
    placement: "p1",
    context_tokens: 16384,
    slots: 8,
    cache_tokens: 65536,
    kv: "f16",
    objective: "latency",
    stages,
    load: { running: 2, waiting: 1, waiting_max: 64, pages: 1024, pages_used: 212, pages_cached: 388, prompt_tokens: 91422, cached_tokens: 40211, drafts: 5120, drafts_accepted: 3481, prompt_tokens_per_s: 812, tokens_per_s: 31.4 },
    predicted_tokens_per_s: 34.2,
    predicted: {
      ttft_ms: range(310, 420, 610),
      tokens_per_s: range(29, 34.2, 38),
      hop_ms: range(0.8, 1.1, 1.6),
      streams: 1,
      total_tokens_per_s: range(29, 34.2, 38),
      fetch_bytes: 0,
      fetch_ms: 0,
    },
    measured_tokens_per_s: 31.4,
    ...fields,
  };
}

function cluster(nodes, links, instances, fields = {}) {
  return {
    cluster: "c0ffee".padEnd(64, "4"),
    self_node: nodeId(1),
    epoch: { counter: 7, coordinator: nodeId(1) },
    nodes: [...nodes].sort((a, b) => (a.name < b.name ? -1 : 1)),
    links,
    instances,
    join_window: { open: false, open_until_unix_s: null },
    join_requests: [],
    journal: { entries: 48, head: "9f".repeat(32), holders: nodes.length },
    warnings: [],
    alerts: [],
    ...fields,
  };
}

const desk = () => node(1, "desk", [
  device("cpu", "cpu", "AMD Ryzen 9 7950X", 60, {
    rates_by_type: [{ dtype: "Q4_K", read_bytes_per_s: 23e9, flops_per_s: 0.41e12, measured: { samples: 12, age_s: 180 } }, { dtype: "BF16", read_bytes_per_s: 44e9, flops_per_s: 0.3e12, measured: { samples: 1, age_s: 180000 } }],
    rates_measured: { samples: 31, age_s: 7200 },
    corrections: { decode: { percent: 87, samples: 9 }, prefill: null },
    sensors: { temperature_c: 61, power_w: 84, clock_mhz: 4900, utilisation: 0.22 } }),
  device("gpu0", "discrete_gpu", "NVIDIA GeForce RTX 4090", 23, { backend: "cuda/sm_89", driver: "CUDA 12.4, compute capability 8.9, NVIDIA 550.54.14", sensors: { temperature_c: 66, power_w: 312, clock_mhz: 2610, utilisation: 0.91 } }),
  device("gpu1", "discrete_gpu", "NVIDIA GeForce GTX 1060", 5, { backend: "cuda/sm_61", support: "unsupported", support_reason: "in quarantine for another 5 h: its driver ended 4 times in ten minutes", state: "quarantined", state_reason: "its driver ended 4 times in ten minutes", sensors: { temperature_c: 44, power_w: 9, clock_mhz: 139, utilisation: 0 } }),
]);
const tower = (fields) => node(2, "tower", [
  device("cpu", "cpu", "Intel Core i7-12700", 28, { sensors: { temperature_c: 58, power_w: null, clock_mhz: 3900, utilisation: 0.31 } }),
  device("gpu0", "discrete_gpu", "AMD Radeon RX 6800", 15, { support: "partial", support_reason: "ROCm is not installed: Vulkan is used; install it for about twice the speed" }),
], fields);
const laptop = (fields) => node(3, "laptop", [
  device("cpu", "cpu", "Apple M3", 14, { backend: "cpu/neon", sensors: { temperature_c: 71, power_w: 18, clock_mhz: null, utilisation: 0.64 } }),
], { platform: "macos aarch64", mains_power: false, ...fields });
const attic = () => node(4, "attic", [
  device("cpu", "cpu", "Intel N100", 7, { compute_units: 4, sensors: { temperature_c: 47, power_w: 9, clock_mhz: 3400, utilisation: 0.04 } }),
  device("gpu0", "integrated_gpu", "Intel UHD", 3, { state: "quarantined", state_reason: "two wrong products in its self-test; the driver's version 23.1 is known for that", support: "unsupported", support_reason: "fails its self-test" }),
]);
const links = () => [...both(1, 2, 0.31, 118e6), ...both(1, 3, 3.8, 31e6), ...both(2, 3, 4.1, 29e6), ...both(1, 4, 0.42, 117e6), ...both(2, 4, 0.44, 116e6), ...both(3, 4, 4.4, 27e6)];

const qwen = (fields) => instance("i1", "qwen3-32b-q4", [
  stage(1, "desk", "gpu0", 0, 40, { time_share: 0.48 }),
  stage(2, "tower", "gpu0", 40, 58, { time_share: 0.33 }),
  stage(3, "laptop", "cpu", 58, 64, { time_share: 0.19, head: true }),
], fields);

export const fixtures = {
  /** One machine, nothing placed: what everybody sees first. */
  empty: () => cluster([node(1, "desk", [device("cpu", "cpu", "AMD Ryzen 9 7950X", 60)])], [], [], { cluster: null, journal: { entries: 1, head: "9f".repeat(32), holders: 1 } }),

  /** A home: four machines, one model that serves and one that is loading, somebody at the door. */
  home: () => cluster([desk(), tower(), laptop(), attic()], links(), [
    qwen(),
    instance("i2", "llama-3.2-3b-q8", [
      stage(4, "attic", "cpu", 0, 12, {
        weight_bytes_held: 0,
        fetched_from: "desk",
        progress: { phase: "fetching", done_bytes: 0.7 * GIB, total_bytes: 2.28 * GIB, bytes_per_s: 11e6, seconds_left: 154 },
      }),
      stage(2, "tower", "cpu", 12, 28, { head: true }),
    ], { state: { kind: "loading", progress: 0.58 }, state_since_unix_s: now_s() - 41, load: null, measured_tokens_per_s: null, predicted_tokens_per_s: 9.1 }),
  ], {
    join_window: { open: true, open_until_unix_s: now_s() + 252 },
    join_requests: [{ node: nodeId(9), name: "pixel-8", address: "192.0.2.9:52416", check_words: "amber river violin seven" }],
    alerts: [alert("link_slow", "warning", "laptop", "Wi-Fi carries 31 MB/s between laptop and desk; a token waits 3.8 ms there.", "Connect laptop by cable: about 27 % more tokens per second.")],
  }),

  /** A machine is gone and nothing can take its layers. */
  lost: () => cluster([desk(), tower({ status: "lost", gone_since_unix_s: now_s() - 725 }), laptop({ status: "suspected" })], links().slice(0, 6), [
    qwen({ state: { kind: "waiting", reason: "layers 40..58 need 3.4 GiB more than desk and laptop have free" }, state_since_unix_s: now_s() - 2, measured_tokens_per_s: null, load: null }),
  ], {
    warnings: [{ at_unix_s: now_s() - 75, text: "tower does not answer any more" }],
    alerts: [alert("node_lost", "critical", "tower", "tower has not answered for 73 s; layers 40..58 of qwen3-32b-q4 are missing.", "Start exo on tower, or place the model with fewer tokens of context.")],
  }),

  /** What a test of size is made with: 100 nodes, 400 devices, a model of 126 layers. */
  hundred: () => {
    const nodes = Array.from({ length: 100 }, (_, n) => node(n + 1, `rack-${String(n + 1).padStart(3, "0")}`, ["cpu", "gpu0", "gpu1", "gpu2"].map((id) => device(id, id === "cpu" ? "cpu" : "discrete_gpu", "Device of a described cluster", 24))));
    const ring = Array.from({ length: 100 }, (_, n) => both(n + 1, ((n + 1) % 100) + 1, 0.2 + (n % 7) / 10, 1.1e9)).flat();
    const stages = Array.from({ length: 42 }, (_, n) => stage(n + 1, `rack-${String(n + 1).padStart(3, "0")}`, "gpu0", n * 3, n * 3 + 3, { time_share: 1 / 42, head: n === 41 }));
    return cluster(nodes, ring, [instance("i1", "llama-3.1-405b-q4", stages)]);
  },

  /** Everything a stranger can name, named by a stranger. */
  hostile: () => {
    const evil = `<img src=x onerror="window.__pwned=1">\u202e"';]]>`;
    const bad = node(1, evil, [device("cpu", "cpu", `<script>window.__pwned=1</script>`, 8, { driver: evil, support_reason: evil, sensors: { temperature_c: NaN, power_w: -1, clock_mhz: null, utilisation: 7 } })]);
    return cluster([{ ...bad, status: "napping" }], [], [instance("i1", evil, [stage(1, evil, "cpu", 0, 4)], { state: { kind: "dreaming" } })], {
      join_requests: [{ node: nodeId(9), name: evil.repeat(40), address: "javascript:alert(1)", check_words: "<b>a</b> b c d" }],
      warnings: [{ at_unix_s: now_s(), text: evil }],
    });
  },
};

export function alert(rule, severity, subject, text, what_to_do, fields = {}) {
  return { id: `${rule}:${subject}`, rule, severity, since_unix_s: now_s() - 73, resolved_unix_s: null, silenced_until_unix_s: null, node: null, device: null, instance: null, subject, text, what_to_do, runbook: rule, ...fields };
}

const range = (low, expected, high) => ({ low, expected, high });

export const models = () => [
  model("qwen3-32b-q4", "qwen3", 64, 12.3, ["desk", "tower", "laptop"], ["i1"]),
  model("llama-3.2-3b-q8", "llama", 28, 3.2, ["desk"], ["i2"]),
  model("llama-3.1-70b-q4", "llama", 80, 39.6, ["desk"], []),
  // Of another node, and not described here.
  { ...model("mistral-7b-q8", "", 0, 7.2, ["tower"], []), format: "", dtypes: {}, context_tokens_max: 0, licence: null },
];

function model(name, architecture, layers, gib, nodes, instances) {
  return { id: name.padEnd(64, "0"), name, architecture, format: "gguf", dtypes: { Q4_K: gib * 0.9 * GIB, Q6_K: gib * 0.1 * GIB }, weight_bytes: gib * GIB, layers, context_tokens_max: 131072, path: nodes.includes("desk") ? `/models/${name}.gguf` : null, nodes, chat: true, instances, added_unix_s: now_s() - 86400, source: null, licence: "Apache-2.0" };
}

export function plan(query) {
  const context_tokens = query.context_tokens ?? 16384;
  const slots = query.slots ?? 8;
  const kv = (context_tokens * slots * 2048) / (query.kv === "q8" ? 2 : 1);
  const cut = Math.max(20, 64 - Math.round((kv / GIB) * 4));
  const row = (node_name, device, start, end) => ({ node: nodeId(["desk", "tower", "laptop"].indexOf(node_name) + 1), node_name, device, layers: { start, end }, weight_bytes: (end - start) * 0.19 * GIB, kv_bytes: (kv * (end - start)) / 64, workspace_bytes: 0.3 * GIB });
  const scores = { compute: 0.8, memory: 0.7, network: 0.9, thermal: 0.8, bandwidth: 0.6, total: 0.77 };
  const predicted = { ttft_ms: range(300, 420, 600), tokens_per_s: range(28, 34 - slots / 8, 38), hop_ms: range(0.5, 0.9, 1.3), streams: query.streams ?? 1, total_tokens_per_s: range(28, 34, 38), fetch_bytes: 3.4 * GIB, fetch_ms: 31000 };
  return {
    model: query.model, context_tokens, slots, cache_tokens: context_tokens * slots,
    stages: cut >= 64 ? [row("desk", "gpu0", 0, 64)] : [row("desk", "gpu0", 0, cut), row("tower", "gpu0", cut, 64)],
    predicted, objective_ms: 4100, lower_bound_ms: 4000, gap_percent: 2.4,
    devices: [["desk", "gpu0", "the fastest device holds what fits"], ["tower", "gpu0", "holds the rest"], ["laptop", "cpu", "left out: its link costs 3.8 ms for each token"]].map(([node_name, device, reason], n) => ({ node: nodeId(n + 1), node_name, device, reason, otherwise_ms: 4400 + n * 300, scores })),
    alternatives: [
      { kind: "without", node: nodeId(2), node_name: "tower", device: "gpu0", plan: { stages: [row("desk", "gpu0", 0, cut), row("laptop", "cpu", cut, 64)], predicted: { ...predicted, tokens_per_s: range(6, 9, 11) }, objective_ms: 14400, is_proven: true, is_as_asked: true }, why: null, missing_bytes: null },
      { kind: "alone", node: nodeId(1), node_name: "desk", device: "gpu0", plan: null, why: "the model needs 26.0 GiB there, 22.5 GiB are free", missing_bytes: 3.5 * GIB },
    ],
  };
}
