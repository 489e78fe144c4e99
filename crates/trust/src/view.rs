//! What the entries that stand amount to.

use std::collections::{BTreeMap, BTreeSet};

use exo_types::NodeId;

use crate::bits::Bits;
use crate::judge::Item;
use crate::{Act, ActError, Entry};

/// Nodes let in after which the join window shuts.
pub const ON_SIGHT_MAX: usize = 16;
/// Members of a cluster.
const MEMBERS_MAX: usize = 64;

/// What a member may do.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Role {
    /// Lends its devices and uses the cluster.
    Worker,
    /// Also signs entries of the log of trust.
    Admin,
}

/// A node that belongs to the cluster.
#[derive(Clone, PartialEq, Eq, Debug)]
#[allow(missing_docs)] // a field without a comment is what its name says
pub struct Member {
    pub name: String,
    pub role: Role,
}

/// A node that belongs to it no more.
#[derive(Clone, PartialEq, Eq, Debug)]
#[allow(missing_docs)] // a field without a comment is what its name says
pub struct Removal {
    pub by: NodeId,
    pub reason: String,
}

/// Who belongs to a cluster, after all the entries that are known.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct View {
    name: String,
    members: BTreeMap<NodeId, Member>,
    removed: BTreeMap<NodeId, Removal>,
    window_until_unix_s: Option<u64>,
}

impl View {
    /// What the cluster is called.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The members by key.
    pub fn members(&self) -> &BTreeMap<NodeId, Member> {
        &self.members
    }

    /// Those who were removed; they never come back.
    pub fn removed(&self) -> &BTreeMap<NodeId, Removal> {
        &self.removed
    }

    /// The keys that may sign.
    pub fn admins(&self) -> impl Iterator<Item = NodeId> {
        self.members.iter().filter(|(_, member)| member.role == Role::Admin).map(|(node, _)| *node)
    }

    /// Until when strangers nearby join on sight, in seconds since 1970; 0 once that is over for good, `None`
    /// before it began.
    pub fn window_until_unix_s(&self) -> Option<u64> {
        self.window_until_unix_s
    }

    /// Whether `author` may do this now.
    pub fn check(&self, author: NodeId, act: &Act) -> Result<(), ActError> {
        if !self.admins().any(|admin| admin == author) {
            return Err(ActError::NotAnAdmin { author });
        }
        match act {
            Act::Found { .. } => Err(ActError::Founded),
            Act::Admit { node, .. } => self.check_admission(*node),
            Act::Appoint { node, .. } => match self.member(*node)?.role {
                Role::Worker => Ok(()),
                Role::Admin => Err(ActError::Already { node: *node, what: "an admin" }),
            },
            Act::Dismiss { node } => match self.member(*node)?.role {
                Role::Admin => self.check_disarmed(*node),
                Role::Worker => Err(ActError::Not { node: *node, what: "an admin" }),
            },
            Act::Remove { node, .. } if self.removed.contains_key(node) => {
                Err(ActError::Already { node: *node, what: "removed" })
            }
            Act::Remove { node, .. } => self.check_disarmed(*node),
            Act::Window { .. } => Ok(()),
        }
    }

    fn check_admission(&self, node: NodeId) -> Result<(), ActError> {
        if self.removed.contains_key(&node) {
            Err(ActError::Removed { node })
        } else if self.members.contains_key(&node) {
            Err(ActError::Already { node, what: "a member" })
        } else if self.members.len() >= MEMBERS_MAX {
            Err(ActError::TooMany { what: "members", max: MEMBERS_MAX })
        } else {
            Ok(())
        }
    }

    fn check_disarmed(&self, node: NodeId) -> Result<(), ActError> {
        if self.admins().eq([node]) { Err(ActError::LastAdmin { node }) } else { Ok(()) }
    }

    fn member(&self, node: NodeId) -> Result<&Member, ActError> {
        self.members.get(&node).ok_or(ActError::Not { node, what: "a member" })
    }

    /// What these entries amount to, all of which stand.
    pub(crate) fn of(items: &[Item], standing: &Bits) -> Self {
        // By depth, so that a later entry comes later; by id where neither follows the other.
        let mut ordered: Vec<(usize, &Item)> =
            standing.iter().map(|number| (number, &items[number])).collect();
        ordered.sort_by_key(|(_, item)| (item.depth, item.entry.id()));
        let mut view = Self::default();
        let mut admitted = BTreeSet::new();
        for (_, item) in &ordered {
            view.take(&item.entry, &mut admitted);
        }
        for (number, item) in &ordered {
            let Some(node) = item.makes_admin() else { continue };
            // A dismissal holds unless the appointment came after it.
            let disarms = |other: &&(usize, &Item)| other.1.entry.statement().act.disarms() == Some(node);
            if ordered.iter().filter(disarms).all(|(other, _)| items[*number].before.has(*other))
                && let Some(member) = view.members.get_mut(&node)
            {
                member.role = Role::Admin;
            }
        }
        let removed = std::mem::take(&mut view.removed);
        view.members.retain(|node, _| !removed.contains_key(node));
        if !removed.is_empty() || admitted.len() >= ON_SIGHT_MAX {
            view.window_until_unix_s = Some(0);
        }
        view.removed = removed;
        view
    }

    fn take(&mut self, entry: &Entry, admitted: &mut BTreeSet<NodeId>) {
        let by = entry.statement().author;
        let member = |name: &String| Member { name: name.clone(), role: Role::Worker };
        match &entry.statement().act {
            Act::Found { name, founder, .. } => {
                self.name.clone_from(name);
                self.members.insert(by, member(founder));
            }
            Act::Admit { node, name } => {
                admitted.insert(*node);
                self.members.insert(*node, member(name));
            }
            Act::Appoint { node, name } => {
                self.members.entry(*node).or_insert_with(|| member(name));
            }
            Act::Remove { node, reason } => {
                self.removed.entry(*node).or_insert_with(|| Removal { by, reason: reason.clone() });
            }
            Act::Window { until_unix_s } => {
                let until = self.window_until_unix_s.unwrap_or(u64::MAX).min(*until_unix_s);
                self.window_until_unix_s = Some(until);
            }
            Act::Dismiss { .. } => {}
        }
    }
}
