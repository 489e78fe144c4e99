use clap::Parser;

use super::*;

fn verdict(who: Who, stop: Option<Duration>, times: u32, outcomes: &[Outcome]) -> Verdict {
    super::verdict(who, stop, &Bounds::of(who, stop), times, outcomes)
}

#[derive(Parser)]
struct Cli {
    #[command(flatten)]
    options: Options,
}

fn options(args: &[&str]) -> Result<Options, clap::Error> {
    Cli::try_parse_from([&["kills"][..], args].concat()).map(|cli| cli.options)
}

#[test]
fn who_it_happens_to_is_a_list_and_the_three_stages_unless_told_otherwise() {
    use Who::{Coordinator, CoordinatorStage, Driver, First, Last, Middle};
    let who = |args: &[&str]| options(args).map(|options| options.who).unwrap();
    assert_eq!(who(&[]), [First, Middle, Last]);
    assert_eq!(who(&["--who", "last,coordinator"]), [Last, Coordinator]);
    assert_eq!(who(&["--who=coordinator-stage"]), [CoordinatorStage]);
    assert_eq!(who(&["--who=driver"]), [Driver]);
    let stopped = prove(Path::new("exo"), &options(&["--who=driver", "--stop=5"]).unwrap());
    assert!(stopped.is_err(), "its client loses nothing");
    let error = options(&["--who", "first,second"]).err().unwrap().to_string();
    assert!(error.contains("second") && error.contains("coordinator-stage"), "{error}");
    assert_eq!(options(&["--stop", "30"]).unwrap().stop(), Some(Duration::from_secs(30)));
}

fn outcome(pause_ms: u64) -> Outcome {
    Outcome { pause: Duration::from_millis(pause_ms), beyond: Duration::ZERO, noticed: None, loads: [1, 0] }
}

#[test]
fn every_answer_has_to_go_on_and_none_late() {
    let check = |ms: &[u64], times| {
        let outcomes: Vec<Outcome> = ms.iter().copied().map(outcome).collect();
        verdict(Who::Last, None, times, &outcomes).is_kept
    };
    assert!(check(&[900, 1000, 1500], 3));
    assert!(!check(&[900, 1000], 3), "one was lost");
    assert!(!check(&[900, 1600, 1700], 3), "half of them late");
    assert!(!check(&[900, 1000, 3001], 3), "one far too late");
    let none = verdict(Who::Last, None, 1, &[]);
    assert!(none.line.starts_with("kills of the last stage: 0 of 1 runs") && !none.is_kept, "{}", none.line);
    let again = Outcome { loads: [1, 1], ..outcome(900) };
    assert!(!verdict(Who::Last, None, 1, &[again]).is_kept, "another one loaded what it had");
    let no_load = Outcome { loads: [0, 0], ..outcome(900) };
    assert!(!verdict(Who::Last, None, 2, &[outcome(900), no_load]).is_kept, "no one loaded what was lost");
}

#[test]
fn a_stop_may_take_longer_and_has_to_be_noticed_where_it_lasts() {
    let (long, short) = (Some(Duration::from_secs(30)), Some(Duration::from_secs(4)));
    let noticed = |ms: Option<u64>| Outcome { noticed: ms.map(Duration::from_millis), ..outcome(6900) };
    assert!(verdict(Who::First, long, 1, &[noticed(Some(4900))]).is_kept);
    assert!(!verdict(Who::First, long, 1, &[noticed(Some(5100))]).is_kept);
    assert!(!verdict(Who::First, long, 1, &[noticed(None)]).is_kept);
    assert!(verdict(Who::First, short, 1, &[noticed(None)]).is_kept);
    assert!(!verdict(Who::First, None, 1, &[noticed(None)]).is_kept, "a kill is noticed at once");
}

#[test]
fn a_lost_coordinator_stops_no_stream_and_another_one_is_there_in_three_seconds() {
    let lost = |beyond, noticed| Outcome {
        beyond: Duration::from_millis(beyond),
        noticed: Some(Duration::from_millis(noticed)),
        loads: [0, 0],
        ..outcome(0)
    };
    let check = |beyond, noticed| verdict(Who::Coordinator, None, 1, &[lost(beyond, noticed)]);
    assert!(check(200, 3000).is_kept, "{}", check(200, 3000).line);
    assert!(!check(201, 3000).is_kept && !check(200, 3001).is_kept);
    assert!(verdict(Who::CoordinatorStage, None, 1, &[lost(1400, 3000)]).is_kept, "a stage is lost as well");
}

#[test]
fn the_next_token_of_a_client_that_asks_another_node_comes_in_five_seconds() {
    let check = |pauses: &[u64]| {
        let outcome = |ms: &u64| Outcome { loads: [0, 0], ..outcome(*ms) };
        let outcomes: Vec<Outcome> = pauses.iter().map(outcome).collect();
        verdict(Who::Driver, None, 2, &outcomes)
    };
    assert!(check(&[4900, 5000]).is_kept, "{}", check(&[4900, 5000]).line);
    assert!(!check(&[10, 5001]).is_kept && !check(&[10]).is_kept);
}

#[test]
fn a_view_shows_who_is_missed() {
    let view = |coordinator: &str, status: &str, placement: &str| {
        json!({
            "epoch": { "counter": 1, "coordinator": coordinator },
            "nodes": [{ "id": "n1", "status": status }, { "id": "n2", "status": "alive" }],
            "instances": [{ "id": "i1", "placement": placement, "state": { "kind": "ready" } }],
        })
    };
    let before = view("n1", "alive", "a");
    let noticed = |view: &Value, who| has_noticed(&before, view, "n1", who);
    assert!(!noticed(&before, Who::First) && !noticed(&before, Who::Coordinator));
    assert!(noticed(&view("n1", "lost", "a"), Who::First));
    assert!(noticed(&view("n1", "alive", "b"), Who::First));
    assert!(!noticed(&view("n1", "lost", "a"), Who::Coordinator), "it needs another one");
    assert!(noticed(&view("n2", "alive", "a"), Who::Coordinator));
}

#[test]
fn loads_are_of_what_was_lost_or_of_anything_else() {
    assert!(lies_in("2..4", "2..4") && lies_in("2..3", "2..4"));
    assert!(!lies_in("1..4", "2..4") && !lies_in("2..5", "2..4") && !lies_in("x", "2..4"));
}
