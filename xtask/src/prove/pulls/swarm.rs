//! Three nodes run a model together that none of them has, from a hub behind a slow uplink: how much leaves
//! the hub, how long it takes until the first answer, and what each node then has on its disk.

use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use serde_json::{Value, json};

use super::super::Verdict;
use super::hub::{FILE, Hub, REPO};
use super::{Programs, skipped};
use crate::cluster::Cluster;
use crate::lan::Lan;
use crate::run;

const NODES: usize = 3;
/// The machine of the hub, behind those of the nodes.
const HUB_AT: usize = NODES;
/// Bytes that leave the hub, of the model.
const SENT_PERCENT_MAX: f64 = 105.0;
/// Until the first answer, of the time that the uplink takes for the model.
const TIME_PERCENT_MAX: f64 = 110.0;
/// Of the model, what a node may have beside its layers: above all the head, without which none opens it.
const BESIDE_PERCENT: u64 = 2;
/// Chunks that a node may have in part only: at both ends of its layers, of the embedding and of the output.
const CUT_CHUNKS: u64 = 6;
/// As `docs/models.md` has it: the size from which on a model has larger chunks, and what chunks have below
/// and above.
const SMALL_MODEL_BYTES: u64 = 64 << 20;
const CHUNK_BYTES: [u64; 2] = [64 << 10, 1 << 20];
/// Where a node keeps what it fetches, below its data folder: layers, and whole files.
const FOLDERS: [&str; 2] = ["models", "hub"];
const CONTEXT: &str = "512";
/// For a request that needs no model, and for the first answer.
const ANSWER_MAX: Duration = Duration::from_secs(120);

pub fn prove(programs: &Programs, model: Option<&Path>, uplink_mbit: u64) -> anyhow::Result<Verdict> {
    let part = "of three nodes";
    let Some(model) = model else {
        return Ok(skipped(part, "`--model` names no GGUF file, and the demo model is too small"));
    };
    if let Some(missing) = ["ip", "tc", "du"].iter().find(|program| !run::has(program)) {
        return Ok(skipped(part, &format!("`{missing}` is not there")));
    }
    let lan = match Lan::new(NODES + 1) {
        Ok(lan) => lan,
        Err(error) => return Ok(skipped(part, &format!("{error:#}"))),
    };
    let uplink = uplink_mbit * 1_000_000;
    lan.slow(HUB_AT, uplink)?;
    let files = programs.folder.join("of-hub");
    std::fs::create_dir_all(&files).context("no folder for the model")?;
    let bytes = std::fs::copy(model, files.join(FILE));
    let bytes = bytes.with_context(|| format!("cannot copy {}", model.display()))?;
    let hub = Hub::start(&programs.mock_hub, &files, Some((&lan, HUB_AT)), &[])?;
    let env = vec![
        ("HF_ENDPOINT", hub.endpoint()),
        ("HOME", programs.folder.join("no-home").display().to_string()),
    ];
    let mut cluster = Cluster::start_on(&programs.exo, NODES, Some(lan), env, |_| Vec::new())?;
    let measured = match serve(&mut cluster, bytes, uplink) {
        Ok(took) => {
            let sent = hub.counts()?.sent_bytes;
            Measurement { bytes, uplink, sent, took, disks: disks(&cluster)? }
        }
        Err(error) => bail!("{error:#}{}", cluster.last_words()),
    };
    cluster.stop()?;
    std::fs::remove_dir_all(&files).with_context(|| format!("cannot delete {}", files.display()))?;
    Ok(verdict(&measured))
}

/// From the order to place the model to the first answer.
fn serve(cluster: &mut Cluster, bytes: u64, uplink: u64) -> anyhow::Result<Duration> {
    cluster.wait_united()?;
    let at_most = ANSWER_MAX + 3 * line_time(bytes, uplink);
    let (reference, nodes) = (format!("hf.co/{REPO}"), NODES.to_string());
    let began = Instant::now();
    let place = ["place", &reference, "--nodes", &nodes, "--context", CONTEXT];
    cluster.output(0, &place, at_most)?;
    let question = json!({
        "model": FILE.trim_end_matches(".gguf"), "max_tokens": 1, "temperature": 0,
        "messages": [{ "role": "user", "content": "Hello" }],
    });
    let server = &cluster.nodes()[0].server;
    server.post("/v1/chat/completions", &question, ANSWER_MAX)?;
    Ok(began.elapsed())
}

/// What a node has on its disk, and the layers that it is to have.
struct NodeDisk {
    name: &'static str,
    layers_bytes: u64,
    disk_bytes: u64,
}

fn disks(cluster: &Cluster) -> anyhow::Result<Vec<NodeDisk>> {
    let server = &cluster.nodes()[0].server;
    let view = server.get("/exo/v1/cluster", ANSWER_MAX)?;
    let stages = view["instances"][0]["stages"].as_array().context("the model is not placed")?;
    let mut disks = Vec::new();
    for (at, node) in cluster.nodes().iter().enumerate() {
        let of_node = |stage: &&Value| stage["node_name"] == node.name;
        let weights = |stage: &Value| stage["weight_bytes"].as_u64();
        let layers_bytes: u64 = stages.iter().filter(of_node).filter_map(weights).sum();
        if layers_bytes == 0 {
            bail!("{} has no layers of the model", node.name);
        }
        let data_dir = cluster.data_dir(at)?;
        let folders = FOLDERS.map(|folder| data_dir.join(folder));
        let taken = folders.iter().filter(|folder| folder.exists()).map(|folder| disk_bytes(folder));
        let disk_bytes = taken.sum::<anyhow::Result<u64>>()?;
        disks.push(NodeDisk { name: node.name, layers_bytes, disk_bytes });
    }
    Ok(disks)
}

/// What files below a folder take on the disk; holes take nothing.
fn disk_bytes(folder: &Path) -> anyhow::Result<u64> {
    let path = folder.to_str().context("a folder whose path is no text")?;
    let said = run::output("du", &["-sk", path])?;
    let kib = said.split_whitespace().next().and_then(|number| number.parse::<u64>().ok());
    Ok(kib.context("`du` says no number")? << 10)
}

fn line_time(bytes: u64, bits_per_s: u64) -> Duration {
    Duration::from_secs_f64(8.0 * bytes as f64 / bits_per_s.max(1) as f64)
}

/// What three nodes and a hub showed.
struct Measurement {
    /// Of the model.
    bytes: u64,
    /// Bits a second.
    uplink: u64,
    sent: u64,
    took: Duration,
    disks: Vec<NodeDisk>,
}

fn verdict(measured: &Measurement) -> Verdict {
    let Measurement { bytes, uplink, sent, took, disks } = measured;
    let sent_percent = 100.0 * *sent as f64 / *bytes as f64;
    let line = line_time(*bytes, *uplink);
    let time_percent = 100.0 * took.as_secs_f64() / line.as_secs_f64();
    let chunk_bytes = CHUNK_BYTES[usize::from(*bytes >= SMALL_MODEL_BYTES)];
    let beside_max = bytes * BESIDE_PERCENT / 100 + CUT_CHUNKS * chunk_bytes;
    let of_node = |disk: &NodeDisk| {
        let NodeDisk { name, layers_bytes, disk_bytes } = disk;
        format!("{name} {:.1} for layers of {:.1}", mb(*disk_bytes), mb(*layers_bytes))
    };
    Verdict {
        line: format!(
            "pulls of three nodes behind {} Mbit/s: {sent_percent:.1} % of {:.1} MB left the hub (bound {SENT_PERCENT_MAX} %); the first answer \
             after {:.1} s, {time_percent:.1} % of the line's time (bound {TIME_PERCENT_MAX} %); MB on disk: {} (bound {:.1} beside the layers)",
            uplink / 1_000_000,
            mb(*bytes),
            took.as_secs_f64(),
            disks.iter().map(of_node).collect::<Vec<_>>().join(", "),
            mb(beside_max),
        ),
        is_kept: sent_percent <= SENT_PERCENT_MAX
            && time_percent <= TIME_PERCENT_MAX
            && disks.len() == NODES
            && disks.iter().all(|disk| disk.disk_bytes <= disk.layers_bytes + beside_max),
    }
}

fn mb(bytes: u64) -> f64 {
    bytes as f64 / 1e6
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Of a model of 100 MB behind 100 Mbit/s, which take 8 s: what left the hub, milliseconds, and what the
    /// last node has on its disk for 30 MB of layers.
    fn check(sent: u64, ms: u64, disk_bytes: u64) -> bool {
        let disk = |disk_bytes| NodeDisk { name: "anna", layers_bytes: 30_000_000, disk_bytes };
        let disks = vec![disk(30_000_000), disk(31_000_000), disk(disk_bytes)];
        let (bytes, uplink, took) = (100_000_000, 100_000_000, Duration::from_millis(ms));
        verdict(&Measurement { bytes, uplink, sent, took, disks }).is_kept
    }

    #[test]
    fn a_model_leaves_the_hub_once_in_the_time_of_the_line_and_each_node_has_its_layers() {
        let disk_max = 32_000_000 + (6 << 20);
        assert!(check(105_000_000, 8790, disk_max));
        assert!(!check(105_100_000, 8800, disk_max), "some of it left the hub twice");
        assert!(!check(105_000_000, 8810, disk_max), "the line stood still");
        assert!(!check(105_000_000, 8790, disk_max + 1), "a node has more than its layers");
    }

    #[test]
    fn every_node_has_to_have_been_looked_at() {
        let (bytes, uplink, took) = (100_000_000, 100_000_000, Duration::from_secs(8));
        let disks = vec![NodeDisk { name: "anna", layers_bytes: 1, disk_bytes: 1 }];
        assert!(!verdict(&Measurement { bytes, uplink, sent: bytes, took, disks }).is_kept);
    }
}
