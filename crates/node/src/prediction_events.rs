//! Notes in the log when answers of an instance come to be more than a quarter faster or slower than the
//! model of cost expects, and when they are as expected again: once each, on the node of the first stage,
//! which times them.

use std::collections::{BTreeMap, VecDeque};

use exo_api::{ClusterView, InstanceView, MeasuredAnswerView, MeasuredTimeView, TermOffView};

/// A speed that comes to be further from what is expected, as a share of it, is an event.
const EVENT_BEGINS: f64 = 0.25;
/// One that comes to be so near again is, too. Between the two it is as it was.
const EVENT_ENDS: f64 = 0.1;
/// The median of so many answers counts: one may have met with anything.
const ANSWERS: usize = 3;

/// What was noted of each instance.
#[derive(Debug, Default)]
pub struct PredictionEvents {
    instances: BTreeMap<String, InstanceAnswers>,
}

/// Answers of one placement of an instance that ran alone.
#[derive(Debug, Default)]
struct InstanceAnswers {
    placement: String,
    /// The last one.
    measured: Option<AnswerTimes>,
    first_token: SpeedComparison,
    token: SpeedComparison,
}

/// What makes an answer another one: what is expected of it changes by itself.
#[derive(Clone, Copy, PartialEq, Debug)]
struct AnswerTimes {
    prompt_tokens: u32,
    answer_tokens: u32,
    first_token_ms: f64,
    token_ms: Option<f64>,
}

#[derive(Debug, Default)]
struct SpeedComparison {
    /// Of the last answers, measured by expected.
    speeds: VecDeque<f64>,
    noted: Pace,
}

#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
enum Pace {
    #[default]
    AsExpected,
    Slower,
    Faster,
}

/// What of an answer is compared.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum AnswerPart {
    FirstToken,
    Token,
}

/// One change.
#[derive(Clone, PartialEq, Debug)]
pub struct PredictionEvent {
    instance: String,
    part: AnswerPart,
    pace: Pace,
    measured_ms: f64,
    expected_ms: f64,
    off: Option<TermOffView>,
}

impl PredictionEvents {
    /// What has changed since the last look, of instances whose first stage is here.
    pub fn observe(&mut self, view: &ClusterView) -> Vec<PredictionEvent> {
        let is_own = |instance: &&InstanceView| {
            instance.stages.first().is_some_and(|stage| stage.node == view.self_node)
        };
        let own: Vec<&InstanceView> = view.instances.iter().filter(is_own).collect();
        self.instances.retain(|id, _| own.iter().any(|instance| instance.id == *id));
        let mut events = Vec::new();
        for instance in own {
            let Some(answer) = &instance.measured_alone else { continue };
            let known = self.instances.entry(instance.id.clone()).or_default();
            if known.placement != instance.placement {
                *known = InstanceAnswers { placement: instance.placement.clone(), ..Default::default() };
            }
            let changes = known.take(answer).into_iter();
            events.extend(changes.map(|(part, pace, time)| PredictionEvent {
                instance: instance.id.clone(),
                part,
                pace,
                measured_ms: time.measured_ms,
                expected_ms: time.predicted_ms,
                off: time.off,
            }));
        }
        events
    }
}

impl InstanceAnswers {
    fn take(&mut self, answer: &MeasuredAnswerView) -> Vec<(AnswerPart, Pace, MeasuredTimeView)> {
        let measured = AnswerTimes {
            prompt_tokens: answer.prompt_tokens,
            answer_tokens: answer.answer_tokens,
            first_token_ms: answer.first_token.measured_ms,
            token_ms: answer.token.map(|token| token.measured_ms),
        };
        if self.measured.replace(measured) == Some(measured) {
            return Vec::new();
        }
        let first_token = Some((AnswerPart::FirstToken, &mut self.first_token, answer.first_token));
        let token = answer.token.map(|token| (AnswerPart::Token, &mut self.token, token));
        let parts = first_token.into_iter().chain(token);
        parts.filter_map(|(part, speeds, time)| Some((part, speeds.take(time)?, time))).collect()
    }
}

impl SpeedComparison {
    fn take(&mut self, time: MeasuredTimeView) -> Option<Pace> {
        let speed = time.predicted_ms / time.measured_ms;
        if !speed.is_finite() || speed <= 0.0 {
            return None;
        }
        self.speeds.push_back(speed);
        if self.speeds.len() > ANSWERS {
            self.speeds.pop_front();
        }
        let mut sorted: Vec<f64> = self.speeds.iter().copied().collect();
        sorted.sort_by(f64::total_cmp);
        let median = *sorted.get(ANSWERS / 2).filter(|_| sorted.len() == ANSWERS)?;
        let pace = match (median - 1.0).abs() {
            off if off <= EVENT_ENDS => Pace::AsExpected,
            off if off <= EVENT_BEGINS => self.noted,
            _ if median < 1.0 => Pace::Slower,
            _ => Pace::Faster,
        };
        (std::mem::replace(&mut self.noted, pace) != pace).then_some(pace)
    }
}

impl PredictionEvent {
    /// Into the log.
    pub fn report(&self) {
        let Self { instance, part, pace, measured_ms, expected_ms, off } = self;
        let part = match part {
            AnswerPart::FirstToken => "first token",
            AnswerPart::Token => "token",
        };
        let text = match pace {
            Pace::AsExpected => "about as fast as expected again",
            Pace::Slower => "more than a quarter slower than expected",
            Pace::Faster => "more than a quarter faster than expected",
        };
        let off = off.map(|off| match off.stage {
            Some(stage) => format!("stage {stage}"),
            None => "between stages".to_owned(),
        });
        tracing::info!(target: "events::instance", instance, part, measured_ms, expected_ms, off, "{text}");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A cluster of this node whose instance answered in so many milliseconds a token, where 100 are
    /// expected, and with first tokens as expected.
    fn view(token_ms: f64, first_stage: &str) -> ClusterView {
        let mut view = exo_machine::empty_view(exo_types::NodeId([1; 32]));
        let node = if first_stage == "own" { view.self_node.clone() } else { first_stage.to_owned() };
        let time = |measured_ms: f64| serde_json::json!({"measured_ms": measured_ms, "predicted_ms": 100.0, "off": null});
        let instance = serde_json::json!({
            "id": "i1", "model_id": "m", "model": "demo", "state": {"kind": "ready"}, "placement": "p",
            "context_tokens": 64, "slots": 1, "kv": "f16", "load": null,
            "stages": [{
                "node": node, "node_name": "a", "device": "cpu", "layers": {"start": 0, "end": 4}, "embedding": true,
                "head": true, "weight_bytes": 1, "weight_bytes_held": 1, "kv_bytes": 1
            }],
            "measured_alone": {
                "prompt_tokens": 9, "answer_tokens": 40, "first_token": time(100.0 + token_ms / 1000.0), "token": time(token_ms)
            }
        });
        view.instances = vec![serde_json::from_value(instance).unwrap()];
        view
    }

    /// The events of answers that took so long for a token, one after the other, each looked at twice.
    fn events(token_ms: &[f64], first_stage: &str) -> Vec<(usize, Pace)> {
        let mut events = PredictionEvents::default();
        let mut found = Vec::new();
        for (number, ms) in token_ms.iter().enumerate() {
            for _ in 0..2 {
                for event in events.observe(&view(*ms, first_stage)) {
                    assert_eq!((event.part, event.measured_ms), (AnswerPart::Token, *ms));
                    found.push((number, event.pace));
                }
            }
        }
        found
    }

    #[test]
    fn answers_a_quarter_faster_are_an_event_as_slower_ones_are_and_each_once() {
        // A quarter faster takes 80 ms, a quarter slower 133.
        assert_eq!(events(&[79.0, 79.1, 79.2, 79.3, 79.4], "own"), [(2, Pace::Faster)]);
        assert_eq!(events(&[134.0, 134.1, 134.2, 134.3], "own"), [(2, Pace::Slower)]);
        assert_eq!(events(&[81.0, 81.1, 81.2, 132.0, 132.1, 132.2], "own"), []);
        // One that met with something counts for nothing, and what lies between changes nothing.
        let wavering = [79.0, 500.0, 79.1, 79.2, 85.0, 85.1, 85.2, 95.0, 95.1, 95.2];
        assert_eq!(events(&wavering, "own"), [(2, Pace::Faster), (8, Pace::AsExpected)]);
    }

    #[test]
    fn only_the_node_of_the_first_stage_tells() {
        assert_eq!(events(&[50.0, 50.1, 50.2, 50.3], "b"), []);
    }
}
