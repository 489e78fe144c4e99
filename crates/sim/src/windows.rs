//! What the join windows are about in a run of [`Kind::Window`](crate::Kind::Window): who is there, and when
//! the windows end.

use exo_machine::joining::JOIN_WINDOW_S;

use crate::clients::{Ask, AskWhat};
use crate::draw::{DrawFor, mix};

/// Between two counts of the time that a node runs with the window open. Each run is charged it at its start.
const STEP_S: u64 = 10;
/// How far the date may be behind one that was seen.
const SLACK_S: u64 = 60;

/// What happens at the windows of a run.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum WindowCase {
    /// New nodes find each other while strangers hold them up.
    Fresh,
    /// A new node finds a cluster while strangers hold it up.
    Newcomer,
    /// Strangers ask at windows that stay open, until there are too many or a person removes a node.
    Crowd,
    /// The windows end in the run, or have ended before it.
    Ends,
}

impl WindowCase {
    /// Whether the nodes become one cluster. Strangers do not ask from nearby to be let in then: whom the
    /// window lets in by right may fill it, and a new node that has let one in is not new any more.
    pub fn becomes_one(self) -> bool {
        matches!(self, Self::Fresh | Self::Newcomer)
    }
}

/// The windows of a run.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Windows {
    /// What happens at them.
    pub case: WindowCase,
    /// How many nodes there are.
    pub nodes: usize,
    /// They are one cluster from the start, but for a newcomer.
    pub is_founded: bool,
    /// So many seconds they are open by the wall clock, from the founding on.
    pub by_clock_s: u64,
    /// So many seconds nodes have run with them open before the run.
    pub ran_s: u64,
    /// From so many hosts strangers speak.
    pub hosts: usize,
    /// What they announce reaches one node alone each time.
    pub is_told_apart: bool,
}

impl Windows {
    /// Those of a seed.
    pub fn drawn(seed: u64) -> Self {
        let draw = |counter: u64| mix(seed, DrawFor::Scenario, 400 + counter);
        let cases =
            [WindowCase::Fresh, WindowCase::Newcomer, WindowCase::Crowd, WindowCase::Ends, WindowCase::Ends];
        let case = cases[draw(0).below(cases.len() as u64) as usize];
        let nodes = draw(1).between(if case.becomes_one() { 2 } else { 1 }, 4) as usize;
        let is_founded = match case {
            WindowCase::Fresh => false,
            WindowCase::Newcomer | WindowCase::Crowd => true,
            WindowCase::Ends => draw(2).per_cent(50),
        };
        let (mut by_clock_s, mut ran_s) = (JOIN_WINDOW_S, 0);
        if case == WindowCase::Ends {
            let ends_by = draw(3).below(3);
            // The run begins a minute after the founding.
            by_clock_s = if ends_by == 0 { by_clock_s } else { draw(4).between(1, 110) };
            ran_s = if ends_by == 1 { ran_s } else { JOIN_WINDOW_S - draw(5).between(0, 50) };
        }
        let hosts = [1, 1, 2, 3][draw(6).below(4) as usize];
        let is_told_apart = draw(7).per_cent(30);
        Self { case, nodes, is_founded, by_clock_s, ran_s, hosts, is_told_apart }
    }

    /// What people ask: in some runs of a cluster that a node is removed.
    pub(crate) fn asks(&self, seed: u64, nodes: usize) -> Vec<Ask> {
        let draw = |counter: u64| mix(seed, DrawFor::Scenario, 420 + counter);
        if !self.is_founded || self.case.becomes_one() || nodes < 2 || draw(0).per_cent(50) {
            return Vec::new();
        }
        let whom = 1 + draw(1).below(nodes as u64 - 1) as usize;
        let at = draw(2).time_ms(5_000, 25_000);
        vec![Ask { at, node: 0, what: AskWhat::RemoveNode { node: whom } }]
    }
}

/// For how long a node has run with its window open, as its disk keeps it. Counted as `exo-node` counts it,
/// which is not simulated.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct WindowTime {
    ran_s: u64,
    /// The latest date that was seen.
    seen_unix_s: u64,
}

impl WindowTime {
    pub(crate) fn new(ran_s: u64) -> Self {
        Self { ran_s, seen_unix_s: 0 }
    }

    /// What a run finds that begins now.
    pub(crate) fn begin(&mut self, now_unix_s: u64) -> u64 {
        let went_back = now_unix_s.saturating_add(SLACK_S) < self.seen_unix_s;
        let found_s = if went_back { JOIN_WINDOW_S } else { self.ran_s.min(JOIN_WINDOW_S) };
        if found_s < JOIN_WINDOW_S {
            self.charge(STEP_S, now_unix_s);
        }
        found_s
    }

    /// A run has ended that went on for so many seconds.
    pub(crate) fn end(&mut self, seconds: u64, now_unix_s: u64) {
        if self.ran_s < JOIN_WINDOW_S {
            self.charge(seconds / STEP_S * STEP_S, now_unix_s);
        }
    }

    fn charge(&mut self, seconds: u64, now_unix_s: u64) {
        self.ran_s += seconds;
        self.seen_unix_s = self.seen_unix_s.max(now_unix_s);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_case_comes_and_windows_end_by_either_clock() {
        let all: Vec<Windows> = (0..200).map(Windows::drawn).collect();
        for case in [WindowCase::Fresh, WindowCase::Newcomer, WindowCase::Crowd, WindowCase::Ends] {
            assert!(all.iter().filter(|windows| windows.case == case).count() > 20, "{case:?}");
        }
        for (hosts, is_told_apart) in [1, 2, 3].into_iter().flat_map(|hosts| [(hosts, false), (hosts, true)])
        {
            let is_so = |w: &&Windows| (w.hosts, w.is_told_apart) == (hosts, is_told_apart);
            assert!(all.iter().filter(is_so).count() > 5, "{hosts} hosts, apart: {is_told_apart}");
        }
        let ends = |windows: &Windows| (windows.by_clock_s < JOIN_WINDOW_S, windows.ran_s > 0);
        for wanted in [(false, false), (true, false), (false, true), (true, true)] {
            assert!(all.iter().any(|windows| ends(windows) == wanted), "{wanted:?}");
        }
    }

    #[test]
    fn neither_restarts_nor_an_earlier_date_give_time_back() {
        let mut time = WindowTime::new(570);
        assert_eq!(time.begin(1_000), 570);
        time.end(9, 1_009);
        assert_eq!(time.begin(1_010), 580, "a run is charged at its start");
        time.end(15, 1_025);
        assert_eq!(time.begin(1_026), 600);
        let mut time = WindowTime::new(0);
        time.begin(1_000);
        assert_eq!((time.begin(950), time.begin(900)), (10, 600));
    }
}
