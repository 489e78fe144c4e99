//! Of two nodes the coordinator stands still, beside a model that the other one holds alone, and goes on
//! later: the other's streams never stop, and nobody leads a second time.
//!
//! Each run is a fresh cluster. Clients ask the node with the model for answer after answer, so that requests
//! also come while nobody coordinates, and while the other one takes over.

use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use clap::Args;
use serde_json::json;

use super::Verdict;
use super::runs::RunOptions;
use super::streams::{
    Asking, Pauses, Question, beside, completion, longest_pause, percentile, sorted, spread, undisturbed,
};
use crate::cluster::{Cluster, Epoch, placements};
use crate::wait::{rest, wait_for};

const NODES: usize = 2;
const STREAMS: u64 = 2;
const TOKENS: u32 = 300;
const CONTEXT: u32 = 512;
/// By so much the longest pause may be longer than without a disturbance: nothing of it waits for the other
/// node.
const BEYOND_MAX: Duration = Duration::from_millis(200);
/// How long streams are watched before anything happens.
const UNDISTURBED: Duration = Duration::from_secs(5);
/// How long the nodes are watched when the coordinator goes on.
const WATCH: Duration = Duration::from_secs(10);
/// Until both say the same then.
const AGREE_MAX: Duration = Duration::from_secs(20);
const POLL: Duration = Duration::from_millis(100);

#[derive(Args)]
#[command(mut_arg("times", |times| times.default_value("15")))]
pub struct Options {
    /// How long the coordinator stands still
    #[arg(long, value_delimiter = ',', default_value = "5,30",
          value_parser = clap::value_parser!(u64).range(1..=3600))]
    seconds: Vec<u64>,
    #[command(flatten)]
    runs: RunOptions,
}

/// Has coordinators stand still.
pub fn prove(exo: &Path, options: &Options) -> anyhow::Result<Vec<Verdict>> {
    let run = |cluster: &mut Cluster, seconds: u64, seed: u64| {
        freeze(cluster, options, Duration::from_secs(seconds), seed)
    };
    options.runs.verdicts(exo, &options.seconds, |_| NODES, run, verdict)
}

fn verdict(seconds: u64, times: u32, runs: &[Pauses]) -> Verdict {
    let disturbed = sorted(runs.iter().map(|run| run.disturbed));
    let beyond = sorted(runs.iter().map(Pauses::beyond));
    Verdict {
        line: format!(
            "freeze: a coordinator that stands still for {seconds} s cuts no stream, moves nothing and leads nobody afterwards in {} of \
             {times} runs; pause {}; at most {} ms longer than without a disturbance (bound {} ms)",
            runs.len(),
            spread(&disturbed),
            percentile(&beyond, 100).as_millis(),
            BEYOND_MAX.as_millis(),
        ),
        is_kept: runs.len() == times as usize && percentile(&beyond, 100) <= BEYOND_MAX,
    }
}

fn freeze(cluster: &mut Cluster, options: &Options, frozen: Duration, seed: u64) -> anyhow::Result<Pauses> {
    let model = cluster.model(options.runs.model.as_deref())?;
    cluster.wait_united()?;
    let coordinator = cluster.coordinator(0)?;
    let holder = 1 - coordinator;
    let [leads, holds] = [coordinator, holder].map(|at| cluster.nodes()[at].name);
    let order = json!({
        "model": model, "pins": [holds], "exclude": [leads], "context_tokens": CONTEXT, "slots": STREAMS,
    });
    let instance = cluster.place_as(0, &order)?;
    if cluster.stages_of(&instance)? != [holder] {
        bail!("the model is not on {holds} alone");
    }
    cluster.wait_settled(&instance)?;
    let server = std::iter::once(&cluster.nodes()[holder].server);
    let seeds = (0..STREAMS).map(|number| seed.wrapping_mul(STREAMS).wrapping_add(number));
    let bodies = seeds.map(|seed| completion(&model, TOKENS, 1.0, seed));
    let questions = Question::several(server, bodies)?;
    let undisturbed = undisturbed(&questions, UNDISTURBED)?;
    let (disturbed, ()) =
        beside(&questions, Asking::UntilOver, 1, || stand_still(cluster, [coordinator, holder], frozen))?;
    Ok(Pauses { undisturbed, disturbed: longest_pause(&disturbed) })
}

/// The coordinator stands still, goes on, and agrees with the other, which has its streams all the while.
fn stand_still(
    cluster: &mut Cluster,
    [coordinator, holder]: [usize; 2],
    frozen: Duration,
) -> anyhow::Result<()> {
    let own = cluster.id_of(holder)?;
    let before = placements(&cluster.view(holder)?);
    let look = |cluster: &Cluster| -> anyhow::Result<Option<Epoch>> {
        let view = cluster.view(holder)?;
        if placements(&view) != before {
            bail!("what was placed as {before:?} is {:?}", placements(&view));
        }
        Ok(Epoch::of(&view))
    };
    let mut epochs = Vec::new();
    cluster.freeze(coordinator)?;
    let began = Instant::now();
    while began.elapsed() < frozen {
        epochs.extend(look(cluster)?);
        rest(POLL.min(frozen.saturating_sub(began.elapsed())));
    }
    cluster.thaw(coordinator)?;
    let thawed = epochs.len();
    let began = Instant::now();
    while began.elapsed() < WATCH {
        epochs.extend(look(cluster)?);
        rest(POLL);
    }
    check_epochs(&epochs[..thawed], &epochs[thawed..], &own)?;
    wait_for("agreeing on who coordinates and on what is placed", (AGREE_MAX, POLL), || {
        let returned = cluster.view(coordinator)?;
        let epoch = look(cluster)?;
        let is_one = epoch.is_some() && Epoch::of(&returned) == epoch && placements(&returned) == before;
        Ok(is_one.then_some(()))
    })
}

/// Epochs that a node has seen while the coordinator stood still, and since that went on: counters never
/// fall, and where the node itself had taken over it stays who coordinates.
fn check_epochs(frozen: &[Epoch], since: &[Epoch], own: &str) -> anyhow::Result<()> {
    let all: Vec<&Epoch> = frozen.iter().chain(since).collect();
    if let Some(pair) = all.windows(2).find(|pair| pair[1].counter < pair[0].counter) {
        bail!("an older epoch came back: {:?} behind {:?}", pair[1], pair[0]);
    }
    let last = frozen.last().context("no epoch was seen while the coordinator stood still")?;
    let is_second = |epoch: &&Epoch| last.coordinator == own && epoch.coordinator != own;
    match since.iter().find(is_second) {
        Some(second) => bail!("who had stood still leads again: {second:?} behind {last:?}"),
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn epoch(counter: u64, coordinator: &str) -> Epoch {
        Epoch { counter, coordinator: coordinator.to_owned() }
    }

    #[test]
    fn who_took_over_stays_and_epochs_never_run_backwards() {
        let (old, taken, again) = (epoch(1, "n1"), epoch(2, "n2"), epoch(3, "n1"));
        let check = |frozen: &[&Epoch], since: &[&Epoch]| {
            let of = |epochs: &[&Epoch]| epochs.iter().map(|epoch| (*epoch).clone()).collect::<Vec<_>>();
            check_epochs(&of(frozen), &of(since), "n2")
        };
        check(&[&old, &taken], &[&taken, &taken]).unwrap();
        check(&[&old], &[&old]).unwrap();
        check(&[&old], &[&taken]).unwrap();
        let error = check(&[&old, &taken], &[&taken, &again]).unwrap_err().to_string();
        assert!(error.starts_with("who had stood still leads again"), "{error}");
        let error = check(&[&old, &taken], &[&old]).unwrap_err().to_string();
        assert!(error.starts_with("an older epoch came back"), "{error}");
        assert!(check(&[], &[&old]).is_err());
    }

    #[test]
    fn every_run_has_to_hold_and_none_may_pause() {
        let run =
            |ms| Pauses { undisturbed: Duration::from_millis(50), disturbed: Duration::from_millis(ms) };
        assert!(verdict(5, 2, &[run(20), run(250)]).is_kept);
        assert!(!verdict(5, 2, &[run(20), run(251)]).is_kept);
        assert!(!verdict(5, 2, &[run(20)]).is_kept, "a run failed");
    }
}
