//! What the data folder knows of the cluster: the log of trust (who belongs to it) and the journal (what is placed). Founds a
//! cluster on first use.

use std::path::PathBuf;

use exo_cluster::{Event, State};
use exo_journal::Journal;
use exo_machine::joining::JOIN_WINDOW_S;
use exo_transport::NodeKey;
use exo_trust::{Act, Entry, Statement, TrustLog};
use exo_types::LogHead;

use crate::engine_host::chain;
use crate::files::{DataDir, FilesError};
use crate::run_loop::unix_s;

/// The logs as they are on disk.
pub(crate) struct Logs {
    pub(crate) trust: TrustLog,
    pub(crate) journal: Journal,
    /// What the journal's last snapshot stands for.
    pub(crate) base: LogHead,
    /// The entries behind it.
    pub(crate) entries: Vec<Vec<u8>>,
    pub(crate) state: State,
}

/// What the settings say about the cluster that a node founds.
pub(crate) struct Founding<'a> {
    /// What the node is called.
    pub(crate) name: &'a str,
    /// It runs for one command and is not opened to others.
    pub(crate) is_private: bool,
    /// Nobody joins on sight, ever.
    pub(crate) trust_closed: bool,
}

/// The logs cannot be used.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum LogsError {
    /// The file of the log of trust.
    #[error(transparent)]
    Files(#[from] FilesError),
    /// The log of trust is there and contradicts itself.
    #[error("the log of trust {} cannot be used: {reason}; {LEAVE}", path.display())]
    Trust {
        /// The file.
        path: PathBuf,
        /// What is wrong.
        reason: String,
    },
    /// There are placements, and nothing that says who belongs to their cluster.
    #[error("the journal {} is of a build before this one, or its log of trust is missing; {LEAVE}", path.display())]
    TrustMissing {
        /// The journal.
        path: PathBuf,
    },
    /// The journal.
    #[error("cannot use the journal {}; {LEAVE}", path.display())]
    Journal {
        /// The file.
        path: PathBuf,
        /// Why.
        #[source]
        source: Box<dyn std::error::Error + Send + Sync>,
    },
    /// The journal contradicts itself.
    #[error("entry {index} of the journal {} cannot be used: {reason}; {LEAVE}", path.display())]
    JournalEntry {
        /// The file.
        path: PathBuf,
        /// Which entry.
        index: u64,
        /// What is wrong.
        reason: String,
    },
    /// The founding of this node's cluster.
    #[error("cannot found a cluster: {0}")]
    Found(String),
}

const LEAVE: &str = "`exo leave` forgets the cluster, keeps the models, and this node begins anew";

impl Logs {
    /// Reads both. A node that has none founds a cluster of its own; one that is opened to others for the first time opens its
    /// join window.
    pub(crate) fn open(data: &DataDir, founding: &Founding<'_>, key: &NodeKey) -> Result<Self, LogsError> {
        let OpenJournal { journal, base, entries, state } = open_journal(data)?;
        let is_new = base == LogHead::EMPTY && entries.is_empty();
        let trust = match read_trust(data)? {
            Some(trust) => trust,
            None if is_new => found(data, founding.name, key)?,
            None => return Err(LogsError::TrustMissing { path: data.journal_path() }),
        };
        let mut logs = Self { trust, journal, base, entries, state };
        let is_alone = logs.trust.view().members().len() <= 1;
        if is_alone && !founding.is_private {
            logs.open_to_others(data, founding.trust_closed, key)?;
        }
        Ok(logs)
    }

    /// The window opens once: what is in the log of trust says that it did.
    fn open_to_others(&mut self, data: &DataDir, trust_closed: bool, key: &NodeKey) -> Result<(), LogsError> {
        let is_founder = self.trust.view().admins().eq([key.node_id()]);
        if is_founder && self.trust.view().window_until_unix_s().is_none() {
            let until_unix_s = if trust_closed { 0 } else { unix_s() + JOIN_WINDOW_S };
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
    entries: Vec<Vec<u8>>,
    state: State,
}

fn open_journal(data: &DataDir) -> Result<OpenJournal, LogsError> {
    let path = data.journal_path();
    let wrong =
        |source: Box<dyn std::error::Error + Send + Sync>| LogsError::Journal { path: path.clone(), source };
    let (journal, _) = Journal::open(&path).map_err(|e| wrong(Box::new(e)))?;
    let (mut state, base) = match journal.latest_snapshot().map_err(|e| wrong(Box::new(e)))? {
        Some(snapshot) => (State::decode(&snapshot.state).map_err(|e| wrong(Box::new(e)))?, snapshot.head),
        None => (State::default(), LogHead::EMPTY),
    };
    let (mut next, mut all) = (base.index, Vec::new());
    loop {
        let entries = journal.read_from(next, 1024).map_err(|e| wrong(Box::new(e)))?;
        let Some((last, _)) = entries.last() else { break };
        next = last + 1;
        for (index, bytes) in entries {
            let bad = |reason: String| LogsError::JournalEntry { path: path.clone(), index, reason };
            let event = Event::decode(&bytes).map_err(|e| bad(e.to_string()))?;
            state.apply(&event).map_err(|e| bad(e.to_string()))?;
            all.push(bytes);
        }
    }
    Ok(OpenJournal { journal, base, entries: all, state })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn open(dir: &std::path::Path, is_private: bool) -> Result<Logs, LogsError> {
        let data = DataDir::open(dir).unwrap();
        let key = NodeKey::load_or_create(&dir.join("node.key")).unwrap();
        Logs::open(&data, &Founding { name: "desk", is_private, trust_closed: false }, &key)
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

    #[test]
    fn a_log_of_trust_that_was_changed_on_disk_is_refused_with_what_to_do() {
        let dir = tempfile::tempdir().unwrap();
        drop(open(dir.path(), false).unwrap());
        let path = dir.path().join("trust.log");
        let good = std::fs::read(&path).unwrap();
        for (at, bytes) in [(good.len() - 1, good.len()), (good.len() / 2, good.len()), (0, 3), (0, 0)] {
            let mut bad = good[..bytes].to_vec();
            if let Some(byte) = bad.get_mut(at) {
                *byte ^= 1;
            }
            std::fs::write(&path, &bad).unwrap();
            let error = open(dir.path(), false).map(drop).unwrap_err().to_string();
            assert!(error.contains("trust.log") && error.contains("exo leave"), "{error}");
        }
        std::fs::remove_file(&path).unwrap();
        let error = open(dir.path(), false).map(drop).unwrap_err();
        assert!(matches!(error, LogsError::TrustMissing { .. }), "{error}");
    }
}
