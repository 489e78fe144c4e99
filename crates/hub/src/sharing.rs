//! Who of several nodes that fetch the same file asks the hub for which of its chunks.
//!
//! Each decides for itself, from what the others say to have and to be fetching, and all by one rule; nothing
//! is reserved. A node that is gone is in no answer, so what was its share is shared out anew at the next
//! look, and no node is waited for without an end.

use std::collections::BTreeMap;
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

/// A node that fetches of the same file, too, as far as it says.
pub trait Sharer {
    /// Its id: all nodes sort by it.
    fn node(&self) -> [u8; 32];
    /// Whether it has the chunk.
    fn has(&self, chunk: u32) -> bool;
    /// Whether the chunk is on its way to it from the hub.
    fn brings(&self, chunk: u32) -> bool;
    /// Whether it asks the hub for the chunk, unless another brings it.
    fn wants(&self, chunk: u32) -> bool;
    /// Whether anything is on its way to it. One that has to wait for the hub keeps no share.
    fn is_fetching(&self) -> bool {
        true
    }
}

/// What another node has of a file of which it fetches, too.
#[derive(Clone, Debug)]
pub struct OtherFetch {
    /// Its id.
    pub node: [u8; 32],
    /// As it says.
    pub state: PartialState,
    /// Whether it fetches all of it: else only what is on its way is left to it.
    pub is_whole: bool,
}

impl Sharer for OtherFetch {
    fn node(&self) -> [u8; 32] {
        self.node
    }

    fn has(&self, chunk: u32) -> bool {
        self.state.held.has(chunk)
    }

    fn brings(&self, chunk: u32) -> bool {
        self.state.coming.has(chunk)
    }

    fn wants(&self, _: u32) -> bool {
        self.is_whole
    }

    fn is_fetching(&self) -> bool {
        self.state.coming.has_any()
    }
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
struct Fetchers<'a, S> {
    own: [u8; 32],
    others: &'a [S],
    /// Of all, in order.
    ids: Vec<[u8; 32]>,
    stripe_chunks: u32,
}

/// Of chunks that are missing here, of a file of `chunks` chunks, those that are left to others: what is on
/// its way to one, and the shares of those that want it, too. The rest is for this node to ask the hub for.
pub fn left_to_others<S: Sharer>(own: [u8; 32], chunks: u32, missing: &[u32], others: &[S]) -> Vec<u32> {
    Fetchers::new(own, others, chunks).left(missing)
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
        let index = |start: u64| u32::try_from(start / CHUNK_BYTES).unwrap_or(u32::MAX);
        let ranges = file.ranges.iter().map(|range| (index(range.0), *range));
        let missing: BTreeMap<u32, (u64, u64)> = ranges.filter(|(chunk, _)| !fetchers.has(*chunk)).collect();
        let chunks: Vec<u32> = missing.keys().copied().collect();
        let left = fetchers.left(&chunks);
        let is_idle = !left.is_empty() && left.len() == chunks.len();
        let before = std::mem::replace(&mut self.idle_at, is_idle.then_some(now));
        if let Some(before) = before.filter(|_| is_idle) {
            self.waited = self.waited.saturating_add(now.saturating_duration_since(before));
        }
        if is_idle && self.waited >= IDLE_MAX {
            let (chunks, seconds) = (left.len(), IDLE_MAX.as_secs());
            tracing::info!(
                target: "events::model",
                chunks,
                seconds,
                "members did not bring what they were to fetch of a file: the hub is asked for it"
            );
            self.has_given_up = true;
            return Vec::new();
        }
        left.iter().filter_map(|chunk| missing.get(chunk).copied()).collect()
    }
}

impl<'a, S: Sharer> Fetchers<'a, S> {
    fn new(own: [u8; 32], others: &'a [S], chunks: u32) -> Self {
        let mut ids: Vec<[u8; 32]> = others.iter().map(S::node).chain([own]).collect();
        ids.sort_unstable();
        ids.dedup();
        let stripes = STRIPES_OF_NODE.saturating_mul(u32::try_from(ids.len()).unwrap_or(u32::MAX));
        Self { own, others, ids, stripe_chunks: (chunks / stripes.max(1)).clamp(1, STRIPE_CHUNKS_MAX) }
    }

    /// Of what no other has, what is left to others.
    fn left(&self, missing: &[u32]) -> Vec<u32> {
        let (mut left, mut has_own) = (Vec::new(), false);
        let mut of_others: BTreeMap<[u8; 32], Vec<u32>> = BTreeMap::new();
        for chunk in missing.iter().copied() {
            let owner = self.owner(chunk);
            match self.others.iter().any(|other| other.brings(chunk)) {
                true => left.push(chunk),
                false if owner == self.own => has_own = true,
                false => of_others.entry(owner).or_default().push(chunk),
            }
        }
        for (owner, chunks) in of_others {
            // Who is done takes over the last of what a slower one has not begun.
            let taken = if has_own { 0..0 } else { self.taken_over(self.own, owner, chunks.len()) };
            let kept = chunks.into_iter().enumerate().filter(|(at, _)| !taken.contains(at));
            left.extend(kept.map(|(_, chunk)| chunk));
        }
        left
    }

    fn has(&self, chunk: u32) -> bool {
        self.others.iter().any(|other| other.has(chunk))
    }

    /// Whose stripe a chunk is in, of those that want it.
    fn owner(&self, chunk: u32) -> [u8; 32] {
        let wants = |id: &[u8; 32]| {
            *id == self.own || self.others.iter().any(|other| other.node() == *id && other.wants(chunk))
        };
        let wanting: Vec<[u8; 32]> = self.ids.iter().copied().filter(wants).collect();
        let stripe = (chunk / self.stripe_chunks) as usize;
        wanting.get(stripe % wanting.len().max(1)).copied().unwrap_or(self.own)
    }

    /// Of so many chunks that an owner has not begun, those that another node takes over: each another part,
    /// and the owner keeps the first one, with which it goes on, if it fetches at all.
    fn taken_over(&self, taker: [u8; 32], owner: [u8; 32], chunks: usize) -> std::ops::Range<usize> {
        let position = |id| self.ids.iter().position(|other| *other == id).unwrap_or(0);
        let nodes = self.ids.len();
        let part = (position(taker) + nodes - position(owner)) % nodes;
        let is_fetching = self.others.iter().any(|other| other.node() == owner && other.is_fetching());
        let (part, parts) = match part.checked_sub(1).filter(|_| !is_fetching) {
            Some(part_of_others) => (part_of_others, nodes - 1),
            None => (part, nodes),
        };
        (chunks * part).div_ceil(parts)..(chunks * (part + 1)).div_ceil(parts)
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
        OtherFetch { node: [node; 32], state, is_whole: true }
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

    /// A node that fetches layers: the chunks that it wants, and those on their way to it.
    struct Layers(u8, std::ops::Range<u32>, &'static [u32]);

    impl Sharer for Layers {
        fn node(&self) -> [u8; 32] {
            [self.0; 32]
        }

        fn has(&self, _: u32) -> bool {
            false
        }

        fn brings(&self, chunk: u32) -> bool {
            self.2.contains(&chunk)
        }

        fn wants(&self, chunk: u32) -> bool {
            self.1.contains(&chunk)
        }
    }

    #[test]
    fn of_layers_that_overlap_the_common_chunks_alone_are_shared_out() {
        let (of_first, of_second): (Vec<u32>, Vec<u32>) = ((0..20).collect(), (10..COUNT).collect());
        let left_by_first = left_to_others([1; 32], COUNT, &of_first, &[Layers(2, 10..COUNT, &[])]);
        let left_by_second = left_to_others([2; 32], COUNT, &of_second, &[Layers(1, 0..20, &[])]);
        let mut both = [left_by_first.clone(), left_by_second].concat();
        both.sort_unstable();
        assert_eq!(both, (10..20).collect::<Vec<u32>>(), "each common chunk is left by one of them");
        assert!(!left_by_first.is_empty() && left_by_first.len() < 10, "{left_by_first:?}");
        // A third one that wants nothing of them changes nothing; what it brings is left to it.
        let others = [Layers(2, 10..COUNT, &[]), Layers(3, 0..0, &[4])];
        let left = left_to_others([1; 32], COUNT, &[4], &others);
        assert_eq!(left, [4]);
    }

    #[test]
    fn who_is_done_takes_over_the_end_of_what_others_have_not_begun_each_another_part() {
        let (none, now) = (|_: u32| false, Instant::now());
        let first = other(1, none, |index| index == COUNT - 1);
        let (second, third) = (other(2, none, none), other(3, none, none));
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
    fn of_one_to_which_nothing_is_on_its_way_all_is_taken_over_each_chunk_by_one() {
        let (none, now) = (|_: u32| false, Instant::now());
        let waits = || other(1, none, none);
        // Its own chunks are here, or on their way to the third one.
        let [second, third] = [2, 3].map(|node| other(node, none, |index| index == 31));
        let of_second = [waits(), third];
        let fetchers = Fetchers::new([2; 32], &of_second, COUNT);
        let of_first: Vec<u32> = (0..COUNT - 1).filter(|index| fetchers.owner(*index) == [1; 32]).collect();
        let taken_by = |own: u8, wanted: &[u32], others: &[OtherFetch]| -> Vec<u32> {
            let left = awaited(&mut Sharing::new([own; 32]), now, wanted, others);
            wanted.iter().copied().filter(|index| !left.contains(index)).collect()
        };
        let mut taken = taken_by(2, &of_first, &of_second);
        assert!(!taken.is_empty() && taken.len() < of_first.len(), "{taken:?}");
        taken.extend(taken_by(3, &of_first, &[waits(), second]));
        taken.sort_unstable();
        assert_eq!(taken, of_first);
        // The last one as well.
        assert_eq!(taken_by(2, &of_first[..1], &[waits()]), of_first[..1]);
        let fetches = other(1, none, |index| index == 31);
        assert_eq!(taken_by(2, &of_first[..1], &[fetches]), [0; 0]);
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
