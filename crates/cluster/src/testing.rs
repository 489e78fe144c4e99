//! Small values for this crate's tests.

use exo_types::{
    DeviceId, InstanceId, KvDType, LayerRange, LayerShape, ModelId, ModelShape, NodeId, Placement, Principal,
    RequestId, SampledToken, SamplingParams, SequenceId, SequenceSpec, Shard, Stage,
};

use crate::wire::{StagePages, Submission, TokenResult, TokensMessage};
use crate::{InstanceRequest, PlaceObjective};
use crate::{Scheduler, SchedulerConfig, SchedulerInput, SchedulerOutput};

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
        vocab: 100,
        context_tokens_max: 64,
    }
}

pub(crate) fn request() -> InstanceRequest {
    InstanceRequest {
        model: MODEL,
        model_name: "m".into(),
        shape: shape(),
        context_tokens: 64,
        slots: 4,
        cache_tokens: 256,
        kv: KvDType::default(),
        objective: PlaceObjective::Fit,
        pinned_first: None,
        holders: vec![node(1)],
    }
}

/// The four layers split evenly over the nodes `on`.
pub(crate) fn placement(id: u64, generation: u32, on: &[u8]) -> Placement {
    let cut = |i: usize| (i * 4 / on.len()) as u32;
    let shard = |i| Shard::pipeline(LayerRange::new(cut(i), cut(i + 1)), 4);
    let stage = |(i, &n): (usize, &u8)| Stage { node: node(n), device: DeviceId::cpu(), shard: shard(i) };
    Placement {
        instance: InstanceId(id),
        generation,
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
    }
}

/// A submission to instance 1, generation 1, from node 9.
pub(crate) fn submission(n: u128, prompt: u32, max_tokens: u32) -> Submission {
    Submission {
        instance: InstanceId(1),
        generation: 1,
        spec: spec(n, node(9), prompt),
        max_tokens,
        stop_tokens: vec![99],
        ignore_eos: false,
        speculate: true,
    }
}

pub(crate) fn token(id: u32) -> SampledToken {
    SampledToken { token: id, logprob: None, top: Vec::new() }
}

pub(crate) fn result(n: u128, position: u32, id: u32) -> TokenResult {
    TokenResult { sequence: seq(n), position, tokens: vec![token(id)], drafts: 0 }
}

/// A scheduler at time zero whose step 0 is back; each stage has `pages` pages of `page_tokens` tokens.
pub(crate) fn serving(
    config: SchedulerConfig,
    placement: Placement,
    pages: u32,
    page_tokens: u32,
) -> Scheduler {
    let (instance, generation, now) = (placement.instance, placement.generation, exo_types::Time::ZERO);
    let pages = vec![StagePages { pages, page_tokens }; placement.stages.len()];
    let from = placement.stages[placement.stages.len() - 1].node;
    let (step, results, failures) = (0, vec![], vec![]);
    let tokens = TokensMessage { instance, generation, step, results, failures, pages };
    let mut scheduler = Scheduler::new(config, now, placement);
    let out = scheduler.handle(now, SchedulerInput::Tokens { from, tokens });
    assert_eq!(out, [SchedulerOutput::Serving]);
    scheduler
}
