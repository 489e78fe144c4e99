//! The node that a client is connected to is killed, and has no stage: the client asks another one for the
//! rest of its answer.

use std::ops::ControlFlow;
use std::time::{Duration, Instant};

use anyhow::{Context, bail};

use super::{NODES, Options, Outcome, STRUCK_AFTER, TOKENS, loads, new_loads, place};
use crate::cluster::Cluster;
use crate::prove::streams::{ask, completion, text_of};

/// For an answer, and for its rest.
const ANSWER_MAX: Duration = Duration::from_secs(60);

/// What a client has of a stream.
#[derive(Default)]
struct Received {
    /// `ID.SECRET`, from the head.
    ticket: Option<String>,
    text: String,
    tokens: usize,
    /// The last whole event with an id: that, and how much of the text came with it or before.
    last: Option<(String, usize)>,
    /// Of an event whose end has not come.
    id: Option<String>,
    is_whole: bool,
}

impl Received {
    fn take(&mut self, line: &str) -> anyhow::Result<()> {
        let token = text_of(line)?;
        self.tokens += usize::from(!token.is_empty());
        self.text += &token;
        self.is_whole |= line == "data: [DONE]";
        if let Some(ticket) = line.strip_prefix("exo-resume: ") {
            self.ticket = Some(ticket.to_owned());
        } else if let Some(id) = line.strip_prefix("id: ") {
            self.id = Some(id.to_owned());
        } else if line.is_empty()
            && let Some(id) = self.id.take()
        {
            self.last = Some((id, self.text.len()));
        }
        Ok(())
    }
}

/// Kills the client's node in the middle of an answer; how long another one takes to the next token.
pub fn strike(cluster: &mut Cluster, options: &Options, seed: u64) -> anyhow::Result<Outcome> {
    let model = cluster.model(options.runs.model.as_deref())?;
    cluster.wait_united()?;
    let driver = (cluster.coordinator(0)? + 1) % NODES;
    place(cluster, &model, Some(driver), 0)?;
    let others: Vec<usize> = (0..NODES).filter(|at| *at != driver).collect();
    let [own, other] =
        [driver, others[usize::from(!seed.is_multiple_of(2))]].map(|at| cluster.nodes()[at].server.clone());
    let body = completion(&model, TOKENS, options.temperature, seed);
    let expected = ask(&own, &body, ANSWER_MAX, |_| {}).context("an answer that nothing disturbs")?.text;
    let loaded = loads(cluster, &others)?;

    let (mut had, mut is_struck) = (Received::default(), false);
    let ended = own.lines("/v1/completions", &body, ANSWER_MAX, |line| {
        had.take(line)?;
        if had.tokens == STRUCK_AFTER && !is_struck {
            cluster.kill(driver)?;
            is_struck = true;
        }
        Ok(ControlFlow::Continue(()))
    });
    // A connection that was cut in the middle of a line is no error.
    if !is_struck {
        ended?;
    }
    if !is_struck || had.is_whole {
        bail!("an answer was over before it happened: nothing of it had to go on");
    }
    let ticket = had.ticket.context("the head of a stream has no `exo-resume`")?;
    let (last, len) = had.last.context("no event of a stream has an id")?;
    let (id, _) = ticket.split_once('.').context("an `exo-resume` is not `ID.SECRET`")?;

    let (mut rest, mut next) = (Received::default(), None);
    let headers = format!("exo-resume: {ticket}\r\nLast-Event-ID: {last}\r\n");
    let asked = Instant::now();
    other.lines_with(&format!("/v1/requests/{id}"), &headers, ANSWER_MAX, |line| {
        rest.take(line)?;
        if rest.tokens > 0 {
            next.get_or_insert_with(|| asked.elapsed());
        }
        Ok(ControlFlow::Continue(()))
    })?;
    let text = had.text[..len].to_owned() + &rest.text;
    if !rest.is_whole || text != expected {
        bail!("another text: `{text}` instead of `{expected}`");
    }
    let pause = next.context("the other node had no token to give")?;
    let loads = new_loads(&loaded, &loads(cluster, &others)?, None);
    Ok(Outcome { pause, beyond: Duration::ZERO, noticed: None, loads })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_client_has_ends_with_the_last_whole_event_that_has_an_id() {
        let mut had = Received::default();
        let token = |text: &str| format!("data: {{\"choices\":[{{\"text\":\"{text}\"}}]}}");
        let [a, b, c] = ["a", "b", "c"].map(token);
        for line in ["exo-resume: a1.b2", "", &a, "id: 0:1", "", &b, "id: 0:2", "", &c] {
            had.take(line).unwrap();
        }
        assert_eq!(had.last, Some(("0:2".to_owned(), 2)));
        assert_eq!((had.ticket.as_deref(), had.text.as_str(), had.tokens), (Some("a1.b2"), "abc", 3));
        // Of an id that broke off nobody knows how it went on.
        had.take("id: 0:").unwrap();
        assert_eq!(had.last, Some(("0:2".to_owned(), 2)));
        assert!(!had.is_whole && had.take("data: {\"cho").is_err());
    }
}
