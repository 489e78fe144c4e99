//! `exo doctor --report`: what somebody who helps needs to see, in one file without secrets, names and
//! addresses.

use std::io::Write;
use std::path::{Path, PathBuf};

use anyhow::Context;
use exo_api::{ClusterView, LOG_LINES_MAX, LogsView, MemberView, NodeStatus};
use flate2::Compression;
use flate2::write::GzEncoder;
use serde_json::{Value, json};

use super::Check;
use super::redact::{Redactions, Redactor};
use crate::client::Client;
use crate::commands::logs;
use crate::config::{Config, Source};
use crate::ui;

/// What a running node is asked for, and the name of the file for it.
const ASKED: &[(&str, &str, &str)] = &[
    ("cluster.json", "/exo/v1/cluster", "members, devices, links and models as this node sees them"),
    ("telemetry.json", "/exo/v1/telemetry", "the last measurements of all nodes"),
    ("alerts.json", "/exo/v1/alerts", "alerts of the last day"),
    ("requests.json", "/exo/v1/requests/recent", "counts and times of the last requests, without their text"),
    ("models.json", "/exo/v1/models", "models that are known"),
];

/// Settings whose values are names, addresses or keys: a report says only whether they are set.
const UNTOLD: &[&str] =
    &["data_dir", "name", "peers", "group", "allowed_hosts", "allowed_origins", "api_keys", "draft"];

/// One file of the report.
struct Part {
    name: String,
    what: String,
    text: String,
}

/// Gathers and writes; the path of the file.
pub(super) async fn write(
    config: &Config,
    client: Option<&Client>,
    checks: &[Check],
    path: Option<&Path>,
) -> anyhow::Result<PathBuf> {
    let path = path.map_or_else(default_path, Path::to_owned);
    anyhow::ensure!(!path.exists(), "{} is there already: name another file", path.display());
    let mut known = Redactions::default();
    let mut parts = Vec::new();
    let mut missing = Vec::new();
    let mut documents = vec![
        ("doctor.json", "what `exo doctor` says of this machine", serde_json::to_value(checks)?),
        (
            "settings.json",
            "settings; of those that are names, addresses or keys only whether they are set",
            settings(config),
        ),
    ];
    let mut lines = Vec::new();
    if let Some(client) = client {
        // Without their names nothing can be told of them.
        let view: ClusterView = client.get("/exo/v1/cluster").await?;
        let members: Vec<MemberView> = client.get("/exo/v1/members").await?;
        names_of_others(&view, &members, &mut known);
        for &(name, path, what) in ASKED {
            match client.get::<Value>(path).await {
                Ok(value) => documents.push((name, what, without_folders(value))),
                Err(error) => missing.push(format!("{name}: {error:#}")),
            }
        }
        lines = log_lines(client, &view, &mut missing).await;
    } else {
        missing
            .push("what a node sees of its cluster, and log lines: none runs on this data folder".to_owned());
    }
    names_of_this_machine(config, &mut known);
    let mut redactor = Redactor::new(known)?;
    for (name, what, value) in documents {
        let text = serde_json::to_string_pretty(&redactor.value(value))?;
        parts.push(Part { name: name.to_owned(), what: what.to_owned(), text });
    }
    for (name, text) in lines {
        let name = format!("logs/{}.txt", redactor.text(&name));
        parts.push(Part {
            name,
            what: "the last log lines of that node".to_owned(),
            text: redactor.text(&text),
        });
    }
    let missing: Vec<_> = missing.iter().map(|line| redactor.text(line)).collect();
    parts.insert(0, about(&parts, &missing, redactor.count));
    let size = archive(&path, &parts)?;
    for part in &parts {
        ui::titled(&format!("{:22} ", part.name), &part.what);
    }
    missing.iter().for_each(|line| ui::warning(&format!("not in the report: {line}")));
    let (path_shown, size) = (path.display(), ui::bytes(size));
    ui::paragraph(format!(
        "{path_shown} ({size}), {} words replaced. It is a gzipped tar archive: look through it before you send it.",
        redactor.count
    ));
    Ok(path)
}

fn default_path() -> PathBuf {
    PathBuf::from(format!("exo-report-{}.tar.gz", chrono::Utc::now().format("%Y%m%d-%H%M%S")))
}

/// What this machine could tell of its owner.
fn names_of_this_machine(config: &Config, known: &mut Redactions) {
    config.api_keys().iter().for_each(|key| {
        known.secret(&key.key);
        key.name.iter().for_each(|name| known.add(name, "user"));
    });
    for name in ["HF_TOKEN", "HUGGING_FACE_HUB_TOKEN", "EXO_JOIN_TOKEN"] {
        std::env::var(name).iter().for_each(|token| known.secret(token));
    }
    let data_dir = config.data_dir();
    known.add(&data_dir.display().to_string(), "DATA");
    if let Some(home) = etcetera::home_dir().ok().filter(|home| home.parent().is_some()) {
        known.add(&home.display().to_string(), "~");
    }
    for name in ["USER", "LOGNAME", "USERNAME"] {
        // Everybody's name tells of nobody, and is a word of many lines.
        std::env::var(name)
            .iter()
            .filter(|user| !["root", "exo"].contains(&user.as_str()))
            .for_each(|user| known.add(user, "user"));
    }
    sysinfo::System::host_name().iter().for_each(|host| known.add(host, "host"));
    known.add(config.text("name"), "node-1");
    known.add(config.text("group"), "group");
    for (number, host) in config.list("peers").into_iter().chain(config.list("allowed_hosts")).enumerate() {
        let host = host.rsplit_once(':').map_or(host.as_str(), |(host, _)| host);
        known.add(host, &format!("host-{}", number + 1));
    }
    let origins = config.list("allowed_origins");
    let sites = origins.iter().filter_map(|origin| Some(origin.split_once("://")?.1.trim_end_matches('/')));
    // What has no dot names nobody, and is a word of many lines.
    for (number, site) in sites.filter(|site| site.contains('.')).enumerate() {
        known.add(site, &format!("site-{}", number + 1));
    }
}

fn names_of_others(view: &ClusterView, members: &[MemberView], known: &mut Redactions) {
    let nodes = view.nodes.iter().map(|node| (&node.id, &node.name));
    let away = members.iter().map(|member| (&member.node, &member.name));
    let mut ids: Vec<&String> = Vec::new();
    for (id, name) in nodes.chain(away) {
        let number = ids.iter().position(|other| *other == id).unwrap_or_else(|| {
            ids.push(id);
            ids.len() - 1
        });
        let stands = format!("node-{}", number + 1);
        add_id(known, id, &stands);
        known.add(name, &stands);
    }
    let asking = view.join_requests.iter().map(|request| (&request.node, &request.name));
    let others = view.other_clusters.iter().map(|other| (&other.node, &other.name));
    for (number, (id, name)) in asking.chain(others).enumerate() {
        let stands = format!("stranger-{}", number + 1);
        add_id(known, id, &stands);
        known.add(name, &stands);
    }
}

/// In full, and as logs, lists and commands show it.
fn add_id(known: &mut Redactions, id: &str, stands: &str) {
    for shown in [Some(id), id.get(..8), id.get(..12), id.get(..16)].into_iter().flatten() {
        known.add(shown, stands);
    }
}

/// Of a path its last part is enough: folders have names of people, customers and drives.
fn without_folders(value: Value) -> Value {
    let last = |path: &str| path.rsplit(['/', '\\']).next().unwrap_or_default().to_owned();
    match value {
        Value::Array(items) => items.into_iter().map(without_folders).collect(),
        Value::Object(fields) => fields
            .into_iter()
            .map(|(key, value)| match value {
                Value::String(path) if key == "path" => (key, Value::String(last(&path))),
                value => (key, without_folders(value)),
            })
            .collect(),
        plain @ (Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_)) => plain,
    }
}

fn settings(config: &Config) -> Value {
    let shown = |(key, value): (&'static crate::config::Key, &crate::config::Value)| {
        let is_untold = UNTOLD.contains(&key.name) && !value.text.is_empty();
        let text = if is_untold { "[set]" } else { value.text.as_str() };
        let from = match &value.source {
            Source::Flag => "flag",
            Source::Environment(_) => "environment",
            Source::File(_) => "file",
            Source::Default => "default",
        };
        (key.name.to_owned(), json!({"value": text, "from": from}))
    };
    config.entries().map(shown).collect::<serde_json::Map<_, _>>().into()
}

/// Of each node that is there, by its id.
async fn log_lines(client: &Client, view: &ClusterView, missing: &mut Vec<String>) -> Vec<(String, String)> {
    let mut all = Vec::new();
    for node in view.nodes.iter().filter(|node| node.status == NodeStatus::Alive) {
        let path =
            format!("/exo/v1/logs?node={}&limit={LOG_LINES_MAX}", exo_types::percent_encoded(&node.id, b""));
        match client.get::<LogsView>(&path).await {
            Ok(found) => {
                missing.extend(found.silent.iter().map(|s| format!("log of {}: {}", s.node, s.reason)));
                let text = found.lines.iter().map(|line| logs::shown(line) + "\n").collect();
                all.push((node.id.clone(), text));
            }
            Err(error) => missing.push(format!("log of {}: {error:#}", node.id)),
        }
    }
    all
}

fn about(parts: &[Part], missing: &[String], replaced: usize) -> Part {
    let mut text = format!(
        "exo {} on {} ({})\n\nNames of nodes, users, hosts and groups, node ids, addresses, keys, tokens and the folders of users are replaced \
         ({replaced} times): the same\nword stands for the same thing in all files. No prompt and no answer is in any log of exo. Names of models \
         are here as they are, and so are names in log lines of nodes that are no members any more.\n\n",
        env!("CARGO_PKG_VERSION"),
        std::env::consts::OS,
        std::env::consts::ARCH,
    );
    for part in parts {
        text.push_str(&format!("{:22} {}\n", part.name, part.what));
    }
    for line in missing {
        text.push_str(&format!("missing: {line}\n"));
    }
    Part { name: "about.txt".to_owned(), what: "version, and what is in here".to_owned(), text }
}

/// Writes all into one file that is there whole or not at all; its size.
fn archive(path: &Path, parts: &[Part]) -> anyhow::Result<u64> {
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let failed = || format!("cannot write {}: name a file in a folder that you may write to", path.display());
    let file = tempfile::NamedTempFile::new_in(folder).with_context(failed)?;
    let mut packed = tar::Builder::new(GzEncoder::new(file, Compression::default()));
    for part in parts {
        let mut header = tar::Header::new_gnu();
        header.set_size(part.text.len() as u64);
        header.set_mode(0o600);
        let name = Path::new("exo-report").join(&part.name);
        packed.append_data(&mut header, name, part.text.as_bytes()).with_context(failed)?;
    }
    let mut file = packed.into_inner().and_then(GzEncoder::finish).with_context(failed)?;
    file.flush().with_context(failed)?;
    let size = file.as_file().metadata().with_context(failed)?.len();
    file.persist_noclobber(path).with_context(failed)?;
    Ok(size)
}
