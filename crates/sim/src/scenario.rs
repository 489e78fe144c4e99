//! Everything that is decided before a run: how many nodes, what they know of each other, what goes wrong,
//! who asks.

use std::time::Duration;

use exo_cluster::Speculation;
use exo_cluster::wire::Drain;
use exo_machine::joining::JOIN_WINDOW_S;
use exo_types::Time;

use crate::clients::{self, Ask, AskWhat, Client};
use crate::draw::{Draw, DrawFor, Draws, mix};
use crate::faults::{self, Fault, FaultKind};
use crate::lies::Lie;
use crate::strangers::Trick;
use crate::windows::{WindowCase, Windows};

/// What a run is about.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Kind {
    /// Things go wrong.
    Faults,
    /// All goes wrong that there is: what does in [`Kind::Faults`] of the same seed, and what came later.
    Everything,
    /// Nothing goes wrong: every request must be answered completely.
    Quiet,
    /// Nothing goes wrong, and the nodes begin as clusters of their own.
    Join,
    /// Things go wrong, and a member lies about the members.
    Lies,
    /// Nothing goes wrong, and members say on the data channel what is not theirs to say.
    Wire,
    /// Nothing goes wrong, all doors are shut, and a machine that nobody let in tries what it can.
    Strangers,
    /// Strangers at join windows that are open, end in the run, or have ended before.
    Window,
}

impl Kind {
    /// All of them, and what each is called.
    pub const ALL: [(Self, &'static str); 8] = [
        (Self::Faults, "faults"),
        (Self::Everything, "everything"),
        (Self::Quiet, "quiet"),
        (Self::Join, "join"),
        (Self::Lies, "lies"),
        (Self::Wire, "wire"),
        (Self::Strangers, "strangers"),
        (Self::Window, "window"),
    ];

    /// The one of this name.
    pub fn named(name: &str) -> Option<Self> {
        Self::ALL.iter().find(|(_, known)| *known == name).map(|(kind, _)| *kind)
    }

    /// Whether things go wrong that end answers.
    fn has_faults(self) -> bool {
        matches!(self, Self::Faults | Self::Everything)
    }

    fn name(self) -> &'static str {
        Self::ALL.iter().find(|(kind, _)| *kind == self).map_or("", |(_, name)| name)
    }
}

/// Which run: a seed, and what is left out of it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct RunSelection {
    /// Fixes everything.
    pub seed: u64,
    /// What it is about.
    pub kind: Kind,
    /// Only these faults, by their place in the list.
    pub only: Option<Vec<usize>>,
    /// Only these clients.
    pub clients: Option<Vec<usize>>,
    /// So many nodes.
    pub nodes: Option<usize>,
    /// So long.
    pub seconds: Option<u64>,
}

impl RunSelection {
    /// All of a seed.
    pub fn all(seed: u64, kind: Kind) -> Self {
        Self { seed, kind, only: None, clients: None, nodes: None, seconds: None }
    }

    /// The command that runs this again.
    pub fn command(&self) -> String {
        let mut command = format!("cargo xtask sim --seed {}", self.seed);
        if self.kind != Kind::Faults {
            command.push_str(&format!(" --kind {}", self.kind.name()));
        }
        let lists = [("--only", &self.only), ("--clients", &self.clients)];
        for (option, list) in lists.into_iter().filter_map(|(option, list)| Some((option, list.as_ref()?))) {
            let numbers: Vec<String> = list.iter().map(usize::to_string).collect();
            let numbers = if numbers.is_empty() { "none".to_owned() } else { numbers.join(",") };
            command.push_str(&format!(" {option} {numbers}"));
        }
        if let Some(nodes) = self.nodes {
            command.push_str(&format!(" --nodes {nodes}"));
        }
        if let Some(seconds) = self.seconds {
            command.push_str(&format!(" --seconds {seconds}"));
        }
        command
    }
}

/// A run, decided.
#[derive(Clone, Debug)]
pub struct Scenario {
    /// Fixes every draw.
    pub seed: u64,
    /// What it is about.
    pub kind: Kind,
    /// The LAN of each node. Discovery works within one.
    pub lans: Vec<u8>,
    /// The nodes are one cluster from the start, but for newcomers.
    pub is_founded: bool,
    /// So many nodes, the last ones, are alone all the same, and start later.
    pub newcomers: usize,
    /// What the join windows are about, if they are what the run is about.
    pub windows: Option<Windows>,
    /// Which nodes have the model.
    pub holders: Vec<bool>,
    /// Stages that the model is placed over at least.
    pub stages_min: u32,
    /// How tokens are guessed ahead.
    pub speculation: Speculation,
    /// What goes wrong.
    pub faults: Vec<Fault>,
    /// Who asks.
    pub clients: Vec<Client>,
    /// What people ask.
    pub asks: Vec<Ask>,
    /// The first starts of the nodes lie within so many milliseconds.
    pub starts_ms: u64,
    /// How long.
    pub until: Time,
}

/// Nodes of the largest cluster.
pub const NODES_MAX: usize = 9;
/// So many runs of everything have more nodes than others have.
const LARGE_PER_CENT: u64 = 25;
/// The usual length of a run.
pub const SECONDS: u64 = 60;
/// A run goes on for so long behind its last fault: the cluster must serve again by then.
const BEHIND_FAULTS: Duration = Duration::from_secs(25);
/// The first starts of nodes lie within these, in milliseconds. Fresh nodes find each other also when some
/// are late.
const STARTS_MS: u64 = 400;
const STARTS_JOINING_MS: u64 = 3_000;
/// A newcomer starts so much later.
pub(crate) const NEWCOMER_AFTER_MS: u64 = 5_000;
/// Faults begin within these: there is time left to recover. Clusters that form while nodes do not hear each
/// other may stay apart.
const FAULTS_MS: (u64, u64) = (100, 27_000);
const FAULTS_JOINING_MS: (u64, u64) = (8_000, 27_000);
/// Requests begin within these.
const CLIENTS_MS: (u64, u64) = (500, 40_000);
/// Who must be answered asks when all nodes are there.
const CLIENTS_QUIET_MS: (u64, u64) = (6_000, 40_000);
/// A node that somebody waits for joins nobody, and one of its own may have no model.
const CLIENTS_JOINING_MS: (u64, u64) = (10_000, 40_000);
/// A member says that it leads within these: another one does by then.
const CLAIMS_OF_LEAD_MS: (u64, u64) = (8_000, 40_000);
/// At windows strangers do something within these.
const AT_WINDOWS_MS: (u64, u64) = (50, 45_000);

impl Scenario {
    /// The run of a choice.
    pub fn new(choice: &RunSelection) -> Self {
        let (seed, kind) = (choice.seed, choice.kind);
        let mut draws = Draws::new(seed, DrawFor::Scenario, 0);
        let drawn = draws.draw().between(2, 6) as usize;
        let windows = (kind == Kind::Window).then(|| Windows::drawn(seed));
        let nodes = choice.nodes.unwrap_or_else(|| nodes_of(seed, kind, windows, drawn)).clamp(1, NODES_MAX);
        let (founded, fault_count, client_count, stages, apart, remove) =
            (draws.draw(), draws.draw(), draws.draw(), draws.draw(), draws.draw(), draws.draw());
        let is_founded = match kind {
            Kind::Join => false,
            Kind::Lies | Kind::Wire | Kind::Strangers => true,
            Kind::Window => windows.is_some_and(|windows| windows.is_founded),
            Kind::Faults | Kind::Everything | Kind::Quiet => founded.per_cent(80),
        };
        let mut faults = faults_of(seed, kind, is_founded, fault_count);
        faults.extend(windows.into_iter().flat_map(|windows| faults_at(seed, windows.case)));
        let (from_ms, until_ms) = match kind {
            _ if !is_founded => CLIENTS_JOINING_MS,
            Kind::Quiet | Kind::Lies | Kind::Wire | Kind::Strangers | Kind::Window => CLIENTS_QUIET_MS,
            Kind::Faults | Kind::Everything | Kind::Join => CLIENTS_MS,
        };
        let mut clients = clients::list(seed, client_count.between(4, 24) as usize, from_ms, until_ms);
        if kind == Kind::Everything {
            clients.iter_mut().for_each(|client| client.reads = clients::reading(seed, client.index));
        }
        if let Some(only) = &choice.only {
            faults.retain(|fault| only.contains(&fault.index));
        }
        if let Some(only) = &choice.clients {
            clients.retain(|client| only.contains(&client.index));
        }
        // A node that somebody waits for joins nobody.
        clients.retain(|_| windows.is_none());
        // Only who knows where its members are can be on another LAN: clusters that form apart stay apart.
        let is_apart = is_founded && windows.is_none() && apart.per_cent(20);
        let lan =
            |node: usize| u8::from(is_apart && mix(seed, DrawFor::Scenario, 100 + node as u64).per_cent(40));
        let speculation = if mix(seed, DrawFor::Scenario, 50).per_cent(70) {
            Speculation::Lookup
        } else {
            Speculation::Off
        };
        let stages_min = (stages.between(1, 3) as u32).min(nodes as u32);
        let mut scenario = Self {
            seed,
            kind,
            lans: (0..nodes).map(lan).collect(),
            is_founded,
            newcomers: usize::from(nodes > 1 && windows.is_some_and(|w| w.case == WindowCase::Newcomer)),
            windows,
            holders: (0..nodes)
                .map(|n| n < 2 || mix(seed, DrawFor::Scenario, 200 + n as u64).per_cent(50))
                .collect(),
            stages_min,
            speculation,
            faults,
            clients,
            asks: match windows {
                Some(windows) => windows.asks(seed, nodes),
                None => asks(seed, kind, (is_founded, nodes, stages_min), remove.per_cent(25)),
            },
            starts_ms: if is_founded { STARTS_MS } else { STARTS_JOINING_MS },
            until: Time::from_millis(1000 * choice.seconds.unwrap_or(SECONDS)),
        };
        if choice.seconds.is_none() {
            scenario.until = scenario.until.max(scenario.calm_from() + BEHIND_FAULTS);
        }
        scenario
    }

    /// For how long clusters let strangers in on sight once they were founded.
    pub fn window_s(&self) -> u64 {
        match self.windows {
            Some(windows) => windows.by_clock_s,
            None if self.kind == Kind::Strangers => 0,
            None => JOIN_WINDOW_S,
        }
    }

    /// Whether somebody asks with the keys of nodes, as who has their disks.
    pub fn has_thief(&self) -> bool {
        let is_theft =
            |kind: &FaultKind| matches!(kind, FaultKind::Stranger { trick: Trick::AskAs { .. }, .. });
        self.faults.iter().any(|fault| is_theft(&fault.kind))
    }

    /// When a member first says that it leads and does not, in a run that is about that.
    pub fn lead_claimed_from(&self) -> Option<Time> {
        let is_claim = |fault: &&Fault| {
            matches!(fault.kind, FaultKind::Lie { lie: Lie::TakesLead | Lie::SeeksAndTakesLead, .. })
        };
        self.faults.iter().filter(is_claim).map(|fault| fault.at).min()
    }

    /// So many nodes, the first ones, are one cluster from the start, if any are.
    pub fn founded(&self) -> usize {
        if self.is_founded { self.nodes() - self.newcomers } else { 0 }
    }

    /// When the last node has started, if none ends.
    pub fn last_start(&self) -> Time {
        let later_ms = if self.newcomers > 0 { NEWCOMER_AFTER_MS } else { 0 };
        Time::from_millis(self.starts_ms + later_ms)
    }

    /// How many nodes.
    pub fn nodes(&self) -> usize {
        self.lans.len()
    }

    /// Whether something goes wrong that may end requests.
    pub fn is_disturbed(&self) -> bool {
        let is_told = |fault: &Fault| {
            matches!(
                fault.kind,
                FaultKind::Lie { .. }
                    | FaultKind::LieOfData { .. }
                    | FaultKind::Withhold { .. }
                    | FaultKind::Stranger { .. }
            )
        };
        let removes = self.asks.iter().any(|ask| matches!(ask.what, AskWhat::RemoveNode { .. }));
        self.kind.has_faults() || self.windows.is_some() || removes || !self.faults.iter().all(is_told)
    }

    /// Nodes that an admin appoints, if it gets to it.
    pub fn appointed(&self) -> impl Iterator<Item = usize> {
        self.asks.iter().filter_map(|ask| match ask.what {
            AskWhat::Appoint { node } => Some(node),
            AskWhat::Place | AskWhat::Unload | AskWhat::Drain { .. } | AskWhat::RemoveNode { .. } => None,
        })
    }

    /// When the last fault is over, and all nodes may have stages.
    pub fn calm_from(&self) -> Time {
        let standing = Time::from_millis(if self.is_founded { 5_000 } else { 10_000 });
        let is_over = |ask: &&Ask| matches!(ask.what, AskWhat::Drain { drain: Drain::Over, .. });
        let undone = self.asks.iter().filter(is_over).map(|ask| ask.at);
        self.faults.iter().map(Fault::over).chain(undone).fold(standing, Time::max)
    }
}

fn nodes_of(seed: u64, kind: Kind, windows: Option<Windows>, drawn: usize) -> usize {
    // A node that is alone is taken over most easily.
    let is_alone = kind == Kind::Strangers && mix(seed, DrawFor::Scenario, 90).per_cent(25);
    // Large clusters take long, so they are a part of the runs.
    let is_large = kind == Kind::Everything && mix(seed, DrawFor::Scenario, 61).per_cent(LARGE_PER_CENT);
    match (windows, is_alone, is_large) {
        (Some(windows), ..) => windows.nodes,
        (None, true, _) => 1,
        (None, false, true) => mix(seed, DrawFor::Scenario, 62).between(7, NODES_MAX as u64) as usize,
        (None, false, false) => drawn,
    }
}

/// What strangers do at windows; and where these end, how nodes restart and clocks are set.
fn faults_at(seed: u64, case: WindowCase) -> Vec<Fault> {
    let (from_ms, until_ms) = AT_WINDOWS_MS;
    let count = mix(seed, DrawFor::Scenario, 92).between(20, 60) as usize;
    let mut faults = faults::tricks_at_windows(seed, case, count, from_ms, until_ms);
    if !case.becomes_one() {
        let count = mix(seed, DrawFor::Scenario, 93).between(0, 4) as usize;
        faults.extend(faults::restarts_and_clocks(seed, count, from_ms, until_ms));
    }
    faults
}

/// What goes wrong in a run, and what its liars and strangers do.
fn faults_of(seed: u64, kind: Kind, is_founded: bool, fault_count: Draw) -> Vec<Fault> {
    let (from_ms, until_ms) = if is_founded { FAULTS_MS } else { FAULTS_JOINING_MS };
    let (faults, lies) = match kind {
        Kind::Faults | Kind::Everything => (fault_count.between(1, 7), 0),
        Kind::Lies => (fault_count.between(0, 3), mix(seed, DrawFor::Scenario, 60).between(3, 20)),
        Kind::Quiet | Kind::Join | Kind::Wire | Kind::Strangers | Kind::Window => (0, 0),
    };
    let mut faults = faults::list(seed, faults as usize, from_ms, until_ms);
    faults.extend(faults::lies(seed, lies as usize, from_ms, until_ms));
    if kind.has_faults() && mix(seed, DrawFor::Scenario, 70).per_cent(40) {
        faults.extend(faults::rare(seed, 1, from_ms, until_ms));
    }
    if kind.has_faults() && mix(seed, DrawFor::Scenario, 71).per_cent(30) {
        let count = mix(seed, DrawFor::Scenario, 72).between(1, 2) as usize;
        faults.extend(faults::slow_links(seed, count, from_ms, until_ms));
    }
    if matches!(kind, Kind::Faults | Kind::Everything) && mix(seed, DrawFor::Scenario, 73).per_cent(20) {
        faults.extend(faults::udp_cuts(seed, 1, from_ms, until_ms));
    }
    if kind == Kind::Everything {
        let count = mix(seed, DrawFor::Scenario, 74).between(1, 4) as usize;
        faults.extend(faults::later(seed, count, from_ms, until_ms));
        // A clock that is set shuts the window by which fresh nodes join, as it should.
        faults.retain(|fault| is_founded || !matches!(fault.kind, FaultKind::SetWallClock { .. }));
    }
    // By itself: what else goes wrong may cost a coordinator its lead.
    if is_about_lead(seed, kind) {
        let count = mix(seed, DrawFor::Scenario, 76).between(10, 100) as usize;
        faults = faults::claims_of_lead(seed, count, CLAIMS_OF_LEAD_MS.0, CLAIMS_OF_LEAD_MS.1);
    }
    if kind == Kind::Wire {
        let count = mix(seed, DrawFor::Scenario, 80).between(10, 40) as usize;
        faults.extend(faults::lies_of_data(seed, count, CLIENTS_QUIET_MS.0, CLIENTS_QUIET_MS.1));
    }
    if kind == Kind::Strangers {
        let count = mix(seed, DrawFor::Scenario, 91).between(10, 60) as usize;
        faults.extend(faults::tricks(seed, count, CLIENTS_QUIET_MS.0, CLIENTS_QUIET_MS.1));
    }
    faults
}

fn asks(
    seed: u64,
    kind: Kind,
    (is_founded, nodes, stages_min): (bool, usize, u32),
    removes: bool,
) -> Vec<Ask> {
    let draw = |counter: u64| mix(seed, DrawFor::Scenario, 300 + counter);
    let mut asks = Vec::new();
    if draw(0).per_cent(75) {
        // A node that has placed a model is no new one any more, and joins nobody that it finds.
        let (from_ms, until_ms) = if is_founded { (800, 3_000) } else { CLIENTS_JOINING_MS };
        let at = draw(1).time_ms(from_ms, until_ms);
        asks.push(Ask { at, node: draw(2).below(60) as usize, what: AskWhat::Place });
    }
    if removes && kind.has_faults() {
        let at = draw(3).time_ms(10_000, 30_000);
        asks.push(Ask { at, node: draw(4).below(60) as usize, what: AskWhat::Unload });
    }
    // With as many stages as nodes, requests are refused while one is drained: of a quiet run that is broken.
    let may_drain = kind.has_faults() || kind == Kind::Quiet && (stages_min as usize) < nodes;
    if may_drain && draw(5).per_cent(40) {
        let whom = draw(6).below(nodes as u64) as usize;
        let drain = if draw(7).per_cent(70) { Drain::Lasting } else { Drain::Leaving };
        let at = draw(8).time_ms(4_000, 30_000);
        // Only a node itself leaves.
        let node = if drain == Drain::Leaving { whom } else { draw(9).below(60) as usize };
        asks.push(Ask { at, node, what: AskWhat::Drain { node: whom, drain } });
        let at = at + Duration::from_millis(15_000 + draw(10).below(10_000));
        let (node, drain) = (draw(11).below(60) as usize, Drain::Over);
        // Once more when the halves of a cluster are one again: what the one that gives up had decided is
        // lost.
        for at in [at, Time::from_millis(44_000)] {
            asks.push(Ask { at, node, what: AskWhat::Drain { node: whom, drain } });
        }
    }
    if kind.has_faults() && is_founded && draw(12).per_cent(40) {
        asks.extend(placing_and_unloading(seed));
    }
    if kind == Kind::Lies {
        asks.extend(of_admins(seed, nodes));
    }
    if is_about_lead(seed, kind) {
        asks.retain(|ask| !matches!(ask.what, AskWhat::RemoveNode { .. }));
    }
    asks
}

/// Whether a member says in this run that it leads.
fn is_about_lead(seed: u64, kind: Kind) -> bool {
    kind == Kind::Lies && mix(seed, DrawFor::Scenario, 75).per_cent(20)
}

/// People place and unload while things go wrong: what they are told is done must last.
fn placing_and_unloading(seed: u64) -> Vec<Ask> {
    let draw = |counter: u64| mix(seed, DrawFor::Scenario, 340 + counter);
    let ask = |number: u64| Ask {
        at: draw(3 * number + 1).time_ms(2_000, 30_000),
        node: draw(3 * number + 2).below(60) as usize,
        what: if draw(3 * number + 3).per_cent(50) { AskWhat::Place } else { AskWhat::Unload },
    };
    (0..draw(0).between(3, 10)).map(ask).collect()
}

/// The founder appoints a second admin, and one of the two removes a node; each in some runs.
fn of_admins(seed: u64, nodes: usize) -> Vec<Ask> {
    let draw = |counter: u64| mix(seed, DrawFor::Scenario, 320 + counter);
    let mut asks = Vec::new();
    let second = (nodes > 1 && draw(0).per_cent(50)).then(|| 1 + draw(1).below(nodes as u64 - 1) as usize);
    if let Some(node) = second {
        let at = draw(2).time_ms(2_000, 15_000);
        asks.push(Ask { at, node: 0, what: AskWhat::Appoint { node } });
    }
    let gone = 1 + draw(3).below(nodes.max(2) as u64 - 1) as usize;
    if nodes > 3 && draw(4).per_cent(40) && second != Some(gone) {
        let (at, by) = (draw(5).time_ms(5_000, 25_000), second.filter(|_| draw(6).per_cent(50)).unwrap_or(0));
        asks.push(Ask { at, node: by, what: AskWhat::RemoveNode { node: gone } });
    }
    asks
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn leaving_out_a_fault_or_a_client_moves_no_other() {
        let all = Scenario::new(&RunSelection::all(4711, Kind::Faults));
        let (faults, clients) = (vec![all.faults[0].index], vec![2, 3]);
        let choice = RunSelection {
            only: Some(faults),
            clients: Some(clients),
            ..RunSelection::all(4711, Kind::Faults)
        };
        let less = Scenario::new(&choice);
        assert_eq!(less.faults, all.faults[..1]);
        assert_eq!(less.clients, all.clients[2..4]);
        assert_eq!((less.lans, less.stages_min, less.asks), (all.lans, all.stages_min, all.asks));
    }

    #[test]
    fn a_run_of_everything_has_the_faults_of_its_seed_and_more() {
        let mut largest = 0;
        for seed in 0..50 {
            let of = |kind| Scenario::new(&RunSelection::all(seed, kind));
            let (usual, all) = (of(Kind::Faults), of(Kind::Everything));
            assert_eq!(all.faults[..usual.faults.len()], usual.faults, "seed {seed}");
            assert_eq!(all.asks.len(), usual.asks.len(), "seed {seed}");
            assert!(usual.nodes() <= 6 && (all.nodes() == usual.nodes() || all.nodes() > 6), "seed {seed}");
            largest = largest.max(all.nodes());
        }
        assert_eq!(largest, NODES_MAX);
    }

    #[test]
    fn a_choice_prints_the_command_that_makes_it() {
        let choice = RunSelection {
            only: Some(vec![3, 7]),
            clients: Some(Vec::new()),
            nodes: Some(2),
            ..RunSelection::all(4711, Kind::Faults)
        };
        assert_eq!(choice.command(), "cargo xtask sim --seed 4711 --only 3,7 --clients none --nodes 2");
    }
}
