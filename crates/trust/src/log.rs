//! The entries of one cluster, each checked before it is taken in.

use std::collections::{BTreeMap, BTreeSet};

use exo_types::NodeId;

use crate::bits::Bits;
use crate::entry::AFTER_MAX;
use crate::judge::{self, Item};
use crate::{Act, ActError, Entry, EntryId, InsertError, Statement, View};

/// Entries of a cluster. One that people use has some dozens.
pub const ENTRIES_MAX: usize = 4096;

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
    view: View,
}

/// What became of an entry that this log takes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Inserted {
    /// It was here.
    Known,
    /// It is new here.
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
        let view = View::of(&items, &Bits::up_to(1));
        let (numbers, heads) = (BTreeMap::from([(id, 0)]), BTreeSet::from([id]));
        Ok(Self { items, numbers, heads, forked: BTreeSet::new(), view })
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

    /// What somebody lacks who has these entries and what they follow; in an order to be taken in. Ids that are unknown here
    /// count for nothing.
    pub fn missing(&self, known: &[EntryId]) -> impl Iterator<Item = &Entry> {
        let has = self.closed(known.iter().filter_map(|id| self.numbers.get(id)).copied());
        self.items
            .iter()
            .enumerate()
            .filter(move |(number, _)| !has.has(*number))
            .map(|(_, item)| &item.entry)
    }

    /// What `author` would sign to do this now.
    pub fn statement(&self, author: NodeId, at_unix_s: u64, act: Act) -> Result<Statement, ActError> {
        self.view.check(author, &act)?;
        if self.items.len() >= ENTRIES_MAX {
            return Err(ActError::TooMany { what: "entries in its log of trust", max: ENTRIES_MAX });
        }
        // What the author knows of its own comes first: its entries follow each other.
        let own = |id: &EntryId| self.items[self.numbers[id]].entry.statement().author == author;
        let (first, rest): (Vec<_>, Vec<_>) = self.heads.iter().copied().partition(own);
        let mut after: Vec<EntryId> = first.into_iter().chain(rest).take(AFTER_MAX).collect();
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
        if self.items.len() >= ENTRIES_MAX {
            return Err(InsertError::Full { max: ENTRIES_MAX });
        }
        let before = self.before(&entry)?;
        let standing = judge::standing(&self.items, &before);
        let view = View::of(&self.items, &standing);
        view.check(author, &entry.statement().act).map_err(|source| InsertError::Act { id, source })?;
        if !entry.is_signed() {
            return Err(InsertError::BadSignature { id, author });
        }
        let depth = before.iter().map(|n| self.items[n].depth).max().unwrap_or(0) + 1;
        let basis = judge::basis(&self.items, &standing, author);
        let own = self.items.iter().enumerate().filter(|(_, item)| item.entry.statement().author == author);
        if own.map(|(number, _)| number).any(|number| !before.has(number)) {
            self.forked.insert(author);
        }
        entry.statement().after.iter().for_each(|id| {
            self.heads.remove(id);
        });
        self.heads.insert(id);
        self.numbers.insert(id, self.items.len());
        self.items.push(Item { entry, depth, before, basis });
        let standing = judge::standing(&self.items, &Bits::up_to(self.items.len()));
        self.view = View::of(&self.items, &standing);
        Ok(Inserted::New)
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
