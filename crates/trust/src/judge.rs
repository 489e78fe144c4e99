//! Which entries stand, when not everybody who signed knew of everything that was signed.
//!
//! Every entry in the log was possible after the entries it follows. Two entries of which neither follows the
//! other are *concurrent*. An entry that takes the rights of an admin away *disarms* what that admin signed
//! concurrently with it:
//!
//! 1. an entry stands if an appointment that it rests on stands and all entries that disarm it are void;
//! 2. it is void if all appointments it rests on are void, or an entry that disarms it stands;
//! 3. where 1 and 2 settle nothing more, entries disarm each other in a ring: of these the one whose author
//!    has been admin for longest stands, and 1 and 2 go on.
//!
//! Nothing of this depends on the order in which entries arrived, nor on any clock.

use exo_types::NodeId;

use crate::bits::Bits;
use crate::{Act, Entry, EntryId};

/// An entry in the log. Its number is its place there; what it follows has lower numbers.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Item {
    pub(crate) entry: Entry,
    /// Entries on the longest way to the founding.
    pub(crate) depth: u32,
    /// All entries that it follows, directly or not.
    pub(crate) before: Bits,
    /// The appointments by which its author was an admin then; empty for the founding.
    pub(crate) basis: Vec<usize>,
}

impl Item {
    fn author(&self) -> NodeId {
        self.entry.statement().author
    }

    /// Whom this makes an admin.
    pub(crate) fn makes_admin(&self) -> Option<NodeId> {
        match self.entry.statement().act {
            Act::Found { .. } => Some(self.author()),
            Act::Appoint { node, .. } => Some(node),
            Act::Admit { .. } | Act::Dismiss { .. } | Act::Remove { .. } | Act::Window { .. } => None,
        }
    }
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Verdict {
    Open,
    Stands,
    Void,
}

/// What stands of the entries `among`, which has with each entry all that it follows.
pub(crate) fn standing(items: &[Item], among: &Bits) -> Bits {
    let is_disarming = |&number: &usize| items[number].entry.statement().act.disarms().is_some();
    let disarming: Vec<usize> = among.iter().filter(is_disarming).collect();
    let cases: Vec<Case> = among.iter().map(|number| Case::new(items, &disarming, number)).collect();
    let mut verdicts = vec![Verdict::Open; items.len()];
    loop {
        if !settle(&cases, &mut verdicts) {
            // The ring's oldest admin; its number last, which is never reached: ids differ.
            let open = cases.iter().filter(|case| verdicts[case.number] == Verdict::Open && case.disarms);
            let Some(case) = open.min_by_key(|case| case.rank(items, &verdicts)) else { break };
            verdicts[case.number] = Verdict::Stands;
        }
    }
    let mut bits = Bits::default();
    for case in cases.iter().filter(|case| verdicts[case.number] == Verdict::Stands) {
        bits.insert(case.number);
    }
    bits
}

/// The appointments by which `author` is an admin after the entries that stand.
pub(crate) fn basis(items: &[Item], standing: &Bits, author: NodeId) -> Vec<usize> {
    let disarming: Vec<usize> =
        standing.iter().filter(|&n| items[n].entry.statement().act.disarms() == Some(author)).collect();
    let appointments = standing.iter().filter(|&n| items[n].makes_admin() == Some(author));
    appointments.filter(|&n| disarming.iter().all(|&d| items[n].before.has(d))).collect()
}

/// What the verdict on an entry depends on.
struct Case {
    number: usize,
    basis: Vec<usize>,
    disarmed_by: Vec<usize>,
    /// Whether others may depend on it in this way.
    disarms: bool,
}

impl Case {
    fn new(items: &[Item], disarming: &[usize], number: usize) -> Self {
        let item = &items[number];
        let is_concurrent =
            |&other: &usize| other != number && !item.before.has(other) && !items[other].before.has(number);
        let disarmed_by = disarming.iter().copied().filter(is_concurrent);
        let disarmed_by =
            disarmed_by.filter(|&n| items[n].entry.statement().act.disarms() == Some(item.author()));
        let disarms = item.entry.statement().act.disarms().is_some();
        Self { number, basis: item.basis.clone(), disarmed_by: disarmed_by.collect(), disarms }
    }

    fn verdict(&self, verdicts: &[Verdict]) -> Verdict {
        let is = |wanted: Verdict| move |&number: &usize| verdicts[number] == wanted;
        let is_founding = self.basis.is_empty();
        if !is_founding && self.basis.iter().all(is(Verdict::Void))
            || self.disarmed_by.iter().any(is(Verdict::Stands))
        {
            return Verdict::Void;
        }
        let is_backed = is_founding || self.basis.iter().any(is(Verdict::Stands));
        if is_backed && self.disarmed_by.iter().all(is(Verdict::Void)) {
            Verdict::Stands
        } else {
            Verdict::Open
        }
    }

    /// Lower comes first: those whose appointment is settled, by how early that was.
    fn rank(&self, items: &[Item], verdicts: &[Verdict]) -> (bool, u32, Option<EntryId>, u32, EntryId) {
        let settled = self.basis.iter().filter(|&&n| verdicts[n] == Verdict::Stands);
        let open = self.basis.iter().filter(|&&n| verdicts[n] == Verdict::Open);
        let key = |&n: &usize| (items[n].depth, items[n].entry.id());
        let is_open = settled.clone().next().is_none();
        let since = settled.map(key).min().or_else(|| open.map(key).min());
        let item = &items[self.number];
        let (depth, id) = since.map_or((u32::MAX, None), |(depth, id)| (depth, Some(id)));
        (is_open, depth, id, item.depth, item.entry.id())
    }
}

/// One round of rules 1 and 2; whether anything was settled.
fn settle(cases: &[Case], verdicts: &mut [Verdict]) -> bool {
    let mut has_settled = false;
    for case in cases {
        if verdicts[case.number] == Verdict::Open {
            verdicts[case.number] = case.verdict(verdicts);
            has_settled |= verdicts[case.number] != Verdict::Open;
        }
    }
    has_settled
}
