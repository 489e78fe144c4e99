//! The small files of the data folder: the lock, the local secret, the API's address, the log of trust, the
//! epoch, known addresses.
//!
//! Each is written whole to a neighbour and renamed, so that a crash leaves the old or the new one.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use exo_machine::LeftCluster;
use exo_transport::NodeKey;
use exo_trust::{Entry, TrustLog};
use exo_types::{Epoch, NodeId};
use serde::{Deserialize, Serialize};

use crate::ballast;
use exo_accelerators::chain;

impl FilesError {
    /// Stable, for whoever chooses by it.
    pub const fn code(&self) -> &'static str {
        match self {
            Self::InUse { .. } => "data_folder_in_use",
            Self::Damaged { .. } => "data_folder_damaged",
            _ => "data_folder_unusable",
        }
    }

    /// The process that has the lock wrote its number into it.
    fn in_use(path: &Path, lock_path: &Path) -> Self {
        let pid = std::fs::read_to_string(lock_path).ok().and_then(|text| text.trim().parse().ok());
        Self::InUse { path: path.to_owned(), pid }
    }
}

/// A file of the data folder could not be used.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
#[allow(missing_docs)] // the messages say what the fields are
pub enum FilesError {
    #[error("cannot use the data folder {}", path.display())]
    Folder { path: PathBuf, source: io::Error },
    #[error("the data folder {} is already in use by another exo{}", path.display(), .pid.map(|p| format!(" (process {p})")).unwrap_or_default())]
    InUse {
        path: PathBuf,
        /// The other process, if it wrote its number.
        pid: Option<u32>,
    },
    #[error("cannot {what} {}", path.display())]
    File { what: &'static str, path: PathBuf, source: io::Error },
    /// A file was written and has its name, and the system does not say that it will last.
    #[error("{} is written, and may be the one before it again after a power cut", path.display())]
    NotSynced { path: PathBuf, source: io::Error },
    #[error("{} is damaged ({reason}); {hint}", path.display())]
    Damaged { path: PathBuf, reason: String, hint: &'static str },
}

/// The file of the log of trust.
const TRUST: &str = "trust.log";
/// The file of the join window.
const WINDOW: &str = "window.json";
/// Epochs left out when the file of the last one is damaged: more than elections without a placement between
/// them. Members refuse an epoch that jumps by 2^20.
const EPOCHS_SKIPPED: u64 = 1 << 14;
/// The file of the journal.
const JOURNAL: &str = "journal.redb";
/// The file of the clusters that this node left.
const LEFT: &str = "left.json";
/// Of these, remembered: the last ones.
const LEFT_MAX: usize = 16;
/// The file of silenced alerts.
const SILENCES: &str = "silences.json";
/// The file of members that said goodbye.
const ENDED: &str = "ended.json";
/// How the log of trust begins; the encoded entries follow.
const TRUST_FORMAT: &[u8] = b"exo log of trust 1\n";

/// How long [`DataDir::check_free`] may hold the lock.
const LOOKED_AT_MAX: Duration = Duration::from_millis(20);

/// The data folder, held by this process until dropped.
#[derive(Debug)]
pub struct DataDir {
    path: PathBuf,
    _lock: File,
    /// Makes a name in the folder last; a test has it fail.
    sync_folder_of: fn(&Path) -> io::Result<()>,
}

#[derive(Serialize, Deserialize)]
struct ApiFile {
    address: SocketAddr,
    /// The local channel.
    socket: PathBuf,
    pid: u32,
}

/// How much of the join window's time is used up, kept so that neither a restart nor an earlier date gives it
/// back.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct WindowTime {
    /// For so many seconds nodes have run with it open.
    pub ran_s: u64,
    /// The latest date that one of them saw.
    pub seen_unix_s: u64,
    /// The models that were on the disk when it opened: a node that got another is no new one. `None` until
    /// the first run with it open.
    #[serde(default)]
    pub models: Option<BTreeSet<String>>,
}

impl DataDir {
    /// Whether no other process holds this folder now. Makes nothing.
    pub fn check_free(path: &Path) -> Result<(), FilesError> {
        let lock_path = path.join("lock");
        let lock = match OpenOptions::new().read(true).write(true).open(&lock_path) {
            Ok(lock) => lock,
            // Another user's: whether one holds it is not known.
            Err(source) if source.kind() == io::ErrorKind::PermissionDenied => {
                return Err(FilesError::Folder { path: path.to_owned(), source });
            }
            // Whatever else is wrong with the folder, opening it says.
            Err(_) => return Ok(()),
        };
        match lock.try_lock() {
            Err(std::fs::TryLockError::WouldBlock) => Err(FilesError::in_use(path, &lock_path)),
            _ => Ok(()),
        }
    }

    /// Makes the folder if need be and takes its lock.
    pub fn open(path: &Path) -> Result<Self, FilesError> {
        let folder = |source| FilesError::Folder { path: path.to_owned(), source };
        std::fs::create_dir_all(path).map_err(|error| {
            folder(match error.kind() {
                io::ErrorKind::AlreadyExists => {
                    io::Error::new(io::ErrorKind::NotADirectory, "it is there and is no folder")
                }
                _ => error,
            })
        })?;
        exo_stdx::restrict_to_owner(path).map_err(folder)?;
        let lock_path = path.join("lock");
        let mut options = OpenOptions::new();
        let mut lock =
            options.create(true).truncate(false).read(true).write(true).open(&lock_path).map_err(folder)?;
        let began = Instant::now();
        loop {
            match lock.try_lock() {
                Ok(()) => break,
                // Whoever only looks has it for a moment.
                Err(std::fs::TryLockError::WouldBlock) if began.elapsed() < LOOKED_AT_MAX => {
                    std::thread::yield_now();
                }
                Err(std::fs::TryLockError::WouldBlock) => {
                    return Err(FilesError::in_use(path, &lock_path));
                }
                Err(std::fs::TryLockError::Error(source)) => return Err(folder(source)),
            }
        }
        ballast::release(path, false);
        // Only for messages: a full disk need not take it for its owner to free it.
        let _ = lock.set_len(0).and_then(|()| write!(lock, "{}", std::process::id()));
        Ok(Self { path: path.to_owned(), _lock: lock, sync_folder_of: exo_stdx::sync_folder_of })
    }

    /// The folder.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The secret that opens the administrative routes to other tools until this process ends: drawn anew,
    /// readable by the owner only.
    pub fn local_secret(&self) -> Result<String, FilesError> {
        let path = self.path.join("api-secret");
        let mut bytes = [0; 32];
        getrandom::fill(&mut bytes).map_err(|e| FilesError::File {
            what: "draw random bytes for",
            path,
            source: io::Error::other(e.to_string()),
        })?;
        let secret = exo_types::hex(&bytes);
        self.write("api-secret", secret.as_bytes())?;
        Ok(secret)
    }

    /// Says where the API is, for commands on this machine. For whoever holds the folder through a node.
    pub fn publish_api(path: &Path, address: SocketAddr, socket: PathBuf) -> Result<(), FilesError> {
        let file = ApiFile { address, socket, pid: std::process::id() };
        let bytes = serde_json::to_vec_pretty(&file).unwrap_or_default();
        write(path, "api.json", &bytes)
    }

    /// Takes the address back at the end.
    pub fn retract_api(path: &Path) {
        if let Some(api) = running_api(path) {
            let _ = std::fs::remove_file(api.socket);
        }
        let _ = std::fs::remove_file(path.join("api.json"));
    }

    /// Forgets the cluster and this node's key, which is all that others know it by. Models, measurements and
    /// settings stay, and which cluster it was: the new node does not join that one by itself. Whether that
    /// is known: a damaged log of trust does not say. After a crash in between, the next start founds a
    /// cluster or says that this has to be done again.
    pub fn leave(&self) -> Result<bool, FilesError> {
        let is_known = self.remember_left()?;
        for name in ["peers.json", ENDED, "epoch.json", WINDOW, SILENCES, TRUST, JOURNAL, "node.key"] {
            let path = self.path.join(name);
            match std::fs::remove_file(&path) {
                Err(source) if source.kind() != io::ErrorKind::NotFound => {
                    return Err(FilesError::File { what: "remove", path, source });
                }
                Ok(()) | Err(_) => {}
            }
        }
        Ok(is_known)
    }

    /// Notes the cluster of the log of trust as one that this node left.
    fn remember_left(&self) -> Result<bool, FilesError> {
        let log = match self.trust() {
            Ok(Some(entries)) => {
                let entries: Result<Vec<_>, _> = entries.iter().map(|bytes| Entry::decode(bytes)).collect();
                entries.ok().and_then(|entries| TrustLog::from_entries(entries).ok().flatten())
            }
            Ok(None) => return Ok(true), // it left before, or never was in one
            Err(FilesError::Damaged { .. }) => None,
            Err(error) => return Err(error),
        };
        let Some(log) = log else { return Ok(false) };
        let Some(cluster) = LeftCluster::new(log.cluster(), log.view()) else { return Ok(true) };
        let mut left = match self.left() {
            Ok(left) => left,
            Err(FilesError::Damaged { path, reason, .. }) => {
                self.move_aside(&path, &reason)?;
                Vec::new()
            }
            Err(error) => return Err(error),
        };
        left.retain(|known| known.cluster != cluster.cluster);
        left.push(cluster);
        let skipped = left.len().saturating_sub(LEFT_MAX);
        self.set_left(&left[skipped..])?;
        Ok(true)
    }

    /// Whether the log of trust says that this node was removed from its cluster; not if that, or the key,
    /// cannot be read.
    pub fn is_removed(&self) -> bool {
        let Ok(Some(entries)) = self.trust() else { return false };
        let entries: Result<Vec<_>, _> = entries.iter().map(|bytes| Entry::decode(bytes)).collect();
        let log = entries.ok().and_then(|entries| TrustLog::from_entries(entries).ok().flatten());
        let key = NodeKey::load_existing(&self.path.join("node.key"));
        matches!((log, key), (Some(log), Ok(key)) if log.view().removed().contains_key(&key.node_id()))
    }

    /// The clusters that this node left, the last one last.
    pub fn left(&self) -> Result<Vec<LeftCluster>, FilesError> {
        Ok(self.read_json(LEFT)?.unwrap_or_default())
    }

    /// The same for a node that starts as a member of this cluster: a person has brought it back there.
    pub fn left_besides(&self, log: &TrustLog) -> Result<Vec<LeftCluster>, FilesError> {
        let mut left = self.left()?;
        let all = left.len();
        left.retain(|known| known.cluster != log.cluster());
        if left.len() < all
            && let Err(error) = self.set_left(&left)
        {
            tracing::debug!(
                error = chain(&error),
                "a cluster that this node came back to counts as left on the disk"
            );
        }
        Ok(left)
    }

    fn set_left(&self, left: &[LeftCluster]) -> Result<(), FilesError> {
        self.write_durably(LEFT, &serde_json::to_vec(left).unwrap_or_default())
    }

    /// Gives a damaged file another name, under which nothing looks for it and a person may. Says so in a
    /// line for people.
    pub fn move_aside(&self, path: &Path, why: &str) -> Result<String, FilesError> {
        let seconds = exo_stdx::unix_s();
        let name = path.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
        let names = (0..1000).map(|n| self.path.join(format!("{name}.damaged-{}", seconds + n)));
        let failed = |source| FilesError::File { what: "move aside", path: path.to_owned(), source };
        let Some(aside) = names.into_iter().find(|aside| !aside.exists()) else {
            return Err(failed(io::ErrorKind::AlreadyExists.into()));
        };
        std::fs::rename(path, &aside).and_then(|()| (self.sync_folder_of)(&aside)).map_err(failed)?;
        Ok(format!("{name} was damaged ({why}) and is now {}", aside.display()))
    }

    /// Where the journal is.
    pub fn journal_path(&self) -> PathBuf {
        self.path.join(JOURNAL)
    }

    /// Where the log of trust is.
    pub fn trust_path(&self) -> PathBuf {
        self.path.join(TRUST)
    }

    /// The encoded entries of the log of trust; `None` if there is none yet. They are on disk when this
    /// returns: an earlier run may have ended before it knew that.
    pub fn trust(&self) -> Result<Option<Vec<Vec<u8>>>, FilesError> {
        let path = self.trust_path();
        let damaged = |reason: &str| FilesError::Damaged {
            path: self.trust_path(),
            reason: reason.to_owned(),
            hint: "`exo leave` makes this node new, and keeps its models",
        };
        let bytes = match std::fs::read(&path) {
            Ok(bytes) => bytes,
            Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(source) => return Err(FilesError::File { what: "read", path, source }),
        };
        (self.sync_folder_of)(&path).map_err(|source| FilesError::NotSynced { path, source })?;
        let entries = bytes.strip_prefix(TRUST_FORMAT).ok_or_else(|| damaged("it is of another format"))?;
        postcard::from_bytes(entries).map(Some).map_err(|_| damaged("its end is missing or changed"))
    }

    /// Keeps the log of trust; on disk when this returns.
    pub fn set_trust(&self, entries: &[Vec<u8>]) -> Result<(), FilesError> {
        // Never an empty file in place of the members.
        let entries = postcard::to_allocvec(entries).map_err(|error| FilesError::File {
            what: "write",
            path: self.trust_path(),
            source: io::Error::other(error.to_string()),
        })?;
        self.write_durably(TRUST, &[TRUST_FORMAT, &entries].concat())
    }

    /// What is known of the join window's time; nothing of one that never opened.
    pub fn window_time(&self) -> Result<WindowTime, FilesError> {
        Ok(self.read_json(WINDOW)?.unwrap_or_default())
    }

    /// Moves those of the small files aside that are damaged, and says which. What they said is made up for:
    /// addresses are found anew, members that ended count as lost, the window counts as over, and the epoch
    /// goes on far above `epoch_seen`, the last one that the journal knows, so that none is led twice. Alerts
    /// are not silenced any more. Without the clusters that this node left the window counts as over, too: it
    /// joins no one by itself.
    pub fn mend(&self, epoch_seen: u64, me: NodeId) -> Result<Vec<String>, FilesError> {
        let mut said = Vec::new();
        let mut aside = |error: FilesError| match error {
            FilesError::Damaged { path, reason, .. } => {
                said.push(self.move_aside(&path, &reason)?);
                Ok(())
            }
            other => Err(other),
        };
        if let Err(error) = self.peers() {
            aside(error)?;
        }
        if let Err(error) = self.ended() {
            aside(error)?;
        }
        if let Err(error) = self.silences() {
            aside(error)?;
        }
        let (left, window) = (self.left(), self.window_time());
        if left.is_err() || window.is_err() {
            left.map(drop).or_else(&mut aside)?;
            window.map(drop).or_else(&mut aside)?;
            self.set_window_time(&WindowTime { ran_s: u64::from(u32::MAX), ..WindowTime::default() })?;
        }
        if let Err(error) = self.epoch() {
            aside(error)?;
            self.set_epoch(Epoch { counter: epoch_seen.saturating_add(EPOCHS_SKIPPED), key: me })?;
        }
        Ok(said)
    }

    /// Keeps it; on disk when this returns.
    pub fn set_window_time(&self, time: &WindowTime) -> Result<(), FilesError> {
        self.write_durably(WINDOW, &serde_json::to_vec_pretty(time).unwrap_or_default())
    }

    /// The last epoch announced or followed.
    pub fn epoch(&self) -> Result<Option<Epoch>, FilesError> {
        self.read_json("epoch.json")
    }

    /// Keeps an epoch; on disk when this returns.
    pub fn set_epoch(&self, epoch: Epoch) -> Result<(), FilesError> {
        self.write_durably("epoch.json", &serde_json::to_vec_pretty(&epoch).unwrap_or_default())
    }

    /// Addresses at which members were reached before.
    pub fn peers(&self) -> Result<BTreeMap<String, Vec<SocketAddr>>, FilesError> {
        Ok(self.read_json("peers.json")?.unwrap_or_default())
    }

    /// Keeps the addresses.
    pub fn set_peers(&self, peers: &BTreeMap<NodeId, Vec<SocketAddr>>) -> Result<(), FilesError> {
        let named: BTreeMap<String, &Vec<SocketAddr>> = peers.iter().map(|(n, a)| (n.to_full(), a)).collect();
        self.write("peers.json", &serde_json::to_vec_pretty(&named).unwrap_or_default())
    }

    /// Members that said goodbye and were not there since, each with when that was, in seconds since 1970.
    pub fn ended(&self) -> Result<BTreeMap<String, u64>, FilesError> {
        Ok(self.read_json(ENDED)?.unwrap_or_default())
    }

    /// Keeps them.
    pub fn set_ended(&self, ended: &BTreeMap<NodeId, u64>) -> Result<(), FilesError> {
        let named: BTreeMap<String, u64> = ended.iter().map(|(node, at)| (node.to_full(), *at)).collect();
        self.write(ENDED, &serde_json::to_vec_pretty(&named).unwrap_or_default())
    }

    /// What was silenced, until when.
    pub fn silences(&self) -> Result<BTreeMap<String, u64>, FilesError> {
        Ok(self.read_json(SILENCES)?.unwrap_or_default())
    }

    /// Keeps what is silenced. For whoever holds the folder through a node.
    pub fn set_silences(path: &Path, silences: &BTreeMap<String, u64>) -> Result<(), FilesError> {
        write(path, SILENCES, &serde_json::to_vec_pretty(silences).unwrap_or_default())
    }

    fn read_json<T: serde::de::DeserializeOwned>(&self, name: &str) -> Result<Option<T>, FilesError> {
        let path = self.path.join(name);
        match std::fs::read(&path) {
            Ok(bytes) => match serde_json::from_slice(&bytes) {
                Ok(value) => Ok(Some(value)),
                Err(e) => {
                    let hint = "move it aside to start without it";
                    Err(FilesError::Damaged { path, reason: e.to_string(), hint })
                }
            },
            Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(source) => Err(FilesError::File { what: "read", path, source }),
        }
    }

    /// Without the folder on disk a power cut could bring the old file back.
    fn write_durably(&self, name: &str, bytes: &[u8]) -> Result<(), FilesError> {
        self.write(name, bytes)?;
        let path = self.path.join(name);
        (self.sync_folder_of)(&path).map_err(|source| FilesError::NotSynced { path, source })
    }

    fn write(&self, name: &str, bytes: &[u8]) -> Result<(), FilesError> {
        write(&self.path, name, bytes)
    }
}

/// Writes a file of the folder whole, readable by its owner only.
fn write(folder: &Path, name: &str, bytes: &[u8]) -> Result<(), FilesError> {
    let (path, draft) = (folder.join(name), folder.join(format!("{name}.new")));
    exo_stdx::replace_through(&draft, &path, bytes).map_err(|source| FilesError::File {
        what: "write",
        path,
        source,
    })
}

/// How to reach the node on a data folder.
#[derive(Clone, Debug)]
pub struct RunningApi {
    /// The API, over TCP.
    pub address: SocketAddr,
    /// The local channel: a Unix socket, or the name of a pipe on Windows.
    pub socket: PathBuf,
}

/// How to reach the node on this data folder; `None` if none was published. Whether it still runs, only a
/// request shows.
pub fn running_api(data_dir: &Path) -> Option<RunningApi> {
    let bytes = std::fs::read(data_dir.join("api.json")).ok()?;
    let ApiFile { address, socket, .. } = serde_json::from_slice(&bytes).ok()?;
    Some(RunningApi { address, socket })
}

#[cfg(test)]
mod tests {
    use exo_trust::{Act, Statement};

    use super::*;

    #[test]
    fn a_folder_belongs_to_one_process_until_it_is_dropped() {
        let dir = tempfile::tempdir().unwrap();
        let first = DataDir::open(dir.path()).unwrap();
        let second = DataDir::open(dir.path());
        let is_ours =
            |found| matches!(found, FilesError::InUse { pid: Some(pid), .. } if pid == std::process::id());
        assert!(second.is_err_and(is_ours));
        assert!(DataDir::check_free(dir.path()).is_err_and(is_ours));
        drop(first);
        assert!(DataDir::check_free(dir.path()).is_ok());
        assert!(DataDir::check_free(&dir.path().join("nothing")).is_ok());
        assert!(DataDir::open(dir.path()).is_ok());
    }

    #[test]
    fn a_file_is_no_data_folder() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let error = DataDir::open(file.path()).unwrap_err();
        assert!(chain(&error).ends_with("it is there and is no folder"), "{}", chain(&error));
    }

    #[test]
    fn the_secret_is_another_at_each_start_and_only_the_owner_reads_it() {
        let dir = tempfile::tempdir().unwrap();
        let data = DataDir::open(dir.path()).unwrap();
        let secret = data.local_secret().unwrap();
        assert_eq!(std::fs::read_to_string(dir.path().join("api-secret")).unwrap(), secret);
        assert_ne!(secret, data.local_secret().unwrap());
        let about = std::fs::metadata(dir.path().join("api-secret")).unwrap();
        assert_eq!(exo_stdx::mode_open_to_others(&about), None);
    }

    #[test]
    fn a_log_of_trust_that_has_its_name_and_may_not_last_is_told_from_one_that_was_not_written() {
        let dir = tempfile::tempdir().unwrap();
        let mut data = DataDir::open(dir.path()).unwrap();
        data.set_trust(&[vec![1]]).unwrap();
        data.sync_folder_of = |_| Err(io::ErrorKind::StorageFull.into());
        assert!(matches!(data.set_trust(&[vec![1], vec![2]]), Err(FilesError::NotSynced { .. })));
        assert!(
            matches!(data.trust(), Err(FilesError::NotSynced { .. })),
            "a start does not go by it either"
        );
        data.sync_folder_of = exo_stdx::sync_folder_of;
        assert_eq!(data.trust().unwrap(), Some(vec![vec![1], vec![2]]), "it is there");
        // Where the new file cannot be written at all, the old one stays, and that is known.
        std::fs::create_dir(dir.path().join("trust.log.new")).unwrap();
        assert!(matches!(data.set_trust(&[vec![3]]), Err(FilesError::File { what: "write", .. })));
        assert_eq!(data.trust().unwrap(), Some(vec![vec![1], vec![2]]));
    }

    #[test]
    fn a_damaged_epoch_is_an_error_and_not_a_fresh_start() {
        let dir = tempfile::tempdir().unwrap();
        let data = DataDir::open(dir.path()).unwrap();
        assert_eq!(data.epoch().unwrap(), None);
        let epoch = Epoch { counter: 4, key: NodeId([3; 32]) };
        data.set_epoch(epoch).unwrap();
        assert_eq!(data.epoch().unwrap(), Some(epoch));
        std::fs::write(dir.path().join("epoch.json"), b"{").unwrap();
        assert!(matches!(data.epoch(), Err(FilesError::Damaged { .. })));
    }

    /// A founder's log, with one more member if `is_shared`.
    fn log_of(number: u8, is_shared: bool) -> TrustLog {
        let key = NodeKey::from_seed(&[number; 32]);
        let signed = |statement: Statement| {
            let signature = key.sign(&statement.to_sign());
            statement.signed(signature)
        };
        let names = ("a cluster".to_owned(), "a node".to_owned());
        let founding = Statement::founding(key.node_id(), 1, names.0, names.1, [number; 16]);
        let mut log = TrustLog::new(signed(founding)).unwrap();
        if is_shared {
            let act = Act::Admit { node: NodeId([200; 32]), name: "other".to_owned() };
            let admission = signed(log.statement(key.node_id(), 2, act).unwrap());
            log.insert(admission).unwrap();
        }
        log
    }

    fn written(log: &TrustLog) -> Vec<Vec<u8>> {
        log.entries().map(Entry::encode).collect()
    }

    #[test]
    fn the_clusters_that_a_node_left_are_known_until_it_is_back_and_no_more_than_sixteen() {
        let dir = tempfile::tempdir().unwrap();
        let data = DataDir::open(dir.path()).unwrap();
        let clusters = || data.left().unwrap().iter().map(|left| left.cluster).collect::<Vec<_>>();
        assert!(data.leave().unwrap(), "it never was in one");
        data.set_trust(&written(&log_of(1, false))).unwrap();
        assert!(data.leave().unwrap());
        assert_eq!(clusters(), [], "nobody else was in it");
        let logs: Vec<_> = (1..=20).map(|number| log_of(number, true)).collect();
        for log in &logs {
            data.set_trust(&written(log)).unwrap();
            assert!(data.leave().unwrap());
        }
        let last: Vec<_> = logs[4..].iter().map(TrustLog::cluster).collect();
        assert_eq!(clusters(), last);
        let mut members = [NodeKey::from_seed(&[20; 32]).node_id(), NodeId([200; 32])];
        members.sort();
        assert_eq!(data.left().unwrap()[15].members, members);

        // Back in one of them, and out of it once more.
        assert_eq!(data.left_besides(&logs[10]).unwrap().len(), 15);
        assert!(!clusters().contains(&logs[10].cluster()));
        data.set_trust(&written(&logs[10])).unwrap();
        assert!(data.leave().unwrap());
        assert_eq!(clusters()[15], logs[10].cluster());

        data.set_trust(&[vec![1]]).unwrap();
        assert!(!data.leave().unwrap(), "which one it was cannot be read");
        assert_eq!(clusters().len(), 16);
    }

    #[test]
    fn the_log_of_trust_says_whether_this_node_was_removed() {
        let dir = tempfile::tempdir().unwrap();
        let data = DataDir::open(dir.path()).unwrap();
        assert!(!data.is_removed(), "it never was in a cluster");
        data.set_trust(&written(&log_of(1, false))).unwrap();
        assert!(!data.is_removed() && !dir.path().join("node.key").exists(), "who asks makes no key");
        let me = NodeKey::load_or_create(&dir.path().join("node.key")).unwrap().node_id();
        let (founder, mut log) = (NodeKey::from_seed(&[1; 32]), log_of(1, false));
        for (act, is_removed) in [
            (Act::Admit { node: me, name: "me".to_owned() }, false),
            (Act::Remove { node: me, reason: String::new() }, true),
        ] {
            let statement = log.statement(founder.node_id(), 2, act).unwrap();
            let signature = founder.sign(&statement.to_sign());
            log.insert(statement.signed(signature)).unwrap();
            data.set_trust(&written(&log)).unwrap();
            assert_eq!(data.is_removed(), is_removed);
        }
    }

    #[test]
    fn a_node_that_does_not_know_any_more_what_it_left_joins_nobody_by_itself() {
        let dir = tempfile::tempdir().unwrap();
        let data = DataDir::open(dir.path()).unwrap();
        std::fs::write(dir.path().join(LEFT), b"[").unwrap();
        let said = data.mend(0, NodeId([3; 32])).unwrap();
        assert!(said.len() == 1 && said[0].starts_with("left.json was damaged"), "{said:?}");
        assert!(data.window_time().unwrap().ran_s >= 600, "its door counts as shut");
        assert!(data.left().unwrap().is_empty() && data.mend(0, NodeId([3; 32])).unwrap().is_empty());
    }
}
