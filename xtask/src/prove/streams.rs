//! Streams whose tokens are timed: one answer, or several clients side by side while something happens.

use std::ops::ControlFlow;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use serde_json::{Value, json};

use crate::http::Server;
use crate::wait::{rest, wait_for};

/// For a whole answer, interrupted or not: an answer stands still for two minutes at most.
const ANSWER_MAX: Duration = Duration::from_secs(300);
/// Between two looks at how far the streams are.
const POLL: Duration = Duration::from_millis(1);

/// A streamed answer that came whole.
pub struct TimedAnswer {
    pub text: String,
    pub times: TokenTimes,
}

/// When the tokens of one client came, over one answer or several.
#[derive(Clone, Debug, Default)]
pub struct TokenTimes(Vec<Instant>);

impl TokenTimes {
    /// The longest time between two tokens.
    pub fn longest_pause(&self) -> Duration {
        self.0.windows(2).map(|pair| pair[1] - pair[0]).max().unwrap_or_default()
    }

    /// The longest time without a token from then on, until the last one. The first of them may have been on
    /// their way before.
    pub fn longest_pause_since(&self, then: Instant) -> Duration {
        let later = self.0.iter().copied().filter(|at| *at > then);
        let from = std::iter::once(then).chain(later.clone());
        later.zip(from).map(|(at, before)| at - before).max().unwrap_or_default()
    }

    /// Whether a token came after then.
    pub fn goes_on_after(&self, then: Instant) -> bool {
        self.0.last().is_some_and(|at| *at > then)
    }
}

/// The longest pause of several clients.
pub fn longest_pause(clients: &[TokenTimes]) -> Duration {
    clients.iter().map(TokenTimes::longest_pause).max().unwrap_or_default()
}

/// The longest pause of a run, without a disturbance and with one.
#[derive(Clone, Copy)]
pub struct Pauses {
    pub undisturbed: Duration,
    pub disturbed: Duration,
}

impl Pauses {
    /// By how much the one is longer than the other.
    pub fn beyond(&self) -> Duration {
        self.disturbed.saturating_sub(self.undisturbed)
    }
}

/// The shortest first.
pub fn sorted(durations: impl IntoIterator<Item = Duration>) -> Vec<Duration> {
    let mut durations: Vec<Duration> = durations.into_iter().collect();
    durations.sort_unstable();
    durations
}

/// Of sorted durations: `percent` of 100 of them are not longer.
pub fn percentile(sorted: &[Duration], percent: usize) -> Duration {
    let last = sorted.len().saturating_sub(1);
    sorted.get((sorted.len() * percent / 100).min(last)).copied().unwrap_or_default()
}

/// Sorted durations in words.
pub fn spread(sorted: &[Duration]) -> String {
    let ms = |percent| percentile(sorted, percent).as_millis();
    format!("{} ms (p50), {} ms (p95), {} ms (max)", ms(50), ms(95), ms(100))
}

/// What is asked of `/v1/completions`: so many tokens, drawn with a seed.
pub fn completion(model: &str, tokens: u32, temperature: f64, seed: u64) -> Value {
    json!({
        "model": model, "prompt": "Once", "max_tokens": tokens, "ignore_eos": true, "temperature": temperature,
        "seed": seed, "stream": true,
    })
}

/// Asks for a stream, and calls `each` with the number of its tokens so far. It ends within `at_most`, and is
/// an error where it ends before its time.
pub fn ask(
    server: &Server,
    body: &Value,
    at_most: Duration,
    mut each: impl FnMut(usize),
) -> anyhow::Result<TimedAnswer> {
    let (mut text, mut times, mut is_whole) = (String::new(), Vec::new(), false);
    server.lines("/v1/completions", body, at_most, |line| {
        let token = text_of(line)?;
        if !token.is_empty() {
            times.push(Instant::now());
            text.push_str(&token);
            each(times.len());
        }
        is_whole |= line == "data: [DONE]";
        Ok(ControlFlow::Continue(()))
    })?;
    if !is_whole {
        bail!("the answer broke off after {} bytes of text", text.len());
    }
    Ok(TimedAnswer { text, times: TokenTimes(times) })
}

/// How long clients ask.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Asking {
    /// One answer each.
    Once,
    /// Answer after answer, until what happens meanwhile is over.
    UntilOver,
}

/// Has all of them asked, for so long: the longest pause while nothing else happens.
pub fn undisturbed(questions: &[Question], time: Duration) -> anyhow::Result<Duration> {
    let (times, ()) = beside(questions, Asking::UntilOver, 1, || {
        rest(time);
        Ok(())
    })?;
    Ok(longest_pause(&times))
}

/// What a client asks, and what it is answered with when nothing happens.
pub struct Question {
    server: Server,
    body: Value,
    answer: String,
    /// Until the first token, when nothing happens.
    pub first_after: Duration,
}

impl Question {
    /// Asks once, while nothing happens.
    pub fn new(server: &Server, body: Value) -> anyhow::Result<Self> {
        let asked = Instant::now();
        let answer = ask(server, &body, ANSWER_MAX, |_| {}).context("an answer that nothing disturbs")?;
        let first_after = answer.times.0.first().map_or(Duration::ZERO, |first| *first - asked);
        Ok(Self { server: server.clone(), body, answer: answer.text, first_after })
    }

    /// One for each of these bodies, to these servers in turns.
    pub fn several<'a>(
        servers: impl Iterator<Item = &'a Server> + Clone,
        bodies: impl Iterator<Item = Value>,
    ) -> anyhow::Result<Vec<Self>> {
        servers.cycle().zip(bodies).map(|(server, body)| Self::new(server, body)).collect()
    }

    /// Asks until all is over; any other text is an error.
    fn ask(&self, asking: Asking, tokens: &AtomicUsize, is_over: &AtomicBool) -> anyhow::Result<TokenTimes> {
        let mut all = TokenTimes::default();
        loop {
            let TimedAnswer { text, times } = ask(&self.server, &self.body, ANSWER_MAX, |_| {
                tokens.fetch_add(1, Ordering::Relaxed);
            })?;
            if text != self.answer {
                bail!("another text: `{text}` instead of `{}`", self.answer);
            }
            all.0.extend(times.0);
            if asking == Asking::Once || is_over.load(Ordering::Relaxed) {
                return Ok(all);
            }
        }
    }
}

/// Asks all questions at once, and does `meanwhile` as soon as each client has so many tokens: when the
/// tokens of each came, and what that gave. An error of a client, which a wrong text is as well, goes before
/// one of what happened.
pub fn beside<T>(
    questions: &[Question],
    asking: Asking,
    after: usize,
    meanwhile: impl FnOnce() -> anyhow::Result<T>,
) -> anyhow::Result<(Vec<TokenTimes>, T)> {
    let tokens: Vec<AtomicUsize> = questions.iter().map(|_| AtomicUsize::new(0)).collect();
    let is_over = &AtomicBool::new(false);
    std::thread::scope(|scope| {
        let asked = questions.iter().zip(&tokens);
        let clients: Vec<_> = asked
            .map(|(question, tokens)| scope.spawn(move || question.ask(asking, tokens, is_over)))
            .collect();
        let begun = wait_for("the first tokens of every stream", (ANSWER_MAX, POLL), || {
            let are_there = tokens.iter().all(|tokens| tokens.load(Ordering::Relaxed) >= after);
            if !are_there && clients.iter().any(|client| client.is_finished()) {
                bail!("a stream ended before all had {after} tokens");
            }
            Ok(are_there.then_some(()))
        });
        let happened = begun.and_then(|()| meanwhile());
        is_over.store(true, Ordering::Relaxed);
        let times: Vec<anyhow::Result<TokenTimes>> = clients
            .into_iter()
            .map(|client| client.join().map_err(|_| anyhow::anyhow!("a client panicked"))?)
            .collect();
        Ok((times.into_iter().collect::<anyhow::Result<_>>()?, happened?))
    })
}

/// The text in a line of a stream.
pub fn text_of(line: &str) -> anyhow::Result<String> {
    let Some(data) = line.strip_prefix("data: ").filter(|data| data.starts_with('{')) else {
        return Ok(String::new());
    };
    let chunk: Value = serde_json::from_str(data).context("an event is not JSON")?;
    if let Some(message) = chunk["error"]["message"].as_str() {
        bail!("the answer ended: {message}");
    }
    Ok(chunk["choices"][0]["text"].as_str().unwrap_or_default().to_owned())
}

#[cfg(test)]
mod tests {
    use std::io::{BufRead, BufReader, Write};
    use std::net::TcpListener;

    use super::*;

    #[test]
    fn a_pause_is_the_longest_silence_whole_or_since_then() {
        let began = Instant::now();
        let at = |ms| began + Duration::from_millis(ms);
        let times = TokenTimes([0, 500, 510, 590, 600].map(at).to_vec());
        assert_eq!(times.longest_pause(), Duration::from_millis(500));
        assert_eq!(times.longest_pause_since(at(505)), Duration::from_millis(80));
        assert_eq!(times.longest_pause_since(at(400)), Duration::from_millis(100), "from then on");
        assert_eq!(times.longest_pause_since(at(600)), Duration::ZERO);
        assert!(times.goes_on_after(at(599)) && !times.goes_on_after(at(600)));
        assert!(!TokenTimes::default().goes_on_after(at(0)), "no token at all");
        let clients = [times, TokenTimes([0, 700].map(at).to_vec()), TokenTimes::default()];
        assert_eq!(longest_pause(&clients), Duration::from_millis(700));
    }

    #[test]
    fn percentiles_are_of_the_durations_that_there_are() {
        let of = |percent| {
            let sorted: Vec<_> = (1..=100).map(Duration::from_millis).collect();
            percentile(&sorted, percent).as_millis()
        };
        assert_eq!([0, 50, 95, 100].map(of), [1, 51, 96, 100]);
        assert_eq!(percentile(&[], 95), Duration::ZERO);
    }

    /// A server that answers each request with the next of these texts, token by token.
    fn answering(texts: Vec<&'static str>, ends: bool) -> Server {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        std::thread::spawn(move || {
            for text in texts {
                let (mut stream, _) = listener.accept().unwrap();
                let mut lines = BufReader::new(stream.try_clone().unwrap()).lines().map(Result::unwrap);
                // The body comes with the head.
                assert!(lines.any(|line| line.is_empty()));
                stream.write_all(b"HTTP/1.0 200 OK\r\n\r\n").unwrap();
                for token in text.chars() {
                    writeln!(stream, "data: {{\"choices\":[{{\"text\":\"{token}\"}}]}}\n").unwrap();
                }
                if ends {
                    stream.write_all(b"data: [DONE]\n\n").unwrap();
                }
                let _ = stream.shutdown(std::net::Shutdown::Write);
            }
        });
        Server { address, secret: String::new(), network: None }
    }

    #[test]
    fn clients_ask_until_what_happens_is_over_and_know_a_wrong_text() {
        let body = completion("demo", 3, 1.0, 1);
        let question = Question::new(&answering(vec!["abc", "abc"], true), body.clone()).unwrap();
        let (times, what) = beside(&[question], Asking::Once, 0, || Ok(7)).unwrap();
        assert_eq!((times.len(), times[0].0.len(), what), (1, 3, 7));

        let question = Question::new(&answering(vec!["abc", "abd"], true), body.clone()).unwrap();
        let error = beside(&[question], Asking::Once, 0, || Ok(())).unwrap_err().to_string();
        assert_eq!(error, "another text: `abd` instead of `abc`");

        let question = Question::new(&answering(vec!["abc", "abc"], true), body.clone()).unwrap();
        let error = beside(&[question], Asking::Once, 4, || Ok(())).unwrap_err().to_string();
        assert_eq!(error, "a stream ended before all had 4 tokens");

        let error = ask(&answering(vec!["abc"], false), &body, ANSWER_MAX, |_| {}).err().unwrap().to_string();
        assert_eq!(error, "the answer broke off after 3 bytes of text");
    }

    #[test]
    fn an_error_in_a_stream_ends_it() {
        let error = text_of(r#"data: {"error":{"message":"stage_lost"}}"#).unwrap_err().to_string();
        assert_eq!(error, "the answer ended: stage_lost");
        assert_eq!(text_of(": interrupted: x").unwrap(), "");
        assert_eq!(text_of(r#"data: {"choices":[{"text":"a"}]}"#).unwrap(), "a");
    }
}
