//! What part of the packets to each member was lost of late.

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use exo_cluster::wire::RecentPackets;
use exo_types::{NodeId, PacketCounts, Time};

/// Losses before this long ago say nothing of the link as it is.
const WINDOW: Duration = Duration::from_secs(60);

/// Packets to each member as its connections have counted them, with what they had counted a minute ago.
#[derive(Debug, Default)]
pub struct PacketWindows(BTreeMap<NodeId, VecDeque<(Time, PacketCounts)>>);

impl PacketWindows {
    /// The counts as they are now. A member that is not among them any more is forgotten.
    pub fn sample(&mut self, now: Time, counts: &BTreeMap<NodeId, PacketCounts>) {
        self.0.retain(|node, _| counts.contains_key(node));
        for (node, counted) in counts {
            let samples = self.0.entry(*node).or_default();
            samples.push_back((now, *counted));
            // The first that stays is at least as old as the window, once there is one.
            while samples.get(1).is_some_and(|(at, _)| now.since(*at) >= WINDOW) {
                samples.pop_front();
            }
        }
    }

    /// All packets to `node` since the process began.
    pub fn counted(&self, node: &NodeId) -> Option<PacketCounts> {
        Some(self.0.get(node)?.back()?.1)
    }

    /// Those of the last minute; `None` where none was sent.
    pub fn recent(&self, node: &NodeId) -> Option<RecentPackets> {
        let samples = self.0.get(node)?;
        let ((since, before), (at, now)) = (samples.front()?, samples.back()?);
        let window_s = u32::try_from(at.since(*since).as_secs()).unwrap_or(u32::MAX);
        let recent = RecentPackets { counts: now.since(*before), window_s };
        (recent.counts.sent > 0).then_some(recent)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn losses_of_the_last_minute_count_and_older_ones_do_not() {
        let (mut windows, peer) = (PacketWindows::default(), NodeId([1; 32]));
        let recent = |windows: &PacketWindows| {
            windows.recent(&peer).map(|recent| (recent.counts.sent, recent.counts.lost, recent.window_s))
        };
        assert_eq!((recent(&windows), windows.counted(&peer)), (None, None));
        // Ten packets each second; all of the first ten seconds are lost.
        for second in 0..=300_u64 {
            let counts = PacketCounts { sent: second * 10, lost: second.min(10) * 10 };
            windows.sample(Time::from_millis(second * 1000), &BTreeMap::from([(peer, counts)]));
            match second {
                0 => assert_eq!(recent(&windows), None, "no packet in no time"),
                5 => assert_eq!(recent(&windows), Some((50, 50, 5))),
                65 => assert_eq!(recent(&windows), Some((600, 50, 60))),
                _ => {}
            }
        }
        assert_eq!(recent(&windows), Some((600, 0, 60)));
        assert_eq!(windows.counted(&peer), Some(PacketCounts { sent: 3000, lost: 100 }));
        assert!(windows.0[&peer].len() <= 62, "{}", windows.0[&peer].len());
        windows.sample(Time::from_millis(301_000), &BTreeMap::new());
        assert_eq!((recent(&windows), windows.counted(&peer)), (None, None), "it is forgotten");
    }

    #[test]
    fn a_loss_that_is_known_late_is_no_more_than_all_that_was_sent() {
        let (mut windows, peer) = (PacketWindows::default(), NodeId([1; 32]));
        for (second, sent, lost) in [(0, 100, 0), (61, 100, 0), (62, 101, 9)] {
            let counts = BTreeMap::from([(peer, PacketCounts { sent, lost })]);
            windows.sample(Time::from_millis(second * 1000), &counts);
        }
        assert_eq!(windows.recent(&peer).unwrap().counts, PacketCounts { sent: 1, lost: 1 });
    }
}
