//! From measurements to alerts: what is wrong, since when, what is affected, what to do.
//!
//! A rule looks at everything once a second and says of each thing that it concerns whether it is bad, or
//! between good and bad. An alert begins when a thing has been bad for as long as its rule asks, and ends
//! when it has been good for as long: what wanders about a limit neither begins nor ends one. An alert that
//! is over is kept for a day.

mod findings;
mod memory;
mod rules;
#[cfg(test)]
pub(crate) mod testing;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use exo_api::{AlertView, ClusterView, PullView, SILENCE_S_MAX, TelemetryView};

use findings::{Finding, Level, findings};
use memory::Memory;
pub use rules::{RULES, Rule};

/// An alert that is over is shown for so long, in seconds.
const RESOLVED_S: u64 = 24 * 3600;
/// Alerts that are over, at most.
const RESOLVED_MAX: usize = 500;
/// Things that are bad at once, at most: of 256 nodes with a few troubles each.
const TRACKED_MAX: usize = 2000;
/// Silences at once, at most.
const SILENCES_MAX: usize = 256;
/// Between two changes of an alert's text, in seconds: its numbers change with every look, and each change is
/// told to all who read along.
const TEXT_EVERY_S: u64 = 30;
/// After so many seconds in which nothing could be judged, a thing counts as good.
const IDLE_S_MAX: u64 = 300;

/// What rules look at.
#[derive(Clone, Copy, Debug)]
pub struct AlertInputs<'a> {
    /// Seconds since an origin of the caller's; never runs backwards.
    pub time_s: u64,
    /// The same by the system's clock, since 1970: to show.
    pub unix_s: u64,
    /// The cluster.
    pub view: &'a ClusterView,
    /// Measurements of its nodes.
    pub told: &'a TelemetryView,
    /// What only the node that looks knows.
    pub own: &'a OwnFacts,
}

/// What a node knows of its own disk, and tells nobody.
#[derive(Clone, PartialEq, Default, Debug)]
pub struct OwnFacts {
    /// Its downloads.
    pub pulls: Vec<PullView>,
    /// What models take of the disk, and what they may, where that is bounded.
    pub quota_bytes: Option<(u64, u64)>,
    /// Names of models whose file is not the one that was added.
    pub changed_models: Vec<String>,
    /// Models that are not what their hub promised.
    pub differing_models: Vec<DifferingModel>,
}

/// A model of a hub of which a check found that what the machines have is something else.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct DifferingModel {
    /// Its id in full.
    pub id: String,
    /// Its name.
    pub name: String,
}

/// A silence cannot be had.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum SilenceError {
    /// No such alert, and no such rule.
    Unknown,
    /// An alert whose silence should end, while its rule, named here, is silenced as a whole.
    OfItsRule(String),
    /// Longer than a week, or too many.
    TooMuch(String),
}

/// One thing that was bad when it was last looked at, or is an alert.
#[derive(Debug, Default)]
struct Tracked {
    bad_since_s: Option<u64>,
    good_since_s: Option<u64>,
    /// Since when it cannot be judged.
    idle_since_s: Option<u64>,
    /// When its text was written.
    text_at_s: u64,
    /// Once it is an alert.
    active: Option<AlertView>,
    is_found: bool,
}

/// Until when something is silenced.
#[derive(Clone, Copy, Debug)]
struct SilencedUntil {
    until_s: u64,
    /// The same by the system's clock, as it was then.
    until_unix_s: u64,
}

/// All alerts of a cluster, as one node sees them.
#[derive(Debug, Default)]
pub struct Alerts {
    tracked: BTreeMap<String, Tracked>,
    /// The oldest first.
    resolved: VecDeque<AlertView>,
    /// By alert or rule.
    silences: BTreeMap<String, SilencedUntil>,
    memory: Memory,
    now_s: u64,
    /// Between the look before and this one.
    passed_s: u64,
    unix_s: u64,
}

impl Tracked {
    /// Nothing can be said of it: its time does not pass, and after a while it is as if nothing had been bad.
    fn idle(&mut self, now_s: u64, passed_s: u64) {
        let since_s = *self.idle_since_s.get_or_insert(now_s);
        if now_s - since_s >= IDLE_S_MAX {
            if self.active.is_none() {
                self.bad_since_s = None;
            }
            return;
        }
        self.is_found = true;
        self.bad_since_s = self.bad_since_s.map(|since_s| (since_s + passed_s).min(now_s));
        self.good_since_s = self.good_since_s.map(|since_s| (since_s + passed_s).min(now_s));
    }
}

impl Alerts {
    /// Looks at everything once.
    pub fn observe(&mut self, seen: AlertInputs<'_>) {
        self.passed_s = seen.time_s.saturating_sub(self.now_s);
        (self.now_s, self.unix_s) = (seen.time_s.max(self.now_s), seen.unix_s);
        self.memory.observe(&seen);
        self.tracked.values_mut().for_each(|tracked| tracked.is_found = false);
        for finding in findings(&seen, &self.memory) {
            self.found(finding);
        }
        self.settle();
        let now_s = self.now_s;
        self.silences.retain(|_, silence| silence.until_s > now_s);
        while self.resolved.len() > RESOLVED_MAX
            || self
                .resolved
                .front()
                .and_then(|alert| alert.resolved_unix_s)
                .is_some_and(|at| at.saturating_add(RESOLVED_S) <= self.unix_s)
        {
            self.resolved.pop_front();
        }
    }

    fn found(&mut self, finding: Finding) {
        let id = finding.id();
        if self.is_covered(&id, finding.rule) {
            return;
        }
        if self.tracked.len() >= TRACKED_MAX && !self.tracked.contains_key(&id) {
            return;
        }
        let (now_s, unix_s, passed_s) = (self.now_s, self.unix_s, self.passed_s);
        let tracked = self.tracked.entry(id.clone()).or_default();
        if finding.level == Level::Idle {
            tracked.idle(now_s, passed_s);
            return;
        }
        tracked.idle_since_s = None;
        // A rule may say of one thing twice; the worse counts.
        let is_first = !std::mem::replace(&mut tracked.is_found, true);
        tracked.good_since_s = None;
        if finding.level == Level::Between {
            if is_first && tracked.active.is_none() {
                tracked.bad_since_s = None;
            }
            return;
        }
        let since_s = *tracked.bad_since_s.get_or_insert(now_s);
        match &mut tracked.active {
            Some(alert) if now_s - tracked.text_at_s >= TEXT_EVERY_S => {
                (alert.text, alert.subject) = (finding.text, finding.subject);
                tracked.text_at_s = now_s;
            }
            None if now_s.saturating_sub(since_s) >= finding.rule.raise_after_s => {
                tracked.active = Some(finding.view(id, unix_s));
                tracked.text_at_s = now_s;
            }
            Some(_) | None => {}
        }
    }

    /// Whether the alert of a rule that says worse of the same thing stands.
    fn is_covered(&self, id: &str, rule: &Rule) -> bool {
        let worse = rule.covered_by().map(|worse| id.replacen(rule.id, worse, 1));
        worse.and_then(|id| self.tracked.get(&id)).is_some_and(|tracked| tracked.active.is_some())
    }

    /// What nothing was found of is good again.
    fn settle(&mut self) {
        let (now_s, unix_s) = (self.now_s, self.unix_s);
        let covered = |id: &String| {
            let rule = self.tracked.get(id)?.active.as_ref().and_then(|alert| Rule::of(&alert.rule))?;
            self.is_covered(id, rule).then(|| id.clone())
        };
        let covered: BTreeSet<String> = self.tracked.keys().filter_map(covered).collect();
        let resolved = &mut self.resolved;
        self.tracked.retain(|id, tracked| {
            if tracked.is_found {
                return tracked.active.is_some() || tracked.bad_since_s.is_some();
            }
            let Some(alert) = &tracked.active else { return false };
            let since_s = *tracked.good_since_s.get_or_insert(now_s);
            let clear_after_s = Rule::of(&alert.rule).map_or(0, |rule| rule.clear_after_s);
            let is_over = now_s - since_s >= clear_after_s || covered.contains(id);
            if is_over {
                resolved.push_back(AlertView { resolved_unix_s: Some(unix_s), ..alert.clone() });
            }
            !is_over
        });
    }

    /// Alerts that last, the newest first, and behind them those that are over.
    pub fn views(&self) -> Vec<AlertView> {
        let active = self.tracked.values().filter_map(|tracked| tracked.active.as_ref());
        let all = active.chain(&self.resolved);
        let silenced = |alert: &AlertView| AlertView {
            silenced_until_unix_s: self.silenced_until(alert),
            ..alert.clone()
        };
        let mut all: Vec<_> = all.map(silenced).collect();
        all.sort_by(AlertView::order);
        all
    }

    fn silenced_until(&self, alert: &AlertView) -> Option<u64> {
        let silences = [&alert.id, &alert.rule].into_iter().filter_map(|name| self.silences.get(name));
        silences.max_by_key(|silence| silence.until_s).map(|silence| silence.until_unix_s)
    }

    /// What is silenced, until when by the system's clock.
    pub fn silences(&self) -> BTreeMap<String, u64> {
        self.silences.iter().map(|(name, silence)| (name.clone(), silence.until_unix_s)).collect()
    }

    /// Takes up the silences of an earlier run: as many as there may be, none for longer than one may be.
    pub fn take_up(&mut self, time_s: u64, unix_s: u64, silences: BTreeMap<String, u64>) {
        (self.now_s, self.unix_s) = (time_s, unix_s);
        let left = silences.into_iter().filter(|(_, until)| *until > unix_s).take(SILENCES_MAX);
        let silence = |until: u64| {
            let for_s = (until - unix_s).min(SILENCE_S_MAX);
            SilencedUntil { until_s: time_s + for_s, until_unix_s: unix_s + for_s }
        };
        self.silences = left.map(|(name, until)| (name, silence(until))).collect();
    }

    /// Silences an alert, or all of a rule, for so many seconds; 0 ends a silence.
    pub fn silence(&mut self, name: &str, for_s: u64) -> Result<(), SilenceError> {
        let is_known = Rule::of(name).is_some()
            || self.tracked.get(name).is_some_and(|tracked| tracked.active.is_some())
            || self.silences.contains_key(name);
        if !is_known {
            return Err(SilenceError::Unknown);
        }
        if for_s == 0 {
            // What is about the whole cluster is called as its rule is.
            let active = self.tracked.get(name).and_then(|tracked| tracked.active.as_ref());
            let rule = active.map(|alert| &alert.rule).filter(|rule| *rule != name);
            if let Some(rule) = rule.filter(|rule| self.silences.contains_key(*rule)) {
                return Err(SilenceError::OfItsRule(rule.clone()));
            }
            self.silences.remove(name);
            return Ok(());
        }
        if for_s > SILENCE_S_MAX {
            let message = format!("a silence of {for_s} s is longer than the longest, {SILENCE_S_MAX} s");
            return Err(SilenceError::TooMuch(message));
        }
        if self.silences.len() >= SILENCES_MAX && !self.silences.contains_key(name) {
            return Err(SilenceError::TooMuch(format!("there are {SILENCES_MAX} silences already")));
        }
        let silence = SilencedUntil { until_s: self.now_s + for_s, until_unix_s: self.unix_s + for_s };
        self.silences.insert(name.to_owned(), silence);
        Ok(())
    }
}
