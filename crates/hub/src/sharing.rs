//! Who of several nodes that fetch the same file asks the hub for which of its chunks.
//!
//! Each decides for itself, from what the others say to have and to be fetching, and all by one rule; nothing
//! is reserved. A node that is gone is in no answer, so what was its share is shared out anew at the next
//! look, and no node is waited for without an end.

use std::time::{Duration, Instant};

use crate::chunk_map::{CHUNK_BYTES, chunk_count};
use crate::nearby::WantedFile;
use crate::partial_files::PartialState;

/// Stripes of a file for each node: those of all come at about the same pace, from the file's start on.
const STRIPES_OF_NODE: u32 = 8;
/// The longest stripe: what one request asks for.
const STRIPE_CHUNKS_MAX: u32 = 16;
/// Who has nothing else to fetch waits no longer for what others have promised, all waits of a file together.
const IDLE_MAX: Duration = Duration::from_secs(30);

/// What another node has of a file that it fetches, too.
#[derive(Clone, Debug)]
pub struct OtherFetch {
    /// Its id: all nodes sort by it.
    pub node: [u8; 32],
    /// As it says.
    pub state: PartialState,
}

/// How one file is shared out, as one of the nodes sees it.
#[derive(Debug)]
pub struct Sharing {
    own: [u8; 32],
    /// The last look, if there was nothing to ask the hub for but what others had promised.
    idle_at: Option<Instant>,
    /// How long that was so.
    waited: Duration,
    /// Nobody is waited for any more.
    has_given_up: bool,
}

/// The nodes that fetch, and what they have.
struct Fetchers<'a> {
    others: &'a [OtherFetch],
    /// Of all, in order.
    ids: Vec<[u8; 32]>,
    stripe_chunks: u32,
}

impl Sharing {
    /// For the node with this id.
    pub fn new(own: [u8; 32]) -> Self {
        Self { own, idle_at: None, waited: Duration::ZERO, has_given_up: false }
    }

    /// Of what is wanted, the ranges that no other node has yet and that are left to them all the same. What
    /// is neither among these nor held by another is for this node to ask the hub for.
    pub fn awaited(&mut self, now: Instant, file: &WantedFile<'_>, others: &[OtherFetch]) -> Vec<(u64, u64)> {
        if others.is_empty() || self.has_given_up {
            self.idle_at = None;
            return Vec::new();
        }
        let fetchers = Fetchers::new(self.own, others, chunk_count(file.size));
        let index = |range: &(u64, u64)| u32::try_from(range.0 / CHUNK_BYTES).unwrap_or(u32::MAX);
        let missing = file.ranges.iter().copied().filter(|range| !fetchers.has(index(range)));
        let (mut awaited, free): (Vec<_>, Vec<_>) = missing.partition(|range| fetchers.bring(index(range)));
        let (own, free): (Vec<_>, Vec<_>) =
            free.into_iter().partition(|range| fetchers.owner(index(range)) == self.own);
        let mut is_idle = own.is_empty();
        for owner in &fetchers.ids {
            let is_its = |&&range: &&(u64, u64)| fetchers.owner(index(&range)) == *owner;
            let of_one: Vec<(u64, u64)> = free.iter().filter(is_its).copied().collect();
            // Who is done takes over the last of what a slower one has not begun.
            let taken =
                if own.is_empty() { fetchers.taken_over(self.own, *owner, of_one.len()) } else { 0..0 };
            is_idle &= taken.is_empty();
            let left = of_one.iter().enumerate().filter(|(at, _)| !taken.contains(at));
            awaited.extend(left.map(|(_, range)| *range));
        }
        is_idle &= !awaited.is_empty();
        let before = std::mem::replace(&mut self.idle_at, is_idle.then_some(now));
        if let Some(before) = before.filter(|_| is_idle) {
            self.waited = self.waited.saturating_add(now.saturating_duration_since(before));
        }
        if is_idle && self.waited >= IDLE_MAX {
            let (chunks, seconds) = (awaited.len(), IDLE_MAX.as_secs());
            tracing::info!(
                target: "events::model",
                chunks,
                seconds,
                "members did not bring what they were to fetch of a file: the hub is asked for it"
            );
            self.has_given_up = true;
            awaited.clear();
        }
        awaited
    }
}

impl<'a> Fetchers<'a> {
    fn new(own: [u8; 32], others: &'a [OtherFetch], chunks: u32) -> Self {
        let mut ids: Vec<[u8; 32]> = others.iter().map(|other| other.node).chain([own]).collect();
        ids.sort_unstable();
        ids.dedup();
        let stripes = STRIPES_OF_NODE.saturating_mul(u32::try_from(ids.len()).unwrap_or(u32::MAX));
        Self { others, ids, stripe_chunks: (chunks / stripes.max(1)).clamp(1, STRIPE_CHUNKS_MAX) }
    }

    fn has(&self, chunk: u32) -> bool {
        self.others.iter().any(|other| other.state.held.has(chunk))
    }

    /// Whether it is on its way to one of the others.
    fn bring(&self, chunk: u32) -> bool {
        self.others.iter().any(|other| other.state.coming.has(chunk))
    }

    /// Whose stripe a chunk is in.
    fn owner(&self, chunk: u32) -> [u8; 32] {
        let stripe = (chunk / self.stripe_chunks) as usize;
        self.ids[stripe % self.ids.len()]
    }

    /// Of so many chunks that an owner has not begun, those that another node takes over: each another part,
    /// and the owner keeps the first one, with which it goes on.
    fn taken_over(&self, taker: [u8; 32], owner: [u8; 32], chunks: usize) -> std::ops::Range<usize> {
        let position = |id| self.ids.iter().position(|other| *other == id).unwrap_or(0);
        let nodes = self.ids.len();
        let part = (position(taker) + nodes - position(owner)) % nodes;
        (chunks * part).div_ceil(nodes)..(chunks * (part + 1)).div_ceil(nodes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::chunk_bits::ChunkBits;

    const COUNT: u32 = 32;

    fn range(index: u32) -> (u64, u64) {
        (u64::from(index) * CHUNK_BYTES, u64::from(index + 1) * CHUNK_BYTES)
    }

    fn other(node: u8, held: impl Fn(u32) -> bool, coming: impl Fn(u32) -> bool) -> OtherFetch {
        let state = PartialState { held: ChunkBits::of(COUNT, held), coming: ChunkBits::of(COUNT, coming) };
        OtherFetch { node: [node; 32], state }
    }

    /// Of the chunks that are wanted, those that are left to others.
    fn awaited(sharing: &mut Sharing, now: Instant, wanted: &[u32], others: &[OtherFetch]) -> Vec<u32> {
        let ranges: Vec<(u64, u64)> = wanted.iter().map(|index| range(*index)).collect();
        let file = WantedFile { sha256: [0; 32], size: range(COUNT - 1).1, ranges: &ranges };
        let mut left: Vec<u32> = sharing
            .awaited(now, &file, others)
            .into_iter()
            .map(|(start, _)| (start / CHUNK_BYTES) as u32)
            .collect();
        left.sort_unstable();
        left
    }

    #[test]
    fn two_nodes_share_all_chunks_out_so_that_each_is_asked_of_the_hub_by_one() {
        let (all, now): (Vec<u32>, _) = ((0..COUNT).collect(), Instant::now());
        let none = |_: u32| false;
        let of_first = awaited(&mut Sharing::new([1; 32]), now, &all, &[other(2, none, none)]);
        let of_second = awaited(&mut Sharing::new([2; 32]), now, &all, &[other(1, none, none)]);
        let mut both = [of_first.clone(), of_second].concat();
        both.sort_unstable();
        assert_eq!((both, of_first.len()), (all.clone(), 16));
        // What is under way is left to who fetches it, also of one's own stripes; alone nothing is.
        let left = awaited(&mut Sharing::new([1; 32]), now, &all, &[other(2, none, |index| index < 10)]);
        assert!((0..10).all(|index| left.contains(&index)));
        assert_eq!(awaited(&mut Sharing::new([1; 32]), now, &all, &[]), [0; 0]);
        // What it has comes from it.
        let left = awaited(&mut Sharing::new([1; 32]), now, &all, &[other(2, |index| index < 10, none)]);
        assert!(left.iter().all(|index| *index >= 10) && left.len() < 16, "{left:?}");
    }

    #[test]
    fn who_is_done_takes_over_the_end_of_what_others_have_not_begun_each_another_part() {
        let (none, now) = (|_: u32| false, Instant::now());
        let (first, second, third) = (other(1, none, none), other(2, none, none), other(3, none, none));
        let others_of_second = [first.clone(), third];
        let fetchers = Fetchers::new([2; 32], &others_of_second, COUNT);
        let of_first: Vec<u32> = (0..COUNT).filter(|index| fetchers.owner(*index) == [1; 32]).collect();
        let left_by_second = awaited(&mut Sharing::new([2; 32]), now, &of_first, &others_of_second);
        let left_by_third = awaited(&mut Sharing::new([3; 32]), now, &of_first, &[first, second]);
        let taken = |left: &[u32]| -> Vec<u32> {
            of_first.iter().copied().filter(|index| !left.contains(index)).collect()
        };
        let (by_second, by_third) = (taken(&left_by_second), taken(&left_by_third));
        assert!(!by_second.is_empty() && !by_third.is_empty());
        assert!(by_second.iter().all(|index| !by_third.contains(index)), "{by_second:?} {by_third:?}");
        assert!(!by_second.contains(&of_first[0]) && !by_third.contains(&of_first[0]));
    }

    #[test]
    fn a_promise_is_waited_for_while_it_is_all_that_is_missing_and_not_for_ever() {
        let (none, start) = (|_: u32| false, Instant::now());
        let (mut sharing, promised) = (Sharing::new([1; 32]), [other(2, none, |_| true)]);
        let at = |seconds| start + Duration::from_secs(seconds);
        assert_eq!(awaited(&mut sharing, at(0), &[3, 4], &promised), [3, 4]);
        assert_eq!(awaited(&mut sharing, at(29), &[3, 4], &promised), [3, 4]);
        assert_eq!(awaited(&mut sharing, at(30), &[3, 4], &promised), [0; 0]);
        assert_eq!(awaited(&mut sharing, at(31), &[3, 4], &promised), [0; 0], "for good");
        // What was fetched meanwhile makes no promise better.
        let mut sharing = Sharing::new([1; 32]);
        let (busy, is_3) = ([other(2, none, |index| index == 3)], |left: Vec<u32>| left == [3]);
        assert!(is_3(awaited(&mut sharing, at(0), &[3], &busy)));
        assert!(is_3(awaited(&mut sharing, at(20), &[3], &busy)));
        assert!(is_3(awaited(&mut sharing, at(40), &[0, 3], &busy)));
        assert!(is_3(awaited(&mut sharing, at(60), &[3], &busy)));
        assert!(is_3(awaited(&mut sharing, at(69), &[3], &busy)), "29 s");
        assert_eq!(awaited(&mut sharing, at(70), &[3], &busy), [0; 0]);
    }
}
