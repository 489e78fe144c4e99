use exo_types::InstanceId;
use proptest::prelude::*;

use super::*;
use crate::testing::{node, placement, request};
use crate::{Event, InstanceRequest, RemoveReason, ReplaceReason};

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
        reason: ReplaceReason::Drained { node: node(1) },
    }
}

#[test]
fn a_cluster_is_used_once_something_was_placed_with_its_node_open_to_others() {
    let mut state = State::default();
    state.apply(&placed(1, 1, &[1, 2])).unwrap();
    assert!(!state.is_used(), "for the while of a command");
    state.apply(&Event::Opened).unwrap();
    let on_demand = |id, number| {
        let Event::InstancePlaced { request, placement, memory_bytes } = placed(id, number, &[1, 2]) else {
            unreachable!("what `placed` makes")
        };
        let request = InstanceRequest { is_on_demand: true, ..request };
        Event::InstancePlaced { request, placement, memory_bytes }
    };
    state.apply(&on_demand(2, 2)).unwrap();
    assert!(!state.is_used(), "by requests, which load it again elsewhere");
    let mut kept = state.clone();
    kept.apply(&Event::InstanceKept { instance: InstanceId(2) }).unwrap();
    assert!(kept.is_used(), "a person wants it to stay");
    state.apply(&placed(3, 3, &[1, 2])).unwrap();
    assert!(state.is_used());
}

#[test]
fn ids_of_instances_and_placements_are_never_used_twice() {
    let mut state = State::default();
    assert_eq!(refusal(&mut state, placed(5, 2, &[1, 2])), None);
    let low = refusal(&mut state, replaced(5, 2, &[1])).unwrap();
    assert!(low.contains("p2/5@") && low.contains("is not after"), "{low}");
    assert!(refusal(&mut state, replaced(5, 1, &[1])).is_some_and(|e| e.contains("not after")));
    assert_eq!(refusal(&mut state, replaced(5, 4, &[1])), None, "numbers may be left out");
    let mut other = placement(6, 1, &[1]);
    other.id = crate::testing::placement_id(5, 4);
    let other = Event::InstancePlaced { request: request(), placement: other, memory_bytes: vec![1] };
    assert!(refusal(&mut state, other).is_some_and(|e| e.contains("not after")), "of another instance");
    let removed =
        Event::InstanceRemoved { instance: InstanceId(5), reason: RemoveReason::Unused { seconds: 1 } };
    assert_eq!(refusal(&mut state, removed), None);
    assert!(refusal(&mut state, placed(5, 5, &[1])).is_some_and(|e| e.contains("not after")));
}

#[test]
fn a_placement_covers_the_model() {
    let mut state = State::default();
    let mut short = placement(1, 1, &[1, 2]);
    short.stages.pop();
    let short = Event::InstancePlaced { request: request(), placement: short, memory_bytes: vec![1] };
    assert!(refusal(&mut state, short).is_some_and(|e| e.contains("layers")));
}

#[test]
fn a_snapshot_survives_a_round_trip_and_a_contradictory_one_is_refused() {
    let mut state = State::default();
    state.apply(&placed(5, 1, &[1, 2])).unwrap();
    assert_eq!(State::decode(&state.encode()), Ok(state.clone()));
    state.instance_last = None;
    assert!(State::decode(&state.encode()).is_err());
}

#[test]
fn what_another_build_wrote_is_refused_by_its_number_with_what_to_do() {
    for (first, got) in [(0x8d, 13), (0x8b, 11), (7, 3)] {
        let mut bytes = placed(5, 1, &[1]).encode();
        bytes[0] = first;
        let error = Event::decode(&bytes).unwrap_err();
        assert_eq!(error, EventError::Format { got });
        assert!(error.to_string().contains("exo leave"), "{error}");
        assert_eq!(State::decode(&bytes), Err(EventError::Format { got }));
    }
}

proptest! {
    #[test]
    fn no_bytes_make_decoding_an_event_or_a_snapshot_panic(bytes in proptest::collection::vec(any::<u8>(), 0..300)) {
        let _ = Event::decode(&bytes);
        let _ = State::decode(&bytes);
    }
}

#[test]
fn what_does_not_apply_is_found_before_it_is_written() {
    let mut state = State::default();
    state.apply(&placed(1, 1, &[1, 2])).unwrap();
    let before = state.clone();
    assert!(state.after(&[replaced(1, 2, &[1]), replaced(1, 3, &[2])]).is_ok(), "each after the one before");
    let wrong = state.after(&[replaced(1, 3, &[1]), replaced(1, 2, &[2])]);
    assert!(wrong.is_err_and(|error| error.to_string().contains("is not after")));
    assert!(state.after(&[replaced(7, 4, &[1])]).is_err(), "of no instance");
    assert_eq!(state, before);
}

/// An id that applies and that no snapshot may have would move the log of every member aside at its next
/// start.
#[test]
fn whatever_id_applies_is_read_again() {
    for id in [1, (1 << 63) - 1, 1 << 63, u64::MAX] {
        let mut state = State::default();
        match state.apply(&placed(id, 1, &[1])) {
            Ok(()) => assert_eq!(State::decode(&state.encode()).as_ref(), Ok(&state), "{id}"),
            Err(error) => assert!(id >= 1 << 63 && error.to_string().contains("where ids end"), "{error}"),
        }
    }
}

#[test]
fn the_latest_epoch_is_that_of_an_id_or_of_a_placement() {
    let mut state = State::default();
    let epoch = |counter| Epoch { counter, key: NodeId([0xff; 32]) };
    for (of_instance, of_placement, expected) in [(7, 7, 7), (9, 8, 9), (9, 12, 12)] {
        let (instance, last) = (state.instance_next(epoch(of_instance)), state.instance_last());
        assert!(Some(instance) > last);
        let mut placement = placement(instance.0, 1, &[1]);
        placement.id.epoch = epoch(of_placement);
        let placed = Event::InstancePlaced { request: request(), placement, memory_bytes: vec![1] };
        assert_eq!(refusal(&mut state, placed), None);
        assert_eq!(state.counter_last(), expected);
    }
}

#[test]
fn a_state_never_becomes_too_large_to_be_read_again() {
    let layer = exo_types::LayerShape {
        weight_bytes: 1 << 50,
        packed_bytes: 1 << 50,
        flops_per_token: 1 << 50,
        kv_bytes_per_token: 1 << 24,
    };
    let large = |id: u64| {
        let (mut request, mut placement) = (request(), placement(id, 1, &[1]));
        request.shape.layers = vec![layer; 4096];
        let stage = &mut placement.stages[0];
        (stage.layers.end, stage.shards[0].shard.layers.end) = (4096, 4096);
        Event::InstancePlaced { request, placement, memory_bytes: vec![1] }
    };
    let mut state = State::default();
    let refused = (1..=256).find_map(|id| refusal(&mut state, large(id)));
    assert!(refused.is_some_and(|why| why.contains("bytes of all placements")));
    assert!(state.instances().len() > 16);
    assert_eq!(State::decode(&state.encode()).as_ref(), Ok(&state));
}
