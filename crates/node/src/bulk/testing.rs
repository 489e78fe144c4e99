//! A member on loopback that answers as a test says.

use std::net::SocketAddr;
use std::sync::Arc;

use exo_transport::{Endpoint, Incoming, MemberSet, NodeKey, Options};
use exo_types::NodeId;
use tokio::task::JoinHandle;

use super::{ANSWER_MAX, Ask, Fetcher, LIMITS};

/// The member, and an endpoint that it knows.
pub(crate) struct FakeMember {
    pub(crate) own: Endpoint,
    pub(crate) node: NodeId,
    pub(crate) address: SocketAddr,
    answering: JoinHandle<()>,
}

impl FakeMember {
    /// `answer` gives the kind of the answer's frame, and its bytes.
    pub(crate) async fn start(answer: impl Fn(Ask) -> (u8, Vec<u8>) + Send + Sync + 'static) -> Self {
        let keys = [NodeKey::from_seed(&[1; 32]), NodeKey::from_seed(&[2; 32])];
        let members = MemberSet::new(keys.each_ref().map(NodeKey::node_id));
        let node = keys[1].node_id();
        let listen = SocketAddr::from(([127, 0, 0, 1], 0));
        let [own, other] = keys.map(|key| Endpoint::bind(Options::new(listen, key, members.clone())));
        let (own, other) = (own.await.unwrap(), other.await.unwrap());
        let (address, answer) = (other.local_addr(), Arc::new(answer));
        let answering = tokio::spawn(async move {
            while let Some(Incoming::Channel(channel)) = other.accept().await {
                let answer = answer.clone();
                tokio::spawn(async move {
                    let (mut writer, mut reader) = channel.split(LIMITS);
                    while let Ok(frame) = reader.next(Some(ANSWER_MAX)).await {
                        let Ok(ask) = postcard::from_bytes(&frame.payload) else { return };
                        let (kind, bytes) = answer(ask);
                        if writer.send(kind, &[&bytes]).await.is_err() {
                            return;
                        }
                    }
                });
            }
        });
        Self { own, node, address, answering }
    }

    pub(crate) async fn dialled(&self) -> Fetcher {
        Fetcher::dial(&self.own, self.node, &[self.address]).await.unwrap()
    }
}

impl Drop for FakeMember {
    fn drop(&mut self) {
        self.answering.abort();
    }
}
