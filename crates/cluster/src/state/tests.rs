use exo_types::InstanceId;
use proptest::prelude::*;

use super::*;
use crate::testing::{node, placement, request};

fn member(n: u8, role: Role) -> Member {
    Member { node: node(n), name: format!("n{n}"), role, certificate: vec![n] }
}

fn founded() -> State {
    let mut state = State::default();
    let (cluster, founder) = (ClusterId([1; 16]), member(1, Role::Admin));
    state.apply(&Event::ClusterCreated { cluster, name: "home".into(), founder, at_unix_s: 0 }).unwrap();
    state.apply(&Event::MemberAdmitted(member(2, Role::Worker))).unwrap();
    state
}

/// The error of applying `event` to `state`, after checking that an error changed nothing.
fn refusal(state: &mut State, event: Event) -> Option<String> {
    let before = state.clone();
    let error = state.apply(&event).err()?;
    assert_eq!(*state, before, "a refused event must leave the state alone");
    Some(error.to_string())
}

fn placed(id: u64, number: u32, on: &[u8]) -> Event {
    Event::InstancePlaced {
        request: request(),
        placement: placement(id, number, on),
        memory_bytes: vec![1; on.len()],
    }
}

fn replaced(id: u64, number: u32, on: &[u8]) -> Event {
    Event::InstanceReplaced {
        placement: placement(id, number, on),
        memory_bytes: vec![1; on.len()],
        reason: String::new(),
    }
}

#[test]
fn a_removed_member_never_comes_back() {
    let mut state = founded();
    assert_eq!(refusal(&mut state, Event::MemberRemoved { node: node(2), reason: String::new() }), None);
    let again = refusal(&mut state, Event::MemberAdmitted(member(2, Role::Worker)));
    assert!(again.is_some_and(|e| e.contains("was removed")));
}

#[test]
fn the_join_window_shuts_for_good_with_the_first_removal_and_the_seventeenth_member() {
    let opened = || {
        let mut state = State::default();
        let (cluster, founder) = (ClusterId([1; 16]), member(1, Role::Admin));
        state.apply(&Event::ClusterCreated { cluster, name: "home".into(), founder, at_unix_s: 0 }).unwrap();
        assert_eq!(
            (state.join_window_until_unix_s(), state.join_window_left_s(0)),
            (None, 0),
            "not opened yet"
        );
        state.apply(&Event::JoinWindow { until_unix_s: 1_600 }).unwrap();
        state
    };
    let state = opened();
    let left = |now_unix_s| state.join_window_left_s(now_unix_s);
    assert_eq!((left(940), left(1_000), left(1_599), left(1_600)), (600, 600, 1, 0));
    assert_eq!(left(939), 0, "a clock that was set back");

    let mut state = opened();
    for n in 2..=16 {
        state.apply(&Event::MemberAdmitted(member(n, Role::Worker))).unwrap();
    }
    assert_eq!(state.join_window_left_s(1_000), 600);
    state.apply(&Event::MemberAdmitted(member(17, Role::Worker))).unwrap();
    assert_eq!(state.join_window_until_unix_s(), Some(0));

    let mut state = opened();
    state.apply(&Event::MemberAdmitted(member(2, Role::Worker))).unwrap();
    state.apply(&Event::MemberRemoved { node: node(2), reason: String::new() }).unwrap();
    assert_eq!(state.join_window_until_unix_s(), Some(0));
}

#[test]
fn a_cluster_is_used_once_something_was_placed_with_its_window_opened() {
    let mut state = founded();
    state.apply(&placed(1, 1, &[1, 2])).unwrap();
    assert!(!state.is_used(), "for the while of a command");
    state.apply(&Event::JoinWindow { until_unix_s: 600 }).unwrap();
    state.apply(&placed(2, 2, &[1, 2])).unwrap();
    assert!(state.is_used());
}

#[test]
fn the_only_admin_stays_until_another_is_appointed() {
    let mut state = founded();
    let remove = Event::MemberRemoved { node: node(1), reason: String::new() };
    assert!(refusal(&mut state, remove.clone()).is_some_and(|e| e.contains("only admin")));
    let appoint = Event::AdminAppointed { node: node(2), certificate: vec![2, 2] };
    assert_eq!(refusal(&mut state, appoint), None);
    assert_eq!(refusal(&mut state, remove), None);
    assert_eq!(state.admins().collect::<Vec<_>>(), vec![node(2)]);
}

#[test]
fn ids_of_instances_and_placements_are_never_used_twice() {
    let mut state = founded();
    assert_eq!(refusal(&mut state, placed(5, 2, &[1, 2])), None);
    let low = refusal(&mut state, replaced(5, 2, &[1])).unwrap();
    assert!(low.contains("p2/5@") && low.contains("is not after"), "{low}");
    assert!(refusal(&mut state, replaced(5, 1, &[1])).is_some_and(|e| e.contains("not after")));
    assert_eq!(refusal(&mut state, replaced(5, 4, &[1])), None, "numbers may be left out");
    let mut other = placement(6, 1, &[1]);
    other.id = crate::testing::placement_id(5, 4);
    let other = Event::InstancePlaced { request: request(), placement: other, memory_bytes: vec![1] };
    assert!(refusal(&mut state, other).is_some_and(|e| e.contains("not after")), "of another instance");
    let removed = Event::InstanceRemoved { instance: InstanceId(5), reason: String::new() };
    assert_eq!(refusal(&mut state, removed), None);
    assert!(refusal(&mut state, placed(5, 5, &[1])).is_some_and(|e| e.contains("not after")));
}

#[test]
fn a_placement_lies_on_members_and_covers_the_model() {
    let mut state = founded();
    assert!(refusal(&mut state, placed(1, 1, &[1, 3])).is_some_and(|e| e.contains("no member")));
    let mut short = placement(1, 1, &[1, 2]);
    short.stages.pop();
    let short = Event::InstancePlaced { request: request(), placement: short, memory_bytes: vec![1] };
    assert!(refusal(&mut state, short).is_some_and(|e| e.contains("layers")));
}

#[test]
fn nothing_happens_before_the_founding_and_nothing_founds_twice() {
    let mut state = State::default();
    assert!(refusal(&mut state, Event::JoinWindow { until_unix_s: 1 }).is_some());
    let (cluster, founder) = (ClusterId([1; 16]), member(1, Role::Admin));
    let again = Event::ClusterCreated { cluster, name: "b".into(), founder, at_unix_s: 0 };
    assert!(refusal(&mut founded(), again).is_some());
}

#[test]
fn a_snapshot_survives_a_round_trip_and_a_contradictory_one_is_refused() {
    let mut state = founded();
    state.apply(&placed(5, 1, &[1, 2])).unwrap();
    assert_eq!(State::decode(&state.encode()), Ok(state.clone()));
    state.removed.insert(node(2));
    assert!(State::decode(&state.encode()).is_err());
}

#[test]
fn a_merge_takes_over_whom_the_other_half_removed_and_admitted() {
    let (mut ours, mut theirs) = (founded(), founded());
    ours.apply(&Event::MemberRemoved { node: node(3), reason: String::new() }).unwrap();
    theirs.apply(&Event::MemberRemoved { node: node(2), reason: String::new() }).unwrap();
    theirs.apply(&Event::MemberAdmitted(member(3, Role::Worker))).unwrap();
    theirs.apply(&Event::MemberAdmitted(member(4, Role::Worker))).unwrap();
    for event in ours.member_changes_missing(&theirs) {
        ours.apply(&event).unwrap();
    }
    assert!(ours.is_removed(node(2)) && ours.is_removed(node(3)) && ours.members().contains_key(&node(4)));
    assert!(ours.member_changes_missing(&theirs).is_empty());
}

proptest! {
    #[test]
    fn no_bytes_make_decoding_an_event_or_a_snapshot_panic(bytes in proptest::collection::vec(any::<u8>(), 0..300)) {
        let _ = Event::decode(&bytes);
        let _ = State::decode(&bytes);
    }
}
