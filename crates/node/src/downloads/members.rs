//! Files of a download from members that have them, whole or in layers: up to three at once, and no chunk
//! that they have is asked of the hub.
//!
//! A member names the model that has the file; its chunks are then asked for, shared among members and
//! checked as those of layers are. That it is the hub's file the SHA-256 of all of it says, as of what a hub
//! sends.

use std::cell::RefCell;
use std::cmp::Reverse;
use std::collections::BTreeSet;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use exo_api::{ClusterView, FetchSourceView, NodeView};
use exo_hub::{Cancel, HubError, LeaveRange, Nearby, TakeRange, WantedFile};
use exo_machine::Holder;
use exo_store::{ChunkRef, HeldMap, Manifest};
use exo_transport::Endpoint;
use exo_types::ModelId;
use futures_util::StreamExt;
use futures_util::future::join_all;
use tokio::runtime::Handle;

use super::DownloadsInner;
use super::assembly::{Assembly, Layout, NoteGiven};
use crate::bulk::{ChunkShare, FetchError, Fetcher, MemberError, holder_of};
use crate::bulk::{RefusedChunks, SOURCES_MAX, SharedChunks};
use crate::source_bytes::{SourceBytes, SourceShare};
use exo_accelerators::chain;

/// Between two looks at what members have meanwhile, of what the hub is not sending yet.
const AGAIN_AFTER: Duration = Duration::from_secs(20);
/// For a member to say what it has: meanwhile the hub is not asked for what that may be.
const ASKED_MAX: Duration = Duration::from_secs(10);
/// Between two looks at a wish to end.
const WISH_LOOK_EVERY: Duration = Duration::from_millis(200);

/// The members of this node's cluster.
pub struct Members<'a> {
    shared: &'a DownloadsInner,
    runtime: Handle,
    state: Mutex<State>,
}

/// Members by their names.
struct State {
    given: SourceBytes<String>,
    /// Asked no more in this download: of many files each would wait for them, or would come wrong.
    silent: BTreeSet<String>,
}

/// What a member has of the file.
struct MemberCopy {
    member: String,
    holder: Holder,
    model: ModelId,
    manifest: Manifest,
    layout: Layout,
    /// Of layers; `None` where it has the whole model.
    held: Option<HeldMap>,
    refused: RefusedChunks,
}

impl MemberCopy {
    fn has(&self, chunk: ChunkRef) -> bool {
        self.held.as_ref().is_none_or(|held| held.has(chunk)) && !self.refused.has(chunk)
    }

    /// Gives its share of the file; `None` if it failed: nothing more of the file is asked of it then.
    async fn give(
        mut self,
        endpoint: &Endpoint,
        share: ChunkShare<'_>,
        assembly: &RefCell<Assembly<'_, '_>>,
    ) -> Option<Self> {
        if !share.offer(|chunk| self.has(chunk)) {
            return Some(self);
        }
        // One that waited for its turn would have hung up by now.
        let dialled = tokio::select! {
            biased;
            () = share.over() => return Some(self),
            dialled = Fetcher::dial(endpoint, self.holder.node, &self.holder.addresses) => dialled,
        };
        let given = match dialled {
            Ok(fetcher) => self.give_over(fetcher, &share, assembly).await,
            Err(error) => Err(error),
        };
        match given {
            Ok(()) => Some(self),
            Err(error) => {
                error.report();
                None
            }
        }
    }

    async fn give_over(
        &mut self,
        mut fetcher: Fetcher,
        share: &ChunkShare<'_>,
        assembly: &RefCell<Assembly<'_, '_>>,
    ) -> Result<(), FetchError> {
        let (member, manifest) = (&self.member, &self.manifest);
        let mut place = |chunk: ChunkRef, came: bytes::Bytes| {
            assembly.borrow_mut().put(member, manifest.chunk_start(chunk), &came)
        };
        fetcher.read((self.model, manifest), share, &mut self.refused, &mut place).await
    }
}

impl<'a> Members<'a> {
    /// Of the cluster as it is when they are asked. Must be called within the node's runtime.
    pub fn new(shared: &'a DownloadsInner) -> Self {
        let state = State { given: SourceBytes::new(Instant::now()), silent: BTreeSet::new() };
        Self { shared, runtime: Handle::current(), state: Mutex::new(state) }
    }

    /// Of the bytes that have come, what came from where, the most first; nothing where that is one source.
    pub fn sources(&self, came_bytes: u64) -> Vec<FetchSourceView> {
        let shares = self.lock().given.shares(came_bytes, Instant::now());
        let view = |share: SourceShare<String>| FetchSourceView {
            member: share.member,
            bytes: share.bytes,
            bytes_per_s: share.bytes_per_s,
        };
        shares.into_iter().map(view).collect()
    }

    async fn take(
        &self,
        file: &WantedFile<'_>,
        leave: &LeaveRange<'_>,
        take: &mut TakeRange<'_>,
    ) -> Result<(), HubError> {
        let copies = self.copies(file).await;
        let endpoint = self.shared.library.endpoint();
        let note = |member: &str, bytes: u64| self.lock().given.note(member.to_owned(), bytes);
        gather(endpoint, copies, file.ranges, leave, take, &note).await
    }

    /// What members have of the file, that of the nearest first.
    async fn copies(&self, file: &WantedFile<'_>) -> Vec<MemberCopy> {
        let mut nodes = nearest_first(&self.shared.view.borrow());
        nodes.retain(|node| !self.lock().silent.contains(&node.name));
        let endpoint = self.shared.library.endpoint();
        let ask = |node| tokio::time::timeout(ASKED_MAX, copy_of(endpoint, node, file));
        let asked = join_all(nodes.iter().map(ask)).await;
        let late = |_| Err(MemberError::Late { seconds: ASKED_MAX.as_secs() });
        let mut copies = Vec::new();
        for (answer, node) in asked.into_iter().zip(nodes) {
            match answer.unwrap_or_else(late) {
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
    fn give(
        &self,
        file: &WantedFile<'_>,
        cancel: &Cancel,
        leave: &LeaveRange<'_>,
        take: &mut TakeRange<'_>,
    ) -> Result<(), HubError> {
        self.runtime.block_on(async {
            tokio::select! {
                taken = self.take(file, leave, take) => taken,
                () = cancelled(cancel) => Err(HubError::Cancelled),
            }
        })
    }

    fn asked_again_after(&self) -> Option<Duration> {
        Some(AGAIN_AFTER)
    }

    fn givers(&self) -> String {
        self.lock().given.members().map(String::as_str).collect::<Vec<_>>().join(", ")
    }

    fn distrust_givers(&self) {
        let mut state = self.lock();
        let givers: Vec<String> = state.given.members().cloned().collect();
        state.silent.extend(givers);
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
    let holder = holder_of(node)?;
    let mut fetcher = Fetcher::dial(endpoint, holder.node, &holder.addresses).await?;
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
    let layout = Layout { file: copy.file, size: file.size, chunk_bytes: manifest.chunk_bytes };
    let (member, refused) = (node.name.clone(), RefusedChunks::default());
    Ok(Some(MemberCopy { member, holder, model: copy.model, manifest, layout, held, refused }))
}

/// Those that cut the file alike, the largest group first.
fn by_layout(copies: Vec<MemberCopy>) -> Vec<(Layout, Vec<MemberCopy>)> {
    let mut groups: Vec<(Layout, Vec<MemberCopy>)> = Vec::new();
    for copy in copies {
        match groups.iter_mut().find(|(layout, _)| *layout == copy.layout) {
            Some((_, group)) => group.push(copy),
            None => groups.push((copy.layout, vec![copy])),
        }
    }
    groups.sort_by_key(|(_, group)| Reverse(group.len()));
    groups
}

/// Brings what members have of these ranges, each chunk from one of a few that are asked at once. What a
/// member refuses, sends wrong or does not give in its time the others are asked for; of one that fails, or
/// refuses often, nothing more is taken.
async fn gather(
    endpoint: &Endpoint,
    copies: Vec<MemberCopy>,
    ranges: &[(u64, u64)],
    leave: &LeaveRange<'_>,
    take: &mut TakeRange<'_>,
    note: &NoteGiven<'_>,
) -> Result<(), HubError> {
    let groups = by_layout(copies);
    let parts = |range: (u64, u64)| -> Vec<(u64, u64)> {
        let parts_of = |(layout, group): &(Layout, Vec<MemberCopy>)| -> Vec<(u64, u64)> {
            let chunks = layout.chunks_in(range);
            let held = chunks.filter(|(chunk, _)| group.iter().any(|copy| copy.has(*chunk)));
            held.map(|(_, part)| part).collect()
        };
        groups.iter().flat_map(parts_of).collect()
    };
    let assembly = RefCell::new(Assembly::new(ranges, parts, leave, take, note));
    for (layout, mut group) in groups {
        loop {
            let missing = assembly.borrow().missing(layout);
            let shared = SharedChunks::new(&missing);
            let asks: Vec<_> =
                group.into_iter().map(|copy| copy.give(endpoint, shared.share(), &assembly)).collect();
            let answers: Vec<_> =
                futures_util::stream::iter(asks).buffer_unordered(SOURCES_MAX).collect().await;
            group = answers.into_iter().flatten().collect();
            if !shared.came_back() || assembly.borrow().is_over() {
                break;
            }
        }
    }
    assembly.into_inner().finish()
}

#[cfg(test)]
mod tests {
    use std::sync::{Arc, LazyLock};

    use exo_hub::GivenRange;
    use exo_store::{FileEntry, ModelKind};

    use super::*;
    use crate::bulk::testing::{FakeAnswer, FakeMember, KIND_HANGS_UP};
    use crate::bulk::{Ask, KIND_BYTES, KIND_REFUSED};

    const CHUNK: usize = 64 << 10;
    /// Of the file that members have.
    const COUNT: usize = 64;
    static FILE: LazyLock<Vec<u8>> =
        LazyLock::new(|| (0..COUNT * CHUNK).map(|at| (at / 251) as u8 ^ at as u8).collect());

    /// A member whose model has the file in chunks of that size.
    fn copy_at(member: &FakeMember, name: &str, chunk_bytes: usize) -> MemberCopy {
        let chunks = FILE.chunks(chunk_bytes).map(|chunk| *blake3::hash(chunk).as_bytes()).collect();
        let (size, head_bytes, shared) = ((COUNT * CHUNK) as u64, 0, Vec::new());
        let entry = FileEntry { name: "m.gguf".to_owned(), size, head_bytes, shared, chunks };
        let (name_of_model, chunk_bytes) = ("m".to_owned(), chunk_bytes as u32);
        let (kind, files) = (ModelKind::Gguf, vec![entry]);
        let manifest = Manifest { version: 1, name: name_of_model, kind, chunk_bytes, files, hub: None };
        MemberCopy {
            member: name.to_owned(),
            holder: Holder { node: member.node, addresses: vec![member.address] },
            model: manifest.root(),
            manifest,
            layout: Layout { file: 0, size, chunk_bytes },
            held: None,
            refused: RefusedChunks::default(),
        }
    }

    /// Answers with chunks of that size, of which `send` makes what is sent; notes which was asked for.
    fn answers(
        chunk_bytes: usize,
        asked: Arc<Mutex<Vec<u32>>>,
        send: impl Fn(u32, Vec<u8>) -> (u8, Vec<u8>) + Send + Sync + 'static,
    ) -> FakeAnswer {
        Box::new(move |ask| {
            let Ask::Chunk { chunk, .. } = ask else { return (KIND_REFUSED, b"no chunk".to_vec()) };
            asked.lock().unwrap().push(chunk.index);
            let at = chunk.index as usize * chunk_bytes;
            send(chunk.index, FILE[at..at + chunk_bytes].to_vec())
        })
    }

    /// What came of the file, with zeros for holes; the holes; and who gave something.
    async fn gathered(
        endpoint: &Endpoint,
        copies: Vec<MemberCopy>,
        ranges: &[(u64, u64)],
    ) -> (Vec<u8>, Vec<(u64, u64)>, BTreeSet<String>) {
        let (mut bytes, mut all_holes) = (vec![0u8; COUNT * CHUNK], Vec::<(u64, u64)>::new());
        let mut take = |given: GivenRange<'_>| {
            let (start, end) = given.range;
            bytes[start as usize..end as usize].copy_from_slice(given.bytes);
            all_holes.extend_from_slice(given.holes);
            Ok::<(), HubError>(())
        };
        let (leave, givers) = (|_: (u64, u64)| {}, Mutex::new(BTreeSet::new()));
        let note = |member: &str, _: u64| {
            givers.lock().unwrap().insert(member.to_owned());
        };
        gather(endpoint, copies, ranges, &leave, &mut take, &note).await.unwrap();
        (bytes, all_holes, givers.into_inner().unwrap())
    }

    /// Chunks of 64 KiB at one member, of 128 at the other: what the one refuses comes of the other, and is a
    /// hole where that refuses it, too.
    #[tokio::test]
    async fn members_with_chunks_of_two_sizes_complete_each_other() {
        let (small, large, none) = (CHUNK, 2 * CHUNK, u32::MAX);
        let hole = (3 * CHUNK as u64, 4 * CHUNK as u64);
        type Case = (u32, u32, bool, &'static [&'static str]);
        let cases: [Case; 4] = [
            (3, none, false, &["large", "small"]),
            (none, 1, true, &["large", "small"]),
            (3, 1, true, &["large", "small"]),
            (none, 1, false, &["small"]),
        ];
        for (small_refuses, large_refuses, is_large_first, expected_givers) in cases {
            let but = |refused: u32| {
                move |index: u32, bytes: Vec<u8>| match index == refused {
                    true => (KIND_REFUSED, b"damaged".to_vec()),
                    false => (KIND_BYTES, bytes),
                }
            };
            let both = vec![
                answers(small, Arc::default(), but(small_refuses)),
                answers(large, Arc::default(), but(large_refuses)),
            ];
            let members = FakeMember::start_all(both, Duration::ZERO).await;
            let mut copies = vec![copy_at(&members[0], "small", small), copy_at(&members[1], "large", large)];
            if is_large_first {
                copies.reverse();
            }
            let ranges = [(0, (COUNT * CHUNK) as u64)];
            let (bytes, holes, givers) = gathered(&members[0].own, copies, &ranges).await;
            let is_hole = small_refuses == 3 && large_refuses == 1;
            let mut expected = FILE.to_vec();
            if is_hole {
                expected[3 * CHUNK..4 * CHUNK].fill(0);
            }
            let expected_holes = if is_hole { vec![hole] } else { Vec::new() };
            assert_eq!(holes, expected_holes, "{small_refuses} {large_refuses}");
            assert_eq!(givers.iter().map(String::as_str).collect::<Vec<_>>(), expected_givers);
            assert!(bytes == expected, "{small_refuses} {large_refuses}");
        }
    }

    /// Brings the file from two members that take a moment for each answer, of which the second makes
    /// something of its own of its chunks. What each was asked for.
    async fn asked_of_two(
        second: impl Fn(usize, Vec<u8>) -> (u8, Vec<u8>) + Send + Sync + 'static,
    ) -> [Vec<u32>; 2] {
        let asked: [Arc<Mutex<Vec<u32>>>; 2] = Default::default();
        let counted = asked[1].clone();
        let both = vec![
            answers(CHUNK, asked[0].clone(), |_, bytes| (KIND_BYTES, bytes)),
            answers(CHUNK, asked[1].clone(), move |_, bytes| second(counted.lock().unwrap().len(), bytes)),
        ];
        let members = FakeMember::start_all(both, Duration::from_millis(5)).await;
        let copies = vec![copy_at(&members[0], "ann", CHUNK), copy_at(&members[1], "bob", CHUNK)];
        let step = 4 * CHUNK as u64;
        let ranges: Vec<(u64, u64)> =
            (0..COUNT as u64 / 4).map(|number| (number * step, (number + 1) * step)).collect();
        let (bytes, holes, _) = gathered(&members[0].own, copies, &ranges).await;
        assert!(bytes == *FILE && holes.is_empty(), "{holes:?}");
        asked.map(|of_one| of_one.lock().unwrap().clone())
    }

    #[tokio::test]
    async fn two_members_share_a_file_and_each_is_asked_for_its_chunks_alone() {
        let asked = asked_of_two(|_, bytes| (KIND_BYTES, bytes)).await;
        assert!(asked.iter().all(|of_one| !of_one.is_empty()), "{asked:?}");
        let mut of_both = asked.concat();
        of_both.sort_unstable();
        assert_eq!(of_both, (0..COUNT as u32).collect::<Vec<_>>());
    }

    #[tokio::test]
    async fn of_a_member_that_dies_in_the_middle_what_it_gave_stays_and_the_rest_comes_from_the_other() {
        let dies = |count: usize, bytes: Vec<u8>| {
            if count > 4 { (KIND_HANGS_UP, bytes) } else { (KIND_BYTES, bytes) }
        };
        let [first, second] = asked_of_two(dies).await;
        assert_eq!(second.len(), 5, "it hung up at the fifth: {second:?}");
        assert!((COUNT - 4..COUNT).contains(&first.len()), "{first:?}");
    }

    #[tokio::test]
    async fn what_a_member_sends_wrong_comes_from_the_other_and_one_that_often_does_is_given_up() {
        let [first, second] = asked_of_two(|count, mut bytes| {
            bytes[0] ^= u8::from(count == 2);
            (KIND_BYTES, bytes)
        })
        .await;
        assert_eq!(first.len() + second.len(), COUNT + 1, "one chunk came twice");
        assert!(second.len() > 2, "it goes on giving its others: {second:?}");
        let [first, second] = asked_of_two(|_, mut bytes| {
            bytes[0] ^= 1;
            (KIND_BYTES, bytes)
        })
        .await;
        assert_eq!(first.len(), COUNT);
        assert!(!second.is_empty() && second.len() < 20, "{second:?}");
    }
}
