//! What a channel promises, checked alike over QUIC and TLS/TCP.

#![allow(clippy::unwrap_used, clippy::print_stdout)] // a test may do both

mod common;

use std::time::{Duration, Instant};

use common::{Kind, LIMITS, PATIENCE, SECOND, World, everyone, key, next_channel, next_join};
use exo_transport::{DialError, FrameError, FrameLimits, JoinError, MemberSet, Protocols, SendError};

/// Runs each named claim on each network.
macro_rules! on_every_network {
    ($($claim:ident),* $(,)?) => {
        on_every_network!(@ quic Quic; $($claim),*);
        on_every_network!(@ tcp Tcp; $($claim),*);
    };
    (@ $module:ident $kind:ident; $($claim:ident),*) => {
        mod $module {
            $(
                #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
                async fn $claim() {
                    let world = super::World::new(super::Kind::$kind);
                    tokio::time::timeout(std::time::Duration::from_secs(60), super::$claim(world))
                        .await
                        .expect("the test hung");
                }
            )*
        }
    };
}

on_every_network!(
    both_ends_know_each_other,
    frames_arrive_in_order_and_whole,
    one_side_may_finish_while_the_other_goes_on,
    a_dropped_channel_is_seen_within_a_second,
    a_closed_endpoint_is_seen_within_a_second,
    a_slow_reader_slows_the_writer,
    a_reader_that_never_reads_ends_the_send,
    many_channels_do_not_mix,
    an_oversize_frame_is_refused_on_both_sides,
    a_cancelled_send_does_not_garble_the_next,
    the_wrong_key_at_an_address_is_named,
    a_stranger_is_refused,
    a_peer_we_do_not_list_is_not_dialled,
    a_removed_member_is_cut_off_at_once_and_kept_out,
    disconnecting_breaks_channels_but_not_membership,
    an_older_protocol_is_refused_by_name,
    a_dial_to_nobody_ends_in_time,
    a_stranger_may_join_and_is_known_by_key,
    a_join_exchange_is_bounded_in_bytes,
    a_closed_endpoint_accepts_and_dials_no_more,
);

async fn both_ends_know_each_other(world: World) {
    let (a, b) = (world.node(1).await, world.node(2).await);
    let (near, far) = world.channel(&a, &b).await;
    assert_eq!((near.peer, near.remote, near.initiator), (b.node(), b.local_addr(), true));
    assert_eq!((far.peer, far.initiator, far.purpose), (a.node(), false, 7));
    assert_eq!((near.via, far.via, far.protocol), (world.kind.via(), world.kind.via(), 1));
    if world.kind == Kind::Tcp {
        let own = Some(b.local_addr().ip());
        assert_eq!((near.local, far.local), (own, own), "QUIC tells a dialling end nothing");
    }
}

async fn frames_arrive_in_order_and_whole(world: World) {
    let (a, b) = (world.node(1).await, world.node(2).await);
    let (near, far) = world.channel(&a, &b).await;
    let (mut tx, _back) = near.split(LIMITS);
    let (_forth, mut rx) = far.split(LIMITS);
    // Empty, small, and larger than any buffer on the way; the parts are joined.
    let sizes = [0, 1, 5, 1000, 70_000, 3_000_000, 2, 16 << 20, 0, 9];
    let sent = tokio::spawn(async move {
        for (i, size) in sizes.into_iter().enumerate() {
            let (head, tail) = (vec![i as u8; size / 3], vec![0xEE; size - size / 3]);
            tx.send(i as u8 + 1, &[&head, &[], &tail]).await.unwrap();
        }
        tx.finish().await.unwrap();
        tx
    });
    for (i, size) in sizes.into_iter().enumerate() {
        let frame = rx.next(Some(PATIENCE)).await.unwrap();
        assert_eq!((frame.kind, frame.payload.len()), (i as u8 + 1, size));
        assert!(frame.payload[..size / 3].iter().all(|b| *b == i as u8), "frame {i} garbled");
        assert!(frame.payload[size / 3..].iter().all(|b| *b == 0xEE), "frame {i} garbled");
    }
    assert_eq!(rx.next(Some(PATIENCE)).await, Err(FrameError::Closed { clean: true }));
    drop(sent.await.unwrap());
}

async fn one_side_may_finish_while_the_other_goes_on(world: World) {
    let (a, b) = (world.node(1).await, world.node(2).await);
    let (near, far) = world.channel(&a, &b).await;
    let ((mut near_tx, mut near_rx), (mut far_tx, mut far_rx)) = (near.split(LIMITS), far.split(LIMITS));
    near_tx.send(1, &[b"question"]).await.unwrap();
    near_tx.finish().await.unwrap();
    assert_eq!(near_tx.send(1, &[b"more"]).await, Err(SendError::Closed));
    assert_eq!(far_rx.next(Some(PATIENCE)).await.unwrap().payload, &b"question"[..]);
    assert_eq!(far_rx.next(Some(PATIENCE)).await, Err(FrameError::Closed { clean: true }));
    for i in 0..100u8 {
        far_tx.send(2, &[&[i]]).await.unwrap();
    }
    far_tx.finish().await.unwrap();
    for i in 0..100u8 {
        assert_eq!(near_rx.next(Some(PATIENCE)).await.unwrap().payload, &[i][..]);
    }
    assert_eq!(near_rx.next(Some(PATIENCE)).await, Err(FrameError::Closed { clean: true }));
}

/// Expects an end that is not clean, soon.
async fn broken_soon(rx: &mut exo_transport::FrameReader) {
    let began = Instant::now();
    assert_eq!(rx.next(Some(PATIENCE)).await, Err(FrameError::Closed { clean: false }));
    assert!(began.elapsed() < SECOND, "seen after {:?}", began.elapsed());
}

async fn a_dropped_channel_is_seen_within_a_second(world: World) {
    let (a, b) = (world.node(1).await, world.node(2).await);
    let (near, far) = world.channel(&a, &b).await;
    let (_tx, mut rx) = far.split(LIMITS);
    drop(near);
    broken_soon(&mut rx).await;
}

async fn a_closed_endpoint_is_seen_within_a_second(world: World) {
    let (a, b) = (world.node(1).await, world.node(2).await);
    let (near, far) = world.channel(&a, &b).await;
    let ((_near_tx, mut near_rx), (_far_tx, mut far_rx)) = (near.split(LIMITS), far.split(LIMITS));
    tokio::time::timeout(2 * SECOND, a.close()).await.expect("closing takes about a second at most");
    broken_soon(&mut far_rx).await;
    broken_soon(&mut near_rx).await;
}

async fn a_slow_reader_slows_the_writer(world: World) {
    let (a, b) = (world.node(1).await, world.node(2).await);
    let (near, far) = world.channel(&a, &b).await;
    let ((mut tx, _back), (_forth, mut rx)) = (near.split(LIMITS), far.split(LIMITS));
    let (frame, count) = (vec![7; 1 << 20], 100u32);
    let sent = std::sync::Arc::new(std::sync::atomic::AtomicU32::new(0));
    let counter = sent.clone();
    let writer = tokio::spawn(async move {
        for _ in 0..count {
            tx.send(1, &[&frame]).await.unwrap();
            counter.fetch_add(1, std::sync::atomic::Ordering::SeqCst);
        }
        tx
    });
    tokio::time::sleep(Duration::from_millis(500)).await;
    let unread = sent.load(std::sync::atomic::Ordering::SeqCst);
    assert!(unread < 50, "{unread} MiB are on their way to a reader that reads nothing");
    for _ in 0..count {
        assert_eq!(rx.next(Some(PATIENCE)).await.unwrap().payload.len(), 1 << 20);
    }
    drop(writer.await.unwrap());
}

async fn a_reader_that_never_reads_ends_the_send(world: World) {
    let (a, b) = (world.node(1).await, world.node(2).await);
    let (near, far) = world.channel(&a, &b).await;
    let (mut tx, _back) = near.split(LIMITS);
    let within = Duration::from_millis(300);
    tx.set_stall_max(within);
    let frame = vec![7; 4 << 20];
    let mut outcome = Ok(());
    for _ in 0..40 {
        outcome = tx.send(1, &[&frame]).await;
        if outcome.is_err() {
            break;
        }
    }
    assert_eq!(outcome, Err(SendError::Stalled { within }));
    assert_eq!(tx.send(1, &[b"x"]).await, Err(SendError::Closed));
    drop(far);
}

async fn many_channels_do_not_mix(world: World) {
    let (a, b) = (world.node(1).await, world.node(2).await);
    let echo = tokio::spawn({
        let b = b.clone();
        async move {
            for _ in 0..40 {
                let (mut tx, mut rx) = next_channel(&b).await.split(LIMITS);
                tokio::spawn(async move {
                    while let Ok(frame) = rx.next(None).await {
                        tx.send(frame.kind, &[&frame.payload]).await.unwrap();
                    }
                    tx.finish().await.unwrap();
                });
            }
        }
    });
    let mut tasks = tokio::task::JoinSet::new();
    for i in 0..40u8 {
        let (a, b, via) = (a.clone(), b.clone(), world.kind.via());
        tasks.spawn(async move {
            let channel = a.dial(b.node(), b.local_addr(), via, i, PATIENCE).await.unwrap();
            let (mut tx, mut rx) = channel.split(LIMITS);
            for round in 0..20u8 {
                tx.send(1, &[&[i, round]]).await.unwrap();
                assert_eq!(rx.next(Some(PATIENCE)).await.unwrap().payload, &[i, round][..]);
            }
            tx.finish().await.unwrap();
            assert_eq!(rx.next(Some(PATIENCE)).await, Err(FrameError::Closed { clean: true }));
        });
    }
    while let Some(done) = tasks.join_next().await {
        done.unwrap();
    }
    echo.await.unwrap();
}

async fn an_oversize_frame_is_refused_on_both_sides(world: World) {
    let (a, b) = (world.node(1).await, world.node(2).await);
    let (near, far) = world.channel(&a, &b).await;
    let small = FrameLimits { payload_bytes_max: 10 };
    let ((mut tx, _back), (mut back_tx, mut rx)) = (near.split(LIMITS), far.split(small));
    let sent = back_tx.send(1, &[b"eleven bytes"]).await;
    assert_eq!(sent, Err(SendError::TooLarge { kind: 1, bytes: 12, max_bytes: 10 }));
    back_tx.send(1, &[b"ten bytes."]).await.unwrap();
    tx.send(3, &[b"eleven bytes"]).await.unwrap();
    let too_large = FrameError::TooLarge { kind: 3, announced_bytes: 12, max_bytes: 10 };
    assert_eq!(rx.next(Some(PATIENCE)).await, Err(too_large));
}

async fn a_cancelled_send_does_not_garble_the_next(world: World) {
    let (a, b) = (world.node(1).await, world.node(2).await);
    let (near, far) = world.channel(&a, &b).await;
    let ((mut tx, _back), (_forth, mut rx)) = (near.split(LIMITS), far.split(LIMITS));
    let frame = vec![1; 32 << 20];
    // Nobody reads, so the first large frames do not get through and the send is dropped inside one.
    let cut = tokio::time::timeout(Duration::from_millis(300), async {
        loop {
            tx.send(1, &[&frame]).await.unwrap();
        }
    });
    assert!(cut.await.is_err());
    assert_eq!(tx.send(2, &[b"next"]).await, Err(SendError::CutOff));
    drop(tx);
    loop {
        match rx.next(Some(PATIENCE)).await {
            Ok(frame) => assert_eq!((frame.kind, frame.payload.len()), (1, 32 << 20)),
            Err(end) => break assert_eq!(end, FrameError::Closed { clean: false }),
        }
    }
}

async fn the_wrong_key_at_an_address_is_named(world: World) {
    let (a, b) = (world.node(1).await, world.node(2).await);
    let outcome = a.dial(key(3).node_id(), b.local_addr(), world.kind.via(), 0, PATIENCE).await;
    let Err(DialError::WrongPeer { expected, found, .. }) = outcome else { panic!("{outcome:?}") };
    assert_eq!((expected, found), (key(3).node_id(), b.node()));
}

async fn a_stranger_is_refused(world: World) {
    let b = world.node(2).await;
    let stranger = world.node_with(99, |options| options.members = everyone()).await;
    let outcome = stranger.dial(b.node(), b.local_addr(), world.kind.via(), 0, PATIENCE).await;
    assert!(matches!(outcome, Err(DialError::Refused { .. })), "{outcome:?}");
    let nobody = tokio::time::timeout(Duration::from_millis(200), b.accept()).await;
    assert!(nobody.is_err(), "a stranger got in: {nobody:?}");
}

async fn a_peer_we_do_not_list_is_not_dialled(world: World) {
    let (a, b) =
        (world.node_with(1, |options| options.members = MemberSet::default()).await, world.node(2).await);
    let outcome = a.dial(b.node(), b.local_addr(), world.kind.via(), 0, PATIENCE).await;
    assert!(matches!(outcome, Err(DialError::NotMember { .. })), "{outcome:?}");
}

async fn a_removed_member_is_cut_off_at_once_and_kept_out(world: World) {
    let members = everyone();
    let shared = members.clone();
    let (a, b) = (world.node(1).await, world.node_with(2, |options| options.members = shared).await);
    let (near, far) = world.channel(&a, &b).await;
    let ((_near_tx, mut near_rx), (_far_tx, mut far_rx)) = (near.split(LIMITS), far.split(LIMITS));
    members.remove(a.node());
    broken_soon(&mut near_rx).await;
    broken_soon(&mut far_rx).await;
    // Also over a connection that is still in a pool, also by a session that could be resumed.
    let outcome = a.dial(b.node(), b.local_addr(), world.kind.via(), 0, PATIENCE).await;
    assert!(matches!(outcome, Err(DialError::Refused { .. })), "{outcome:?}");
    members.insert(a.node());
    world.channel(&a, &b).await;
}

async fn disconnecting_breaks_channels_but_not_membership(world: World) {
    let (a, b, c) = (world.node(1).await, world.node(2).await, world.node(3).await);
    let (near, far) = world.channel(&a, &b).await;
    let (other, _other_far) = world.channel(&c, &b).await;
    let ((_near_tx, mut near_rx), (_far_tx, mut far_rx)) = (near.split(LIMITS), far.split(LIMITS));
    let (_other_tx, mut other_rx) = other.split(LIMITS);
    b.disconnect(a.node());
    broken_soon(&mut near_rx).await;
    broken_soon(&mut far_rx).await;
    let within = Duration::from_millis(100);
    assert_eq!(other_rx.next(Some(within)).await, Err(FrameError::Timeout { within }), "c is not concerned");
    world.channel(&a, &b).await;
}

async fn an_older_protocol_is_refused_by_name(world: World) {
    let a = world.node_with(1, |options| options.protocols = Protocols { min: 3, max: 4 }).await;
    let b = world.node(2).await;
    let outcome = a.dial(b.node(), b.local_addr(), world.kind.via(), 0, PATIENCE).await;
    let Err(error @ DialError::Version { .. }) = outcome else { panic!("{outcome:?}") };
    let text = error.to_string();
    assert!(text.contains("protocol 1, this node 3 to 4"), "{text}");
    let back = b.dial(a.node(), a.local_addr(), world.kind.via(), 0, PATIENCE).await;
    assert!(matches!(back, Err(DialError::Version { .. })), "{back:?}");
}

async fn a_dial_to_nobody_ends_in_time(world: World) {
    let (a, b) = (world.node(1).await, world.node(2).await);
    let addr = b.local_addr();
    b.close().await;
    drop(b);
    let began = Instant::now();
    let outcome = a.dial(key(2).node_id(), addr, world.kind.via(), 0, Duration::from_millis(400)).await;
    let expected = matches!(outcome, Err(DialError::Unreachable { .. } | DialError::Timeout { .. }));
    assert!(expected, "{outcome:?}");
    assert!(began.elapsed() < SECOND, "{:?}", began.elapsed());
}

async fn a_stranger_may_join_and_is_known_by_key(world: World) {
    let (stranger, b) =
        (world.node_with(99, |o| o.members = MemberSet::default()).await, world.node(2).await);
    let mut near = stranger.dial_join(b.local_addr(), PATIENCE).await.unwrap();
    let mut far = next_join(&b).await;
    assert_eq!((near.peer, far.peer), (b.node(), stranger.node()));
    assert_eq!(near.exporter(), far.exporter());
    near.send(1, b"may I?").await.unwrap();
    assert_eq!(far.recv().await, Ok((1, b"may I?".to_vec())));
    far.send(2, b"you may").await.unwrap();
    let answered = tokio::spawn(far.finish());
    assert_eq!(near.recv().await, Ok((2, b"you may".to_vec())));
    near.finish().await.unwrap();
    answered.await.unwrap().unwrap();
}

async fn a_join_exchange_is_bounded_in_bytes(world: World) {
    let (stranger, b) = (world.node(99).await, world.node(2).await);
    let mut near = stranger.dial_join(b.local_addr(), PATIENCE).await.unwrap();
    let _far = next_join(&b).await;
    near.send(1, &[0; 2000]).await.unwrap();
    near.send(1, &[0; 2000]).await.unwrap();
    assert_eq!(near.send(1, &[0; 100]).await, Err(JoinError::TooLarge));
}

async fn a_closed_endpoint_accepts_and_dials_no_more(world: World) {
    let (a, b) = (world.node(1).await, world.node(2).await);
    a.close().await;
    assert!(a.accept().await.is_none());
    let outcome = a.dial(b.node(), b.local_addr(), world.kind.via(), 0, PATIENCE).await;
    assert!(matches!(outcome, Err(DialError::Closed)), "{outcome:?}");
}
