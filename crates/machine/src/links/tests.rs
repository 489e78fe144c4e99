//! Each rule of links alone, then two machines wired together over many seeds.

mod pair;
mod two_processes;
mod two_sides;

use exo_cluster::wire::{StepMessage, TokensMessage};
use exo_types::{Epoch, PlacementId, StepFrame, Term, Transport, WireDType};

use super::*;

const ME: NodeId = NodeId([5; 32]);
const LOWER: NodeId = NodeId([1; 32]);
const HIGHER: NodeId = NodeId([9; 32]);

fn ms(ms: u64) -> Time {
    Time::from_millis(ms)
}

fn at(port: u16) -> SocketAddr {
    SocketAddr::from(([10, 0, 0, 1], port))
}

fn placement() -> PlacementId {
    PlacementId { epoch: Epoch { counter: 1, key: NodeId([1; 32]) }, number: 1 }
}

/// A message that is told from others by its number.
pub(super) fn numbered(number: u64) -> Box<DataMessage> {
    let (results, failures) = (vec![], vec![]);
    Box::new(DataMessage::Tokens(TokensMessage {
        placement: placement(),
        term: Term::FIRST,
        step: number,
        results,
        failures,
        pages: vec![],
        kept: vec![],
        rebuilds: None,
        computed_us: vec![],
    }))
}

pub(super) fn number_of(message: &DataMessage) -> u64 {
    match message {
        DataMessage::Tokens(tokens) => tokens.step,
        DataMessage::Step(step) => step.frame.step,
        other => panic!("{other:?}"),
    }
}

fn with_rows(bytes: usize) -> Box<DataMessage> {
    let frame = StepFrame { placement: placement(), term: Term::FIRST, step: 1, sequences: vec![] };
    let (commands, failures, rows_dtype) = (vec![], vec![], WireDType::F32);
    Box::new(DataMessage::Step(StepMessage {
        stage: 1,
        commands,
        frame,
        failures,
        pages: vec![],
        kept: vec![],
        rebuilds: None,
        computed_us: vec![],
        rows_dtype,
        rows: vec![0; bytes].into(),
    }))
}

/// One side, driven by hand; what it puts out is compared as lines.
struct One {
    links: Links,
    out: Vec<LinksOutput>,
}

impl One {
    /// Knows where `peer` is, and is a member with it since time 0.
    fn with(peer: NodeId) -> Self {
        let links = Links::new(ME, 100, [7; 32], BTreeMap::from([(peer, vec![at(1)])]));
        let mut one = Self { links, out: vec![] };
        one.links.set_members(ms(0), &BTreeSet::from([ME, peer]), &mut one.out);
        one
    }

    /// What it put out since the last call; pings are left out.
    fn told(&mut self) -> Vec<String> {
        let line = |output: &LinksOutput| match output {
            LinksOutput::Effect(Effect::Dial { dial, purpose, .. }) => format!("dial {} {purpose:?}", dial.0),
            LinksOutput::Effect(Effect::Send { link, message }) => match message {
                Outgoing::Data(message) => format!("send {} #{}", link.0, number_of(message)),
                Outgoing::Control(_) => format!("send {} control", link.0),
                Outgoing::Accept { incarnation: 100 } => format!("send {} Accept", link.0),
                other => format!("send {} {other:?}", link.0),
            },
            LinksOutput::Effect(Effect::CloseLink { link, reason }) => format!("close {} {reason:?}", link.0),
            LinksOutput::Effect(other) => panic!("{other:?}"),
            LinksOutput::Up { purpose, .. } => format!("up {purpose:?}"),
            LinksOutput::Down { purpose, reason, .. } => format!("down {purpose:?} {reason:?}"),
            LinksOutput::Undeliverable { message, waited, .. } => {
                format!("undeliverable #{} after {} ms", number_of(message), waited.as_millis())
            }
            LinksOutput::TwoProcesses { .. } => "two processes".to_owned(),
            LinksOutput::KeyElsewhere { .. } => "key elsewhere".to_owned(),
        };
        self.out.drain(..).map(|output| line(&output)).filter(|line| !line.ends_with("Ping")).collect()
    }

    /// The peer dialled, and its data link `id` stands.
    fn offered(&mut self, now: u64, id: u64, peer: NodeId) {
        self.links.up(ms(now), LinkId(id), peer, Purpose::Data, Transport::Tcp, at(999), None, &mut self.out);
    }

    /// Our own attempt led to the data link `id`.
    fn dialled(&mut self, now: u64, id: u64, peer: NodeId, dial: u64) {
        let dial = Some(DialId(dial));
        self.links.up(ms(now), LinkId(id), peer, Purpose::Data, Transport::Tcp, at(1), dial, &mut self.out);
    }

    fn accepted(&mut self, now: u64, id: u64) {
        self.accepted_by(now, id, 200);
    }

    /// This run of the peer's process says Accept.
    fn accepted_by(&mut self, now: u64, id: u64, incarnation: u64) {
        self.links.accepted(ms(now), LinkId(id), incarnation, &mut self.out);
    }

    /// A control link to the higher peer, which was dialled and is open at once.
    fn control(&mut self, now: u64, id: u64, via: Transport, dial: u64) {
        let dial = Some(DialId(dial));
        self.links.up(ms(now), LinkId(id), HIGHER, Purpose::Control, via, at(1), dial, &mut self.out);
        self.accepted(now, id);
    }

    /// Over which transport a control link is dialled first, if one was since the last call.
    fn control_dialled(&mut self) -> Option<Transport> {
        self.out.drain(..).find_map(|output| match output {
            LinksOutput::Effect(Effect::Dial { purpose: Purpose::Control, addresses, .. }) => {
                addresses.first().map(|(via, _)| *via)
            }
            _ => None,
        })
    }

    /// Of each control link that ended whether the data link lives.
    fn control_ended_outlived(&self) -> Vec<bool> {
        let ended = |output: &LinksOutput| match output {
            LinksOutput::Down { purpose: Purpose::Control, is_outlived, .. } => Some(*is_outlived),
            _ => None,
        };
        self.out.iter().filter_map(ended).collect()
    }

    /// A pong comes.
    fn heard(&mut self, now: u64, id: u64) {
        self.links.heard(ms(now), LinkId(id), None, &mut self.out);
    }

    fn down(&mut self, now: u64, id: u64) {
        self.links.down(ms(now), LinkId(id), LinkEnd::Reset("gone".into()), &mut self.out);
    }

    fn send(&mut self, now: u64, to: NodeId, message: Box<DataMessage>) {
        self.links.send_data(ms(now), to, message, &mut self.out);
    }

    /// Calls the timer at every deadline up to `until`, and gives these times in milliseconds.
    fn run(&mut self, until: u64) -> Vec<u64> {
        let mut times = vec![];
        while self.links.next_deadline() <= ms(until) {
            let now = self.links.next_deadline();
            self.links.timer(now, &mut self.out);
            assert!(
                self.links.next_deadline() > now,
                "the timer was called and asks to be called again at once"
            );
            times.push(now.0 / 1000);
        }
        times
    }
}

#[test]
fn the_lower_id_dials_at_once_and_the_higher_one_later() {
    assert_eq!(One::with(HIGHER).told(), ["dial 1 Control", "dial 2 Data"]);
    let mut one = One::with(LOWER);
    assert_eq!(one.told(), [""; 0]);
    assert_eq!(one.run(5000), [1200], "and no time before");
    assert_eq!(one.told(), ["dial 1 Control", "dial 2 Data"]);
    assert_eq!(one.run(9699), [""; 0].map(|_| 0), "nothing to wait for while both are under way");
    assert_eq!(one.run(9700), [9700], "0.5 s until the last way, 3 s for it, and 5 s for the answer itself");
    assert_eq!(one.run(9900), [9900], "an attempt without an answer has failed");
    assert_eq!(one.told(), ["dial 3 Control", "dial 4 Data"]);
}

#[test]
fn control_prefers_quic_and_data_tcp() {
    let mut one = One::with(HIGHER);
    let mut ways = one.out.drain(..).map(|output| match output {
        LinksOutput::Effect(Effect::Dial { addresses, within, .. }) => (addresses, within),
        other => panic!("{other:?}"),
    });
    let within = Duration::from_millis(3500);
    assert_eq!(ways.next().unwrap(), (vec![(Transport::Quic, at(1)), (Transport::Tcp, at(1))], within));
    assert_eq!(ways.next().unwrap(), (vec![(Transport::Tcp, at(1)), (Transport::Quic, at(1))], within));
}

#[test]
fn who_dialled_says_accept_first_and_sends_messages_after_the_answer() {
    let mut one = One::with(HIGHER);
    one.told();
    one.send(10, HIGHER, numbered(1));
    one.dialled(20, 7, HIGHER, 2);
    one.send(25, HIGHER, numbered(2));
    assert_eq!(one.told(), ["send 7 Accept"]);
    assert!(!one.links.is_open(HIGHER, Purpose::Data));
    one.accepted(30, 7);
    one.send(40, HIGHER, numbered(3));
    assert_eq!(one.told(), ["send 7 #1", "send 7 #2", "up Data", "send 7 #3"]);
    assert_eq!(**one.links.open_data(), BTreeSet::from([HIGHER]));
    assert_eq!(one.links.via(HIGHER), Some(Transport::Tcp));
}

#[test]
fn who_did_not_dial_answers_and_opens() {
    let mut one = One::with(LOWER);
    one.offered(10, 7, LOWER);
    assert_eq!(one.links.message(ms(11), LinkId(7)), None);
    assert_eq!(one.told(), [""; 0]);
    one.accepted(12, 7);
    assert_eq!(one.told(), ["send 7 Accept", "up Data"]);
    assert_eq!(one.links.message(ms(13), LinkId(7)), Some(LOWER));
    assert_eq!(one.links.addresses(LOWER), [at(1)], "where a connection comes from is no address to dial");
}

#[test]
fn a_link_that_is_not_accepted_in_three_seconds_closes() {
    let mut one = One::with(HIGHER);
    one.dialled(100, 7, HIGHER, 2);
    one.offered(200, 8, HIGHER);
    one.told();
    assert_eq!(one.run(3200)[..2], [3100, 3200]);
    assert_eq!(one.told()[..2], ["close 7 NotAccepted", "close 8 NotAccepted"]);
}

#[test]
fn the_lower_id_keeps_its_own_link_of_two_and_the_higher_id_follows() {
    let mut lower = One::with(HIGHER);
    lower.dialled(10, 7, HIGHER, 2);
    lower.offered(11, 8, HIGHER);
    lower.told();
    lower.accepted(12, 8);
    assert_eq!(lower.told(), [""; 0], "no second Accept");
    lower.accepted(13, 7);
    assert_eq!(lower.told(), ["close 8 Replaced", "up Data"]);

    let mut higher = One::with(LOWER);
    higher.run(1200);
    higher.dialled(1210, 7, LOWER, 2);
    higher.offered(1211, 8, LOWER);
    higher.told();
    higher.accepted(1212, 8);
    assert_eq!(higher.told(), ["close 7 Replaced", "send 8 Accept", "up Data"]);
}

#[test]
fn the_lower_id_drops_its_own_attempt_when_the_other_link_is_open_already() {
    let mut one = One::with(HIGHER);
    one.offered(10, 8, HIGHER);
    one.accepted(11, 8);
    one.told();
    one.dialled(12, 7, HIGHER, 2);
    assert_eq!(one.told(), ["close 7 Replaced"]);
    assert!(one.links.is_open(HIGHER, Purpose::Data));
}

#[test]
fn a_link_that_contends_takes_its_turn_when_the_other_one_ends_or_is_in_doubt() {
    let contended = || {
        let mut one = One::with(HIGHER);
        one.dialled(10, 7, HIGHER, 2);
        one.accepted(20, 7);
        one.offered(1500, 8, HIGHER);
        one.accepted(1500, 8);
        one.told();
        one
    };
    let mut one = contended();
    one.down(1600, 7);
    assert_eq!(one.told(), ["down Data Reset(\"gone\")", "send 8 Accept", "up Data"]);
    let mut one = contended();
    one.run(2020);
    assert_eq!(one.told(), ["close 7 Silent", "down Data Silent", "send 8 Accept", "up Data"]);
    let mut one = contended();
    one.heard(2000, 7);
    one.run(3000);
    assert_eq!(one.told(), [""; 0]);
}

#[test]
fn the_same_side_dialling_again_has_lost_the_first() {
    let mut one = One::with(LOWER);
    for id in 7..=7 + OFFERS_MAX as u64 {
        one.offered(id, id, LOWER);
    }
    assert_eq!(one.told(), ["close 7 Replaced"], "more offers than may stand");
    one.accepted(30, 8);
    one.accepted(31, 9);
    let open = ["send 8 Accept", "up Data", "close 8 Replaced", "down Data Replaced"];
    assert_eq!(one.told(), [&open[..], &["send 9 Accept", "up Data"]].concat());
}

#[test]
fn an_accept_from_before_the_open_link_changes_nothing() {
    let mut one = One::with(LOWER);
    one.offered(1, 7, LOWER);
    one.offered(2, 8, LOWER);
    one.accepted(3, 8);
    one.told();
    one.accepted(4, 7);
    assert_eq!(one.told(), ["close 7 Replaced"]);
    assert!(one.links.is_open(LOWER, Purpose::Data));
}

#[test]
fn failed_attempts_wait_a_second_for_two_minutes_and_then_longer_until_something_new_is_known() {
    let mut one = One::with(HIGHER);
    let mut now = 0;
    let mut fail = |one: &mut One| {
        let dial = one.links.peers[&HIGHER].data.dial.unwrap().id;
        one.links.dial_failed(ms(now), dial, "refused", &mut one.out);
        let next = one.links.peers[&HIGHER].data.dial_next;
        let (failed, wait) = (now, next.since(ms(now)).as_millis());
        now = next.0.div_ceil(1000);
        (failed, wait)
    };
    let mut waits = vec![fail(&mut one)];
    while waits.last().unwrap().0 < 180_000 {
        let next = one.links.peers[&HIGHER].data.dial_next;
        one.links.timer(next, &mut one.out);
        waits.push(fail(&mut one));
    }
    assert!((200..=400).contains(&waits[0].1), "{waits:?}");
    let (soon, later): (Vec<_>, Vec<_>) = waits[3..].iter().partition(|(failed, _)| *failed < 120_000);
    assert!(soon.iter().all(|(_, wait)| (500..=1000).contains(wait)), "{soon:?}");
    assert!(later.iter().all(|(_, wait)| (5000..=10_000).contains(wait)), "{later:?}");
    one.told();
    let now = ms(waits.last().unwrap().0 + 1);
    one.links.learn(HIGHER, &[at(1)]);
    assert!(one.links.dial_at(HIGHER, Purpose::Data) > Some(now), "known before");
    one.links.learn(HIGHER, &[at(2)]);
    assert!(one.links.next_deadline() <= now);
    one.links.timer(now, &mut one.out);
    assert!(one.told().last().unwrap().ends_with("Data"), "dialled at once");
}

/// For some seconds nothing gets through; then it does, at any moment of a dial. The first packet over each
/// transport is sent again after a second, as TCP and QUIC do.
#[test]
fn a_link_is_back_within_two_seconds_of_being_healed() {
    for healed in (20_000..26_000).step_by(77) {
        let mut one = One::with(HIGHER);
        one.dialled(10, 7, HIGHER, 2);
        one.accepted(20, 7);
        one.links.heard(ms(30), LinkId(7), Some(Duration::from_millis(2)), &mut one.out);
        one.told();
        let mut due: Vec<(u64, DialId, bool)> = vec![];
        let back = loop {
            let now = due.iter().map(|(at, ..)| *at).min().unwrap_or(u64::MAX);
            let timer = one.links.next_deadline().0.div_ceil(1000);
            if timer <= now {
                one.links.timer(ms(timer), &mut one.out);
            } else {
                let next = due.iter().position(|(at, ..)| *at == now).unwrap();
                match due.swap_remove(next) {
                    (_, _, true) => break now,
                    (_, dial, false) => one.links.dial_failed(ms(now), dial, "timed out", &mut one.out),
                }
            }
            let started = now.min(timer);
            for output in one.out.drain(..) {
                let LinksOutput::Effect(Effect::Dial { dial, purpose: Purpose::Data, within, .. }) = output
                else {
                    continue;
                };
                let packets = [0, 500, 1000, 1500].map(|after| started + after);
                let sent = packets.into_iter().find(|sent| *sent >= healed);
                let within_ms = within.as_millis() as u64;
                due.push(sent.map_or((started + within_ms, dial, false), |sent| (sent + 10, dial, true)));
            }
        };
        assert!((healed..healed + 2000).contains(&back), "healed at {healed}, back at {back} ms");
    }
}

#[test]
fn a_lost_link_is_dialled_again_soon() {
    let mut one = One::with(HIGHER);
    one.dialled(10, 7, HIGHER, 2);
    one.accepted(20, 7);
    one.down(500, 7);
    one.told();
    let wait = one.links.next_deadline().since(ms(500)).as_millis();
    assert!((200..=400).contains(&wait), "{wait}");
    one.run(1000);
    assert_eq!(one.told(), ["dial 3 Data"]);

    let mut higher = One::with(LOWER);
    higher.offered(10, 7, LOWER);
    higher.accepted(20, 7);
    higher.down(1500, 7);
    higher.told();
    higher.run(2699);
    assert_eq!(higher.told(), [""; 0], "the lower one has its turn first");
    higher.run(2700);
    assert_eq!(higher.told(), ["dial 2 Data"]);
}

#[test]
fn open_links_are_pinged_about_each_second_and_close_after_six_silent_ones() {
    let mut one = One::with(LOWER);
    one.offered(0, 7, LOWER);
    one.accepted(1000, 7);
    let pings = |one: &mut One| one.out.drain(..).filter(|o| *o == send(LinkId(7), Outgoing::Ping)).count();
    assert_eq!(pings(&mut one), 1, "at once");
    one.run(6999);
    assert_eq!(pings(&mut one), 5);
    one.heard(6999, 7);
    one.run(12_998);
    assert_eq!(pings(&mut one), 5);
    assert_eq!(*one.run(12_999).last().unwrap(), 12_999, "to the millisecond");
    assert_eq!(one.told()[..2], ["close 7 Silent", "down Data Silent"]);
}

#[test]
fn a_control_link_that_is_silent_beside_a_living_data_link_is_dialled_over_the_other_transport() {
    let mut one = One::with(HIGHER);
    assert_eq!(one.control_dialled(), Some(Transport::Quic));
    one.dialled(0, 7, HIGHER, 2);
    one.accepted(0, 7);
    one.control(0, 8, Transport::Quic, 1);
    one.out.clear();
    for second in 1..=4 {
        one.run(1000 * second);
        assert_eq!(one.links.is_open(HIGHER, Purpose::Control), second < 3, "{second} s");
        one.heard(1000 * second, 7);
        let signs = [(HIGHER, ms(1000 * second))];
        assert_eq!(one.links.heard_on_data_alone(ms(1000 * second)), signs);
    }
    assert_eq!(one.control_ended_outlived(), [true]);
    assert_eq!(one.control_dialled(), Some(Transport::Tcp));
    one.control(4000, 9, Transport::Tcp, 3);
    assert_eq!(one.links.heard_on_data_alone(ms(4200)), [], "it has just been heard");
    // A link that is reset says nothing of its transport; and who is asked at once may answer in time.
    one.out.clear();
    one.down(4300, 9);
    assert!(one.out.contains(&send(LinkId(7), Outgoing::Ping)), "{:?}", one.out);
    one.run(4800);
    assert_eq!(one.control_dialled(), Some(Transport::Quic));
}

#[test]
fn a_control_link_that_is_silent_beside_a_silent_data_link_has_six_seconds() {
    let mut one = One::with(HIGHER);
    one.dialled(0, 7, HIGHER, 2);
    one.accepted(0, 7);
    one.control(0, 8, Transport::Quic, 1);
    one.heard(500, 7);
    one.run(5999);
    assert!(one.links.is_open(HIGHER, Purpose::Control));
    one.run(6000);
    assert!(!one.links.is_open(HIGHER, Purpose::Control));
    assert_eq!(one.links.heard_on_data_alone(ms(6000)), [(HIGHER, ms(500))]);
    assert_eq!(one.control_ended_outlived(), [false], "an open data link that says nothing either");
}

#[test]
fn pings_go_with_a_wake_that_comes_before_and_a_control_link_that_speaks_is_seldom_asked() {
    let mut one = One::with(LOWER);
    one.offered(0, 7, LOWER);
    one.accepted(0, 7);
    one.out.clear();
    let early = |one: &mut One, at: u64| {
        one.links.ping_early(ms(at), &mut one.out);
        one.out.drain(..).filter(|o| *o == send(LinkId(7), Outgoing::Ping)).count()
    };
    assert_eq!(early(&mut one, 800), 0, "not so soon");
    assert_eq!(one.links.next_deadline(), ms(1100));
    assert_eq!(early(&mut one, 900), 1);
    assert_eq!(early(&mut one, 1899), 1, "a second later, as samples come");
    // The control link of the same peer, on which messages come all the time.
    let mut control = One::with(LOWER);
    control.links.up(
        ms(0),
        LinkId(9),
        LOWER,
        Purpose::Control,
        Transport::Quic,
        at(9),
        None,
        &mut control.out,
    );
    control.links.accepted(ms(0), LinkId(9), 1, &mut control.out);
    control.out.clear();
    let mut asked = 0;
    for second in 1..=8u64 {
        control.links.message(ms(1000 * second), LinkId(9));
        control.links.ping_early(ms(1000 * second), &mut control.out);
        asked += control.out.drain(..).filter(|o| *o == send(LinkId(9), Outgoing::Ping)).count();
    }
    assert_eq!(asked, 2);
}

#[test]
fn a_node_that_was_held_up_does_not_take_its_own_silence_for_the_peers() {
    let mut one = One::with(LOWER);
    one.offered(0, 7, LOWER);
    one.accepted(0, 7);
    one.told();
    one.links.timer(ms(9000), &mut one.out);
    assert!(one.links.is_open(LOWER, Purpose::Data), "it did not run for 9 s");
    one.run(13_000);
    assert!(one.links.is_open(LOWER, Purpose::Data));
    one.run(14_000);
    assert!(!one.links.is_open(LOWER, Purpose::Data), "6 s of running without a sign of life");
}

#[test]
fn a_node_that_was_held_up_gives_up_neither_its_dials_nor_what_waits_for_a_link_at_once() {
    let mut one = One::with(HIGHER);
    assert_eq!(one.told(), ["dial 1 Control", "dial 2 Data"]);
    one.send(100, HIGHER, numbered(1));
    one.links.timer(ms(60_000), &mut one.out);
    assert_eq!(one.told(), [""; 0], "it did not run, and may hear of both in a moment");
    one.run(61_000);
    assert_eq!(one.told(), ["undeliverable #1 after 2000 ms"]);
    one.run(64_999);
    assert_eq!(one.told(), [""; 0]);
    one.run(66_000);
    assert_eq!(one.told(), ["dial 3 Control", "dial 4 Data"], "5 s for their answers, and the usual wait");
    // One that stands still again and again puts nothing off for ever.
    one.send(66_100, HIGHER, numbered(2));
    let mut now = 66_100;
    for _ in 0..3 {
        now += 60_000;
        one.links.timer(ms(now), &mut one.out);
    }
    let told = one.told();
    assert!(told.iter().any(|line| line.starts_with("undeliverable #2")), "{told:?}");
    one.run(now + 1000);
    assert_eq!(one.told(), ["dial 5 Control", "dial 6 Data"]);
}

#[test]
fn a_message_waits_two_seconds_for_its_link() {
    let mut one = One::with(HIGHER);
    one.told();
    one.send(100, HIGHER, numbered(1));
    one.send(900, HIGHER, numbered(2));
    assert_eq!(one.run(2500), [2100]);
    assert_eq!(one.told(), ["undeliverable #1 after 2000 ms"]);
    one.dialled(2600, 7, HIGHER, 2);
    one.accepted(2700, 7);
    assert_eq!(one.told(), ["send 7 Accept", "send 7 #2", "up Data"]);
}

#[test]
fn only_so_much_waits() {
    let mut one = One::with(HIGHER);
    one.told();
    for number in 0..=held::MESSAGES_MAX as u64 {
        one.send(0, HIGHER, numbered(number));
    }
    assert_eq!(one.told(), ["undeliverable #64 after 0 ms"]);
    one.send(1, LOWER, with_rows(held::BYTES_MAX / 2));
    assert_eq!(one.told(), [""; 0]);
    one.send(2, NodeId([2; 32]), with_rows(held::BYTES_MAX / 2));
    assert_eq!(one.told(), ["undeliverable #1 after 0 ms"], "of all peers together");
    one.run(2100);
    one.told();
    one.send(2200, LOWER, with_rows(held::BYTES_MAX / 2));
    assert_eq!(one.told(), [""; 0], "there is room again");
}

#[test]
fn what_was_in_a_link_that_ended_is_not_sent_again() {
    let mut one = One::with(LOWER);
    one.offered(0, 7, LOWER);
    one.accepted(0, 7);
    one.send(1, LOWER, numbered(1));
    one.down(2, 7);
    one.told();
    one.offered(3, 8, LOWER);
    one.accepted(3, 8);
    assert_eq!(one.told(), ["send 8 Accept", "up Data"]);
}

#[test]
fn who_is_no_member_any_more_loses_links_messages_and_addresses() {
    let mut one = One::with(LOWER);
    for id in [7, 8] {
        one.offered(0, id, LOWER);
    }
    one.accepted(0, 7);
    one.told();
    one.links.set_members(ms(5), &BTreeSet::from([ME, HIGHER]), &mut one.out);
    assert_eq!(one.told(), ["close 7 NoMember", "down Data NoMember", "close 8 NoMember"]);
    assert!(one.links.addresses(LOWER).is_empty() && one.links.open_data().is_empty());
    one.offered(6, 9, LOWER);
    assert_eq!(one.told(), ["close 9 NoMember"]);

    let mut one = One::with(LOWER);
    one.send(1, LOWER, numbered(1));
    one.links.set_members(ms(5), &BTreeSet::new(), &mut one.out);
    assert_eq!(one.told(), ["undeliverable #1 after 4 ms"]);
}

#[test]
fn an_attempt_from_before_a_removal_comes_too_late() {
    let mut one = One::with(HIGHER);
    for members in [BTreeSet::new(), BTreeSet::from([HIGHER])] {
        one.links.set_members(ms(1), &members, &mut one.out);
    }
    one.links.learn(HIGHER, &[at(1)]);
    one.told();
    one.dialled(2, 7, HIGHER, 2);
    assert_eq!(one.told()[0], "close 7 Replaced");
}

#[test]
fn control_messages_do_not_wait() {
    let mut one = One::with(LOWER);
    let message = Arc::new(ControlMessage::Membership(vec![1]));
    assert!(!one.links.send_control(ms(0), LOWER, &message, &mut one.out));
    one.links.up(ms(0), LinkId(7), LOWER, Purpose::Control, Transport::Quic, at(9), None, &mut one.out);
    one.accepted(0, 7);
    assert!(one.links.send_control(ms(0), LOWER, &message, &mut one.out));
    assert_eq!(one.told(), ["send 7 Accept", "up Control", "send 7 control"]);
    assert_eq!(one.links.reached(), [(LOWER, at(1))]);
    assert!(one.links.open_data().is_empty());
}

#[test]
fn a_member_that_came_back_at_another_address_is_dialled_where_it_comes_from_over_quic() {
    let mut one = One::with(LOWER);
    let mapped = SocketAddr::from((std::net::Ipv4Addr::new(10, 0, 0, 1).to_ipv6_mapped(), 9));
    one.links.up(ms(0), LinkId(7), LOWER, Purpose::Control, Transport::Quic, mapped, None, &mut one.out);
    assert_eq!(one.links.addresses(LOWER), [at(1), at(9)], "behind the one that is proven");
    one.offered(0, 8, LOWER);
    assert_eq!(one.links.addresses(LOWER), [at(1), at(9)], "over TCP another socket dials");
}

#[test]
fn what_was_told_of_a_member_is_not_told_on() {
    let told = |addresses: &[SocketAddr]| {
        let mut one = One::with(LOWER);
        one.links.set_members(ms(0), &BTreeSet::from([LOWER, HIGHER]), &mut one.out);
        one.links.learn_from(LOWER, &addresses.iter().map(|at| (HIGHER, *at)).collect::<Vec<_>>());
        // It has dialled over TCP, so where it listens is what others say.
        one.links.up(ms(0), LinkId(7), HIGHER, Purpose::Control, Transport::Tcp, at(9), None, &mut one.out);
        one.accepted(0, 7);
        assert!(!one.links.addresses(HIGHER).is_empty());
        one.links.reached()
    };
    let elsewhere = SocketAddr::from(([10, 0, 0, 2], 4));
    assert_eq!(told(&[elsewhere]), []);
    assert_eq!(told(&[elsewhere, at(4)]), [(HIGHER, at(4))], "the host that its link comes from");
}

#[test]
fn the_round_trip_is_the_median_of_the_last_nine_over_the_data_link() {
    let mut one = One::with(LOWER);
    one.offered(0, 7, LOWER);
    one.accepted(0, 7);
    one.links.up(ms(0), LinkId(8), LOWER, Purpose::Control, Transport::Quic, at(9), None, &mut one.out);
    for rtt in [1000, 1000, 1000, 5, 3, 4, 1, 2, 6, 9, 8, 7] {
        one.links.heard(ms(1), LinkId(7), Some(Duration::from_millis(rtt)), &mut one.out);
        one.links.heard(ms(1), LinkId(8), Some(Duration::from_millis(77)), &mut one.out);
    }
    // Steps of 2, 1, 3, 1, 4, 3, 1 and 1 ms.
    let trips = RoundTrips {
        median: Duration::from_millis(5),
        jitter: Duration::from_millis(2),
        count: 9,
        age: Duration::from_secs(3),
    };
    assert_eq!(one.links.round_trips(ms(3001), LOWER), Some(trips));
    one.links.down(ms(1), LinkId(7), LinkEnd::Silent, &mut one.out);
    assert_eq!(
        (one.links.round_trips(ms(1), LOWER), one.links.unreached(ms(2000))),
        (None, vec![]),
        "it may be back at once"
    );
    assert_eq!(one.links.unreached(ms(2001)), [LOWER]);
}

#[test]
fn a_members_loopback_is_ours_only_if_it_is_on_this_machine() {
    let local = SocketAddr::from(([127, 0, 0, 1], 5));
    let mut one = One::with(LOWER);
    one.links.set_members(ms(0), &BTreeSet::from([LOWER, HIGHER]), &mut one.out);
    one.links.learn_from(LOWER, &[(HIGHER, local), (ME, at(3)), (NodeId([2; 32]), at(3)), (HIGHER, at(4))]);
    assert_eq!(one.links.addresses(HIGHER), [at(4)]);
    one.links.prefer(LOWER, local);
    one.links.learn_from(LOWER, &[(HIGHER, local)]);
    assert_eq!(one.links.addresses(HIGHER), [at(4), local]);
    assert_eq!(one.links.known(), [(LOWER, vec![local, at(1)])], "where it was reached, and nobody's word");
}
