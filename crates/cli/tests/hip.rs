//! AMD's cards from the outside, played by a driver of our own, in a program that was built with the feature
//! `hip`.

#![cfg(all(unix, feature = "hip"))]
#![allow(clippy::unwrap_used)] // helpers of tests fail by panicking

use std::process::Command;
use std::time::Duration;

use crate::emulated;
use crate::support::{SOON, exo, finish, good, stderr, stdout};
use serde_json::Value;

/// With one of AMD's cards, and none of NVIDIA's.
fn with_a_card(command: &mut Command) -> &mut Command {
    let cards = [("HIP_EMULATED_CARDS", "1"), ("EXO_EMULATED_CARDS", "0")];
    command.envs(cards).env("LD_LIBRARY_PATH", emulated::library())
}

#[test]
fn a_card_is_shown_with_what_it_can_do() {
    let folder = tempfile::tempdir().unwrap();
    let mut command = exo(&["devices", "--json", "--data-dir"]);
    let output = finish(with_a_card(command.arg(folder.path())), Duration::from_secs(60));
    let all: Vec<Value> = serde_json::from_str(&stdout(&output)).unwrap();
    let row = all.iter().find(|row| row["name"] == "Emulated HIP card");
    let row = row.unwrap_or_else(|| panic!("{all:?}"));
    assert_eq!((&row["backends"][0], &row["vendor"]), (&"hip:0".into(), &"AMD".into()));
    assert_eq!(
        (&row["driver"], &row["support"]),
        (&"HIP 5.2, architecture 10.3".into(), &"experimental".into())
    );
    assert!(row["read_bytes_per_s"].as_f64().unwrap() > 0.0, "{row}");
}

#[test]
fn a_card_that_is_not_there_is_refused_by_name() {
    let folder = tempfile::tempdir().unwrap();
    let mut command = exo(&["start", "--backend", "hip", "--device", "Voodoo", "--no-discovery"]);
    command.args(["--api-listen", "127.0.0.1:0", "--listen", "127.0.0.1:0", "--data-dir"]).arg(folder.path());
    let refused = stderr(&finish(with_a_card(&mut command), SOON));
    assert!(
        refused.contains("hip shows no graphics processor `Voodoo`, only: Emulated HIP card"),
        "{refused}"
    );
}

#[test]
fn a_stage_on_a_card_and_two_on_the_processor_give_the_text_of_one() {
    let text =
        stdout(&good(finish(with_a_card(&mut exo(&["demo", "--mixed", "hip"])), Duration::from_secs(90))));
    assert!(text.contains("hip-0") && text.contains("checked: split and solo gave the same text"), "{text}");
}
