//! Engines over the golden fixtures, and the frames to drive them. The only test code that knows the API.

#![allow(dead_code)] // each test binary uses its part
#![allow(clippy::unwrap_used, clippy::print_stdout)] // the exemption for tests does not reach helpers of integration tests

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use exo_backend::{CancelToken, Device, KvDType};
use exo_backend_cpu::{CpuDevice, CpuOptions};
use exo_backend_wgpu::{Api, WgpuDevice, WgpuOptions, list};
use exo_engine::{Engine, EngineOptions, StepError, StepInput, StepOutput};
use exo_golden::Fixture;
use exo_types::{
    DeviceId, LayerRange, NodeId, Principal, PromptQuery, RequestId, SampledToken, SamplingParams,
    SequenceId, SequenceSpec, Shard, StepFrame, StepSequence,
};

/// Long enough for a debug build on a busy machine; a test that needs it has failed.
pub const DEADLINE: Duration = Duration::from_secs(60);

/// A processor with `threads` threads.
pub fn device(threads: usize) -> Arc<CpuDevice> {
    CpuDevice::open(CpuOptions { threads: Some(threads), ..CpuOptions::default() }).unwrap()
}

/// The adapters of this machine; one without any says which test it skips.
pub fn cards(test: &str) -> Vec<Arc<WgpuDevice>> {
    let found = list(Api::Vulkan).unwrap();
    if found.is_empty() {
        let line = format!("{test}: no Vulkan adapter on this machine");
        println!("skipped: {line}");
        if let Some(path) = std::env::var_os("EXO_TEST_SKIPS") {
            let mut file = std::fs::OpenOptions::new().create(true).append(true).open(path).unwrap();
            std::io::Write::write_all(&mut file, format!("{line}\n").as_bytes()).unwrap();
        }
    }
    let options = WgpuOptions { memory_limit_bytes: Some(64 << 20), ..WgpuOptions::default() };
    found
        .iter()
        .map(|adapter| WgpuDevice::open(adapter, DeviceId("test".to_owned()), &options).unwrap())
        .collect()
}

/// The whole model of a fixture on a device.
pub fn on(device: Arc<dyn Device>, fixture: &Fixture, options: EngineOptions) -> Pipeline {
    let model = exo_formats::open(&fixture.gguf()).unwrap();
    let shard = Shard::whole(model.config.layers);
    Pipeline { stages: vec![Engine::load(device, &model, shard, options, &mut |_| {}).unwrap()] }
}

/// Exact keys and values: the references round nothing.
pub fn options() -> EngineOptions {
    let kv_dtype = KvDType::F32;
    EngineOptions { page_tokens: 16, chunk_tokens_max: 64, kv_dtype, ..EngineOptions::new(128, 4) }
}

/// The whole model in one engine.
pub fn solo(path: &Path, options: EngineOptions, threads: usize) -> Pipeline {
    split(path, &[], options, threads)
}

/// The model cut before each layer of `cuts`.
pub fn split(path: &Path, cuts: &[u32], options: EngineOptions, threads: usize) -> Pipeline {
    let model = exo_formats::open(path).unwrap_or_else(|e| panic!("{}: {e:?}", path.display()));
    let layer_count = model.config.layers;
    let ends: Vec<u32> = [0].iter().chain(cuts).chain([&layer_count]).copied().collect();
    let load = |ends: &[u32]| {
        let shard = Shard::pipeline(LayerRange::new(ends[0], ends[1]), layer_count);
        Engine::load(device(threads), &model, shard, options, &mut |_| {}).unwrap()
    };
    Pipeline { stages: ends.windows(2).map(load).collect() }
}

/// Tokens of several sequences.
pub type Runs = Vec<(SequenceId, Vec<SampledToken>)>;

/// Stages in order, driven as one engine.
pub struct Pipeline {
    pub stages: Vec<Engine>,
}

impl Pipeline {
    pub fn open(&mut self, spec: &SequenceSpec) {
        self.stages.iter_mut().for_each(|stage| stage.open(spec.clone()).unwrap());
    }

    pub fn close(&mut self, sequence: SequenceId) {
        self.stages.iter_mut().for_each(|stage| stage.close(sequence).unwrap());
    }

    /// A step without drafts through all stages; the tokens of the last.
    pub fn step(&mut self, parts: Vec<StepSequence>) -> Result<Vec<(SequenceId, SampledToken)>, StepError> {
        let one = |(id, mut tokens): (_, Vec<_>)| (id, tokens.remove(0));
        Ok(self.runs(parts)?.into_iter().map(one).collect())
    }

    /// The same with drafts: as many tokens of each sequence as there are.
    pub fn runs(&mut self, parts: Vec<StepSequence>) -> Result<Runs, StepError> {
        let frame = frame(parts);
        let (last, hidden) = self.up_to_last(&frame)?;
        match last.step(&frame, input(&hidden), &CancelToken::default(), DEADLINE)? {
            StepOutput::Sampled(sampled) => sampled.all(),
            StepOutput::Hidden(_) => panic!("the last stage samples"),
        }
    }

    /// The same, for the logits of all rows.
    pub fn logits(&mut self, parts: Vec<StepSequence>) -> Result<Vec<f32>, StepError> {
        let frame = frame(parts);
        let (last, hidden) = self.up_to_last(&frame)?;
        last.step_logits(&frame, input(&hidden), &CancelToken::default(), DEADLINE)
    }

    fn up_to_last(&mut self, frame: &StepFrame) -> Result<(&mut Engine, Option<Vec<f32>>), StepError> {
        let (last, before) = self.stages.split_last_mut().unwrap();
        let mut hidden = None;
        for stage in before {
            match stage.step(frame, input(&hidden), &CancelToken::default(), DEADLINE)? {
                StepOutput::Hidden(rows) => hidden = Some(rows),
                StepOutput::Sampled(_) => panic!("only the last stage samples"),
            }
        }
        Ok((last, hidden))
    }

    /// Logits of `tokens`, fed in chunks of `chunk` as a new sequence that is closed afterwards.
    pub fn logits_in_chunks(&mut self, tokens: &[u32], chunk: usize) -> Vec<f32> {
        let spec = spec(77, &[], SamplingParams::greedy());
        self.open(&spec);
        let mut all = Vec::new();
        for (i, tokens) in tokens.chunks(chunk).enumerate() {
            all.extend(self.logits(vec![part(77, i * chunk, tokens, false)]).unwrap());
        }
        self.close(spec.sequence);
        all
    }

    /// The answer to `prompt`, fed in chunks of `chunk`.
    pub fn generate(
        &mut self,
        prompt: &[u32],
        chunk: usize,
        count: usize,
        sampling: SamplingParams,
    ) -> Vec<u32> {
        let spec = spec(78, prompt, sampling);
        self.open(&spec);
        let (mut at, mut next, mut answer) = (0, prompt.to_vec(), Vec::new());
        while answer.len() < count {
            let taken = next.len().min(chunk);
            let rest = next.split_off(taken);
            let tokens = self.step(vec![part(78, at, &next, rest.is_empty())]).unwrap();
            at += taken;
            next = rest;
            for (_, sampled) in tokens {
                answer.push(sampled.token);
                next = vec![sampled.token];
            }
        }
        self.close(spec.sequence);
        answer
    }
}

pub fn input(hidden: &Option<Vec<f32>>) -> StepInput<'_> {
    hidden.as_deref().map_or(StepInput::Tokens, StepInput::Hidden)
}

pub fn id(n: u16) -> SequenceId {
    SequenceId { request: RequestId(1), index: n }
}

pub fn spec(n: u16, history: &[u32], sampling: SamplingParams) -> SequenceSpec {
    SequenceSpec {
        sequence: id(n),
        principal: Principal::LOCAL,
        driver: NodeId([0; 32]),
        sampling,
        history: history.to_vec(),
        prompt_tokens: history.len() as u32,
        query: PromptQuery::Nothing,
    }
}

pub fn part(n: u16, start: usize, tokens: &[u32], sample: bool) -> StepSequence {
    StepSequence {
        sequence: id(n),
        principal: Principal::LOCAL,
        start: start as u32,
        tokens: tokens.to_vec(),
        sample,
        drafts: 0,
        truncate_to: None,
    }
}

pub fn frame(sequences: Vec<StepSequence>) -> StepFrame {
    StepFrame::unplaced(1, sequences)
}

/// Equality to the last bit, with the place of the first difference.
#[track_caller]
pub fn assert_same_bits(got: &[f32], want: &[f32], what: &str) {
    assert_eq!(got.len(), want.len(), "{what}");
    let differs = got.iter().zip(want).position(|(g, w)| g.to_bits() != w.to_bits());
    if let Some(i) = differs {
        panic!("{what}: value {i} is {}, alone it is {}", got[i], want[i]);
    }
}

/// The smallest fixtures that between them have every kind of layer.
pub fn one_of_each() -> Vec<Fixture> {
    ["llama-bf16-tied", "mistral-f16-window", "qwen2-bf16", "qwen3-f16", "llama-q4_0", "qwen3-q8_0"]
        .map(Fixture::load)
        .into()
}
