//! Join exchanges over the network, discovery, and what this node's key signs.
//!
//! An exchange is one question and one answer, in postcard, each in one message of a [`JoinChannel`]. The channel ends
//! after [`exo_transport::JOIN_TIME_MAX`] whatever happens, and the transport serves few at once, so every task here is
//! short and their number bounded.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use exo_discovery::{Discovery, Interface, is_near, local_interfaces};
use exo_machine::joining::{JoinAnswer, JoinAsk};
use exo_machine::{ExchangeId, Found, Input, JoinEffect, JoinEvent, SignId};
use exo_transport::{Endpoint, JoinChannel, NodeKey};
use exo_types::NodeId;
use tokio::sync::oneshot;

use crate::engine_host::chain;

/// For one exchange, from the dial to the answer; also for the lookup of a host name.
const EXCHANGE_MAX: Duration = Duration::from_secs(5);
/// Between the dials of two addresses of one node.
const DIAL_AGAIN: Duration = Duration::from_millis(100);
/// Strangers that wait for their answers at once.
const WAITING_MAX: usize = 64;

const KIND_ASK: u8 = 1;
const KIND_ANSWER: u8 = 2;

/// Where inputs for the machine go. Never waits.
pub(crate) type InputSender = Arc<dyn Fn(Input) + Send + Sync>;

/// Carries out what joining wants done.
pub(crate) struct JoinHands {
    endpoint: Endpoint,
    key: NodeKey,
    discovery: Option<Discovery>,
    /// What discovery says of this node, but for whether it is fresh.
    announcement: BTreeMap<String, String>,
    inputs: InputSender,
    /// Where answers to strangers go. The other end is dropped when an exchange is over.
    waiting: BTreeMap<ExchangeId, oneshot::Sender<JoinAnswer>>,
    exchange_last: u64,
}

impl JoinHands {
    pub(crate) fn new(
        endpoint: Endpoint,
        key: NodeKey,
        discovery: Option<Discovery>,
        announcement: BTreeMap<String, String>,
        inputs: InputSender,
    ) -> Self {
        let waiting = BTreeMap::new();
        Self { endpoint, key, discovery, announcement, inputs, waiting, exchange_last: 0 }
    }

    /// A stranger opened the join exchange. Its question becomes an input, and the answer comes as an effect.
    pub(crate) fn accept(&mut self, channel: JoinChannel) {
        self.waiting.retain(|_, answer| !answer.is_closed());
        if self.waiting.len() >= WAITING_MAX {
            tracing::debug!(peer = %channel.peer, waiting_max = WAITING_MAX, "too many join exchanges; hanging up");
            return;
        }
        self.exchange_last += 1;
        let exchange = ExchangeId(self.exchange_last);
        let (sender, answer) = oneshot::channel();
        self.waiting.insert(exchange, sender);
        let inputs = self.inputs.clone();
        tokio::spawn(async move {
            let peer = channel.peer;
            if let Err(reason) = serve(channel, exchange, inputs, answer).await {
                tracing::debug!(%peer, exchange = exchange.0, reason, "a join exchange failed");
            }
        });
    }

    pub(crate) fn carry_out(&mut self, effect: JoinEffect) {
        match effect {
            JoinEffect::Answer { exchange, answer } => {
                let waiting = self.waiting.remove(&exchange);
                if waiting.is_none_or(|waiting| waiting.send(answer).is_err()) {
                    tracing::trace!(exchange = exchange.0, "an answer after the exchange was over");
                }
            }
            JoinEffect::Ask { with, mut addresses, only_near, proof_within, ask } => {
                let (endpoint, inputs) = (self.endpoint.clone(), self.inputs.clone());
                if only_near {
                    let interfaces = interfaces();
                    addresses.retain(|address| is_near(address.ip(), &interfaces));
                }
                tokio::spawn(async move {
                    inputs(Input::Joining(ask_at(&endpoint, (with, addresses), proof_within, &ask).await));
                });
            }
            JoinEffect::Probe { text, ask } => {
                let (endpoint, inputs) = (self.endpoint.clone(), self.inputs.clone());
                tokio::spawn(async move { inputs(Input::Joining(probe(&endpoint, text, &ask).await)) });
            }
        }
    }

    /// Signs with this node's key.
    pub(crate) fn sign(&self, id: SignId, bytes: &[u8]) {
        (self.inputs)(Input::Signed { id, signature: self.key.sign(bytes) });
    }

    /// Says who and how this node is to those who look.
    pub(crate) fn advertise(&mut self, is_fresh: bool) {
        let mut txt = self.announcement.clone();
        txt.insert("fresh".to_owned(), if is_fresh { "1" } else { "0" }.to_owned());
        if let Some(discovery) = &mut self.discovery
            && let Err(error) = discovery.update_txt(txt)
        {
            tracing::warn!(%error, "discovery says something old of this node");
        }
    }

    /// Discovery, to shut it down: that blocks for a second at most.
    pub(crate) fn take_discovery(&mut self) -> Option<Discovery> {
        self.discovery.take()
    }
}

/// What discovery saw, in the machine's words. `None` if it names no node.
pub(crate) fn found(found: exo_discovery::Found) -> Option<Found> {
    let exo_discovery::Found { node, addrs, txt, lost, .. } = found;
    Some(Found {
        node: node?,
        addresses: addrs,
        name: txt.get("name").cloned(),
        group: txt.get("group").cloned(),
        is_fresh: txt.get("fresh").is_some_and(|fresh| fresh == "1"),
        is_lost: lost,
    })
}

/// The addresses of this machine now; none if the system does not tell.
fn interfaces() -> Vec<Interface> {
    let told = local_interfaces();
    told.inspect_err(|error| tracing::warn!(%error, "the system does not tell this machine's addresses"))
        .unwrap_or_default()
}

/// One exchange that a stranger opened.
async fn serve(
    mut channel: JoinChannel,
    exchange: ExchangeId,
    inputs: InputSender,
    answer: oneshot::Receiver<JoinAnswer>,
) -> Result<(), String> {
    let (kind, bytes) = channel.recv().await.map_err(|e| e.to_string())?;
    if kind != KIND_ASK {
        return Err(format!("a question of kind {kind}"));
    }
    let ask = postcard::from_bytes::<JoinAsk>(&bytes).map_err(|e| format!("a question that is none: {e}"))?;
    let (node, remote) = (channel.peer, channel.remote);
    let is_near = is_near(remote.ip(), &interfaces());
    inputs(Input::Joining(JoinEvent::Asked { exchange, node, remote, is_near, ask }));
    let answer = tokio::time::timeout(EXCHANGE_MAX, answer).await.map_err(|_| "no answer in time")?;
    let answer = answer.map_err(|_| "this node ends")?;
    let bytes = postcard::to_allocvec(&answer).map_err(|e| e.to_string())?;
    channel.send(KIND_ANSWER, &bytes).await.map_err(|e| e.to_string())?;
    channel.finish().await.map_err(|e| e.to_string())
}

/// Asks `with` where it first proves its key.
async fn ask_at(
    endpoint: &Endpoint,
    (with, addresses): (NodeId, Vec<SocketAddr>),
    proof_within: Duration,
    ask: &JoinAsk,
) -> JoinEvent {
    match reach(endpoint, with, &addresses, proof_within).await {
        Ok((address, channel)) => {
            let answer = tokio::time::timeout(EXCHANGE_MAX, exchange(channel, ask)).await;
            let answer = answer.unwrap_or_else(|_| Err(late(address, EXCHANGE_MAX)));
            JoinEvent::Answered { with, address, answer: answer.map(|(_, answer)| answer) }
        }
        Err(reason) => {
            let unspecified = SocketAddr::from(([0, 0, 0, 0], 0));
            let address = addresses.last().copied().unwrap_or(unspecified);
            JoinEvent::Answered { with, address, answer: Err(reason) }
        }
    }
}

/// Dials all addresses of a node, one after the other without waiting for the one before, until the node proves its key
/// at one of them. Only then it is asked, and once: two questions would be two admissions.
async fn reach(
    endpoint: &Endpoint,
    with: NodeId,
    addresses: &[SocketAddr],
    within: Duration,
) -> Result<(SocketAddr, JoinChannel), String> {
    let until = tokio::time::Instant::now() + within;
    let mut dials = tokio::task::JoinSet::new();
    for (&address, number) in addresses.iter().zip(0..) {
        let endpoint = endpoint.clone();
        dials.spawn(async move {
            tokio::time::sleep(DIAL_AGAIN * number).await;
            (address, endpoint.dial_join(address, within).await.map_err(|e| chain(&e)))
        });
    }
    let mut reason = "no address on a network that both are on".to_owned();
    loop {
        match tokio::time::timeout_at(until, dials.join_next()).await {
            Ok(Some(Ok((address, Ok(channel))))) if channel.peer == with => return Ok((address, channel)),
            Ok(Some(Ok((_, Ok(channel))))) => reason = format!("{} answers there instead", channel.peer),
            Ok(Some(Ok((_, Err(error))))) => reason = error,
            Ok(Some(Err(error))) => reason = error.to_string(),
            Ok(None) => return Err(reason),
            Err(_) => return Err(format!("it proved its key nowhere within {} s", within.as_secs())),
        }
    }
}

fn late(address: SocketAddr, within: Duration) -> String {
    format!("no answer from {address} within {} s", within.as_secs())
}

/// Asks who is at `host:port`.
async fn probe(endpoint: &Endpoint, text: String, ask: &JoinAsk) -> JoinEvent {
    let lookup = tokio::time::timeout(EXCHANGE_MAX, tokio::net::lookup_host(text.as_str())).await;
    let address = lookup.ok().and_then(Result::ok).and_then(|mut addresses| addresses.next());
    let answer = match address {
        Some(address) => ask_once(endpoint, address, ask).await,
        None => Err("the name leads to no address".to_owned()),
    };
    let answer = answer.inspect_err(|reason| tracing::trace!(text, reason, "a probe failed")).ok();
    JoinEvent::Probed { text, address, answer }
}

/// One exchange that this node opens; the answer, and who proved its key.
async fn ask_once(
    endpoint: &Endpoint,
    address: SocketAddr,
    ask: &JoinAsk,
) -> Result<(NodeId, JoinAnswer), String> {
    let asked = async {
        let channel = endpoint.dial_join(address, EXCHANGE_MAX).await.map_err(|e| chain(&e))?;
        exchange(channel, ask).await
    };
    tokio::time::timeout(EXCHANGE_MAX, asked).await.map_err(|_| late(address, EXCHANGE_MAX))?
}

/// The question over an open channel; the answer, and who proved its key.
async fn exchange(mut channel: JoinChannel, ask: &JoinAsk) -> Result<(NodeId, JoinAnswer), String> {
    let bytes = postcard::to_allocvec(ask).map_err(|e| e.to_string())?;
    channel.send(KIND_ASK, &bytes).await.map_err(|e| e.to_string())?;
    let (kind, bytes) = channel.recv().await.map_err(|e| e.to_string())?;
    if kind != KIND_ANSWER {
        return Err(format!("an answer of kind {kind}"));
    }
    let answer = postcard::from_bytes(&bytes).map_err(|e| format!("an answer that is none: {e}"))?;
    let peer = channel.peer;
    // Only the other side's clean end waits for this; it lasts no longer than the channel.
    tokio::spawn(async move { drop(channel.finish().await) });
    Ok((peer, answer))
}

#[cfg(test)]
mod tests {
    use exo_machine::joining::Wanted;
    use exo_transport::{Incoming, MemberSet, Options};
    use tokio::sync::mpsc;

    use super::*;

    struct Node {
        me: NodeId,
        endpoint: Endpoint,
        hands: JoinHands,
        inputs: mpsc::UnboundedReceiver<Input>,
    }

    async fn node() -> Node {
        let key = NodeKey::generate().unwrap();
        let listen = SocketAddr::from(([127, 0, 0, 1], 0));
        let endpoint = Endpoint::bind(Options::new(listen, key.clone(), MemberSet::new([]))).await.unwrap();
        let (sender, inputs) = mpsc::unbounded_channel();
        let send = Arc::new(move |input| drop(sender.send(input)));
        let hands = JoinHands::new(endpoint.clone(), key.clone(), None, BTreeMap::new(), send);
        Node { me: key.node_id(), endpoint, hands, inputs }
    }

    impl Node {
        /// Serves one stranger, who is answered with `answer`.
        async fn serve(&mut self, answer: JoinAnswer) -> JoinAsk {
            let Some(Incoming::Join(channel)) = self.endpoint.accept().await else { panic!("no exchange") };
            self.hands.accept(channel);
            let Some(Input::Joining(JoinEvent::Asked { exchange, ask, .. })) = self.inputs.recv().await
            else {
                panic!("no question")
            };
            self.hands.carry_out(JoinEffect::Answer { exchange, answer });
            ask
        }
    }

    fn ask(is_probe: bool) -> JoinAsk {
        let what = if is_probe { Wanted::Name } else { Wanted::Membership };
        JoinAsk { name: "a".to_owned(), group: "home".to_owned(), port: 1, what }
    }

    #[tokio::test]
    async fn a_question_reaches_the_other_machine_and_its_answer_comes_back() {
        let (mut asker, mut other) = (node().await, node().await);
        let (with, address) = (other.me, other.endpoint.local_addr());
        asker.hands.carry_out(JoinEffect::Ask {
            with,
            addresses: vec![address],
            only_near: true,
            proof_within: Duration::from_secs(2),
            ask: ask(false),
        });
        assert_eq!(other.serve(JoinAnswer::Later).await, ask(false));
        let answer = Ok(JoinAnswer::Later);
        let expected = Input::Joining(JoinEvent::Answered { with, address, answer });
        assert_eq!(asker.inputs.recv().await, Some(expected));
        other.hands.waiting.retain(|_, answer| !answer.is_closed());
        assert!(other.hands.waiting.is_empty());
    }

    #[tokio::test]
    async fn another_key_than_the_one_asked_for_is_no_answer() {
        let (mut asker, other) = (node().await, node().await);
        let (with, address) = (asker.me, other.endpoint.local_addr());
        asker.hands.carry_out(JoinEffect::Ask {
            with,
            addresses: vec![address],
            only_near: true,
            proof_within: Duration::from_secs(2),
            ask: ask(false),
        });
        let Some(Input::Joining(JoinEvent::Answered { answer, .. })) = asker.inputs.recv().await else {
            panic!("no answer")
        };
        assert!(answer.unwrap_err().contains("answers there instead"));
    }

    #[tokio::test]
    async fn silent_addresses_of_a_node_do_not_delay_its_answer_and_it_is_asked_once() {
        let (mut asker, mut other) = (node().await, node().await);
        let silent = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let (with, address) = (other.me, other.endpoint.local_addr());
        let mut addresses = vec![silent.local_addr().unwrap(); 3];
        addresses.extend([address; 2]);
        let proof_within = Duration::from_secs(2);
        asker.hands.carry_out(JoinEffect::Ask {
            with,
            addresses,
            only_near: true,
            proof_within,
            ask: ask(false),
        });
        other.serve(JoinAnswer::Later).await;
        let expected = JoinEvent::Answered { with, address, answer: Ok(JoinAnswer::Later) };
        assert_eq!(asker.inputs.recv().await, Some(Input::Joining(expected)));
        let again = tokio::time::timeout(Duration::from_millis(300), other.inputs.recv()).await;
        assert!(again.is_err(), "{again:?}");
    }

    #[tokio::test]
    async fn a_node_that_is_silent_at_all_addresses_has_failed_in_time() {
        let mut asker = node().await;
        let silent = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let (with, proof_within) = (NodeId([1; 32]), Duration::from_millis(500));
        let addresses = vec![silent.local_addr().unwrap(); 16];
        asker.hands.carry_out(JoinEffect::Ask {
            with,
            addresses,
            only_near: true,
            proof_within,
            ask: ask(false),
        });
        let answer = tokio::time::timeout(Duration::from_secs(2), asker.inputs.recv()).await.unwrap();
        let Some(Input::Joining(JoinEvent::Answered { answer, .. })) = answer else { panic!("{answer:?}") };
        assert!(answer.unwrap_err().contains("proved its key nowhere"));
    }

    #[tokio::test]
    async fn a_probe_says_who_is_there_or_that_no_one_is() {
        let (mut asker, mut other) = (node().await, node().await);
        let address = other.endpoint.local_addr();
        let here = JoinAnswer::Here { name: "b".to_owned(), fresh: true };
        asker.hands.carry_out(JoinEffect::Probe { text: address.to_string(), ask: ask(true) });
        other.serve(here.clone()).await;
        let (text, answer) = (address.to_string(), Some((other.me, here)));
        let expected = JoinEvent::Probed { text, address: Some(address), answer };
        assert_eq!(asker.inputs.recv().await, Some(Input::Joining(expected)));
        other.endpoint.close().await;
        drop(other);
        asker.hands.carry_out(JoinEffect::Probe { text: address.to_string(), ask: ask(true) });
        let expected = JoinEvent::Probed { text: address.to_string(), address: Some(address), answer: None };
        assert_eq!(asker.inputs.recv().await, Some(Input::Joining(expected)));
    }

    #[tokio::test]
    async fn acts_are_signed_with_the_nodes_key() {
        let mut node = node().await;
        node.hands.sign(SignId(3), b"an act");
        let Some(Input::Signed { id, signature }) = node.inputs.recv().await else { panic!("no answer") };
        assert_eq!(id, SignId(3));
        assert!(exo_identity::verify_signature(node.me, b"an act", &signature));
    }

    #[test]
    fn discovery_without_a_node_is_dropped_and_its_text_is_read() {
        let seen = exo_discovery::Found {
            node: Some(NodeId([1; 32])),
            addrs: vec![SocketAddr::from(([10, 0, 0, 1], 7))],
            source: exo_discovery::Source::Mdns,
            txt: BTreeMap::from([("fresh", "1"), ("name", "b")].map(|(k, v)| (k.to_owned(), v.to_owned()))),
            lost: false,
        };
        let read = found(seen.clone()).unwrap();
        assert!(read.is_fresh && !read.is_lost && read.group.is_none());
        assert_eq!(read.name.as_deref(), Some("b"));
        assert_eq!(found(exo_discovery::Found { node: None, ..seen }), None);
    }
}
