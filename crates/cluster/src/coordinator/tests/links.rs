//! What the planner is told of links.

use exo_planner::LinkFacts;
use exo_types::InstanceId;

use super::*;
use crate::testing::placement;
use crate::wire::{AloneTimes, LoadReport, PhaseTimes};
use crate::{State, StateInstance, hop_seconds};

/// What `at` says of its link with `peer`.
fn says(at: u8, peer: u8, rtt_us: u32, inbound: Option<u64>) -> (NodeId, NodeReport) {
    let inbound = inbound.map(|bytes_per_s| Bandwidth { bytes_per_s, count: 1, age_s: 0 });
    let link = LinkReport {
        peer: node(peer),
        rtt_us,
        rtt_count: 9,
        rtt_age_ms: 0,
        jitter_us: 0,
        inbound,
        traffic: None,
        is_wireless: None,
    };
    (node(at), NodeReport { links: vec![link], ..report(at, PLENTY) })
}

/// Round trip in milliseconds and bytes per second, from 1 to 2 and from 2 to 1.
fn facts(reports: [(NodeId, NodeReport); 2]) -> [(u8, f64, Option<f64>); 2] {
    let links = link_facts(&reports.into(), |_| true);
    let fact = |link: &LinkFacts| {
        let rtt_ms = link.rtt_s.map_or(-1.0, |figure| (figure.value * 1e6).round() / 1e3);
        (link.from.0[0], rtt_ms, link.bytes_per_s.map(|figure| figure.value))
    };
    let [one, other] = &links[..] else { panic!("{links:?}") };
    [fact(one), fact(other)]
}

#[test]
fn whoever_receives_says_how_fast_and_the_longer_round_trip_counts() {
    let told = facts([says(1, 2, 5000, Some(70)), says(2, 1, 200, Some(9000))]);
    assert_eq!(told, [(1, 5.0, Some(9000.0)), (2, 5.0, Some(70.0))], "2 cannot make itself nearer");
    let told = facts([says(1, 2, 100, None), says(2, 1, 200, Some(9000))]);
    assert_eq!(told, [(1, 0.2, Some(9000.0)), (2, 0.2, Some(9000.0))], "the other direction stands in");
}

#[test]
fn only_links_among_those_asked_for_are_told() {
    let reports = BTreeMap::from([says(1, 2, 100, None), says(2, 3, 100, None), says(3, 1, 100, None)]);
    let links = link_facts(&reports, |id| id != node(3));
    assert_eq!(links.iter().map(|l| (l.from.0[0], l.to.0[0])).collect::<Vec<_>>(), [(1, 2)]);
}

/// What a scheduler tells of an answer of so many tokens that had its pipeline to itself.
fn load(placement: PlacementId, answer_tokens: u32, between_us: u64) -> LoadReport {
    let answer = PhaseTimes { stages_us: vec![900, 900], between_us };
    LoadReport {
        placement,
        running: 0,
        waiting: 0,
        waiting_max: 64,
        pages: 8,
        pages_used: 0,
        pages_cached: 0,
        prompt_tokens: 0,
        cached_tokens: 0,
        drafts: 0,
        drafts_accepted: 0,
        steps: 0,
        prompt_tokens_per_s: None,
        tokens_per_s: None,
        alone: Some(AloneTimes { prompt_tokens: 3, answer_tokens, answer, ..AloneTimes::default() }),
    }
}

/// In microseconds, of a pipeline over these nodes whose answer the first of them tells of. A round trip
/// takes a millisecond, and a row of 8 bytes the same.
fn hop_us(on: &[u8], teller: u8, (tokens, between_us): (u32, u64)) -> Option<f64> {
    let placement = placement(1, 1, on);
    let mut reports = BTreeMap::from([says(1, 2, 1000, Some(8000)), says(2, 1, 1000, Some(8000))]);
    let told = load(placement.id, tokens, between_us);
    reports.get_mut(&node(teller)).unwrap().measured.loads = vec![told];
    let mut state = State::default();
    let instance = StateInstance { request: request(), placement, memory_bytes: Vec::new() };
    state.instances.insert(InstanceId(1), instance);
    let hop = hop_seconds(&reports, &link_facts(&reports, |_| true), &state)?;
    Some((hop.value * 1e7).round() / 10.0)
}

#[test]
fn a_hop_takes_what_an_answer_took_between_stages_and_its_links_did_not() {
    // Of each of ten tokens 1 ms on the way there and back, 1 ms on the wire, and 0.24 ms.
    assert_eq!(hop_us(&[1, 2], 1, (10, 22_400)), Some(120.0));
    assert_eq!(hop_us(&[1, 2], 1, (10, 900)), Some(1.0), "less than its links took");
    assert_eq!(hop_us(&[1, 2], 1, (10, 9_000_000)), Some(5000.0), "something else was waited for");
    assert_eq!(hop_us(&[1, 2], 1, (3, 22_400)), None, "too few tokens");
    assert_eq!(hop_us(&[1, 2], 2, (10, 22_400)), None, "that is not its scheduler");
    assert_eq!(hop_us(&[1], 1, (10, 22_400)), None, "one stage");
    assert_eq!(hop_us(&[2, 3], 2, (10, 22_400)), None, "a link that nobody has measured");
}
