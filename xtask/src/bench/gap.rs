//! A long prompt beside a running stream: how long the stream waits for its next token meanwhile.

use std::ops::ControlFlow;
use std::sync::OnceLock;
use std::time::Instant;

use anyhow::Context;

use super::Bench;
use super::cells::{Sample, Subject, What};
use super::load::{EventFor, Target, prompt};
use crate::pairs::median;

/// Tokens of the prompt that comes beside the stream.
const PROMPT: u32 = 2000;
/// Tokens of the stream's own prompt, and of its answer before the other prompt comes.
const STREAM_PROMPT: usize = 32;
const LEAD: usize = 16;
/// More than a stream gets while the prompt is computed, if its node guesses well, too. With its prompt it
/// stays within the context.
const STREAM_TOKENS: u32 = 1900;

/// When the prompt was sent, and when its first token was there.
type Computed = (Instant, Instant);

impl Bench {
    /// The longest and the median wait of one stream beside one prompt that nobody asked before.
    pub(super) fn gap(&mut self, target: &Target, subject: &Subject, threads: usize) -> anyhow::Result<()> {
        for round in 0..self.args.rounds {
            if !self.has_time("a prompt beside a stream") {
                break;
            }
            let (waits, prompt_s) = beside_a_prompt(target, u64::from(round))?;
            let longest = waits.iter().copied().max_by(f64::total_cmp);
            let (longest, middle) =
                longest.zip(median(waits.iter().copied())).context("no token was waited for")?;
            let mut add = |what, ours| {
                self.cells.add(subject, threads, what, Sample { ours, theirs: None, share: None });
            };
            add(What::LongestWait(PROMPT), longest);
            add(What::MedianWait(PROMPT), middle);
            eprintln!(
                "round {} {} {threads} threads: a stream waited {longest:.3} s at most for a token, {middle:.3} s in the median \
                 of {}, while a prompt of {PROMPT} tokens took {prompt_s:.2} s",
                round + 1,
                subject.name,
                waits.len(),
            );
        }
        Ok(())
    }
}

/// Every wait of a stream while a prompt is computed, and how long that took, in seconds.
fn beside_a_prompt(target: &Target, round: u64) -> anyhow::Result<(Vec<f64>, f64)> {
    let (begin, long) = (prompt(STREAM_PROMPT, 400_000 + round), prompt(PROMPT as usize, 500_000 + round));
    let (mut times, computed) = (Vec::new(), OnceLock::<Computed>::new());
    let ask = || -> anyhow::Result<()> {
        let sent = Instant::now();
        target.complete(&long, 1)?;
        computed.get_or_init(|| (sent, Instant::now()));
        Ok(())
    };
    std::thread::scope(|scope| {
        let mut asking = None;
        target.stream(&begin, STREAM_TOKENS, EventFor::Token, |at| {
            times.push(at);
            if times.len() == LEAD {
                asking = Some(scope.spawn(ask));
            }
            match computed.get() {
                Some((_, answered)) if at > *answered => ControlFlow::Break(()),
                _ => ControlFlow::Continue(()),
            }
        })?;
        let asking = asking.with_context(|| format!("the stream ended before its token {LEAD}"))?;
        asking.join().unwrap_or_else(|e| std::panic::resume_unwind(e))
    })?;
    let during = *computed.get().context("the prompt was not computed")?;
    let last = times.last().copied().filter(|last| *last > during.1);
    last.context("the stream ended before the prompt was computed")?;
    Ok((waits(&times, during), (during.1 - during.0).as_secs_f64()))
}

/// Seconds from each token to the next, where some of them lie between `sent` and `answered`.
fn waits(times: &[Instant], (sent, answered): Computed) -> Vec<f64> {
    let pairs = times.windows(2).filter(|pair| pair[1] > sent && pair[0] < answered);
    pairs.map(|pair| (pair[1] - pair[0]).as_secs_f64()).collect()
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn only_waits_beside_the_prompt_count_and_those_at_its_ends_count_whole() {
        let began = Instant::now();
        let at = |ms| began + Duration::from_millis(ms);
        let times = [0, 900, 1000, 1300, 1400, 1900, 2900].map(at);
        let found: Vec<_> =
            waits(&times, (at(1100), at(1500))).iter().map(|s| (s * 1000.0).round()).collect();
        assert_eq!(found, [300.0, 100.0, 500.0]);
    }
}
