//! Runs whose faults and clients are chosen by hand: each was a hang or a delay that a seed found.

use std::time::Duration;

use exo_sim::clients::{self, Client};
use exo_sim::faults::{Cut, Fault, FaultKind};
use exo_sim::{ALL, Choice, Kind, Options, Report, Scenario, World, seconds};
use exo_types::Time;

/// Two members that both have the model, a client at each of them, and these faults. The run ends 5 s after `until_s`, or
/// later if an answer comes later.
fn run_two(faults: &[(u64, FaultKind)], clients_ms: u64, until_s: u64) -> Report {
    let choice = Choice { nodes: Some(2), seconds: Some(until_s), ..Choice::all(1, Kind::Faults) };
    let fault = |(index, (at_ms, kind)): (usize, &(u64, FaultKind))| Fault {
        index,
        at: Time::from_millis(*at_ms),
        kind: *kind,
    };
    let clients = clients::list(1, 2, clients_ms, clients_ms).into_iter();
    let scenario = Scenario {
        is_founded: true,
        lans: vec![0; 2],
        holders: vec![true; 2],
        stages_min: 1,
        faults: faults.iter().enumerate().map(fault).collect(),
        clients: clients.map(|client| Client { node: client.index, cancel: None, ..client }).collect(),
        asks: Vec::new(),
        ..Scenario::new(&choice)
    };
    World::new(scenario, Options::default(), ALL).run()
}

#[test]
fn a_question_in_a_link_that_ends_is_asked_again() {
    let lasting = Duration::from_secs(60);
    let cut = FaultKind::CutPair { from: 0, to: 1, one_way: false, cut: Cut::Silence, lasting };
    let report = run_two(&[(5_000, cut)], 5_100, 20);
    let result = (report.failure, report.answered, seconds(report.until));
    assert_eq!(result, (None, 2, 25.0), "{:?}", report.failed);
}
