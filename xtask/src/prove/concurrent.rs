//! Several answers at once, of prompts that were never read before, and how fast they come together.

use std::ops::ControlFlow;
use std::time::Instant;

use anyhow::Context;

use crate::bench::load::{EventFor, Target};
use crate::http::Server;

/// What each of them is asked.
pub struct Question<'a> {
    pub server: &'a Server,
    pub model: &'a str,
    /// Tokens of a prompt.
    pub prompt: u32,
    /// Tokens of an answer.
    pub answer: u32,
}

/// Tokens per second of all `streams` together while each of them answers, as a plan counts them: not while a
/// prompt among them is read. Their prompts are those from the number `first` on.
pub fn tokens_per_s(question: &Question<'_>, first: u32, streams: u32) -> anyhow::Result<f64> {
    let target =
        Target { server: question.server.clone(), model: question.model.to_owned(), is_llama: false };
    let stream = |number: u32| -> anyhow::Result<Vec<Instant>> {
        let ids: Vec<u64> = prompt_tokens(question.prompt, number).into_iter().map(u64::from).collect();
        let mut came = Vec::new();
        target.stream(&ids, question.answer, EventFor::Text, |at| {
            came.push(at);
            ControlFlow::Continue(())
        })?;
        Ok(came)
    };
    let stream = &stream;
    std::thread::scope(|scope| {
        let asked: Vec<_> = (0..streams).map(|at| scope.spawn(move || stream(first + at))).collect();
        let came = asked
            .into_iter()
            .map(|one| one.join().map_err(|_| anyhow::anyhow!("a thread panicked"))?)
            .collect::<anyhow::Result<Vec<_>>>()?;
        rate_while_all_answer(&came, question.answer)
            .context("the first answer was over before the last one began: ask for longer answers")
    })
}

/// Tokens per second between the moment when the last stream has its first text and that when the first
/// stream has its last one. A token without text of its own comes with the next: an event is as many tokens
/// as an event of its stream is on average.
fn rate_while_all_answer(came: &[Vec<Instant>], answer: u32) -> Option<f64> {
    let from = came.iter().map(|one| one.first().copied()).max()??;
    let until = came.iter().map(|one| one.last().copied()).min()??;
    let seconds = until.checked_duration_since(from)?.as_secs_f64();
    let tokens = |one: &Vec<Instant>| {
        let events = one.iter().filter(|at| **at > from && **at <= until).count();
        events as f64 * f64::from(answer) / one.len() as f64
    };
    let tokens: f64 = came.iter().map(tokens).sum();
    (seconds > 0.0 && tokens > 0.0).then(|| tokens / seconds)
}

/// Each `number` is another prompt from its first or second token on.
pub fn prompt_tokens(prompt: u32, number: u32) -> Vec<u32> {
    let token = |at: u32| match at {
        0 => number % 150,
        1 => number / 150,
        at => number * 37 + at * 11,
    };
    (0..prompt).map(|at| 20 + token(at) % 150).collect()
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn of_several_streams_counts_the_time_in_which_each_of_them_answers() {
        let began = Instant::now();
        let at = |ms: &[u64]| ms.iter().map(|ms| began + Duration::from_millis(*ms)).collect::<Vec<_>>();
        // The second prompt is read until 500; the first stream ends at 900.
        let came = [at(&[100, 400, 600, 700, 800, 900]), at(&[500, 600, 700, 800, 900, 1000, 1100])];
        // Of 6 and 7 events for 42 tokens each: 4 of 7 tokens and 4 of 6, in 0.4 s.
        let rate = rate_while_all_answer(&came, 42).unwrap();
        assert!((rate - 130.0).abs() < 1e-6, "{rate}");
        assert!(rate_while_all_answer(&[at(&[100, 200]), at(&[300, 400])], 2).is_none());
        assert!(rate_while_all_answer(&[at(&[100, 200]), at(&[])], 2).is_none());
    }
}
