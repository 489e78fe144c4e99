//! Runs whose faults and clients are chosen by hand: each was a hang or a delay that a seed found.

use std::sync::Arc;
use std::time::Duration;

use exo_cluster::State;
use exo_cluster::wire::{ControlMessage, Drain, LogMessage};
use exo_machine::{Outgoing, Purpose};
use exo_sim::clients::{self, Ask, AskWhat, Client};
use exo_sim::faults::{Cut, End, Fault, FaultKind, Whose};
use exo_sim::founding::{key, node_id};
use exo_sim::{ALL, Kind, Options, Report, RunSelection, Scenario, World, seconds};
use exo_types::{InstanceId, LogHead, Time, Transport};

const SEED: u64 = 1;

/// So many nodes of one LAN that all have the model, and these faults. Nobody asks anything but at the end.
fn scenario(nodes: usize, is_founded: bool, faults: &[(u64, FaultKind)], until_s: u64) -> Scenario {
    let choice =
        RunSelection { nodes: Some(nodes), seconds: Some(until_s), ..RunSelection::all(SEED, Kind::Faults) };
    let at = |ms: u64| Time::from_millis(ms);
    let faults = faults.iter().enumerate();
    Scenario {
        is_founded,
        lans: vec![0; nodes],
        holders: vec![true; nodes],
        stages_min: 1,
        faults: faults.map(|(index, &(ms, kind))| Fault { index, at: at(ms), kind }).collect(),
        clients: Vec::new(),
        asks: Vec::new(),
        starts_ms: 30,
        ..Scenario::new(&choice)
    }
}

fn run(scenario: Scenario) -> Report {
    World::new(scenario, Options::default(), ALL).run()
}

#[test]
fn a_question_in_a_link_that_ends_is_asked_again() {
    let lasting = Duration::from_secs(60);
    let cut = FaultKind::CutPair { from: 0, to: 1, one_way: false, cut: Cut::Silence, lasting };
    let clients = clients::list(SEED, 2, 5_100, 5_100).into_iter();
    let report = run(Scenario {
        clients: clients.map(|client| Client { node: client.index, cancel: None, ..client }).collect(),
        ..scenario(2, true, &[(5_000, cut)], 20)
    });
    // The run goes on for as long as an answer is missing.
    let result = (report.failure, report.answered, seconds(report.until));
    assert_eq!(result, (None, 2, 25.0), "{:?}", report.failed);
}

/// A request has the model placed, and the link ends at some moment of that: before, or with the question or
/// the answer in it, or after. What is placed is checked all the same.
#[test]
fn what_a_request_has_placed_is_checked_though_the_answer_was_lost() {
    let lasting = Duration::from_secs(3);
    for node in 0..2 {
        for at_ms in (5_100..5_160).step_by(4) {
            let cut = FaultKind::CutPair { from: 0, to: 1, one_way: false, cut: Cut::Silence, lasting };
            let clients = clients::list(SEED, 1, 5_100, 5_100).into_iter();
            let report = run(Scenario {
                clients: clients.map(|client| Client { node, cancel: None, ..client }).collect(),
                ..scenario(2, true, &[(at_ms, cut)], 50) // longer than a question waits for its answer
            });
            assert_eq!((report.failure, &report.failed), (None, &vec![]), "{node} {at_ms}");
            assert!(report.checks > 0, "the client of node {node}, the link cut at {at_ms} ms");
        }
    }
}

/// Two of three members do not reach each other. Whoever needs a coordinator, or a model, that is out of its
/// reach hears so, with who can be asked instead, and does not wait; all others are answered.
#[test]
fn what_a_third_member_reaches_and_this_one_does_not_is_refused_and_not_waited_for() {
    let lasting = Duration::from_secs(100);
    let mut failed = Vec::new();
    for (from, to, placed) in [0, 1].into_iter().flat_map(|n| [(0, 1, n), (0, 2, n), (1, 2, n)]) {
        let cut = FaultKind::CutPair { from, to, one_way: false, cut: Cut::Silence, lasting };
        let early = clients::list(SEED, placed, 3_000, 3_000).into_iter();
        let late = clients::list(SEED, 4, 25_000, 25_000).into_iter().skip(1);
        let client = |client: Client| Client { node: client.index % 3, cancel: None, ..client };
        let report = run(Scenario {
            clients: early.chain(late).map(client).collect(),
            ..scenario(3, true, &[(5_000, cut)], 37)
        });
        // The run goes on for as long as an answer is missing.
        assert_eq!(report.failure, None, "{from} and {to}");
        assert!(seconds(report.until) <= 45.0, "{from} and {to}: {} s", seconds(report.until));
        println!("{from} and {to}: {} answered, {:?}", report.answered, report.failed);
        failed.extend(report.failed);
    }
    assert!(failed.iter().all(|why| why.contains("ask on") || why.contains("ask there")), "{failed:?}");
    for each in ["which coordinates its cluster", "which computes this model"] {
        assert!(failed.iter().any(|why| why.contains(each)), "{each}: {failed:?}");
    }
}

/// A model is to be over three members of which two have no data link. Whoever asks for it hears so in time,
/// with their names, and does not wait until its deadline.
#[test]
fn what_fits_only_over_two_members_without_a_link_is_refused_in_time() {
    let lasting = Duration::from_secs(100);
    let mut named = 0;
    for (from, to) in [(0, 1), (0, 2), (1, 2)] {
        let cut = FaultKind::CutPair { from, to, one_way: false, cut: Cut::Silence, lasting };
        let clients = clients::list(SEED, 3, 25_000, 25_000).into_iter();
        let client = |client: Client| Client { node: client.index % 3, cancel: None, ..client };
        let clients = clients.map(client).collect();
        let report = run(Scenario { stages_min: 3, clients, ..scenario(3, true, &[(5_000, cut)], 37) });
        let case = format!("{from} and {to}: {:?}", report.failed);
        assert_eq!((report.failure, report.answered), (None, 0), "{case}");
        // The run goes on for as long as an answer is missing.
        assert!(seconds(report.until) <= 45.0, "{case} {} s", seconds(report.until));
        named += report.failed.iter().filter(|why| why.contains("no data link is open")).count();
    }
    assert!(named > 0, "no pair was without the coordinator");
}

/// UDP stops between two members while their answers cross the data link. Nobody is lost, no answer fails,
/// and a few seconds later their control link is one over TCP.
#[test]
fn udp_that_stops_between_two_members_loses_neither_and_no_answer() {
    let lasting = Duration::from_secs(20);
    for nodes in [2, 3] {
        // Who starts dials before the others listen; links that are made anew are over what is preferred.
        let reset = FaultKind::Reset { from: 0, to: 1, which: usize::MAX };
        let cut = FaultKind::CutUdp { from: 0, to: 1, lasting };
        let clients = clients::list(SEED, 8, 3_500, 20_000).into_iter();
        let client = |client: Client| Client { node: client.index % nodes, cancel: None, ..client };
        let scenario = Scenario {
            stages_min: nodes as u32,
            clients: clients.map(client).collect(),
            ..scenario(nodes, true, &[(1_500, reset), (5_000, cut)], 40)
        };
        let mut world = World::new(scenario, Options::default(), ALL);
        for ms in (4_750..40_000).step_by(250) {
            world.run_until(Time::from_millis(ms));
            for node in 0..nodes {
                assert!(world.shown_gone(node).is_empty(), "{ms} ms, n{node}: {:?}", world.shown_gone(node));
            }
            let over = [Purpose::Control, Purpose::Data].map(|purpose| world.linked_over(0, 1, purpose));
            match ms {
                4_750 => assert_eq!(over, [Some(Transport::Quic), Some(Transport::Tcp)]),
                12_000..25_000 => assert_eq!(over, [Some(Transport::Tcp); 2], "{ms} ms"),
                _ => assert_eq!(over[1], Some(Transport::Tcp), "{ms} ms"),
            }
        }
        let report = world.report();
        assert_eq!((report.failure, report.failed.len()), (None, 0), "{nodes} nodes: {:?}", report.failed);
        assert!(report.answered >= 8, "{nodes} nodes: {}", report.answered);
    }
}

/// Nodes that show a coordinator as out of their reach, at the end of each quarter of a second of these.
fn cut_off_in(world: &mut World, from_ms: u64, until_ms: u64) -> Vec<Vec<usize>> {
    let at = (from_ms..=until_ms).step_by(250).map(Time::from_millis);
    let shown = at.map(|at| {
        world.run_until(at);
        (0..3).filter(|node| world.unheard_coordinator(*node).is_some()).collect()
    });
    let shown = shown.collect();
    assert_eq!(world.report().failure, None);
    shown
}

/// A node that a cut parts from its coordinator shows so after 5 s and until the cut is over: an alert that
/// takes 3 s more is there within 10. The others show nothing.
#[test]
fn who_is_parted_from_the_coordinator_shows_so_and_no_one_else_does() {
    let lasting = Duration::from_secs(15);
    let mut parted = 0;
    for (from, to) in [(0, 1), (0, 2), (1, 2)] {
        let cut = FaultKind::CutPair { from, to, one_way: false, cut: Cut::Silence, lasting };
        let mut world = World::new(scenario(3, true, &[(5_000, cut)], 40), Options::default(), ALL);
        assert!(cut_off_in(&mut world, 3_000, 5_000).concat().is_empty());
        world.run_until(Time::from_millis(10_000));
        let shown = cut_off_in(&mut world, 10_000, 19_750);
        assert!(shown.iter().all(|at| *at == shown[0] && at.len() <= 1), "{from} and {to}: {shown:?}");
        parted += shown[0].len();
        world.run_until(Time::from_millis(24_000));
        assert!(cut_off_in(&mut world, 24_000, 25_000).concat().is_empty(), "{from} and {to}: it is over");
    }
    assert_eq!(parted, 2, "one cut parts two of which neither coordinates");
}

/// The coordinator is away, and no disk takes an epoch for 20 s: nobody is cut off from anything.
#[test]
fn in_an_election_of_20_s_no_one_shows_a_coordinator_out_of_reach() {
    let s = Duration::from_secs;
    let full = |node| (5_000, FaultKind::FullDisk { node: Whose::Node(node), lasting: s(20) });
    let away = FaultKind::KillCoordinator { end: End::PowerLost, down: s(21) };
    let faults = [full(0), full(1), full(2), (5_100, away)];
    let mut world = World::new(scenario(3, true, &faults, 40), Options::default(), ALL);
    let shown = cut_off_in(&mut world, 5_000, 25_000);
    assert!(shown.concat().is_empty(), "{shown:?}");
    assert!((0..3).all(|node| world.shown_coordinator(node).is_none()), "nobody was elected");
}

/// The coordinator's disk takes nothing for two minutes, and says nothing of it. What it was asked to place
/// it never places; another leads after its ten seconds and an election.
#[test]
fn a_coordinator_whose_disk_hangs_leaves_the_lead_to_another() {
    let s = Duration::from_secs;
    let hang = FaultKind::SlowDisk { node: Whose::Coordinator, by: s(120), lasting: s(120) };
    for node in 0..3 {
        let client = Client { node, cancel: None, ..clients::list(SEED, 1, 6_000, 6_000).remove(0) };
        let scenario = Scenario { clients: vec![client], ..scenario(3, true, &[(5_000, hang)], 40) };
        let mut world = World::new(scenario, Options::default(), ALL);
        world.run_until(Time::from_millis(4_900));
        let first = world.shown_coordinator(node);
        world.run_until(Time::from_millis(15_500));
        assert_eq!(world.shown_coordinator(node), first, "not before its disk has had ten seconds");
        world.run_until(Time::from_millis(25_000));
        let mut second = (0..3).filter_map(|node| world.shown_coordinator(node));
        assert!(second.any(|name| Some(name) != first), "asked at {node}: {first:?} leads still");
    }
}

/// All wall clocks are set at once while answers run, forwards or back as far as 1970, and are right again
/// later. No answer is lost, and whoever led leads on.
#[test]
fn wall_clocks_that_are_set_cost_no_answer_and_no_leader() {
    let lasting = Some(Duration::from_secs(5));
    for by_s in [3_600, 31_536_000, -3_600, -2_000_000_000] {
        let set = |node| (5_500, FaultKind::SetWallClock { node, by_s, lasting });
        let clients = clients::list(SEED, 6, 5_000, 8_000).into_iter();
        let scenario = Scenario {
            clients: clients.map(|client| Client { cancel: None, ..client }).collect(),
            ..scenario(3, true, &[set(0), set(1), set(2)], 30)
        };
        let mut world = World::new(scenario, Options::default(), ALL);
        world.run_until(Time::from_millis(5_400));
        let led = world.shown_coordinator(1);
        let report = world.run();
        assert_eq!((report.failure, report.failed), (None, vec![]), "by {by_s} s");
        assert!(led.is_some() && world.shown_coordinator(1) == led, "by {by_s} s");
        assert_eq!(report.fired.get("wall clock set"), Some(&3));
    }
}

/// Three long answers of a model that is placed over so many stages, and these faults on all nodes when they
/// have just begun.
fn answers_amid(stages_min: u32, fault: impl Fn(usize) -> FaultKind) -> Report {
    let place = Ask { at: Time::from_millis(2_000), node: 0, what: AskWhat::Place };
    let mut clients = clients::list(SEED, 3, 5_000, 5_000);
    for client in &mut clients {
        client.cancel = None;
        client.choices.iter_mut().for_each(|choice| choice.max_tokens = 80);
    }
    let faults = [0, 1, 2].map(|node| (5_050, fault(node)));
    run(Scenario { stages_min, clients, asks: vec![place], ..scenario(3, true, &faults, 30) })
}

/// Devices find no memory for two steps in the middle of answers, which go on: the third time in a row would
/// be the last.
#[test]
fn answers_go_on_when_devices_run_out_of_memory_twice() {
    let lasting = Duration::from_secs(5);
    for (stages_min, steps) in [(1, 2), (2, 1)] {
        let report = answers_amid(stages_min, |node| FaultKind::OutOfMemory { node, steps, lasting });
        assert_eq!((report.failure, report.failed), (None, vec![]), "{stages_min} stages");
        assert_eq!(report.fired.get("step out of memory"), Some(&2));
    }
}

/// The devices of both stages give no numbers for a step in the middle of answers: nobody sees a token of
/// that.
#[test]
fn answers_go_on_when_two_devices_give_no_numbers_once() {
    let report = answers_amid(2, |node| FaultKind::NoNumbers { node, count: 1 });
    assert_eq!((report.failure, report.failed), (None, vec![]));
    assert_eq!(report.fired.get("step gives no numbers"), Some(&2));
}

/// The disk of a member that does not lead takes no entry for 24 s: all show that after its ten
/// seconds and until it answers, and what was asked meanwhile is answered.
#[test]
fn a_member_whose_disk_hangs_is_shown_so_until_it_writes_again() {
    let s = Duration::from_secs;
    let mut hung = 0;
    for node in 0..3 {
        let hang = FaultKind::SlowDisk { node: Whose::Node(node), by: s(24), lasting: s(10) };
        let client = Client { node, cancel: None, ..clients::list(SEED, 1, 6_000, 6_000).remove(0) };
        let scenario = Scenario { clients: vec![client], ..scenario(3, true, &[(5_000, hang)], 60) };
        let mut world = World::new(scenario, Options::default(), ALL);
        let mut shown = |at_ms: u64| -> Vec<Vec<String>> {
            world.run_until(Time::from_millis(at_ms));
            (0..3).map(|node| world.shown_hung_disks(node)).collect()
        };
        let whom = node_id(&key(SEED, node)).to_full();
        assert!(shown(15_000).concat().is_empty(), "node {node}: not before ten seconds");
        hung += u32::from(shown(19_000).iter().all(|list| *list == [whom.clone()]));
        assert!(shown(50_000).concat().is_empty(), "node {node}: it writes again");
        assert_eq!(world.report().failure, None, "node {node}");
    }
    assert!(hung >= 2, "{hung} instead of the two that did not lead");
}

/// A device gives what is no number in two steps, of different requests: nothing is placed on it any more,
/// and each answer goes on behind its last token.
#[test]
fn a_device_that_gives_no_numbers_twice_is_left_out_and_answers_go_on_elsewhere() {
    let mut left_out = 0;
    for node in 0..3 {
        let early = clients::list(SEED, 6, 6_000, 9_000).into_iter();
        let late = clients::list(SEED, 12, 14_000, 17_000).into_iter().skip(6);
        let clients = early.chain(late).map(|client| Client { cancel: None, ..client }).collect();
        let spoilt = FaultKind::NoNumbers { node, count: 1 };
        let scenario = Scenario { clients, ..scenario(3, true, &[(7_500, spoilt), (15_500, spoilt)], 40) };
        let mut world = World::new(scenario, Options::default(), ALL);
        world.run_until(Time::from_millis(18_500));
        if let Some(reason) = world.quarantine(node) {
            assert!(reason.contains("no number"), "{reason}");
            assert!(!world.has_engine(node), "node {node} computes still");
            left_out += 1;
        }
        let report = world.run();
        assert_eq!((report.failure, &report.failed), (None, &vec![]), "node {node}");
    }
    assert!(left_out > 0, "no node that was to give no numbers computed");
}

/// Node numbers in the order of their keys. Of fresh nodes, the lowest founds.
fn by_key(nodes: usize) -> Vec<usize> {
    let mut nodes: Vec<usize> = (0..nodes).collect();
    nodes.sort_by_key(|node| node_id(&key(SEED, *node)));
    nodes
}

/// Two members decide while the third is down, which leads alone when it is there again. Then one of the two
/// comes back, and has the entries no longer that follow those of the third: they were folded before it was
/// started again, or it never had more than a snapshot of them.
#[test]
fn who_has_seen_more_and_shows_only_a_snapshot_of_it_is_believed() {
    let s = Duration::from_secs;
    let crash =
        |at_s: u64, node, down| (1000 * at_s, FaultKind::Crash { node, end: End::Clean, down: s(down) });
    let started_again = [crash(6, 2, 20), crash(16, 0, 60), crash(17, 1, 15)];
    let frozen = (17_000, FaultKind::Freeze { node: 1, lasting: s(15) });
    let replaced = [crash(6, 2, 20), crash(7, 1, 5), crash(16, 0, 60), frozen];
    for faults in [&started_again[..], &replaced[..]] {
        let ask = |number: u64| Ask {
            at: Time::from_millis(7_500 + 500 * number),
            node: 0,
            what: if number.is_multiple_of(2) { AskWhat::Place } else { AskWhat::Unload },
        };
        let report = run(Scenario {
            seed: 2, // its logs are folded after four entries
            asks: (0..15).map(ask).collect(),
            ..scenario(3, true, faults, 50)
        });
        assert_eq!(report.failure, None);
    }
}

/// A member says that its log goes on by one entry from whoever was elected, and shows it as this snapshot.
fn makes_up(message: &mut Outgoing, state: impl FnOnce() -> Vec<u8>) {
    let Outgoing::Control(message) = message else { return };
    match Arc::make_mut(message) {
        ControlMessage::Report(report) => {
            report.log = LogHead { index: report.log.index + 1, hash: [9; 32] };
        }
        ControlMessage::Log(log) => {
            let LogMessage::Tail { after_index, after_hash, .. } = *log else { return };
            let (index, ancestors) = (after_index + 1, vec![after_hash]);
            *log = LogMessage::TailSnapshot { index, hash: [9; 32], ancestors, state: state() };
        }
        _ => {}
    }
}

fn last_id_of_all() -> Vec<u8> {
    let mut bytes = State::default().encode();
    // Behind the format and no instances: there was a last id, as a number of seven bits in each byte.
    bytes.splice(2..3, [[1].as_slice(), &[0xff; 8], &[0x7f]].concat());
    let state = State::decode(&bytes).expect("a state");
    assert_eq!(state.instance_last(), Some(InstanceId((1 << 63) - 1)));
    bytes
}

/// The run in which one of three members makes a log up, for each of them; whoever leads believes itself.
fn with_each_making_up(lie: fn(&mut Outgoing)) -> Vec<Report> {
    let run = |liar: usize| {
        let place = Ask { at: Time::from_millis(2_000), node: 0, what: AskWhat::Place };
        let scenario = Scenario { asks: vec![place], ..scenario(3, true, &[], 30) };
        World::new(scenario, Options { rewrite: Some((liar, lie)), ..Options::default() }, ALL).run()
    };
    (0..3).map(run).collect()
}

/// Numbers that no coordinator can have come to by now: with the last id of all, nothing could be placed any
/// more, whoever is removed from the cluster afterwards.
#[test]
fn a_log_that_leaves_no_number_to_place_anything_under_is_not_taken_over() {
    for report in with_each_making_up(|message| makes_up(message, last_id_of_all)) {
        assert_eq!(report.failure, None);
        assert!(report.answered > 0, "{:?}", report.failed);
    }
}

/// One node is cut off while another joins, which leads when the cut is over.
#[test]
fn a_member_that_was_away_finds_a_leader_that_its_log_does_not_know() {
    let [founder, away, joiner] = by_key(3)[..] else { panic!() };
    let s = Duration::from_secs;
    let faults = [
        (50, FaultKind::Freeze { node: joiner, lasting: s(6) }),
        (5_000, FaultKind::CutOff { node: away, cut: Cut::Silence, lasting: s(14) }),
        (9_000, FaultKind::Crash { node: founder, end: End::Clean, down: s(4) }),
    ];
    assert_eq!(run(scenario(3, false, &faults, 40)).failure, None);
}

/// A node is let in at 6.457 s, and cannot write the log that it gets until 6.469 s; meanwhile the founder
/// dies.
#[test]
fn a_member_that_has_no_log_comes_back_without_the_founder() {
    let [founder, _, joiner] = by_key(3)[..] else { panic!() };
    let s = Duration::from_secs;
    let faults = [
        (50, FaultKind::Freeze { node: joiner, lasting: s(6) }),
        (1_000, FaultKind::FailWrite { node: Whose::Node(joiner) }),
        (6_465, FaultKind::Crash { node: founder, end: End::Killed, down: s(60) }),
    ];
    let clients = clients::list(SEED, 1, 20_000, 20_000).into_iter();
    let report = run(Scenario {
        stages_min: 2,
        clients: clients.map(|client| Client { node: joiner, cancel: None, ..client }).collect(),
        ..scenario(3, false, &faults, 30)
    });
    assert_eq!((report.failure, report.answered), (None, 1), "{:?}", report.failed);
}

/// The founder lets a node in while another member no longer hears it, leads in its place, and wins when they
/// meet.
#[test]
fn who_was_let_in_while_the_cluster_was_split_stays_a_member() {
    let [founder, joiner, other] = by_key(3)[..] else { panic!() };
    let deaf = Duration::from_millis(5_000);
    let faults = [
        (50, FaultKind::Freeze { node: joiner, lasting: Duration::from_secs(6) }),
        (
            5_900,
            FaultKind::CutPair { from: founder, to: other, one_way: true, cut: Cut::Silence, lasting: deaf },
        ),
    ];
    assert_eq!(run(scenario(3, false, &faults, 40)).failure, None);
}

/// The one that was away meets only a node that was let in meanwhile: neither's transport lets the other
/// connect.
#[test]
fn a_member_that_was_away_and_a_newcomer_that_it_never_met_become_one_cluster_without_the_founder() {
    let [founder, away, joiner] = by_key(3)[..] else { panic!() };
    let s = Duration::from_secs;
    let faults = [
        (50, FaultKind::Freeze { node: joiner, lasting: s(8) }),
        (4_000, FaultKind::Crash { node: away, end: End::Clean, down: s(10) }),
        (12_000, FaultKind::Crash { node: founder, end: End::Clean, down: s(60) }),
    ];
    let clients = clients::list(SEED, 1, 30_000, 30_000).into_iter();
    let report = run(Scenario {
        clients: clients.map(|client| Client { node: away, cancel: None, ..client }).collect(),
        stages_min: 2,
        ..scenario(3, false, &faults, 50)
    });
    assert_eq!((report.failure, report.answered), (None, 1), "{:?}", report.failed);
}

/// The founder lets a node in, and its disk does not say whether that will last; in some runs it dies before
/// it is sure, and its next start finds either log. Invariants see to it that nobody hears of what may be
/// forgotten; in the end all are one cluster.
#[test]
fn an_admission_that_may_not_last_is_neither_told_nor_forgotten() {
    let [founder, _, joiner] = by_key(3)[..] else { panic!() };
    let s = Duration::from_secs;
    let unsure = FaultKind::FailWrite { node: Whose::Node(founder) };
    let frozen = FaultKind::Freeze { node: joiner, lasting: s(6) };
    for dies_ms in [None, Some(6_470), Some(6_500), Some(6_900), Some(8_390), Some(8_500), Some(9_400)] {
        let mut faults = vec![(50, frozen), (5_900, unsure)];
        faults
            .extend(dies_ms.map(|ms| (ms, FaultKind::Crash { node: founder, end: End::Killed, down: s(2) })));
        let clients = clients::list(SEED, 1, 25_000, 25_000).into_iter();
        let report = run(Scenario {
            stages_min: 3,
            clients: clients.map(|client| Client { node: joiner, cancel: None, ..client }).collect(),
            ..scenario(3, false, &faults, 40)
        });
        assert_eq!(report.failure, None, "{dies_ms:?}");
        // The fault takes the first entry of the log as well, and with it a request.
        assert!(report.answered >= 1, "{dies_ms:?}: {:?}", report.failed);
    }
}

/// The coordinator is killed with a stage of the answer. Whoever follows it repairs at once, and everybody
/// follows: nothing that is told with a new epoch is lost because a disk is slow.
#[test]
fn an_answer_goes_on_at_once_when_the_coordinator_dies_with_a_stage_of_it() {
    let slowest =
        (0..3).flat_map(|victim| (0..20).map(move |at| (victim, 5_300 + 20 * at))).map(|(victim, at)| {
            let crash = FaultKind::Crash { node: victim, end: End::Killed, down: Duration::from_secs(60) };
            let mut client = clients::list(SEED, 1, 5_000, 5_000).remove(0);
            (client.node, client.cancel) = (usize::from(victim == 0), None);
            client.choices.truncate(1);
            client.choices[0].max_tokens = 100;
            let report = run(Scenario {
                stages_min: 3,
                clients: vec![client],
                ..scenario(3, true, &[(at, crash)], 5)
            });
            assert_eq!((report.failure, report.answered), (None, 1), "{:?}", report.failed);
            report.slowest
        });
    // Undisturbed it takes 1.2 s, loading included. A follower whose disk is slower than the next message
    // took 2 s more.
    let slowest = slowest.max().unwrap_or_default();
    assert!(slowest < Duration::from_millis(2_500), "{slowest:?}");
}

/// A stage is lost under an answer with a long prompt. The one in front of it sends the rows that it kept,
/// and no stage in front computes a page of the prompt again.
#[test]
fn a_lost_stage_is_rebuilt_from_kept_rows_and_none_in_front_computes_again() {
    const PROMPT: u32 = 80;
    let mut rebuilt = 0;
    for victim in 0..4 {
        let mut client = clients::list(SEED, 1, 5_000, 5_000).remove(0);
        (client.node, client.cancel) = (usize::from(victim == 0), None);
        client.choices.truncate(1);
        client.choices[0].prompt = (0..PROMPT).collect();
        client.choices[0].max_tokens = 40;
        for at in (5_440..5_700).step_by(20) {
            let crash = FaultKind::Crash { node: victim, end: End::Killed, down: Duration::from_secs(60) };
            let clients = vec![client.clone()];
            let scenario = scenario(4, true, &[(at, crash)], 5);
            let report = run(Scenario { stages_min: 3, clients, ..scenario });
            assert_eq!((report.failure, report.answered), (None, 1), "{:?}", report.failed);
            // Where a coordinator dies before all know its placement, two stages may be new, the first among
            // them: that one computes from tokens.
            let is_first_new = report.fired.contains_key("first stages rebuilt");
            if report.fired.contains_key("kept rows sent") && !is_first_new {
                rebuilt += 1;
                // Prompt and answer once, and what lies behind the last whole page again.
                assert!(report.embedded < 2 * u64::from(PROMPT), "{victim} at {at} ms: {}", report.embedded);
            }
        }
    }
    assert!(rebuilt > 0, "no stage was lost that had another in front and pages behind it");
}

/// Two of six nodes are lost under an answer with a long prompt, at once or the second one while the first
/// is being replaced. Where both had stages, not beside each other and none the first, each of the new ones
/// computes from the rows of its own neighbour, and no stage in front computes a page again.
#[test]
fn two_lost_stages_that_are_no_neighbours_are_both_rebuilt_from_kept_rows() {
    const PROMPT: u32 = 80;
    const NODES: usize = 6;
    let crash = |node: usize| FaultKind::Crash { node, end: End::Killed, down: Duration::from_secs(60) };
    let pairs = (0..NODES).flat_map(|first| (first + 1..NODES).map(move |second| [first, second]));
    let mut rebuilt = 0;
    for pair in pairs {
        let mut client = clients::list(SEED, 1, 5_000, 5_000).remove(0);
        client.node = (0..NODES).find(|node| !pair.contains(node)).unwrap_or_default();
        client.cancel = None;
        client.choices.truncate(1);
        client.choices[0].prompt = (5..5 + PROMPT).collect();
        client.choices[0].max_tokens = 40;
        let at_once = (5_440..5_700).step_by(60).map(|at| (at, 0));
        for (at, behind) in at_once.chain([(5_560, 250), (5_560, 500)]) {
            let faults = [(at, crash(pair[0])), (at + behind, crash(pair[1]))];
            let clients = vec![client.clone()];
            let report = run(Scenario { stages_min: 4, clients, ..scenario(NODES, true, &faults, 5) });
            let context = format!("{pair:?} at {at} ms, {behind} ms apart: {:?}", report.failed);
            assert_eq!((report.failure, report.answered), (None, 1), "{context}");
            let are_apart = report.fired.contains_key("kept rows sent to one more stage");
            rebuilt += u32::from(are_apart && report.embedded < 2 * u64::from(PROMPT));
        }
    }
    assert!(rebuilt > 0, "no two stages were rebuilt without a first one that computed the prompt again");
}

/// The first stage is lost under an answer with a long prompt, or its node is drained. Whoever has it next
/// computes the prompt again from its tokens, and no stage behind it does.
#[test]
fn stages_behind_a_lost_first_one_compute_no_page_again() {
    const PROMPT: u32 = 80;
    let mut rebuilt = [0, 0];
    for (victim, is_drained) in (0..4).flat_map(|victim| [(victim, false), (victim, true)]) {
        let mut client = clients::list(SEED, 1, 5_000, 5_000).remove(0);
        (client.node, client.cancel) = (usize::from(victim == 0), None);
        client.choices.truncate(1);
        client.choices[0].prompt = (3..3 + PROMPT).collect();
        // A first stage moves once it is loaded elsewhere.
        let answer = if is_drained { 70 } else { 40 };
        client.choices[0].max_tokens = answer;
        for at in (5_440..5_700).step_by(20) {
            let crash = FaultKind::Crash { node: victim, end: End::Killed, down: Duration::from_secs(60) };
            let drain = AskWhat::Drain { node: victim, drain: Drain::Lasting };
            let asks = vec![Ask { at: Time::from_millis(at), node: client.node, what: drain }];
            let scenario = match is_drained {
                true => Scenario { asks, ..scenario(4, true, &[], 5) },
                false => scenario(4, true, &[(at, crash)], 5),
            };
            let report = run(Scenario { stages_min: 3, clients: vec![client.clone()], ..scenario });
            // Who drains is answered as well.
            let answered = 1 + usize::from(is_drained);
            assert_eq!((report.failure, report.answered), (None, answered), "{:?}", report.failed);
            let is_another_new = report.fired.contains_key("kept rows sent");
            if report.fired.contains_key("first stages rebuilt") && !is_another_new {
                rebuilt[usize::from(is_drained)] += 1;
                // Prompt and answer once, and what lies behind the last whole page again.
                assert!(
                    report.headed < u64::from(answer + PROMPT + 40),
                    "{victim} at {at} ms: {}",
                    report.headed
                );
                assert!(report.embedded >= 2 * u64::from(PROMPT) - 8, "{victim} at {at} ms");
            }
        }
    }
    assert!(rebuilt.iter().all(|&count| count > 0), "{rebuilt:?}");
}

/// A node is cut off and goes on by itself, with the model on itself alone, for whoever asks it. It comes
/// back: what served under the others all the while serves on where it did.
#[test]
fn what_serves_stays_where_it_is_when_a_node_that_went_on_alone_comes_back() {
    let client = |client: Client| Client { node: client.index % 3, cancel: None, ..client };
    for (away, seconds) in (0..3).flat_map(|away| [(away, 12), (away, 25)]) {
        let cut = FaultKind::CutOff { node: away, cut: Cut::Silence, lasting: Duration::from_secs(seconds) };
        let early = clients::list(SEED, 1, 3_000, 3_000).into_iter();
        let meanwhile = clients::list(SEED, 4, 12_000, 12_000).into_iter().skip(1);
        let mut world = World::new(
            Scenario {
                stages_min: 2,
                clients: early.chain(meanwhile).map(client).collect(),
                ..scenario(3, true, &[(5_000, cut)], 60)
            },
            Options::default(),
            ALL,
        );
        let end_ms = 5_000 + 1_000 * seconds;
        world.run_until(Time::from_millis(end_ms - 100));
        let other = usize::from(away == 0);
        let (served, alone) = (world.shown_placements(other), world.shown_placements(away));
        assert!(served.len() == 1 && served != alone, "{away} for {seconds} s: {served:?}, {alone:?}");
        for ms in (0..8_000).step_by(500) {
            world.run_until(Time::from_millis(end_ms + ms));
            let shown = world.shown_placements(other);
            assert_eq!(shown, served, "{ms} ms after node {away} was back from {seconds} s");
        }
        assert!((0..3).all(|node| world.shown_placements(node) == served));
        let report = world.report();
        assert_eq!((report.failure, report.failed), (None, vec![]), "{away} for {seconds} s");
    }
}

/// The node of two clients dies when their answers have just begun: they have the rest from another one,
/// within the 5 s of `resumed_in_5_s` where the answers need nothing else of it.
#[test]
fn clients_whose_node_dies_have_the_rest_from_another_one() {
    let place = Ask { at: Time::from_millis(2_000), node: 0, what: AskWhat::Place };
    for (node, end) in (0..3).flat_map(|node| [(node, End::Killed), (node, End::PowerLost)]) {
        let crash = FaultKind::Crash { node, end, down: Duration::from_secs(30) };
        let clients = clients::list(SEED, 2, 5_000, 5_000).into_iter();
        let report = run(Scenario {
            clients: clients.map(|client| Client { node, cancel: None, ..client }).collect(),
            asks: vec![place],
            ..scenario(3, true, &[(5_010, crash)], 30)
        });
        assert_eq!(report.failure, None, "n{node} {end:?}");
        assert!(report.resumed > 0, "n{node} {end:?}: {:?}", report.failed);
    }
}

/// The node of some clients dies together with another one, which is started again at once. The copies are on
/// the third. Clients turn to the one that was started, some of them before it has linked with that: each of
/// them has the rest of its answer.
#[test]
fn a_node_that_has_just_started_asks_each_member_it_comes_to_reach_for_what_clients_claim() {
    let s = Duration::from_secs;
    let downs = (0..8).map(|step| Duration::from_millis(100 + 400 * step));
    let mut resumed = 0;
    for (node, down) in (0..3).flat_map(|node| downs.clone().map(move |down| (node, down))) {
        let crash = |node, down| FaultKind::Crash { node, end: End::Killed, down };
        let faults = [(5_010, crash(node, s(60))), (5_010, crash((node + 1) % 3, down))];
        let clients = clients::list(SEED, 4, 5_000, 5_000).into_iter();
        let report = run(Scenario {
            clients: clients.map(|client| Client { node, cancel: None, ..client }).collect(),
            asks: vec![Ask { at: Time::from_millis(2_000), node, what: AskWhat::Place }],
            holders: (0..3).map(|other| other == (node + 2) % 3).collect(),
            ..scenario(3, true, &faults, 30)
        });
        assert_eq!(report.failure, None, "n{node}, down for {down:?}");
        assert!(!report.fired.contains_key("claim in vain"), "n{node}, down for {down:?}");
        resumed += report.resumed;
    }
    assert!(resumed > 0, "no answer was cut off");
}

/// Two stages of an answer do not reach each other any more; the third node, at which it was asked, reaches
/// both. It is placed where all reach each other, and does not wait for the link.
#[test]
fn an_answer_goes_on_elsewhere_when_two_of_its_stages_are_parted() {
    for (from, to, asked) in [(0, 1, 2), (0, 2, 1), (1, 2, 0)] {
        let lasting = Duration::from_secs(25);
        let cut = FaultKind::CutPair { from, to, one_way: false, cut: Cut::Silence, lasting };
        let mut client = clients::list(SEED, 1, 5_000, 5_000).remove(0);
        (client.node, client.cancel) = (asked, None);
        client.choices.truncate(1);
        client.choices[0].max_tokens = 100;
        let report =
            run(Scenario { stages_min: 3, clients: vec![client], ..scenario(3, true, &[(5_500, cut)], 60) });
        let case = format!("{from} and {to}: {:?}", report.failed);
        assert_eq!(report.failure, None, "{case}");
        // Whoever asks last may be told whom to ask instead; the answer itself goes on.
        assert!(report.answered >= 1 && report.failed.iter().all(|why| why.contains("ask there")), "{case}");
        assert!(report.slowest < Duration::from_secs(15), "{case} {:?}", report.slowest);
    }
}

/// More requests than the model has slots, on the only node, whose lid is closed for longer than a request
/// may wait.
#[test]
fn a_sleep_counts_in_no_deadline_of_a_request() {
    // The first one has the model loaded.
    let first = clients::list(SEED, 61, 5_000, 5_050).into_iter().skip(60);
    let asleep = FaultKind::Freeze { node: 0, lasting: Duration::from_secs(130) };
    let long = |client: Client| {
        let choices =
            client.choices.into_iter().take(1).map(|choice| clients::Choice { max_tokens: 80, ..choice });
        Client { node: 0, cancel: None, choices: choices.collect(), ..client }
    };
    let report = run(Scenario {
        clients: first.chain(clients::list(SEED, 60, 8_000, 8_050)).map(long).collect(),
        ..scenario(1, true, &[(8_100, asleep)], 180)
    });
    assert_eq!((report.failure, report.failed.len()), (None, 0), "{:?}", report.failed);
    assert!(report.answered > 60 && report.slowest > Duration::from_secs(132), "{:?}", report.slowest);
}
