//! One download: what it shows, what somebody wishes of it, and the task that carries both out.

use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use exo_api::{HubToken, PullRequest, PullState, PullView, ReplacedModelView};
use exo_hub::{
    Cancel, Client, FetchPlan, Fetched, HaveSize, HubError, PlannedFile, Progress, PullOptions, Reference,
    Settings,
};
use exo_stdx::Mutex;
use exo_store::{DiskClaim, ModelRecord, Replaced};
use exo_types::ModelId;
use tokio::runtime::Handle;
use tokio::sync::watch;

use super::DownloadsInner;
use super::members::{Members, is_with_member};
use super::rate::Rate;
use super::register::{check_opens, register};
use super::saved::SavedPull;
use super::updates::Older;
use crate::fits::{self, FitsCluster};
use crate::heads::HeadReader;
use crate::hub_bytes::TOKEN_MAX;
use crate::library::eviction::TakenRoom;
use crate::library_error::LibraryError;
use crate::meters::TransferMeter;
use crate::reference_error::ReferenceError;
use exo_accelerators::chain;

/// After a start, for members to be met and to say what they have; and between two looks.
const REPORTS_MAX: Duration = Duration::from_secs(30);
/// The same where somebody waits, for members that were never heard of since this node started.
const FIRST_REPORTS_MAX: Duration = Duration::from_secs(5);
/// For the coordinator's word on what the machines have.
const CLUSTER_MAX: Duration = Duration::from_secs(10);
const REPORTS_EVERY: Duration = Duration::from_millis(200);

/// From an attempt that nothing answered to the next look: doubled up to the second.
const LINE_AGAIN_MIN: Duration = Duration::from_secs(1);
const LINE_AGAIN_MAX: Duration = Duration::from_secs(30);
/// A line that is away for longer is no line: somebody has to look.
const LINE_AWAY_MAX: Duration = Duration::from_secs(12 * 3600);

/// What somebody wants a download to do.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum DownloadCommand {
    Run,
    Pause,
    /// To leave the list.
    End,
}

/// A download in the list.
pub struct Pull {
    pub reference: Reference,
    /// Without its token.
    request: PullRequest,
    /// What an earlier run of the node had chosen.
    pinned: Option<SavedPull>,
    state: Mutex<PullInner>,
    pub wish: watch::Sender<DownloadCommand>,
    /// True when its task has ended and no thread fetches any more.
    pub ended: watch::Sender<bool>,
}

struct PullInner {
    /// For this download alone, and gone when it is done.
    token: Option<HubToken>,
    view: PullView,
    rate: Rate,
    plan: Option<FetchPlan>,
}

impl Pull {
    pub fn new(
        view: PullView,
        reference: Reference,
        mut request: PullRequest,
        pinned: Option<SavedPull>,
        wish: DownloadCommand,
    ) -> Self {
        let token = request.token.take();
        let state = Mutex::new(PullInner { token, view, rate: Rate::default(), plan: None });
        let (wish, ended) = (watch::Sender::new(wish), watch::Sender::new(false));
        Self { reference, request, pinned, state, wish, ended }
    }

    /// Whether an attempt for this request would be the same again.
    pub fn is_asked_by(&self, request: &PullRequest) -> bool {
        self.request_with_token() == *request
    }

    /// Lets go of the token of a download that no one has go on for long. Never ends.
    async fn forget_token_in_time(&self) {
        tokio::time::sleep(TOKEN_MAX).await;
        self.state.lock().token = None;
        std::future::pending().await
    }

    /// Whether both bring the same commit in the place of the same model, or neither is an update.
    pub fn is_same_update(&self, request: &PullRequest) -> bool {
        let is_same_commit = request.update_of.is_none() || self.commit() == request.commit.as_deref();
        self.request.update_of == request.update_of && is_same_commit
    }

    fn request_with_token(&self) -> PullRequest {
        PullRequest { token: self.state.lock().token.clone(), ..self.request.clone() }
    }

    pub fn view(&self) -> PullView {
        let PullInner { view, rate, .. } = &*self.state.lock();
        let bytes_per_s = rate.bytes_per_s(Instant::now()).filter(|_| view.state == PullState::Fetching);
        let received_bytes = view.received_bytes.max(view.verified_bytes);
        let left = view.total_bytes.map(|total| total.saturating_sub(received_bytes));
        let seconds_left = left.zip(bytes_per_s).map(|(left, rate)| (left as f64 / rate).ceil() as u64);
        PullView { received_bytes, bytes_per_s, seconds_left, ..view.clone() }
    }

    /// Whether nothing comes of it by itself any more.
    pub fn is_over(&self) -> bool {
        matches!(self.state.lock().view.state, PullState::Done | PullState::Failed)
    }

    /// For the file of downloads that are not over.
    pub fn saved(&self) -> Option<SavedPull> {
        let PullInner { view, plan, .. } = &*self.state.lock();
        if view.state == PullState::Done || *self.wish.borrow() == DownloadCommand::End {
            return None;
        }
        let pinned = self.pinned.as_ref();
        let shown = || self.commit().map(str::to_owned);
        let (commit, label, file, folder) = match (plan, pinned) {
            (Some(plan), _) => {
                let first = plan.files.first().map(|file| file.name.clone());
                let gguf = first.filter(|name| plan.commit.is_some() && name.ends_with(".gguf"));
                let label = Some(plan.choice.variant.label.clone());
                (plan.commit.clone().or_else(shown), label, gguf, Some(plan.relative_folder().to_owned()))
            }
            (None, Some(p)) => (shown(), p.label.clone(), p.file.clone(), p.folder.clone()),
            (None, None) => (shown(), None, None, None),
        };
        Some(SavedPull {
            id: view.id.parse().unwrap_or(0),
            file,
            reference: self.reference.whole(),
            commit,
            label,
            folder,
            endpoint: self.request.endpoint.clone(),
            ranges_max: self.request.ranges_max,
            rate_max_bytes_per_s: self.request.rate_max_bytes_per_s,
            layers_only: self.request.layers_only,
            to_run: self.request.to_run,
            update_of: self.request.update_of.clone(),
            is_paused: *self.wish.borrow() == DownloadCommand::Pause && view.state != PullState::Failed,
            failed: view
                .error
                .clone()
                .filter(|_| view.state == PullState::Failed)
                .map(|error| (error, view.hint.clone())),
            started_unix_s: view.started_unix_s,
        })
    }

    /// Has it go on. It is shown as waiting from this moment: who asks next must not hear how the attempt
    /// before ended.
    pub fn go_on(&self, shared: &DownloadsInner) {
        self.show_queued(shared);
        self.wish.send_replace(DownloadCommand::Run);
    }

    fn show_queued(&self, shared: &DownloadsInner) {
        self.show(shared, |view| (view.state, view.error, view.hint) = (PullState::Queued, None, None));
    }

    fn show(&self, shared: &DownloadsInner, change: impl FnOnce(&mut PullView)) {
        let mut state = self.state.lock();
        change(&mut state.view);
        if state.view.state == PullState::Done {
            state.token = None;
        }
        if state.view.state != PullState::Fetching {
            state.rate.clear();
            state.view.ranges = 0;
            state.view.received_bytes = 0; // what is not verified may come again
            state.view.sources.clear();
        }
        drop(state);
        shared.changed();
    }

    /// Of a hub that has not answered yet, or asks to wait, why; unless members give meanwhile.
    fn show_hold_up(&self, shared: &DownloadsInner, why: Option<String>) {
        let (text, is_other) = {
            let PullInner { view, rate, .. } = &*self.state.lock();
            let is_coming = rate.bytes_per_s(Instant::now()).is_some();
            let text = why.filter(|_| !is_coming).map(|why| format!("asks the hub: {why}"));
            let is_asking = matches!(view.state, PullState::Resolving | PullState::Fetching);
            let is_other = is_asking && view.error != text;
            (text, is_other)
        };
        if is_other {
            self.show(shared, |view| view.error = text);
        }
    }

    fn show_line_away(&self, shared: &DownloadsInner, error: &str) {
        self.show(shared, |view| {
            view.state = PullState::Queued; // its turn is another's meanwhile
            view.error = Some(format!("waits for the line, and goes on by itself: {error}"));
        });
    }

    /// What it had fetched may be gone, if it has failed.
    pub fn note_pruned(&self, shared: &DownloadsInner) {
        let plan = self.state.lock().plan.clone();
        let Some(plan) = plan.filter(|_| self.view().state == PullState::Failed) else { return };
        let verified_bytes = plan.verified_bytes(&shared.root);
        self.show(shared, |view| {
            // Somebody may have asked for it again meanwhile.
            if view.state == PullState::Failed {
                view.verified_bytes = verified_bytes;
            }
        });
    }

    /// Whether a hub has said what the files are, now or to an earlier run of the node.
    fn was_answered(&self) -> bool {
        self.pinned.is_some() || self.state.lock().plan.is_some()
    }

    /// The commit that it must be of: as an earlier run of the node understood it, or as a person was shown
    /// it.
    fn commit(&self) -> Option<&str> {
        let pinned = self.pinned.as_ref().and_then(|pinned| pinned.commit.as_deref());
        pinned.or(self.request.commit.as_deref())
    }

    /// The model that it takes the place of, if any, as it is on this disk.
    fn older(&self, shared: &DownloadsInner) -> Result<Option<Older>, ReferenceError> {
        let Some(id) = &self.request.update_of else { return Ok(None) };
        let store = shared.library.store();
        let record =
            id.parse().ok().and_then(|id| store.record(id).ok()).filter(|record| !record.is_replaced);
        let older = record.and_then(|record| Older::of(store, &record));
        older.map(Some).ok_or(ReferenceError::Superseded)
    }

    /// Whether both bring something in the place of the same model.
    pub fn is_of_same_model(&self, request: &PullRequest) -> bool {
        request.update_of.is_some() && self.request.update_of == request.update_of
    }

    /// The reference as it was understood first: a branch that has moved since would begin another download.
    fn pinned_reference(&self) -> Reference {
        let Reference::Hub(hub) = &self.reference else { return self.reference.clone() };
        let mut hub = hub.clone();
        if let Some(SavedPull { commit: Some(commit), label, file, .. }) = &self.pinned {
            hub.revision = Some(commit.clone());
            if hub.names_no_type() {
                // Two files may have the same label.
                hub.file.clone_from(file);
                hub.quantisation.clone_from(label);
            }
        }
        Reference::Hub(hub)
    }

    /// How the hub is asked for this one.
    fn settings(&self, shared: &DownloadsInner) -> Result<Settings, HubError> {
        settings_for(shared.settings()?, &self.reference, &self.request_with_token())
    }

    /// Asks, fetches and verifies, or only reads heads. Blocks.
    fn fetch(&self, shared: &DownloadsInner, cancel: &Cancel) -> Result<AttemptResult, ReferenceError> {
        let settings = self.settings(shared)?;
        let mut options = PullOptions::new(shared.root.clone());
        options.rate_max = self.request.rate_max_bytes_per_s;
        options.ranges_max = self.request.ranges_max.map_or(options.ranges_max, usize::from);
        let is_update = self.request.update_of.is_some();
        // An update says nothing of what is here: that is what it replaces.
        let here = (!is_update).then(|| self.here(shared, &options, settings.offline)).flatten();
        if let Some(here) = here {
            return Ok(here);
        }
        let client = Client::new(settings.clone());
        let mut heads = HeadReader::new(&client, cancel, &shared.config.data_dir);
        let older = self.older(shared)?;
        let plan = match self.plan(shared, &mut heads, older.as_ref()) {
            // Without a line what is here of yesterday is what there is; not for a download that has begun:
            // it waits.
            Err(ReferenceError::Hub(error))
                if error.is_line_away() && !is_update && self.pinned.is_none() =>
            {
                let why = format!("the hub does not answer ({})", chain(&error));
                return self.here(shared, &options, Some(&why)).ok_or(ReferenceError::Hub(error));
            }
            plan => plan?,
        };
        self.show(shared, |view| view.state = PullState::Fetching);
        if self.request.layers_only && !plan.is_here(&options.root) {
            let registered = match register(&shared.library, &shared.config.data_dir, &mut heads, &plan) {
                Err(ReferenceError::Hub(error @ HubError::Lacks { .. })) if self.request.to_run => {
                    let error = chain(&error);
                    tracing::warn!(reference = plan.reference, error, "this machine fetches the whole model");
                    self.show(shared, |view| {
                        view.reason = Some(format!("{error}: this machine fetches all of it"))
                    });
                    None
                }
                registered => Some(registered?),
            };
            let Some((known, is_new)) = registered else {
                return self.fetch_whole(shared, &mut heads, (&plan, &options), older.as_ref());
            };
            shared.library.hub().use_settings(known.id, settings);
            shared.library.store().asked_for(known.id, &plan.reference).map_err(|source| {
                let folder = shared.config.data_dir.display().to_string();
                ReferenceError::Disk { folder, source: std::io::Error::other(source) }
            })?;
            return Ok(AttemptResult::Known { known, is_new });
        }
        self.fetch_whole(shared, &mut heads, (&plan, &options), older.as_ref())
    }

    fn fetch_whole(
        &self,
        shared: &DownloadsInner,
        heads: &mut HeadReader<'_>,
        (plan, options): (&FetchPlan, &PullOptions),
        older: Option<&Older>,
    ) -> Result<AttemptResult, ReferenceError> {
        let (client, cancel) = (heads.client, heads.cancel);
        let mut copies = plan.copies(&options.root);
        copies.extend(older.and_then(Older::files));
        let needed = plan.have(&options.root, &copies);
        // Another attempt has read it already.
        if plan.missing_bytes(&options.root) == plan.bytes() {
            check_opens(heads, plan, needed.room_bytes)?;
        }
        let room = self.take_room(shared, needed, cancel)?;
        let linked = plan.link_unchanged(&options.root, &copies, cancel)?;
        // As if there were no copies: linked files are there by now.
        let still_needed = plan.have(&options.root, &[]);
        let room = match still_needed.room_bytes > needed.room_bytes {
            true => {
                drop(room); // this disk has no hard links, or has damaged a file
                self.take_room(shared, still_needed, cancel)
            }
            false => Ok(room),
        };
        let fetched =
            room.and_then(|room| Ok(self.fetch_files(shared, client, plan, options, &room.claim, cancel)?));
        // The next attempt, or another process that fetches to this folder, does not read these files again.
        // After any other failure no one may come for them.
        let is_interruption =
            |error: &ReferenceError| matches!(error, ReferenceError::Hub(error) if error.is_interruption());
        if fetched.as_ref().is_err_and(|error| !is_interruption(error)) {
            linked.iter().for_each(|path| _ = std::fs::remove_file(path));
        }
        Ok(AttemptResult::Files(fetched?))
    }

    /// What is here of the reference, where the hub is not asked: it cannot be, as `why` says, or need not
    /// be.
    fn here(
        &self,
        shared: &DownloadsInner,
        options: &PullOptions,
        why: Option<&str>,
    ) -> Option<AttemptResult> {
        let found = match why {
            Some(_) => options.on_disk(&self.reference),
            None if self.request.to_run => options.fetched_for(&self.reference),
            None => return None,
        };
        let known = || {
            let known = shared.library.store().known_for(&self.reference.to_string());
            known
                .inspect_err(|error| {
                    tracing::warn!(error = chain(error), "the list of models cannot be read");
                })
                .ok()?
        };
        let brought = match found {
            Some(files) => AttemptResult::Files(files),
            // Of a model that is known this disk may have heads alone.
            None if !(self.request.to_run || self.request.layers_only) => return None,
            None => AttemptResult::Known { known: known()?, is_new: false },
        };
        if let Some(why) = why {
            let reference = self.reference.to_string();
            tracing::warn!(
                reference,
                why,
                "what is on this disk is taken; whether there is a newer commit was not asked"
            );
            self.show(shared, |view| {
                view.reason = Some(format!(
                    "{why}: it is taken from this disk, and nobody was asked for a newer commit"
                ));
            });
        }
        Some(brought)
    }

    /// Takes room on the disk, and shows what went for it.
    fn take_room(
        &self,
        shared: &DownloadsInner,
        needed: HaveSize,
        cancel: &Cancel,
    ) -> Result<TakenRoom, ReferenceError> {
        let bytes = needed.room_bytes;
        let is_wanted = || !cancel.is_cancelled();
        let make_room = || Handle::current().block_on(shared.library.make_room(None, bytes, &is_wanted));
        let room = match make_room() {
            // A node that has just started does not know yet what others have.
            Err(_) if self.pinned.is_some() => {
                Handle::current().block_on(shared.wait_for_reports(REPORTS_MAX, cancel));
                make_room()?
            }
            room => room?,
        };
        room.claim.rewrites(needed.rewritten_bytes());
        if !room.removed.is_empty() {
            self.show(shared, |view| view.removed.extend(room.removed.clone()));
        }
        Ok(room)
    }

    fn fetch_files(
        &self,
        shared: &DownloadsInner,
        client: &Client,
        plan: &FetchPlan,
        options: &PullOptions,
        claim: &DiskClaim,
        cancel: &Cancel,
    ) -> Result<Fetched, HubError> {
        let (here, mut came_bytes, mut before) = (self.state.lock().view.verified_bytes, 0, None);
        let members = Members::new(shared);
        let _running = TransferMeter::begin(&shared.meters);
        exo_hub::fetch_near(client, &members, plan, options, cancel, &mut |progress: &Progress| {
            let new_bytes = progress.done_bytes - *before.get_or_insert(progress.done_bytes);
            before = Some(progress.done_bytes);
            came_bytes += new_bytes;
            claim.arrived(new_bytes);
            shared.meters.transfers.received(new_bytes);
            let sources = members.sources(came_bytes);
            let mut state = self.state.lock();
            state.rate.note(Instant::now(), progress.received_bytes);
            let view = &mut state.view;
            if new_bytes > 0 {
                (view.error, view.hint) = (None, None); // the line is back
            }
            view.verified_bytes = progress.done_bytes.max(here);
            view.received_bytes = progress.received_bytes;
            view.sources = sources;
            view.ranges = u32::try_from(progress.ranges).unwrap_or(u32::MAX);
            view.file = Some(progress.file.clone());
            drop(state);
            shared.changed();
        })
    }

    /// What was found out before, or what the hub says now.
    fn plan(
        &self,
        shared: &DownloadsInner,
        heads: &mut HeadReader<'_>,
        older: Option<&Older>,
    ) -> Result<FetchPlan, ReferenceError> {
        if let Some(plan) = self.state.lock().plan.clone() {
            return Ok(plan);
        }
        self.show(shared, |view| view.state = PullState::Resolving);
        let mut plan = match older {
            Some(older) => exo_hub::resolve_again(heads.client, &older.origin, self.commit(), heads.cancel)?,
            None => self.choose(shared, heads)?,
        };
        plan.reference = self.reference.to_string();
        self.state.lock().plan = Some(plan.clone());
        // What is here of it is not shown as less while it has to wait for room.
        let verified_bytes = plan.verified_bytes(&shared.root);
        self.show(shared, |view| {
            view.error = None;
            view.label = Some(plan.choice.variant.label.clone());
            view.reason = Some(plan.choice.reason.clone());
            view.commit = plan.commit.clone();
            view.licence = Some(plan.licence.label().to_owned());
            view.terms = plan.licence.notable_terms();
            view.files = u32::try_from(plan.files.len()).unwrap_or(u32::MAX);
            view.total_bytes = Some(plan.bytes());
            view.verified_bytes = verified_bytes;
        });
        shared.save();
        Ok(plan)
    }

    /// What the reference means now; of what is to run, what the machines hold.
    fn choose(
        &self,
        shared: &DownloadsInner,
        heads: &mut HeadReader<'_>,
    ) -> Result<FetchPlan, ReferenceError> {
        let (client, cancel, reference) = (heads.client, heads.cancel, self.pinned_reference());
        let resolve = || exo_hub::resolve(client, &reference, shared.memory().as_ref(), cancel);
        // An earlier run of the node has looked at what was kept.
        let is_to_run = self.request.to_run && self.pinned.is_none();
        let cluster = || shared.cluster_now(&reference, self.request.layers_only, cancel);
        let Some(cluster) = is_to_run.then(cluster).flatten() else { return Ok(resolve()?) };
        let chosen = match &reference {
            Reference::Hub(hub) => fits::choose_fitting(&cluster, heads, hub),
            _ => {
                let plan = resolve()?;
                fits::check_fits(&cluster, heads, &plan).map(|()| plan)
            }
        };
        match chosen {
            // Files in many parts: their sizes have to do.
            Err(ReferenceError::TooLarge { .. }) => Ok(resolve()?),
            chosen => chosen,
        }
    }
}

/// Waits until somebody ends it, or for so long.
async fn over_or_cancelled(time_max: Duration, cancel: &Cancel) {
    let deadline = Instant::now() + time_max;
    while !cancel.is_cancelled() && Instant::now() < deadline {
        tokio::time::sleep(REPORTS_EVERY).await;
    }
}

/// What came of an attempt.
enum AttemptResult {
    /// The model is on the disk.
    Files(Fetched),
    /// Its heads are.
    Known {
        known: ModelRecord,
        /// Whether this attempt made it known.
        is_new: bool,
    },
}

/// What the request names in place of the node's own: a hub and a token for it, or a registry.
pub fn settings_for(
    settings: Settings,
    reference: &Reference,
    request: &PullRequest,
) -> Result<Settings, HubError> {
    match (reference, request.endpoint.as_deref()) {
        (Reference::Registry(_), Some(registry)) => settings.with_ollama_registry(registry),
        (Reference::Registry(_), None) => Ok(settings),
        (_, endpoint) => settings.aimed(endpoint, request.token.as_ref().map(|token| token.0.as_str())),
    }
}

/// Runs a download until it is over and somebody has taken it from the list, or the node stops.
pub async fn drive(shared: Arc<DownloadsInner>, pull: Arc<Pull>, mut stop: watch::Receiver<bool>) {
    let mut wish = pull.wish.subscribe();
    // As an earlier run of the node left it.
    let mut has_failed = pull.view().state == PullState::Failed;
    loop {
        let (wanted, is_done) = (*wish.borrow_and_update(), pull.view().state == PullState::Done);
        match wanted {
            DownloadCommand::End => break,
            DownloadCommand::Pause | DownloadCommand::Run if is_done => {}
            DownloadCommand::Pause if std::mem::take(&mut has_failed) => {}
            DownloadCommand::Pause => pull.show(&shared, |view| {
                (view.state, view.error, view.hint) = (PullState::Paused, None, None);
            }),
            DownloadCommand::Run => {
                if !run(&shared, &pull, &mut wish, &mut stop).await {
                    continue;
                }
            }
        }
        // What is done or has failed waits for another wish, too.
        tokio::select! {
            changed = wish.changed() => if changed.is_err() { break },
            _ = stop.wait_for(|stop| *stop) => break,
            () = pull.forget_token_in_time() => {}
        }
    }
    let _ = pull.ended.send(true);
}

/// Attempts, until one ends for another reason than a line that is away. False if the wish has changed
/// meanwhile, which is then carried out.
async fn run(
    shared: &Arc<DownloadsInner>,
    pull: &Arc<Pull>,
    wish: &mut watch::Receiver<DownloadCommand>,
    stop: &mut watch::Receiver<bool>,
) -> bool {
    pull.show_queued(shared);
    // The list on disk may say that it has failed, and a restart would leave it at that.
    shared.save_soon();
    let mut away = HubOutage::default();
    'attempts: loop {
        let (failed, is_line_away) = match attempt(shared, pull, wish, stop).await {
            Attempt::Over { is_settled } => return is_settled,
            Attempt::Failed(failed) => (failed, false),
            Attempt::HubOutage(failed) => (failed, true),
        };
        let verified_bytes = pull.view().verified_bytes;
        let mut note = || is_line_away.then(|| away.note(Instant::now(), verified_bytes)).flatten();
        while let Some(wait) = note() {
            tracing::info!(reference = %pull.reference, error = %failed.0, wait_s = wait.as_secs(), "a download waits for its line");
            pull.show_line_away(shared, &failed.0);
            tokio::select! {
                is_answered = is_answered_after(shared, pull, wait) => if is_answered { continue 'attempts },
                _ = wish.changed() => return false,
                _ = stop.wait_for(|stop| *stop) => return true,
            }
        }
        let (reference, error) = (&pull.reference, &failed.0);
        match shared.is_kept() {
            true => tracing::warn!(%reference, %error, "a download failed"),
            // The command that this node is for says so itself.
            false => tracing::info!(%reference, %error, "a download failed"),
        }
        pull.show(shared, |view| {
            (view.state, view.error, view.hint) = (PullState::Failed, Some(failed.0), failed.1);
        });
        shared.save_soon();
        return true;
    }
}

/// Waits, and then asks whether the host answers at all, or a member has what comes next: an attempt reads
/// what is here again, and needs a turn.
async fn is_answered_after(shared: &Arc<DownloadsInner>, pull: &Arc<Pull>, wait: Duration) -> bool {
    tokio::time::sleep(wait).await;
    let (its_pull, its_shared) = (pull.clone(), shared.clone());
    let look = move || {
        let plan = its_pull.state.lock().plan.clone();
        match (plan, its_pull.settings(&its_shared)) {
            (Some(plan), Ok(settings)) => {
                (plan.is_answered(&Client::new(settings)), next_file(&plan, &its_shared.root))
            }
            _ => (true, None),
        }
    };
    match tokio::task::spawn_blocking(look).await {
        Ok((false, Some((sha256, size)))) => is_with_member(shared, sha256, size).await,
        Ok((is_answered, _)) => is_answered,
        Err(_) => true,
    }
}

/// The first file of a plan that is missing on this disk, as members know it.
fn next_file(plan: &FetchPlan, root: &Path) -> Option<([u8; 32], u64)> {
    let folder = plan.folder(root);
    let is_here = |file: &PlannedFile| {
        std::fs::metadata(folder.join(file.below())).is_ok_and(|about| about.len() == file.size)
    };
    let next = plan.files.iter().find(|file| !is_here(file))?;
    Some((next.digest()?, next.size))
}

/// Between two looks at how often a hub was asked.
const TRIES_LOOK_EVERY: Duration = Duration::from_millis(500);

/// How long a line has been away.
#[derive(Default)]
struct HubOutage {
    /// Since when, and how many bytes were verified then.
    since: Option<(Instant, u64)>,
    /// Attempts since then.
    count: u32,
}

impl HubOutage {
    /// After another attempt without an answer: how long to wait; `None` if it has been away for too long.
    fn note(&mut self, now: Instant, verified_bytes: u64) -> Option<Duration> {
        let (since, before) = *self.since.get_or_insert((now, verified_bytes));
        if verified_bytes > before {
            (self.since, self.count) = (Some((now, verified_bytes)), 0);
        } else if now.duration_since(since) > LINE_AWAY_MAX {
            return None;
        }
        self.count = self.count.saturating_add(1);
        Some((LINE_AGAIN_MIN * (1 << self.count.min(8))).min(LINE_AGAIN_MAX))
    }
}

/// Whether what failed is what has come: of a repository the type that was named and `label` is, or of both
/// what the repository offers first. An update names the commit that is to come, and is in a list of its own.
fn is_same_model(failed: &Reference, done: &Reference, label: Option<&str>) -> bool {
    match (failed, done) {
        (Reference::Hub(failed), Reference::Hub(done)) => {
            let is_type = |wanted: &str| label.is_some_and(|label| label.eq_ignore_ascii_case(wanted));
            failed.repo == done.repo
                && failed.revision == done.revision
                && failed.file == done.file
                && failed.quantisation.as_deref().map_or(done.quantisation.is_none(), is_type)
        }
        _ => failed.whole() == done.whole(),
    }
}

/// What became of an attempt.
enum Attempt {
    /// It is done, or was ended; whether no new wish is to be carried out.
    Over { is_settled: bool },
    /// With what would help.
    Failed((String, Option<String>)),
    /// Nothing answered any more. It goes on when something does.
    HubOutage((String, Option<String>)),
}

/// One attempt, in its turn.
async fn attempt(
    shared: &Arc<DownloadsInner>,
    pull: &Arc<Pull>,
    wish: &mut watch::Receiver<DownloadCommand>,
    stop: &mut watch::Receiver<bool>,
) -> Attempt {
    let _turn = tokio::select! {
        turn = shared.turns.acquire() => turn,
        _ = wish.changed() => return Attempt::Over { is_settled: false },
        _ = stop.wait_for(|stop| *stop) => return Attempt::Over { is_settled: true },
    };
    let cancel = Arc::new(Cancel::default());
    let (to_fetch, wanted, its_shared) = (pull.clone(), cancel.clone(), shared.clone());
    let mut work = tokio::task::spawn_blocking(move || to_fetch.fetch(&its_shared, &wanted));
    let mut is_wish_new = false;
    let mut look = tokio::time::interval(TRIES_LOOK_EVERY);
    let fetched = loop {
        tokio::select! {
            fetched = &mut work => break fetched,
            _ = look.tick() => pull.show_hold_up(shared, cancel.hold_up()),
            _ = wish.changed(), if !is_wish_new => { is_wish_new = true; cancel.cancel() }
            _ = stop.wait_for(|stop| *stop), if !cancel.is_cancelled() => cancel.cancel(),
        }
    };
    let over = Attempt::Over { is_settled: !is_wish_new };
    match fetched {
        Ok(Ok(brought)) => {
            let added = match brought {
                AttemptResult::Files(fetched) => shared.add(pull, fetched).await,
                AttemptResult::Known { known, is_new } => shared.add_known(pull, known, is_new).await,
            };
            added.map_or_else(|error| Attempt::Failed((chain(&error), None)), |()| over)
        }
        Ok(Err(ReferenceError::Hub(HubError::Cancelled))) => over,
        Ok(Err(_)) if is_wish_new => over,
        Ok(Err(error)) => {
            let failed = (chain(&error), error.hint().map(str::to_owned));
            let is_away = matches!(&error, ReferenceError::Hub(error) if error.is_line_away());
            // A host that never answered may be a wrong one.
            match is_away && pull.was_answered() {
                true => Attempt::HubOutage(failed),
                false => Attempt::Failed(failed),
            }
        }
        Err(error) => Attempt::Failed((format!("the download broke off: {error}"), None)),
    }
}

impl DownloadsInner {
    /// [`DownloadsInner::cluster_for`], once members have said what they have; `None` where no one says.
    /// Blocks.
    fn cluster_now(&self, reference: &Reference, in_layers: bool, cancel: &Cancel) -> Option<FitsCluster> {
        Handle::current().block_on(async {
            self.wait_for_reports(FIRST_REPORTS_MAX, cancel).await;
            let cluster = tokio::select! {
                cluster = self.cluster_for(reference, in_layers) => cluster,
                () = over_or_cancelled(CLUSTER_MAX, cancel) => {
                    let seconds = CLUSTER_MAX.as_secs();
                    tracing::info!(seconds, "what fits is chosen by size: no coordinator has answered");
                    return None;
                }
            };
            let cluster = cluster.inspect_err(|error| {
                tracing::info!(error = chain(error), "what fits is chosen by size: there is no plan");
            });
            cluster.ok().filter(|cluster| !cluster.devices.is_empty())
        })
    }

    /// Waits until each member has said what it has, but for those that are not there.
    async fn wait_for_reports(&self, time_max: Duration, cancel: &Cancel) {
        let deadline = Instant::now() + time_max;
        let have_all_told = || {
            let nodes = &self.view.borrow().nodes;
            !nodes.is_empty() && nodes.iter().all(|node| !node.version.is_empty())
        };
        while !have_all_told() && !cancel.is_cancelled() && Instant::now() < deadline {
            tokio::time::sleep(REPORTS_EVERY).await;
        }
    }

    /// Makes what came known to the node.
    async fn add(self: &Arc<Self>, pull: &Pull, fetched: Fetched) -> Result<(), LibraryError> {
        pull.show(self, |view| {
            (view.state, view.error, view.hint) = (PullState::Adding, None, None);
            view.verified_bytes = view.total_bytes.unwrap_or(view.verified_bytes);
        });
        let added = crate::adding::add_fetched(&self.library, fetched.clone()).await;
        let record = added.map_err(|error| LibraryError::Unusable {
            error: Box::new(error),
            path: fetched.path.display().to_string(),
        })?;
        // Its files are here, so nothing was fetched.
        self.library.check_placeable(record.id).await?;
        let (record, replaced) = self.name(pull, record.id).await?;
        crate::library::eviction::list_again(&self.node).await;
        self.done(pull, |view| {
            (view.model, view.replaced) = (Some(record.name), replaced);
            view.path = Some(fetched.path.display().to_string());
            view.was_here = fetched.was_here;
            view.is_verified = Some(fetched.origin.is_verified());
            view.licence = Some(fetched.origin.licence.label().to_owned());
            view.label = Some(fetched.origin.label.clone());
        });
        Ok(())
    }

    /// The same for a model of which only the heads were read.
    async fn add_known(
        self: &Arc<Self>,
        pull: &Pull,
        known: ModelRecord,
        is_new: bool,
    ) -> Result<(), LibraryError> {
        pull.show(self, |view| {
            (view.state, view.error, view.hint) = (PullState::Adding, None, None);
        });
        crate::adding::open_once(&self.library, known.id, is_new).await?;
        let (known, replaced) = self.name(pull, known.id).await?;
        crate::library::eviction::list_again(&self.node).await;
        self.done(pull, |view| {
            (view.model, view.replaced) = (Some(known.name), replaced);
            view.path = Some(known.path.display().to_string());
            (view.verified_bytes, view.total_bytes) = (known.held_bytes, Some(known.held_bytes));
            view.is_verified = Some(false);
        });
        Ok(())
    }

    fn done(self: &Arc<Self>, pull: &Pull, show: impl FnOnce(&mut PullView)) {
        pull.show(self, |view| {
            view.state = PullState::Done;
            show(view);
        });
        self.take_out_failed(pull);
        self.save_soon();
    }

    /// Takes earlier attempts at what has come now from the list, however they were spelled.
    fn take_out_failed(&self, done: &Pull) {
        let label = done.view().label;
        let is_its = |pull: &Pull| {
            pull.view().state == PullState::Failed
                && is_same_model(&pull.reference, &done.reference, label.as_deref())
        };
        let mut pulls = self.pulls.lock();
        let failed: Vec<u64> =
            pulls.by_id.iter().filter(|(_, pull)| is_its(pull)).map(|(id, _)| *id).collect();
        failed.into_iter().for_each(|id| pulls.take_out(id));
    }

    /// The last step, once it is known to open: it counts as used and takes its name, and the older commit
    /// that it updates goes, at once if nothing uses it.
    async fn name(
        &self,
        pull: &Pull,
        newer: ModelId,
    ) -> Result<(ModelRecord, Option<ReplacedModelView>), LibraryError> {
        crate::library::eviction::note(self.library.store(), vec![newer]).await;
        let Some(older) = &pull.request.update_of else {
            return Ok((crate::adding::takes_name(&self.library, newer).await?, None));
        };
        let older: ModelId =
            older.parse().map_err(|_| LibraryError::NoId(exo_types::printable(older, 80)))?;
        let store = self.library.store().clone();
        let replaced = tokio::task::spawn_blocking(move || {
            let replaced = store.replace(older, newer)?;
            Ok::<_, LibraryError>((store.record(newer)?, replaced))
        });
        let (record, replaced) = replaced.await??;
        let name = match replaced {
            Replaced::Gone => return Err(LibraryError::Superseded),
            Replaced::Stays => return Ok((record, None)),
            Replaced::Goes { name } => name,
        };
        self.library.remove_replaced().await;
        let store = self.library.store().clone();
        let removed = tokio::task::spawn_blocking(move || store.record(older).is_err()).await;
        Ok((record, Some(ReplacedModelView { name, removed: removed? })))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_failed_is_over_once_the_same_model_has_come_under_another_spelling() {
        let is_same = |failed: &str, done: &str, label: &str| {
            is_same_model(&failed.parse().unwrap(), &done.parse().unwrap(), Some(label))
        };
        assert!(is_same("hf.co/org/repo", "hf.co/org/repo", "Q8_0"));
        assert!(!is_same("hf.co/org/repo", "hf.co/org/repo:Q2_K", "Q2_K"), "which one failed is not said");
        assert!(is_same("hf.co/org/repo:q8_0", "hf.co/org/repo", "Q8_0"));
        assert!(!is_same("hf.co/org/repo:Q4_K_M", "hf.co/org/repo", "Q8_0"));
        assert!(!is_same("hf.co/org/other", "hf.co/org/repo", "Q8_0"));
        assert!(!is_same("hf.co/org/repo@v2", "hf.co/org/repo", "Q8_0"));
        assert!(is_same("qwen3:8b", "qwen3:8b", "8b") && !is_same("qwen3:8b", "qwen3:4b", "4b"));
    }

    #[test]
    fn a_line_that_is_away_is_looked_for_each_half_minute_for_hours_and_bytes_begin_that_anew() {
        let (mut away, start) = (HubOutage::default(), Instant::now());
        let at = |s: u64| start + Duration::from_secs(s);
        let waits: Vec<u64> = (0..7).map(|n| away.note(at(n), 5).unwrap().as_secs()).collect();
        assert_eq!(waits, [2, 4, 8, 16, 30, 30, 30]);
        assert_eq!(away.note(at(12 * 3600), 5).unwrap().as_secs(), 30);
        assert_eq!(away.note(at(12 * 3600 + 1), 6).unwrap().as_secs(), 2, "something came");
        assert!(away.note(at(20 * 3600), 6).is_some());
        assert_eq!(away.note(at(25 * 3600), 6), None);
    }
}
