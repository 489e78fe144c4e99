//! Room on the disk for models that exo fetches: what stays free for all else, and what they may take
//! together.
//!
//! Whoever is about to fetch takes room for all of it first. What was taken and has not come yet counts for
//! whoever asks next, so two downloads cannot both count on the same free bytes.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use exo_types::{DiskRoom, ModelId};

use crate::links;
use crate::registry::Layout;

/// Share of a disk that stays free unless a setting says otherwise, and its bounds: systems whose disk is
/// full misbehave, and a share of a very large disk is more than they need.
const RESERVE_SHARE: u64 = 50;
const RESERVE_BYTES: (u64, u64) = (1 << 30, 16 << 30);
/// Files that are looked at to know what models take; far more than there are.
const FILES_MAX: usize = 200_000;
const DEPTH_MAX: usize = 12;

/// What models may take of a disk, as a person has set it.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct DiskLimits {
    /// Stays free; without it a fiftieth of the disk, 1 to 16 GiB.
    pub reserve_bytes: Option<u64>,
    /// What all fetched models may take together; without it as much as there is.
    pub quota_bytes: Option<u64>,
}

/// Room for the models of one data folder.
#[derive(Debug)]
pub struct DiskBudget {
    layout: Layout,
    limits: DiskLimits,
    expected: Arc<Expected>,
    /// Held while somebody compares and takes.
    turn: Mutex<()>,
}

/// What a look at the disk has found.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct DiskLook {
    /// What may still be fetched.
    pub room: DiskRoom,
    /// What fetched models take and what they may, where that is bounded.
    pub quota_bytes: Option<(u64, u64)>,
}

/// Bytes taken and not there yet, by the model that they are for, where that is known.
#[derive(Default, Debug)]
struct Expected(Mutex<BTreeMap<Option<ModelId>, u64>>);

impl Expected {
    fn change(&self, model: Option<ModelId>, change: impl Fn(u64) -> u64) {
        let mut expected = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        match change(expected.remove(&model).unwrap_or(0)) {
            0 => {}
            bytes => _ = expected.insert(model, bytes),
        }
    }

    fn of(&self, model: ModelId) -> u64 {
        let expected = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        expected.get(&Some(model)).copied().unwrap_or(0)
    }

    fn all(&self) -> u64 {
        let expected = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        expected.values().copied().fold(0, u64::saturating_add)
    }
}

/// Why there is no room.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
#[allow(missing_docs)] // the messages say what the fields are
pub enum NoRoom {
    #[error(
        "{needed_bytes} bytes are to be fetched and {reserve_bytes} are kept free (setting `disk_reserve_mib`), but the disk of {} has {free_bytes} \
         free{}", folder.display(), of_which(*.expected_bytes)
    )]
    Reserve { needed_bytes: u64, reserve_bytes: u64, free_bytes: u64, expected_bytes: u64, folder: PathBuf },
    #[error(
        "{needed_bytes} bytes are to be fetched, but models in {} take {used_bytes} of the {quota_bytes} bytes that they may have (setting \
         `disk_quota_mib`)", folder.display()
    )]
    Quota { needed_bytes: u64, quota_bytes: u64, used_bytes: u64, folder: PathBuf },
}

impl NoRoom {
    /// Bytes for which there is room; below 0 what is missing already.
    fn room_bytes(&self) -> i64 {
        match self {
            Self::Reserve { reserve_bytes, free_bytes, expected_bytes, .. } => {
                left(*free_bytes, *expected_bytes).saturating_sub_unsigned(*reserve_bytes)
            }
            Self::Quota { quota_bytes, used_bytes, .. } => left(*quota_bytes, *used_bytes),
        }
    }

    /// As a refusal, if there is not room for so many bytes.
    fn refuses(self, needed_bytes: u64) -> Option<Self> {
        (needed_bytes > self.room_bytes().max(0).unsigned_abs()).then_some(self)
    }

    /// Bytes that would have to go.
    pub fn short_bytes(&self) -> u64 {
        match self {
            Self::Reserve { needed_bytes, reserve_bytes, free_bytes, expected_bytes, .. } => {
                [*needed_bytes, *reserve_bytes, *expected_bytes]
                    .into_iter()
                    .fold(0, u64::saturating_add)
                    .saturating_sub(*free_bytes)
            }
            Self::Quota { needed_bytes, quota_bytes, used_bytes, .. } => {
                used_bytes.saturating_add(*needed_bytes).saturating_sub(*quota_bytes)
            }
        }
    }

    /// What would help.
    pub fn hint(&self) -> &'static str {
        match self {
            // Also without a reserve.
            Self::Reserve { needed_bytes, free_bytes, expected_bytes, .. }
                if free_bytes.saturating_sub(*expected_bytes) < *needed_bytes =>
            {
                "free some disk space: `exo models remove` deletes a model, `exo prune` downloads that were never finished"
            }
            Self::Reserve { .. } => {
                "free some disk space: `exo models remove` deletes a model, `exo prune` downloads that were never finished; or keep less free \
                 with the setting `disk_reserve_mib`"
            }
            Self::Quota { .. } => {
                "`exo models remove` deletes a model, `exo prune` downloads that were never finished; or let models take more with the setting \
                 `disk_quota_mib`"
            }
        }
    }
}

/// What is left of bytes once others are taken, within what a disk may have.
fn left(bytes: u64, taken: u64) -> i64 {
    let most = i128::from(DiskRoom::BYTES_MAX);
    (i128::from(bytes) - i128::from(taken)).clamp(-most, most) as i64
}

fn of_which(expected_bytes: u64) -> String {
    match expected_bytes {
        0 => String::new(),
        bytes => format!(", of which {bytes} are for what is being fetched"),
    }
}

/// Room that somebody has taken, given back when this goes.
#[derive(Debug)]
pub struct DiskClaim {
    expected: Arc<Expected>,
    model: Option<ModelId>,
    left_bytes: AtomicU64,
    /// Bytes still to arrive that take the place of others: the disk has given it already.
    rewritten_bytes: AtomicU64,
}

impl DiskClaim {
    /// So many bytes will arrive where an earlier attempt was broken off: no room was taken for them. Which
    /// they are nobody knows, so they count as the first ones. Too much is then expected for a while, and
    /// never too little.
    pub fn rewrites(&self, bytes: u64) {
        self.rewritten_bytes.store(bytes, Ordering::Relaxed);
    }

    /// So many of the bytes are on the disk, where they count by themselves.
    pub fn arrived(&self, bytes: u64) {
        let bytes = bytes - taken_from(&self.rewritten_bytes, bytes);
        let freed_bytes = taken_from(&self.left_bytes, bytes);
        self.expected.change(self.model, |expected| expected.saturating_sub(freed_bytes));
    }
}

/// Takes so many, or as many as there are; how many these were.
fn taken_from(left: &AtomicU64, bytes: u64) -> u64 {
    let take = |left: u64| Some(left.saturating_sub(bytes));
    left.fetch_update(Ordering::Relaxed, Ordering::Relaxed, take).unwrap_or(0).min(bytes)
}

impl Drop for DiskClaim {
    fn drop(&mut self) {
        let left_bytes = *self.left_bytes.get_mut();
        self.expected.change(self.model, |expected| expected.saturating_sub(left_bytes));
    }
}

impl DiskBudget {
    /// Of the models in `data_dir`.
    pub fn new(data_dir: &Path, limits: DiskLimits) -> Self {
        let layout = Layout { data_dir: data_dir.to_owned() };
        Self { layout, limits, expected: Arc::default(), turn: Mutex::default() }
    }

    /// Takes room for bytes that are to be fetched, of this model if it is known.
    pub fn take(&self, model: Option<ModelId>, needed_bytes: u64) -> Result<DiskClaim, NoRoom> {
        let _turn = self.turn.lock().unwrap_or_else(PoisonError::into_inner);
        // What is here already may be used however full the disk is.
        self.check(needed_bytes)?;
        self.expected.change(model, |expected| expected.saturating_add(needed_bytes));
        let (expected, left_bytes) = (self.expected.clone(), AtomicU64::new(needed_bytes));
        Ok(DiskClaim { expected, model, left_bytes, rewritten_bytes: AtomicU64::new(0) })
    }

    /// What bounds the bytes for which [`DiskBudget::take`] would find room now. Blocks for a walk over the
    /// files of models where there is a quota.
    pub fn look(&self) -> DiskLook {
        let mut room = DiskRoom::default();
        if let Some(NoRoom::Reserve { reserve_bytes, free_bytes, expected_bytes, .. }) = self.reserve(0) {
            room.free_bytes = Some(left(free_bytes, expected_bytes));
            room.reserve_bytes = reserve_bytes.min(DiskRoom::BYTES_MAX.unsigned_abs());
        }
        let quota_bytes = self.limits.quota_bytes.map(|quota_bytes| (self.used_bytes(), quota_bytes));
        room.within_quota_bytes = quota_bytes.map(|(used_bytes, quota_bytes)| {
            left(quota_bytes, used_bytes.saturating_add(self.expected.all()))
        });
        DiskLook { room, quota_bytes }
    }

    /// Bytes of a model for which room was taken and that are not there yet.
    pub fn expected_bytes(&self, model: ModelId) -> u64 {
        self.expected.of(model)
    }

    /// Bytes that would have to go before room could be taken for so many.
    pub fn short_bytes(&self, needed_bytes: u64) -> u64 {
        let rules = [self.reserve(needed_bytes), self.quota(needed_bytes)];
        rules.iter().flatten().map(NoRoom::short_bytes).max().unwrap_or(0)
    }

    /// Whether there is room for so many bytes, without taking it.
    pub fn check(&self, needed_bytes: u64) -> Result<(), NoRoom> {
        if needed_bytes == 0 {
            return Ok(());
        }
        let refused = |rule: Option<NoRoom>| rule?.refuses(needed_bytes);
        let refusal = refused(self.reserve(needed_bytes)).or_else(|| refused(self.quota(needed_bytes)));
        refusal.map_or(Ok(()), Err)
    }

    /// The rule of what stays free; `None` where the system does not say what is.
    fn reserve(&self, needed_bytes: u64) -> Option<NoRoom> {
        let folder = &self.layout.data_dir;
        let there = folder.ancestors().find(|folder| folder.exists()).unwrap_or(folder);
        let folder = folder.clone();
        let free_bytes = exo_stdx::free_bytes(there)?;
        let reserve_bytes = self.limits.reserve_bytes.unwrap_or_else(|| usual_reserve(there));
        let expected_bytes = self.expected.all();
        Some(NoRoom::Reserve { needed_bytes, reserve_bytes, free_bytes, expected_bytes, folder })
    }

    /// The rule of what models may take, if there is one. Blocks for a walk over their files.
    fn quota(&self, needed_bytes: u64) -> Option<NoRoom> {
        let quota_bytes = self.limits.quota_bytes?;
        let used_bytes = self.used_bytes().saturating_add(self.expected.all());
        Some(NoRoom::Quota { needed_bytes, quota_bytes, used_bytes, folder: self.layout.data_dir.clone() })
    }

    /// What fetched models take on the disk, those included that were never finished.
    fn used_bytes(&self) -> u64 {
        let mut walk = Walk { left: FILES_MAX, seen: BTreeSet::new() };
        [self.layout.hub(), self.layout.fetched()]
            .iter()
            .map(|folder| walk.bytes_below(folder, DEPTH_MAX))
            .fold(0, u64::saturating_add)
    }
}

fn usual_reserve(folder: &Path) -> u64 {
    let share = exo_stdx::total_bytes(folder).unwrap_or(0) / RESERVE_SHARE;
    share.clamp(RESERVE_BYTES.0, RESERVE_BYTES.1)
}

/// A look at what lies on the disk.
struct Walk {
    /// Files that are still looked at.
    left: usize,
    /// Files with several names, of which each counts once.
    seen: BTreeSet<(u64, u64)>,
}

impl Walk {
    /// Symbolic links are not followed: what they lead to is not ours.
    fn bytes_below(&mut self, folder: &Path, depth: usize) -> u64 {
        let mut bytes = 0u64;
        for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
            if self.left == 0 {
                break;
            }
            self.left -= 1;
            let below = match entry.metadata() {
                Ok(about) if about.is_dir() && depth > 0 => self.bytes_below(&entry.path(), depth - 1),
                Ok(about) if about.is_file() => self.bytes_of(&about),
                _ => 0,
            };
            bytes = bytes.saturating_add(below);
        }
        bytes
    }

    fn bytes_of(&mut self, about: &fs::Metadata) -> u64 {
        match links::shared_file(about) {
            Some(file) if !self.seen.insert(file) => 0,
            _ => exo_stdx::disk_bytes(about),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn budget(folder: &Path, reserve_bytes: u64, quota_bytes: Option<u64>) -> DiskBudget {
        DiskBudget::new(folder, DiskLimits { reserve_bytes: Some(reserve_bytes), quota_bytes })
    }

    #[test]
    fn a_disk_that_would_be_too_full_is_refused_with_its_numbers() {
        let folder = tempfile::tempdir().unwrap();
        let none = budget(&folder.path().join("not/there/yet"), 0, None);
        none.take(None, 1).unwrap();
        let error = none.take(None, 1 << 60).unwrap_err();
        let text = error.to_string();
        assert!(text.contains("1152921504606846976 bytes are to be fetched and 0 are kept free"), "{text}");
        let NoRoom::Reserve { free_bytes, .. } = error else { panic!("{text}") };
        assert_eq!(error.short_bytes(), (1 << 60) - free_bytes);
        assert!(!error.hint().contains("disk_reserve_mib"), "no setting would do: {}", error.hint());
        let all = budget(folder.path(), u64::MAX, None);
        assert!(matches!(all.take(None, 1), Err(NoRoom::Reserve { reserve_bytes: u64::MAX, .. })));
        all.take(None, 0).expect("what is here already needs no room");
    }

    #[test]
    fn a_quota_counts_what_lies_there_and_what_is_on_its_way() {
        let folder = tempfile::tempdir().unwrap();
        for at in ["hub/a/b/c/d", "models/id"] {
            fs::create_dir_all(folder.path().join(at)).unwrap();
            fs::write(folder.path().join(at).join("weights"), vec![1; 64 << 10]).unwrap();
        }
        // Not fetched: it is not asked for.
        fs::write(folder.path().join("models.json"), vec![1; 64 << 10]).unwrap();
        let used_bytes = budget(folder.path(), 0, None).used_bytes();
        assert!((128 << 10..=256 << 10).contains(&used_bytes), "{used_bytes}");
        let budget = budget(folder.path(), 0, Some(used_bytes + (896 << 10)));
        let claim = budget.take(None, 512 << 10).unwrap();
        let error = budget.take(None, 512 << 10).unwrap_err();
        assert_eq!(error.short_bytes(), 128 << 10, "{error}");
        claim.arrived(256 << 10);
        budget.take(None, 512 << 10).unwrap();
        drop(claim);
        budget.take(None, 896 << 10).unwrap();
        assert!(budget.take(None, (896 << 10) + 1).is_err());
    }

    #[test]
    fn the_room_that_is_told_is_what_can_be_taken() {
        let folder = tempfile::tempdir().unwrap();
        let budget = budget(folder.path(), 0, Some(1 << 20));
        let room = || budget.look().room;
        let model = ModelId([1; 32]);
        let claim = budget.take(Some(model), 256 << 10).unwrap();
        assert_eq!(room().within_quota_bytes, Some(768 << 10));
        assert_eq!(budget.look().quota_bytes, Some((0, 1 << 20)), "what is on its way lies nowhere yet");
        assert!(room().free_bytes > Some(768 << 10) && room().reserve_bytes == 0, "{:?}", room());
        assert!(budget.take(None, (768 << 10) + 1).is_err());
        let rest = budget.take(None, 768 << 10).unwrap();
        assert_eq!((room().bytes(), budget.expected_bytes(model)), (Some(0), 256 << 10));
        assert!(budget.take(None, 1).is_err());
        claim.arrived(64 << 10);
        assert_eq!(budget.expected_bytes(model), 192 << 10);
        drop((claim, rest));
        assert_eq!((room().within_quota_bytes, budget.expected_bytes(model)), (Some(1 << 20), 0));
    }

    #[test]
    fn what_is_written_in_the_place_of_other_bytes_frees_no_room() {
        let folder = tempfile::tempdir().unwrap();
        let budget = budget(folder.path(), 0, Some(100));
        let expected_bytes = || 100 - budget.look().room.within_quota_bytes.unwrap();
        let claim = budget.take(None, 30).unwrap();
        // 50 bytes are missing, and 20 of them lie there, unverified.
        claim.rewrites(20);
        let left = [10, 15, 20, 5].map(|bytes| {
            claim.arrived(bytes);
            expected_bytes()
        });
        assert_eq!(left, [30, 25, 5, 0]);
        claim.arrived(7);
        drop(claim);
        assert_eq!(expected_bytes(), 0);
    }

    #[test]
    fn a_full_disk_is_told_apart_from_one_that_a_setting_keeps_free() {
        let folder = tempfile::tempdir().unwrap();
        let kept = DiskLimits { reserve_bytes: Some(u64::MAX), quota_bytes: None };
        let budget = DiskBudget::new(folder.path(), kept);
        let DiskLook { room, quota_bytes } = budget.look();
        assert_eq!((room.bytes(), room.within_quota_bytes, quota_bytes), (Some(0), None, None));
        assert_eq!(room.reserve_bytes, DiskRoom::BYTES_MAX.unsigned_abs());
        assert_eq!(room.short_of(1), [("disk_reserve_mib", "lower")]);
        assert!(budget.take(None, 1).unwrap_err().hint().contains("with the setting `disk_reserve_mib`"));
        let none = DiskLimits { reserve_bytes: Some(0), quota_bytes: None };
        assert_eq!(DiskBudget::new(folder.path(), none).look().room.short_of(1 << 60), []);
    }

    #[cfg(unix)]
    #[test]
    fn a_file_with_two_names_counts_once() {
        let folder = tempfile::tempdir().unwrap();
        let [one, other] = ["hub/a", "hub/b"].map(|below| folder.path().join(below));
        for path in [&one, &other] {
            fs::create_dir_all(path).unwrap();
        }
        fs::write(one.join("weights"), vec![1; 64 << 10]).unwrap();
        let used_bytes = || budget(folder.path(), 0, None).used_bytes();
        let before = used_bytes();
        fs::hard_link(one.join("weights"), other.join("weights")).unwrap();
        assert_eq!(used_bytes(), before);
        assert!(before >= 64 << 10);
    }
}
