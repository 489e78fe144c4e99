//! The log itself, over one redb file.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;

use exo_types::{Ancestors, LogHead};
use redb::{Database, ReadableDatabase, TableDefinition, WriteTransaction};

use crate::errors::{AppendError, ChainBroken, JournalError, SnapshotError, StorageFailure};
use crate::file;
use crate::head::{HEAD_BYTES, decode_head, encode_head};

/// Largest entry.
pub const PAYLOAD_BYTES_MAX: usize = 1 << 20;
/// Largest batch of one append.
pub const BATCH_BYTES_MAX: usize = 16 << 20;
/// Largest state of a snapshot.
pub const STATE_BYTES_MAX: usize = 64 << 20;
/// [`Journal::read_from`] stops after this many bytes, so that an answer fits a frame.
pub const READ_BYTES_MAX: usize = 8 << 20;

/// Counts the encoding of entries too: 2 has the size of the cache in placements, 3 the packed bytes of
/// models, 4 says in each entry and snapshot which format it has.
const FORMAT: u32 = 4;
/// The oldest format whose entries are still read. Such a file gets the present number when it is opened:
/// what is written to it from then on, the build that made it could not read.
const FORMAT_OLDEST: u32 = 3;
/// Entry number to chain hash after it (32 bytes) and payload.
const LOG: TableDefinition<u64, &[u8]> = TableDefinition::new("log");
/// Single values: the format, the head, the base (head of the snapshot, or of the empty log), and the state
/// with its BLAKE3 hash before it.
const META: TableDefinition<&str, &[u8]> = TableDefinition::new("meta");
const KEY_FORMAT: &str = "format";
const KEY_HEAD: &str = "head";
const KEY_BASE: &str = "base";
const KEY_STATE: &str = "state";
/// The base again, and the hashes of the ends that the log had before it. Builds that do not know of them
/// leave them as they are when they write another base: then these are of no use.
const KEY_ANCESTORS: &str = "ancestors";
const HASH_BYTES: usize = 32;

/// An append-only, hash-chained log in one file. One process at a time has it open.
#[derive(Debug)]
pub struct Journal {
    db: Database,
    head: LogHead,
    base: LogHead,
}

/// What was found on opening.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Opened {
    /// The log's end.
    pub head: LogHead,
    /// Present if the last user did not close the file, which then was repaired.
    pub recovered: Option<Recovered>,
}

/// What a repair left.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Recovered {
    /// Entries that are whole, checked against the chain. Appends that were acknowledged are among them.
    pub entries: u64,
}

/// A state that stands for the entries before `head`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Snapshot {
    /// The log's end when the state was taken.
    pub head: LogHead,
    /// The ends that the log had before: as many as are known.
    pub ancestors: Ancestors,
    /// The state's bytes.
    pub state: Vec<u8>,
}

impl Journal {
    /// Opens the journal at `path`, or makes an empty one, and checks its chain.
    pub fn open(path: &Path) -> Result<(Self, Opened), JournalError> {
        file::create_if_absent(path, |db| found(db).map_err(|e| JournalError::storage(path, e)))?;
        let (db, repaired) = file::open(path)?;
        let checked = catch_unwind(AssertUnwindSafe(|| Self::load(db, path)));
        let journal = checked.map_err(|_| file::damaged(path, "its structure contradicts itself"))??;
        let head = journal.head;
        let recovered = repaired.then_some(Recovered { entries: head.index - journal.base.index });
        Ok((journal, Opened { head, recovered }))
    }

    fn load(db: Database, path: &Path) -> Result<Self, JournalError> {
        let failed = |failure: StorageFailure| JournalError::storage(path, failure);
        let missing = |what| file::damaged(path, &format!("it has no {what}"));
        let format = read_meta(&db, KEY_FORMAT).map_err(failed)?.ok_or_else(|| missing("format"))?;
        let found = format.try_into().map(u32::from_le_bytes).map_err(|_| missing("format"))?;
        if !(FORMAT_OLDEST..=FORMAT).contains(&found) {
            let (path, oldest, known) = (path.to_owned(), FORMAT_OLDEST, FORMAT);
            return Err(JournalError::Format { path, found, oldest, known });
        }
        let head_of = |key, what| {
            let bytes = read_meta(&db, key).map_err(failed)?;
            bytes.and_then(|b| decode_head(&b)).ok_or_else(|| missing(what))
        };
        let (head, base) = (head_of(KEY_HEAD, "head")?, head_of(KEY_BASE, "base")?);
        if base.index > head.index {
            return Err(file::damaged(path, "its snapshot lies beyond its end"));
        }
        let journal = Self { db, head, base };
        journal.verify().map_err(|broken| JournalError::Altered { path: path.to_owned(), broken })?;
        if found != FORMAT {
            journal.write(|txn| put_meta(txn, KEY_FORMAT, &FORMAT.to_le_bytes())).map_err(failed)?;
            tracing::info!(from = found, to = FORMAT, "the journal has another format from now on");
        }
        Ok(journal)
    }

    /// The log's end.
    pub fn head(&self) -> LogHead {
        self.head
    }

    /// Where the entries begin: the head the last snapshot stands for, or the empty one.
    pub fn base(&self) -> LogHead {
        self.base
    }

    /// Writes `batch` behind the log's end, all of it or nothing, and returns when it is on the disk.
    pub fn append(&mut self, batch: &[Vec<u8>]) -> Result<LogHead, AppendError> {
        check_batch(batch)?;
        if batch.is_empty() {
            return Ok(self.head);
        }
        let head = self
            .write(|txn| {
                let head = put_entries(txn, self.head, batch)?;
                put_meta(txn, KEY_HEAD, &encode_head(head))?;
                Ok(head)
            })
            .map_err(AppendError::Storage)?;
        self.head = head;
        Ok(head)
    }

    /// Takes back the entries behind `after`, an end that this log had: their write was answered as failed,
    /// and is there all the same.
    pub fn take_back(&mut self, after: LogHead) -> Result<(), SnapshotError> {
        if self.hash_at(after.index).map_err(SnapshotError::Storage)? != Some(after.hash) {
            return Err(SnapshotError::NotInLog { upto: after, head: self.head });
        }
        self.write(|txn| {
            txn.open_table(LOG)?.retain_in(after.index.., |_, _| false)?;
            put_meta(txn, KEY_HEAD, &encode_head(after))
        })
        .map_err(SnapshotError::Storage)?;
        self.head = after;
        Ok(())
    }

    /// Up to `max` entries from entry `seq` on, each with its number; also stops after [`READ_BYTES_MAX`].
    /// Entries that a snapshot replaced are gone: the answer then starts behind it.
    pub fn read_from(&self, seq: u64, max: usize) -> Result<Vec<(u64, Vec<u8>)>, StorageFailure> {
        let txn = self.db.begin_read()?;
        let log = txn.open_table(LOG)?;
        let (mut entries, mut bytes) = (Vec::new(), 0);
        for entry in log.range(seq..)?.take(max) {
            let (number, value) = entry?;
            let payload = payload_of(number.value(), value.value())?;
            bytes += payload.len();
            if bytes > READ_BYTES_MAX && !entries.is_empty() {
                break;
            }
            entries.push((number.value(), payload.to_vec()));
        }
        Ok(entries)
    }

    /// The chain hash after the first `seq` entries; `None` beyond the end or where a snapshot replaced them.
    pub fn hash_at(&self, seq: u64) -> Result<Option<[u8; 32]>, StorageFailure> {
        if seq == self.base.index {
            return Ok(Some(self.base.hash));
        }
        if seq < self.base.index || seq > self.head.index {
            return Ok(None);
        }
        let txn = self.db.begin_read()?;
        let value = txn.open_table(LOG)?.get(seq - 1)?;
        Ok(value.and_then(|v| v.value().first_chunk().copied()))
    }

    /// Replaces the entries before `upto` by the state they amount to; of them, hashes are left. `upto` must
    /// be a head this log had.
    pub fn snapshot(&mut self, upto: LogHead, state: &[u8]) -> Result<(), SnapshotError> {
        check_state(state)?;
        if self.hash_at(upto.index).map_err(SnapshotError::Storage)? != Some(upto.hash) {
            return Err(SnapshotError::NotInLog { upto, head: self.head });
        }
        let ancestors = self.ancestors_of(upto.index).map_err(SnapshotError::Storage)?;
        self.write(|txn| {
            txn.open_table(LOG)?.retain_in(..upto.index, |_, _| false)?;
            put_meta(txn, KEY_BASE, &encode_head(upto))?;
            put_ancestors(txn, upto, &ancestors)?;
            put_state(txn, state)
        })
        .map_err(SnapshotError::Storage)?;
        self.base = upto;
        Ok(())
    }

    /// The last snapshot; replay starts from it.
    pub fn latest_snapshot(&self) -> Result<Option<Snapshot>, StorageFailure> {
        let Some(stored) = read_meta(&self.db, KEY_STATE)? else { return Ok(None) };
        let sound = stored.split_first_chunk().filter(|(hash, state)| blake3::hash(state) == **hash);
        let (_, state) = sound.ok_or_else(|| StorageFailure::Corrupted("the snapshot's state".to_owned()))?;
        Ok(Some(Snapshot { head: self.base, ancestors: self.ancestors()?, state: state.to_vec() }))
    }

    /// The ends that the log had before its snapshot. A list that is none counts as empty: it only says that
    /// shorter logs are this one's past, and neither entries nor state follow from it.
    fn ancestors(&self) -> Result<Ancestors, StorageFailure> {
        let Some(stored) = read_meta(&self.db, KEY_ANCESTORS)? else { return Ok(Ancestors::default()) };
        let parts = stored.split_first_chunk::<HEAD_BYTES>().map(|(of, hashes)| (of, hashes.as_chunks()));
        let Some((of, (hashes, []))) = parts else {
            let bytes = stored.len();
            tracing::warn!(bytes, base = %self.base, "the hashes in front of the snapshot are damaged, and left out");
            return Ok(Ancestors::default());
        };
        if decode_head(of) != Some(self.base) {
            tracing::info!(base = %self.base, "the hashes in front of the snapshot are those of an older one");
            return Ok(Ancestors::default());
        }
        Ok(Ancestors::new(hashes.to_vec()))
    }

    /// The ends that the log had before it had `index` entries.
    fn ancestors_of(&self, index: u64) -> Result<Ancestors, StorageFailure> {
        let (mut ancestors, mut end) = (self.ancestors()?, self.base);
        let txn = self.db.begin_read()?;
        for entry in txn.open_table(LOG)?.range(..index)? {
            let (number, value) = entry?;
            ancestors.push(end);
            end = LogHead { index: number.value() + 1, hash: hash_of(number.value(), value.value())? };
        }
        Ok(ancestors)
    }

    /// Throws the whole log away for another's snapshot and what followed it: a joiner, or a node whose
    /// history lost. All of it or nothing.
    pub fn install_snapshot(
        &mut self,
        snapshot: &Snapshot,
        tail: &[Vec<u8>],
    ) -> Result<LogHead, SnapshotError> {
        check_state(&snapshot.state)?;
        check_batch(tail).map_err(SnapshotError::Tail)?;
        let head = self
            .write(|txn| {
                txn.open_table(LOG)?.retain(|_, _| false)?;
                let head = put_entries(txn, snapshot.head, tail)?;
                put_meta(txn, KEY_BASE, &encode_head(snapshot.head))?;
                put_ancestors(txn, snapshot.head, &snapshot.ancestors)?;
                put_state(txn, &snapshot.state)?;
                put_meta(txn, KEY_HEAD, &encode_head(head))?;
                Ok(head)
            })
            .map_err(SnapshotError::Storage)?;
        (self.base, self.head) = (snapshot.head, head);
        Ok(head)
    }

    /// Checks the snapshot's state and recomputes the chain from the snapshot (or the beginning) to the end.
    pub fn verify(&self) -> Result<LogHead, ChainBroken> {
        let mut at = self.base;
        let broken = |seq, why: &str| ChainBroken { seq, why: why.to_owned() };
        let unread = |seq| move |e: StorageFailure| ChainBroken { seq, why: e.to_string() };
        self.latest_snapshot().map_err(unread(at.index))?;
        let txn = self.db.begin_read().map_err(|e| unread(at.index)(e.into()))?;
        let log = txn.open_table(LOG).map_err(|e| unread(at.index)(e.into()))?;
        for entry in log.range::<u64>(..).map_err(|e| unread(at.index)(e.into()))? {
            let (number, value) = entry.map_err(|e| unread(at.index)(e.into()))?;
            if number.value() != at.index {
                return Err(broken(at.index, "it is missing"));
            }
            let (hash, payload) = value
                .value()
                .split_first_chunk::<HASH_BYTES>()
                .ok_or_else(|| broken(at.index, "it is cut short"))?;
            let next = at.then(payload);
            if next.hash != *hash {
                return Err(broken(at.index, "its content or an earlier one is not what was written"));
            }
            at = next;
        }
        if at == self.head { Ok(at) } else { Err(broken(at.index, "the log ends before its head")) }
    }

    /// One transaction, on the disk when this returns. An error leaves nothing of it.
    fn write<T>(
        &self,
        work: impl FnOnce(&WriteTransaction) -> Result<T, StorageFailure>,
    ) -> Result<T, StorageFailure> {
        let mut txn = self.db.begin_write()?;
        txn.set_durability(redb::Durability::Immediate)?;
        let value = work(&txn)?;
        txn.commit()?;
        Ok(value)
    }
}

/// Makes an empty database a journal.
fn found(db: &Database) -> Result<(), StorageFailure> {
    let txn = db.begin_write()?;
    txn.open_table(LOG)?;
    put_meta(&txn, KEY_FORMAT, &FORMAT.to_le_bytes())?;
    put_meta(&txn, KEY_HEAD, &encode_head(LogHead::EMPTY))?;
    put_meta(&txn, KEY_BASE, &encode_head(LogHead::EMPTY))?;
    Ok(txn.commit()?)
}

fn put_entries(txn: &WriteTransaction, from: LogHead, batch: &[Vec<u8>]) -> Result<LogHead, StorageFailure> {
    let mut log = txn.open_table(LOG)?;
    let mut head = from;
    for payload in batch {
        let (seq, next) = (head.index, head.then(payload));
        log.insert(seq, [&next.hash[..], payload].concat().as_slice())?;
        head = next;
    }
    Ok(head)
}

fn put_meta(txn: &WriteTransaction, key: &str, value: &[u8]) -> Result<(), StorageFailure> {
    txn.open_table(META)?.insert(key, value)?;
    Ok(())
}

fn put_state(txn: &WriteTransaction, state: &[u8]) -> Result<(), StorageFailure> {
    put_meta(txn, KEY_STATE, &[&blake3::hash(state).as_bytes()[..], state].concat())
}

fn put_ancestors(txn: &WriteTransaction, of: LogHead, ancestors: &Ancestors) -> Result<(), StorageFailure> {
    put_meta(txn, KEY_ANCESTORS, &[&encode_head(of)[..], ancestors.hashes().as_flattened()].concat())
}

fn read_meta(db: &Database, key: &str) -> Result<Option<Vec<u8>>, StorageFailure> {
    let txn = db.begin_read()?;
    let value = txn.open_table(META)?.get(key)?;
    Ok(value.map(|v| v.value().to_vec()))
}

fn hash_of(seq: u64, value: &[u8]) -> Result<[u8; HASH_BYTES], StorageFailure> {
    let hash = value.first_chunk().copied();
    hash.ok_or_else(|| StorageFailure::Corrupted(format!("entry {seq} is cut short")))
}

fn payload_of(seq: u64, value: &[u8]) -> Result<&[u8], StorageFailure> {
    value.get(HASH_BYTES..).ok_or_else(|| StorageFailure::Corrupted(format!("entry {seq} is cut short")))
}

fn check_batch(batch: &[Vec<u8>]) -> Result<(), AppendError> {
    let mut bytes = 0;
    for payload in batch {
        if payload.len() > PAYLOAD_BYTES_MAX {
            return Err(AppendError::EntryTooLarge { bytes: payload.len(), max_bytes: PAYLOAD_BYTES_MAX });
        }
        bytes += payload.len();
    }
    if bytes > BATCH_BYTES_MAX {
        return Err(AppendError::BatchTooLarge { bytes, max_bytes: BATCH_BYTES_MAX });
    }
    Ok(())
}

fn check_state(state: &[u8]) -> Result<(), SnapshotError> {
    if state.len() > STATE_BYTES_MAX {
        return Err(SnapshotError::StateTooLarge { bytes: state.len(), max_bytes: STATE_BYTES_MAX });
    }
    Ok(())
}

#[cfg(test)]
#[path = "tests.rs"]
mod tests;
