//! A node whose data folder is damaged, older or copied says so, and what can go on does.

#![allow(clippy::unwrap_used)] // helpers of tests fail by panicking

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use crate::doors;
use crate::support::{self, Node, Start, exo, finish, flat, good, known, stderr, stdout, wait_for};
use crate::swarm::{command, demo_model, hub};
use exo_mock_hub::{MockHub, Repository};
use redb::ReadableDatabase as _;

/// The values of a journal that are not entries, and which of them says how it is written.
const META: redb::TableDefinition<'_, &str, &[u8]> = redb::TableDefinition::new("meta");
const KEY_FORMAT: &str = "format";

/// For an election, or to be found again.
const REJOINS_MAX: Duration = Duration::from_secs(30);
/// Until two processes with one key are known for that and told, or one of them is alone again: three times
/// 10 s, twice and a bit.
const PARTED_MAX: Duration = Duration::from_secs(75);

/// It was not removed from its cluster.
#[test]
fn a_node_whose_key_is_missing_says_so_and_leaving_makes_it_new() {
    let folder = tempfile::tempdir().unwrap();
    let start = Start { name: "keyless", group: "keyless", ..Start::default() };
    let mut node = Node::start_in(folder.path(), start.clone());
    assert!(node.signal("-INT").success(), "{}", node.log());
    let key = folder.path().join("node.key");
    std::fs::remove_file(&key).unwrap();
    let on_folder = |args: &[&str]| finish(exo(args).arg("--data-dir").arg(folder.path()), REJOINS_MAX);
    let refused = on_folder(&["start", "--listen", "127.0.0.1:0", "--api-listen", "127.0.0.1:0"]);
    let text = flat(&stderr(&refused));
    assert!(!refused.status.success() && text.contains("node.key is missing"), "{text}");
    assert!(text.contains("from a backup") && text.contains("`exo leave --yes`"), "{text}");
    assert!(!key.exists(), "no stranger's key takes its place");
    good(on_folder(&["leave", "--yes"]));
    let anew = Node::start_in(folder.path(), start);
    assert_eq!(anew.sees(), ["keyless"]);
}

#[test]
fn a_damaged_list_of_models_is_told_for_longer_than_a_line_lasts() {
    let folder = tempfile::tempdir().unwrap();
    let start = Start { name: "listless", group: "listless", ..Start::default() };
    let mut node = Node::start_in(folder.path(), start.clone());
    assert!(node.signal("-INT").success(), "{}", node.log());
    std::fs::write(folder.path().join("models.json"), "{").unwrap();
    let node = Node::start_in(folder.path(), start);
    let status = node.exo(&["status"]);
    let status = flat(&(stdout(&status) + &stderr(&status)));
    assert!(status.contains("the list of models was unreadable"), "{status}");
}

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
        let status = flat(&(stdout(&status) + &stderr(&status)));
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

#[test]
fn a_data_folder_of_an_older_version_is_refused_by_name_with_what_to_do() {
    let folder = tempfile::tempdir().unwrap();
    let start = Start::alone("old", &[]);
    let mut node = Node::start_in(folder.path(), start.clone());
    let id = node.get("/exo/v1/cluster")["cluster"].clone();
    node.kill();
    let path = folder.path().join("journal.redb");
    let journal = redb::Database::open(&path).unwrap();
    let change = journal.begin_write().unwrap();
    change.open_table(META).unwrap().insert(KEY_FORMAT, 2_u32.to_le_bytes().as_slice()).unwrap();
    change.commit().unwrap();
    drop(journal);

    let data = folder.path().to_str().unwrap();
    let refused =
        support::run(&["start", "--data-dir", data, "--api-listen", "127.0.0.1:0", "--no-discovery"]);
    let error = stderr(&refused);
    assert!(!refused.status.success(), "{error}");
    for wanted in
        [path.to_str().unwrap(), "journal format 2", "another version of exo wrote it", "`exo leave`"]
    {
        assert!(error.contains(wanted), "{wanted}: {error}");
    }
    let journal = redb::Database::open(&path).unwrap();
    let format = journal.begin_read().unwrap().open_table(META).unwrap().get(KEY_FORMAT).unwrap().unwrap();
    assert_eq!(format.value(), 2_u32.to_le_bytes(), "it is as it was");
    drop((format, journal));

    // What it says to do.
    good(support::run(&["leave", "--yes", "--data-dir", data]));
    let node = Node::start_in(folder.path(), start);
    assert_ne!(node.get("/exo/v1/cluster")["cluster"], id);
}

#[test]
fn of_two_processes_with_one_key_neither_is_used_until_one_ends_and_all_say_so() {
    let (folder, copy) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let start = |name| Start { name, group: "copied", ..Start::default() };
    let other = Node::start(start("other"));
    let mut first = Node::start_in(folder.path(), start("first"));
    wait_for("one cluster", REJOINS_MAX, || (other.sees().len() == 2).then_some(()));
    first.kill();
    let copied = Command::new("cp").arg("-a").arg(folder.path().join(".")).arg(copy.path()).status().unwrap();
    assert!(copied.success());
    let first = Node::start_in(folder.path(), start("first"));
    wait_for("the node's return", REJOINS_MAX, || (other.sees().len() == 2).then_some(()));
    let mut copy = Node::start_in(copy.path(), start("copy"));

    let says = |node: &Node, words: &str| flat(&stdout(&node.exo(&["status"]))).contains(words);
    wait_for("the three to say what is wrong", PARTED_MAX, || {
        let is_told = |node| says(node, "another process uses this node's key");
        (says(&other, "two processes use the key of") && is_told(&first) && is_told(&copy)).then_some(())
    });
    assert!(other.log().contains("type `exo leave` there"), "{}", other.log());
    assert_eq!(other.sees(), ["other"]);

    copy.kill();
    wait_for("the one that stays to be used again", PARTED_MAX, || (other.sees().len() == 2).then_some(()));
    // What the copy is told to do: then it is another node, and a code brings it back to the cluster it left.
    good(copy.exo(&["leave", "--yes"]));
    let copy = Node::start_in(&copy.data_dir, start("copy"));
    let is_admin = doors::roles(&other)["other"] == "admin";
    doors::join_by_code(&copy, if is_admin { &other } else { &first });
    wait_for("the copy as a node of its own", REJOINS_MAX, || {
        (other.sees().len() == 3 && copy.sees().len() == 3).then_some(())
    });
}

/// A pull of the demo model and a check of it, on a busy machine.
const LONG: Duration = Duration::from_secs(60);
const REFERENCE: &str = "hf.co/org/demo-GGUF";
const CHECK: [&str; 3] = ["models", "check", "tiny-Q8_0"];

/// A node whose environment names the hub.
fn puller(data_dir: &Path, name: &str, group: &str, hub: &MockHub) -> Node {
    let home = data_dir.join("no-home").into_os_string();
    let env = vec![("HF_ENDPOINT", hub.endpoint().into()), ("HOME", home), ("EXO_LOG", "info".into())];
    Node::start_in(data_dir, Start { name, group, env, ..Start::default() })
}

/// What a command that has to fail says on one line.
fn refused(node: &Node, args: &[&str], hub: &MockHub) -> String {
    let mut command = exo(args);
    command.arg("--data-dir").arg(&node.data_dir).env("HF_ENDPOINT", hub.endpoint());
    let output = finish(command.env("HOME", node.data_dir.join("no-home")), LONG);
    assert!(!output.status.success(), "{args:?}: {}", stdout(&output));
    flat(&stderr(&output))
}

/// Where a pull puts the model.
fn pulled(node: &Node) -> PathBuf {
    let folder = "hub/org/demo-GGUF/0123456789abcdef0123456789abcdef01234567/Q8_0";
    node.data_dir.join(folder).join("tiny-Q8_0.gguf")
}

/// Changes bytes in the middle as a disk does: neither size nor time say so.
fn damage(file: &Path) {
    let mut bytes = std::fs::read(file).unwrap();
    let middle = bytes.len() / 2;
    bytes[middle..middle + 64].iter_mut().for_each(|byte| *byte ^= 1);
    let before = std::fs::metadata(file).unwrap().modified().unwrap();
    std::fs::write(file, bytes).unwrap();
    std::fs::File::options().append(true).open(file).unwrap().set_modified(before).unwrap();
}

#[test]
fn a_pulled_model_that_a_check_finds_damaged_is_not_placed_until_it_was_pulled_anew() {
    let (hub, folder) = (hub(), tempfile::tempdir().unwrap());
    let data_dir = folder.path().join("data");
    let node = puller(&data_dir, "solo", "damaged-pull", &hub);
    command(&node, &["pull", REFERENCE], &hub, None);
    assert!(flat(&command(&node, &CHECK, &hub, None)).contains("is what its hub promised"));
    damage(&pulled(&node));
    // Nobody gives it again.
    hub.remove("org/demo-GGUF");
    assert!(refused(&node, &CHECK, &hub).contains("tiny-Q8_0.gguf is not what the hub promised"));
    drop(node);
    // What was found outlives the run that found it.
    let node = puller(&data_dir, "solo", "damaged-pull", &hub);
    let listed = || command(&node, &["models", "--json"], &hub, None);
    assert!(listed().contains("@01234567, NOT what the hub promised"));
    hub.put("org/demo-GGUF", Repository::new(&[("tiny-Q8_0.gguf", demo_model())]));
    for again in [["place", "tiny-Q8_0"], ["pull", REFERENCE]] {
        let text = refused(&node, &again, &hub);
        assert!(text.contains("`exo models remove` it"), "{again:?}: {text}");
    }
    command(&node, &["models", "remove", "tiny-Q8_0"], &hub, None);
    command(&node, &["pull", REFERENCE], &hub, None);
    assert!(!listed().contains("NOT what"));
    command(&node, &["place", "tiny-Q8_0"], &hub, None);
}

#[test]
fn of_a_pulled_model_that_a_disk_has_damaged_the_damaged_chunk_alone_comes_again() {
    const CHUNK: u64 = 64 << 10;
    let (hub, folder) = (hub(), tempfile::tempdir().unwrap());
    let start = |name: &str| puller(&folder.path().join(name), name, "repaired", &hub);
    let node = start("ann");
    command(&node, &["pull", REFERENCE], &hub, None);
    let sent = hub.sent_bytes();
    damage(&pulled(&node));
    assert!(flat(&command(&node, &CHECK, &hub, None)).contains("is what its hub promised"));
    assert_eq!(hub.sent_bytes() - sent, CHUNK, "from the hub");
    assert_eq!(std::fs::read(pulled(&node)).unwrap(), demo_model());
    for said in ["damaged on this disk: it is to be fetched again", "was fetched again"] {
        assert!(node.log().contains(said), "{said}: {}", node.log());
    }

    // And from a member that has it, where the hub has it no more.
    let other = start("bob");
    wait_for("one cluster", LONG, || (node.sees().len() == 2 && other.sees().len() == 2).then_some(()));
    command(&other, &["pull", REFERENCE], &hub, None);
    hub.remove("org/demo-GGUF");
    damage(&pulled(&node));
    let sent = hub.sent_bytes();
    // Until the node hears what the other has, nobody gives it.
    wait_for("a check that brings it back", LONG, || node.exo(&CHECK).status.success().then_some(()));
    assert_eq!(hub.sent_bytes(), sent);
    assert_eq!(std::fs::read(pulled(&node)).unwrap(), demo_model());
    command(&node, &["place", "tiny-Q8_0"], &hub, None);
    support::answers_as(&node, "tiny-Q8_0");
}
