//! Every metric once: what `/metrics` may show. `docs/metrics.md` describes each, and tests compare the two
//! and the files in `ops/`.

/// What kind of numbers a metric is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Kind {
    /// Only grows, until the process begins anew. Its samples end in `_total`, its name here does not.
    Counter,
    /// Goes up and down.
    Gauge,
    /// Counts by size.
    Histogram,
}

/// One metric.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Metric {
    /// Its name, of a counter without `_total`.
    pub name: &'static str,
    /// What kind.
    pub kind: Kind,
    /// One line.
    pub help: &'static str,
}

impl Metric {
    /// As queries name it.
    pub fn sample_name(&self) -> String {
        let suffix = if self.kind == Kind::Counter { "_total" } else { "" };
        format!("{}{suffix}", self.name)
    }
}

macro_rules! metrics {
    ($($constant:ident $kind:ident $name:literal $help:literal;)*) => {
        $(pub const $constant: Metric = Metric { name: $name, kind: Kind::$kind, help: $help };)*

        /// All of them, in the order in which they are written.
        pub const METRICS: &[Metric] = &[$($constant,)*];
    };
}

metrics! {
    BUILD Gauge "exo_build_info" "Version and platform of a node, always 1";
    UP Gauge "exo_node_up" "Whether a member is there";
    AGE Gauge "exo_node_data_age_seconds" "How old a node's data is";
    UPTIME Gauge "exo_node_uptime_seconds" "How long a node's process has run";
    CLOCK Gauge "exo_node_clock_ahead_seconds" "By how much a node's clock is ahead of that of the node that is scraped";
    PROCESS Gauge "exo_node_process_resident_memory_bytes" "Resident memory of a node's process";
    OPEN_FDS Gauge "exo_node_process_open_fds" "File descriptors that a node's process has open";
    MAX_FDS Gauge "exo_node_process_max_fds" "File descriptors that a node's process may have open";
    MEMORY_SIZE Gauge "exo_node_memory_size_bytes" "Memory of a machine, as far as the node may use it";
    MEMORY_AVAILABLE Gauge "exo_node_memory_available_bytes" "Memory of a machine that is free or freeable";
    DISK Gauge "exo_node_disk_free_bytes" "Free on the disk of a node's data folder";
    DISK_ROOM Gauge "exo_node_disk_room_bytes" "Of a node's disk, what models may still take by its settings";
    BATTERY Gauge "exo_node_battery_charge_ratio" "Charge of a machine's battery, 0 to 1";
    MAINS Gauge "exo_node_mains_power" "Whether a machine runs on mains power";
    TRANSFERS Gauge "exo_transfers_running" "Fetches of model files that run";
    TRANSFERRED Counter "exo_transfer_received_bytes" "Bytes of model files fetched, from members and from hubs";

    DEVICE_USABLE Gauge "exo_device_usable" "Whether a device takes work";
    DEVICE_MEMORY_SIZE Gauge "exo_device_memory_size_bytes" "Memory of a device that models may take";
    DEVICE_MEMORY Gauge "exo_device_memory_bytes" "Memory of a device by what it is used for";
    DEVICE_UTILISATION Gauge "exo_device_utilisation_ratio" "Part of the time that a device was busy, 0 to 1";
    DEVICE_TEMPERATURE Gauge "exo_device_temperature_celsius" "How warm a device is";
    DEVICE_POWER Gauge "exo_device_power_watts" "What a device draws";
    DEVICE_CLOCK Gauge "exo_device_clock_hertz" "What a device's compute units run at";
    DEVICE_THROTTLED Gauge "exo_device_throttled" "Whether a device is slowed down for heat or power";

    LINK_RTT Gauge "exo_link_round_trip_seconds" "Median round trip to a member, as last measured";
    LINK_JITTER Gauge "exo_link_jitter_seconds" "Mean difference between one round trip and the next";
    LINK_BANDWIDTH Gauge "exo_link_bandwidth_bytes_per_second" "How fast bytes come from a member, as last measured";
    LINK_SENT Counter "exo_link_sent_bytes" "Bytes of frames sent to a member";
    LINK_RECEIVED Counter "exo_link_received_bytes" "Bytes of frames received from a member";
    LINK_PACKETS Counter "exo_link_sent_packets" "Packets sent to a member over QUIC";
    LINK_LOST Counter "exo_link_lost_packets" "Of these, packets lost on the way";

    INSTANCE_READY Gauge "exo_instance_ready" "Whether an instance serves";
    RUNNING Gauge "exo_sequences_running" "Sequences that an instance runs";
    WAITING Gauge "exo_sequences_waiting" "Sequences that wait for an instance";
    WAITING_LIMIT Gauge "exo_sequences_waiting_limit" "Sequences that may wait for an instance";
    KV_PAGES Gauge "exo_kv_pages" "Pages of keys and values by what they are used for";
    KV_USED Gauge "exo_kv_used_ratio" "Part of the pages of keys and values that running sequences hold";
    PREFIX_QUERIES Counter "exo_prefix_queried_tokens" "Prompt tokens of sequences that an instance started";
    PREFIX_HITS Counter "exo_prefix_hit_tokens" "Of these, tokens whose keys and values were kept";
    DRAFTS Counter "exo_draft_offered_tokens" "Tokens guessed ahead and checked";
    DRAFTS_ACCEPTED Counter "exo_draft_accepted_tokens" "Of these, tokens that were right";
    STEPS Counter "exo_steps" "Steps of an instance's pipeline";
    GENERATION_RATE Gauge "exo_generation_tokens_per_second" "Tokens that an instance generates, as last measured";
    PROMPT_RATE Gauge "exo_prompt_tokens_per_second" "Prompt tokens that an instance reads, as last measured";
    PREDICTED_RATE Gauge "exo_predicted_tokens_per_second" "Tokens that an instance should generate by the model of cost";
    STAGE_BUSY Counter "exo_stage_busy_seconds" "Time that a stage has computed";
    STAGE_LAYERS Gauge "exo_stage_layers" "Layers that a stage holds";
    STAGE_WEIGHTS Gauge "exo_stage_weight_bytes" "Weights that a stage holds";

    REQUESTS Counter "exo_requests" "Requests for text or vectors that ended, by endpoint and reason";
    PROMPT_TOKENS Counter "exo_prompt_tokens" "Tokens of prompts of requests that began";
    CACHED_TOKENS Counter "exo_cached_prompt_tokens" "Of these, tokens whose keys and values were kept";
    GENERATED_TOKENS Counter "exo_generated_tokens" "Tokens of answers, of those that were cut off as well";
    FIRST_TOKEN Histogram "exo_time_to_first_token_seconds" "From the arrival of a request to its first token";
    TOKEN_TIME Histogram "exo_time_per_output_token_seconds" "Time per token behind the first, one value for each request";
    DURATION Histogram "exo_request_duration_seconds" "From the arrival of a request to its end";
    QUEUE Histogram "exo_request_queue_seconds" "From the arrival of a request to its first prompt token at work";
    PREFILL Histogram "exo_request_prefill_seconds" "From the first prompt token at work to the first token of the answer";

    ALERT Gauge "exo_alert_active" "Alerts that last, as the node that is scraped sees them";
}
