//! The plan against the rules that others place by, on described clusters of real machines, all judged by one
//! model of cost.
//!
//! `clusters/machines.txt` has the machines and clusters, with sources. The rules:
//!
//! - *memory* (exo, Python): the fewest devices that hold the model, of those the ones with most memory;
//!   layers in proportion to it;
//! - *without links* (prima.cpp): the least sum of computing where hops are free and the ring has every
//!   device that helps;
//! - *equal* (llama.cpp's `--split-mode layer` without proportions, and most tutorials): the same number of
//!   layers on each device;
//! - *fewest* (ours until decision 0031): the fewest devices that hold the model, the fastest set, shares by
//!   speed.

use std::collections::BTreeMap;
use std::time::Duration;

use exo_planner::{
    DeviceRates, Figure, LinkFacts, Plan, PlanDevice, PlanRequest, plan, predict, rtt, validate,
};
use exo_types::{
    DeviceFacts, DeviceId, DeviceKind, LayerRange, LayerShape, ModelShape, NodeId, Shard, Stage,
};

const CLUSTERS: &str = include_str!("clusters/machines.txt");
const GIB: f64 = (1u64 << 30) as f64;

/// Where the layers go by somebody's rule; `None` if it finds no way.
type Rule = fn(&PlanRequest) -> Option<Vec<Stage>>;

struct Machine {
    kind: DeviceKind,
    free_bytes: u64,
    read: f64,
    flops: f64,
}

struct Cluster {
    name: String,
    model: String,
    link: (f64, f64),
    machines: Vec<String>,
}

fn read() -> (BTreeMap<String, Machine>, Vec<Cluster>) {
    let (mut machines, mut clusters) = (BTreeMap::new(), Vec::new());
    for line in CLUSTERS.lines().filter(|l| !l.trim().is_empty() && !l.starts_with('#')) {
        let words: Vec<&str> = line.split_whitespace().collect();
        let number = |at: usize| words[at].parse::<f64>().unwrap_or_else(|_| panic!("{line}"));
        match words[0] {
            "machine" => {
                let kind = match words[2] {
                    "card" => DeviceKind::DiscreteGpu,
                    "unified" => DeviceKind::IntegratedGpu,
                    _ => DeviceKind::Cpu,
                };
                let free_bytes = (number(3) * GIB) as u64;
                let machine = Machine { kind, free_bytes, read: number(4) * 1e9, flops: number(5) * 1e12 };
                machines.insert(words[1].to_owned(), machine);
            }
            "cluster" => clusters.push(Cluster {
                name: words[1].to_owned(),
                model: words[2].to_owned(),
                link: (number(3), number(4)),
                machines: words[5..].iter().map(|w| (*w).to_owned()).collect(),
            }),
            other => panic!("{other}"),
        }
    }
    (machines, clusters)
}

/// Layers, hidden width, GiB in Q4_K_M or BF16, vocabulary, and bytes of keys and values of a token and layer
/// in f16.
fn shape(model: &str) -> ModelShape {
    let (layers, hidden, gib, vocab, kv): (u64, u32, f64, u32, u64) = match model {
        "llama-8b-q4" => (32, 4096, 4.6, 128_256, 4096),
        "qwen3-32b-q4" => (64, 5120, 18.4, 151_936, 4096),
        "llama-70b-q4" => (80, 8192, 39.6, 128_256, 4096),
        "llama-70b-q8" => (80, 8192, 69.8, 128_256, 4096),
        "mistral-123b-q4" => (88, 12_288, 68.2, 32_768, 4096),
        "llama-405b-q4" => (126, 16_384, 226.0, 128_256, 4096),
        other => panic!("{other}"),
    };
    let head = u64::from(hidden) * u64::from(vocab) * 210 / 256;
    let weight_bytes = ((gib * GIB) as u64 - 2 * head) / layers;
    // 4.85 bits a weight in Q4_K_M, 8.5 in Q8_0; two operations each.
    let bits = if model.ends_with("q8") { 8.5 } else { 4.85 };
    let flops_per_token = (weight_bytes as f64 * 8.0 / bits * 2.0) as u64;
    let layer =
        LayerShape { weight_bytes, packed_bytes: weight_bytes, flops_per_token, kv_bytes_per_token: kv };
    ModelShape {
        layers: vec![layer; layers as usize],
        embedding_bytes: head,
        head_bytes: head,
        embedding_packed_bytes: head,
        head_packed_bytes: head,
        tied: false,
        hidden,
        attention: hidden,
        vocab,
        context_tokens_max: 131_072,
    }
}

/// A machine `a+b` has two devices.
fn request(cluster: &Cluster, machines: &BTreeMap<String, Machine>) -> PlanRequest {
    let mut devices = Vec::new();
    for (index, node) in cluster.machines.iter().enumerate() {
        let mut key = [9; 32];
        key[0] = index as u8;
        for (nth, name) in node.split('+').enumerate() {
            let machine = machines.get(name).unwrap_or_else(|| panic!("no machine {name}"));
            let id = DeviceId(format!("{name}-{nth}"));
            let facts = DeviceFacts {
                read_bytes_per_s: Some(machine.read),
                flops_per_s: Some(machine.flops),
                ..DeviceFacts::unmeasured(id, machine.kind, name, "described", machine.free_bytes)
            };
            let rates = DeviceRates {
                read_bytes_per_s: Some(Figure::stated(machine.read)),
                flops_per_s: Some(Figure::stated(machine.flops)),
                ..DeviceRates::default()
            };
            let reported = PlanDevice::reported(NodeId(key), format!("{index}"), facts, None);
            devices.push(PlanDevice { rates, ..reported });
        }
    }
    let mut request = PlanRequest::new(shape(&cluster.model), 4096, devices);
    let nodes: Vec<NodeId> = request.devices.iter().map(|d| d.node).collect();
    for &from in &nodes {
        for &to in nodes.iter().filter(|to| **to != from) {
            let rtt_s = Some(rtt(Duration::from_secs_f64(cluster.link.0 / 1e3)));
            let bytes_per_s = Some(Figure::stated(cluster.link.1 * 1e6 / 8.0));
            request.links.push(LinkFacts { from, to, rtt_s, bytes_per_s });
        }
    }
    request.explain = false;
    request
}

/// Stages of these numbers of layers, devices without any left out.
fn staged(request: &PlanRequest, order: &[usize], counts: &[u32]) -> Vec<Stage> {
    let (mut start, layers) = (0, request.shape.layer_count());
    let mut stages = Vec::new();
    for (&device, &count) in order.iter().zip(counts).filter(|(_, count)| **count > 0) {
        let PlanDevice { node, device, .. } = &request.devices[device];
        let shard = Shard::pipeline(LayerRange::new(start, start + count), layers);
        stages.push(Stage::solo(*node, device.id.clone(), shard));
        start += count;
    }
    stages
}

/// Whole numbers in proportion to `weights` that add up to `total`, none above its cap; `None` where the caps
/// are too low.
fn apportioned(weights: &[f64], caps: &[u32], total: u32) -> Option<Vec<u32>> {
    if caps.iter().sum::<u32>() < total {
        return None;
    }
    let mut counts = vec![0u32; weights.len()];
    for _ in 0..total {
        let open = (0..weights.len()).filter(|&i| counts[i] < caps[i] && weights[i] > 0.0);
        let next = open.min_by(|&a, &b| {
            let after = |i: usize| f64::from(counts[i] + 1) / weights[i];
            after(a).total_cmp(&after(b)).then(a.cmp(&b))
        })?;
        counts[next] += 1;
    }
    Some(counts)
}

/// The most layers each device holds, wherever they lie.
fn caps(request: &PlanRequest) -> Vec<u32> {
    let holds = |device: &PlanDevice, layers: u32| {
        let mut part = request.shape.clone();
        part.layers.truncate(layers as usize);
        plan(&PlanRequest {
            shape: part,
            devices: vec![device.clone()],
            links: Vec::new(),
            ..request.clone()
        })
        .is_ok()
    };
    let most = |device: &PlanDevice| {
        let (mut low, mut high) = (0, request.shape.layer_count());
        while low < high {
            let middle = (low + high).div_ceil(2);
            if holds(device, middle) { low = middle } else { high = middle - 1 }
        }
        low
    };
    request.devices.iter().map(most).collect()
}

fn by(request: &PlanRequest, key: impl Fn(&PlanDevice) -> f64) -> Vec<usize> {
    let mut order: Vec<usize> = (0..request.devices.len()).collect();
    order.sort_by(|&a, &b| key(&request.devices[b]).total_cmp(&key(&request.devices[a])).then(a.cmp(&b)));
    order
}

fn read_rate(device: &PlanDevice) -> f64 {
    device.device.read_bytes_per_s.unwrap_or(1.0)
}

fn picked<T: Copy>(all: &[T], order: &[usize]) -> Vec<T> {
    order.iter().map(|&i| all[i]).collect()
}

/// Of the smallest sets that hold the model, the one with most memory; layers in proportion to it.
fn memory_rule(request: &PlanRequest) -> Option<Vec<Stage>> {
    let caps = caps(request);
    let free = |i: usize| request.devices[i].device.memory_free_bytes as f64;
    let order = by(request, |d| d.device.memory_free_bytes as f64);
    // With most memory first, the first so many devices are the set of that size with most.
    (1..=order.len()).find_map(|size| {
        let order = &order[..size];
        let memory: Vec<f64> = order.iter().map(|&i| free(i)).collect();
        let counts = apportioned(&memory, &picked(&caps, order), request.shape.layer_count())?;
        Some(staged(request, order, &counts)).filter(|stages| fits(request, stages))
    })
}

fn equal_rule(request: &PlanRequest) -> Option<Vec<Stage>> {
    let order: Vec<usize> = (0..request.devices.len()).collect();
    let counts = apportioned(&vec![1.0; order.len()], &caps(request), request.shape.layer_count())?;
    Some(staged(request, &order, &counts))
}

/// What is best when no hop costs anything, judged with the links there are.
fn without_links_rule(request: &PlanRequest) -> Option<Vec<Stage>> {
    let mut free = request.clone();
    for link in &mut free.links {
        link.rtt_s = Some(Figure::stated(1e-9));
        link.bytes_per_s = Some(Figure::stated(1e18));
    }
    plan(&free).ok().map(|plan| plan.stages)
}

fn fewest_rule(request: &PlanRequest) -> Option<Vec<Stage>> {
    let caps = caps(request);
    let layers = request.shape.layer_count();
    for size in 1..=request.devices.len() {
        let sets = (1u32..1 << request.devices.len()).filter(|set| set.count_ones() as usize == size);
        let members = |set: u32| (0..request.devices.len()).filter(move |i| set & (1 << i) != 0);
        let speed = |set: u32| members(set).map(|i| read_rate(&request.devices[i])).sum::<f64>();
        let mut sets: Vec<u32> =
            sets.filter(|&set| members(set).map(|i| caps[i]).sum::<u32>() >= layers).collect();
        sets.sort_by(|&a, &b| speed(b).total_cmp(&speed(a)).then(a.cmp(&b)));
        for set in sets {
            let mut order: Vec<usize> = members(set).collect();
            order.sort_by(|&a, &b| read_rate(&request.devices[b]).total_cmp(&read_rate(&request.devices[a])));
            let speeds: Vec<f64> = order.iter().map(|&i| read_rate(&request.devices[i])).collect();
            let stages = staged(request, &order, &apportioned(&speeds, &picked(&caps, &order), layers)?);
            if fits(request, &stages) {
                return Some(stages);
            }
        }
    }
    None
}

/// Whether memory allows these stages; a rule that counts layers may forget the ends.
fn fits(request: &PlanRequest, stages: &[Stage]) -> bool {
    let sized = |stage: &Stage| {
        let shard = stage.leader().shard;
        exo_planner::ShardMemory {
            weight_bytes: request.shape.shard_weight_bytes(&shard),
            kv_bytes: request.shape.shard_kv_bytes_per_token(&shard) * u64::from(request.cache_tokens),
            workspace_bytes: exo_planner::workspace_bytes(&request.shape, request.slots, shard.head),
        }
    };
    let mut as_plan: Plan = plan(request).expect("a cluster that holds the model");
    (as_plan.stages, as_plan.memory) = (stages.to_vec(), stages.iter().map(sized).collect());
    validate(request, &as_plan).is_ok()
}

#[test]
fn no_rule_of_others_is_faster_on_any_described_cluster() {
    let (machines, clusters) = read();
    assert!(clusters.len() >= 20, "{}", clusters.len());
    println!(
        "| cluster | model | link | stages | tokens/s | request | memory | equal | without links | fewest |"
    );
    println!("|---|---|---|---|---|---|---|---|---|---|");
    for cluster in &clusters {
        let request = request(cluster, &machines);
        let ours = plan(&request).unwrap_or_else(|error| panic!("{}: {error}", cluster.name));
        assert!(ours.proof.is_optimal(), "{}: {:?}", cluster.name, ours.proof);
        let rules: [Rule; 4] = [memory_rule, equal_rule, without_links_rule, fewest_rule];
        let columns = rules.map(|rule| {
            let Some(stages) = rule(&request).filter(|stages| fits(&request, stages)) else {
                return "does not fit".to_owned();
            };
            let (_, objective_ns) = predict(&request, &stages).expect("it tiles");
            assert!(objective_ns >= ours.proof.objective_ns, "{}: {stages:?}", cluster.name);
            format!("{:.2} x", objective_ns as f64 / ours.proof.objective_ns as f64)
        });
        let (name, model, stages) = (&cluster.name, &cluster.model, ours.stages.len());
        let (ms, mbit) = cluster.link;
        let (rate, seconds) = (ours.predicted.tokens_per_s(), ours.proof.objective_ns as f64 / 1e9);
        let of = request.devices.len();
        println!(
            "| {name} | {model} | {ms} ms, {mbit} Mbit/s | {stages} of {of} | {rate:.1} | {seconds:.1} s | {} |",
            columns.join(" | ")
        );
    }
}
