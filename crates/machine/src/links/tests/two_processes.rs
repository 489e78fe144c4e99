//! One key in two places.

use super::*;

const FIRST: u64 = 200;
const COPY: u64 = 300;

/// This side keeps the link that it dialled to the first process, and another one with its key dials once in
/// 4 s.
#[test]
fn neither_of_two_processes_with_one_key_is_served_until_one_has_gone() {
    let mut one = One::with(HIGHER);
    one.dialled(10, 7, HIGHER, 2);
    one.accepted_by(20, 7, FIRST);
    one.told();
    let (mut now, mut id) = (1000, 8);
    loop {
        one.heard(now, 7);
        if now % 4000 == 0 {
            one.offered(now, id, HIGHER);
            one.accepted_by(now, id, COPY);
            id += 1;
        }
        one.run(now);
        let mut told = one.told();
        told.retain(|line| !line.starts_with("dial"));
        if !told.iter().all(|line| line.starts_with("close") && line.ends_with("NotAccepted")) {
            let (open, other) = (&told[..3], &told[3..]);
            assert_eq!(open, ["send 7 TwoProcesses", "close 7 TwoProcesses", "down Data TwoProcesses"]);
            assert_eq!(other, ["send 10 TwoProcesses", "close 10 TwoProcesses", "two processes"]);
            break;
        }
        now += 1000;
    }
    assert_eq!(now, 14_000, "10 s after the copy was first seen");

    // Both go on dialling, and both are told, once in every attempt.
    for (at, id, incarnation) in [(20_000, 20, COPY), (24_000, 21, FIRST), (30_000, 22, COPY)] {
        one.offered(at, id, HIGHER);
        one.accepted_by(at, id, incarnation);
        let mut told = one.told();
        told.retain(|line| !line.starts_with("dial"));
        assert_eq!(told, [format!("send {id} TwoProcesses"), format!("close {id} TwoProcesses")]);
        assert!(!one.links.is_open(HIGHER, Purpose::Data));
    }
    // From 34 s on there is one of them only, the older one.
    for (at, id, is_served) in
        [(34_000, 23, false), (45_000, 24, false), (63_999, 25, false), (64_000, 26, true)]
    {
        one.offered(at, id, HIGHER);
        one.accepted_by(at, id, FIRST);
        assert_eq!(one.links.is_open(HIGHER, Purpose::Data), is_served, "{at}");
    }
    for now in (65_000..200_000).step_by(1000) {
        one.heard(now, 26);
        one.run(now);
    }
    assert!(one.links.is_open(HIGHER, Purpose::Data));
}

/// The other side decides which link stays: each of the two processes takes the other one's place.
#[test]
fn two_processes_that_take_each_others_place_are_known_after_ten_seconds() {
    let mut one = One::with(LOWER);
    for round in 0..40 {
        let (now, id) = (300 * round, round + 1);
        one.run(now);
        one.offered(now, id, LOWER);
        one.accepted_by(now, id, if round % 2 == 0 { FIRST } else { COPY });
        if one.told().contains(&"two processes".to_owned()) {
            assert_eq!(now, 10_800, "10 s after the copy was first seen, the first one stands again");
            return;
        }
    }
    panic!("not noticed");
}

#[test]
fn a_process_that_starts_again_is_one_however_often_and_late_words_of_the_one_before_change_nothing() {
    let mut one = One::with(LOWER);
    for run in 0..20 {
        let (now, id) = (20_000 * run, 10 * run + 1);
        one.run(now);
        one.offered(now, id, LOWER);
        one.offered(now + 1, id + 1, LOWER);
        one.accepted_by(now + 5, id, FIRST + run);
        // It ends, and the next one is there at once; what the first had sent is still on its way.
        one.offered(now + 1000, id + 2, LOWER);
        one.accepted_by(now + 1000, id + 2, COPY + run);
        one.accepted_by(now + 9000, id + 1, FIRST + run);
        one.heard(now + 9900, id);
        one.down(now + 9950, id + 2);
        assert!(!one.told().contains(&"two processes".to_owned()), "{run}");
    }
}

#[test]
fn who_is_told_that_its_key_is_elsewhere_says_so_on_whatever_link_that_comes() {
    let mut one = One::with(HIGHER);
    one.dialled(10, 7, HIGHER, 2);
    one.told();
    one.links.down(ms(20), LinkId(7), LinkEnd::TwoProcesses, &mut one.out);
    assert_eq!(one.told(), ["key elsewhere"]);
    one.links.down(ms(30), LinkId(7), LinkEnd::TwoProcesses, &mut one.out);
    assert_eq!(one.told(), [""; 0], "a link that is not known");
}
