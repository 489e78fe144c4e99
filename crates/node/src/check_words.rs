//! The words that people compare before or after one machine lets another in.
//!
//! Each side draws a number; the one who joins commits to its own before it sees the other's, and shows it
//! after. So a machine in between, which has an exchange with each of them, must choose its numbers before it
//! knows what words they lead to: one chance in 2^32 for each exchange, and nothing to try at home.
//!
//! Who waits for a person asks again and again, and is to be found by the words that both screens have shown
//! all the time. So both keep their numbers for each other. Neither uses a number that the other has seen
//! with anything but what it was drawn with: the side that lets in keeps its number for one commitment, and
//! the side that joins ends an exchange in which the other has changed its own, and begins the next with a
//! fresh one.

use std::collections::VecDeque;

use exo_stdx::Mutex;
use exo_transport::JoinChannel;
use exo_types::NodeId;
use serde::{Deserialize, Serialize};

use crate::exchange_error::{ExchangeError, NoRandom, read};
use crate::pairing::{receive, send};

/// Nodes whose numbers are kept; beyond that the oldest go.
const KEPT_MAX: usize = 256;

/// One message: a commitment, then a number from each side.
#[derive(Serialize, Deserialize)]
struct Drawn([u8; 32]);

/// What the side that joins knows behind the numbers.
pub(crate) struct Agreed {
    pub(crate) words: String,
    numbers: Pair,
}

/// Numbers that were drawn for others, while this process runs.
#[derive(Default)]
pub(crate) struct Numbers {
    /// Where this node asked: its own number, and the other's.
    asked: Mutex<NumbersByNode>,
    /// Where this node was asked: its own number, and what the other had committed to.
    answered: Mutex<NumbersByNode>,
}

/// Of so many nodes as are remembered, the last that was drawn for at the end.
#[derive(Default)]
struct NumbersByNode(VecDeque<(NodeId, Pair)>);

/// This node's number, and what stands against it.
type Pair = ([u8; 32], [u8; 32]);

impl NumbersByNode {
    fn get(&self, peer: NodeId) -> Option<Pair> {
        self.0.iter().find(|(node, _)| *node == peer).map(|(_, pair)| *pair)
    }

    fn forget(&mut self, peer: NodeId) {
        self.0.retain(|(node, _)| *node != peer);
    }

    fn keep(&mut self, peer: NodeId, pair: Pair) {
        self.forget(peer);
        self.0.push_back((peer, pair));
        if self.0.len() > KEPT_MAX {
            self.0.pop_front();
        }
    }
}

impl Numbers {
    /// The side that joins.
    pub(crate) async fn draw(
        &self,
        channel: &mut JoinChannel,
        me: NodeId,
        kind: u8,
    ) -> Result<Agreed, ExchangeError> {
        let peer = channel.peer;
        let kept = self.asked.lock().get(peer);
        let own = kept.map_or_else(random, |(own, _)| Ok(own))?;
        send(channel, kind, &Drawn(commitment(&own, me, peer))).await?;
        let Drawn(theirs) = receive(channel, kind).await?;
        if kept.is_some_and(|(_, before)| before != theirs) {
            self.asked.lock().forget(peer);
            return Err(ExchangeError::NewNumber);
        }
        send(channel, kind, &Drawn(own)).await?;
        Ok(Agreed { words: words((me, own), (peer, theirs)), numbers: (own, theirs) })
    }

    /// The other side has answered the question behind them, so it has kept its own.
    pub(crate) fn keep(&self, peer: NodeId, agreed: &Agreed) {
        self.asked.lock().keep(peer, agreed.numbers);
    }

    /// The side that lets in, to which `first` was said.
    pub(crate) async fn answer(
        &self,
        channel: &mut JoinChannel,
        me: NodeId,
        first: &[u8],
        kind: u8,
    ) -> Result<String, ExchangeError> {
        let peer = channel.peer;
        let Drawn(committed) = read("a number for the words", first)?;
        let kept = self.answered.lock().get(peer).filter(|(_, before)| *before == committed);
        let own = kept.map_or_else(random, |(own, _)| Ok(own))?;
        send(channel, kind, &Drawn(own)).await?;
        let Drawn(theirs) = receive(channel, kind).await?;
        if commitment(&theirs, peer, me) != committed {
            return Err(ExchangeError::OtherNumber);
        }
        self.answered.lock().keep(peer, (own, committed));
        Ok(words((peer, theirs), (me, own)))
    }
}

fn random() -> Result<[u8; 32], NoRandom> {
    let mut bytes = [0; 32];
    getrandom::fill(&mut bytes)?;
    Ok(bytes)
}

fn commitment(number: &[u8; 32], joiner: NodeId, other: NodeId) -> [u8; 32] {
    blake3::derive_key("exo check words v3 commitment", &[&number[..], &joiner.0, &other.0].concat())
}

/// The keys say which two machines these are: whoever sits in between has others.
fn words((joiner, joiners): (NodeId, [u8; 32]), (other, others): (NodeId, [u8; 32])) -> String {
    let all = [&joiner.0[..], &other.0, &joiners, &others].concat();
    exo_identity::check_words(&blake3::derive_key("exo check words v3 numbers", &all)).join(" ")
}
