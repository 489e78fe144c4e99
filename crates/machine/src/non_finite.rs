//! Devices of this node that make of numbers what is none: the second time one goes to quarantine.
//!
//! Damaged weights, or one prompt in a cache of half precision, give no numbers on any device. So a step
//! counts against its device where that gave numbers for the same layers before, or failed with another
//! model as well; and what is asked with one prompt counts once, however often it is asked.

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use exo_cluster::EngineId;
use exo_cluster::wire::DataMessage;
use exo_types::{DeviceId, ModelId, RequestId, Time};

use crate::{Effect, NodeMachine};

/// Two steps further apart say nothing of each other.
pub(crate) const WITHIN: Duration = Duration::from_secs(600);
/// Of a device; older ones are forgotten.
const STEPS_MAX: usize = 16;

/// Steps that gave no numbers, by device.
#[derive(Default, Debug)]
pub(crate) struct NonFiniteSteps(BTreeMap<DeviceId, VecDeque<NonFiniteStep>>);

#[derive(Clone, Copy, Debug)]
struct NonFiniteStep {
    at: Time,
    request: RequestId,
    /// Hash of its prompt.
    prompt: [u8; 32],
    model: ModelId,
    /// Whether the engine gave numbers before.
    gave_numbers: bool,
}

impl NonFiniteSteps {
    /// Notes one more. Whether it is the second that the device is to blame for; then they count anew.
    fn note(&mut self, device: &DeviceId, step: NonFiniteStep) -> bool {
        let steps = self.0.entry(device.clone()).or_default();
        steps.retain(|before| step.at.since(before.at) <= WITHIN);
        let is_second = steps.iter().any(|before| {
            let is_asked_again = before.request == step.request || before.prompt == step.prompt;
            !is_asked_again && (step.gave_numbers || before.model != step.model)
        });
        if is_second {
            steps.clear();
            return true;
        }
        steps.truncate(STEPS_MAX - 1);
        steps.push_front(step);
        false
    }
}

impl NodeMachine {
    /// What an engine's stage sends on was looked at: it is numbers.
    pub(crate) fn note_numbers(&mut self, engine: EngineId, message: &DataMessage) {
        let are_numbers = match message {
            DataMessage::Step(step) => !step.rows.is_empty(),
            DataMessage::Tokens(tokens) => !tokens.results.is_empty(),
            _ => false,
        };
        if let Some(entry) = self.engines.get_mut(&engine).filter(|_| are_numbers) {
            entry.gave_numbers = true;
        }
    }

    /// The device of an engine made of numbers what is none.
    pub(crate) fn gave_no_numbers(&mut self, engine: EngineId, request: RequestId, prompt: [u8; 32]) {
        let Some(entry) = self.engines.get(&engine) else { return };
        let (device, model, gave_numbers) = (entry.spec.device.clone(), entry.spec.model, entry.gave_numbers);
        let (at, layers) = (self.awake.now(), entry.spec.layers);
        tracing::warn!(%device, %layers, %request, gave_numbers, "a step gave what is no number");
        let step = NonFiniteStep { at, request, prompt, model, gave_numbers };
        if self.step_corrections.non_finite.note(&device, step) {
            let minutes = WITHIN.as_secs() / 60;
            let reason = format!(
                "it gave what is no number in two steps within {minutes} min, at last for layers {layers}"
            );
            tracing::info!(target: "events::device", %device, reason, "quarantined");
            self.out.push(Effect::Quarantine { device, reason });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Steps `(second, request, model, gave numbers before)` of one device: which of them puts it in
    /// quarantine. Requests with the same last digit have the same prompt.
    fn check(steps: &[(u64, u128, u8, bool)]) -> Vec<bool> {
        let (mut noted, device) = (NonFiniteSteps::default(), DeviceId::cpu());
        let mut note = |&(second, request, model, gave_numbers): &(u64, u128, u8, bool)| {
            let (at, request) = (Time::from_millis(second * 1000), RequestId(request));
            let (prompt, model) = ([request.0 as u8 % 10; 32], ModelId([model; 32]));
            noted.note(&device, NonFiniteStep { at, request, prompt, model, gave_numbers })
        };
        steps.iter().map(&mut note).collect()
    }

    #[test]
    fn the_second_step_within_ten_minutes_that_a_device_is_to_blame_for_counts() {
        assert_eq!(check(&[(0, 1, 1, true), (600, 2, 1, true)]), [false, true]);
        assert_eq!(check(&[(0, 1, 1, true), (601, 2, 1, true)]), [false, false], "too far apart");
        assert_eq!(check(&[(0, 1, 1, true), (1, 1, 1, true), (2, 1, 1, true)]), [false; 3], "one request");
        assert_eq!(check(&[(0, 1, 1, false), (1, 2, 1, false)]), [false; 2], "a model without numbers");
        assert_eq!(check(&[(0, 1, 1, false), (1, 2, 2, false)]), [false, true], "two models");
        let again = [(0, 1, 1, true), (1, 2, 1, true), (2, 3, 1, true), (3, 4, 1, true)];
        assert_eq!(check(&again), [false, true, false, true], "once for each time");
    }

    #[test]
    fn the_same_prompt_twice_is_no_second_step() {
        assert_eq!(check(&[(0, 1, 1, true), (1, 11, 1, true), (2, 21, 1, true)]), [false; 3]);
        assert_eq!(check(&[(0, 1, 1, false), (1, 11, 2, false)]), [false; 2], "of two models");
        assert_eq!(check(&[(0, 1, 1, true), (1, 11, 1, true), (2, 12, 1, true)]), [false, false, true]);
    }

    #[test]
    fn steps_of_a_model_without_numbers_are_forgotten_by_and_by() {
        let (mut noted, device) = (NonFiniteSteps::default(), DeviceId::cpu());
        for request in 0..100 {
            let (at, prompt, model) = (Time::ZERO, [request as u8; 32], ModelId([1; 32]));
            let request = RequestId(request);
            let step = NonFiniteStep { at, request, prompt, model, gave_numbers: false };
            assert!(!noted.note(&device, step));
        }
        assert_eq!(noted.0[&device].len(), STEPS_MAX);
    }
}
