//! Two endpoints on loopback, through the life of a link.

use exo_cluster::wire::{ControlMessage, DataMessage, LogMessage, StepMessage, WIRE_VERSION};
use exo_transport::{FrameReader, FrameWriter, Incoming, MemberSet, NodeKey, Options};
use exo_types::{StepFrame, Transport, WireDType};

use super::*;
use crate::events::Inbox;

const WAIT_MAX: Duration = Duration::from_secs(20);

struct Side {
    node: NodeId,
    endpoint: Endpoint,
    hands: LinkHands,
    inbox: Inbox,
}

impl Side {
    /// The next input for the machine.
    async fn next(&mut self) -> Input {
        loop {
            let event = tokio::time::timeout(WAIT_MAX, self.inbox.next()).await.expect("nothing happens");
            let input = match event.expect("the queues are open") {
                Event::Input(input) | Event::Received { input, .. } => Some(*input),
                Event::Incoming(channel) => self.hands.opened(channel, None),
                Event::Dialled { dial, channel } => self.hands.opened(channel, Some(dial)),
                _ => panic!("an event that has nothing to do with links"),
            };
            if let Some(input) = input {
                return input;
            }
        }
    }

    /// The number of the link that stands next.
    async fn up(&mut self) -> LinkId {
        match self.next().await {
            Input::LinkUp { link, .. } => link,
            other => panic!("{other:?}"),
        }
    }

    fn dial(&mut self, other: &Side, purpose: Purpose, via: Transport) {
        let addresses = vec![(via, other.endpoint.local_addr())];
        self.hands.dial(DialId(1), other.node, purpose, addresses, WAIT_MAX);
    }
}

/// Two members of one cluster.
async fn sides() -> (Side, Side) {
    let keys = [NodeKey::from_seed(&[1; 32]), NodeKey::from_seed(&[2; 32])];
    let members = MemberSet::new(keys.each_ref().map(NodeKey::node_id));
    let [a, b] = keys.map(|key| side(key, members.clone()));
    (a.await, b.await)
}

async fn side(key: NodeKey, members: MemberSet) -> Side {
    let node = key.node_id();
    let listen = SocketAddr::from(([127, 0, 0, 1], 0));
    let endpoint = Endpoint::bind(Options::new(listen, key, members)).await.unwrap();
    let (events, inbox) = crate::events::channel();
    let hands = LinkHands::new(
        endpoint.clone(),
        events.clone(),
        Arc::default(),
        Default::default(),
        Default::default(),
    );
    let accepting = endpoint.clone();
    tokio::spawn(async move {
        while let Some(Incoming::Channel(channel)) = accepting.accept().await {
            let _ = events.control(Event::Incoming(channel)).await;
        }
    });
    Side { node, endpoint, hands, inbox }
}

/// Both ends of a link that both have accepted.
async fn accepted(a: &mut Side, b: &mut Side, purpose: Purpose, via: Transport) -> (LinkId, LinkId) {
    a.dial(b, purpose, via);
    let (from_a, from_b) = (a.up().await, b.up().await);
    a.hands.send(from_a, Outgoing::Accept { incarnation: 7 });
    assert_eq!(b.next().await, Input::LinkAccepted { link: from_b, incarnation: 7 });
    b.hands.send(from_b, Outgoing::Accept { incarnation: 7 });
    assert_eq!(a.next().await, Input::LinkAccepted { link: from_a, incarnation: 7 });
    (from_a, from_b)
}

fn step(number: u64, bytes: usize) -> Box<DataMessage> {
    let frame = StepFrame::unplaced(number, vec![]);
    let (commands, failures, pages, rows_dtype) = (vec![], vec![], vec![], WireDType::F32);
    let rows = (0..bytes).map(|byte| byte as u8).collect();
    Box::new(DataMessage::Step(StepMessage {
        stage: 1,
        commands,
        frame,
        failures,
        pages,
        kept: vec![],
        rebuilds: None,
        computed_us: vec![],
        rows_dtype,
        rows,
    }))
}

#[tokio::test]
async fn a_link_is_dialled_accepted_used_in_both_directions_and_closed() {
    for via in [Transport::Tcp, Transport::Quic] {
        let (mut a, mut b) = sides().await;
        a.dial(&b, Purpose::Data, via);
        let Input::LinkUp { link: from_a, peer, purpose, via: over, remote, dial } = a.next().await else {
            panic!("no link");
        };
        let expected = (b.node, Purpose::Data, via, b.endpoint.local_addr(), Some(DialId(1)));
        assert_eq!((peer, purpose, over, remote, dial), expected);
        let Input::LinkUp { link: from_b, peer, purpose, dial, .. } = b.next().await else {
            panic!("no link");
        };
        assert_eq!((peer, purpose, dial), (a.node, Purpose::Data, None));
        if via == Transport::Tcp {
            let by_address = std::collections::BTreeMap::from([(b.endpoint.local_addr().ip(), true)]);
            assert_eq!(a.hands.meters.wireless(&by_address).get(&b.node), Some(&true));
        }

        a.hands.send(from_a, Outgoing::Accept { incarnation: 7 });
        assert_eq!(b.next().await, Input::LinkAccepted { link: from_b, incarnation: 7 });
        b.hands.send(from_b, Outgoing::Accept { incarnation: 7 });
        for number in 1..=50 {
            b.hands.send(from_b, Outgoing::Data(step(number, 1000 * number as usize)));
        }
        assert_eq!(a.next().await, Input::LinkAccepted { link: from_a, incarnation: 7 });
        for number in 1..=50 {
            let message = step(number, 1000 * number as usize);
            assert_eq!(a.next().await, Input::Data { link: from_a, message }, "in order");
        }
        a.hands.send(from_a, Outgoing::Ping);
        assert!(matches!(a.next().await, Input::Heard { rtt: Some(_), .. }));

        a.hands.send(from_a, Outgoing::Data(step(51, 1 << 20)));
        a.hands.close(from_a, &LinkEnd::Replaced);
        assert_eq!(
            b.next().await,
            Input::Data { link: from_b, message: step(51, 1 << 20) },
            "was queued before"
        );
        assert!(
            matches!(b.next().await, Input::LinkDown { link, reason: LinkEnd::Reset(_) } if link == from_b)
        );
        a.hands.send(from_a, Outgoing::Ping);
        let more = tokio::time::timeout(Duration::from_millis(200), a.inbox.next()).await;
        assert!(more.is_err(), "nothing comes from a link that was closed from here");
    }
}

#[tokio::test]
async fn a_control_link_carries_control_messages() {
    let (mut a, mut b) = sides().await;
    let (from_a, from_b) = accepted(&mut a, &mut b, Purpose::Control, Transport::Quic).await;
    let message = ControlMessage::Membership(vec![1, 2, 3]);
    a.hands.send(from_a, Outgoing::Control(Arc::new(message.clone())));
    assert_eq!(b.next().await, Input::Control { link: from_b, message: Box::new(message) });
}

#[tokio::test]
async fn both_sides_hear_once_of_a_connection_that_breaks_and_forget_the_link() {
    let (mut a, mut b) = sides().await;
    let (from_a, from_b) = accepted(&mut a, &mut b, Purpose::Data, Transport::Tcp).await;
    b.endpoint.disconnect(a.node);
    assert!(matches!(a.next().await, Input::LinkDown { link, reason: LinkEnd::Reset(_) } if link == from_a));
    assert!(matches!(b.next().await, Input::LinkDown { link, reason: LinkEnd::Reset(_) } if link == from_b));
    a.hands.send(from_a, Outgoing::Ping);
    let more = tokio::time::timeout(FINISH_MAX + Duration::from_millis(300), a.inbox.next()).await;
    assert!(more.is_err(), "once");
    accepted(&mut a, &mut b, Purpose::Data, Transport::Tcp).await;
    assert_eq!((a.hands.links.len(), b.hands.links.len()), (1, 1), "the new one");
}

#[tokio::test]
async fn a_node_that_ends_sends_what_is_queued() {
    let (mut a, mut b) = sides().await;
    let (from_a, from_b) = accepted(&mut a, &mut b, Purpose::Data, Transport::Tcp).await;
    for number in 1..=20 {
        a.hands.send(from_a, Outgoing::Data(step(number, 10_000)));
    }
    a.hands.end().await;
    a.endpoint.close().await;
    for number in 1..=20 {
        assert_eq!(b.next().await, Input::Data { link: from_b, message: step(number, 10_000) });
    }
    assert!(matches!(b.next().await, Input::LinkDown { .. }));
}

#[tokio::test]
async fn an_attempt_without_success_is_told_with_its_reason() {
    let (mut a, b) = sides().await;
    b.endpoint.close().await;
    a.dial(&b, Purpose::Control, Transport::Tcp);
    let Input::DialFailed { dial, reason } = a.next().await else { panic!("a link") };
    assert!(dial == DialId(1) && !reason.is_empty(), "{reason}");
}

#[tokio::test]
async fn a_port_is_told_to_refuse_once_nothing_listens_there() {
    let (mut a, b) = sides().await;
    let (open, peer) = (b.endpoint.local_addr(), b.node);
    let closed = {
        let unused = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        unused.local_addr().unwrap()
    };
    a.hands.probe(peer, vec![open]);
    a.hands.probe(peer, vec![closed, open]);
    a.hands.probe(peer, Vec::new());
    let told = tokio::time::timeout(Duration::from_secs(1), a.inbox.next()).await;
    assert!(told.is_err(), "one of its ports is open");
    a.hands.probe(peer, vec![closed]);
    assert_eq!(a.next().await, Input::Refused { peer });
}

#[tokio::test]
async fn a_peer_that_takes_no_more_loses_its_link() {
    let (mut a, mut b) = sides().await;
    let (from_a, _) = accepted(&mut a, &mut b, Purpose::Data, Transport::Tcp).await;
    // On one thread: the writer does not run in between.
    for number in 0..=QUEUE_LEN_MAX as u64 {
        a.hands.send(from_a, Outgoing::Data(step(number, 4)));
    }
    assert_eq!(a.next().await, Input::LinkDown { link: from_a, reason: LinkEnd::QueueFull });
}

/// Its memory, too: a log and copies of requests are a few messages and many bytes.
#[tokio::test]
async fn a_queue_holds_so_many_bytes_and_what_was_written_takes_no_room_in_it() {
    let (mut a, mut b) = sides().await;
    let (from_a, from_b) = accepted(&mut a, &mut b, Purpose::Control, Transport::Tcp).await;
    let long = || {
        let (index, hash, ancestors, state) = (1, [0; 32], vec![], vec![7; 4 << 20]);
        let message = LogMessage::TailSnapshot { index, hash, ancestors, state };
        Outgoing::Control(Arc::new(ControlMessage::Log(message)))
    };
    for _ in 0..3 {
        // On one thread: the writer does not run in between.
        for _ in 0..15 {
            a.hands.send(from_a, long());
        }
        for _ in 0..15 {
            assert!(matches!(b.next().await, Input::Control { link, .. } if link == from_b));
        }
    }
    for _ in 0..16 {
        a.hands.send(from_a, long());
    }
    assert_eq!(a.next().await, Input::LinkDown { link: from_a, reason: LinkEnd::QueueFull });
    let more = tokio::time::timeout(Duration::from_millis(200), a.inbox.next()).await;
    assert!(more.is_err(), "told once");
}

/// A link of `b`'s whose other end writes and reads frames by hand.
async fn raw(a: &Side, b: &mut Side, purpose: Purpose) -> (FrameWriter, FrameReader, LinkId) {
    let (address, over) = (b.endpoint.local_addr(), Transport::Tcp);
    let channel = a.endpoint.dial(b.node, address, over, byte(purpose), WAIT_MAX).await.unwrap();
    let (writer, reader) = channel.split(limits_of(purpose));
    (writer, reader, b.up().await)
}

#[tokio::test]
async fn a_peer_that_breaks_the_protocol_loses_its_link() {
    const ACCEPT: (u8, &[u8]) = (4, &[WIRE_VERSION, 7, 0, 0, 0, 0, 0, 0, 0]);
    type Frames = &'static [(u8, &'static [u8])];
    let cases: &[(Frames, &str)] = &[
        (&[(1, b"early")], "a message in front of Accept"),
        (&[(4, &[WIRE_VERSION - 1])], "it speaks version"),
        (&[(4, &[])], "it speaks version 0"),
        (&[(4, &[WIRE_VERSION, 7])], "an Accept of 2 bytes"),
        (&[ACCEPT, ACCEPT], "a second Accept"),
        (&[ACCEPT, (1, &[WIRE_VERSION, 0xff])], "the bytes are not a message"),
        (&[(2, &[0; 9])], "a ping of 9 bytes"),
        (&[(3, &[0xff; 16])], "a pong that answers no ping"),
        // A time that may be right, with a guessed hash.
        (&[(3, &[0; 16])], "a pong that answers no ping"),
        (&[(3, &[0; 8])], "a pong that answers no ping"),
        (&[(9, &[])], "a frame of unknown kind 9"),
    ];
    let (a, mut b) = sides().await;
    for (frames, expected) in cases {
        let (mut writer, _reader, link) = raw(&a, &mut b, Purpose::Control).await;
        for (kind, payload) in *frames {
            let _ = writer.send(*kind, &[payload]).await;
        }
        let mut input = b.next().await;
        while input == (Input::LinkAccepted { link, incarnation: 7 }) {
            input = b.next().await;
        }
        let Input::LinkDown { link: down, reason: LinkEnd::Protocol(reason) } = input else {
            panic!("{expected}: {input:?}");
        };
        assert!(down == link && reason.contains(expected), "{reason} instead of {expected}");
    }
}

#[tokio::test]
async fn what_the_loop_does_not_take_waits_in_the_socket() {
    const BYTES: usize = 1 << 20;
    let (a, mut b) = sides().await;
    let (mut writer, _reader, link) = raw(&a, &mut b, Purpose::Data).await;
    writer.send(4, &[&[WIRE_VERSION], &7u64.to_le_bytes()]).await.unwrap();
    assert_eq!(b.next().await, Input::LinkAccepted { link, incarnation: 7 });
    let sender = tokio::spawn(async move {
        for number in 1..=100 {
            writer.send(1, &[&step(number, BYTES).encode()]).await.unwrap();
        }
        writer
    });
    tokio::time::sleep(Duration::from_secs(1)).await;
    assert!(!sender.is_finished(), "100 MiB were read while nobody took them");
    let mut next = 1;
    while let Some(event) = b.inbox.try_next() {
        // No await: nothing is added meanwhile.
        let (Event::Received { input, .. } | Event::Input(input)) = event else { panic!("no input") };
        assert_eq!(*input, Input::Data { link, message: step(next, BYTES) });
        next += 1;
    }
    let waited = next - 1;
    assert!((6..=8).contains(&waited), "{waited} messages of 1 MiB waited");
    for number in next..=100 {
        assert_eq!(b.next().await, Input::Data { link, message: step(number, BYTES) });
    }
    sender.await.unwrap();
}
