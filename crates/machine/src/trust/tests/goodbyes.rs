//! Members that said goodbye, over restarts of who heard it.

use exo_api::NodeStatus;
use exo_membership::{Body, Heartbeat, Message, Rank, Role};

use super::*;

const MEMBER: NodeId = NodeId([2; 32]);

/// A node with one member, which finds that these have ended before it started.
fn founder(ended: BTreeMap<NodeId, u64>) -> Lone {
    Lone::found(|boot| {
        let entry = admit(&SigningKey::from_bytes(&[1; 32]), &boot.trust, 2);
        boot.trust.insert(entry).unwrap();
        boot.ended = ended;
    })
}

/// The member says something, and this is what is written of who ended.
fn hears(node: &mut Lone, body: Body) -> Option<BTreeMap<NodeId, u64>> {
    let message = Message { epoch: None, incarnation: 1, body };
    node.machine.membership_message(MEMBER, &message.encode());
    let effects = std::mem::take(&mut node.machine.out);
    let written = effects.into_iter().filter_map(|effect| match effect {
        Effect::Persist { write: Write::Ended(ended), .. } => Some(ended),
        _ => None,
    });
    written.last()
}

#[test]
fn a_member_that_said_goodbye_has_left_also_behind_a_restart_of_the_node_that_heard_it() {
    let mut node = founder(BTreeMap::new());
    assert_eq!(hears(&mut node, Body::Goodbye), Some(BTreeMap::from([(MEMBER, 2000)])));
    assert_eq!(node.machine.statuses.get(&MEMBER), Some(&NodeStatus::Left));

    let seen_by_the_next_run = |ended: BTreeMap<NodeId, u64>| {
        let mut node = founder(ended);
        node.wait(Duration::from_secs(8));
        (node.machine.statuses.get(&MEMBER).copied(), node.machine.gone_since.get(&MEMBER).copied())
    };
    let ended = BTreeMap::from([(MEMBER, 1500)]);
    assert_eq!(seen_by_the_next_run(ended), (Some(NodeStatus::Left), Some(1500)));
    assert_eq!(seen_by_the_next_run(BTreeMap::new()), (Some(NodeStatus::Lost), Some(2000)));
}

#[test]
fn a_member_that_is_there_again_has_not_left_any_more() {
    let mut node = founder(BTreeMap::from([(MEMBER, 1500)]));
    let beat = Heartbeat { role: Role::Seeking, rank: Rank::default(), table: Vec::new() };
    assert_eq!(hears(&mut node, Body::Heartbeat(beat)), Some(BTreeMap::new()));
    assert_eq!(node.machine.statuses.get(&MEMBER), Some(&NodeStatus::Alive));
    node.wait(Duration::from_secs(20));
    assert_eq!(node.machine.statuses.get(&MEMBER), Some(&NodeStatus::Lost), "without a word");
}
