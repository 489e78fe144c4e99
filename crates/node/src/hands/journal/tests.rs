//! What the writer promises, on real files.

use exo_types::{Ancestors, Epoch, NodeId};
use tempfile::TempDir;

use super::*;

const SOON: Duration = Duration::from_secs(20);

type Answer = (PersistId, Result<(), WriteFailure>);

/// A data folder, and the answers that came.
struct Bench {
    folder: TempDir,
    answers: Receiver<Answer>,
    answer: Sender<Answer>,
}

impl Bench {
    fn new() -> Self {
        let (answer, answers) = mpsc::channel();
        Self { folder: tempfile::tempdir().unwrap(), answers, answer }
    }

    fn journal(&self) -> Journal {
        Journal::open(&self.folder.path().join("journal.redb")).unwrap().0
    }

    /// What the thread owns, to be called without a thread.
    fn thread(&self) -> WriterThread {
        let (data, answer) = (DataDir::open(self.folder.path()).unwrap(), self.answer.clone());
        let answer = Box::new(move |id, result| answer.send((id, result)).unwrap());
        WriterThread {
            journal: Some(self.journal()),
            doubtful: None,
            data: Arc::new(data),
            ballast_from: None,
            answer,
        }
    }

    /// The numbers of the answered writes that are on disk, and of those that failed.
    fn answered(&self) -> (Vec<u64>, Vec<u64>) {
        let (kept, failed): (Vec<Answer>, Vec<_>) =
            self.answers.try_iter().partition(|(_, result)| result.is_ok());
        let numbers = |answers: Vec<Answer>| answers.iter().map(|(id, _)| id.0).collect();
        (numbers(kept), numbers(failed))
    }
}

/// Appends as a machine makes them: each on top of all before it, whether or not they are on disk.
struct Log {
    head: LogHead,
    last: u64,
}

impl Log {
    fn at(head: LogHead) -> Self {
        Self { head, last: 0 }
    }

    fn id(&mut self) -> PersistId {
        self.last += 1;
        PersistId(self.last)
    }

    fn append(&mut self, entries: &[&[u8]]) -> Request {
        let entries: Vec<_> = entries.iter().map(|entry| entry.to_vec()).collect();
        let after = self.head;
        self.head = after.then_all(&entries);
        (self.id(), Write::Append { after, entries })
    }

    fn epoch(&mut self, counter: u64) -> Request {
        (self.id(), Write::Epoch(epoch(counter)))
    }
}

fn epoch(counter: u64) -> Epoch {
    Epoch { counter, key: NodeId([7; 32]) }
}

#[test]
fn appends_that_wait_together_are_one_transaction() {
    let bench = Bench::new();
    let (mut thread, mut log) = (bench.thread(), Log::at(LogHead::EMPTY));
    let queue = (0..100u8).map(|i| log.append(&[&[i], b"and another"])).collect();
    assert_eq!(thread.carry_out(queue), 1);
    assert_eq!(bench.answered(), ((1..=100).collect(), vec![]));
    assert_eq!(thread.journal().unwrap().head(), log.head);
    drop(thread);
    assert_eq!(bench.journal().head(), log.head);
}

#[test]
fn an_epoch_between_appends_keeps_its_place() {
    let bench = Bench::new();
    let (mut thread, mut log) = (bench.thread(), Log::at(LogHead::EMPTY));
    let queue = [log.append(&[b"a"]), log.append(&[b"b"]), log.epoch(3), log.append(&[b"c"])];
    assert_eq!(thread.carry_out(queue.into()), 3);
    let ids: Vec<_> = bench.answers.try_iter().map(|(id, result)| (id.0, result)).collect();
    assert_eq!(ids, (1..=4).map(|id| (id, Ok(()))).collect::<Vec<_>>());
    assert_eq!(thread.data.epoch().unwrap(), Some(epoch(3)));
}

#[test]
fn what_fails_fails_all_that_was_decided_on_top_of_it_and_nothing_before() {
    let bench = Bench::new();
    let (mut thread, mut log) = (bench.thread(), Log::at(LogHead::EMPTY));
    let good = log.append(&[b"good"]);
    let durable = log.head;
    let huge = log.append(&[&vec![0; PAYLOAD_BYTES_MAX + 1]]);
    let queue = [good, huge, log.append(&[b"on top"]), log.epoch(1), log.append(&[b"behind the epoch"])];
    thread.carry_out(queue.into());
    assert_eq!(bench.answered(), (vec![1, 4], vec![2, 3, 5]));

    // One that was on its way when the machine heard of it fails as well; the next that knows is taken.
    let late = log.append(&[b"late"]);
    log.head = durable;
    let next = log.append(&[b"next"]);
    thread.carry_out([late].into());
    let (_, failure) = bench.answers.recv().unwrap();
    let ends_at = format!("this one ends at {durable}");
    assert!(failure.as_ref().is_err_and(|f| f.reason.contains(&ends_at)), "{failure:?}");
    thread.carry_out([next].into());
    assert_eq!(bench.answered(), (vec![7], vec![]));
    assert_eq!(thread.journal().unwrap().head(), log.head);
}

#[test]
fn entries_that_are_there_although_their_write_failed_are_taken_back_before_the_next() {
    let bench = Bench::new();
    let (mut thread, mut log) = (bench.thread(), Log::at(LogHead::EMPTY));
    thread.carry_out([log.append(&[b"good"])].into());
    let durable = log.head;
    // As after a sync that failed: they are on the disk, their asker heard that they are not, and the journal
    // was closed.
    thread.journal().unwrap().append(&[b"doubtful".to_vec()]).unwrap();
    (thread.journal, thread.doubtful) = (None, Some(durable));
    thread.carry_out([log.append(&[b"next"]), log.append(&[b"and its next"])].into());
    assert_eq!(bench.answered(), (vec![1, 2, 3], vec![]));
    assert_eq!(thread.journal().unwrap().head(), log.head);
    let entries = thread.journal().unwrap().read_from(0, 9).unwrap();
    let entries: Vec<_> = entries.into_iter().map(|(_, entry)| entry).collect();
    assert_eq!(entries, [&b"good"[..], b"next", b"and its next"]);
    drop(thread);
    assert_eq!(bench.journal().verify().unwrap(), log.head, "its chain is whole");
}

#[test]
fn an_append_that_is_too_large_for_the_group_is_the_next_transaction() {
    let bench = Bench::new();
    let (mut thread, mut log) = (bench.thread(), Log::at(LogHead::EMPTY));
    let entry = vec![1; PAYLOAD_BYTES_MAX];
    let queue = (0..20).map(|_| log.append(&[&entry])).collect();
    assert_eq!(thread.carry_out(queue), 20usize.div_ceil(BATCH_BYTES_MAX / PAYLOAD_BYTES_MAX));
    assert_eq!(bench.answered(), ((1..=20).collect(), vec![]));
    assert_eq!(thread.journal().unwrap().head(), log.head);
}

#[test]
fn a_snapshot_folds_and_a_replacement_takes_over() {
    let bench = Bench::new();
    let (mut thread, mut log) = (bench.thread(), Log::at(LogHead::EMPTY));
    let first = log.append(&[b"a", b"b"]);
    let folded = log.head;
    let second = log.append(&[b"c"]);
    let snapshot = (log.id(), Write::Snapshot { head: folded, state: Arc::default() });
    let queue = [first, second, snapshot, log.append(&[b"d"])];
    assert_eq!(thread.carry_out(queue.into()), 3);
    assert_eq!((thread.journal().unwrap().base(), thread.journal().unwrap().head()), (folded, log.head));

    let foreign = LogHead { index: 40, hash: [4; 32] };
    let unknown = (log.id(), Write::Snapshot { head: foreign, state: Arc::default() });
    let replace =
        (log.id(), Write::Replace { head: foreign, ancestors: Ancestors::default(), state: Arc::default() });
    let mine = log.append(&[b"mine, decided before"]);
    log.head = foreign;
    thread.carry_out([unknown, replace, mine, log.append(&[b"theirs, decided after"])].into());
    assert_eq!(bench.answered(), (vec![1, 2, 3, 4, 6, 8], vec![5, 7]));
    drop(thread);
    let journal = bench.journal();
    assert_eq!((journal.base(), journal.head()), (foreign, log.head));
    assert_eq!(journal.latest_snapshot().unwrap().unwrap().state, exo_cluster::State::default().encode());
}

#[test]
fn an_epoch_that_cannot_be_kept_fails_with_its_reason() {
    let bench = Bench::new();
    std::fs::create_dir(bench.folder.path().join("epoch.json.new")).unwrap();
    let (mut thread, mut log) = (bench.thread(), Log::at(LogHead::EMPTY));
    thread.carry_out([log.epoch(1), log.append(&[b"not its business"])].into());
    let answers: Vec<_> = bench.answers.try_iter().collect();
    assert!(answers[0].1.as_ref().is_err_and(|failure| failure.reason.contains("epoch.json")), "{answers:?}");
    assert_eq!(answers[1].1, Ok(()));
}

/// The thread is held up in the answer to the first write while the others queue up.
#[test]
fn the_thread_writes_all_that_is_queued_before_it_ends() {
    let bench = Bench::new();
    let (release, held) = mpsc::channel::<()>();
    let answer = bench.answer.clone();
    let data = Arc::new(DataDir::open(bench.folder.path()).unwrap());
    let writer = JournalWriter::start(bench.journal(), data, move |id, result| {
        if id.0 == 1 {
            held.recv_timeout(SOON).unwrap();
        }
        answer.send((id, result)).unwrap();
    });
    let (writer, mut log) = (writer.unwrap(), Log::at(LogHead::EMPTY));
    for i in 0..50u8 {
        let (id, write) = log.append(&[&[i]]);
        writer.write(id, write).unwrap();
    }
    release.send(()).unwrap();
    assert!(writer.close(SOON));
    assert_eq!(bench.answered(), ((1..=50).collect(), vec![]));
    assert_eq!(bench.journal().head(), log.head, "closed, so it can be opened, and whole");
}

#[test]
fn a_thread_that_does_not_end_is_not_waited_for() {
    let bench = Bench::new();
    let (release, held) = mpsc::channel::<()>();
    let data = Arc::new(DataDir::open(bench.folder.path()).unwrap());
    let writer = JournalWriter::start(bench.journal(), data, move |_, _| held.recv_timeout(SOON).unwrap());
    let (writer, mut log) = (writer.unwrap(), Log::at(LogHead::EMPTY));
    let (id, write) = log.append(&[b"a"]);
    writer.write(id, write).unwrap();
    assert!(!writer.close(Duration::from_millis(1)));
    release.send(()).unwrap();
}
