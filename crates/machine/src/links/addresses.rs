//! Where other nodes may be reached. An address is a hint, never trust: the transport checks the key behind
//! it.

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;

use exo_types::NodeId;

pub(super) const ADDRESSES_MAX: usize = 8;
/// Nodes with addresses. More than a cluster can have members, so that joining ones have room.
const NODES_MAX: usize = 512;

/// Addresses by node, each list best first: the first is the one that worked last, if any did.
#[derive(Clone, Debug)]
pub(super) struct Addresses {
    nodes: BTreeMap<NodeId, Vec<SocketAddr>>,
    /// Those at which the node has proven its key.
    proven: BTreeSet<(NodeId, SocketAddr)>,
}

impl Addresses {
    /// What earlier runs found to work.
    pub(super) fn new(mut nodes: BTreeMap<NodeId, Vec<SocketAddr>>) -> Self {
        nodes.values_mut().for_each(|list| list.truncate(ADDRESSES_MAX));
        let proven = nodes.iter().flat_map(|(node, list)| list.iter().map(|address| (*node, *address)));
        Self { proven: proven.collect(), nodes }
    }

    /// The addresses of a node, best first.
    pub(super) fn of(&self, node: NodeId) -> &[SocketAddr] {
        self.nodes.get(&node).map_or(&[], Vec::as_slice)
    }

    /// Those of them at which it has proven its key.
    pub(super) fn proven(&self, node: NodeId) -> impl Iterator<Item = SocketAddr> {
        self.of(node).iter().copied().filter(move |address| self.proven.contains(&(node, *address)))
    }

    /// The node itself says (over discovery) that it is here: its older addresses that never worked make
    /// room. Whether one of these is new.
    pub(super) fn learn(&mut self, node: NodeId, addresses: &[SocketAddr]) -> bool {
        let Some(list) = self.list(node) else { return false };
        let mut is_new = false;
        // One less than there is room for: the same addresses again are then never new again.
        for address in addresses.iter().take(ADDRESSES_MAX - 1).rev() {
            if !list.contains(address) {
                list.insert(list.len().min(1), *address);
                is_new = true;
            }
        }
        list.truncate(ADDRESSES_MAX);
        self.forget_proofs(node);
        is_new
    }

    /// Another member says so: taken while there is room. Whether it is new.
    pub(super) fn hint(&mut self, node: NodeId, address: SocketAddr) -> bool {
        let Some(list) = self.list(node) else { return false };
        if list.contains(&address) {
            return false;
        }
        let has_room = list.len() < ADDRESSES_MAX;
        if has_room {
            list.push(address);
        } else {
            tracing::trace!(peer = %node, %address, max = ADDRESSES_MAX, "no room for one more address of a node");
        }
        has_room
    }

    /// This address works: it is the first from now on. Whether it is new.
    pub(super) fn prefer(&mut self, node: NodeId, address: SocketAddr) -> bool {
        let Some(list) = self.list(node) else { return false };
        let before = list.len();
        list.retain(|a| *a != address);
        let is_new = list.len() == before;
        list.insert(0, address);
        list.truncate(ADDRESSES_MAX);
        self.proven.insert((node, address));
        self.forget_proofs(node);
        is_new
    }

    /// Forgets the nodes for which `keep` is false.
    pub(super) fn retain(&mut self, mut keep: impl FnMut(NodeId) -> bool) {
        self.nodes.retain(|node, _| keep(*node));
        self.proven.retain(|(node, _)| self.nodes.contains_key(node));
    }

    /// Of addresses that made room.
    fn forget_proofs(&mut self, node: NodeId) {
        let list = self.nodes.get(&node).map_or(&[][..], Vec::as_slice);
        self.proven.retain(|(of, address)| *of != node || list.contains(address));
    }

    fn list(&mut self, node: NodeId) -> Option<&mut Vec<SocketAddr>> {
        if self.nodes.len() >= NODES_MAX && !self.nodes.contains_key(&node) {
            tracing::trace!(peer = %node, nodes = self.nodes.len(), "no room for the addresses of one more node");
            return None;
        }
        Some(self.nodes.entry(node).or_default())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NODE: NodeId = NodeId([1; 32]);

    fn at(port: u16) -> SocketAddr {
        SocketAddr::from(([10, 0, 0, 1], port))
    }

    fn ports(addresses: &Addresses) -> Vec<u16> {
        addresses.of(NODE).iter().map(SocketAddr::port).collect()
    }

    #[test]
    fn the_address_that_worked_stays_first_and_old_unproven_ones_make_room() {
        let mut addresses = Addresses::new(BTreeMap::new());
        assert!(addresses.prefer(NODE, at(1)));
        for port in 2..=9 {
            assert!(addresses.learn(NODE, &[at(port)]));
        }
        assert_eq!(ports(&addresses), [1, 9, 8, 7, 6, 5, 4, 3], "2 made room for 9");
        assert!(!addresses.hint(NODE, at(10)), "what others say takes nobody's room");
        assert!(!addresses.prefer(NODE, at(5)), "known before");
        assert_eq!(ports(&addresses), [5, 1, 9, 8, 7, 6, 4, 3]);
    }

    #[test]
    fn only_what_was_proven_is_known_at_the_next_start() {
        let mut addresses = Addresses::new(BTreeMap::from([(NODE, vec![at(1)])]));
        addresses.learn(NODE, &[at(2), at(3)]);
        addresses.hint(NODE, at(4));
        assert_eq!(addresses.proven(NODE).collect::<Vec<_>>(), [at(1)], "an earlier run proved it");
        addresses.prefer(NODE, at(3));
        assert_eq!(addresses.proven(NODE).collect::<Vec<_>>(), [at(3), at(1)]);
        for port in 10..30 {
            addresses.prefer(NODE, at(port));
        }
        assert_eq!(addresses.proven.len(), ADDRESSES_MAX);
        addresses.retain(|_| false);
        assert!(addresses.proven.is_empty());
    }

    #[test]
    fn the_same_long_list_again_is_not_new_again() {
        let mut addresses = Addresses::new(BTreeMap::new());
        addresses.prefer(NODE, at(1));
        let long: Vec<_> = (10..30).map(at).collect();
        assert!(addresses.learn(NODE, &long));
        assert!(!addresses.learn(NODE, &long));
        assert_eq!(ports(&addresses), [1, 10, 11, 12, 13, 14, 15, 16]);
    }

    #[test]
    fn there_is_a_bound_to_nodes_as_well() {
        let mut addresses = Addresses::new(BTreeMap::new());
        for i in 0..600u16 {
            let mut key = [0; 32];
            key[..2].copy_from_slice(&i.to_le_bytes());
            addresses.hint(NodeId(key), at(1));
        }
        assert_eq!(addresses.nodes.len(), NODES_MAX);
    }
}
