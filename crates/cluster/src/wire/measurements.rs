//! What a node measures and only shows: of its machine, of the instances that it schedules, of its clients'
//! requests.

use exo_types::{NodeId, PlacementId, list};
use serde::{Deserialize, Serialize};

use super::data::AloneTimes;
use super::limits::{
    BUCKETS_MAX, COUNTED_ENDS_MAX, COUNTED_MODELS_MAX, FETCH_SOURCES_MAX, INSTANCES_MAX, PULLS_MAX,
};

/// All of it.
#[derive(Clone, PartialEq, Default, Debug, Serialize, Deserialize)]
pub struct NodeMeasurements {
    /// Of the machine and the process.
    pub vitals: NodeVitals,
    /// Of the instances whose scheduler is on the node.
    #[serde(deserialize_with = "list::<_, _, INSTANCES_MAX>")]
    pub loads: Vec<LoadReport>,
    /// Requests of the node's clients since its process began, by model.
    #[serde(deserialize_with = "list::<_, _, COUNTED_MODELS_MAX>")]
    pub requests: Vec<ModelTotals>,
    /// Its downloads that are not done.
    #[serde(deserialize_with = "list::<_, _, PULLS_MAX>")]
    pub pulls: Vec<PullReport>,
}

/// A download that a node carries out.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct PullReport {
    /// What was asked for, without what may be a secret in an address.
    pub reference: String,
    /// The number of a state, which is `exo_api`'s.
    pub state: u8,
    /// Bytes that are on its disk and verified.
    pub verified_bytes: u64,
    /// Bytes in all, once that is known.
    pub total_bytes: Option<u64>,
    /// Bytes a second over the last seconds, while they come.
    pub bytes_per_s: Option<u64>,
    /// What came from where, while it is fetched; empty where there is one source.
    #[serde(deserialize_with = "list::<_, _, FETCH_SOURCES_MAX>")]
    pub sources: Vec<FetchSource>,
}

/// What came from one source in a fetch.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct FetchSource {
    /// The member; `None` for the model's hub.
    pub member: Option<NodeId>,
    /// Bytes since the fetch began.
    pub bytes: u64,
    /// Bytes per second on average since then.
    pub bytes_per_s: u64,
}

/// Of a machine and the node's process on it. What nothing tells is `None`.
#[derive(Clone, PartialEq, Eq, Default, Debug, Serialize, Deserialize)]
#[allow(missing_docs)] // a field without a comment is what its name says
pub struct NodeVitals {
    /// The node's clock when it said this, in milliseconds since 1970.
    pub at_unix_ms: u64,
    pub uptime_s: u32,
    /// Memory of the machine, as far as the process may use it.
    pub memory_total_bytes: Option<u64>,
    /// Of that, free or freeable.
    pub memory_available_bytes: Option<u64>,
    /// Free on the disk of the data folder.
    pub disk_free_bytes: Option<u64>,
    pub descriptors_open: Option<u32>,
    pub descriptors_max: Option<u32>,
    pub battery_percent: Option<u8>,
    /// Whether multicast that it sends comes back to it, where it looks for other nodes.
    pub multicast_heard: Option<bool>,
    /// Fetches of model files that run.
    pub transfers: u32,
    /// Bytes of model files fetched since its process began.
    pub transferred_bytes: u64,
}

/// Requests at an instance, as its scheduler counts them.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[allow(missing_docs)] // a field without a comment is what its name says
pub struct LoadReport {
    /// The placement that is scheduled.
    pub placement: PlacementId,
    pub running: u32,
    pub waiting: u32,
    pub waiting_max: u32,
    /// Pages of keys and values.
    pub pages: u32,
    pub pages_used: u32,
    /// Of those, pages kept for prompts to come.
    pub pages_cached: u32,
    /// Prompt tokens of all sequences started.
    pub prompt_tokens: u64,
    /// Of those, tokens found in kept pages.
    pub cached_tokens: u64,
    /// Tokens guessed ahead and checked.
    pub drafts: u64,
    /// Of those, tokens that were right.
    pub drafts_accepted: u64,
    pub steps: u64,
    /// Prompt tokens read per second, as last measured.
    pub prompt_tokens_per_s: Option<f64>,
    /// Tokens generated per second over all sequences, as last measured.
    pub tokens_per_s: Option<f64>,
    /// What the last answer took that had the pipeline to itself.
    pub alone: Option<AloneTimes>,
}

/// Requests for one model since the node's process began.
#[derive(Clone, PartialEq, Eq, Default, Debug, Serialize, Deserialize)]
pub struct ModelTotals {
    /// The model's name; empty where a request named none that is known.
    pub model: String,
    /// Numbers of an endpoint and of a reason, and how many ended so. What the numbers mean is `exo_api`'s.
    #[serde(deserialize_with = "list::<_, _, COUNTED_ENDS_MAX>")]
    pub ended: Vec<(u8, u8, u64)>,
    /// Tokens of prompts.
    pub prompt_tokens: u64,
    /// Of those, tokens whose keys and values were kept.
    pub cached_tokens: u64,
    /// Tokens of answers.
    pub completion_tokens: u64,
    /// From arrival to the first token.
    pub first_token: Histogram,
    /// Time per token behind the first.
    pub token: Histogram,
    /// From arrival to the end.
    pub duration: Histogram,
    /// From arrival to the first prompt token at work.
    pub queue: Histogram,
    /// From there to the first token.
    pub prefill: Histogram,
}

/// Counts by size, between bounds that are `exo_api`'s.
#[derive(Clone, PartialEq, Eq, Default, Debug, Serialize, Deserialize)]
pub struct Histogram {
    /// One for each bound, and one for what is above the last; empty before the first.
    #[serde(deserialize_with = "list::<_, _, BUCKETS_MAX>")]
    pub counts: Vec<u64>,
    /// Sum of all, in microseconds.
    pub sum_us: u64,
}

impl Histogram {
    /// Counts a time between `bounds`, which are in seconds and the same each time. What is no time is not
    /// counted.
    pub fn observe(&mut self, bounds: &[f64], seconds: f64) {
        if !seconds.is_finite() || seconds < 0.0 {
            return;
        }
        self.counts.resize(bounds.len() + 1, 0);
        let bucket = bounds.partition_point(|bound| *bound < seconds);
        if let Some(count) = self.counts.get_mut(bucket) {
            *count = count.saturating_add(1);
        }
        self.sum_us = self.sum_us.saturating_add((seconds * 1e6) as u64);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_time_is_counted_below_the_first_bound_that_it_does_not_exceed() {
        let mut histogram = Histogram::default();
        for seconds in [0.0, 0.1, 0.11, 1.0, 5.0, f64::NAN, f64::INFINITY, -1.0] {
            histogram.observe(&[0.1, 1.0], seconds);
        }
        assert_eq!(histogram.counts, [2, 2, 1]);
        assert_eq!(histogram.sum_us, 6_210_000);
    }
}
