//! What a new placement costs the nodes: a coordinator and the workers of its members, and every action they
//! start.

#![allow(clippy::unwrap_used)] // the exemption for tests does not reach helpers of integration tests

use std::collections::{BTreeMap, BTreeSet};

use exo_cluster::wire::{ComputeFault, InstanceFailure, NodeReport, PipelineFailure, StageReport};
use exo_cluster::{
    Action, Coordinator, CoordinatorInput, CoordinatorOutput, InstanceRequest, PlaceObjective, ReplyTo,
    StageStatus, State, Worker, WorkerInput,
};
use exo_types::{
    DeviceFacts, DeviceId, DeviceKind, Epoch, KvDType, LayerShape, ModelId, ModelShape, NodeFacts, NodeId,
    Placement, ShardSpec, Time,
};

const MEMORY_BYTES: u64 = 64 << 30;

fn id(n: u8) -> NodeId {
    NodeId([n; 32])
}

/// Eight layers over at least so many nodes.
fn request(stages_min: u32) -> InstanceRequest {
    let layer =
        LayerShape { weight_bytes: 1000, packed_bytes: 1000, flops_per_token: 2000, kv_bytes_per_token: 4 };
    InstanceRequest {
        model: ModelId([9; 32]),
        model_name: "m".into(),
        shape: ModelShape {
            layers: vec![layer; 8],
            embedding_bytes: 500,
            head_bytes: 500,
            embedding_packed_bytes: 500,
            head_packed_bytes: 500,
            tied: false,
            hidden: 2,
            attention: 2,
            vocab: 100,
            context_tokens_max: 64,
        },
        weight_types: None,
        context_tokens: 64,
        slots: 4,
        cache_tokens: 256,
        kv: KvDType::default(),
        objective: PlaceObjective::Spread { stages_min },
        pins: Vec::new(),
        excluded: Vec::new(),
        holders: vec![id(1)],
        is_on_demand: false,
    }
}

struct Cluster {
    coordinator: Coordinator,
    workers: BTreeMap<NodeId, Worker>,
    /// Bytes each reads in a second: the fastest takes what the others need not.
    speeds: BTreeMap<NodeId, f64>,
    instance_failures: Vec<InstanceFailure>,
    /// What each worker has started since it was last asked.
    started: BTreeMap<NodeId, Vec<String>>,
}

/// A worker knows that a first stage is loaded; that step 0 came back to it, its node knows. Here it always
/// does.
fn serving_if_first(mut report: StageReport) -> StageReport {
    let is_first = report.serves.is_some_and(|position| position.stage == 0);
    if is_first && report.status == StageStatus::Loaded {
        report.status = StageStatus::Serving;
    }
    report
}

impl Cluster {
    fn new(nodes: u8) -> Self {
        let memory = BTreeMap::from([(DeviceId::cpu(), MEMORY_BYTES)]);
        let worker = |n| (id(n), Worker::new(memory.clone()));
        let mut cluster = Self {
            coordinator: Coordinator::new(id(1), None, State::default()),
            workers: (1..=nodes).map(worker).collect(),
            speeds: (1..=nodes).map(|n| (id(n), 1e9)).collect(),
            instance_failures: Vec::new(),
            started: BTreeMap::new(),
        };
        let members = (1..=nodes).map(|n| (id(n), format!("n{n}"))).collect();
        cluster.feed(CoordinatorInput::Members(members));
        cluster.feed(CoordinatorInput::Lead { epoch: Epoch { counter: 1, key: id(1) } });
        for n in 1..=nodes {
            cluster.feed(CoordinatorInput::NodeUp(id(n)));
        }
        cluster.report();
        cluster
    }

    /// A journal that answers at once, and workers whose every action succeeds.
    fn feed(&mut self, input: CoordinatorInput) {
        for output in self.coordinator.handle(Time::ZERO, input) {
            match output {
                CoordinatorOutput::Append { append, .. } => self.feed(CoordinatorInput::Appended(append)),
                CoordinatorOutput::Plan { plan, request } => {
                    self.feed(CoordinatorInput::Planned { plan, result: exo_planner::plan(&request) });
                }
                CoordinatorOutput::SendDesired { to, desired } => {
                    self.work(to, WorkerInput::Desired(desired));
                }
                CoordinatorOutput::Reply { .. }
                | CoordinatorOutput::InstanceChanged(_)
                | CoordinatorOutput::Instances { .. } => {}
            }
        }
    }

    fn work(&mut self, node: NodeId, input: WorkerInput) {
        let Some(worker) = self.workers.get_mut(&node) else { return };
        for action in worker.handle(Time::ZERO, input).unwrap_or_default() {
            let (name, answer) = match action {
                Action::FetchManifest { engine, .. } => ("manifest", WorkerInput::ManifestHeld(engine)),
                Action::FetchChunks { engine, .. } => ("chunks", WorkerInput::Stored(engine)),
                Action::LoadShard { engine, .. } => ("load", WorkerInput::Ready(engine)),
                Action::UnloadShard { engine } => ("unload", WorkerInput::Unloaded(engine)),
                Action::Cancel { engine } => ("cancel", WorkerInput::Unloaded(engine)),
            };
            self.started.entry(node).or_default().push(name.to_owned());
            self.work(node, answer);
        }
    }

    fn report(&mut self) {
        let nodes: Vec<NodeId> = self.workers.keys().copied().collect();
        for from in nodes {
            let worker = &self.workers[&from];
            let held: u64 = worker.reports().iter().map(|report| report.held_bytes).sum();
            let device = DeviceFacts {
                memory_free_bytes: MEMORY_BYTES / 2 - held,
                compute_units: 1,
                read_bytes_per_s: self.speeds.get(&from).copied(),
                ..DeviceFacts::unmeasured(DeviceId::cpu(), DeviceKind::Cpu, "cpu", "cpu", MEMORY_BYTES)
            };
            let stages = worker.reports().into_iter().map(serving_if_first).collect();
            let (name, version, platform) = (String::new(), String::new(), String::new());
            let facts =
                NodeFacts { node: from, name, version, platform, devices: vec![device], mains_power: None };
            let report = Box::new(NodeReport {
                facts,
                models: vec![],
                disk_room: exo_types::DiskRoom::default(),
                stages,
                unreached: vec![],
                links: vec![],
                desired: worker.desired_revision(),
                instance_failures: if from == id(1) { self.instance_failures.clone() } else { vec![] },
                process_bytes: None,
                devices: vec![],
                card_events: vec![],
                measured: exo_cluster::wire::NodeMeasurements::default(),
                log: exo_types::LogHead::EMPTY,
                is_leaving: false,
                is_disk_hung: false,
                reached: vec![],
            });
            self.feed(CoordinatorInput::Report { from, report });
        }
    }

    fn place(&mut self, stages_min: u32) -> Placement {
        let reply = ReplyTo { node: id(1), request: 1 };
        self.feed(CoordinatorInput::Place { reply, request: request(stages_min) });
        self.settled()
    }

    /// The placement, once it is ready.
    fn settled(&mut self) -> Placement {
        self.report();
        let view = self.coordinator.instances().remove(0);
        assert!(view.is_ready(), "{view:?}");
        view.placement
    }

    /// The instance breaks on the first stage's node, for whatever reason.
    fn replace(&mut self, before: &Placement) -> Placement {
        let Placement { id, instance, .. } = *before;
        self.report();
        self.started.clear();
        self.instance_failures = vec![InstanceFailure {
            placement: id,
            stage: None,
            why: PipelineFailure::Step(ComputeFault::Engine("a step was lost".into())),
        }];
        self.report();
        let after = self.settled();
        assert_eq!((after.instance, after.id.epoch, after.id.number), (instance, id.epoch, id.number + 1));
        after
    }

    /// Nothing was started where the shards are the same, and where they are not, only for those that are
    /// new.
    fn assert_only_what_changed(&self, before: &Placement, after: &Placement) {
        let of = |placement: &Placement, node: NodeId| -> BTreeSet<ShardSpec> {
            let here = placement.shards().filter(|(_, shard)| shard.node == node);
            here.map(|(at, _)| placement.spec(at.stage, at.rank)).collect()
        };
        for node in self.workers.keys() {
            let (had, has) = (of(before, *node), of(after, *node));
            let started = self.started.get(node).map_or(&[][..], Vec::as_slice);
            let count = |name: &str| started.iter().filter(|action| *action == name).count();
            assert_eq!(count("unload"), had.difference(&has).count(), "{node}: {started:?}");
            for name in ["manifest", "chunks", "load"] {
                assert_eq!(count(name), has.difference(&had).count(), "{node}: {started:?}");
            }
        }
    }
}

#[test]
fn a_placement_like_the_one_before_starts_nothing_anywhere() {
    let mut cluster = Cluster::new(3);
    let before = cluster.place(3);
    let after = cluster.replace(&before);
    assert_eq!(after.stages, before.stages);
    assert!(cluster.started.is_empty(), "{:?}", cluster.started);
}

#[test]
fn a_node_that_keeps_its_layers_when_another_is_lost_starts_nothing() {
    let mut cluster = Cluster::new(3);
    let before = cluster.place(2);
    let lost = before.stages[1].leader().node;
    cluster.started.clear();
    cluster.workers.remove(&lost);
    cluster.feed(CoordinatorInput::NodeLost(lost));
    let after = cluster.settled();
    assert_eq!(after.stages[0], before.stages[0], "{after:?}");
    cluster.assert_only_what_changed(&before, &after);
    assert_eq!(cluster.started.keys().copied().collect::<Vec<_>>(), [after.stages[1].leader().node]);
}

#[test]
fn a_lost_stage_in_the_middle_is_loaded_beside_another_and_nothing_else_is() {
    let mut cluster = Cluster::new(3);
    let before = cluster.place(3);
    let lost = before.stages[1].leader().node;
    assert_ne!(lost, id(1), "the coordinator itself is not lost");
    cluster.started.clear();
    cluster.workers.remove(&lost);
    cluster.feed(CoordinatorInput::NodeLost(lost));
    let after = cluster.settled();
    assert_eq!((&after.stages[0], &after.stages[2]), (&before.stages[0], &before.stages[2]));
    cluster.assert_only_what_changed(&before, &after);
    assert_eq!(cluster.started.keys().copied().collect::<Vec<_>>(), [after.stages[1].leader().node]);
}
