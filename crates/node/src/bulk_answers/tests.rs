use std::net::SocketAddr;

use exo_store::{DiskBudget, DiskLimits, Sha256State, Store};
use exo_transport::{Endpoint, FrameError, FrameReader, FrameWriter, Incoming, MemberSet, NodeKey, Options};
use exo_types::{NodeId, Transport};
use futures_util::FutureExt;
use tokio::task::JoinHandle;

use super::*;
use crate::SystemHost;
use crate::bulk::{LogAsk, PURPOSE_BULK};
use crate::events::{self, Inbox};
use crate::hub_bytes::HubBytes;
use crate::library::eviction::Eviction;

/// For an answer, or for the end of a channel.
const WITHIN: Duration = Duration::from_secs(20);
const NOBODYS: ModelId = ModelId([9; 32]);

/// A node that has the demo model and answers questions, and the endpoint of a member.
struct AnsweringNode {
    member: Endpoint,
    node: NodeId,
    address: SocketAddr,
    model: ModelId,
    answering: JoinHandle<()>,
    _inbox: Inbox,
    _folder: tempfile::TempDir,
}

impl AnsweringNode {
    async fn start() -> Self {
        let keys = [NodeKey::from_seed(&[1; 32]), NodeKey::from_seed(&[2; 32])];
        let members = MemberSet::new(keys.each_ref().map(NodeKey::node_id));
        let node = keys[1].node_id();
        let listen = SocketAddr::from(([127, 0, 0, 1], 0));
        let [member, own] = keys.map(|key| Endpoint::bind(Options::new(listen, key, members.clone())));
        let (member, own) = (member.await.unwrap(), own.await.unwrap());
        let address = own.local_addr();
        let folder = tempfile::tempdir().unwrap();
        let (store, _) = Store::open(folder.path()).unwrap();
        let model = store.add_builtin("demo.gguf", crate::DEMO_MODEL).unwrap().id;
        let (events, inbox) = events::channel();
        let hub = HubBytes::new(Arc::new(SystemHost), folder.path().to_owned());
        let budget = DiskBudget::new(folder.path(), DiskLimits::default());
        let disk = Eviction::new(budget, node, events.clone());
        let library = Arc::new(Library::new(Arc::new(store), own.clone(), hub, disk));
        let room = AnswerRoom::of_member(AnswerRoom::of_node());
        let answering = tokio::spawn(async move {
            while let Some(Incoming::Channel(channel)) = own.accept().await {
                let (log, doctor) = (LogCapture::default(), Doctor::default());
                let served = serve(channel, room.clone(), library.clone(), log, doctor, events.clone());
                tokio::spawn(served);
            }
        });
        Self { member, node, address, model, answering, _inbox: inbox, _folder: folder }
    }

    async fn channel(&self) -> (FrameWriter, FrameReader) {
        let dialled = self.member.dial(self.node, self.address, Transport::Tcp, PURPOSE_BULK, WITHIN);
        dialled.await.unwrap().split(LIMITS)
    }
}

impl Drop for AnsweringNode {
    fn drop(&mut self) {
        self.answering.abort();
    }
}

fn encoded(ask: &Ask) -> Vec<u8> {
    postcard::to_allocvec(ask).unwrap()
}

#[tokio::test]
async fn a_frame_that_is_no_question_or_too_long_for_one_ends_its_channel_and_no_other() {
    let node = AnsweringNode::start().await;
    let question = encoded(&Ask::Manifest(node.model));
    let too_long = vec![0; ASK_LIMITS.payload_bytes_max as usize + 1];
    let frames: [(&str, u8, &[u8]); 7] = [
        ("a question of no kind that there is", KIND_ASK, &[0xff; 64]),
        ("a question that breaks off", KIND_ASK, &question[..question.len() - 1]),
        ("nothing", KIND_ASK, &[]),
        ("a question that is too long", KIND_ASK, &too_long),
        ("an answer to no question", KIND_BYTES, &question),
        ("a refusal of no question", KIND_REFUSED, &question),
        ("a frame of another kind", 9, &question),
    ];
    for (what, kind, payload) in frames {
        let (mut writer, mut reader) = node.channel().await;
        // The node may hang up before it has taken all of it.
        let _ = writer.send(kind, &[payload]).await;
        let ended = reader.next(Some(WITHIN)).await;
        assert!(matches!(ended, Err(FrameError::Closed { .. })), "{what}: {ended:?}");
    }
    let (mut writer, mut reader) = node.channel().await;
    writer.send(KIND_ASK, &[&question]).await.unwrap();
    assert_eq!(reader.next(Some(WITHIN)).await.unwrap().kind, KIND_BYTES);
}

#[tokio::test]
async fn what_nobody_has_and_numbers_beyond_a_model_are_refused_in_few_words_and_the_channel_goes_on() {
    let node = AnsweringNode::start().await;
    let (mut writer, mut reader) = node.channel().await;
    let (model, state) = (node.model, Sha256State::default());
    let chunk = |file, index| ChunkRef { file, index };
    let refused = [
        Ask::Manifest(NOBODYS),
        Ask::Held(NOBODYS),
        Ask::Details(NOBODYS),
        Ask::Chunk { model: NOBODYS, chunk: chunk(0, 0) },
        Ask::Relay { model: NOBODYS, chunk: chunk(0, 0) },
        Ask::Digest { model: NOBODYS, first: chunk(0, 0), count: 1, state },
        Ask::Chunk { model, chunk: chunk(u32::MAX, u32::MAX) },
        Ask::Chunk { model, chunk: chunk(0, u32::MAX) },
        Ask::Relay { model, chunk: chunk(0, u32::MAX) },
        Ask::PartialBlock { sha256: [7; 32], block: 0 },
        Ask::Digest { model, first: chunk(0, 0), count: u32::MAX, state },
        Ask::Checks,
    ];
    for (number, ask) in refused.iter().enumerate() {
        writer.send(KIND_ASK, &[&encoded(ask)]).await.unwrap();
        let answer = reader.next(Some(WITHIN)).await.unwrap();
        let said = String::from_utf8_lossy(&answer.payload);
        assert_eq!(answer.kind, KIND_REFUSED, "question {number}: {said}");
        assert!(said.chars().count() <= REFUSAL_CHARS_MAX, "question {number}: {}", said.len());
    }
    let logs = LogAsk {
        level: Some(u8::MAX),
        target: Some("x".repeat(8000)),
        request: Some(String::new()),
        after: u64::MAX,
        limit: u32::MAX,
    };
    let chunk_bytes = 64_usize << 10;
    let (copy, first) = (Ask::CopyOf([7; 32]), Ask::Chunk { model, chunk: chunk(0, 0) });
    let partial = Ask::PartialFile { sha256: [7; 32], size: u64::MAX };
    let expected = [
        (&Ask::Logs(logs), 0..1 << 10),
        (&copy, 1..2),
        (&partial, 1..2),
        (&first, chunk_bytes..chunk_bytes + 1),
    ];
    for (ask, bytes) in expected {
        writer.send(KIND_ASK, &[&encoded(ask)]).await.unwrap();
        let answer = reader.next(Some(WITHIN)).await.unwrap();
        assert_eq!(answer.kind, KIND_BYTES);
        assert!(bytes.contains(&answer.payload.len()), "{bytes:?}: {}", answer.payload.len());
    }
}

#[tokio::test]
async fn answers_to_one_member_leave_room_for_those_to_others_and_all_have_a_bound() {
    let node = AnswerRoom::of_node();
    let members: Vec<_> = (0..6).map(|_| AnswerRoom::of_member(node.clone())).collect();
    let taken_by = |member: &AnswerRoom| {
        let next = || member.take(ANSWERS_OF_ONE_BYTES_MAX / 2).now_or_never().and_then(Result::ok);
        std::iter::from_fn(next).collect::<Vec<_>>()
    };
    let mut taken: Vec<_> = members.iter().map(taken_by).collect();
    let counts: Vec<usize> = taken.iter().map(Vec::len).collect();
    assert_eq!(counts, [2, 2, 2, 2, 0, 0], "128 MiB for each, and 512 MiB in all");
    taken[0].clear();
    assert_eq!(taken_by(&members[4]).len(), 2, "what was sent has made room");
    // One that is longer than all of a member's room takes all of it.
    assert!(members[4].take(usize::MAX).now_or_never().is_some_and(|taken| taken.is_ok()));
}

#[tokio::test]
async fn what_is_not_taken_is_not_waited_for() {
    let (peer, soon) = (NodeId([1; 32]), Duration::from_millis(10));
    assert!(!is_taken(peer, soon, std::future::pending()).await);
    assert!(!is_taken(peer, soon, std::future::ready(Err(SendError::Closed))).await);
    assert!(is_taken(peer, soon, std::future::ready(Ok(()))).await);
}
