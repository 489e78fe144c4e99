//! The page in a real browser, on real nodes. What a person does is in `dashboard/e2e/*.mjs`; this starts
//! nodes, lets the browser in, and says what could not be checked.

#![allow(clippy::unwrap_used, clippy::print_stderr)] // helpers of tests fail by panicking

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use exo_mock_hub::{Faults, MockHub, Repository};

use crate::support::{
    Node, SOON, Start, demo_gguf, finish, good, skip, stderr, stdout, wait_for, wait_united,
};

/// For one scenario with its browser, on a busy machine.
const SCENARIO_MAX: Duration = Duration::from_secs(150);
/// Bounds of time are for a machine that does nothing else; here they show what is wrong by far.
const SLACK: &str = "8";

/// Where the page's sources and its packages are.
fn dashboard() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../dashboard")
}

/// The page as it is built into the program.
fn bundle() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../server/dashboard")
}

/// What is missing for tests in a browser, if anything is.
fn missing() -> Option<&'static str> {
    if chromium().is_none() {
        Some("chromium is not installed")
    } else if !dashboard().join("node_modules/playwright-core").exists() {
        Some("playwright-core is not installed: `cargo xtask web` does that")
    } else if !bundle().join("index.html").exists() {
        Some("the page is not built: `cargo xtask web` does that")
    } else {
        None
    }
}

fn chromium() -> Option<PathBuf> {
    ["/usr/bin/chromium", "/usr/bin/chromium-browser", "/usr/bin/google-chrome"]
        .map(PathBuf::from)
        .into_iter()
        .find(|path| path.exists())
}

/// The link that `exo open` would open.
fn link(node: &Node) -> String {
    let printed = good(node.exo(&["open", "--print"]));
    let link = stdout(&printed).trim().to_owned();
    assert!(link.starts_with(&format!("http://{}/#code=", node.address)), "{link}");
    link
}

/// What is looked at on described clusters (`dashboard/e2e/described.mjs`): a test for each row, so that each
/// has time on a slow machine.
const DESCRIBED: [&[&str]; 8] = [
    &["enter", "gone", "size", "keyboard"],
    &["chat", "hostile", "door", "find", "retry", "readers", "zoom"],
    &["axe-light-empty", "axe-light-home"],
    &["axe-light-lost", "axe-light-hostile"],
    &["hundred", "axe-light-hundred"],
    &["axe-dark-home", "axe-small-home"],
    &["kept", "tabs", "actions"],
    &["axe-light-states", "axe-small-states"],
];

/// Runs one row of [`DESCRIBED`], which a test is named after.
fn described(test: &str, row: usize) {
    match missing() {
        Some(why) => skip(test, why),
        None => scenario("described", DESCRIBED[row]),
    }
}

/// Runs a scenario of the page's folder with these arguments. It ends with status 0 if all was as it should
/// be.
fn scenario(name: &str, args: &[&str]) {
    let mut node = Command::new("node");
    node.arg(format!("e2e/{name}.mjs")).args(args).current_dir(dashboard());
    node.env("CHROMIUM", chromium().unwrap()).env("EXO_PAGE", bundle()).env("EXO_SLACK", SLACK);
    let output = finish(&mut node, SCENARIO_MAX);
    eprintln!("{}", stdout(&output));
    assert!(output.status.success(), "{name}\n{}\n{}", stdout(&output), stderr(&output));
}

#[test]
fn the_page_loads_signed_in_without_a_violation_of_its_policy() {
    if let Some(why) = missing() {
        return skip("the_page_loads_signed_in_without_a_violation_of_its_policy", why);
    }
    let node = Node::alone();
    scenario("enter", &[&link(&node)]);
}

#[test]
fn a_person_places_a_model_in_the_page_talks_to_it_and_takes_it_away() {
    if let Some(why) = missing() {
        return skip("a_person_places_a_model_in_the_page_talks_to_it_and_takes_it_away", why);
    }
    let node = Node::alone();
    scenario("use", &[&link(&node), "demo"]);
}

/// A person's whole way with three nodes in one look (`dashboard/e2e/journey.mjs`): one asks to join, and is
/// killed later.
fn journey(test: &str, look: &'static str) {
    /// With the cache of forty answers the model takes 85 MiB over 8 layers, and of a node's memory 71 MiB
    /// are no model's: three nodes hold it with three layers each, and no two of them do.
    const MEMORY_MIB: u32 = 105;
    const NAMES: [&str; 3] = ["one", "two", "three"];
    if let Some(why) = missing() {
        return skip(test, why);
    }
    let (folder, hub) = (tempfile::tempdir().unwrap(), MockHub::start().unwrap());
    hub.put("org/slow-GGUF", Repository::new(&[("slow-Q8_0.gguf", std::fs::read(demo_gguf()).unwrap())]));
    hub.set_faults(Faults { stall_every: 1, ..Faults::default() });
    let group = format!("journey-{look}");
    let start = |name: &'static str| {
        let flags = vec![format!("--memory-mib={MEMORY_MIB}")];
        let env = vec![("HF_ENDPOINT", hub.endpoint().into())];
        Node::start_in(
            &folder.path().join(name),
            Start { name, group: &group, flags, env, ..Start::default() },
        )
    };
    let nodes = [start(NAMES[0]), start(NAMES[1])];
    wait_united(&nodes, SOON);
    // Which of the two lets others in is drawn.
    let is_shut = |node: &&Node| node.call("DELETE", "/exo/v1/join_window", None).status == 204;
    let admin = nodes.iter().find(is_shut).expect("one of them is an admin");
    let mut third = start(NAMES[2]);
    let (link, ready) = (link(admin), folder.path().join("ready"));
    let page = {
        let (ready, pid) = (ready.clone(), third.pid().to_string());
        std::thread::spawn(move || {
            let args = [look, &link, "demo", "hf.co/org/slow-GGUF:Q8_0", ready.to_str().unwrap(), &pid];
            scenario("journey", &args);
        })
    };
    // The page's own end comes first if something is wrong there.
    wait_for("the page", SCENARIO_MAX, || (ready.exists() || page.is_finished()).then_some(()));
    third.kill();
    let _back = start(NAMES[2]);
    page.join().unwrap();
}

#[test]
fn a_person_admits_places_talks_loses_and_removes_in_the_dark() {
    journey("a_person_admits_places_talks_loses_and_removes_in_the_dark", "dark");
}

#[test]
fn a_person_admits_places_talks_loses_and_removes_with_keys_alone() {
    journey("a_person_admits_places_talks_loses_and_removes_with_keys_alone", "keys");
}

#[test]
fn a_person_admits_places_talks_loses_and_removes_on_a_telephone() {
    journey("a_person_admits_places_talks_loses_and_removes_on_a_telephone", "small");
}

/// What the page may take (`dashboard/e2e/numbers.mjs`).
fn numbers(test: &str, names: &[&str]) {
    match missing() {
        Some(why) => skip(test, why),
        None => scenario("numbers", names),
    }
}

#[test]
fn a_first_view_a_change_and_a_long_conversation_are_there_soon() {
    numbers("a_first_view_a_change_and_a_long_conversation_are_there_soon", &["view", "change", "thread"]);
}

#[test]
fn neither_a_long_answer_nor_a_hundred_nodes_make_the_page_slow_or_large() {
    numbers("neither_a_long_answer_nor_a_hundred_nodes_make_the_page_slow_or_large", &["token", "memory"]);
}

#[test]
fn a_code_opens_the_page_once_keys_do_all_of_it_and_a_node_that_is_gone_is_said() {
    described("a_code_opens_the_page_once_keys_do_all_of_it_and_a_node_that_is_gone_is_said", 0);
}

#[test]
fn an_answer_is_found_again_after_a_reload_and_one_that_attacks_is_text() {
    described("an_answer_is_found_again_after_a_reload_and_one_that_attacks_is_text", 1);
}

#[test]
fn every_route_of_small_clusters_passes_axe() {
    described("every_route_of_small_clusters_passes_axe", 2);
}

#[test]
fn every_route_of_lost_and_hostile_clusters_passes_axe() {
    described("every_route_of_lost_and_hostile_clusters_passes_axe", 3);
}

#[test]
fn a_hundred_nodes_are_shown_and_pass_axe() {
    described("a_hundred_nodes_are_shown_and_pass_axe", 4);
}

#[test]
fn every_route_passes_axe_in_the_dark_and_on_a_telephone() {
    described("every_route_passes_axe_in_the_dark_and_on_a_telephone", 5);
}

#[test]
fn kept_answers_two_tabs_and_actions_are_there() {
    described("kept_answers_two_tabs_and_actions_are_there", 6);
}

#[test]
fn the_way_in_a_node_that_is_gone_open_dialogs_and_what_is_folded_away_pass_axe() {
    described("the_way_in_a_node_that_is_gone_open_dialogs_and_what_is_folded_away_pass_axe", 7);
}

#[test]
fn no_scenario_on_described_clusters_is_left_out() {
    if let Some(why) = missing() {
        return skip("no_scenario_on_described_clusters_is_left_out", why);
    }
    let mut node = Command::new("node");
    let listed =
        good(finish(node.args(["e2e/described.mjs", "--list"]).current_dir(dashboard()), SCENARIO_MAX));
    let text = stdout(&listed);
    let listed: BTreeSet<&str> = text.lines().collect();
    assert_eq!(listed, DESCRIBED.into_iter().flatten().copied().collect());
}
