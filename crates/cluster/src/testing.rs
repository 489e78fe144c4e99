//! Small values for this crate's tests.

use exo_types::{
    Attempt, DeviceFacts, DeviceId, DeviceKind, Epoch, InstanceId, KvDType, LayerRange, LayerShape, ModelId,
    ModelShape, NodeFacts, NodeId, Placement, PlacementId, Principal, PromptQuery, RequestId, SampledToken,
    SamplingParams, SequenceId, SequenceSpec, Shard, Stage, Term,
};

use crate::wire::{NodeMeasurements, NodeReport, StagePages, Submission, TokenResult, TokensMessage};
use crate::{InstanceRequest, PlaceObjective};
use crate::{Scheduler, SchedulerConfig, SchedulerOutput};

pub(crate) fn node(n: u8) -> NodeId {
    NodeId([n; 32])
}

pub(crate) fn seq(n: u128) -> SequenceId {
    SequenceId { request: RequestId(n), index: 0 }
}

pub(crate) const MODEL: ModelId = ModelId([9; 32]);

/// Four equal layers, 1000 bytes each, 4 bytes of cache per token and layer.
pub(crate) fn shape() -> ModelShape {
    let layer =
        LayerShape { weight_bytes: 1000, packed_bytes: 1000, flops_per_token: 2000, kv_bytes_per_token: 4 };
    ModelShape {
        layers: vec![layer; 4],
        embedding_bytes: 500,
        head_bytes: 500,
        embedding_packed_bytes: 500,
        head_packed_bytes: 500,
        tied: false,
        hidden: 2,
        attention: 2,
        vocab: 100,
        context_tokens_max: 64,
    }
}

pub(crate) fn request() -> InstanceRequest {
    InstanceRequest {
        model: MODEL,
        model_name: "m".into(),
        shape: shape(),
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

/// Placement `number` of an instance.
pub(crate) fn placement_id(instance: u64, number: u32) -> PlacementId {
    PlacementId { epoch: Epoch { counter: instance, key: node(1) }, number }
}

/// The four layers split evenly over the nodes `on`.
pub(crate) fn placement(instance: u64, number: u32, on: &[u8]) -> Placement {
    let cut = |i: usize| (i * 4 / on.len()) as u32;
    let shard = |i| Shard::pipeline(LayerRange::new(cut(i), cut(i + 1)), 4);
    let stage = |(i, &n): (usize, &u8)| Stage::solo(node(n), DeviceId::cpu(), shard(i));
    Placement {
        id: placement_id(instance, number),
        instance: InstanceId(instance),
        model: MODEL,
        stages: on.iter().enumerate().map(stage).collect(),
        context_tokens: 64,
        slots: 4,
        cache_tokens: 256,
        kv: KvDType::default(),
    }
}

/// Each `n` has a prompt of its own.
pub(crate) fn spec(n: u128, driver: NodeId, prompt: u32) -> SequenceSpec {
    SequenceSpec {
        sequence: seq(n),
        principal: Principal::LOCAL,
        driver,
        sampling: SamplingParams::greedy(),
        history: (0..prompt).map(|t| (t + 7 * n as u32) % 50).collect(),
        prompt_tokens: prompt,
        query: PromptQuery::Nothing,
    }
}

/// The first submission of a sequence to placement 1 of instance 1, from node 9.
pub(crate) fn submission(n: u128, prompt: u32, max_tokens: u32) -> Submission {
    Submission {
        placement: placement_id(1, 1),
        attempt: Attempt::FIRST,
        spec: spec(n, node(9), prompt),
        max_tokens,
        stop_tokens: vec![99],
        ignore_eos: false,
        speculate: true,
    }
}

pub(crate) fn token(id: u32) -> SampledToken {
    SampledToken::bare(id)
}

pub(crate) fn result(n: u128, position: u32, id: u32) -> TokenResult {
    let (attempt, tokens) = (Attempt::FIRST, vec![token(id)]);
    TokenResult { sequence: seq(n), attempt, position, tokens, drafts: 0, forced: vec![] }
}

/// What comes back of a step in which nothing failed.
pub(crate) fn tokens(
    placement: PlacementId,
    term: Term,
    step: u64,
    results: Vec<TokenResult>,
) -> TokensMessage {
    let (failures, pages, kept, computed_us) = (vec![], vec![], vec![], vec![]);
    TokensMessage { placement, term, step, results, failures, pages, kept, rebuilds: None, computed_us }
}

/// A scheduler at time zero whose step 0 is back; each stage has `pages` pages of `page_tokens` tokens.
pub(crate) fn serving(
    config: SchedulerConfig,
    placement: Placement,
    pages: u32,
    page_tokens: u32,
) -> Scheduler {
    let (id, term, now) = (placement.id, Term::FIRST, exo_types::Time::ZERO);
    let pages = vec![StagePages { pages, page_tokens }; placement.stages.len()];
    let from = placement.stages[placement.stages.len() - 1].leader().node;
    let tokens = TokensMessage { pages, ..tokens(id, term, 0, vec![]) };
    let mut scheduler = Scheduler::new(config, now, placement);
    let out = scheduler.tokens(now, from, &tokens);
    assert_eq!(out, [SchedulerOutput::Serving]);
    scheduler
}

/// Per device: enough for the whole test model with workspace, several times.
pub(crate) const PLENTY: u64 = 64 << 30;

/// Of a node with one device that has so much free.
pub(crate) fn report(n: u8, free: u64) -> NodeReport {
    let device = DeviceFacts {
        memory_free_bytes: free,
        compute_units: 4,
        read_bytes_per_s: Some(1e10),
        flops_per_s: Some(1e11),
        ..DeviceFacts::unmeasured(DeviceId::cpu(), DeviceKind::Cpu, "cpu", "cpu", PLENTY)
    };
    let (name, version, platform) = (format!("n{n}"), "0".to_owned(), "test".to_owned());
    let facts =
        NodeFacts { node: node(n), name, version, platform, devices: vec![device], mains_power: None };
    NodeReport {
        facts,
        models: vec![],
        disk_room: exo_types::DiskRoom::default(),
        stages: vec![],
        links: vec![],
        desired: None,
        unreached: vec![],
        instance_failures: vec![],
        process_bytes: None,
        devices: vec![],
        card_events: vec![],
        measured: NodeMeasurements::default(),
        log: exo_types::LogHead::EMPTY,
        is_leaving: false,
        is_disk_hung: false,
        reached: Vec::new(),
    }
}
