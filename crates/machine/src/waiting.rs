//! What a request waits for, in words: which member fetches what, from whom, how far it is and how long the
//! rest takes.

use std::collections::BTreeMap;

use exo_api::{StagePhase, StageProgressView};
use exo_cluster::wire::{HeldModel, NodeReport};
use exo_cluster::{InstanceState, InstanceView, ReplaceReason, StageStatus};
use exo_types::{ModelId, NodeId, PlacementId, Time};

use crate::NodeMachine;
use crate::view::load_progress;

/// A rate over less says little.
const PACE_AFTER_S: u64 = 3;
/// Machines of a model that loads, of which people are told.
const MACHINES_SHOWN_MAX: usize = 4;
/// Of the members that a model is fetched from.
const SOURCES_SHOWN_MAX: usize = 3;

/// One stage that fetches, and how far it is.
#[derive(Clone, Copy, Debug)]
pub(crate) struct StageFetch {
    placement: PlacementId,
    stage: usize,
    done_bytes: u64,
    total_bytes: u64,
}

/// A fetch as it was when it was first seen.
#[derive(Clone, Copy, Debug)]
pub(crate) struct FetchWatch {
    pub(crate) fetch: StageFetch,
    pub(crate) since: Time,
}

impl FetchWatch {
    /// Whether it is the same one, further on.
    pub(crate) fn is_of(&self, now: &StageFetch) -> bool {
        (self.fetch.placement, self.fetch.stage) == (now.placement, now.stage)
            && self.fetch.done_bytes <= now.done_bytes
    }

    /// Bytes a second since then and how many seconds the rest takes, once that can be said. Where nothing
    /// comes, the rest takes for ever.
    fn rate(&self, fetch: &StageFetch, now: Time) -> Option<(u64, Option<u64>)> {
        let seconds = now.since(self.since).as_secs();
        let bytes = fetch.done_bytes.saturating_sub(self.fetch.done_bytes);
        let left = fetch.total_bytes.saturating_sub(fetch.done_bytes);
        let left_s = (bytes > 0).then(|| (u128::from(left) * u128::from(seconds)).div_ceil(bytes.into()));
        let left_s = left_s.map(|left_s| u64::try_from(left_s).unwrap_or(u64::MAX));
        (seconds >= PACE_AFTER_S).then(|| (bytes / seconds.max(1), left_s))
    }

    fn pace(&self, fetch: &StageFetch, now: Time) -> String {
        match self.rate(fetch, now) {
            None => String::new(),
            Some((rate, Some(left_s))) => format!(", {left_s} s left at {} a second", mib(rate)),
            Some((_, None)) => format!(", nothing has come for {} s", now.since(self.since).as_secs()),
        }
    }
}

/// The stages that fetch or load, as each was when it was first seen at that.
#[derive(Default, Debug)]
pub(crate) struct StageWatches(BTreeMap<(PlacementId, usize), (StagePhase, FetchWatch)>);

impl StageWatches {
    /// The instances are like this now.
    pub(crate) fn note(&mut self, instances: &[InstanceView], now: Time) {
        let before = std::mem::take(&mut self.0);
        for instance in instances {
            for stage in 0..instance.stages.len() {
                let Some((phase, fetch)) = stage_at_work(instance, stage) else { continue };
                let key = (fetch.placement, stage);
                let known = before.get(&key).filter(|(of, watch)| *of == phase && watch.is_of(&fetch));
                let watch = known.map_or(FetchWatch { fetch, since: now }, |(_, watch)| *watch);
                self.0.insert(key, (phase, watch));
            }
        }
    }

    /// How far a stage is, while it is at work.
    pub(crate) fn progress(
        &self,
        instance: &InstanceView,
        stage: usize,
        now: Time,
    ) -> Option<StageProgressView> {
        let (phase, fetch) = stage_at_work(instance, stage)?;
        let watched = self.0.get(&(fetch.placement, stage)).filter(|(of, _)| *of == phase);
        let rate = watched.and_then(|(_, watch)| watch.rate(&fetch, now));
        let StageFetch { done_bytes, total_bytes, .. } = fetch;
        Some(StageProgressView {
            phase,
            done_bytes: done_bytes.min(total_bytes),
            total_bytes,
            bytes_per_s: rate.map(|(rate, _)| rate),
            seconds_left: rate.and_then(|(_, left_s)| left_s),
            sources: Vec::new(),
        })
    }
}

fn stage_at_work(instance: &InstanceView, stage: usize) -> Option<(StagePhase, StageFetch)> {
    let (phase, done_bytes, total_bytes) = match instance.stages.get(stage)?.status {
        StageStatus::Fetching { done_bytes, total_bytes, .. } => {
            (StagePhase::Fetching, done_bytes, total_bytes)
        }
        StageStatus::Loading { done_bytes, total_bytes } => (StagePhase::Loading, done_bytes, total_bytes),
        _ => return None,
    };
    let placement = instance.placement.id;
    (total_bytes > 0).then_some((phase, StageFetch { placement, stage, done_bytes, total_bytes }))
}

/// The stage that has most to fetch; the one that is watched as long as it fetches, or of two that have
/// nearly the same left none would ever be said to be anywhere.
pub(crate) fn slowest_fetch(instance: &InstanceView, watch: Option<&FetchWatch>) -> Option<StageFetch> {
    let stages = (0..instance.stages.len()).filter_map(|stage| stage_at_work(instance, stage));
    let fetches = stages.filter_map(|(phase, fetch)| (phase == StagePhase::Fetching).then_some(fetch));
    slowest_of(fetches, watch)
}

fn slowest_of(fetches: impl Iterator<Item = StageFetch>, watch: Option<&FetchWatch>) -> Option<StageFetch> {
    let left_bytes = |fetch: &StageFetch| fetch.total_bytes.saturating_sub(fetch.done_bytes);
    let is_watched =
        |fetch: &StageFetch| left_bytes(fetch) > 0 && watch.is_some_and(|watch| watch.is_of(fetch));
    fetches.max_by_key(|fetch| (is_watched(fetch), left_bytes(fetch)))
}

fn mib(bytes: u64) -> String {
    format!("{:.1} MiB", bytes as f64 / f64::from(1 << 20))
}

impl NodeMachine {
    /// Texts of parts that know nodes by their ids, with what people call them.
    pub(crate) fn with_names(&self, text: &str) -> String {
        self.names.in_text(text)
    }

    /// How far it is loaded, and what the slowest of its stages waits for.
    fn loading(&self, instance: &InstanceView, watch: Option<&FetchWatch>) -> String {
        // With its machines: where those change, it begins anew.
        let on = self.machines_of(instance);
        let far = format!("loading {:.0} % on {on}", load_progress(instance) * 100.0);
        let node_of = |stage: usize| {
            let stage = instance.placement.stages.get(stage);
            stage.map(|stage| stage.leader().node)
        };
        let failed = instance.stages.iter().enumerate().find_map(|(at, stage)| match &stage.status {
            told @ (StageStatus::Failed { .. } | StageStatus::Fetching { hub_wait_s: 1.., .. }) => {
                Some((node_of(at)?, told.text(&|node| self.name_of(node))))
            }
            _ => None,
        });
        if let Some((node, reason)) = failed {
            return format!("{far}: {}: {reason}", self.name_of(node));
        }
        let Some((fetch, watch)) = slowest_fetch(instance, watch).zip(watch) else { return far };
        let Some(node) = node_of(fetch.stage) else { return far };
        let sources = self.sources_of(instance.model(), node);
        let (done, total) = (mib(fetch.done_bytes), mib(fetch.total_bytes));
        let pace = watch.pace(&fetch, self.awake.now());
        let (name, model) = (self.name_of(node), &instance.model_name);
        format!("{far}: {name} fetches {model}{sources}: {done} of {total}{pace}")
    }

    /// The machines of its stages, in their order, each once.
    fn machines_of(&self, instance: &InstanceView) -> String {
        let mut nodes = Vec::new();
        for (_, shard) in instance.placement.shards() {
            if !nodes.contains(&shard.node) {
                nodes.push(shard.node);
            }
        }
        let more = nodes.len().saturating_sub(MACHINES_SHOWN_MAX);
        let names: Vec<_> = nodes.iter().take(MACHINES_SHOWN_MAX).map(|node| self.name_of(*node)).collect();
        names.join(", ") + &if more == 0 { String::new() } else { format!(" and {more} more") }
    }

    /// Whom a member may fetch a model from.
    fn sources_of(&self, model: ModelId, to: NodeId) -> String {
        let is_held = |report: &NodeReport, is: fn(&HeldModel) -> bool| {
            report.models.iter().any(|held| held.model == model && is(held))
        };
        let reports = self.reports.iter().filter(|(node, _)| **node != to);
        let mut names: Vec<String> = reports
            .filter(|(_, report)| is_held(report, |held| held.complete))
            .map(|(node, _)| self.name_of(*node))
            .take(SOURCES_SHOWN_MAX)
            .collect();
        if self.reports.values().any(|report| is_held(report, |held| held.is_of_hub)) {
            names.push("its hub".to_owned());
        }
        if names.is_empty() { String::new() } else { format!(" from {}", names.join(", ")) }
    }

    /// What a request for a model waits for, behind what it has lost.
    pub(crate) fn waiting_for(
        &self,
        model: ModelId,
        watch: Option<&FetchWatch>,
        lost: Option<&ReplaceReason>,
    ) -> String {
        let Some(instance) = self.instances.iter().find(|i| i.model() == model) else {
            return self.asks.unplaceable.get(&model).map_or("placing", |wait| &wait.why).to_owned();
        };
        match &instance.state {
            InstanceState::Loading => self.loading(instance, watch),
            InstanceState::Wiring => "connecting its stages".to_owned(),
            InstanceState::Degraded { reason } if lost == Some(reason) => "placing again".to_owned(),
            InstanceState::Degraded { reason } => {
                format!("placing again: {}", reason.text(&|node| self.name_of(node)))
            }
            InstanceState::Waiting { reason } => reason.text_behind(lost, &|node| self.name_of(node)),
            InstanceState::Failed { reason } => {
                format!("failed: {}", reason.text_behind(lost, &|node| self.name_of(node)))
            }
            InstanceState::Placing => "placing".to_owned(),
            InstanceState::Ready => match self.unlinked(instance) {
                Some(node) => format!("waiting for the link to {}", self.name_of(node)),
                None => "waiting for a slot".to_owned(),
            },
        }
    }

    /// Who has the first or last stage and no data link with this node.
    fn unlinked(&self, instance: &InstanceView) -> Option<NodeId> {
        let stages = &instance.placement.stages;
        let ends = [stages.first(), stages.last()].into_iter().flatten().map(|stage| stage.leader().node);
        ends.into_iter()
            .find(|node| *node != self.me && self.links.unreached_for(self.now.time, *node).is_some())
    }
}

#[cfg(test)]
mod tests {
    use exo_types::Epoch;

    use super::*;

    #[test]
    fn a_fetch_says_how_long_it_takes_by_what_came_and_that_nothing_comes() {
        let epoch = Epoch { counter: 1, key: NodeId([1; 32]) };
        let fetch = |number, done_bytes| StageFetch {
            placement: PlacementId { epoch, number },
            stage: 1,
            done_bytes,
            total_bytes: 100 << 20,
        };
        let watch = FetchWatch { fetch: fetch(1, 10 << 20), since: Time::from_millis(1000) };
        let pace = |done: u64, at_s: u64| watch.pace(&fetch(1, done << 20), Time::from_millis(at_s * 1000));
        assert_eq!(pace(11, 3), "", "too soon to say");
        assert_eq!(pace(30, 11), ", 35 s left at 2.0 MiB a second");
        assert_eq!(pace(10, 31), ", nothing has come for 30 s");
        assert!(watch.is_of(&fetch(1, 11 << 20)));
        assert!(!watch.is_of(&fetch(1, 9 << 20)) && !watch.is_of(&fetch(2, 11 << 20)), "it began anew");
    }
    #[test]
    fn of_two_stages_that_fetch_alike_the_one_that_is_watched_is_told_until_it_is_there() {
        let epoch = Epoch { counter: 1, key: NodeId([1; 32]) };
        let fetch = |stage, done_bytes| StageFetch {
            placement: PlacementId { epoch, number: 1 },
            stage,
            done_bytes,
            total_bytes: 100,
        };
        let slowest = |done: [u64; 2], watch: Option<&FetchWatch>| {
            let fetches = done.iter().enumerate().map(|(stage, done)| fetch(stage, *done));
            slowest_of(fetches, watch).map(|fetch| fetch.stage)
        };
        let watch = FetchWatch { fetch: fetch(1, 10), since: Time::from_millis(0) };
        assert_eq!(slowest([20, 10], None), Some(1));
        assert_eq!(slowest([20, 30], Some(&watch)), Some(1), "it is ahead now, and is told on");
        assert_eq!(slowest([20, 100], Some(&watch)), Some(0), "it is there");
        assert_eq!(slowest([20, 5], Some(&watch)), Some(1), "it began anew, and has most left");
        assert_eq!(slowest([20, 90], Some(&FetchWatch { fetch: fetch(1, 95), ..watch })), Some(0));
    }
}
