//! The page in a real browser, on real nodes. What a person does is in `dashboard/e2e/*.mjs`; this starts nodes, lets the browser in, and
//! says what could not be checked.

#![allow(clippy::unwrap_used)] // helpers of tests fail by panicking

mod support;

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use self::support::{Node, finish, skip, stderr, stdout};

/// For one scenario with its browser, on a busy machine.
const SCENARIO_MAX: Duration = Duration::from_secs(120);

/// Where the page's sources and its packages are.
fn dashboard() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../dashboard")
}

/// What is missing for tests in a browser, if anything is.
fn missing() -> Option<&'static str> {
    let built = Path::new(env!("CARGO_MANIFEST_DIR")).join("../server/dashboard/index.html");
    if chromium().is_none() {
        Some("chromium is not installed")
    } else if !dashboard().join("node_modules/playwright-core").exists() {
        Some("playwright-core is not installed: `cargo xtask web` does that")
    } else if !built.exists() {
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
    let printed = node.exo(&["open", "--print"]);
    assert!(printed.status.success(), "{}", stderr(&printed));
    let link = stdout(&printed).trim().to_owned();
    assert!(link.starts_with(&format!("http://{}/#code=", node.address)), "{link}");
    link
}

/// Runs a scenario of the page's folder with these arguments. It ends with status 0 if all was as it should be.
fn scenario(name: &str, args: &[&str]) {
    let mut node = Command::new("node");
    node.arg(format!("e2e/{name}.mjs")).args(args).current_dir(dashboard());
    node.env("CHROMIUM", chromium().unwrap());
    let output = finish(&mut node, SCENARIO_MAX);
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
