//! Bounds of everything a peer may send. How long a list is is checked before any of it is in memory, all
//! else before anything is believed.

use exo_types::SampledToken;
pub use exo_types::{DEVICES_MAX, LAYERS_MAX, SEQUENCES_MAX, SHARDS_MAX, STAGES_MAX, TOP_MAX};

/// Bytes of one control message. A cluster's snapshot is the largest.
pub const CONTROL_BYTES_MAX: usize = 8 << 20;
/// Bytes of one data message without its hidden rows: a history of a million tokens fits.
pub const DATA_HEADER_BYTES_MAX: usize = 8 << 20;
/// Bytes of hidden rows behind one step: 1024 tokens of width 16384 in f32.
pub const ROWS_BYTES_MAX: usize = 64 << 20;
/// Bytes of one event.
pub const EVENT_BYTES_MAX: usize = 256 << 10;
/// Bytes of a text to be displayed: names, reasons, versions.
pub const TEXT_BYTES_MAX: usize = 4096;

/// As much of a text as every peer takes. Whoever passes on what it was told puts words in front.
pub fn clip(text: &str) -> String {
    text.chars().take(TEXT_BYTES_MAX / 4).collect()
}

/// Members of a cluster.
pub const MEMBERS_MAX: usize = 256;
/// Pairs of members.
pub const PAIRS_MAX: usize = MEMBERS_MAX * MEMBERS_MAX / 2;
/// Bytes of a request that another member keeps a copy of; one with a longer prompt ends with its node.
pub const RECORD_BYTES_MAX: usize = 1 << 20;
/// About what a copy of a request takes in memory, with its tokens: it goes in one message.
pub const BACKUP_BYTES_MAX: usize = 4 << 20;
/// Tokens in one message about a copy: more do not fit a copy.
pub const COPIED_TOKENS_MAX: usize = BACKUP_BYTES_MAX / size_of::<SampledToken>();
/// Instances of a cluster.
pub const INSTANCES_MAX: usize = 256;
/// Stages that one node reports or should hold: those that go are among them.
pub const STAGES_OF_NODE_MAX: usize = 4 * INSTANCES_MAX;
/// Events of cards in a report.
pub const CARD_EVENTS_MAX: usize = 64;
/// Lines of reasons in a reply: one per device of the cluster.
pub const REASONS_MAX: usize = MEMBERS_MAX * DEVICES_MAX;
/// Devices that one placement pins, and exclusions of one.
pub const PINS_MAX: usize = 64;
/// Bytes per second of one link: 800 Gbit/s.
pub const BANDWIDTH_MAX: u64 = 100_000_000_000;
/// Sources of one fetch that a node tells of: the hub and the members that gave most.
pub const FETCH_SOURCES_MAX: usize = 8;
/// Downloads that one node tells of.
pub const PULLS_MAX: usize = 8;
/// Characters of the reference of one of them.
pub const PULL_REFERENCE_CHARS_MAX: usize = 200;
/// Models whose requests one node counts apart.
pub const COUNTED_MODELS_MAX: usize = 32;
/// Endpoints times reasons that requests for one model ended at and for.
pub const COUNTED_ENDS_MAX: usize = 256;
/// Counts of one histogram.
pub const BUCKETS_MAX: usize = 32;
/// Models one node may name.
pub const MODELS_MAX: usize = 4096;
/// Tokens of one sequence.
pub const CONTEXT_TOKENS_MAX: u32 = 1 << 20;
/// Tokens of one instance's cache, over all sequences.
pub const CACHE_TOKENS_MAX: u32 = 1 << 26;
/// Tokens of one step over all sequences.
pub const STEP_TOKENS_MAX: usize = 8192;
/// Commands in front of one step: every sequence kept and closed, others opened.
pub const COMMANDS_MAX: usize = 3 * SEQUENCES_MAX;
/// Pages named in one command: each holds at least one token.
pub const PAGES_MAX: usize = CONTEXT_TOKENS_MAX as usize;
/// Pages that outlive a term: with 32 tokens each, two million.
pub const PAGES_OF_TERM_MAX: usize = 1 << 16;
/// Tokens that one step samples of a sequence: accepted drafts and one more.
pub const SAMPLED_MAX: usize = exo_types::DRAFTS_MAX as usize + 1;
/// Stop tokens of one sequence.
pub const STOP_TOKENS_MAX: usize = 64;
/// Entries of a logit bias.
pub const LOGIT_BIAS_MAX: usize = 4096;
/// Elements of a prompt's vector: the width of hidden rows.
pub const EMBEDDING_MAX: usize = 16_384;
/// Bytes of the scores of one prompt, as [`scores_bytes`] counts them.
pub const SCORES_BYTES_MAX: usize = 1 << 20;

/// Bytes that the scores of so many tokens take at most, each with so many candidates.
pub fn scores_bytes(tokens: usize, top: usize) -> usize {
    // A probability and a count; an id below 2^32 and a probability.
    tokens.saturating_mul(5 + 9 * top)
}
/// Log entries in one message.
pub const LOG_ENTRIES_MAX: usize = 1024;
/// Seconds after which one who was refused is asked to come back.
pub const RETRY_S_MAX: u32 = 60;
