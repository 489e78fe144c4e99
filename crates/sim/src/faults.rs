//! What goes wrong in a run: a list made before it, drawn with weights.
//!
//! Each fault draws its numbers from its own place in the list, so that a run without some of them has the
//! others unchanged. A fault names nodes by number; in a run with fewer nodes the number is taken modulo
//! these.

use std::collections::BTreeSet;
use std::time::Duration;

use exo_types::Time;

use crate::draw::{Draw, DrawFor, mix};
use crate::lies::Lie;
use crate::lies_of_data::Bend;
use crate::strangers::Trick;
use crate::windows::WindowCase;

/// Something that goes wrong.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum FaultKind {
    /// The process dies and is started again.
    Crash {
        /// Which node.
        node: usize,
        /// How the process ends.
        end: End,
        /// Until it is started again.
        down: Duration,
    },
    /// Whoever coordinates dies and is started again.
    KillCoordinator {
        /// How the process ends.
        end: End,
        /// Until it is started again.
        down: Duration,
    },
    /// Nothing reaches the node, and nothing comes from it.
    CutOff {
        /// Which node.
        node: usize,
        /// What becomes of its links.
        cut: Cut,
        /// How long.
        lasting: Duration,
    },
    /// Two nodes do not reach each other; with the others both do.
    CutPair {
        /// One end.
        from: usize,
        /// The other.
        to: usize,
        /// Only from the first to the second.
        one_way: bool,
        /// What becomes of their links.
        cut: Cut,
        /// How long.
        lasting: Duration,
    },
    /// No UDP gets through between two nodes: their control links fall silent, their data links do not.
    CutUdp {
        /// One end.
        from: usize,
        /// The other.
        to: usize,
        /// How long.
        lasting: Duration,
    },
    /// The links between two nodes end in a reset.
    Reset {
        /// One end.
        from: usize,
        /// The other.
        to: usize,
        /// Of those there are, which; all of them if it is beyond.
        which: usize,
    },
    /// The process stands still: what comes piles up, and time passes.
    Freeze {
        /// Which node.
        node: usize,
        /// How long.
        lasting: Duration,
    },
    /// An engine's process dies.
    LoseEngine {
        /// On which node.
        node: usize,
    },
    /// Every write takes so much longer.
    SlowDisk {
        /// Which node's.
        node: Whose,
        /// Added to each write.
        by: Duration,
        /// How long.
        lasting: Duration,
    },
    /// There is no room for any write.
    FullDisk {
        /// Which node's.
        node: Whose,
        /// How long.
        lasting: Duration,
    },
    /// The device gives nothing back for so long.
    HangDevice {
        /// On which node.
        node: usize,
        /// How long.
        lasting: Duration,
        /// What computes on it is ended then, as a watchdog does.
        ends: bool,
    },
    /// The next write to the log fails, and the next log of trust may not last.
    FailWrite {
        /// Which node's.
        node: Whose,
    },
    /// The next steps fail on the device.
    FailSteps {
        /// On which node.
        node: usize,
        /// How many.
        count: u32,
    },
    /// The device gives what is no number, in the next steps.
    NoNumbers {
        /// On which node.
        node: usize,
        /// How many.
        count: u32,
    },
    /// The next load fails.
    FailLoad {
        /// On which node.
        node: usize,
        /// The device says that it does not take the shard.
        is_refusal: bool,
    },
    /// Something else takes the device's memory. It shows where memory is sampled; the next steps find no
    /// room meanwhile, and the next load finds less than it was promised, whenever that comes.
    OutOfMemory {
        /// On which node.
        node: usize,
        /// How many steps.
        steps: u32,
        /// How long.
        lasting: Duration,
    },
    /// A member that is no admin says of the members what is not so.
    Lie {
        /// Who, counted from the one behind the founder.
        liar: usize,
        /// To whom.
        to: usize,
        /// What it says.
        lie: Lie,
    },
    /// A member says on the data channel what is not its to say.
    LieOfData {
        /// The member that lies.
        liar: usize,
        /// To whom.
        to: usize,
        /// Of what that one is told next and could be bent, how many go by before.
        passes: usize,
        /// As what.
        bend: Bend,
    },
    /// A machine that nobody has let in tries what it can.
    Stranger {
        /// On which node.
        to: usize,
        /// With which of its keys.
        nth: usize,
        /// What it does with it.
        trick: Trick,
    },
    /// What two nodes say to each other takes longer.
    SlowLink {
        /// One end.
        from: usize,
        /// The other.
        to: usize,
        /// How slow the path becomes.
        slowdown: Slowdown,
        /// How long.
        lasting: Duration,
    },
    /// A wall clock is set.
    SetWallClock {
        /// On which node.
        node: usize,
        /// By so many seconds, forwards or back.
        by_s: i64,
        /// So long after that it is set right; `None` if it stays as it is.
        lasting: Option<Duration>,
    },
    /// A member keeps entries of the log of trust to itself.
    Withhold {
        /// The node.
        node: usize,
        /// How long.
        lasting: Duration,
    },
}

/// What becomes of a link's numbers.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Slowdown {
    /// The delay is so many times as long.
    pub delay_by: u32,
    /// So many times as long go by until the same bytes are through.
    pub bytes_by: u32,
}

/// Which node a fault is about.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Whose {
    /// The one that coordinates when the fault begins.
    Coordinator,
    /// This one.
    Node(usize),
}

/// How a process ends.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum End {
    /// It is asked to, and says goodbye.
    Clean,
    /// It is killed: its links end in a reset.
    Killed,
    /// The machine loses power: its links fall silent.
    PowerLost,
}

/// What becomes of links that cross a cut.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Cut {
    /// Nothing arrives on them any more, also when the cut is over.
    Silence,
    /// What was sent arrives, in order, when the cut is over: the system has sent it again and again.
    Delay,
}

/// A fault and when it happens.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Fault {
    /// Its place in the list of its seed.
    pub index: usize,
    /// When it begins.
    pub at: Time,
    /// What happens then.
    pub kind: FaultKind,
}

impl Fault {
    /// When its cause is gone.
    pub fn over(&self) -> Time {
        self.at
            + match self.kind {
                FaultKind::Crash { down, .. } | FaultKind::KillCoordinator { down, .. } => down,
                FaultKind::CutOff { lasting, .. }
                | FaultKind::CutPair { lasting, .. }
                | FaultKind::CutUdp { lasting, .. }
                | FaultKind::Freeze { lasting, .. }
                | FaultKind::SlowDisk { lasting, .. }
                | FaultKind::FullDisk { lasting, .. }
                | FaultKind::HangDevice { lasting, .. }
                | FaultKind::OutOfMemory { lasting, .. }
                | FaultKind::SlowLink { lasting, .. }
                | FaultKind::Withhold { lasting, .. } => lasting,
                // One that stays wrong is in nobody's way.
                FaultKind::SetWallClock { lasting, .. } => lasting.unwrap_or(Duration::ZERO),
                FaultKind::Reset { .. }
                | FaultKind::LoseEngine { .. }
                | FaultKind::FailWrite { .. }
                | FaultKind::FailSteps { .. }
                | FaultKind::NoNumbers { .. }
                | FaultKind::FailLoad { .. }
                | FaultKind::Lie { .. }
                | FaultKind::LieOfData { .. }
                | FaultKind::Stranger { .. } => Duration::ZERO,
            }
    }
}

impl FaultKind {
    /// What it is called where faults are counted.
    pub fn name(&self) -> &'static str {
        match self {
            Self::Crash { .. } => "crash",
            Self::KillCoordinator { .. } => "crash of the coordinator",
            Self::CutOff { .. } => "node cut off",
            Self::CutPair { .. } => "pair cut",
            Self::Reset { .. } => "links reset",
            Self::Freeze { .. } => "freeze",
            Self::LoseEngine { .. } => "engine lost",
            Self::SlowDisk { .. } => "slow disk",
            Self::FullDisk { .. } => "full disk",
            Self::HangDevice { .. } => "device hangs",
            Self::FailWrite { .. } => "write fails",
            Self::FailSteps { .. } => "step fails",
            Self::NoNumbers { .. } => "step gives no numbers",
            Self::FailLoad { .. } => "load fails",
            Self::OutOfMemory { .. } => "out of memory",
            Self::Lie { .. } => "lie about members",
            Self::LieOfData { .. } => "lie on the data channel",
            Self::Stranger { .. } => "stranger",
            Self::SlowLink { .. } => "slow link",
            Self::CutUdp { .. } => "UDP cut",
            Self::SetWallClock { .. } => "wall clock set",
            Self::Withhold { .. } => "news withheld",
        }
    }

    /// Whether it waits for something that it makes go wrong: then that is counted, and not its beginning.
    pub fn waits(&self) -> bool {
        matches!(
            self,
            Self::FailSteps { .. } | Self::NoNumbers { .. } | Self::FailLoad { .. } | Self::LieOfData { .. }
        )
    }
}

/// The draws of one fault, by number.
#[derive(Clone, Copy)]
struct Own {
    seed: u64,
    index: usize,
}

impl Own {
    fn draw(&self, field: u64) -> Draw {
        mix(self.seed, DrawFor::Fault, self.index as u64 * 16 + field)
    }

    fn node(&self, field: u64) -> usize {
        self.draw(field).below(60) as usize // divisible by most numbers of nodes there are
    }

    /// Two that differ in every number of nodes but 7: their difference has no other divisor below 10. See
    /// [`pair_among`].
    fn pair(&self) -> (usize, usize) {
        let apart = [1, 7, 11, 13, 17, 19, 23, 29][self.draw(3).below(8) as usize];
        (self.node(2), self.node(2) + apart)
    }

    fn whose(&self) -> Whose {
        if self.draw(11).per_cent(60) { Whose::Coordinator } else { Whose::Node(self.node(2)) }
    }

    /// Many faults come soon after the one before: what one of them breaks is still being mended.
    fn at(&self, from_ms: u64, until_ms: u64) -> Time {
        let before = self.index.checked_sub(1).filter(|_| self.draw(12).per_cent(40));
        match before {
            Some(index) => Self { index, ..*self }.at(from_ms, until_ms) + self.draw(13).millis(1, 1500),
            None => self.draw(0).time_ms(from_ms, until_ms),
        }
    }

    fn end(&self) -> End {
        [End::Clean, End::Killed, End::Killed, End::PowerLost][self.draw(5).below(4) as usize]
    }

    fn cut(&self) -> Cut {
        if self.draw(6).per_cent(50) { Cut::Silence } else { Cut::Delay }
    }

    /// Around the times that a cluster takes to notice: 1 s suspects, 4 s loses, 6 s closes.
    fn lasting(&self) -> Duration {
        let seconds = self.draw(7).below(4);
        match seconds {
            0 => self.draw(8).millis(50, 1500),
            1 | 2 => self.draw(8).millis(1500, 6500),
            _ => self.draw(8).millis(6500, 10_000),
        }
    }

    fn down(&self) -> Duration {
        self.draw(9).millis(100, 9000)
    }

    /// Seconds to minutes, hours, days or years: forwards, or as far back as 1970.
    fn wall_jump_s(&self) -> i64 {
        let unit_s = [10, 3_600, 86_400, 31_536_000][self.draw(10).below(4) as usize];
        let seconds = unit_s * self.draw(11).between(1, 60) as i64;
        if self.draw(14).per_cent(50) { seconds } else { -seconds }
    }
}

/// The nodes that a pair's numbers stand for: two, where there are two.
pub fn pair_among(nodes: usize, from: usize, to: usize) -> (usize, usize) {
    let (from, to) = (from % nodes, to % nodes);
    if from == to { (from, (to + 1) % nodes) } else { (from, to) }
}

/// A way to make a fault, and how often it comes.
type Maker = (u64, fn(&Own) -> FaultKind);

const MAKERS: &[Maker] = &[
    (16, |own| FaultKind::Crash { node: own.node(2), end: own.end(), down: own.down() }),
    (12, |own| FaultKind::KillCoordinator { end: own.end(), down: own.down() }),
    (12, |own| FaultKind::CutOff { node: own.node(2), cut: own.cut(), lasting: own.lasting() }),
    (14, |own| {
        let (from, to) = own.pair();
        let one_way = own.draw(10).per_cent(30);
        FaultKind::CutPair { from, to, one_way, cut: own.cut(), lasting: own.lasting() }
    }),
    (10, |own| {
        let (from, to) = own.pair();
        FaultKind::Reset { from, to, which: own.draw(10).below(3) as usize }
    }),
    (10, |own| FaultKind::Freeze { node: own.node(2), lasting: own.lasting() }),
    (8, |own| FaultKind::LoseEngine { node: own.node(2) }),
    (8, |own| FaultKind::SlowDisk {
        node: own.whose(),
        by: own.draw(10).millis(20, 3000),
        lasting: own.lasting(),
    }),
    (5, |own| FaultKind::FailWrite { node: own.whose() }),
    (5, |own| FaultKind::FailSteps { node: own.node(2), count: own.draw(10).between(1, 3) as u32 }),
    (4, |own| FaultKind::FailLoad { node: own.node(2), is_refusal: own.draw(10).per_cent(50) }),
];

/// Faults that came later. Their weights are no part of the draws of the others.
const RARE: &[Maker] = &[
    (1, |own| {
        let long = own.draw(10).per_cent(20);
        let lasting = if long { own.draw(8).millis(20_000, 30_000) } else { own.lasting() };
        FaultKind::FullDisk { node: own.whose(), lasting }
    }),
    (1, |own| FaultKind::HangDevice {
        node: own.node(2),
        lasting: own.draw(8).millis(1_000, 20_000),
        ends: own.draw(10).per_cent(50),
    }),
];

/// Faults that only runs of everything have: others are what they were without them.
const LATER: &[Maker] = &[
    (1, |own| {
        let lasting = own.draw(15).per_cent(50).then(|| own.lasting());
        FaultKind::SetWallClock { node: own.node(2), by_s: own.wall_jump_s(), lasting }
    }),
    (1, |own| FaultKind::OutOfMemory {
        node: own.node(2),
        steps: own.draw(10).between(1, 3) as u32,
        lasting: own.draw(8).millis(500, 8_000),
    }),
    // Many nodes have no stage that others follow.
    (2, |own| FaultKind::NoNumbers { node: own.node(2), count: own.draw(10).between(1, 3) as u32 }),
];

/// The first number of what a liar does.
const LIES_FROM: usize = 100;
/// The first number of a rare fault.
const RARE_FROM: usize = 200;
/// The first number of a lie on the data channel.
const LIES_OF_DATA_FROM: usize = 300;
/// The first number of what a stranger tries.
const TRICKS_FROM: usize = 400;
/// The first number of a slow link.
const SLOW_LINKS_FROM: usize = 500;
/// The first number of a pair without UDP.
const UDP_CUTS_FROM: usize = 600;
/// The first number of what only runs of everything have.
const LATER_FROM: usize = 700;
/// The first number of what a stranger tries at windows.
const WINDOWS_FROM: usize = 800;
/// The first number of a restart or a clock that is set beside it.
const RESTARTS_FROM: usize = 900;

/// The first number of a claim of the lead.
const CLAIMS_FROM: usize = 1000;

/// The faults of a seed: so many, between these times.
pub fn list(seed: u64, count: usize, from_ms: u64, until_ms: u64) -> Vec<Fault> {
    let one = |index| {
        let own = Own { seed, index };
        Fault { index, at: own.at(from_ms, until_ms), kind: kind(&own, MAKERS) }
    };
    (0..count).map(one).collect()
}

/// Rare faults of a seed. They count on from the others.
pub fn rare(seed: u64, count: usize, from_ms: u64, until_ms: u64) -> Vec<Fault> {
    drawn(seed, RARE_FROM, count, (from_ms, until_ms), |own| kind(own, RARE))
}

/// What only runs of everything have. They count on from the others.
pub fn later(seed: u64, count: usize, from_ms: u64, until_ms: u64) -> Vec<Fault> {
    drawn(seed, LATER_FROM, count, (from_ms, until_ms), |own| kind(own, LATER))
}

/// What everything is that goes wrong in runs of everything, as it is called.
pub fn names() -> BTreeSet<&'static str> {
    let makers = MAKERS.iter().chain(RARE).chain(LATER);
    let named = makers.map(|(_, make)| make(&Own { seed: 0, index: 0 }).name());
    let drawn_apart = [slow_links(0, 1, 0, 1), udp_cuts(0, 1, 0, 1)].concat();
    named.chain(drawn_apart.iter().map(|fault| fault.kind.name())).collect()
}

/// What a lying member does in a run of a seed. They count on from the faults.
pub fn lies(seed: u64, count: usize, from_ms: u64, until_ms: u64) -> Vec<Fault> {
    drawn(seed, LIES_FROM, count, (from_ms, until_ms), |own| {
        let lie = Lie::ALL[own.draw(4).below(Lie::ALL.len() as u64) as usize];
        match own.draw(1).per_cent(85) {
            true => FaultKind::Lie { liar: own.node(2), to: own.node(3), lie },
            false => FaultKind::Withhold { node: own.node(2), lasting: own.lasting() },
        }
    })
}

/// A member says again and again that it leads, in half of the runs behind the word that it seeks, in a run
/// of a seed.
pub fn claims_of_lead(seed: u64, count: usize, from_ms: u64, until_ms: u64) -> Vec<Fault> {
    let first = Own { seed, index: CLAIMS_FROM };
    let liar = first.node(2);
    let lie = if first.draw(4).per_cent(50) { Lie::SeeksAndTakesLead } else { Lie::TakesLead };
    drawn(seed, CLAIMS_FROM, count, (from_ms, until_ms), |_| FaultKind::Lie { liar, to: 0, lie })
}

/// What a member says on the data channel in a run of a seed.
pub fn lies_of_data(seed: u64, count: usize, from_ms: u64, until_ms: u64) -> Vec<Fault> {
    drawn(seed, LIES_OF_DATA_FROM, count, (from_ms, until_ms), |own| {
        let (liar, to) = own.pair();
        let bend = Bend::ALL[own.draw(4).below(Bend::ALL.len() as u64) as usize];
        FaultKind::LieOfData { liar, to, passes: own.draw(5).below(8) as usize, bend }
    })
}

/// What a stranger tries in a run of a seed.
pub fn tricks(seed: u64, count: usize, from_ms: u64, until_ms: u64) -> Vec<Fault> {
    drawn(seed, TRICKS_FROM, count, (from_ms, until_ms), |own| {
        let trick = Trick::drawn(own.draw(4).below(8), own.draw(5).below(14));
        FaultKind::Stranger { to: own.node(2), nth: own.draw(3).below(20) as usize, trick }
    })
}

/// What a stranger tries at the windows of a seed's run.
pub fn tricks_at_windows(
    seed: u64,
    case: WindowCase,
    count: usize,
    from_ms: u64,
    until_ms: u64,
) -> Vec<Fault> {
    drawn(seed, WINDOWS_FROM, count, (from_ms, until_ms), |own| {
        let trick = Trick::drawn_at(case, own.draw(4).below(10), own.draw(5).0);
        FaultKind::Stranger { to: own.node(2), nth: own.draw(3).below(20) as usize, trick }
    })
}

/// Nodes that restart and clocks that are set, by as much as windows are long.
pub fn restarts_and_clocks(seed: u64, count: usize, from_ms: u64, until_ms: u64) -> Vec<Fault> {
    drawn(seed, RESTARTS_FROM, count, (from_ms, until_ms), |own| {
        let seconds = own.draw(10).between(1, 900) as i64;
        let by_s = if own.draw(14).per_cent(50) { seconds } else { -seconds };
        let lasting = own.draw(15).per_cent(50).then(|| own.lasting());
        match own.draw(1).per_cent(50) {
            true => FaultKind::Crash { node: own.node(2), end: own.end(), down: own.down() },
            false => FaultKind::SetWallClock { node: own.node(2), by_s, lasting },
        }
    })
}

/// Links that become slow in a run of a seed, and are as before after a while. They count on from the others.
pub fn slow_links(seed: u64, count: usize, from_ms: u64, until_ms: u64) -> Vec<Fault> {
    drawn(seed, SLOW_LINKS_FROM, count, (from_ms, until_ms), |own| {
        let (from, to) = own.pair();
        // A congested network delays more than it holds up; a bad cable is the other way round.
        let (delay_by, bytes_by) = match own.draw(4).below(3) {
            0 => (own.draw(5).between(2, 100), 1),
            1 => (1, own.draw(6).between(2, 20)),
            _ => (own.draw(5).between(2, 100), own.draw(6).between(2, 20)),
        };
        let slowdown = Slowdown { delay_by: delay_by as u32, bytes_by: bytes_by as u32 };
        FaultKind::SlowLink { from, to, slowdown, lasting: own.draw(8).millis(2_000, 15_000) }
    })
}

/// Pairs of nodes between which no UDP gets through for a while in a run of a seed.
pub fn udp_cuts(seed: u64, count: usize, from_ms: u64, until_ms: u64) -> Vec<Fault> {
    drawn(seed, UDP_CUTS_FROM, count, (from_ms, until_ms), |own| {
        let (from, to) = own.pair();
        FaultKind::CutUdp { from, to, lasting: own.draw(8).millis(2_000, 15_000) }
    })
}

/// So many faults, numbered from `first` on, each at a time of its own between these.
fn drawn(
    seed: u64,
    first: usize,
    count: usize,
    (from_ms, until_ms): (u64, u64),
    kind: impl Fn(&Own) -> FaultKind,
) -> Vec<Fault> {
    let one = |index| {
        let own = Own { seed, index };
        Fault { index, at: own.draw(0).time_ms(from_ms, until_ms), kind: kind(&own) }
    };
    (first..first + count).map(one).collect()
}

fn kind(own: &Own, makers: &[Maker]) -> FaultKind {
    let all: u64 = makers.iter().map(|(weight, _)| weight).sum();
    let mut drawn = own.draw(1).below(all);
    for (weight, make) in makers {
        match drawn.checked_sub(*weight) {
            Some(rest) => drawn = rest,
            None => return make(own),
        }
    }
    unreachable!("the draw is below the sum of the weights")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::scenario::NODES_MAX;

    #[test]
    fn a_longer_list_begins_with_the_shorter_one() {
        let long = list(4711, 12, 2000, 30_000);
        assert_eq!(list(4711, 5, 2000, 30_000), long[..5]);
        assert_ne!(list(4712, 5, 2000, 30_000), long[..5]);
    }

    #[test]
    fn every_kind_comes_and_all_are_in_time() {
        let of_seed = |seed| {
            let own = later(seed, 3, 2000, 28_000);
            [list(seed, 6, 2000, 28_000), rare(seed, 2, 2000, 28_000), own].concat()
        };
        let faults: Vec<Fault> = (0..200).flat_map(of_seed).collect();
        let kinds: BTreeSet<_> =
            faults.iter().map(|f| std::mem::discriminant(&f.kind)).map(|d| format!("{d:?}")).collect();
        assert_eq!(kinds.len(), MAKERS.len() + RARE.len() + LATER.len());
        assert_eq!(names().len(), kinds.len() + 2, "each has a name of its own, also those drawn apart");
        assert!(faults.iter().all(|f| (2_000_000..=36_000_000).contains(&f.at.0)));
        let late = |f: &&Fault| f.over().0 > 38_000_000 && f.index < RARE_FROM;
        assert!(faults.iter().filter(late).count() < 30, "few are late");
    }

    #[test]
    fn both_ends_of_a_pair_differ_in_every_number_of_nodes() {
        let of_seed =
            |seed| [list(seed, 6, 0, 1), slow_links(seed, 1, 0, 1), udp_cuts(seed, 1, 0, 1)].concat();
        for fault in (0..500).flat_map(of_seed) {
            if let FaultKind::CutPair { from, to, .. }
            | FaultKind::CutUdp { from, to, .. }
            | FaultKind::Reset { from, to, .. }
            | FaultKind::SlowLink { from, to, .. } = fault.kind
            {
                for nodes in 2..=NODES_MAX {
                    let pair = pair_among(nodes, from, to);
                    assert!(pair.0 != pair.1 && pair.0.max(pair.1) < nodes, "{from} {to} of {nodes}");
                    // Runs of fewer nodes are what they were before there were more.
                    assert!(nodes > 6 || pair == (from % nodes, to % nodes), "{from} {to} of {nodes}");
                }
            }
        }
    }
}
