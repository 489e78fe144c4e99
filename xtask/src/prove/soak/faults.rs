//! What happens to the machines, drawn from a seed.

use std::time::Duration;

use anyhow::ensure;

use super::hosts::Hosts;
use crate::rng::Rng;

/// What can happen to a machine.
#[derive(Clone, Copy, PartialEq, Eq, Debug, clap::ValueEnum)]
pub enum Kind {
    /// Its process is killed, and started again later.
    Kill,
    /// Its process is told to end, and started again later.
    End,
    /// Its process stands still.
    Stop,
    /// Its cable is pulled.
    Cable,
    /// It and another one do not reach each other.
    Pair,
    /// It is drained.
    Drain,
    /// Its disk is full.
    Disk,
    /// Packets that it sends are lost.
    Loss,
}

const KINDS: [Kind; 8] =
    [Kind::Kill, Kind::End, Kind::Stop, Kind::Cable, Kind::Pair, Kind::Drain, Kind::Disk, Kind::Loss];
/// Longest time that one of them lasts, in seconds.
const LASTS_MAX_S: u64 = 15;

/// Draws what happens next.
pub struct Draw {
    rng: Rng,
    kinds: Vec<Kind>,
}

impl Draw {
    /// Of these kinds, or of all, without those that cannot be had here.
    pub fn new(seed: u64, only: &[Kind], impossible: &[(Kind, String)]) -> anyhow::Result<Self> {
        let mut kinds = if only.is_empty() { KINDS.to_vec() } else { only.to_vec() };
        kinds.retain(|kind| !impossible.iter().any(|(other, _)| other == kind));
        ensure!(!kinds.is_empty(), "nothing of what is to happen can happen here");
        Ok(Self { rng: Rng::new(seed), kinds })
    }

    /// Something happens to a machine, if one may be struck; whether it did.
    pub fn strike(&mut self, hosts: &mut Hosts) -> anyhow::Result<bool> {
        let kind = self.rng.below(self.kinds.len());
        let kind = self.kinds[kind];
        let mut free = hosts.unharmed();
        let lasts = Duration::from_secs(1 + self.rng.below(LASTS_MAX_S as usize) as u64);
        if free.is_empty() {
            return Ok(false);
        }
        let at = free.swap_remove(self.rng.below(free.len()));
        let other = match kind {
            // The two are all that may be struck at once.
            Kind::Pair if free.len() + 1 < hosts.len() => return Ok(false),
            Kind::Pair => Some(free[self.rng.below(free.len())]),
            _ => None,
        };
        hosts.strike(at, kind, lasts, other)?;
        Ok(true)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_cannot_be_had_here_is_not_drawn() {
        let no_disk = [(Kind::Disk, "no root".to_owned())];
        let kinds = |only: &[Kind]| Draw::new(1, only, &no_disk).map(|draw| draw.kinds);
        assert_eq!(kinds(&[]).unwrap().len(), KINDS.len() - 1);
        assert_eq!(kinds(&[Kind::Disk, Kind::Kill]).unwrap(), [Kind::Kill]);
        assert!(kinds(&[Kind::Disk]).is_err());
    }
}
