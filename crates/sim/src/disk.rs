//! A node's disk: what is on it, what is on its way there, and what a crash leaves of that.
//!
//! Writes are answered in the order of their ids. What is asked for while the disk works waits and goes there
//! as one: one transaction, one answer after the other. A crash keeps any prefix of what was not answered.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::net::SocketAddr;
use std::sync::Arc;

use exo_cluster::{Event, State};
use exo_machine::{PersistId, Write, WriteFailure};
use exo_trust::{Entry, EntryId, TrustLog};
use exo_types::{Ancestors, Epoch, LogHead, NodeId, PlacementId};

/// Files that are written apart: a failure of one stops no other.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum File {
    /// The epoch.
    Epoch,
    /// The log.
    Log,
    /// The log of trust.
    Trust,
    /// Addresses of members.
    Addresses,
    /// Members that said goodbye.
    Ended,
}

/// Which file a write goes to.
pub fn file_of(write: &Write) -> File {
    match write {
        Write::Epoch(_) => File::Epoch,
        Write::Append { .. } | Write::Snapshot { .. } | Write::Replace { .. } => File::Log,
        Write::Trust(_) => File::Trust,
        Write::Addresses(_) => File::Addresses,
        Write::Ended(_) => File::Ended,
    }
}

/// What is on the disk.
#[derive(Clone, Debug)]
pub struct Content {
    /// The epoch.
    pub epoch: Option<Epoch>,
    /// What the last snapshot stands for.
    pub base: Option<(LogHead, Arc<State>)>,
    /// The ends that the log had before that.
    pub ancestors: Ancestors,
    /// The entries behind it.
    pub entries: Vec<Vec<u8>>,
    /// Who belongs to the cluster.
    pub trust: TrustLog,
    /// Where members were reached.
    pub addresses: BTreeMap<NodeId, Vec<SocketAddr>>,
    /// Members that said goodbye, and when.
    pub ended: BTreeMap<NodeId, u64>,
}

impl Content {
    /// The end of the snapshot.
    pub fn base_head(&self) -> LogHead {
        self.base.as_ref().map_or(LogHead::EMPTY, |(head, _)| *head)
    }

    /// The state at the end of the log. Fails on an entry that does not apply.
    pub fn state(&self) -> Result<State, String> {
        let mut state = self.base.as_ref().map(|(_, state)| State::clone(state)).unwrap_or_default();
        for entry in &self.entries {
            let event = Event::decode(entry).map_err(|e| e.to_string())?;
            state.apply(&event).map_err(|e| e.to_string())?;
        }
        Ok(state)
    }
}

/// Whatever was on the disk at some time: what may be announced.
#[derive(Clone, Debug, Default)]
pub struct History {
    /// Every end the log ever had.
    pub heads: BTreeSet<(u64, [u8; 32])>,
    /// Every epoch.
    pub epochs: BTreeSet<Epoch>,
    /// Every placement.
    pub placements: BTreeSet<PlacementId>,
    /// Every entry of a log of trust.
    pub trust: BTreeSet<EntryId>,
    /// Every member by any of these.
    pub members: BTreeSet<NodeId>,
}

/// A disk and its queue.
#[derive(Clone, Debug)]
pub struct Disk {
    content: Content,
    state: State,
    head: LogHead,
    history: History,
    /// Asked for and not answered, in order. The first `at_work` are on their way to the disk.
    queue: VecDeque<(PersistId, Write)>,
    at_work: usize,
    /// The next write to this file fails.
    fails_next: Option<File>,
    /// For how many reasons there is no room.
    full: u32,
    /// The next log of trust is written, and the disk does not say that it will last.
    is_unsure_next: bool,
    /// The log of trust that a crash may bring back in place of one that may not last.
    former_trust: Option<TrustLog>,
    /// What was written that cannot be read again.
    wrong: Option<String>,
}

impl Disk {
    /// A disk with these logs on it.
    pub fn new(trust: TrustLog, entries: Vec<Vec<u8>>) -> Self {
        let (ancestors, addresses, ended) = (Ancestors::default(), BTreeMap::new(), BTreeMap::new());
        let content = Content { epoch: None, base: None, ancestors, entries, trust, addresses, ended };
        let mut disk = Self {
            content,
            state: State::default(),
            head: LogHead::EMPTY,
            history: History::default(),
            queue: VecDeque::new(),
            at_work: 0,
            fails_next: None,
            full: 0,
            is_unsure_next: false,
            former_trust: None,
            wrong: None,
        };
        for entry in disk.content.entries.clone() {
            disk.note_entry(&entry);
        }
        disk.note_trust();
        disk
    }

    /// What is on it.
    pub fn content(&self) -> &Content {
        &self.content
    }

    /// The state at the end of its log.
    pub fn state(&self) -> &State {
        &self.state
    }

    /// What was ever on it.
    pub fn history(&self) -> &History {
        &self.history
    }

    /// The next write to `file` fails.
    pub fn fail_next(&mut self, file: File) {
        self.fails_next = Some(file);
    }

    /// From now on every write fails.
    pub fn be_full(&mut self) {
        self.full += 1;
    }

    /// What filled it is gone.
    pub fn have_room(&mut self) {
        self.full -= 1;
    }

    /// The next log of trust may not last, and its write fails.
    pub fn be_unsure_of_trust(&mut self) {
        self.is_unsure_next = true;
    }

    /// Remembers addresses, as an earlier run would have.
    pub fn remember(&mut self, addresses: BTreeMap<NodeId, Vec<SocketAddr>>) {
        self.content.addresses = addresses;
    }

    /// Queues a write. True if the disk was idle: it begins with all that is queued, and [`Disk::complete`]
    /// is next.
    pub fn ask(&mut self, id: PersistId, write: Write) -> bool {
        self.queue.push_back((id, write));
        self.begin()
    }

    /// Takes all that is queued to the disk, if it is idle and something is.
    pub fn begin(&mut self) -> bool {
        let begins = self.at_work == 0 && !self.queue.is_empty();
        if begins {
            self.at_work = self.queue.len();
        }
        begins
    }

    /// What was on its way is there. The answers, in order.
    pub fn complete(&mut self) -> Vec<(PersistId, Result<(), WriteFailure>)> {
        let done: Vec<_> = self.queue.drain(..self.at_work).collect();
        self.at_work = 0;
        done.into_iter().map(|(id, write)| (id, self.write(write))).collect()
    }

    fn write(&mut self, write: Write) -> Result<(), WriteFailure> {
        let fails = self.fails_next.take_if(|file| *file == file_of(&write)).is_some();
        if fails || self.full > 0 {
            return Err(failure("the simulated disk is full".to_owned()));
        }
        // Entries that were planned behind others that failed: the log does not end where they begin.
        if let Write::Append { after, .. } = &write
            && *after != self.head
        {
            return Err(failure(format!("the log ends at {}, not at {after}", self.head)));
        }
        if matches!(write, Write::Trust(_)) {
            let former = self.content.trust.clone();
            self.apply(write);
            if std::mem::take(&mut self.is_unsure_next) {
                self.former_trust.get_or_insert(former);
                let reason = "the simulated disk does not know whether this lasts".to_owned();
                return Err(WriteFailure { reason, may_be_there: true });
            }
            self.trust_lasts();
        } else {
            self.apply(write);
        }
        Ok(())
    }

    fn trust_lasts(&mut self) {
        self.former_trust = None;
        self.note_trust();
    }

    /// The process died. Of what was not answered, the first `kept` writes are on the disk (all, if there are
    /// fewer).
    pub fn crash(&mut self, kept: usize) {
        let unanswered: Vec<_> = self.queue.drain(..).collect();
        self.at_work = 0;
        for (_, write) in unanswered.into_iter().take(kept) {
            let _ = self.write(write); // nobody hears of it
        }
        if let Some(former) = self.former_trust.take_if(|_| kept.is_multiple_of(2)) {
            self.content.trust = former;
        }
        // The next start makes what it finds last before it goes by it.
        self.trust_lasts();
    }

    /// What was written that cannot be read again: the next start would fail.
    pub fn wrong(&self) -> Option<&str> {
        self.wrong.as_deref()
    }

    /// Writes that were asked for and not answered.
    pub fn unanswered(&self) -> usize {
        self.queue.len()
    }

    fn apply(&mut self, write: Write) {
        match write {
            Write::Epoch(epoch) => {
                self.content.epoch = Some(epoch);
                self.history.epochs.insert(epoch);
            }
            Write::Append { entries, .. } => {
                for entry in entries {
                    self.note_entry(&entry);
                    self.content.entries.push(entry);
                }
            }
            Write::Snapshot { head, state } => {
                let mut end = self.content.base_head();
                let folded = head.index.saturating_sub(end.index) as usize;
                assert!(folded <= self.content.entries.len(), "a snapshot of {head} is beyond the log's end");
                for entry in self.content.entries.drain(..folded) {
                    self.content.ancestors.push(end);
                    end = end.then(&entry);
                }
                self.content.base = Some((head, state));
            }
            Write::Replace { head, ancestors, state } => {
                self.content.ancestors = ancestors;
                self.state = State::clone(&state);
                self.head = head;
                self.content.entries.clear();
                self.content.base = Some((head, state));
                self.note_state();
            }
            Write::Trust(entries) => {
                let decoded: Result<Vec<_>, _> = entries.iter().map(|entry| Entry::decode(entry)).collect();
                let log = decoded
                    .map_err(|error| error.to_string())
                    .and_then(|entries| TrustLog::from_entries(entries).map_err(|error| error.to_string()));
                match log {
                    Ok(Some(log)) => self.content.trust = log,
                    other => {
                        self.wrong.get_or_insert(format!("a log of trust that is none: {other:?}"));
                    }
                }
            }
            Write::Addresses(addresses) => self.content.addresses = addresses.into_iter().collect(),
            Write::Ended(ended) => self.content.ended = ended,
        }
    }

    fn note_entry(&mut self, entry: &[u8]) {
        let event = Event::decode(entry).expect("a machine writes events");
        if let Err(error) = self.state.apply(&event) {
            self.wrong
                .get_or_insert(format!("entry {} does not apply: {error} ({event:?})", self.head.index));
        }
        self.head = self.head.then(entry);
        self.note_state();
    }

    fn note_state(&mut self) {
        self.history.heads.insert((self.head.index, self.head.hash));
        let placements = self.state.instances().values().map(|instance| instance.placement.id);
        self.history.placements.extend(placements);
    }

    fn note_trust(&mut self) {
        self.history.trust.extend(self.content.trust.entries().map(Entry::id));
        self.history.members.extend(self.content.trust.view().members().keys());
    }
}

fn failure(reason: String) -> WriteFailure {
    WriteFailure { reason, may_be_there: false }
}

#[cfg(test)]
mod tests {
    use exo_types::{DeviceId, InstanceId, LayerRange, Placement, Shard, Stage};

    use super::*;

    /// A model is placed on one node, as the instance of that number.
    fn placed(number: u64) -> Vec<u8> {
        let request = crate::shape::instance_request(1, Vec::new());
        let layers = request.shape.layers.len() as u32;
        let shard = Shard::pipeline(LayerRange::new(0, layers), layers);
        let epoch = Epoch { counter: 1, key: NodeId([1; 32]) };
        let placement = Placement {
            id: PlacementId { epoch, number: number as u32 },
            instance: InstanceId(number),
            model: request.model,
            stages: vec![Stage::solo(NodeId([1; 32]), DeviceId::cpu(), shard)],
            context_tokens: request.context_tokens,
            slots: request.slots,
            cache_tokens: request.cache_tokens,
            kv: request.kv,
        };
        Event::InstancePlaced { request, placement, memory_bytes: vec![1] }.encode()
    }

    fn disk() -> Disk {
        Disk::new(crate::founding::trust(1, 0, 1, 0), crate::founding::entries())
    }

    fn append(disk: &Disk, numbers: &[u64]) -> Write {
        append_after(disk.head, numbers)
    }

    fn append_after(after: LogHead, numbers: &[u64]) -> Write {
        Write::Append { after, entries: numbers.iter().map(|number| placed(*number)).collect() }
    }

    /// Appends of one entry each, one behind the other.
    fn appends(disk: &Disk, count: u64) -> Vec<Write> {
        let heads = (1..count).scan(disk.head, |head, number| {
            *head = head.then(&placed(number));
            Some(*head)
        });
        let heads = std::iter::once(disk.head).chain(heads);
        heads.zip(1..).map(|(head, number)| append_after(head, &[number])).collect()
    }

    /// The number of the last instance.
    fn last(disk: &Disk) -> u64 {
        disk.state().instances().keys().last().map_or(0, |instance| instance.0)
    }

    #[test]
    fn what_is_asked_for_meanwhile_goes_together_and_is_answered_in_order() {
        let mut disk = disk();
        let begun: Vec<bool> =
            (1..).zip(appends(&disk, 3)).map(|(id, write)| disk.ask(PersistId(id), write)).collect();
        assert_eq!(begun, [true, false, false], "the disk is at work");
        assert_eq!(disk.complete(), [(PersistId(1), Ok(()))]);
        assert_eq!(last(&disk), 1);
        assert!(disk.begin());
        let ids: Vec<_> = disk.complete().into_iter().map(|(id, _)| id).collect();
        assert_eq!((ids, last(&disk)), (vec![PersistId(2), PersistId(3)], 3));
        assert!(!disk.begin(), "nothing is left");
    }

    #[test]
    fn a_crash_keeps_any_prefix_and_no_more() {
        for kept in 0..5 {
            let mut disk = disk();
            for (id, write) in (1..).zip(appends(&disk, 3)) {
                disk.ask(PersistId(id), write);
            }
            disk.crash(kept);
            assert_eq!(last(&disk), kept.min(3) as u64, "{kept} kept");
            assert_eq!(disk.content().state().as_ref(), Ok(disk.state()));
            assert_eq!(disk.unanswered(), 0);
        }
    }

    #[test]
    fn a_failure_takes_what_was_planned_behind_it() {
        let mut disk = disk();
        disk.fail_next(File::Log);
        let behind = appends(&disk, 2).remove(1);
        disk.ask(PersistId(1), append(&disk, &[1]));
        assert!(disk.complete()[0].1.is_err());
        disk.ask(PersistId(2), behind);
        disk.ask(PersistId(3), Write::Epoch(Epoch { counter: 1, key: NodeId([1; 32]) }));
        let answers = disk.complete();
        assert!(answers[0].1.is_err(), "the machine did not know yet that its log ends earlier");
        disk.begin();
        assert_eq!(disk.complete(), [(PersistId(3), Ok(()))], "another file");
        disk.ask(PersistId(4), append(&disk, &[4]));
        assert_eq!((disk.complete(), last(&disk)), (vec![(PersistId(4), Ok(()))], 4));
    }

    #[test]
    fn a_snapshot_folds_and_the_state_stays() {
        let mut disk = disk();
        disk.ask(PersistId(1), append(&disk, &[5, 6]));
        disk.complete();
        let (state, entries) = (disk.state().clone(), disk.content().entries.clone());
        let head = LogHead::EMPTY.then_all(&entries[..entries.len() - 1]);
        let mut folded = State::default();
        for entry in &entries[..entries.len() - 1] {
            folded.apply(&Event::decode(entry).unwrap()).unwrap();
        }
        disk.ask(PersistId(2), Write::Snapshot { head, state: Arc::new(folded) });
        disk.complete();
        assert_eq!(disk.content().entries.len(), 1);
        assert!(disk.content().ancestors.contains(head, LogHead::EMPTY.then_all(&entries[..1])));
        assert_eq!(disk.content().state(), Ok(state));
    }
}
