//! Members on loopback that answer as a test says.

use std::net::SocketAddr;
use std::ops::Range;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use exo_machine::Holder;
use exo_store::{ChunkRef, PartialModel, Store};
use exo_transport::{Endpoint, Incoming, MemberSet, NodeKey, Options};
use exo_types::NodeId;
use tokio::task::JoinHandle;

use super::{ANSWER_MAX, Ask, Fetcher, LIMITS};

/// Gives the kind of the answer's frame, and its bytes.
pub(crate) type FakeAnswer = Box<dyn Fn(Ask) -> (u8, Vec<u8>) + Send + Sync>;

/// Instead of an answer: the member says nothing more over this channel.
pub(crate) const KIND_SILENT: u8 = u8::MAX;
/// Instead of an answer: the member closes this channel.
pub(crate) const KIND_HANGS_UP: u8 = u8::MAX - 1;

/// The member, and an endpoint that it knows.
pub(crate) struct FakeMember {
    pub(crate) own: Endpoint,
    pub(crate) node: NodeId,
    pub(crate) address: SocketAddr,
    /// How many were opened to it.
    pub(crate) channels: Arc<AtomicUsize>,
    answering: JoinHandle<()>,
}

impl FakeMember {
    /// One that answers at once.
    pub(crate) async fn start(answer: impl Fn(Ask) -> (u8, Vec<u8>) + Send + Sync + 'static) -> Self {
        Self::start_all(vec![Box::new(answer)], Duration::ZERO).await.remove(0)
    }

    /// Several that know one endpoint, and take so long for each chunk.
    pub(crate) async fn start_all(answers: Vec<FakeAnswer>, takes: Duration) -> Vec<Self> {
        Self::start_each(answers.into_iter().map(|answer| (answer, takes)).collect()).await
    }

    /// The same, each with a time of its own.
    pub(crate) async fn start_each(answers: Vec<(FakeAnswer, Duration)>) -> Vec<Self> {
        let mut endpoints = endpoints(answers.len() + 1).await;
        let (_, own) = endpoints.remove(0);
        let member =
            |((node, other), (answer, takes))| Self::answering(own.clone(), (node, other), answer, takes);
        endpoints.into_iter().zip(answers).map(member).collect()
    }

    /// Two that know each other: each is reached from the endpoint of the other.
    pub(crate) async fn pair(answers: [FakeAnswer; 2]) -> [Self; 2] {
        let mut endpoints = endpoints(2).await;
        let (second, first) = (endpoints.remove(1), endpoints.remove(0));
        let [of_first, of_second] = answers;
        [
            Self::answering(second.1.clone(), (first.0, first.1.clone()), of_first, Duration::ZERO),
            Self::answering(first.1, second, of_second, Duration::ZERO),
        ]
    }

    fn answering(
        own: Endpoint,
        (node, other): (NodeId, Endpoint),
        answer: FakeAnswer,
        takes: Duration,
    ) -> Self {
        let (address, answer) = (other.local_addr(), Arc::new(answer));
        let channels = Arc::new(AtomicUsize::new(0));
        let opened = channels.clone();
        let answering = tokio::spawn(async move {
            while let Some(Incoming::Channel(channel)) = other.accept().await {
                opened.fetch_add(1, Ordering::Relaxed);
                let answer = answer.clone();
                tokio::spawn(async move {
                    let (mut writer, mut reader) = channel.split(LIMITS);
                    while let Ok(frame) = reader.next(Some(ANSWER_MAX)).await {
                        let Ok(ask) = postcard::from_bytes(&frame.payload) else { return };
                        let is_of_chunk = matches!(ask, Ask::Chunk { .. } | Ask::PartialBlock { .. });
                        let (kind, bytes) = answer(ask);
                        if kind == KIND_SILENT {
                            std::future::pending::<()>().await;
                        }
                        if kind == KIND_HANGS_UP {
                            return;
                        }
                        tokio::time::sleep(if is_of_chunk { takes } else { Duration::ZERO }).await;
                        if writer.send(kind, &[&bytes]).await.is_err() {
                            return;
                        }
                    }
                });
            }
        });
        Self { own, node, address, channels, answering }
    }

    pub(crate) async fn dialled(&self) -> Fetcher {
        Fetcher::dial(&self.own, self.node, &[self.address]).await.unwrap()
    }

    pub(crate) fn holder(&self) -> Holder {
        Holder { node: self.node, addresses: vec![self.address] }
    }
}

/// A store with the demo model, and the model as it is to come into another: nothing of it is there.
pub(crate) fn demo_and_copy(folder: &Path) -> (Store, Arc<PartialModel>) {
    let (from, _) = Store::open(&folder.join("from")).unwrap();
    let (to, _) = Store::open(&folder.join("to")).unwrap();
    let id = from.add_builtin("demo.gguf", crate::DEMO_MODEL).unwrap().id;
    let partial = to.prepare(&from.manifest(id).unwrap()).unwrap();
    (from, partial)
}

/// Chunks of a model's first file.
pub(crate) fn chunks(indices: Range<u32>) -> Vec<ChunkRef> {
    indices.map(|index| ChunkRef { file: 0, index }).collect()
}

pub(crate) fn all_chunks(partial: &PartialModel) -> Vec<ChunkRef> {
    chunks(0..partial.manifest().chunk_count(0))
}

/// So many members of one cluster.
async fn endpoints(count: usize) -> Vec<(NodeId, Endpoint)> {
    let keys: Vec<NodeKey> = (1..).take(count).map(|n| NodeKey::from_seed(&[n; 32])).collect();
    let members = MemberSet::new(keys.iter().map(NodeKey::node_id));
    let mut endpoints = Vec::new();
    for key in keys {
        let (node, listen) = (key.node_id(), SocketAddr::from(([127, 0, 0, 1], 0)));
        let endpoint = Endpoint::bind(Options::new(listen, key, members.clone())).await.unwrap();
        endpoints.push((node, endpoint));
    }
    endpoints
}

impl Drop for FakeMember {
    fn drop(&mut self) {
        self.answering.abort();
    }
}
