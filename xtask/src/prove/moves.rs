//! Layers of models leave a node under streams, which hardly notice; and a node that joins disturbs none.
//!
//! A node is drained, or asked to end, while clients ask others for answer after answer; or one more node
//! comes. Each run is a fresh cluster.

use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use clap::{Args, ValueEnum};
use serde_json::{Value, json};

use super::Verdict;
use super::runs::RunOptions;
use super::streams::{
    Asking, Pauses, Question, TokenTimes, beside, completion, percentile, sorted, spread, undisturbed,
};
use crate::cluster::{Cluster, Instance, placements};
use crate::wait::{rest, wait_for};

/// Nodes that have stages. Where one leaves there is one more, which has room.
const STAGES: usize = 2;
const STREAMS: u64 = 4;
const TOKENS: u32 = 300;
const CONTEXT: u32 = 512;
/// The longest pause while layers move.
const PAUSE_MAX: Duration = Duration::from_millis(500);
/// By so much the longest pause may be longer than without a disturbance when a node joins.
const BEYOND_MAX: Duration = Duration::from_millis(100);
/// How long streams are watched before anything happens, about as long as it takes.
const UNDISTURBED: Duration = Duration::from_secs(5);
/// And behind it.
const WATCH: Duration = Duration::from_secs(2);
/// For the layers to be elsewhere, and for a node to be one of the cluster.
const MOVE_MAX: Duration = Duration::from_secs(60);
const ANSWER_MAX: Duration = Duration::from_secs(20);
const POLL: Duration = Duration::from_millis(50);

#[derive(Args)]
pub struct Options {
    /// What happens
    #[arg(long, value_delimiter = ',', default_value = "leave,drain,join")]
    only: Vec<Change>,
    #[command(flatten)]
    runs: RunOptions,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
enum Change {
    /// A node with a stage is asked to end
    Leave,
    /// A node with a stage is drained
    Drain,
    /// One more node comes
    Join,
}

/// Has nodes come and go.
pub fn prove(exo: &Path, options: &Options) -> anyhow::Result<Vec<Verdict>> {
    let nodes = |change: Change| STAGES + usize::from(change != Change::Join);
    let run = |cluster: &mut Cluster, change: Change, seed: u64| disturb(cluster, options, change, seed);
    options.runs.verdicts(exo, &options.only, nodes, run, verdict)
}

fn verdict(change: Change, times: u32, runs: &[Pauses]) -> Verdict {
    let disturbed = sorted(runs.iter().map(|run| run.disturbed));
    let beyond = sorted(runs.iter().map(Pauses::beyond));
    let (what, bound, is_within) = match change {
        Change::Leave => ("a node that ends", PAUSE_MAX, percentile(&disturbed, 100) < PAUSE_MAX),
        Change::Drain => ("a node that is drained", PAUSE_MAX, percentile(&disturbed, 100) < PAUSE_MAX),
        Change::Join => ("a node that joins", BEYOND_MAX, percentile(&beyond, 100) <= BEYOND_MAX),
    };
    let held = if change == Change::Join { "the latter" } else { "the pause" };
    Verdict {
        line: format!(
            "moves: {what} leaves every token in {} of {times} runs; pause {}; at most {} ms longer than without a \
             disturbance (bound of {held} {} ms)",
            runs.len(),
            spread(&disturbed),
            percentile(&beyond, 100).as_millis(),
            bound.as_millis(),
        ),
        is_kept: runs.len() == times as usize && is_within,
    }
}

fn disturb(cluster: &mut Cluster, options: &Options, change: Change, seed: u64) -> anyhow::Result<Pauses> {
    let model = cluster.model(options.runs.model.as_deref())?;
    let order = json!({ "model": model, "nodes_min": STAGES, "context_tokens": CONTEXT, "slots": STREAMS });
    let instance = cluster.place_as(0, &order)?;
    cluster.wait_settled(&instance)?;
    let stages = cluster.stages_of(&instance)?;
    // The first stage in one run, the last one in the next.
    let goes = stages[usize::from(!seed.is_multiple_of(2))];
    let asked: Vec<usize> = match change {
        Change::Join => stages,
        Change::Leave | Change::Drain => (0..cluster.nodes().len()).filter(|at| *at != goes).collect(),
    };
    let servers = asked.iter().map(|at| &cluster.nodes()[*at].server);
    let seeds = (0..STREAMS).map(|number| seed.wrapping_mul(STREAMS).wrapping_add(number));
    let bodies = seeds.map(|seed| completion(&model, TOKENS, 1.0, seed));
    let questions = Question::several(servers, bodies)?;
    let undisturbed = undisturbed(&questions, UNDISTURBED)?;
    let by = *asked.first().context("no node is asked")?;
    let (times, began) = beside(&questions, Asking::UntilOver, 1, || {
        let began = Instant::now();
        match change {
            Change::Leave => cluster.leave(goes)?,
            Change::Drain => drain(cluster, &instance, goes, by)?,
            // Watched already.
            Change::Join => return join(cluster, by).map(|()| began),
        }
        rest(WATCH);
        Ok(began)
    })?;
    let disturbed = times.iter().map(|times: &TokenTimes| times.longest_pause_since(began));
    Ok(Pauses { undisturbed, disturbed: disturbed.max().unwrap_or_default() })
}

/// Drains a node, and waits until the instance serves without it.
fn drain(cluster: &Cluster, instance: &Instance, goes: usize, by: usize) -> anyhow::Result<()> {
    let (name, id) = (cluster.nodes()[goes].name, cluster.id_of(goes)?);
    let path = format!("/exo/v1/members/{id}/drain");
    cluster.nodes()[by].server.order("POST", &path, &json!({ "drain": "lasting" }), ANSWER_MAX)?;
    wait_for(&format!("draining {name}"), (MOVE_MAX, POLL), || {
        Ok(serves_without(&cluster.view(by)?, &instance.id, name).then_some(()))
    })
}

/// Whether an instance is ready and nothing of it is on the node, or about to leave it.
fn serves_without(view: &Value, instance: &str, name: &str) -> bool {
    let mut instances = view["instances"].as_array().into_iter().flatten();
    instances.find(|other| other["id"] == instance).is_some_and(|instance| {
        let mut stages = instance["stages"].as_array().into_iter().flatten();
        instance["state"]["kind"] == "ready"
            && instance["moving"].is_null()
            && stages.all(|stage| stage["node_name"] != name)
    })
}

/// One more node comes, and is one of the cluster; what is placed stays where it is, for as long as the
/// streams are watched behind that, too.
fn join(cluster: &mut Cluster, by: usize) -> anyhow::Result<()> {
    let before = placements(&cluster.view(by)?);
    let size = cluster.grow(0)? + 1;
    cluster.wait_seen(by, size, MOVE_MAX)?;
    let seen = Instant::now();
    loop {
        let after = placements(&cluster.view(by)?);
        if after != before {
            bail!("what was placed as {before:?} is {after:?}");
        }
        if seen.elapsed() > WATCH {
            return Ok(());
        }
        rest(POLL);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn moves_have_a_longest_pause_and_a_join_is_held_to_what_was_before_it() {
        let run = |undisturbed, disturbed| {
            let [undisturbed, disturbed] = [undisturbed, disturbed].map(Duration::from_millis);
            Pauses { undisturbed, disturbed }
        };
        let check = |change, run| verdict(change, 1, &[run]).is_kept;
        assert!(check(Change::Drain, run(0, 499)) && !check(Change::Drain, run(450, 500)));
        assert!(check(Change::Leave, run(0, 499)) && !check(Change::Leave, run(450, 500)));
        assert!(check(Change::Join, run(450, 550)) && !check(Change::Join, run(0, 101)));
        assert!(!verdict(Change::Join, 1, &[]).is_kept, "the run failed");
    }

    #[test]
    fn a_node_is_drained_when_what_it_had_serves_elsewhere() {
        let view = |kind: &str, moving: Value, name: &str| {
            let stages = json!([{ "node_name": "anna" }, { "node_name": name }]);
            let instance =
                json!({ "id": "i1", "state": { "kind": kind }, "moving": moving, "stages": stages });
            json!({ "instances": [instance] })
        };
        assert!(serves_without(&view("ready", Value::Null, "carla"), "i1", "ben"));
        assert!(!serves_without(&view("ready", Value::Null, "ben"), "i1", "ben"));
        assert!(!serves_without(&view("loading", Value::Null, "carla"), "i1", "ben"));
        assert!(!serves_without(&view("ready", json!({ "kind": "loading" }), "carla"), "i1", "ben"));
        assert!(!serves_without(&json!({ "instances": [] }), "i1", "ben"));
    }
}
