//! The words that people compare after one machine has let another in.
//!
//! Each side draws a number; the one who joins commits to its own before it sees the other's, and shows it after. So a machine in between, which has an
//! exchange with each of them, must choose its numbers before it knows what words they lead to: one chance in 2^32 for each exchange, and nothing
//! to try at home.

use exo_transport::JoinChannel;
use exo_types::NodeId;
use serde::{Deserialize, Serialize};

use crate::pairing::send;

/// One message: a commitment, then a number from each side.
#[derive(Serialize, Deserialize)]
struct Drawn([u8; 32]);

/// The side that joins.
pub(crate) async fn draw(channel: &mut JoinChannel, me: NodeId, kind: u8) -> Result<String, String> {
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
) -> Result<String, String> {
    let Drawn(committed) = read(first)?;
    let own = random()?;
    send(channel, kind, &Drawn(own)).await?;
    let Drawn(theirs) = receive(channel, kind).await?;
    if commitment(&theirs, channel.peer, me) != committed {
        return Err("another number than it had committed to".to_owned());
    }
    Ok(words(channel, (channel.peer, theirs), (me, own)))
}

fn random() -> Result<[u8; 32], String> {
    let mut bytes = [0; 32];
    getrandom::fill(&mut bytes).map_err(|e| format!("the system gives no random numbers: {e}"))?;
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

async fn receive(channel: &mut JoinChannel, kind: u8) -> Result<Drawn, String> {
    let (came, bytes) = channel.recv().await.map_err(|e| e.to_string())?;
    if came != kind {
        return Err(format!("a message of kind {came} where {kind} is next"));
    }
    read(&bytes)
}

fn read(bytes: &[u8]) -> Result<Drawn, String> {
    postcard::from_bytes(bytes).map_err(|e| format!("a number that is none: {e}"))
}
