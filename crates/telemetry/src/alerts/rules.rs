//! Every rule once: its stable id, how much it matters, how long it waits, and what to do. `docs/runbook.md`
//! has a section for each.

use exo_api::Severity;

/// One rule.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Rule {
    /// Name of the rule; stable.
    pub id: &'static str,
    /// How much it matters.
    pub severity: Severity,
    /// So long a thing must be bad, in seconds.
    pub raise_after_s: u64,
    /// So long it must be good, in seconds.
    pub clear_after_s: u64,
    /// What to do, in a sentence.
    pub what_to_do: &'static str,
}

impl Rule {
    /// The rule of that id.
    pub fn of(id: &str) -> Option<&'static Self> {
        RULES.iter().find(|rule| rule.id == id)
    }

    /// The rule that says worse of the same thing: while its alert stands, this one's does not.
    pub(super) fn covered_by(&self) -> Option<&'static str> {
        (self.id == "disk_low").then_some("disk_full")
    }

    /// Where the runbook has more.
    pub fn runbook(&self) -> String {
        format!("docs/runbook.md#{}", self.id)
    }
}

/// The table of rules: id, severity, after how many seconds an alert begins and ends, what to do.
macro_rules! rules {
    ($($id:ident $severity:ident ($raise_after_s:literal, $clear_after_s:literal) $what_to_do:literal;)*) => {
        /// All of them. A cause is an alert within ten seconds, except where a minute of it is the cause.
        pub const RULES: &[Rule] = &[$(Rule {
            id: stringify!($id),
            severity: Severity::$severity,
            raise_after_s: $raise_after_s,
            clear_after_s: $clear_after_s,
            what_to_do: $what_to_do,
        }),*];
    };
}

rules! {
    // A link that breaks and comes back at once is no loss. Who is back is there: `node_flapping` says
    // who comes and goes.
    node_lost Critical (2, 0) "if all others are lost at once, look at this machine's own network (cable, Wi-Fi); else start exo there again (if its data folder was copied, end the copy, `exo leave` there and `exo join CODE`); if it is lost for good, `exo remove` it or, where it was the only admin, `exo leave` on each machine lets them form a cluster anew";
    node_flapping Warning (0, 60) "look at the machine's network and power: it comes and goes";
    device_lost Critical (0, 5) "wait for its check; if it does not come back, look at the card's power and at the driver's messages";
    device_quarantined Warning (0, 5) "update the driver, then `exo devices --retry` on that node gives it another chance";
    driver_problem Warning (0, 5) "install or update the driver as `exo devices` says on that node";
    device_hot Warning (5, 60) "give it air, or place less on it: `exo drain` moves its work away";
    device_throttled Warning (5, 60) "cool it or give it mains power; until then plans count it as fast as it was measured, less what its steps teach";
    memory_pressure Critical (5, 30) "end other programs there, unload a model, or bound the node with the setting `memory_mib`";
    disk_low Warning (0, 30) "make room: `exo prune` deletes what is partial, `exo models remove` a model";
    disk_full Critical (0, 30) "make room: `exo prune` deletes what is partial, `exo models remove` a model; both work on a full disk, and without a node";
    disk_hung Critical (0, 5) "look at that disk and its cable, or at the network that it is mounted over; once it answers, the machine is given models again by itself";
    descriptors_low Warning (5, 30) "end clients that hold connections open for nothing, or raise the hard limit above the number named here and start exo anew: LimitNOFILE in its systemd unit, `nofile` in limits.conf, or `--ulimit nofile` of its container";
    kv_full Warning (5, 30) "place the model with more `cache_tokens`, or with `--kv q8`, or send fewer long prompts at once";
    queue_full Warning (5, 30) "place the model with more slots, or on more devices, or send less";
    stage_slow Warning (0, 60) "`exo replan` says whether another split is faster; move other programs off that device";
    slower_than_predicted Warning (60, 60) "look for what else runs on its devices and links; `exo replan` measures against a new plan";
    link_degraded Warning (20, 60) "if one of the two computes or has other programs that keep its processor busy, that is why; else look at the network between them, and use a cable where one is on Wi-Fi";
    link_on_wifi Info (60, 60) "use a cable: each token of an answer crosses that link";
    version_skew Warning (5, 30) "install the same version of exo on all nodes";
    coordinator_unstable Warning (0, 60) "look at the network between the nodes: who coordinates changes when they lose sight of each other";
    clock_skew Warning (5, 30) "let the system set that machine's clock (NTP)";
    join_waiting Info (0, 5) "compare the check words on both machines, then `exo admit` on an admin (`exo status` marks them) lets it in";
    admin_forked Critical (0, 0) "if its data folder was copied, end one of the two; else somebody has its key: `exo remove` it on another admin, then `exo leave` there and `exo join CODE` with the code that `exo invite` shows here";
    peer_unreachable Warning (5, 20) "open exo's port (52416, UDP and TCP) in the firewalls of both, and look whether they are on one network";
    // It is tried twice a minute, and a machine that is very busy may miss one.
    multicast_blocked Warning (60, 5) "allow UDP port 5353 in the firewall of that machine, and exo in its system's settings for the local network; or name one node with `--peer HOST:PORT`";
    // A healed link is back within 2 s, and a coordinator is missed after 4.
    coordinator_unreached Critical (3, 5) "see that this machine and the one that coordinates reach each other: exo's port (52416, UDP and TCP) in both firewalls; until then ask on another machine";
    other_cluster Info (10, 30) "to make it one cluster, `exo invite` on one machine and `exo join` with its code on the other, which must have no members";
    transfer_stalled Warning (0, 5) "look at the network and the disk of the node that loads; it goes on by itself when they do";
    download_failed Warning (0, 5) "`exo pulls` says what would help; `exo pulls resume ID` or \"try again\" on the page goes on where it stopped, `exo pulls cancel ID` gives it up";
    quota_full Warning (0, 30) "`exo models remove` a model there, or let models take more with the setting `disk_quota_mib`";
    model_changed Warning (0, 5) "`exo models remove` it and `exo models add` the file anew, or put the old file back";
    // At a start its machines come one after the other.
    model_gone Warning (10, 5) "put the file back where it was, `exo models add` it where it is now, or start the machine that has it; until then neither unload the model nor end its machines";
    model_differs Critical (0, 5) "`exo unload` it, `exo models remove` it on every machine that has of it, and fetch it again; if it happens again, the hub or a mirror has a damaged file";
    instance_down Critical (3, 5) "bring back the device that is missing, or make room elsewhere; it goes on by itself then";
    removed Critical (0, 0) "`exo stop`, then `exo leave` makes it a new node; a code (`exo invite` there, `exo join CODE` here) brings it back into the cluster as that";
    battery_low Warning (5, 30) "plug it in, or `exo drain` the node before it ends";
}
