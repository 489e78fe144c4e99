//! What the data folder knows of the cluster: the log of trust (who belongs to it) and the journal (what is
//! placed). Founds a cluster on first use.

use std::path::PathBuf;

use exo_cluster::{Event, EventError, State};
use exo_journal::{Journal, JournalError, Recovered, Snapshot, StorageFailure};
use exo_machine::joining::JOIN_WINDOW_S;
use exo_stdx::unix_s;
use exo_transport::NodeKey;
use exo_trust::{Act, Entry, Statement, TrustLog};
use exo_types::{Ancestors, LogHead};

use crate::files::{DataDir, FilesError, WindowTime};
use exo_accelerators::chain;

/// The logs as they are on disk.
pub(crate) struct Logs {
    pub(crate) trust: TrustLog,
    pub(crate) journal: Journal,
    /// What the journal's last snapshot stands for.
    pub(crate) base: LogHead,
    /// The ends that the log had before.
    pub(crate) ancestors: Ancestors,
    /// The entries behind it.
    pub(crate) entries: Vec<Vec<u8>>,
    pub(crate) state: State,
    /// Files that were damaged and are out of the way, one line each.
    pub(crate) mended: Vec<String>,
}

/// What the settings say about the cluster that a node founds.
pub(crate) struct Founding<'a> {
    /// What the node is called.
    pub(crate) name: &'a str,
    /// It runs for one command and is not opened to others.
    pub(crate) is_private: bool,
    /// No one joins on sight, ever.
    pub(crate) trust_closed: bool,
    /// It is to join another cluster: the window of its own is left for later.
    pub(crate) has_token: bool,
}

impl LogsError {
    /// Stable, for whoever chooses by it.
    pub fn code(&self) -> &'static str {
        match self {
            Self::Files(error) => error.code(),
            Self::Journal { source, .. } => {
                source.downcast_ref::<JournalError>().map_or("history_unusable", JournalError::code)
            }
            _ => "history_unusable",
        }
    }
}

/// The logs cannot be used.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
#[allow(missing_docs)] // the messages say what the fields are
pub enum LogsError {
    /// The file of the log of trust.
    #[error(transparent)]
    Files(#[from] FilesError),
    #[error("the log of trust {} cannot be used: {reason}; {LEAVE}", path.display())]
    Trust { path: PathBuf, reason: String },
    /// There are placements, and nothing that says who belongs to their cluster.
    #[error("the journal {} is of a build before this one, or its log of trust is missing; {LEAVE}", path.display())]
    TrustMissing { path: PathBuf },
    #[error("cannot use the journal {}{}", path.display(), leave_unless_full(source.as_ref()))]
    Journal { path: PathBuf, source: Box<dyn std::error::Error + Send + Sync> },
    #[error("entry {index} of the journal {} cannot be used: {reason}; {LEAVE}", path.display())]
    JournalEntry {
        path: PathBuf,
        index: u64,
        reason: String,
        /// Another build wrote it: it is not damaged.
        is_format: bool,
    },
    #[error("cannot found a cluster: {0}")]
    Found(String),
}

impl LogsError {
    /// The file that is damaged, if it is that: not what another build wrote, nor a disk that refuses.
    fn damaged(&self) -> Option<PathBuf> {
        match self {
            Self::Trust { path, .. } | Self::Files(FilesError::Damaged { path, .. }) => Some(path.clone()),
            Self::Journal { path, source } => {
                let is_damage = match source.downcast_ref::<JournalError>() {
                    Some(error) => error.is_damage(),
                    None => match source.downcast_ref::<StorageFailure>() {
                        Some(failure) => matches!(failure, StorageFailure::Corrupted(_)),
                        None => !matches!(source.downcast_ref(), Some(EventError::Format { .. })),
                    },
                };
                is_damage.then(|| path.clone())
            }
            Self::JournalEntry { path, is_format: false, .. } => Some(path.clone()),
            Self::JournalEntry { .. } | Self::Files(_) | Self::TrustMissing { .. } | Self::Found(_) => None,
        }
    }

    /// What is wrong, without what to do about it.
    fn reason(&self) -> String {
        match self {
            Self::Trust { reason, .. } | Self::Files(FilesError::Damaged { reason, .. }) => reason.clone(),
            Self::JournalEntry { index, reason, .. } => format!("entry {index}: {reason}"),
            Self::Journal { source, .. } => match source.downcast_ref() {
                Some(JournalError::Damaged { why, .. }) => why.clone(),
                _ => chain(source.as_ref()),
            },
            other => other.to_string(),
        }
    }
}

/// A journal on a full disk is whole.
fn leave_unless_full(source: &(dyn std::error::Error + Send + Sync + 'static)) -> String {
    let code = source.downcast_ref::<JournalError>().map(JournalError::code);
    if code == Some("disk_full") { String::new() } else { format!("; {LEAVE}") }
}

const LEAVE: &str = "`exo leave` forgets the cluster, keeps the models, and this node begins anew";

impl Logs {
    /// Reads both. A node that has none founds a cluster of its own; one that is opened to others for the
    /// first time opens its join window.
    pub(crate) fn open(data: &DataDir, founding: &Founding<'_>, key: &NodeKey) -> Result<Self, LogsError> {
        let mut mended = Vec::new();
        let trust = match read_trust(data) {
            Err(error) => {
                // Its cluster knows this node by its key: it begins as a new node and is let in again. What
                // is placed is that cluster's.
                let Some(path) = error.damaged() else { return Err(error) };
                mended.push(data.move_aside(&path, &error.reason())?);
                if data.journal_path().exists() {
                    mended.push(data.move_aside(&data.journal_path(), "its log of trust is")?);
                }
                data.set_window_time(&WindowTime::default())?; // it was another cluster's
                None
            }
            Ok(trust) => trust,
        };
        let open = open_journal(data).or_else(|error| {
            let Some(path) = error.damaged() else { return Err(error) };
            mended.push(data.move_aside(&path, &error.reason())?);
            open_journal(data)
        });
        let OpenJournal { journal, base, ancestors, entries, state } = open?;
        let is_new = base == LogHead::EMPTY && entries.is_empty();
        let trust = match trust {
            Some(trust) => trust,
            None if is_new => found(data, founding.name, key)?,
            None => return Err(LogsError::TrustMissing { path: data.journal_path() }),
        };
        mended.extend(data.mend(state.epoch_last().map_or(0, |epoch| epoch.counter), key.node_id())?);
        let mut logs = Self { trust, journal, base, ancestors, entries, state, mended };
        let is_alone = logs.trust.view().members().len() <= 1;
        if is_alone && !founding.is_private {
            logs.open_to_others(data, founding, key)?;
        }
        Ok(logs)
    }

    /// The window opens once: what is in the log of trust says that it did.
    fn open_to_others(
        &mut self,
        data: &DataDir,
        founding: &Founding<'_>,
        key: &NodeKey,
    ) -> Result<(), LogsError> {
        let is_founder = self.trust.view().admins().eq([key.node_id()]);
        if is_founder && !founding.has_token && self.trust.view().window_until_unix_s().is_none() {
            let until_unix_s = if founding.trust_closed { 0 } else { unix_s() + JOIN_WINDOW_S };
            let statement = self.trust.statement(key.node_id(), unix_s(), Act::Window { until_unix_s });
            let statement = statement.map_err(|error| LogsError::Found(error.to_string()))?;
            let entry = sign(key, statement);
            self.trust.insert(entry).map_err(|error| LogsError::Found(error.to_string()))?;
            write_trust(data, &self.trust)?;
        }
        if !self.state.is_open() {
            let event = Event::Opened;
            self.state.apply(&event).map_err(|error| LogsError::Found(error.to_string()))?;
            let bytes = event.encode();
            let appended = self.journal.append(std::slice::from_ref(&bytes));
            appended.map_err(|error| LogsError::Found(chain(&error)))?;
            self.entries.push(bytes);
        }
        Ok(())
    }
}

fn read_trust(data: &DataDir) -> Result<Option<TrustLog>, LogsError> {
    let Some(entries) = data.trust()? else { return Ok(None) };
    let wrong = |reason: String| LogsError::Trust { path: data.trust_path(), reason };
    let entries: Result<Vec<_>, _> = entries.iter().map(|bytes| Entry::decode(bytes)).collect();
    let entries = entries.map_err(|error| wrong(error.to_string()))?;
    let log = TrustLog::from_entries(entries).map_err(|error| wrong(error.to_string()))?;
    log.map(Some).ok_or_else(|| wrong("it has no entries".to_owned()))
}

fn write_trust(data: &DataDir, log: &TrustLog) -> Result<(), LogsError> {
    Ok(data.set_trust(&log.entries().map(Entry::encode).collect::<Vec<_>>())?)
}

/// A node begins as the founder and only member of a cluster of its own.
fn found(data: &DataDir, name: &str, key: &NodeKey) -> Result<TrustLog, LogsError> {
    let mut nonce = [0; 16];
    getrandom::fill(&mut nonce).map_err(|error| LogsError::Found(error.to_string()))?;
    let (cluster, name) = (format!("{name}'s cluster"), name.to_owned());
    let statement = Statement::founding(key.node_id(), unix_s(), cluster, name, nonce);
    let log = TrustLog::new(sign(key, statement)).map_err(|error| LogsError::Found(error.to_string()))?;
    write_trust(data, &log)?;
    Ok(log)
}

fn sign(key: &NodeKey, statement: Statement) -> Entry {
    let signature = key.sign(&statement.to_sign());
    statement.signed(signature)
}

/// The journal and what it says.
struct OpenJournal {
    journal: Journal,
    base: LogHead,
    ancestors: Ancestors,
    entries: Vec<Vec<u8>>,
    state: State,
}

fn open_journal(data: &DataDir) -> Result<OpenJournal, LogsError> {
    let path = data.journal_path();
    let wrong =
        |source: Box<dyn std::error::Error + Send + Sync>| LogsError::Journal { path: path.clone(), source };
    let (journal, opened) = Journal::open(&path).map_err(|e| wrong(Box::new(e)))?;
    if let Some(Recovered { entries }) = opened.recovered {
        tracing::info!(entries, "the journal was not closed last time; it was repaired and is whole");
    }
    let (mut state, base, ancestors) = match journal.latest_snapshot().map_err(|e| wrong(Box::new(e)))? {
        Some(Snapshot { head, ancestors, state }) => {
            (State::decode(&state).map_err(|e| wrong(Box::new(e)))?, head, ancestors)
        }
        None => (State::default(), LogHead::EMPTY, Ancestors::default()),
    };
    let (mut next, mut all) = (base.index, Vec::new());
    loop {
        let entries = journal.read_from(next, 1024).map_err(|e| wrong(Box::new(e)))?;
        let Some((last, _)) = entries.last() else { break };
        next = last + 1;
        for (index, bytes) in entries {
            let bad = |reason: String, is_format| LogsError::JournalEntry {
                path: path.clone(),
                index,
                reason,
                is_format,
            };
            let is_format = |e: &EventError| matches!(e, EventError::Format { .. });
            let event = Event::decode(&bytes).map_err(|e| bad(e.to_string(), is_format(&e)))?;
            state.apply(&event).map_err(|e| bad(e.to_string(), false))?;
            all.push(bytes);
        }
    }
    Ok(OpenJournal { journal, base, ancestors, entries: all, state })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn open(dir: &std::path::Path, is_private: bool) -> Result<Logs, LogsError> {
        let data = DataDir::open(dir).unwrap();
        let key = NodeKey::load_or_create(&dir.join("node.key")).unwrap();
        Logs::open(&data, &Founding { name: "desk", is_private, trust_closed: false, has_token: false }, &key)
    }

    #[test]
    fn a_cluster_is_founded_once_and_its_window_opens_once_when_the_node_is_opened_to_others() {
        let dir = tempfile::tempdir().unwrap();
        let private = open(dir.path(), true).unwrap();
        assert_eq!(private.trust.view().window_until_unix_s(), None);
        assert!(!private.state.is_open());
        let cluster = private.trust.cluster();
        drop(private);
        let opened = open(dir.path(), false).unwrap();
        let until = opened.trust.view().window_until_unix_s();
        assert!(until.is_some_and(|until| until > unix_s()) && opened.state.is_open());
        let entries = opened.entries.clone();
        drop(opened);
        let again = open(dir.path(), false).unwrap();
        assert_eq!((again.trust.cluster(), again.trust.view().window_until_unix_s()), (cluster, until));
        assert_eq!(again.entries, entries);
    }

    /// Cut, changed, and empty.
    fn damages(good: &[u8]) -> Vec<Vec<u8>> {
        let mut flipped = good.to_vec();
        flipped.iter_mut().skip(good.len() / 3).step_by(97).for_each(|byte| *byte ^= 1);
        vec![good[..good.len() / 2].to_vec(), flipped, Vec::new(), good[..3].to_vec()]
    }

    #[test]
    fn a_damaged_journal_is_moved_aside_and_the_cluster_and_the_key_are_kept() {
        let dir = tempfile::tempdir().unwrap();
        let first = open(dir.path(), false).unwrap();
        let cluster = first.trust.cluster();
        assert!(first.mended.is_empty());
        drop(first);
        let path = dir.path().join("journal.redb");
        let good = std::fs::read(&path).unwrap();
        for bad in damages(&good) {
            std::fs::write(&path, &bad).unwrap();
            let logs = open(dir.path(), false).unwrap();
            assert_eq!(logs.trust.cluster(), cluster);
            assert!(logs.state.is_open() && logs.mended.len() == 1, "{:?}", logs.mended);
            assert!(logs.mended[0].contains("journal.redb.damaged-"), "{:?}", logs.mended);
        }
        let aside = std::fs::read_dir(dir.path()).unwrap().flatten();
        assert_eq!(aside.filter(|e| e.file_name().to_string_lossy().contains("damaged")).count(), 4);
    }

    #[test]
    fn a_damaged_log_of_trust_is_moved_aside_with_its_placements_and_one_that_is_gone_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        drop(open(dir.path(), false).unwrap());
        let path = dir.path().join("trust.log");
        let mut cluster = open(dir.path(), false).unwrap().trust.cluster();
        for bad in damages(&std::fs::read(&path).unwrap()) {
            std::fs::write(&path, &bad).unwrap();
            let logs = open(dir.path(), false).unwrap();
            assert_eq!(logs.mended.len(), 2, "{:?}", logs.mended);
            assert_ne!(std::mem::replace(&mut cluster, logs.trust.cluster()), logs.trust.cluster());
        }
        std::fs::remove_file(&path).unwrap();
        let error = open(dir.path(), false).map(drop).unwrap_err();
        assert!(matches!(error, LogsError::TrustMissing { .. }), "{error}");
    }

    #[test]
    fn small_files_that_are_damaged_are_made_up_for() {
        let dir = tempfile::tempdir().unwrap();
        drop(open(dir.path(), false).unwrap());
        for name in ["peers.json", "ended.json", "epoch.json", "window.json"] {
            std::fs::write(dir.path().join(name), b"{\"").unwrap();
        }
        let logs = open(dir.path(), false).unwrap();
        assert_eq!(logs.mended.len(), 4, "{:?}", logs.mended);
        let data = DataDir::open(dir.path()).unwrap();
        assert!(data.epoch().unwrap().is_some_and(|epoch| epoch.counter >= 1 << 14));
        assert!(data.window_time().unwrap().ran_s > JOIN_WINDOW_S);
    }
}
