//! A real Prometheus that scrapes real nodes with the files of `ops/`: it finds each member through one of
//! them, reads their metrics, and evaluates the rules and every query of the board.

#![allow(clippy::unwrap_used)] // helpers of tests fail by panicking

use std::collections::BTreeSet;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use serde_json::Value;

use crate::support::{
    Answer, Killed, Node, SOON, Start, finish, gather, skip, stderr, stdout, wait_for, wait_united,
};

/// The one of the setting `api_keys` that Prometheus has.
const KEY: &str = "key-of-prometheus";
/// Several scrapes and evaluations of a program that has just started, on a busy machine.
const SCRAPED: Duration = Duration::from_secs(60);
const NAMES: [&str; 3] = ["one", "two", "three"];

fn ops(file: &str) -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../ops").join(file);
    std::fs::read_to_string(path).unwrap()
}

/// The example's files in `folder`, for this node: its address and its key, and a second in the place of half
/// a minute. Beside the job of the example is the other one that it describes, as a job `exo-cluster`.
fn configured(folder: &Path, node: &Node) -> PathBuf {
    let key = folder.join("exo-api-key");
    std::fs::write(&key, KEY).unwrap();
    std::fs::write(
        folder.join("rules.yml"),
        changed(&ops("prometheus/rules.yml"), &[("interval: 30s", "interval: 1s")]),
    )
    .unwrap();
    let example = ops("prometheus/prometheus.yml");
    let (head, other) = example.split_once("  # Instead of that").expect("the example describes another way");
    let (_, other) = other.split_once('\n').unwrap();
    let other: String = other.lines().map(|line| line.replacen("  # ", "  ", 1) + "\n").collect();
    let text = head.to_owned() + &changed(&other, &[("job_name: exo", "job_name: exo-cluster")]);
    let text = changed(
        &text,
        &[
            ("127.0.0.1:52415", &node.address),
            ("/etc/prometheus/exo-api-key", key.to_str().unwrap()),
            ("scrape_interval: 15s", "scrape_interval: 1s\n  evaluation_interval: 1s"),
            ("refresh_interval: 30s", "refresh_interval: 1s"),
        ],
    );
    let path = folder.join("prometheus.yml");
    std::fs::write(&path, text).unwrap();
    path
}

/// `text` with each of these replaced, which must be there.
fn changed(text: &str, changes: &[(&str, &str)]) -> String {
    changes.iter().fold(text.to_owned(), |text, (from, to)| {
        assert!(text.contains(from), "the example has no `{from}`");
        text.replace(from, to)
    })
}

/// A Prometheus of its own on loopback.
struct Prometheus {
    address: String,
    lines: Arc<Mutex<Vec<String>>>,
    _process: Killed,
}

impl Prometheus {
    fn start(config: &Path, data: &Path) -> Self {
        let mut command = Command::new("prometheus");
        command.arg(format!("--config.file={}", config.display()));
        command.arg(format!("--storage.tsdb.path={}", data.display()));
        command.args(["--web.listen-address=127.0.0.1:0", "--log.level=info"]).stdin(Stdio::null());
        let mut child = command.stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap();
        let lines = Arc::<Mutex<Vec<String>>>::default();
        gather(child.stderr.take().unwrap(), &lines);
        let mut process = Killed(child);
        let address = wait_for("Prometheus to listen", SCRAPED, || {
            let said = lines.lock().unwrap();
            if let Some(status) = process.0.try_wait().unwrap() {
                panic!("Prometheus ended: {status}\n{}", said.join("\n"));
            }
            let line = said.iter().find(|line| line.contains("msg=\"Listening on\""))?;
            Some(line.split_once("address=")?.1.trim().to_owned())
        });
        Self { address, lines, _process: process }
    }

    /// What its API says, once it is not still starting.
    fn get(&self, path: &str) -> Option<Value> {
        let mut stream = TcpStream::connect(&self.address).unwrap();
        stream.set_read_timeout(Some(SCRAPED)).unwrap();
        let head = format!("GET {path} HTTP/1.0\r\nHost: {}\r\n\r\n", self.address);
        stream.write_all(head.as_bytes()).unwrap();
        let mut bytes = Vec::new();
        stream.read_to_end(&mut bytes).unwrap();
        let answer = Answer::parse(&bytes);
        if answer.status == 503 {
            return None;
        }
        let json = answer.json();
        assert_eq!(json["status"], "success", "{path}: {json}");
        Some(json["data"].clone())
    }

    /// Labels and value of each sample of a query.
    fn query(&self, query: &str) -> Vec<(Value, f64)> {
        let told = self.get(&format!("/api/v1/query?query={}", encoded(query)));
        let found = told.map(|data| data["result"].as_array().unwrap().clone()).unwrap_or_default();
        let sample =
            |one: &Value| (one["metric"].clone(), one["value"][1].as_str().unwrap().parse().unwrap());
        found.iter().map(sample).collect()
    }

    /// The one value of a query, as soon as `is_right` says so.
    fn wait_value(&self, query: &str, is_right: impl Fn(f64) -> bool) -> f64 {
        wait_for(query, SCRAPED, || match self.query(query)[..] {
            [(_, value)] if is_right(value) => Some(value),
            _ => None,
        })
    }

    /// What it complained about.
    fn complaints(&self) -> Vec<String> {
        let said = self.lines.lock().unwrap();
        said.iter()
            .filter(|line| line.contains("level=warn") || line.contains("level=error"))
            .cloned()
            .collect()
    }
}

/// As a part of an address.
fn encoded(text: &str) -> String {
    let one = |byte: u8| match byte.is_ascii_alphanumeric() {
        true => (byte as char).to_string(),
        false => format!("%{byte:02X}"),
    };
    text.bytes().map(one).collect()
}

/// `promtool` on a file, or on `input`.
fn promtool(args: &[&str], input: &str) {
    let mut command = Command::new("promtool");
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("input");
    std::fs::write(&file, input).unwrap();
    command.args(args).stdin(std::fs::File::open(file).unwrap());
    let output = finish(&mut command, SOON);
    assert!(output.status.success(), "promtool {args:?}: {}{}", stdout(&output), stderr(&output));
}

/// Every query of the board, with an interval in the place of Grafana's.
fn board_queries() -> Vec<String> {
    fn gather(value: &Value, out: &mut Vec<String>) {
        match value {
            Value::Object(fields) => {
                out.extend(
                    fields.get("expr").and_then(Value::as_str).map(|e| e.replace("$__rate_interval", "1m")),
                );
                fields.values().for_each(|field| gather(field, out));
            }
            Value::Array(values) => values.iter().for_each(|value| gather(value, out)),
            _ => {}
        }
    }
    let mut out = Vec::new();
    gather(&serde_json::from_str(&ops("grafana/exo.json")).unwrap(), &mut out);
    out
}

/// Each of these labels, once for each member.
fn names_of(samples: &[(Value, f64)], label: &str) -> BTreeSet<String> {
    samples.iter().map(|(labels, _)| labels[label].as_str().unwrap_or_default().to_owned()).collect()
}

fn check_targets(prometheus: &Prometheus) {
    let targets = wait_for("each member scraped, and the cluster in one", SCRAPED, || {
        let told = prometheus.get("/api/v1/targets?state=active")?;
        let targets = told["activeTargets"].as_array().unwrap().clone();
        let is_up = |target: &Value| target["health"] == "up" && target["lastError"] == "";
        (targets.len() == NAMES.len() + 1 && targets.iter().all(is_up)).then_some(targets)
    });
    let found = targets.iter().filter(|target| target["scrapePool"] == "exo");
    assert_eq!(found.count(), NAMES.len(), "{targets:?}");
    let up = wait_for("up", SCRAPED, || {
        let up = prometheus.query("up");
        (up.len() == NAMES.len() + 1).then_some(up)
    });
    assert!(up.iter().all(|(_, value)| *value == 1.0), "{up:?}");
}

fn check_rules(prometheus: &Prometheus) {
    let groups = wait_for("every rule evaluated", SCRAPED, || {
        let told = prometheus.get("/api/v1/rules")?;
        let groups = told["groups"].as_array().unwrap().clone();
        let rules = groups.iter().flat_map(|group| group["rules"].as_array().unwrap());
        (rules.filter(|rule| rule["health"] == "unknown").count() == 0).then_some(groups)
    });
    let rules: Vec<_> = groups.iter().flat_map(|group| group["rules"].as_array().unwrap()).collect();
    let in_file = ops("prometheus/rules.yml").matches("- record:").count();
    let alerts = ops("prometheus/rules.yml").matches("- alert:").count();
    assert_eq!(rules.len(), in_file + alerts);
    for rule in rules {
        assert!(rule["health"] == "ok" && rule["lastError"].is_null(), "{rule:#}");
    }
}

#[test]
fn a_real_prometheus_finds_scrapes_and_judges_the_cluster_with_the_example_files() {
    const TEST: &str = "a_real_prometheus_finds_scrapes_and_judges_the_cluster_with_the_example_files";
    if Command::new("promtool").arg("--version").output().is_err()
        || Command::new("prometheus").arg("--version").output().is_err()
    {
        return skip(TEST, "prometheus is not installed (Debian's package `prometheus`)");
    }
    let env = vec![("EXO_API_KEYS", KEY.into())];
    let start = |name| Node::start(Start { name, group: "scraped", env: env.clone(), ..Start::default() });
    let mut nodes = NAMES.map(start);
    wait_united(&nodes, SOON);
    nodes[0].place("demo", 2);
    let folder = tempfile::tempdir().unwrap();
    let config = configured(folder.path(), &nodes[0]);
    promtool(&["check", "config", config.to_str().unwrap()], "");
    promtool(&["check", "rules", folder.path().join("rules.yml").to_str().unwrap()], "");
    let prometheus = Prometheus::start(&config, &folder.path().join("data"));
    check_targets(&prometheus);

    // What a client counts is what Prometheus reads.
    let asked: f64 = ["What is 17 + 25?", "What is 47 + 38?"]
        .map(|prompt| nodes[0].ask("demo", prompt).json()["usage"]["completion_tokens"].as_f64().unwrap())
        .iter()
        .sum();
    prometheus.wait_value("sum(exo_generated_tokens_total{job=\"exo\"})", |value| value == asked);
    prometheus.wait_value("sum(exo_requests_total{job=\"exo\",model=\"demo\",reason=\"stop\"})", |value| {
        value == 2.0
    });
    let of_cluster = prometheus.query("exo_node_up{job=\"exo-cluster\"}");
    assert_eq!(names_of(&of_cluster, "node"), NAMES.map(str::to_owned).into());
    check_rules(&prometheus);
    let queries = board_queries();
    assert!(queries.len() > 20, "{queries:?}");
    for query in &queries {
        prometheus.query(query);
    }
    for scope in ["", "?scope=cluster"] {
        promtool(&["check", "metrics"], &nodes[0].call("GET", &format!("/metrics{scope}"), None).body);
    }

    // A member that is killed: its target is still answered, by the node that is asked, which says that it is
    // down.
    nodes[2].kill();
    prometheus.wait_value("sum(exo_node_up{job=\"exo\"})", |value| value == 2.0);
    let lost = "ALERTS{alertname=\"ExoAlert\",rule=\"node_lost\",severity=\"critical\",node=\"NODE\"}";
    prometheus.wait_value(&lost.replace("NODE", NAMES[2]), |value| value == 1.0);
    assert_eq!(prometheus.complaints(), Vec::<String>::new());
}
