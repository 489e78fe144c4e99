//! From measurements to alerts: what is wrong, since when, what is affected, what to do.
//!
//! A rule looks at everything once a second and says of each thing that it concerns whether it is bad, or between good and bad. An
//! alert begins when a thing has been bad for as long as its rule asks, and ends when it has been good for as long: what wanders about
//! a limit neither begins nor ends one. An alert that is over is kept for a day.

mod findings;
mod memory;
mod rules;
#[cfg(test)]
pub(crate) mod testing;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, VecDeque};

use exo_api::{AlertView, ClusterView, SILENCE_S_MAX, TelemetryView};

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

/// What rules look at.
#[derive(Clone, Copy, Debug)]
pub struct Seen<'a> {
    /// Seconds since an origin of the caller's; never runs backwards.
    pub time_s: u64,
    /// The same by the system's clock, since 1970: to show.
    pub unix_s: u64,
    /// The cluster.
    pub view: &'a ClusterView,
    /// Measurements of its nodes.
    pub told: &'a TelemetryView,
}

/// A silence cannot be had.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum SilenceError {
    /// No such alert, and no such rule.
    Unknown,
    /// Longer than a week, or too many.
    TooMuch(String),
}

/// One thing that was bad when it was last looked at, or is an alert.
#[derive(Debug, Default)]
struct Tracked {
    bad_since_s: Option<u64>,
    good_since_s: Option<u64>,
    /// Once it is an alert.
    active: Option<AlertView>,
    is_found: bool,
}

/// All alerts of a cluster, as one node sees them.
#[derive(Debug, Default)]
pub struct Alerts {
    tracked: BTreeMap<String, Tracked>,
    /// The oldest first.
    resolved: VecDeque<AlertView>,
    /// By alert or rule: until when.
    silences: BTreeMap<String, u64>,
    memory: Memory,
    now_s: u64,
    unix_s: u64,
}

impl Alerts {
    /// Looks at everything once.
    pub fn observe(&mut self, seen: Seen<'_>) {
        (self.now_s, self.unix_s) = (seen.time_s.max(self.now_s), seen.unix_s);
        self.memory.observe(&seen);
        self.tracked.values_mut().for_each(|tracked| tracked.is_found = false);
        for finding in findings(&seen, &self.memory) {
            self.found(finding);
        }
        self.settle();
        let now_s = self.now_s;
        self.silences.retain(|_, until_s| *until_s > now_s);
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
        if self.tracked.len() >= TRACKED_MAX && !self.tracked.contains_key(&id) {
            return;
        }
        let (now_s, unix_s) = (self.now_s, self.unix_s);
        let tracked = self.tracked.entry(id.clone()).or_default();
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
            Some(alert) => (alert.text, alert.subject) = (finding.text, finding.subject),
            None if now_s - since_s >= finding.rule.raise_after_s => {
                tracked.active = Some(finding.view(id, unix_s));
            }
            None => {}
        }
    }

    /// What nothing was found of is good again.
    fn settle(&mut self) {
        let (now_s, unix_s) = (self.now_s, self.unix_s);
        let resolved = &mut self.resolved;
        self.tracked.retain(|_, tracked| {
            if tracked.is_found {
                return tracked.active.is_some() || tracked.bad_since_s.is_some();
            }
            let Some(alert) = &tracked.active else { return false };
            let since_s = *tracked.good_since_s.get_or_insert(now_s);
            let clear_after_s = Rule::of(&alert.rule).map_or(0, |rule| rule.clear_after_s);
            let is_over = now_s - since_s >= clear_after_s;
            if is_over {
                resolved.push_back(AlertView { resolved_unix_s: Some(unix_s), ..alert.clone() });
            }
            !is_over
        });
    }

    /// Alerts that last, the newest first, and behind them those that are over.
    pub fn views(&self) -> Vec<AlertView> {
        let mut active: Vec<_> =
            self.tracked.values().filter_map(|tracked| tracked.active.as_ref()).collect();
        active.sort_by(|a, b| b.since_unix_s.cmp(&a.since_unix_s).then_with(|| a.id.cmp(&b.id)));
        let all = active.into_iter().chain(self.resolved.iter().rev());
        all.map(|alert| AlertView { silenced_until_unix_s: self.silenced_until(alert), ..alert.clone() })
            .collect()
    }

    fn silenced_until(&self, alert: &AlertView) -> Option<u64> {
        let until = [&alert.id, &alert.rule].into_iter().filter_map(|name| self.silences.get(name)).max()?;
        Some(self.unix_s + until.saturating_sub(self.now_s))
    }

    /// What is silenced, until when by the system's clock.
    pub fn silences(&self) -> BTreeMap<String, u64> {
        let until = |until_s: u64| self.unix_s + until_s.saturating_sub(self.now_s);
        self.silences.iter().map(|(name, until_s)| (name.clone(), until(*until_s))).collect()
    }

    /// Takes up the silences of an earlier run: as many as there may be, none for longer than one may be.
    pub fn take_up(&mut self, time_s: u64, unix_s: u64, silences: BTreeMap<String, u64>) {
        (self.now_s, self.unix_s) = (time_s, unix_s);
        let left = silences.into_iter().filter(|(_, until)| *until > unix_s).take(SILENCES_MAX);
        self.silences =
            left.map(|(name, until)| (name, time_s + (until - unix_s).min(SILENCE_S_MAX))).collect();
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
        self.silences.insert(name.to_owned(), self.now_s + for_s);
        Ok(())
    }
}
