//! Keys of the nodes, and what is on their disks before a run: clusters as a node founds them.

use ed25519_dalek::{Signer, SigningKey};
use exo_cluster::Event;
use exo_trust::{Act, Entry, Statement, TrustLog};
use exo_types::NodeId;

use crate::clock::EPOCH_UNIX_S;
use crate::draw::{DrawFor, mix};

/// When clusters were founded and their join windows opened.
const FOUNDED_UNIX_S: u64 = EPOCH_UNIX_S - 60;

/// The key of a node.
pub fn key(seed: u64, node: usize) -> SigningKey {
    let mut bytes = [0; 32];
    for (index, part) in bytes.chunks_mut(8).enumerate() {
        let counter = 8 * node as u64 + index as u64;
        part.copy_from_slice(&mix(seed, DrawFor::Identity, counter).0.to_le_bytes());
    }
    SigningKey::from_bytes(&bytes)
}

/// The id of a node.
pub fn node_id(key: &SigningKey) -> NodeId {
    NodeId(key.verifying_key().to_bytes())
}

/// What a node is called.
pub fn name(node: usize) -> String {
    format!("n{node}")
}

/// The entry that `key` makes of this.
pub fn sign(key: &SigningKey, statement: Statement) -> Entry {
    let signature = key.sign(&statement.to_sign()).to_bytes();
    statement.signed(signature)
}

/// The log of trust of a cluster that `founder` founded, with so many nodes in it: the founder and those that
/// follow; and a join window of so many seconds.
pub fn trust(seed: u64, founder: usize, members: usize, window_s: u64) -> TrustLog {
    let (issuer, me) = (key(seed, founder), node_id(&key(seed, founder)));
    let mut nonce = [0; 16];
    nonce[..8].copy_from_slice(&mix(seed, DrawFor::Identity, 1 << 32 | founder as u64).0.to_le_bytes());
    let cluster = format!("{}'s cluster", name(founder));
    let founding = Statement::founding(me, FOUNDED_UNIX_S, cluster, name(founder), nonce);
    let mut log = TrustLog::new(sign(&issuer, founding)).expect("its founder signs it");
    let others = (founder + 1)..(founder + members);
    let admissions = others.map(|node| Act::Admit { node: node_id(&key(seed, node)), name: name(node) });
    // A clock that was set back opens no window, however long ago it shut.
    let until_unix_s = if window_s == 0 { 1 } else { FOUNDED_UNIX_S + window_s };
    let window = Act::Window { until_unix_s };
    for act in std::iter::once(window).chain(admissions) {
        let statement = log.statement(me, FOUNDED_UNIX_S, act).expect("the founder may");
        log.insert(sign(&issuer, statement)).expect("the founder may");
    }
    log
}

/// The log of placements of a node that was opened to others.
pub fn entries() -> Vec<Vec<u8>> {
    vec![Event::Opened.encode()]
}

#[cfg(test)]
mod tests {
    use exo_machine::joining::JOIN_WINDOW_S;

    use super::*;

    #[test]
    fn a_founded_cluster_has_its_members_and_verifies() {
        let log = trust(4, 0, 3, JOIN_WINDOW_S);
        assert_eq!(log.view().members().len(), 3);
        assert!(log.view().window_until_unix_s().is_some());
        assert_eq!(TrustLog::from_entries(log.entries().cloned()), Ok(Some(log)));
    }
}
