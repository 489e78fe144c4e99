//! Wires that take their time, for kernels that cannot delay packets: each machine has a network card of
//! ours, and its frames wait for their turn on the wire and then for their way.

use std::str::FromStr;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::{Duration, Instant};

use anyhow::{Context, bail};

use crate::system::Tap;

/// The largest frame of Ethernet, with room.
const FRAME_BYTES: usize = 2048;
/// Frames wait for the wire at most this long, as in a switch of 2 MB at 100 Mbit/s; the others are lost.
const QUEUE_MAX: Duration = Duration::from_millis(160);

/// One direction of a link.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Wire {
    /// What a machine sends at most.
    pub bits_per_s: u64,
    /// How long a frame is on its way, beside being sent.
    pub delay: Duration,
}

impl FromStr for Wire {
    type Err = anyhow::Error;

    /// `100:5` is 100 Mbit/s and 5 ms each way.
    fn from_str(text: &str) -> anyhow::Result<Self> {
        let (rate, delay) = text.split_once(':').context("a link is MBIT:MS, such as 100:5")?;
        let (rate, delay): (f64, f64) = (rate.parse()?, delay.parse()?);
        if !(0.1..=100_000.0).contains(&rate) || !(0.0..=1000.0).contains(&delay) {
            bail!("a link has 0.1 to 100000 Mbit/s and takes 0 to 1000 ms");
        }
        Ok(Self { bits_per_s: (rate * 1e6) as u64, delay: Duration::from_secs_f64(delay / 1e3) })
    }
}

impl Wire {
    /// How long a frame occupies it.
    fn sends(self, bytes: usize) -> Duration {
        Duration::from_secs_f64(8.0 * bytes as f64 / self.bits_per_s.max(1) as f64)
    }

    /// When a frame that comes `now` is there, and from when on the wire is free again; `None` if it is lost.
    fn carry(self, bytes: usize, now: Instant, free_from: Instant) -> Option<(Instant, Instant)> {
        let begins = now.max(free_from);
        if begins - now > QUEUE_MAX {
            return None;
        }
        let sent = begins + self.sends(bytes);
        Some((sent + self.delay, sent))
    }
}

/// A frame, and when it is there.
type OnItsWay = (Instant, Vec<u8>);

/// Starts the threads that carry frames; they end when the machines of the cards are gone. Every machine's
/// frames reach all others, which take those that are for them.
pub fn connect(cards: Vec<Tap>, wire: Wire) -> anyhow::Result<()> {
    let cards: Vec<Arc<Tap>> = cards.into_iter().map(Arc::new).collect();
    for (at, card) in cards.iter().enumerate() {
        let others = cards.iter().enumerate().filter(|(other, _)| *other != at);
        let others: Vec<Arc<Tap>> = others.map(|(_, other)| Arc::clone(other)).collect();
        let (sender, receiver) = channel();
        let card = Arc::clone(card);
        let thread = || std::thread::Builder::new().name("exo-wire".to_owned());
        thread().spawn(move || take(&card, wire, &sender)).context("no thread for a wire")?;
        thread().spawn(move || deliver(&receiver, &others)).context("no thread for a wire")?;
    }
    Ok(())
}

fn take(card: &Tap, wire: Wire, on_its_way: &Sender<OnItsWay>) {
    let (mut frame, mut free_from) = ([0; FRAME_BYTES], Instant::now());
    while let Ok(bytes) = card.receive(&mut frame) {
        let Some((there_at, sent)) = wire.carry(bytes, Instant::now(), free_from) else { continue };
        free_from = sent;
        if on_its_way.send((there_at, frame[..bytes].to_vec())).is_err() {
            return;
        }
    }
}

#[allow(clippy::disallowed_methods, reason = "a thread that does nothing but wait until a frame is there")]
fn deliver(on_its_way: &Receiver<OnItsWay>, others: &[Arc<Tap>]) {
    while let Ok((there_at, frame)) = on_its_way.recv() {
        std::thread::sleep(there_at.saturating_duration_since(Instant::now()));
        for other in others {
            // What a machine that is off does not receive is lost, as on any wire.
            let _ = other.send(&frame);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_link_is_read_as_people_write_it() {
        let wire: Wire = "100:5".parse().unwrap();
        assert_eq!(wire, Wire { bits_per_s: 100_000_000, delay: Duration::from_millis(5) });
        for wrong in ["", "100", "0:5", "100:-1", "nan:1", "100:5:1"] {
            assert!(wrong.parse::<Wire>().is_err(), "{wrong}");
        }
    }

    #[test]
    fn frames_wait_for_their_turn_and_their_way_and_a_full_queue_loses_them() {
        let wire: Wire = "1:5".parse().unwrap();
        let (now, sends) = (Instant::now(), wire.sends(1250));
        assert_eq!(sends, Duration::from_millis(10));
        let (there_at, free_from) = wire.carry(1250, now, now).unwrap();
        assert_eq!((there_at - now, free_from - now), (Duration::from_millis(15), sends));
        let (there_at, free_from) = wire.carry(1250, now, free_from).unwrap();
        assert_eq!((there_at - now, free_from - now), (Duration::from_millis(25), 2 * sends));
        assert_eq!(wire.carry(1250, now, now + QUEUE_MAX + sends), None);
    }
}
