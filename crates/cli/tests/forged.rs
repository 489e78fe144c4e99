//! Forged messages over the wire, from a stranger and from a member that is no admin, at a node as a process
//! of its own: members and roles stay.

#![cfg(target_os = "linux")] // with `doors`
#![allow(clippy::unwrap_used, clippy::print_stdout)] // helpers of tests fail by panicking
#![allow(clippy::disallowed_methods, reason = "a while in which nothing may change")]

use std::net::SocketAddr;
use std::path::Path;
use std::time::Duration;

use exo_cluster::wire::{ControlMessage, LogMessage, WIRE_VERSION};
use exo_machine::joining::{JoinAnswer, JoinAsk, JoinPurpose, JoinRefusal};
use exo_machine::{TrustMessage, TrustNews};
use exo_membership::{Body, Heartbeat, LogEnd, Message, Rank, Role};
use exo_transport::{Endpoint, FrameLimits, FrameReader, FrameWriter, MemberSet, NodeKey, Options};
use exo_trust::{Act, Entry, EntryId, Statement, TrustLog};
use exo_types::{Epoch, NodeId, Transport};

use crate::doors::{admin_and_worker, roles};
use crate::support::{Node, SOON, good, stdout, wait_for};

const WITHIN: Duration = Duration::from_secs(5);
/// Whoever asks for entries more often is not answered.
const ANSWERED_EVERY: Duration = Duration::from_millis(150);
const STRANGER: NodeId = NodeId([3; 32]);
const CONTROL: u8 = 1;
const KIND_MESSAGE: u8 = 1;
const KIND_ACCEPT: u8 = 4;

/// Where a node listens, and its key.
fn address_of(node: &Node) -> (NodeId, SocketAddr) {
    let shown = stdout(&good(node.exo(&["invite"])));
    let (_, peer) = shown.lines().nth(3).unwrap().trim().split_once("--peer ").unwrap();
    let (id, address) = peer.split_once('@').unwrap();
    (id.parse().unwrap(), address.parse().unwrap())
}

/// Where another node is, as a node sees it.
fn address_seen(node: &Node, name: &str) -> SocketAddr {
    let view = node.get("/exo/v1/cluster");
    let other = view["nodes"].as_array().unwrap().iter().find(|other| other["name"] == name).unwrap();
    other["addresses"][0].as_str().unwrap().parse().unwrap()
}

fn key_of(data_dir: &Path) -> NodeKey {
    NodeKey::load_or_create(&data_dir.join("node.key")).unwrap()
}

/// The log of trust as a node has it on its disk.
pub fn log_of(data_dir: &Path) -> TrustLog {
    let bytes = std::fs::read(data_dir.join("trust.log")).unwrap();
    let entries: Vec<Vec<u8>> = postcard::from_bytes(&bytes[b"exo log of trust 1\n".len()..]).unwrap();
    let entries = entries.iter().map(|bytes| Entry::decode(bytes).unwrap());
    TrustLog::from_entries(entries.collect::<Vec<_>>()).unwrap().unwrap()
}

fn signed(key: &NodeKey, statement: Statement) -> Entry {
    let signature = key.sign(&statement.to_sign());
    statement.signed(signature)
}

async fn endpoint(key: &NodeKey, peer: NodeId) -> Endpoint {
    let listen = SocketAddr::from(([127, 0, 0, 1], 0));
    Endpoint::bind(Options::new(listen, key.clone(), MemberSet::new([peer]))).await.unwrap()
}

/// A member's control link, as this test's own program opens it.
struct Link {
    writer: FrameWriter,
    reader: FrameReader,
    _endpoint: Endpoint,
}

impl Link {
    async fn open(key: &NodeKey, (peer, address): (NodeId, SocketAddr)) -> Self {
        let endpoint = endpoint(key, peer).await;
        let channel = endpoint.dial(peer, address, Transport::Tcp, CONTROL, WITHIN).await.unwrap();
        let (mut writer, reader) = channel.split(FrameLimits::CONTROL);
        writer.send(KIND_ACCEPT, &[&[WIRE_VERSION], &77u64.to_le_bytes()]).await.unwrap();
        Self { writer, reader, _endpoint: endpoint }
    }

    async fn say(&mut self, message: &ControlMessage) {
        self.writer.send(KIND_MESSAGE, &[&message.encode()]).await.unwrap();
    }

    async fn tell(&mut self, cluster: EntryId, entries: &[Entry]) {
        let known = entries.iter().map(Entry::id).collect();
        let what = TrustNews::Entries(entries.iter().map(Entry::encode).collect());
        self.say(&ControlMessage::Trust(TrustMessage { cluster, known, what }.encode())).await;
    }

    /// The node's entries, asked for over this link: what came before has been looked at by then.
    async fn pull(&mut self, cluster: EntryId) -> Vec<Vec<u8>> {
        tokio::time::sleep(ANSWERED_EVERY).await;
        let pull = TrustMessage { cluster, known: Vec::new(), what: TrustNews::Pull };
        self.say(&ControlMessage::Trust(pull.encode())).await;
        loop {
            let frame = self.reader.next(Some(WITHIN)).await.unwrap();
            if frame.kind != KIND_MESSAGE {
                continue;
            }
            if let Ok(ControlMessage::Trust(bytes)) = ControlMessage::decode(&frame.payload)
                && let TrustNews::Entries(entries) = TrustMessage::decode(&bytes).unwrap().what
            {
                return entries;
            }
        }
    }
}

fn runtime() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap()
}

/// What a member that is no admin may say of who belongs to the cluster, and what is not so.
fn lies(key: &NodeKey, log: &TrustLog, founder: NodeId) -> Vec<(&'static str, EntryId, Vec<Entry>)> {
    let (me, cluster) = (key.node_id(), log.cluster());
    let heads: Vec<EntryId> = log.heads().iter().copied().collect();
    let entry = |author: NodeId, after: &[EntryId], act: Act| {
        signed(key, Statement { cluster: Some(cluster), after: after.to_vec(), author, at_unix_s: 7, act })
    };
    let stranger = || Act::Admit { node: STRANGER, name: "stranger".to_owned() };
    let founding = Statement::founding(me, 7, "mine".to_owned(), "mine".to_owned(), [7; 16]);
    let mut other = TrustLog::new(signed(key, founding)).unwrap();
    let statement = other.statement(me, 7, stranger()).unwrap();
    other.insert(signed(key, statement)).unwrap();
    let other_entries: Vec<Entry> = other.entries().cloned().collect();
    let appoint = Act::Appoint { node: me, name: "me".to_owned() };
    let remove = Act::Remove { node: founder, reason: "mine".to_owned() };
    let reversed: Vec<Entry> = log.entries().cloned().collect::<Vec<_>>().into_iter().rev().collect();
    vec![
        ("that it is an admin", cluster, vec![entry(me, &heads, appoint)]),
        ("that the founder is out", cluster, vec![entry(me, &heads, remove)]),
        ("that a stranger is in", cluster, vec![entry(me, &heads, stranger())]),
        ("the same in the founder's name", cluster, vec![entry(founder, &heads, stranger())]),
        (
            "the same behind an entry that nobody has",
            cluster,
            vec![entry(me, &[EntryId([9; 32])], stranger())],
        ),
        ("a cluster of its own", other.cluster(), other_entries.clone()),
        ("its cluster as a part of this one", cluster, other_entries),
        ("what is so, the last first", cluster, reversed),
    ]
}

#[test]
fn a_member_that_forges_entries_snapshots_and_leading_changes_neither_members_nor_roles() {
    let folder = tempfile::tempdir().unwrap();
    let ((admin, _), (mut worker, worker_name)) = admin_and_worker(folder.path(), "forged");
    assert!(worker.signal("-INT").success(), "{}", worker.log());
    wait_for("its end", SOON, || (admin.sees().len() == 1).then_some(()));
    let (key, log, at) = (key_of(&worker.data_dir), log_of(&worker.data_dir), address_of(&admin));
    let (before, kept) = (roles(&admin), log_of(&admin.data_dir).known());
    assert_ne!(before[worker_name], "admin");
    runtime().block_on(async {
        let mut link = Link::open(&key, at).await;
        let all = link.pull(log.cluster()).await;
        assert_eq!(all.len(), log.entries().count(), "a member is told the log");
        for (what, cluster, entries) in lies(&key, &log, at.0) {
            link.tell(cluster, &entries).await;
            assert_eq!(link.pull(log.cluster()).await, all, "it says {what}");
        }
        // Snapshots and entries of placements touch none of it, and neither does who leads.
        let epoch = Epoch { counter: 1 << 10, key: key.node_id() };
        let state = exo_cluster::State::default().encode();
        let (index, hash, ancestors) = (1 << 20, [9; 32], Vec::new());
        link.say(&ControlMessage::Log(LogMessage::Snapshot { epoch, index, hash, ancestors, state })).await;
        let log_end = LogEnd { trust: 1000, epoch: 1 << 10, index: 1 << 20 };
        let rank = Rank { majority: true, served: 1000, log: log_end, uptime_class: 20, mains_power: true };
        let heartbeat = Heartbeat { role: Role::Leading, rank, table: Vec::new() };
        let message = Message { epoch: Some(epoch), incarnation: 77, body: Body::Announce(heartbeat) };
        link.say(&ControlMessage::Membership(message.encode())).await;
        assert_eq!(link.pull(log.cluster()).await, all, "it says that it leads");
        std::thread::sleep(Duration::from_secs(1));
    });
    assert_eq!((roles(&admin), log_of(&admin.data_dir).known()), (before, kept));
    let took = format!("{worker_name} coordinates the cluster");
    wait_for("the word that another leads", SOON, || admin.log().contains(&took).then_some(()));

    // Over the same wire the same entry counts once an admin has signed it: nothing else kept it out.
    let admins_key = key_of(&admin.data_dir);
    let act = Act::Admit { node: STRANGER, name: "stranger".to_owned() };
    let statement = log_of(&admin.data_dir).statement(admins_key.node_id(), 7, act).unwrap();
    runtime().block_on(async {
        let mut link = Link::open(&key, at).await;
        link.tell(log.cluster(), &[signed(&admins_key, statement)]).await;
        link.pull(log.cluster()).await;
        wait_for("the entry of an admin", SOON, || roles(&admin).contains_key("stranger").then_some(()));
    });
}

#[test]
fn a_stranger_on_the_wire_gets_no_link_and_hears_nothing_of_the_members() {
    let folder = tempfile::tempdir().unwrap();
    let ((admin, _), (worker, worker_name)) = admin_and_worker(folder.path(), "outside");
    let (key, log) = (NodeKey::from_seed(&[8; 32]), log_of(&admin.data_dir));
    assert_eq!(admin.call("DELETE", "/exo/v1/join_window", None).status, 204);
    let before = roles(&admin);
    for at in [address_of(&admin), (key_of(&worker.data_dir).node_id(), address_seen(&admin, worker_name))] {
        runtime().block_on(async {
            let endpoint = endpoint(&key, at.0).await;
            for via in [Transport::Tcp, Transport::Quic] {
                let dialled = endpoint.dial(at.0, at.1, via, CONTROL, WITHIN).await;
                assert!(dialled.is_err(), "{via:?}: {dialled:?}");
            }
            // It knows which cluster it is, and is told nothing all the same.
            let what = JoinPurpose::Trust { cluster: log.cluster(), known: Vec::new() };
            let ask = JoinAsk {
                name: String::new(),
                group: format!("outside-{}", std::process::id()),
                port: 1,
                what,
            };
            let mut channel = endpoint.dial_join(at.1, WITHIN).await.unwrap();
            channel.send(1, &postcard::to_allocvec(&ask).unwrap()).await.unwrap();
            let answer: JoinAnswer = postcard::from_bytes(&channel.recv().await.unwrap().1).unwrap();
            assert_eq!(answer, JoinAnswer::Refused(JoinRefusal::OtherCluster));
        });
    }
    assert_eq!((roles(&admin), roles(&worker)), (before.clone(), before));
}
