//! Lines of the log that other nodes cause.
//!
//! Whatever a member sends may be worth a line, and it may send without end. So each line that names a peer
//! (`peer` is among its fields) passes that peer's [`LineBudget`]. What exceeds that is left out, and counted
//! by the target of the line until it is told of ([`PeerLines::take_left_out`]).

use std::collections::BTreeMap;
use std::fmt;
use std::fmt::Write as _;
use std::sync::Arc;
use std::time::{Duration, Instant};

use exo_cluster::wire::limits::MEMBERS_MAX;
use exo_stdx::{LineBudget, Mutex};
use tokio::sync::Notify;
use tracing::field::{Field, Visit};
use tracing::level_filters::LevelFilter;
use tracing::subscriber::Interest;
use tracing::{Event, Level, Metadata};
use tracing_subscriber::layer::{Context, Filter};

/// The field that names a peer.
const PEER: &str = "peer";
const PEER_CHARS_MAX: usize = 40;
/// Peers with a budget of their own. Beyond them, as of strangers with ever new keys, all share one.
const PEERS_MAX: usize = MEMBERS_MAX;
const OTHERS: &str = "others";
/// After its last line, until a peer makes room for another one. A budget of which little was used is whole
/// again at once: without this, ever new keys would have as many budgets.
const QUIET_MIN: Duration = Duration::from_secs(60);
/// Peers that are named with what was left out, those with the most.
const PEERS_NAMED_MAX: usize = 8;

/// What one log takes of lines that name a peer. Clones are the same.
#[derive(Clone, Debug)]
pub(crate) struct PeerLines(Arc<PeerLinesInner>);

#[derive(Debug)]
struct PeerLinesInner {
    /// Of this level and above. Below it somebody has asked for more, and all lines come.
    level: Level,
    /// So many at once, and so many a minute.
    budget: (u32, u32),
    peers: Mutex<BTreeMap<String, PeerBudget>>,
    /// Hears when something is left out.
    is_left_out: Arc<Notify>,
}

#[derive(Debug)]
struct PeerBudget {
    budget: LineBudget,
    last_line: Instant,
    /// Lines, by their targets.
    left_out: BTreeMap<&'static str, u64>,
}

/// What was left out of a log.
#[derive(Debug)]
pub(crate) struct LeftOut {
    pub(crate) lines: u64,
    /// Each target with its lines.
    pub(crate) targets: String,
    /// Some peers with their lines.
    pub(crate) peers: String,
}

impl PeerLines {
    pub(crate) fn new(level: Level, budget: (u32, u32), is_left_out: Arc<Notify>) -> Self {
        Self(Arc::new(PeerLinesInner { level, budget, peers: Mutex::default(), is_left_out }))
    }

    /// What was left out since this was asked last; `None` if nothing was.
    pub(crate) fn take_left_out(&self) -> Option<LeftOut> {
        let (mut of_targets, mut of_peers) = (BTreeMap::<&str, u64>::new(), Vec::new());
        for (peer, own) in self.0.peers.lock().iter_mut() {
            let left_out = std::mem::take(&mut own.left_out);
            if !left_out.is_empty() {
                of_peers.push((left_out.values().sum::<u64>(), peer.clone()));
            }
            left_out.into_iter().for_each(|(target, lines)| *of_targets.entry(target).or_default() += lines);
        }
        of_peers.sort_by(|one, other| other.cmp(one));
        let lines: u64 = of_targets.values().sum();
        let targets: Vec<String> =
            of_targets.into_iter().map(|(target, lines)| format!("{target} {lines}")).collect();
        let named = of_peers.into_iter().take(PEERS_NAMED_MAX);
        let peers: Vec<String> = named.map(|(lines, peer)| format!("{peer} {lines}")).collect();
        (lines > 0).then(|| LeftOut { lines, targets: targets.join(", "), peers: peers.join(", ") })
    }

    fn counts(&self, about: &Metadata<'_>) -> bool {
        *about.level() <= self.0.level && about.fields().field(PEER).is_some()
    }

    fn takes(&self, peer: String, target: &'static str, now: Instant) -> bool {
        let (lines_max, per_minute) = self.0.budget;
        let mut peers = self.0.peers.lock();
        if peers.len() >= PEERS_MAX && !peers.contains_key(&peer) {
            peers.retain(|_, own| !own.is_over(now));
        }
        let has_own = peers.len() < PEERS_MAX || peers.contains_key(&peer);
        let name = if has_own { peer } else { OTHERS.to_owned() };
        let own = peers.entry(name).or_insert_with(|| PeerBudget {
            budget: LineBudget::new(now, lines_max, per_minute),
            last_line: now,
            left_out: BTreeMap::new(),
        });
        own.last_line = own.last_line.max(now);
        if own.budget.take(now) {
            return true;
        }
        *own.left_out.entry(target).or_default() += 1;
        drop(peers);
        self.0.is_left_out.notify_one();
        false
    }
}

impl PeerBudget {
    /// Whether nothing is lost if it is forgotten.
    fn is_over(&mut self, now: Instant) -> bool {
        let is_quiet = now.saturating_duration_since(self.last_line) >= QUIET_MIN;
        is_quiet && self.left_out.is_empty() && self.budget.is_full(now)
    }
}

impl<S> Filter<S> for PeerLines {
    fn enabled(&self, _: &Metadata<'_>, _: &Context<'_, S>) -> bool {
        true
    }

    /// A place in the program whose lines are not counted costs nothing.
    fn callsite_enabled(&self, about: &'static Metadata<'static>) -> Interest {
        if self.counts(about) { Interest::sometimes() } else { Interest::always() }
    }

    fn max_level_hint(&self) -> Option<LevelFilter> {
        Some(LevelFilter::TRACE)
    }

    fn event_enabled(&self, event: &Event<'_>, _: &Context<'_, S>) -> bool {
        let about = event.metadata();
        if !self.counts(about) {
            return true;
        }
        let mut peer = PeerName::default();
        event.record(&mut peer);
        let peer: String = peer.0.chars().take(PEER_CHARS_MAX).collect();
        // The field may be there without a value.
        peer.is_empty() || self.takes(peer, about.target(), Instant::now())
    }
}

#[derive(Default)]
struct PeerName(String);

impl Visit for PeerName {
    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        if field.name() == PEER {
            let _ = write!(self.0, "{value:?}");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn more_peers_than_there_are_budgets_share_one_until_some_have_been_quiet() {
        let (lines, now) = (PeerLines::new(Level::INFO, (2, 60), Arc::default()), Instant::now());
        let takes = |peer: usize, now| lines.takes(format!("{peer:08x}"), "events::log", now);
        assert!((0..PEERS_MAX).all(|peer| takes(peer, now)));
        let strangers = (PEERS_MAX..10 * PEERS_MAX).filter(|peer| takes(*peer, now)).count();
        assert_eq!(strangers, 2);
        assert!(takes(0, now) && !takes(0, now), "a member keeps its own");
        let left_out = lines.take_left_out().unwrap();
        assert_eq!(left_out.lines, 9 * PEERS_MAX as u64 - 2 + 1);
        assert_eq!(left_out.targets, format!("events::log {}", left_out.lines));
        assert_eq!(left_out.peers, format!("others {}, 00000000 1", left_out.lines - 1));
        assert!(lines.take_left_out().is_none());
        assert!(takes(PEERS_MAX, now + Duration::from_secs(60)), "the others were quiet");
        assert_eq!(lines.0.peers.lock().len(), 1);
    }

    #[test]
    fn strangers_with_ever_new_keys_have_no_more_lines_than_as_many_as_there_are_budgets() {
        let (lines, now) = (PeerLines::new(Level::INFO, (2, 60), Arc::default()), Instant::now());
        let takes = |s: u64| {
            let now = now + Duration::from_secs(s);
            (0..PEERS_MAX).filter(|n| lines.takes(format!("{s}.{n}"), "events::log", now)).count()
        };
        assert_eq!(takes(0), PEERS_MAX);
        // All of them share two lines, and one a second.
        assert_eq!((1..30).map(takes).sum::<usize>(), 2 + 28);
    }
}
