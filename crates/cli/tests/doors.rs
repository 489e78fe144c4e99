//! Who gets in, and who is taken in: on nodes as processes of their own.

#![cfg(target_os = "linux")] // the tables of sockets
#![allow(clippy::print_stdout, reason = "a time for whoever looks")]
#![allow(clippy::unwrap_used)] // helpers of tests fail by panicking
#![allow(clippy::disallowed_methods, reason = "a pause in which nothing happens is what is measured")]

use std::io::{Read, Write};
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream};
use std::path::Path;
use std::process::Stdio;
use std::time::{Duration, Instant};

use serde_json::json;

use crate::forged::log_of;
use crate::support::{
    self, Killed, Node, SOON, Start, exo, finish, flat, good, json_of, must_refuse, skip, stderr, stdout,
    wait_for, wait_united,
};

/// Local addresses of the sockets of one kind that a process has, as the kernel writes them; only those in
/// `state`.
fn sockets(pid: u32, kind: &str, state: &str) -> Vec<String> {
    let links = std::fs::read_dir(format!("/proc/{pid}/fd")).unwrap();
    let own: Vec<_> = links.filter_map(|link| std::fs::read_link(link.ok()?.path()).ok()).collect();
    let is_own = |inode: &str| own.iter().any(|link| link.to_string_lossy() == format!("socket:[{inode}]"));
    let table = std::fs::read_to_string(format!("/proc/{pid}/net/{kind}")).unwrap_or_default();
    let of_line = |line: &str| {
        let words: Vec<_> = line.split_whitespace().collect();
        (words[3] == state && is_own(words[9])).then(|| words[1].to_owned())
    };
    table.lines().skip(1).filter_map(of_line).collect()
}

/// An `exo run` that waits for its prompt, with `--peer` where `peers` says.
fn run_without_prompt(data: &Path, group: &str, peers: &str) -> Killed {
    let mut command = exo(&["run", "demo", "--listen", "127.0.0.1:0", "--max-tokens", "4"]);
    command.arg("--data-dir").arg(data).env("EXO_GROUP", format!("{group}-{}", std::process::id()));
    command.env("EXO_PEERS", peers);
    command.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::null());
    let run = Killed(command.spawn().unwrap());
    wait_for("its API", SOON, || data.join("api.json").exists().then_some(()));
    run
}

/// Whether a command's node has the port of its API and no other, and no way to QUIC and mDNS.
fn assert_no_port(run: &Killed) {
    const LISTENING: &str = "0A";
    const ANY_UDP: &str = "07";
    const LOOPBACK: &str = "0100007F:";
    let pid = run.0.id();
    let listening = [sockets(pid, "tcp", LISTENING), sockets(pid, "tcp6", LISTENING)].concat();
    assert!(listening.len() == 1 && listening[0].starts_with(LOOPBACK), "the API alone: {listening:?}");
    let udp = [sockets(pid, "udp", ANY_UDP), sockets(pid, "udp6", ANY_UDP)].concat();
    assert_eq!(udp, [""; 0], "neither QUIC nor mDNS");
}

fn answers_and_ends(mut run: Killed) {
    let mut stdin = run.0.stdin.take().unwrap();
    stdin.write_all(b"Who are you?").unwrap();
    drop(stdin);
    assert!(run.0.wait().unwrap().success());
}

#[test]
fn a_command_opens_no_port_for_others_joins_nobody_and_leaves_the_window_to_the_first_start() {
    let other = Node::start(Start { name: "other", group: "doors", ..Start::default() });
    let folder = tempfile::tempdir().unwrap();
    let mut started = Vec::new();
    // With a peer that is not there as well as with none.
    for (name, peers) in [("first", ""), ("second", "127.0.0.1:1")] {
        let data = folder.path().join(name);
        let before = other.sees().len();
        let run = run_without_prompt(&data, "doors", peers);
        std::thread::sleep(Duration::from_secs(3)); // others of the group meet within one
        assert_no_port(&run);
        assert_eq!(other.sees().len(), before, "with peers `{peers}`");
        answers_and_ends(run);
        let counted = data.join("window.json");
        assert_eq!(log_of(&data).view().window_until_unix_s(), None, "ten minutes began with a command");
        assert!(!counted.exists(), "a command used up some of the window");

        // Who tried a prompt first still gets a cluster without a question.
        let node = Node::start_in(&data, Start { name, group: "doors", ..Start::default() });
        assert!(counted.exists(), "the first start began it");
        wait_for("one cluster", SOON, || (node.sees().len() == before + 1).then_some(()));
        started.push(node);
    }
}

#[test]
fn a_command_with_a_peer_joins_whom_it_names_without_a_port_and_nobody_else() {
    let flags = || vec!["--no-discovery".to_owned()];
    let named = Node::start(Start { name: "named", group: "named", flags: flags(), ..Start::default() });
    let nearby = Node::start(Start { name: "nearby", group: "named", ..Start::default() });
    let address = named.get("/exo/v1/cluster")["nodes"][0]["addresses"][0].as_str().unwrap().to_owned();
    let folder = tempfile::tempdir().unwrap();
    let run = run_without_prompt(&folder.path().join("data"), "named", &address);
    wait_for("whom a person named", SOON, || (named.sees().len() == 2).then_some(()));
    assert_no_port(&run);
    assert_eq!(nearby.sees(), ["nearby"]);
    answers_and_ends(run);
}

#[test]
fn a_lone_node_that_has_placed_a_model_joins_no_cluster_that_shows_up() {
    let one = Node::start(Start { name: "one", group: "taken", ..Start::default() });
    one.place("demo", 1);
    let two = Node::start(Start { name: "two", group: "taken", ..Start::default() });
    // The new one joins: the door of the other is open, and its own model stays.
    wait_for("one cluster", SOON, || (two.sees().len() == 2).then_some(()));
    let cluster = one.get("/exo/v1/cluster");
    let founder = cluster["nodes"].as_array().unwrap().iter().find(|node| node["role"] == "admin").unwrap();
    assert_eq!(founder["name"], "one");
    assert_eq!(cluster["instances"].as_array().unwrap().len(), 1);
}

/// The status of an answer to a bare request, with these headers.
fn status(address: &str, path: &str, headers: &[(&str, &str)]) -> u16 {
    let mut stream = TcpStream::connect(address).unwrap();
    let headers: String = headers.iter().map(|(name, value)| format!("{name}: {value}\r\n")).collect();
    write!(stream, "GET {path} HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n{headers}\r\n").unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    answer.split(' ').nth(1).unwrap().parse().unwrap()
}

#[test]
fn a_key_counts_on_loopback_as_well_and_commands_need_neither_key_nor_port() {
    let env = vec![("EXO_API_KEYS", "sesame".into())];
    let flags = vec!["--no-discovery".to_owned()];
    let start = Start { name: "keyed", group: "keyed", flags, env, ..Start::default() };
    let folder = tempfile::tempdir().unwrap();
    let data = folder.path().join("data");
    let mut node = Node::start_in(&data, start.clone());
    let secret = std::fs::read_to_string(node.data_dir.join("api-secret")).unwrap();
    let bearer = |word: &str| format!("Bearer {word}");
    let get = |path, headers: &[(&str, &str)]| status(&node.address, path, headers);
    assert_eq!(get("/v1/models", &[]), 401, "as through a proxy on this machine");
    assert_eq!(get("/v1/models", &[("authorization", &bearer("sesam"))]), 401);
    assert_eq!(get("/v1/models", &[("authorization", &bearer("sesame"))]), 200);
    let administer = ("authorization", bearer(&secret));
    assert_eq!(get("/exo/v1/cluster", &[(administer.0, &administer.1)]), 200);
    let forwarding = [
        "X-Forwarded-For",
        "X-Forwarded-Port",
        "Forwarded",
        "Via",
        "X-Real-IP",
        "True-Client-IP",
        "CF-Connecting-IP",
    ];
    for header in forwarding {
        let proxied = [(administer.0, &*administer.1), (header, "1.1 proxy")];
        assert_eq!(get("/exo/v1/cluster", &proxied), 403, "{header}");
    }
    good(node.exo(&["run", "demo", "Who are you?", "--max-tokens", "4"]));

    // The secret of the run before opens nothing.
    assert!(node.signal("-INT").success(), "{}", node.log());
    assert!(!data.join("api.sock").exists(), "the channel is gone with the node");
    let node = Node::start_in(&data, start);
    assert_eq!(status(&node.address, "/exo/v1/cluster", &[("authorization", &administer.1)]), 401);
}

#[test]
fn a_command_tells_nothing_to_a_stranger_on_the_port_of_a_node_that_crashed() {
    let mut node = Node::alone();
    node.kill();
    let published = std::fs::read_to_string(node.data_dir.join("api.json")).unwrap();
    assert!(published.contains(&node.address), "what it left behind still leads there: {published}");
    let stranger = TcpListener::bind(&node.address).unwrap();
    stranger.set_nonblocking(true).unwrap();
    must_refuse(node.exo(&["status"]), "no exo node is running");
    let knock = stranger.accept();
    assert!(knock.is_err_and(|error| error.kind() == std::io::ErrorKind::WouldBlock), "it was asked");
}

#[test]
fn an_api_on_a_network_address_starts_and_commands_reach_it() {
    // Nothing is sent: the system only says which address it would use.
    let socket = std::net::UdpSocket::bind("0.0.0.0:0").unwrap();
    let own = socket.connect("192.0.2.1:9").and_then(|()| socket.local_addr()).map(|address| address.ip());
    let Some(ip) = own.ok().filter(|ip: &IpAddr| !ip.is_loopback() && !ip.is_unspecified()) else {
        return skip("an API on a network address", "this machine has only a loopback address");
    };
    let folder = tempfile::tempdir().unwrap();
    let data = folder.path().join("a folder whose path is too long for a socket ".repeat(2)).join("data");
    let listen = SocketAddr::new(ip, 0).to_string();
    let args = ["start", "--api-listen", &listen, "--listen", "127.0.0.1:0", "--no-discovery", "--data-dir"];
    let mut command = exo(&args);
    command.arg(&data).env("EXO_API_KEYS", "sesame").stdout(Stdio::null()).stderr(Stdio::null());
    let mut node = Killed(command.spawn().unwrap());
    wait_for("its API", SOON, || {
        assert!(node.0.try_wait().unwrap().is_none(), "it ended");
        data.join("api.json").exists().then_some(())
    });
    let status = finish(exo(&["status"]).arg("--data-dir").arg(&data), SOON);
    assert!(status.status.success() && stdout(&status).contains("(this)"), "{}", stderr(&status));
}

#[test]
fn a_removed_node_is_told_keeps_its_models_and_becomes_new_on_request() {
    let folder = tempfile::tempdir().unwrap();
    let data = folder.path().join("data");
    let first = Node::start(Start { name: "stays", group: "removed", ..Start::default() });
    let start = Start { name: "goes", group: "removed", ..Start::default() };
    let second = Node::start_in(&data, start);
    wait_for("one cluster", SOON, || (first.sees().len() == 2 && second.sees().len() == 2).then_some(()));
    let members = first.get("/exo/v1/members");
    let admin = members.as_array().unwrap().iter().find(|m| m["role"] == "admin").unwrap();
    let (stays, goes, loser) = match admin["name"].as_str().unwrap() {
        "stays" => (&first, "goes", &second),
        _ => (&second, "stays", &first),
    };
    let model = folder.path().join("mine.gguf");
    support::another_model(&model);
    good(loser.exo(&["models", "add", &model.display().to_string()]));
    let removed = good(stays.exo(&["remove", goes]));
    assert!(stdout(&removed).starts_with(&format!("removed {goes} (")), "{}", stdout(&removed));
    wait_for("the word", SOON, || loser.log().contains("removed this node from its cluster").then_some(()));
    assert_eq!(stays.sees(), [if goes == "goes" { "stays" } else { "goes" }]);
    let status = flat(&stdout(&loser.exo(&["status"])));
    assert!(
        status.contains("was removed from its cluster, for good") && status.contains("`exo leave`"),
        "{status}"
    );
    assert!(!status.contains("form a cluster anew"), "it is this node that is out: {status}");
    assert!(flat(&stdout(&loser.exo(&["admit"]))).contains("was removed from its cluster"));
    assert!(stderr(&loser.exo(&["invite"])).contains("was removed from its cluster"));
    let lines = stdout(&loser.exo(&["logs"]));
    assert!(lines.contains(&format!(" {goes} ")), "its own lines say what happened: {lines}");

    let data_dir = loser.data_dir.clone();
    let leave = |args: &[&str]| finish(exo(args).arg("--data-dir").arg(&data_dir).stdin(Stdio::null()), SOON);
    let running = leave(&["leave", "--yes"]);
    assert!(stderr(&running).contains("end it first with `exo stop`"), "{}", stderr(&running));
    let mut loser = if goes == "goes" { second } else { first };
    let stopped = loser.exo(&["stop"]);
    assert!(
        stopped.status.success() && loser.ended_within(SOON).success(),
        "{}{}",
        stderr(&stopped),
        loser.log()
    );
    assert_eq!(stdout(&stopped), "the node has ended\n");
    let log = loser.log();
    let (_, since) = log.split_once("removed this node from its cluster").unwrap();
    assert!(!since.contains("coordinates the cluster"), "it is in none: {since}");
    assert!(stdout(&leave(&["stop"])).starts_with("no node runs on "), "once more");
    let unasked = leave(&["leave"]);
    assert!(stderr(&unasked).contains("add --yes"), "{}", stderr(&unasked));
    let key = std::fs::read(data_dir.join("node.key")).unwrap();
    let left = leave(&["leave", "--yes"]);
    assert!(left.status.success(), "{}", stderr(&left));
    assert!(!flat(&stdout(&left)).contains("takes it off"), "it is off: {}", stdout(&left));
    let anew = Node::start_in(&data_dir, Start { name: "anew", group: "removed-anew", ..Start::default() });
    assert_ne!(std::fs::read(data_dir.join("node.key")).unwrap(), key);
    assert_eq!(anew.sees(), ["anew"]);
    assert!(stdout(&anew.exo(&["models"])).contains("mine"));
    assert!(!anew.log().contains("removed this node"));
}

#[test]
fn a_node_does_not_go_back_on_sight_to_the_cluster_that_it_left_and_a_code_brings_it_back() {
    let folder = tempfile::tempdir().unwrap();
    let ((admin, _), (mut worker, name)) = admin_and_worker(folder.path(), "left");
    let data_dir = worker.data_dir.clone();
    let end = |node: &mut Node| assert!(node.signal("-INT").success(), "{}", node.log());
    end(&mut worker);
    let mut leave = exo(&["leave", "--yes"]);
    let left = finish(leave.arg("--data-dir").arg(&data_dir), SOON);
    assert!(left.status.success() && flat(&stdout(&left)).contains("but not the one it left"), "{left:?}");
    assert!(flat(&stdout(&left)).contains("`exo remove` on an admin there takes it off"), "{left:?}");

    let start = Start { name, group: "left", ..Start::default() };
    let mut anew = Node::start_in(&data_dir, start.clone());
    wait_for("the word", SOON, || anew.log().contains("this node left the cluster of").then_some(()));
    std::thread::sleep(Duration::from_secs(3)); // others of the group meet within one
    assert_eq!(anew.sees(), [name]);
    for node in [&admin, &anew] {
        assert_eq!(node.get("/exo/v1/cluster")["join_window"]["open"], true, "both doors are open");
    }

    join_by_code(&anew, &admin);
    wait_for("one cluster", SOON, || (anew.sees().len() == 2).then_some(()));

    // It is one of that cluster, and nothing else is remembered.
    end(&mut anew);
    let anew = Node::start_in(&data_dir, start);
    wait_for("one cluster again", SOON, || (anew.sees().len() == 2).then_some(()));
    assert_eq!(std::fs::read_to_string(data_dir.join("left.json")).unwrap(), "[]");
}

/// Has a node let in with a code of an admin.
pub fn join_by_code(node: &Node, admin: &Node) {
    let shown = stdout(&good(admin.exo(&["invite"])));
    let code = shown.lines().nth(1).unwrap().trim().strip_prefix("exo join ").unwrap();
    good(node.exo(&["join", code]));
}

/// A node and what it is called.
pub type Named = (Node, &'static str);

/// Two nodes of one cluster, their data in `folder`; the admin comes first.
pub fn admin_and_worker(folder: &Path, group: &'static str) -> (Named, Named) {
    let start = |name| (Node::start_in(&folder.join(name), Start { name, group, ..Start::default() }), name);
    let (first, second) = (start("first"), start("second"));
    wait_for("one cluster", SOON, || (first.0.sees().len() == 2 && second.0.sees().len() == 2).then_some(()));
    match roles(&first.0)["first"].as_str() {
        "admin" => (first, second),
        _ => (second, first),
    }
}

/// What members may do, by name.
pub fn roles(node: &Node) -> std::collections::BTreeMap<String, String> {
    let members = node.get("/exo/v1/members");
    let text = |value: &serde_json::Value| value.as_str().unwrap().to_owned();
    members.as_array().unwrap().iter().map(|m| (text(&m["name"]), text(&m["role"]))).collect()
}

#[test]
fn a_node_that_was_removed_while_it_was_away_learns_it_at_its_next_start() {
    let folder = tempfile::tempdir().unwrap();
    let ((admin, _), (mut worker, name)) = admin_and_worker(folder.path(), "away");
    let data_dir = worker.data_dir.clone();
    assert!(worker.signal("-INT").success(), "{}", worker.log());
    wait_for("its loss", SOON, || (admin.sees().len() == 1).then_some(()));
    let removed = json_of(admin.exo(&["remove", name, "--json"]));
    assert_eq!(removed["name"], name);
    let again = Node::start_in(&data_dir, Start { name, group: "away", ..Start::default() });
    wait_for("the word", SOON, || again.log().contains("removed this node from its cluster").then_some(()));
}

#[test]
fn only_admins_change_members_and_an_admin_makes_others_admins() {
    let folder = tempfile::tempdir().unwrap();
    let ((admin, its_name), (worker, other_name)) = admin_and_worker(folder.path(), "admins");
    must_refuse(worker.exo(&["remove", its_name]), "this node is not an admin");
    must_refuse(worker.exo(&["admin", "add", other_name]), "this node is not an admin");
    must_refuse(admin.exo(&["admin", "remove", its_name]), "only admin");

    let status = flat(&stdout(&worker.exo(&["status"])));
    assert!(status.contains(&format!("only {its_name} lets machines in")), "{status}");
    good(admin.exo(&["admin", "add", other_name]));
    wait_for("two admins", SOON, || roles(&worker).values().all(|role| role == "admin").then_some(()));
    assert!(!flat(&stdout(&worker.exo(&["status"]))).contains("lets machines in"));
    // By its id, too, it is told by its name.
    let id = admin.get("/exo/v1/cluster")["self_node"].as_str().unwrap().to_owned();
    let dismissed = good(worker.exo(&["admin", "remove", &id]));
    let says = format!("{its_name} ({}) is no admin any more", &id[..16]);
    assert!(stdout(&dismissed).starts_with(&says), "{}", stdout(&dismissed));
    wait_for("one admin", SOON, || (roles(&admin)[its_name] == "worker").then_some(()));
    must_refuse(admin.exo(&["remove", other_name]), "this node is not an admin");
}

#[test]
fn a_code_lets_a_used_node_in_with_the_window_shut_and_a_wrong_one_does_not() {
    let start = |name, group| {
        let flags = vec!["--trust".to_owned(), "closed".to_owned()];
        Node::start(Start { name, group, flags, ..Start::default() })
    };
    let (inviter, joiner) = (start("inviter", "codes"), start("joiner", "codes"));
    let shown = stdout(&good(inviter.exo(&["invite"])));
    let code = shown.lines().nth(1).unwrap().trim().strip_prefix("exo join ").unwrap().to_owned();
    let peer = shown.lines().nth(3).unwrap().trim().split_once("--peer ").unwrap().1.to_owned();

    let wrong = if code.starts_with('0') { "111-111-111" } else { "000-000-000" };
    must_refuse(joiner.exo(&["join", wrong, "--peer", &peer]), "the code is wrong");
    let nonsense = joiner.exo(&["join", "12345"]);
    let said = stderr(&nonsense);
    assert!(said.contains("9 digits") && !said.contains("asking"), "nobody is asked with it: {said}");

    let placed = joiner.exo(&["place", "demo"]);
    assert!(placed.status.success(), "a used node joins all the same: {}", stderr(&placed));
    let began = Instant::now();
    let joined = joiner.exo(&["join", &code, "--peer", &peer]);
    println!("`exo join` with the right code took {:?}", began.elapsed());
    assert!(
        stderr(&joined).contains("asking the nodes nearby"),
        "a pipe shows no spinner: {}",
        stderr(&joined)
    );
    assert!(joined.status.success(), "{}", stderr(&joined));
    assert!(stdout(&joined).contains("joined the cluster of inviter"), "{}", stdout(&joined));
    wait_for("one cluster", SOON, || (inviter.sees().len() == 2 && joiner.sees().len() == 2).then_some(()));
    let again = joiner.exo(&["join", &code]);
    assert!(stderr(&again).contains("exo leave"), "digits do not say whose they are: {}", stderr(&again));
    let again = joiner.exo(&["join", &code, "--peer", &peer]);
    assert!(again.status.success() && stdout(&again).contains("already"), "{}", stderr(&again));
}

#[test]
fn three_wrong_codes_void_an_invitation_and_the_right_one_is_refused_then() {
    let start = |name| {
        let flags = ["--trust", "closed", "--no-discovery"].map(str::to_owned).to_vec();
        Node::start(Start { name, group: "voided", flags, ..Start::default() })
    };
    let (inviter, joiner) = (start("inviter"), start("joiner"));
    let shown = stdout(&inviter.exo(&["invite"]));
    let code = shown.lines().nth(1).unwrap().trim().strip_prefix("exo join ").unwrap().to_owned();
    let peer = shown.lines().nth(3).unwrap().trim().split_once("--peer ").unwrap().1.to_owned();
    let join = |code: &str| joiner.exo(&["join", code, "--peer", &peer]);
    let wrong = if code.starts_with('0') { "111-111-111" } else { "000-000-000" };
    for _ in 0..3 {
        must_refuse(join(wrong), "wrong");
    }
    must_refuse(join(&code), "");
    assert_eq!((inviter.sees(), joiner.sees()), (vec!["inviter".to_owned()], vec!["joiner".to_owned()]));
    // The next one counts again.
    let shown = stdout(&inviter.exo(&["invite"]));
    let code = shown.lines().nth(1).unwrap().trim().strip_prefix("exo join ").unwrap().to_owned();
    good(join(&code));
}

/// The other half, a command that asks a stranger's socket, is in `stolen_socket.rs`.
#[test]
fn another_user_of_the_machine_is_not_answered_on_the_channel_for_commands() {
    use std::fs::Permissions;
    use std::os::unix::fs::PermissionsExt;
    const TEST: &str = "another_user_of_the_machine_is_not_answered_on_the_channel_for_commands";
    const ASK: &str = "import socket, sys
s = socket.socket(socket.AF_UNIX)
s.settimeout(10)
try:
    s.connect(sys.argv[1])
    s.sendall(b'GET /exo/v1/cluster HTTP/1.1\\r\\nHost: localhost\\r\\nConnection: close\\r\\n\\r\\n')
    print('answered', len(s.recv(4096)))
except PermissionError:
    print('closed')
except (ConnectionError, BrokenPipeError):
    print('answered', 0)";
    let node = Node::alone();
    // As a careless owner would: everybody may open all of it.
    let mut path = node.data_dir.clone();
    let parents = [node.data_dir.parent().unwrap().to_owned(), node.data_dir.clone()];
    for folder in parents {
        std::fs::set_permissions(folder, Permissions::from_mode(0o777)).unwrap();
    }
    path.push("api.sock");
    std::fs::set_permissions(&path, Permissions::from_mode(0o777)).unwrap();
    let ask = |user: &str| {
        let mut command = std::process::Command::new("setpriv");
        command.args(["--reuid", user, "--regid", user, "--clear-groups", "/usr/bin/python3", "-c", ASK]);
        let asked = command.arg(&path).output().ok()?;
        asked.status.success().then(|| stdout(&asked))
    };
    let Some(own) = ask("0") else {
        return skip(TEST, "it takes root, `setpriv` and /usr/bin/python3");
    };
    assert!(own.starts_with("answered ") && own != "answered 0\n", "{own}");
    let other = ask("65534").unwrap();
    if other == "closed\n" {
        return skip(TEST, "a folder above the node's is closed to others");
    }
    assert_eq!(other, "answered 0\n");
}

#[test]
fn a_token_lets_in_as_many_nodes_as_it_says_without_a_terminal() {
    let closed = vec!["--trust".to_owned(), "closed".to_owned()];
    let flags = || closed.clone();
    let inviter = Node::start(Start { name: "inviter", group: "tokens", flags: flags(), ..Start::default() });
    let invited = good(inviter.exo(&["invite", "--uses", "2"]));
    let token = stdout(&invited).lines().nth(1).unwrap().trim().to_owned();
    let start = |name| {
        let env = vec![("EXO_JOIN_TOKEN", token.clone().into())];
        Node::start(Start { name, group: "tokens", flags: flags(), env, ..Start::default() })
    };
    let nodes = [start("one"), start("two")];
    wait_for("one cluster", SOON, || (inviter.sees().len() == 3).then_some(()));
    let secret = token.split('@').next().unwrap().to_owned();
    let tells = |node: &Node| node.log().to_ascii_lowercase().contains(&secret);
    assert!(secret.len() == 26 && !nodes.iter().chain([&inviter]).any(tells), "no token in a log");
    let third = start("three");
    wait_for("its refusal", SOON, || third.log().contains("no invitation open").then_some(()));
    assert_eq!(third.sees(), ["three"]);
}

#[test]
fn a_node_with_a_token_joins_no_stranger_while_it_waits_and_says_so_of_what_is_no_token() {
    let start = |name, token: Option<String>| {
        let env = token.map(|token| ("EXO_JOIN_TOKEN", token.into())).into_iter().collect();
        Node::start(Start { name, group: "token-waits", env, ..Start::default() })
    };
    let inviter = Node::start(Start { name: "inviter", group: "elsewhere", ..Start::default() });
    let invited = inviter.exo(&["invite", "--uses", "1"]);
    let token = stdout(&invited).lines().nth(1).unwrap().trim().to_owned();
    let (secret_and_id, _) = token.rsplit_once('@').unwrap();
    let waits = start("waits", Some(format!("{secret_and_id}@127.0.0.1:1")));
    let folder = tempfile::tempdir().unwrap();
    let env = vec![("EXO_JOIN_TOKEN", "garbage".into())];
    let of_garbage = Start { name: "garbage", group: "token-waits", env, ..Start::default() };
    let mut garbage = Node::start_in(folder.path(), of_garbage);
    // Who has none is joined in the same seconds.
    let strangers = [start("stranger", None), start("another", None)];
    wait_for("strangers to join", SOON, || (strangers[0].sees().len() == 2).then_some(()));
    wait_for("the first attempt", SOON, || waits.log().contains("tried again every").then_some(()));
    wait_for("the refusal", SOON, || garbage.log().contains("EXO_JOIN_TOKEN is not used").then_some(()));
    assert_eq!((waits.sees(), garbage.sees()), (vec!["waits".to_owned()], vec!["garbage".to_owned()]));
    assert_eq!(strangers[1].sees().len(), 2);
    // Without the variable it is a new node like any other.
    assert!(garbage.signal("-INT").success());
    let without = Start { name: "garbage", group: "token-waits", ..Start::default() };
    let fresh = Node::start_in(folder.path(), without);
    wait_for("it to join", SOON, || (fresh.sees().len() == 3).then_some(()));
}

/// For scripts that set machines up: lines alone, and a second run is no error.
#[test]
fn a_script_joins_with_a_token_through_pipes() {
    let closed = vec!["--trust".to_owned(), "closed".to_owned()];
    let start =
        |name| Node::start(Start { name, group: "scripts", flags: closed.clone(), ..Start::default() });
    let (inviter, joiner) = (start("inviter"), start("joiner"));
    let invited = inviter.exo(&["invite", "--uses", "1"]);
    let token = stdout(&invited).lines().nth(1).unwrap().trim().to_owned();
    let joined = good(joiner.exo(&["join", &token]));
    let (said, noted) = (stdout(&joined), stderr(&joined));
    let lines: Vec<&str> = said.lines().collect();
    assert_eq!((lines.len(), lines[0]), (2, "joined the cluster of inviter"), "{said}");
    assert!(lines[1].starts_with("both machines show these words: "), "{said}");
    assert_eq!(noted, "note: asking the nodes nearby, or those of --peer, with the code\n");
    let again = good(joiner.exo(&["join", &token]));
    assert_eq!(stdout(&again), "this node is a member of the cluster of inviter already\n");
    assert_eq!(stderr(&again), "");
    // What goes wrong is an exit status and an error, and nothing on the output.
    let stranger = start("stranger").exo(&["join", &token]);
    assert_eq!((stranger.status.code(), stdout(&stranger).as_str()), (Some(1), ""), "{}", stderr(&stranger));
    assert!(
        stderr(&stranger).contains("error: ") && !stderr(&stranger).contains('\r'),
        "{}",
        stderr(&stranger)
    );
}

/// Files below a folder in which one of the texts is.
fn files_with(folder: &Path, texts: &[&str]) -> Vec<std::path::PathBuf> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir(folder).unwrap().flatten() {
        let (path, kind) = (entry.path(), entry.file_type().unwrap());
        if kind.is_dir() {
            found.extend(files_with(&path, texts));
        } else if kind.is_file() {
            let bytes = std::fs::read(&path).unwrap();
            let has = |text: &&str| bytes.windows(text.len()).any(|part| part == text.as_bytes());
            if texts.iter().any(has) {
                found.push(path);
            }
        }
    }
    found
}

#[test]
fn prompts_and_answers_are_on_no_disk_and_in_no_log() {
    const MARK: &str = "quincunx-marmalade";
    let folder = tempfile::tempdir().unwrap();
    let temporary = folder.path().join("tmp");
    std::fs::create_dir(&temporary).unwrap();
    let start = |name| {
        let env = vec![("TMPDIR", temporary.clone().into())];
        Node::start_in(&folder.path().join(name), Start { name, group: "disk", env, ..Start::default() })
    };
    let nodes = [start("one"), start("two")];
    wait_united(&nodes, SOON);
    nodes[0].place("demo", 2);
    let prompt = format!("Tell me a story about {MARK}.");
    let body = serde_json::json!({"model": "demo", "prompt": prompt, "max_tokens": 100, "ignore_eos": true});
    let said =
        nodes[0].post("/v1/completions", &body).json()["choices"][0]["text"].as_str().unwrap().to_owned();
    assert!(said.len() > 80, "{said}");
    // Streamed, so that the other node keeps a copy; kept for a next turn; and by a command.
    let body = serde_json::json!({"model": "demo", "stream": true, "max_tokens": 200, "ignore_eos": true,
        "messages": [{"role": "user", "content": prompt}]});
    let mut streamed = String::new();
    nodes[1]
        .send("POST", "/v1/chat/completions", Some(body.to_string()))
        .read_to_string(&mut streamed)
        .unwrap();
    assert!(streamed.contains("[DONE]"), "{streamed}");
    nodes[0].post("/v1/responses", &serde_json::json!({"model": "demo", "input": prompt})).good();
    good(finish(
        exo(&["run", "demo", &prompt]).arg("--data-dir").arg(&nodes[1].data_dir).env("TMPDIR", &temporary),
        SOON,
    ));

    let logs: String = nodes.iter().map(Node::log).collect();
    let mut nodes = nodes;
    for node in &mut nodes {
        assert!(node.signal("-INT").success(), "{}", node.log());
    }
    // A part of the answer that no file of the model has.
    let answer: String = said.chars().skip(said.chars().count() / 2).collect();
    assert_eq!(files_with(folder.path(), &[MARK, &answer]), [""; 0].map(std::path::PathBuf::from));
    assert!(!logs.contains(MARK) && !logs.contains(&answer), "{logs}");
}

#[test]
fn a_person_shuts_the_door_refuses_who_asks_and_opens_it_for_a_while() {
    /// A stranger that was refused asks again every 15 s.
    const ASKED_AGAIN: Duration = Duration::from_secs(60);
    let first = Node::start(Start { name: "first", group: "by-hand", ..Start::default() });
    let window = || first.get("/exo/v1/cluster")["join_window"].clone();
    let requests = || first.get("/exo/v1/cluster")["join_requests"].as_array().unwrap().clone();
    wait_for("the first minutes", SOON, || (window()["open"] == true).then_some(()));
    assert_eq!(first.call("DELETE", "/exo/v1/join_window", None).status, 204);
    wait_for("a shut door", SOON, || (window()["open"] == false).then_some(()));

    let mut refused = Node::start(Start { name: "refused", group: "by-hand", ..Start::default() });
    let asks = wait_for("who asks", ASKED_AGAIN, || requests().first().cloned());
    assert_eq!(asks["name"], "refused");
    let request = format!("/exo/v1/join_requests/{}", asks["node"].as_str().unwrap());
    let listed = flat(&stdout(&first.exo(&["admit"])));
    assert!(
        listed.contains("refused at") && listed.contains(asks["check_words"].as_str().unwrap()),
        "{listed}"
    );
    let for_scripts = |args: &[&str]| -> serde_json::Value {
        serde_json::from_str(&stdout(&first.exo(&[args, &["--json"]].concat()))).unwrap()
    };
    assert_eq!(for_scripts(&["admit"])["join_requests"][0]["name"], "refused");
    let refusal = for_scripts(&["admit", "refused", "--refuse"]);
    assert_eq!(refusal, json!({"node": asks["node"], "is_refused": true}));
    wait_for("nobody asks", SOON, || requests().is_empty().then_some(()));
    assert_eq!(stdout(&first.exo(&["admit"])), "nobody asks to join\n");
    assert_eq!(first.call("DELETE", &request, None).code(), "not_found");
    refused.kill();

    let guest = Node::start(Start { name: "guest", group: "by-hand", ..Start::default() });
    wait_for("who asks", ASKED_AGAIN, || requests().iter().any(|r| r["name"] == "guest").then_some(()));
    assert_eq!(first.sees(), ["first"], "it waits for a person");
    assert_eq!(first.post("/exo/v1/join_window", &json!({"minutes": 61})).code(), "invalid_value");
    assert_eq!(for_scripts(&["admit", "--anyone", "5"]), json!({"open_minutes": 5}));
    let until = wait_for("an open door", SOON, || window()["open_until_unix_s"].as_u64());
    wait_for("one cluster", ASKED_AGAIN, || (first.sees().len() == 2).then_some(()));
    assert!(requests().is_empty());

    // A worker opens nothing.
    wait_for("the guest's view", SOON, || (guest.sees().len() == 2).then_some(()));
    assert_eq!(guest.post("/exo/v1/join_window", &json!({})).code(), "conflict");
    assert_eq!(window()["open_until_unix_s"], until);
    assert_eq!(for_scripts(&["admit", "--nobody"]), json!({"open_minutes": 0}));
    wait_for("a shut door", SOON, || (window()["open"] == false).then_some(()));
}

/// A person has placed a model on each before they met, so neither moves by itself: both say so, and a code
/// makes them one.
#[test]
fn two_nodes_that_were_used_before_they_met_name_each_other_and_the_way_out() {
    let folder = tempfile::tempdir().unwrap();
    let start = |folder_name: &str, name: &str, flags: &[&str]| {
        let flags = flags.iter().map(|flag| (*flag).to_owned()).collect();
        let start = Start { name, group: "met", flags, ..Start::default() };
        Node::start_in(&folder.path().join(folder_name), start)
    };
    for folder in ["first", "second"] {
        let mut node = start(folder, "twin", &["--no-discovery"]);
        // What a request loads is no use of its own; what a person places is.
        good(node.exo(&["place", "demo"]));
        assert!(node.signal("-TERM").success());
    }
    let (first, second) = (start("first", "twin", &[]), start("second", "twin", &[]));
    for node in [&first, &second] {
        wait_for("the other cluster in the status", SOON, || {
            let status = flat(&stdout(&node.exo(&["status"])));
            (status.contains("twin at ") && status.contains("`exo invite` there")).then_some(())
        });
        wait_for("the alert", 2 * SOON, || {
            flat(&stdout(&node.exo(&["alerts"]))).contains("cluster of its own").then_some(())
        });
        wait_for("the node's own word", 2 * SOON, || {
            node.log().contains("neither joins the other by itself").then_some(())
        });
        assert_eq!(node.sees(), ["twin"], "nobody moved");
    }
    let invited = stdout(&first.exo(&["invite"]));
    let code = invited.lines().nth(1).unwrap().trim().trim_start_matches("exo join ").to_owned();
    good(second.exo(&["join", &code]));
    wait_for("one cluster", SOON, || (first.sees().len() == 2 && second.sees().len() == 2).then_some(()));
    wait_for("nothing more to say", SOON, || {
        let says = |node: &Node| node.get("/exo/v1/cluster")["other_clusters"] != json!([]);
        (!says(&first) && !says(&second)).then_some(())
    });

    // Two machines of one name are told apart by what the screen shows, in every command.
    let names = first.sees();
    assert!(names.iter().all(|name| name.starts_with("twin-")) && names[0] != names[1], "{names:?}");
    let view = first.get("/exo/v1/cluster");
    let other = view["nodes"].as_array().unwrap().iter().find(|node| node["is_self"] == false).unwrap();
    let other_name = other["name"].as_str().unwrap();
    let planned = json_of(first.exo(&["plan", "demo", "--pin", &format!("{other_name}/cpu"), "--json"]));
    assert!(planned.to_string().contains(other_name), "{planned:#}");
    let drained = json_of(first.exo(&["drain", other_name, "--json"]));
    assert_eq!(drained, json!({"node": other["id"], "name": other_name, "is_drained": true}));

    // A new name is followed by the others.
    drop(second);
    let second = start("second", "attic", &[]);
    wait_for("the new name", SOON, || {
        let mut names = first.sees();
        names.sort();
        (names == ["attic", "twin"]).then_some(())
    });
    drop(second);
}
