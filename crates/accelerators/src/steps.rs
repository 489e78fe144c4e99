//! What handing the steps of a model to a graphics processor costs the processor of the machine.

use std::sync::Arc;

use exo_backend_wgpu::WgpuDevice;
use exo_engine::{Engine, EngineOptions};
use exo_types::Shard;
use serde::{Deserialize, Serialize};

use crate::trial::{AnswerError, Asker, TrialError, demo_model, part};

const PROMPT_TOKENS: u32 = 4;
/// Steps before the clock starts: drivers prepare things at first use.
const WARM_STEPS: u32 = 4;
const STEPS: u32 = 32;

/// One decode step of the built-in model, as the average of some.
#[derive(Serialize, Deserialize, Clone, Copy, PartialEq, Debug)]
pub struct StepCost {
    /// Layers of the model.
    pub layers: u32,
    /// Kernels started, head and embedding included.
    pub dispatches: f64,
    /// Times work was handed to the driver.
    pub submissions: f64,
    /// Microseconds in which commands were written and handed over.
    pub encode_us: f64,
    /// Bytes brought back: the token, and the faults of kernels.
    pub read_bytes: f64,
}

/// Steps could not be measured.
#[derive(Debug, thiserror::Error)]
pub(crate) enum StepsError {
    #[error(transparent)]
    Model(#[from] TrialError),
    #[error(transparent)]
    Answer(#[from] AnswerError),
}

/// Decodes with the built-in model and asks what that cost.
pub(crate) fn measure(device: &Arc<WgpuDevice>) -> Result<StepCost, StepsError> {
    let model = demo_model()?;
    let layers = model.config.layers;
    let options = EngineOptions::new(PROMPT_TOKENS + WARM_STEPS + STEPS + 1, 1);
    let engine = Engine::load(device.clone(), &model, Shard::whole(layers), options, &mut |_| {});
    let mut asker = Asker { engine: engine.map_err(TrialError::Load)?, step: 0 };
    let prompt: Vec<u32> = (1..=PROMPT_TOKENS).collect();
    asker.open(std::slice::from_ref(&prompt))?;
    let mut next = asker.step(vec![part(0, 0, prompt)])?;
    let mut decode = |from: u32, steps: u32| {
        for position in from..from + steps {
            let token = next.first().map_or(0, |(_, token)| *token);
            next = asker.step(vec![part(0, position, vec![token])])?;
        }
        Ok::<(), AnswerError>(())
    };
    decode(PROMPT_TOKENS, WARM_STEPS)?;
    let before = device.work();
    decode(PROMPT_TOKENS + WARM_STEPS, STEPS)?;
    let after = device.work();
    let each = |total: u64| total as f64 / f64::from(STEPS);
    Ok(StepCost {
        layers,
        dispatches: each(after.dispatches - before.dispatches),
        submissions: each(after.submissions - before.submissions),
        encode_us: (after.encoding - before.encoding).as_secs_f64() * 1e6 / f64::from(STEPS),
        read_bytes: each(after.read_bytes - before.read_bytes),
    })
}
