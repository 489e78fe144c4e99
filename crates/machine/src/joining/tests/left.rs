//! Clusters that the node left.

use super::*;

/// A new node that left the cluster of `inviter`, which has its door open still.
fn who_left(inviter: &Node, key: (SigningKey, NodeId), peers: &[String]) -> Node {
    let mut node = Node::fresh(key, peers);
    let left = LeftCluster::new(inviter.trust.cluster(), inviter.trust.view()).unwrap();
    node.joining = Joining::new(peers).staying_out_of(vec![left]);
    node
}

/// The cluster of the first key, in which the last one was.
fn inviter(keys: &[(SigningKey, NodeId)]) -> Node {
    let mut inviter = Node::fresh(keys[0].clone(), &[]);
    inviter.admit(NodeId([9; 32]));
    inviter
}

fn told(node: &mut Node) -> (Vec<NodeId>, Vec<String>) {
    let out = node.take();
    let notices = notices(&out);
    node.out = out;
    (node.asks(), notices)
}

#[test]
fn the_cluster_that_a_node_left_is_not_joined_on_sight_nor_by_its_address_and_the_node_says_so_once() {
    let keys = keys(3);
    let (inviter, peers) = (inviter(&keys), ["host:4000".to_owned()]);
    let mut node = who_left(&inviter, keys[2].clone(), &peers);
    node.found(inviter.me(), false);
    node.probed("host:4000", inviter.me(), false);
    node.wait(Duration::from_secs(60));
    let (asks, notices) = told(&mut node);
    assert_eq!((asks, notices.len()), (vec![], 1), "{notices:?}");
    assert!(notices[0].contains("this node left the cluster of"), "{notices:?}");

    node.lost(inviter.me());
    node.found(inviter.me(), false);
    node.found(keys[1].1, false);
    node.wait(SHORT);
    assert_eq!(told(&mut node), (vec![keys[1].1], vec![]), "another cluster is joined as before");
}

#[test]
fn who_came_to_the_cluster_since_is_asked_once_and_lets_nobody_back_in() {
    let keys = keys(3);
    let inviter = inviter(&keys);
    for answer in [
        JoinAnswer::Elsewhere { node: inviter.me(), addresses: vec![address(inviter.me())] },
        JoinAnswer::Welcome(Box::new(inviter.welcome())),
    ] {
        let mut node = who_left(&inviter, keys[2].clone(), &[]);
        node.found(keys[1].1, false);
        node.wait(SHORT);
        assert_eq!(told(&mut node), (vec![keys[1].1], vec![]), "nobody knows where it belongs");
        node.answered(keys[1].1, Ok(answer));
        node.wait(Duration::from_secs(60));
        let (asks, notices) = told(&mut node);
        assert_eq!((asks, notices.len()), (vec![], 1), "{notices:?}");
        assert!(node.joining.members().is_empty(), "who let it in may not connect");
    }
}

#[test]
fn a_node_sends_no_other_to_the_cluster_that_it_left() {
    let keys = keys(3);
    let inviter = inviter(&keys);
    let mut node = who_left(&inviter, keys[1].clone(), &[]);
    node.found(inviter.me(), false);
    node.take();
    node.asked(keys[2].1);
    node.admission();
}

#[test]
fn a_code_brings_a_node_back_and_then_nothing_is_left_of_it() {
    let keys = keys(3);
    let mut inviter = inviter(&keys);
    inviter.admit(keys[2].1);
    let mut node = who_left(&inviter, keys[2].clone(), &[]);
    node.found(inviter.me(), false);
    node.wait(SHORT);
    by_code(&mut node, None, Vec::new());
    assert_eq!(by_code_news(&mut node).0, [inviter.me()]);
    node.answered(inviter.me(), Ok(JoinAnswer::Welcome(Box::new(inviter.welcome()))));
    node.told(inviter.me(), inviter.news());
    node.trust = inviter.trust.clone();
    node.call(|joining, ctx, out| joining.moved_in(ctx, true, out));
    assert_eq!(by_code_news(&mut node).1, [Ok(inviter.config.name.clone())]);
    let left = &node.joining.left;
    assert!(!left.has(inviter.trust.cluster()) && left.of(inviter.me()).is_none());
}

#[test]
fn a_cluster_of_one_is_none_to_keep_away_from() {
    let keys = keys(3);
    let founder = Node::fresh(keys[2].clone(), &[]);
    assert_eq!(LeftCluster::new(founder.trust.cluster(), founder.trust.view()), None);
    let mut removed = Node::fresh(keys[0].clone(), &[]);
    removed.admit(keys[1].1);
    removed.record(Act::Remove { node: keys[1].1, reason: String::new() });
    let left = LeftCluster::new(removed.trust.cluster(), removed.trust.view());
    assert_eq!(left.unwrap().members, [removed.me()], "as the one that was put out sees it");
}
