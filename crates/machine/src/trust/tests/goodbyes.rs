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
    writes(node).pop().map(|(_, ended)| ended)
}

/// What is to be written of who ended since this was asked last.
fn writes(node: &mut Lone) -> Vec<(PersistId, BTreeMap<NodeId, u64>)> {
    let effects = std::mem::take(&mut node.machine.out);
    let written = effects.into_iter().filter_map(|effect| match effect {
        Effect::Persist { id, write: Write::Ended(ended) } => Some((id, ended)),
        _ => None,
    });
    written.collect()
}

#[test]
fn of_a_member_that_comes_and_goes_one_write_is_under_way_and_the_last_one_is_of_what_is() {
    let mut node = founder(BTreeMap::new());
    let mut changes = |at: u64| {
        node.machine.ended.insert(MEMBER, at);
        node.machine.keep_ended();
        writes(&mut node)
    };
    let first = changes(1);
    let [(id, _)] = first[..] else { panic!("{first:?}") };
    assert!((2..100).all(|at| changes(at).is_empty()));
    node.machine.persisted(id, Ok(()));
    let last = writes(&mut node);
    let [(id, ended)] = &last[..] else { panic!("{last:?}") };
    assert_eq!(*ended, BTreeMap::from([(MEMBER, 99)]));
    node.machine.persisted(*id, Ok(()));
    assert_eq!(writes(&mut node), []);
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
