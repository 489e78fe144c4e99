//! Placements, one line a case, and against brute force.

use std::time::Duration;

use exo_planner::{
    LinkFacts, Objective, Plan, PlanDevice, PlanError, PlanRequest, plan, validate, workspace_bytes,
};
use exo_types::{
    DeviceFacts, DeviceId, DeviceKind, LayerRange, LayerShape, ModelId, ModelShape, NodeId, Shard,
    SupportClass,
};
use proptest::prelude::*;

const GIB: u64 = 1 << 30;

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
        vocab: 1000,
        context_tokens_max: 4096,
    }
}

/// A device with room for so many layers of [`model`], ends and workspace included.
fn device(name: &str, layers: f64, speed: Option<f64>) -> PlanDevice {
    let mut key = [0; 32];
    key[..name.len().min(32)].copy_from_slice(&name.as_bytes()[..name.len().min(32)]);
    let room = workspace_bytes(&model(1), 1, true) + (2 << 20) + 64;
    PlanDevice {
        node: NodeId(key),
        node_name: name.to_owned(),
        device: DeviceFacts {
            id: DeviceId::cpu(),
            kind: DeviceKind::Cpu,
            name: "test".to_owned(),
            backend: "cpu/test".to_owned(),
            memory_total_bytes: 64 * GIB,
            memory_free_bytes: (layers * GIB as f64) as u64 + room,
            compute_units: 4,
            read_bytes_per_s: speed.map(|s| s * 1e9),
            flops_per_s: speed.map(|s| s * 1e11),
            support: SupportClass::Full,
            support_reason: String::new(),
        },
        excluded: None,
    }
}

/// Reads `name[/card]=layers[@GB/s][!]` per device (`!` excludes it), then `+N` for at least N stages and `>name` for the
/// pinned one. The only test code that knows the API.
fn run(cluster: &str, layers: u32, links: &[LinkFacts]) -> (Vec<PlanDevice>, Result<Plan, PlanError>) {
    let request = read(cluster, layers, links);
    let planned = plan(&request);
    (request.devices, planned)
}

fn read(cluster: &str, layers: u32, links: &[LinkFacts]) -> PlanRequest {
    let (mut devices, mut objective, mut pinned_first) = (Vec::new(), Objective::Fit, None);
    for word in cluster.split_whitespace() {
        if let Some(stages) = word.strip_prefix('+') {
            objective = Objective::Spread { stages_min: stages.parse().expect("a number") };
        } else if let Some(name) = word.strip_prefix('>') {
            pinned_first = Some(device(name, 0.0, None).node);
        } else {
            let (name, rest) = word.split_once('=').expect("name=layers");
            let excluded = rest.ends_with('!').then(|| "leaving".to_owned());
            let (room, speed) =
                rest.trim_end_matches('!').split_once('@').unwrap_or((rest.trim_end_matches('!'), ""));
            let (node, card) = name.split_once('/').unwrap_or((name, ""));
            let mut one = device(node, room.parse().expect("layers"), speed.parse().ok());
            if !card.is_empty() {
                one.device.id = DeviceId(card.to_owned());
                one.device.kind = DeviceKind::DiscreteGpu;
            }
            devices.push(PlanDevice { excluded, ..one });
        }
    }
    let shape = model(layers);
    PlanRequest {
        shape,
        model: ModelId([0; 32]),
        context_tokens: 1,
        slots: 1,
        cache_tokens: 1,
        devices,
        links: links.to_vec(),
        objective,
        pinned_first,
    }
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

fn reasons(cluster: &str, layers: u32) -> String {
    let (devices, planned) = run(cluster, layers, &[]);
    let plan = planned.expect("fits");
    plan.reasons.iter().map(|r| format!("{}: {}\n", name(&devices, r.node), r.text)).collect()
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
    insta::assert_snapshot!(check("slow=40@10 fast=40@50 small=8@90", 32), @r"fast     layers 0..32");
}

#[test]
fn cards_come_before_the_processor_beside_them() {
    let stages = |cluster: &str, layers: u32| {
        let (_, planned) = run(cluster, layers, &[]);
        let plan = planned.unwrap_or_else(|error| panic!("{error}"));
        plan.stages.iter().map(|s| format!("{}:{}", s.leader().device, s.layers)).collect::<Vec<_>>()
    };
    assert_eq!(stages("a/gpu0=8@900 a/gpu1=8@900 a=64@20", 6), ["gpu0:0..6"]);
    // The processor alone would be one stage, and slower.
    assert_eq!(stages("a/gpu0=8@900 a/gpu1=8@900 a=64@20", 12), ["gpu0:0..6", "gpu1:6..12"]);
    assert_eq!(stages("a/gpu0=8@900 a/gpu1=8@900 a=64@20", 20), ["cpu:0..20"]);
    // A processor of a node without a card is a device like any other.
    assert_eq!(stages("a/gpu0=8@900 a=64@20 b=64@10", 12), ["cpu:0..12"]);
}

#[test]
fn the_pinned_node_comes_first_where_it_can() {
    insta::assert_snapshot!(check("a=40@50 b=40@10 >b", 32), @r"b        layers 0..32");
    insta::assert_snapshot!(check("a=20@50 b=20@50 >b", 32), @r"
    b        layers 0..16
    a        layers 16..32
    ");
}

#[test]
fn no_more_devices_than_needed() {
    insta::assert_snapshot!(check("a=10 b=10 c=10 d=24", 32), @r"
    d        layers 0..23
    a        layers 23..32
    ");
}

#[test]
fn spread_shares_by_speed_within_memory() {
    insta::assert_snapshot!(check("a=40@30 b=40@20 c=40@10 +3", 12), @r"
    a        layers 0..6
    b        layers 6..10
    c        layers 10..12
    ");
    insta::assert_snapshot!(check("a=4@30 b=40@20 c=40@10 +3", 12), @r"
    a        layers 0..4
    b        layers 4..9
    c        layers 9..12
    ");
}

#[test]
fn spread_shares_by_memory_when_one_was_never_measured() {
    insta::assert_snapshot!(check("a=10@30 b=20 c=30@10 +3", 12), @r"
    a        layers 0..2
    c        layers 2..8
    b        layers 8..12
    ");
}

#[test]
fn every_device_gets_a_reason() {
    insta::assert_snapshot!(reasons("a=20@50 b=20@10 c=40@90! d=0@90 e=11@1", 32), @r"
    a: layers 0..20 + embedding: 20.1 GiB of 20.1 GiB free; share by measured read speed, within memory
    b: layers 20..32 + head: 12.1 GiB of 20.1 GiB free; share by measured read speed, within memory
    c: excluded: leaving
    d: no layer: the smallest needs 1.1 GiB, 67.8 MiB are free
    e: no layer: 2 devices are enough, and each hop costs time
    ");
    insta::assert_snapshot!(reasons("a=40 b=20", 32), @r"
    a: layers 0..32 + embedding + head: 32.1 GiB of 40.1 GiB free; the whole model fits here, and a hop costs time
    b: no layer: the model fits on one device, and each hop costs time
    ");
}

#[test]
fn a_model_that_does_not_fit_says_what_is_missing_and_where() {
    insta::assert_snapshot!(check("a=10 b=4", 32), @r"the model needs 34360787008 bytes, the devices have 15036587968 usable of 15174475712 free: 19324199040 bytes are missing (a cpu: 10739519456 usable of 10808463328 free, b cpu: 4297068512 usable of 4366012384 free); the largest single unit is layer 31 with the output head with 1074790464 bytes");
}

#[test]
fn a_model_that_fits_in_sum_and_not_in_pieces_says_what_would_help() {
    let (_, planned) = run("a=1.5 b=1.5", 3, &[]);
    let Err(PlanError::DoesNotFit { missing_bytes, largest_unit, .. }) = planned else {
        panic!("{planned:?}");
    };
    // Half a layer more on either, less the slack every test device has.
    assert!((GIB / 2 - (4 << 20)..=GIB / 2).contains(&missing_bytes), "{missing_bytes}");
    assert_eq!(largest_unit, "layer 2 with the output head");
}

#[test]
fn requests_that_cannot_be_met_are_told_apart() {
    insta::assert_snapshot!(check("a=10! b=10!", 4), @r"no device can be used: a cpu: excluded: leaving; b cpu: excluded: leaving");
    insta::assert_snapshot!(check("a=10 b=10 +3", 4), @r"3 stages were asked for, 2 are possible (2 usable devices, 4 layers)");
    insta::assert_snapshot!(check("a=10 b=10 c=0 +3", 4), @r"3 stages were asked for, 2 are possible (the other devices cannot hold a layer)");
    insta::assert_snapshot!(check("a=10 b=10 c=10 +3", 2), @r"3 stages were asked for, 2 are possible (3 usable devices, 2 layers)");
    insta::assert_snapshot!(check("a=10", 0), @r"nothing to place: layers is 0");
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
    insta::assert_snapshot!(still_fits("a=2 b=2", "a=2 b=1.9"), @"stage 1 needs 2217480160 bytes, b cpu has 2111154553 free");
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

#[test]
fn speed_is_predicted_only_where_everything_was_measured() {
    let node = |name| device(name, 0.0, None).node;
    let link = |from, to, rtt| LinkFacts { from: node(from), to: node(to), rtt, bytes_per_s: Some(1e9) };
    let links = [link("a", "b", Some(Duration::from_millis(2)))];
    let decode =
        |cluster, links: &[LinkFacts]| run(cluster, 4, links).1.expect("fits").predicted.decode_tokens_per_s;
    assert_eq!(decode("a=2@10 b=2", &links), None, "b was never measured");
    assert_eq!(decode("a=2@10 b=2@10", &[]), None, "the link was never measured");
    assert_eq!(decode("a=2@10 b=2@10", &[link("a", "b", None)]), None, "nor its round trip");
    let solo = decode("a=4@10", &[]).expect("measured");
    assert!((solo - 10e9 / (4.0 * GIB as f64)).abs() < 0.01, "{solo}");
    let split = decode("a=2@10 b=2@10", &links).expect("measured");
    let (solo_ms, split_ms) = (1e3 / solo, 1e3 / split);
    assert!((split_ms - solo_ms - 2.0).abs() < 0.01, "two half round trips: {solo_ms} {split_ms}");
}

#[test]
fn the_order_follows_the_shortest_way_around() {
    let node = |name| device(name, 0.0, None).node;
    let link = |from, to, ms| {
        let rtt = Some(Duration::from_millis(ms));
        LinkFacts { from: node(from), to: node(to), rtt, bytes_per_s: None }
    };
    // a-c and b-d are far apart, so they must not be neighbours.
    let mut links = vec![link("a", "c", 90), link("b", "d", 90)];
    links.extend([link("a", "b", 1), link("b", "c", 1), link("c", "d", 1), link("d", "a", 1)]);
    let (devices, planned) = run("a=1 c=1 b=1 d=1", 4, &links);
    let stages = planned.expect("fits").stages;
    let order: String = stages.iter().map(|s| name(&devices, s.leader().node)).collect();
    assert_eq!(order, "abcd");
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
        plan(&PlanRequest {
            shape: shape.clone(),
            model: ModelId([0; 32]),
            context_tokens: 1,
            slots: 1,
            cache_tokens: 1,
            devices: vec![one],
            links: Vec::new(),
            objective: Objective::Fit,
            pinned_first: None,
        })
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

/// Whether any order of any subset holds the model, each stage at least one layer, and at least `stages` of them.
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
        pinned in 0usize..6,
    ) {
        const CONTEXT: u32 = 4;
        let devices = mixed(&shape, rooms.into_iter());
        let objective = if spread == 0 { Objective::Fit } else { Objective::Spread { stages_min: spread } };
        let request = PlanRequest {
            shape: shape.clone(), model: ModelId([0; 32]), context_tokens: CONTEXT, slots: 1, cache_tokens: CONTEXT,
            devices: devices.clone(), links: Vec::new(), objective, pinned_first: devices.get(pinned).map(|d| d.node),
        };
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
        if spread == 0 {
            let fewer = (1..plan.stages.len()).any(|n| subsets_fit(&shape, &devices, CONTEXT.into(), n));
            prop_assert!(!fewer, "fewer devices would do");
        }
    }

    /// What an error says is missing is missing: with it added in the best place the model fits, without it not.
    #[test]
    fn missing_bytes_are_enough(shape in shapes(), rooms in prop::collection::vec(0u64..8, 1..4)) {
        let devices = mixed(&shape, rooms.into_iter().map(|room| (room, None)));
        let try_with = |devices: &[PlanDevice]| plan(&PlanRequest {
            shape: shape.clone(), model: ModelId([0; 32]), context_tokens: 4, slots: 1, cache_tokens: 4,
            devices: devices.to_vec(), links: Vec::new(), objective: Objective::Fit, pinned_first: None,
        });
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

/// Whether some `n` of the devices hold the model.
fn subsets_fit(shape: &ModelShape, devices: &[PlanDevice], tokens: u64, n: usize) -> bool {
    (0..1u32 << devices.len()).filter(|set| set.count_ones() as usize == n).any(|set| {
        let some: Vec<_> =
            (0..devices.len()).filter(|i| set & (1 << i) != 0).map(|i| devices[i].clone()).collect();
        brute_force(shape, &some, tokens, 0)
    })
}
