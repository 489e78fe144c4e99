//! Chance: every draw is a hash of the seed, what it is for, and a counter of its own.
//!
//! There is no generator whose state one draw hands to the next. So leaving out a fault or a client moves no
//! other draw, and a failing run can be made smaller without becoming another run.

use std::time::Duration;

use exo_types::Time;

/// What a draw is for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum DrawFor {
    /// The shape of the run: nodes, LANs, who has the model.
    Scenario,
    /// Keys, ids, the machines' own seeds.
    Identity,
    /// Clocks of nodes.
    Clock,
    /// The list of faults.
    Fault,
    /// The list of clients.
    Client,
    /// Delays of links and dials.
    Net,
    /// Delays of writes, what a crash keeps.
    Disk,
    /// Time of loads and steps.
    Engine,
    /// Time of the planner, discovery, and whatever else a process does.
    Process,
}

/// The draw with this counter.
pub fn mix(seed: u64, of: DrawFor, counter: u64) -> Draw {
    let mixed = hash(hash(seed ^ (of as u64 + 1).wrapping_mul(0xd6e8_feb8_6659_fd93)) ^ counter);
    Draw(mixed)
}

/// A good hash of 64 bits (SplitMix64).
pub fn hash(value: u64) -> u64 {
    let mut z = value.wrapping_add(0x9e37_79b9_7f4a_7c15);
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

/// One drawn value.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Draw(pub u64);

impl Draw {
    /// A number in `0..bound`.
    pub fn below(self, bound: u64) -> u64 {
        assert!(bound > 0, "a draw below 0");
        self.0 % bound
    }

    /// A number in `low..=high`.
    pub fn between(self, low: u64, high: u64) -> u64 {
        low + self.below(high - low + 1)
    }

    /// A duration of so many microseconds, between both.
    pub fn micros(self, low: u64, high: u64) -> Duration {
        Duration::from_micros(self.between(low, high))
    }

    /// A duration of so many milliseconds, between both, to the microsecond.
    pub fn millis(self, low: u64, high: u64) -> Duration {
        self.micros(low * 1000, high * 1000)
    }

    /// A time, so many milliseconds after the start.
    pub fn time_ms(self, low: u64, high: u64) -> Time {
        Time(self.between(low * 1000, high * 1000))
    }

    /// Whether something of this chance happens.
    pub fn per_cent(self, chance: u64) -> bool {
        self.below(100) < chance
    }
}

/// Draws of one purpose and one owner, counted.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Draws {
    seed: u64,
    of: DrawFor,
    owner: u64,
    count: u64,
}

impl Draws {
    /// The draws of `owner`, from the first.
    pub fn new(seed: u64, of: DrawFor, owner: u64) -> Self {
        Self { seed, of, owner, count: 0 }
    }

    /// The next one.
    pub fn draw(&mut self) -> Draw {
        self.count += 1;
        mix(self.seed, self.of, hash(self.owner) ^ self.count)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn owners_and_purposes_draw_apart() {
        let first = |of, owner| Draws::new(7, of, owner).draw();
        assert_ne!(first(DrawFor::Net, 1), first(DrawFor::Net, 2));
        assert_ne!(first(DrawFor::Net, 1), first(DrawFor::Disk, 1));
        assert_ne!(mix(7, DrawFor::Net, 1), mix(8, DrawFor::Net, 1));
    }

    #[test]
    fn draws_fill_their_range() {
        let mut draws = Draws::new(1, DrawFor::Scenario, 0);
        let mut seen = [0; 5];
        for _ in 0..1000 {
            seen[draws.draw().between(0, 4) as usize] += 1;
        }
        assert!(seen.iter().all(|&n| n > 120), "{seen:?}");
    }
}
