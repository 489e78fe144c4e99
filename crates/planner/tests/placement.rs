//! Placements, one line a case, and against brute force.

use std::collections::BTreeMap;
use std::time::Duration;

use exo_planner::{
    DeviceRates, Figure, InvalidPlan, LinkFacts, Objective, Phase, Pin, PinLayers, Plan, PlanDevice,
    PlanError, PlanRequest, Remedy, WORK_MAX, expected_step, memory_free_bytes, plan, rtt, validate,
    workspace_bytes,
};
use exo_types::{
    DType, DeviceFacts, DeviceId, DeviceKind, DiskRoom, KvRates, LayerRange, LayerRates, LayerShape,
    MemoryDomain, ModelShape, NodeId, Provenance, Shard, TypeBytes, TypeRates, WeightTypes,
};
use proptest::prelude::*;

const GIB: u64 = 1 << 30;
const DAY_S: u32 = 24 * 3600;

/// Layers of 1 GiB, a tied table of 1 MiB, one token of context at 1 KiB a layer.
fn model(layers: u32) -> ModelShape {
    let weight_bytes = GIB - 1024;
    let layer = LayerShape {
        weight_bytes,
        packed_bytes: weight_bytes,
        flops_per_token: 2 * GIB,
        kv_bytes_per_token: 1024,
    };
    ModelShape {
        layers: vec![layer; layers as usize],
        embedding_bytes: 1 << 20,
        head_bytes: (1 << 20) + 64,
        embedding_packed_bytes: 1 << 20,
        head_packed_bytes: (1 << 20) + 64,
        tied: true,
        hidden: 64,
        attention: 64,
        vocab: 1000,
        context_tokens_max: 4096,
    }
}

/// Beside products a layer takes 5 µs, and attention is one of them.
fn beside_products(flops_per_s: f64) -> LayerRates {
    LayerRates {
        prefill_read_bytes_per_s: 1e17,
        attention_flops_per_s: flops_per_s,
        activations_per_s: 1e17,
        layer_s: 5e-6,
        kv_read_bytes_per_s: None,
        read_16_rows_bytes_per_s: None,
    }
}

/// A device with room for so many layers of [`model`], ends and workspace included.
fn device(name: &str, layers: f64, speed: Option<f64>) -> PlanDevice {
    let mut key = [0; 32];
    key[..name.len().min(32)].copy_from_slice(&name.as_bytes()[..name.len().min(32)]);
    let room = workspace_bytes(&model(1), 1, true) + (2 << 20) + 64;
    let facts = DeviceFacts {
        memory_free_bytes: (layers * GIB as f64) as u64 + room,
        compute_units: 4,
        read_bytes_per_s: speed.map(|s| s * 1e9),
        flops_per_s: speed.map(|s| s * 1e11),
        layer_rates: speed.map(|s| beside_products(s * 1e11)),
        ..DeviceFacts::unmeasured(DeviceId::cpu(), DeviceKind::Cpu, "test", "cpu/test", 64 * GIB)
    };
    let figure = |rate: f64| Some(Figure::measured(rate));
    let rates = DeviceRates {
        read_bytes_per_s: speed.and_then(|s| figure(s * 1e9)),
        flops_per_s: speed.and_then(|s| figure(s * 1e11)),
        kv_bytes_per_s: speed.and_then(|s| figure(s * 1e9)),
        prefill_read_bytes_per_s: figure(1e17),
        attention_flops_per_s: speed.and_then(|s| figure(s * 1e11)),
        activations_per_s: figure(1e17),
        layer_s: figure(5e-6),
        ..DeviceRates::default()
    };
    PlanDevice { rates, ..PlanDevice::reported(NodeId(key), name.to_owned(), facts, None) }
}

/// Reads `name[/card]=layers[@GB/s][!]` per device (`!` excludes it), then `+N` for at least N stages,
/// `>name` for a node with the file, `^name` or `^name:N` or `^name:A..B` for a pinned device. The only test
/// code that knows the API.
fn run(cluster: &str, layers: u32, links: &[LinkFacts]) -> (Vec<PlanDevice>, Result<Plan, PlanError>) {
    let request = read(cluster, layers, links);
    let planned = plan(&request);
    (request.devices, planned)
}

fn read(cluster: &str, layers: u32, links: &[LinkFacts]) -> PlanRequest {
    let mut request = PlanRequest::new(model(layers), 1, Vec::new());
    request.links = links.to_vec();
    for word in cluster.split_whitespace() {
        if let Some(stages) = word.strip_prefix('+') {
            request.objective = Objective::Spread { stages_min: stages.parse().expect("a number") };
        } else if let Some(name) = word.strip_prefix('>') {
            request.holders.push(device(name, 0.0, None).node);
        } else if let Some(pin) = word.strip_prefix('^') {
            request.pins.push(pinned(pin));
        } else {
            request.devices.push(device_of(word));
        }
    }
    request
}

fn pinned(pin: &str) -> Pin {
    let (name, layers) = pin.split_once(':').unwrap_or((pin, ""));
    let number = |text: &str| text.parse().expect("a number");
    let layers = match layers.split_once("..") {
        Some((start, end)) => PinLayers::Range(LayerRange { start: number(start), end: number(end) }),
        None if layers.is_empty() => PinLayers::Any,
        None => PinLayers::Count(number(layers)),
    };
    let (name, id) = name.split_once('/').unwrap_or((name, "cpu"));
    Pin { node: device(name, 0.0, None).node, device: DeviceId(id.to_owned()), layers }
}

fn device_of(word: &str) -> PlanDevice {
    let (name, rest) = word.split_once('=').expect("name=layers");
    let excluded = rest.ends_with('!').then(|| "leaving".to_owned());
    let rest = rest.trim_end_matches('!');
    let (room, speed) = rest.split_once('@').unwrap_or((rest, ""));
    let (node, card) = name.split_once('/').unwrap_or((name, ""));
    let mut one = device(node, room.parse().expect("layers"), speed.parse().ok());
    if !card.is_empty() {
        one.device.id = DeviceId(card.to_owned());
        one.device.kind = DeviceKind::DiscreteGpu;
    }
    PlanDevice { excluded, ..one }
}

fn name(devices: &[PlanDevice], node: NodeId) -> String {
    devices.iter().find(|d| d.node == node).expect("a known node").node_name.clone()
}

fn check(cluster: &str, layers: u32) -> String {
    match run(cluster, layers, &[]) {
        (_, Err(error)) => error.to_string(),
        (devices, Ok(plan)) => {
            let line =
                |s: &exo_types::Stage| format!("{:8} layers {}\n", name(&devices, s.leader().node), s.layers);
            plan.stages.iter().map(line).collect()
        }
    }
}

#[test]
fn a_phone_takes_what_the_desktop_cannot_hold() {
    insta::assert_snapshot!(check("desktop=24 phone=8", 32), @r"
    desktop  layers 0..24
    phone    layers 24..32
    ");
}

#[test]
fn solo_when_it_fits_on_the_fastest_that_holds_it() {
    insta::assert_snapshot!(check("slow=40@10 fast=40@50 small=1@60", 32), @r"fast     layers 0..32");
}

#[test]
fn the_fastest_are_filled_first_and_the_processor_takes_the_rest() {
    let stages = |cluster: &str, layers: u32| {
        let (_, planned) = run(cluster, layers, &[]);
        let plan = planned.unwrap_or_else(|error| panic!("{error}"));
        let on = |s: &exo_types::Stage| format!("{}:{}", s.leader().device, s.layers.end - s.layers.start);
        let mut stages: Vec<String> = plan.stages.iter().map(on).collect();
        stages.sort();
        stages
    };
    // 20 layers of 1 GiB: 16 on cards at 900 GB/s and 4 on the processor at 20 GB/s take 0.23 s, not 1.07 s.
    assert_eq!(stages("a/gpu0=8@900 a/gpu1=8@900 a=64@20", 20), ["cpu:4", "gpu0:8", "gpu1:8"]);
    let seconds = |cluster| run(cluster, 20, &[]).1.expect("fits").predicted.token_ns.expected as f64 / 1e9;
    assert!((0.225..0.245).contains(&seconds("a/gpu0=8@900 a/gpu1=8@900 a=64@20")));
    assert!((1.0..1.15).contains(&seconds("a=64@20")));
    assert_eq!(stages("a/gpu0=8@900 a/gpu1=8@900 a=64@20", 6), ["gpu0:6"]);
    assert_eq!(stages("a/gpu0=8@900 a/gpu1=8@900 a=64@20", 12).len(), 2);
    // Two cards of one machine before two machines.
    assert_eq!(stages("a/gpu0=8@900 a/gpu1=8@900 b/gpu2=8@900", 16), ["gpu0:8", "gpu1:8"]);
}

#[test]
fn the_file_decides_between_equals_only() {
    insta::assert_snapshot!(check("a=40@50 b=40@10 >b", 32), @r"a        layers 0..32");
    insta::assert_snapshot!(check("a=40@50 b=40@50 >b", 32), @r"b        layers 0..32");
    let fetch = |cluster| run(cluster, 32, &[]).1.expect("fits").predicted.fetch_bytes;
    assert_eq!(fetch("a=40@50 b=40@50 >b"), 0);
    assert!(fetch("a=40@50 b=40@10 >b") > 31 * GIB, "it is shown");
}

/// 32 GiB take 3.4 s over the one line and 45 minutes over the other.
#[test]
fn a_fetch_pays_within_the_first_answers_or_is_left_out() {
    let between = |rate: f64| LinkFacts {
        from: device("b", 0.0, None).node,
        to: device("a", 0.0, None).node,
        rtt_s: Some(rtt(Duration::from_micros(200))),
        bytes_per_s: Some(Figure::measured(rate)),
    };
    let planned = |cluster, rate| {
        let mut request = read(cluster, 32, &[between(rate)]);
        request.context_tokens = 1024;
        let fastest = plan(&request).expect("fits");
        request.fetch_answers = Some(8);
        let plan = plan(&request).expect("fits");
        let line = |s: &exo_types::Stage| format!("{} {}", name(&request.devices, s.leader().node), s.layers);
        (plan.stages.iter().map(line).collect::<Vec<_>>().join(", "), plan, fastest)
    };
    let (fast_line, slow_line) = (1e10, 1.25e7);
    // The desktop is five times as fast as the laptop with the file.
    assert_eq!(planned("a=40@250 b=40@50 >b", fast_line).0, "a 0..32");
    let (stages, plan, fastest) = planned("a=40@250 b=40@50 >b", slow_line);
    assert_eq!(stages, "b 0..32", "45 minutes are not waited for");
    let faster = plan.faster.expect("it is said");
    assert_eq!(
        (faster.objective_ns, faster.fetch_bytes),
        (fastest.proof.objective_ns, fastest.predicted.fetch_bytes)
    );
    assert!(faster.objective_ns * 4 < plan.proof.objective_ns && faster.fetch_ns > 2_000_000_000_000);
    assert!(!plan.proof.is_optimal(), "{:?}", plan.proof);
    let of_a = &plan.reasons[0].text;
    assert!(of_a.contains("are fetched first, "), "{of_a}");
    // A tenth is nothing to fetch 32 GiB for, over whatever line.
    assert_eq!(planned("a=40@55 b=40@50 >b", slow_line).0, "b 0..32");
    // Who cannot hold it all holds what there is room for.
    let (stages, plan, fastest) = planned("a=40@60 b=20@50 >b", slow_line);
    assert!(fastest.predicted.fetch_bytes > 31 * GIB, "{fastest:?}");
    assert!(stages.contains('b') && plan.predicted.fetch_bytes < 14 * GIB, "{stages}");
    // Where nobody has the file everybody fetches it.
    let (stages, plan, _) = planned("a=40@60 b=40@50", slow_line);
    assert_eq!((&*stages, plan.faster), ("a 0..32", None), "nobody has the file");
}

/// There and back, between two nodes.
#[test]
fn a_hop_takes_beside_the_wire_what_answers_have_shown() {
    let hop_ns = |hop_s: Option<f64>| {
        let hop_s = hop_s.map(Figure::measured);
        let request = PlanRequest { hop_s, ..read("a=2@100 b=2@100", 4, &[]) };
        plan(&request).expect("fits").predicted.hop_ns
    };
    let (assumed, measured) = (hop_ns(None), hop_ns(Some(5e-4)));
    assert_eq!(measured.expected - assumed.expected, 2 * 450_000, "50 us are assumed");
    assert!(measured.high - measured.expected >= 2 * 50_000, "{measured:?}");
    assert_eq!(hop_ns(Some(f64::NAN)), assumed, "absurd");
}

/// A link that nobody has measured makes the time of a fetch a guess.
#[test]
fn the_time_of_a_fetch_over_an_unmeasured_link_is_a_guess() {
    let mut request = read("a=40@50 b=40@10 >b", 32, &[]);
    let predicted = |request: &PlanRequest| plan(request).expect("fits").predicted;
    let is_guess = |request: &PlanRequest| predicted(request).is_fetch_estimated;
    assert!(is_guess(&request));
    let (a, b) = (request.devices[0].node, request.devices[1].node);
    let link = |from, to, rtt_s, bytes_per_s| LinkFacts { from, to, rtt_s, bytes_per_s };
    let rate = Some(Figure::measured(1e9));
    request.links = vec![link(b, a, None, rate)];
    assert!(!is_guess(&request));
    let fetch_ns = predicted(&request).fetch_ns;
    // Of a direction with a round trip alone the other one tells the rate.
    request.links = vec![link(b, a, Some(Figure::measured(1e-3)), None), link(a, b, None, rate)];
    assert!(!is_guess(&request));
    assert_eq!(predicted(&request).fetch_ns, fetch_ns);
    request.holders = vec![request.devices[0].node];
    assert!(!is_guess(&request), "nothing is fetched");
}

/// Memory is not what lacks where the disk is full.
#[test]
fn a_pin_that_the_disk_cannot_meet_says_so() {
    for pin in ["^a:10", "^a"] {
        let mut request = read(&format!("a=40@50 b=40@10 >b {pin}"), 32, &[]);
        request.disks =
            vec![(request.devices[0].node, DiskRoom::of(if pin == "^a" { GIB / 2 } else { 5 * GIB }))];
        let error = plan(&request).expect_err("there is no room").to_string();
        assert!(error.contains("the disk of a has room for") && !error.contains("memory"), "{error}");
    }
}

#[test]
fn pins_are_kept() {
    insta::assert_snapshot!(check("a=40@50 b=40@10 ^b:0..4", 32), @r"
    b        layers 0..4
    a        layers 4..32
    ");
    insta::assert_snapshot!(check("a=40@50 b=40@10 ^b:5", 32), @r"
    b        layers 0..5
    a        layers 5..32
    ");
    insta::assert_snapshot!(check("a=40@50 b=40@10 ^b", 32), @r"
    b        layers 0..1
    a        layers 1..32
    ");
    insta::assert_snapshot!(check("a=40@50 b=4@10 ^b:5", 32), @r"the pin of b cpu cannot be met: it needs 5.1 GiB and has 4.1 GiB free, room for 4 layers at most: pin fewer, free memory there, or ask for less context or fewer slots");
    insta::assert_snapshot!(check("a=40@50 b=40@10 ^b:0..4 ^a:3..32", 32), @r"the pin of a cpu cannot be met: b cpu has some of layers 3..32");
    insta::assert_snapshot!(check("a=40@50 b=40@10! ^b", 32), @r"the pin of b cpu cannot be met: excluded: leaving");
    insta::assert_snapshot!(check("a=40@50 b=40@10 ^c", 32), @r"the pin of mmaaaaaa cpu cannot be met: there is no such device now: start its node, or place the model anew without the pin");
    insta::assert_snapshot!(check("a=40@50 b=40@10 ^b:20 ^a:20", 32), @r"the pin of a cpu cannot be met: the pins ask for 40 layers, the model has 32: pin fewer");
    insta::assert_snapshot!(check("a=30@50 b=40@10 ^a:32", 32), @r"the pin of a cpu cannot be met: it needs 32.1 GiB and has 30.1 GiB free, room for 30 layers at most: pin fewer, free memory there, or ask for less context or fewer slots");
}

/// Each says what was asked for, and what to change.
#[test]
fn pins_that_no_plan_can_meet_say_what_to_change() {
    for (pins, said) in [
        ("^b:0", "0 of 32 layers: pin 1 to 32"),
        ("^b:33", "33 of 32 layers: pin 1 to 32"),
        ("^b:4..2", "layers 4..2 of 32: pin some of 0..32"),
        ("^b:30..40", "layers 30..40 of 32: pin some of 0..32"),
        ("^b:2 ^b:3", "it is pinned twice: name it once"),
        // Nobody is left for layer 4.
        (
            "^b:0..4 ^a:5..32",
            "without this pin there is a plan, and with it none; leave it out, or ask for other layers",
        ),
    ] {
        let refused = check(&format!("a=40@50 b=40@10 {pins}"), 32);
        assert_eq!(refused, format!("the pin of b cpu cannot be met: {said}"), "{pins}");
    }
}

/// Where nothing is asked for there is nothing to place.
#[test]
fn a_context_of_no_token_and_no_slot_are_refused() {
    for what in ["context_tokens", "slots", "cache_tokens"] {
        let mut request = read("a=40@50", 32, &[]);
        match what {
            "context_tokens" => request.context_tokens = 0,
            "slots" => request.slots = 0,
            _ => request.cache_tokens = 0,
        }
        let refused = plan(&request).expect_err("nothing is asked for").to_string();
        assert_eq!(refused, format!("nothing to place: {what} is 0; ask for 1 or more"));
    }
}

#[test]
fn spread_fills_the_fastest_and_gives_the_others_a_layer() {
    insta::assert_snapshot!(check("a=40@30 b=40@20 c=40@10 +3", 12), @r"
    b        layers 0..1
    c        layers 1..2
    a        layers 2..12
    ");
    insta::assert_snapshot!(check("a=4@30 b=40@20 c=40@10 +3", 12), @r"
    b        layers 0..7
    c        layers 7..8
    a        layers 8..12
    ");
}

#[test]
fn a_full_pipeline_shares_by_speed_and_is_made_only_where_it_wins() {
    let mut request = read("a=40@30 b=40@20 c=40@10 ^b ^c", 12, &[]);
    request.objective = Objective::Throughput;
    request.workload.streams = 3;
    let piped = plan(&request).expect("fits");
    let layers = |s: &exo_types::Stage| s.layers.end - s.layers.start;
    let mut shares: Vec<u32> = piped.stages.iter().map(layers).collect();
    shares.sort_unstable();
    assert_eq!(shares, [2, 4, 6]);
    // Of its own it is not made: every micro-batch reads the weights again, and one device reads them once
    // for all.
    request.pins.clear();
    assert_eq!(plan(&request).expect("fits").stages.len(), 1);
}

/// What each sentence says is what comes out when the device is forced in, or left out.
#[test]
fn every_reason_is_true() {
    let cluster = "a=20@50 b=20@10 c=40@90! d=0@90 e=11@1 f=1@52";
    let far = |from: &str| LinkFacts {
        from: device(from, 0.0, None).node,
        to: device("f", 0.0, None).node,
        rtt_s: Some(rtt(Duration::from_millis(200))),
        bytes_per_s: None,
    };
    let request = read(cluster, 32, &[far("a"), far("b")]);
    let ours = plan(&request).expect("fits");
    let text = |plan: &Plan| {
        let line =
            |r: &exo_planner::DeviceReason| format!("{}: {}\n", name(&request.devices, r.node), r.text);
        plan.reasons.iter().map(line).collect::<String>()
    };
    insta::assert_snapshot!(text(&ours), @r"
    a: layers 12..32 + head: 20.1 GiB of 20.1 GiB free; 430 ms of 1.72 s a token at 50.0 GB/s (measured); without it a request of 1 + 1 tokens takes 28.17 s instead of 3.45 s
    b: layers 0..12 + embedding: 12.1 GiB of 20.1 GiB free; 1.29 s of 1.72 s a token at 10.0 GB/s (measured); without it a request of 1 + 1 tokens takes 24.73 s instead of 3.45 s
    c: excluded: leaving
    d: no layer: the smallest needs 1.1 GiB, 67.8 MiB are free
    e: no layer: adding it costs 2.57 ms a token between stages and 966 ms of computing; a request of 1 + 1 tokens takes 5.38 s instead of 3.45 s
    f: no layer: adding it costs 198 ms a token between stages and saves 86.68 ms of computing; a request of 1 + 1 tokens takes 3.67 s instead of 3.45 s
    ");
    for (index, reason) in ours.reasons.iter().enumerate() {
        let Some(otherwise_ns) = reason.otherwise_ns else { continue };
        let mut other = request.clone();
        let is_placed = ours.stages.iter().any(|s| s.leader().node == reason.node);
        if is_placed {
            other.devices[index].excluded = Some("left out".to_owned());
        } else {
            let layers = PinLayers::Any;
            other.pins.push(Pin { node: reason.node, device: reason.device.clone(), layers });
        }
        let forced = plan(&other).expect("there is such a plan");
        assert_eq!(forced.proof.objective_ns, otherwise_ns, "{}", reason.text);
        assert!(forced.proof.objective_ns >= ours.proof.objective_ns);
    }
}

/// What decides then is a token for each of them, which is said beside it.
#[test]
fn reasons_for_many_streams_say_which_numbers_are_of_one() {
    let mut request = read("a=20@50 b=20@10 e=13@1", 32, &[]);
    request.objective = Objective::Throughput;
    request.workload.streams = 8;
    let ours = plan(&request).expect("fits");
    for (index, reason) in ours.reasons.iter().enumerate() {
        let is_placed = ours.stages.iter().any(|s| s.leader().node == reason.node);
        assert_eq!(is_placed, index < 2, "{}", reason.text);
        let of_one =
            if is_placed { " a token of one stream at " } else { " a token of one stream between stages" };
        for said in [of_one, " a token for each of 8 streams takes "] {
            assert!(reason.text.contains(said), "{}", reason.text);
        }
    }
}

#[test]
fn a_device_that_cannot_be_spared_says_what_for() {
    let spread = Objective::Spread { stages_min: 2 };
    let cases = [
        ("a=40@50", Objective::Latency, "there is no device"),
        ("a=20@50 b=20@10", Objective::Latency, "the model does not fit"),
        ("a=40@50 b=40@10", spread, "there are fewer than the 2 devices that were asked for"),
        ("a=20@50 b=20@10 c=1@10", spread, "no plan is as it was asked for"),
    ];
    for (cluster, objective, why) in cases {
        let mut request = read(cluster, 32, &[]);
        request.objective = objective;
        let plan = plan(&request).expect("fits");
        let text = &plan.reasons[0].text;
        assert!(text.ends_with(&format!("; without it {why}")), "{cluster}: {text}");
    }
}

/// Each change that an error names makes the request possible, and a little less does not.
#[test]
fn every_remedy_is_the_smallest() {
    let mut request = read("a=10 b=4", 32, &[]);
    request.shape.layers.iter_mut().for_each(|layer| layer.weight_bytes = GIB / 4);
    request.shape.layers.iter_mut().for_each(|layer| layer.packed_bytes = GIB / 4);
    (request.context_tokens, request.cache_tokens) = (1 << 20, 1 << 20);
    let Err(PlanError::DoesNotFit { remedies, .. }) = plan(&request) else { panic!("it fits") };
    assert_eq!(remedies.len(), 2, "{remedies:?}");
    for remedy in remedies {
        let with = |less: u64| {
            let mut changed = request.clone();
            match &remedy {
                Remedy::Memory { device, bytes } => {
                    let is_this = |d: &&mut PlanDevice| format!("{} {}", d.node_name, d.device.id) == *device;
                    let grown = changed.devices.iter_mut().find(is_this).expect("a device of the request");
                    grown.device.memory_free_bytes += bytes - less;
                }
                Remedy::Disk { .. } => panic!("no disk is bounded"),
                Remedy::Context { context_tokens, cache_tokens } => {
                    let more = if less == 0 { 0 } else { 64 };
                    changed.context_tokens = context_tokens + more;
                    changed.cache_tokens = cache_tokens + more;
                }
            }
            plan(&changed).is_ok()
        };
        assert!(with(0) && !with(1), "{remedy:?}");
    }
}

#[test]
fn a_token_takes_what_the_formula_says() {
    let node = |name| device(name, 0.0, None).node;
    let link = |from, to| LinkFacts {
        from: node(from),
        to: node(to),
        rtt_s: Some(rtt(Duration::from_millis(2))),
        bytes_per_s: Some(Figure::measured(1e9)),
    };
    let links = [link("a", "b")];
    let predicted = |cluster| run(cluster, 4, &links).1.expect("fits").predicted;
    let solo = predicted("a=4@10");
    // Four layers at 10 GB/s and the head, 5 us a layer and 50 us a step; one token of keys and values is
    // nothing.
    let read_ns = (4.0 * (GIB - 1024) as f64 + (1 << 20) as f64) / 10.0;
    let expected = read_ns + 4.0 * 5e3 + 50e3;
    let off = |ns: u64, expected: f64| (ns as f64 - expected).abs() / expected;
    assert!(off(solo.token_ns.expected, expected) < 1e-4, "{solo:?} {expected}");
    assert_eq!(solo.hop_ns.expected, 0);
    let split = predicted("a=2@10 b=2@10");
    // Two half round trips, 50 us for each hop, 64 floats at 1 GB/s; one more step.
    assert_eq!(split.hop_ns.expected, 2_000_000 + 100_000 + 256);
    assert_eq!(split.token_ns.expected - solo.token_ns.expected, split.hop_ns.expected + 50_000);
}

#[test]
fn the_first_chunk_waits_for_an_idle_link() {
    let node = |name| device(name, 0.0, None).node;
    let ttft = |prompt: u32, rate: f64| {
        let link = LinkFacts {
            from: node("a"),
            to: node("b"),
            rtt_s: Some(rtt(Duration::from_millis(10))),
            bytes_per_s: Some(Figure::measured(rate)),
        };
        let mut request = read("a=3@10 b=3@10", 4, &[link]);
        (request.context_tokens, request.workload.prompt_tokens) = (1024, prompt);
        (request.shape.hidden, request.workload.answer_tokens) = (256, 1);
        request.shape.layers.iter_mut().for_each(|layer| layer.flops_per_token = 0);
        plan(&request).expect("fits").predicted.ttft_ns.expected as f64
    };
    let near = |ns: f64, expected: f64| (ns - expected).abs() < 0.2e6;
    // Rows of 1 KiB. 14 of them leave at once; 40 wait one round trip for the second window, 90 two.
    assert!(near(ttft(40, 1e12) - ttft(14, 1e12), 10e6));
    assert!(near(ttft(90, 1e12) - ttft(14, 1e12), 20e6));
    // At 1.25 MB/s the link holds 12.5 kB, which is less than what leaves at once: only its rate counts.
    assert!(near(ttft(40, 1.25e6) - ttft(14, 1.25e6), 26.0 * 1024.0 / 1.25e6 * 1e9));
}

/// A line that is faster than stated holds more than the second window, and takes a round trip more to fill.
#[test]
fn what_is_expected_is_within_its_range_where_a_faster_line_takes_longer() {
    let node = |name| device(name, 0.0, None).node;
    let link = LinkFacts {
        from: node("a"),
        to: node("b"),
        rtt_s: Some(rtt(Duration::from_millis(10))),
        bytes_per_s: Some(Figure::stated(4.3e6)),
    };
    let mut request = read("a=3@100000 b=3@100000", 4, &[link]);
    (request.context_tokens, request.workload.prompt_tokens) = (1024, 58);
    (request.shape.hidden, request.workload.answer_tokens) = (256, 1);
    request.shape.layers.iter_mut().for_each(|layer| layer.flops_per_token = 0);
    let ttft = plan(&request).expect("fits").predicted.ttft_ns;
    // 58 rows of 1 KiB at that rate, and a round trip; two trips of the faster line take 18 ms.
    assert!((23_000_000..26_000_000).contains(&ttft.expected), "{ttft:?}");
    assert!(ttft.low <= ttft.expected && ttft.expected < ttft.high, "{ttft:?}");
}

#[test]
fn further_streams_compute_beside_what_is_read_once() {
    let round = |kind, streams: u32, waits_per_s: f64| {
        let mut request = read("a=4@10", 4, &[]);
        request.devices[0].device.kind = kind;
        request.devices[0].rates.prefill_read_bytes_per_s = Some(Figure::measured(waits_per_s));
        request.workload.streams = streams;
        plan(&request).expect("fits").predicted.round_ns.expected as f64
    };
    let is_near = |ns: f64, expected: f64| (ns - expected).abs() / expected < 1e-3;
    let one = round(DeviceKind::Cpu, 1, 1e17);
    // 10 GB/s and 1e12 operations a second: four layers of 1 GiB are read in 430 ms, and 2 GiB operations
    // take each further stream 8.6 ms.
    let (of_stream, read_ns) = (4.0 * 2.0 * GIB as f64 / 1e3, 4.0 * GIB as f64 / 10.0);
    for streams in [8, 64] {
        let further = f64::from(streams) - 1.0;
        let products = (of_stream * further).hypot(read_ns);
        let expected = one - read_ns + products + further * (60e3 + 4.0 * 0.3 * 5e3);
        assert!(is_near(round(DeviceKind::Cpu, streams, 1e17), expected), "{streams}: partly while reading");
    }
    // Where it waits for more it is that: of 20 GB/s half of what reading takes.
    let computed = 63.0 * (of_stream + 60e3 + 4.0 * 0.3 * 5e3) + 4.0 * 5e3 + 50e3;
    assert!(is_near(round(DeviceKind::Cpu, 64, 20e9), computed + 4.0 * GIB as f64 / 20.0));
    // A card's kernels for few rows.
    let of_card = 63.0 * (of_stream / 0.5 + 60e3) + 4.0 * 5e3 + 50e3 + 250e3;
    assert!(is_near(round(DeviceKind::DiscreteGpu, 64, 1e17), of_card));
}

/// Layers of Q8_0 on a processor that reads 10 GB/s and computes 1 TFLOP/s: a round of so many streams
/// without what their tokens take beside products, where a step of 16 rows passes so much.
fn products_of_streams(kind: DeviceKind, streams: u32, step_bytes_per_s: Option<f64>) -> f64 {
    let mut request = read("a=4@10", 4, &[]);
    request.shape.layers.iter_mut().for_each(|layer| layer.flops_per_token = layer.weight_bytes / 34 * 64);
    request.devices[0].device.kind = kind;
    request.devices[0].rates.read_16_rows_bytes_per_s = step_bytes_per_s.map(Figure::measured);
    request.workload.streams = streams;
    let round_ns = plan(&request).expect("fits").predicted.round_ns.expected as f64;
    round_ns - f64::from(streams - 1) * (60e3 + 4.0 * 0.3 * 5e3)
}

#[test]
fn steps_of_several_rows_pass_through_what_was_measured_with_one_with_sixteen_and_with_a_chunk() {
    let of = |streams, step| products_of_streams(DeviceKind::Cpu, streams, step);
    let is_near = |ns: f64, expected: f64| (ns / expected - 1.0).abs() < 3e-3;
    // The formula alone says 9.6 GB/s.
    for step in [9.8e9, 8e9, 5e9] {
        assert_eq!(of(1, Some(step)), of(1, None));
        assert!(is_near(of(16, Some(step)), 4.0 * GIB as f64 / step * 1e9), "{step}: {}", of(16, Some(step)));
        assert!((of(16, Some(step)) < of(16, None)) == (step > 9.6e9), "{step}");
    }
    for streams in [64, 200] {
        assert!(is_near(of(streams, Some(9.8e9)), of(streams, None)), "{streams}");
    }
    let card = |step| products_of_streams(DeviceKind::DiscreteGpu, 16, step);
    assert_eq!(card(Some(5e9)), card(None));
}

#[test]
fn a_step_of_more_rows_takes_no_less_whatever_was_measured_of_sixteen_and_absurd_numbers_are_missing() {
    for step in [9.8e9, 9e9, 5e9, 1e9, 1e18, 1e-9] {
        let mut last = products_of_streams(DeviceKind::Cpu, 1, None);
        for streams in (2..20).chain([30, 50, 62, 63, 64, 65, 100]) {
            let ns = products_of_streams(DeviceKind::Cpu, streams, Some(step));
            // Sums of whole nanoseconds.
            assert!(ns >= last - 1.0, "{step}, {streams}: {ns} behind {last}");
            last = ns;
        }
    }
    let without = products_of_streams(DeviceKind::Cpu, 16, None);
    for absurd in [f64::NAN, 0.0, -1.0, f64::INFINITY, 1e30] {
        assert_eq!(products_of_streams(DeviceKind::Cpu, 16, Some(absurd)), without, "{absurd}");
    }
}

/// The numbers that docs/benchmarks.md has of Q8_0, Q4_0, Q5_0, Q4_K and Q6_K: of a read bandwidth of 18.5
/// GB/s the part that one row reaches, and operations with few rows and with many.
#[test]
fn few_rows_on_a_processor_take_what_its_kernels_were_measured_to() {
    let planned = |weights_per_ns: f64, gops_many: f64, rows: u32| {
        let mut request = read("a=4@10", 4, &[]);
        let measured = |rate: f64| Some(Figure::measured(rate * 1e9));
        request.devices[0].rates.read_bytes_per_s = measured(weights_per_ns);
        request.devices[0].rates.flops_per_s = measured(gops_many);
        request.workload.streams = rows;
        let round_ns = plan(&request).expect("fits").predicted.round_ns.expected;
        f64::from(rows) * 4.0 * 2.0 * GIB as f64 / round_ns as f64
    };
    let weight_bytes = [1.0625, 0.5625, 0.6875, 0.5625, 0.8203];
    let avx512 = [
        (0.9, 205.0, 382.0),
        (0.85, 311.0, 384.0),
        (0.84, 273.0, 344.0),
        (0.83, 308.0, 383.0),
        (0.84, 220.0, 278.0),
    ];
    let avx2 = [
        (0.865, 70.0, 98.0),
        (0.895, 135.0, 166.0),
        (0.8, 119.0, 172.0),
        (0.92, 133.0, 159.0),
        (0.605, 107.0, 144.0),
    ];
    for (rows, off_max, kernels) in [(8, 0.1, avx512), (4, 0.3, avx2)] {
        for (bytes, (part, few, many)) in weight_bytes.into_iter().zip(kernels) {
            let planned = planned(part * 18.5 / bytes, many, rows);
            assert!((planned / few - 1.0).abs() < off_max, "{rows} rows: {planned} planned, {few} measured");
        }
    }
}

#[test]
fn a_further_row_starts_its_attention_in_each_layer_of_a_processor() {
    let round = |kind, layer_s: f64, streams: u32| {
        let mut request = read("a=4@10", 4, &[]);
        request.devices[0].device.kind = kind;
        request.devices[0].rates.layer_s = Some(Figure::measured(layer_s));
        request.workload.streams = streams;
        plan(&request).expect("fits").predicted.round_ns.expected as f64
    };
    let more = |kind, streams| round(kind, 1e-3, streams) - round(kind, 1e-6, streams);
    let of_layers = 4.0 * (1e6 - 1e3);
    for (kind, streams, layers) in
        [(DeviceKind::Cpu, 1, 1.0), (DeviceKind::Cpu, 11, 4.0), (DeviceKind::DiscreteGpu, 11, 1.0)]
    {
        assert!((more(kind, streams) - layers * of_layers).abs() < 1e3, "{streams} on {kind:?}");
    }
}

#[test]
fn a_chunk_on_a_card_starts_kernels_whatever_its_rows() {
    let ttft = |kind, prompt: u32| {
        let mut request = read("a=40@10", 4, &[]);
        request.context_tokens = 4096;
        request.devices[0].rates.step_s = Some(Figure::measured(50e-6));
        request.devices[0].device.kind = kind;
        request.workload.prompt_tokens = prompt;
        plan(&request).expect("fits").predicted.ttft_ns.expected as f64
    };
    let more = |prompt| ttft(DeviceKind::DiscreteGpu, prompt) - ttft(DeviceKind::Cpu, prompt);
    // Four layers of 5 µs each, two and a half times more, and a process of its own.
    let of_chunk = 4.0 * 5e3 * 2.5 + 250e3;
    assert!((more(64) - of_chunk).abs() < 1e3, "{}", more(64));
    assert!((more(1024) - 2.0 * of_chunk).abs() < 1e3, "two chunks: {}", more(1024));
    assert!((more(8) - 250e3).abs() < 1e3, "kernels for few rows: {}", more(8));
    // A worker times its steps without the way to it.
    let step = |kind| {
        let mut request = read("a=40@10", 4, &[]);
        request.devices[0].device.kind = kind;
        request.devices[0].rates.step_s = Some(Figure::measured(50e-6));
        expected_step(&request, LayerRange::new(0, 4), Phase::Decode)
    };
    assert_eq!(step(DeviceKind::DiscreteGpu), step(DeviceKind::Cpu));
}

#[test]
fn a_model_that_caches_hold_is_faster_than_from_memory_on_a_processor_and_teaches_nothing() {
    let all = LayerRange::new(0, 4);
    let of = |layer_bytes: u64, kind: DeviceKind| {
        let mut request = read("a=40@10", 4, &[]);
        request.devices[0].device.kind = kind;
        request.shape.layers.iter_mut().for_each(|l| {
            (l.weight_bytes, l.packed_bytes, l.flops_per_token) = (layer_bytes, layer_bytes, 2 * layer_bytes);
        });
        let step = expected_step(&request, all, Phase::Decode);
        (plan(&request).expect("fits").predicted.token_ns, step.is_some())
    };
    // Four layers and the head of 1 MiB: 8 MiB, and a little more than that.
    let (small, large) = ((7 << 18) - 16, 7 << 18);
    let (held, teaches) = of(small, DeviceKind::Cpu);
    let (read_anew, others_teach) = of(large, DeviceKind::Cpu);
    assert!(!teaches && others_teach);
    let read_ns = (8 << 20) as f64 / 10.0;
    assert!((held.expected as f64 / (read_ns / 1.2 + 4.0 * 5e3 / 8.0 + 50e3) - 1.0).abs() < 1e-2, "{held:?}");
    assert!((read_anew.expected as f64 / (read_ns + 4.0 * 5e3 + 50e3) - 1.0).abs() < 1e-2, "{read_anew:?}");
    let width = |range: exo_planner::Range| range.high as f64 / range.low as f64;
    assert!(width(held) > 1.3 * width(read_anew), "it is derived: {held:?} {read_anew:?}");
    let card = |bytes| of(bytes, DeviceKind::DiscreteGpu).0.expected;
    assert!(card(large) - card(small) < 100, "what a card reads is in its own memory");
}

#[test]
fn depth_costs_time() {
    let token = |context: u32, prompt: u32| {
        let mut request = read("a=40@10", 4, &[]);
        request.shape.layers.iter_mut().for_each(|l| l.kv_bytes_per_token = 1 << 18);
        (request.context_tokens, request.workload.prompt_tokens) = (context, prompt);
        plan(&request).expect("fits").predicted.token_ns.expected
    };
    // 4,096 tokens of 256 KiB are the bytes of a layer: the rate is halved.
    let ratio = token(8192, 4096) as f64 / token(8192, 1) as f64;
    assert!((1.9..2.1).contains(&ratio), "{ratio}");
}

#[test]
fn the_order_follows_the_shortest_way_around() {
    let node = |name| device(name, 0.0, None).node;
    let link = |from, to, ms| {
        let rtt_s = Some(rtt(Duration::from_millis(ms)));
        LinkFacts { from: node(from), to: node(to), rtt_s, bytes_per_s: None }
    };
    // a-c and b-d are far apart, so they must not be neighbours.
    let mut links = vec![link("a", "c", 90), link("b", "d", 90)];
    links.extend([link("a", "b", 1), link("b", "c", 1), link("c", "d", 1), link("d", "a", 1)]);
    let (devices, planned) = run("a=1 c=1 b=1 d=1", 4, &links);
    let stages = planned.expect("fits").stages;
    let order: String = stages.iter().map(|s| name(&devices, s.leader().node)).collect();
    assert!("abcdabcdcbadcba".contains(&order), "{order}");
}

#[test]
fn a_model_that_does_not_fit_says_what_is_missing_and_where() {
    insta::assert_snapshot!(check("a=10 b=4", 32), @r"the model needs 32.1 GiB, the devices have 14.0 GiB usable of 14.1 GiB free: 18.0 GiB are missing (a cpu: 10.0 GiB usable of 10.1 GiB free, b cpu: 4.0 GiB usable of 4.1 GiB free); the largest single unit is layer 31 with the output head with 1.1 GiB; it fits with 18.0 GiB more on a cpu");
}

#[test]
fn a_model_that_fits_in_sum_and_not_in_pieces_says_what_would_help() {
    let (_, planned) = run("a=1.5 b=1.5", 3, &[]);
    let Err(PlanError::DoesNotFit { missing_bytes, largest_unit, .. }) = planned else {
        panic!("{planned:?}");
    };
    // Half a layer more on either, less the slack every test device has.
    assert!((GIB / 2 - (4 << 20)..=GIB / 2).contains(&missing_bytes), "{missing_bytes}");
    assert_eq!(&*largest_unit, "layer 2 with the output head");
}

#[test]
fn requests_that_cannot_be_met_are_told_apart() {
    insta::assert_snapshot!(check("a=10! b=10!", 4), @r"no device can be used: a cpu: excluded: leaving; b cpu: excluded: leaving");
    insta::assert_snapshot!(check("a=10 b=10 +3", 4), @r"3 stages were asked for, 2 are possible (2 usable devices, 4 layers)");
    insta::assert_snapshot!(check("a=10 b=10 c=0 +3", 4), @r"3 stages were asked for, 2 are possible (the other devices cannot hold a layer)");
    insta::assert_snapshot!(check("a=10 b=10 c=10 +3", 2), @r"3 stages were asked for, 2 are possible (3 usable devices, 2 layers)");
    insta::assert_snapshot!(check("a=10", 0), @r"nothing to place: layers is 0");
}

/// Ten layers, those of `q2_k` of that type and the others Q4_0, on devices of which the cards have no
/// kernels for Q2_K and Q3_K.
fn mixed_types(cluster: &str, q2_k: &[u32], head: DType) -> PlanRequest {
    let mut request = read(cluster, 10, &[]);
    let layer = |(at, layer): (usize, &LayerShape)| {
        let dtype = if q2_k.contains(&(at as u32)) { DType::Q2_K } else { DType::Q4_0 };
        TypeBytes(vec![(dtype, layer.weight_bytes)])
    };
    let layers = request.shape.layers.iter().enumerate().map(layer).collect();
    let head = TypeBytes(vec![(head, request.shape.head_bytes)]);
    request.weight_types = Some(WeightTypes { layers, head });
    let cards = request.devices.iter_mut().filter(|d| d.device.kind == DeviceKind::DiscreteGpu);
    cards.for_each(|card| card.device.unsupported_types = vec![DType::Q2_K, DType::Q3_K]);
    request
}

/// Devices and their layers.
fn parts(plan: &Plan) -> String {
    let part = |s: &exo_types::Stage| format!("{} {}", s.leader().device, s.layers);
    plan.stages.iter().map(part).collect::<Vec<_>>().join(", ")
}

#[test]
fn a_device_without_kernels_for_a_type_gets_the_layers_of_other_types_and_says_which_it_does_not_run() {
    let both = "a/gpu0=20@100 b=20@10";
    let before = plan(&mixed_types(both, &[], DType::Q4_0)).expect("it fits");
    assert_eq!(parts(&before), "gpu0 0..10", "the card runs every type that is there");
    let split = |q2_k: &[u32], head: DType, lacking: &str| {
        let request = mixed_types(both, q2_k, head);
        let planned = plan(&request).expect("the processor runs all");
        assert_eq!(validate(&request, &planned), Ok(()));
        let reason = &planned.reasons[0].text;
        assert!(reason.ends_with(&format!("it cannot run {lacking}")), "{reason}");
        parts(&planned)
    };
    let types =
        |layers: &[u32], lacking: &str| split(layers, DType::Q4_0, &format!("Q2_K weights, which {lacking}"));
    // The longer part is the card's, which is ten times as fast.
    assert_eq!(types(&[3, 4, 5], "layers 3 to 5 need"), "cpu 0..6, gpu0 6..10");
    assert_eq!(types(&[9], "layer 9 needs"), "gpu0 0..9, cpu 9..10");
    assert_eq!(types(&[0, 2, 3], "layers 0, 2 to 3 need"), "cpu 0..4, gpu0 4..10");
    assert_eq!(types(&[0, 2, 4, 6], "4 of 10 layers need"), "cpu 0..7, gpu0 7..10");
    let head = split(&[], DType::Q3_K, "Q3_K weights, which the output head needs");
    assert_eq!(head, "gpu0 0..9, cpu 9..10");
    let ends = "Q2_K weights, which layer 0 needs, and no Q3_K weights, which the output head needs";
    assert_eq!(split(&[0], DType::Q3_K, ends), "cpu 0..10", "no two stages on one device");
    let all: Vec<u32> = (0..10).collect();
    assert_eq!(types(&all, "layers 0 to 9 need"), "cpu 0..10");
    // A plan of before, when another file was meant.
    let invalid = validate(&mixed_types(both, &[3], DType::Q4_0), &before).expect_err("the card cannot");
    assert_eq!(invalid.to_string(), "stage 0 is on a gpu0: it cannot run Q2_K weights, which layer 3 needs");
}

#[test]
fn an_embedding_of_a_type_that_a_device_does_not_run_goes_elsewhere_with_the_first_layer() {
    let mut request = mixed_types("a/gpu0=20@100 b=20@10", &[], DType::Q4_0);
    request.weight_types = request.weight_types.map(|types| types.with_embedding(DType::Q2_K));
    let planned = plan(&request).expect("the processor runs all");
    assert_eq!(parts(&planned), "cpu 0..1, gpu0 1..10");
    let reason = &planned.reasons[0].text;
    assert!(reason.ends_with("it cannot run Q2_K weights, which the embedding needs"), "{reason}");
    request.devices.pop();
    let none = plan(&request).expect_err("nobody looks it up").to_string();
    assert!(none.contains("a gpu0: it cannot run Q2_K weights, which the embedding needs"), "{none}");
}

#[test]
fn a_model_that_no_device_supports_is_refused_with_what_each_lacks() {
    let refused = |cluster: &str, layers: &[u32]| {
        plan(&mixed_types(cluster, layers, DType::Q4_0)).expect_err("no device runs it").to_string()
    };
    insta::assert_snapshot!(refused("a/gpu0=20@100 c/gpu0=20 d=20!", &[0, 1]), @"no device can run the types of weights that the model has: a gpu0: it cannot run Q2_K weights, which layers 0 to 1 need; c gpu0: it cannot run Q2_K weights, which layers 0 to 1 need; d cpu: excluded: leaving; take the model in another type, or add a node that runs them on its processor");
    let all: Vec<u32> = (0..10).collect();
    insta::assert_snapshot!(refused("a/gpu0=20@100 b=20 ^a/gpu0", &all), @"the pin of a gpu0 cannot be met: it cannot run Q2_K weights, which layers 0 to 9 need");
    insta::assert_snapshot!(refused("a/gpu0=20@100 b=20 ^a/gpu0:5..8", &[2, 7]), @"the pin of a gpu0 cannot be met: it cannot run Q2_K weights, which layer 7 needs");
    insta::assert_snapshot!(refused("a/gpu0=20@100 b=20 ^a/gpu0:5", &[2, 7]), @"the pin of a gpu0 cannot be met: it cannot run Q2_K weights, which layers 2, 7 need");
    let four = plan(&mixed_types("a/gpu0=20@100 b=20 ^a/gpu0:4", &[4, 5], DType::Q4_0)).expect("four fit");
    assert!(["gpu0 0..4, cpu 4..10", "cpu 0..6, gpu0 6..10"].contains(&&*parts(&four)), "{}", parts(&four));
    // Too little memory elsewhere: the card is named beside what is missing; more memory there is no help.
    let short = refused("a/gpu0=20@100 b=3.5", &[3]);
    assert!(
        short.contains("are missing")
            && !short.contains("free on a gpu0")
            && short.ends_with("; left out: a gpu0 (it cannot run Q2_K weights, which layer 3 needs)"),
        "{short}"
    );
    // Who has room for nothing is told so, as before.
    assert!(refused("d=20!", &[0]).starts_with("no device can be used: d cpu: excluded: leaving"));
}

/// What a plan for the cluster `before` is worth in the cluster `after`.
fn still_fits(before: &str, after: &str) -> String {
    let plan = plan(&read(before, 4, &[])).expect("fits");
    validate(&read(after, 4, &[]), &plan).map_or_else(|invalid| invalid.to_string(), |()| "fits".to_owned())
}

#[test]
fn a_plan_fits_while_its_devices_are_there_may_be_used_and_have_room() {
    insta::assert_snapshot!(still_fits("a=2 b=2", "a=2 b=2"), @"fits");
    insta::assert_snapshot!(still_fits("a=2 b=2", "c=9 b=2 a=2"), @"fits");
    insta::assert_snapshot!(still_fits("a=2 b=2", "a=2 c=9"), @"stage 1 is on cpu of miaaaaaa, which is not there");
    insta::assert_snapshot!(still_fits("a/gpu0=4", "a/gpu1=4 a=4"), @"stage 0 is on gpu0 of meaaaaaa, which is not there");
    insta::assert_snapshot!(still_fits("a=2 b=2", "a=2 b=2!"), @"stage 1 is on b cpu: excluded: leaving");
    insta::assert_snapshot!(still_fits("a=2 b=2", "a=2 b=1.9"), @"stage 1 needs 2.1 GiB, b cpu has 2.0 GiB free");
}

#[test]
fn a_plan_whose_stages_do_not_tile_the_model_does_not_fit() {
    let request = read("a=2 b=2", 4, &[]);
    let good = plan(&request).expect("fits");
    let verdict = |spoil: &dyn Fn(&mut Plan)| {
        let mut plan = good.clone();
        spoil(&mut plan);
        validate(&request, &plan).map_or_else(|invalid| invalid.to_string(), |()| "fits".to_owned())
    };
    insta::assert_snapshot!(verdict(&|_| {}), @"fits");
    insta::assert_snapshot!(verdict(&|p| p.stages.swap(0, 1)), @"4 layers are not tiled: layer 0 comes next, the plan goes on with layers 2..4 + head");
    insta::assert_snapshot!(verdict(&|p| drop(p.stages.pop())), @"4 layers are not tiled: layer 2 comes next, the plan goes on with no stage");
    insta::assert_snapshot!(verdict(&|p| p.stages.clear()), @"4 layers are not tiled: layer 0 comes next, the plan goes on with no stage");
    insta::assert_snapshot!(verdict(&|p| p.stages[1].layers.start = 1), @"4 layers are not tiled: layer 2 comes next, the plan goes on with layers 1..4 + head");
    insta::assert_snapshot!(verdict(&|p| p.stages[1].layers.end = u32::MAX), @"4 layers are not tiled: layer 2 comes next, the plan goes on with layers 2..4294967295 + head");
    insta::assert_snapshot!(verdict(&|p| p.stages[1].shards[0].shard.layers.start = 1), @"4 layers are not tiled: layer 2 comes next, the plan goes on with layers 1..4 + head");
    insta::assert_snapshot!(verdict(&|p| p.stages[1].shards[0].shard.head = false), @"4 layers are not tiled: layer 2 comes next, the plan goes on with layers 2..4");
    insta::assert_snapshot!(verdict(&|p| p.stages[1].shards[0].node = p.stages[0].shards[0].node), @"stage 1 is on a cpu, as one before it");
    insta::assert_snapshot!(verdict(&|p| p.memory.truncate(1)), @"the plan has 2 shards and the bytes of 1");
}

/// Bytes of the weights of `shard` on a device of this kind.
fn weights_on(kind: DeviceKind, shape: &ModelShape, shard: &Shard) -> u64 {
    if kind == DeviceKind::Cpu { shape.shard_packed_bytes(shard) } else { shape.shard_weight_bytes(shard) }
}

/// What weights take on a device is counted as that device holds them, to the byte.
#[test]
fn a_processor_needs_room_for_packed_weights_and_a_card_does_not() {
    let mut shape = model(2);
    shape.layers.iter_mut().for_each(|layer| layer.packed_bytes += 1000);
    (shape.embedding_packed_bytes, shape.head_packed_bytes) = ((1 << 20) + 100, (1 << 20) + 300);
    let planned = |kind, free| {
        let mut one = device("a", 0.0, None);
        (one.device.kind, one.device.memory_free_bytes) = (kind, free);
        plan(&PlanRequest::new(shape.clone(), 1, vec![one]))
    };
    let as_stored = 2 * GIB + (1 << 20) + 64 + workspace_bytes(&shape, 1, true);
    for (kind, needed) in
        [(DeviceKind::DiscreteGpu, as_stored), (DeviceKind::Cpu, as_stored + 2 * 1000 + 300 - 64)]
    {
        let fits = planned(kind, needed).unwrap_or_else(|error| panic!("{kind:?}: {error}"));
        assert_eq!(fits.memory[0].total_bytes(), needed, "{kind:?}");
        let Err(PlanError::DoesNotFit { missing_bytes, .. }) = planned(kind, needed - 7) else {
            panic!("{kind:?} has no room")
        };
        assert_eq!(missing_bytes, 7, "{kind:?}");
    }
}

/// Whether any order of any subset holds the model, each stage at least one layer, and at least `stages` of
/// them.
fn brute_force(shape: &ModelShape, devices: &[PlanDevice], tokens: u64, stages: usize) -> bool {
    fn place(
        shape: &ModelShape,
        on: &[PlanDevice],
        tokens: u64,
        used: u32,
        start: u32,
        stages: usize,
    ) -> bool {
        let count = shape.layer_count();
        if start == count {
            return used.count_ones() as usize >= stages;
        }
        (0..on.len()).filter(|i| used & (1 << i) == 0).any(|i| {
            let device = &on[i].device;
            (start + 1..=count).any(|end| {
                let shard = Shard::pipeline(LayerRange::new(start, end), count);
                let needed = weights_on(device.kind, shape, &shard)
                    + shape.shard_kv_bytes_per_token(&shard) * tokens
                    + workspace_bytes(shape, 1, shard.head);
                let fits = needed <= device.memory_free_bytes;
                fits && place(shape, on, tokens, used | 1 << i, end, stages)
            })
        })
    }
    place(shape, devices, tokens, 0, 0, stages)
}

/// One after the other a processor and a card, of nodes of their own.
fn mixed(shape: &ModelShape, rooms: impl Iterator<Item = (u64, Option<f64>)>) -> Vec<PlanDevice> {
    let one = |(i, (room, speed)): (usize, (u64, Option<f64>))| {
        let mut one = device(&format!("n{i}"), 0.0, speed);
        one.device.memory_free_bytes = workspace_bytes(shape, 1, false) + (room << 20);
        if i % 2 == 1 {
            one.device.kind = DeviceKind::DiscreteGpu;
        }
        one
    };
    rooms.enumerate().map(one).collect()
}

/// Unequal layers, in units that make the ends and the KV cache matter.
fn shapes() -> impl Strategy<Value = ModelShape> {
    const UNIT: u64 = 1 << 20;
    let layer = (1u64..6, 0u64..3, 0u64..3).prop_map(|(weights, kv, more)| LayerShape {
        weight_bytes: weights * UNIT,
        packed_bytes: weights * UNIT + more * UNIT / 4,
        flops_per_token: weights,
        kv_bytes_per_token: kv * UNIT / 8,
    });
    (prop::collection::vec(layer, 1..7), 0u64..5, any::<bool>()).prop_map(|(layers, ends, tied)| ModelShape {
        layers,
        embedding_bytes: ends * UNIT,
        head_bytes: ends * UNIT + 64,
        embedding_packed_bytes: ends * (UNIT + UNIT / 8),
        head_packed_bytes: ends * (UNIT + UNIT / 8) + 128,
        tied,
        hidden: 64,
        attention: 64,
        vocab: 1000,
        context_tokens_max: 64,
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    /// Shards tile the model and fit; and there is a plan exactly when brute force finds one.
    #[test]
    fn plans_tile_fit_and_exist_when_they_can(
        shape in shapes(),
        rooms in prop::collection::vec((0u64..14, prop::option::of(1f64..50.0)), 1..5),
        spread in 0u32..4,
        holder in 0usize..6,
    ) {
        const CONTEXT: u32 = 4;
        let devices = mixed(&shape, rooms.into_iter());
        let mut request = PlanRequest::new(shape.clone(), CONTEXT, devices.clone());
        if spread > 0 {
            request.objective = Objective::Spread { stages_min: spread };
        }
        request.holders = devices.get(holder).map(|d| d.node).into_iter().collect();
        let possible = brute_force(&shape, &devices, CONTEXT.into(), spread as usize);
        let planned = plan(&request);
        prop_assert_eq!(planned.is_ok(), possible, "{:?}", planned);
        prop_assert_eq!(&planned, &plan(&request), "the same request gives the same plan");
        let Ok(plan) = planned else { return Ok(()) };
        prop_assert_eq!(validate(&request, &plan), Ok(()));
        let mut next = 0;
        for (stage, memory) in plan.stages.iter().zip(&plan.memory) {
            prop_assert_eq!(stage.layers.start, next);
            prop_assert!(!stage.layers.is_empty());
            prop_assert_eq!(stage.leader().shard, Shard::pipeline(stage.layers, shape.layer_count()));
            next = stage.layers.end;
            let of = devices.iter().find(|d| d.node == stage.leader().node).expect("a known node");
            prop_assert!(memory.total_bytes() <= of.device.memory_free_bytes);
            prop_assert_eq!(memory.weight_bytes, weights_on(of.device.kind, &shape, &stage.leader().shard));
        }
        prop_assert_eq!(next, shape.layer_count());
        let mut nodes: Vec<NodeId> = plan.stages.iter().map(|s| s.leader().node).collect();
        nodes.sort_unstable();
        nodes.dedup();
        prop_assert_eq!(nodes.len(), plan.stages.len(), "one stage a device");
        prop_assert!(plan.stages.len() >= spread as usize);
        prop_assert_eq!(plan.reasons.len(), devices.len());
    }

    /// What an error says is missing is missing: with it added in the best place the model fits, without it
    /// not.
    #[test]
    fn missing_bytes_are_enough(shape in shapes(), rooms in prop::collection::vec(0u64..8, 1..4)) {
        let devices = mixed(&shape, rooms.into_iter().map(|room| (room, None)));
        let try_with = |devices: &[PlanDevice]| plan(&PlanRequest::new(shape.clone(), 4, devices.to_vec()));
        let Err(PlanError::DoesNotFit { missing_bytes, needed_bytes, usable_bytes, .. }) = try_with(&devices) else {
            return Ok(());
        };
        prop_assert!(missing_bytes > 0);
        if usable_bytes >= needed_bytes {
            let fits_after = (0..devices.len()).any(|i| {
                let mut grown = devices.clone();
                grown[i].device.memory_free_bytes += missing_bytes;
                try_with(&grown).is_ok()
            });
            prop_assert!(fits_after);
        }
    }
}

/// A model of one type on one device as its node reports it, which reads Q8_0 at 10 GB/s and Q4_K at 5.
fn of_type(dtype: DType, typed: &[TypeRates]) -> Plan {
    let facts = DeviceFacts { rates_by_type: typed.to_vec(), ..device("a", 5.0, Some(10.0)).device };
    let device = PlanDevice::reported(NodeId([1; 32]), "a".to_owned(), facts, None);
    let shape = model(4);
    let of = |bytes| TypeBytes(vec![(dtype, bytes)]);
    let types = WeightTypes { layers: vec![of(shape.layers[0].weight_bytes); 4], head: of(shape.head_bytes) };
    assert!(types.are_of(&shape));
    plan(&PlanRequest { weight_types: Some(types), ..PlanRequest::new(shape, 1024, vec![device]) })
        .expect("it fits")
}

#[test]
fn a_model_is_predicted_by_the_rates_of_its_own_types() {
    let q4_k = |age_s| TypeRates {
        dtype: DType::Q4_K,
        read_bytes_per_s: 5e9,
        flops_per_s: 2e11,
        read_16_rows_bytes_per_s: None,
        measured: Provenance { count: 9, age_s },
    };
    let predicted = |dtype, typed: &[TypeRates]| of_type(dtype, typed).predicted;
    let q8_0 = predicted(DType::Q8_0, &[q4_k(DAY_S)]);
    let own = predicted(DType::Q4_K, &[q4_k(DAY_S)]);
    let ratio = |a: u64, b: u64| a as f64 / b as f64;
    let twice = ratio(own.token_ns.expected, q8_0.token_ns.expected);
    assert!((1.99..2.01).contains(&twice), "it reads at half the rate: {twice}");
    // A prompt of 512 is arithmetic: 1 TFLOP/s with Q8_0, a fifth of it with Q4_K.
    let five = ratio(own.ttft_ns.expected, q8_0.ttft_ns.expected);
    assert!((4.5..5.1).contains(&five), "{five}");
    // Of what was not measured the rate is that of Q8_0, and less certain; so is what was measured long ago.
    let missing = predicted(DType::Q4_K, &[]);
    assert_eq!(missing.token_ns.expected, q8_0.token_ns.expected);
    let width = |p: &exo_planner::Prediction| ratio(p.token_ns.high, p.token_ns.low);
    let old = predicted(DType::Q4_K, &[q4_k(DAY_S + 1)]);
    assert!(width(&own) < width(&old) && width(&old) < width(&missing), "{own:?} {old:?} {missing:?}");
}

#[test]
fn what_was_measured_long_ago_or_once_widens_the_range_and_a_rate_without_a_date_does_not() {
    let width = |measured: Option<(u32, u32)>| {
        let rates_measured = measured.map(|(count, age_s)| Provenance { count, age_s });
        let facts = DeviceFacts { rates_measured, ..device("a", 5.0, Some(10.0)).device };
        let device = PlanDevice::reported(NodeId([1; 32]), "a".to_owned(), facts, None);
        let plan = plan(&PlanRequest::new(model(4), 1024, vec![device])).expect("it fits");
        let token_ns = plan.predicted.token_ns;
        token_ns.high as f64 / token_ns.low as f64
    };
    let (fresh, once, old) = (width(Some((9, 60))), width(Some((1, 60))), width(Some((9, DAY_S + 1))));
    assert_eq!(width(None), fresh);
    assert!(fresh < once && once < old, "{fresh} {once} {old}");
}

#[test]
fn two_equal_devices_stay_equal_when_one_of_them_has_measured_a_type() {
    let measured = Provenance { count: 9, age_s: 60 };
    let q4_k = TypeRates {
        dtype: DType::Q4_K,
        read_bytes_per_s: 5e9,
        flops_per_s: 2e11,
        read_16_rows_bytes_per_s: Some(8e8),
        measured,
    };
    let of = |name: &str, typed: Vec<TypeRates>| {
        let facts = DeviceFacts { rates_by_type: typed, ..device(name, 5.0, Some(10.0)).device };
        let of_16_rows = |layer| LayerRates { read_16_rows_bytes_per_s: Some(8e9), ..layer };
        let facts = DeviceFacts { layer_rates: facts.layer_rates.map(of_16_rows), ..facts };
        PlanDevice::reported(device(name, 4.0, None).node, name.to_owned(), facts, None)
    };
    let shape = model(4);
    let bytes = |bytes| TypeBytes(vec![(DType::Q4_K, bytes)]);
    let types =
        WeightTypes { layers: vec![bytes(shape.layers[0].weight_bytes); 4], head: bytes(shape.head_bytes) };
    let mut request = PlanRequest {
        weight_types: Some(types),
        ..PlanRequest::new(shape, 1024, vec![of("a", vec![q4_k]), of("b", Vec::new())])
    };
    request.workload.streams = 16;
    let on = |at: usize| {
        let PlanDevice { node, device, .. } = &request.devices[at];
        let stage = exo_types::Stage::solo(*node, device.id.clone(), Shard::whole(4));
        let predicted = exo_planner::predict(&request, &[stage]).expect("it tiles").0;
        (predicted.token_ns, predicted.round_ns.expected)
    };
    let ((measured, round), (other, other_round)) = (on(0), on(1));
    assert_eq!(round, other_round);
    // Products of 16 rows take 1.1 s at the rate of a chunk, and 3.1 by the step that was measured.
    assert!(round > 3_000_000_000, "{round}");
    assert_eq!(measured.expected, other.expected);
    assert!(other.low < measured.low && measured.high < other.high, "less certain: {measured:?} {other:?}");
    let text = plan(&request).expect("it fits").reasons[0].text.clone();
    assert!(text.contains("at 5.0 GB/s (measured"), "the rate of the type, not of Q8_0: {text}");
}

#[test]
fn a_prompt_passes_a_pipeline_in_chunks_that_overlap() {
    // 512 tokens are one chunk over one stage, 2 over two, 4 over four; a short context shortens prompt and
    // answer alike.
    let ttft = |devices: &str, context: u32| {
        let mut request = read(devices, 4, &[]);
        (request.context_tokens, request.cache_tokens) = (context, 1);
        plan(&request).expect("it fits").predicted
    };
    let (one, two) = (ttft("a=4@100", 4096), ttft("a=2@100 b=2@100", 4096));
    assert_eq!(one.prompt_tokens, 512);
    let ratio = two.ttft_ns.expected as f64 / one.ttft_ns.expected as f64;
    assert!((0.74..0.85).contains(&ratio), "(2 + 1) / 4 of the time, and hops: {ratio}");
    assert_eq!(ttft("a=4@100", 320).prompt_tokens, 256);
}

/// What attention and the rest of a layer take grows with other things than products do.
#[test]
fn attention_decides_long_prompts_and_what_a_layer_takes_decides_short_steps() {
    let shape = |layers: u32| ModelShape {
        layers: vec![
            LayerShape {
                weight_bytes: 16 << 20,
                packed_bytes: 16 << 20,
                flops_per_token: 32 << 20,
                kv_bytes_per_token: 4096,
            };
            layers as usize
        ],
        hidden: 1024,
        attention: 2048,
        context_tokens_max: 1 << 20,
        ..model(layers)
    };
    let rates = |attention: f64, layer_us: f64, activations: f64, waits: f64| LayerRates {
        prefill_read_bytes_per_s: waits,
        attention_flops_per_s: attention,
        activations_per_s: activations,
        layer_s: layer_us * 1e-6,
        kv_read_bytes_per_s: None,
        read_16_rows_bytes_per_s: None,
    };
    let times = |prompt: u32, layer_rates: LayerRates| {
        let facts = DeviceFacts { layer_rates: Some(layer_rates), ..device("a", 64.0, Some(10.0)).device };
        let devices = vec![PlanDevice::reported(NodeId([1; 32]), "a".to_owned(), facts, None)];
        let mut request = PlanRequest::new(shape(4), 32_768, devices);
        (request.workload.prompt_tokens, request.workload.answer_tokens) = (prompt, 1);
        let predicted = plan(&request).expect("it fits").predicted;
        (predicted.ttft_ns.expected as f64, predicted.token_ns.expected as f64)
    };
    let usual = rates(1e12, 20.0, 1e10, 1e10);
    let ratio = |prompt: u32, of: LayerRates| {
        let ((ttft, token), (less, least)) = (times(prompt, of), times(prompt, usual));
        (ttft / less, token / least)
    };
    // 4·A·P²/2 beside 2·16 Mi·P: as many operations at P = 8192.
    let slow = rates(1e11, 20.0, 1e10, 1e10);
    let ((short, token), (long, _)) = (ratio(64, slow), ratio(16_384, slow));
    assert!((1.0..1.08).contains(&short) && token == 1.0, "{short} {token}");
    assert!((5.0..11.0).contains(&long), "{long}");
    // Keys and values of 8192 tokens, at the rate that was measured with their type.
    let of_kv = |f16, q8| LayerRates { kv_read_bytes_per_s: Some(KvRates { f32: 1.0, f16, q8 }), ..usual };
    let [fast, slow] = [1e10, 1e9].map(|f16| times(8192, of_kv(f16, 1.0)).1);
    let kv_ns = |rate: f64| 4.0 * 8192.0 * 4096.0 / rate * 1e9;
    assert!(((slow - fast) / (kv_ns(1e9) - kv_ns(1e10)) - 1.0).abs() < 1e-3, "{slow} {fast}");
    // 1 ms in each of 4 layers, beside 6.7 ms for the weights of a token.
    let (_, token) = ratio(64, rates(1e12, 1020.0, 1e10, 1e10));
    assert!((1.5..1.7).contains(&token), "{token}");
    // Of each further row and of each chunk's weights only prompts have something.
    for slower in [rates(1e12, 20.0, 1e8, 1e10), rates(1e12, 20.0, 1e10, 1e9)] {
        let (ttft, token) = ratio(64, slower);
        assert!(ttft > 1.5 && token == 1.0, "{ttft} {token}");
    }
}

#[test]
fn a_throttled_device_is_planned_with_a_part_of_its_speed_and_its_reason_says_so() {
    let with = |thermal_percent: u32| {
        let mut request = read("a=8@50", 4, &[]);
        request.devices[0].thermal_percent = thermal_percent;
        let plan = plan(&request).expect("it fits");
        (plan.predicted.token_ns.expected as f64, plan.reasons[0].text.clone())
    };
    let ((cool_ns, cool), (hot_ns, hot)) = (with(100), with(70));
    assert!((1.3..1.5).contains(&(hot_ns / cool_ns)), "{cool_ns} {hot_ns}");
    assert!(hot.ends_with(", and it is throttled: 70 % of its speed counts"), "{hot}");
    assert!(!cool.contains("throttled"), "{cool}");
}

/// The score that chooses among very many devices is of the types that the model has.
#[test]
fn the_score_of_speed_is_that_of_the_models_types() {
    let mut request = read("a=40@50 b=40@50", 4, &[]);
    let scores = |request: &PlanRequest| {
        let plan = plan(request).expect("fits");
        plan.scores.iter().map(|score| score.compute).collect::<Vec<_>>()
    };
    let slow = Figure::measured(25e9);
    request.devices[0].rates.read_by_type = BTreeMap::from([(DType::Q4_K, slow)]);
    request.devices[1].rates.read_by_type = BTreeMap::from([(DType::Q4_K, Figure::measured(50e9))]);
    assert_eq!(scores(&request), [1000, 1000], "of a model of which no types are known");
    let of_layer = |bytes| [(DType::Q4_K, bytes)].into_iter().collect::<TypeBytes>();
    let layers = request.shape.layers.iter().map(|layer| of_layer(layer.weight_bytes)).collect();
    request.weight_types = Some(WeightTypes { layers, head: of_layer(request.shape.head_bytes) });
    assert_eq!(scores(&request), [500, 1000]);
}

#[test]
fn a_link_that_was_measured_one_way_counts_in_the_scores_of_both_ends() {
    let node = |name| device(name, 0.0, None).node;
    let link = LinkFacts {
        from: node("a"),
        to: node("b"),
        rtt_s: Some(rtt(Duration::from_millis(1))),
        bytes_per_s: Some(Figure::measured(1.25e9)),
    };
    let scores = run("a=4@10 b=4@10 c=4@10", 4, &[link]).1.expect("fits").scores;
    let links: Vec<_> = scores.iter().map(|score| (score.network, score.bandwidth)).collect();
    // Half of it over that link, and 5 ms and 100 Mbit/s over the others, of which nothing is known.
    assert_eq!(links, [(333, 254), (333, 254), (166, 9)]);
}

/// What is fetched are bytes of the file, not what a processor makes of them, and not what is there already.
#[test]
fn a_node_fetches_what_it_lacks_of_the_file() {
    let mut request = read("a=40@50 b=40@10 >b", 32, &[]);
    request.shape.layers.iter_mut().for_each(|layer| layer.packed_bytes += GIB / 8);
    let fetched = |request: &PlanRequest| plan(request).expect("fits").predicted;
    let whole = request.shape.shard_weight_bytes(&Shard::whole(32));
    assert_eq!(fetched(&request).fetch_bytes, whole);
    request.parts = vec![(request.devices[0].node, whole - 5 * GIB)];
    let rest = fetched(&request);
    assert_eq!((rest.fetch_bytes, rest.fetch_ns), (5 * GIB, 5 * GIB * 1_000_000_000 / 12_500_000));
    request.parts = vec![(request.devices[0].node, whole)];
    assert_eq!((fetched(&request).fetch_bytes, fetched(&request).fetch_ns), (0, 0));
}

/// 80 layers at 113 ms a token on one device and 453 ms on the other, 40,000 times: five hours a layer, which
/// are not one number.
#[test]
fn a_very_long_answer_goes_to_the_faster_device() {
    let mut request = read("f=50@9.5 s=100@2.37", 80, &[]);
    (request.context_tokens, request.workload.answer_tokens) = (65_536, 40_000);
    let long = plan(&request).expect("fits");
    let layers =
        |s: &exo_types::Stage| (name(&request.devices, s.leader().node), s.layers.end - s.layers.start);
    let mut layers: Vec<_> = long.stages.iter().map(layers).collect();
    layers.sort();
    assert_eq!(layers, [("f".to_owned(), 50), ("s".to_owned(), 30)], "{:?}", long.proof);
    assert!(long.proof.gap_per_mille() < 20, "{:?}", long.proof);
    // And the longest that can be asked for is a number too.
    (request.context_tokens, request.workload.answer_tokens) = (u32::MAX, u32::MAX / 2);
    request.cache_tokens = 1;
    assert!(plan(&request).is_ok());
}

/// Devices of one machine, whose memory is one.
fn of_one_machine(cluster: &str, layers: u32, free_layers: f64) -> PlanRequest {
    let mut request = read(cluster, layers, &[]);
    let free_bytes = device("x", free_layers, None).device.memory_free_bytes;
    let domain = Some(MemoryDomain { id: 7, free_bytes });
    request.devices.iter_mut().filter(|d| d.node_name != "far").for_each(|d| d.device.memory_domain = domain);
    request
}

fn placed(request: &PlanRequest) -> String {
    let stage = |s: &exo_types::Stage| format!("{} {}", name(&request.devices, s.leader().node), s.layers);
    match plan(request) {
        Ok(plan) => {
            assert_eq!(validate(request, &plan), Ok(()));
            plan.stages.iter().map(stage).collect::<Vec<_>>().join(", ")
        }
        Err(error) => error.to_string(),
    }
}

/// Two nodes of a machine see the same 16 GiB as free.
#[test]
fn memory_that_devices_share_is_filled_once() {
    let both = |layers| placed(&of_one_machine("a=16@10 b=16@10", layers, 16.0));
    assert_eq!(both(16), "a 0..16");
    let Err(PlanError::DoesNotFit { missing_bytes, .. }) = plan(&of_one_machine("a=16@10 b=16@10", 24, 16.0))
    else {
        panic!("{}", both(24))
    };
    assert!((8 * GIB..8 * GIB + GIB / 8).contains(&missing_bytes), "{missing_bytes}");
    // A limit of a node stays one: 12 layers in the 12 GiB that are free, 8 on each at most.
    let split = placed(&of_one_machine("a=8@10 b=8@10", 11, 12.5));
    assert!(split.starts_with("a 0..") && split.contains(", b ") && split.ends_with("..11"), "{split}");
    // What is elsewhere is not of it, and neither is what shares nothing.
    assert!(placed(&of_one_machine("a=16@10 b=16@10 far=16@10", 24, 16.0)).contains("far"));
    let mut apart = of_one_machine("a=16@10 b=16@10", 24, 16.0);
    apart.devices[1].device.memory_domain = Some(MemoryDomain { id: 8, free_bytes: 16 * GIB });
    assert!(placed(&apart).contains(", b "));
    // The reasons keep to it as well: without a there is b, with b beside it there is no more room.
    let plan = plan(&of_one_machine("a=16@10 b=16@9", 16, 16.0)).expect("it fits");
    assert!(plan.reasons[0].text.contains("; without it "), "{:?}", plan.reasons);
    assert!(!plan.proof.is_optimal() || plan.stages.len() == 1);
}

#[test]
fn a_plan_made_before_a_neighbour_took_the_shared_memory_does_not_fit_any_more() {
    let before = of_one_machine("a=8@10 b=8@10", 11, 12.5);
    let made = plan(&before).expect("it fits");
    assert_eq!(validate(&before, &made), Ok(()));
    let after = of_one_machine("a=8@10 b=8@10", 11, 9.0);
    assert!(matches!(validate(&after, &made), Err(InvalidPlan::NoMemory { .. })));
}

/// Nobody has measured what two nodes of a machine read at the same time: at worst as much as one alone.
#[test]
fn the_range_of_many_streams_holds_that_devices_of_one_memory_read_by_turns() {
    let round_ns = |is_shared: bool| {
        let mut request = of_one_machine("a=8@10 b=8@10 ^a:4 ^b:4", 8, 40.0);
        if !is_shared {
            request.devices.iter_mut().for_each(|d| d.device.memory_domain = None);
        }
        request.objective = Objective::Throughput;
        request.workload.streams = 2;
        plan(&request).expect("it fits").predicted.round_ns
    };
    let (apart, shared) = (round_ns(false), round_ns(true));
    assert_eq!((shared.low, shared.expected), (apart.low, apart.expected));
    let times = shared.high as f64 / apart.high as f64;
    assert!((1.9..2.1).contains(&times), "{apart:?} {shared:?}");
}

#[test]
fn free_memory_that_devices_share_is_counted_once() {
    let request = of_one_machine("a=16@10 b=4@10 far=16@10", 24, 16.0);
    let free = |at: usize| request.devices[at].device.memory_free_bytes;
    let facts = || request.devices.iter().map(|d| &d.device);
    assert_eq!(memory_free_bytes(facts()), free(0) + free(2));
    assert_eq!(memory_free_bytes(facts().skip(1)), free(1) + free(2), "no more than a device is limited to");
}

#[test]
fn a_node_without_the_file_gets_no_more_layers_than_its_disk_has_room_for() {
    let room_for = |cluster: &str, node: usize, layers: u64| {
        let mut request = read(cluster, 12, &[]);
        request.disks = vec![(request.devices[node].node, DiskRoom::of(layers * GIB + (2 << 20)))];
        request
    };
    assert_eq!(placed(&room_for("a=16@10 b=16@5", 0, 12)), "a 0..12", "all of the file has room");
    assert_eq!(placed(&room_for("a=16@10 b=16@5 >a", 0, 0)), "a 0..12", "its file is there");
    assert_eq!(placed(&room_for("a=16@10 b=16@5", 0, 0)), "b 0..12");
    let reasons = plan(&room_for("a=16@10 b=16@5", 0, 0)).expect("it fits").reasons;
    assert!(reasons[0].text.contains("the disk of a has room for 2.0 MiB"), "{reasons:?}");
    // Where it is needed it gets what its disk takes, and the reason says so.
    let part = room_for("a=16@10 b=9@5", 0, 4);
    let parts = plan(&part).expect("it fits");
    let layers = |name_of: &str| {
        let of = |stage: &&exo_types::Stage| name(&part.devices, stage.leader().node) == name_of;
        parts.stages.iter().filter(of).map(|stage| stage.layers.len()).sum::<u32>()
    };
    assert!(layers("a") <= 4 && layers("b") >= 8, "{:?}", parts.stages);
    assert!(parts.reasons[0].text.contains("the disk of a has room for 4."), "{:?}", parts.reasons);
    // Refused, with the disk and the bytes.
    let refused = |layers: u64| plan(&room_for("a=16@10", 0, layers)).expect_err("no disk").to_string();
    assert!(refused(4).contains("a cpu, and the disk of a has room for 4."), "{}", refused(4));
    let none = refused(0);
    assert!(none.contains("has room for 2.0 MiB") && none.contains("exo models remove"), "{none}");
}

/// A refusal names the settings that leave too little, and the least room that would do.
#[test]
fn a_disk_that_is_too_small_is_named_with_its_settings_and_what_it_lacks() {
    const KEPT: u64 = 20 * GIB;
    let with = |beside: u64, quota: u64| {
        let mut request = read("a=16@10 b=5@5 >b", 12, &[]);
        let room = DiskRoom {
            free_bytes: Some((beside + KEPT) as i64),
            reserve_bytes: KEPT,
            within_quota_bytes: Some(quota as i64),
        };
        request.disks = vec![(request.devices[0].node, room)];
        request
    };
    let refused = |beside: u64, quota: u64| plan(&with(beside, quota)).expect_err("no room");
    for (beside, quota, change) in [
        (90 * GIB, 3 * GIB, "raise `disk_quota_mib` there"),
        (3 * GIB, 90 * GIB, "lower `disk_reserve_mib` there"),
        (5 * GIB, 3 * GIB, "raise `disk_quota_mib` and lower `disk_reserve_mib` there"),
        // No layer at all.
        (90 * GIB, 0, "raise `disk_quota_mib` there"),
    ] {
        let text = refused(beside, quota).to_string();
        assert!(text.contains(&format!("more room for models on a: {change}")), "{text}");
        let PlanError::DoesNotFit { remedies, .. } = refused(beside, quota) else { panic!("{text}") };
        let Some(Remedy::Disk { bytes, .. }) = remedies.first() else { panic!("{text}") };
        let room = beside.min(quota) + bytes;
        assert!(plan(&with(room, room)).is_ok(), "{text}");
        assert!(plan(&with(room - (1 << 20), room)).is_err(), "{text}");
    }
    let kept = refused(3 * GIB, 90 * GIB).to_string();
    assert!(
        kept.contains("room for 3.0 GiB of the model's file, beside 20.0 GiB that `disk_reserve_mib`"),
        "{kept}"
    );
}

/// Where the disk has no more, whatever the settings, none of them is blamed.
#[test]
fn a_disk_that_is_full_is_told_apart_from_one_that_a_setting_keeps_free() {
    let refused = |room: DiskRoom| {
        let mut alone = read("a=16@10", 12, &[]);
        alone.disks = vec![(alone.devices[0].node, room)];
        plan(&alone).expect_err("no room").to_string()
    };
    let full = refused(DiskRoom::of(0));
    assert!(full.contains("the disk of a has room for 0 B of the model's file, and a layer"), "{full}");
    assert!(full.contains("at least: make room there"), "{full}");
    assert!(
        full.contains("it fits with 12.1 GiB more room for models on a, whose disk is too full"),
        "{full}"
    );
    assert!(!full.contains("disk_reserve_mib"), "{full}");
    // What the reserve keeps would be enough for some layers, and not for all.
    let some = refused(DiskRoom { reserve_bytes: 4 * GIB, ..DiskRoom::of(4 * GIB) });
    assert!(some.contains("beside 4.0 GiB that `disk_reserve_mib` keeps free"), "{some}");
    assert!(some.contains("at least: lower `disk_reserve_mib`, or make room"), "{some}");
    assert!(some.contains("more room for models on a, whose disk is too full"), "{some}");
    let all = refused(DiskRoom { reserve_bytes: 40 * GIB, ..DiskRoom::of(40 * GIB) });
    assert!(all.contains("more room for models on a: lower `disk_reserve_mib` there"), "{all}");
    // Where memory lacks as well.
    let mut small = read("a=4@10", 12, &[]);
    small.disks = vec![(small.devices[0].node, DiskRoom::of(0))];
    let text = plan(&small).expect_err("no memory").to_string();
    assert!(!text.contains("it fits with"), "{text}");
}

/// Two cards of one node fetch to one disk.
#[test]
fn devices_of_one_node_share_its_disk() {
    let mut request = read("a/0=8@10 a/1=8@10 b=16@1", 12, &[]);
    request.disks = vec![(request.devices[0].node, DiskRoom::of(6 * GIB))];
    let plan = plan(&request).expect("it fits");
    let here = |stage: &&exo_types::Stage| stage.leader().node == request.devices[0].node;
    let layers: u32 = plan.stages.iter().filter(here).map(|stage| stage.layers.len()).sum();
    assert!((1..=6).contains(&layers), "{:?}", plan.stages);
}

/// Machines of two nodes each, which the search fills both before it looks at their memory.
#[test]
fn a_model_that_takes_most_of_many_shared_memories_has_a_plan() {
    let nodes = |n: u32| format!("a{n}=4@{} b{n}=4@{}", 10 + n % 3, 9 + n % 2);
    for (machines, layers) in [(8, 28), (48, 172)] {
        for objective in [Objective::Latency, Objective::Throughput] {
            let cluster: Vec<String> = (0..machines).map(nodes).collect();
            let mut request = read(&cluster.join(" "), layers, &[]);
            (request.explain, request.objective, request.workload.streams) = (false, objective, 8);
            for (at, PlanDevice { device, .. }) in request.devices.iter_mut().enumerate() {
                let free_bytes = device.memory_free_bytes;
                device.memory_domain = Some(MemoryDomain { id: at as u64 / 2, free_bytes });
            }
            let made = plan(&request).unwrap_or_else(|error| panic!("{machines} {objective:?}: {error}"));
            assert_eq!(validate(&request, &made), Ok(()), "{machines} {objective:?}");
            // The searches with less memory have as much work as the first, and all of many devices less.
            let work_max = if machines * 2 > 32 { WORK_MAX / 4 } else { WORK_MAX };
            assert!(made.proof.work <= work_max * 5 / 2, "{machines} {objective:?}: {:?}", made.proof);
        }
    }
}
