//! Times and totals of a request, from its events.
//!
//! Each event comes with the moment at which the machine said it: on a node whose processors all compute, the
//! task that hands an answer on may come to it late. News from other nodes may be late themselves; then the
//! clocks of the stages say how long it took at least.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Instant;

use exo_api::{Resumed, StageTimeView, StepTimesView, Summary, Timings, Usage};
use exo_cluster::DraftCounts;
use exo_types::SampledToken;

use crate::choice::Choice;
use crate::running::Running;

/// Interruptions that an answer names.
const RESUMED_MAX: usize = 64;

pub struct Progress {
    arrived: Instant,
    prompt_tokens: u32,
    started: Option<Instant>,
    /// When the first token of each prompt came.
    read: BTreeMap<u16, Instant>,
    first_token: Option<Instant>,
    last_token: Option<Instant>,
    tokens: u32,
    /// Of each prompt, over all its choices that ended: those that were cached for each of them.
    cached_tokens: BTreeMap<u16, u32>,
    choices: u16,
    /// Of all choices that ended.
    drafts: DraftCounts,
    kernels: Vec<String>,
    stages: u32,
    /// Choices that have begun.
    begun: BTreeSet<u16>,
    resumed: Vec<Resumed>,
    times: Option<StepTimesView>,
    /// Milliseconds that reading a prompt took at least, and an answer.
    least_ms: (f64, f64),
}

impl Progress {
    pub fn new(arrived: Instant, prompt_tokens: u32, choices: u16) -> Self {
        Self {
            arrived,
            prompt_tokens,
            started: None,
            read: BTreeMap::new(),
            first_token: None,
            last_token: None,
            tokens: 0,
            cached_tokens: BTreeMap::new(),
            choices: choices.max(1),
            drafts: DraftCounts::default(),
            kernels: Vec::new(),
            stages: 0,
            begun: BTreeSet::new(),
            resumed: Vec::new(),
            times: None,
            least_ms: (0.0, 0.0),
        }
    }

    pub fn is_started(&self) -> bool {
        self.started.is_some()
    }

    /// The kernel families that computed so far.
    pub fn kernels(&self) -> &[String] {
        &self.kernels
    }

    /// A choice starts, or goes on behind so many tokens.
    pub fn start(&mut self, at: Instant, index: u16, after_tokens: u32, kernels: Vec<String>, stages: u32) {
        if !self.begun.insert(index) {
            let new = kernels.iter().filter(|kernel| !self.kernels.contains(kernel));
            let new: Vec<String> = new.cloned().collect();
            self.kernels.extend(new);
            self.stages = stages;
            self.resumed.retain(|last| (last.index, last.after_tokens) != (index, after_tokens));
            if self.resumed.len() < RESUMED_MAX {
                self.resumed.push(Resumed { index, after_tokens, kernels });
            }
        } else if self.started.is_none() {
            (self.started, self.kernels, self.stages) = (Some(at), kernels, stages);
        }
    }

    /// The answer goes on behind what another node had of each choice.
    pub fn resume(&mut self, given: &[Vec<SampledToken>]) {
        for (index, tokens) in (0u16..).zip(given).take(RESUMED_MAX) {
            let (after_tokens, kernels) = (tokens.len() as u32, self.kernels.clone());
            self.resumed.push(Resumed { index, after_tokens, kernels });
        }
    }

    /// A token of a choice came.
    pub fn token(&mut self, at: Instant, index: u16) {
        self.read.entry(index / self.choices).or_insert(at);
        self.first_token.get_or_insert(at);
        self.last_token = Some(at);
        self.tokens += 1;
    }

    /// A choice ended that found so many of the prompt's tokens cached, and so many of its own guessed.
    pub fn ended(&mut self, index: u16, cached_tokens: u32, drafts: DraftCounts) {
        let least = self.cached_tokens.entry(index / self.choices).or_insert(cached_tokens);
        *least = (*least).min(cached_tokens);
        self.drafts.accepted += drafts.accepted;
        self.drafts.rejected += drafts.rejected;
    }

    pub fn add_times(&mut self, times: Option<StepTimesView>) {
        let Some(times) = times else { return };
        // A stage computes one step at a time.
        let busiest = |of: fn(&StageTimeView) -> f64| times.stages.iter().map(of).fold(0.0, f64::max);
        let (prompt, answer) = (busiest(|stage| stage.prompt_ms), busiest(|stage| stage.answer_ms));
        self.least_ms = (self.least_ms.0.max(prompt), self.least_ms.1.max(answer));
        match &mut self.times {
            Some(all) => all.add(times),
            none => *none = Some(times),
        }
    }

    /// Of a prompt whose beginning was kept only the rest was computed.
    fn cached(&self) -> u32 {
        self.cached_tokens.values().sum()
    }

    fn timings(&self, answers: u32) -> Timings {
        let ms = |at: Instant| at.saturating_duration_since(self.arrived).as_secs_f64() * 1e3;
        let started_ms = self.started.map_or(0.0, ms);
        let (Some(first), Some(last)) = (self.first_token, self.last_token) else {
            return Timings { queued_ms: started_ms, ..Timings::default() };
        };
        // Of an answer that was interrupted the stages tell of its last part alone.
        let (least_prompt_ms, least_answer_ms) =
            if self.resumed.is_empty() { self.least_ms } else { (0.0, 0.0) };
        let ttft_ms = ms(first);
        let read_ms = self.read.values().copied().max().map_or(ttft_ms, ms);
        let prompt_ms = (read_ms - started_ms).max(least_prompt_ms);
        let answer_ms = (ms(last) - ttft_ms).max(least_answer_ms);
        let rate = |tokens: u32, ms: f64| (tokens > 0 && ms > 0.0).then(|| f64::from(tokens) / ms * 1e3);
        Timings {
            queued_ms: started_ms.min((ttft_ms - least_prompt_ms).max(0.0)),
            ttft_ms,
            prompt_tokens_per_s: rate(self.prompt_tokens.saturating_sub(self.cached()), prompt_ms),
            tokens_per_s: rate(self.tokens.saturating_sub(answers), answer_ms),
        }
    }

    pub fn summary(&self, running: &Running, choices: &[Choice]) -> Summary {
        Summary {
            usage: Usage {
                prompt_tokens: self.prompt_tokens,
                completion_tokens: choices.iter().map(Choice::tokens).sum(),
                cached_tokens: self.cached(),
                accepted_drafts: self.drafts.accepted,
                rejected_drafts: self.drafts.rejected,
                reasoning_tokens: choices.iter().map(Choice::reasoning_tokens).sum(),
            },
            timings: self.timings(choices.len() as u32),
            times: self.times.clone(),
            model_id: running.open.id.to_full(),
            kernels: self.kernels.clone(),
            stages: self.stages,
            resumed: self.resumed.clone(),
            unenforced: running.prepared.plan.unenforced.clone(),
            left_out_messages: running.prepared.left_out_messages,
            left_out_tools: running.request.left_out_tools.clone(),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn near(rate: Option<f64>, expected: f64) -> bool {
        rate.is_some_and(|rate| (rate - expected).abs() < expected / 1e3)
    }

    fn times(stages: &[(f64, f64)]) -> Option<StepTimesView> {
        let stage = |&(prompt_ms, answer_ms): &(f64, f64)| StageTimeView {
            node: None,
            device: None,
            prompt_ms,
            answer_ms,
        };
        Some(StepTimesView { stages: stages.iter().map(stage).collect(), ..StepTimesView::default() })
    }

    /// An answer of 11 tokens to a prompt of 100, whose news all came within a millisecond, 500 ms after it.
    fn late() -> Progress {
        let arrived = Instant::now();
        let at = |us: u64| arrived + Duration::from_millis(500) + Duration::from_micros(us);
        let mut progress = Progress::new(arrived, 100, 1);
        progress.start(at(0), 0, 0, Vec::new(), 2);
        (1..=11).for_each(|i| progress.token(at(i * 50), 0));
        progress
    }

    #[test]
    fn news_that_come_at_once_do_not_make_a_machine_fast() {
        let mut progress = late();
        progress.add_times(times(&[(50.0, 20.0), (200.0, 100.0)]));
        let timings = progress.timings(1);
        assert!(near(timings.prompt_tokens_per_s, 500.0) && near(timings.tokens_per_s, 100.0), "{timings:?}");
        assert!((timings.queued_ms - 300.05).abs() < 0.1, "{timings:?}");
        assert!((timings.ttft_ms - 500.05).abs() < 0.1, "{timings:?}");
        // The stages tell of what came behind an interruption, and not of the prompt.
        let arrived = progress.arrived;
        progress.start(arrived + Duration::from_millis(600), 0, 11, Vec::new(), 2);
        assert!(!near(progress.timings(1).prompt_tokens_per_s, 500.0));
    }

    #[test]
    fn what_is_told_in_time_counts_as_it_came() {
        let arrived = Instant::now();
        let at = |ms: u64| arrived + Duration::from_millis(ms);
        let mut progress = Progress::new(arrived, 300, 2);
        (0..4).for_each(|index| progress.start(at(100), index, 0, Vec::new(), 1));
        // Two prompts of two choices each: the second is read 200 ms behind the first.
        for (ms, index) in [(200, 0), (200, 1), (400, 2), (400, 3), (600, 0), (700, 3)] {
            progress.token(at(ms), index);
        }
        progress.add_times(times(&[(40.0, 10.0)]));
        let timings = progress.timings(4);
        assert!(near(timings.prompt_tokens_per_s, 1_000.0), "{timings:?}");
        assert!(near(timings.tokens_per_s, 4.0), "{timings:?}");
        assert_eq!((timings.queued_ms as u32, timings.ttft_ms as u32), (100, 200));
        assert_eq!(Progress::new(arrived, 1, 1).timings(1), Timings::default());
    }
}
