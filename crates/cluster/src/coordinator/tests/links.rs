//! What the planner is told of links.

use exo_planner::LinkFacts;

use super::*;

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
