//! One host of a network floods it: false names, connections that are held, questions at full rate. Machines
//! that mean it find each other all the same, and logs stay short. Network namespaces, so it needs root.

#![cfg(target_os = "linux")]
#![allow(clippy::unwrap_used, clippy::print_stdout)] // helpers of tests fail by panicking
#![allow(clippy::disallowed_methods, reason = "a flood for a while is what is measured")]

use std::io::Read;
use std::net::{Ipv4Addr, SocketAddr, TcpStream, UdpSocket};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use crate::support::lan::{Host, Lan, group};
use crate::support::{Killed, SOON, counted, good, skip, stdout, wait_for};
use exo_machine::joining::{JoinAsk, JoinPurpose};
use exo_transport::{Endpoint, MemberSet, NodeKey, Options};
use exo_types::NodeId;

/// What the process that floods is to do: its own address and those whom it bothers.
const ROLE: &str = "EXO_TEST_FLOOD";
/// Whether it asks to become a member.
const WANTS_IN: &str = "EXO_TEST_FLOOD_WANTS_IN";
const PORT: u16 = 52416;
/// A machine that means it joins within this.
const JOINS_WITHIN: Duration = Duration::from_secs(15);
/// Of a node's log in a minute.
const LOG_BYTES_A_MINUTE: usize = 10_000;
/// A node may grow by this while names rain on it for a minute.
const GROWTH_BYTES_MAX: u64 = 96 << 20;
/// Clears a screen, in a name.
const NAME: &str = "\x1b[2J\u{202E}evil";

/// The third host floods the other two until it is dropped. Where the window is open it only asks who is
/// there: whoever is near is let in on sight, and this host is.
fn flood(lan: &Lan, wants_in: bool) -> Killed {
    let mut command = lan.command(2, std::env::current_exe().unwrap());
    command.args(["--exact", "floods::one_host_floods", "--nocapture"]);
    let role = [lan.address(2), lan.address(0), lan.address(1)].join(" ");
    command.env(ROLE, role).env("EXO_TEST_GROUP", group());
    if wants_in {
        command.env(WANTS_IN, "1");
    }
    command.stdout(std::process::Stdio::null());
    Killed(command.spawn().unwrap())
}

#[test]
fn two_new_machines_find_each_other_while_a_third_floods_their_network() {
    const TEST: &str = "two_new_machines_find_each_other_while_a_third_floods_their_network";
    in_a_flood_of_names(TEST, Duration::from_secs(8));
}

#[test]
fn throw_away_keys_that_ask_at_full_rate_fill_no_log_and_keep_no_code_from_working() {
    const TEST: &str = "throw_away_keys_that_ask_at_full_rate_fill_no_log_and_keep_no_code_from_working";
    in_a_flood_of_asks(TEST, (Duration::from_secs(12), LOG_BYTES_A_MINUTE / 2));
}

#[test]
#[ignore = "a whole minute of each flood, for docs/benchmarks.md"]
fn what_a_minute_of_each_flood_writes() {
    const TEST: &str = "what_a_minute_of_each_flood_writes";
    const MINUTE: Duration = Duration::from_secs(60);
    in_a_flood_of_names(TEST, MINUTE);
    in_a_flood_of_asks(TEST, (MINUTE, LOG_BYTES_A_MINUTE));
}

/// Two new nodes are switched on in a flood that goes on for so long behind their meeting.
fn in_a_flood_of_names(test: &str, lasting: Duration) {
    let lan = match Lan::new(3) {
        Ok(lan) => lan,
        Err(why) => return skip(test, &why),
    };
    let folder = tempfile::tempdir().unwrap();
    let _flood = flood(&lan, false);
    std::thread::sleep(Duration::from_secs(2));
    let first = Host::start(&lan.namespaces[0], &folder.path().join("a"), "a");
    wait_for("the first API", SOON, || first.data_dir.join("api.json").exists().then_some(()));
    std::thread::sleep(Duration::from_secs(3));
    let (began, before) = (Instant::now(), resident_bytes(&first));
    let second = Host::start(&lan.namespaces[1], &folder.path().join("b"), "b");
    while first.alive() != 2 {
        assert!(began.elapsed() < 2 * JOINS_WITHIN, "no cluster\n{}\n{}", first.log(), second.log());
        std::thread::sleep(Duration::from_millis(50));
    }
    let joined = began.elapsed();
    std::thread::sleep(lasting);
    let (grown, log) = (resident_bytes(&first).saturating_sub(before), first.log() + &second.log());
    println!(
        "joined after {joined:?}; the first node grew by {} MiB; logs of both in {lasting:?} and their starts: {} bytes",
        grown >> 20,
        log.len()
    );
    assert!(joined < JOINS_WITHIN, "{joined:?}\n{log}");
    assert!(log.len() < LOG_BYTES_A_MINUTE, "{log}");
    assert!(grown < GROWTH_BYTES_MAX, "{} MiB", grown >> 20);
}

/// Keys of the third host ask to become members for so long, and a node writes less than so many bytes.
fn in_a_flood_of_asks(test: &str, (lasting, log_bytes_max): (Duration, usize)) {
    let lan = match Lan::new(3) {
        Ok(lan) => lan,
        Err(why) => return skip(test, &why),
    };
    let folder = tempfile::tempdir().unwrap();
    let start = |i: usize, name: &str| {
        Host::start_with(&lan.namespaces[i], &folder.path().join(name), name, &["--trust", "closed"])
    };
    let (first, second) = (start(0, "a"), start(1, "b"));
    for host in [&first, &second] {
        wait_for("the APIs", SOON, || (host.alive() == 1).then_some(()));
    }
    let before = first.log().len();
    let _flood = flood(&lan, true);
    std::thread::sleep(lasting);
    let during = first.log()[before..].to_owned();
    let requests = first.view().unwrap()["join_requests"].as_array().unwrap().len();
    println!("{} bytes of log in {lasting:?}, {requests} requests on the list", during.len());
    assert!(requests > 0, "nobody asked: the flood floods nothing");
    assert!(during.len() < log_bytes_max, "{during}");
    assert!(!during.contains('\x1b') && !during.contains('\u{202E}'), "{during:?}");

    let shown = stdout(&good(first.exo(&["invite"])));
    let code = shown.lines().nth(1).unwrap().trim().strip_prefix("exo join ").unwrap().to_owned();
    let began = Instant::now();
    let peer = format!("{}:{PORT}", lan.address(0));
    good(second.exo(&["join", &code, "--peer", &peer]));
    wait_for("one cluster", JOINS_WITHIN, || (first.alive() == 2).then_some(()));
    println!("joined by code after {:?}", began.elapsed());
    assert!(began.elapsed() < JOINS_WITHIN, "{:?}", began.elapsed());
}

fn resident_bytes(host: &Host) -> u64 {
    // `ip netns exec` has become the node.
    counted(host.node.0.id(), "status", "VmRSS") << 10
}

/// The part of the host that floods; does nothing unless a test above started it.
#[test]
fn one_host_floods() {
    let Ok(role) = std::env::var(ROLE) else { return };
    let addresses: Vec<Ipv4Addr> = role.split(' ').map(|text| text.parse().unwrap()).collect();
    let [own, others @ ..] = &addresses[..] else { panic!("{role}") };
    let until = Instant::now() + Duration::from_secs(120);
    // What false names lead to: one port answers nothing, the next refuses.
    let silent = std::net::TcpListener::bind((*own, 4000)).unwrap();
    std::thread::scope(|threads| {
        threads.spawn(|| announce(*own, until));
        for other in others {
            threads.spawn(|| hold(SocketAddr::from((*other, PORT)), until));
            threads.spawn(|| ask(SocketAddr::from((*other, PORT)), until));
        }
    });
    drop(silent);
}

/// A different number each time; whose it is does not matter.
fn next() -> [u8; 32] {
    static COUNT: AtomicU64 = AtomicU64::new(0);
    let seed = [COUNT.fetch_add(1, Ordering::Relaxed), u64::from(std::process::id())];
    *blake3::hash(&[seed[0].to_le_bytes(), seed[1].to_le_bytes()].concat()).as_bytes()
}

/// Five hundred false names a second.
fn announce(own: Ipv4Addr, until: Instant) {
    let socket = UdpSocket::bind((own, 5353)).unwrap();
    let group = std::env::var("EXO_TEST_GROUP").unwrap();
    while Instant::now() < until {
        for number in 0..10 {
            let packet = announcement(NodeId(next()), &group, own, 4000 + number % 2, number % 3 == 0);
            let _ = socket.send_to(&packet, (Ipv4Addr::new(224, 0, 0, 251), 5353));
        }
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// An announcement of mDNS (RFC 6762) that a node of this name is at an address.
fn announcement(node: NodeId, group: &str, at: Ipv4Addr, port: u16, is_fresh: bool) -> Vec<u8> {
    const PTR: u16 = 12;
    const TXT: u16 = 16;
    const SRV: u16 = 33;
    const A: u16 = 1;
    let name = |labels: &[&str]| {
        let mut bytes: Vec<u8> = Vec::new();
        for label in labels {
            bytes.push(label.len() as u8);
            bytes.extend(label.as_bytes());
        }
        bytes.push(0);
        bytes
    };
    let short = node.to_instance_name();
    let host = format!("exo-{short}");
    let service = name(&["_exo-gpu", "_tcp", "local"]);
    let instance = name(&[&short, "_exo-gpu", "_tcp", "local"]);
    let host = name(&[&host, "local"]);
    let texts = [
        format!("id={}", node.to_full()),
        format!("name={NAME}"),
        format!("group={group}"),
        format!("fresh={}", u8::from(is_fresh)),
    ];
    let txt: Vec<u8> = texts.iter().flat_map(|t| [&[t.len() as u8], t.as_bytes()].concat()).collect();
    let srv = [&[0; 4][..], &port.to_be_bytes(), &host].concat();
    let mut packet = vec![0, 0, 0x84, 0, 0, 0, 0, 4, 0, 0, 0, 0];
    for (owner, kind, data) in [
        (&service, PTR, &instance),
        (&instance, SRV, &srv),
        (&instance, TXT, &txt),
        (&host, A, &at.octets().to_vec()),
    ] {
        packet.extend(owner);
        packet.extend(kind.to_be_bytes());
        packet.extend(1u16.to_be_bytes());
        packet.extend(120u32.to_be_bytes());
        packet.extend((data.len() as u16).to_be_bytes());
        packet.extend(data);
    }
    packet
}

/// Connections that say nothing, for as long as the other side keeps them.
fn hold(other: SocketAddr, until: Instant) {
    let mut held: Vec<TcpStream> = Vec::new();
    while Instant::now() < until {
        if let Ok(stream) = TcpStream::connect_timeout(&other, Duration::from_millis(200)) {
            stream.set_nonblocking(true).unwrap();
            held.push(stream);
        }
        held.retain_mut(|stream| !matches!(stream.read(&mut [0]), Ok(0)));
        held.truncate(500);
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// Asks, each time with another key, four at a time.
fn ask(other: SocketAddr, until: Instant) {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let asks = async {
        while Instant::now() < until {
            let asks = (0..4).map(|_| tokio::time::timeout(Duration::from_secs(2), ask_once(other)));
            futures_util::future::join_all(asks).await;
        }
    };
    runtime.block_on(asks);
}

async fn ask_once(other: SocketAddr) -> Option<()> {
    let key = NodeKey::from_seed(&next());
    let listen = SocketAddr::from((Ipv4Addr::UNSPECIFIED, 0));
    let endpoint = Endpoint::without_port(Options::new(listen, key.clone(), MemberSet::new([]))).ok()?;
    let group = std::env::var("EXO_TEST_GROUP").unwrap();
    let ask = |what| JoinAsk { name: NAME.to_owned(), group: group.clone(), port: 1, what };
    let mut channel = endpoint.dial_join(other, Duration::from_secs(1)).await.ok()?;
    if std::env::var_os(WANTS_IN).is_none() {
        channel.send(1, &postcard::to_allocvec(&ask(JoinPurpose::Name)).unwrap()).await.ok()?;
        return channel.recv().await.ok().map(drop);
    }
    let (own, number) = (key.node_id(), next());
    let committed = [&number[..], &own.0, &channel.peer.0].concat();
    channel.send(5, &blake3::derive_key("exo check words v3 commitment", &committed)).await.ok()?;
    channel.recv().await.ok()?;
    channel.send(5, &number).await.ok()?;
    channel.send(1, &postcard::to_allocvec(&ask(JoinPurpose::Membership)).unwrap()).await.ok()?;
    channel.recv().await.ok()?;
    Some(())
}
