//! Room on this node's disk for what is about to be fetched. Where there is none, models that exo fetched go,
//! those first that were not in use for longest.
//!
//! What is placed, kept, being fetched, or whole on no other member stays, and a file that exo did not fetch
//! is never touched. Two members that have the last two copies of a model could both count on the other's. So
//! a node first stops saying that it has what is to go, waits until the others have heard of that, and
//! deletes only what another still says to have: of two that do so at once, both keep it.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use exo_api::{ClusterView, RemovedModelView};
use exo_cluster::wire::HeldModel;
use exo_machine::{Answer, Holder, ModelHolders, Question};
use exo_stdx::{Mutex, unix_s};
use exo_store::{DiskBudget, DiskClaim, ModelRecord, NoRoom, Store};
use exo_telemetry::DifferingModel;
use exo_types::{DiskRoom, ModelId, NodeId};
use tokio::sync::{OwnedMutexGuard, watch};

use super::Library;
use crate::bulk::holder_of;
use crate::events::EventSender;
use crate::questions::{NoAnswer, ask_node};
use exo_accelerators::chain;

/// For the machine to look at the disk.
const SCAN_MAX: Duration = Duration::from_secs(12);
/// For the others to hear what this node does not count as its own any more: reports come each second.
const NOTICE: Duration = Duration::from_secs(3);
/// How often what is to go is chosen anew, and the unit of the time between, which is another for another
/// node.
const ATTEMPTS: u32 = 3;
const APART: Duration = Duration::from_secs(1);
/// For the machine to answer, after a look at the disk.
const ANSWER_MAX: Duration = Duration::from_secs(15);
/// For somebody to coordinate, after a start; without, the next look is soon.
const COORDINATOR_MAX: Duration = Duration::from_secs(5);
/// Between two looks at what is placed here, and between two notes of that on the disk.
const LOOK_EVERY: Duration = Duration::from_secs(20);
const NOTE_EVERY: Duration = Duration::from_secs(600);

/// What a node knows of its room for models.
pub struct Eviction {
    budget: Arc<DiskBudget>,
    node: EventSender,
    me: NodeId,
    /// The model that guesses ahead: it is open.
    draft: OnceLock<ModelId>,
    state: Arc<Mutex<EvictionState>>,
    /// One at a time deletes.
    turn: Arc<tokio::sync::Mutex<()>>,
    /// The cluster as this node sees it, once it has begun.
    view: OnceLock<watch::Receiver<ClusterView>>,
    /// Whether a coordinator has said what is placed since this node began.
    was_told: AtomicBool,
}

#[derive(Default)]
struct EvictionState {
    /// Models that are being fetched, how many times each.
    busy: BTreeMap<ModelId, usize>,
    /// Models that are about to go.
    leaving: BTreeSet<ModelId>,
    /// As it was when the models on the disk were last looked at.
    disk: DiskFacts,
}

/// What alerts about models on this disk follow from.
#[derive(Clone, Default)]
pub struct DiskFacts {
    /// What models take of the disk and what they may, where that is bounded.
    pub quota_bytes: Option<(u64, u64)>,
    /// Names of those whose file is not the one that was added.
    pub changed: Vec<String>,
    /// Those that are not what their hub promised.
    pub differing: Vec<DifferingModel>,
}

pub struct TakenRoom {
    /// What is counted for it.
    pub claim: DiskClaim,
    /// What went.
    pub removed: Vec<RemovedModelView>,
    _busy: Busy,
}

impl Eviction {
    /// Of a node whose models have so much of the disk.
    pub fn new(budget: DiskBudget, me: NodeId, node: EventSender) -> Self {
        Self {
            budget: Arc::new(budget),
            node,
            me,
            draft: OnceLock::new(),
            state: Arc::default(),
            turn: Arc::default(),
            view: OnceLock::new(),
            was_told: AtomicBool::new(false),
        }
    }

    /// Notes what a look at the models on the disk has found.
    pub fn looked_at(&self, records: &[ModelRecord]) {
        let is_changed =
            |record: &&ModelRecord| matches!(record.problem, Some(exo_store::RecordProblem::Changed { .. }));
        let changed = records.iter().filter(is_changed).map(|record| record.name.clone()).collect();
        let differing = records.iter().filter(|record| record.checked == Some(false));
        let differing = differing.map(|r| DifferingModel { id: r.id.to_full(), name: r.name.clone() });
        let disk = &mut self.state.lock().disk;
        (disk.changed, disk.differing) = (changed, differing.collect());
    }

    /// What was found then.
    pub fn disk_facts(&self) -> DiskFacts {
        self.state.lock().disk.clone()
    }

    /// No one else deletes models as long as what is returned is there.
    pub async fn turn(&self) -> OwnedMutexGuard<()> {
        self.turn.clone().lock_owned().await
    }

    /// What may still be fetched. Blocks for a walk over the files of models where there is a quota, and
    /// notes what they take of it.
    pub fn disk_room(&self) -> DiskRoom {
        let look = self.budget.look();
        self.state.lock().disk.quota_bytes = look.quota_bytes;
        look.room
    }

    /// What is told of a model on the disk.
    pub fn held(&self, record: ModelRecord) -> HeldModel {
        let may_go = self.may_go(&record, &self.state.lock());
        let held_bytes = record.held_bytes.min(record.bytes);
        // Chunks may have come since the disk was looked at.
        let expected_bytes = self.budget.expected_bytes(record.id).min(record.bytes - held_bytes);
        HeldModel {
            model: record.id,
            name: record.name,
            bytes: record.bytes,
            held_bytes,
            complete: record.complete,
            is_of_hub: record.is_of_hub,
            expected_bytes,
            may_go,
        }
    }

    /// Whether a model goes when room is needed, once it is placed nowhere and whole on another member.
    fn may_go(&self, record: &ModelRecord, state: &EvictionState) -> bool {
        let is_needed = self.draft.get() == Some(&record.id) || state.busy.contains_key(&record.id);
        record.is_downloaded && !record.is_kept && !is_needed
    }

    /// Whether a model is about to go: this node does not say any more that it has it.
    pub fn is_leaving(&self, model: ModelId) -> bool {
        self.state.lock().leaving.contains(&model)
    }

    /// This model guesses ahead as long as the node runs.
    pub fn hold_draft(&self, model: ModelId) {
        let _ = self.draft.set(model);
    }

    /// Why a model that is placed nowhere must stay all the same, and what would help.
    pub fn why_needed(&self, model: ModelId) -> Option<&'static str> {
        if self.draft.get() == Some(&model) {
            return Some("guesses ahead for this node (`--draft`); start the node without it first");
        }
        let is_busy = self.state.lock().busy.contains_key(&model);
        is_busy.then_some("is being fetched; end that first, `exo pulls` lists downloads")
    }

    /// A model is being fetched as long as what is returned is there.
    pub(super) fn fetches(&self, model: ModelId) -> Busy {
        Busy::begin(&self.state, Some(model))
    }

    /// What this node sees of the cluster from now on.
    pub fn sees(&self, view: watch::Receiver<ClusterView>) {
        let _ = self.view.set(view);
    }

    /// The other members that are there.
    pub(super) fn members(&self) -> Vec<Holder> {
        let Some(view) = self.view.get() else { return Vec::new() };
        let view = view.borrow();
        view.nodes.iter().filter(|node| !node.is_self).filter_map(|node| holder_of(node).ok()).collect()
    }

    /// Whether somebody coordinates, if need be after a while: before that, what is placed has not been heard
    /// yet.
    async fn knows_what_is_placed(&self) -> bool {
        let Some(mut view) = self.view.get().cloned() else { return false };
        let known = view.wait_for(|view| view.epoch.is_some());
        matches!(tokio::time::timeout(COORDINATOR_MAX, known).await, Ok(Ok(_)))
    }

    async fn take(&self, model: Option<ModelId>, needed_bytes: u64) -> Result<DiskClaim, NoRoom> {
        let budget = self.budget.clone();
        match tokio::task::spawn_blocking(move || budget.take(model, needed_bytes)).await {
            Ok(taken) => taken,
            Err(panicked) => std::panic::resume_unwind(panicked.into_panic()),
        }
    }

    async fn check(&self, needed_bytes: u64) -> Result<(), NoRoom> {
        let budget = self.budget.clone();
        match tokio::task::spawn_blocking(move || budget.check(needed_bytes)).await {
            Ok(checked) => checked,
            Err(panicked) => std::panic::resume_unwind(panicked.into_panic()),
        }
    }

    async fn short_bytes(&self, needed_bytes: u64) -> Option<u64> {
        let budget = self.budget.clone();
        tokio::task::spawn_blocking(move || budget.short_bytes(needed_bytes)).await.ok()
    }

    /// Whether a model came into use since it was looked at.
    async fn is_in_use(&self, model: ModelId) -> bool {
        let is_placed =
            self.placed().await.is_none_or(|placed| placed.iter().any(|instance| instance.model() == model));
        is_placed || self.draft.get() == Some(&model) || self.state.lock().busy.contains_key(&model)
    }

    /// [`Eviction::placed`], and `None` too if no coordinator has said it since this node began. After one
    /// that was lost it is as that one said.
    pub async fn placed_as_told(&self) -> Option<Vec<exo_cluster::InstanceView>> {
        if !self.was_told.load(Ordering::Relaxed) {
            if !self.knows_what_is_placed().await {
                return None;
            }
            // It is told each second, and not with who coordinates.
            tokio::time::sleep(NOTICE).await;
            self.was_told.store(true, Ordering::Relaxed);
        }
        self.placed().await
    }

    /// Models that are placed, anywhere.
    pub async fn placed(&self) -> Option<Vec<exo_cluster::InstanceView>> {
        match ask_node(&self.node, Question::Instances, ANSWER_MAX).await {
            Ok(Answer::Instances(instances)) => Some(instances),
            _ => None,
        }
    }

    async fn holders(&self) -> Option<Vec<ModelHolders>> {
        match ask_node(&self.node, Question::ModelsAfterScan, ANSWER_MAX).await {
            Ok(Answer::Models(models)) => Some(models),
            _ => None,
        }
    }
}

impl Library {
    /// Takes room for bytes that are to be fetched, of this model if it is known. Deletes for it what may go,
    /// as long as it `is_wanted`.
    pub async fn make_room(
        &self,
        model: Option<ModelId>,
        needed_bytes: u64,
        is_wanted: &(dyn Fn() -> bool + Sync),
    ) -> Result<TakenRoom, NoRoom> {
        let busy = Busy::begin(&self.room.state, model);
        let taken = |claim, removed| TakenRoom { claim, removed, _busy: busy };
        if let Ok(claim) = self.room.take(model, needed_bytes).await {
            return Ok(taken(claim, Vec::new()));
        }
        let _turn = self.room.turn().await;
        // Somebody may have made room meanwhile.
        let short = match self.room.take(model, needed_bytes).await {
            Ok(claim) => return Ok(taken(claim, Vec::new())),
            Err(short) => short,
        };
        let mut removed = Vec::new();
        for attempt in 0..ATTEMPTS {
            if attempt > 0 {
                // Another node counted on what was to go here, as this one did on what was there: their next
                // looks are apart.
                tokio::time::sleep(APART * u32::from(self.room.me.0[0] % 8)).await;
            }
            let leaving = if is_wanted() { self.to_remove(needed_bytes).await } else { None };
            let Some(leaving) = leaving else { break };
            removed.extend(self.remove_after_notice(leaving, needed_bytes, is_wanted).await);
            if let Ok(claim) = self.room.take(model, needed_bytes).await {
                return Ok(taken(claim, removed));
            }
        }
        for RemovedModelView { name, bytes, .. } in removed {
            tracing::warn!(target: "events::model", name, bytes, "removed for room, and there is still too little");
        }
        Err(short)
    }

    /// What goes for a fetch of so many bytes; `None` if all that may go is not enough.
    async fn to_remove(&self, needed_bytes: u64) -> Option<Vec<ModelRecord>> {
        let short_bytes = self.room.short_bytes(needed_bytes).await?;
        let mut may_go = self.removable().await?;
        may_go.sort_by_key(|record| (record.used_unix_s, record.id));
        let (mut bytes, mut going) = (0u64, Vec::new());
        for record in may_go {
            if bytes >= short_bytes {
                break;
            }
            bytes = bytes.saturating_add(record.held_bytes);
            going.push(record);
        }
        (bytes >= short_bytes).then_some(going)
    }

    /// Models that may go now; `None` if the node is ending.
    async fn removable(&self) -> Option<Vec<ModelRecord>> {
        let (holders, placed) = (self.room.holders().await?, self.room.placed().await?);
        let placed: BTreeSet<ModelId> = placed.iter().map(exo_cluster::InstanceView::model).collect();
        let records = self.records().await?;
        let is_elsewhere = |id: ModelId| {
            let known = holders.iter().find(|model| model.id == id);
            known.is_some_and(|model| model.whole_on.iter().any(|node| *node != self.room.me))
        };
        let state = self.room.state.lock();
        let may_go = records.into_iter().filter(|record| {
            self.room.may_go(record, &state) && is_elsewhere(record.id) && !placed.contains(&record.id)
        });
        Some(may_go.collect())
    }

    async fn records(&self) -> Option<Vec<ModelRecord>> {
        let store = self.store().clone();
        let listed = tokio::task::spawn_blocking(move || store.list()).await.ok()?;
        listed
            .inspect_err(|e| tracing::warn!(error = chain(e), "the models on this disk cannot be listed"))
            .ok()
    }

    /// Which models would go for so many bytes, or why there is no room for them.
    pub async fn room_for(&self, needed_bytes: u64) -> Result<Vec<String>, NoRoom> {
        let Err(short) = self.room.check(needed_bytes).await else { return Ok(Vec::new()) };
        let going = self.to_remove(needed_bytes).await.ok_or(short)?;
        Ok(going.into_iter().map(|record| record.name).collect())
    }

    /// Deletes models whose place a newer commit has taken, once nothing uses them. That others have them is
    /// not asked for: a person wanted the newer one in their place.
    pub async fn remove_replaced(&self) {
        if self.room.placed_as_told().await.is_none() {
            return;
        }
        let _turn = self.room.turn().await;
        let replaced = self.records().await.unwrap_or_default().into_iter();
        let mut freed = 0u64;
        for record in replaced.filter(|record| record.is_replaced && !record.is_kept) {
            if self.room.is_in_use(record.id).await {
                continue;
            }
            if let Some(bytes) = self.remove_model(&record).await {
                freed = freed.saturating_add(bytes);
                tracing::info!(
                    target: "events::model", model = record.name, bytes, "deleted: a newer commit has taken its place, and nothing uses it"
                );
            }
        }
        if freed > 0 {
            list_again(&self.room.node).await;
        }
    }

    /// Deletes what others still have once they have heard that this node has it no more; nothing if that is
    /// not enough any more.
    async fn remove_after_notice(
        &self,
        leaving: Vec<ModelRecord>,
        needed_bytes: u64,
        is_wanted: &(dyn Fn() -> bool + Sync),
    ) -> Vec<RemovedModelView> {
        let leaving = Leaving::begin(&self.room.state, leaving);
        let is_listed = list_again(&self.room.node).await;
        tokio::time::sleep(NOTICE).await;
        // Of what is not listed yet no one has heard in time.
        let may_go = if is_listed { self.removable().await.unwrap_or_default() } else { Vec::new() };
        // Who was asked for meanwhile stays.
        let is_same = |record: &&ModelRecord| {
            may_go.iter().any(|now| (now.id, now.used_unix_s) == (record.id, record.used_unix_s))
        };
        let going: Vec<&ModelRecord> = leaving.models.iter().filter(is_same).collect();
        let bytes = going.iter().map(|record| record.held_bytes).fold(0, u64::saturating_add);
        let short_bytes = self.room.short_bytes(needed_bytes).await;
        let is_enough = short_bytes.is_some_and(|short_bytes| bytes >= short_bytes);
        let mut removed = Vec::new();
        for record in going {
            // Deleting takes its time, in which the next may be placed.
            if !is_enough || !is_wanted() || self.room.is_in_use(record.id).await {
                break;
            }
            let bytes = self.remove_model(record).await;
            removed.extend(bytes.map(|bytes| said(record, bytes)));
        }
        drop(leaving);
        list_again(&self.room.node).await;
        removed
    }

    /// Bytes that deleting it freed.
    async fn remove_model(&self, record: &ModelRecord) -> Option<u64> {
        self.forget(record.id);
        let (store, id) = (self.store().clone(), record.id);
        match tokio::task::spawn_blocking(move || store.remove(id)).await {
            Ok(Ok(bytes)) => return Some(bytes),
            Ok(Err(error)) => {
                tracing::warn!(model = record.name, error = chain(&error), "cannot be deleted")
            }
            Err(error) => tracing::warn!(model = record.name, %error, "deleting broke off"),
        }
        None
    }

    /// Notes what is placed here on the disk, from time to time, and lets go of what no one needed, until the
    /// node stops.
    pub async fn look_after(self: Arc<Self>, mut stop: watch::Receiver<bool>) {
        let (mut before, mut noted_at) = (BTreeSet::new(), tokio::time::Instant::now());
        loop {
            tokio::select! {
                () = tokio::time::sleep(LOOK_EVERY) => {}
                _ = stop.wait_for(|stop| *stop) => return,
            }
            self.hub().forget_unused(std::time::Instant::now());
            self.remove_replaced().await;
            let Some(placed) = self.room.placed_as_told().await else { continue };
            let is_here = |instance: &&exo_cluster::InstanceView| {
                instance.placement.shards().any(|(_, shard)| shard.node == self.room.me)
            };
            let now: BTreeSet<ModelId> = placed.iter().filter(is_here).map(|i| i.model()).collect();
            if now == before && noted_at.elapsed() < NOTE_EVERY {
                continue;
            }
            let changed = before.union(&now).copied().collect();
            (before, noted_at) = (now, tokio::time::Instant::now());
            note(self.store(), changed).await;
        }
    }
}

/// Notes that models are in use.
pub async fn note(store: &Arc<Store>, models: Vec<ModelId>) {
    if models.is_empty() {
        return;
    }
    let store = store.clone();
    let noted = tokio::task::spawn_blocking(move || store.used(&models, unix_s())).await;
    if let Ok(Err(error)) = noted {
        tracing::warn!(
            error = chain(&error),
            "when a model was in use cannot be noted: another may be deleted before it"
        );
    }
}

fn said(record: &ModelRecord, bytes: u64) -> RemovedModelView {
    let unused_s = unix_s().saturating_sub(record.used_unix_s);
    tracing::info!(
        target: "events::model", model = record.name, bytes, unused_s, "deleted to make room on the disk; another member has it"
    );
    RemovedModelView { name: record.name.clone(), bytes, used_unix_s: record.used_unix_s }
}

/// Models do not count as this node's own as long as this is there.
struct Leaving {
    state: Arc<Mutex<EvictionState>>,
    models: Vec<ModelRecord>,
}

impl Leaving {
    fn begin(state: &Arc<Mutex<EvictionState>>, models: Vec<ModelRecord>) -> Self {
        state.lock().leaving.extend(models.iter().map(|record| record.id));
        Self { state: state.clone(), models }
    }
}

impl Drop for Leaving {
    fn drop(&mut self) {
        let mut state = self.state.lock();
        self.models.iter().for_each(|record| _ = state.leaving.remove(&record.id));
    }
}

/// A model is being fetched as long as this is there.
pub(super) struct Busy {
    state: Arc<Mutex<EvictionState>>,
    model: Option<ModelId>,
}

impl Busy {
    fn begin(state: &Arc<Mutex<EvictionState>>, model: Option<ModelId>) -> Self {
        model.iter().for_each(|model| *state.lock().busy.entry(*model).or_default() += 1);
        Self { state: state.clone(), model }
    }
}

impl Drop for Busy {
    fn drop(&mut self) {
        let Some(model) = self.model else { return };
        let mut state = self.state.lock();
        if let Some(times) = state.busy.get_mut(&model) {
            *times -= 1;
            if *times == 0 {
                state.busy.remove(&model);
            }
        }
    }
}

/// Has the machine look at the disk, and waits until it has. False if that took too long: then others hear of
/// it later.
pub async fn list_again(node: &EventSender) -> bool {
    let listed = ask_node(node, Question::ModelsAfterScan, SCAN_MAX).await;
    // A node that ends looks at the disk when it starts.
    if let Err(NoAnswer::Late { within }) = listed {
        let seconds = within.as_secs();
        tracing::warn!(seconds, "the models on the disk are not listed yet: others hear later what is here");
    }
    listed.is_ok()
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use exo_store::DiskLimits;

    use super::*;

    fn room(folder: &Path, limits: DiskLimits) -> Eviction {
        Eviction {
            budget: Arc::new(DiskBudget::new(folder, limits)),
            node: crate::events::channel().0,
            me: NodeId([1; 32]),
            draft: OnceLock::new(),
            state: Arc::default(),
            turn: Arc::default(),
            view: OnceLock::new(),
            was_told: AtomicBool::new(false),
        }
    }

    #[tokio::test]
    async fn what_is_told_of_a_model_counts_a_fetch_of_it_and_whether_it_may_go() {
        let folder = tempfile::tempdir().unwrap();
        let limits = DiskLimits { reserve_bytes: Some(0), quota_bytes: Some(100) };
        let room = room(folder.path(), limits);
        let record = ModelRecord {
            id: ModelId([2; 32]),
            name: "m".to_owned(),
            path: folder.path().to_owned(),
            bytes: 50,
            held_bytes: 20,
            complete: false,
            source: exo_store::Source::Fetched,
            is_of_hub: false,
            is_downloaded: true,
            is_kept: false,
            used_unix_s: 0,
            is_replaced: false,
            reference: None,
            checked: None,
            problem: None,
        };
        let told = |record: &ModelRecord| {
            let held = room.held(record.clone());
            (held.expected_bytes, held.may_go)
        };
        assert_eq!((told(&record), room.disk_room().bytes()), ((0, true), Some(100)));
        assert_eq!(room.disk_facts().quota_bytes, Some((0, 100)));
        let kept = ModelRecord { is_kept: true, ..record.clone() };
        let own = ModelRecord { is_downloaded: false, ..record.clone() };
        assert!(!told(&kept).1 && !told(&own).1);
        let fetch = (room.fetches(record.id), room.take(Some(record.id), 30).await.unwrap());
        assert_eq!((told(&record), room.disk_room().bytes()), ((30, false), Some(70)));
        // Of what the claim does not know yet that it is there.
        let more = ModelRecord { held_bytes: 40, ..record.clone() };
        assert_eq!(told(&more).0, 10);
        drop(fetch);
        assert_eq!(told(&record), (0, true));
        room.hold_draft(record.id);
        assert!(!told(&record).1);
    }

    #[tokio::test]
    async fn what_is_placed_is_not_known_before_the_cluster_is_seen_and_each_fetch_keeps_its_model() {
        let folder = tempfile::tempdir().unwrap();
        let room = room(folder.path(), DiskLimits::default());
        assert!(!room.knows_what_is_placed().await && room.placed_as_told().await.is_none());
        assert!(!room.was_told.load(Ordering::Relaxed));
        let model = ModelId([2; 32]);
        let fetches = [room.fetches(model), room.fetches(model)];
        for fetch in fetches {
            assert!(room.why_needed(model).is_some_and(|why| why.contains("is being fetched")));
            drop(fetch);
        }
        assert_eq!(room.why_needed(model), None);
    }
}
