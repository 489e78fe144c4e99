//! What a stranger on the network can do to the open port: nothing that lasts.

#![allow(clippy::unwrap_used, clippy::print_stdout)] // a test may do both

mod common;
#[path = "common/intruder.rs"]
mod intruder;

use exo_types::Transport;
use std::sync::Arc;
use std::time::{Duration, Instant};

use common::{Kind, LIMITS, LOOPBACK, PATIENCE, SECOND, World, everyone, key, next_join};
use exo_transport::{
    BindError, Endpoint, FrameError, JOIN_CONCURRENT_MAX, JOIN_TIME_MAX, JoinError, Options,
};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpStream, UdpSocket};

/// A node that gives handshakes little time and room.
async fn strict(seed: u8) -> Endpoint {
    let world = World::new(Kind::Tcp);
    world
        .node_with(seed, |options| {
            options.handshake_max = Duration::from_millis(500);
            options.half_open_max = 8;
        })
        .await
}

/// A member gets through on both transports, soon.
async fn assert_serves(node: &Endpoint) {
    let member = World::new(Kind::Tcp).node(1).await;
    for via in [Transport::Tcp, Transport::Quic] {
        let channel = member.dial(node.node(), node.local_addr(), via, 0, 2 * SECOND).await.unwrap();
        let (mut tx, _rx) = channel.split(LIMITS);
        let (_tx, mut rx) = common::next_channel(node).await.split(LIMITS);
        tx.send(1, &[b"still here"]).await.unwrap();
        assert_eq!(rx.next(Some(PATIENCE)).await.unwrap().payload, &b"still here"[..]);
    }
}

/// Reads until the other side hangs up.
async fn hung_up(stream: &mut (impl tokio::io::AsyncRead + Unpin)) -> bool {
    let mut sink = [0; 4096];
    tokio::time::timeout(PATIENCE, async { while matches!(stream.read(&mut sink).await, Ok(1..)) {} })
        .await
        .is_ok()
}

#[tokio::test]
async fn garbage_on_the_tcp_port_is_hung_up_on() {
    let node = strict(2).await;
    let shapes: [&[u8]; 4] = [
        b"GET / HTTP/1.1\r\n\r\n",
        &[0xff; 3000],
        b"\x16\x03\x01\xff\xff",
        b"\x16\x03\x01\x00\x04\x01\xff\xff\xff",
    ];
    for bytes in shapes {
        let mut tcp = TcpStream::connect(node.local_addr()).await.unwrap();
        let _ = tcp.write_all(bytes).await;
        assert!(hung_up(&mut tcp).await, "{bytes:?}");
    }
    assert_serves(&node).await;
}

#[tokio::test]
async fn garbage_on_the_udp_port_changes_nothing() {
    let node = strict(2).await;
    let udp = UdpSocket::bind(LOOPBACK).await.unwrap();
    let mut state = 1u64;
    for i in 0..2000usize {
        let mut packet = vec![0; i % 1400];
        for byte in &mut packet {
            state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            *byte = (state >> 56) as u8;
        }
        // Every other one looks like the first packet of a connection.
        if let (0, Some(first)) = (i % 2, packet.first_chunk_mut::<5>()) {
            *first = [0xC3, 0, 0, 0, 1];
        }
        let _ = udp.send_to(&packet, node.local_addr()).await;
    }
    assert_serves(&node).await;
}

#[tokio::test]
async fn stalling_connections_neither_lock_members_out_nor_stay() {
    let node = strict(2).await;
    let mut stallers = Vec::new();
    for i in 0..60 {
        let mut tcp = TcpStream::connect(node.local_addr()).await.unwrap();
        if i % 2 == 0 {
            // A TLS record that promises more than it sends.
            tcp.write_all(b"\x16\x03\x01\x02\x00\x01").await.unwrap();
        }
        stallers.push(tcp);
    }
    assert_serves(&node).await;
    for mut tcp in stallers {
        assert!(hung_up(&mut tcp).await);
    }
}

#[tokio::test]
async fn a_member_that_never_says_hello_is_hung_up_on() {
    let node = strict(2).await;
    let config = intruder::config(1, key(1).node_id().0, &[b"exo/1"]);
    let mut tls = intruder::connect(node.local_addr(), config).await.unwrap();
    let began = Instant::now();
    assert!(hung_up(&mut tls).await);
    assert!(began.elapsed() < 3 * SECOND, "{:?}", began.elapsed());
    assert_serves(&node).await;
}

#[tokio::test]
async fn only_a_members_key_with_its_proof_and_our_protocol_gets_in() {
    let node = strict(2).await;
    let member = key(1).node_id().0;
    let cases: [(&str, rustls::ClientConfig); 5] = [
        ("a stranger's key", intruder::config(99, key(99).node_id().0, &[b"exo/1"])),
        ("a member's key without its secret", intruder::config(99, member, &[b"exo/1"])),
        ("a protocol that is not ours", intruder::config(1, member, &[b"h2"])),
        ("no protocol", intruder::config(1, member, &[])),
        ("no key at all", {
            let mut config = intruder::config(1, member, &[b"exo/1"]);
            config.client_auth_cert_resolver = Arc::new(NoKey);
            config
        }),
    ];
    for (what, config) in cases {
        if let Ok(mut tls) = intruder::connect(node.local_addr(), config).await {
            // A well-formed hello, in case anything listens.
            let _ = tls.write_all(&[5, 0, 0, 0, 1, 0, 1, 0, 1, 0, 0]).await;
            assert!(hung_up(&mut tls).await, "{what}");
        }
        let nobody = tokio::time::timeout(Duration::from_millis(100), node.accept()).await;
        assert!(nobody.is_err(), "{what} got in: {nobody:?}");
    }
    assert_serves(&node).await;
}

#[derive(Debug)]
struct NoKey;

impl rustls::client::ResolvesClientCert for NoKey {
    fn resolve(&self, _: &[&[u8]], _: &[rustls::SignatureScheme]) -> Option<Arc<rustls::sign::CertifiedKey>> {
        None
    }

    fn has_certs(&self) -> bool {
        false
    }

    fn only_raw_public_keys(&self) -> bool {
        true
    }
}

/// Refused by TLS itself, before a byte of ours is read: the later check of the member set is a second line.
#[tokio::test]
async fn a_stranger_is_refused_in_the_handshake() {
    let node = strict(2).await;
    let config = intruder::config(99, key(99).node_id().0, &[b"exo/1"]);
    let mut tls = intruder::connect(node.local_addr(), config).await.unwrap();
    let error = tls.read(&mut [0; 16]).await.unwrap_err();
    let alert = error.get_ref().and_then(|inner| inner.downcast_ref::<rustls::Error>());
    let denied = rustls::Error::AlertReceived(rustls::AlertDescription::AccessDenied);
    assert_eq!(alert, Some(&denied), "{error}");
}

/// The join protocol admits strangers, so it must exist on one listener only and lead to nothing else.
#[tokio::test]
async fn the_join_protocol_does_not_exist_over_quic() {
    let node = strict(2).await;
    let config = intruder::config(99, key(99).node_id().0, &[b"exo-join/1"]);
    let crypto = quinn::crypto::rustls::QuicClientConfig::try_from(config).unwrap();
    let endpoint = quinn::Endpoint::client(LOOPBACK).unwrap();
    let connecting =
        endpoint.connect_with(quinn::ClientConfig::new(Arc::new(crypto)), node.local_addr(), "exo").unwrap();
    let outcome = tokio::time::timeout(PATIENCE, connecting).await.unwrap();
    assert!(outcome.is_err(), "{outcome:?}");
    assert_serves(&node).await;
}

/// Each connection may hold megabytes that nobody has read.
#[tokio::test]
async fn a_member_has_few_quic_connections_and_a_new_one_takes_the_place_of_an_idle_one() {
    let node = strict(2).await;
    let endpoint = quinn::Endpoint::client(LOOPBACK).unwrap();
    let mut connections = Vec::new();
    for _ in 0..17 {
        let config = intruder::config(1, key(1).node_id().0, &[b"exo/1"]);
        let crypto = quinn::crypto::rustls::QuicClientConfig::try_from(config).unwrap();
        let config = quinn::ClientConfig::new(Arc::new(crypto));
        let connecting = endpoint.connect_with(config, node.local_addr(), "exo").unwrap();
        connections.push(tokio::time::timeout(PATIENCE, connecting).await.unwrap().unwrap());
    }
    let closed = || connections.iter().filter(|connection| connection.close_reason().is_some()).count();
    let began = Instant::now();
    while closed() == 0 {
        assert!(began.elapsed() < PATIENCE, "the seventeenth made no place");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    tokio::time::sleep(Duration::from_millis(200)).await;
    assert_eq!(closed(), 1);
    assert!(connections[16].close_reason().is_none(), "the newest stays");
    assert_serves(&node).await;
}

/// A session ticket would let a removed member in without its key being looked at.
#[tokio::test]
async fn no_session_can_be_resumed() {
    let node = strict(2).await;
    let config = intruder::config(1, key(1).node_id().0, &[b"exo/1"]);
    for _ in 0..2 {
        let mut tls = intruder::connect(node.local_addr(), config.clone()).await.unwrap();
        tls.write_all(&[5, 0, 0, 0, 1, 0, 1, 0, 1, 0, 0]).await.unwrap();
        let mut hello = [0; 11];
        tls.read_exact(&mut hello).await.unwrap();
        let (_, session) = tls.get_ref();
        assert_eq!(session.tls13_tickets_received(), 0);
        assert_eq!(session.handshake_kind(), Some(rustls::HandshakeKind::Full));
    }
}

#[tokio::test]
async fn a_ninth_join_is_hung_up_on_until_one_ends() {
    let world = World::new(Kind::Tcp);
    let (stranger, node) = (world.node(99).await, world.node(2).await);
    let mut open = Vec::new();
    for _ in 0..JOIN_CONCURRENT_MAX {
        let near = stranger.dial_join(node.local_addr(), PATIENCE).await.unwrap();
        open.push((near, next_join(&node).await));
    }
    assert!(stranger.dial_join(node.local_addr(), PATIENCE).await.is_err());
    open.pop();
    stranger.dial_join(node.local_addr(), PATIENCE).await.unwrap();
}

#[tokio::test]
async fn a_join_exchange_ends_by_its_deadline() {
    let world = World::new(Kind::Tcp);
    let (stranger, node) = (world.node(99).await, world.node(2).await);
    let began = Instant::now();
    let _near = stranger.dial_join(node.local_addr(), PATIENCE).await.unwrap();
    let mut far = next_join(&node).await;
    assert_eq!(far.recv().await, Err(JoinError::Timeout));
    assert!(began.elapsed() < JOIN_TIME_MAX + SECOND, "{:?}", began.elapsed());
    assert_eq!(far.send(1, b"late").await, Err(JoinError::Timeout));
}

#[tokio::test]
async fn a_reset_tcp_connection_is_seen_at_once() {
    let node = strict(2).await;
    let config = intruder::config(1, key(1).node_id().0, &[b"exo/1"]);
    let mut tls = intruder::connect(node.local_addr(), config).await.unwrap();
    tls.write_all(&[5, 0, 0, 0, 1, 0, 1, 0, 1, 0, 0]).await.unwrap();
    let (_tx, mut rx) = common::next_channel(&node).await.split(LIMITS);
    socket2::SockRef::from(tls.get_ref().0).set_linger(Some(Duration::ZERO)).unwrap();
    let began = Instant::now();
    drop(tls);
    assert_eq!(rx.next(Some(PATIENCE)).await, Err(FrameError::Closed { clean: false }));
    assert!(began.elapsed() < Duration::from_millis(500), "{:?}", began.elapsed());
}

/// A process that is killed closes its sockets without a TLS goodbye.
#[tokio::test]
async fn a_tcp_end_without_goodbye_is_not_clean() {
    let node = strict(2).await;
    let config = intruder::config(1, key(1).node_id().0, &[b"exo/1"]);
    let mut tls = intruder::connect(node.local_addr(), config).await.unwrap();
    tls.write_all(&[5, 0, 0, 0, 1, 0, 1, 0, 1, 0, 0]).await.unwrap();
    let (_tx, mut rx) = common::next_channel(&node).await.split(LIMITS);
    let mut hello = [0; 11];
    tls.read_exact(&mut hello).await.unwrap();
    drop(tls);
    assert_eq!(rx.next(Some(PATIENCE)).await, Err(FrameError::Closed { clean: false }));
}

#[tokio::test]
async fn a_port_in_use_is_named_and_one_number_serves_both_protocols() {
    let first = Endpoint::bind(Options::new(LOOPBACK, key(1), everyone())).await.unwrap();
    let again = Endpoint::bind(Options::new(first.local_addr(), key(2), everyone())).await;
    let Err(error @ BindError::InUse { .. }) = again else { panic!("bound twice") };
    assert!(error.to_string().contains(&first.local_addr().port().to_string()), "{error}");
    let udp = std::net::UdpSocket::bind(first.local_addr());
    assert_eq!(udp.unwrap_err().kind(), std::io::ErrorKind::AddrInUse);
}
