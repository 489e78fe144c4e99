//! What steps cost here, learned from the times they took. No clock: times are fed in.

use std::time::Duration;

/// Prompt tokens after which a measurement counts half: a few chunks, so that the pace follows the depth of a
/// prompt (attention reads more the deeper it is).
const PROMPT_MEMORY_TOKENS: f64 = 512.0;
/// Generated tokens after which a measurement counts half.
const DECODE_MEMORY_TOKENS: f64 = 64.0;
/// Share of a new step in the smoothed time of a step without prompt.
const STEP_SHARE: f64 = 0.25;
/// A step may count for so many times its expected time: a machine that slept says nothing about its speed.
const OUTLIER: f64 = 4.0;
/// Of a mixed step at least this share is the prompt's, whatever decodes took before.
const PROMPT_SHARE_MIN: f64 = 0.25;

/// The measured pace of one pipeline: of its slowest stage once it is full.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Pace {
    prompt: Rate,
    decode: Rate,
    /// Microseconds of a step without prompt tokens.
    decode_step_us: Option<f64>,
}

/// What one finished step did.
#[derive(Clone, Copy, Debug)]
pub(super) struct StepCost {
    /// Since it was sent, or since the step before it came back.
    pub(super) took: Duration,
    pub(super) prompt_tokens: u32,
    /// Sequences that decoded beside the prompts.
    pub(super) decodes: u32,
    /// Tokens they gave.
    pub(super) generated: u32,
}

impl Pace {
    pub(super) fn learn(&mut self, step: StepCost) {
        let us = step.took.as_micros() as f64;
        if us == 0.0 {
            return;
        }
        if step.prompt_tokens > 0 {
            let beside = self.decode_step_us.filter(|_| step.decodes > 0).unwrap_or(0.0);
            let own = (us - beside).max(us * PROMPT_SHARE_MIN);
            self.prompt.add(step.prompt_tokens.into(), own, PROMPT_MEMORY_TOKENS);
        } else if step.decodes > 0 {
            let before = self.decode_step_us.unwrap_or(us);
            let us = us.min(before * OUTLIER);
            self.decode_step_us = Some(before + (us - before) * STEP_SHARE);
            self.decode.add(step.generated.into(), us, DECODE_MEMORY_TOKENS);
        }
    }

    /// Prompt tokens that take about `time`; `None` before anything was measured.
    pub(super) fn prompt_tokens_within(&self, time: Duration) -> Option<u32> {
        Some((self.prompt_tokens_per_s()? * time.as_secs_f64()) as u32)
    }

    /// Prompt tokens read per second, beside whatever decodes.
    pub(super) fn prompt_tokens_per_s(&self) -> Option<f64> {
        self.prompt.per_s()
    }

    /// Tokens generated per second over all sequences, while no prompt is read.
    pub(super) fn decode_tokens_per_s(&self) -> Option<f64> {
        self.decode.per_s()
    }
}

/// Tokens over time, older ones counting less.
#[derive(Clone, Copy, Debug, Default)]
struct Rate {
    tokens: f64,
    us: f64,
}

impl Rate {
    /// Takes in `tokens` that took `us`; after `memory` tokens what was before counts half.
    fn add(&mut self, tokens: f64, us: f64, memory: f64) {
        let expected = self.per_s().map_or(us, |per_s| tokens / per_s * 1e6);
        let keep = 0.5f64.powf(tokens / memory);
        self.tokens = self.tokens * keep + tokens;
        self.us = self.us * keep + us.min(expected * OUTLIER);
    }

    fn per_s(&self) -> Option<f64> {
        (self.tokens > 0.0 && self.us > 0.0).then(|| self.tokens / self.us * 1e6)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A machine that reads a step's weights in 40 ms and computes a prompt token in `prompt_us`.
    fn step(prompt_us: u64, prompt_tokens: u32, decodes: u32) -> StepCost {
        let took = Duration::from_micros(40_000 + prompt_us * u64::from(prompt_tokens));
        StepCost { took, prompt_tokens, decodes, generated: decodes }
    }

    const SHARE: Duration = Duration::from_millis(200);

    #[test]
    fn nothing_is_known_before_the_first_step() {
        assert_eq!(Pace::default().prompt_tokens_within(SHARE), None);
    }

    #[test]
    fn the_chunk_that_follows_the_pace_takes_its_share_of_time() {
        for prompt_us in [300, 2_500, 30_000] {
            let mut pace = Pace::default();
            (0..8).for_each(|_| pace.learn(step(prompt_us, 0, 2)));
            let mut chunk = 8;
            for _ in 0..40 {
                pace.learn(step(prompt_us, chunk, 2));
                chunk = pace.prompt_tokens_within(SHARE).unwrap().clamp(1, 512);
            }
            let wanted = (200_000 / prompt_us).clamp(1, 512) as f64;
            assert!((f64::from(chunk) / wanted - 1.0).abs() < 0.2, "{prompt_us} us: {chunk} not {wanted}");
        }
    }

    #[test]
    fn a_slower_depth_is_followed_within_a_few_chunks() {
        let mut pace = Pace::default();
        (0..10).for_each(|_| pace.learn(step(1_000, 128, 0)));
        (0..10).for_each(|_| pace.learn(step(2_000, 128, 0)));
        let per_s = pace.prompt_tokens_per_s().unwrap();
        assert!((400.0..520.0).contains(&per_s), "{per_s}");
    }

    #[test]
    fn a_sleep_does_not_count_as_computing() {
        let mut pace = Pace::default();
        (0..10).for_each(|_| pace.learn(step(1_000, 128, 0)));
        let awake = pace.prompt_tokens_per_s().unwrap();
        let took = Duration::from_secs(3600);
        pace.learn(StepCost { took, prompt_tokens: 128, decodes: 0, generated: 0 });
        let after = pace.prompt_tokens_per_s().unwrap();
        assert!(after > awake / 2.5, "{awake} became {after}");
        (0..10).for_each(|_| pace.learn(step(1_000, 128, 0)));
        assert!(pace.prompt_tokens_per_s().unwrap() > awake * 0.85);
    }

    /// The first answers of a node are given while its weights are packed behind.
    #[test]
    fn steps_that_become_three_times_as_fast_are_followed_within_some_hundred_tokens() {
        let mut pace = Pace::default();
        let mut learn = |steps: u32, ms, prompt_tokens| {
            let (took, decodes) = (Duration::from_millis(ms), u32::from(prompt_tokens == 0));
            let step = StepCost { took, prompt_tokens, decodes, generated: decodes };
            (0..steps).for_each(|_| pace.learn(step));
            (pace.decode_tokens_per_s().unwrap_or(0.0), pace.prompt_tokens_per_s().unwrap_or(0.0))
        };
        learn(20, 900, 128);
        learn(100, 150, 0);
        let (decode, _) = learn(320, 50, 0);
        assert!((18.5..20.0).contains(&decode), "{decode} tokens a second, it decodes 20");
        let (_, prompt) = learn(20, 300, 128);
        assert!((395.0..427.0).contains(&prompt), "{prompt} tokens a second, it reads 427");
    }

    #[test]
    fn generated_tokens_are_counted_over_all_sequences() {
        let mut pace = Pace::default();
        (0..20).for_each(|_| pace.learn(step(0, 0, 4)));
        let per_s = pace.decode_tokens_per_s().unwrap();
        assert!((per_s - 100.0).abs() < 1.0, "4 tokens in 40 ms, got {per_s} a second");
    }
}
