//! Connections get new keys while they are used, and nobody who uses them notices.

#![allow(clippy::unwrap_used)] // a test may

mod common;

use exo_types::Transport;
use std::time::{Duration, Instant};

use common::{LIMITS, LOOPBACK, PATIENCE, everyone, key};
use exo_transport::{Channel, Endpoint, Incoming, Options, Renewal};

async fn node(seed: u8, renewal: Renewal) -> Endpoint {
    Endpoint::bind(Options { renewal, ..Options::new(LOOPBACK, key(seed), everyone()) }).await.unwrap()
}

async fn channel(a: &Endpoint, b: &Endpoint, via: Transport) -> (Channel, Channel) {
    let near = a.dial(b.node(), b.local_addr(), via, 7, PATIENCE).await.unwrap();
    let Some(Incoming::Channel(far)) = b.accept().await else { panic!("no channel") };
    (near, far)
}

/// Sends frames both ways at once for so long; every byte must come, in order.
async fn talk((near, far): (Channel, Channel), time: Duration, frame_bytes: usize) -> u64 {
    let until = Instant::now() + time;
    let ((mut near_tx, mut near_rx), (mut far_tx, mut far_rx)) = (near.split(LIMITS), far.split(LIMITS));
    let sending = async |tx: &mut exo_transport::FrameWriter, salt: usize| {
        let mut sent = 0_usize;
        while Instant::now() < until {
            tx.send(1, &[&vec![(sent + salt) as u8; frame_bytes]]).await.unwrap();
            sent += 1;
        }
        tx.finish().await.unwrap();
        sent
    };
    let receiving = async |rx: &mut exo_transport::FrameReader, salt: usize| {
        let mut received = 0_usize;
        while let Ok(frame) = rx.next(Some(PATIENCE)).await {
            assert!(frame.payload.iter().all(|byte| *byte == (received + salt) as u8), "frame {received}");
            assert_eq!(frame.payload.len(), frame_bytes);
            received += 1;
        }
        received
    };
    let (forth, forth_came, back, back_came) = tokio::join!(
        sending(&mut near_tx, 3),
        receiving(&mut far_rx, 3),
        sending(&mut far_tx, 90),
        receiving(&mut near_rx, 90)
    );
    assert_eq!((forth, back), (forth_came, back_came), "all of it");
    ((forth + back) * frame_bytes) as u64
}

/// With limits so small that keys change hundreds of times while frames of other sizes are on their way.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn keys_are_renewed_by_bytes_while_frames_flow_both_ways() {
    let limits = Renewal { every: Duration::MAX, bytes: 100_000 };
    let (a, b) = (node(1, limits).await, node(2, limits).await);
    let bytes = talk(channel(&a, &b, Transport::Tcp).await, Duration::from_millis(600), 7_001).await;
    let (ours, theirs) = (a.keys_renewed(), b.keys_renewed());
    assert!(ours > 20 && theirs > 20, "{ours} and {theirs} renewals in {bytes} bytes");
    assert!(
        ours + theirs <= bytes / 50_000,
        "{ours} and {theirs} renewals in {bytes} bytes: no more than due"
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn keys_are_renewed_by_time_on_either_transport() {
    let limits = Renewal { every: Duration::from_millis(30), bytes: u64::MAX };
    for via in [Transport::Tcp, Transport::Quic] {
        let (a, b) = (node(1, limits).await, node(2, limits).await);
        let bytes = talk(channel(&a, &b, via).await, Duration::from_millis(900), 5_003).await;
        let renewed = a.keys_renewed();
        assert!((8..=31).contains(&renewed), "{via:?}: {renewed} renewals in 900 ms, {bytes} bytes");
    }
}

/// What is young and has carried little keeps its keys.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn without_need_no_key_is_renewed() {
    let (a, b) = (node(1, Renewal::default()).await, node(2, Renewal::default()).await);
    for via in [Transport::Tcp, Transport::Quic] {
        talk(channel(&a, &b, via).await, Duration::from_millis(200), 5_003).await;
    }
    assert_eq!((a.keys_renewed(), b.keys_renewed()), (0, 0));
}
