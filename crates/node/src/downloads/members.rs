//! Files of a download from members that have them, whole, in layers or as far as they have fetched them
//! whole: up to three at once, and no chunk that they have is asked of the hub.
//!
//! A member names the model that has the file; its chunks are then asked for, shared among members and
//! checked as those of layers are. That it is the hub's file the SHA-256 of all of it says, as of what a hub
//! sends. Of a file that members fetch at the same time each asks the hub for [another part](Sharing).

use std::cell::RefCell;
use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use exo_api::{ClusterView, FetchSourceView, NodeView};
use exo_hub::{BLOCK_BYTES, CHUNK_BYTES, ChunkBits, PartialFiles, PartialState};
use exo_hub::{Cancel, HubError, LeaveRange, Nearby, OtherFetch, Sharing, TakeRange, WantedFile};
use exo_machine::Holder;
use exo_stdx::Mutex;
use exo_store::{ChunkRef, FileEntry, Manifest, ModelKind};
use exo_transport::Endpoint;
use exo_types::NodeId;
use futures_util::FutureExt;
use futures_util::future::{LocalBoxFuture, join_all};
use tokio::runtime::Handle;

use super::DownloadsInner;
use super::assembly::{Assembly, Layout, NoteGiven};
use crate::bulk::{AskedOf, ChunkShare, FetchError, Fetcher, MemberError, PeerChunks, holder_of};
use crate::bulk::{Givers, RefusedChunks, SharedChunks};
use crate::source_bytes::{SourceBytes, SourceShare};
use exo_accelerators::chain;

/// Between two looks at what members have meanwhile, of what the hub is not sending yet.
const AGAIN_AFTER: Duration = Duration::from_secs(20);
/// The same where a member fetches the file, too.
const SHARED_AGAIN_AFTER: Duration = Duration::from_secs(2);
/// After the first look at a member that does not fetch the file: it may be about to. Doubled after each
/// further one, up to [`AGAIN_AFTER`].
const BEGINS_WITHIN: Duration = Duration::from_secs(1);
/// A member that did not answer, or broke off, is asked nothing for so long: each file would wait for it.
const SILENT_FOR: Duration = Duration::from_secs(60);
/// A member that fetches the file gives what it has for so long at a time: what is missing then the hub is
/// asked for.
const PARTIAL_GIVES_MAX: Duration = Duration::from_secs(60);
/// For a member to say what it has: meanwhile the hub is not asked for what that may be.
const ASKED_MAX: Duration = Duration::from_secs(10);
/// Between two looks whether all that give are slow: then others are looked for.
const SLOW_LOOK_EVERY: Duration = Duration::from_secs(1);
/// Between two looks at a wish to end.
const WISH_LOOK_EVERY: Duration = Duration::from_millis(200);

/// The members of this node's cluster.
pub struct Members<'a> {
    shared: &'a DownloadsInner,
    runtime: Handle,
    state: Mutex<KnownMembers>,
}

/// What is known of members, by their names.
struct KnownMembers {
    given: SourceBytes<String>,
    /// Since when those are that did not answer, or broke off.
    silent: BTreeMap<String, Instant>,
    /// What they gave was not the hub's: of many files each would come wrong.
    distrusted: BTreeSet<String>,
    file: Option<FileLooks>,
}

/// What members have said of the file under way.
struct FileLooks {
    sha256: [u8; 32],
    members: BTreeMap<String, MemberLook>,
    sharing: Sharing,
    /// Members that fetch it, too.
    others: usize,
    /// What is left to them.
    awaited: Vec<(u64, u64)>,
}

/// The last looks at one member.
struct MemberLook {
    at: Instant,
    /// When it was asked for a model that has the file; `None` if it is to be asked with each look.
    for_copy_at: Option<Instant>,
    /// In how many in a row it did not fetch the file.
    misses: u32,
}

/// How a member fetches of the file at the moment.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum FetchedAs {
    Whole,
    /// Its layers, which are chunks of a model.
    Layers,
}

impl MemberLook {
    /// From the last look to the next one.
    fn again_after(&self) -> Duration {
        match self.misses {
            0 => SHARED_AGAIN_AFTER,
            misses => BEGINS_WITHIN.saturating_mul(1 << (misses - 1).min(8)).min(AGAIN_AFTER),
        }
    }
}

impl FileLooks {
    fn new(sha256: [u8; 32], own: NodeId) -> Self {
        let (members, sharing) = (BTreeMap::new(), Sharing::new(own.0));
        Self { sha256, members, sharing, others: 0, awaited: Vec::new() }
    }

    /// Whether a member is to be asked now, and then whether also for a model that has the file.
    fn is_due(&self, member: &str, now: Instant) -> Option<bool> {
        let Some(look) = self.members.get(member) else { return Some(true) };
        let is_due = now.saturating_duration_since(look.at) >= look.again_after();
        let is_old = |at| now.saturating_duration_since(at) >= AGAIN_AFTER;
        is_due.then(|| look.for_copy_at.is_none_or(is_old))
    }

    fn note(&mut self, member: &str, now: Instant, was_asked_for_copy: bool, fetches: Option<FetchedAs>) {
        let look = self.members.entry(member.to_owned());
        let look = look.or_insert(MemberLook { at: now, for_copy_at: Some(now), misses: 0 });
        look.at = now;
        look.misses = if fetches.is_some() { 0 } else { look.misses.saturating_add(1) };
        if fetches == Some(FetchedAs::Layers) {
            look.for_copy_at = None;
        } else if was_asked_for_copy {
            look.for_copy_at = Some(now);
        }
    }

    fn again_after(&self) -> Duration {
        self.members.values().map(MemberLook::again_after).min().unwrap_or(AGAIN_AFTER)
    }
}

/// What a member has of the file.
struct MemberCopy {
    member: String,
    holder: Holder,
    of: AskedOf,
    manifest: Manifest,
    layout: Layout,
    held: HeldPart,
    refused: RefusedChunks,
}

/// Which copy of which member it is.
type CopyKey = (String, AskedOf);

/// Looks for what members have by now.
type LookAgain<'m> = dyn Fn() -> LocalBoxFuture<'m, Vec<MemberCopy>> + 'm;

/// How much of it a member has.
enum HeldPart {
    All,
    /// Of layers.
    Layers(PeerChunks),
    /// Of what it fetches whole.
    Partial(PartialState),
}

impl MemberCopy {
    /// Of a file that a member fetches: as of a model that is this file alone, of which no one knows a hash.
    fn partial(member: String, holder: Holder, file: &WantedFile<'_>, state: PartialState) -> Self {
        let (size, head_bytes, shared, chunks) = (file.size, 0, Vec::new(), Vec::new());
        let entry = FileEntry { name: String::new(), size, head_bytes, shared, chunks };
        let (name, chunk_bytes, files) = (String::new(), BLOCK_BYTES as u32, vec![entry]);
        Self {
            member,
            holder,
            of: AskedOf::PartialFile(file.sha256),
            manifest: Manifest { version: 1, name, kind: ModelKind::Gguf, chunk_bytes, files, hub: None },
            layout: Layout { file: 0, size, chunk_bytes },
            held: HeldPart::Partial(state),
            refused: RefusedChunks::default(),
        }
    }

    fn key(&self) -> CopyKey {
        (self.member.clone(), self.of)
    }

    fn has(&self, chunk: ChunkRef) -> bool {
        let is_held = match &self.held {
            HeldPart::All => true,
            HeldPart::Layers(chunks) => chunks.held.has(chunk),
            HeldPart::Partial(state) => state.has_block(chunk.index),
        };
        is_held && !self.refused.has(chunk)
    }

    /// What of the file is on its way to it from the hub as layers, if anything.
    fn layers_fetch(&self) -> Option<OtherFetch> {
        let HeldPart::Layers(chunks) = &self.held else { return None };
        let (Layout { file, size, .. }, node) = (self.layout, self.holder.node.0);
        let of_file = chunks.coming.iter().filter(|chunk| chunk.file == file);
        let coming: BTreeSet<u64> =
            of_file.map(|chunk| self.manifest.chunk_start(*chunk) / CHUNK_BYTES).collect();
        let bits = |has: &dyn Fn(u32) -> bool| ChunkBits::of_size(size, has);
        // What it has is given as what it is, chunk by chunk.
        let state = PartialState {
            held: bits(&|_| false),
            coming: bits(&|chunk| coming.contains(&u64::from(chunk))),
        };
        (!coming.is_empty()).then_some(OtherFetch { node, state, is_whole: false })
    }

    /// Gives its share of the file; `None` if nothing more of the file is asked of it now. Of one that
    /// fetches the file the name is among `failed` then, if it failed.
    async fn give(
        mut self,
        endpoint: &Endpoint,
        share: ChunkShare<'_>,
        assembly: &RefCell<Assembly<'_, '_>>,
        failed: &RefCell<BTreeSet<String>>,
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
        let is_partial = matches!(self.held, HeldPart::Partial(_));
        let time_max = if is_partial { PARTIAL_GIVES_MAX } else { Duration::MAX };
        let giving = async {
            match dialled {
                Ok(fetcher) => self.give_over(fetcher, &share, assembly).await,
                Err(error) => Err(error),
            }
        };
        let given = tokio::time::timeout(time_max, giving).await;
        match given {
            Ok(Ok(())) => Some(self),
            Ok(Err(error)) => {
                error.report();
                if is_partial {
                    failed.borrow_mut().insert(self.member);
                }
                None
            }
            Err(_) => {
                let (member, seconds) = (self.member, time_max.as_secs());
                tracing::debug!(member, seconds, "a member has not given all that it has of a file");
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
        fetcher.read((self.of, manifest), share, &mut self.refused, &mut place).await
    }
}

impl<'a> Members<'a> {
    /// Of the cluster as it is when they are asked. Must be called within the node's runtime.
    pub fn new(shared: &'a DownloadsInner) -> Self {
        let state = KnownMembers {
            given: SourceBytes::new(Instant::now()),
            silent: BTreeMap::new(),
            distrusted: BTreeSet::new(),
            file: None,
        };
        Self { shared, runtime: Handle::current(), state: Mutex::new(state) }
    }

    /// Of the bytes that have come, what came from where, the most first; nothing where that is one source.
    pub fn sources(&self, came_bytes: u64) -> Vec<FetchSourceView> {
        let shares = self.state.lock().given.shares(came_bytes, Instant::now());
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
        let (copies, others) = self.copies(file).await;
        let awaited: BTreeSet<(u64, u64)> = self.share_out(file, &others).into_iter().collect();
        let leave_own = |range: (u64, u64)| {
            if !awaited.contains(&range) {
                leave(range);
            }
        };
        let endpoint = self.shared.library.endpoint();
        let failed = RefCell::default();
        let note = |member: &str, bytes: u64| self.state.lock().given.note(member.to_owned(), bytes);
        let look_again = || async move { self.copies(file).await.0 }.boxed_local();
        let noted = (&note as &NoteGiven<'_>, &failed);
        let taken = gather(endpoint, copies, file.ranges, &leave_own, take, noted, &look_again).await;
        let (mut state, now) = (self.state.lock(), Instant::now());
        for member in failed.into_inner() {
            self.looks(&mut state, file).members.remove(&member);
            state.silent.insert(member, now);
        }
        taken
    }

    /// Of a file that others fetch, too, what is left to them.
    fn share_out(&self, file: &WantedFile<'_>, others: &[OtherFetch]) -> Vec<(u64, u64)> {
        let mut state = self.state.lock();
        let looks = self.looks(&mut state, file);
        if looks.others != others.len() {
            looks.others = others.len();
            tracing::info!(
                target: "events::model",
                members = others.len(),
                bytes = file.size,
                "a file is shared out among those that fetch it at the moment"
            );
        }
        looks.awaited = looks.sharing.awaited(Instant::now(), file, others);
        looks.awaited.clone()
    }

    /// What is known of this file.
    fn looks<'s>(&self, state: &'s mut KnownMembers, file: &WantedFile<'_>) -> &'s mut FileLooks {
        if state.file.as_ref().is_some_and(|looks| looks.sha256 != file.sha256) {
            state.file = None;
        }
        state.file.get_or_insert_with(|| FileLooks::new(file.sha256, self.shared.node_id))
    }

    /// Whom to ask of the file now, the nearest first, and of whom also a model that has it.
    fn due(&self, file: &WantedFile<'_>) -> Vec<(NodeView, bool)> {
        let nodes = nearest_first(&self.shared.view.borrow());
        let (mut state, now) = (self.state.lock(), Instant::now());
        state.silent.retain(|_, since| now.saturating_duration_since(*since) < SILENT_FOR);
        let mut due = Vec::new();
        for node in nodes {
            if !state.silent.contains_key(&node.name)
                && !state.distrusted.contains(&node.name)
                && let Some(asks_copy) = self.looks(&mut state, file).is_due(&node.name, now)
            {
                due.push((node, asks_copy));
            }
        }
        due
    }

    /// What members have of the file, that of the nearest first; and how far those are that fetch it, too.
    async fn copies(&self, file: &WantedFile<'_>) -> (Vec<MemberCopy>, Vec<OtherFetch>) {
        let due = self.due(file);
        let endpoint = self.shared.library.endpoint();
        let asked = join_all(due.iter().map(|(node, asks_copy)| {
            tokio::time::timeout(ASKED_MAX, copies_of(endpoint, node, file, *asks_copy))
        }));
        let asked = asked.await;
        let (mut copies, mut others) = (Vec::new(), Vec::new());
        let (mut state, now) = (self.state.lock(), Instant::now());
        for (answer, (node, asks_copy)) in asked.into_iter().zip(due) {
            let late = |_| Err(MemberError::Late { seconds: ASKED_MAX.as_secs() });
            match answer.unwrap_or_else(late) {
                Ok((copy, other)) => {
                    let of_layers = copy.as_ref().and_then(MemberCopy::layers_fetch);
                    let as_layers = of_layers.as_ref().map(|_| FetchedAs::Layers);
                    let fetches = as_layers.or(other.as_ref().map(|_| FetchedAs::Whole));
                    self.looks(&mut state, file).note(&node.name, now, asks_copy, fetches);
                    others.extend(of_layers.filter(|_| other.is_none()));
                    if let Some((holder, other)) = other {
                        copies.push(MemberCopy::partial(node.name, holder, file, other.state.clone()));
                        others.push(other);
                    }
                    copies.extend(copy);
                }
                Err(error) => {
                    let (peer, error) = (&node.name, chain(&error));
                    tracing::debug!(peer, error, "a member does not say what it has");
                    self.looks(&mut state, file).members.remove(&node.name);
                    state.silent.insert(node.name, now);
                }
            }
        }
        (copies, others)
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
        Some(self.state.lock().file.as_ref().map_or(AGAIN_AFTER, FileLooks::again_after))
    }

    fn awaited(&self) -> Vec<(u64, u64)> {
        self.state.lock().file.as_mut().map(|looks| std::mem::take(&mut looks.awaited)).unwrap_or_default()
    }

    fn partial_files(&self) -> Option<&PartialFiles> {
        Some(self.shared.library.partial_files())
    }

    fn givers(&self) -> String {
        self.state.lock().given.members().map(String::as_str).collect::<Vec<_>>().join(", ")
    }

    fn distrust_givers(&self) {
        let mut state = self.state.lock();
        let givers: Vec<String> = state.given.members().cloned().collect();
        state.distrusted.extend(givers);
    }
}

/// Whether a member gives all of a file, so that no hub is needed for it.
pub async fn is_with_member(shared: &DownloadsInner, sha256: [u8; 32], size: u64) -> bool {
    let nodes = nearest_first(&shared.view.borrow());
    let holders: Vec<Holder> = nodes.iter().filter_map(|node| holder_of(node).ok()).collect();
    let endpoint = shared.library.endpoint();
    let ask = |holder| gives_all(endpoint, holder, WantedFile { sha256, size, ranges: &[] });
    let asked: Vec<_> = holders.iter().map(|holder| tokio::time::timeout(ASKED_MAX, ask(holder))).collect();
    join_all(asked).await.into_iter().any(|answer| matches!(answer, Ok(Ok(true))))
}

async fn gives_all(endpoint: &Endpoint, holder: &Holder, file: WantedFile<'_>) -> Result<bool, MemberError> {
    let mut fetcher = Fetcher::dial(endpoint, holder.node, &holder.addresses).await?;
    let state = fetcher.partial_file(file.sha256, file.size).await?;
    let mut chunks = 0..u32::try_from(file.size.div_ceil(CHUNK_BYTES)).unwrap_or(u32::MAX);
    if state.is_some_and(|state| chunks.all(|chunk| state.held.has(chunk))) {
        return Ok(true);
    }
    let copy = copy_of(&mut fetcher, ("", holder.clone()), &file).await?;
    Ok(copy.is_some_and(|copy| matches!(copy.held, HeldPart::All)))
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

/// What a member has of the file, of a model if `asks_copy`; and how far it is with fetching it itself.
async fn copies_of(
    endpoint: &Endpoint,
    node: &NodeView,
    file: &WantedFile<'_>,
    asks_copy: bool,
) -> Result<(Option<MemberCopy>, Option<(Holder, OtherFetch)>), MemberError> {
    let holder = holder_of(node)?;
    let mut fetcher = Fetcher::dial(endpoint, holder.node, &holder.addresses).await?;
    let state = fetcher.partial_file(file.sha256, file.size).await?;
    let fetch = state.map(|state| OtherFetch { node: holder.node.0, state, is_whole: true });
    let other = fetch.map(|fetch| (holder.clone(), fetch));
    let copy =
        if asks_copy { copy_of(&mut fetcher, (node.name.as_str(), holder), file).await? } else { None };
    Ok((copy, other))
}

async fn copy_of(
    fetcher: &mut Fetcher,
    (member, holder): (&str, Holder),
    file: &WantedFile<'_>,
) -> Result<Option<MemberCopy>, MemberError> {
    let Some(copy) = fetcher.copy_of(file.sha256).await? else { return Ok(None) };
    let manifest = fetcher.manifest(copy.model).await?;
    // It may have become another file of that name.
    if manifest.files.get(copy.file as usize).is_none_or(|entry| entry.size != file.size) {
        return Ok(None);
    }
    let held = match &manifest.hub {
        Some(_) => HeldPart::Layers(fetcher.held(&manifest).await?),
        None => HeldPart::All,
    };
    let layout = Layout { file: copy.file, size: file.size, chunk_bytes: manifest.chunk_bytes };
    let (member, of) = (member.to_owned(), AskedOf::Model(copy.model));
    Ok(Some(MemberCopy { member, holder, of, manifest, layout, held, refused: RefusedChunks::default() }))
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
    (note, failed): (&NoteGiven<'_>, &RefCell<BTreeSet<String>>),
    look_again: &LookAgain<'_>,
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
            let of_layout = (layout, group);
            group = give_shares(endpoint, of_layout, &shared, (&assembly, failed), look_again).await;
            if !shared.came_back() || assembly.borrow().is_over() {
                break;
            }
        }
    }
    assembly.into_inner().finish()
}

/// Has members that cut a file alike give their shares; those that may be asked for more of it. While all
/// that give are slow, others are looked for that have some of it by now.
async fn give_shares(
    endpoint: &Endpoint,
    (layout, group): (Layout, Vec<MemberCopy>),
    shared: &SharedChunks,
    (assembly, failed): (&RefCell<Assembly<'_, '_>>, &RefCell<BTreeSet<String>>),
    look_again: &LookAgain<'_>,
) -> Vec<MemberCopy> {
    let give = |copy: MemberCopy| {
        let (key, share) = (copy.key(), shared.share());
        async move { (key, copy.give(endpoint, share, assembly, failed).await) }
    };
    // Those that give, and those of which nothing more is taken.
    let mut busy: Vec<CopyKey> = group.iter().map(MemberCopy::key).collect();
    let mut givers = Givers::new(shared, group.into_iter().map(&give).collect());
    let (mut done, look) = (Vec::<MemberCopy>::new(), look_when_slow(shared, look_again));
    tokio::pin!(look);
    loop {
        tokio::select! {
            given = givers.next() => {
                let Some((key, copy)) = given else { return done };
                if let Some(copy) = copy {
                    busy.retain(|other| *other != key);
                    done.push(copy);
                }
            }
            copies = &mut look => {
                look.set(look_when_slow(shared, look_again));
                for mut copy in copies {
                    let key = copy.key();
                    let is_free = copy.layout == layout && !busy.contains(&key) && givers.has_room();
                    let before = done.iter().position(|other| other.key() == key);
                    if let Some(before) = before.filter(|_| is_free) {
                        copy.refused = done.swap_remove(before).refused;
                    }
                    match is_needed(&copy, shared, givers.is_idle()) {
                        true if is_free => {
                            busy.push(key);
                            givers.begin(give(copy));
                        }
                        false if is_free => done.push(copy),
                        _ => {}
                    }
                }
            }
        }
    }
}

/// Whether something is to be asked of a copy: what waits for someone, if it `may_begin` with that, or what
/// others bring too slowly.
fn is_needed(copy: &MemberCopy, shared: &SharedChunks, may_begin: bool) -> bool {
    let has = |chunk| copy.has(chunk);
    may_begin && shared.has_waiting(has) || shared.has_overdue(Instant::now(), None, has)
}

/// What members have as soon as all that give are slow.
async fn look_when_slow(shared: &SharedChunks, look_again: &LookAgain<'_>) -> Vec<MemberCopy> {
    loop {
        tokio::time::sleep(SLOW_LOOK_EVERY).await;
        if shared.is_slow(Instant::now()) {
            return look_again().await;
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::{Arc, LazyLock};

    use exo_hub::GivenRange;
    use exo_store::{HeldMap, Store};

    use super::*;
    use crate::bulk::testing::{FakeAnswer, FakeMember, KIND_HANGS_UP};
    use crate::bulk::{Ask, FileCopy, KIND_BYTES, KIND_REFUSED};

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
            holder: member.holder(),
            of: AskedOf::Model(manifest.root()),
            manifest,
            layout: Layout { file: 0, size, chunk_bytes },
            held: HeldPart::All,
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
            asked.lock().push(chunk.index);
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
        gathered_with(endpoint, copies, ranges, &|| async { Vec::<MemberCopy>::new() }.boxed_local()).await
    }

    /// The same where others have some of it by now.
    async fn gathered_with(
        endpoint: &Endpoint,
        copies: Vec<MemberCopy>,
        ranges: &[(u64, u64)],
        look_again: &LookAgain<'_>,
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
            givers.lock().insert(member.to_owned());
        };
        let failed = RefCell::default();
        let noted = (&note as &NoteGiven<'_>, &failed);
        gather(endpoint, copies, ranges, &leave, &mut take, noted, look_again).await.unwrap();
        (bytes, all_holes, givers.into_inner())
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

    #[tokio::test]
    async fn what_a_member_has_of_a_file_that_it_fetches_comes_from_it_in_blocks() {
        let size = FILE.len() as u64;
        let state_of = |held: &[u8]| postcard::to_allocvec(&Some((held.to_vec(), vec![0u8]))).unwrap();
        let (state, other_size) = (state_of(&[1]), state_of(&[1, 1]));
        let member = FakeMember::start(move |ask| match ask {
            Ask::PartialFile { sha256: [8, ..], .. } => (KIND_BYTES, other_size.clone()),
            Ask::PartialFile { .. } => (KIND_BYTES, state.clone()),
            Ask::PartialBlock { sha256: [7, ..], block } => {
                let at = block as usize * BLOCK_BYTES;
                (KIND_BYTES, FILE[at..at + BLOCK_BYTES].to_vec())
            }
            _ => (KIND_REFUSED, b"no block".to_vec()),
        })
        .await;
        let (mut fetcher, ranges) = (member.dialled().await, [(0, size)]);
        let state = fetcher.partial_file([7; 32], size).await.unwrap().unwrap();
        assert!(state.held.has(0) && !state.coming.has(0));
        let error = fetcher.partial_file([8; 32], size).await.unwrap_err();
        assert!(matches!(error, FetchError::Wrong { .. }), "{error}");
        let file = WantedFile { sha256: [7; 32], size, ranges: &ranges };
        let copies = vec![MemberCopy::partial("ann".to_owned(), member.holder(), &file, state)];
        let (bytes, holes, givers) = gathered(&member.own, copies, &ranges).await;
        assert!(bytes == *FILE && holes.is_empty() && givers.contains("ann"), "{holes:?} {givers:?}");
    }

    #[tokio::test]
    async fn a_member_gives_all_of_a_file_if_it_has_each_chunk_of_what_it_fetches_or_the_file_of_a_model() {
        let manifest = {
            let member = FakeMember::start(|_| (KIND_REFUSED, Vec::new())).await;
            copy_at(&member, "ann", CHUNK).manifest
        };
        let copy = FileCopy { model: manifest.root(), file: 0 };
        let of_model = |copy: Option<FileCopy>| postcard::to_allocvec(&copy).unwrap();
        let fetched = |held: Option<u8>| {
            let state = held.map(|held| (vec![held], vec![0u8]));
            postcard::to_allocvec(&state).unwrap()
        };
        // One chunk that is there, or not; none; and the whole file, which is as long as one chunk.
        let cases =
            [(Some(1), None, true), (Some(0), None, false), (None, None, false), (None, Some(copy), true)];
        for (held, copy, expected) in cases {
            let (state, copy, manifest) = (fetched(held), of_model(copy), manifest.to_bytes());
            let member = FakeMember::start(move |ask| match ask {
                Ask::PartialFile { .. } => (KIND_BYTES, state.clone()),
                Ask::CopyOf(_) => (KIND_BYTES, copy.clone()),
                Ask::Manifest(_) => (KIND_BYTES, manifest.clone()),
                _ => (KIND_REFUSED, Vec::new()),
            });
            let member = member.await;
            let file = WantedFile { sha256: [7; 32], size: FILE.len() as u64, ranges: &[] };
            assert_eq!(gives_all(&member.own, &member.holder(), file).await.unwrap(), expected, "{held:?}");
        }
    }

    #[test]
    fn a_member_that_fetches_the_file_is_asked_soon_again_and_others_less_and_less_often() {
        let (mut looks, start) = (FileLooks::new([7; 32], NodeId([1; 32])), Instant::now());
        assert_eq!(looks.is_due("ann", start), Some(true));
        let mut waits = Vec::new();
        for _ in 0..7 {
            looks.note("ann", start, true, None);
            waits.push(looks.again_after().as_secs());
        }
        assert_eq!(waits, [1, 2, 4, 8, 16, 20, 20]);
        looks.note("ann", start + AGAIN_AFTER, false, Some(FetchedAs::Whole));
        assert_eq!(looks.is_due("ann", start + AGAIN_AFTER), None);
        let next = start + AGAIN_AFTER + looks.again_after();
        assert_eq!((looks.again_after(), looks.is_due("ann", next)), (SHARED_AGAIN_AFTER, Some(true)));
        // One that fetches layers is asked for its copy each time: what is on its way is left to it.
        looks.note("ann", next, true, Some(FetchedAs::Whole));
        assert_eq!(looks.is_due("ann", next + SHARED_AGAIN_AFTER), Some(false));
        looks.note("ann", next, true, Some(FetchedAs::Layers));
        assert_eq!(looks.is_due("ann", next + SHARED_AGAIN_AFTER), Some(true));
    }

    #[tokio::test]
    async fn what_is_on_its_way_to_a_member_as_layers_is_left_to_it() {
        let member = FakeMember::start(|_| (KIND_REFUSED, Vec::new())).await;
        let size = 3 * CHUNK_BYTES;
        let layers = |coming: &[u32]| {
            let mut copy = copy_at(&member, "ann", 1 << 20);
            (copy.layout.size, copy.manifest.files[0].size) = (size, size);
            copy.manifest.files[0].chunks = vec![[1; 32]; 12];
            let folder = tempfile::tempdir().unwrap();
            let (store, _) = Store::open(folder.path()).unwrap();
            let held = store.prepare(&copy.manifest).unwrap().held();
            let held = HeldMap::decode(&held, copy.manifest.root(), &copy.manifest).unwrap();
            let coming = coming.iter().map(|index| ChunkRef { file: 0, index: *index }).collect();
            copy.held = HeldPart::Layers(PeerChunks { held, coming, wanted: Vec::new() });
            copy.layers_fetch()
        };
        assert!(layers(&[]).is_none());
        let fetch = layers(&[7, 9]).unwrap();
        let of = |bits: &ChunkBits| (0..3).filter(|chunk| bits.has(*chunk)).collect::<Vec<u32>>();
        assert_eq!((of(&fetch.state.coming), of(&fetch.state.held)), (vec![1, 2], vec![]));
        assert_eq!((fetch.node, fetch.is_whole), (member.node.0, false));
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
            answers(CHUNK, asked[1].clone(), move |_, bytes| second(counted.lock().len(), bytes)),
        ];
        let members = FakeMember::start_all(both, Duration::from_millis(5)).await;
        let copies = vec![copy_at(&members[0], "ann", CHUNK), copy_at(&members[1], "bob", CHUNK)];
        let step = 4 * CHUNK as u64;
        let ranges: Vec<(u64, u64)> =
            (0..COUNT as u64 / 4).map(|number| (number * step, (number + 1) * step)).collect();
        let (bytes, holes, _) = gathered(&members[0].own, copies, &ranges).await;
        assert!(bytes == *FILE && holes.is_empty(), "{holes:?}");
        asked.map(|of_one| of_one.lock().clone())
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
    async fn what_one_member_trickles_another_gives_that_has_it_by_now() {
        let asked: [Arc<Mutex<Vec<u32>>>; 2] = Default::default();
        let give = |_: u32, bytes: Vec<u8>| (KIND_BYTES, bytes);
        let answers = vec![
            // Longer than the test may take, and shorter than an answer may.
            (answers(CHUNK, asked[0].clone(), give), Duration::from_secs(25)),
            (answers(CHUNK, asked[1].clone(), give), Duration::from_millis(5)),
        ];
        let members = FakeMember::start_each(answers).await;
        let look_again = || {
            let copy = copy_at(&members[1], "bob", CHUNK);
            async move { vec![copy] }.boxed_local()
        };
        let (copies, ranges) = (vec![copy_at(&members[0], "ann", CHUNK)], [(0, FILE.len() as u64)]);
        let begun = Instant::now();
        let (bytes, holes, givers) = gathered_with(&members[0].own, copies, &ranges, &look_again).await;
        assert!(bytes == *FILE && holes.is_empty() && !givers.contains("ann"), "{holes:?} {givers:?}");
        assert!(begun.elapsed() < Duration::from_secs(15), "{:?}", begun.elapsed());
        assert_eq!(asked[1].lock().len(), COUNT, "each is asked for once");
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
