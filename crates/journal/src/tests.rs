//! The journal's promises, on real files.

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use proptest::prelude::*;
use redb::{ReadableTable, StorageBackend};
use tempfile::TempDir;

use super::*;

/// A journal in a folder of its own.
struct Bench {
    _dir: TempDir,
    path: PathBuf,
}

impl Bench {
    fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("journal.redb");
        Self { _dir: dir, path }
    }

    fn open(&self) -> Journal {
        Journal::open(&self.path).unwrap().0
    }
}

fn entries(range: std::ops::Range<u64>) -> Vec<Vec<u8>> {
    range.map(|i| format!("event {i}").into_bytes()).collect()
}

/// Changes an entry behind the journal's back.
fn tamper(path: &std::path::Path, work: impl FnOnce(&WriteTransaction)) {
    let db = Database::open(path).unwrap();
    let txn = db.begin_write().unwrap();
    work(&txn);
    txn.commit().unwrap();
}

fn altered_at(path: &std::path::Path) -> u64 {
    match Journal::open(path).map(|(_, opened)| opened) {
        Err(JournalError::Altered { broken, .. }) => broken.seq,
        other => panic!("not noticed: {other:?}"),
    }
}

#[test]
fn what_was_appended_is_there_after_reopening() {
    let bench = Bench::new();
    let mut journal = bench.open();
    assert_eq!(journal.head(), LogHead::EMPTY);
    assert_eq!(journal.append(&[]).unwrap(), LogHead::EMPTY);
    let head = journal.append(&entries(0..5)).unwrap();
    drop(journal);
    let (journal, opened) = Journal::open(&bench.path).unwrap();
    assert_eq!(opened, Opened { head, recovered: None });
    assert_eq!(journal.verify(), Ok(head));
    let read = journal.read_from(2, 2).unwrap();
    assert_eq!(read, [(2, b"event 2".to_vec()), (3, b"event 3".to_vec())]);
    assert_eq!(journal.read_from(5, 10).unwrap(), []);
}

#[test]
fn batches_do_not_change_the_chain() {
    let (one, many) = (Bench::new(), Bench::new());
    let (mut one, mut many) = (one.open(), many.open());
    one.append(&entries(0..6)).unwrap();
    for i in 0..6 {
        many.append(&entries(i..i + 1)).unwrap();
        assert_eq!(one.hash_at(i).unwrap(), many.hash_at(i).unwrap());
    }
    assert_eq!(one.head(), many.head());
    assert_eq!(one.hash_at(7).unwrap(), None);
    assert_eq!(one.hash_at(0).unwrap(), Some([0; 32]));
}

#[test]
fn a_changed_entry_is_found_where_it_is() {
    let bench = Bench::new();
    bench.open().append(&entries(0..10)).unwrap();
    tamper(&bench.path, |txn| {
        let mut log = txn.open_table(LOG).unwrap();
        let mut value = log.get(4).unwrap().unwrap().value().to_vec();
        *value.last_mut().unwrap() ^= 1;
        log.insert(4, value.as_slice()).unwrap();
    });
    assert_eq!(altered_at(&bench.path), 4);
}

#[test]
fn a_changed_entry_with_a_fitting_hash_breaks_the_next() {
    let bench = Bench::new();
    bench.open().append(&entries(0..10)).unwrap();
    tamper(&bench.path, |txn| {
        let mut head = LogHead::EMPTY;
        for payload in entries(0..4) {
            head = head.then(&payload);
        }
        let forged = [&head.then(b"forged").hash[..], b"forged"].concat();
        txn.open_table(LOG).unwrap().insert(4, forged.as_slice()).unwrap();
    });
    assert_eq!(altered_at(&bench.path), 5);
}

#[test]
fn a_missing_entry_and_a_cut_off_tail_are_found() {
    for (removed, found) in [(3, 3), (9, 9)] {
        let bench = Bench::new();
        bench.open().append(&entries(0..10)).unwrap();
        tamper(&bench.path, |txn| {
            txn.open_table(LOG).unwrap().remove(removed).unwrap();
        });
        assert_eq!(altered_at(&bench.path), found);
    }
}

#[test]
fn a_changed_snapshot_state_is_found() {
    let bench = Bench::new();
    let mut journal = bench.open();
    let head = journal.append(&entries(0..3)).unwrap();
    journal.snapshot(head, b"three events").unwrap();
    drop(journal);
    tamper(&bench.path, |txn| {
        let mut meta = txn.open_table(META).unwrap();
        let mut state = meta.get(KEY_STATE).unwrap().unwrap().value().to_vec();
        *state.last_mut().unwrap() ^= 1;
        meta.insert(KEY_STATE, state.as_slice()).unwrap();
    });
    assert_eq!(altered_at(&bench.path), 3);
}

#[test]
fn a_snapshot_prunes_and_the_chain_goes_on_from_it() {
    let bench = Bench::new();
    let mut journal = bench.open();
    let upto = journal.append(&entries(0..6)).unwrap();
    journal.append(&entries(6..8)).unwrap();
    journal.snapshot(upto, b"six events").unwrap();
    assert_eq!(journal.read_from(0, 10).unwrap()[0].0, 6, "older entries are gone");
    assert_eq!(journal.hash_at(5).unwrap(), None);
    assert_eq!(journal.hash_at(6).unwrap(), Some(upto.hash));
    drop(journal);
    let mut journal = bench.open();
    assert_eq!(
        journal.latest_snapshot().unwrap(),
        Some(Snapshot { head: upto, ancestors: before(6), state: b"six events".to_vec() })
    );
    let head = journal.append(&entries(8..9)).unwrap();
    assert_eq!(journal.verify(), Ok(head));
}

/// The ends of the log of [`entries`] before it had so many.
fn before(count: u64) -> Ancestors {
    let ends = (0..count).map(|count| LogHead::EMPTY.then_all(&entries(0..count)).hash);
    Ancestors::new(ends.collect())
}

#[test]
fn the_hashes_before_a_snapshot_outlive_the_next_and_are_bounded() {
    let bench = Bench::new();
    let mut journal = bench.open();
    for upto in [3, 5, 5, 1500] {
        let from = journal.head().index;
        let upto = journal.append(&entries(from..upto)).unwrap();
        journal.append(&entries(upto.index..upto.index + 2)).unwrap();
        journal.take_back(upto).unwrap();
        journal.snapshot(upto, b"folded").unwrap();
        drop(journal);
        journal = bench.open();
        assert_eq!(journal.latest_snapshot().unwrap().unwrap().ancestors, before(upto.index));
    }
    assert_eq!(before(1500).hashes().len(), Ancestors::MAX);
}

/// As builds before these hashes did: a snapshot, and nothing of what was in front of it.
#[test]
fn the_journal_of_a_build_that_kept_no_hashes_is_read_and_those_of_an_older_snapshot_are_not_believed() {
    let bench = Bench::new();
    let mut journal = bench.open();
    let old = journal.append(&entries(0..2)).unwrap();
    journal.snapshot(old, b"two").unwrap();
    let upto = journal.append(&entries(2..4)).unwrap();
    drop(journal);
    for is_there in [true, false] {
        tamper(&bench.path, |txn| {
            txn.open_table(LOG).unwrap().retain(|_, _| false).unwrap();
            put_meta(txn, KEY_BASE, &encode_head(upto)).unwrap();
            if !is_there {
                txn.open_table(META).unwrap().remove(KEY_ANCESTORS).unwrap();
            }
        });
        let mut journal = bench.open();
        assert_eq!(journal.latest_snapshot().unwrap().unwrap().ancestors, Ancestors::default());
        assert_eq!(journal.verify(), Ok(upto));
        if !is_there {
            let head = journal.append(&entries(4..5)).unwrap();
            journal.snapshot(head, b"five").unwrap();
            let ancestors = journal.latest_snapshot().unwrap().unwrap().ancestors;
            assert_eq!(ancestors, Ancestors::new(vec![upto.hash]), "from here on they are kept");
        }
    }
}

/// They only say which shorter logs are this one's past.
#[test]
fn damaged_hashes_before_a_snapshot_take_nothing_else_with_them() {
    for bytes in [0, HEAD_BYTES - 1, HEAD_BYTES + HASH_BYTES + 1] {
        let bench = Bench::new();
        let mut journal = bench.open();
        let upto = journal.append(&entries(0..3)).unwrap();
        journal.snapshot(upto, b"three").unwrap();
        let head = journal.append(&entries(3..5)).unwrap();
        drop(journal);
        tamper(&bench.path, |txn| {
            let stored = [&encode_head(upto)[..], &[7; 2 * HASH_BYTES]].concat();
            put_meta(txn, KEY_ANCESTORS, &stored[..bytes]).unwrap();
        });
        let (mut journal, opened) = Journal::open(&bench.path).unwrap();
        assert_eq!(opened, Opened { head, recovered: None });
        let snapshot = Snapshot { head: upto, ancestors: Ancestors::default(), state: b"three".to_vec() };
        assert_eq!(journal.latest_snapshot().unwrap(), Some(snapshot), "{bytes} bytes");
        assert_eq!(journal.read_from(3, 9).unwrap().len(), 2);
        journal.snapshot(head, b"five").unwrap();
        let ancestors = journal.latest_snapshot().unwrap().unwrap().ancestors;
        let ends = [3, 4].map(|count| LogHead::EMPTY.then_all(&entries(0..count)).hash);
        assert_eq!(ancestors, Ancestors::new(ends.to_vec()), "from here on they are kept");
    }
}

#[test]
fn a_snapshot_of_another_history_is_refused() {
    let bench = Bench::new();
    let mut journal = bench.open();
    let head = journal.append(&entries(0..3)).unwrap();
    let foreign = LogHead { hash: [9; 32], ..head };
    assert!(matches!(journal.snapshot(foreign, b""), Err(SnapshotError::NotInLog { .. })));
    let beyond = head.then(b"not yet");
    assert!(matches!(journal.snapshot(beyond, b""), Err(SnapshotError::NotInLog { .. })));
    assert_eq!(journal.verify(), Ok(head));
}

#[test]
fn a_joiner_takes_over_snapshot_and_tail_and_forgets_its_own() {
    let (leader, joiner) = (Bench::new(), Bench::new());
    let (mut leader, mut journal) = (leader.open(), joiner.open());
    let upto = leader.append(&entries(0..4)).unwrap();
    let head = leader.append(&entries(4..7)).unwrap();
    leader.snapshot(upto, b"four").unwrap();
    journal.append(&[b"my own past".to_vec()]).unwrap();

    let tail: Vec<_> = leader.read_from(4, 100).unwrap().into_iter().map(|(_, payload)| payload).collect();
    let snapshot = leader.latest_snapshot().unwrap().unwrap();
    assert_eq!(journal.install_snapshot(&snapshot, &tail).unwrap(), head);
    drop(journal);
    let journal = joiner.open();
    assert_eq!(journal.head(), head);
    assert_eq!(journal.read_from(0, 100).unwrap(), leader.read_from(0, 100).unwrap());
    assert_eq!(journal.latest_snapshot().unwrap().unwrap(), snapshot, "with the hashes in front of it");
}

#[test]
fn a_second_opener_is_told_that_the_folder_is_in_use() {
    let bench = Bench::new();
    let _first = bench.open();
    let error = Journal::open(&bench.path).unwrap_err();
    assert!(matches!(error, JournalError::InUse { .. }), "{error}");
    assert!(error.to_string().contains("another exo uses this data folder"), "{error}");
}

#[test]
fn what_is_no_journal_is_reported_and_kept() {
    let text = b"these are not the bytes you are looking for".repeat(200);
    for content in [&b""[..], b"x", &text] {
        let bench = Bench::new();
        fs::write(&bench.path, content).unwrap();
        let error = Journal::open(&bench.path).unwrap_err();
        assert!(matches!(error, JournalError::Damaged { .. }), "{error:?}");
        assert_eq!(fs::read(&bench.path).unwrap(), content, "the file was changed");
    }
}

#[test]
fn a_truncated_or_overwritten_journal_is_reported_or_whole() {
    let bench = Bench::new();
    let head = bench.open().append(&entries(0..300)).unwrap();
    let good = fs::read(&bench.path).unwrap();
    let mut damaged: Vec<Vec<u8>> = [100, 5000, good.len() / 2].map(|len| good[..len].to_vec()).into();
    // A hole of zeros and one of ones, at steps through the whole file.
    for at in (0..good.len()).step_by(good.len() / 60) {
        for filler in [0, 0xff] {
            let mut bytes = good.clone();
            let end = (at + 64).min(bytes.len());
            bytes[at..end].fill(filler);
            damaged.push(bytes);
        }
    }
    let mut refused = 0;
    for bytes in damaged {
        fs::write(&bench.path, &bytes).unwrap();
        match Journal::open(&bench.path) {
            Ok((mut journal, opened)) => {
                // The damage hit nothing that is used, or redb went back to the commit before and says so.
                assert!(opened.head == head || opened.recovered.is_some(), "{opened:?}");
                let head = journal.append(&entries(0..3)).unwrap();
                assert_eq!(journal.verify(), Ok(head));
            }
            Err(JournalError::Damaged { .. } | JournalError::Altered { .. }) => refused += 1,
            Err(other) => panic!("{other:?}"),
        }
    }
    assert!(refused > 10, "only {refused} damages noticed");
}

#[test]
fn a_journal_of_another_format_is_not_touched() {
    let bench = Bench::new();
    drop(bench.open());
    tamper(&bench.path, |txn| put_meta(txn, KEY_FORMAT, &7u32.to_le_bytes()).unwrap());
    let error = Journal::open(&bench.path).unwrap_err();
    assert!(matches!(error, JournalError::Format { found: 7, oldest: 3, known: 4, .. }), "{error}");
    assert!(error.to_string().contains("start the exo that wrote it"), "{error}");
}

#[test]
fn a_journal_of_the_format_before_is_read_and_gets_the_present_one() {
    let bench = Bench::new();
    let mut journal = bench.open();
    let head = journal.append(&entries(0..3)).unwrap();
    drop(journal);
    tamper(&bench.path, |txn| put_meta(txn, KEY_FORMAT, &3u32.to_le_bytes()).unwrap());
    let (journal, opened) = Journal::open(&bench.path).unwrap();
    assert_eq!((opened.head, journal.read_from(0, 9).unwrap().len()), (head, 3));
    assert_eq!(read_meta(&journal.db, KEY_FORMAT).unwrap(), Some(4u32.to_le_bytes().to_vec()));
}

#[test]
fn what_is_too_large_is_refused_and_nothing_of_it_written() {
    let bench = Bench::new();
    let mut journal = bench.open();
    let huge = vec![b"fine".to_vec(), vec![0; PAYLOAD_BYTES_MAX + 1]];
    assert!(matches!(journal.append(&huge), Err(AppendError::EntryTooLarge { .. })));
    let many = vec![vec![0; PAYLOAD_BYTES_MAX]; 17];
    assert!(matches!(journal.append(&many), Err(AppendError::BatchTooLarge { .. })));
    let state = vec![0; STATE_BYTES_MAX + 1];
    assert!(matches!(journal.snapshot(LogHead::EMPTY, &state), Err(SnapshotError::StateTooLarge { .. })));
    assert_eq!(journal.verify(), Ok(LogHead::EMPTY));
}

#[test]
fn a_read_stops_before_it_outgrows_a_frame() {
    let bench = Bench::new();
    let mut journal = bench.open();
    journal.append(&vec![vec![7; PAYLOAD_BYTES_MAX]; 12]).unwrap();
    assert_eq!(journal.read_from(0, 100).unwrap().len(), READ_BYTES_MAX / PAYLOAD_BYTES_MAX);
}

#[test]
fn work_that_was_not_committed_leaves_nothing() {
    let bench = Bench::new();
    let mut journal = bench.open();
    let head = journal.append(&entries(0..2)).unwrap();
    let failed: Result<(), _> = journal.write(|txn| {
        put_entries(txn, head, &entries(2..9))?;
        Err(StorageFailure::DiskFull)
    });
    assert!(failed.is_err());
    drop(journal);
    assert_eq!(bench.open().head(), head);
}

/// A process killed at any moment leaves some prefix of its writes to the file. Copies taken while the
/// journal is open are such files: they hold what was acknowledged, and opening says that it recovered.
#[test]
fn a_killed_process_loses_nothing_that_was_acknowledged() {
    let bench = Bench::new();
    let mut journal = bench.open();
    for round in 0..5u64 {
        let head = journal.append(&entries(round * 3..round * 3 + 3)).unwrap();
        let copy = Bench::new();
        fs::copy(&bench.path, &copy.path).unwrap();
        let (survivor, opened) = Journal::open(&copy.path).unwrap();
        assert_eq!(survivor.verify(), Ok(head));
        assert_eq!(opened.recovered, Some(Recovered { entries: head.index }));
    }
}

#[test]
fn a_folder_that_is_none_is_a_storage_error() {
    let bench = Bench::new();
    fs::write(&bench.path, b"a file").unwrap();
    let error = Journal::open(&bench.path.join("journal.redb")).unwrap_err();
    assert!(matches!(error, JournalError::Storage { .. }), "{error:?}");
}

/// A disk of limited size.
#[derive(Debug)]
struct SmallDisk {
    bytes: Mutex<Vec<u8>>,
    room: Arc<AtomicU64>,
}

impl StorageBackend for SmallDisk {
    fn len(&self) -> Result<u64, io::Error> {
        Ok(self.bytes.lock().unwrap().len() as u64)
    }

    fn read(&self, offset: u64, out: &mut [u8]) -> Result<(), io::Error> {
        let (bytes, at) = (self.bytes.lock().unwrap(), offset as usize);
        out.copy_from_slice(&bytes[at..at + out.len()]);
        Ok(())
    }

    fn set_len(&self, len: u64) -> Result<(), io::Error> {
        if len > self.room.load(Ordering::SeqCst) {
            return Err(io::ErrorKind::StorageFull.into());
        }
        self.bytes.lock().unwrap().resize(len as usize, 0);
        Ok(())
    }

    fn sync_data(&self) -> Result<(), io::Error> {
        Ok(())
    }

    fn write(&self, offset: u64, data: &[u8]) -> Result<(), io::Error> {
        let at = offset as usize;
        self.bytes.lock().unwrap()[at..at + data.len()].copy_from_slice(data);
        Ok(())
    }
}

#[test]
fn a_full_disk_is_named_and_what_was_there_stays() {
    let room = Arc::new(AtomicU64::new(u64::MAX));
    let disk = SmallDisk { bytes: Mutex::default(), room: room.clone() };
    let db = Database::builder().create_with_backend(disk).unwrap();
    found(&db).unwrap();
    let mut journal = Journal::load(db, std::path::Path::new("disk")).unwrap();
    let head = journal.append(&entries(0..3)).unwrap();
    room.store(0, Ordering::SeqCst);
    let error = loop {
        if let Err(error) = journal.append(&vec![vec![1; PAYLOAD_BYTES_MAX]; 16]) {
            break error;
        }
    };
    assert!(matches!(error, AppendError::Storage(StorageFailure::DiskFull)), "{error:?}");
    assert!(journal.head().index >= head.index);
}

#[derive(Clone, Debug)]
enum Step {
    Append(Vec<Vec<u8>>),
    /// At this fraction of the log's length.
    Snapshot(prop::sample::Index),
    Reopen,
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let payload = prop::collection::vec(any::<u8>(), 0..24);
    let step = prop_oneof![
        3 => prop::collection::vec(payload, 0..5).prop_map(Step::Append),
        1 => any::<prop::sample::Index>().prop_map(Step::Snapshot),
        1 => Just(Step::Reopen),
    ];
    prop::collection::vec(step, 0..12)
}

/// The simplest fold that notices order, repetition and omission.
fn fold(state: &[u8], payloads: impl IntoIterator<Item = Vec<u8>>) -> Vec<u8> {
    payloads.into_iter().fold(state.to_vec(), |mut state, payload| {
        state.extend_from_slice(&(payload.len() as u32).to_le_bytes());
        state.extend(payload);
        state
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]

    /// Snapshot and tail fold to the same state as all entries, whatever happened in between; and the chain
    /// is that of a log that was never snapshot.
    #[test]
    fn replay_from_a_snapshot_equals_replay_from_the_start(steps in steps()) {
        let bench = Bench::new();
        let mut journal = bench.open();
        let mut all: Vec<Vec<u8>> = Vec::new();
        let mut heads = BTreeMap::from([(0, LogHead::EMPTY)]);
        for step in steps {
            match step {
                Step::Append(batch) => {
                    for payload in batch.iter() {
                        let head = heads[&(all.len() as u64)].then(payload);
                        all.push(payload.clone());
                        heads.insert(head.index, head);
                    }
                    prop_assert_eq!(journal.append(&batch).unwrap(), heads[&(all.len() as u64)]);
                }
                Step::Snapshot(index) => {
                    let oldest = journal.latest_snapshot().unwrap().map_or(0, |s| s.head.index);
                    let upto = oldest + index.index(all.len() + 1 - oldest as usize) as u64;
                    let state = fold(&[], all[..upto as usize].iter().cloned());
                    journal.snapshot(heads[&upto], &state).unwrap();
                }
                Step::Reopen => {
                    drop(journal);
                    journal = bench.open();
                }
            }
            prop_assert_eq!(journal.verify(), Ok(heads[&(all.len() as u64)]));
            let snapshot = journal.latest_snapshot().unwrap();
            let (from, state) = snapshot.map_or((0, vec![]), |s| (s.head.index, s.state));
            let tail = journal.read_from(from, usize::MAX).unwrap();
            prop_assert_eq!(fold(&state, tail.into_iter().map(|(_, payload)| payload)), fold(&[], all.clone()));
        }
    }
}
