//! Files of a download from members that have them, whole or in layers: they are asked before the hub.
//!
//! A member names the model that has the file; its chunks are then asked for and checked as those of layers
//! are. That it is the hub's file the SHA-256 of all of it says, as of what a hub sends.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use exo_api::{ClusterView, NodeView};
use exo_hub::{Cancel, GivenRange, HubError, Nearby, TakeRange, WantedFile};
use exo_store::{ChunkRef, HeldMap, Manifest};
use exo_transport::Endpoint;
use exo_types::ModelId;
use futures_util::future::join_all;
use tokio::runtime::Handle;

use super::DownloadsInner;
use crate::bulk::RefusedChunks;
use crate::bulk::{Fetcher, MemberError};
use exo_accelerators::chain;

/// Between two looks at a wish to end.
const WISH_LOOK_EVERY: Duration = Duration::from_millis(200);
/// Holes in a range for which the hub is asked hole by hole: one request each.
const HOLES_MAX: usize = 8;
/// Ranges with holes that are kept in memory until the others are there: of 4 MiB each.
const WITH_HOLES_MAX: usize = 16;

/// The members of this node's cluster.
pub struct Members<'a> {
    shared: &'a DownloadsInner,
    state: Mutex<State>,
}

/// Names of members.
#[derive(Default)]
struct State {
    givers: BTreeSet<String>,
    /// Asked no more in this download: of many files each would wait for them.
    silent: BTreeSet<String>,
}

/// What a member has of the file.
struct MemberCopy {
    member: String,
    fetcher: Fetcher,
    model: ModelId,
    manifest: Manifest,
    file: u32,
    /// Of layers; `None` where it has the whole model.
    held: Option<HeldMap>,
    refused: RefusedChunks,
}

impl MemberCopy {
    /// The chunk that begins at `at`, and its end, if the member has it and it ends before `end_max`.
    fn chunk_at(&self, at: u64, end_max: u64) -> Option<(ChunkRef, u64)> {
        let index = u32::try_from(at / u64::from(self.manifest.chunk_bytes)).ok()?;
        let chunk = ChunkRef { file: self.file, index };
        let end = at + self.manifest.chunk_len(chunk)?;
        let is_here = self.held.as_ref().is_none_or(|held| held.has(chunk));
        let is_here = is_here && !self.refused.has(chunk);
        (is_here && self.manifest.chunk_start(chunk) == at && end <= end_max).then_some((chunk, end))
    }
}

impl<'a> Members<'a> {
    /// Of the cluster as it is when they are asked.
    pub fn new(shared: &'a DownloadsInner) -> Self {
        Self { shared, state: Mutex::default() }
    }

    async fn take(&self, file: &WantedFile<'_>, take: &mut TakeRange<'_>) -> Result<(), HubError> {
        let mut copies = self.copies(file).await;
        // The rest of them comes from the hub, which may be slow to answer: members would not wait for that.
        let mut with_holes = Vec::new();
        for &range in file.ranges {
            if copies.is_empty() {
                break;
            }
            let Some(mut brought) = bring(&mut copies, range).await else { continue };
            self.lock().givers.append(&mut brought.givers);
            match brought.holes.is_empty() {
                true => take(GivenRange { range, bytes: &mut brought.bytes, holes: &[] })?,
                false if with_holes.len() < WITH_HOLES_MAX => with_holes.push((range, brought)),
                false => {} // as if nobody had it
            }
        }
        drop(copies);
        for (range, mut brought) in with_holes {
            take(GivenRange { range, bytes: &mut brought.bytes, holes: &brought.holes })?;
        }
        Ok(())
    }

    /// What members have of the file, that of the nearest first.
    async fn copies(&self, file: &WantedFile<'_>) -> Vec<MemberCopy> {
        let mut nodes = nearest_first(&self.shared.view.borrow());
        nodes.retain(|node| !self.lock().silent.contains(&node.name));
        let endpoint = self.shared.library.endpoint();
        let asked = join_all(nodes.iter().map(|node| copy_of(endpoint, node, file))).await;
        let mut copies = Vec::new();
        for (answer, node) in asked.into_iter().zip(nodes) {
            match answer {
                Ok(copy) => copies.extend(copy),
                Err(error) => {
                    tracing::debug!(
                        peer = node.name,
                        error = chain(&error),
                        "a member does not say what it has"
                    );
                    self.lock().silent.insert(node.name);
                }
            }
        }
        copies
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Nearby for Members<'_> {
    fn give(&self, file: &WantedFile<'_>, cancel: &Cancel, take: &mut TakeRange<'_>) -> Result<(), HubError> {
        Handle::current().block_on(async {
            tokio::select! {
                taken = self.take(file, take) => taken,
                () = cancelled(cancel) => Err(HubError::Cancelled),
            }
        })
    }

    fn givers(&self) -> String {
        self.lock().givers.iter().map(String::as_str).collect::<Vec<_>>().join(", ")
    }
}

async fn cancelled(cancel: &Cancel) {
    while !cancel.is_cancelled() {
        tokio::time::sleep(WISH_LOOK_EVERY).await;
    }
}

/// The members that are there, by the round trip to them as this node measured it; those without one last.
fn nearest_first(view: &ClusterView) -> Vec<NodeView> {
    let is_other = |node: &&NodeView| !node.is_self && !node.status.is_gone();
    let mut nodes: Vec<NodeView> = view.nodes.iter().filter(is_other).cloned().collect();
    let own = view.nodes.iter().find(|node| node.is_self);
    let rtt_us = |node: &NodeView| {
        let own = own?;
        let link = view.links.iter().find(|link| link.from == own.id && link.to == node.id)?;
        link.rtt_ms.map(|ms| (1000.0 * ms) as u64)
    };
    nodes.sort_by_key(|node| (rtt_us(node).unwrap_or(u64::MAX), node.name.clone()));
    nodes
}

async fn copy_of(
    endpoint: &Endpoint,
    node: &NodeView,
    file: &WantedFile<'_>,
) -> Result<Option<MemberCopy>, MemberError> {
    let mut fetcher = Fetcher::dial_member(endpoint, node).await?;
    let Some(copy) = fetcher.copy_of(file.sha256).await? else { return Ok(None) };
    let manifest = fetcher.manifest(copy.model).await?;
    // It may have become another file of that name.
    if manifest.files.get(copy.file as usize).is_none_or(|entry| entry.size != file.size) {
        return Ok(None);
    }
    let held = match &manifest.hub {
        Some(_) => Some(fetcher.held(&manifest).await?.held),
        None => None,
    };
    let (member, model, file) = (node.name.clone(), copy.model, copy.file);
    let refused = RefusedChunks::default();
    Ok(Some(MemberCopy { member, fetcher, model, manifest, file, held, refused }))
}

/// A range, put together of what members have.
struct BroughtRange {
    bytes: Vec<u8>,
    /// Start and end in the file of what nobody gave.
    holes: Vec<(u64, u64)>,
    givers: BTreeSet<String>,
}

/// Which copy is asked for which chunks of a range, and what no copy has of it.
#[derive(PartialEq, Eq, Debug)]
struct RangePlan {
    /// Chunks and their ends, by copy.
    chunks: BTreeMap<usize, Vec<(ChunkRef, u64)>>,
    /// Start and end in the file.
    holes: Vec<(u64, u64)>,
}

impl RangePlan {
    /// `came` has the start and end of what is here; `chunk_at` finds who has the chunk that begins there.
    /// What nobody has is counted in steps of the smallest chunks.
    fn new(
        (start, end): (u64, u64),
        step: u64,
        came: &BTreeMap<u64, u64>,
        chunk_at: impl Fn(u64) -> Option<(usize, ChunkRef, u64)>,
    ) -> Self {
        let (mut chunks, mut holes): (BTreeMap<usize, Vec<_>>, Vec<(u64, u64)>) = Default::default();
        let mut at = start;
        while at < end {
            let next = if let Some(came_end) = came.get(&at) {
                *came_end
            } else if let Some((copy, chunk, chunk_end)) = chunk_at(at) {
                chunks.entry(copy).or_default().push((chunk, chunk_end));
                chunk_end
            } else {
                let next = (at / step.max(1)).saturating_add(1).saturating_mul(step).clamp(at + 1, end);
                match holes.last_mut().filter(|(_, hole_end)| *hole_end == at) {
                    Some(hole) => hole.1 = next,
                    None => holes.push((at, next)),
                }
                next
            };
            at = next;
        }
        Self { chunks, holes }
    }

    fn of(copies: &[MemberCopy], came: &BTreeMap<u64, u64>, range: (u64, u64)) -> Self {
        let step = copies.iter().map(|copy| u64::from(copy.manifest.chunk_bytes)).min();
        Self::new(range, step.unwrap_or(u64::MAX), came, |at| {
            let has = |(index, copy): (usize, &MemberCopy)| {
                let (chunk, chunk_end) = copy.chunk_at(at, range.1)?;
                Some((index, chunk, chunk_end))
            };
            copies.iter().enumerate().find_map(has)
        })
    }

    /// Whether most of the range comes of it, and few requests bring the rest.
    fn is_worth_it(&self, (start, end): (u64, u64)) -> bool {
        let missing_bytes: u64 = self.holes.iter().map(|(from, to)| to - from).sum();
        self.holes.len() <= HOLES_MAX && missing_bytes <= (end - start) / 2
    }
}

/// Brings a range, but for what no member gives of it; `None` if that is much. What a member refuses, or
/// sends wrong, the next one is asked for; of one that fails, or that does so often, nothing more is taken.
async fn bring(copies: &mut Vec<MemberCopy>, range: (u64, u64)) -> Option<BroughtRange> {
    let (start, end) = range;
    let mut bytes = vec![0; usize::try_from(end.checked_sub(start)?).ok()?];
    let (mut came, mut givers) = (BTreeMap::new(), BTreeSet::new());
    // Each round but the last asks a member for nothing more, or for one chunk less.
    'again: loop {
        let chunks = match RangePlan::of(copies, &came, range) {
            plan if !plan.is_worth_it(range) => return None,
            plan if plan.chunks.is_empty() => {
                return Some(BroughtRange { bytes, holes: plan.holes, givers });
            }
            plan => plan.chunks,
        };
        for (index, chunks) in chunks {
            let MemberCopy { member, fetcher, model, manifest, refused, .. } = &mut copies[index];
            let asked: Vec<ChunkRef> = chunks.iter().map(|(chunk, _)| *chunk).collect();
            if let Err(error) = fetcher.read((*model, manifest), &asked, (start, &mut bytes), refused).await {
                error.report();
                copies.remove(index);
                continue 'again;
            }
            let given = chunks.into_iter().filter(|(chunk, _)| !refused.has(*chunk));
            let before = came.len();
            came.extend(given.map(|(chunk, chunk_end)| (manifest.chunk_start(chunk), chunk_end)));
            if came.len() > before {
                givers.insert(member.clone());
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use exo_store::{FileEntry, ModelKind};

    use super::*;
    use crate::bulk::testing::FakeMember;
    use crate::bulk::{Ask, KIND_BYTES, KIND_REFUSED};

    const CHUNK: u64 = 64 << 10;
    /// Of the file that members have.
    const FILE_BYTES: usize = 8 * CHUNK as usize;

    fn file() -> Vec<u8> {
        (0..FILE_BYTES).map(|at| (at / 251) as u8 ^ at as u8).collect()
    }

    /// A member whose model has the file in chunks of that size, and that refuses one of them.
    async fn member(name: &str, chunk_bytes: usize, refused: u32) -> (FakeMember, MemberCopy) {
        let answering = move |ask| match ask {
            Ask::Chunk { chunk, .. } if chunk.index != refused => {
                let at = chunk.index as usize * chunk_bytes;
                (KIND_BYTES, file()[at..at + chunk_bytes].to_vec())
            }
            _ => (KIND_REFUSED, b"damaged".to_vec()),
        };
        let member = FakeMember::start(answering).await;
        let chunks = file().chunks(chunk_bytes).map(|chunk| *blake3::hash(chunk).as_bytes()).collect();
        let (size, head_bytes, shared) = (FILE_BYTES as u64, 0, Vec::new());
        let entry = FileEntry { name: "m.gguf".to_owned(), size, head_bytes, shared, chunks };
        let manifest = Manifest {
            version: 1,
            name: "m".to_owned(),
            kind: ModelKind::Gguf,
            chunk_bytes: chunk_bytes as u32,
            files: vec![entry],
            hub: None,
        };
        let (fetcher, model) = (member.dialled().await, manifest.root());
        let (held, refused) = (None, RefusedChunks::default());
        let copy = MemberCopy { member: name.to_owned(), fetcher, model, manifest, file: 0, held, refused };
        (member, copy)
    }

    /// Chunks of 64 KiB at one member, of 128 at the other: what the one refuses comes of the other where a
    /// chunk of it begins there, and is a hole elsewhere.
    #[tokio::test]
    async fn members_with_chunks_of_two_sizes_complete_each_other() {
        let (small, large) = (CHUNK as usize, 2 * CHUNK as usize);
        let none = u32::MAX;
        type Case = (u32, u32, bool, &'static [(u64, u64)], &'static [&'static str]);
        let cases: [Case; 4] = [
            (2, none, false, &[], &["large", "small"]),
            (3, none, false, &[(3 * CHUNK, 4 * CHUNK)], &["small"]),
            (none, 1, true, &[], &["large", "small"]),
            (3, 1, true, &[(3 * CHUNK, 4 * CHUNK)], &["large", "small"]),
        ];
        for (small_refuses, large_refuses, is_large_first, holes, givers) in cases {
            let (_one, first) = member("small", small, small_refuses).await;
            let (_other, second) = member("large", large, large_refuses).await;
            let mut copies = vec![first, second];
            if is_large_first {
                copies.reverse();
            }
            let brought = bring(&mut copies, (0, FILE_BYTES as u64)).await.unwrap();
            assert_eq!(brought.holes, holes, "{small_refuses} {large_refuses}");
            assert_eq!(brought.givers.iter().map(String::as_str).collect::<Vec<_>>(), givers);
            let mut expected = file();
            for (from, to) in holes {
                expected[*from as usize..*to as usize].fill(0);
            }
            assert!(brought.bytes == expected, "{small_refuses} {large_refuses}");
            assert_eq!(copies.len(), 2, "who refuses a chunk is asked for others");
        }
    }

    /// A plan for `count` chunks from the 64th of a file on; `has` says which copy has a chunk.
    fn plan(count: u64, came: &[u64], has: impl Fn(u64) -> Option<usize>) -> (RangePlan, (u64, u64)) {
        let range = (64 * CHUNK, (64 + count) * CHUNK);
        let came = came.iter().map(|index| (index * CHUNK, (index + 1) * CHUNK)).collect();
        let plan = RangePlan::new(range, CHUNK, &came, |at| {
            let index = at / CHUNK;
            Some((has(index)?, ChunkRef { file: 0, index: index as u32 }, at + CHUNK))
        });
        (plan, range)
    }

    #[test]
    fn what_no_member_has_of_a_range_is_a_hole_and_the_rest_comes_from_who_has_it() {
        let (plan, range) = plan(64, &[64, 65], |index| match index {
            70 | 71 | 90 => None,
            index => Some((index % 2) as usize),
        });
        assert_eq!(plan.holes, [(70 * CHUNK, 72 * CHUNK), (90 * CHUNK, 91 * CHUNK)]);
        let asked: usize = plan.chunks.values().map(Vec::len).sum();
        assert_eq!((asked, plan.chunks.len()), (64 - 2 - 3, 2));
        assert!(plan.is_worth_it(range));
    }

    #[test]
    fn a_range_of_which_little_or_only_scattered_chunks_are_there_is_left_to_the_hub() {
        let (half, range) = plan(64, &[], |index| (index >= 64 + 32).then_some(0));
        assert!(half.is_worth_it(range));
        let (less, range) = plan(64, &[], |index| (index >= 64 + 33).then_some(0));
        assert!(!less.is_worth_it(range));
        let (scattered, range) = plan(64, &[], |index| (index % 5 != 0).then_some(0));
        assert!(scattered.holes.len() > HOLES_MAX && !scattered.is_worth_it(range));
        let (none, range) = plan(64, &[], |_| None);
        assert!(none.holes == [range] && !none.is_worth_it(range));
    }
}
