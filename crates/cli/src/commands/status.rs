//! `exo status`: nodes, devices, instances and links of the cluster.

use std::time::Duration;

use exo_api::{
    ClusterView, DeviceView, FetchSourceView, InstanceState, InstanceView, LinkView, LoadView, LossView,
    MeasuredAnswerView, MeasuredTimeView, MemberRole, MovingView, NodeStatus, NodeView, OtherClusterView,
    ProvenanceView, RequestPhase, RequestView, SensorsView, StagePhase, StageProgressView, StageView,
    TermOffView,
};
use exo_types::{DeviceState, Monitor};

use super::members::ask_line;
use super::running;
use crate::args::Status;
use crate::config::Config;
use crate::ui;

/// Prints the cluster as the running node sees it.
pub async fn run(config: &Config, args: &Status) -> anyhow::Result<()> {
    let client = running(config).await?;
    let json = args.json;
    if args.requests {
        let requests: Vec<RequestView> = client.get("/exo/v1/requests").await?;
        return ui::json_or(json.json, &requests, || requests_table(&requests));
    }
    if args.watch {
        return super::watch::run(&client, json.json).await;
    }
    let view: ClusterView = client.get("/exo/v1/cluster").await?;
    if args.links {
        return ui::json_or(json.json, &view.links, || links(&view, true));
    }
    ui::json_or(json.json, &view, || whole(&view))
}

/// All there is to see of a cluster.
pub fn whole(view: &ClusterView) {
    nodes(view);
    removed(view).or_else(|| only_admin(view)).iter().for_each(ui::paragraph);
    log_lines(view).iter().for_each(ui::paragraph);
    instances(view);
    links(view, false);
    view.join_requests.iter().map(|request| ask_line(view, request)).for_each(ui::paragraph);
    others_line(view).iter().for_each(ui::paragraph);
}

/// Who is near and belongs to another cluster, and how to make them one.
pub fn others_line(view: &ClusterView) -> Option<String> {
    others(view).map(|(who, how)| format!("{who}, and neither joins the other by itself: {how}"))
}

/// The same in two parts: who and how.
pub fn others(view: &ClusterView) -> Option<(String, &'static str)> {
    let name = |other: &OtherClusterView| format!("{} at {}", other.name, other.address);
    let names: Vec<String> = view.other_clusters.iter().map(name).collect();
    let who = match names.as_slice() {
        [] => return None,
        [one] => format!("{one} has a cluster of its own"),
        // Which of them are of one cluster they do not say.
        more => format!("{} are in other clusters, or all in one", more.join(", ")),
    };
    // Only a node without members takes a code.
    let how = match view.nodes.len() > 1 {
        false => "`exo invite` there and `exo join CODE` here makes them one",
        true => {
            "`exo invite` here and `exo join CODE` on each machine there makes them one; a machine that is in a cluster leaves it first \
             (`exo stop`, `exo leave`, and `exo` anew)"
        }
    };
    Some((who, how))
}

/// What a node hears that its cluster has put out.
pub fn removed(view: &ClusterView) -> Option<String> {
    let is_out = !view.nodes.is_empty() && !view.nodes.iter().any(|node| node.is_self);
    is_out.then(|| {
        "this node was removed from its cluster, for good, and uses no device; its models stay: `exo stop`, then `exo leave` makes it \
         a new one"
            .to_owned()
    })
}

fn nodes(view: &ClusterView) {
    let leader = view.epoch.as_ref().map(|e| e.coordinator.as_str());
    let mut rows = Vec::new();
    for node in &view.nodes {
        let mut name = node.name.clone();
        if node.is_self {
            name.push_str(" (this)");
        }
        if leader == Some(node.id.as_str()) {
            name.push_str(" (coordinator)");
        }
        if node.role == MemberRole::Admin && view.nodes.len() > 1 {
            name.push_str(" (admin)");
        }
        let notes = [(node.is_drained, ", drained"), (node.is_disk_hung, ", its disk does not answer")];
        let notes = notes.into_iter().filter_map(|(is, note)| is.then_some(note));
        let status: String = std::iter::once(status_text(node.status)).chain(notes).collect();
        if node.devices.is_empty() {
            rows.push(vec![name, status, "-".to_owned(), "-".to_owned(), "-".to_owned()]);
            continue;
        }
        for device in &node.devices {
            let memory = format!(
                "{} of {}",
                ui::bytes(device.memory_free_bytes),
                ui::bytes(device.memory_total_bytes)
            );
            let speed =
                device.read_bytes_per_s.map_or("not measured".to_owned(), |b| format!("{:.1} GB/s", b / 1e9));
            let what = format!("{} ({})", device.name, device.backend);
            rows.push(vec![std::mem::take(&mut name), status.clone(), what, memory, speed]);
        }
    }
    ui::table(&["node", "status", "device", "memory free", "reads"], rows);
    for node in &view.nodes {
        node.devices.iter().flat_map(remarks).for_each(|text| ui::paragraph(format!("{} {text}", node.name)));
        for event in &node.card_events {
            ui::paragraph(format!(
                "{} {}: {}",
                node.name,
                ago(event.at_unix_s, exo_stdx::unix_s()),
                event.text
            ));
        }
    }
}

/// What a cluster with one admin should hear.
fn only_admin(view: &ClusterView) -> Option<String> {
    let mut admins = view.nodes.iter().filter(|node| node.role == MemberRole::Admin);
    let (only, other) = (admins.next()?, admins.next());
    if other.is_some() || view.nodes.len() < 2 {
        return admin_missing(view);
    }
    let name = &only.name;
    admin_missing(view).or_else(|| Some(format!("only {name} lets machines in and puts them out; `exo admin add NODE` there appoints a second, before {name} is lost")))
}

/// What to do where no admin is there.
pub fn admin_missing(view: &ClusterView) -> Option<String> {
    let admins: Vec<&NodeView> = view.nodes.iter().filter(|node| node.role == MemberRole::Admin).collect();
    if admins.is_empty() || admins.iter().any(|node| !node.status.is_gone()) {
        return None;
    }
    let names: Vec<&str> = admins.iter().map(|node| node.name.as_str()).collect();
    let are = if names.len() == 1 { "is" } else { "are" };
    Some(format!(
        "{} {are} not there, and nobody else lets machines in or puts them out: start exo there again; if all is lost there for good, `exo leave` on \
         each machine lets them form a cluster anew, with their models",
        names.join(", ")
    ))
}

/// What went wrong on this node, and whether the placements are on more than one disk.
fn log_lines(view: &ClusterView) -> Vec<String> {
    let now = exo_stdx::unix_s();
    let warning = |w: &exo_api::WarningView| format!("warning, {}: {}", ago(w.at_unix_s, now), w.text);
    let mut lines: Vec<String> = view.warnings.iter().map(warning).collect();
    let alive = view.nodes.iter().filter(|node| node.status == NodeStatus::Alive).count();
    if view.journal.holders < 2 && alive > 1 {
        lines.push("no other member is known to have the last placements on its disk yet".to_owned());
    }
    lines
}

/// What there is to say of a device besides its numbers: whether it is well, why not, how warm it is.
fn remarks(device: &DeviceView) -> Vec<String> {
    let state = match device.state {
        DeviceState::Usable | DeviceState::Quarantined => None, // of the second, the next line tells
        DeviceState::Lost => Some(format!("lost, and to be verified: {}", device.state_reason)),
        DeviceState::Verifying => Some(format!("being verified: {}", device.state_reason)),
    };
    let reason = Some(device.support_reason.clone()).filter(|reason| !reason.is_empty());
    let SensorsView { temperature_c, power_w, clock_mhz, utilisation } = device.sensors;
    let sensors =
        ui::sensors(Monitor { temperature_c, power_w, clock_mhz, utilisation, ..Monitor::default() });
    let learned = device.corrections.text();
    let times = |ProvenanceView { samples, age_s }| ui::measured(samples, age_s.into());
    let general = device.rates_measured.map(|measured| format!("measured in {}", times(measured)));
    let rates = device.rates_by_type.iter().map(|rates| {
        let text = ui::type_rates(rates.dtype, rates.read_bytes_per_s, rates.flops_per_s);
        format!("{text} ({})", times(rates.measured))
    });
    let driver = device.driver.as_ref().map(|driver| format!("driver {driver}"));
    let texts = [state, reason, driver, general].into_iter().flatten();
    let texts = texts.chain(rates).chain(learned).chain(sensors);
    texts.map(|text| format!("{}: {text}", device.id)).collect()
}

fn ago(at_unix_s: u64, now_unix_s: u64) -> String {
    ui::ago(now_unix_s.saturating_sub(at_unix_s))
}

fn status_text(status: NodeStatus) -> &'static str {
    match status {
        NodeStatus::Alive => "alive",
        NodeStatus::Suspected => "suspected",
        NodeStatus::Lost => "lost",
        NodeStatus::Left => "left",
    }
}

fn instances(view: &ClusterView) {
    if view.instances.is_empty() && view.nodes.iter().any(|node| node.is_self) {
        ui::paragraph("no model is placed; `exo run demo` places one");
    }
    for instance in &view.instances {
        let state = state_text(&instance.state) + &since_text(instance, exo_stdx::unix_s());
        let (id, model, context) = (&instance.id, &instance.model, instance.context_tokens);
        let load = instance.load.as_ref().map(load_text).unwrap_or_default();
        let (slots, cache) = (instance.slots, instance.cache_tokens);
        ui::paragraph(format!(
            "{id} {model} · {state} · context {context} · {slots} slots · cache of {cache} tokens{load}"
        ));
        if let Some(advice) = &instance.advice {
            ui::paragraph(format!("a better plan is there: {advice}; `exo replan {model}` moves it"));
        }
        wishes_text(instance).iter().for_each(ui::paragraph);
        if let Some(text) = instance.moving.as_ref().map(moving_text) {
            ui::paragraph(text);
        }
        if let Some(text) = speed_text(instance) {
            ui::paragraph(text);
        }
        alone_text(instance).iter().for_each(ui::paragraph);
        ui::table(&STAGE_HEADER, stage_rows(instance));
    }
}

/// What an instance was placed with.
pub fn numbers_lines(instance: &InstanceView) -> Vec<String> {
    let InstanceView { model, context_tokens, slots, cache_tokens, .. } = instance;
    let numbers =
        format!("{model} · context {context_tokens} · {slots} slots · cache of {cache_tokens} tokens");
    std::iter::once(numbers).chain(wishes_text(instance)).collect()
}

/// What whoever placed it said of devices and objective.
fn wishes_text(instance: &InstanceView) -> Option<String> {
    let InstanceView { pins, exclude, .. } = instance;
    let pins = (!pins.is_empty()).then(|| format!("pinned {}", pins.join(", ")));
    let excluded = (!exclude.is_empty()).then(|| format!("without {}", exclude.join(", ")));
    let streams = instance.streams.map(|n| format!("for the throughput of {n} streams"));
    let texts: Vec<String> = pins.into_iter().chain(excluded).chain(streams).collect();
    (!texts.is_empty()).then(|| format!("placed {}", texts.join(" · ")))
}

fn moving_text(moving: &MovingView) -> String {
    match moving {
        MovingView::Loading { reason, progress } => {
            format!("moving, and serving meanwhile: {reason}; {:.0} % is loaded elsewhere", 100.0 * progress)
        }
        MovingView::Stays { reason } => format!("cannot move: {reason}"),
    }
}

/// What the model of cost expects, of one stream and of as many as run, beside what came.
pub fn speed_text(instance: &InstanceView) -> Option<String> {
    let predicted = instance.predicted.as_ref()?;
    let range = |r: exo_api::plan::RangeView| {
        format!("{} tokens/s ({} to {})", ui::figure(r.expected), ui::figure(r.low), ui::figure(r.high))
    };
    let one = range(predicted.tokens_per_s);
    let (prompt, ttft) = (predicted.prompt_tokens, ui::figure(predicted.ttft_ms.expected));
    let first = format!("first token of a prompt of {prompt} after {ttft} ms");
    let running = instance.load.as_ref().map_or(0, |load| load.running);
    let beside = match (running, instance.measured_tokens_per_s) {
        (_, None) => "none measured yet".to_owned(),
        (0, Some(measured)) => format!("last measured {}", ui::figure(measured)),
        (n, Some(measured)) => {
            let off = 100.0 * (measured / predicted.total_tokens_per_s.expected - 1.0);
            format!(
                "{n} running: {}, measured {} ({off:+.0} %)",
                range(predicted.total_tokens_per_s),
                ui::figure(measured)
            )
        }
    };
    let before = predicted.uncorrected_tokens_per_s.map(ui::figure);
    let before = before.map_or_else(String::new, |rate| format!(", {rate} before its steps corrected that"));
    Some(format!("predicted for one stream {one}{before}, {first} · {beside}"))
}

/// Of times that are shorter the difference in per cent says nothing: what no plan counts is most of them.
const PERCENT_FROM_MS: f64 = 10.0;

/// A time beside what was predicted of it, with the difference where it says something.
fn time_text(measured_ms: f64, predicted_ms: f64) -> String {
    let (measured, predicted) = (ui::figure(measured_ms), ui::figure(predicted_ms));
    let is_long = measured_ms >= PERCENT_FROM_MS && predicted_ms >= PERCENT_FROM_MS;
    let percent = is_long.then(|| format!(" ({:+.0} %)", 100.0 * (measured_ms / predicted_ms - 1.0)));
    format!("{measured} ms, predicted {predicted}{}", percent.unwrap_or_default())
}

/// What the last answer took that ran alone, beside what was predicted of the same, and the part that is off.
fn alone_text(instance: &InstanceView) -> Option<String> {
    let MeasuredAnswerView { prompt_tokens, first_token, answer_tokens, token } = instance.measured_alone?;
    let off = |off: TermOffView| {
        let what = off.stage.map_or("between stages".to_owned(), |at| {
            let stage = instance.stages.get(at as usize);
            stage.map_or(format!("stage {at}"), |s| format!("{}/{}", s.node_name, s.device))
        });
        let (measured, predicted) = (ui::figure(off.measured_ms), ui::figure(off.predicted_ms));
        format!(": {what} took {measured} ms of it, predicted {predicted}")
    };
    let time = |time: MeasuredTimeView| {
        let off = time.off.map_or_else(String::new, off);
        format!("{}{off}", time_text(time.measured_ms, time.predicted_ms))
    };
    let first = format!("first token of a prompt of {prompt_tokens} after {}", time(first_token));
    let token =
        token.map_or_else(String::new, |each| format!(" · each of {answer_tokens} behind it {}", time(each)));
    Some(format!("last answer alone: {first}{token}"))
}

/// How an instance keeps up with its requests; only the node of its first stage knows.
fn load_text(load: &LoadView) -> String {
    let rate =
        |name, rate: Option<f64>| rate.map(|r| format!(", {name} {r:.0} tokens/s")).unwrap_or_default();
    let LoadView { running, waiting, waiting_max, pages, pages_used, pages_cached, .. } = load;
    format!(
        " · {running} running, {waiting} of {waiting_max} waiting{}{} · pages {pages_used} used, {pages_cached} kept \
         of {pages} · {} of {} prompt tokens were kept",
        rate("prompts", load.prompt_tokens_per_s),
        rate("answers", load.tokens_per_s),
        load.cached_tokens,
        load.prompt_tokens,
    ) + &drafts_text(load)
}

/// How many tokens were guessed ahead, if any were.
fn drafts_text(load: &LoadView) -> String {
    let LoadView { drafts, drafts_accepted, .. } = *load;
    if drafts == 0 {
        return String::new();
    }
    let share = 100.0 * drafts_accepted as f64 / drafts as f64;
    format!(" · {drafts_accepted} of {drafts} guessed tokens were right ({share:.0} %)")
}

/// Columns of [`stage_rows`].
pub const STAGE_HEADER: [&str; 8] =
    ["node", "device", "layers", "weights", "cache", "time", "a token", "predicted"];

/// One row per stage of an instance.
pub fn stage_rows(instance: &InstanceView) -> Vec<Vec<String>> {
    let row = |stage: &exo_api::StageView| {
        let mut layers = format!("{}..{}", stage.layers.start, stage.layers.end);
        if stage.embedding {
            layers.push_str(" + embedding");
        }
        if stage.head {
            layers.push_str(" + head");
        }
        let share = stage.time_share.map_or("-".to_owned(), |s| format!("{:.0} %", s * 100.0));
        let (name, device) = (stage.node_name.clone(), stage.device.clone());
        let [measured, predicted] = token_texts(stage);
        let (weights, cache) = (weights_text(stage), cache_text(stage));
        vec![name, device, layers, weights, cache, share, measured, predicted]
    };
    instance.stages.iter().map(row).collect()
}

/// What a stage computed for a token of the last answer that ran alone, and what is predicted of the same, or
/// of a token of the instance's prediction where none was measured.
fn token_texts(stage: &StageView) -> [String; 2] {
    let measured = stage.measured.map(|of| of.token_ms);
    let predicted = stage.measured.map(|of| of.predicted_token_ms);
    let predicted = predicted.or(stage.predicted.map(|of| of.token_ms));
    [measured, predicted].map(|ms| ms.map_or("-".to_owned(), |ms| format!("{} ms", ui::figure(ms))))
}

/// How far a stage is that fetches or loads.
pub fn progress_text(progress: &StageProgressView) -> String {
    let StageProgressView { phase, done_bytes, total_bytes, bytes_per_s, seconds_left, ref sources } =
        *progress;
    let phase = match phase {
        StagePhase::Fetching => "fetching",
        StagePhase::Loading => "loading",
    };
    let pace = match (bytes_per_s, seconds_left) {
        (None, _) => String::new(),
        (Some(_), None) => ", nothing comes".to_owned(),
        (Some(rate), Some(left)) => {
            format!(", {}/s, {} left", ui::bytes(rate), ui::duration(Duration::from_secs(left)))
        }
    };
    let from = sources_text(sources).map(|sources| format!("; from {sources}")).unwrap_or_default();
    format!("{phase} {} of {}{pace}{from}", ui::bytes(done_bytes), ui::bytes(total_bytes))
}

/// What came from where, if there are several sources.
pub fn sources_text(sources: &[FetchSourceView]) -> Option<String> {
    let text = |source: &FetchSourceView| {
        let name = source.member.as_deref().unwrap_or("the hub");
        format!("{name} {} at {}/s", ui::bytes(source.bytes), ui::bytes(source.bytes_per_s))
    };
    let texts: Vec<String> = sources.iter().map(text).collect();
    (!texts.is_empty()).then(|| texts.join(", "))
}

/// How large the cache is, and the rows that are kept beside it for the stage behind.
fn cache_text(stage: &StageView) -> String {
    let (cache, rows) = (ui::bytes(stage.kv_bytes), ui::bytes(stage.rows_bytes));
    match stage.rows_bytes_max {
        0 => cache,
        max => format!("{cache}, rows {rows} of {}", ui::bytes(max)),
    }
}

/// How large the weights are, and how far they are: where they come, and where they are packed while they
/// are used.
fn weights_text(stage: &StageView) -> String {
    if let Some(progress) = &stage.progress {
        return progress_text(progress);
    }
    let (held, waiting) = (stage.weight_bytes_held, stage.weight_bytes_waiting);
    if waiting == 0 {
        return ui::bytes(stage.weight_bytes);
    }
    format!("packing: {} of {}", ui::bytes(held.saturating_sub(waiting)), ui::bytes(held))
}

/// For how long a state lasts that somebody waits for the end of.
fn since_text(instance: &InstanceView, now_unix_s: u64) -> String {
    match instance.state {
        InstanceState::Ready => String::new(),
        _ if instance.state_since_unix_s == 0 => String::new(),
        _ => format!(" (since {})", ago(instance.state_since_unix_s, now_unix_s)),
    }
}

fn requests_table(requests: &[RequestView]) {
    if requests.is_empty() {
        return ui::paragraph("no request of this node's clients runs or waits");
    }
    let header = ["request", "model", "by", "phase", "tokens", "age", "resumed", "waits for"];
    ui::table(&header, requests.iter().map(request_row).collect());
}

fn request_row(request: &RequestView) -> Vec<String> {
    let seconds = |ms: u64| format!("{:.1} s", ms as f64 / 1e3);
    let phase = match request.phase {
        RequestPhase::Queued => "queued".to_owned(),
        RequestPhase::Prefill => "prefill".to_owned(),
        RequestPhase::Decode => "decode".to_owned(),
        RequestPhase::Interrupted => {
            let since = seconds(request.interrupted_ms.unwrap_or(0));
            let left = request.interrupted_left_ms.map(|ms| format!(", ends in {} s", ms.div_ceil(1000)));
            format!("interrupted {since}{}", left.unwrap_or_default())
        }
    };
    let mut id = request.id.clone();
    if request.index > 0 {
        id.push_str(&format!("#{}", request.index));
    }
    vec![
        id,
        request.model.clone(),
        request.principal.clone(),
        phase,
        format!("{} + {}", request.prompt_tokens, request.tokens),
        seconds(request.age_ms),
        request.resumed.to_string(),
        request.waits_for.clone().unwrap_or_else(|| "-".to_owned()),
    ]
}

/// The state in words.
pub fn state_text(state: &InstanceState) -> String {
    match state {
        InstanceState::Placing => "placing".to_owned(),
        InstanceState::Loading { progress } => format!("loading {:.0} %", progress * 100.0),
        InstanceState::Ready => "ready".to_owned(),
        InstanceState::Degraded { reason } => format!("degraded: {reason}"),
        InstanceState::Waiting { reason } => format!("waiting: {reason}"),
        InstanceState::Failed { reason } => format!("failed: {reason}"),
    }
}

fn links(view: &ClusterView, all: bool) {
    if view.links.is_empty() {
        if all {
            ui::paragraph("this node has no link to another");
        }
        return;
    }
    let name =
        |id: &str| view.nodes.iter().find(|n| n.id == id).map_or_else(|| id.to_owned(), |n| n.name.clone());
    let rows = view.links.iter().map(|link| {
        let rtt = link.rtt_ms.map_or("not measured".to_owned(), |ms| format!("{ms:.2} ms"));
        let short = vec![name(&link.from), name(&link.to), or_dash(&link.transport), rtt];
        if all { short.into_iter().chain(link_numbers(link)).collect() } else { short }
    });
    let header =
        ["from", "to", "by", "round trip", "of", "age", "jitter", "bandwidth", "measured", "age", "lost"];
    ui::table(if all { &header } else { &header[..4] }, rows.collect());
}

/// What stands behind the round trip in the long table.
fn link_numbers(link: &LinkView) -> [String; 7] {
    let age = |seconds: Option<f64>| seconds.map_or("-".to_owned(), |s| format!("{s:.0} s"));
    let jitter = link.jitter_ms.map_or("-".to_owned(), |ms| format!("{ms:.2} ms"));
    let bandwidth =
        link.bytes_per_s.map_or("not yet".to_owned(), |rate| format!("{}/s", ui::bytes(rate as u64)));
    let times = link.bandwidth_samples;
    [
        link.rtt_samples.to_string(),
        age(link.rtt_age_s),
        jitter,
        bandwidth,
        match times {
            1 => "once".to_owned(),
            times => format!("{times} times"),
        },
        age(link.bandwidth_age_s),
        link.loss.map_or("-".to_owned(), loss_text),
    ]
}

fn loss_text(loss: LossView) -> String {
    let LossView { share, packets, window_s } = loss;
    format!("{:.1} % of {packets} in {window_s} s", share * 100.0)
}

/// Only the node that measured knows how its link travels.
fn or_dash(text: &str) -> String {
    if text.is_empty() { "-".to_owned() } else { text.to_owned() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn of_two_admins_that_are_gone_two_are_not_there() {
        let text = |names: &[&str]| {
            let node = |name: &&str| {
                serde_json::json!({"id": name, "name": name, "is_self": false, "role": "admin", "status": "lost", "version": "1",
                    "platform": "x", "devices": [], "addresses": []})
            };
            let nodes: Vec<_> = names.iter().map(node).collect();
            let view = serde_json::json!({"self_node": "a", "nodes": nodes, "links": [], "instances": [],
                "join_window": exo_api::JoinWindowView::default(), "join_requests": [], "journal": exo_api::JournalView::default()});
            admin_missing(&serde_json::from_value(view).unwrap()).unwrap()
        };
        assert!(text(&["desk"]).starts_with("desk is not there, "), "{}", text(&["desk"]));
        assert!(text(&["desk", "mini"]).starts_with("desk, mini are not there, "));
    }

    #[test]
    fn a_link_shows_what_part_of_its_packets_was_lost() {
        let lost = |loss: Option<LossView>| {
            let link = serde_json::json!({"from": "a", "to": "b", "rtt_ms": 0.2, "bytes_per_s": null, "loss": loss, "transport": "tcp"});
            let [.., lost] = link_numbers(&serde_json::from_value(link).unwrap());
            lost
        };
        assert_eq!(lost(Some(LossView { share: 0.025, packets: 80, window_s: 60 })), "2.5 % of 80 in 60 s");
        assert_eq!(lost(None), "-", "of TCP it is not known");
    }

    #[test]
    fn a_request_that_is_interrupted_shows_why_for_how_long_and_when_it_ends() {
        let mut request: RequestView = serde_json::from_value(serde_json::json!({
            "id": "r1", "index": 0, "model": "m", "principal": "local", "phase": "interrupted", "waits_for": "interrupted: desk is lost; placing again",
            "interrupted_ms": 12_340, "interrupted_left_ms": 107_660, "prompt_tokens": 5, "tokens": 7, "age_ms": 20_000, "resumed": 1
        }))
        .unwrap();
        let row = request_row(&request);
        assert_eq!(row[3], "interrupted 12.3 s, ends in 108 s");
        assert!(row[7].contains("desk is lost"), "{row:?}");
        // As a node of an older version tells it.
        request.interrupted_left_ms = None;
        assert_eq!(request_row(&request)[3], "interrupted 12.3 s");
    }

    #[test]
    fn rates_say_how_often_and_how_long_ago_they_were_measured() {
        let measured = |samples, age_s| ProvenanceView { samples, age_s };
        let device: DeviceView = serde_json::from_value(serde_json::json!({
            "id": "cpu", "kind": "cpu", "name": "a processor", "backend": "cpu/avx2", "memory_total_bytes": 1, "memory_free_bytes": 1,
            "compute_units": 2, "read_bytes_per_s": 1e10, "flops_per_s": 1e11, "rates_measured": measured(12, 7200),
            "rates_by_type": [{"dtype": "Q4_K", "read_bytes_per_s": 9.1e9, "flops_per_s": 8e10, "measured": measured(1, 60)}],
            "support": "full", "support_reason": ""
        }))
        .unwrap();
        let expected =
            ["cpu: measured in 12 passes, 2 h ago", "cpu: Q4_K: 9.1 GB/s, 80.0 GFLOP/s (1 pass, 1 min ago)"];
        assert_eq!(remarks(&device), expected);
        let undated = DeviceView { rates_measured: None, rates_by_type: Vec::new(), ..device };
        assert!(remarks(&undated).is_empty());
        let driver = Some("NVIDIA 580.159".to_owned());
        assert_eq!(remarks(&DeviceView { driver, ..undated }), ["cpu: driver NVIDIA 580.159"]);
    }

    #[test]
    fn a_difference_of_milliseconds_is_no_per_cent() {
        assert_eq!(time_text(11.3, 1.08), "11.3 ms, predicted 1.08");
        assert_eq!(time_text(1.08, 11.3), "1.08 ms, predicted 11.3");
        assert_eq!(time_text(150.0, 100.0), "150 ms, predicted 100 (+50 %)");
        assert_eq!(time_text(10.0, 0.0), "10.0 ms, predicted 0.00");
    }

    #[test]
    fn a_stage_shows_what_a_token_took_beside_what_was_predicted_of_it() {
        let of = |stage: StageView| token_texts(&stage).join(" | ");
        let (token_ms, predicted_token_ms, tokens) = (12.34, 9.0, 31);
        let measured = Some(exo_api::StageMeasuredView { token_ms, predicted_token_ms, tokens });
        let predicted = Some(exo_api::plan::StagePredictionView { token_ms: 8.0, prompt_ms: 90.0 });
        assert_eq!(of(stage()), "- | -");
        assert_eq!(of(StageView { predicted, ..stage() }), "- | 8.00 ms");
        assert_eq!(
            of(StageView { predicted, measured, ..stage() }),
            "12.3 ms | 9.00 ms",
            "of the same tokens"
        );
    }

    fn stage() -> StageView {
        StageView {
            node_name: "one".to_owned(),
            device: "cpu-0".to_owned(),
            weight_bytes: 1_190_000_000,
            weight_bytes_held: 1_200_000_000,
            ..StageView::default()
        }
    }

    #[test]
    fn rows_that_a_stage_keeps_are_shown_beside_its_cache() {
        let bytes = ui::bytes;
        assert_eq!(cache_text(&StageView { kv_bytes: 9 << 20, ..stage() }), bytes(9 << 20));
        let (kv_bytes, rows_bytes, rows_bytes_max) = (9 << 20, 5 << 20, 128 << 20);
        let shown = cache_text(&StageView { kv_bytes, rows_bytes, rows_bytes_max, ..stage() });
        assert_eq!(shown, format!("{}, rows {} of {}", bytes(9 << 20), bytes(5 << 20), bytes(128 << 20)));
    }

    #[test]
    fn a_stage_that_is_fetched_or_packed_shows_how_far_it_is() {
        let text = |weight_bytes_waiting, progress| {
            weights_text(&StageView { weight_bytes_waiting, progress, ..stage() })
        };
        let bytes = ui::bytes;
        assert_eq!(
            text(900_000_000, None),
            format!("packing: {} of {}", bytes(300_000_000), bytes(1_200_000_000))
        );
        assert_eq!(text(0, None), bytes(1_190_000_000));
        let mut progress = StageProgressView {
            phase: StagePhase::Fetching,
            done_bytes: 300_000_000,
            total_bytes: 1_200_000_000,
            bytes_per_s: None,
            seconds_left: None,
            sources: Vec::new(),
        };
        let far = format!("fetching {} of {}", bytes(300_000_000), bytes(1_200_000_000));
        assert_eq!(text(0, Some(progress.clone())), far, "too soon to know how fast");
        (progress.bytes_per_s, progress.seconds_left) = (Some(9_000_000), Some(100));
        let left = ui::duration(Duration::from_secs(100));
        assert_eq!(text(0, Some(progress.clone())), format!("{far}, {}/s, {left} left", bytes(9_000_000)));
        (progress.bytes_per_s, progress.seconds_left) = (Some(0), None);
        assert_eq!(text(0, Some(progress.clone())), format!("{far}, nothing comes"));
        let source = |member: Option<&str>, bytes| FetchSourceView {
            member: member.map(str::to_owned),
            bytes,
            bytes_per_s: bytes / 10,
        };
        progress.sources = vec![source(Some("ann"), 8_000_000), source(None, 1_000_000)];
        let of_each = [8_000_000, 1_000_000].map(|came| format!("{} at {}/s", bytes(came), bytes(came / 10)));
        let expected = format!("{far}, nothing comes; from ann {}, the hub {}", of_each[0], of_each[1]);
        assert_eq!(text(0, Some(progress)), expected);
    }
}
