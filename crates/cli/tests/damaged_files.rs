//! A node whose journal is damaged starts, says so, and serves with its cluster.

#![allow(clippy::unwrap_used)] // helpers of tests fail by panicking

mod support;

use std::time::Duration;

use support::{Node, Start, known, stderr, stdout, wait_for};

/// For an election, or to be found again.
const REJOINS_MAX: Duration = Duration::from_secs(30);

#[test]
fn a_node_with_a_damaged_journal_starts_and_the_cluster_serves() {
    let folder = tempfile::tempdir().unwrap();
    let start = |name| Start { name, group: "damage", ..Start::default() };
    let mut nodes = [Node::start(start("one")), Node::start_in(folder.path(), start("two"))];
    wait_for("one cluster", REJOINS_MAX, || nodes.iter().all(|node| node.sees().len() == 2).then_some(()));
    nodes[0].place("demo", 2);
    let (prompt, answer) = &known()[0];
    let entries = |node: &Node| node.get("/exo/v1/cluster")["journal"]["head"].clone();
    wait_for("the second node to have the log", REJOINS_MAX, || {
        (entries(&nodes[0]) == entries(&nodes[1])).then_some(())
    });
    let path = nodes[1].data_dir.join("journal.redb");
    for damage in ["cut", "flipped", "empty"] {
        nodes[1].kill();
        let mut bytes = std::fs::read(&path).unwrap();
        match damage {
            "cut" => bytes.truncate(bytes.len() / 2),
            "flipped" => {
                // Behind what says that it is a database at all.
                bytes.iter_mut().skip(9).step_by(97).for_each(|byte| *byte ^= 1);
            }
            _ => bytes.clear(),
        }
        std::fs::write(&path, bytes).unwrap();
        nodes[1] = Node::start_in(folder.path(), start("two"));
        let status = nodes[1].exo(&["status"]);
        let status = stdout(&status) + &stderr(&status);
        assert!(status.contains("journal.redb was damaged"), "{damage}: {status}");
        assert!(nodes[1].log().contains("journal.redb was damaged"), "{damage}: {}", nodes[1].log());
        wait_for("the node to have the log again", REJOINS_MAX, || {
            let both = nodes.iter().all(|node| node.sees().len() == 2);
            (both && entries(&nodes[0]) == entries(&nodes[1])).then_some(())
        });
        wait_for("an answer over both nodes", REJOINS_MAX, || {
            let reply = nodes[1].ask("demo", prompt);
            (reply.status == 200 && &reply.text() == answer).then_some(())
        });
    }
}
