//! The words that people compare after one machine has let another in.
//!
//! Each side draws a number; the one who joins commits to its own before it sees the other's, and shows it after. So a machine in between, which has an
//! exchange with each of them, must choose its numbers before it knows what words they lead to: one chance in 2^32 for each exchange, and nothing
//! to try at home.

use exo_transport::JoinChannel;
use exo_types::NodeId;
use serde::{Deserialize, Serialize};

use crate::exchange_error::{ExchangeError, NoRandom, read};
use crate::pairing::{receive, send};

/// One message: a commitment, then a number from each side.
#[derive(Serialize, Deserialize)]
struct Drawn([u8; 32]);

/// The side that joins.
pub(crate) async fn draw(channel: &mut JoinChannel, me: NodeId, kind: u8) -> Result<String, ExchangeError> {
    let own = random()?;
    send(channel, kind, &Drawn(commitment(&own, me, channel.peer))).await?;
    let Drawn(theirs) = receive(channel, kind).await?;
    send(channel, kind, &Drawn(own)).await?;
    Ok(words(channel, (me, own), (channel.peer, theirs)))
}

/// The side that lets in, to which `first` was said.
pub(crate) async fn answer(
    channel: &mut JoinChannel,
    me: NodeId,
    first: &[u8],
    kind: u8,
) -> Result<String, ExchangeError> {
    let Drawn(committed) = read("a number for the words", first)?;
    let own = random()?;
    send(channel, kind, &Drawn(own)).await?;
    let Drawn(theirs) = receive(channel, kind).await?;
    if commitment(&theirs, channel.peer, me) != committed {
        return Err(ExchangeError::OtherNumber);
    }
    Ok(words(channel, (channel.peer, theirs), (me, own)))
}

fn random() -> Result<[u8; 32], NoRandom> {
    let mut bytes = [0; 32];
    getrandom::fill(&mut bytes)?;
    Ok(bytes)
}

fn commitment(number: &[u8; 32], joiner: NodeId, other: NodeId) -> [u8; 32] {
    blake3::derive_key("exo check words v2 commitment", &[&number[..], &joiner.0, &other.0].concat())
}

fn words(
    channel: &JoinChannel,
    (joiner, joiners): (NodeId, [u8; 32]),
    (other, others): (NodeId, [u8; 32]),
) -> String {
    let all = [&channel.exporter()[..], &joiner.0, &other.0, &joiners, &others].concat();
    exo_identity::check_words(&blake3::derive_key("exo check words v2 numbers", &all)).join(" ")
}
