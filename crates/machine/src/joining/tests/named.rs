//! Addresses that a person named, and what is said beside them.

use super::*;

/// The last question to become a member: where it is asked, and whether only where that is near.
fn last_ask(node: &mut Node) -> (Vec<SocketAddr>, bool) {
    let asks = node.take().into_iter().filter_map(|output| match output {
        JoiningOutput::Effect(Effect::Joining(JoinEffect::Ask { addresses, only_near, ask, .. }))
            if ask.what == JoinPurpose::Membership =>
        {
            Some((addresses, only_near))
        }
        _ => None,
    });
    asks.last().expect("it asks")
}

/// As an announcement may say of it, whoever announces it.
fn announce(node: &mut Node, of: NodeId, at: SocketAddr) {
    node.hears(discovered(of, vec![at]));
}

#[test]
fn a_node_that_a_person_named_is_asked_there_whatever_is_announced_of_it() {
    let keys = keys(3);
    let (other, elsewhere) = (keys[1].1, SocketAddr::from(([203, 0, 113, 9], 1)));
    let mut node = Node::fresh(keys[0].clone(), &["host:4000".to_owned()]);
    node.probed("host:4000", other, false);
    announce(&mut node, other, elsewhere);
    node.wait(SHORT);
    assert_eq!(last_ask(&mut node), (vec![address(other)], false));

    let mut node = Node::fresh(keys[0].clone(), &[]);
    node.now.unix_s = SHUT_UNIX_S;
    by_code(&mut node, Some(other), vec![address(other)]);
    assert_eq!(last_ask(&mut node), (vec![address(other)], false), "with a code");
    announce(&mut node, other, elsewhere);
    node.answered(other, Ok(JoinAnswer::Later));
    node.wait(SHORT);
    assert_eq!(last_ask(&mut node), (vec![address(other)], false), "again");

    let mut node = Node::fresh(keys[0].clone(), &[]);
    announce(&mut node, other, elsewhere);
    by_code(&mut node, Some(other), Vec::new());
    assert_eq!(last_ask(&mut node), (vec![elsewhere], true), "whose address no person named is asked nearby");
}

#[test]
fn a_coordinator_is_where_it_is_said_to_be_by_whom_a_person_named() {
    let keys = keys(3);
    for is_named in [false, true] {
        let mut node = Node::fresh(keys[0].clone(), &["host:4000".to_owned()]);
        match is_named {
            true => node.probed("host:4000", keys[1].1, false),
            false => node.found(keys[1].1, false),
        }
        node.wait(SHORT);
        node.take();
        let coordinator = keys[2].1;
        let welcome = Welcome {
            name: "other".to_owned(),
            cluster: node.trust.cluster(),
            coordinator,
            coordinator_addresses: vec![address(coordinator)],
        };
        node.answered(keys[1].1, Ok(JoinAnswer::Welcome(Box::new(welcome))));
        let learn = JoiningOutput::Learn {
            node: coordinator,
            addresses: vec![address(coordinator)],
            is_vouched: is_named,
        };
        assert!(node.take().contains(&learn), "named: {is_named}");
    }
}

#[test]
fn a_named_node_that_another_let_in_is_still_where_the_person_said() {
    let keys = keys(2);
    let mut node = Node::fresh(keys[0].clone(), &["host:4000".to_owned()]);
    node.is_busy = true;
    node.probed("host:4000", keys[1].1, true);
    node.take();
    node.admit(keys[1].1);
    node.wait(SHORT);
    let prefer = JoiningOutput::Prefer { node: keys[1].1, address: address(keys[1].1) };
    assert!(node.take().contains(&prefer));
}

#[test]
fn a_node_with_a_token_joins_no_other_cluster_also_at_an_address_that_was_named() {
    let keys = keys(2);
    let mut node = Node::fresh(keys[0].clone(), &["host:4000".to_owned()]);
    (node.config.trust_closed, node.config.has_token) = (true, true);
    node.probed("host:4000", keys[1].1, false);
    node.wait(Duration::from_secs(20));
    assert!(node.asks().is_empty());
    by_code(&mut node, Some(keys[1].1), vec![address(keys[1].1)]);
    assert_eq!(by_code_news(&mut node).0, [keys[1].1], "with the token it does");
}

#[test]
fn who_announces_a_member_again_and_again_makes_few_dials() {
    let keys = keys(2);
    let mut node = Node::fresh(keys[0].clone(), &[]);
    node.admit(keys[1].1);
    let mut learned = 0;
    for number in 0..5_000 {
        announce(&mut node, keys[1].1, SocketAddr::from(([10, 0, 0, 1], number)));
        let is_learn = |output: &JoiningOutput| matches!(output, JoiningOutput::Learn { .. });
        learned += node.take().iter().filter(|output| is_learn(output)).count();
        node.now.time = node.now.time + Duration::from_millis(2);
    }
    assert!((50..=64).contains(&learned), "{learned} in ten seconds, where 24 and then four a second may be");
}

#[test]
fn names_and_announcements_of_members_use_up_nothing_of_each_others_dials() {
    let keys = keys(2);
    let mut node = Node::fresh(keys[0].clone(), &[]);
    node.admit(keys[1].1);
    node.take();
    let moves = |node: &mut Node, port: u16| {
        announce(node, keys[1].1, SocketAddr::from(([10, 0, 0, 1], port)));
        node.take().iter().any(|output| matches!(output, JoiningOutput::Learn { .. }))
    };
    while node.joining.dials.take(node.now.time) {}
    assert!(moves(&mut node, 4000), "a member that moved is heard in a flood of names");
    while node.joining.member_dials.take(node.now.time) {}
    assert!(!moves(&mut node, 4001), "its own announcements are bounded");

    let mut node = Node::fresh(keys[0].clone(), &[]);
    while node.joining.member_dials.take(node.now.time) {}
    node.found(keys[1].1, false);
    node.wait(SHORT);
    assert_eq!(node.asks(), [keys[1].1], "a newcomer is asked in a flood of announcements of a member");
}
