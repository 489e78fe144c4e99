//! Properties of two sides together, over many seeds.

use super::pair::Pair;

/// Both sides end with one and the same open link.
fn agree(pair: &Pair, seed: u64) -> u64 {
    let [a, b] = &pair.sides;
    assert!(a.open.is_some() && a.open == b.open, "seed {seed}: {:?} and {:?}", a.open, b.open);
    a.open.unwrap()
}

fn all_arrived(pair: &Pair, seed: u64) {
    for (from, to) in [(0, 1), (1, 0)] {
        let all: Vec<_> = (1..=pair.sides[from].sent).collect();
        assert_eq!(pair.sides[to].received, all, "seed {seed}, from side {from}");
    }
}

/// No message came twice or behind a later one.
fn in_order(pair: &Pair, seed: u64) {
    for side in &pair.sides {
        assert!(side.received.is_sorted_by(|a, b| a < b), "seed {seed}: {:?}", side.received);
    }
}

#[test]
fn while_links_stay_up_every_message_arrives_once_and_in_order() {
    let mut two_stood = 0;
    for seed in 0..4500 {
        // The higher id starts to dial 1.2 s after it starts: about when the lower one starts, in half of the
        // runs.
        let mut pair = Pair::new(seed, 1 + seed % 200, 2400);
        pair.run(pair.started);
        pair.talk(30);
        pair.run(10_000);
        agree(&pair, seed);
        all_arrived(&pair, seed);
        for side in &pair.sides {
            assert_eq!((side.ups, side.downs, side.undeliverable), (1, 0, 0), "seed {seed}");
        }
        two_stood += u64::from(pair.replaced > 0);
    }
    assert!(two_stood > 200, "only {two_stood} runs in which both dialled and both links stood");
}

#[test]
fn a_pair_meets_whichever_side_can_dial() {
    for seed in 0..400 {
        let mut pair = Pair::new(seed, 1 + seed % 100, 500);
        pair.reach = [seed % 2 == 0, seed % 2 == 1];
        pair.talk(30);
        pair.run(10_000);
        agree(&pair, seed);
        all_arrived(&pair, seed);
    }
}

#[test]
fn links_that_break_lose_only_what_was_in_them() {
    for seed in 0..1000 {
        let mut pair = Pair::new(seed, 1 + seed % 300, 2400);
        pair.run(2000);
        for _ in 0..4 {
            pair.talk(40);
            let until = pair.now + pair.chance.below(3000);
            pair.run(until);
            if let Some(conn) = pair.sides[pair.chance.below(2) as usize].open {
                pair.break_off(conn);
            }
        }
        let until = pair.now + 15_000;
        pair.run(until);
        let conn = agree(&pair, seed);
        in_order(&pair, seed);
        let before = pair.sides.each_ref().map(|side| side.received.len());
        pair.talk(20);
        pair.run(until + 5000);
        assert_eq!(agree(&pair, seed), conn, "seed {seed}: nothing happened");
        let after = pair.sides.each_ref().map(|side| side.received.len());
        assert_eq!(after, before.map(|len| len + 20), "seed {seed}");
        in_order(&pair, seed);
    }
}

#[test]
fn a_link_that_falls_silent_one_way_or_both_is_replaced() {
    for seed in 0..600 {
        let mut pair = Pair::new(seed, 1 + seed % 100, 2400);
        pair.run(6000);
        let silent = agree(&pair, seed);
        match seed % 3 {
            0 => pair.go_silent(silent),
            side => pair.go_deaf(silent, side as usize - 1),
        }
        pair.talk(300);
        pair.run(30_000);
        assert!(agree(&pair, seed) > silent, "seed {seed}");
        in_order(&pair, seed);
        pair.talk(10);
        pair.run(35_000);
        for (side, from) in [(0, 1), (1, 0)] {
            assert_eq!(pair.sides[side].received.last(), Some(&pair.sides[from].sent), "seed {seed}");
        }
    }
}
