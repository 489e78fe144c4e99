//! The models this node can talk about: opened files, tokenizers and templates, kept while they are in use.

pub(crate) mod eviction;
mod holders;
mod repair;

use std::collections::{HashMap, HashSet};
use std::path::Path;
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant, UNIX_EPOCH};

use exo_constraint::{CompileError, Compiler};
use exo_formats::Model;
use exo_hub::PartialFiles;
use exo_machine::Holder;
use exo_stdx::Mutex;
use exo_store::{ChunkRef, ModelRecord, PartialModel, RecordProblem, Source, Store, StoreError};
use exo_tokenizer::calls::{CallFormat, ThoughtFormat};
use exo_tokenizer::{CallFormatError, ChatTemplate, TemplateError, Tokenizer};
use exo_transport::Endpoint;
use exo_types::{ModelId, NodeId, Shard};

use crate::bulk::FetchProgress;
use crate::details::{Details, SharedDetails};
use crate::file_looks::FileLooks;
use crate::grammar;
use crate::hub_bytes::HubBytes;
use crate::obtain::Obtaining;
use crate::turn_rules::TurnRules;

use crate::library_error::LibraryError;
use eviction::Eviction;

/// Opened models kept for reuse. Each holds mappings and a tokenizer, tens of megabytes for large
/// vocabularies.
const OPEN_MAX: usize = 8;

/// A model with what turns text into its tokens.
pub struct OpenModel {
    pub id: ModelId,
    pub model: Arc<Model>,
    pub tokenizer: Tokenizer,
    /// Messages to text, if the model brings a template; its error is told when it is used.
    pub template: Option<Result<ChatTemplate, TemplateError>>,
    /// Tokens that end an answer: the model's and the tokenizer's.
    pub end_ids: Vec<u32>,
    /// How the template prints calls of tools, or why not. Looked for when the first request needs it.
    calls: OnceLock<Result<CallFormat, CallFormatError>>,
    /// What conversations the template takes.
    turns: OnceLock<TurnRules>,
    /// How the template prints thoughts.
    thought: OnceLock<Option<ThoughtFormat>>,
    /// What words and checks grammars over its vocabulary. Made when the first request needs it.
    compiler: OnceLock<Result<Compiler, CompileError>>,
    /// At its files.
    looks: FileLooks,
}

impl OpenModel {
    /// How the template prints calls of tools, or why there can be none.
    pub fn calls(&self) -> Result<&CallFormat, CallFormatError> {
        let find = || match &self.template {
            Some(Ok(template)) => CallFormat::find(template, &self.end_texts()),
            Some(Err(error)) => Err(error.clone().into()),
            None => Err(CallFormatError::NoTemplate),
        };
        self.calls.get_or_init(find).as_ref().map_err(Clone::clone)
    }

    /// How the template prints thoughts, if the model has any.
    pub fn thought(&self) -> Option<&ThoughtFormat> {
        let find = || self.template.as_ref()?.as_ref().ok().and_then(ThoughtFormat::find);
        self.thought.get_or_init(find).as_ref()
    }

    /// What conversations `template`, the model's own, takes.
    pub fn turns(&self, template: &ChatTemplate) -> TurnRules {
        *self.turns.get_or_init(|| TurnRules::find(template))
    }

    /// What ends a turn, as a template writes it.
    fn end_texts(&self) -> Vec<String> {
        self.end_ids.iter().filter_map(|id| self.tokenizer.token_text(*id)).collect()
    }

    /// What words and checks grammars over its vocabulary. Blocks for as long as it takes to be made.
    pub fn compiler(&self) -> Result<&Compiler, CompileError> {
        let make = || grammar::compiler(&self.tokenizer, &self.end_ids);
        self.compiler.get_or_init(make).as_ref().map_err(Clone::clone)
    }
}

/// Models of others that are remembered.
const TOLD_MAX: usize = 8192;
/// Between two questions for a model of others that no one answered for.
const TOLD_AGAIN: Duration = Duration::from_secs(30);

/// Opens models from the store and fetches from members what is missing.
pub struct Library {
    store: Arc<Store>,
    endpoint: Endpoint,
    hub: Arc<HubBytes>,
    partial_files: PartialFiles,
    pub(crate) room: Eviction,
    open: Mutex<HashMap<ModelId, Arc<OpenModel>>>,
    details: Mutex<HashMap<ModelId, Details>>,
    /// What members said of models that are not here, and when they were asked; `None` where no one answered.
    told: Mutex<HashMap<ModelId, (Instant, Option<SharedDetails>)>>,
    /// Members that are being asked.
    asking: Mutex<HashSet<String>>,
    /// Models of which what is damaged is being fetched again.
    repairing: Mutex<HashSet<ModelId>>,
}

/// How far a shard is on this disk. `done_bytes` never become fewer, neither within a fetch nor, but for what
/// was in flight, from one to the next: what counts as progress at the coordinator would else be none.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ShardProgress {
    /// Bytes of its chunks that are here, those in flight included.
    pub done_bytes: u64,
    /// Bytes of all its chunks.
    pub total_bytes: u64,
    /// How long the hub asks to wait; zero while it does not.
    pub hub_wait: Duration,
    /// The member that gave the chunk which is stored next, and its bytes; only where that is the news.
    pub from: Option<(NodeId, u64)>,
    stored_bytes: u64,
    /// Of the stored ones, what did not come with this fetch.
    found_bytes: u64,
    came_bytes: u64,
}

impl ShardProgress {
    fn new(total_bytes: u64, missing_bytes: u64) -> Self {
        let stored_bytes = total_bytes.saturating_sub(missing_bytes);
        let (done_bytes, found_bytes) = (stored_bytes, stored_bytes);
        let (hub_wait, from, came_bytes) = (Duration::ZERO, None, 0);
        Self { done_bytes, total_bytes, hub_wait, from, stored_bytes, found_bytes, came_bytes }
    }

    /// What came over a line; never less than before, or it would be counted again.
    pub fn came_bytes(&self) -> u64 {
        self.came_bytes
    }

    /// So many bytes were here before, and are still what came then.
    fn find(&mut self, bytes: u64) {
        self.note(FetchProgress::Found(bytes));
    }

    fn note(&mut self, news: FetchProgress) {
        (self.hub_wait, self.from) = (Duration::ZERO, None);
        let here = match news {
            FetchProgress::Stored(bytes) => {
                self.stored_bytes = self.stored_bytes.saturating_add(bytes);
                self.stored_bytes
            }
            FetchProgress::Found(bytes) => {
                self.found_bytes = self.found_bytes.saturating_add(bytes);
                self.stored_bytes = self.stored_bytes.saturating_add(bytes);
                self.stored_bytes
            }
            FetchProgress::From(member, bytes) => {
                self.from = Some((member, bytes));
                self.stored_bytes
            }
            FetchProgress::InFlight(bytes) => self.stored_bytes.saturating_add(bytes),
            FetchProgress::HubWaits(left) => {
                self.hub_wait = left;
                self.stored_bytes
            }
        };
        self.done_bytes = here.clamp(self.done_bytes, self.total_bytes.max(self.done_bytes));
        self.came_bytes = self.came_bytes.max(self.done_bytes.saturating_sub(self.found_bytes));
    }
}

/// Whether it is noted that what is here of a shard is a part of it. What is refused before it stores a byte,
/// or adds to layers that came whole, makes of them nothing that may be pruned.
struct FetchedPart {
    is_to_be_noted: bool,
}

impl FetchedPart {
    fn new(partial: &PartialModel) -> Self {
        Self { is_to_be_noted: !partial.has_finished() }
    }

    fn note(&mut self, partial: &PartialModel, news: &FetchProgress) {
        if self.is_to_be_noted && matches!(news, FetchProgress::Stored(_)) {
            self.is_to_be_noted = false;
            partial.note_finished(false);
        }
    }
}

impl Library {
    /// A library over a store.
    pub fn new(store: Arc<Store>, endpoint: Endpoint, hub: HubBytes, room: Eviction) -> Self {
        let hub = Arc::new(hub);
        let (open, details) = (Mutex::default(), Mutex::default());
        let (told, asking, repairing) = (Mutex::default(), Mutex::default(), Mutex::default());
        let partial_files = PartialFiles::default();
        Self { store, endpoint, hub, partial_files, room, open, details, told, asking, repairing }
    }

    /// Where chunks come from that no member has.
    pub fn hub(&self) -> &Arc<HubBytes> {
        &self.hub
    }

    /// Files that this node fetches whole, for members that fetch the same.
    pub fn partial_files(&self) -> &PartialFiles {
        &self.partial_files
    }

    /// How members are reached.
    pub fn endpoint(&self) -> &Endpoint {
        &self.endpoint
    }

    pub fn store(&self) -> &Arc<Store> {
        &self.store
    }

    /// The description of a model alone, read anew: for planning, which needs no tokenizer.
    pub async fn describe(&self, id: ModelId, holders: &[Holder]) -> Result<Model, LibraryError> {
        self.ensure_manifest(id, holders).await?;
        let store = self.store.clone();
        Ok(tokio::task::spawn_blocking(move || store.open_model(id)).await??)
    }

    /// Opens the description of a model, from disk or from the headers a holder sends.
    pub async fn open(&self, id: ModelId, holders: &[Holder]) -> Result<Arc<OpenModel>, LibraryError> {
        if let Some(open) = self.cached(id).await {
            return Ok(open);
        }
        self.ensure_manifest(id, holders).await?;
        let store = self.store.clone();
        let open = Arc::new(tokio::task::spawn_blocking(move || open_model(&store, id)).await??);
        let mut cache = self.open.lock();
        if cache.len() >= OPEN_MAX {
            cache.clear();
        }
        cache.insert(id, open.clone());
        Ok(open)
    }

    /// What lists show of a model on this node's disk. Read once.
    pub async fn details(&self, id: ModelId) -> Result<Details, LibraryError> {
        if let Some(details) = self.details.lock().get(&id) {
            return Ok(details.clone());
        }
        let store = self.store.clone();
        let read = move || store.open_model(id).map(|model| Details::of(&model));
        let details = tokio::task::spawn_blocking(read).await??;
        self.details.lock().insert(id, details.clone());
        Ok(details)
    }

    /// What a member said of a model that is not here, if one has; and whether one is to be asked.
    pub fn told(&self, id: ModelId) -> (Option<SharedDetails>, bool) {
        match self.told.lock().get(&id) {
            Some((_, Some(told))) => (Some(told.clone()), false),
            Some((asked, None)) => (None, asked.elapsed() >= TOLD_AGAIN),
            None => (None, true),
        }
    }

    /// What a member says of a model, or that it did not answer. A model's bytes never change, so its numbers
    /// do not either.
    pub fn tell(&self, id: ModelId, told: Option<SharedDetails>) {
        let mut all = self.told.lock();
        if told.is_none() && all.get(&id).is_some_and(|(_, known)| known.is_some()) {
            return;
        }
        if all.len() >= TOLD_MAX && !all.contains_key(&id) {
            let oldest = all.iter().min_by_key(|(_, (at, _))| *at).map(|(id, _)| *id);
            oldest.map(|id| all.remove(&id));
        }
        all.insert(id, (Instant::now(), told));
    }

    /// Whether this call is the one that asks the member now; [`Library::end_asking`] ends that.
    pub fn begin_asking(&self, member: &str) -> bool {
        self.asking.lock().insert(member.to_owned())
    }

    /// The member was asked.
    pub fn end_asking(&self, member: &str) {
        self.asking.lock().remove(member);
    }

    /// What members are told of a model that is whole here.
    pub async fn tell_of(&self, id: ModelId) -> Result<SharedDetails, LibraryError> {
        let store = self.store.clone();
        let look = move || {
            let record = store.record(id)?;
            Ok::<_, StoreError>(record.complete.then(|| modified_unix_s(&record.path)))
        };
        let added_unix_s = tokio::task::spawn_blocking(look).await??.ok_or(LibraryError::NotWhole { id })?;
        Ok(SharedDetails { details: self.details(id).await?, added_unix_s })
    }

    /// Forgets a model, so that its files can go.
    pub fn forget(&self, id: ModelId) {
        self.release(id);
        self.hub.forget(id);
        self.details.lock().remove(&id);
    }

    /// Lets go of an opened model's memory; requests that use it keep it until they end.
    pub fn release(&self, id: ModelId) {
        self.open.lock().remove(&id);
    }

    /// One that was opened before, unless its files have changed since.
    async fn cached(&self, id: ModelId) -> Option<Arc<OpenModel>> {
        let open = self.open.lock().get(&id).cloned()?;
        let model = open.model.clone();
        let is_unchanged = open.looks.are_unchanged(move || model.check().is_ok()).await;
        is_unchanged.then_some(open)
    }

    /// What the disk has of a model, if anything.
    pub async fn record(&self, id: ModelId) -> Result<Option<ModelRecord>, LibraryError> {
        let store = self.store.clone();
        let found = tokio::task::spawn_blocking(move || match store.record(id) {
            Ok(record) => Ok(Some(record)),
            Err(StoreError::UnknownModel { .. }) => Ok(None),
            Err(error) => Err(error),
        });
        Ok(found.await??)
    }

    /// Has manifest and headers on disk, fetching them if need be.
    pub async fn ensure_manifest(&self, id: ModelId, holders: &[Holder]) -> Result<(), LibraryError> {
        match self.fetch_head(id, holders).await {
            Err(error) => Err(self.why_not_held(id, error).await),
            Ok(()) => Ok(()),
        }
    }

    /// Where no one has a model that was added here, and its file is another one now, that is why.
    pub async fn why_not_held(&self, id: ModelId, error: LibraryError) -> LibraryError {
        if !matches!(error, LibraryError::NoHolder { .. }) {
            return error;
        }
        match self.record(id).await {
            Ok(Some(ModelRecord { problem: Some(RecordProblem::Changed { path }), .. })) => {
                LibraryError::Changed { path }
            }
            _ => error,
        }
    }

    async fn fetch_head(&self, id: ModelId, holders: &[Holder]) -> Result<(), LibraryError> {
        let partial = match self.local(id).await? {
            Local::Complete => return Ok(()),
            Local::Partial(partial) => partial,
            Local::Absent => self.fetch_manifest(id, holders).await?,
        };
        self.verify(&partial, partial.unverified_head(), &mut |_| {}).await?;
        let missing = partial.missing_head();
        if missing.is_empty() {
            return Ok(());
        }
        let _busy = self.room.fetches(id);
        // A few MB: no reason to refuse a request, or to delete a model.
        self.fetch(&partial, &missing, holders, &mut |_| {}, &|_, _| {}).await
    }

    /// Has the tensors of a shard on disk, fetching exactly what is missing, and what is damaged of what came
    /// in chunks. `progress` hears how far the shard is, what was on the disk before included.
    pub async fn ensure_shard(
        &self,
        id: ModelId,
        shard: &Shard,
        holders: &[Holder],
        progress: &mut (dyn FnMut(ShardProgress) + Send),
        received: &(dyn Fn(NodeId, (u64, Duration)) + Send + Sync),
    ) -> Result<(), LibraryError> {
        eviction::note(&self.store, vec![id]).await;
        if self.record(id).await?.is_some_and(|record| record.checked == Some(false)) {
            return Err(LibraryError::Differs { id });
        }
        let partial = match self.local(id).await? {
            Local::Complete => return Ok(()),
            Local::Partial(partial) => partial,
            // Its description was here a moment ago.
            Local::Absent => return Err(StoreError::UnknownModel { id }.into()),
        };
        let opened = partial.clone();
        let ranges = tokio::task::spawn_blocking(move || opened.open_model()).await??.byte_ranges(shard);
        let unverified = partial.unverified(&ranges);
        let unsure_bytes = partial.bytes_of(&partial.missing(&ranges)) + partial.bytes_of(&unverified);
        let mut so_far = ShardProgress::new(partial.bytes_touched_by(&ranges), unsure_bytes);
        progress(so_far);
        let mut found = |bytes| {
            so_far.find(bytes);
            progress(so_far);
        };
        let damaged = self.verify(&partial, unverified, &mut found).await?;
        let mut part = FetchedPart::new(&partial);
        let mut progress = |news| {
            part.note(&partial, &news);
            so_far.note(news);
            progress(so_far);
        };
        let missing = partial.missing(&ranges);
        let fetched = self.fetch_into_room(&partial, &missing, holders, &mut progress, received).await;
        repair::end(&partial, &damaged, fetched)?;
        Ok(tokio::task::spawn_blocking(move || {
            partial.flush()?;
            partial.note_finished(true);
            Ok::<_, StoreError>(())
        })
        .await??)
    }

    async fn local(&self, id: ModelId) -> Result<Local, LibraryError> {
        let store = self.store.clone();
        let found = tokio::task::spawn_blocking(move || match store.record(id) {
            // What came in chunks may have been damaged since.
            Ok(record) if record.complete && record.problem.is_none() && record.source != Source::Fetched => {
                Ok(Local::Complete)
            }
            Ok(_) => match store.manifest(id) {
                Ok(manifest) => store.prepare(&manifest).map(Local::Partial),
                Err(_) => Ok(Local::Absent),
            },
            Err(_) => Ok(Local::Absent),
        });
        Ok(found.await??)
    }

    async fn fetch_manifest(
        &self,
        id: ModelId,
        holders: &[Holder],
    ) -> Result<Arc<PartialModel>, LibraryError> {
        let manifest = holders::manifest(&self.endpoint, id, holders).await?;
        let store = self.store.clone();
        Ok(tokio::task::spawn_blocking(move || store.prepare(&manifest)).await??)
    }

    /// Takes room for chunks on the disk and fetches them.
    async fn fetch_into_room(
        &self,
        partial: &Arc<PartialModel>,
        chunks: &[ChunkRef],
        holders: &[Holder],
        progress: &mut (dyn FnMut(FetchProgress) + Send),
        received: &(dyn Fn(NodeId, (u64, Duration)) + Send + Sync),
    ) -> Result<(), LibraryError> {
        if chunks.is_empty() {
            return Ok(());
        }
        let needed_bytes = chunks.iter().filter_map(|chunk| partial.manifest().chunk_len(*chunk)).sum();
        let room = self.make_room(Some(partial.id()), needed_bytes, &|| true).await;
        let room = room.map_err(|error| LibraryError::NoRoom { error })?;
        let progress = &mut |news| {
            if let FetchProgress::Stored(bytes) | FetchProgress::Found(bytes) = news {
                room.claim.arrived(bytes);
            }
            progress(news);
        };
        self.fetch(partial, chunks, holders, progress, received).await
    }

    /// Fetches chunks, of a model of a hub also from there.
    async fn fetch(
        &self,
        partial: &Arc<PartialModel>,
        chunks: &[ChunkRef],
        holders: &[Holder],
        progress: &mut (dyn FnMut(FetchProgress) + Send),
        received: &(dyn Fn(NodeId, (u64, Duration)) + Send + Sync),
    ) -> Result<(), LibraryError> {
        if chunks.is_empty() {
            return Ok(());
        }
        if partial.manifest().hub.is_some() {
            let members = self.room.members();
            let from = (holders, members.as_slice());
            let obtaining = Obtaining::new(&self.endpoint, &self.hub, partial, from, received);
            return obtaining.run(chunks, progress).await;
        }
        holders::chunks(&self.endpoint, partial, chunks, holders, progress, received).await
    }
}

enum Local {
    Complete,
    Partial(Arc<PartialModel>),
    Absent,
}

fn open_model(store: &Store, id: ModelId) -> Result<OpenModel, LibraryError> {
    let mut model = store.open_model(id)?;
    let tokenizer = Tokenizer::from_source(&model.take_tokenizer())?;
    let text = |id: Option<u32>| id.and_then(|id| tokenizer.token_text(id));
    let (bos, eos) = (text(tokenizer.bos().or(model.config.bos)), text(tokenizer.eos()));
    let template = model
        .chat_template
        .as_deref()
        .map(|source| ChatTemplate::new(source, bos.as_deref(), eos.as_deref()));
    let end_ids = grammar::end_ids(&model.config, &tokenizer);
    let (calls, turns) = (OnceLock::new(), OnceLock::new());
    let (thought, compiler) = (OnceLock::new(), OnceLock::new());
    Ok(OpenModel {
        id,
        model: Arc::new(model),
        tokenizer,
        template,
        end_ids,
        calls,
        turns,
        thought,
        compiler,
        looks: FileLooks::default(),
    })
}

/// When a file or folder was last written, in seconds since 1970; 0 where the system does not say.
pub fn modified_unix_s(path: &Path) -> u64 {
    let modified = std::fs::metadata(path).and_then(|metadata| metadata.modified());
    modified.ok().and_then(|at| at.duration_since(UNIX_EPOCH).ok()).map_or(0, |since| since.as_secs())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_shard_counts_what_was_here_and_what_is_in_flight_and_never_runs_backwards() {
        // Twelve of twenty came in an earlier attempt.
        let mut so_far = ShardProgress::new(20, 8);
        let mut after = |news| {
            so_far.note(news);
            (so_far.done_bytes, so_far.total_bytes)
        };
        assert_eq!(after(FetchProgress::InFlight(0)), (12, 20));
        assert_eq!(after(FetchProgress::InFlight(3)), (15, 20), "on a slow line all that moves");
        assert_eq!(after(FetchProgress::InFlight(0)), (15, 20), "the chunk is whole, and not stored yet");
        assert_eq!(after(FetchProgress::Stored(4)), (16, 20));
        assert_eq!(after(FetchProgress::InFlight(2)), (18, 20));
        assert_eq!(after(FetchProgress::HubWaits(Duration::from_secs(9))), (18, 20));
        assert_eq!(so_far.hub_wait.as_secs(), 9);
        let member = NodeId([7; 32]);
        so_far.note(FetchProgress::From(member, 90));
        assert_eq!((so_far.done_bytes, so_far.from), (18, Some((member, 90))));
        so_far.note(FetchProgress::Stored(90));
        assert_eq!((so_far.done_bytes, so_far.hub_wait, so_far.from), (20, Duration::ZERO, None));
    }

    #[test]
    fn what_was_compared_on_the_disk_counts_as_here_and_did_not_come() {
        let mut so_far = ShardProgress::new(20, 18);
        so_far.find(10);
        assert_eq!((so_far.done_bytes, so_far.came_bytes()), (12, 0));
        so_far.note(FetchProgress::InFlight(3));
        so_far.note(FetchProgress::Stored(4));
        assert_eq!((so_far.done_bytes, so_far.came_bytes()), (16, 4));
        so_far.note(FetchProgress::Found(4));
        assert_eq!(
            (so_far.done_bytes, so_far.came_bytes()),
            (20, 4),
            "another fetch of this node brought it"
        );
    }

    /// What it grew by is what the line is measured with.
    #[test]
    fn what_came_over_a_line_is_no_less_when_another_fetch_brings_something_meanwhile() {
        let mut so_far = ShardProgress::new(20, 20);
        let mut came_after = |news| {
            so_far.note(news);
            so_far.came_bytes()
        };
        assert_eq!(came_after(FetchProgress::InFlight(8)), 8);
        assert_eq!(came_after(FetchProgress::Found(8)), 8);
        assert_eq!(came_after(FetchProgress::InFlight(8)), 8, "the same bytes");
        assert_eq!(came_after(FetchProgress::Stored(12)), 12);
    }

    #[test]
    fn a_fetch_that_stores_nothing_or_adds_to_whole_layers_makes_nothing_that_may_be_pruned() {
        let folder = tempfile::tempdir().unwrap();
        let (from, _) = Store::open(&folder.path().join("from")).unwrap();
        let (to, _) = Store::open(&folder.path().join("to")).unwrap();
        let id = from.add_builtin("demo.gguf", crate::DEMO_MODEL).unwrap().id;
        let partial = to.prepare(&from.manifest(id).unwrap()).unwrap();
        let fetch = |chunks: Vec<ChunkRef>| {
            for chunk in chunks {
                partial.write_chunk(chunk, &from.read_chunk(id, chunk).unwrap()).unwrap();
            }
            partial.flush().unwrap();
        };
        let layers =
            |indices: std::ops::Range<u32>| indices.map(|index| ChunkRef { file: 0, index }).collect();
        fetch(partial.missing_head());
        let mut first = FetchedPart::new(&partial);
        first.note(&partial, &FetchProgress::InFlight(9));
        fetch(layers(40..60));
        assert!(!partial.is_unfinished(), "nothing was stored by this one");
        first.note(&partial, &FetchProgress::Stored(9));
        assert!(partial.is_unfinished());
        // One that goes on, and ends as the first did.
        FetchedPart::new(&partial).note(&partial, &FetchProgress::Stored(9));
        assert!(partial.is_unfinished());
        partial.note_finished(true);
        let mut second = FetchedPart::new(&partial);
        fetch(layers(60..61));
        second.note(&partial, &FetchProgress::Stored(9));
        assert!(!partial.is_unfinished(), "the layers that came before are whole");
        assert_eq!(to.prune(&|_| false).unwrap(), (0, 0));
    }
}
