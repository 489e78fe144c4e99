//! Keys of the nodes, and what is on their disks before a run: clusters as a node founds them.

use ed25519_dalek::{Signer, SigningKey};
use exo_cluster::{ClusterId, Event, JOIN_WINDOW_S, Member, Role};
use exo_identity::Statement;
use exo_types::NodeId;

use crate::clock::EPOCH_UNIX_S;
use crate::draw::{Of, mix};

/// The key of a node.
pub fn key(seed: u64, node: usize) -> SigningKey {
    let mut bytes = [0; 32];
    for (index, part) in bytes.chunks_mut(8).enumerate() {
        let counter = 8 * node as u64 + index as u64;
        part.copy_from_slice(&mix(seed, Of::Identity, counter).0.to_le_bytes());
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

/// The encoded certificate that `key` signs.
pub fn sign(key: &SigningKey, statement: Statement) -> Vec<u8> {
    let signature = key.sign(&statement.to_sign()).to_bytes();
    statement.signed(signature).encode()
}

/// The log of a cluster that `founder` founded, with so many nodes in it: the founder and those that follow.
pub fn entries(seed: u64, founder: usize, members: usize) -> Vec<Vec<u8>> {
    let issuer = key(seed, founder);
    let mut id = [0; 16];
    id[..8].copy_from_slice(&mix(seed, Of::Identity, 1 << 32 | founder as u64).0.to_le_bytes());
    let member = |node: usize, role: Role, signed: exo_identity::Role| {
        let (subject, name) = (node_id(&key(seed, node)), name(node));
        let cluster = exo_identity::ClusterId(id);
        let statement = Statement::new(node_id(&issuer), cluster, subject, &name, signed, EPOCH_UNIX_S - 60);
        Member { node: subject, name, role, certificate: sign(&issuer, statement) }
    };
    let mut events = vec![
        Event::ClusterCreated {
            cluster: ClusterId(id),
            name: format!("{}'s cluster", name(founder)),
            founder: member(founder, Role::Admin, exo_identity::Role::Admin),
            at_unix_s: EPOCH_UNIX_S - 60,
        },
        Event::JoinWindow { until_unix_s: EPOCH_UNIX_S - 60 + JOIN_WINDOW_S },
    ];
    let others = (founder + 1)..(founder + members);
    events.extend(
        others.map(|node| Event::MemberAdmitted(member(node, Role::Worker, exo_identity::Role::Worker))),
    );
    events.iter().map(Event::encode).collect()
}

#[cfg(test)]
mod tests {
    use exo_cluster::State;
    use exo_identity::MemberCert;

    use super::*;

    #[test]
    fn a_founded_cluster_has_its_members_with_certificates_that_verify() {
        let mut state = State::default();
        for entry in entries(4, 0, 3) {
            state.apply(&Event::decode(&entry).unwrap()).unwrap();
        }
        assert_eq!(state.members().len(), 3);
        for member in state.members().values() {
            let certificate = MemberCert::decode(&member.certificate).unwrap();
            assert_eq!(certificate.verify(|key| state.admins().any(|admin| admin == *key)), Ok(()));
            assert_eq!(certificate.statement.node, member.node);
        }
    }
}
