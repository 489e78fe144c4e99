//! What others say of where members are.

use std::net::SocketAddr;

use exo_types::Network;

use super::*;

const ADMIN: NodeId = NodeId([2; 32]);
const WORKER: NodeId = NodeId([3; 32]);
const MEMBER: NodeId = NodeId([4; 32]);

fn at(text: &str) -> SocketAddr {
    text.parse().unwrap()
}

/// The founder of a cluster of four, on one network.
fn node_on_a_network() -> Lone {
    let mut node = Lone::new();
    node.machine.samples.networks = vec![Network { ip: [192, 168, 1, 5].into(), prefix_len: 24 }];
    for member in [2, 3, 4] {
        node.ask(member);
        node.sign();
        node.answer(Ok(()));
    }
    let act = Act::Appoint { node: ADMIN, name: "another".to_owned() };
    node.machine.change_members(ActAsker::Client(REPLY), act);
    let effects = std::mem::take(&mut node.machine.out);
    node.take(effects);
    node.sign();
    node.answer(Ok(()));
    assert!(node.acted.iter().all(|(_, result)| result.is_ok()), "{:?}", node.acted);
    node
}

#[test]
fn what_is_announced_or_told_of_a_member_is_dialled_on_this_machines_networks_only() {
    let (here, near, far) = (at("192.168.1.7:1"), at("192.168.1.8:1"), at("203.0.113.9:1"));
    let mut node = node_on_a_network();
    let found = DiscoveredNode {
        node: MEMBER,
        addresses: vec![far, here],
        name: None,
        group: Some("home".to_owned()),
        is_fresh: false,
        is_lost: false,
    };
    node.handle(Input::Found(found));
    assert_eq!(node.machine.links.addresses(MEMBER), [here], "anybody may announce it");
    node.machine.learn_reached(WORKER, &[(MEMBER, far), (MEMBER, near)]);
    assert_eq!(node.machine.links.addresses(MEMBER), [here, near], "a member's word");
    node.machine.learn_reached(ADMIN, &[(MEMBER, far)]);
    assert_eq!(node.machine.links.addresses(MEMBER), [here, near, far], "an admin's");
    // A machine of which nobody knows the networks takes nobody's word but an admin's.
    node.machine.samples.networks.clear();
    node.machine.learn_reached(WORKER, &[(WORKER, near), (ADMIN, near)]);
    assert!(node.machine.links.addresses(ADMIN).is_empty());
}
