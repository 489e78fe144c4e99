//! What the steps of this node's own stages teach of its devices: how much faster or slower than their
//! measured rates say.
//!
//! Each node watches its own engines and no one else's, so that no member can make another's device look
//! slow, and reports the factors beside the rates: every node plans with the same numbers. Only a step that
//! had the node to itself counts: one token of one stream, or a prompt from its beginning. From what it took
//! goes what no rate decides; the rest against [`exo_planner::expected_step`] is a sample. The factor is the
//! median of the last samples. It is in memory only, so it is gone with the process, and with it threads,
//! cores, share, driver and build; and it is forgotten when the device was lost or its rates are others.

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use exo_cluster::EngineId;
use exo_planner::{ExpectedStep, Phase, PlanDevice, PlanRequest, Workload, expected_step};
use exo_types::{
    Correction, Corrections, DType, DeviceFacts, DeviceId, KvDType, LayerRange, LayerRates, ModelShape,
    NodeId, ShardPosition, StepFrame, Term, TypeRates, WeightTypes,
};

use crate::non_finite::NonFiniteSteps;

/// Steps of one token that make a sample.
const DECODE_STEPS: u32 = 32;
/// A shorter prompt says little of arithmetic.
const PROMPT_TOKENS_MIN: usize = 64;
/// A factor is believed from so many samples on.
const SAMPLES_MIN: usize = 3;
/// Samples that count: a third of them may be any nonsense.
const SAMPLES_MAX: usize = 9;
/// A factor that comes to be further from 100 % is an event.
const EVENT_BEGINS_PERCENT: u16 = 25;
/// One that comes to be so near again is, too. Between the two it is as it was: what wavers tells nothing.
const EVENT_ENDS_PERCENT: u16 = 10;

/// What is known of all devices of this node.
#[derive(Debug, Default)]
pub(crate) struct StepCorrections {
    in_flight: Vec<InFlight>,
    decodes: BTreeMap<EngineId, Decodes>,
    devices: BTreeMap<DeviceId, DeviceCorrections>,
    /// Steps in which devices gave what is no number.
    pub(crate) non_finite: NonFiniteSteps,
}

/// A step that an engine has been given.
#[derive(Debug)]
struct InFlight {
    engine: EngineId,
    step: (ShardPosition, Term, u64),
    /// `None` if it is not one to learn from, or was not alone.
    size: Option<StepSize>,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum StepSize {
    /// A token behind so many.
    Token { depth: u32 },
    /// So many of a prompt, from its beginning.
    Prompt { tokens: u32 },
}

/// Steps of one token since the last sample.
#[derive(Clone, Copy, Debug, Default)]
struct Decodes {
    count: u32,
    depth_sum: u64,
    took: Duration,
}

/// What is known of one device.
#[derive(Debug)]
struct DeviceCorrections {
    basis: Basis,
    decode: Factor,
    prefill: Factor,
}

/// The rates that factors are relative to, and what they were measured with.
#[derive(Clone, PartialEq, Debug)]
struct Basis(String, String, Option<f64>, Option<f64>, Vec<(DType, f64, f64)>, Option<LayerRates>);

impl Basis {
    fn of(facts: &DeviceFacts) -> Self {
        let DeviceFacts { name, backend, read_bytes_per_s, flops_per_s, rates_by_type, layer_rates, .. } =
            facts;
        let typed = |rates: &TypeRates| (rates.dtype, rates.read_bytes_per_s, rates.flops_per_s);
        let typed = rates_by_type.iter().map(typed).collect();
        Self(name.clone(), backend.clone(), *read_bytes_per_s, *flops_per_s, typed, *layer_rates)
    }
}

/// How fast a device computes beside what was measured, as it is told.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
enum Pace {
    #[default]
    AsMeasured,
    Slower,
    Faster,
}

impl Pace {
    fn text(self) -> &'static str {
        match self {
            Self::AsMeasured => "about as fast as it was measured again",
            Self::Slower => "slower than it was measured",
            Self::Faster => "faster than it was measured",
        }
    }
}

/// What is learned of one phase.
#[derive(Debug, Default)]
struct Factor {
    /// The last samples, in per cent.
    samples: VecDeque<u16>,
    /// What was told last.
    told: Pace,
}

impl Factor {
    /// Takes in what a step took beside what was expected. Nothing is learned where rates decide less than
    /// half of it.
    fn learn(&mut self, expected: ExpectedStep, took_ns: u64) {
        let ExpectedStep { rated_ns, fixed_ns } = expected;
        if took_ns == 0 || rated_ns < fixed_ns {
            return;
        }
        let rest_ns = took_ns.saturating_sub(fixed_ns).max(1);
        let percent = u128::from(rated_ns) * 100 / u128::from(rest_ns);
        let (low, high) = (u128::from(*Correction::PERCENT.start()), u128::from(*Correction::PERCENT.end()));
        self.samples.push_back(percent.clamp(low, high) as u16); // at most 200
        if self.samples.len() > SAMPLES_MAX {
            self.samples.pop_front();
        }
    }

    /// What is to be told now, if it is other than what was told last.
    fn news(&mut self) -> Option<Pace> {
        let percent = self.correction()?.percent;
        let pace = match percent.abs_diff(100) {
            off if off <= EVENT_ENDS_PERCENT => Pace::AsMeasured,
            off if off <= EVENT_BEGINS_PERCENT => self.told,
            _ if percent < 100 => Pace::Slower,
            _ => Pace::Faster,
        };
        (std::mem::replace(&mut self.told, pace) != pace).then_some(pace)
    }

    fn correction(&self) -> Option<Correction> {
        let mut sorted: Vec<u16> = self.samples.iter().copied().collect();
        sorted.sort_unstable();
        let percent = *sorted.get(sorted.len() / 2).filter(|_| sorted.len() >= SAMPLES_MIN)?;
        Some(Correction { percent, samples: sorted.len() as u16 }) // at most `SAMPLES_MAX`
    }
}

impl StepCorrections {
    /// An engine is given a step.
    pub(crate) fn begun(&mut self, engine: EngineId, position: ShardPosition, frame: &StepFrame) {
        let step = (position, frame.term, frame.step);
        // What it was given in an earlier term, and the same step before, does not come back.
        let is_awaited = |(at, term, number)| (at, term) == (position, frame.term) && number < frame.step;
        self.in_flight.retain(|other| other.engine != engine || is_awaited(other.step));
        // One engine computes its steps one after the other.
        let mut others: Vec<_> = self.in_flight.iter_mut().filter(|other| other.engine != engine).collect();
        others.iter_mut().for_each(|other| other.size = None);
        let size = size_of(frame).filter(|_| others.is_empty());
        self.in_flight.push(InFlight { engine, step, size });
    }

    /// It is done with it.
    fn ended(&mut self, engine: EngineId, step: (ShardPosition, Term, u64)) -> Option<StepSize> {
        let index = self.in_flight.iter().position(|other| (other.engine, other.step) == (engine, step))?;
        self.in_flight.swap_remove(index).size
    }

    /// It is done with it: a sample, where this was one and enough of them are there. Of which phase, behind
    /// how many tokens or for how many of a prompt, and how long it took.
    pub(crate) fn sampled(
        &mut self,
        engine: EngineId,
        step: (ShardPosition, Term, u64),
        took: Duration,
        counts: bool,
    ) -> Option<(Phase, u32, Duration)> {
        match self.ended(engine, step).filter(|_| counts)? {
            StepSize::Prompt { tokens } => Some((Phase::Prefill, tokens, took)),
            StepSize::Token { depth } => {
                let decodes = self.decodes.entry(engine).or_default();
                decodes.count += 1;
                decodes.depth_sum += u64::from(depth);
                decodes.took += took;
                if decodes.count < DECODE_STEPS {
                    return None;
                }
                let Decodes { count, depth_sum, took } = std::mem::take(decodes);
                Some((Phase::Decode, (depth_sum / u64::from(count)) as u32, took / count)) // a mean of `u32`
            }
        }
    }

    /// There is no such engine any more.
    pub(crate) fn forget_engine(&mut self, engine: EngineId) {
        self.in_flight.retain(|other| other.engine != engine);
        self.decodes.remove(&engine);
    }

    /// What was learned of a device is of the past.
    pub(crate) fn forget_device(&mut self, device: &DeviceId) {
        self.devices.remove(device);
    }

    /// What was learned with these rates of a device.
    pub(crate) fn of(&self, facts: &DeviceFacts) -> Corrections {
        match self.devices.get(&facts.id).filter(|learned| learned.basis == Basis::of(facts)) {
            Some(DeviceCorrections { decode, prefill, .. }) => {
                Corrections { decode: decode.correction(), prefill: prefill.correction() }
            }
            None => Corrections::default(),
        }
    }

    pub(crate) fn learn(
        &mut self,
        facts: &DeviceFacts,
        phase: Phase,
        expected: ExpectedStep,
        took: Duration,
    ) {
        let new = || DeviceCorrections {
            basis: Basis::of(facts),
            decode: Factor::default(),
            prefill: Factor::default(),
        };
        let learned = self.devices.entry(facts.id.clone()).or_insert_with(new);
        if learned.basis != Basis::of(facts) {
            *learned = new();
        }
        let factor = match phase {
            Phase::Decode => &mut learned.decode,
            Phase::Prefill => &mut learned.prefill,
        };
        factor.learn(expected, u64::try_from(took.as_nanos()).unwrap_or(u64::MAX));
        if let Some(pace) = factor.news() {
            let text = self.of(facts).text().unwrap_or_default();
            tracing::info!(target: "events::device", device = %facts.id, ?phase, text, "{}", pace.text());
        }
    }
}

/// Whether it is a step to learn from.
fn size_of(frame: &StepFrame) -> Option<StepSize> {
    let [sequence] = frame.sequences.as_slice() else { return None };
    match (sequence.start, sequence.tokens.len()) {
        // A prompt is cut where it would take long. Only its last part computes the head, which is little
        // beside it.
        (0, tokens) if tokens >= PROMPT_TOKENS_MIN => Some(StepSize::Prompt { tokens: tokens as u32 }), // a context is a `u32`
        (depth @ 1.., 1) => Some(StepSize::Token { depth }),
        _ => None,
    }
}

/// What the model of cost says of a step on a device, by its measured rates alone.
pub(crate) fn expected(
    node: NodeId,
    facts: &DeviceFacts,
    (shape, types, kv, layers): (&ModelShape, Option<&WeightTypes>, KvDType, LayerRange),
    (phase, prompt_tokens): (Phase, u32),
) -> Option<ExpectedStep> {
    let facts = DeviceFacts { corrections: Corrections::default(), ..facts.clone() };
    let device = PlanDevice::reported(node, String::new(), facts, None);
    let workload = Workload { prompt_tokens, answer_tokens: 1, streams: 1 };
    let request = PlanRequest {
        workload,
        weight_types: types.cloned(),
        kv,
        ..PlanRequest::new(shape.clone(), prompt_tokens.saturating_add(1), vec![device])
    };
    expected_step(&request, layers, phase)
}

#[cfg(test)]
mod tests;
