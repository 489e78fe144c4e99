use std::collections::BTreeSet;
use std::path::PathBuf;
use std::process::Command;
use std::time::{Duration, Instant};

use exo_api::{
    DeviceTelemetryView, EndedView, HistogramView, InstanceTelemetryView, LinkTelemetryView, LoadView,
    MemoryView, ModelRequestsView, NodeStatus, NodeTelemetryView, SensorsView, Severity, StageTelemetryView,
};

use super::names::{Kind, METRICS};
use super::*;

fn root(path: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../..").join(path)
}

fn histogram(bounds: usize) -> HistogramView {
    HistogramView { counts: vec![1; bounds + 1], sum_s: 2.5 }
}

/// A node that tells everything.
fn node(id: &str, name: &str, peer: &str) -> NodeTelemetryView {
    let load = LoadView {
        pages: 10,
        tokens_per_s: Some(12.5),
        prompt_tokens_per_s: Some(99.0),
        ..Default::default()
    };
    NodeTelemetryView {
        node: id.to_owned(),
        name: name.to_owned(),
        status: NodeStatus::Alive,
        age_s: Some(0.5),
        version: "1.0".to_owned(),
        platform: "linux".to_owned(),
        uptime_s: Some(60),
        clock_ahead_s: Some(-1),
        process_bytes: Some(1 << 26),
        memory_total_bytes: Some(1 << 34),
        memory_available_bytes: Some(1 << 33),
        disk_free_bytes: Some(1 << 40),
        disk_room_bytes: Some(1 << 39),
        descriptors_open: Some(40),
        descriptors_max: Some(1024),
        battery: Some(0.75),
        mains_power: Some(true),
        multicast_heard: Some(true),
        transfers: 1,
        transferred_bytes: 7,
        unreached: Vec::new(),
        devices: vec![device()],
        links: vec![LinkTelemetryView {
            peer: peer.to_owned(),
            peer_name: String::new(),
            rtt_ms: 1.5,
            jitter_ms: 0.1,
            received_bytes_per_s: Some(1e8),
            sent_bytes: Some(5),
            received_bytes: Some(6),
            sent_packets: Some(8),
            lost_packets: Some(0),
            is_wireless: None,
        }],
        stages: vec![StageTelemetryView {
            instance: "i1".to_owned(),
            model: "m".to_owned(),
            stage: 0,
            device: "cuda:0".to_owned(),
            layers: exo_types::LayerRange { start: 0, end: 8 },
            busy_s: 1.5,
            weight_bytes: 9,
        }],
        instances: vec![InstanceTelemetryView {
            instance: "i1".to_owned(),
            model: "m".to_owned(),
            load,
            steps: 3,
        }],
        requests: vec![requests()],
        pulls: Vec::new(),
    }
}

fn device() -> DeviceTelemetryView {
    let sensors = SensorsView {
        temperature_c: Some(60.5),
        power_w: Some(100.0),
        clock_mhz: Some(1500.0),
        utilisation: Some(0.5),
    };
    let (device, memory) = ("cuda:0".to_owned(), MemoryView::default());
    DeviceTelemetryView {
        device,
        sensors,
        limit_c: None,
        throttled: Some(false),
        memory,
        missing: Vec::new(),
    }
}

fn requests() -> ModelRequestsView {
    ModelRequestsView {
        model: "m".to_owned(),
        ended: vec![EndedView { endpoint: "chat".to_owned(), reason: "stop".to_owned(), count: 3 }],
        prompt_tokens: 1,
        cached_tokens: 1,
        completion_tokens: 1,
        first_token: histogram(exo_api::FIRST_TOKEN_BOUNDS_S.len()),
        token: histogram(exo_api::TOKEN_BOUNDS_S.len()),
        duration: histogram(exo_api::DURATION_BOUNDS_S.len()),
        queue: histogram(exo_api::DURATION_BOUNDS_S.len()),
        prefill: histogram(exo_api::DURATION_BOUNDS_S.len()),
    }
}

/// A cluster of these, in which the first one is asked.
fn cluster(nodes: Vec<NodeTelemetryView>) -> (ClusterView, TelemetryView) {
    let self_node = nodes[0].node.clone();
    let device = serde_json::json!({
        "id": "cuda:0", "kind": "discrete_gpu", "name": "", "backend": "", "memory_total_bytes": 1,
        "memory_free_bytes": 1, "compute_units": null, "read_bytes_per_s": null, "flops_per_s": null,
        "support": "full", "support_reason": "",
    });
    let shown = |node: &NodeTelemetryView| -> exo_api::NodeView {
        serde_json::from_value(serde_json::json!({
            "id": node.node, "name": node.name, "is_self": node.node == self_node, "role": "worker",
            "status": "alive", "version": "1.0", "platform": "linux", "devices": [device], "addresses": [],
            "mains_power": null,
        }))
        .unwrap()
    };
    let instance = serde_json::json!({
        "id": "i1", "model_id": "m", "model": "m", "state": {"kind": "ready"}, "placement": "p", "context_tokens": 1,
        "slots": 1, "kv": "f16", "stages": [], "predicted": {
            "ttft_ms": {"low": 1.0, "expected": 1.0, "high": 1.0}, "tokens_per_s": {"low": 1.0, "expected": 1.0, "high": 1.0},
            "hop_ms": {"low": 1.0, "expected": 1.0, "high": 1.0}, "streams": 1,
            "total_tokens_per_s": {"low": 1.0, "expected": 20.0, "high": 30.0}, "fetch_bytes": 0, "fetch_ms": 0.0,
        },
    });
    let alert = exo_api::AlertView {
        id: "node_lost:x".to_owned(),
        rule: "node_lost".to_owned(),
        severity: Severity::Critical,
        since_unix_s: 1,
        ..exo_api::AlertView::default()
    };
    let view = ClusterView {
        self_node: self_node.clone(),
        nodes: nodes.iter().map(shown).collect(),
        instances: vec![serde_json::from_value(instance).unwrap()],
        alerts: vec![alert],
        ..ClusterView::default()
    };
    (view, TelemetryView { self_node, nodes })
}

fn two() -> (ClusterView, TelemetryView) {
    cluster(vec![node("aa", "desk", "bb"), node("bb", "attic", "aa")])
}

fn text(scope: &Scope, (view, told): &(ClusterView, TelemetryView)) -> String {
    gather(view, told, scope).prometheus().unwrap()
}

/// Metrics that a text names, in backquotes or in queries: words that begin with `exo_`.
fn named(text: &str) -> BTreeSet<String> {
    let is_part = |c: char| c.is_ascii_alphanumeric() || c == '_';
    let words = text.split(|c| !is_part(c)).filter(|word| word.starts_with("exo_"));
    words.map(str::to_owned).collect()
}

/// As queries may name a metric.
fn sample_names() -> BTreeSet<String> {
    let names = |metric: &names::Metric| match metric.kind {
        Kind::Histogram => {
            ["", "_bucket", "_sum", "_count"].map(|end| format!("{}{end}", metric.name)).to_vec()
        }
        Kind::Counter | Kind::Gauge => vec![metric.sample_name()],
    };
    METRICS.iter().flat_map(names).collect()
}

#[test]
fn every_metric_is_shown_where_everything_is_told() {
    let shown = text(&Scope::Cluster, &two());
    for metric in METRICS {
        let line = format!("# HELP {} {}\n", metric.sample_name(), metric.help);
        assert!(shown.contains(&line), "{} is missing", metric.name);
    }
    assert_eq!(METRICS.iter().map(|metric| metric.name).collect::<BTreeSet<_>>().len(), METRICS.len());
}

#[test]
fn the_page_describes_every_metric_and_no_other() {
    let page = std::fs::read_to_string(root("docs/metrics.md")).unwrap();
    let rows = page.lines().filter_map(|line| line.strip_prefix("| `exo_")?.split('`').next());
    let described: BTreeSet<String> = rows.map(|row| format!("exo_{row}")).collect();
    assert_eq!(described, METRICS.iter().map(names::Metric::sample_name).collect());
    let unknown: Vec<_> = named(&page).into_iter().filter(|name| !sample_names().contains(name)).collect();
    assert!(unknown.is_empty(), "docs/metrics.md names {unknown:?}");
}

/// Recording rules that a text names: words with colons that begin with `exo:`.
fn recordings(text: &str) -> BTreeSet<&str> {
    let is_part = |c: char| c.is_ascii_alphanumeric() || c == '_' || c == ':';
    let words = text.split(|c| !is_part(c));
    words.filter(|word| word.starts_with("exo:") && word.len() > "exo:".len()).collect()
}

#[test]
fn every_metric_and_every_recording_that_the_board_and_the_rules_name_exists() {
    let rules = std::fs::read_to_string(root("ops/prometheus/rules.yml")).unwrap();
    let recorded: BTreeSet<&str> =
        rules.lines().filter_map(|line| line.trim().strip_prefix("- record: ")).map(str::trim).collect();
    assert!(recorded.len() > 3, "{recorded:?}");
    for file in ["ops/grafana/exo.json", "ops/prometheus/rules.yml", "ops/prometheus/prometheus.yml"] {
        let text = std::fs::read_to_string(root(file)).unwrap();
        let unknown: Vec<_> =
            named(&text).into_iter().filter(|name| !sample_names().contains(name)).collect();
        assert!(unknown.is_empty(), "{file} names {unknown:?}");
        assert!(named(&text).len() > 3 || file.ends_with("prometheus.yml"), "{file} names nearly none");
        let unrecorded: Vec<_> = recordings(&text).difference(&recorded).copied().collect();
        assert!(unrecorded.is_empty(), "{file} names {unrecorded:?}, which no rule records");
    }
    let board = std::fs::read_to_string(root("ops/grafana/exo.json")).unwrap();
    serde_json::from_str::<serde_json::Value>(&board).unwrap();
}

#[test]
fn a_source_that_tells_nothing_makes_no_sample() {
    let mut quiet = node("aa", "desk", "bb");
    quiet.devices[0].sensors = SensorsView { temperature_c: Some(f32::NAN), ..SensorsView::default() };
    quiet.devices[0].throttled = None;
    (quiet.battery, quiet.links[0].sent_packets, quiet.links[0].lost_packets) = (None, None, None);
    (quiet.descriptors_open, quiet.descriptors_max) = (None, None);
    let shown = text(&Scope::Cluster, &cluster(vec![quiet, node("bb", "attic", "aa")]));
    for absent in [
        "temperature_celsius",
        "power_watts",
        "throttled",
        "battery_charge_ratio",
        "sent_packets_total",
        "lost_packets_total",
        "open_fds",
        "max_fds",
    ] {
        let of_desk = shown.lines().find(|line| line.contains(absent) && line.contains("node=\"desk\""));
        assert_eq!(of_desk, None);
    }
}

#[test]
fn a_node_that_is_lost_is_down_with_the_age_of_its_data_and_nothing_else() {
    let lost = NodeTelemetryView {
        status: NodeStatus::Lost,
        age_s: Some(99.0),
        version: String::new(),
        ..node("bb", "attic", "aa")
    };
    let shown = text(&Scope::Cluster, &cluster(vec![node("aa", "desk", "bb"), lost]));
    let of_attic: Vec<_> = shown.lines().filter(|line| line.contains("node=\"attic\"")).collect();
    assert_eq!(
        of_attic,
        ["exo_node_up{node=\"attic\"} 0.0", "exo_node_data_age_seconds{node=\"attic\"} 99.0"]
    );
}

#[test]
fn an_alert_names_the_member_that_is_affected_and_no_one_else() {
    let (mut view, told) = two();
    let lost =
        |node: Option<&str>| exo_api::AlertView { node: node.map(str::to_owned), ..view.alerts[0].clone() };
    view.alerts = vec![lost(Some("bb")), lost(Some("bb")), lost(Some("a stranger")), lost(None)];
    let told = (view, told);
    for scope in [Scope::Cluster, Scope::Node("aa".to_owned())] {
        let shown = text(&scope, &told);
        let active: Vec<_> = shown.lines().filter(|line| line.starts_with("exo_alert_active")).collect();
        let lost = "rule=\"node_lost\",severity=\"critical\",silenced=\"false\"} 2.0";
        let wanted =
            [format!("exo_alert_active{{{lost}"), format!("exo_alert_active{{node=\"attic\",{lost}")];
        assert_eq!(active, wanted);
    }
}

#[test]
fn names_of_others_break_no_line_and_two_of_one_name_are_told_apart() {
    let hostile = "x\"} 1\nforged{a=\"\\";
    let told = cluster(vec![node("aa11", hostile, "bb22"), node("bb22", hostile, "aa11")]);
    for scrape in
        [text(&Scope::Cluster, &told), gather(&told.0, &told.1, &Scope::Cluster).open_metrics().unwrap()]
    {
        assert!(!scrape.lines().any(|line| line.starts_with("forged")), "{scrape}");
        let ups: BTreeSet<_> = scrape.lines().filter(|line| line.starts_with("exo_node_up{")).collect();
        assert_eq!(ups.len(), 2, "{ups:?}");
        assert!(ups.iter().all(|line| line.contains("x\\\"} 1forged{a=\\\"\\\\-")), "{ups:?}");
    }
    // A member that names a device twice spoils nobody's scrape.
    let mut double = node("aa", "desk", "bb");
    double.devices.push(double.devices[0].clone());
    let shown = text(&Scope::Cluster, &cluster(vec![double, node("bb", "attic", "aa")]));
    assert_eq!(shown.lines().filter(|line| line.starts_with("exo_device_throttled{")).count(), 2);
}

#[test]
fn histograms_are_cumulative_and_end_in_everything() {
    let shown = text(&Scope::Node("aa".to_owned()), &two());
    let buckets: Vec<_> =
        shown.lines().filter(|line| line.starts_with("exo_time_per_output_token_seconds_bucket")).collect();
    assert_eq!(buckets.len(), exo_api::TOKEN_BOUNDS_S.len() + 1);
    assert!(buckets[0].contains("le=\"0.01\"") && buckets[0].ends_with(" 1"), "{buckets:?}");
    assert!(buckets[17].contains("le=\"+Inf\"") && buckets[17].ends_with(" 18"), "{buckets:?}");
    assert!(shown.contains("exo_time_per_output_token_seconds_count{model=\"m\"} 18\n"), "{shown}");
}

/// A node with several devices and models, of which a scrape of one must stay below 3,000 series. The bounds
/// of time are ten times what is wanted of a machine that does nothing else.
#[test]
fn a_hundred_described_nodes_are_one_scrape_and_one_node_is_small() {
    let mut nodes = Vec::new();
    for number in 0..100 {
        let (id, peer) = (format!("{number:064x}"), format!("{:064x}", (number + 1) % 100));
        let mut one = node(&id, &format!("n{number}"), &peer);
        one.devices = (0..4)
            .map(|device| DeviceTelemetryView { device: format!("cuda:{device}"), ..one.devices[0].clone() })
            .collect();
        one.requests =
            (0..4).map(|m| ModelRequestsView { model: format!("m{m}"), ..one.requests[0].clone() }).collect();
        nodes.push(one);
    }
    let own = nodes[0].node.clone();
    let told = cluster(nodes);
    let scrape = |scope: Scope| {
        let times = (0..5).map(|_| {
            let began = Instant::now();
            let series = text(&scope, &told).lines().filter(|line| !line.starts_with('#')).count();
            (began.elapsed(), series)
        });
        let (took, series) = times.min().unwrap();
        eprintln!("{series} series in {took:?}");
        (took, series)
    };
    let (took, of_one) = scrape(Scope::Node(own));
    assert!((100..3000).contains(&of_one), "{of_one}");
    assert!(took < Duration::from_millis(50), "{took:?}");
    let (took, of_all) = scrape(Scope::Cluster);
    assert!(of_all > 99 * of_one, "all nodes: {of_all}");
    assert!(took < Duration::from_secs(5), "{took:?}");
}

/// `promtool`, where it is installed.
fn promtool(args: &[&str], input: Option<&str>) -> Option<(bool, String)> {
    use std::io::Write;
    let mut child = Command::new("promtool")
        .args(args)
        .stdin(std::process::Stdio::piped())
        .stdout(std::process::Stdio::piped())
        .stderr(std::process::Stdio::piped())
        .spawn()
        .ok()?;
    child.stdin.take()?.write_all(input.unwrap_or_default().as_bytes()).ok()?;
    let output = child.wait_with_output().ok()?;
    let said = [output.stdout, output.stderr].concat();
    Some((output.status.success(), String::from_utf8_lossy(&said).into_owned()))
}

#[test]
fn promtool_finds_nothing_wrong() {
    let Some((is_right, said)) = promtool(&["check", "metrics"], Some(&text(&Scope::Cluster, &two()))) else {
        eprintln!("skipped: promtool is not installed (Debian's package `prometheus` has it)");
        return;
    };
    assert!(is_right && said.trim().is_empty(), "{said}");
    let rules = root("ops/prometheus/rules.yml");
    let (is_right, said) = promtool(&["check", "rules", &rules.display().to_string()], None).unwrap();
    assert!(is_right, "{said}");
    let config = root("ops/prometheus/prometheus.yml");
    let (is_right, said) =
        promtool(&["check", "config", "--syntax-only", &config.display().to_string()], None).unwrap();
    assert!(is_right, "{said}");
}
