//! Ranges of a file, put together of chunks in the order in which members give them.

use std::collections::BTreeMap;

use exo_hub::{GivenRange, HubError, LeaveRange, TakeRange};
use exo_store::ChunkRef;

/// Holes in a range for which the hub is asked hole by hole: one request each.
const HOLES_MAX: usize = 8;
/// Ranges of which members do not have all, kept in memory until the others are there: of 4 MiB each.
const WITH_HOLES_MAX: usize = 16;
/// Ranges in memory at once: those, and what three members are asked for at a time.
const OPEN_MAX: usize = WITH_HOLES_MAX + 24;

/// How a file is cut into chunks: members that cut it alike are asked for the same ones.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Layout {
    /// Which file of the model it is.
    pub file: u32,
    pub size: u64,
    pub chunk_bytes: u32,
}

impl Layout {
    /// The chunks that lie in a range, with their start and end.
    pub fn chunks_in(self, (start, end): (u64, u64)) -> impl Iterator<Item = (ChunkRef, (u64, u64))> {
        let step = u64::from(self.chunk_bytes.max(1));
        (start.div_ceil(step)..end.div_ceil(step)).filter_map(move |index| {
            let from = index * step;
            let to = from.saturating_add(step).min(self.size);
            let chunk = ChunkRef { file: self.file, index: u32::try_from(index).ok()? };
            (to <= end).then_some((chunk, (from, to)))
        })
    }
}

/// Hears how many bytes a member gave of a range that is handed over.
pub type NoteGiven<'a> = dyn Fn(&str, u64) + 'a;

/// The ranges of one file that members have, or most of.
pub struct Assembly<'t, 'f> {
    leave: &'t LeaveRange<'t>,
    take: &'t mut TakeRange<'f>,
    note: &'t NoteGiven<'t>,
    /// Start and end of those of which nothing came.
    untouched: BTreeMap<u64, u64>,
    /// By start, those of which something came.
    open: BTreeMap<u64, OpenRange>,
    /// Why nothing more is taken.
    failure: Option<HubError>,
}

/// A range of which something came.
struct OpenRange {
    bytes: Vec<u8>,
    /// Start and end in the file of what did not come.
    holes: Vec<(u64, u64)>,
    /// Bytes of what was missing, by who gave them.
    given: BTreeMap<String, u64>,
}

impl OpenRange {
    /// Start and end in the file.
    fn range(&self, start: u64) -> (u64, u64) {
        (start, start.saturating_add(self.bytes.len() as u64))
    }
}

impl<'t, 'f> Assembly<'t, 'f> {
    /// Of these ranges those of which members have enough: `parts` says what they have of each. The others
    /// are left to the hub at once.
    pub fn new(
        ranges: &[(u64, u64)],
        parts: impl Fn((u64, u64)) -> Vec<(u64, u64)>,
        leave: &'t LeaveRange<'t>,
        take: &'t mut TakeRange<'f>,
        note: &'t NoteGiven<'t>,
    ) -> Self {
        let (mut untouched, mut with_holes) = (BTreeMap::new(), 0);
        for &range in ranges {
            let holes = parts(range).into_iter().fold(vec![range], |holes, part| without(&holes, part));
            let is_taken = holes.is_empty() || (is_worth_it(&holes, range) && with_holes < WITH_HOLES_MAX);
            if is_taken {
                with_holes += usize::from(!holes.is_empty());
                untouched.insert(range.0, range.1);
            } else {
                leave(range);
            }
        }
        Self { leave, take, note, untouched, open: BTreeMap::new(), failure: None }
    }

    /// The chunks of which something is missing.
    pub fn missing(&self, layout: Layout) -> Vec<ChunkRef> {
        let untouched = self.untouched.iter().flat_map(|(start, end)| layout.chunks_in((*start, *end)));
        let open = self.open.iter().flat_map(|(start, range)| {
            let is_missing = move |(_, (from, to)): &(ChunkRef, (u64, u64))| {
                range.holes.iter().any(|(hole_from, hole_to)| hole_from < to && from < hole_to)
            };
            layout.chunks_in(range.range(*start)).filter(is_missing)
        });
        untouched.chain(open).map(|(chunk, _)| chunk).collect()
    }

    /// Puts a chunk that begins at `start` into its range; false if nothing more is taken.
    pub fn put(&mut self, giver: &str, start: u64, bytes: &[u8]) -> bool {
        if self.is_over() {
            return false;
        }
        self.open_at(start);
        // Its range may be whole by now, or left to the hub.
        let Some((&from, range)) = self.open.range_mut(..=start).next_back() else { return true };
        let at = usize::try_from(start - from).unwrap_or(usize::MAX);
        let end = at.saturating_add(bytes.len());
        let Some(into) = range.bytes.get_mut(at..end) else { return true };
        into.copy_from_slice(bytes);
        let missing_bytes = bytes_of(&range.holes);
        range.holes = without(&range.holes, (start, start + bytes.len() as u64));
        let given_bytes = missing_bytes - bytes_of(&range.holes);
        if given_bytes > 0 {
            *range.given.entry(giver.to_owned()).or_default() += given_bytes;
        }
        if range.holes.is_empty() {
            self.hand_over(from);
        }
        !self.is_over()
    }

    /// Whether nothing more is taken.
    pub fn is_over(&self) -> bool {
        self.failure.is_some()
    }

    /// Hands over what is not whole but nearly so. Whether all was taken.
    pub fn finish(mut self) -> Result<(), HubError> {
        let is_nearly_whole = |(start, range): (&u64, &OpenRange)| {
            is_worth_it(&range.holes, range.range(*start)).then_some(*start)
        };
        for start in self.open.iter().filter_map(is_nearly_whole).collect::<Vec<_>>() {
            if !self.is_over() {
                self.hand_over(start);
            }
        }
        self.failure.map_or(Ok(()), Err)
    }

    /// Makes memory for the range that has this byte, if nothing came of it yet.
    fn open_at(&mut self, at: u64) {
        let found = self.untouched.range(..=at).next_back().filter(|(_, end)| at < **end);
        let Some((&start, &end)) = found else { return };
        self.untouched.remove(&start);
        if self.open.len() >= OPEN_MAX
            && let Some((stuck, range)) = self.open.pop_first()
        {
            tracing::debug!(start = stuck, "a range waits for too long for members: the hub is asked for it");
            (self.leave)(range.range(stuck));
        }
        let bytes = vec![0; usize::try_from(end - start).unwrap_or(0)];
        self.open.insert(start, OpenRange { bytes, holes: vec![(start, end)], given: BTreeMap::new() });
    }

    fn hand_over(&mut self, start: u64) {
        let Some(mut open) = self.open.remove(&start) else { return };
        let range = open.range(start);
        open.given.iter().for_each(|(giver, bytes)| (self.note)(giver, *bytes));
        let given = GivenRange { range, bytes: &mut open.bytes, holes: &open.holes };
        self.failure = (self.take)(given).err();
    }
}

/// What is missing once a part has come.
fn without(holes: &[(u64, u64)], (start, end): (u64, u64)) -> Vec<(u64, u64)> {
    let around = holes.iter().flat_map(|&(from, to)| [(from, to.min(start)), (from.max(end), to)]);
    around.filter(|(from, to)| from < to).collect()
}

/// Bytes of holes, which lie in one range.
fn bytes_of(holes: &[(u64, u64)]) -> u64 {
    holes.iter().map(|(from, to)| to - from).sum()
}

/// Whether most of the range comes of members, and few requests bring the rest.
fn is_worth_it(holes: &[(u64, u64)], (start, end): (u64, u64)) -> bool {
    holes.len() <= HOLES_MAX && bytes_of(holes) <= end.saturating_sub(start) / 2
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;

    use super::*;

    const CHUNK: u64 = 64 << 10;
    /// Chunks of a range.
    const COUNT: u64 = 64;
    const LAYOUT: Layout = Layout { file: 0, size: u64::MAX, chunk_bytes: CHUNK as u32 };

    fn range(number: u64) -> (u64, u64) {
        (number * COUNT * CHUNK, (number + 1) * COUNT * CHUNK)
    }

    /// What of one range is asked for, if members have these of its chunks; nothing if the hub is asked.
    fn asked(has: impl Fn(u64) -> bool) -> Vec<u64> {
        let left = RefCell::new(Vec::new());
        let leave = |range: (u64, u64)| left.borrow_mut().push(range);
        let take = &mut |_: GivenRange<'_>| Ok::<(), HubError>(());
        let note = |_: &str, _: u64| {};
        let parts = |range: (u64, u64)| -> Vec<(u64, u64)> {
            let parts = LAYOUT.chunks_in(range).filter(|(chunk, _)| has(u64::from(chunk.index) - COUNT));
            parts.map(|(_, part)| part).collect()
        };
        let assembly = Assembly::new(&[range(1)], parts, &leave, take, &note);
        let missing = assembly.missing(LAYOUT);
        assert_eq!(left.borrow().is_empty(), !missing.is_empty());
        missing.into_iter().map(|chunk| u64::from(chunk.index) - COUNT).collect()
    }

    #[test]
    fn a_range_of_which_little_or_only_scattered_chunks_are_there_is_left_to_the_hub() {
        let all: Vec<u64> = (0..COUNT).collect();
        assert_eq!(asked(|_| true), all);
        assert_eq!(asked(|index| ![6, 7, 26].contains(&index)), all, "two holes");
        assert_eq!(asked(|index| index >= 32), all, "half of it");
        assert!(asked(|index| index >= 33).is_empty(), "less than half");
        assert!(asked(|index| index % 5 != 0).is_empty(), "scattered");
        assert!(asked(|_| false).is_empty());
    }

    #[test]
    fn a_range_is_handed_over_when_its_last_chunk_comes_and_what_has_a_hole_at_the_end() {
        let taken = RefCell::new(Vec::new());
        let take = &mut |given: GivenRange<'_>| {
            taken.borrow_mut().push((given.range, given.holes.to_vec()));
            Ok::<(), HubError>(())
        };
        let (leave, no_holes) = (|_: (u64, u64)| {}, Vec::<(u64, u64)>::new());
        let given = RefCell::new(Vec::new());
        let note = |giver: &str, bytes: u64| given.borrow_mut().push((giver.to_owned(), bytes));
        let mut assembly = Assembly::new(&[range(0), range(1)], |range| vec![range], &leave, take, &note);
        for (chunk, (start, _)) in LAYOUT.chunks_in((0, range(1).1)).filter(|(chunk, _)| chunk.index != 5) {
            assert!(assembly.put("ann", start, &[1; CHUNK as usize]), "{chunk}");
        }
        assert_eq!(assembly.missing(LAYOUT), [ChunkRef { file: 0, index: 5 }]);
        assert_eq!(*taken.borrow(), [(range(1), no_holes)]);
        assert!(assembly.put("bob", CHUNK, &[1; CHUNK as usize]), "ann gave that");
        assert!(assembly.finish().is_ok());
        let of = |giver: &str| -> u64 {
            given.borrow().iter().filter(|(name, _)| name == giver).map(|(_, bytes)| bytes).sum()
        };
        assert_eq!((of("ann"), of("bob")), ((2 * COUNT - 1) * CHUNK, 0));
        assert_eq!(taken.borrow()[1..], [(range(0), vec![(5 * CHUNK, 6 * CHUNK)])]);
    }

    #[test]
    fn of_many_ranges_that_are_begun_and_not_whole_the_first_is_left_to_the_hub() {
        let left = RefCell::new(Vec::new());
        let leave = |range: (u64, u64)| left.borrow_mut().push(range);
        let take = &mut |_: GivenRange<'_>| Err::<(), HubError>(HubError::Cancelled);
        let given = RefCell::new(0);
        let note = |_: &str, bytes: u64| *given.borrow_mut() += bytes;
        let ranges: Vec<(u64, u64)> = (0..=OPEN_MAX as u64).map(range).collect();
        let mut assembly = Assembly::new(&ranges, |range| vec![range], &leave, take, &note);
        for (start, _) in &ranges {
            assert!(assembly.put("ann", *start, &[1; CHUNK as usize]));
        }
        assert_eq!(*left.borrow(), [range(0)]);
        assert!(assembly.put("ann", CHUNK, &[1; CHUNK as usize]), "that is not needed any more");
        // Who takes them ends it.
        let rest = vec![1u8; ((COUNT - 1) * CHUNK) as usize];
        assert!(!assembly.put("ann", range(1).0 + CHUNK, &rest) && assembly.is_over());
        assert_eq!(*given.borrow(), COUNT * CHUNK, "what the hub gives after all counts for no member");
        assert!(matches!(assembly.finish(), Err(HubError::Cancelled)));
    }
}
