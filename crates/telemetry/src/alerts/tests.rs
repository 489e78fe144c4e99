use std::collections::{BTreeMap, BTreeSet};

use exo_api::plan::{PredictionView, RangeView, StagePredictionView};
use exo_api::{
    ClusterView, EpochView, InstanceState, JoinRequestView, LinkTelemetryView, MemberRole, NodeStatus,
    OtherClusterView, PullState, PullView, StageTelemetryView, StageView, TelemetryView,
    UnheardCoordinatorView,
};
use exo_types::{DeviceState, LayerRange, SupportClass};

use super::testing::{cluster, link};
use super::*;

type World = (ClusterView, TelemetryView, OwnFacts);

fn world() -> World {
    let (view, told) = cluster();
    (view, told, OwnFacts::default())
}

/// Alerts over a cluster whose seconds pass one by one.
struct Bench {
    alerts: Alerts,
    world: World,
    second: u64,
}

impl Bench {
    fn new() -> Self {
        Self { alerts: Alerts::default(), world: world(), second: 0 }
    }

    fn pass(&mut self, seconds: u64) {
        for _ in 0..seconds {
            let (view, told, own) = &self.world;
            self.alerts.observe(AlertInputs {
                time_s: self.second,
                unix_s: 1000 + self.second,
                view,
                told,
                own,
            });
            self.second += 1;
        }
    }

    fn active(&self) -> Vec<String> {
        let views = self.alerts.views().into_iter();
        views.filter(|alert| alert.resolved_unix_s.is_none()).map(|alert| alert.rule).collect()
    }
}

/// A rule, for how many seconds its cause has to last, and what that is, second by second.
type Cause = (&'static str, u64, fn(&mut World, u64));

fn pull(state: PullState) -> PullView {
    PullView {
        id: "p1".to_owned(),
        reference: "hf.co/a/b".to_owned(),
        state,
        node: "a".to_owned(),
        node_name: "node a".to_owned(),
        source: "hub".to_owned(),
        files: 1,
        verified_bytes: 5,
        received_bytes: 5,
        total_bytes: Some(9),
        ..PullView::default()
    }
}

/// The second node ends.
fn lose(world: &mut World) {
    world.0.nodes[1].status = NodeStatus::Lost;
    world.1.nodes[0].links.clear();
}

/// A hundred tokens per second, with so many milliseconds on links for each.
fn predicted(hop_ms: f64) -> PredictionView {
    let range = |expected| RangeView { low: expected, expected, high: expected };
    PredictionView {
        prompt_tokens: 512,
        ttft_ms: range(1.0),
        tokens_per_s: range(100.0),
        hop_ms: range(hop_ms),
        streams: 1,
        total_tokens_per_s: range(100.0),
        ..PredictionView::default()
    }
}

/// A stage on a node that is expected to take so many milliseconds for a token and for a prompt.
fn stage_on(node: &str, predicted: Option<(f64, f64)>) -> StageView {
    StageView {
        node: node.to_owned(),
        node_name: format!("node {node}"),
        device: "cuda:0".to_owned(),
        weight_bytes: 1,
        weight_bytes_held: 1,
        kv_bytes: 1,
        predicted: predicted.map(|(token_ms, prompt_ms)| StagePredictionView { token_ms, prompt_ms }),
        ..StageView::default()
    }
}

/// The two nodes have a stage each, the second is on Wi-Fi, and the way takes this part of a token's time.
fn cross_wifi(world: &mut World, share: f64) {
    let instance = &mut world.0.instances[0];
    instance.stages = vec![stage_on("a", None), stage_on("b", None)];
    instance.predicted = Some(predicted(10.0 * share));
    world.1.nodes[1].links = vec![LinkTelemetryView { is_wireless: Some(true), ..link("a") }];
}

/// What makes each rule's alert.
fn causes() -> Vec<Cause> {
    vec![
        ("node_lost", 9, |w, _| lose(w)),
        ("node_flapping", 9, |w, second| {
            w.0.nodes[1].status = if second.is_multiple_of(2) { NodeStatus::Alive } else { NodeStatus::Lost };
        }),
        ("device_lost", 9, |w, _| w.0.nodes[1].devices[0].state = DeviceState::Lost),
        ("device_quarantined", 9, |w, _| w.0.nodes[1].devices[0].state = DeviceState::Quarantined),
        ("driver_problem", 9, |w, _| w.0.nodes[1].devices[0].support = SupportClass::Unsupported),
        ("device_hot", 9, |w, _| w.1.nodes[1].devices[0].sensors.temperature_c = Some(95.0)),
        ("device_throttled", 9, |w, _| w.1.nodes[1].devices[0].throttled = Some(true)),
        ("memory_pressure", 9, |w, _| w.1.nodes[1].memory_available_bytes = Some(100 << 20)),
        ("disk_low", 9, |w, _| w.1.nodes[1].disk_free_bytes = Some(10 << 20)),
        ("disk_full", 9, |w, _| w.1.nodes[1].disk_free_bytes = Some(4096)),
        ("descriptors_low", 9, |w, _| w.1.nodes[1].descriptors_open = Some(900)),
        ("kv_full", 9, |w, _| {
            let load = w.0.instances[0].load.as_mut().unwrap();
            (load.pages_used, load.waiting) = (99, 1);
        }),
        ("queue_full", 9, |w, _| w.0.instances[0].load.as_mut().unwrap().waiting = 10),
        ("stage_slow", 40, |w, second| compute(w, second, [0.1, 0.9])),
        ("slower_than_predicted", 62, |w, _| {
            let instance = &mut w.0.instances[0];
            instance.load.as_mut().unwrap().tokens_per_s = Some(70.0);
            instance.predicted = Some(predicted(0.0));
        }),
        ("link_degraded", 22, |w, _| w.1.nodes[0].links[0].rtt_ms = 40.0),
        ("link_on_wifi", 62, |w, _| cross_wifi(w, 0.3)),
        ("version_skew", 9, |w, _| w.0.nodes[1].version = "2".to_owned()),
        ("coordinator_unstable", 9, |w, second| {
            let coordinator = ["a", "b"][second as usize % 2].to_owned();
            w.0.epoch = Some(EpochView { counter: second, coordinator });
        }),
        ("clock_skew", 9, |w, _| w.1.nodes[1].clock_ahead_s = Some(-3600)),
        ("join_waiting", 9, |w, _| {
            let (node, name, address) = ("s".to_owned(), "stranger\x1b[2J".to_owned(), String::new());
            w.0.join_requests =
                vec![JoinRequestView { node, name, address, check_words: "one two".to_owned() }];
        }),
        ("removed", 2, |w, _| w.0.nodes.retain(|node| !node.is_self)),
        ("admin_forked", 9, |w, _| w.0.nodes[1].has_forked = true),
        ("peer_unreachable", 9, |w, _| w.1.nodes[0].unreached = vec!["b".to_owned()]),
        ("multicast_blocked", 62, |w, _| w.1.nodes[1].multicast_heard = Some(false)),
        ("coordinator_unreached", 5, |w, _| {
            let (coordinator, followed_by) = ("b".to_owned(), "c".to_owned());
            w.0.epoch = None;
            w.0.unheard_coordinator = Some(UnheardCoordinatorView { coordinator, followed_by });
        }),
        ("other_cluster", 12, |w, _| {
            let (node, name, address) = ("s".to_owned(), "desk\x1b[2J".to_owned(), "10.0.0.7:1".to_owned());
            w.0.other_clusters = vec![OtherClusterView { node, name, address }];
        }),
        ("transfer_stalled", 62, |w, _| w.0.instances[0].state = InstanceState::Loading { progress: 0.4 }),
        ("instance_down", 9, |w, _| {
            w.0.instances[0].state = InstanceState::Waiting { reason: "no room".to_owned() };
        }),
        ("model_gone", 12, |w, _| w.0.instances[0].is_file_gone = true),
        ("battery_low", 9, |w, _| w.1.nodes[1].battery = Some(0.1)),
    ]
}

/// The same, of a disk that does not answer, and of what a node knows of its own.
fn causes_of_its_own() -> Vec<Cause> {
    vec![
        ("disk_hung", 9, |w, _| w.0.nodes[1].is_disk_hung = true),
        ("download_failed", 9, |w, _| w.2.pulls = vec![pull(PullState::Failed)]),
        ("quota_full", 9, |w, _| w.2.quota_bytes = Some((99, 100))),
        ("model_changed", 9, |w, _| w.2.changed_models = vec!["m".to_owned()]),
        ("model_differs", 9, |w, _| {
            let id = w.0.instances[0].model_id.clone();
            w.2.differing_models = vec![DifferingModel { id, name: "m\x1b[2J".to_owned() }];
        }),
    ]
}

/// Whoever elects has no coordinator either, for longer than any link takes to heal where a disk is slow.
#[test]
fn an_election_of_20_s_raises_nothing() {
    let mut bench = Bench::new();
    bench.pass(10);
    bench.world.0.epoch = None;
    bench.pass(20);
    assert_eq!(bench.active(), [""; 0]);
}

#[test]
fn every_rule_has_a_cause_that_makes_its_alert_in_time_and_no_other_and_ends_with_it() {
    let causes = || causes().into_iter().chain(causes_of_its_own());
    let tested: BTreeSet<&str> = causes().map(|cause| cause.0).collect();
    assert_eq!(tested, RULES.iter().map(|rule| rule.id).collect(), "each rule has its cause");
    for (rule, seconds, cause) in causes() {
        let mut bench = Bench::new();
        bench.pass(10);
        assert_eq!(bench.active(), [""; 0], "{rule}: all is well at first");
        for second in 0..seconds {
            cause(&mut bench.world, second);
            bench.pass(1);
        }
        let active = bench.active();
        assert!(active.contains(&rule.to_owned()), "{rule} in {active:?}");
        // Who comes and goes is lost in between.
        let others: Vec<_> = active.iter().filter(|r| *r != rule && *r != "node_lost").collect();
        assert!(others.is_empty(), "{rule}: {others:?}");
        let alert = bench.alerts.views().into_iter().find(|alert| alert.rule == rule).unwrap();
        assert!(!alert.text.is_empty() && !alert.what_to_do.is_empty() && !alert.subject.is_empty());
        assert!(!alert.text.contains('\x1b') && !alert.id.contains('\x1b'), "{alert:?}");
        bench.world = world();
        bench.pass(CHANGES_AND_CLEAR_S);
        assert_eq!(bench.active(), [""; 0], "{rule} is over");
        let resolved = bench.alerts.views().into_iter().find(|alert| alert.rule == rule).unwrap();
        assert!(resolved.resolved_unix_s.is_some(), "{resolved:?}");
    }
}

/// Two stages have computed for these parts of so many seconds.
fn compute(world: &mut World, seconds: u64, shares: [f64; 2]) {
    for (at, share) in shares.into_iter().enumerate() {
        world.1.nodes[at].stages = vec![StageTelemetryView {
            instance: "i1".to_owned(),
            model: "m".to_owned(),
            stage: at as u32,
            device: "cuda:0".to_owned(),
            layers: LayerRange { start: 0, end: 1 },
            busy_s: seconds as f64 * share,
            weight_bytes: 1,
        }];
    }
}

/// What the alert about a slow stage says where its plan expects so many milliseconds of each, for a token
/// and for a prompt.
fn slow_stage(shares: [f64; 2], expected: [(f64, f64); 2]) -> Option<String> {
    let mut bench = Bench::new();
    let stage = |expected| stage_on("a", Some(expected));
    bench.world.0.instances[0].stages = expected.map(stage).to_vec();
    for second in 0..60 {
        compute(&mut bench.world, second, shares);
        bench.pass(1);
    }
    let alerts = bench.alerts.views();
    alerts.into_iter().find(|alert| alert.rule == "stage_slow").map(|alert| alert.text)
}

#[test]
fn a_stage_is_slow_beside_what_its_plan_expects_and_not_because_it_is_large() {
    // The planner gave nine tenths to the second, and that is what it takes.
    assert_eq!(slow_stage([0.1, 0.9], [(1.0, 1.0), (9.0, 9.0)]), None);
    // Prompts explain it, tokens would not.
    assert_eq!(slow_stage([0.1, 0.9], [(5.0, 1.0), (5.0, 9.0)]), None);
    // The small one takes as long as the large one.
    let text = slow_stage([0.5, 0.5], [(1.0, 1.0), (9.0, 8.0)]).unwrap();
    assert!(text.starts_with("stage 0 of m (i1)"), "{text}");
    assert!(text.ends_with("takes 50 % of the time of 2, and should take 11 %"), "{text}");
    // Without a prediction that says anything, an even share.
    assert!(slow_stage([0.1, 0.9], [(0.0, f64::NAN), (0.0, f64::NAN)]).is_some());
}

#[test]
fn a_stage_that_has_moved_is_slow_no_more() {
    for is_lost in [false, true] {
        let mut bench = Bench::new();
        let is_slow = |bench: &Bench| {
            bench
                .alerts
                .views()
                .iter()
                .any(|alert| alert.rule == "stage_slow" && alert.resolved_unix_s.is_none())
        };
        for second in 0..40 {
            compute(&mut bench.world, second, [0.1, 0.9]);
            bench.pass(1);
        }
        assert!(is_slow(&bench));
        // The first node has both, and the second one is silent or holds nothing.
        let second_stage = bench.world.1.nodes[1].stages[0].clone();
        bench.world.1.nodes[0].stages.push(StageTelemetryView { busy_s: 0.0, ..second_stage });
        match is_lost {
            true => bench.world.1.nodes[1].status = NodeStatus::Lost,
            false => bench.world.1.nodes[1].stages.clear(),
        }
        // As long as it must be well.
        bench.pass(61);
        assert!(!is_slow(&bench), "{:?}", bench.alerts.views());
    }
}

/// For what is counted over ten minutes, and the longest wait behind it.
const CHANGES_AND_CLEAR_S: u64 = 700;

#[test]
fn a_node_that_said_that_it_ends_is_no_alert() {
    let mut bench = Bench::new();
    bench.pass(1);
    bench.world.0.nodes[1].status = NodeStatus::Left;
    bench.pass(60);
    assert!(bench.alerts.views().iter().all(|alert| alert.rule != "node_lost"), "{:?}", bench.alerts.views());
}

#[test]
fn a_node_that_came_and_went_and_then_said_that_it_ends_is_no_alert_any_more() {
    let mut bench = Bench::new();
    for second in 0..12 {
        let is_there = second % 2 == 0;
        bench.world.0.nodes[1].status = if is_there { NodeStatus::Alive } else { NodeStatus::Lost };
        bench.pass(1);
    }
    let is_flapping = |bench: &Bench| bench.active().iter().any(|rule| rule == "node_flapping");
    assert!(is_flapping(&bench));
    bench.world.0.nodes[1].status = NodeStatus::Left;
    bench.pass(70);
    assert!(!is_flapping(&bench), "{:?}", bench.alerts.views());
}

#[test]
fn the_advice_on_a_lost_node_goes_for_the_network_of_this_one_and_for_the_last_admin_too() {
    let lost = Rule::of("node_lost").unwrap().what_to_do;
    for each in ["own network", "start exo there again", "`exo remove`", "only admin", "`exo leave`"] {
        assert!(lost.contains(each), "{lost}");
    }
    let failed = Rule::of("download_failed").unwrap().what_to_do;
    assert!(failed.contains("`exo pulls resume ID`") && failed.contains("`exo pulls cancel ID`"), "{failed}");
}

#[test]
fn an_alert_that_is_over_is_shown_for_a_day() {
    let mut bench = Bench::new();
    bench.pass(1);
    lose(&mut bench.world);
    bench.pass(3);
    bench.world = world();
    bench.pass(6);
    let day = 24 * 3600;
    bench.pass(day - 10);
    assert_eq!(bench.alerts.views().len(), 1);
    bench.pass(20);
    assert!(bench.alerts.views().is_empty());
}

/// A number between 0 and 1 of a fixed row.
fn draw(state: &mut u64) -> f64 {
    *state ^= *state << 13;
    *state ^= *state >> 7;
    *state ^= *state << 17;
    (*state >> 11) as f64 / (1u64 << 53) as f64
}

#[test]
fn of_a_disk_that_fills_up_and_is_emptied_one_alert_stands_at_a_time() {
    let mut bench = Bench::new();
    let mut after = |free_bytes: u64, seconds: u64| {
        bench.world.1.nodes[1].disk_free_bytes = Some(free_bytes);
        bench.pass(seconds);
        let active = bench.alerts.views().into_iter().filter(|alert| alert.resolved_unix_s.is_none());
        active.map(|alert| alert.rule).filter(|rule| rule.starts_with("disk")).collect::<Vec<_>>()
    };
    assert!(after(100 << 30, 5).is_empty());
    assert_eq!(after(1 << 30, 1), ["disk_low"]);
    assert_eq!(after(4096, 1), ["disk_full"], "the lesser one ends at once");
    assert_eq!(after(8 << 20, 60), ["disk_full"], "it is almost full");
    assert_eq!(after(1 << 30, 20), ["disk_full"], "it has not been better for long");
    assert_eq!(after(1 << 30, 20), ["disk_low"]);
    assert!(after(100 << 30, 31).is_empty());
}

#[test]
fn values_that_wander_about_a_limit_for_a_day_make_one_alert_and_no_more() {
    // Each: where the limit is, how far from it the value wanders, and how it is set.
    type Case = (&'static str, f64, f64, fn(&mut World, f64));
    let cases: [Case; 10] = [
        ("device_hot", 90.0, 4.5, |w, v| w.1.nodes[1].devices[0].sensors.temperature_c = Some(v as f32)),
        ("memory_pressure", 0.05, 0.029, |w, v| {
            w.1.nodes[1].memory_available_bytes = Some((v * (16u64 << 30) as f64) as u64);
        }),
        ("disk_low", 2048.0, 1000.0, |w, v| w.1.nodes[1].disk_free_bytes = Some((v * 1048576.0) as u64)),
        ("descriptors_low", 0.85, 0.09, |w, v| {
            w.1.nodes[1].descriptors_open = Some((v * 1024.0) as u32);
        }),
        ("battery_low", 0.2, 0.049, |w, v| w.1.nodes[1].battery = Some(v)),
        ("clock_skew", 60.0, 29.0, |w, v| w.1.nodes[1].clock_ahead_s = Some(v as i64)),
        ("queue_full", 0.9, 0.19, |w, v| {
            let load = w.0.instances[0].load.as_mut().unwrap();
            (load.waiting, load.waiting_max) = ((v * 1000.0) as u32, 1000);
        }),
        ("kv_full", 0.95, 0.09, |w, v| {
            let load = w.0.instances[0].load.as_mut().unwrap();
            (load.pages_used, load.pages, load.waiting) = ((v * 1000.0) as u32, 1000, 1);
        }),
        ("link_on_wifi", 0.2, 0.049, cross_wifi),
        // Throttled one second in three: bad never lasts five.
        ("device_throttled", 0.0, 1.0, |w, v| w.1.nodes[1].devices[0].throttled = Some(v > 0.33)),
    ];
    for (rule, limit, reach, set) in cases {
        let (mut bench, mut state, mut value) = (Bench::new(), 0x9E37_79B9_7F4A_7C15, limit);
        let mut begun = 0;
        let mut was_active = false;
        for second in 0..24 * 3600u64 {
            if rule == "device_throttled" {
                value = [1.0, -1.0, -1.0][second as usize % 3];
            } else {
                value = (value + (draw(&mut state) - 0.5) * reach * 0.4).clamp(limit - reach, limit + reach);
            }
            set(&mut bench.world, value);
            bench.pass(1);
            let is_active = bench.active().iter().any(|active| active == rule);
            begun += usize::from(is_active && !was_active);
            was_active = is_active;
        }
        let expected = if rule == "device_throttled" { 0 } else { 1 };
        assert_eq!(begun, expected, "{rule}");
    }
}

#[test]
fn a_silence_lasts_as_long_as_it_was_asked_for() {
    let mut bench = Bench::new();
    bench.pass(1);
    lose(&mut bench.world);
    bench.pass(2);
    assert_eq!(bench.active(), [""; 0], "not at once");
    bench.pass(1);
    let id = bench.alerts.views()[0].id.clone();
    assert_eq!(bench.alerts.silence("no such thing", 60), Err(SilenceError::Unknown));
    assert!(matches!(bench.alerts.silence(&id, SILENCE_S_MAX + 1), Err(SilenceError::TooMuch(_))));
    bench.alerts.silence(&id, 60).unwrap();
    bench.pass(30);
    let until = bench.alerts.views()[0].silenced_until_unix_s;
    assert_eq!(until, Some(1063));
    bench.pass(40);
    assert_eq!(bench.alerts.views()[0].silenced_until_unix_s, None);
    bench.alerts.silence("node_lost", 60).unwrap();
    assert!(bench.alerts.views()[0].silenced_until_unix_s.is_some());
    bench.alerts.silence("node_lost", 0).unwrap();
    assert_eq!(bench.alerts.views()[0].silenced_until_unix_s, None);
}

#[test]
fn the_silence_of_a_rule_does_not_end_with_that_of_one_of_its_alerts_and_says_so() {
    let mut bench = Bench::new();
    bench.pass(1);
    lose(&mut bench.world);
    bench.pass(3);
    let id = bench.alerts.views()[0].id.clone();
    bench.alerts.silence(&id, 60).unwrap();
    bench.alerts.silence("node_lost", 30).unwrap();
    assert_eq!(bench.alerts.silence(&id, 0), Err(SilenceError::OfItsRule("node_lost".to_owned())));
    assert_eq!(bench.alerts.silences().len(), 2, "nothing has changed");
    bench.alerts.silence("node_lost", 0).unwrap();
    bench.alerts.silence(&id, 0).unwrap();
    assert_eq!(bench.alerts.silences().len(), 0);
    // An alert about the whole cluster has the name of its rule.
    bench.world.0.nodes[0].version = "2".to_owned();
    bench.world.0.nodes[1].status = NodeStatus::Alive;
    bench.pass(10);
    assert!(bench.alerts.views().iter().any(|alert| alert.id == "version_skew"));
    bench.alerts.silence("version_skew", 60).unwrap();
    bench.alerts.silence("version_skew", 0).unwrap();
    assert_eq!(bench.alerts.silences().len(), 0);
}

#[test]
fn silences_go_on_in_the_next_run_and_never_for_longer_than_a_week() {
    let mut before = Alerts::default();
    before.take_up(500, 10_000, BTreeMap::new());
    before.silence("node_lost", 60).unwrap();
    let kept = before.silences();
    assert_eq!(kept, BTreeMap::from([("node_lost".to_owned(), 10_060)]));
    // The time of a run is its own; the clock on the wall went on.
    let next = |unix_s: u64| {
        let mut next = Alerts::default();
        next.take_up(3, unix_s, kept.clone());
        next.silences()
    };
    assert_eq!(next(10_020), kept);
    assert_eq!(next(10_060), BTreeMap::new());
    assert_eq!(next(5)["node_lost"], 5 + SILENCE_S_MAX.min(10_055), "a clock that was set back");
    let many = (0..2 * SILENCES_MAX as u64).map(|n| (n.to_string(), u64::MAX)).collect();
    let mut flooded = Alerts::default();
    flooded.take_up(0, 0, many);
    assert_eq!(flooded.silences().len(), SILENCES_MAX);
    assert!(flooded.silences().values().all(|until| *until == SILENCE_S_MAX));
}

#[test]
fn answers_with_pauses_between_them_show_that_an_instance_is_slow_and_an_idle_one_is_not() {
    let slow = causes().into_iter().find(|cause| cause.0 == "slower_than_predicted").unwrap().2;
    let mut bench = Bench::new();
    let run = |bench: &mut Bench, seconds: u64, running: u32| {
        slow(&mut bench.world, 0);
        bench.world.0.instances[0].load.as_mut().unwrap().running = running;
        bench.pass(seconds);
    };
    // Answers of 25 s with pauses of a minute: a minute of computing is the third.
    for round in 0..3 {
        assert_eq!(bench.active(), [""; 0], "{round}");
        run(&mut bench, 25, 1);
        run(&mut bench, 60, 0);
    }
    assert_eq!(bench.active(), ["slower_than_predicted"]);
    run(&mut bench, 2 * IDLE_S_MAX, 0);
    assert_eq!(bench.active(), [""; 0], "nobody asks");
    // Two answers an hour apart are no minute of it.
    run(&mut bench, 40, 1);
    run(&mut bench, 3600, 0);
    run(&mut bench, 40, 1);
    assert_eq!(bench.active(), [""; 0]);
}

#[test]
fn an_instance_is_slow_after_a_minute_below_three_quarters_of_its_prediction() {
    let slow = causes().into_iter().find(|cause| cause.0 == "slower_than_predicted").unwrap().2;
    let mut bench = Bench::new();
    let run = |bench: &mut Bench, seconds: u64, tokens_per_s: f64| {
        slow(&mut bench.world, 0);
        let load = bench.world.0.instances[0].load.as_mut().unwrap();
        (load.running, load.tokens_per_s) = (1, Some(tokens_per_s));
        bench.pass(seconds);
        bench.active().len()
    };
    // 100 tokens/s were expected.
    assert_eq!(run(&mut bench, 300, 76.0), 0);
    assert_eq!(run(&mut bench, 55, 74.0), 0, "not for a minute");
    assert_eq!(run(&mut bench, 10, 74.0), 1);
    assert_eq!(run(&mut bench, 300, 84.0), 1, "not better by enough");
    assert_eq!(run(&mut bench, 65, 86.0), 0);
    assert_eq!(run(&mut bench, 300, 140.0), 0, "faster is no trouble");
}

#[test]
fn wifi_is_worth_a_cable_by_the_part_of_a_token_that_its_link_takes() {
    let said = |change: fn(&mut World)| {
        let mut bench = Bench::new();
        cross_wifi(&mut bench.world, 0.4);
        change(&mut bench.world);
        bench.pass(62);
        bench.alerts.views().into_iter().find(|alert| alert.rule == "link_on_wifi").map(|alert| alert.text)
    };
    let way = "m (i1) crosses Wi-Fi between node a and node b: of the 10.0 ms of a token the way takes 4.0 ms, 40 %";
    assert_eq!(said(|_| {}).as_deref(), Some(way), "one end tells, for the way there and back");
    assert_eq!(said(|w| w.1.nodes[1].links[0].is_wireless = Some(false)), None, "a slow cable");
    assert_eq!(said(|w| w.1.nodes[1].links[0].is_wireless = None), None, "nothing tells");
    assert_eq!(said(|w| w.0.instances[0].stages.truncate(1)), None, "it crosses no link");
    assert_eq!(said(|w| w.0.instances[0].state = InstanceState::Placing), None);
    assert_eq!(
        said(|w| w.1.nodes[1].links[0].rtt_ms = f64::NAN),
        said(|_| {}),
        "the other end's number stays"
    );
    // A third stage behind a cable whose round trips are longer: a part of the way only.
    let third = |w: &mut World| {
        w.0.instances[0].stages.push(stage_on("c", None));
        w.1.nodes[0].links.push(LinkTelemetryView { rtt_ms: 10.0, ..link("c") });
        w.1.nodes[1].links.push(LinkTelemetryView { rtt_ms: 10.0, ..link("c") });
    };
    assert_eq!(said(third), None);
    let untold = |w: &mut World| w.0.instances[0].stages.push(stage_on("c", None));
    assert_eq!(said(untold), None, "what the other hops take is not known");
}

#[test]
fn multicast_matters_while_somebody_may_look_for_a_node() {
    let said = |change: fn(&mut World)| {
        let mut bench = Bench::new();
        bench.world.1.nodes[0].multicast_heard = Some(false);
        change(&mut bench.world);
        bench.pass(62);
        bench.active().contains(&"multicast_blocked".to_owned())
    };
    assert!(said(|_| {}), "there are members");
    assert!(!said(|w| w.0.nodes.truncate(1)), "it is alone, and nobody may join");
    assert!(said(|w| {
        w.0.nodes.truncate(1);
        w.0.join_window.open = true;
    }));
    assert!(!said(|w| w.1.nodes[0].multicast_heard = None), "it looks for nobody");
}

#[test]
fn members_that_are_on_their_way_and_devices_out_of_quarantine_are_not_lost() {
    let mut bench = Bench::new();
    lose(&mut bench.world);
    bench.pass(5);
    assert_eq!(bench.active(), [""; 0], "it may still come");
    bench.pass(4);
    assert_eq!(
        bench.active(),
        ["node_lost"],
        "also one that was lost before it was seen is told within ten seconds"
    );

    let mut bench = Bench::new();
    let set = |bench: &mut Bench, state| bench.world.0.nodes[1].devices[0].state = state;
    set(&mut bench, DeviceState::Quarantined);
    bench.pass(20);
    set(&mut bench, DeviceState::Verifying);
    bench.pass(20);
    assert_eq!(bench.active(), [""; 0]);
    set(&mut bench, DeviceState::Lost);
    bench.pass(2);
    set(&mut bench, DeviceState::Verifying);
    bench.pass(20);
    assert_eq!(bench.active(), ["device_lost"]);
}

#[test]
fn a_download_that_stands_still_is_a_stalled_transfer() {
    let mut bench = Bench::new();
    bench.world.2.pulls = vec![pull(PullState::Fetching)];
    for _ in 0..3 {
        bench.pass(250);
        bench.world.2.pulls[0].verified_bytes += 1;
    }
    assert_eq!(bench.active(), [""; 0], "a slow line brings a whole chunk in minutes");
    bench.pass(302);
    assert_eq!(bench.active(), ["transfer_stalled"]);
    bench.world.2.pulls[0].verified_bytes = bench.world.2.pulls[0].total_bytes.unwrap();
    bench.pass(400);
    assert_eq!(bench.active(), [""; 0], "what is there whole is read through");
    bench.world.2.pulls[0].verified_bytes -= 1;
    bench.pass(302);
    assert_eq!(bench.active(), ["transfer_stalled"]);
    bench.world.2.pulls[0].state = PullState::Paused;
    bench.pass(10);
    assert_eq!(bench.active(), [""; 0], "somebody wants it to wait");
}

#[test]
fn the_text_of_an_alert_changes_twice_a_minute_and_its_silence_not_at_all() {
    let mut bench = Bench::new();
    bench.world.2.pulls = vec![pull(PullState::Fetching)];
    bench.pass(302);
    bench.alerts.silence("transfer_stalled", 3600).unwrap();
    let mut texts = BTreeSet::new();
    for second in 0..120 {
        bench.pass(1);
        let (view, told, own) = &bench.world;
        // The two clocks do not tick together.
        let (time_s, unix_s) = (bench.second, 1000 + bench.second + second % 2);
        bench.second += 1;
        bench.alerts.observe(AlertInputs { time_s, unix_s, view, told, own });
        let [alert] = &bench.alerts.views()[..] else { panic!("one alert") };
        texts.insert((alert.text.clone(), alert.silenced_until_unix_s));
    }
    assert!((8..=9).contains(&texts.len()), "{texts:?}");
}

#[test]
fn a_device_is_hot_by_its_own_limit_where_it_tells_one() {
    let mut bench = Bench::new();
    let mut is_hot = |celsius: f32, limit_c: Option<f32>| {
        let device = &mut bench.world.1.nodes[1].devices[0];
        (device.sensors.temperature_c, device.limit_c) = (Some(celsius), limit_c);
        bench.pass(70);
        bench.active() == ["device_hot"]
    };
    assert!(is_hot(85.0, Some(87.0)), "a card that holds at its limit");
    assert!(is_hot(80.0, Some(87.0)), "it is not over yet");
    assert!(!is_hot(78.0, Some(87.0)));
    assert!(!is_hot(95.0, Some(105.0)), "a processor that is made for it");
    assert!(!is_hot(85.0, None));
    assert!(is_hot(91.0, None));
    assert!(!is_hot(91.0, Some(f32::NAN)), "what is no number is no limit");
}

#[test]
fn what_is_no_number_is_no_alert_and_floods_are_bounded() {
    let mut bench = Bench::new();
    bench.world.1.nodes[1].devices[0].sensors.temperature_c = Some(f32::NAN);
    bench.world.1.nodes[1].battery = Some(f64::NAN);
    bench.world.1.nodes[0].links[0].rtt_ms = f64::NAN;
    bench.pass(100);
    assert_eq!(bench.active(), [""; 0]);
    let request = |n: u32| JoinRequestView {
        node: format!("{n:012}"),
        name: "x".repeat(100_000),
        address: String::new(),
        check_words: String::new(),
    };
    bench.world.0.join_requests = (0..5000).map(request).collect();
    bench.pass(2);
    let views = bench.alerts.views();
    assert_eq!(views.len(), TRACKED_MAX);
    assert!(views.iter().all(|alert| alert.text.len() < 2000));
}

#[test]
fn the_runbook_has_a_section_for_each_rule_and_no_other() {
    let page = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/runbook.md");
    let page = std::fs::read_to_string(page).unwrap();
    let sections: BTreeSet<&str> = page.lines().filter_map(|line| line.strip_prefix("## ")).collect();
    let rules: BTreeSet<&str> = RULES.iter().map(|rule| rule.id).collect();
    assert_eq!(sections, rules);
    for rule in RULES {
        let section = page.split(&format!("## {}\n", rule.id)).nth(1).unwrap();
        let section = section.split("\n## ").next().unwrap();
        let (severity, raise_s, clear_s) = (rule.severity.as_str(), rule.raise_after_s, rule.clear_after_s);
        let begins = format!("`{severity}` ({raise_s} s, {clear_s} s).");
        assert!(
            section.trim_start().starts_with(&begins),
            "{}: {begins} is not how it begins: {section}",
            rule.id
        );
        assert!(section.len() > 200 && !rule.what_to_do.is_empty(), "{}: {section}", rule.id);
    }
}

/// Of three members two do not reach each other: a coordinator, which calls the other one lost, and any two.
#[test]
fn who_is_out_of_reach_of_one_member_and_not_of_another_is_told_apart_from_who_died() {
    let mut bench = Bench::new();
    bench.world.0.epoch = Some(EpochView { counter: 1, coordinator: "c".to_owned() });
    bench.pass(10);
    bench.world.0.nodes[1].status = NodeStatus::Lost;
    bench.pass(9);
    assert_eq!(bench.active(), ["peer_unreachable", "node_lost"]);
    let alert = bench.alerts.views().into_iter().find(|alert| alert.rule == "peer_unreachable").unwrap();
    assert!(alert.text.contains("does not reach node b, though node a does"), "{}", alert.text);
    lose(&mut bench.world);
    bench.pass(60);
    assert_eq!(bench.active(), ["node_lost"], "nobody reaches it");

    let mut bench = Bench::new();
    bench.pass(10);
    bench.world.0.nodes[1].status = NodeStatus::Suspected;
    bench.world.1.nodes[0].unreached = vec!["b".to_owned()];
    bench.pass(9);
    assert_eq!(bench.active(), ["peer_unreachable"], "the coordinator alone hears it");
}

#[test]
fn a_node_that_was_put_out_says_so_and_nothing_of_its_former_cluster() {
    let mut bench = Bench::new();
    lose(&mut bench.world);
    bench.world.0.nodes.remove(0);
    bench.world.0.instances[0].state = InstanceState::Failed { reason: "gone".to_owned() };
    bench.pass(30);
    assert_eq!(bench.active(), ["removed"]);
    let alert = bench.alerts.views().into_iter().next().unwrap();
    assert!(
        alert.text.starts_with("this node was removed") && alert.what_to_do.contains("`exo leave`"),
        "{alert:?}"
    );
}

#[test]
fn where_a_node_asks_at_one_that_is_no_admin_the_alert_names_who_can_let_it_in() {
    let said = |admins: &[usize]| {
        let mut bench = Bench::new();
        admins.iter().for_each(|at| bench.world.0.nodes[*at].role = MemberRole::Admin);
        let (node, name, address) = ("s".to_owned(), "mini".to_owned(), String::new());
        bench.world.0.join_requests =
            vec![JoinRequestView { node, name, address, check_words: "one two".to_owned() }];
        bench.pass(9);
        bench.alerts.views().into_iter().find(|alert| alert.rule == "join_waiting").unwrap().text
    };
    assert!(said(&[1]).ends_with("one two; `exo admit` works on node b"), "{}", said(&[1]));
    assert!(said(&[0, 1]).ends_with("one two"), "here it works");
}
