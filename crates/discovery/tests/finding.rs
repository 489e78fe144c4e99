//! Two nodes on one machine, and on two hosts made of network namespaces.

#![allow(clippy::unwrap_used, clippy::print_stdout)] // a test may do both

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::time::{Duration, Instant};

use exo_discovery::{Discovery, DiscoveryError, FoundNode, Options};
use exo_types::NodeId;
use tokio::sync::mpsc;

fn options(node: NodeId, listen: impl Into<SocketAddr>) -> Options {
    let txt = BTreeMap::from([("fresh".to_owned(), "1".to_owned())]);
    Options { node, listen: listen.into(), txt }
}

/// Ids of this test run alone: other runs on the machine announce too.
fn node(tag: u8) -> NodeId {
    let mut id = [tag; 32];
    id[1..5].copy_from_slice(&std::process::id().to_le_bytes());
    id[5] = std::thread::current().name().map_or(0, |name| name.bytes().fold(0, u8::wrapping_add));
    NodeId(id)
}

fn start(options: Options) -> Option<(Discovery, mpsc::Receiver<FoundNode>)> {
    match Discovery::start(options) {
        Ok(started) => Some(started),
        Err(error @ DiscoveryError::NoMulticast { .. }) => {
            println!("SKIPPED: {error}");
            None
        }
        Err(error) => panic!("{error}"),
    }
}

async fn wait_for(
    reports: &mut mpsc::Receiver<FoundNode>,
    what: impl Fn(&FoundNode) -> bool,
) -> Option<FoundNode> {
    tokio::time::timeout(Duration::from_secs(5), async {
        loop {
            let found = reports.recv().await?;
            if what(&found) {
                return Some(found);
            }
        }
    })
    .await
    .ok()
    .flatten()
}

async fn find_each_other(listen: IpAddr) {
    let (a, b) = (node(1), node(2));
    let began = Instant::now();
    let Some((discovery_a, mut found_by_a)) = start(options(a, (listen, 4001))) else { return };
    let Some((mut discovery_b, mut found_by_b)) = start(options(b, (listen, 4002))) else { return };
    let found_b = wait_for(&mut found_by_a, |f| f.node == Some(b)).await.expect("a finds b");
    let found_a = wait_for(&mut found_by_b, |f| f.node == Some(a)).await.expect("b finds a");
    let elapsed = began.elapsed();
    assert!(elapsed < Duration::from_secs(2), "found after {elapsed:?}");
    assert_eq!(found_b.addrs[0], ([127, 0, 0, 1], 4002).into(), "{:?}", found_b.addrs);
    assert_eq!(found_a.addrs[0], ([127, 0, 0, 1], 4001).into(), "{:?}", found_a.addrs);
    assert!(found_b.addrs.iter().all(SocketAddr::is_ipv4), "nobody listens there: {:?}", found_b.addrs);
    if listen.is_loopback() {
        assert_eq!(found_b.addrs.len(), 1, "{:?}", found_b.addrs);
    }
    assert_eq!(found_b.txt.get("fresh").map(String::as_str), Some("1"));

    discovery_b.update_txt(BTreeMap::from([("fresh".to_owned(), "0".to_owned())])).unwrap();
    let changed = |f: &FoundNode| f.node == Some(b) && f.txt.get("fresh").is_some_and(|v| v == "0");
    wait_for(&mut found_by_a, changed).await.expect("a hears of the change");

    let began = Instant::now();
    discovery_b.shutdown();
    assert!(began.elapsed() < Duration::from_millis(1500), "goodbye took {:?}", began.elapsed());
    wait_for(&mut found_by_a, |f| f.node == Some(b) && f.lost).await.expect("a hears the goodbye");
    discovery_a.shutdown();
}

#[tokio::test]
async fn two_nodes_of_one_machine_find_each_other_within_two_seconds() {
    find_each_other(Ipv4Addr::UNSPECIFIED.into()).await;
}

#[tokio::test]
async fn two_nodes_bound_to_loopback_find_each_other_within_two_seconds() {
    find_each_other(Ipv4Addr::LOCALHOST.into()).await;
}

#[tokio::test]
async fn what_does_not_fit_an_announcement_is_refused_before_it_starts() {
    let mut options = options(node(3), (Ipv4Addr::LOCALHOST, 4003));
    options.txt.insert("long".to_owned(), "x".repeat(200));
    let error = Discovery::start(options).err().expect("a TXT entry that does not fit");
    assert!(matches!(error, DiscoveryError::Announcement(_) | DiscoveryError::NoMulticast { .. }), "{error}");
}
