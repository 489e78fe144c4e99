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

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use exo_transport::JoinChannel;
use exo_types::NodeId;
use serde::{Deserialize, Serialize};

use crate::exchange_error::{ExchangeError, NoRandom, read};
use crate::pairing::{receive, send};

/// Nodes whose numbers are kept; beyond that any of them goes.
const KEPT_MAX: usize = 256;

/// One message: a commitment, then a number from each side.
#[derive(Serialize, Deserialize)]
struct Drawn([u8; 32]);

/// Numbers that were drawn for others, while this process runs.
#[derive(Default)]
pub(crate) struct Numbers {
    /// Where this node asked: its own number, and the other's.
    asked: Mutex<NumbersByNode>,
    /// Where this node was asked: its own number, and what the other had committed to.
    answered: Mutex<NumbersByNode>,
}

type NumbersByNode = BTreeMap<NodeId, ([u8; 32], [u8; 32])>;

impl Numbers {
    /// The side that joins.
    pub(crate) async fn draw(
        &self,
        channel: &mut JoinChannel,
        me: NodeId,
        kind: u8,
    ) -> Result<String, ExchangeError> {
        let peer = channel.peer;
        let kept = lock(&self.asked).remove(&peer);
        let own = kept.map_or_else(random, |(own, _)| Ok(own))?;
        send(channel, kind, &Drawn(commitment(&own, me, peer))).await?;
        let Drawn(theirs) = receive(channel, kind).await?;
        if kept.is_some_and(|(_, before)| before != theirs) {
            return Err(ExchangeError::NewNumber);
        }
        send(channel, kind, &Drawn(own)).await?;
        keep(&self.asked, peer, (own, theirs));
        Ok(words((me, own), (peer, theirs)))
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
        let kept = lock(&self.answered).get(&peer).filter(|(_, before)| *before == committed).copied();
        let own = kept.map_or_else(random, |(own, _)| Ok(own))?;
        keep(&self.answered, peer, (own, committed));
        send(channel, kind, &Drawn(own)).await?;
        let Drawn(theirs) = receive(channel, kind).await?;
        if commitment(&theirs, peer, me) != committed {
            return Err(ExchangeError::OtherNumber);
        }
        Ok(words((peer, theirs), (me, own)))
    }
}

fn lock(kept: &Mutex<NumbersByNode>) -> MutexGuard<'_, NumbersByNode> {
    kept.lock().unwrap_or_else(PoisonError::into_inner)
}

fn keep(kept: &Mutex<NumbersByNode>, peer: NodeId, numbers: ([u8; 32], [u8; 32])) {
    let mut kept = lock(kept);
    if kept.len() >= KEPT_MAX && !kept.contains_key(&peer) {
        kept.pop_first();
    }
    kept.insert(peer, numbers);
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
