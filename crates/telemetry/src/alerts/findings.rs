//! What each rule finds in one look at everything.

use std::collections::BTreeSet;

use exo_api::{
    AlertView, DeviceTelemetryView, DeviceView, InstanceState, InstanceView, LinkTelemetryView, LoadView,
    MemberRole, NodeStatus, NodeTelemetryView, NodeView, PullState,
};
use exo_types::{DeviceKind, DeviceState, SupportClass, clean_name};

use super::memory::{CHANGES_S, Memory};
use super::{AlertInputs, DifferingModel, Rule};

/// Longest name of others in an alert, in characters.
const NAME_CHARS_MAX: usize = 64;
/// Longest text of others in an alert, in characters: why a model fits nowhere names each device.
const REASON_CHARS_MAX: usize = 600;
/// Admins that an alert names.
const ADMINS_NAMED_MAX: usize = 2;
/// Characters of an id in the id of an alert.
const SHORT: usize = 12;

/// Without a byte for so long a transfer stands still, in seconds.
const STALLED_S: u64 = 60;
/// What a member says of its links counts for so long, in seconds: it says so every second or two.
const FRESH_S: f64 = 6.0;
/// A download is counted in whole chunks of 4 MiB, several of which are under way: a slow line brings none
/// for minutes.
const PULL_STALLED_S: u64 = 300;
/// From this part of a token's time on, the way over Wi-Fi is worth a cable; below the second it is not.
const OVER_WIFI: (f64, f64) = (0.2, 0.15);

/// So long a member may be lost before others' links to it count, in seconds: those end 6 s after the last
/// sign of life.
const LINKS_LINGER_S: u64 = 10;

const MIB: u64 = 1 << 20;
const GIB: f64 = (1u64 << 30) as f64;

/// How a thing is that something was found of. What is good is not found.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Level {
    /// On the bad side of the limit.
    Bad,
    /// Neither so bad that an alert begins, nor so good that one ends.
    Between,
    /// Nothing can be said now, because nothing is done.
    Idle,
}

/// What is affected.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
struct Affected {
    node: Option<String>,
    device: Option<String>,
    instance: Option<String>,
    /// The other end of a link, a version, a stranger: what else tells two alerts of a rule apart.
    other: Option<String>,
}

/// One thing that a rule found.
#[derive(Clone, PartialEq, Debug)]
pub(super) struct Finding {
    pub(super) rule: &'static Rule,
    pub(super) level: Level,
    affected: Affected,
    pub(super) subject: String,
    pub(super) text: String,
}

impl Finding {
    /// Tells it from all others, and stays the same while it lasts.
    pub(super) fn id(&self) -> String {
        let Affected { node, device, instance, other } = &self.affected;
        // Ids of nodes are long; names of others are kept apart by all of them.
        let is_id = |text: &str| text.len() > 32 && text.bytes().all(|byte| byte.is_ascii_hexdigit());
        let short = |text: &String| {
            let chars_max = if is_id(text) { SHORT } else { NAME_CHARS_MAX };
            text.chars().take(chars_max).collect::<String>()
        };
        let parts = [node.as_ref().map(short), device.clone(), instance.clone(), other.as_ref().map(short)];
        let parts = parts.into_iter().flatten().map(|part| clean_name(&part, NAME_CHARS_MAX));
        std::iter::once(self.rule.id.to_owned()).chain(parts).collect::<Vec<_>>().join(":")
    }

    pub(super) fn view(self, id: String, since_unix_s: u64) -> AlertView {
        AlertView {
            id,
            rule: self.rule.id.to_owned(),
            severity: self.rule.severity,
            since_unix_s,
            resolved_unix_s: None,
            silenced_until_unix_s: None,
            node: self.affected.node,
            device: self.affected.device,
            instance: self.affected.instance,
            subject: self.subject,
            text: self.text,
            what_to_do: self.rule.what_to_do.to_owned(),
            runbook: self.rule.runbook(),
        }
    }
}

/// Everything that any rule finds.
pub(super) fn findings(seen: &AlertInputs<'_>, memory: &Memory) -> Vec<Finding> {
    let mut out = Findings { out: Vec::new(), seen: *seen, memory };
    if out.is_removed() {
        // What it still has of its former cluster is over.
        out.removed();
        out.own();
        return out.out;
    }
    for node in &seen.view.nodes {
        out.node(node);
    }
    for told in &seen.told.nodes {
        out.measured(told);
    }
    for instance in &seen.view.instances {
        out.instance(instance);
    }
    out.own();
    out.cluster();
    out.out
}

/// What the way over radio links takes of a token.
struct OverWifi {
    /// Names of the ends of the first of them.
    between: (String, String),
    way_ms: f64,
    token_ms: f64,
}

struct Findings<'a> {
    out: Vec<Finding>,
    seen: AlertInputs<'a>,
    memory: &'a Memory,
}

impl Findings<'_> {
    fn add(
        &mut self,
        rule: &'static str,
        level: Option<Level>,
        affected: Affected,
        subject: String,
        text: String,
    ) {
        let Some((rule, level)) = Rule::of(rule).zip(level) else { return };
        self.out.push(Finding { rule, level, affected, subject, text });
    }

    /// Whether this node's cluster has put it out: then that has members, and this node is none.
    fn is_removed(&self) -> bool {
        let nodes = &self.seen.view.nodes;
        !nodes.is_empty() && !nodes.iter().any(|node| node.is_self)
    }

    fn removed(&mut self) {
        let affected = Affected { node: Some(self.seen.view.self_node.clone()), ..Affected::default() };
        let text = "this node was removed from its cluster, for good: it uses no device and takes no request; its models stay";
        self.add("removed", Some(Level::Bad), affected, "this node".to_owned(), text.to_owned());
    }

    fn node(&mut self, node: &NodeView) {
        let name = clean_name(&node.name, NAME_CHARS_MAX);
        let affected = || Affected { node: Some(node.id.clone()), ..Affected::default() };
        // One that was never there in this run may still be on its way when this node starts.
        let is_expected = !self.memory.is_awaited(&node.id, self.seen.time_s);
        let is_lost = node.status == NodeStatus::Lost && !node.is_self && is_expected;
        // The links to one that has just died are open for a moment yet.
        let gone_s = node.gone_since_unix_s.map(|since| self.seen.unix_s.saturating_sub(since));
        let is_told_apart = is_lost && gone_s.is_none_or(|gone_s| gone_s >= LINKS_LINGER_S);
        let text = match self.reached_by(&node.id).filter(|_| is_told_apart) {
            Some((coordinator, by)) => {
                self.apart_from_coordinator(node, &name, &coordinator, &by);
                format!(
                    "{name} is not there: {coordinator}, which coordinates, does not hear it, though {by} does"
                )
            }
            None => format!("{name} is not there"),
        };
        self.add("node_lost", bad(is_lost), affected(), name.clone(), text);
        // One that said goodbye comes and goes no more.
        let losses = if node.status == NodeStatus::Left { 0 } else { self.memory.losses(&node.id) };
        let text = format!("{name} was lost {losses} times within {} minutes", CHANGES_S / 60);
        self.add("node_flapping", above(losses as f64, 3.0, 1.0), affected(), name.clone(), text);
        let text = format!(
            "the key of {name} is in two places, or it lies: it signed two changes of the members apart from each other"
        );
        self.add("admin_forked", bad(node.has_forked), affected(), name.clone(), text);
        let is_hung = node.is_disk_hung && !node.status.is_gone();
        let text = format!(
            "the disk of {name} has not answered a write for ten seconds: nothing more is placed there"
        );
        self.add("disk_hung", bad(is_hung), affected(), name.clone(), text);
        for device in &node.devices {
            self.device(node, &name, device);
        }
    }

    /// The coordinator, and another member that says that it has a link to this one; by their names.
    fn reached_by(&self, id: &str) -> Option<(String, String)> {
        let coordinator = &self.seen.view.epoch.as_ref()?.coordinator;
        let is_another = |told: &&NodeTelemetryView| {
            told.status == NodeStatus::Alive
                && told.age_s.is_some_and(|age_s| age_s < FRESH_S)
                && ![id, coordinator].contains(&told.node.as_str())
        };
        let mut others = self.seen.told.nodes.iter().filter(is_another);
        let reaches = others.find(|told| told.links.iter().any(|link| link.peer == id))?;
        Some((self.name_of(coordinator), clean_name(&reaches.name, NAME_CHARS_MAX)))
    }

    /// Who does not hear a member calls it lost; others may reach it all the same.
    fn apart_from_coordinator(&mut self, node: &NodeView, name: &str, coordinator: &str, by: &str) {
        let affected = Affected {
            node: self.seen.view.epoch.as_ref().map(|epoch| epoch.coordinator.clone()),
            other: Some(node.id.clone()),
            ..Affected::default()
        };
        let text = format!(
            "{coordinator}, which coordinates, does not reach {name}, though {by} does: {name} holds no layers and refuses requests"
        );
        self.add("peer_unreachable", Some(Level::Bad), affected, format!("{coordinator} to {name}"), text);
    }

    fn device(&mut self, node: &NodeView, name: &str, device: &DeviceView) {
        let id = clean_name(&device.id, NAME_CHARS_MAX);
        let subject = format!("{name}/{id}");
        let affected = || Affected {
            node: Some(node.id.clone()),
            device: Some(device.id.clone()),
            ..Affected::default()
        };
        let reason = clean_name(&device.state_reason, REASON_CHARS_MAX);
        // A check that follows a quarantine is the way back, not a loss.
        let is_checked = device.state == DeviceState::Verifying && self.memory.was_lost(&node.id, &device.id);
        let is_lost = device.state == DeviceState::Lost || is_checked;
        let text = format!("{subject} takes no work and is being looked at: {reason}");
        self.add("device_lost", bad(is_lost), affected(), subject.clone(), text);
        let is_quarantined = device.state == DeviceState::Quarantined;
        let support = clean_name(&device.support_reason, REASON_CHARS_MAX);
        let text =
            format!("{subject} is in quarantine: {}", if reason.is_empty() { &support } else { &reason });
        self.add("device_quarantined", bad(is_quarantined), affected(), subject.clone(), text);
        let is_unsupported = device.support == SupportClass::Unsupported && device.kind != DeviceKind::Cpu;
        let text = format!("{subject} cannot be used: {support}");
        self.add("driver_problem", bad(is_unsupported && !is_quarantined), affected(), subject, text);
    }

    /// What a node measures.
    fn measured(&mut self, told: &NodeTelemetryView) {
        let name = clean_name(&told.name, NAME_CHARS_MAX);
        let affected = || Affected { node: Some(told.node.clone()), ..Affected::default() };
        if let Some((available, total)) = told.memory_available_bytes.zip(told.memory_total_bytes) {
            let share = available as f64 / total.max(1) as f64;
            let text = format!("{name} has {} of memory free, {:.0} %", gib(available), share * 100.0);
            self.add("memory_pressure", below(share, 0.05, 0.08), affected(), name.clone(), text);
        }
        if let Some(free) = told.disk_free_bytes {
            let is_full = free < MIB;
            let low = below(free as f64, (2048 * MIB) as f64, (3072 * MIB) as f64).filter(|_| !is_full);
            let text = format!("the disk of {name}'s data folder has {} free", gib(free));
            self.add("disk_low", low, affected(), name.clone(), text);
            let level = below(free as f64, MIB as f64, (16 * MIB) as f64);
            let full = if level == Some(Level::Bad) { "is full" } else { "is almost full" };
            let text = format!(
                "the disk of {name}'s data folder {full}: {:.1} MiB are free beside what the node sets aside for its own files",
                free as f64 / MIB as f64
            );
            self.add("disk_full", level, affected(), name.clone(), text);
        }
        if let Some((open, max)) = told.descriptors_open.zip(told.descriptors_max) {
            let share = f64::from(open) / f64::from(max.max(1));
            let text = format!("{name} has {open} of {max} file descriptors open, {:.0} %", share * 100.0);
            self.add("descriptors_low", above(share, 0.85, 0.75), affected(), name.clone(), text);
        }
        if let Some(battery) = told.battery.filter(|_| told.mains_power != Some(true)) {
            let text = format!("the battery of {name} is at {:.0} %, without mains power", battery * 100.0);
            self.add("battery_low", below(battery, 0.2, 0.25), affected(), name.clone(), text);
        }
        if let Some(ahead) = told.clock_ahead_s {
            let off = ahead.unsigned_abs();
            let side = if ahead < 0 { "behind" } else { "ahead of" };
            let text = format!("the clock of {name} is {} {side} this node's", in_words(off));
            self.add("clock_skew", above(off as f64, 60.0, 30.0), affected(), name.clone(), text);
        }
        let text = format!(
            "{name} hears nothing of the multicast that it sends: nodes that have not met it may not find it by themselves"
        );
        let is_blocked = told.multicast_heard == Some(false) && self.is_found_by_somebody();
        self.add("multicast_blocked", bad(is_blocked), affected(), name.clone(), text);
        for device in &told.devices {
            self.sensors(told, &name, device);
        }
        self.links(told, &name);
    }

    /// Whether there are nodes that look for each other: members, or strangers who may join.
    fn is_found_by_somebody(&self) -> bool {
        self.seen.view.nodes.len() > 1 || self.seen.view.join_window.open
    }

    fn sensors(&mut self, told: &NodeTelemetryView, name: &str, device: &DeviceTelemetryView) {
        let subject = format!("{name}/{}", clean_name(&device.device, NAME_CHARS_MAX));
        let affected = || Affected {
            node: Some(told.node.clone()),
            device: Some(device.device.clone()),
            ..Affected::default()
        };
        if let Some(celsius) = device.sensors.temperature_c {
            let (bad, good, limit) = match device.limit_c.map(f64::from) {
                Some(limit) => {
                    (limit - 3.0, limit - 8.0, format!(", and slows itself down at {limit:.0} °C"))
                }
                None => (90.0, 85.0, String::new()),
            };
            let text = format!("{subject} is at {celsius:.0} °C{limit}");
            let level = above(f64::from(celsius), bad, good);
            self.add("device_hot", level, affected(), subject.clone(), text);
        }
        // A phone or a laptop is slowed down on its battery, too.
        let power = if told.mains_power == Some(false) { ", on its battery" } else { "" };
        let text = format!("{subject} is slowed down for heat or power{power}");
        self.add("device_throttled", bad(device.throttled == Some(true)), affected(), subject, text);
    }

    fn links(&mut self, told: &NodeTelemetryView, name: &str) {
        // Whom only the coordinator hears is in doubt here, and is there all the same.
        let is_there = |status| matches!(status, NodeStatus::Alive | NodeStatus::Suspected);
        let is_alive =
            |id: &String| self.seen.view.nodes.iter().any(|node| node.id == *id && is_there(node.status));
        let unreached: Vec<_> = match is_there(told.status) {
            true => told.unreached.iter().filter(|id| is_alive(id)).cloned().collect(),
            false => Vec::new(),
        };
        for peer in unreached {
            let other = self.name_of(&peer);
            let affected =
                Affected { node: Some(told.node.clone()), other: Some(peer), ..Affected::default() };
            let text = format!("{name} does not reach {other}, though both are there");
            self.add("peer_unreachable", Some(Level::Bad), affected, format!("{name} to {other}"), text);
        }
        for link in &told.links {
            let Some(usual) = self.memory.baseline_ms(&told.node, &link.peer) else { continue };
            let other = clean_name(&link.peer_name, NAME_CHARS_MAX);
            let affected = Affected {
                node: Some(told.node.clone()),
                other: Some(link.peer.clone()),
                ..Affected::default()
            };
            let level = above(link.rtt_ms, (4.0 * usual).max(10.0), (2.0 * usual).max(5.0));
            let text = format!(
                "a round trip from {name} to {other} takes {:.1} ms, usually {usual:.1} ms",
                link.rtt_ms
            );
            self.add("link_degraded", level, affected, format!("{name} to {other}"), text);
        }
    }

    fn instance(&mut self, instance: &InstanceView) {
        let model = clean_name(&instance.model, NAME_CHARS_MAX);
        let subject = format!("{model} ({})", instance.id);
        let affected = || Affected { instance: Some(instance.id.clone()), ..Affected::default() };
        let down = match &instance.state {
            InstanceState::Degraded { reason }
            | InstanceState::Waiting { reason }
            | InstanceState::Failed { reason } => Some(cut(reason)),
            InstanceState::Placing | InstanceState::Loading { .. } | InstanceState::Ready => None,
        };
        let text = format!("{subject} does not answer: {}", down.as_deref().unwrap_or_default());
        self.add("instance_down", bad(down.is_some()), affected(), subject.clone(), text);
        let text = format!(
            "no machine that is there has the file of {subject} any more: it answers from memory, and could not be loaded again"
        );
        self.add("model_gone", bad(instance.is_file_gone), affected(), subject.clone(), text);
        let stalled_s = self.memory.stalled_s(&instance.id, self.seen.time_s);
        let text = format!("{subject} has not loaded anything for {stalled_s} s");
        self.add("transfer_stalled", bad(stalled_s >= STALLED_S), affected(), subject.clone(), text);
        if let Some(load) = &instance.load {
            self.load(instance, &subject, load);
        }
        if let Some(OverWifi { between: (from, to), way_ms, token_ms }) = self.over_wifi(instance) {
            let share = way_ms / token_ms;
            let text = format!(
                "{subject} crosses Wi-Fi between {from} and {to}: of the {token_ms:.1} ms of a token the way takes {way_ms:.1} ms, {:.0} %",
                share * 100.0
            );
            let level = above(share, OVER_WIFI.0, OVER_WIFI.1);
            self.add("link_on_wifi", level, affected(), subject.clone(), text);
        }
        if let Some(slowest) = self.memory.slowest_stage(&instance.id) {
            let (of, share, expected) = (slowest.stages, slowest.share * 100.0, slowest.expected * 100.0);
            let place =
                format!("{}/{}", self.name_of(&slowest.node), clean_name(&slowest.device, NAME_CHARS_MAX));
            let text = format!(
                "stage {} of {subject} on {place} takes {share:.0} % of the time of {of}, and should take {expected:.0} %",
                slowest.stage
            );
            let level = above(slowest.excess, 1.5, 1.35);
            self.add("stage_slow", level, affected(), subject, text);
        }
    }

    /// What is predicted of all hops, by the measured rates, is divided among them by their round trips:
    /// nothing while one of them has told none.
    fn over_wifi(&self, instance: &InstanceView) -> Option<OverWifi> {
        let predicted = instance.predicted.as_ref().filter(|_| instance.state == InstanceState::Ready)?;
        let nodes: Vec<&str> = instance.stages.iter().map(|stage| stage.node.as_str()).collect();
        // Behind the last stage the token goes back to the first.
        let hops = nodes.iter().zip(nodes.iter().cycle().skip(1)).filter(|(from, to)| from != to);
        let hops = hops.map(|(from, to)| Some((from, to, self.link_of(from, to)?)));
        let hops = hops.collect::<Option<Vec<_>>>()?;
        let (from, to, _) = hops.iter().find(|(_, _, (_, is_wireless))| *is_wireless)?;
        let between = (self.name_of(from), self.name_of(to));
        let all_ms: f64 = hops.iter().map(|(_, _, (rtt_ms, _))| rtt_ms).sum();
        let wireless = hops.iter().filter(|(_, _, (_, is_wireless))| *is_wireless);
        let wireless_ms: f64 = wireless.map(|(_, _, (rtt_ms, _))| rtt_ms).sum();
        let way_ms = predicted.hop_ms.expected * wireless_ms / all_ms;
        Some(OverWifi { between, way_ms, token_ms: 1e3 / predicted.tokens_per_s.expected })
    }

    /// The longer round trip that the two ends tell of their link, and whether one of them has it on a radio.
    fn link_of(&self, a: &str, b: &str) -> Option<(f64, bool)> {
        let links = || [self.link_told(a, b), self.link_told(b, a)].into_iter().flatten();
        let rtt_ms = links().map(|link| link.rtt_ms).reduce(f64::max)?;
        Some((rtt_ms, links().any(|link| link.is_wireless == Some(true))))
    }

    fn link_told(&self, at: &str, peer: &str) -> Option<&LinkTelemetryView> {
        let told = self.seen.told.nodes.iter().find(|told| told.node == at)?;
        told.links.iter().find(|link| link.peer == peer && told.status == NodeStatus::Alive)
    }

    fn load(&mut self, instance: &InstanceView, subject: &str, load: &LoadView) {
        let affected = || Affected { instance: Some(instance.id.clone()), ..Affected::default() };
        let used = f64::from(load.pages_used) / f64::from(load.pages.max(1));
        let level =
            above(used, 0.95, 0.85).map(|level| if load.waiting > 0 { level } else { Level::Between });
        let text = format!(
            "keys and values of {subject} fill {} of {} pages, and {} answers wait",
            load.pages_used, load.pages, load.waiting
        );
        self.add("kv_full", level, affected(), subject.to_owned(), text);
        let waiting = f64::from(load.waiting) / f64::from(load.waiting_max.max(1));
        let text =
            format!("{} answers wait for {subject}, whose queue takes {}", load.waiting, load.waiting_max);
        self.add("queue_full", above(waiting, 0.9, 0.7), affected(), subject.to_owned(), text);
        let predicted = instance.predicted.as_ref().map(|predicted| predicted.total_tokens_per_s.expected);
        if let Some((measured, predicted)) = load.tokens_per_s.zip(predicted.filter(|rate| *rate > 0.0)) {
            let share = measured / predicted;
            // While nothing runs the number is that of the last answer: then time does not pass.
            let level =
                below(share, 0.75, 0.85).map(|level| if load.running > 0 { level } else { Level::Idle });
            let text = format!("{subject} makes {measured:.1} tokens/s where {predicted:.1} were expected");
            self.add("slower_than_predicted", level, affected(), subject.to_owned(), text);
        }
    }

    /// What this node knows of its own disk.
    fn own(&mut self) {
        let seen = self.seen;
        let me = seen.view.self_node.clone();
        let name = self.name_of(&me);
        let affected =
            |other: Option<String>| Affected { node: Some(me.clone()), other, ..Affected::default() };
        for pull in &seen.own.pulls {
            let what = clean_name(&pull.reference, REASON_CHARS_MAX);
            let stalled_s = self.memory.stalled_s(&pull.id, seen.time_s);
            let text = format!("nothing has come of {what} for {stalled_s} s");
            let subject = format!("{what} on {name}");
            let other = || affected(Some(pull.id.clone()));
            self.add("transfer_stalled", bad(stalled_s >= PULL_STALLED_S), other(), subject.clone(), text);
            let why = clean_name(pull.error.as_deref().unwrap_or_default(), REASON_CHARS_MAX);
            let text = format!("{what} cannot be fetched: {why}");
            self.add("download_failed", bad(pull.state == PullState::Failed), other(), subject, text);
        }
        if let Some((used, quota)) = seen.own.quota_bytes {
            let share = used as f64 / quota.max(1) as f64;
            let text =
                format!("models on {name} take {} of the {} that they may have", gib(used), gib(quota));
            self.add("quota_full", above(share, 0.95, 0.9), affected(None), name.clone(), text);
        }
        for model in &seen.own.changed_models {
            let model = clean_name(model, NAME_CHARS_MAX);
            let text = format!("the file of {model} on {name} is not the one that was added");
            let subject = format!("{model} on {name}");
            self.add("model_changed", Some(Level::Bad), affected(Some(model.clone())), subject, text);
        }
        for DifferingModel { id, name: model } in &seen.own.differing_models {
            let model = clean_name(model, NAME_CHARS_MAX);
            let running = seen.view.instances.iter().find(|instance| instance.model_id == *id);
            let running = running.map(|i| format!("; {} runs with it", clean_name(&i.id, NAME_CHARS_MAX)));
            let text = format!(
                "{model} is not what its hub promised, as a check on {name} found: it is not placed anew{}",
                running.unwrap_or_default()
            );
            self.add("model_differs", Some(Level::Bad), affected(Some(id.clone())), model, text);
        }
    }

    /// What concerns no single one of them.
    fn cluster(&mut self) {
        let view = self.seen.view;
        if let Some(unheard) = &view.unheard_coordinator {
            let (me, coordinator) = (self.name_of(&view.self_node), self.name_of(&unheard.coordinator));
            let other = self.name_of(&unheard.followed_by);
            let affected = Affected { node: Some(view.self_node.clone()), ..Affected::default() };
            let text = format!(
                "{me} does not reach {coordinator}, which coordinates and which {other} reaches: {me} holds no layers and refuses \
                 requests; ask on {other}"
            );
            self.add("coordinator_unreached", Some(Level::Bad), affected, me, text);
        }
        let changes = self.memory.coordinator_changes();
        let text = format!("who coordinates changed {changes} times within {} minutes", CHANGES_S / 60);
        let level = above(changes as f64, 4.0, 2.0);
        self.add("coordinator_unstable", level, Affected::default(), "the cluster".to_owned(), text);
        let versions: BTreeSet<&str> = view
            .nodes
            .iter()
            .filter(|node| node.status == NodeStatus::Alive && !node.version.is_empty())
            .map(|node| node.version.as_str())
            .collect();
        let listed: Vec<_> =
            versions.iter().take(4).map(|version| clean_name(version, NAME_CHARS_MAX)).collect();
        let text = format!("nodes run different versions of exo: {}", listed.join(", "));
        self.add(
            "version_skew",
            bad(versions.len() > 1),
            Affected::default(),
            "the cluster".to_owned(),
            text,
        );
        let admins = self.other_admins();
        for request in &view.join_requests {
            let name = clean_name(&request.name, NAME_CHARS_MAX);
            let text = format!(
                "{name} asks to join; its check words: {}{admins}",
                clean_name(&request.check_words, REASON_CHARS_MAX)
            );
            let affected = Affected { other: Some(request.node.clone()), ..Affected::default() };
            self.add("join_waiting", Some(Level::Bad), affected, name, text);
        }
        if let Some(first) = view.other_clusters.first() {
            let name = clean_name(&first.name, NAME_CHARS_MAX);
            let more = match view.other_clusters.len() - 1 {
                0 => String::new(),
                more => format!(", and {more} more"),
            };
            let text = format!(
                "{name} at {}{more}: on this network with a cluster of its own; neither joins the other by itself",
                clean_name(&first.address, NAME_CHARS_MAX)
            );
            self.add("other_cluster", Some(Level::Bad), Affected::default(), name, text);
        }
    }

    /// Who alone lets nodes in, where that is not this node.
    fn other_admins(&self) -> String {
        let admins: Vec<&NodeView> =
            self.seen.view.nodes.iter().filter(|node| node.role == MemberRole::Admin).collect();
        if admins.is_empty() || admins.iter().any(|node| node.is_self) {
            return String::new();
        }
        let names: Vec<_> =
            admins.iter().take(ADMINS_NAMED_MAX).map(|node| clean_name(&node.name, NAME_CHARS_MAX)).collect();
        format!("; `exo admit` works on {}", names.join(" and "))
    }

    fn name_of(&self, id: &str) -> String {
        let node = self.seen.view.nodes.iter().find(|node| node.id == id);
        node.map_or_else(|| id.chars().take(SHORT).collect(), |node| clean_name(&node.name, NAME_CHARS_MAX))
    }
}

/// A reason, cut behind a word where it is too long.
fn cut(reason: &str) -> String {
    let whole = clean_name(reason, REASON_CHARS_MAX);
    match whole.strip_suffix('…').and_then(|kept| kept.rsplit_once(' ')) {
        Some((kept, _)) => format!("{kept} …"),
        None => whole,
    }
}

fn bad(is_bad: bool) -> Option<Level> {
    is_bad.then_some(Level::Bad)
}

/// Bad from `bad` on, good below `good`. What is no number is neither.
fn above(value: f64, bad: f64, good: f64) -> Option<Level> {
    if value >= bad { Some(Level::Bad) } else { (value >= good).then_some(Level::Between) }
}

/// Bad below `bad`, good from `good` on.
fn below(value: f64, bad: f64, good: f64) -> Option<Level> {
    if value < bad { Some(Level::Bad) } else { (value < good).then_some(Level::Between) }
}

/// A time in the unit that a person would name.
fn in_words(seconds: u64) -> String {
    match seconds {
        0..120 => format!("{seconds} s"),
        120..7200 => format!("{} min", seconds / 60),
        7200..172_800 => format!("{} h", seconds / 3600),
        _ => format!("{} days", seconds / 86_400),
    }
}

/// Rounded down: what is free is not more than what is said.
fn gib(bytes: u64) -> String {
    format!("{:.1} GiB", (bytes as f64 / GIB * 10.0).floor() / 10.0)
}

#[cfg(test)]
mod tests {
    use super::{REASON_CHARS_MAX, cut, gib, in_words};

    #[test]
    fn no_more_is_free_than_is_said() {
        let shown = [0, 99 << 20, 1 << 29, (1 << 30) - 1, 3 << 30].map(gib);
        assert_eq!(shown, ["0.0 GiB", "0.0 GiB", "0.5 GiB", "0.9 GiB", "3.0 GiB"]);
    }

    #[test]
    fn a_reason_is_cut_behind_a_word_and_no_number_is_halved() {
        assert_eq!(cut("with 175.7 MiB more"), "with 175.7 MiB more");
        let long = "x".repeat(REASON_CHARS_MAX - 8) + " 175.7 MiB more";
        let said = cut(&long);
        assert!(said.ends_with("x …") || said.ends_with(" 175.7 …"), "{said}");
        assert!(said.chars().count() <= REASON_CHARS_MAX + 1);
    }

    #[test]
    fn a_clock_is_off_by_what_a_person_would_say() {
        let said: Vec<_> = [61, 3600, 90_000, 400_000].into_iter().map(in_words).collect();
        assert_eq!(said, ["61 s", "60 min", "25 h", "4 days"]);
    }
}
