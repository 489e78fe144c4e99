//! Join exchanges over the network, discovery, and what this node's key signs.
//!
//! An exchange is one question and one answer, in postcard, each in one message of a [`JoinChannel`]. The
//! channel ends after [`exo_transport::JOIN_TIME_MAX`] whatever happens, and the transport serves few at
//! once, so every task here is short and their number bounded.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use exo_discovery::{Discovery, Surroundings};
use exo_machine::joining::{Code, JoinAnswer, JoinAsk, JoinPurpose};
use exo_machine::{
    ADDRESSES_APART, DiscoveredNode, ExchangeId, Input, JoinEffect, JoinEvent, ProbeFailure, SignId,
};
use exo_stdx::{Mutex, Repeats};
use exo_transport::{Endpoint, JoinChannel, NodeKey};
use exo_types::NodeId;
use tokio::sync::oneshot;

use crate::check_words::Numbers;
use crate::dialling::first_to_answer;
use crate::exchange_error::{ExchangeError, read};
use crate::pairing::{self, Given, Invites};

/// For one exchange, from the dial to the answer; also for the lookup of a host name.
const EXCHANGE_MAX: Duration = Duration::from_secs(5);
/// Addresses of one name that are tried.
const PROBED_MAX: usize = 8;
/// Strangers that wait for their answers at once.
const WAITING_MAX: usize = 64;
/// Between two lines about codes that were not proven: a key to try one with costs nothing.
const UNPROVEN_TOLD_EVERY: Duration = Duration::from_secs(60);

const KIND_ASK: u8 = 1;
const KIND_ANSWER: u8 = 2;
/// Before the question, from who was given a code.
const KIND_OPENING: u8 = 3;
/// Proves the code, from each side.
const KIND_PROOF: u8 = 4;
/// Before a question to become a member: what both sides draw for the words that people compare.
const KIND_DRAWN: u8 = 5;

/// A question of this node's, and how it is asked.
struct Ask {
    me: NodeId,
    code: Option<Code>,
    ask: JoinAsk,
    numbers: Arc<Numbers>,
}

/// Where inputs for the machine go. Never waits.
pub(crate) type InputSender = Arc<dyn Fn(Input) + Send + Sync>;

/// What an exchange needs that a stranger opened.
struct Host {
    me: NodeId,
    invites: Arc<Invites>,
    numbers: Arc<Numbers>,
    inputs: InputSender,
    unproven: Arc<Mutex<Repeats>>,
}

impl Host {
    /// Whoever tries codes at full rate makes one line a minute.
    fn not_proven(&self, peer: NodeId, error: &ExchangeError) {
        let told = self.unproven.lock().again(Instant::now());
        match told {
            Some(times) => tracing::info!(%peer, %error, times, "a code was not proven"),
            None => tracing::trace!(%peer, %error, "a code was not proven again"),
        }
    }
}

/// Carries out what joining wants done.
pub(crate) struct JoinHands {
    endpoint: Endpoint,
    key: NodeKey,
    discovery: Option<Discovery>,
    /// What discovery says of this node, but for whether it is fresh.
    announcement: BTreeMap<String, String>,
    /// Codes that were given out.
    invites: Arc<Invites>,
    numbers: Arc<Numbers>,
    inputs: InputSender,
    /// Where answers to strangers go. The other end is dropped when an exchange is over.
    waiting: BTreeMap<ExchangeId, oneshot::Sender<JoinAnswer>>,
    exchange_last: u64,
    /// Codes that strangers did not prove.
    unproven: Arc<Mutex<Repeats>>,
}

impl JoinHands {
    pub(crate) fn new(
        endpoint: Endpoint,
        key: NodeKey,
        discovery: Option<Discovery>,
        announcement: BTreeMap<String, String>,
        invites: Arc<Invites>,
        inputs: InputSender,
    ) -> Self {
        let (numbers, waiting) = (Arc::default(), BTreeMap::new());
        let unproven = Arc::new(Mutex::new(Repeats::new(UNPROVEN_TOLD_EVERY)));
        Self {
            endpoint,
            key,
            discovery,
            announcement,
            invites,
            numbers,
            inputs,
            waiting,
            exchange_last: 0,
            unproven,
        }
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
        let host = Host {
            me: self.key.node_id(),
            invites: self.invites.clone(),
            numbers: self.numbers.clone(),
            inputs: self.inputs.clone(),
            unproven: self.unproven.clone(),
        };
        tokio::spawn(async move {
            let peer = channel.peer;
            if let Err(error) = serve(channel, exchange, &host, answer).await {
                tracing::debug!(%peer, exchange = exchange.0, %error, "a join exchange failed");
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
            JoinEffect::Ask { with, mut addresses, only_near, proof_within, code, ask } => {
                let (endpoint, inputs) = (self.endpoint.clone(), self.inputs.clone());
                let question = self.question(code, ask);
                tokio::spawn(async move {
                    if only_near {
                        let here = surroundings().await;
                        addresses.retain(|address| here.is_near(address.ip()));
                    }
                    let answered = ask_at(&endpoint, (with, addresses), proof_within, &question).await;
                    inputs(Input::Joining(answered));
                });
            }
            JoinEffect::Probe { text, ask } => {
                let (endpoint, inputs) = (self.endpoint.clone(), self.inputs.clone());
                let question = self.question(None, ask);
                tokio::spawn(async move { inputs(Input::Joining(probe(&endpoint, text, &question).await)) });
            }
        }
    }

    fn question(&self, code: Option<Code>, ask: JoinAsk) -> Ask {
        Ask { me: self.key.node_id(), code, ask, numbers: self.numbers.clone() }
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
pub(crate) fn found(found: exo_discovery::FoundNode) -> Option<DiscoveredNode> {
    let exo_discovery::FoundNode { node, addrs, txt, lost, .. } = found;
    Some(DiscoveredNode {
        node: node?,
        addresses: addrs,
        name: txt.get("name").cloned(),
        group: txt.get("group").cloned(),
        is_fresh: txt.get("fresh").is_some_and(|fresh| fresh == "1"),
        is_lost: lost,
    })
}

/// What is around this machine now; if the system does not tell, nothing is near.
async fn surroundings() -> Surroundings {
    let asked = tokio::task::spawn_blocking(|| Surroundings::ask(Path::new("/"))).await;
    let told = asked.unwrap_or_else(|error| Err(error.into()));
    told.inspect_err(|error| tracing::warn!(%error, "the system does not tell this machine's addresses"))
        .unwrap_or_default()
}

/// One exchange that a stranger opened.
async fn serve(
    mut channel: JoinChannel,
    exchange: ExchangeId,
    host: &Host,
    answer: oneshot::Receiver<JoinAnswer>,
) -> Result<(), ExchangeError> {
    let (mut kind, mut bytes) = channel.recv().await?;
    let has_code = kind == KIND_OPENING;
    if has_code {
        let opening = read("an opening", &bytes)?;
        if let Err(error) = host.invites.check(&mut channel, host.me, &opening, KIND_PROOF).await {
            host.not_proven(channel.peer, &error);
            let refused = JoinAnswer::Refused(error.refusal());
            pairing::send(&mut channel, KIND_ANSWER, &refused).await?;
            return Ok(channel.finish().await?);
        }
        (kind, bytes) = channel.recv().await?;
    }
    let mut words = String::new();
    if kind == KIND_DRAWN {
        words = host.numbers.answer(&mut channel, host.me, &bytes, KIND_DRAWN).await?;
        (kind, bytes) = channel.recv().await?;
    }
    if kind != KIND_ASK {
        return Err(ExchangeError::Kind { got: kind, wanted: KIND_ASK });
    }
    let ask: JoinAsk = read("a question", &bytes)?;
    if ask.what == JoinPurpose::Membership && words.is_empty() {
        return Err(ExchangeError::NoWords);
    }
    let (node, remote) = (channel.peer, channel.remote);
    let is_near = surroundings().await.is_near(remote.ip());
    let asked = JoinEvent::Asked { exchange, node, remote, is_near, has_code, words, ask };
    (host.inputs)(Input::Joining(asked));
    let answer = tokio::time::timeout(EXCHANGE_MAX, answer)
        .await
        .map_err(|_| ExchangeError::NoAnswer { seconds: EXCHANGE_MAX.as_secs() })?;
    let answer = answer.map_err(|_| ExchangeError::Ending)?;
    pairing::send(&mut channel, KIND_ANSWER, &answer).await?;
    Ok(channel.finish().await?)
}

/// Asks `with` where it first proves its key.
async fn ask_at(
    endpoint: &Endpoint,
    (with, addresses): (NodeId, Vec<SocketAddr>),
    proof_within: Duration,
    ask: &Ask,
) -> JoinEvent {
    match reach(endpoint, Some(with), &addresses, proof_within).await {
        Ok((address, channel)) => {
            let answer = tokio::time::timeout(EXCHANGE_MAX, exchange(channel, ask)).await;
            let answer = answer.unwrap_or_else(|_| Err(late(address)));
            let (words, answer) = match answer {
                Ok((_, words, answer)) => (words, Ok(answer)),
                Err(error) => (String::new(), Err(error.to_string())),
            };
            JoinEvent::Answered { with, address, words, answer }
        }
        Err(error) => {
            let (address, answer) = (SocketAddr::from(([0, 0, 0, 0], 0)), Err(error.to_string()));
            JoinEvent::Answered { with, address, words: String::new(), answer }
        }
    }
}

/// Dials all addresses of a node until the node proves its key at one of them, or any node does if none is
/// named. Only then it is asked, and once: two questions would be two admissions.
async fn reach(
    endpoint: &Endpoint,
    with: Option<NodeId>,
    addresses: &[SocketAddr],
    within: Duration,
) -> Result<(SocketAddr, JoinChannel), ExchangeError> {
    let dial = |address| async move {
        let channel = endpoint.dial_join(address, within).await?;
        match with.is_none_or(|with| channel.peer == with) {
            true => Ok((address, channel)),
            false => Err(ExchangeError::AnotherNode(channel.peer)),
        }
    };
    match tokio::time::timeout(within, first_to_answer(ADDRESSES_APART, addresses, dial)).await {
        Ok(answered) => answered.unwrap_or(Err(ExchangeError::NoAddress)),
        Err(_) => Err(ExchangeError::NotProven { seconds: within.as_secs() }),
    }
}

fn late(address: SocketAddr) -> ExchangeError {
    ExchangeError::Late { address, seconds: EXCHANGE_MAX.as_secs() }
}

/// Asks who is at `host:port`.
async fn probe(endpoint: &Endpoint, text: String, ask: &Ask) -> JoinEvent {
    let lookup = tokio::time::timeout(EXCHANGE_MAX, tokio::net::lookup_host(text.as_str())).await;
    let addresses: Vec<SocketAddr> =
        lookup.ok().and_then(Result::ok).into_iter().flatten().take(PROBED_MAX).collect();
    let found = match addresses.is_empty() {
        true => Err(ProbeFailure::UnknownName),
        false => probe_at(endpoint, &addresses, ask).await.map_err(|error| {
            tracing::trace!(text, %error, "a probe failed");
            ProbeFailure::Silent(addresses)
        }),
    };
    JoinEvent::Probed { text, found }
}

/// Who is at the first of these addresses where somebody is.
async fn probe_at(
    endpoint: &Endpoint,
    addresses: &[SocketAddr],
    ask: &Ask,
) -> Result<(SocketAddr, NodeId, JoinAnswer), ExchangeError> {
    let (address, channel) = reach(endpoint, None, addresses, EXCHANGE_MAX).await?;
    let asked = tokio::time::timeout(EXCHANGE_MAX, exchange(channel, ask)).await;
    let (node, _, answer) = asked.map_err(|_| late(address))??;
    Ok((address, node, answer))
}

/// The question over an open channel; who proved its key, the words that both sides have, and the answer.
async fn exchange(
    mut channel: JoinChannel,
    question: &Ask,
) -> Result<(NodeId, String, JoinAnswer), ExchangeError> {
    let refused = match &question.code {
        Some(code) => prove(&mut channel, question.me, code).await?,
        None => None,
    };
    let mut agreed = None;
    let answer = match refused {
        Some(answer) => answer,
        None => {
            if question.ask.what == JoinPurpose::Membership {
                agreed = Some(question.numbers.draw(&mut channel, question.me, KIND_DRAWN).await?);
            }
            pairing::send(&mut channel, KIND_ASK, &question.ask).await?;
            answer_of(channel.recv().await?)?
        }
    };
    let peer = channel.peer;
    let words = agreed.as_ref().map_or_else(String::new, |agreed| agreed.words.clone());
    agreed.iter().for_each(|agreed| question.numbers.keep(peer, agreed));
    // Only the other side's clean end waits for this; it lasts no longer than the channel.
    tokio::spawn(async move { drop(channel.finish().await) });
    Ok((peer, words, answer))
}

/// Proves the code to the other side, and has it proven; or the answer, if there is no invitation.
async fn prove(
    channel: &mut JoinChannel,
    me: NodeId,
    code: &Code,
) -> Result<Option<JoinAnswer>, ExchangeError> {
    let (given, opening) = Given::begin(me, channel.peer, code);
    pairing::send(channel, KIND_OPENING, &opening).await?;
    let (kind, bytes) = channel.recv().await?;
    if kind != KIND_PROOF {
        return answer_of((kind, bytes)).map(Some);
    }
    let proof = read("a proof", &bytes)?;
    given.finish(channel, me, &proof, KIND_PROOF).await?;
    Ok(None)
}

fn answer_of((kind, bytes): (u8, Vec<u8>)) -> Result<JoinAnswer, ExchangeError> {
    if kind != KIND_ANSWER {
        return Err(ExchangeError::Kind { got: kind, wanted: KIND_ANSWER });
    }
    read("an answer", &bytes)
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use exo_transport::{Incoming, MemberSet, Options};
    use tokio::sync::mpsc;
    use tracing_subscriber::layer::SubscriberExt;

    use super::*;
    use exo_machine::joining::JoinRefusal;

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
        let hands =
            JoinHands::new(endpoint.clone(), key.clone(), None, BTreeMap::new(), Arc::default(), send);
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

        /// Asks a node there to let it in.
        fn ask(
            &mut self,
            with: NodeId,
            addresses: Vec<SocketAddr>,
            proof_within: Duration,
            code: Option<Code>,
        ) {
            let (only_near, ask) = (true, ask(false));
            self.hands.carry_out(JoinEffect::Ask { with, addresses, only_near, proof_within, code, ask });
        }

        /// What came of its question.
        async fn answer(&mut self) -> Result<JoinAnswer, String> {
            let Some(Input::Joining(JoinEvent::Answered { answer, .. })) = self.inputs.recv().await else {
                panic!("no answer")
            };
            answer
        }
    }

    const WITHIN: Duration = Duration::from_secs(2);

    fn ask(is_probe: bool) -> JoinAsk {
        let what = if is_probe { JoinPurpose::Name } else { JoinPurpose::Membership };
        JoinAsk { name: "a".to_owned(), group: "home".to_owned(), port: 1, what }
    }

    #[tokio::test]
    async fn a_question_reaches_the_other_machine_and_its_answer_comes_back() {
        let (mut asker, mut other) = (node().await, node().await);
        let (with, address) = (other.me, other.endpoint.local_addr());
        asker.ask(with, vec![address], WITHIN, None);
        assert_eq!(other.serve(JoinAnswer::Later).await, ask(false));
        let Some(Input::Joining(answered)) = asker.inputs.recv().await else { panic!("no answer") };
        let JoinEvent::Answered { with: by, address: at, words, answer } = answered else {
            panic!("{answered:?}")
        };
        assert_eq!((by, at, answer), (with, address, Ok(JoinAnswer::Later)));
        assert_eq!(words.split(' ').count(), 4);
        other.hands.waiting.retain(|_, answer| !answer.is_closed());
        assert!(other.hands.waiting.is_empty());
    }

    #[tokio::test]
    async fn another_key_than_the_one_asked_for_is_no_answer() {
        let (mut asker, other) = (node().await, node().await);
        asker.ask(asker.me, vec![other.endpoint.local_addr()], WITHIN, None);
        assert!(asker.answer().await.unwrap_err().contains("answers there instead"));
    }

    #[tokio::test]
    async fn an_address_that_is_not_near_is_not_dialled() {
        let mut asker = node().await;
        let far = SocketAddr::from(([203, 0, 113, 9], 9));
        asker.ask(NodeId([1; 32]), vec![far], Duration::from_secs(5), None);
        // At once: nothing is under way.
        let why = tokio::time::timeout(WITHIN, asker.answer()).await.unwrap().unwrap_err();
        assert!(why.contains("no address on a network that both are on"), "{why}");
    }

    #[tokio::test]
    async fn silent_addresses_of_a_node_do_not_delay_its_answer_and_it_is_asked_once() {
        let (mut asker, mut other) = (node().await, node().await);
        let silent = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let (with, address) = (other.me, other.endpoint.local_addr());
        let mut addresses = vec![silent.local_addr().unwrap(); 3];
        addresses.extend([address; 2]);
        asker.ask(with, addresses, WITHIN, None);
        other.serve(JoinAnswer::Later).await;
        let Some(Input::Joining(JoinEvent::Answered { with: by, address: at, answer, .. })) =
            asker.inputs.recv().await
        else {
            panic!("no answer")
        };
        assert_eq!((by, at, answer), (with, address, Ok(JoinAnswer::Later)));
        let again = tokio::time::timeout(Duration::from_millis(300), other.inputs.recv()).await;
        assert!(again.is_err(), "{again:?}");
    }

    #[tokio::test]
    async fn addresses_of_a_node_are_dialled_a_tenth_of_a_second_apart_and_none_waits_for_the_one_before() {
        let proof_within = Duration::from_secs(5);
        let (mut asker, mut silent, mut held) = (node().await, Vec::new(), Vec::new());
        for _ in 0..4 {
            silent.push(tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap());
        }
        let addresses = silent.iter().map(|listener| listener.local_addr().unwrap()).collect();
        let began = std::time::Instant::now();
        asker.ask(NodeId([1; 32]), addresses, proof_within, None);
        for (listener, number) in silent.iter().zip(0..) {
            let accepted = tokio::time::timeout(proof_within, listener.accept()).await;
            let after = began.elapsed();
            held.push(accepted.unwrap().unwrap());
            assert!(after >= ADDRESSES_APART * number, "address {number} after {after:?}");
            assert!(after < ADDRESSES_APART * number + proof_within / 2, "address {number} after {after:?}");
        }
    }

    #[tokio::test]
    async fn a_node_that_is_silent_at_all_addresses_has_failed_in_time() {
        let mut asker = node().await;
        let silent = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let addresses = vec![silent.local_addr().unwrap(); 16];
        asker.ask(NodeId([1; 32]), addresses, Duration::from_millis(500), None);
        let answer = tokio::time::timeout(WITHIN, asker.answer()).await.unwrap();
        assert!(answer.unwrap_err().contains("proved its key nowhere"));
    }

    #[tokio::test]
    async fn a_probe_says_who_is_there_or_that_no_one_is() {
        let (mut asker, mut other) = (node().await, node().await);
        let address = other.endpoint.local_addr();
        let here = JoinAnswer::Here { name: "b".to_owned(), fresh: true };
        asker.hands.carry_out(JoinEffect::Probe { text: address.to_string(), ask: ask(true) });
        other.serve(here.clone()).await;
        let found = Ok((address, other.me, here));
        let expected = JoinEvent::Probed { text: address.to_string(), found };
        assert_eq!(asker.inputs.recv().await, Some(Input::Joining(expected)));
        other.endpoint.close().await;
        drop(other);
        asker.hands.carry_out(JoinEffect::Probe { text: address.to_string(), ask: ask(true) });
        let found = Err(ProbeFailure::Silent(vec![address]));
        let expected = JoinEvent::Probed { text: address.to_string(), found };
        assert_eq!(asker.inputs.recv().await, Some(Input::Joining(expected)));
    }

    #[tokio::test]
    async fn a_name_of_several_addresses_is_asked_at_each() {
        let (asker, mut other) = (node().await, node().await);
        let silent = std::net::UdpSocket::bind("127.0.0.1:0").unwrap();
        let addresses =
            ["[::1]:9".parse().unwrap(), silent.local_addr().unwrap(), other.endpoint.local_addr()];
        let here = JoinAnswer::Here { name: "b".to_owned(), fresh: true };
        let question = asker.hands.question(None, ask(true));
        let (found, _) =
            tokio::join!(probe_at(&asker.endpoint, &addresses, &question), other.serve(here.clone()));
        assert_eq!(found.unwrap(), (addresses[2], other.me, here));
    }

    /// One asks the other with a code; who asked, if the question counted, and the answer.
    async fn ask_with(asker: &mut Node, other: &mut Node, code: &str) -> (bool, Result<JoinAnswer, String>) {
        let code = pairing::normal(code).unwrap();
        asker.ask(other.me, vec![other.endpoint.local_addr()], WITHIN, Some(code));
        let Some(Incoming::Join(channel)) = other.endpoint.accept().await else { panic!("no exchange") };
        other.hands.accept(channel);
        tokio::select! {
            asked = other.inputs.recv() => {
                let Some(Input::Joining(JoinEvent::Asked { exchange, has_code, .. })) = asked else { panic!() };
                other.hands.carry_out(JoinEffect::Answer { exchange, answer: JoinAnswer::Later });
                (has_code, asker.answer().await)
            }
            answer = asker.answer() => (false, answer),
        }
    }

    #[tokio::test]
    async fn a_code_is_proven_by_both_sides_and_three_wrong_ones_make_it_void() {
        let (mut asker, mut other) = (node().await, node().await);
        let code = other.hands.invites.give_digits().unwrap();
        let began = std::time::Instant::now();
        assert_eq!(ask_with(&mut asker, &mut other, &code).await, (true, Ok(JoinAnswer::Later)));
        assert!(began.elapsed() < Duration::from_secs(1), "{:?}", began.elapsed());

        let code = other.hands.invites.give_digits().unwrap();
        let digit = if code.starts_with('0') { "1" } else { "0" };
        let wrong = format!("{digit}{}", &code[1..]);
        for _ in 0..pairing::TRIES {
            let (is_asked, answer) = ask_with(&mut asker, &mut other, &wrong).await;
            assert!(!is_asked && answer.unwrap_err().contains("the code is wrong"));
        }
        let (is_asked, answer) = ask_with(&mut asker, &mut other, &code).await;
        assert_eq!((is_asked, answer), (false, Ok(JoinAnswer::Refused(JoinRefusal::NotInvited))));
    }

    /// Counts lines of this file that are shown by default.
    struct ShownLines(Arc<AtomicUsize>);

    impl<S: tracing::Subscriber> tracing_subscriber::Layer<S> for ShownLines {
        fn on_event(&self, event: &tracing::Event<'_>, _: tracing_subscriber::layer::Context<'_, S>) {
            let about = event.metadata();
            if about.target().ends_with("hands::joining") && *about.level() <= tracing::Level::INFO {
                self.0.fetch_add(1, Ordering::Relaxed);
            }
        }
    }

    #[tokio::test]
    async fn codes_that_are_not_proven_at_full_rate_make_one_line_a_minute() {
        let shown = Arc::new(AtomicUsize::new(0));
        let lines = tracing_subscriber::registry().with(ShownLines(shown.clone()));
        let _guard = tracing::subscriber::set_default(lines);
        let mut other = node().await;
        for _ in 0..20 {
            let mut asker = node().await;
            let (is_asked, answer) = ask_with(&mut asker, &mut other, "123-456-789").await;
            assert_eq!((is_asked, answer), (false, Ok(JoinAnswer::Refused(JoinRefusal::NotInvited))));
        }
        assert_eq!(shown.load(Ordering::Relaxed), 1);
    }

    #[tokio::test]
    async fn a_machine_in_between_that_relays_all_messages_fails_with_the_right_code() {
        let (mut asker, mut other) = (node().await, node().await);
        let code = other.hands.invites.give_digits().unwrap();
        let between = node().await;
        // Its key is what the asker takes for the other's.
        let (with, address) = (between.me, between.endpoint.local_addr());
        asker.ask(with, vec![address], WITHIN, Some(pairing::normal(&code).unwrap()));
        let Some(Incoming::Join(mut near)) = between.endpoint.accept().await else { panic!("no exchange") };
        let to = other.endpoint.local_addr();
        let (dialled, accepted) =
            tokio::join!(between.endpoint.dial_join(to, WITHIN), other.endpoint.accept());
        let (mut far, Some(Incoming::Join(channel))) = (dialled.unwrap(), accepted) else {
            panic!("no exchange")
        };
        other.hands.accept(channel);
        let (kind, bytes) = near.recv().await.unwrap();
        far.send(kind, &bytes).await.unwrap();
        let (kind, bytes) = far.recv().await.unwrap();
        near.send(kind, &bytes).await.unwrap();
        assert!(asker.answer().await.unwrap_err().contains("sits in between"));
        drop((near, far));
        assert!(other.inputs.try_recv().is_err(), "no question of the one in between counts");
    }

    /// One asks the other to let it in: the words that each has, or why there are none.
    async fn words_of(asker: &mut Node, other: &mut Node) -> Result<(String, String), String> {
        asker.ask(other.me, vec![other.endpoint.local_addr()], WITHIN, None);
        let Some(Incoming::Join(channel)) = other.endpoint.accept().await else { panic!("no exchange") };
        other.hands.accept(channel);
        let asked = tokio::select! {
            asked = other.inputs.recv() => asked,
            answer = asker.answer() => return Err(answer.unwrap_err()),
        };
        let Some(Input::Joining(JoinEvent::Asked { exchange, words, .. })) = asked else {
            panic!("no question")
        };
        other.hands.carry_out(JoinEffect::Answer { exchange, answer: JoinAnswer::Later });
        let Some(Input::Joining(JoinEvent::Answered { words: others, .. })) = asker.inputs.recv().await
        else {
            panic!("no answer")
        };
        Ok((words, others))
    }

    #[tokio::test]
    async fn both_sides_have_the_same_words_however_often_one_asks() {
        let (mut asker, mut other) = (node().await, node().await);
        let (words, others) = words_of(&mut asker, &mut other).await.unwrap();
        assert_eq!((words.split(' ').count(), &words), (4, &others));
        assert_eq!(words_of(&mut asker, &mut other).await, Ok((words.clone(), others.clone())));
        // A machine that starts again has forgotten its number: who asks does not show its own for another
        // one.
        other.hands.numbers = Arc::default();
        let error = words_of(&mut asker, &mut other).await.unwrap_err();
        assert!(error.contains("another number than before"), "{error}");
        let (fresh, others) = words_of(&mut asker, &mut other).await.unwrap();
        assert_eq!(fresh, others);
        assert_ne!(fresh, words);
        // And who lets in keeps its number for one commitment only.
        asker.hands.numbers = Arc::default();
        let (again, others) = words_of(&mut asker, &mut other).await.unwrap();
        assert_eq!(again, others);
        assert_ne!(again, fresh);
    }

    #[tokio::test]
    async fn a_number_that_was_not_committed_to_is_no_question() {
        let (asker, mut other) = (node().await, node().await);
        for says_numbers in [true, false] {
            let to = other.endpoint.local_addr();
            let (dialled, accepted) =
                tokio::join!(asker.endpoint.dial_join(to, WITHIN), other.endpoint.accept());
            let (mut near, Some(Incoming::Join(channel))) = (dialled.unwrap(), accepted) else { panic!() };
            other.hands.accept(channel);
            if says_numbers {
                near.send(KIND_DRAWN, &[7; 32]).await.unwrap();
                assert_eq!(near.recv().await.unwrap().0, KIND_DRAWN);
                near.send(KIND_DRAWN, &[8; 32]).await.unwrap();
            }
            pairing::send(&mut near, KIND_ASK, &ask(false)).await.unwrap();
            assert!(near.recv().await.is_err(), "it hangs up");
            assert!(other.inputs.try_recv().is_err());
        }
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
        let seen = exo_discovery::FoundNode {
            node: Some(NodeId([1; 32])),
            addrs: vec![SocketAddr::from(([10, 0, 0, 1], 7))],
            source: exo_discovery::Source::Mdns,
            txt: BTreeMap::from([("fresh", "1"), ("name", "b")].map(|(k, v)| (k.to_owned(), v.to_owned()))),
            lost: false,
        };
        let read = found(seen.clone()).unwrap();
        assert!(read.is_fresh && !read.is_lost && read.group.is_none());
        assert_eq!(read.name.as_deref(), Some("b"));
        assert_eq!(found(exo_discovery::FoundNode { node: None, ..seen }), None);
    }
}
