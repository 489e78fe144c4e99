//! Nodes on two networks with a router between them, which passes on no multicast. Needs root.

#![cfg(target_os = "linux")]
#![allow(clippy::unwrap_used, clippy::print_stdout)] // helpers of tests fail by panicking

use std::time::Instant;

use crate::support::lan::{Host, Lan};
use crate::support::{SOON, good, skip, stderr, stdout, wait_for};

/// A code is all that the one behind the router has: no door is open. Behind it every node of one network
/// reaches the one on the other, where it is by the word of the admin alone.
#[test]
fn a_code_brings_in_a_node_behind_a_router_and_all_members_reach_it() {
    const TEST: &str = "a_code_brings_in_a_node_behind_a_router_and_all_members_reach_it";
    let routed = Lan::new(2).and_then(|lan| lan.host_behind_router().map(|behind| (lan, behind)));
    let (lan, behind) = match routed {
        Ok(routed) => routed,
        Err(why) => return skip(TEST, &why),
    };
    let folder = tempfile::tempdir().unwrap();
    let start = |namespace: &str, name: &str| {
        let host = Host::start_with(namespace, &folder.path().join(name), name, &["--trust", "closed"]);
        wait_for("its API", SOON, || host.data_dir.join("api.json").exists().then_some(()));
        host
    };
    let (admin, near) = (start(&lan.namespaces[0], "admin"), start(&lan.namespaces[1], "near"));
    let far = start(&behind.namespace, "far");
    // The code, and what to add to it where nobody is seen nearby.
    let invite = || {
        let shown = stdout(&good(admin.exo(&["invite"])));
        let code = shown.lines().nth(1).unwrap().trim().strip_prefix("exo join ").unwrap().to_owned();
        let peer = shown.lines().nth(3).unwrap().trim().split_once("--peer ").unwrap().1.to_owned();
        assert!(peer.contains('@') && peer.ends_with(&format!("@{}:52416", lan.address(0))), "{shown}");
        (code, peer)
    };
    let (code, _) = invite();
    good(near.exo(&["join", &code]));

    let (code, peer) = invite();
    let unseen = far.exo(&["join", &code]);
    assert!(stderr(&unseen).contains("no other node is seen nearby"), "{}", stderr(&unseen));
    let began = Instant::now();
    good(far.exo(&["join", &code, "--peer", &peer]));
    println!("joined through the router after {:?}", began.elapsed());
    for host in [&admin, &near, &far] {
        wait_for("three members that hear each other", SOON, || {
            // From each to each of the others.
            (host.alive() == 3 && host.view()?["links"].as_array()?.len() == 6).then_some(())
        });
    }
    println!("and all reached each other after {:?}", began.elapsed());
    assert!(!far.view().unwrap()["join_window"]["open"].as_bool().unwrap(), "no door was open");
}
