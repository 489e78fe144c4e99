//! What the last answer that ran alone took, beside what the model of cost expects of the same, and which
//! part of it is off.

use exo_api::{MeasuredAnswerView, MeasuredTimeView, StageMeasuredView, TermOffView};
use exo_cluster::wire::{AloneTimes, PhaseTimes};
use exo_planner::{PlanRequest, StageTimes, Workload};
use exo_types::Placement;

/// Nothing is off that is nearer.
const OFF_SHARE: f64 = 0.1;

/// The answer, and each of its stages; of these nothing where its tokens are too few to tell, or its
/// scheduler told of other stages.
#[derive(PartialEq, Debug)]
pub(super) struct MeasuredAlone {
    pub(super) answer: MeasuredAnswerView,
    pub(super) stages: Vec<StageMeasuredView>,
}

/// `request` is that of the placement's prediction. `None` if it does not say what is expected.
pub(super) fn of(placement: &Placement, request: &PlanRequest, times: &AloneTimes) -> Option<MeasuredAlone> {
    let (prompt_tokens, answer_tokens) = (times.prompt_tokens, times.answer_tokens.max(1));
    let workload = Workload { prompt_tokens, answer_tokens, streams: 1 };
    let request = PlanRequest { workload, ..request.clone() };
    let (predicted, _) = exo_planner::predict(&request, &placement.stages)?;
    let stages = exo_planner::stage_times(&request, &placement.stages)?;
    let part = |of: &dyn Fn(&StageTimes) -> u64| -> Vec<f64> { stages.iter().map(|s| ms(of(s))).collect() };
    let first_token = TimeComparison {
        measured_ms: times.first_token_us as f64 / 1e3,
        predicted_ms: ms(predicted.ttft_ns.expected),
        stages_measured_ms: stages_ms(&times.prompt, 1.0),
        stages_predicted_ms: part(&|stage| stage.prompt_ns),
    };
    let tokens = f64::from(times.answer_tokens);
    let token = times.is_telling().then(|| {
        let stages_measured_ms = stages_ms(&times.answer, tokens);
        let between_ms = times.answer.between_us as f64 / 1e3 / tokens;
        TimeComparison {
            measured_ms: stages_measured_ms.iter().sum::<f64>() + between_ms,
            predicted_ms: ms(predicted.token_ns.expected),
            stages_measured_ms,
            stages_predicted_ms: part(&|stage| stage.token_ns),
        }
    });
    let answer = MeasuredAnswerView {
        prompt_tokens,
        first_token: first_token.view(),
        answer_tokens: times.answer_tokens,
        token: token.as_ref().map(TimeComparison::view),
    };
    let stages = token.map(|token| token.stages(times.answer_tokens)).unwrap_or_default();
    Some(MeasuredAlone { answer, stages })
}

/// One time and its parts, as they came and as they were expected.
struct TimeComparison {
    measured_ms: f64,
    predicted_ms: f64,
    stages_measured_ms: Vec<f64>,
    stages_predicted_ms: Vec<f64>,
}

impl TimeComparison {
    fn view(&self) -> MeasuredTimeView {
        let Self { measured_ms, predicted_ms, .. } = *self;
        MeasuredTimeView { measured_ms, predicted_ms, off: self.term_off() }
    }

    /// Each stage, if all are told.
    fn stages(&self, tokens: u32) -> Vec<StageMeasuredView> {
        if self.stages_measured_ms.len() != self.stages_predicted_ms.len() {
            return Vec::new();
        }
        let stages = self.stages_measured_ms.iter().zip(&self.stages_predicted_ms);
        let view = |(&token_ms, &predicted_token_ms): (&f64, &f64)| StageMeasuredView {
            token_ms,
            predicted_token_ms,
            tokens,
        };
        stages.map(view).collect()
    }

    /// The part that explains most of the difference: a stage, or what is left behind all of them.
    fn term_off(&self) -> Option<TermOffView> {
        let off_ms = self.measured_ms - self.predicted_ms;
        let is_told = self.stages_measured_ms.len() == self.stages_predicted_ms.len();
        if !is_told || off_ms.abs() <= OFF_SHARE * self.predicted_ms {
            return None;
        }
        let stages = self.stages_measured_ms.iter().zip(&self.stages_predicted_ms);
        let stage = |(stage, (&measured_ms, &predicted_ms)): (usize, (&f64, &f64))| TermOffView {
            stage: u32::try_from(stage).ok(),
            measured_ms,
            predicted_ms,
        };
        let rest = |whole_ms: f64, stages_ms: &[f64]| whole_ms - stages_ms.iter().sum::<f64>();
        let between = TermOffView {
            stage: None,
            measured_ms: rest(self.measured_ms, &self.stages_measured_ms),
            predicted_ms: rest(self.predicted_ms, &self.stages_predicted_ms),
        };
        let in_its_way = |term: &TermOffView| (term.measured_ms - term.predicted_ms) * off_ms.signum();
        let terms = stages.enumerate().map(stage).chain([between]);
        terms.max_by(|a, b| in_its_way(a).total_cmp(&in_its_way(b)))
    }
}

fn stages_ms(times: &PhaseTimes, tokens: f64) -> Vec<f64> {
    times.stages_us.iter().map(|us| *us as f64 / 1e3 / tokens).collect()
}

fn ms(ns: u64) -> f64 {
    ns as f64 / 1e6
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(measured_ms: f64, predicted_ms: f64, stages: &[(f64, f64)]) -> Option<(Option<u32>, f64, f64)> {
        let (stages_measured_ms, stages_predicted_ms) = stages.iter().copied().unzip();
        let beside = TimeComparison { measured_ms, predicted_ms, stages_measured_ms, stages_predicted_ms };
        beside.view().off.map(|off| (off.stage, off.measured_ms, off.predicted_ms))
    }

    #[test]
    fn stages_are_told_where_all_of_them_are_known() {
        let of = |stages_measured_ms: &[f64]| TimeComparison {
            measured_ms: 10.0,
            predicted_ms: 9.0,
            stages_measured_ms: stages_measured_ms.to_vec(),
            stages_predicted_ms: vec![4.0, 5.0],
        };
        let told = of(&[3.0, 6.0]).stages(9);
        let second = StageMeasuredView { token_ms: 6.0, predicted_token_ms: 5.0, tokens: 9 };
        assert_eq!((told.len(), told[1]), (2, second));
        assert_eq!(of(&[3.0]).stages(9), [], "which of the two it was is not known");
    }

    #[test]
    fn the_part_that_explains_most_of_a_difference_is_named() {
        assert_eq!(check(105.0, 100.0, &[(80.0, 70.0), (20.0, 30.0)]), None, "the whole is as expected");
        assert_eq!(check(150.0, 100.0, &[(70.0, 60.0), (75.0, 38.0)]), Some((Some(1), 75.0, 38.0)));
        assert_eq!(check(150.0, 100.0, &[(60.0, 60.0), (38.0, 38.0)]), Some((None, 52.0, 2.0)), "the links");
        // What is slower does not explain that the whole was faster.
        assert_eq!(check(60.0, 100.0, &[(70.0, 60.0), (2.0, 38.0)]), Some((Some(1), 2.0, 38.0)));
    }
}
