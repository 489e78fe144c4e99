//! Writes the journal, the log of trust and the epoch on a thread of its own, so that nothing else waits for
//! the disk.
//!
//! Writes are carried out, and answered, in the order in which they came. The appends that wait together go
//! into one transaction with one sync (group commit): ten decisions in a row cost the disk one write.
//!
//! An append names the head that it continues. When a write fails, the appends that were decided on top of it
//! name a head that the log never had, and fail, whenever they arrive.

use std::collections::VecDeque;
use std::convert::Infallible;
use std::io;
use std::sync::Arc;
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, Sender};
use std::time::{Duration, Instant};

use exo_journal::{BATCH_BYTES_MAX, Journal, PAYLOAD_BYTES_MAX, Snapshot};
use exo_machine::{PersistId, Write, WriteFailure};
use exo_types::LogHead;

use crate::ballast;
use crate::files::{DataDir, FilesError};
use exo_accelerators::chain;

/// The writer's thread has ended: it panicked, since it outlives all who hold the writer.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error("the thread that writes the journal has ended")]
pub struct WriterGone;

type Request = (PersistId, Write);

/// The way to the thread that has the journal. Once this is dropped, the thread writes what is queued, closes
/// the journal and ends.
pub struct JournalWriter {
    requests: Sender<Request>,
    /// Nothing comes: it is closed when the thread has closed the journal.
    closed: Receiver<Infallible>,
}

impl JournalWriter {
    /// Starts the thread. It calls `answer` once for each write, in their order; the callback should return
    /// at once.
    pub fn start(
        journal: Journal,
        data: Arc<DataDir>,
        answer: impl Fn(PersistId, Result<(), WriteFailure>) + Send + 'static,
    ) -> io::Result<Self> {
        let (requests, queue) = mpsc::channel();
        let (open, closed) = mpsc::channel();
        let thread = WriterThread {
            journal: Some(journal),
            doubtful: None,
            data,
            ballast_from: None,
            answer: Box::new(answer),
        };
        std::thread::Builder::new().name("journal".to_owned()).spawn(move || {
            let _open = open; // dropped after the journal, by a panic too
            thread.run(&queue);
        })?;
        Ok(Self { requests, closed })
    }

    /// Queues a write; does not wait.
    pub fn write(&self, id: PersistId, write: Write) -> Result<(), WriterGone> {
        self.requests.send((id, write)).map_err(|_| WriterGone)
    }

    /// Has what is queued written and the journal closed, and waits for that; `false` if it takes longer than
    /// `within`.
    pub fn close(self, within: Duration) -> bool {
        let Self { requests, closed } = self;
        drop(requests);
        matches!(closed.recv_timeout(within), Err(RecvTimeoutError::Disconnected))
    }
}

/// After it could not be set aside, or was needed.
const BALLAST_AGAIN: Duration = Duration::from_secs(3600);

struct WriterThread {
    /// Closed after a write that failed: a database that was refused once refuses everything until it is
    /// opened again.
    journal: Option<Journal>,
    /// Where the log ended when an append failed, until one succeeds.
    doubtful: Option<LogHead>,
    data: Arc<DataDir>,
    /// Room is set aside again from then on.
    ballast_from: Option<Instant>,
    answer: Box<dyn Fn(PersistId, Result<(), WriteFailure>) + Send>,
}

impl WriterThread {
    fn run(mut self, requests: &Receiver<Request>) {
        while let Ok(first) = requests.recv() {
            let queue: VecDeque<_> = std::iter::once(first).chain(requests.try_iter()).collect();
            let (writes, begun) = (queue.len(), Instant::now());
            self.mind_ballast();
            let transactions = self.carry_out(queue);
            let elapsed_ms = begun.elapsed().as_millis() as u64;
            tracing::trace!(writes, transactions, elapsed_ms, "the journal was written");
        }
    }

    /// A write that failed may be one for which there is no room: not every full disk says so of itself, as
    /// those with a quota do not. What was given back is not taken again at once.
    fn mind_ballast(&mut self) {
        let (data_dir, has_failed) = (self.data.path(), self.journal.is_none());
        if ballast::release(data_dir, has_failed) {
            self.ballast_from = Some(Instant::now() + BALLAST_AGAIN);
        } else if !has_failed && self.ballast_from.is_none_or(|from| Instant::now() >= from) {
            self.ballast_from = (!ballast::keep(data_dir)).then(|| Instant::now() + BALLAST_AGAIN);
        }
    }

    /// Carries out and answers all of the queue; returns the number of transactions and files that it took.
    fn carry_out(&mut self, mut queue: VecDeque<Request>) -> usize {
        let mut transactions = 0;
        while let Some((id, write)) = queue.pop_front() {
            transactions += 1;
            let result = match write {
                Write::Append { after, entries } => {
                    self.append(Group::new(id, after, entries), &mut queue);
                    continue;
                }
                Write::Snapshot { head, state } => {
                    self.written(|journal| journal.snapshot(head, &state.encode()).map_err(|e| refused(&e)))
                }
                Write::Replace { head, ancestors, state } => {
                    let snapshot = Snapshot { head, ancestors, state: state.encode() };
                    let install =
                        |journal: &mut Journal| journal.install_snapshot(&snapshot, &[]).map(|_| ());
                    self.written(|journal| install(journal).map_err(|e| refused(&e)))
                }
                Write::Epoch(epoch) => self.data.set_epoch(epoch).map_err(|e| refused(&e)),
                Write::Trust(entries) => self.data.set_trust(&entries).map_err(|e| {
                    let may_be_there = matches!(e, FilesError::NotSynced { .. });
                    WriteFailure { may_be_there, ..refused(&e) }
                }),
                Write::Addresses(addresses) => {
                    self.data.set_peers(&addresses.into_iter().collect()).map_err(|e| refused(&e))
                }
                Write::Ended(ended) => self.data.set_ended(&ended).map_err(|e| refused(&e)),
            };
            (self.answer)(id, result);
        }
        transactions
    }

    /// The journal, opened again if it was closed.
    fn journal(&mut self) -> Result<&mut Journal, WriteFailure> {
        if self.journal.is_none() {
            let (journal, _) = Journal::open(&self.data.journal_path()).map_err(|e| refused(&e))?;
            self.journal = Some(journal);
        }
        self.journal
            .as_mut()
            .ok_or(WriteFailure { reason: "the journal is not open".to_owned(), may_be_there: false })
    }

    /// Writes. A journal that refuses is closed, so that it can be written when there is room.
    fn written<R>(
        &mut self,
        write: impl FnOnce(&mut Journal) -> Result<R, WriteFailure>,
    ) -> Result<R, WriteFailure> {
        let result = self.journal().and_then(write);
        if result.is_err() {
            self.journal = None;
        }
        result
    }

    /// Writes the group and the appends that follow it in the queue, as many as fit, in one transaction.
    fn append(&mut self, mut group: Group, queue: &mut VecDeque<Request>) {
        let result = match self.journal_at(group.after) {
            Err(failure) => Err(failure),
            Ok(head) if head == group.after => {
                while let Some((id, Write::Append { entries, .. })) =
                    queue.pop_front_if(|(_, write)| group.takes(write))
                {
                    group.add(id, entries);
                }
                let append = |journal: &mut Journal| journal.append(&group.entries).map(|_| ());
                let result = self.written(|journal| append(journal).map_err(|e| refused(&e)));
                self.doubtful = result.is_err().then_some(group.after);
                result
            }
            Ok(head) => {
                let after = group.after;
                let reason =
                    format!("the entries continue a log that ends at {after}, and this one ends at {head}");
                Err(WriteFailure { reason, may_be_there: false })
            }
        };
        for id in group.ids {
            (self.answer)(id, result.clone());
        }
    }

    /// Where the journal ends. Entries of a transaction whose sync failed may be there all the same: they
    /// were answered as failed, so they are taken back before something else follows what was in front of
    /// them.
    fn journal_at(&mut self, after: LogHead) -> Result<LogHead, WriteFailure> {
        let is_doubtful = self.doubtful == Some(after);
        self.written(|journal| {
            if is_doubtful && journal.head() != after {
                journal.take_back(after).map_err(|e| refused(&e))?;
            }
            Ok(journal.head())
        })
    }
}

/// Appends that become one transaction.
struct Group {
    ids: Vec<PersistId>,
    after: LogHead,
    entries: Vec<Vec<u8>>,
    bytes: usize,
    /// The log's end after them.
    head: LogHead,
}

impl Group {
    fn new(id: PersistId, after: LogHead, entries: Vec<Vec<u8>>) -> Self {
        let mut group = Self { ids: Vec::new(), after, entries: Vec::new(), bytes: 0, head: after };
        group.add(id, entries);
        group
    }

    fn add(&mut self, id: PersistId, entries: Vec<Vec<u8>>) {
        self.ids.push(id);
        self.bytes += len_bytes(&entries);
        self.head = self.head.then_all(&entries);
        self.entries.extend(entries);
    }

    /// Whether a write goes on where the group ends, and could not be what the journal refuses the group for.
    fn takes(&self, write: &Write) -> bool {
        let Write::Append { after, entries } = write else { return false };
        *after == self.head
            && self.bytes + len_bytes(entries) <= BATCH_BYTES_MAX
            && entries.iter().all(|entry| entry.len() <= PAYLOAD_BYTES_MAX)
    }
}

fn len_bytes(entries: &[Vec<u8>]) -> usize {
    entries.iter().map(Vec::len).sum()
}

fn refused(error: &dyn std::error::Error) -> WriteFailure {
    WriteFailure { reason: chain(error), may_be_there: false }
}

#[cfg(test)]
mod tests;
