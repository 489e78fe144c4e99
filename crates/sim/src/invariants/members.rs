//! Who belongs to a cluster is what its admins have signed, whatever members say.

use std::collections::BTreeSet;

use exo_machine::{Effect, Write};
use exo_trust::{Act, Entry, EntryId};
use exo_types::NodeId;

use super::{Checked, Facts, Observation, Watch};

#[derive(Debug, Default)]
pub(super) struct Members {
    /// Entries whose signature was checked.
    checked: BTreeSet<EntryId>,
}

/// Nobody is a member or may connect without an entry that the founder has signed, or whom the founder was
/// asked to appoint.
pub(super) fn members_are_signed_in(watch: &mut Watch, facts: &Facts<'_>, seen: &Observation<'_>) -> Checked {
    let Observation::Effects { node, effects } = *seen else { return Ok(()) };
    for effect in effects {
        match effect {
            Effect::Persist { write: Write::Trust(entries), .. } => {
                entries_are_signed(&mut watch.members, facts, node, entries)?;
            }
            Effect::SetMembers(members) => may_connect(facts, node, members)?,
            _ => {}
        }
    }
    Ok(())
}

fn entries_are_signed(members: &mut Members, facts: &Facts<'_>, node: usize, entries: &[Vec<u8>]) -> Checked {
    let mut founder = None;
    for bytes in entries {
        let entry = Entry::decode(bytes).map_err(|error| format!("n{node} writes {error}"))?;
        let author = entry.statement().author;
        let founder = *founder.get_or_insert(author);
        let is_appointed = || facts.scenario.appointed().any(|node| facts.nodes[node].id == author);
        if author != founder && !is_appointed() {
            return Err(format!("n{node} writes an entry of {author}, who is no admin: {entry:?}"));
        }
        if !members.checked.insert(entry.id()) {
            continue;
        }
        // At join windows some come in by right: see `doors`.
        if let Act::Admit { node: new, .. } = &entry.statement().act
            && facts.scenario.windows.is_none()
            && !facts.nodes.iter().any(|node| node.id == *new)
        {
            return Err(format!("n{node} lets in {new}, a stranger"));
        }
        let signature = bytes.last_chunk().ok_or("an entry without a signature")?;
        let key = facts.nodes.iter().find(|other| other.id == author).map(|other| other.key.verifying_key());
        let signature = ed25519_dalek::Signature::from_bytes(signature);
        if key.is_none_or(|key| key.verify_strict(&entry.statement().to_sign(), &signature).is_err()) {
            return Err(format!("n{node} writes an entry that its author did not sign: {entry:?}"));
        }
    }
    Ok(())
}

/// A member by this node's log of trust, or by that of somebody who let this node in: its word comes with the
/// welcome, maybe before the entry is with the other.
fn may_connect(facts: &Facts<'_>, node: usize, members: &BTreeSet<NodeId>) -> Checked {
    let own = &facts.nodes[node];
    let let_in = |other: &NodeId| {
        let mut hosts = facts.nodes.iter().filter(|host| host.disk.history().members.contains(&own.id));
        hosts.any(|host| host.id != own.id && host.disk.content().trust.view().members().contains_key(other))
    };
    let trusted = |other: &NodeId| own.disk.content().trust.view().members().contains_key(other);
    match members.iter().find(|other| **other != own.id && !trusted(other) && !let_in(other)) {
        Some(other) => Err(format!("n{node} lets {other} connect, whom nobody has let in")),
        None => Ok(()),
    }
}
