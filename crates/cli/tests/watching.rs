//! A cluster is watched from any of its nodes: measurements, metrics, alerts and log lines, through the
//! binary and its API.

#![allow(clippy::unwrap_used)] // helpers of tests fail by panicking

use std::collections::BTreeMap;
use std::path::Path;
use std::process::Output;
use std::time::Duration;

use crate::support::{self, Node, SOON, Start, cluster, must_refuse, stdout, wait_for};
use serde_json::{Value, json};

/// From a cause to its alert.
const ALERT_MAX: Duration = Duration::from_secs(10);

fn metrics(node: &Node, query: &str) -> String {
    let answer = node.call("GET", &format!("/metrics{query}"), None).good();
    answer.body
}

/// The value of the first sample that begins so.
fn sample(text: &str, begin: &str) -> Option<f64> {
    let line = text.lines().find(|line| line.starts_with(begin))?;
    line.rsplit(' ').next()?.parse().ok()
}

#[test]
fn what_any_node_measures_is_known_on_every_node() {
    let nodes = cluster("watch", &["left", "right"]);
    let instance = nodes[0].place("demo", 2);
    let id = instance["id"].as_str().unwrap();
    let answer = nodes[1].ask("demo", "What is 17 + 25?").good();
    let tokens = answer.json()["usage"]["completion_tokens"].as_f64().unwrap();
    let pair: Vec<(&Node, &str)> = vec![(&nodes[0], "left"), (&nodes[1], "right")];
    for (node, name) in &pair {
        let load = wait_for("the load of the instance", SOON, || {
            let load = node.instance(id)?["load"].clone();
            // A report may be from the middle of the answer.
            (load["prompt_tokens"].as_u64()? > 0 && load["running"] == 0).then_some(load)
        });
        assert!(load["waiting"] == 0 && load["pages"].as_u64().unwrap() > 0, "{name}: {load}");
        // Requests are counted where the client asked, and shown everywhere.
        let counted = "exo_requests_total{node=\"right\",model=\"demo\",endpoint=\"chat\",reason=\"stop\"}";
        let text = wait_for("the request to be counted", SOON, || {
            let text = metrics(node, "?scope=cluster");
            let is_busy = |name: &str| {
                sample(&text, &format!("exo_stage_busy_seconds_total{{node=\"{name}\""))
                    .is_some_and(|s| s > 0.0)
            };
            (sample(&text, counted).is_some() && is_busy("left") && is_busy("right")).then_some(text)
        });
        assert_eq!(sample(&text, counted), Some(1.0), "{name}");
        let generated = sample(&text, "exo_generated_tokens_total{node=\"right\",model=\"demo\"}");
        assert_eq!(generated, Some(tokens), "as its client counted them");
        assert_eq!(sample(&text, "exo_time_to_first_token_seconds_count{node=\"right\""), Some(1.0));
        for other in ["left", "right"] {
            assert_eq!(sample(&text, &format!("exo_node_up{{node=\"{other}\"}}")), Some(1.0));
            assert!(sample(&text, &format!("exo_link_sent_bytes_total{{node=\"{other}\"")).unwrap() > 0.0);
            let age = sample(&text, &format!("exo_node_data_age_seconds{{node=\"{other}\"}}")).unwrap();
            assert!((0.0..10.0).contains(&age), "{age}");
            let of_process =
                |what: &str| sample(&text, &format!("exo_node_process_{what}{{node=\"{other}\"}}"));
            let fds = of_process("open_fds").zip(of_process("max_fds"));
            let is_told = fds.is_some_and(|(open, max)| open > 3.0 && open < max);
            assert_eq!(is_told, std::env::consts::OS == "linux", "{fds:?}");
        }
        // This node alone, without a label for it; and the device's memory as the system knows it.
        let own = metrics(node, "");
        assert!(!own.contains("node=\"") && sample(&own, "exo_node_up ") == Some(1.0), "{name}");
        let told = node.get("/exo/v1/telemetry");
        assert_eq!(told["nodes"].as_array().unwrap().len(), 2);
        let device = &told["nodes"][0]["devices"][0];
        assert!(device["memory"]["weights_bytes"].as_u64().unwrap() > 0, "{device}");
        assert!(device["missing"].as_array().unwrap().iter().all(|m| m["reason"] != ""), "{device}");
        let key = told["nodes"][0]["node"].as_str().unwrap();
        let series = node.get(&format!("/exo/v1/series?device={key}/cpu"));
        let free =
            series["series"].as_array().unwrap().iter().find(|s| s["name"] == "memory_free_bytes").unwrap();
        assert!(free["points"].as_array().unwrap().last().unwrap().as_f64().unwrap() > 0.0, "{series}");
    }
    let missing = nodes[0].call("GET", "/exo/v1/series?instance=i99", None);
    assert_eq!((missing.status, missing.code().as_str()), (404, "not_found"));
}

#[test]
fn a_node_that_is_killed_is_an_alert_within_seconds_that_can_be_silenced() {
    let mut nodes = cluster("alert", &["one", "two", "three"]);
    let quiet = nodes[0].exo(&["alerts"]);
    // This machine may have troubles of its own.
    assert!(quiet.status.success() && !stdout(&quiet).contains("is not there"), "{}", stdout(&quiet));
    let killed_unix_s = unix_s();
    nodes[2].kill();
    for node in &nodes[..2] {
        let alert = wait_for("the alert", ALERT_MAX, || {
            let alerts = node.get("/exo/v1/alerts");
            alerts.as_array()?.iter().find(|alert| alert["rule"] == "node_lost").cloned()
        });
        assert_eq!(
            (alert["subject"].as_str(), alert["severity"].as_str()),
            (Some("three"), Some("critical"))
        );
        let view = node.get("/exo/v1/cluster");
        assert!(view["alerts"].as_array().unwrap().iter().any(|a| a["id"] == alert["id"]), "{view:#}");
        let [one, three] = ["one", "three"].map(|name| gone_since(&view, name));
        assert!(one.is_none(), "{view:#}");
        let late = three.unwrap_or_else(|| panic!("{view:#}")).saturating_sub(killed_unix_s);
        assert!(late <= ALERT_MAX.as_secs(), "gone for {late} s less than it is");
    }
    let shown = stdout(&nodes[0].exo(&["alerts"]));
    assert!(shown.contains("critical three is not there (since") && shown.contains("exo remove"), "{shown}");
    let active =
        "exo_alert_active{node=\"three\",rule=\"node_lost\",severity=\"critical\",silenced=\"false\"}";
    wait_for("the metric", SOON, || (sample(&metrics(&nodes[0], ""), active) == Some(1.0)).then_some(()));
    let silenced = nodes[0].exo(&["alerts", "silence", "node_lost", "--for", "10m"]);
    assert!(silenced.status.success(), "{}", support::stderr(&silenced));
    let listed: Value = serde_json::from_str(&stdout(&nodes[0].exo(&["alerts", "--json"]))).unwrap();
    let lost = listed.as_array().unwrap().iter().find(|alert| alert["rule"] == "node_lost").unwrap();
    let silenced_until = lost["silenced_until_unix_s"].as_u64().unwrap_or_else(|| panic!("{listed}"));
    let text = metrics(&nodes[0], "?scope=cluster");
    assert_eq!(sample(&text, active), None);
    assert_eq!(sample(&text, "exo_node_up{node=\"three\"}"), Some(0.0));
    let unknown = nodes[0].exo(&["alerts", "silence", "no_such_rule"]);
    let text = support::stderr(&unknown);
    assert!(text.contains("no alert `no_such_rule`, and no rule of that name; there are: "), "{text}");
    assert!(!unknown.status.success() && text.contains("node_lost:"), "{text}");
    assert!(text.contains("rules are: node_lost, ") && text.contains(" disk_low, "), "{text}");

    nodes[0].kill();
    let again = Node::start_in(&nodes[0].data_dir, Start { name: "one", group: "alert", ..Start::default() });
    // A member that was not met since the start is awaited for 5 s.
    let until = wait_for("the alert, silenced as before", SOON, || {
        let alerts = again.get("/exo/v1/alerts");
        alerts.as_array()?.iter().find(|alert| alert["rule"] == "node_lost")?["silenced_until_unix_s"]
            .as_u64()
    });
    assert!(until.abs_diff(silenced_until) <= 2, "{until} for {silenced_until}");
}

/// Since when a node of the cluster is gone.
fn gone_since(view: &Value, name: &str) -> Option<u64> {
    let nodes = view["nodes"].as_array().unwrap();
    nodes.iter().find(|node| node["name"] == name).unwrap()["gone_since_unix_s"].as_u64()
}

fn unix_s() -> u64 {
    std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap().as_secs()
}

#[test]
fn the_doctor_looks_over_every_machine_of_the_cluster_and_says_which_did_not_answer() {
    let mut nodes = cluster("doctor", &["here", "there"]);
    let looked = nodes[0].exo(&["doctor", "--cluster", "--json"]);
    assert!(looked.status.success(), "{}", support::stderr(&looked));
    let view: Value = serde_json::from_str(&stdout(&looked)).unwrap();
    let all = view["nodes"].as_array().unwrap();
    let names: Vec<&str> = all.iter().map(|node| node["name"].as_str().unwrap()).collect();
    assert_eq!((names, &view["silent"]), (vec!["here", "there"], &json!([])), "{view:#}");
    for (node, looked) in nodes.iter().zip(all) {
        let checks = looked["checks"].as_array().unwrap();
        let found = |name: &str| checks.iter().find(|check| check["check"] == name).unwrap();
        for name in ["data folder", "processor", "memory", "node", "cluster", "coordinator"] {
            assert_eq!(found(name)["verdict"], "ok", "{looked:#}");
        }
        // Each has looked at its own machine.
        let folder = node.data_dir.to_str().unwrap();
        assert!(found("data folder")["found"].as_str().unwrap().contains(folder), "{looked:#}");
    }

    // Who is asked of one machine waits for no other.
    support::send("-STOP", nodes[1].pid());
    let began = std::time::Instant::now();
    let looked = nodes[0].exo(&["doctor", "--json"]);
    assert!(looked.status.success() && began.elapsed() < Duration::from_secs(5), "{:?}", began.elapsed());
    let checks: Value = serde_json::from_str(&stdout(&looked)).unwrap();
    assert!(checks.as_array().unwrap().iter().any(|check| check["check"] == "data folder"), "{checks:#}");

    nodes[1].kill();
    wait_for("the loss of the other", SOON, || gone_since(&nodes[0].get("/exo/v1/cluster"), "there"));
    let looked = nodes[0].exo(&["doctor", "--cluster"]);
    let (text, said) = (support::flat(&stdout(&looked)), support::flat(&support::stderr(&looked)));
    assert_eq!(looked.status.code(), Some(1), "{text} {said}");
    assert!(text.contains("here") && text.contains("data folder"), "{text}");
    assert!(said.contains("there was not looked over: it is not there"), "{said}");
}

/// The lines of `exo logs` as they were told.
fn lines(node: &Node, args: &[&str]) -> Vec<Value> {
    let args = [&["logs", "--json", "-n", "2000"], args].concat();
    let output = node.exo(&args);
    assert!(output.status.success(), "{}", support::stderr(&output));
    stdout(&output).lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

#[test]
fn what_is_logged_holds_no_prompt_and_no_answer() {
    let nodes = cluster("logs", &["here", "there"]);
    nodes[0].place("demo", 2);
    for node in &nodes {
        let raised = node.post("/exo/v1/logs/level", &json!({"target": "exo", "level": "trace"}));
        assert_eq!(raised.status, 204, "{}", raised.body);
    }
    let marker = "zyxwv marker 8675309";
    let messages = json!([{"role": "user", "content": format!("Put 9, 3, 7 in order. {marker}")}]);
    let asked = json!({"model": "demo", "messages": messages, "temperature": 0, "logprobs": true});
    let answer = nodes[0].post("/v1/chat/completions", &asked);
    let (text, request) = (answer.text(), answer.head.clone());
    let request =
        request.lines().find_map(|line| line.strip_prefix("x-request-id: ")).unwrap().trim().to_owned();
    // Both nodes know the request by its id, and say so to whoever asks either.
    for node in &nodes {
        let about = wait_for("lines of both nodes", SOON, || {
            let about = lines(node, &["--request", &request]);
            let of = |name: &str| about.iter().any(|line| line["name"] == name);
            (of("here") && of("there")).then_some(about)
        });
        let is_about = |line: &Value| request.starts_with(line["request"].as_str().unwrap());
        assert!(about.iter().all(is_about), "{about:?}");
    }
    let all = lines(&nodes[0], &[]);
    assert!(all.iter().any(|line| line["level"] == "debug"), "{all:?}");
    for line in &all {
        let said = line["text"].as_str().unwrap();
        assert!(!said.contains("zyxwv") && !said.contains("8675309"), "{line}");
        assert!(text.trim().len() < 4 || !said.contains(text.trim()), "{line}");
    }
    let warned = lines(&nodes[0], &["--level", "warn", "--node", "there"]);
    assert!(warned.iter().all(|line| line["name"] == "there" && line["level"] != "trace"), "{warned:?}");
    let nobody = nodes[0].exo(&["logs", "--node", "nobody"]);
    assert!(
        support::stderr(&nobody).contains("no node `nobody`; there are: "),
        "{}",
        support::stderr(&nobody)
    );
    let none = nodes[0].exo(&["logs", "--request", "nope", "--target", "nobody's"]);
    let said = support::stderr(&none);
    assert!(none.status.success() && none.stdout.is_empty(), "{said}");
    assert!(said.contains("no lines of request `nope` of target `nobody's`"), "{said}");
}

#[test]
fn an_answer_tells_how_long_each_stage_and_the_way_between_took() {
    let nodes = cluster("times", &["left", "right"]);
    nodes[0].place("demo", 2);
    let began = std::time::Instant::now();
    let answer = nodes[1].ask("demo", "What is 17 + 25?").json();
    let total_ms = began.elapsed().as_secs_f64() * 1e3;
    let times = &answer["exo"]["times"];
    let stages = times["stages"].as_array().unwrap_or_else(|| panic!("{answer}"));
    assert_eq!(stages.len(), 2, "{times}");
    let names_none = |stage: &Value| stage["node"].is_null() && stage["device"].is_null();
    assert!(stages.iter().all(names_none), "who may only ask learns of no device: {times}");
    let ms = |value: &Value| value.as_f64().unwrap_or_else(|| panic!("{times}"));
    let parts = stages.iter().flat_map(|stage| [ms(&stage["prompt_ms"]), ms(&stage["answer_ms"])]);
    let parts: Vec<f64> =
        parts.chain([ms(&times["between_prompt_ms"]), ms(&times["between_answer_ms"])]).collect();
    assert!(parts.iter().all(|part| *part > 0.0), "{times}");
    // Its steps went one after the other, so their times are part of what the client waited.
    assert!(parts.iter().sum::<f64>() < total_ms, "{times} of {total_ms}");
    // The list of requests has the same, and says where.
    let ids = nodes[0].get("/exo/v1/cluster");
    let ids: Vec<&Value> = ids["nodes"].as_array().unwrap().iter().map(|node| &node["id"]).collect();
    let recent = &nodes[1].get("/exo/v1/requests/recent")[0]["times"];
    assert_eq!(recent["between_answer_ms"], times["between_answer_ms"]);
    let placed = recent["stages"].as_array().unwrap();
    assert!(placed[0]["node"] != placed[1]["node"], "{recent}");
    assert!(placed.iter().all(|stage| ids.contains(&&stage["node"]) && stage["device"] == "cpu"), "{recent}");
}

/// The files of a report by their names.
fn unpacked(path: &Path) -> BTreeMap<String, String> {
    let mut archive = tar::Archive::new(flate2::read::GzDecoder::new(std::fs::File::open(path).unwrap()));
    let file = |entry: std::io::Result<tar::Entry<'_, _>>| {
        let mut entry = entry.unwrap();
        let name = entry.path().unwrap().strip_prefix("exo-report").unwrap().to_str().unwrap().to_owned();
        (name, std::io::read_to_string(&mut entry).unwrap())
    };
    archive.entries().unwrap().map(file).collect()
}

/// `exo doctor --report` for that data folder, in that folder, with words planted in its environment.
fn report(data_dir: &Path, folder: &Path, args: &[&str]) -> Output {
    let mut command = support::exo(&["doctor", "--report"]);
    command.args(args).arg("--data-dir").arg(data_dir).current_dir(folder);
    command.env("EXO_API_KEYS", "planted-key").env("HF_TOKEN", "planted-token").env("USER", "plantedperson");
    command.env("EXO_PEERS", "planted.example.org:52416");
    support::finish(&mut command, SOON)
}

#[test]
fn a_report_has_what_helps_and_nothing_of_who_and_where() {
    let nodes = cluster("report", &["Annas-Pult", "Bertas-Turm"]);
    nodes[0].place("demo", 2);
    nodes[0].ask("demo", "planted words of a prompt");
    let view = nodes[0].get("/exo/v1/cluster");
    let ids: Vec<&str> =
        view["nodes"].as_array().unwrap().iter().map(|node| node["id"].as_str().unwrap()).collect();
    let folder = tempfile::tempdir().unwrap();
    let output = report(&nodes[0].data_dir, folder.path(), &["report.tar.gz"]);
    assert!(output.status.success(), "{}", support::stderr(&output));
    let files = unpacked(&folder.path().join("report.tar.gz"));
    let expected = [
        "about.txt",
        "alerts.json",
        "cluster.json",
        "doctor.json",
        "logs/node-1.txt",
        "logs/node-2.txt",
        "models.json",
        "requests.json",
        "settings.json",
        "telemetry.json",
    ];
    assert_eq!(files.keys().collect::<Vec<_>>(), expected);
    let shown = stdout(&output);
    assert!(expected.iter().all(|name| shown.contains(name)), "each is named: {shown}");
    let data_dir = nodes[0].data_dir.to_str().unwrap();
    // As short as logs show them.
    let (short, secrets) = (ids.iter().map(|id| &id[..8]), nodes.iter().map(|node| node.secret.as_str()));
    let planted: Vec<&str> =
        ["annas", "bertas", "planted", data_dir].into_iter().chain(short).chain(secrets).collect();
    for (name, text) in &files {
        for word in &planted {
            assert!(!text.to_lowercase().contains(&word.to_lowercase()), "{word} in {name}: {text}");
        }
        let is_whole = !name.ends_with(".json") || serde_json::from_str::<Value>(text).is_ok();
        assert!(is_whole, "{name}: {text}");
    }
    let cluster: Value = serde_json::from_str(&files["cluster.json"]).unwrap();
    assert_eq!(
        (&cluster["nodes"][0]["name"], &cluster["nodes"][0]["id"]),
        (&json!("node-1"), &json!("node-1"))
    );
    assert!(files["logs/node-2.txt"].lines().count() > 3, "{}", files["logs/node-2.txt"]);
}

#[test]
fn a_report_is_written_over_no_file_and_says_what_is_missing() {
    let folder = tempfile::tempdir().unwrap();
    let data_dir = folder.path().join("none");
    let output = report(&data_dir, folder.path(), &[]);
    assert!(
        output.status.success() && support::stderr(&output).contains("none runs"),
        "{}",
        support::stderr(&output)
    );
    let entry = std::fs::read_dir(folder.path()).unwrap().next().unwrap().unwrap();
    let name = entry.file_name().into_string().unwrap();
    assert!(name.starts_with("exo-report-"), "{name}");
    assert_eq!(
        unpacked(&entry.path()).keys().collect::<Vec<_>>(),
        ["about.txt", "doctor.json", "settings.json"]
    );
    must_refuse(report(&data_dir, folder.path(), &[&name]), "is there already");
    let nowhere = report(&data_dir, folder.path(), &["no/such/folder.tar.gz"]);
    assert!(support::stderr(&nowhere).contains("name a file in a folder"), "{}", support::stderr(&nowhere));
}
