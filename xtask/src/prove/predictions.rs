//! What plans say before anything is answered, beside what answers then take.
//!
//! Fresh clusters of up to three nodes on loopback measure their devices and links as they do for a
//! user, and types of weights when the model is first loaded. Then plans are asked for, and prompts of
//! two lengths are answered. No prompt is read twice, and no token is guessed ahead. Nodes of one machine
//! share its memory, and stages compute parts of a prompt at the same time: so there are only as many nodes
//! as have cores of their own.

use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context, bail};
use clap::Args;
use serde_json::{Value, json};

use super::cluster::Cluster;
use super::{Verdict, wait_for};
use crate::bench::cells::median;
use crate::setup;

/// Largest median and largest 95th percentile of the errors, in per cent.
const ERROR_MAX: (f64, f64) = (10.0, 25.0);
/// Least share of the measurements that lie in the range of their prediction.
const IN_RANGE_MIN: f64 = 0.8;
const NODES: [usize; 3] = [1, 2, 3];
const PROMPTS: [u32; 2] = [64, 400];
const ANSWER_TOKENS: u32 = 64;
/// All that the demo model holds.
const CONTEXT: u32 = 512;
const ANSWER_MAX: Duration = Duration::from_secs(300);
/// From the start of the last node to a measured bandwidth of every link.
const LINKS_MAX: Duration = Duration::from_secs(40);
const POLL: Duration = Duration::from_millis(200);

#[derive(Args)]
pub struct Options {
    /// An exo binary instead of this tree's, which is built
    #[arg(long, value_name = "FILE")]
    exo: Option<PathBuf>,
    /// A GGUF file to measure instead of the demo model, whose steps are mostly what a plan has no rate for;
    /// may be repeated
    #[arg(long = "model", value_name = "FILE")]
    models: Vec<PathBuf>,
    /// Answers for each case; their median counts
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..=100))]
    rounds: u32,
    /// Processor threads of each node
    #[arg(long, value_name = "N", default_value_t = 1)]
    threads: usize,
}

/// A number that was predicted with its range, and what came.
#[derive(Clone, Copy)]
struct Pair {
    low: f64,
    expected: f64,
    high: f64,
    measured: f64,
}

impl Pair {
    /// Of the measured number, in per cent; above 0 where more was predicted.
    fn error(self) -> f64 {
        (self.expected / self.measured - 1.0) * 100.0
    }

    fn is_in_range(self) -> bool {
        (self.low..=self.high).contains(&self.measured)
    }
}

/// One row of the table.
struct Case {
    model: String,
    nodes: usize,
    prompt: u32,
    ttft_ms: Pair,
    tokens_per_s: Pair,
}

/// Prints the table; the verdict sums it up.
pub fn prove(options: &Options) -> anyhow::Result<Verdict> {
    let exo = setup::exo_binary(options.exo.as_deref())?;
    let mut models = Vec::new();
    for model in &options.models {
        models.push(Some(model.canonicalize().with_context(|| format!("cannot find {}", model.display()))?));
    }
    if models.is_empty() {
        models.push(None);
    }
    println!(
        "| model | nodes | prompt | first token: planned, measured ms | off | tokens/s: planned, measured | off |"
    );
    println!("|---|---|---|---|---|---|---|");
    let mut cases = Vec::new();
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    let (nodes_here, others): (Vec<usize>, Vec<usize>) =
        NODES.into_iter().partition(|nodes| *nodes == 1 || nodes * options.threads <= cores);
    for model in &models {
        for &nodes in &nodes_here {
            let threads = format!("--threads={}", options.threads);
            let mut cluster = Cluster::start(&exo, nodes, &["--speculate=off", &threads])?;
            let name = model.as_ref().map_or_else(|| Ok("demo".to_owned()), |file| cluster.add(file))?;
            let found = measure(&mut cluster, &name, options.rounds)?;
            cluster.stop()?;
            found.iter().for_each(|case| println!("{}", row(case)));
            cases.extend(found);
        }
    }
    others.iter().for_each(|nodes| println!("skipped: {nodes} nodes, which would share {cores} cores"));
    verdict(&cases)
}

/// Plans first, for each length of prompt, and then answers: steps teach plans.
fn measure(cluster: &mut Cluster, model: &str, rounds: u32) -> anyhow::Result<Vec<Case>> {
    let nodes = cluster.nodes().len();
    wait_measured(cluster)?;
    let instance = cluster.place(0, model, CONTEXT)?;
    if instance.stages != nodes {
        bail!("{model} is on {} nodes instead of {nodes}", instance.stages);
    }
    // Packed weights, as the plan counts them.
    cluster.wait_settled(&instance)?;
    let pins = cluster.pins_of(&instance)?;
    let planned = PROMPTS.map(|prompt| plan(cluster, model, prompt, &pins));
    answer(cluster, model, 16, 0)?;
    let mut cases = Vec::new();
    for (at, (prompt, planned)) in PROMPTS.into_iter().zip(planned).enumerate() {
        let planned = planned?;
        let mut measured = Vec::new();
        for round in 0..rounds {
            measured.push(answer(cluster, model, prompt, 1 + at as u32 * rounds + round)?);
        }
        let pair = |what: &str, value: &dyn Fn(&(f64, f64)) -> f64| -> anyhow::Result<Pair> {
            let number = |key: &str| planned[what][key].as_f64().with_context(|| format!("no {what}"));
            let measured = median(measured.iter().map(value)).context("nothing was measured")?;
            Ok(Pair { low: number("low")?, expected: number("expected")?, high: number("high")?, measured })
        };
        let (ttft_ms, tokens_per_s) = (pair("ttft_ms", &|m| m.0)?, pair("tokens_per_s", &|m| m.1)?);
        cases.push(Case { model: model.to_owned(), nodes, prompt, ttft_ms, tokens_per_s });
    }
    Ok(cases)
}

/// Waits until the first node knows the rates of all devices, and the bandwidth of all links in both
/// directions.
fn wait_measured(cluster: &Cluster) -> anyhow::Result<()> {
    let (node, nodes) = (cluster.nodes().first().context("the cluster has no node")?, cluster.nodes().len());
    wait_for("measuring devices and links", (LINKS_MAX, POLL), || {
        let view = node.server.get("/exo/v1/cluster", ANSWER_MAX)?;
        Ok(is_measured(&view, nodes).then_some(()))
    })
}

fn is_measured(view: &Value, nodes: usize) -> bool {
    let list = |value: &Value| value.as_array().cloned().unwrap_or_default();
    let devices: Vec<Value> = list(&view["nodes"]).iter().flat_map(|node| list(&node["devices"])).collect();
    let links = list(&view["links"]);
    devices.len() >= nodes
        && devices.iter().all(|device| device["read_bytes_per_s"].is_number())
        && links.len() == nodes * (nodes - 1)
        && links.iter().all(|link| link["bytes_per_s"].is_number() && link["rtt_ms"].is_number())
}

/// What is predicted of the layers as they are placed. The plan is made beside the instance, whose memory is
/// not free, and would be another one.
fn plan(cluster: &Cluster, model: &str, prompt: u32, pins: &[String]) -> anyhow::Result<Value> {
    let node = cluster.nodes().first().context("the cluster has no node")?;
    let query = json!({
        "model": model, "context_tokens": CONTEXT, "nodes_min": cluster.nodes().len(), "prompt_tokens": prompt,
        "answer_tokens": ANSWER_TOKENS, "pins": pins,
    });
    Ok(node.server.post("/exo/v1/plan", &query, ANSWER_MAX)?["predicted"].clone())
}

/// Milliseconds to the first token, and tokens per second after it. Each `number` is another prompt from its
/// first token on.
fn answer(cluster: &Cluster, model: &str, prompt: u32, number: u32) -> anyhow::Result<(f64, f64)> {
    let node = cluster.nodes().first().context("the cluster has no node")?;
    let tokens: Vec<u32> = (0..prompt).map(|at| 20 + (number * 37 + at * 11) % 150).collect();
    let body = json!({
        "model": model, "prompt": tokens, "max_tokens": ANSWER_TOKENS, "temperature": 0, "ignore_eos": true,
    });
    let answer = node.server.post("/v1/completions", &body, ANSWER_MAX)?;
    let timing = |what: &str| {
        let number = answer["exo"]["timings"][what].as_f64().filter(|number| *number > 0.0);
        number.with_context(|| format!("the answer does not say its {what}"))
    };
    Ok((timing("ttft_ms")?, timing("tokens_per_s")?))
}

fn row(case: &Case) -> String {
    let Case { model, nodes, prompt, ttft_ms, tokens_per_s } = case;
    let mark = |pair: &Pair| if pair.is_in_range() { "" } else { ", outside its range" };
    format!(
        "| {model} | {nodes} | {prompt} | {:.1}, {:.1} | {:+.0} %{} | {:.1}, {:.1} | {:+.0} %{} |",
        ttft_ms.expected,
        ttft_ms.measured,
        ttft_ms.error(),
        mark(ttft_ms),
        tokens_per_s.expected,
        tokens_per_s.measured,
        tokens_per_s.error(),
        mark(tokens_per_s)
    )
}

fn verdict(cases: &[Case]) -> anyhow::Result<Verdict> {
    let speeds: Vec<Pair> = cases.iter().map(|case| case.tokens_per_s).collect();
    let firsts: Vec<Pair> = cases.iter().map(|case| case.ttft_ms).collect();
    let off = |pairs: &[Pair]| -> anyhow::Result<(f64, f64)> {
        let mut errors: Vec<f64> = pairs.iter().map(|pair| pair.error().abs()).collect();
        errors.sort_by(f64::total_cmp);
        let rank = (errors.len() * 95).div_ceil(100).saturating_sub(1);
        let high = *errors.get(rank).context("nothing was measured")?;
        Ok((median(errors).context("nothing was measured")?, high))
    };
    let (speed, first) = (off(&speeds)?, off(&firsts)?);
    let all = speeds.len() + firsts.len();
    let in_range = speeds.iter().chain(&firsts).filter(|pair| pair.is_in_range()).count();
    let line = format!(
        "predictions: tokens/s off by {:.0} % (median of {}) and {:.0} % (95th percentile), first token by {:.0} % and {:.0} % (bounds \
         {:.0} and {:.0} %); {in_range} of {all} in their range",
        speed.0,
        cases.len(),
        speed.1,
        first.0,
        first.1,
        ERROR_MAX.0,
        ERROR_MAX.1
    );
    let is_near = |off: (f64, f64)| off.0 <= ERROR_MAX.0 && off.1 <= ERROR_MAX.1;
    let is_kept = is_near(speed) && is_near(first) && in_range as f64 >= all as f64 * IN_RANGE_MIN;
    Ok(Verdict { line, is_kept })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn case(measured: f64) -> Case {
        let pair = |expected: f64| Pair { low: expected * 0.9, expected, high: expected * 1.1, measured };
        Case { model: "m".to_owned(), nodes: 2, prompt: 64, ttft_ms: pair(100.0), tokens_per_s: pair(100.0) }
    }

    #[test]
    fn a_row_says_how_far_off_and_whether_it_is_in_the_range() {
        assert_eq!(
            row(&case(125.0)),
            "| m | 2 | 64 | 100.0, 125.0 | -20 %, outside its range | 100.0, 125.0 | -20 %, outside its range |"
        );
        assert_eq!(row(&case(95.0)), "| m | 2 | 64 | 100.0, 95.0 | +5 % | 100.0, 95.0 | +5 % |");
    }

    #[test]
    fn the_median_the_95th_percentile_and_the_ranges_each_have_a_bound() {
        let check = |measured: &[f64]| verdict(&measured.iter().map(|m| case(*m)).collect::<Vec<_>>());
        assert!(check(&[]).is_err());
        let Verdict { line, is_kept } = check(&[100.0, 100.0, 105.0, 105.0, 120.0]).unwrap();
        assert!(is_kept, "{line}");
        assert_eq!(
            line,
            "predictions: tokens/s off by 5 % (median of 5) and 17 % (95th percentile), first token by 5 % and 17 % (bounds 10 and 25 %); \
             8 of 10 in their range"
        );
        assert!(!check(&[100.0, 100.0, 105.0, 105.0, 140.0]).unwrap().is_kept, "the 95th percentile");
        assert!(!check(&[85.0, 85.0, 85.0, 100.0, 100.0]).unwrap().is_kept, "the median");
        assert!(!check(&[100.0, 100.0, 105.0, 112.0, 112.0]).unwrap().is_kept, "the ranges");
    }

    #[test]
    fn nothing_is_planned_before_devices_and_links_are_measured() {
        let device = json!({ "read_bytes_per_s": 1e9 });
        let link = json!({ "bytes_per_s": 1e9, "rtt_ms": 0.1 });
        let view = |devices: Value, links: Value| json!({ "nodes": [{ "devices": devices }, { "devices": [device] }], "links": links });
        assert!(is_measured(&view(json!([device]), json!([link, link])), 2));
        assert!(!is_measured(&view(json!([{}]), json!([link, link])), 2));
        assert!(!is_measured(&view(json!([device]), json!([link])), 2));
        assert!(!is_measured(
            &view(json!([device]), json!([link, { "bytes_per_s": null, "rtt_ms": 0.1 }])),
            2
        ));
    }
}
