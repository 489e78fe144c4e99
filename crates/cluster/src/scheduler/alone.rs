//! What the last answer took that had the pipeline to itself: what a planner predicts of one stream, as it
//! came.

use std::time::Duration;

use exo_types::Time;

use crate::wire::AloneTimes;

/// Times of the sequence that runs alone now, and of the last one that did.
#[derive(Clone, Debug, Default)]
pub(super) struct Alone {
    current: Option<Current>,
    last: Option<AloneTimes>,
    /// When a step last came back that was not alone.
    crowded_at: Time,
}

#[derive(Clone, Debug)]
struct Current {
    ticket: u64,
    began_at: Time,
    times: AloneTimes,
}

/// A step that came back whole, of one sequence while no other ran.
#[derive(Clone, Copy, Debug)]
pub(super) struct AloneStep<'a> {
    pub(super) ticket: u64,
    pub(super) sent_at: Time,
    pub(super) took: Duration,
    pub(super) computed_us: &'a [u32],
    /// Whether it reads a prompt from its first position on: nothing of it was kept.
    pub(super) begins: bool,
    pub(super) work: AloneWork,
}

/// What such a step does.
#[derive(Clone, Copy, Debug)]
pub(super) enum AloneWork {
    /// It reads on.
    Prompt,
    /// It reads the last of a prompt of so many tokens, and samples.
    FirstToken { prompt_tokens: u32 },
    /// It gives a token behind the first.
    Token,
    /// The same with guesses: its time is that of several rows.
    Drafts,
}

impl Alone {
    /// A step of several sequences, or while others run, or that failed.
    pub(super) fn crowded(&mut self, now: Time) {
        self.crowded_at = now;
        self.keep_current();
    }

    pub(super) fn learn(&mut self, now: Time, step: AloneStep<'_>) {
        if step.begins && step.sent_at >= self.crowded_at {
            self.keep_current();
            let (ticket, began_at, times) = (step.ticket, step.sent_at, AloneTimes::default());
            self.current = Some(Current { ticket, began_at, times });
        }
        let Some(Current { began_at, times, .. }) =
            self.current.as_mut().filter(|current| current.ticket == step.ticket)
        else {
            return self.keep_current();
        };
        let us = |time: Duration| u64::try_from(time.as_micros()).unwrap_or(u64::MAX);
        match step.work {
            AloneWork::Prompt => times.prompt.add(step.computed_us, us(step.took)),
            AloneWork::FirstToken { prompt_tokens } => {
                times.prompt.add(step.computed_us, us(step.took));
                (times.prompt_tokens, times.first_token_us) = (prompt_tokens, us(now.since(*began_at)));
            }
            AloneWork::Token => {
                times.answer.add(step.computed_us, us(step.took));
                times.answer_tokens = times.answer_tokens.saturating_add(1);
            }
            AloneWork::Drafts => {}
        }
    }

    /// The newest whose first token has come. One of few tokens says nothing of the time of a token, so it
    /// does not take the place of one that does.
    pub(super) fn times(&self) -> Option<&AloneTimes> {
        let current = self.current.as_ref().map(|current| &current.times);
        current.filter(|times| self.takes_place(times)).or(self.last.as_ref())
    }

    fn takes_place(&self, times: &AloneTimes) -> bool {
        times.has_begun() && (times.is_telling() || !self.last.as_ref().is_some_and(AloneTimes::is_telling))
    }

    fn keep_current(&mut self) {
        let current = self.current.take().map(|current| current.times);
        if let Some(times) = current.filter(|times| self.takes_place(times)) {
            self.last = Some(times);
        }
    }
}
