use ed25519_dalek::{Signer, SigningKey};
use exo_cluster::wire::{
    CardChange, CardEvent, DeviceReport, FetchSource, LinkReport, LoadReport, NodeMeasurements, Traffic,
};
use exo_cluster::{EngineId, Event, InstanceRequest, LoadFailure, LoadFault, PlaceObjective, StageView};
use exo_trust::{Act, Statement};
use exo_types::{
    DeviceId, DeviceKind, DeviceState, InstanceId, KvDType, LayerRange, LayerShape, ModelId, ModelShape,
    Monitor, NodeFacts, Placement, PlacementId, Shard, Stage, Time, Transport,
};

use super::*;
use crate::waiting::StageWatches;

const OPEN_UNTIL_UNIX_S: u64 = 100;

fn key(n: u8) -> SigningKey {
    SigningKey::from_bytes(&[n; 32])
}

fn node(n: u8) -> NodeId {
    NodeId(key(n).verifying_key().to_bytes())
}

fn listen(n: u8) -> SocketAddr {
    SocketAddr::from(([10, 0, 0, n], 4000))
}

/// Two nodes, `desk` (1, this one) and `attic` (2), and a model of four layers over both.
struct Cluster {
    state: State,
    trust: TrustLog,
    statuses: BTreeMap<NodeId, api::NodeStatus>,
    gone_since: BTreeMap<NodeId, u64>,
    reports: BTreeMap<NodeId, NodeReport>,
    instances: Vec<InstanceView>,
    requests: BTreeMap<NodeId, Request>,
    join_window: api::JoinWindowView,
    watches: StageWatches,
}

fn cluster() -> Cluster {
    let mut state = State::default();
    let placed =
        Event::InstancePlaced { request: request(), placement: placement(), memory_bytes: vec![3000, 1000] };
    for event in [Event::Opened, placed] {
        state.apply(&event).unwrap();
    }
    let statuses = BTreeMap::from([(node(1), api::NodeStatus::Alive)]);
    let reports = [1, 2].map(|n| (node(n), report(n))).into();
    let instances = vec![instance(InstanceState::Ready, [StageStatus::Serving, StageStatus::Loaded])];
    Cluster {
        state,
        trust: trust(),
        statuses,
        gone_since: BTreeMap::new(),
        reports,
        instances,
        requests: BTreeMap::new(),
        join_window: api::JoinWindowView { open: true, open_until_unix_s: Some(OPEN_UNTIL_UNIX_S) },
        watches: StageWatches::default(),
    }
}

/// `desk` has founded the cluster and let `attic` in.
fn trust() -> TrustLog {
    let sign = |statement: Statement| {
        let signature = key(1).sign(&statement.to_sign()).to_bytes();
        statement.signed(signature)
    };
    let founding = Statement::founding(node(1), 1, "c".to_owned(), "desk".to_owned(), [7; 16]);
    let mut log = TrustLog::new(sign(founding)).unwrap();
    let admit = Act::Admit { node: node(2), name: "attic".to_owned() };
    for act in [Act::Window { until_unix_s: OPEN_UNTIL_UNIX_S }, admit] {
        let statement = log.statement(node(1), 1, act).unwrap();
        log.insert(sign(statement)).unwrap();
    }
    log
}

impl Cluster {
    fn view(&self) -> api::ClusterView {
        let mut names = Names::default();
        names.set_members(self.trust.view().members());
        view(&ViewInputs {
            me: node(1),
            names: &names,
            listen: listen(1),
            state: &self.state,
            trust: &self.trust,
            head: LogHead { index: 4, hash: [0xab; 32] },
            leader: Some((Epoch { counter: 3, key: node(2) }, node(2))),
            followed_elsewhere: Some((node(2), node(5))),
            statuses: &self.statuses,
            gone_since: &self.gone_since,
            reports: &self.reports,
            instances: &self.instances,
            own_load: &|_| None,
            addresses: &|_| vec![listen(2), listen(3)],
            data_via: &|_| Some(Transport::Tcp),
            requests: &self.requests,
            other_clusters: Vec::new(),
            join_window: self.join_window,
            states_since: &|_| 7,
            stage_progress: &|instance, stage| {
                self.watches.progress(instance, stage, Time::from_millis(12_000))
            },
            log_holders: 2,
            warnings: Vec::new(),
        })
    }
}

fn request() -> InstanceRequest {
    let layer =
        LayerShape { weight_bytes: 1000, packed_bytes: 1000, flops_per_token: 2000, kv_bytes_per_token: 4 };
    let shape = ModelShape {
        layers: vec![layer; 4],
        embedding_bytes: 500,
        head_bytes: 300,
        embedding_packed_bytes: 500,
        head_packed_bytes: 300,
        tied: false,
        hidden: 2,
        attention: 2,
        vocab: 100,
        context_tokens_max: 64,
    };
    InstanceRequest {
        model: ModelId([9; 32]),
        model_name: "m".to_owned(),
        shape,
        weight_types: None,
        context_tokens: 64,
        slots: 4,
        cache_tokens: 256,
        kv: KvDType::default(),
        objective: PlaceObjective::Fit,
        pins: Vec::new(),
        excluded: Vec::new(),
        holders: vec![node(1)],
        is_on_demand: false,
    }
}

fn placement_id(number: u32) -> PlacementId {
    PlacementId { epoch: Epoch { counter: 1, key: node(1) }, number }
}

fn placement() -> Placement {
    let stage = |n: u8, from, to| {
        Stage::solo(node(n), DeviceId::cpu(), Shard::pipeline(LayerRange::new(from, to), 4))
    };
    Placement {
        id: placement_id(1),
        instance: InstanceId(1),
        model: ModelId([9; 32]),
        stages: vec![stage(1, 0, 3), stage(2, 3, 4)],
        context_tokens: 64,
        slots: 4,
        cache_tokens: 256,
        kv: KvDType::default(),
    }
}

fn instance(state: InstanceState, statuses: [StageStatus; 2]) -> InstanceView {
    let [first, second] = statuses;
    let stages = vec![
        StageView { status: first, memory_bytes: 3000 },
        StageView { status: second, memory_bytes: 1000 },
    ];
    InstanceView {
        model_name: "m".to_owned(),
        placement: placement(),
        state,
        stages,
        moving: None,
        advice: None,
    }
}

fn device(id: DeviceId) -> DeviceFacts {
    DeviceFacts {
        memory_free_bytes: 5_000,
        compute_units: 4,
        ..DeviceFacts::unmeasured(id, DeviceKind::Cpu, "a processor", "cpu/avx2", 10_000)
    }
}

/// Half of all packets were lost, and of the last ones 2 %.
fn lossy() -> Traffic {
    let recent = RecentPackets { counts: PacketCounts { sent: 50, lost: 1 }, window_s: 60 };
    let packets = Some(PacketCounts { sent: 100, lost: 50 });
    Traffic { packets, recent_packets: Some(recent), ..Traffic::default() }
}

/// The first node has computed for 300 us, the second for 100 us.
fn report(n: u8) -> NodeReport {
    let stage = u32::from(n - 1);
    let serves = StageReport {
        engine: EngineId(1),
        serves: Some(placement().position(stage, 0)),
        spec: placement().spec(stage, 0),
        status: StageStatus::Loaded,
        held_bytes: 4000,
        weight_bytes: 900,
        unpacked_bytes: 70,
        rows_bytes: 5,
        rows_bytes_max: 50,
        busy_us: if n == 1 { 300 } else { 100 },
        sequences: 0,
        sources: Vec::new(),
    };
    let facts = NodeFacts {
        node: node(n),
        name: "unused".to_owned(),
        version: "1.2.3".to_owned(),
        platform: "linux".to_owned(),
        devices: vec![device(DeviceId::cpu())],
        mains_power: Some(true),
    };
    NodeReport {
        facts,
        models: Vec::new(),
        disk_room: exo_types::DiskRoom::default(),
        stages: vec![serves],
        links: vec![LinkReport {
            peer: node(3 - n),
            rtt_us: 250,
            rtt_count: 9,
            rtt_age_ms: 400,
            jitter_us: 20,
            inbound: None,
            traffic: (n == 1).then(lossy),
            is_wireless: None,
        }],
        desired: None,
        unreached: Vec::new(),
        instance_failures: Vec::new(),
        process_bytes: Some(77),
        reached: Vec::new(),
        devices: Vec::new(),
        measured: NodeMeasurements::default(),
        card_events: vec![CardEvent {
            at_unix_s: 5,
            change: CardChange::Vanished,
            is_own: false,
            card: "a card".to_owned(),
        }],
        log: LogHead::EMPTY,
        is_leaving: false,
        is_disk_hung: false,
    }
}

#[test]
fn nodes_are_sorted_by_name_with_their_addresses_roles_and_reports() {
    let view = cluster().view();
    let names: Vec<_> = view.nodes.iter().map(|n| n.name.as_str()).collect();
    assert_eq!(names, ["attic", "desk"]);
    let [attic, desk] = &view.nodes[..] else { panic!("{:?}", view.nodes) };
    assert!(desk.is_self && !attic.is_self);
    assert_eq!((desk.role, attic.role), (api::MemberRole::Admin, api::MemberRole::Worker));
    assert_eq!(desk.addresses, ["10.0.0.1:4000"], "where it listens");
    assert_eq!(attic.addresses, ["10.0.0.2:4000", "10.0.0.3:4000"]);
    assert_eq!((desk.gone_since_unix_s, attic.gone_since_unix_s), (None, None), "nobody saw it go");
    // A member of which nothing was heard yet counts as lost.
    assert_eq!((desk.status, attic.status), (api::NodeStatus::Alive, api::NodeStatus::Lost));
    assert_eq!((desk.version.as_str(), desk.process_bytes), ("1.2.3", Some(77)));
    assert_eq!(desk.card_events[0].text, "a graphics card vanished: a card");
}

#[test]
fn what_is_predicted_follows_from_the_reports_of_all_its_stages() {
    let of = |reports: &[NodeReport]| {
        let reports = reports.iter().map(|r| (r.facts.node, r.clone())).collect();
        let expected = super::prediction::of(&placement(), &request(), None, (&reports, &State::default()));
        expected.map(|expected| (expected.whole, expected.stages))
    };
    assert_eq!(of(&[report(1)]), None, "a stage is on a device that nobody reports");
    let (slow, stages) = of(&[report(1), report(2)]).unwrap();
    let mut faster = report(2);
    faster.facts.devices.iter_mut().for_each(|d| d.read_bytes_per_s = Some(50e9));
    let (fast, of_faster) = of(&[report(1), faster]).unwrap();
    assert_eq!((stages.len(), stages[0]), (2, of_faster[0]));
    let mut learned = report(2);
    let half = exo_types::Correction { percent: 50, samples: 9 };
    learned.facts.devices.iter_mut().for_each(|d| d.corrections.decode = Some(half));
    let (corrected, of_learned) = of(&[report(1), learned]).unwrap();
    assert!(corrected.tokens_per_s.expected < slow.tokens_per_s.expected);
    assert_eq!(slow.uncorrected_tokens_per_s, None);
    assert_eq!(corrected.uncorrected_tokens_per_s, Some(slow.tokens_per_s.expected), "what was promised");
    assert_eq!(of_learned, stages, "slowness that was learned of is slowness still");
    assert!(
        of_faster[1].token_ms < stages[1].token_ms && stages[1].prompt_ms > 0.0,
        "{stages:?} {of_faster:?}"
    );
    assert!(slow.tokens_per_s.low < slow.tokens_per_s.expected, "{slow:?}");
    assert!(
        slow.hop_ms.expected > 0.0 && slow.tokens_per_s.expected < fast.tokens_per_s.expected,
        "{slow:?} {fast:?}"
    );
}

#[test]
fn a_member_without_a_report_shows_what_the_log_knows() {
    let mut cluster = cluster();
    cluster.reports.remove(&node(2));
    let view = cluster.view();
    assert_eq!(view.nodes[0].name, "attic");
    assert!(view.nodes[0].version.is_empty() && view.nodes[0].devices.is_empty());
    let stage = &view.instances[0].stages[1];
    assert_eq!((stage.weight_bytes, stage.weight_bytes_held), (1300, 0));
}

#[test]
fn cluster_log_and_coordinator_are_named_in_full() {
    let view = cluster().view();
    assert_eq!(view.cluster, Some(hex(&trust().cluster().0)));
    assert_eq!(view.journal, api::JournalView { entries: 4, head: "ab".repeat(32), holders: 2 });
    assert_eq!(view.epoch, Some(api::EpochView { counter: 3, coordinator: node(2).to_full() }));
    assert_eq!(view.self_node, node(1).to_full());
    let (coordinator, followed_by) = (node(5).to_full(), node(2).to_full());
    assert_eq!(view.unheard_coordinator, Some(api::UnheardCoordinatorView { coordinator, followed_by }));
}

#[test]
fn the_window_and_those_who_ask_are_shown() {
    let mut cluster = cluster();
    let window = cluster.view().join_window;
    assert_eq!(window, api::JoinWindowView { open: true, open_until_unix_s: Some(OPEN_UNTIL_UNIX_S) });
    cluster.join_window = api::JoinWindowView::default();
    cluster.requests.insert(node(5), Request::new("guest", listen(5)));
    let view = cluster.view();
    assert_eq!(view.join_window, api::JoinWindowView { open: false, open_until_unix_s: None });
    let request = &view.join_requests[0];
    assert_eq!((request.name.as_str(), request.address.as_str()), ("guest", "10.0.0.5:4000"));
    assert_eq!(request.check_words.split(' ').count(), 4);
}

#[test]
fn each_end_measures_a_link_and_only_this_node_knows_what_carries_it() {
    let links = cluster().view().links;
    let mut shown: Vec<_> =
        links.iter().map(|l| (l.from == node(1).to_full(), l.transport.as_str())).collect();
    shown.sort();
    assert_eq!(shown, [(false, ""), (true, "tcp")]);
    assert!(links.iter().all(|l| l.rtt_ms == Some(0.25)), "{links:?}");
    let loss = |from: u8| links.iter().find(|l| l.from == node(from).to_full()).and_then(|l| l.loss);
    let lost = api::LossView { share: 0.02, packets: 50, window_s: 60 };
    assert_eq!((loss(1), loss(2)), (Some(lost), None), "of the last minute, and only where it is counted");
}

#[test]
fn stages_show_bytes_time_and_where_the_file_comes_from() {
    let instance = &cluster().view().instances[0];
    assert_eq!(instance.state, api::InstanceState::Ready);
    assert_eq!(instance.load, None, "nobody has told of it");
    let [first, second] = &instance.stages[..] else { panic!("{:?}", instance.stages) };
    assert_eq!((first.time_share, second.time_share), (Some(0.75), Some(0.25)));
    assert_eq!((first.weight_bytes, second.weight_bytes), (3500, 1300), "with embedding and head");
    assert_eq!((first.weight_bytes_held, first.weight_bytes_waiting), (900, 70));
    assert_eq!((first.rows_bytes, first.rows_bytes_max), (5, 50));
    assert_eq!((first.kv_bytes, second.kv_bytes), (3 * 4 * 256, 4 * 256));
    assert_eq!((first.fetched_from.as_deref(), second.fetched_from.as_deref()), (None, Some("desk")));
    assert_eq!((first.node_name.as_str(), second.node_name.as_str()), ("desk", "attic"));
}

#[test]
fn a_stage_of_an_earlier_placement_counts_for_nothing() {
    let mut cluster = cluster();
    for report in cluster.reports.values_mut() {
        report.stages[0].serves =
            report.stages[0].serves.map(|at| ShardPosition { placement: placement_id(9), ..at });
    }
    let view = cluster.view();
    let stages = &view.instances[0].stages;
    assert!(stages.iter().all(|s| s.time_share.is_none() && s.weight_bytes_held == 0));
}

#[test]
fn a_wait_that_the_hub_asked_for_is_what_an_instance_shows() {
    let waits = StageStatus::Fetching { done_bytes: 50, total_bytes: 100, hub_wait_s: 240 };
    let view =
        state_view(&instance(InstanceState::Loading, [waits, StageStatus::Loaded]), &|node| node.to_string());
    let api::InstanceState::Degraded { reason } = view else { panic!("{view:?}") };
    assert!(reason.contains("the hub asks to wait 240 s"), "{reason}");
}

#[test]
fn fetching_is_nine_tenths_of_loading_and_large_stages_count_for_more() {
    let half = StageStatus::Fetching { done_bytes: 50, total_bytes: 100, hub_wait_s: 0 };
    let unknown = StageStatus::Fetching { done_bytes: 0, total_bytes: 0, hub_wait_s: 0 };
    let almost = StageStatus::Loading { done_bytes: 100, total_bytes: 100 };
    let progress = |statuses| load_progress(&instance(InstanceState::Loading, statuses));
    assert_eq!(progress([half.clone(), unknown]), 0.45 * 0.75);
    assert_eq!(progress([StageStatus::Waiting, StageStatus::Loaded]), 0.25);
    assert_eq!(progress([almost.clone(), almost]), 1.0);
    assert_eq!(progress([half.clone(), half]), 0.45);
}

#[test]
fn each_stage_shows_how_far_it_is_how_fast_bytes_come_and_how_long_the_rest_takes() {
    let mut cluster = cluster();
    let fetching = |done_bytes| StageStatus::Fetching { done_bytes, total_bytes: 1000, hub_wait_s: 0 };
    let loading = |done_bytes| StageStatus::Loading { done_bytes, total_bytes: 300 };
    let mut note = |at_s: u64, first: StageStatus, second: StageStatus| {
        cluster.instances = vec![instance(InstanceState::Loading, [first, second])];
        cluster.watches.note(&cluster.instances, Time::from_millis(at_s * 1000));
        let stages = cluster.view().instances.remove(0).stages;
        stages
            .iter()
            .map(|s| s.progress.clone().unwrap())
            .map(|p| (p.phase, p.done_bytes, p.bytes_per_s, p.seconds_left))
            .collect::<Vec<_>>()
    };
    use api::StagePhase::{Fetching, Loading};
    // The view is made at 12 s.
    let begun = note(10, fetching(100), fetching(50));
    assert_eq!(begun, [(Fetching, 100, None, None), (Fetching, 50, None, None)], "too soon to say");
    note(2, fetching(0), fetching(1000));
    let later = note(12, fetching(400), loading(30));
    assert_eq!(
        later,
        [(Fetching, 400, Some(40), Some(15)), (Loading, 30, None, None)],
        "the second has begun anew"
    );
    let stalled = note(2, fetching(0), loading(30));
    assert_eq!(stalled[0], (Fetching, 0, Some(0), None), "nothing comes");
}

#[test]
fn a_stage_that_is_fetched_from_several_sources_shows_what_each_gave() {
    let mut cluster = cluster();
    let fetching = || StageStatus::Fetching { done_bytes: 7, total_bytes: 10, hub_wait_s: 0 };
    cluster.instances = vec![instance(InstanceState::Loading, [fetching(), fetching()])];
    let of_member = FetchSource { member: Some(node(2)), bytes: 5, bytes_per_s: 50 };
    let of_hub = FetchSource { member: None, bytes: 2, bytes_per_s: 20 };
    cluster.reports.get_mut(&node(1)).unwrap().stages[0].sources = vec![of_member, of_hub];
    let view = cluster.view();
    let name = view.nodes.iter().find(|member| member.id == node(2).to_full()).unwrap().name.clone();
    let [first, second] = [0, 1].map(|at| view.instances[0].stages[at].progress.clone().unwrap().sources);
    let source = |member, bytes, bytes_per_s| api::FetchSourceView { member, bytes, bytes_per_s };
    assert_eq!(first, [source(Some(name), 5, 50), source(None, 2, 20)]);
    assert!(second.is_empty(), "{second:?}");
}

#[test]
fn layers_of_a_model_that_no_member_has_whole_come_from_its_hub_and_members() {
    let mut cluster = cluster();
    let placed = InstanceRequest { holders: Vec::new(), ..request() };
    let mut state = State::default();
    let placed =
        Event::InstancePlaced { request: placed, placement: placement(), memory_bytes: vec![3000, 1000] };
    [Event::Opened, placed].iter().for_each(|event| state.apply(event).unwrap());
    cluster.state = state;
    let from = |cluster: &Cluster| cluster.view().instances[0].stages[0].fetched_from.clone();
    assert_eq!(from(&cluster), None, "nobody knows a hub that has it");
    let of_hub = HeldModel {
        model: ModelId([9; 32]),
        name: "m".to_owned(),
        bytes: 9,
        held_bytes: 1,
        complete: false,
        is_of_hub: true,
        expected_bytes: 0,
        may_go: false,
    };
    cluster.reports.get_mut(&node(2)).unwrap().models = vec![of_hub];
    assert_eq!(from(&cluster).as_deref(), Some("its hub and members"));
}

#[test]
fn a_stage_that_failed_shows_its_reason_while_the_instance_still_loads() {
    let mut cluster = cluster();
    let why = LoadFailure::Fault { kind: LoadFault::Device, detail: "no memory".to_owned() };
    let failed = StageStatus::Failed { why, failed_loads: 1 };
    cluster.instances = vec![instance(InstanceState::Loading, [StageStatus::Loaded, failed])];
    let state = cluster.view().instances[0].state.clone();
    assert_eq!(state, api::InstanceState::Degraded { reason: "no memory".to_owned() });
}

#[test]
fn devices_show_state_driver_and_sensors_of_the_same_report() {
    let mut cluster = cluster();
    let monitor = Monitor { temperature_c: Some(60.0), ..Monitor::default() };
    let reason = "it hangs".to_owned();
    let (device, state, driver) = (DeviceId::cpu(), DeviceState::Lost, Some("CUDA 12.4".to_owned()));
    let lost = DeviceReport { device, state, reason, driver, monitor };
    cluster.reports.get_mut(&node(1)).unwrap().devices = vec![lost];
    let view = cluster.view();
    let [attic, desk] = [0, 1].map(|i| &view.nodes[i].devices[0]);
    assert_eq!((desk.state, desk.state_reason.as_str()), (DeviceState::Lost, "it hangs"));
    assert_eq!(desk.sensors.temperature_c, Some(60.0));
    assert_eq!((desk.driver.as_deref(), attic.driver.as_deref()), (Some("CUDA 12.4"), None));
    assert_eq!(attic.state, DeviceState::Usable);
}

#[test]
fn a_node_that_has_not_begun_shows_itself_only() {
    let view = empty_view(node(1));
    assert_eq!(view.self_node, node(1).to_full());
    assert!(view.cluster.is_none() && view.nodes.is_empty() && !view.join_window.open);
}

#[test]
fn the_load_of_an_instance_is_known_where_its_scheduler_is_not() {
    let mut cluster = cluster();
    let load = |placement| LoadReport {
        placement,
        running: 3,
        waiting: 2,
        waiting_max: 64,
        pages: 16,
        pages_used: 5,
        pages_cached: 1,
        prompt_tokens: 90,
        cached_tokens: 30,
        drafts: 8,
        drafts_accepted: 4,
        steps: 7,
        prompt_tokens_per_s: Some(50.0),
        tokens_per_s: Some(12.5),
        alone: None,
    };
    // Only the node of the first stage is asked.
    cluster.reports.get_mut(&node(2)).unwrap().measured.loads = vec![load(placement_id(1))];
    assert_eq!(cluster.view().instances[0].load, None);
    cluster.reports.get_mut(&node(1)).unwrap().measured.loads =
        vec![load(placement_id(9)), load(placement_id(1))];
    let instance = &cluster.view().instances[0];
    assert_eq!(instance.load.map(|load| (load.running, load.waiting, load.pages_used)), Some((3, 2, 5)));
    assert_eq!(instance.measured_tokens_per_s, Some(12.5));
}
