//! A disk that is not sure of a write, and a move that comes meanwhile.

mod addresses;
mod goodbyes;

use ed25519_dalek::{Signer, SigningKey};
use exo_cluster::wire::HeldModel;
use exo_cluster::{Event, InstanceRequest, PlaceObjective, Speculation, State};
use exo_types::{
    Ancestors, DeviceId, Epoch, InstanceId, KvDType, LayerRange, LayerShape, LogHead, ModelId, ModelShape,
    NodeFacts, Placement, PlacementId, Shard, Stage,
};

use super::*;
use crate::bounds::HEARD_WITHIN;
use crate::joining::{JoinAsk, JoinPurpose, MoveIn};
use crate::{
    Boot, DiscoveredNode, ExchangeId, Input, JoinEvent, Limits, MachineConfig, Now, PersistId, Question,
    ReplyId, Resolved, SampledMeasures, Samples, Unresolved, Write,
};

const REPLY: ReplyId = ReplyId(7);

fn founded(key: &SigningKey, nonce: u8) -> TrustLog {
    let me = NodeId(key.verifying_key().to_bytes());
    let founding = Statement::founding(me, 1000, "a cluster".to_owned(), "a node".to_owned(), [nonce; 16]);
    let signature = key.sign(&founding.to_sign()).to_bytes();
    TrustLog::new(founding.signed(signature)).unwrap()
}

/// A node alone in its cluster, whose disk answers when a test says so.
struct Lone {
    machine: NodeMachine,
    key: SigningKey,
    now: Now,
    signs: Vec<(SignId, Vec<u8>)>,
    /// Writes of the log of trust without an answer.
    writes: VecDeque<(PersistId, Vec<Vec<u8>>)>,
    acted: Vec<(ReplyId, Result<(), ActRefusal>)>,
    /// What people heard who let somebody in or refused somebody.
    invited: Vec<Result<String, exo_api::AdminError>>,
}

impl Lone {
    fn new() -> Self {
        Self::found(|_| {})
    }

    /// One that finds something else when it starts.
    fn found(change: impl FnOnce(&mut Boot)) -> Self {
        let key = SigningKey::from_bytes(&[1; 32]);
        let me = NodeId(key.verifying_key().to_bytes());
        let config = MachineConfig {
            me,
            name: "a node".to_owned(),
            group: "home".to_owned(),
            listen: ([127, 0, 0, 1], 4000).into(),
            peers: Vec::new(),
            trust_closed: false,
            has_token: false,
            log: Default::default(),
            speculation: Speculation::Lookup,
            unload_idle_after: None,
            incarnation: 1,
            seed: [0; 32],
        };
        let facts = NodeFacts {
            node: me,
            name: config.name.clone(),
            version: "0".to_owned(),
            platform: "test".to_owned(),
            devices: Vec::new(),
            mains_power: None,
        };
        let samples = Samples {
            facts,
            memory_bytes: Vec::new(),
            devices: Vec::new(),
            card_events: Vec::new(),
            process_bytes: None,
            networks: Vec::new(),
            measured: SampledMeasures::default(),
        };
        let mut boot = Boot {
            epoch: None,
            base: LogHead::EMPTY,
            ancestors: Ancestors::default(),
            entries: Vec::new(),
            state: State::default(),
            trust: founded(&key, 1),
            addresses: BTreeMap::new(),
            ended: BTreeMap::new(),
            samples,
            models: Vec::new(),
            disk_room: exo_types::DiskRoom::default(),
            window_ran: Duration::ZERO,
            has_new_model: false,
            left: Vec::new(),
            warnings: Vec::new(),
        };
        change(&mut boot);
        let now = Now { time: Time::from_millis(10), unix_s: 2000 };
        let (machine, _) = NodeMachine::new(config, boot, now);
        let (signs, writes, acted, invited) = (Vec::new(), VecDeque::new(), Vec::new(), Vec::new());
        Self { machine, key, now, signs, writes, acted, invited }
    }

    fn take(&mut self, effects: Vec<Effect>) {
        for effect in effects {
            match effect {
                Effect::Sign { id, bytes } => self.signs.push((id, bytes)),
                Effect::Persist { id, write: Write::Trust(entries) } => self.writes.push_back((id, entries)),
                Effect::Reply { reply, answer: Answer::Acted(result) } => self.acted.push((reply, result)),
                Effect::Reply { answer: Answer::Invited(result), .. } => self.invited.push(result),
                _ => {}
            }
        }
    }

    fn handle(&mut self, input: Input) {
        let effects = self.machine.handle(self.now, input);
        self.take(effects);
    }

    /// Asks for the admission of a node.
    fn ask(&mut self, node: u8) {
        self.act(Act::Admit { node: NodeId([node; 32]), name: "another".to_owned() });
    }

    /// A stranger asks to be let in, and a person lets it in.
    fn invite(&mut self, node: NodeId) {
        let (name, group) = ("stranger".to_owned(), "home".to_owned());
        self.handle(Input::Joining(JoinEvent::Asked {
            exchange: ExchangeId(1),
            node,
            remote: ([10, 0, 0, 2], 55_555).into(),
            is_near: true,
            has_code: false,
            words: "words".to_owned(),
            ask: JoinAsk { name, group, port: 4000, what: JoinPurpose::Membership },
        }));
        self.handle(Input::Ask { reply: REPLY, question: Question::Invite { node } });
    }

    /// A person refuses it.
    fn refuse(&mut self, node: NodeId) {
        self.handle(Input::Ask { reply: ReplyId(8), question: Question::Refuse { node } });
    }

    fn act(&mut self, act: Act) {
        self.machine.change_members(ActAsker::Client(REPLY), act);
        let effects = std::mem::take(&mut self.machine.out);
        self.take(effects);
    }

    fn sign(&mut self) {
        for (id, bytes) in std::mem::take(&mut self.signs) {
            let signature = self.key.sign(&bytes).to_bytes();
            self.handle(Input::Signed { id, signature });
        }
    }

    /// The oldest write is answered.
    fn answer(&mut self, result: Result<(), WriteFailure>) {
        let (id, _) = self.writes.pop_front().expect("a write under way");
        self.handle(Input::Persisted { id, result });
    }

    /// A node admitted of which the disk is not sure.
    fn unsure() -> Self {
        let mut node = Self::new();
        node.ask(2);
        node.sign();
        node.answer(Err(not_sure()));
        assert!(node.acted.is_empty(), "nobody knows yet");
        node
    }

    fn move_in(&mut self) -> EntryId {
        self.move_to(founded(&self.key, 2))
    }

    fn move_to(&mut self, trust: TrustLog) -> EntryId {
        let (cluster, by) = (trust.cluster(), NodeId([3; 32]));
        self.machine.moving_in = Some(MoveIn { trust: trust.clone(), by, words: String::new() });
        self.machine.write_other_trust(trust);
        let effects = std::mem::take(&mut self.machine.out);
        self.take(effects);
        cluster
    }

    /// What it says of a model.
    fn resolve(&mut self, model: &str) -> Result<Box<Resolved>, Unresolved> {
        let question = Question::Resolve { model: model.to_owned() };
        let effects = self.machine.handle(self.now, Input::Ask { reply: REPLY, question });
        let mut answers = effects.into_iter().filter_map(|effect| match effect {
            Effect::Reply { answer, .. } => Some(answer),
            _ => None,
        });
        match answers.next() {
            Some(Answer::Resolved(resolved)) => resolved,
            other => panic!("{other:?}"),
        }
    }

    /// Whether members may tell yet of a model that is unknown here.
    fn may_be_told(&mut self) -> bool {
        match self.resolve("a model") {
            Err(Unresolved::Unknown { may_be_told, .. }) => may_be_told,
            other => panic!("{other:?}"),
        }
    }

    fn wait(&mut self, time: Duration) {
        // As hands do: a call that comes late says that the process stood still.
        let until = self.now.time + time;
        while self.now.time < until {
            self.now.time = (self.now.time + Duration::from_millis(500)).min(until);
            self.handle(Input::Timer);
        }
    }
}

/// The entry that lets a node in, behind what is in a log.
fn admit(key: &SigningKey, log: &TrustLog, node: u8) -> Entry {
    let act = Act::Admit { node: NodeId([node; 32]), name: "another".to_owned() };
    let statement = log.statement(NodeId(key.verifying_key().to_bytes()), 1500, act).unwrap();
    let signature = key.sign(&statement.to_sign()).to_bytes();
    statement.signed(signature)
}

fn not_sure() -> WriteFailure {
    WriteFailure { reason: "not synced".to_owned(), may_be_there: true }
}

fn not_there() -> WriteFailure {
    WriteFailure { reason: "no space".to_owned(), may_be_there: false }
}

#[test]
fn what_is_unsure_is_not_written_behind_a_move() {
    let mut node = Lone::unsure();
    let cluster = node.move_in();
    node.wait(2 * AGAIN_AFTER);
    assert_eq!(node.writes.len(), 1, "only the move");
    node.answer(Ok(()));
    assert_eq!(node.acted, [(REPLY, Err(ActRefusal::Moving))]);
    node.wait(2 * AGAIN_AFTER);
    assert!(node.writes.is_empty(), "the former cluster's log is forgotten");
    assert_eq!(node.machine.trust.log().cluster(), cluster);
}

#[test]
fn an_unsure_move_after_what_is_unsure_answers_its_asker_and_is_tried_again() {
    let mut node = Lone::unsure();
    let cluster = node.move_in();
    node.answer(Err(not_sure()));
    assert_eq!(node.acted, [(REPLY, Err(ActRefusal::Moving))]);
    node.wait(2 * AGAIN_AFTER);
    node.answer(Ok(()));
    assert_eq!(node.machine.trust.log().cluster(), cluster);
    assert_eq!(node.acted.len(), 1, "once");
}

#[test]
fn what_is_unsure_is_written_again_when_the_move_failed() {
    let mut node = Lone::unsure();
    node.move_in();
    node.answer(Err(not_there()));
    assert!(node.acted.is_empty(), "nobody knows yet");
    node.wait(2 * AGAIN_AFTER);
    node.answer(Ok(()));
    assert_eq!(node.acted, [(REPLY, Ok(()))]);
    assert!(node.machine.trust.view().members().contains_key(&NodeId([2; 32])));
}

#[test]
fn who_lets_a_stranger_in_hears_it_when_it_is_on_disk() {
    let (mut node, stranger) = (Lone::new(), NodeId([2; 32]));
    node.invite(stranger);
    node.sign();
    assert_eq!(
        (node.writes.len(), node.invited.len()),
        (1, 0),
        "nothing is acknowledged that is only in memory"
    );
    let entries: Vec<_> = node.writes[0].1.iter().map(|entry| Entry::decode(entry).unwrap()).collect();
    let is_it =
        |entry: &Entry| entry.statement().act == Act::Admit { node: stranger, name: "stranger".to_owned() };
    assert!(entries.iter().any(is_it), "{entries:?}");
    node.answer(Ok(()));
    assert_eq!(node.invited, [Ok("stranger".to_owned())]);
    assert!(node.machine.trust.view().members().contains_key(&stranger));
}

#[test]
fn who_lets_in_a_node_of_another_cluster_hears_what_is_to_be_done_there_first() {
    let (mut node, other) = (Lone::new(), NodeId([2; 32]));
    let (name, group) = (Some("attic".to_owned()), Some("home".to_owned()));
    let addresses = vec![([10, 0, 0, 2], 4000).into()];
    let found = DiscoveredNode { node: other, addresses, name, group, is_fresh: false, is_lost: false };
    node.handle(Input::Found(found));
    node.handle(Input::Ask { reply: REPLY, question: Question::Invite { node: other } });
    let [Err(exo_api::AdminError::Conflict { message })] = &node.invited[..] else {
        panic!("{:?}", node.invited)
    };
    assert!(message.starts_with("attic is in another cluster and does not ask to join"), "{message}");
    assert!(message.contains("`exo stop`, `exo leave`") && message.contains("`exo join CODE`"), "{message}");
}

#[test]
fn who_lets_a_stranger_in_hears_that_the_disk_did_not_take_it() {
    let (mut node, stranger) = (Lone::new(), NodeId([2; 32]));
    node.invite(stranger);
    node.sign();
    node.answer(Err(not_there()));
    let message = "the log of trust cannot be written: no space".to_owned();
    assert_eq!(node.invited, [Err(exo_api::AdminError::Disk { message })]);
    assert!(!node.machine.trust.view().members().contains_key(&stranger));
}

#[test]
fn a_refusal_wins_over_an_admission_that_nobody_has_seen_and_else_names_the_removal() {
    let (mut node, stranger) = (Lone::new(), NodeId([2; 32]));
    node.invite(stranger);
    node.refuse(stranger);
    assert_eq!(node.invited, [Ok("stranger".to_owned())]);
    node.sign();
    assert!(node.writes.is_empty(), "the key has signed it, and it is left undone");
    let message = "a person has refused that node meanwhile".to_owned();
    assert_eq!(node.invited[1..], [Err(exo_api::AdminError::Conflict { message })]);

    let mut node = Lone::new();
    node.invite(stranger);
    node.sign();
    node.refuse(stranger);
    node.answer(Ok(()));
    node.refuse(stranger);
    let messages: Vec<String> = node
        .invited
        .iter()
        .map(|heard| heard.as_ref().map_or_else(ToString::to_string, Clone::clone))
        .collect();
    let [on_its_way, let_in, there] = &messages[..] else { panic!("{messages:?}") };
    let removal = format!("`exo remove {stranger}` puts it out");
    assert!(on_its_way.contains("was let in") && on_its_way.ends_with(&removal), "{on_its_way}");
    assert_eq!(let_in, "stranger");
    assert!(there.contains("is a member") && there.ends_with(&removal), "{there}");
}

#[test]
fn who_waits_for_a_disk_that_is_not_sure_hears_in_time_what_is_known() {
    let (mut node, stranger) = (Lone::new(), NodeId([2; 32]));
    node.invite(stranger);
    node.sign();
    node.answer(Err(not_sure()));
    node.ask(4);
    node.wait(LOG_WRITE_MAX - Duration::from_secs(1));
    assert!(node.invited.is_empty() && node.acted.is_empty(), "the disk may be sure any moment");
    node.wait(Duration::from_secs(2));
    let [Err(exo_api::AdminError::Late { message })] = &node.invited[..] else {
        panic!("{:?}", node.invited)
    };
    assert!(message.starts_with("it is signed"), "{message}");
    assert_eq!(node.acted, [(REPLY, Err(ActRefusal::NotSigned { within: LOG_WRITE_MAX }))]);

    node.answer(Ok(()));
    assert!(node.machine.trust.view().members().contains_key(&stranger), "it is there after all");
    assert_eq!((node.invited.len(), node.acted.len(), node.signs.len()), (1, 1, 0), "and nobody hears twice");
}

#[test]
fn who_waits_for_a_disk_that_hangs_hears_in_time_that_it_is_not_sure() {
    let mut node = Lone::new();
    node.ask(2);
    node.sign();
    node.wait(LOG_WRITE_MAX + Duration::from_secs(1));
    assert_eq!(node.acted, [(REPLY, Err(ActRefusal::NotSure { within: LOG_WRITE_MAX }))]);
    node.answer(Err(not_there()));
    assert_eq!(node.acted.len(), 1, "once");
    node.ask(2);
    node.sign();
    node.answer(Ok(()));
    assert_eq!(node.acted[1], (REPLY, Ok(())), "and may be asked again");
}

#[test]
fn an_entry_is_taken_in_behind_others_that_are_passed_over() {
    let mut node = Lone::new();
    let key = node.key.clone();
    let admit = |log: &TrustLog, node: u8| admit(&key, log, node);
    let here = node.machine.trust.log().clone();
    let mut there = here.clone();
    there.insert(admit(&here, 5)).unwrap();
    let entries = [admit(&there, 6), admit(&here, 7)].map(|entry| entry.encode());
    assert!(node.machine.trust_entries(NodeId([9; 32]), &entries));
    let members = node.machine.trust.planned_view().members();
    let is_there = [6, 7].map(|node| members.contains_key(&NodeId([node; 32])));
    assert_eq!(
        is_there,
        [false, true],
        "one follows what is not here, and the other does not follow that one"
    );
}

/// What is placed where a model is on this node, with such a context.
fn placed(me: NodeId, model: ModelId, context_tokens: u32) -> State {
    let layer = LayerShape { weight_bytes: 1, packed_bytes: 1, flops_per_token: 1, kv_bytes_per_token: 1 };
    let shape = ModelShape {
        layers: vec![layer],
        embedding_bytes: 1,
        head_bytes: 1,
        embedding_packed_bytes: 1,
        head_packed_bytes: 1,
        tied: false,
        hidden: 2,
        attention: 2,
        vocab: 100,
        context_tokens_max: context_tokens,
    };
    let (slots, cache_tokens, kv) = (1, context_tokens, KvDType::default());
    let request = InstanceRequest {
        model,
        model_name: "m".to_owned(),
        shape,
        weight_types: None,
        context_tokens,
        slots,
        cache_tokens,
        kv,
        objective: PlaceObjective::Fit,
        pins: Vec::new(),
        excluded: Vec::new(),
        holders: vec![me],
        is_on_demand: false,
    };
    let id = PlacementId { epoch: Epoch { counter: 1, key: me }, number: 1 };
    let stages = vec![Stage::solo(me, DeviceId::cpu(), Shard::pipeline(LayerRange::new(0, 1), 1))];
    let instance = InstanceId(1);
    let placement = Placement { id, instance, model, stages, context_tokens, slots, cache_tokens, kv };
    let event = Event::InstancePlaced { request, placement, memory_bytes: vec![1] };
    State::default().after(&[event]).unwrap()
}

/// Whoever goes on with an answer asks the node that was started anew, before a coordinator has told it.
#[test]
fn a_placed_model_has_the_limits_of_the_log_until_a_coordinator_tells_them() {
    let model = ModelId([9; 32]);
    let mut node = Lone::found(|boot| {
        boot.models = vec![HeldModel {
            model,
            name: "m".to_owned(),
            bytes: 9,
            held_bytes: 9,
            complete: true,
            is_of_hub: false,
            expected_bytes: 0,
            may_go: false,
        }];
        boot.state = placed(boot.samples.facts.node, model, 32_768);
    });
    let limits = node.resolve("m").map(|resolved| resolved.limits);
    assert_eq!(limits, Ok(Some(Limits { context_tokens: 32_768, cache_tokens: 32_768 })));
}

/// The members that it has come to tell it a moment later what they have.
#[test]
fn a_node_that_has_just_joined_does_not_say_for_sure_that_a_model_is_unknown() {
    let mut node = Lone::new();
    assert!(!node.may_be_told(), "alone it knows all there is");
    node.wait(2 * HEARD_WITHIN);
    let mut trust = founded(&node.key, 2);
    trust.insert(admit(&node.key, &trust, 5)).unwrap();
    node.move_to(trust);
    assert!(!node.may_be_told(), "it is not there yet");
    node.answer(Ok(()));
    assert!(node.may_be_told());
    node.wait(HEARD_WITHIN);
    assert!(!node.may_be_told(), "by then it has heard of all");
}

#[test]
fn nothing_is_signed_while_the_disk_is_unsure() {
    let mut node = Lone::unsure();
    node.ask(4);
    assert!(node.signs.is_empty());
    node.wait(2 * AGAIN_AFTER);
    node.answer(Ok(()));
    node.sign();
    node.answer(Ok(()));
    assert_eq!(node.acted, [(REPLY, Ok(())), (REPLY, Ok(()))]);
}

#[test]
fn who_dismisses_the_last_admin_reads_its_name_and_id() {
    let mut node = Lone::new();
    let me = node.machine.me;
    node.act(Act::Dismiss { node: me });
    let [(_, Err(refusal))] = &node.acted[..] else { panic!("{:?}", node.acted) };
    let name = node.machine.name_of(me);
    assert_eq!(
        refusal.to_string(),
        format!("{name} ({me}) is the only admin: appoint another first with `exo admin add`")
    );
    assert_ne!(name, me.to_string());
}
