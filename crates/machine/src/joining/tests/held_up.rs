//! Strangers that say what holds a new node up, and an honest node beside them.

use super::*;

/// Whom it asked what, and where.
fn questions(node: &mut Node) -> Vec<(NodeId, JoinPurpose, Vec<SocketAddr>)> {
    let asks = node.take().into_iter().filter_map(|output| match output {
        JoiningOutput::Effect(Effect::Joining(JoinEffect::Ask { with, addresses, ask, .. })) => {
            Some((with, ask.what, addresses))
        }
        _ => None,
    });
    asks.collect()
}

#[test]
fn what_another_says_of_a_node_replaces_no_address_that_it_announced() {
    let keys = keys(3);
    let (liar, honest) = (keys[0].1, keys[1].1);
    let mut node = Node::fresh(keys[2].clone(), &[]);
    node.found(liar, false);
    node.found(honest, false);
    node.wait(SHORT);
    assert_eq!(node.asks(), [liar]);
    let nowhere = SocketAddr::from(([10, 9, 9, 9], 4000));
    node.answered(liar, Ok(JoinAnswer::Elsewhere { node: honest, addresses: vec![nowhere] }));
    let asked = questions(&mut node);
    assert_eq!(asked, [(honest, JoinPurpose::Membership, vec![address(honest), nowhere])]);
}

#[test]
fn what_one_says_of_a_node_that_announced_nothing_leaves_room_for_what_the_next_one_says() {
    let keys = keys(4);
    let (liar, honest, told_of) = (keys[0].1, keys[1].1, keys[2].1);
    let mut node = Node::fresh(keys[3].clone(), &[]);
    node.found(liar, false);
    node.found(honest, false);
    node.wait(SHORT);
    assert_eq!(node.asks(), [liar]);
    let nowhere = (0..=u8::MAX).map(|n| SocketAddr::from(([10, 9, 9, n], 4000))).collect();
    node.answered(liar, Ok(JoinAnswer::Elsewhere { node: told_of, addresses: nowhere }));
    assert_eq!(node.asks(), [honest]);
    node.answered(honest, Ok(JoinAnswer::Elsewhere { node: told_of, addresses: vec![address(told_of)] }));
    node.wait(SHORT);
    let asked = questions(&mut node);
    let is_there = |(with, _, at): &(NodeId, JoinPurpose, Vec<SocketAddr>)| {
        (*with, at.first().copied()) == (told_of, Some(address(told_of)))
    };
    assert!(asked.iter().all(is_there) && asked.len() == 1, "{asked:?}");
}

/// The lowest new node answers whatever it likes, but neither lets in nor refuses: the others found a cluster
/// without it.
#[test]
fn who_answers_neither_yes_nor_no_keeps_nobody_apart() {
    let other = NodeId([255; 32]);
    let answers = [
        JoinAnswer::Here { name: "here".to_owned(), fresh: true },
        JoinAnswer::Trust(Vec::new()),
        JoinAnswer::Elsewhere { node: other, addresses: vec![address(other)] },
    ];
    for answer in answers {
        let keys = keys(3);
        let honest = keys[1].1;
        let mut node = Node::fresh(keys[2].clone(), &[]);
        node.found(keys[0].1, true);
        node.found(honest, true);
        node.wait(ALL_ARE_SEEN);
        let mut is_asked = false;
        for _ in 0..60 {
            for (with, what, _) in questions(&mut node) {
                is_asked |= with == honest && what == JoinPurpose::Membership;
                node.answered(with, Ok(answer.clone()));
            }
            node.wait(Duration::from_millis(300));
        }
        assert!(is_asked, "{answer:?} for 18 s");
    }
}

#[test]
fn one_host_that_puts_off_with_many_keys_is_passed_over_with_all_of_them() {
    let keys = keys(6);
    let honest = keys[4].1;
    let mut node = Node::fresh(keys[5].clone(), &[]);
    let host = SocketAddr::from(([10, 9, 9, 9], 4000));
    for (_, fake) in &keys[..4] {
        node.hears(DiscoveredNode { is_fresh: true, ..discovered(*fake, vec![host]) });
    }
    node.found(honest, true);
    node.wait(ALL_ARE_SEEN);
    for _ in 0..40 {
        for (with, ..) in questions(&mut node) {
            if with == honest {
                return;
            }
            let (words, answer) = (String::new(), Ok(JoinAnswer::Later));
            let event = JoinEvent::Answered { with, address: host, words, answer };
            node.call(|joining, ctx, out| joining.event(ctx, event, out));
        }
        node.wait(Duration::from_millis(300));
    }
    panic!("keys of one host put a join off for 12 s");
}

#[test]
fn who_lets_in_and_sends_no_log_comes_behind_the_others_then() {
    let keys = keys(3);
    let liar = Node::fresh(keys[0].clone(), &[]);
    let mut node = Node::fresh(keys[2].clone(), &[]);
    node.found(liar.me(), false);
    node.found(keys[1].1, false);
    node.wait(SHORT);
    assert_eq!(node.asks(), [liar.me()]);
    node.answered(liar.me(), Ok(JoinAnswer::Welcome(Box::new(liar.welcome()))));
    node.wait(Duration::from_millis(14_999));
    assert!(node.asks().is_empty());
    node.wait(Duration::from_millis(1));
    assert_eq!(node.asks(), [keys[1].1]);
}

#[test]
fn who_does_not_say_who_it_is_is_not_waited_for() {
    let keys = keys(3);
    let honest = keys[1].1;
    let mut node = Node::fresh(keys[2].clone(), &[]);
    node.found(keys[0].1, true);
    node.found(honest, true);
    node.joining.attempts_failed = 2; // all must say who they are
    node.wait(SHORT);
    for (with, what, _) in questions(&mut node) {
        assert_eq!(what, JoinPurpose::Name);
        let here = JoinAnswer::Here { name: "here".to_owned(), fresh: true };
        node.answered(with, Ok(if with == honest { here } else { JoinAnswer::Later }));
    }
    node.wait(ALL_ARE_SEEN);
    assert!(node.asks().contains(&honest));
}

/// Else the two would found a cluster while that one founds another.
#[test]
fn a_lower_one_that_answers_is_pointed_to_however_long_it_has_been_there() {
    let keys = keys(3);
    let mut node = Node::fresh(keys[1].clone(), &[]);
    node.found(keys[0].1, true);
    node.wait(Duration::from_secs(4));
    assert_eq!(node.asks(), [keys[0].1]);
    for _ in 0..18 {
        node.answered(keys[0].1, Ok(JoinAnswer::Later));
        node.wait(Duration::from_millis(300));
    }
    node.answered(keys[0].1, Ok(JoinAnswer::Later));
    node.take();
    node.asked(keys[2].1);
    assert_eq!(node.answers(), [format!("elsewhere: {}", keys[0].1)], "nine seconds after it was seen");
}

#[test]
fn who_waited_for_the_stranger_that_this_node_waited_for_has_its_time_anew() {
    let keys = keys(3);
    let (liar, honest) = (NodeId([200; 32]), keys[0].1);
    let mut node = Node::fresh(keys[2].clone(), &[]);
    node.found(liar, false);
    node.found(honest, true);
    node.found(keys[1].1, true);
    let (mut of_liar, mut of_honest) = (0, 0);
    for _ in 0..40 {
        for (with, ..) in questions(&mut node) {
            assert_ne!(with, keys[1].1, "not the next one, who joins the lowest as well");
            (of_liar, of_honest) =
                (of_liar + usize::from(with == liar), of_honest + usize::from(with == honest));
            let elsewhere = JoinAnswer::Elsewhere { node: liar, addresses: vec![address(liar)] };
            node.answered(with, Ok(if with == honest { elsewhere } else { JoinAnswer::Later }));
        }
        node.wait(Duration::from_millis(300));
    }
    assert!(of_liar > 5 && of_honest > 2, "{of_liar} and {of_honest} questions");
}

/// The honest node is announced at the liar's address, and says after a while where it is.
#[test]
fn who_is_announced_where_another_stalls_has_its_time_anew_as_well() {
    let keys = keys(2);
    let (liar, honest) = (NodeId([200; 32]), keys[0].1);
    let mut node = Node::fresh(keys[1].clone(), &[]);
    node.found(liar, false);
    node.found(honest, true);
    let mut asked_again = 0;
    for round in 0..50 {
        match round {
            12 => {
                let found = discovered(honest, vec![address(liar)]);
                node.hears(DiscoveredNode { is_fresh: true, ..found });
            }
            35 => node.found(honest, true),
            _ => {}
        }
        for (with, what, at) in questions(&mut node) {
            asked_again += usize::from(round >= 35 && with == honest);
            let elsewhere = JoinAnswer::Elsewhere { node: liar, addresses: vec![address(liar)] };
            let answer = match what {
                JoinPurpose::Name => JoinAnswer::Here { name: "here".to_owned(), fresh: with == honest },
                _ if with == honest => elsewhere,
                _ => JoinAnswer::Later,
            };
            if with == honest && at == [address(liar)] {
                let (address, words) = (SocketAddr::from(([0, 0, 0, 0], 0)), String::new());
                let answer = Err("another node answers there".to_owned());
                let event = JoinEvent::Answered { with, address, words, answer };
                node.call(|joining, ctx, out| joining.event(ctx, event, out));
            } else {
                node.answered(with, Ok(answer));
            }
        }
        node.wait(Duration::from_millis(300));
    }
    assert!(asked_again > 1, "{asked_again} questions");
}

#[test]
fn where_another_new_node_is_known_nobody_is_asked_at_an_address_that_stalls() {
    let keys = keys(2);
    let mut node = Node::fresh(keys[0].clone(), &[]);
    let host = SocketAddr::from(([10, 9, 9, 9], 4000));
    let liars = [NodeId([1; 32]), NodeId([2; 32])];
    for liar in liars {
        node.hears(discovered(liar, vec![host]));
    }
    node.found(keys[1].1, true);
    node.wait(SHORT);
    assert_eq!(node.asks(), [liars[0]]);
    let (words, answer) = (String::new(), Err("no answer in time".to_owned()));
    let event = JoinEvent::Answered { with: liars[0], address: host, words, answer };
    node.call(|joining, ctx, out| joining.event(ctx, event, out));
    node.wait(Duration::from_secs(3));
    assert!(node.asks().is_empty());
    node.asked(keys[1].1);
    node.admission();
}
