//! The entries of one cluster, each checked before it is taken in.

use std::collections::{BTreeMap, BTreeSet};

use exo_types::NodeId;

use crate::bits::Bits;
use crate::entry::AFTER_MAX;
use crate::judge::{self, Item};
use crate::{Act, ActError, Entry, EntryId, InsertError, Statement, View};

/// Entries of a cluster, but for a few that take an admin's rights away. One that people use has some dozens.
pub const ENTRIES_MAX: usize = 1024;
/// Of these, kept for taking rights away: who fills the log does not stay for it.
const RESERVED: usize = 128;
/// Beyond all of these, entries are taken in that leave the cluster with fewer admins: who fills the log with
/// removals does not stay for it either. There are no more than so many admins.
const BEYOND_MAX: usize = 64;
/// Entries of an author who is no admin any more that are taken in: what it signed before it heard of that.
/// All of them are void.
const LATE_MAX: usize = 32;
/// Entries in [`TrustLog::known`].
const KNOWN_MAX: usize = 64;

/// A log of trust: grows, and forgets nothing.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct TrustLog {
    /// In an order in which each comes after what it follows.
    items: Vec<Item>,
    numbers: BTreeMap<EntryId, usize>,
    /// Entries that no other follows yet.
    heads: BTreeSet<EntryId>,
    /// Admins that signed two entries of which neither follows the other.
    forked: BTreeSet<NodeId>,
    /// The entries that are not void.
    standing: Bits,
    view: View,
}

/// What became of an entry that this log takes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[allow(missing_docs)] // a field without a comment is what its name says
pub enum Inserted {
    Known,
    New,
}

impl TrustLog {
    /// The log of the cluster that this entry founds.
    pub fn new(founding: Entry) -> Result<Self, InsertError> {
        let (id, author) = (founding.id(), founding.statement().author);
        if !matches!(founding.statement().act, Act::Found { .. }) {
            return Err(InsertError::NoFounding { id });
        }
        if !founding.is_signed() {
            return Err(InsertError::BadSignature { id, author });
        }
        let item = Item { entry: founding, depth: 0, before: Bits::default(), basis: Vec::new() };
        let items = vec![item];
        let standing = Bits::up_to(1);
        let view = View::of(&items, &standing);
        let (numbers, heads) = (BTreeMap::from([(id, 0)]), BTreeSet::from([id]));
        Ok(Self { items, numbers, heads, forked: BTreeSet::new(), standing, view })
    }

    /// A log from a disk or another node: all its entries, the founding first, each after what it follows.
    pub fn from_entries(entries: impl IntoIterator<Item = Entry>) -> Result<Option<Self>, InsertError> {
        let mut entries = entries.into_iter();
        let Some(founding) = entries.next() else { return Ok(None) };
        let mut log = Self::new(founding)?;
        for entry in entries {
            log.insert(entry)?;
        }
        Ok(Some(log))
    }

    /// The cluster: the id of its founding entry.
    pub fn cluster(&self) -> EntryId {
        self.items[0].entry.id()
    }

    /// Who belongs to the cluster.
    pub fn view(&self) -> &View {
        &self.view
    }

    /// The entries that no other follows: who knows these knows all.
    pub fn heads(&self) -> &BTreeSet<EntryId> {
        &self.heads
    }

    /// Admins whose key signed two entries of which neither follows the other: it is in two places, or lies.
    pub fn forked(&self) -> &BTreeSet<NodeId> {
        &self.forked
    }

    /// Whether the entry is here.
    pub fn contains(&self, id: EntryId) -> bool {
        self.numbers.contains_key(&id)
    }

    /// All entries, each after what it follows.
    pub fn entries(&self) -> impl Iterator<Item = &Entry> {
        self.items.iter().map(|item| &item.entry)
    }

    /// What somebody lacks who has these entries and what they follow; in an order to be taken in. Ids that
    /// are unknown here count for nothing.
    pub fn missing(&self, known: &[EntryId]) -> impl Iterator<Item = &Entry> {
        let has = self.closed(known.iter().filter_map(|id| self.numbers.get(id)).copied());
        self.items
            .iter()
            .enumerate()
            .filter(move |(number, _)| !has.has(*number))
            .map(|(_, item)| &item.entry)
    }

    /// Of these what leads to the removal of a node, which is all that still concerns it.
    pub fn missing_up_to_removal(&self, node: NodeId, known: &[EntryId]) -> impl Iterator<Item = &Entry> {
        let removes = |item: &Item| matches!(&item.entry.statement().act, Act::Remove { node: gone, .. } if *gone == node);
        let removals = self.items.iter().enumerate().filter(|(_, item)| removes(item));
        let concerns = self.closed(removals.map(|(number, _)| number));
        self.missing(known)
            .filter(move |entry| self.numbers.get(&entry.id()).is_some_and(|number| concerns.has(*number)))
    }

    /// What `author` would sign to do this now.
    pub fn statement(&self, author: NodeId, at_unix_s: u64, act: Act) -> Result<Statement, ActError> {
        self.view.check(author, &act)?;
        let max = room_for(&act);
        if self.items.len() >= max && !self.may_go_beyond(&act) {
            return Err(ActError::TooMany { what: "entries in its log of trust", max });
        }
        // Of a log that somebody has filled with removals, those are left alone: each node may have others of
        // them. Void entries of others are, too, unless what stands rests on them: then all are followed.
        let is_followed = |number: &usize| self.items.len() < ENTRIES_MAX || *number < ENTRIES_MAX - RESERVED;
        let (standing, own) = (self.standing.iter().filter(is_followed), self.numbers_of(author));
        let lean = self.last_of(&self.closed(standing.chain(own)));
        let all = self.heads.iter().map(|id| self.numbers[id]).collect();
        let mut after = self.first_own(author, lean);
        if self.check_after(&after, author, &act).is_err() {
            after = self.first_own(author, all);
            self.check_after(&after, author, &act)?;
        }
        let mut after: Vec<EntryId> = after.into_iter().map(|n| self.items[n].entry.id()).collect();
        after.sort();
        Ok(Statement::new(Some(self.cluster()), after, author, at_unix_s, act))
    }

    /// Takes in an entry, or says what is wrong with it and stays as it was.
    pub fn insert(&mut self, entry: Entry) -> Result<Inserted, InsertError> {
        let (id, author) = (entry.id(), entry.statement().author);
        if self.contains(id) {
            return Ok(Inserted::Known);
        }
        if entry.statement().cluster != Some(self.cluster()) {
            return Err(InsertError::OtherCluster { id });
        }
        let max = room_for(&entry.statement().act);
        let is_beyond = self.items.len() >= max;
        if is_beyond && !self.may_go_beyond(&entry.statement().act) {
            return Err(InsertError::Full { max });
        }
        // What many entries may be refused for is looked at before what takes long.
        let before = self.before(&entry)?;
        self.check_late(&entry)?;
        if !entry.is_signed() {
            return Err(InsertError::BadSignature { id, author });
        }
        let stood = judge::standing(&self.items, &before);
        let known = View::of(&self.items, &stood);
        known.check(author, &entry.statement().act).map_err(|source| InsertError::Act { id, source })?;
        let depth = before.iter().map(|n| self.items[n].depth).max().unwrap_or(0) + 1;
        let basis = judge::basis(&self.items, &stood, author);
        let is_fork = self.numbers_of(author).any(|number| !before.has(number));
        let (number, after) = (self.items.len(), entry.statement().after.clone());
        self.items.push(Item { entry, depth, before, basis });
        let standing = judge::standing(&self.items, &Bits::up_to(self.items.len()));
        let view = View::of(&self.items, &standing);
        if is_beyond && view.admins().count() >= self.view.admins().count() {
            self.items.pop();
            return Err(InsertError::Full { max });
        }
        (self.standing, self.view) = (standing, view);
        if is_fork {
            self.forked.insert(author);
        }
        for id in &after {
            self.heads.remove(id);
        }
        self.heads.insert(id);
        self.numbers.insert(id, number);
        Ok(Inserted::New)
    }

    /// Some of the entries that are here, for who is to say what is missing: the heads, and further and
    /// further back, so that somebody who lacks the last ones knows one of the others.
    pub fn known(&self) -> Vec<EntryId> {
        let back = std::iter::successors(Some(1), |back| Some(back * 2));
        let back =
            back.map_while(|back| self.items.len().checked_sub(back)).map(|n| self.items[n].entry.id());
        let (standing, void): (Vec<EntryId>, Vec<EntryId>) =
            self.heads.iter().copied().partition(|id| self.standing.has(self.numbers[id]));
        let heads = standing.into_iter().take(KNOWN_MAX / 2);
        let mut told = BTreeSet::new();
        heads.chain(back).chain(void).filter(|id| told.insert(*id)).take(KNOWN_MAX).collect()
    }

    /// Whether an entry that does this may find room where there is none any more.
    fn may_go_beyond(&self, act: &Act) -> bool {
        let is_admin = |node: NodeId| self.view.admins().any(|admin| admin == node);
        act.disarms().is_some_and(is_admin) && self.items.len() < ENTRIES_MAX + BEYOND_MAX
    }

    /// Whether an entry of somebody who is no admin any more is one too many.
    fn check_late(&self, entry: &Entry) -> Result<(), InsertError> {
        let author = entry.statement().author;
        if self.view.admins().any(|admin| admin == author) {
            return Ok(());
        }
        let is_void = |(number, item): &(usize, &Item)| {
            item.entry.statement().author == author && !self.standing.has(*number)
        };
        if self.items.iter().enumerate().filter(is_void).count() >= LATE_MAX {
            return Err(InsertError::Late { id: entry.id(), author, max: LATE_MAX });
        }
        Ok(())
    }

    /// All that the entry follows.
    fn before(&self, entry: &Entry) -> Result<Bits, InsertError> {
        let id = entry.id();
        let mut numbers = Vec::new();
        for &missing in &entry.statement().after {
            numbers.push(*self.numbers.get(&missing).ok_or(InsertError::Gap { id, missing })?);
        }
        let is_last = |number: &usize| numbers.iter().all(|other| !self.items[*other].before.has(*number));
        if !numbers.iter().all(is_last) {
            return Err(InsertError::NotLast { id });
        }
        Ok(self.closed(numbers))
    }

    /// The entries of this author.
    fn numbers_of(&self, author: NodeId) -> impl Iterator<Item = usize> {
        let items = self.items.iter().enumerate();
        items.filter(move |(_, item)| item.entry.statement().author == author).map(|(number, _)| number)
    }

    /// Those of the entries `among` that no other of them follows.
    fn last_of(&self, among: &Bits) -> Vec<usize> {
        let is_last = |number: &usize| among.iter().all(|other| !self.items[other].before.has(*number));
        among.iter().filter(is_last).collect()
    }

    /// As many as an entry may name; those of its author come first: its entries follow each other.
    fn first_own(&self, author: NodeId, mut numbers: Vec<usize>) -> Vec<usize> {
        numbers.sort_by_key(|&number| self.items[number].entry.statement().author != author);
        numbers.truncate(AFTER_MAX);
        numbers
    }

    /// Whether `author` may do this for who knows these entries and what they follow, and no others.
    fn check_after(&self, after: &[usize], author: NodeId, act: &Act) -> Result<(), ActError> {
        let standing = judge::standing(&self.items, &self.closed(after.iter().copied()));
        View::of(&self.items, &standing).check(author, act)
    }

    /// These entries and all that they follow.
    fn closed(&self, numbers: impl IntoIterator<Item = usize>) -> Bits {
        let mut bits = Bits::default();
        for number in numbers {
            bits.insert(number);
            bits.insert_all(&self.items[number].before);
        }
        bits
    }
}

/// Entries beyond which one that does this finds no room.
fn room_for(act: &Act) -> usize {
    if act.disarms().is_some() { ENTRIES_MAX } else { ENTRIES_MAX - RESERVED }
}
