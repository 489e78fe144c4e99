//! Rules of joining, one test each. [`World`] carries messages between several [`Joining`]s and stands in for
//! their keys, disks and links; [`Node`] is one of them.

mod held_up;
mod left;
mod named;
mod window;

use std::collections::VecDeque;

use ed25519_dalek::{Signer, SigningKey};
use exo_cluster::Speculation;
use exo_trust::{Entry, EntryId, Statement};

use super::*;
use crate::{ActRefusal, Answer, ExchangeId, ReplyId, TrustMessage, TrustNews};

const WINDOW_UNIX_S: u64 = 1_600;
const OPEN_UNIX_S: u64 = 1_000;
const SHUT_UNIX_S: u64 = 3_000;

fn epoch() -> Epoch {
    Epoch { counter: 1, key: NodeId([0; 32]) }
}

/// A node with what `Context` borrows.
struct Node {
    key: SigningKey,
    config: MachineConfig,
    trust: TrustLog,
    state: State,
    leader: Option<(Epoch, NodeId)>,
    is_busy: bool,
    has_new_model: bool,
    /// Whether those who ask are.
    is_near: bool,
    /// Whether they know the code.
    has_code: bool,
    window_ends: Time,
    now: Now,
    /// Whom links lead to.
    linked: BTreeSet<NodeId>,
    joining: Joining,
    out: Vec<JoiningOutput>,
}

fn key(seed: u8) -> (SigningKey, NodeId) {
    let key = SigningKey::from_bytes(&[seed; 32]);
    let id = NodeId(key.verifying_key().to_bytes());
    (key, id)
}

/// So many keys, the lowest first.
fn keys(count: u8) -> Vec<(SigningKey, NodeId)> {
    let mut keys: Vec<_> = (1..=count).map(key).collect();
    keys.sort_by_key(|(_, id)| *id);
    keys
}

/// What both sides of an exchange show.
fn words_of(exchange: u64) -> String {
    format!("words of exchange {exchange}")
}

fn address(node: NodeId) -> SocketAddr {
    SocketAddr::from(([10, 0, node.0[0], node.0[1]], 4000))
}

fn config(me: NodeId, peers: &[String]) -> MachineConfig {
    MachineConfig {
        me,
        name: format!("n{me}"),
        group: "home".to_owned(),
        listen: address(me),
        peers: peers.to_vec(),
        trust_closed: false,
        has_token: false,
        log: Default::default(),
        speculation: Speculation::Lookup,
        unload_idle_after: None,
        incarnation: 1,
        seed: [0; 32],
    }
}

/// What discovery says of a node of the same group.
fn discovered(node: NodeId, addresses: Vec<SocketAddr>) -> DiscoveredNode {
    let group = Some("home".to_owned());
    DiscoveredNode { node, addresses, name: None, group, is_fresh: false, is_lost: false }
}

fn sign(key: &SigningKey, statement: Statement) -> Entry {
    let signature = key.sign(&statement.to_sign()).to_bytes();
    statement.signed(signature)
}

impl Node {
    /// Alone in a cluster of its own, with an open window, and leading it.
    fn fresh(key: (SigningKey, NodeId), peers: &[String]) -> Self {
        Self::fresh_at(key, peers, OPEN_UNIX_S)
    }

    /// The same, of a node whose clock says `unix_s`.
    fn fresh_at((key, me): (SigningKey, NodeId), peers: &[String], unix_s: u64) -> Self {
        let config = config(me, peers);
        let founding = Statement::founding(me, unix_s, "a cluster".to_owned(), config.name.clone(), [0; 16]);
        let mut node = Self {
            joining: Joining::new(peers),
            trust: TrustLog::new(sign(&key, founding)).unwrap(),
            key,
            config,
            state: State::default(),
            leader: Some((epoch(), me)),
            is_busy: false,
            has_new_model: false,
            is_near: true,
            has_code: false,
            window_ends: Time::from_millis(10 + 1000 * JOIN_WINDOW_S),
            now: Now { time: Time::from_millis(10), unix_s },
            linked: BTreeSet::new(),
            out: Vec::new(),
        };
        node.record(Act::Window { until_unix_s: unix_s + (WINDOW_UNIX_S - OPEN_UNIX_S) });
        node
    }

    fn me(&self) -> NodeId {
        self.config.me
    }

    fn record(&mut self, act: Act) {
        let statement = self.trust.statement(self.me(), 5, act).unwrap();
        self.trust.insert(sign(&self.key, statement)).unwrap();
    }

    fn admit(&mut self, node: NodeId) {
        self.record(Act::Admit { node, name: "member".to_owned() });
    }

    /// What this node would welcome another with.
    fn welcome(&self) -> Welcome {
        Welcome {
            name: self.config.name.clone(),
            cluster: self.trust.cluster(),
            coordinator: self.me(),
            coordinator_addresses: Vec::new(),
        }
    }

    /// What this node answers to who asks for its log of trust.
    fn news(&self) -> TrustMessage {
        self.news_of(&self.trust.entries().map(Entry::encode).collect::<Vec<_>>())
    }

    /// The same, with these entries only.
    fn news_of(&self, entries: &[Vec<u8>]) -> TrustMessage {
        TrustMessage {
            cluster: self.trust.cluster(),
            known: self.trust.known(),
            what: TrustNews::Entries(entries.to_vec()),
        }
    }

    /// Calls the machine with a fitting context, and returns what it puts out.
    fn call<R>(&mut self, call: impl FnOnce(&mut Joining, &Context<'_>, &mut Vec<JoiningOutput>) -> R) -> R {
        let others = self.trust.view().members().keys().copied().chain(self.joining.members());
        let members = others.filter(|node| *node != self.config.me).collect();
        let ctx = Context {
            now: self.now,
            config: &self.config,
            state: &self.state,
            trust: &self.trust,
            members: &members,
            leader: self.leader,
            window_ends: self.window_ends,
            has_new_model: self.has_new_model,
            is_busy: self.is_busy,
            addresses: &|node| vec![address(node)],
            is_linked: &|node| self.linked.contains(&node),
        };
        call(&mut self.joining, &ctx, &mut self.out)
    }

    fn found(&mut self, node: NodeId, is_fresh: bool) {
        let name = Some("found".to_owned());
        self.hears(DiscoveredNode { name, is_fresh, ..discovered(node, vec![address(node)]) });
    }

    fn lost(&mut self, node: NodeId) {
        self.hears(DiscoveredNode { is_lost: true, ..discovered(node, Vec::new()) });
    }

    fn hears(&mut self, found: DiscoveredNode) {
        self.call(|joining, ctx, out| joining.found(ctx, found, out));
    }

    /// Lets time pass, with a timer exactly at each deadline.
    fn wait(&mut self, duration: Duration) {
        let until = self.now.time + duration;
        self.call(|joining, ctx, out| joining.timer(ctx, out));
        for _ in 0..1000 {
            let deadline = self.joining.next_deadline();
            assert!(
                deadline > self.now.time,
                "a deadline that has passed: {deadline:?} at {:?}",
                self.now.time
            );
            self.now.time = deadline.min(until);
            if deadline > until {
                return;
            }
            self.call(|joining, ctx, out| joining.timer(ctx, out));
        }
        panic!("a machine that never rests");
    }

    fn asked_with(&mut self, node: NodeId, ask: JoinAsk) {
        let remote = SocketAddr::new(address(node).ip(), 55_555);
        let event = JoinEvent::Asked {
            exchange: ExchangeId(7),
            node,
            remote,
            is_near: self.is_near,
            has_code: self.has_code,
            words: words_of(7),
            ask,
        };
        self.call(|joining, ctx, out| joining.event(ctx, event, out));
    }

    fn asked(&mut self, node: NodeId) {
        self.asked_with(node, ask());
    }

    fn answered(&mut self, with: NodeId, answer: Result<JoinAnswer, String>) {
        let event = JoinEvent::Answered { with, address: address(with), words: words_of(7), answer };
        self.call(|joining, ctx, out| joining.event(ctx, event, out));
    }

    fn probed(&mut self, text: &str, node: NodeId, fresh: bool) {
        let found = Ok((address(node), node, JoinAnswer::Here { name: "probed".to_owned(), fresh }));
        self.call(|joining, ctx, out| {
            joining.event(ctx, JoinEvent::Probed { text: text.to_owned(), found }, out);
        });
    }

    fn probed_in_vain(&mut self, text: &str) {
        let found = Err(ProbeFailure::Silent(vec![SocketAddr::from(([10, 0, 0, 9], 7))]));
        let event = JoinEvent::Probed { text: text.to_owned(), found };
        self.call(|joining, ctx, out| joining.event(ctx, event, out));
    }

    fn told(&mut self, from: NodeId, message: TrustMessage) {
        self.call(|joining, ctx, out| joining.trust_of_other(ctx, from, message, out));
    }

    /// A person lets a stranger in that has asked; whether it has.
    fn invite(&mut self, node: NodeId) -> bool {
        self.call(|joining, _, out| joining.invite(node, ReplyId(3), out))
    }

    fn recorded(&mut self, admission: u64, result: Result<(), ActRefusal>) {
        self.call(|joining, ctx, out| joining.recorded(ctx, admission, result, out));
    }

    /// The admission that is to be signed and written.
    fn admission(&mut self) -> u64 {
        let out = self.take();
        let [JoiningOutput::Act { admission, act: Act::Admit { .. } }] = &out[..] else { panic!("{out:?}") };
        *admission
    }

    fn take(&mut self) -> Vec<JoiningOutput> {
        std::mem::take(&mut self.out)
    }

    /// Whom it asked to let it in.
    fn asks(&mut self) -> Vec<NodeId> {
        let asks = self.take().into_iter().filter_map(|output| match output {
            JoiningOutput::Effect(Effect::Joining(JoinEffect::Ask { with, ask, .. })) => {
                (!matches!(ask.what, JoinPurpose::Trust { .. })).then_some(with)
            }
            _ => None,
        });
        asks.collect()
    }

    /// What it answered to strangers, with its reason if it refused.
    fn answers(&mut self) -> Vec<String> {
        let answers = self.take().into_iter().filter_map(|output| match output {
            JoiningOutput::Effect(Effect::Joining(JoinEffect::Answer { answer, .. })) => Some(match answer {
                JoinAnswer::Welcome(_) => "welcome".to_owned(),
                JoinAnswer::Later => "later".to_owned(),
                JoinAnswer::Elsewhere { node, .. } => format!("elsewhere: {node}"),
                JoinAnswer::Refused(refusal) => format!("refused: {}", refusal.sentence(NodeId([0; 32]))),
                JoinAnswer::Here { fresh, .. } => format!("here, fresh: {fresh}"),
                JoinAnswer::Trust(entries) => format!("trust: {} entries", entries.len()),
            }),
            _ => None,
        });
        answers.collect()
    }
}

fn ask() -> JoinAsk {
    let (name, group) = ("stranger".to_owned(), "home".to_owned());
    JoinAsk { name, group, port: 4000, what: JoinPurpose::Membership }
}

fn notices(out: &[JoiningOutput]) -> Vec<String> {
    let notices = out.iter().filter_map(|output| match output {
        JoiningOutput::Effect(Effect::Notice(notice)) => Some(notice.to_string()),
        _ => None,
    });
    notices.collect()
}

const SHORT: Duration = Duration::from_millis(500);
/// After which a fresh node takes those that it has seen for all.
const ALL_ARE_SEEN: Duration = Duration::from_millis(2600);

/// Fresh nodes whose messages are delivered at once.
struct World {
    nodes: BTreeMap<NodeId, Node>,
    /// Who asked in which exchange.
    exchanges: Vec<NodeId>,
    /// Names that everybody sees and that never answer.
    fakes: Vec<(NodeId, bool)>,
    /// Who asked a fake, and when that failed.
    silent: Vec<(Time, NodeId, NodeId)>,
}

impl World {
    fn new(nodes: impl IntoIterator<Item = Node>) -> Self {
        let nodes = nodes.into_iter().map(|node| (node.me(), node)).collect();
        Self { nodes, exchanges: Vec::new(), fakes: Vec::new(), silent: Vec::new() }
    }

    /// Lets everybody see everybody, then time pass.
    fn run(&mut self, duration: Duration) {
        for tick in 0..duration.as_millis() / 50 {
            let is_fresh = |n: &mut Node| (n.me(), n.call(|_, ctx, _| ctx.is_fresh()));
            let mut seen: Vec<_> = self.nodes.values_mut().map(is_fresh).collect();
            seen.extend(&self.fakes);
            let now = Time::from_millis(10 + 50 * tick as u64);
            for node in self.nodes.values_mut() {
                node.now.time = now;
                for &(other, is_fresh) in &seen {
                    node.found(other, is_fresh);
                }
                node.call(|joining, ctx, out| joining.timer(ctx, out));
            }
            for (_, asker, fake) in self.silent.extract_if(.., |(until, ..)| now >= *until) {
                let asker = self.nodes.get_mut(&asker).unwrap();
                asker.answered(fake, Err("silence".to_owned()));
            }
            self.settle();
        }
    }

    fn settle(&mut self) {
        let mut queue: VecDeque<(NodeId, JoiningOutput)> = VecDeque::new();
        for _ in 0..1000 {
            for node in self.nodes.values_mut() {
                let me = node.me();
                queue.extend(node.take().into_iter().map(|output| (me, output)));
            }
            let Some((me, output)) = queue.pop_front() else { return };
            self.carry_out(me, output);
        }
        panic!("a world that never rests");
    }

    fn node(&mut self, node: NodeId) -> &mut Node {
        self.nodes.get_mut(&node).unwrap()
    }

    fn carry_out(&mut self, me: NodeId, output: JoiningOutput) {
        match output {
            JoiningOutput::Effect(Effect::Joining(JoinEffect::Ask { with, proof_within, .. }))
                if !self.nodes.contains_key(&with) =>
            {
                let until = self.node(me).now.time + proof_within;
                self.silent.push((until, me, with));
            }
            JoiningOutput::Effect(Effect::Joining(JoinEffect::Ask { with, ask, .. })) => {
                self.exchanges.push(me);
                let exchange = ExchangeId(self.exchanges.len() as u64 - 1);
                let event = JoinEvent::Asked {
                    exchange,
                    node: me,
                    remote: address(me),
                    is_near: true,
                    has_code: false,
                    words: words_of(exchange.0),
                    ask,
                };
                self.node(with).call(|joining, ctx, out| joining.event(ctx, event, out));
            }
            JoiningOutput::Effect(Effect::Joining(JoinEffect::Answer { exchange, answer })) => {
                let (asker, words) = (self.exchanges[exchange.0 as usize], words_of(exchange.0));
                let event = JoinEvent::Answered { with: me, address: address(me), words, answer: Ok(answer) };
                self.node(asker).call(|joining, ctx, out| joining.event(ctx, event, out));
            }
            JoiningOutput::Act { admission, act } => {
                let node = self.node(me);
                let may = node.call(|joining, ctx, _| joining.may_record(ctx, admission, ctx.trust.view()));
                if may.is_ok() {
                    node.record(act);
                }
                node.recorded(admission, may);
            }
            JoiningOutput::Pull(from) => {
                let news = self.nodes[&from].news();
                self.node(me).told(from, news);
            }
            JoiningOutput::MoveIn(moved) => {
                let node = self.node(me);
                (node.trust, node.leader) = (moved.trust, Some((epoch(), moved.by)));
                node.call(|joining, ctx, out| joining.moved_in(ctx, true, out));
            }
            _ => {}
        }
    }

    fn clusters(&self) -> BTreeSet<EntryId> {
        self.nodes.values().map(|n| n.trust.cluster()).collect()
    }
}

#[test]
fn fresh_nodes_that_see_each_other_end_in_the_cluster_of_the_lowest_key() {
    for count in 2..7 {
        let keys = keys(count);
        let lowest = keys[0].1;
        let mut world = World::new(keys.into_iter().map(|key| Node::fresh(key, &[])));
        world.run(Duration::from_secs(3));
        let founder = world.nodes[&lowest].trust.cluster();
        assert_eq!(world.clusters(), BTreeSet::from([founder]), "{count} nodes");
        let members = world.nodes.values().map(|n| n.trust.view().members().len()).max();
        assert_eq!(members, Some(usize::from(count)));
        assert!(world.nodes[&lowest].joining.members().is_empty());
    }
}

#[test]
fn both_sides_of_an_admission_show_the_same_words() {
    let keys = keys(2);
    let (low, high) = (keys[0].1, keys[1].1);
    let mut world = World::new(keys.into_iter().map(|key| Node::fresh(key, &[])));
    world.run(Duration::from_secs(3));
    let words = &world.nodes[&low].joining.words()[&high];
    assert_eq!(words.split(' ').count(), 4);
    assert_eq!(&world.nodes[&high].joining.words()[&low], words);
}

#[test]
fn a_cluster_with_members_comes_before_the_lowest_fresh_node() {
    let keys = keys(4);
    let mut node = Node::fresh(keys[2].clone(), &[]);
    node.found(keys[0].1, true);
    node.found(keys[3].1, false);
    assert!(node.asks().is_empty(), "it looks around first");
    node.wait(SHORT);
    assert_eq!(node.asks(), [keys[3].1]);
}

#[test]
fn of_the_fresh_nodes_only_the_lowest_is_asked_and_only_by_higher_ones() {
    let keys = keys(4);
    let mut lowest = Node::fresh(keys[0].clone(), &[]);
    lowest.found(keys[1].1, true);
    lowest.wait(Duration::from_secs(5));
    assert!(lowest.asks().is_empty());
    lowest.wait(Duration::from_secs(2));
    assert_eq!(lowest.asks(), [keys[1].1], "the higher one has not asked, so maybe it cannot");
    let mut third = Node::fresh(keys[2].clone(), &[]);
    for (_, other) in [&keys[1], &keys[3], &keys[0]] {
        third.found(*other, true);
    }
    third.wait(ALL_ARE_SEEN);
    assert_eq!(third.asks(), [keys[0].1]);
    third.answered(keys[0].1, Ok(JoinAnswer::Later));
    assert!(third.asks().is_empty(), "not the next one, who joins the lowest as well");
    for _ in 0..12 {
        third.wait(SHORT);
        assert_eq!(third.asks(), [keys[0].1], "nor a higher one, for six seconds");
        third.answered(keys[0].1, Ok(JoinAnswer::Later));
    }
}

#[test]
fn nobody_founds_a_cluster_before_all_have_heard_of_each_other() {
    let keys = keys(4);
    let mut node = Node::fresh(keys[2].clone(), &[]);
    node.found(keys[1].1, true);
    node.wait(Duration::from_secs(2));
    node.found(keys[0].1, true);
    node.wait(Duration::from_secs(2));
    assert!(node.asks().is_empty(), "the one that has just come may know of others");
    node.found(keys[3].1, false);
    node.wait(SHORT);
    assert_eq!(node.asks(), [keys[3].1], "there is a cluster: nobody is waited for");
}

#[test]
fn a_name_that_is_taken_back_again_and_again_puts_nothing_off() {
    let keys = keys(2);
    let mut node = Node::fresh(keys[1].clone(), &[]);
    for _ in 0..4 {
        node.found(keys[0].1, true);
        node.wait(Duration::from_secs(2));
        if !node.asks().is_empty() {
            return;
        }
        node.lost(keys[0].1);
    }
    panic!("a goodbye each two seconds keeps them apart");
}

#[test]
fn who_only_puts_off_keeps_nobody_apart() {
    let keys = keys(3);
    let mut node = Node::fresh(keys[2].clone(), &[]);
    node.found(keys[0].1, true);
    node.found(keys[1].1, true);
    node.wait(ALL_ARE_SEEN);
    let mut asked = Vec::new();
    for _ in 0..60 {
        for with in node.asks() {
            asked.push(with);
            node.answered(with, Ok(JoinAnswer::Later));
        }
        node.wait(Duration::from_millis(300));
    }
    let first = asked.iter().position(|with| *with == keys[1].1);
    assert!(first.is_some_and(|first| first > 15), "{first:?} of {}", asked.len());
}

#[test]
fn who_keeps_coming_is_not_waited_for_longer_than_five_seconds() {
    let keys = keys(9);
    let mut node = Node::fresh(keys[8].clone(), &[]);
    for (_, other) in &keys[..5] {
        assert!(node.asks().is_empty());
        node.found(*other, true);
        node.wait(Duration::from_secs(1));
    }
    assert_eq!(node.asks(), [keys[0].1]);
}

#[test]
fn a_node_that_refuses_keeps_no_others_apart() {
    let keys = keys(3);
    let mut node = Node::fresh(keys[2].clone(), &[]);
    node.found(keys[0].1, true);
    node.found(keys[1].1, true);
    node.wait(ALL_ARE_SEEN);
    assert_eq!(node.asks(), [keys[0].1]);
    let began = node.now.unix_s;
    assert!(!node.joining.has_refused(keys[0].1) && node.joining.refusals().is_empty());
    node.answered(keys[0].1, Ok(JoinAnswer::Refused(JoinRefusal::RefusedByPerson)));
    assert_eq!(node.asks(), [keys[1].1], "the next one at once");
    node.now.unix_s += 1;
    node.answered(keys[1].1, Ok(JoinAnswer::Refused(JoinRefusal::WindowShut { admins: Vec::new() })));
    let said = node.joining.refusals().into_iter().map(|(at, notice)| (at, notice.to_string()));
    let said: Vec<(u64, String)> = said.collect();
    assert_eq!(said.iter().map(|(at, _)| *at).collect::<Vec<_>>(), [began + 1, began]);
    assert!(
        said[0].1.contains("its join window is shut") && said[1].1.contains("a person there"),
        "{said:?}"
    );
    assert!(node.joining.has_refused(keys[1].1));
    node.wait(Duration::from_secs(14));
    assert!(node.asks().is_empty());
    node.wait(Duration::from_secs(2));
    assert_eq!(node.asks(), [keys[0].1], "the lowest first again");
}

#[test]
fn a_refusal_is_shown_as_long_as_it_holds() {
    let keys = keys(2);
    let refused_and_asked_again = || {
        let mut node = Node::fresh(keys[1].clone(), &[]);
        node.found(keys[0].1, true);
        node.wait(ALL_ARE_SEEN);
        assert_eq!(node.asks(), [keys[0].1]);
        node.answered(keys[0].1, Ok(JoinAnswer::Refused(JoinRefusal::RefusedByPerson)));
        assert!(node.joining.has_refused(keys[0].1) && node.joining.refusals().len() == 1);
        node.take();
        node.wait(Duration::from_secs(16));
        assert_eq!(node.asks(), [keys[0].1]);
        node
    };
    let is_shown = |node: &Node| node.joining.has_refused(keys[0].1) || !node.joining.refusals().is_empty();
    // It is silent now.
    let mut node = refused_and_asked_again();
    node.answered(keys[0].1, Err("silence".to_owned()));
    assert!(!is_shown(&node));
    // It says something else now, for so long that it counts as one that refuses.
    let mut node = refused_and_asked_again();
    for _ in 0..60 {
        node.answered(keys[0].1, Ok(JoinAnswer::Later));
        assert!(!is_shown(&node));
        node.take();
        node.wait(Duration::from_millis(400));
        if node.asks().is_empty() {
            assert!(!is_shown(&node));
            return;
        }
    }
    panic!("who answers `Later` for 24 s is asked as often as before");
}

#[test]
fn a_refusal_that_alternates_with_later_is_told_once_and_shown_while_it_holds() {
    let keys = keys(2);
    let mut node = Node::fresh(keys[1].clone(), &[]);
    node.found(keys[0].1, true);
    node.wait(ALL_ARE_SEEN);
    let mut told = Vec::new();
    for round in 0..3 {
        assert_eq!(node.asks(), [keys[0].1], "{round}");
        node.answered(keys[0].1, Ok(JoinAnswer::Refused(JoinRefusal::RefusedByPerson)));
        let out = node.take();
        assert!(out.contains(&JoiningOutput::Stale) && node.joining.has_refused(keys[0].1), "{round}");
        told.extend(notices(&out));
        node.wait(Duration::from_secs(16));
        assert_eq!(node.asks(), [keys[0].1], "{round}");
        node.answered(keys[0].1, Ok(JoinAnswer::Later));
        let out = node.take();
        assert!(out.contains(&JoiningOutput::Stale) && !node.joining.has_refused(keys[0].1), "{round}");
        told.extend(notices(&out));
        node.wait(Duration::from_secs(1));
    }
    assert!(told.len() == 1 && told[0].contains("a person there"), "{told:?}");
    assert_eq!(node.asks(), [keys[0].1]);
    node.answered(keys[0].1, Ok(JoinAnswer::Refused(JoinRefusal::WindowShut { admins: Vec::new() })));
    assert_eq!(notices(&node.take()).len(), 1, "another reason is told");
    // It says nothing when it is asked again, until nobody waits for it any longer.
    node.wait(Duration::from_secs(60));
    assert!(!node.joining.has_refused(keys[0].1));
    assert!(node.take().contains(&JoiningOutput::Stale));
}

#[test]
fn a_higher_node_that_does_not_ask_is_sought_after_failures_too() {
    let keys = keys(4);
    let mut node = Node::fresh(keys[2].clone(), &[]);
    for (_, other) in [&keys[0], &keys[1]] {
        node.found(*other, true);
        node.wait(ALL_ARE_SEEN);
        assert!(node.asks().contains(other));
        node.answered(*other, Err("silence".to_owned()));
    }
    node.found(keys[3].1, true);
    node.wait(Duration::from_secs(5));
    assert!(!node.asks().contains(&keys[3].1));
    node.wait(Duration::from_secs(2));
    assert!(node.asks().contains(&keys[3].1), "who it is, first");
}

#[test]
fn a_silent_node_is_passed_over_and_asked_again_a_second_later() {
    let keys = keys(3);
    let mut node = Node::fresh(keys[2].clone(), &[]);
    node.found(keys[0].1, true);
    node.found(keys[1].1, true);
    node.wait(ALL_ARE_SEEN);
    assert_eq!(node.asks(), [keys[0].1]);
    node.answered(keys[0].1, Err("silence".to_owned()));
    assert_eq!(node.asks(), [keys[1].1], "the next one at once");
    node.answered(keys[1].1, Err("silence".to_owned()));
    node.wait(Duration::from_millis(900));
    assert!(node.asks().is_empty());
    node.wait(Duration::from_millis(200));
    assert_eq!(node.asks(), [keys[0].1, keys[1].1], "both at once, who they are");
}

#[test]
fn an_exchange_without_an_answer_ends_with_its_deadline() {
    let keys = keys(2);
    let mut node = Node::fresh(keys[1].clone(), &[]);
    node.found(keys[0].1, true);
    node.wait(Duration::from_secs(6));
    assert_eq!(node.asks().len(), 1);
    node.wait(Duration::from_secs(30));
    assert!(!node.asks().is_empty(), "asked again");
    assert!(node.joining.members().is_empty());
}

#[test]
fn a_node_with_members_or_with_running_requests_joins_no_one() {
    let keys = keys(3);
    let mut node = Node::fresh(keys[1].clone(), &[]);
    node.is_busy = true;
    node.found(keys[0].1, false);
    node.wait(Duration::from_secs(5));
    assert!(node.asks().is_empty());
    assert_eq!(node.joining.next_deadline(), NEVER, "time alone brings nothing on");
    node.is_busy = false;
    node.wait(Duration::ZERO);
    assert_eq!(node.asks(), [keys[0].1]);
    node.answered(keys[0].1, Ok(JoinAnswer::Later));
    node.admit(keys[2].1);
    node.wait(Duration::from_secs(5));
    assert!(node.asks().is_empty());
}

#[test]
fn a_closed_node_joins_only_whom_a_person_named() {
    let keys = keys(3);
    let peers = ["host:4000".to_owned()];
    let mut node = Node::fresh(keys[0].clone(), &peers);
    node.config.trust_closed = true;
    node.found(keys[1].1, false);
    node.wait(SHORT);
    assert!(node.asks().is_empty());
    node.probed("host:4000", keys[2].1, true);
    node.wait(SHORT);
    assert_eq!(node.asks(), [keys[2].1], "whatever its key");
}

#[test]
fn nodes_whose_clocks_are_a_year_apart_become_one_cluster_and_the_window_is_open_by_one_clock_alone() {
    const YEAR_S: u64 = 365 * 86_400;
    let nodes = keys(2).into_iter().zip([YEAR_S, 2 * YEAR_S]);
    let mut world = World::new(nodes.map(|(key, unix_s)| Node::fresh_at(key, &[], unix_s)));
    world.run(Duration::from_secs(5));
    for node in world.nodes.values() {
        assert_eq!(node.trust.view().members().len(), 2, "seen from {}", node.me());
    }
    let is_open = |node: &Node| is_window_open(node.trust.view(), node.now, node.window_ends);
    assert_eq!(world.nodes.values().filter(|node| is_open(node)).count(), 1);
    // Who founded it takes the right to let in from the other, whatever the date of that entry.
    let founder = world.nodes.values().find(|node| is_open(node)).unwrap().me();
    let other = *world.nodes.keys().find(|node| **node != founder).unwrap();
    let founder = world.node(founder);
    founder.record(Act::Remove { node: other, reason: String::new() });
    let entries: Vec<Entry> = founder.trust.entries().cloned().collect();
    let other_node = world.node(other);
    other_node.trust.insert(entries.last().unwrap().clone()).unwrap();
    assert!(!other_node.trust.view().members().contains_key(&other));
}

#[test]
fn a_node_that_is_not_new_any_more_joins_nobody_that_it_finds() {
    let keys = keys(3);
    let peers = ["host:4000".to_owned()];
    type Change = fn(&mut Node);
    let changes: [(&str, Change); 4] = [
        ("its window is over by the wall clock", |node| node.now.unix_s = SHUT_UNIX_S),
        ("it has run for ten minutes", |node| node.now.time = Time::from_millis(600_000)),
        ("its clock was set back", |node| node.now.unix_s = 10),
        ("a model was added", |node| node.has_new_model = true),
    ];
    for (why, change) in changes {
        let mut node = Node::fresh(keys[1].clone(), &peers);
        change(&mut node);
        node.found(keys[0].1, true);
        node.found(keys[2].1, false);
        node.wait(SHORT);
        assert!(node.asks().is_empty(), "{why}");
        node.probed("host:4000", keys[2].1, false);
        node.wait(SHORT);
        assert_eq!(node.asks(), [keys[2].1], "a person named it, though {why}");
    }
}

#[test]
fn a_lone_node_whose_door_is_shut_keeps_no_new_ones_from_each_other() {
    let keys = keys(3);
    let (shut, new) = (keys[0].1, [keys[1].1, keys[2].1]);
    let mut world = World::new(keys.into_iter().map(|key| Node::fresh(key, &[])));
    world.node(shut).now.unix_s = SHUT_UNIX_S;
    world.run(Duration::from_secs(5));
    assert_eq!(world.nodes[&shut].trust.view().members().len(), 1);
    for node in new {
        assert!(new.iter().all(|other| world.nodes[&node].trust.view().members().contains_key(other)));
    }
    assert_eq!(world.nodes[&shut].joining.requests().len(), 2, "a person may let them in");
}

#[test]
fn a_stranger_from_far_away_or_at_a_closed_node_is_shown_to_people_while_the_window_is_open() {
    let keys = keys(2);
    type Change = fn(&mut Node);
    let changes: [Change; 3] = [
        |node| node.is_near = false,
        |node| node.config.trust_closed = true,
        // Earlier runs had it open for all of its time; by the wall clock it would be open still.
        |node| node.window_ends = node.now.time,
    ];
    for change in changes {
        let mut node = Node::fresh(keys[0].clone(), &[]);
        change(&mut node);
        node.asked(keys[1].1);
        let out = node.take();
        assert!(notices(&out)[0].starts_with("stranger asks to join"), "{out:?}");
        assert_eq!(node.joining.requests().len(), 1);
    }
}

#[test]
fn where_a_stranger_is_counts_when_it_has_become_a_member() {
    let keys = keys(2);
    let mut node = Node::fresh(keys[0].clone(), &[]);
    node.found(keys[1].1, true);
    node.take();
    node.admit(keys[1].1);
    node.wait(Duration::ZERO);
    let addresses = vec![address(keys[1].1)];
    assert_eq!(node.take(), [JoiningOutput::Learn { node: keys[1].1, addresses, is_vouched: false }]);
    assert!(node.joining.is_quiet());
}

#[test]
fn a_person_hears_once_that_nobody_is_where_a_setting_says() {
    let keys = keys(2);
    let mut node = Node::fresh(keys[0].clone(), &["host:4000".to_owned()]);
    let said = |node: &mut Node, times: u32| {
        (0..times).for_each(|_| node.probed_in_vain("host:4000"));
        let texts = node.take().into_iter().filter_map(|out| match out {
            JoiningOutput::PeerSilent { text, .. } => Some(text),
            _ => None,
        });
        texts.collect::<Vec<_>>()
    };
    assert!(said(&mut node, PROBES_FAILED_SAID - 1).is_empty(), "it may still start");
    let texts = said(&mut node, 9);
    let [text] = &texts[..] else { panic!("{texts:?}") };
    assert!(text.starts_with("--peer host:4000: no exo answers at 10.0.0.9:7; this node asks on."), "{text}");
    let is_taken_back = |node: &mut Node| {
        node.probed("host:4000", keys[1].1, false);
        node.take().contains(&JoiningOutput::PeerFound { peer: "host:4000".to_owned() })
    };
    assert!(is_taken_back(&mut node) && !is_taken_back(&mut node), "once");
    assert_eq!(said(&mut node, PROBES_FAILED_SAID).len(), 1, "it was there and is gone");
}

#[test]
fn a_configured_peer_is_probed_until_it_is_a_member() {
    let keys = keys(2);
    let peers = ["host:4000".to_owned()];
    let mut node = Node::fresh(keys[0].clone(), &peers);
    let probes = |node: &mut Node| {
        let out = node.take();
        let is_probe = |o: &&JoiningOutput| {
            matches!(o, JoiningOutput::Effect(Effect::Joining(JoinEffect::Probe { .. })))
        };
        out.iter().filter(is_probe).count()
    };
    node.wait(Duration::from_millis(4_500));
    assert_eq!(probes(&mut node), 3);
    assert!(!node.joining.is_quiet());
    node.admit(keys[1].1);
    node.linked.insert(keys[1].1);
    node.probed("host:4000", keys[1].1, false);
    let prefer = JoiningOutput::Prefer { node: keys[1].1, address: address(keys[1].1) };
    assert_eq!(node.take(), [prefer]);
    node.wait(Duration::from_secs(10));
    assert_eq!(probes(&mut node), 0);
    assert_eq!(node.joining.next_deadline(), NEVER);
}

#[test]
fn discovery_of_other_groups_of_this_node_and_of_lost_nodes_is_not_remembered() {
    let keys = keys(2);
    let mut node = Node::fresh(keys[1].clone(), &[]);
    let found = |node, group: &str, is_lost| DiscoveredNode {
        group: Some(group.to_owned()),
        is_fresh: true,
        is_lost,
        ..discovered(node, vec![address(node)])
    };
    let me = node.me();
    for found in
        [found(keys[0].1, "office", false), found(me, "home", false), found(keys[0].1, "home", false)]
    {
        let is_found = found.group.as_deref() == Some("home") && found.node != me;
        node.hears(found);
        assert_eq!(node.joining.is_quiet(), !is_found);
    }
    node.call(|joining, ctx, out| joining.found(ctx, found(keys[0].1, "home", true), out));
    assert!(node.joining.is_quiet());
}

#[test]
fn a_member_that_discovery_sees_is_dialled_there() {
    let keys = keys(2);
    let mut node = Node::fresh(keys[0].clone(), &[]);
    node.admit(keys[1].1);
    node.found(keys[1].1, false);
    let addresses = vec![address(keys[1].1)];
    let learn = JoiningOutput::Learn { node: keys[1].1, addresses, is_vouched: false };
    assert_eq!(node.take(), [learn]);
    assert!(node.joining.is_quiet());
}

#[test]
fn strangers_and_their_addresses_are_bounded() {
    let (key, _) = key(1);
    let mut node = Node::fresh((key.clone(), NodeId(key.verifying_key().to_bytes())), &[]);
    for n in 0..200u8 {
        let addresses = (0..100).map(|port| SocketAddr::from(([10, 0, 0, 1], port))).collect();
        let found = discovered(NodeId([n; 32]), addresses);
        node.hears(DiscoveredNode { group: None, is_fresh: true, ..found });
    }
    assert_eq!(node.joining.strangers.len(), STRANGERS_MAX);
    assert!(node.joining.strangers.values().all(|s| s.addresses.len() <= ADDRESSES_MAX));
}

#[test]
fn many_fake_names_push_out_neither_who_answered_nor_whom_a_person_named_nor_a_newcomer() {
    let (key, me) = key(1);
    let peers = ["host:4000".to_owned()];
    let mut node = Node::fresh((key, me), &peers);
    let (named, proven, newcomer) = (NodeId([250; 32]), NodeId([0; 32]), NodeId([251; 32]));
    node.probed("host:4000", named, false);
    node.answered(named, Err("silence".to_owned()));
    node.found(proven, false);
    node.wait(SHORT);
    node.answered(named, Err("silence".to_owned()));
    node.answered(proven, Ok(JoinAnswer::Later));
    for n in 1..200u8 {
        node.now.time = node.now.time + Duration::from_millis(1);
        node.found(NodeId([n; 32]), true);
    }
    node.found(newcomer, false);
    let strangers = &node.joining.strangers;
    assert_eq!(strangers.len(), STRANGERS_MAX);
    assert!([named, proven, newcomer, NodeId([199; 32])].iter().all(|node| strangers.contains_key(node)));
    assert!(!strangers.contains_key(&NodeId([2; 32])), "of those never asked the oldest goes");
}

#[test]
fn of_names_that_nobody_proved_those_that_failed_go_first() {
    let keys = keys(2);
    let mut node = Node::fresh(keys[1].clone(), &[]);
    let failed = NodeId([0; 32]);
    for n in 1..STRANGERS_MAX as u8 {
        node.found(NodeId([255 - n; 32]), true);
    }
    node.found(failed, true);
    node.wait(SHORT);
    node.answered(failed, Err("silence".to_owned()));
    node.found(keys[0].1, true);
    assert!(!node.joining.strangers.contains_key(&failed));
    assert_eq!(node.joining.strangers.len(), STRANGERS_MAX);
}

#[test]
fn fake_names_that_never_answer_do_not_keep_two_new_nodes_apart() {
    for (count, is_fresh) in [(1, true), (20, true), (20, false), (60, true)] {
        let mut world = World::new(keys(2).into_iter().map(|key| Node::fresh(key, &[])));
        let fake = |n| {
            let mut id = [0; 32];
            id[1] = n;
            (NodeId(id), is_fresh)
        };
        world.fakes = (0..count).map(fake).collect();
        world.run(Duration::from_secs(15));
        assert_eq!(world.clusters().len(), 1, "{count} fakes, fresh: {is_fresh}");
    }
}

#[test]
fn strangers_are_asked_who_they_are_a_few_at_once_and_only_after_silence() {
    let mut node = Node::fresh(key(1), &[]);
    let fake = |n| NodeId([n; 32]);
    for n in 0..30 {
        node.found(fake(n), false);
    }
    node.wait(SHORT);
    assert_eq!(node.asks(), [fake(0)]);
    node.answered(fake(0), Err("silence".to_owned()));
    assert_eq!(node.asks(), [fake(1)]);
    node.answered(fake(1), Err("silence".to_owned()));
    assert_eq!(node.asks(), (2..18).map(fake).collect::<Vec<_>>());
    let here = JoinAnswer::Here { name: "here".to_owned(), fresh: false };
    node.answered(fake(17), Ok(here));
    assert_eq!(node.asks(), [fake(18), fake(17)], "another one may be probed, and this one asked");
}

/// Of each hundred milliseconds: ever other names below all keys of honest nodes.
fn flood_of_lower_names(node: &mut Node, number: &mut u32) {
    for _ in 0..50 {
        *number += 1;
        let mut id = [0; 32];
        id[1..5].copy_from_slice(&(u32::MAX - *number).to_be_bytes());
        let found = discovered(NodeId(id), vec![SocketAddr::from(([10, 9, 9, 9], 4000))]);
        node.hears(DiscoveredNode { is_fresh: true, ..found });
    }
    node.wait(Duration::from_millis(100));
}

#[test]
fn names_that_are_ever_lower_keep_nobody_from_asking_and_point_nobody_elsewhere() {
    let keys = keys(2);
    let (mut lower, mut higher) = (Node::fresh(keys[0].clone(), &[]), Node::fresh(keys[1].clone(), &[]));
    let (mut number, mut asks) = (0, Vec::new());
    higher.found(keys[0].1, true);
    for _ in 0..40 {
        flood_of_lower_names(&mut higher, &mut number);
        let of_honest = higher.asks().into_iter().filter(|node| *node == keys[0].1).count();
        if of_honest > 0 && asks.is_empty() {
            let here = JoinAnswer::Here { name: "here".to_owned(), fresh: true };
            higher.answered(keys[0].1, Ok(here));
        }
        asks.extend(std::iter::repeat_n((), of_honest));
        flood_of_lower_names(&mut lower, &mut number);
    }
    assert!(asks.len() >= 2, "who it is, and to be let in");
    lower.take();
    lower.asked(keys[1].1);
    let out = lower.take();
    assert!(out.iter().any(|o| matches!(o, JoiningOutput::Act { act: Act::Admit { .. }, .. })), "{out:?}");
}

/// In a flood one may hear of the other alone, and names that nobody proved are no reason to leave it to
/// them.
#[test]
fn a_flood_of_lower_names_does_not_keep_the_lower_of_two_from_asking_the_other() {
    let keys = keys(2);
    let mut lower = Node::fresh(keys[0].clone(), &[]);
    let (mut number, mut asks) = (0, 0);
    lower.found(keys[1].1, true);
    for _ in 0..80 {
        flood_of_lower_names(&mut lower, &mut number);
        let of_honest = lower.asks().into_iter().filter(|node| *node == keys[1].1).count();
        if of_honest > 0 && asks == 0 {
            let here = JoinAnswer::Here { name: "here".to_owned(), fresh: true };
            lower.answered(keys[1].1, Ok(here));
        }
        asks += of_honest;
    }
    assert!(asks >= 2, "who it is, and to be let in: {asks}");
}

#[test]
fn a_flood_of_names_makes_no_more_dials_than_four_a_second_and_pushes_off_no_other_host() {
    let mut node = Node::fresh(key(1), &[]);
    let honest = NodeId([200; 32]);
    let (mut dials, mut number, mut honest_asks, mut asks_in_two_seconds) = (0, 0u32, 0, 0);
    for tenth in 0..600 {
        if tenth == 300 {
            node.found(honest, false);
        }
        for _ in 0..20 {
            number += 1;
            let mut id = [0; 32];
            id[..4].copy_from_slice(&number.to_be_bytes());
            let found = discovered(NodeId(id), vec![SocketAddr::from(([10, 9, 9, 9], 4000))]);
            node.hears(DiscoveredNode { is_fresh: number % 2 == 0, ..found });
        }
        node.wait(Duration::from_millis(100));
        let asks = node.asks();
        for asked in asks {
            if asked != honest {
                dials += 1;
                // Nothing listens there: each says so at once.
                node.answered(asked, Err("connection refused".to_owned()));
                continue;
            }
            honest_asks += 1;
            let here = JoinAnswer::Here { name: "honest".to_owned(), fresh: false };
            node.answered(honest, Ok(if honest_asks == 1 { here } else { JoinAnswer::Later }));
        }
        if tenth == 320 {
            asks_in_two_seconds = honest_asks;
        }
    }
    assert!(dials <= 24 + 4 * 60, "{dials} dials in a minute");
    assert!(asks_in_two_seconds > 3, "who it is, and then to be let in: {asks_in_two_seconds}");
    assert!(node.joining.strangers.contains_key(&honest));
}

#[test]
fn an_address_heard_of_later_is_asked_at_once_in_a_flood_and_silence_does_not_starve_its_host() {
    let mut node = Node::fresh(key(250), &[]);
    let (honest, mut number) = (NodeId([0; 32]), 0);
    let at = |ports: &[u16]| {
        let addresses = ports.iter().map(|port| SocketAddr::from(([10, 0, 0, 2], *port))).collect();
        DiscoveredNode { is_fresh: true, ..discovered(honest, addresses) }
    };
    // How many tenths of a second of the flood go by until it is asked.
    let mut asked_after = |node: &mut Node| {
        (0..400).position(|_| {
            flood_of_lower_names(node, &mut number);
            let asks = node.asks();
            asks.iter().filter(|asked| **asked != honest).for_each(|asked| {
                node.answered(*asked, Err("connection refused".to_owned()));
            });
            asks.contains(&honest)
        })
    };
    let found = |node: &mut Node, ports: &[u16]| {
        let found = at(ports);
        node.hears(found);
    };
    let silent = |node: &mut Node| node.answered(honest, Err("connection refused".to_owned()));
    assert_eq!(asked_after(&mut node), None, "the flood alone");
    found(&mut node, &[1]);
    assert!(asked_after(&mut node).is_some_and(|tenths| tenths < 10));
    silent(&mut node);
    found(&mut node, &[1, 2]);
    assert!(asked_after(&mut node).is_some_and(|tenths| tenths < 5), "another address");
    found(&mut node, &[3, 2]);
    silent(&mut node);
    assert!(asked_after(&mut node).is_some_and(|tenths| tenths < 5), "one that came while it was asked");
    // Nothing new: a lost packet costs a second, and who stays silent is asked ever more seldom.
    for seconds in [1, 2, 4, 8, 15, 15] {
        silent(&mut node);
        found(&mut node, &[3]);
        let asked_after = asked_after(&mut node);
        assert!(asked_after.is_some_and(|tenths| (10 * seconds - 5..10 * seconds + 5).contains(&tenths)));
    }
    // Its answer comes once it counts as silent: it has proven its key, and is asked to let this node in.
    node.wait(PROOF_MAX + asking::ATTEMPT_SLACK);
    let here = JoinAnswer::Here { name: "late".to_owned(), fresh: true };
    node.answered(honest, Ok(here));
    assert!(node.asks().contains(&honest));
}

#[test]
fn a_stranger_is_let_in_while_the_window_is_open() {
    let keys = keys(2);
    let (mut node, stranger) = (Node::fresh(keys[0].clone(), &[]), keys[1].1);
    node.asked(stranger);
    let admission = node.admission();
    node.recorded(admission, Ok(()));
    let out = node.take();
    // It may connect before it hears of it, where it listens and not where it came from.
    assert_eq!(out[0], JoiningOutput::MembersChanged);
    assert_eq!(out[1], JoiningOutput::Prefer { node: stranger, address: address(stranger) });
    let answer = out.last().unwrap();
    let JoiningOutput::Effect(Effect::Joining(JoinEffect::Answer { exchange, answer })) = answer else {
        panic!("{answer:?}")
    };
    assert_eq!(*exchange, ExchangeId(7));
    let JoinAnswer::Welcome(welcome) = answer else { panic!("{answer:?}") };
    assert_eq!(welcome.coordinator, node.me());
    assert!(welcome.coordinator_addresses.is_empty(), "it has just reached this node");
    assert_eq!(welcome.cluster, node.trust.cluster());
    assert_eq!(node.joining.next_deadline(), NEVER);
}

#[test]
fn a_newcomer_hears_where_the_coordinator_is() {
    let keys = keys(3);
    let mut node = Node::fresh(keys[0].clone(), &[]);
    node.admit(keys[2].1);
    node.leader = Some((epoch(), keys[2].1));
    node.asked(keys[1].1);
    let admission = node.admission();
    node.recorded(admission, Ok(()));
    let out = node.take();
    let Some(JoiningOutput::Effect(Effect::Joining(JoinEffect::Answer { answer, .. }))) = out.last() else {
        panic!("{out:?}")
    };
    let JoinAnswer::Welcome(welcome) = answer else { panic!("{answer:?}") };
    assert_eq!(welcome.coordinator, keys[2].1);
    assert_eq!(welcome.coordinator_addresses, [address(keys[2].1)]);
}

#[test]
fn a_stranger_hears_why_it_was_not_recorded() {
    let keys = keys(2);
    let mut node = Node::fresh(keys[0].clone(), &[]);
    node.asked(keys[1].1);
    let admission = node.admission();
    node.recorded(admission, Err(ActRefusal::NotWritten { reason: "no space".to_owned() }));
    assert_eq!(node.answers(), ["refused: it could not record this node as a member; its log says why"]);
    assert!(node.joining.words().is_empty());
}

#[test]
fn whoever_asked_before_the_window_shut_is_not_recorded_after_it_unless_a_person_said_so() {
    let keys = keys(2);
    let mut node = Node::fresh(keys[0].clone(), &[]);
    let may = |node: &mut Node, admission| {
        node.call(|joining, ctx, _| joining.may_record(ctx, admission, ctx.trust.view()))
    };
    node.asked(keys[1].1);
    let admission = node.admission();
    assert_eq!(may(&mut node, admission), Ok(()));
    node.record(Act::Window { until_unix_s: 0 });
    assert_eq!(may(&mut node, admission), Err(ActRefusal::WindowShut));
    node.recorded(admission, Err(ActRefusal::WindowShut));
    node.take();
    node.asked(keys[1].1);
    node.take();
    assert!(node.invite(keys[1].1));
    let admission = node.admission();
    assert_eq!(may(&mut node, admission), Ok(()));
    assert!(may(&mut node, admission + 1).is_err());
}

#[test]
fn while_no_one_coordinates_strangers_ask_again() {
    let keys = keys(2);
    let mut node = Node::fresh(keys[0].clone(), &[]);
    node.leader = None;
    node.asked(keys[1].1);
    let admission = node.admission();
    node.recorded(admission, Ok(()));
    assert_eq!(node.answers(), ["later"]);
}

#[test]
fn an_admission_without_an_answer_ends_with_its_deadline_and_a_late_one_still_counts() {
    let keys = keys(2);
    let (mut node, stranger) = (Node::fresh(keys[0].clone(), &[]), keys[1].1);
    node.asked(stranger);
    let admission = node.admission();
    node.wait(Duration::from_millis(3_999));
    assert!(node.answers().is_empty());
    node.wait(Duration::from_millis(1));
    assert_eq!(node.answers(), ["later"]);
    node.recorded(admission, Ok(()));
    let out = node.take();
    assert!(out.contains(&JoiningOutput::MembersChanged));
    let is_answer =
        |o: &JoiningOutput| matches!(o, JoiningOutput::Effect(Effect::Joining(JoinEffect::Answer { .. })));
    assert!(!out.iter().any(is_answer), "answered once: {out:?}");
    assert!(node.joining.is_quiet());
}

#[test]
fn an_answer_that_nobody_waits_for_changes_nothing() {
    let keys = keys(2);
    let mut node = Node::fresh(keys[0].clone(), &[]);
    node.recorded(1, Ok(()));
    node.answered(keys[1].1, Ok(JoinAnswer::Welcome(Box::new(node.welcome()))));
    node.call(|joining, ctx, out| joining.moved_in(ctx, true, out));
    assert_eq!(node.take(), []);
    assert!(node.joining.is_quiet());
}

#[test]
fn exchanges_that_wait_are_bounded() {
    let (key, me) = key(1);
    let mut node = Node::fresh((key, me), &[]);
    for n in 0..70u8 {
        node.asked(NodeId([n; 32]));
    }
    assert_eq!(node.answers(), vec!["later"; 6]);
    node.wait(Duration::from_secs(5));
    assert_eq!(node.answers().len(), 64);
    node.wait(Duration::from_secs(11));
    assert!(node.joining.is_quiet());
}

#[test]
fn a_shut_window_shows_the_stranger_to_people_who_may_invite_it() {
    let keys = keys(2);
    let (mut node, stranger) = (Node::fresh(keys[0].clone(), &[]), keys[1].1);
    node.now.unix_s = SHUT_UNIX_S;
    assert!(!node.invite(stranger), "it has not asked");
    node.asked(stranger);
    let out = node.take();
    assert!(out.contains(&JoiningOutput::Stale));
    assert!(notices(&out)[0].starts_with("stranger asks to join"));
    assert_eq!(node.joining.requests()[&stranger].listen, address(stranger));
    node.asked(stranger);
    let again = node.answers();
    assert!(again[0].contains("its join window is shut"), "{again:?}");
    assert!(node.invite(stranger));
    let admission = node.admission();
    node.asked(stranger);
    assert_eq!(node.answers(), ["later"], "its entry is on its way to disk");
    node.wait(Duration::from_secs(3600));
    assert_eq!(node.take(), [JoiningOutput::Stale], "it is shown no more, and the person's word stays");
    node.admit(stranger);
    node.recorded(admission, Ok(()));
    assert!(node.joining.requests().is_empty());
    let out = node.take();
    assert!(out.contains(&JoiningOutput::Prefer { node: stranger, address: address(stranger) }));
    assert_eq!(invited(&out), [Ok("stranger".to_owned())]);
    node.asked(stranger);
    assert_eq!(node.answers(), ["welcome"]);
}

#[test]
fn a_stranger_that_asked_and_has_a_cluster_since_is_shown_and_let_in_no_more_until_it_asks_again() {
    let keys = keys(2);
    let (mut node, stranger) = (Node::fresh(keys[0].clone(), &[]), keys[1].1);
    node.now.unix_s = SHUT_UNIX_S;
    for is_seen_first in [true, false] {
        if is_seen_first {
            node.found(stranger, true);
        }
        node.asked(stranger);
        node.found(stranger, true);
        assert!(node.joining.requests().contains_key(&stranger));
        assert_eq!(node.joining.in_other_cluster(stranger), None);
        node.take();
        if is_seen_first {
            node.lost(stranger); // a change of what it says may come as a goodbye and a greeting
        }
        node.found(stranger, false);
        node.wait(Duration::from_secs(20));
        assert!(node.joining.requests().is_empty() && node.take().contains(&JoiningOutput::Stale));
        assert!(!node.invite(stranger));
        assert_eq!(node.joining.in_other_cluster(stranger), Some("found"));
    }
    // As one that is alone and whose door is shut does where a person named this node.
    node.asked(stranger);
    node.found(stranger, false);
    node.wait(Duration::from_secs(30));
    assert!(node.joining.requests().contains_key(&stranger) && node.invite(stranger));
}

/// What is announced is anybody's word, and who asks has proven its key.
#[test]
fn a_stranger_that_asks_stays_shown_though_others_say_in_its_name_that_it_has_a_cluster() {
    let keys = keys(2);
    let (mut node, stranger) = (Node::fresh(keys[0].clone(), &[]), keys[1].1);
    node.now.unix_s = SHUT_UNIX_S;
    for _ in 0..4 {
        node.asked(stranger);
        node.found(stranger, true);
        node.found(stranger, false);
        assert!(node.joining.requests().contains_key(&stranger));
        node.wait(Duration::from_secs(15));
        assert!(node.joining.requests().contains_key(&stranger), "it asks again about now");
    }
    assert!(node.invite(stranger));
}

#[test]
fn a_stranger_that_was_seen_before_it_asked_counts_as_new_until_it_is_seen_otherwise() {
    let keys = keys(2);
    let (mut node, stranger) = (Node::fresh(keys[0].clone(), &[]), keys[1].1);
    node.now.unix_s = SHUT_UNIX_S;
    node.found(stranger, true);
    node.asked(stranger);
    node.found(stranger, false);
    node.wait(Duration::from_secs(20));
    assert!(node.joining.requests().is_empty());
}

/// What people heard who let somebody in.
fn invited(out: &[JoiningOutput]) -> Vec<Result<String, exo_api::AdminError>> {
    let answers = out.iter().filter_map(|output| match output {
        JoiningOutput::Effect(Effect::Reply { reply: ReplyId(3), answer: Answer::Invited(result) }) => {
            Some(result.clone())
        }
        _ => None,
    });
    answers.collect()
}

#[test]
fn a_person_hears_why_a_stranger_was_not_recorded() {
    let keys = keys(2);
    let (mut node, stranger) = (Node::fresh(keys[0].clone(), &[]), keys[1].1);
    node.now.unix_s = SHUT_UNIX_S;
    node.asked(stranger);
    node.take();
    assert!(node.invite(stranger));
    let admission = node.admission();
    node.recorded(admission, Err(ActRefusal::NotWritten { reason: "no space".to_owned() }));
    let message = "the log of trust cannot be written: no space".to_owned();
    assert_eq!(invited(&node.take()), [Err(exo_api::AdminError::Disk { message })]);
    assert!(node.joining.requests().contains_key(&stranger), "it asks still");
}

#[test]
fn a_door_that_a_person_opens_lets_in_who_is_near_until_its_time_is_over() {
    let keys = keys(3);
    let (mut node, near, far) = (Node::fresh(keys[0].clone(), &[]), keys[1].1, keys[2].1);
    node.now.unix_s = SHUT_UNIX_S;
    node.call(|joining, ctx, out| joining.open_door(ctx, Duration::from_secs(300), out));
    assert!(node.take().contains(&JoiningOutput::Stale));
    assert_eq!(node.joining.door_open_until_unix_s(node.now), Some(SHUT_UNIX_S + 300));
    assert!(!node.call(|_, ctx, _| ctx.is_fresh()), "its own door makes no node leave its cluster");

    node.is_near = false;
    node.asked(far);
    let told = node.answers();
    let ways = ["for its own private networks", "`exo invite` there", "`exo join CODE` here", "`exo admit "];
    assert!(ways.iter().all(|way| told[0].contains(way)), "only who is near: {told:?}");
    node.is_near = true;
    node.asked(near);
    let admission = node.admission();
    node.recorded(admission, Ok(()));
    assert_eq!(node.answers(), ["welcome"]);

    // One that asked before the time was over is not recorded after it.
    let late = NodeId([9; 32]);
    node.asked(late);
    let admission = node.admission();
    node.now.time = node.now.time + Duration::from_secs(300);
    let may = node.call(|joining, ctx, _| joining.may_record(ctx, admission, ctx.trust.view()));
    assert_eq!(may, Err(ActRefusal::WindowShut));
    node.wait(Duration::from_millis(1));
    assert!(node.take().contains(&JoiningOutput::Stale));
    assert_eq!(node.joining.door_open_until_unix_s(node.now), None);
}

#[test]
fn a_door_that_is_shut_lets_nobody_in_and_one_opening_lets_in_so_many() {
    let mut node = Node::fresh(keys(1)[0].clone(), &[]);
    node.now.unix_s = SHUT_UNIX_S;
    node.call(|joining, ctx, out| joining.open_door(ctx, Duration::from_secs(300), out));
    let strangers: Vec<NodeId> = (1..=18).map(|n| NodeId([100 + n; 32])).collect();
    for (at, stranger) in strangers.iter().enumerate() {
        node.asked(*stranger);
        let is_let_in = node.take().iter().any(|output| matches!(output, JoiningOutput::Act { .. }));
        assert_eq!(is_let_in, at < exo_trust::ON_SIGHT_MAX, "{at}");
    }
    assert_eq!(node.joining.door_open_until_unix_s(node.now), None, "nobody else is let in");
    node.call(|joining, ctx, out| joining.open_door(ctx, Duration::from_secs(300), out));
    node.now.unix_s += 300;
    assert_eq!(node.joining.door_open_until_unix_s(node.now), None, "a machine that slept has no open door");
    node.call(|joining, ctx, out| joining.open_door(ctx, Duration::from_secs(300), out));
    assert!(node.joining.door_open_until_unix_s(node.now).is_some());
    node.call(Joining::shut_door);
    node.take();
    node.asked(strangers[17]);
    assert!(node.answers()[0].contains("its join window is shut"));
}

#[test]
fn who_came_through_the_window_has_no_place_of_the_door_when_that_is_shut() {
    let mut node = Node::fresh(keys(1)[0].clone(), &[]);
    node.call(|joining, ctx, out| joining.open_door(ctx, Duration::from_secs(300), out));
    let mut admissions = Vec::new();
    // All of them ask before the first entry is signed.
    for n in 0..=exo_trust::ON_SIGHT_MAX as u8 {
        node.asked(NodeId([100 + n; 32]));
        admissions.extend(node.take().into_iter().find_map(|output| match output {
            JoiningOutput::Act { admission, .. } => Some(admission),
            _ => None,
        }));
    }
    // As the sixteenth entry does.
    node.record(Act::Window { until_unix_s: 0 });
    let view = node.trust.view().clone();
    let may: Vec<bool> = admissions
        .into_iter()
        .map(|admission| node.call(|joining, ctx, _| joining.may_record(ctx, admission, &view)).is_ok())
        .collect();
    assert_eq!(may, (0..=exo_trust::ON_SIGHT_MAX).map(|at| at < exo_trust::ON_SIGHT_MAX).collect::<Vec<_>>());
}

#[test]
fn whom_a_person_refuses_is_not_shown_for_an_hour_and_comes_in_with_a_code_only() {
    let keys = keys(2);
    let (mut node, stranger) = (Node::fresh(keys[0].clone(), &[]), keys[1].1);
    node.now.unix_s = SHUT_UNIX_S;
    let refuse = |node: &mut Node| node.call(|joining, ctx, out| joining.refuse(ctx, stranger, out));
    assert_eq!(refuse(&mut node), None, "it has not asked");
    node.asked(stranger);
    node.take();
    assert_eq!(refuse(&mut node), Some("stranger".to_owned()));
    assert!(node.take().contains(&JoiningOutput::Stale));
    node.call(|joining, ctx, out| joining.open_door(ctx, Duration::from_secs(300), out));
    node.take();
    node.asked(stranger);
    assert!(node.answers()[0].contains("has refused this node"));
    assert!(node.joining.requests().is_empty());
    node.now.time = node.now.time + Duration::from_secs(3600);
    node.asked(stranger);
    assert!(node.joining.requests().contains_key(&stranger), "the hour is over");
    assert!(refuse(&mut node).is_some());
    node.take();
    node.has_code = true;
    node.asked(stranger);
    node.admission();
}

#[test]
fn throw_away_keys_do_not_hide_whom_a_person_invited() {
    let (key, me) = key(1);
    let mut node = Node::fresh((key, me), &[]);
    node.now.unix_s = SHUT_UNIX_S;
    let stranger = NodeId([200; 32]);
    node.asked(stranger);
    node.take();
    assert!(node.invite(stranger));
    let admission = node.admission();
    for n in 0..50u8 {
        node.now.time = node.now.time + Duration::from_millis(1);
        node.asked(NodeId([n; 32]));
    }
    assert_eq!(node.joining.requests().len(), 16);
    assert!(node.joining.requests().contains_key(&NodeId([49; 32])));
    node.take();
    node.recorded(admission, Ok(()));
    assert_eq!(invited(&node.take()), [Ok("stranger".to_owned())]);
}

#[test]
fn names_of_strangers_lose_control_characters_and_length() {
    let keys = keys(2);
    let mut node = Node::fresh(keys[0].clone(), &[]);
    node.now.unix_s = SHUT_UNIX_S;
    node.asked_with(keys[1].1, JoinAsk { name: "\u{1b}[31\u{202e}m".to_owned() + &"x".repeat(500), ..ask() });
    let name = &node.joining.requests()[&keys[1].1].name;
    assert!(name.starts_with("[31mxx") && name.ends_with("x…") && name.chars().count() == 64);
}

#[test]
fn some_are_never_let_in() {
    let keys = keys(3);
    let (stranger, removed) = (keys[1].1, keys[2].1);
    let mut node = Node::fresh(keys[0].clone(), &[]);
    node.admit(removed);
    node.record(Act::Remove { node: removed, reason: "gone".to_owned() });
    node.asked(removed);
    node.asked_with(stranger, JoinAsk { group: "office".to_owned(), ..ask() });
    let answers = node.answers();
    assert!(answers[0].starts_with("refused: this node was removed"), "{answers:?}");
    assert_eq!(answers[1], "refused: it belongs to another group");
}

#[test]
fn only_admins_let_in() {
    let keys = keys(3);
    let mut founder = Node::fresh(keys[0].clone(), &[]);
    founder.admit(keys[1].1);
    let mut worker = Node::fresh(keys[1].clone(), &[]);
    worker.trust = founder.trust.clone();
    worker.call(|_, ctx, _| assert!(ctx.is_window_open()));
    worker.asked(keys[2].1);
    let expected =
        format!("refused: it is no admin of its cluster and lets nobody in; ask on n{}", keys[0].1);
    assert_eq!(worker.answers(), [expected]);
    worker.linked.insert(keys[0].1);
    worker.asked(keys[2].1);
    assert_eq!(worker.answers(), [format!("elsewhere: {}", keys[0].1)], "the admin, who is there");
}

#[test]
fn who_is_sent_elsewhere_and_goes_only_where_a_person_says_tells_the_person() {
    let keys = keys(3);
    let mut node = Node::fresh(keys[2].clone(), &["host:4000".to_owned()]);
    node.has_new_model = true;
    node.probed("host:4000", keys[1].1, false);
    node.wait(SHORT);
    assert_eq!(node.asks(), [keys[1].1]);
    let elsewhere = JoinAnswer::Elsewhere { node: keys[0].1, addresses: vec![address(keys[0].1)] };
    node.answered(keys[1].1, Ok(elsewhere));
    let told = notices(&node.take());
    assert!(told.len() == 1 && told[0].contains("lets nobody in itself"), "{told:?}");
    for _ in 0..4 {
        node.wait(Duration::from_secs(16));
        for with in node.asks() {
            assert_ne!(with, keys[0].1);
            let elsewhere = JoinAnswer::Elsewhere { node: keys[0].1, addresses: vec![address(keys[0].1)] };
            node.answered(with, Ok(elsewhere));
        }
        assert!(notices(&node.take()).is_empty(), "once");
    }
}

#[test]
fn a_probe_is_answered_by_every_node_of_the_group() {
    let keys = keys(2);
    let mut node = Node::fresh(keys[0].clone(), &[]);
    for (now_unix_s, answer) in [(OPEN_UNIX_S, "here, fresh: true"), (SHUT_UNIX_S, "here, fresh: false")] {
        node.now.unix_s = now_unix_s;
        node.asked_with(keys[1].1, JoinAsk { what: JoinPurpose::Name, ..ask() });
        assert_eq!(node.answers(), [answer]);
    }
}

#[test]
fn a_member_that_lost_its_log_is_welcome_though_the_window_is_shut() {
    let keys = keys(2);
    let mut node = Node::fresh(keys[0].clone(), &[]);
    node.admit(keys[1].1);
    node.now.unix_s = SHUT_UNIX_S;
    node.asked(keys[1].1);
    assert_eq!(node.answers(), ["welcome"]);
}

#[test]
fn of_two_that_ask_each_other_the_lower_lets_the_other_in() {
    let keys = keys(2);
    for (me, other, lets_in) in [(0, 1, true), (1, 0, false)] {
        let peers = ["host:4000".to_owned()];
        let mut node = Node::fresh(keys[me].clone(), &peers);
        node.probed("host:4000", keys[other].1, true);
        node.wait(SHORT);
        assert_eq!(node.asks(), [keys[other].1]);
        node.asked(keys[other].1);
        if lets_in {
            node.admission();
        } else {
            assert_eq!(node.answers(), ["later"]);
        }
    }
}

#[test]
fn a_node_about_to_join_another_lets_no_one_in_meanwhile() {
    let keys = keys(3);
    let mut node = Node::fresh(keys[1].clone(), &[]);
    node.found(keys[0].1, true);
    node.wait(ALL_ARE_SEEN);
    node.take();
    node.asked(keys[2].1);
    assert_eq!(node.answers(), ["later"]);
}

#[test]
fn a_fresh_node_points_to_a_lower_one_it_has_just_seen() {
    let keys = keys(3);
    let mut node = Node::fresh(keys[1].clone(), &[]);
    node.found(keys[0].1, true);
    node.asked(keys[2].1);
    assert_eq!(node.answers(), [format!("elsewhere: {}", keys[0].1)]);
    let mut asker = Node::fresh(keys[2].clone(), &[]);
    asker.found(keys[1].1, true);
    asker.wait(ALL_ARE_SEEN);
    asker.take();
    let elsewhere = JoinAnswer::Elsewhere { node: keys[0].1, addresses: vec![address(keys[0].1)] };
    asker.answered(keys[1].1, Ok(elsewhere));
    asker.wait(SHORT);
    assert_eq!(asker.asks(), [keys[0].1]);
}

#[test]
fn a_fresh_node_points_to_a_cluster_it_is_about_to_join() {
    let keys = keys(3);
    for (cluster, me, asker) in [(0, 1, 2), (2, 1, 0)] {
        let mut node = Node::fresh(keys[me].clone(), &[]);
        node.found(keys[cluster].1, false);
        node.asked(keys[asker].1);
        assert_eq!(node.answers(), [format!("elsewhere: {}", keys[cluster].1)]);
    }
}

/// The second of two nodes, welcomed by the first.
fn welcomed(keys: &[(SigningKey, NodeId)]) -> (Node, Node) {
    let (mut founder, mut node) = (Node::fresh(keys[0].clone(), &[]), Node::fresh(keys[1].clone(), &[]));
    founder.admit(node.me());
    node.found(founder.me(), true);
    node.wait(ALL_ARE_SEEN);
    node.take();
    node.answered(founder.me(), Ok(JoinAnswer::Welcome(Box::new(founder.welcome()))));
    (founder, node)
}

#[test]
fn a_welcome_lets_its_sender_connect_and_asks_for_its_log_of_trust() {
    let keys = keys(2);
    let (founder, mut node) = welcomed(&keys);
    let by = founder.me();
    let expected = [
        JoiningOutput::MembersChanged,
        JoiningOutput::Prefer { node: by, address: address(by) },
        JoiningOutput::Learn { node: by, addresses: Vec::new(), is_vouched: false },
        JoiningOutput::Pull(by),
    ];
    assert_eq!(node.take(), expected);
    assert_eq!(node.joining.members(), [by]);
    assert_eq!(node.joining.wants_trust_of(by), Some((founder.trust.cluster(), Vec::new())));
    assert_eq!(node.joining.wants_trust_of(node.me()), None);
}

#[test]
fn a_node_that_was_put_to_use_since_it_asked_stays_where_it_is() {
    let keys = keys(2);
    type Change = fn(&mut Node);
    let changes: [(Change, &str); 2] = [
        (|node| node.has_new_model = true, "is in use by now"),
        (|node| node.is_busy = true, "asks again after it"),
    ];
    for (change, reason) in changes {
        let (founder, mut node) = welcomed(&keys);
        node.take();
        change(&mut node);
        node.told(founder.me(), founder.news());
        let out = node.take();
        assert!(notices(&out)[0].contains(reason), "{out:?}");
        assert!(!out.iter().any(|output| matches!(output, JoiningOutput::MoveIn(_))), "{out:?}");
        assert!(node.joining.members().is_empty());
    }
}

#[test]
fn a_log_of_trust_may_come_in_parts_and_joining_is_over_only_when_the_node_has_moved() {
    let keys = keys(2);
    let (founder, mut node) = welcomed(&keys);
    node.take();
    let by = founder.me();
    node.told(keys[1].1, founder.news());
    assert_eq!(node.take(), [], "only from who let it in");
    let entries: Vec<_> = founder.trust.entries().map(Entry::encode).collect();
    node.told(by, founder.news_of(&entries[..1]));
    assert_eq!(node.take(), [JoiningOutput::Pull(by)], "the rest");
    assert_eq!(
        node.joining.wants_trust_of(by),
        Some((founder.trust.cluster(), vec![founder.trust.cluster()]))
    );
    node.told(by, founder.news_of(&entries[1..]));
    let out = node.take();
    let [JoiningOutput::MoveIn(moved)] = &out[..] else { panic!("{out:?}") };
    assert_eq!(moved.trust, founder.trust);
    node.told(by, founder.news());
    assert_eq!(node.take(), [], "once");
    node.wait(Duration::from_secs(60));
    assert_eq!(node.joining.members(), [founder.me()], "however slow the disk is");
    node.trust = moved.trust.clone();
    node.call(|joining, ctx, out| joining.moved_in(ctx, true, out));
    let out = node.take();
    assert!(notices(&out)[0].contains(&moved.words), "{out:?}");
    assert!(node.joining.members().is_empty() && node.joining.is_quiet());
}

#[test]
fn a_log_that_cannot_be_written_leaves_the_node_where_it_is() {
    let keys = keys(2);
    let (founder, mut node) = welcomed(&keys);
    node.told(founder.me(), founder.news());
    node.take();
    node.call(|joining, ctx, out| joining.moved_in(ctx, false, out));
    assert_eq!(node.take(), [JoiningOutput::MembersChanged]);
    assert!(node.joining.members().is_empty() && node.joining.words().is_empty());
    node.wait(Duration::from_secs(3));
    assert_eq!(node.asks(), [founder.me()]);
}

#[test]
fn a_log_that_is_forged_incomplete_or_without_this_node_is_refused() {
    let keys = keys(3);
    let (founder, _) = welcomed(&keys);
    let entries: Vec<_> = founder.trust.entries().map(Entry::encode).collect();
    let without = Node::fresh(keys[0].clone(), &[]);
    assert_eq!(without.trust.cluster(), founder.trust.cluster());
    let of_other: Vec<_> = Node::fresh(keys[2].clone(), &[]).trust.entries().map(Entry::encode).collect();
    let mut forged = entries.clone();
    *forged[1].last_mut().unwrap() ^= 1;
    let cases = [
        (founder.news_of(&of_other), "does not begin with its founding"),
        (founder.news_of(&entries[1..]), "does not begin with its founding"),
        (founder.news_of(&[entries[0].clone(), entries[2].clone()]), "which is not here"),
        (founder.news_of(&forged), "does not carry a signature"),
        (founder.news_of(&[vec![255]]), "not an entry"),
        (founder.news_of(&[]), "sent no log of trust"),
        (without.news(), "does not name this node as a member"),
    ];
    for (news, reason) in cases {
        let (founder, mut node) = welcomed(&keys);
        node.take();
        node.told(founder.me(), news);
        let out = node.take();
        assert!(notices(&out)[0].contains(reason), "{reason}: {out:?}");
        assert!(out.contains(&JoiningOutput::MembersChanged));
        assert!(node.joining.members().is_empty());
    }
}

#[test]
fn news_of_another_cluster_than_the_one_that_let_this_node_in_change_nothing() {
    let keys = keys(3);
    let (founder, mut node) = welcomed(&keys);
    node.take();
    let other = Node::fresh(keys[2].clone(), &[]);
    node.told(founder.me(), other.news());
    assert_eq!(node.take(), []);
    assert!(node.joining.wants_trust_of(founder.me()).is_some());
}

#[test]
fn a_grant_that_leads_to_nothing_is_dropped() {
    let keys = keys(2);
    let (founder, mut node) = welcomed(&keys);
    node.take();
    node.wait(Duration::from_millis(14_999));
    assert_eq!(node.take(), []);
    node.wait(Duration::from_millis(1));
    let out = node.take();
    assert_eq!(out[0], JoiningOutput::MembersChanged);
    assert!(node.joining.members().is_empty());
    node.told(founder.me(), founder.news());
    assert_eq!(node.take(), [], "too late");
}

#[test]
fn who_let_this_node_in_and_came_back_is_asked_again_when_no_log_came() {
    let keys = keys(2);
    let (founder, mut node) = welcomed(&keys);
    let found = |is_lost| DiscoveredNode {
        group: None,
        is_lost,
        ..discovered(founder.me(), vec![address(founder.me())])
    };
    for is_lost in [true, false] {
        node.call(|joining, ctx, out| joining.found(ctx, found(is_lost), out));
    }
    node.wait(Duration::from_millis(15_999));
    assert!(node.asks().is_empty());
    node.wait(Duration::from_millis(1));
    assert_eq!(node.asks(), [founder.me()], "a second later, as who did not answer");
}

#[test]
fn after_a_refusal_the_node_waits_after_later_it_asks_soon() {
    let keys = keys(2);
    let refused = JoinAnswer::Refused(JoinRefusal::WindowShut { admins: Vec::new() });
    for (answer, wait_ms) in [(refused, 15_000), (JoinAnswer::Later, 300)] {
        let mut node = Node::fresh(keys[1].clone(), &[]);
        node.found(keys[0].1, true);
        node.wait(ALL_ARE_SEEN);
        node.take();
        node.answered(keys[0].1, Ok(answer));
        assert_eq!(node.joining.next_deadline(), node.now.time + Duration::from_millis(wait_ms));
        node.wait(Duration::from_millis(wait_ms));
        assert_eq!(node.asks(), [keys[0].1]);
    }
}

/// What a node asks others about the log of trust.
fn trust_asks(node: &mut Node) -> Vec<(NodeId, Vec<EntryId>)> {
    let asks = node.take().into_iter().filter_map(|output| match output {
        JoiningOutput::Effect(Effect::Joining(JoinEffect::Ask { with, ask, .. })) => match ask.what {
            JoinPurpose::Trust { known, .. } => Some((with, known)),
            JoinPurpose::Name | JoinPurpose::Membership => None,
        },
        _ => None,
    });
    asks.collect()
}

#[test]
fn a_member_that_was_away_learns_of_newcomers_and_of_its_removal_in_a_join_exchange() {
    let keys = keys(3);
    let (mut founder, away, newcomer) = (Node::fresh(keys[0].clone(), &[]), keys[1].1, keys[2].1);
    founder.admit(away);
    let mut member = Node::fresh(keys[1].clone(), &[]);
    member.trust = founder.trust.clone();
    founder.admit(newcomer);
    founder.record(Act::Remove { node: away, reason: "sold".to_owned() });

    // The newcomer is a stranger to it, and no link leads to the founder: both are asked, and not at once.
    member.found(newcomer, false);
    assert_eq!(trust_asks(&mut member), []);
    member.wait(Duration::from_secs(4));
    let known = member.trust.known();
    let mut asked = trust_asks(&mut member);
    asked.sort();
    let mut expected = vec![(founder.me(), known.clone()), (newcomer, known.clone())];
    expected.sort();
    assert_eq!(asked, expected);

    // Who is or was a member gets what it lacks, and nobody else does.
    let what = JoinPurpose::Trust { cluster: founder.trust.cluster(), known };
    founder.asked_with(away, JoinAsk { what: what.clone(), ..ask() });
    founder.asked_with(key(77).1, JoinAsk { what, ..ask() });
    let other = JoinPurpose::Trust { cluster: EntryId([1; 32]), known: Vec::new() };
    founder.asked_with(away, JoinAsk { what: other, ..ask() });
    let refused = "refused: it is of another cluster";
    assert_eq!(founder.answers(), ["trust: 2 entries", refused, refused]);

    // What comes is handed on to be checked; more is asked for soon.
    let missing: Vec<_> = founder.trust.entries().skip(3).map(Entry::encode).collect();
    assert_eq!(missing.len(), 2);
    let answer = Ok(JoinAnswer::Trust(missing.clone()));
    let event =
        JoinEvent::Answered { with: newcomer, address: address(newcomer), words: String::new(), answer };
    member.call(|joining, ctx, out| joining.event(ctx, event, out));
    let entries = member.take().into_iter().find_map(|output| match output {
        JoiningOutput::Entries { from, entries } => Some((from, entries)),
        _ => None,
    });
    assert_eq!(entries, Some((newcomer, missing.clone())));
    for entry in missing {
        member.trust.insert(Entry::decode(&entry).unwrap()).unwrap();
    }
    member.wait(Duration::from_secs(40));
    assert_eq!(trust_asks(&mut member), [], "it was removed, and knows that");
}

#[test]
fn nobody_is_asked_for_the_log_of_trust_whom_a_link_leads_to() {
    let keys = keys(2);
    let mut founder = Node::fresh(keys[0].clone(), &[]);
    founder.admit(keys[1].1);
    founder.linked.insert(keys[1].1);
    founder.wait(Duration::from_secs(4));
    founder.wait(Duration::from_secs(40));
    assert_eq!(trust_asks(&mut founder), []);
}

#[test]
fn silent_members_keep_nobody_from_being_asked_for_the_log_of_trust() {
    let keys = keys(12);
    let mut founder = Node::fresh(keys[0].clone(), &[]);
    for (_, member) in &keys[1..] {
        founder.admit(*member);
    }
    let mut asked = BTreeSet::new();
    for _ in 0..40 {
        founder.wait(Duration::from_secs(1));
        let asks = trust_asks(&mut founder);
        assert!(asks.len() <= 4, "{asks:?}");
        asked.extend(asks.into_iter().map(|(node, _)| node));
    }
    assert_eq!(asked.len(), 11, "none of them answers, and each was asked");
}

#[test]
fn a_stranger_that_asks_again_while_its_entry_is_written_is_not_refused() {
    let keys = keys(2);
    let mut node = Node::fresh(keys[0].clone(), &[]);
    node.asked(keys[1].1);
    let admission = node.admission();
    node.wait(Duration::from_secs(5));
    assert_eq!(node.answers(), ["later"]);
    node.asked(keys[1].1);
    assert_eq!(node.answers(), ["later"]);
    node.admit(keys[1].1);
    node.recorded(admission, Ok(()));
    node.take();
    node.asked(keys[1].1);
    assert_eq!(node.answers(), ["welcome"]);
}

#[test]
fn who_knows_a_code_is_let_in_from_far_away_with_the_window_shut_and_only_by_an_admin() {
    let keys = keys(3);
    let mut node = Node::fresh(keys[0].clone(), &[]);
    (node.is_near, node.now.unix_s) = (false, SHUT_UNIX_S);
    node.asked(keys[1].1);
    assert!(node.answers()[0].contains("join window is shut"));
    node.has_code = true;
    node.asked(keys[1].1);
    let admission = node.admission();
    assert_eq!(node.call(|joining, ctx, _| joining.may_record(ctx, admission, ctx.trust.view())), Ok(()));
    node.admit(keys[1].1);
    let mut worker = Node::fresh(keys[1].clone(), &[]);
    (worker.trust, worker.has_code) = (node.trust.clone(), true);
    worker.asked(keys[2].1);
    assert!(worker.answers()[0].contains("no admin of its cluster"));
}

fn by_code(node: &mut Node, with: Option<NodeId>, addresses: Vec<SocketAddr>) {
    let wanted = JoinByCode { code: Code("123456789".to_owned()), with, addresses };
    node.call(|joining, ctx, out| joining.by_code(ctx, ReplyId(5), wanted, out));
}

/// Whom it asked with the code, and what the person heard.
fn by_code_news(node: &mut Node) -> (Vec<NodeId>, Vec<Result<String, String>>) {
    let (mut asks, mut heard) = (Vec::new(), Vec::new());
    for output in node.take() {
        match output {
            JoiningOutput::Effect(Effect::Joining(JoinEffect::Ask { with, code: Some(_), .. })) => {
                asks.push(with)
            }
            JoiningOutput::Effect(Effect::Reply { answer: Answer::Joined(joined), .. }) => {
                heard.push(joined.map(|joined| joined.name).map_err(|failure| failure.to_string()));
            }
            _ => {}
        }
    }
    (asks, heard)
}

#[test]
fn a_used_node_joins_by_code_wherever_it_was_given_out() {
    let keys = keys(3);
    let mut node = Node::fresh(keys[2].clone(), &[]);
    (node.has_new_model, node.now.unix_s) = (true, SHUT_UNIX_S);
    let mut inviter = Node::fresh(keys[0].clone(), &[]);
    inviter.admit(node.me());
    node.found(keys[1].1, false);
    node.found(inviter.me(), true);
    node.wait(SHORT);
    assert_eq!(by_code_news(&mut node), (vec![], vec![]), "its window is shut");

    by_code(&mut node, None, Vec::new());
    assert_eq!(by_code_news(&mut node).0, [keys[1].1], "who has a cluster comes first");
    node.answered(keys[1].1, Ok(JoinAnswer::Refused(JoinRefusal::NotInvited)));
    assert_eq!(by_code_news(&mut node).0, [inviter.me()]);
    node.answered(inviter.me(), Ok(JoinAnswer::Later));
    node.wait(Duration::from_secs(1));
    assert_eq!(by_code_news(&mut node).0, [inviter.me()], "asked again");
    node.answered(inviter.me(), Ok(JoinAnswer::Welcome(Box::new(inviter.welcome()))));
    node.told(inviter.me(), inviter.news());
    node.trust = inviter.trust.clone();
    node.call(|joining, ctx, out| joining.moved_in(ctx, true, out));
    let name = inviter.config.name.clone();
    assert_eq!(by_code_news(&mut node).1, [Ok(name)]);
    for reached in 1..=2 {
        if reached == 2 {
            node.linked.insert(inviter.me());
        }
        by_code(&mut node, None, Vec::new());
        let why = by_code_news(&mut node).1[0].clone().unwrap_err();
        assert!(why.contains("exo leave") && why.contains(&format!("of 2 ({reached} there)")), "{why}");
    }
}

#[test]
fn a_join_by_code_ends_with_the_reason_in_its_time() {
    let keys = keys(2);
    let mut node = Node::fresh(keys[0].clone(), &[]);
    node.now.unix_s = SHUT_UNIX_S;
    by_code(&mut node, None, Vec::new());
    by_code(&mut node, None, Vec::new());
    assert!(by_code_news(&mut node).1[0].as_ref().is_err_and(|reason| reason.contains("joining already")));
    node.wait(Duration::from_secs(5));
    assert!(by_code_news(&mut node).1[0].as_ref().is_err_and(|reason| reason.contains("--peer")));

    by_code(&mut node, Some(keys[1].1), vec![address(keys[1].1)]);
    assert_eq!(by_code_news(&mut node).0, [keys[1].1]);
    node.answered(keys[1].1, Err("the code is wrong".to_owned()));
    node.wait(Duration::from_secs(5));
    let news = by_code_news(&mut node).1;
    let is_named = |reason: &String| reason.ends_with(": the code is wrong");
    assert!(news.len() == 1 && news[0].as_ref().is_err_and(is_named), "who says so: {news:?}");

    let another = NodeId([1; 32]);
    node.found(another, false);
    by_code(&mut node, None, Vec::new());
    let asked = by_code_news(&mut node).0[0];
    node.answered(asked, Err("the code is wrong".to_owned()));
    let next = by_code_news(&mut node).0[0];
    node.answered(next, Err("no invitation".to_owned()));
    node.wait(Duration::from_secs(5));
    let news = by_code_news(&mut node).1;
    let both = |reason: &String| reason.contains("the code is wrong") && reason.contains("no invitation");
    assert!(news[0].as_ref().is_err_and(both), "{news:?}");

    let mut node = Node::fresh(keys[0].clone(), &[]);
    node.now.unix_s = SHUT_UNIX_S;
    by_code(&mut node, None, vec![address(keys[1].1)]);
    node.wait(Duration::from_secs(10));
    assert!(
        by_code_news(&mut node).1[0].as_ref().is_err_and(|reason| reason.contains("no exo node answered"))
    );

    by_code(&mut node, None, vec![address(keys[1].1)]);
    node.probed(&address(keys[1].1).to_string(), keys[1].1, false);
    assert_eq!(by_code_news(&mut node).0, [keys[1].1], "who proved its key there");
    node.wait(Duration::from_secs(40));
    assert_eq!(by_code_news(&mut node).1.len(), 1, "silence ends as well");
}

#[test]
fn one_host_that_answers_with_many_keys_and_then_stalls_delays_a_join_once() {
    let keys = keys(20);
    let mut node = Node::fresh(keys[19].clone(), &[]);
    let host = SocketAddr::from(([10, 9, 9, 9], 4000));
    keys[..18].iter().for_each(|(_, fake)| node.hears(discovered(*fake, vec![host])));
    let honest = keys[18].1;
    node.hears(discovered(honest, vec![address(honest)]));
    node.wait(SHORT);
    assert_eq!(node.asks(), [keys[0].1], "who comes first is chance");
    let answer = Err("no answer".to_owned());
    let event = JoinEvent::Answered { with: keys[0].1, address: host, words: String::new(), answer };
    node.call(|joining, ctx, out| joining.event(ctx, event, out));
    assert_eq!(node.asks(), [honest]);
}
