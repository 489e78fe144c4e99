//! How long it takes to let a machine in with a code, on nodes as processes of their own. Wrong codes are
//! tried in `doors.rs`, and relayed ones in the tests of `exo-node`.

#![allow(clippy::print_stdout, reason = "times for whoever measures")]

use std::time::{Duration, Instant};

use serde_json::json;

use crate::support::{Node, SOON, Start, wait_for};

/// For both sides: the proof of the code, the entry that one signs and writes, and the log that the other
/// takes over. The start of a command is not in it: the node is asked over its API.
const PAIRED_WITHIN: Duration = Duration::from_secs(1);
/// On a machine that is busy with other tests, which is no fault of a code.
const PAIRED_WITHIN_BUSY: Duration = Duration::from_secs(5);

#[test]
fn a_code_makes_two_machines_one_cluster_within_seconds() {
    pair_three_times(PAIRED_WITHIN_BUSY);
}

#[test]
#[ignore = "a second is its bound on a machine that does nothing else"]
fn a_code_makes_two_machines_one_cluster_within_a_second() {
    pair_three_times(PAIRED_WITHIN);
}

fn pair_three_times(within: Duration) {
    let start = |name| {
        let flags = ["--trust", "closed", "--no-discovery"].map(str::to_owned).to_vec();
        Node::start(Start { name, group: "pairing", flags, ..Start::default() })
    };
    let (inviter, joiners) = (start("inviter"), ["one", "two", "three"].map(start));
    let mut took = Vec::new();
    for (joiner, members) in joiners.iter().zip(2..) {
        let invited = inviter.post("/exo/v1/invites", &json!({})).json();
        let wanted =
            json!({"code": invited["code"], "node": invited["node"], "addresses": invited["addresses"]});
        let began = Instant::now();
        joiner.post("/exo/v1/join", &wanted).good();
        for node in [&inviter, joiner] {
            wait_for("both sides to know it", SOON, || {
                (node.get("/exo/v1/members").as_array()?.len() == members).then_some(())
            });
        }
        took.push(began.elapsed());
    }
    took.sort();
    println!("pairing by code, both sides, three times: {took:?}");
    // The median: what keeps the machine busy for a moment does not count.
    assert!(took[1] < within, "{took:?}");
}
