//! What plans say before anything is answered, beside what answers then take.
//!
//! Fresh clusters of a few nodes, on loopback or on machines of their own with links that take their time,
//! measure their devices and links as they do for a user, and types of weights when the model is first
//! loaded. Then plans are asked for, and prompts of several lengths are answered, one at a time and several
//! at once. A round asks each case a few times, and its median counts: plans are compared with it, and so is
//! the median of the round before, which says how steady the machine is. No prompt is read twice, and no
//! token is guessed ahead. Nodes of one machine share its memory, and stages compute parts of a prompt at the
//! same time: so there are only as many nodes as have cores of their own.

use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::Context;
use clap::Args;
use serde_json::{Value, json};

use super::Verdict;
use super::concurrent::{self, Question, prompt_tokens};
use crate::cluster::Cluster;
use crate::http::Server;
use crate::lan::Lan;
use crate::pairs::median;
use crate::wait::wait_for;
use crate::wire::Wire;

/// Largest median and largest 95th percentile of the errors, in per cent.
const ERROR_MAX: (f64, f64) = (10.0, 25.0);
/// Least share of the measurements that lie in the range of their prediction.
const IN_RANGE_MIN: f64 = 0.8;
const ANSWER_TOKENS: u32 = 64;
/// The least context: all that the demo model holds.
const CONTEXT_MIN: u32 = 512;
const ANSWER_MAX: Duration = Duration::from_secs(300);
/// From the start of the last node to a measured bandwidth of every link.
const LINKS_MAX: Duration = Duration::from_secs(40);
const POLL: Duration = Duration::from_millis(200);

#[derive(Args)]
pub struct Options {
    /// A GGUF file to measure instead of the demo model, whose steps are mostly what a plan has no rate for;
    /// may be repeated
    #[arg(long = "model", value_name = "FILE")]
    models: Vec<PathBuf>,
    /// Answers of a round for each case; their median counts
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..=100))]
    answers: u32,
    /// Rounds over all cases of a cluster
    #[arg(long, default_value_t = 2, value_parser = clap::value_parser!(u32).range(1..=100))]
    rounds: u32,
    /// Sizes of clusters
    #[arg(long, value_name = "N", value_delimiter = ',', default_value = "1,2,3")]
    nodes: Vec<usize>,
    /// Lengths of prompts
    #[arg(long, value_name = "TOKENS", value_delimiter = ',', default_value = "64,400",
          value_parser = clap::value_parser!(u32).range(1..=32768))]
    prompts: Vec<u32>,
    /// Answers at once, after the shortest prompt
    #[arg(long, value_name = "N", value_delimiter = ',', default_value = "1",
          value_parser = clap::value_parser!(u32).range(1..=64))]
    streams: Vec<u32>,
    /// Machines of their own with links of so many Mbit/s and milliseconds each way, as in 100:5; needs root
    #[arg(long, value_name = "MBIT:MS")]
    link: Option<Wire>,
    /// Processor threads of each node
    #[arg(long, value_name = "N", default_value_t = 1)]
    threads: usize,
    /// What computes, as a node's --backend takes it
    #[arg(long, value_name = "BACKEND", default_value = "cpu")]
    backend: String,
    /// The part of its time that the last node computes
    #[arg(long, value_name = "10%..100%", default_value = "100%")]
    last_share: String,
}

/// A number that was predicted with its range, and what came.
#[derive(Clone)]
struct Pair {
    low: f64,
    expected: f64,
    high: f64,
    /// The median of the answers of each round.
    medians: Vec<f64>,
}

impl Pair {
    /// Over all rounds.
    fn measured(&self) -> f64 {
        median(self.medians.iter().copied()).unwrap_or(f64::NAN)
    }

    /// Of each round's median, in per cent; above 0 where more was predicted.
    fn errors(&self) -> impl Iterator<Item = f64> {
        self.medians.iter().map(|measured| error(self.expected, *measured))
    }

    /// The same if the median of the round before had been the prediction: how steady the machine is.
    fn errors_of_the_round_before(&self) -> impl Iterator<Item = f64> {
        self.medians.windows(2).map(|pair| error(pair[0], pair[1]))
    }

    fn rounds_in_range(&self) -> usize {
        self.medians.iter().filter(|measured| self.is_in_range(**measured)).count()
    }

    fn is_in_range(&self, measured: f64) -> bool {
        (self.low..=self.high).contains(&measured)
    }
}

fn error(expected: f64, measured: f64) -> f64 {
    (expected / measured - 1.0) * 100.0
}

/// One row of the table.
struct Case {
    model: String,
    nodes: usize,
    streams: u32,
    prompt: u32,
    /// Not predicted where several prompts come at once.
    ttft_ms: Option<Pair>,
    tokens_per_s: Pair,
}

/// Prints the table; the verdict sums it up.
pub fn prove(exo: &Path, options: &Options) -> anyhow::Result<Verdict> {
    let mut models = Vec::new();
    for model in &options.models {
        models.push(Some(model.canonicalize().with_context(|| format!("cannot find {}", model.display()))?));
    }
    if models.is_empty() {
        models.push(None);
    }
    println!(
        "| model | nodes | streams | prompt | first token: planned, measured ms | off | tokens/s: planned, measured | off |"
    );
    println!("|---|---|---|---|---|---|---|---|");
    let mut cases = Vec::new();
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    let (nodes_here, others): (Vec<usize>, Vec<usize>) =
        options.nodes.iter().partition(|nodes| **nodes == 1 || **nodes * options.threads <= cores);
    for model in &models {
        for &nodes in &nodes_here {
            let lan = options.link.map(|wire| Lan::with_wires(nodes, wire)).transpose()?;
            let mut cluster = Cluster::start_on(exo, nodes, lan, Vec::new(), |at| {
                let share = if at + 1 == nodes { &options.last_share } else { "100%" };
                let threads = format!("--threads={}", options.threads);
                let backend = format!("--backend={}", options.backend);
                vec!["--speculate=off".to_owned(), threads, backend, format!("--compute-share={share}")]
            })?;
            let name = cluster.model(model.as_deref())?;
            let found = measure(&mut cluster, &name, options)?;
            cluster.stop()?;
            found.iter().for_each(|case| println!("{}", row(case)));
            cases.extend(found);
        }
    }
    others.iter().for_each(|nodes| println!("skipped: {nodes} nodes, which would share {cores} cores"));
    verdict(&cases)
}

/// Milliseconds to the first token where there is one stream, and tokens per second.
type Measurement = (Option<f64>, f64);

/// Plans first, for each case, and then answers: steps teach plans.
fn measure(cluster: &mut Cluster, model: &str, options: &Options) -> anyhow::Result<Vec<Case>> {
    let Options { prompts, streams, answers: answers_of_round, rounds, .. } = options;
    let nodes = cluster.nodes().len();
    let longest = prompts.iter().copied().max().unwrap_or_default();
    let shortest = prompts.iter().copied().min().unwrap_or_default();
    let context = (longest + ANSWER_TOKENS).max(CONTEXT_MIN);
    let slots = streams.iter().copied().max().unwrap_or(1);
    wait_measured(cluster)?;
    let order = json!({ "model": model, "nodes_min": nodes, "context_tokens": context, "slots": slots });
    let instance = cluster.place_as(0, &order)?;
    // Packed weights, as the plan counts them.
    cluster.wait_settled(&instance)?;
    let pins = cluster.pins_of(&instance)?;
    let mut wanted: Vec<(u32, u32)> = prompts.iter().map(|prompt| (1, *prompt)).collect();
    wanted.extend(streams.iter().filter(|streams| **streams > 1).map(|streams| (*streams, shortest)));
    let server = &cluster.nodes()[0].server;
    let mut planned = Vec::new();
    for &(streams, prompt) in &wanted {
        let query = json!({
            "model": model, "context_tokens": context, "slots": slots, "nodes_min": nodes, "streams": streams,
            "prompt_tokens": prompt, "answer_tokens": ANSWER_TOKENS, "pins": pins,
        });
        // The plan is made beside the instance, whose memory is not free: without pins it would be another.
        planned.push(server.post("/exo/v1/plan", &query, ANSWER_MAX)?["predicted"].clone());
    }
    let mut number = 0;
    answer(server, model, 16, number)?;
    // Time to the first token and rate, by case and round.
    let mut measured: Vec<Vec<Measurement>> = vec![Vec::new(); wanted.len()];
    for _ in 0..*rounds {
        for (&(streams, prompt), medians) in wanted.iter().zip(&mut measured) {
            let mut of_round = Vec::new();
            for _ in 0..*answers_of_round {
                of_round.push(answers(server, model, prompt, number + 1, streams)?);
                number += streams;
            }
            let (firsts, rates) = (of_round.iter().filter_map(|m| m.0), of_round.iter().map(|m| m.1));
            medians.push((median(firsts), median(rates).context("nothing was measured")?));
        }
    }
    let mut cases = Vec::new();
    for (((streams, prompt), planned), measured) in wanted.into_iter().zip(planned).zip(measured) {
        let pair = |what: &str, value: &dyn Fn(&Measurement) -> f64| -> anyhow::Result<Pair> {
            let number = |key: &str| planned[what][key].as_f64().with_context(|| format!("no {what}"));
            let medians = measured.iter().map(value).collect();
            Ok(Pair { low: number("low")?, expected: number("expected")?, high: number("high")?, medians })
        };
        let has_first = measured.iter().all(|median| median.0.is_some());
        let ttft_ms = has_first.then(|| pair("ttft_ms", &|m| m.0.unwrap_or_default())).transpose()?;
        let tokens_per_s = pair("total_tokens_per_s", &|m| m.1)?;
        cases.push(Case { model: model.to_owned(), nodes, streams, prompt, ttft_ms, tokens_per_s });
    }
    Ok(cases)
}

/// Waits until the first node knows the rates of all devices, and the bandwidth of all links in both
/// directions.
pub(super) fn wait_measured(cluster: &Cluster) -> anyhow::Result<()> {
    let (node, nodes) = (&cluster.nodes()[0], cluster.nodes().len());
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

/// Milliseconds to the first token where there is one stream, and tokens per second of all streams together.
fn answers(
    server: &Server,
    model: &str,
    prompt: u32,
    first: u32,
    streams: u32,
) -> anyhow::Result<Measurement> {
    if streams == 1 {
        let (ttft_ms, tokens_per_s) = answer(server, model, prompt, first)?;
        return Ok((Some(ttft_ms), tokens_per_s));
    }
    let question = Question { server, model, prompt, answer: ANSWER_TOKENS };
    Ok((None, concurrent::tokens_per_s(&question, first, streams)?))
}

/// The same of one answer.
fn answer(server: &Server, model: &str, prompt: u32, number: u32) -> anyhow::Result<(f64, f64)> {
    let tokens = prompt_tokens(prompt, number);
    let body = json!({
        "model": model, "prompt": tokens, "max_tokens": ANSWER_TOKENS, "temperature": 0, "ignore_eos": true,
    });
    let answer = server.post("/v1/completions", &body, ANSWER_MAX)?;
    let timing = |what: &str| {
        let number = answer["exo"]["timings"][what].as_f64().filter(|number| *number > 0.0);
        number.with_context(|| format!("the answer does not say its {what}"))
    };
    Ok((timing("ttft_ms")?, timing("tokens_per_s")?))
}

fn row(case: &Case) -> String {
    let Case { model, nodes, streams, prompt, ttft_ms, tokens_per_s } = case;
    let cells = |pair: &Pair| {
        let measured = pair.measured();
        let mark = if pair.is_in_range(measured) { "" } else { ", outside its range" };
        format!("{:.1}, {measured:.1} | {:+.0} %{mark}", pair.expected, error(pair.expected, measured))
    };
    let first = ttft_ms.as_ref().map_or("not planned |".to_owned(), cells);
    format!("| {model} | {nodes} | {streams} | {prompt} | {first} | {} |", cells(tokens_per_s))
}

fn verdict(cases: &[Case]) -> anyhow::Result<Verdict> {
    let speeds: Vec<&Pair> = cases.iter().map(|case| &case.tokens_per_s).collect();
    let firsts: Vec<&Pair> = cases.iter().filter_map(|case| case.ttft_ms.as_ref()).collect();
    let off = |pairs: &[&Pair]| {
        median_and_95th(pairs.iter().flat_map(|pair| pair.errors())).context("nothing was measured")
    };
    let (speed, first) = (off(&speeds)?, off(&firsts)?);
    let medians = |pairs: &[&Pair]| pairs.iter().map(|pair| pair.medians.len()).sum::<usize>();
    let all = medians(&speeds) + medians(&firsts);
    let in_range: usize = speeds.iter().chain(&firsts).map(|pair| pair.rounds_in_range()).sum();
    let before =
        |pairs: &[&Pair]| median_and_95th(pairs.iter().flat_map(|pair| pair.errors_of_the_round_before()));
    let before = before(&speeds).zip(before(&firsts)).map_or_else(String::new, |(speed, first)| {
        format!(
            "; a round predicted by the median of the one before, {:.0} % and {:.0} %, {:.0} % and {:.0} %",
            speed.0, speed.1, first.0, first.1
        )
    });
    let line = format!(
        "predictions: medians of a round, tokens/s off by {:.0} % (median of {}) and {:.0} % (95th percentile), first token by {:.0} % and \
         {:.0} % (bounds {:.0} and {:.0} %){before}; {in_range} of {all} in their range",
        speed.0,
        medians(&speeds),
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

/// Of sizes, whatever their signs.
fn median_and_95th(errors: impl Iterator<Item = f64>) -> Option<(f64, f64)> {
    let mut errors: Vec<f64> = errors.map(f64::abs).collect();
    errors.sort_by(f64::total_cmp);
    let rank = (errors.len() * 95).div_ceil(100).saturating_sub(1);
    let high = *errors.get(rank)?;
    Some((median(errors)?, high))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn case(measured: f64) -> Case {
        let pair = |expected: f64| Pair {
            low: expected * 0.9,
            expected,
            high: expected * 1.1,
            medians: vec![measured],
        };
        let (ttft_ms, tokens_per_s) = (Some(pair(100.0)), pair(100.0));
        Case { model: "m".to_owned(), nodes: 2, streams: 1, prompt: 64, ttft_ms, tokens_per_s }
    }

    #[test]
    fn a_row_says_how_far_off_and_whether_it_is_in_the_range() {
        assert_eq!(
            row(&case(125.0)),
            "| m | 2 | 1 | 64 | 100.0, 125.0 | -20 %, outside its range | 100.0, 125.0 | -20 %, outside its range |"
        );
        assert_eq!(row(&case(95.0)), "| m | 2 | 1 | 64 | 100.0, 95.0 | +5 % | 100.0, 95.0 | +5 % |");
        let several = Case { streams: 8, ttft_ms: None, ..case(95.0) };
        assert_eq!(row(&several), "| m | 2 | 8 | 64 | not planned | | 100.0, 95.0 | +5 % |");
    }

    #[test]
    fn the_median_the_95th_percentile_and_the_ranges_each_have_a_bound() {
        let check = |measured: &[f64]| verdict(&measured.iter().map(|m| case(*m)).collect::<Vec<_>>());
        assert!(check(&[]).is_err());
        let Verdict { line, is_kept } = check(&[100.0, 100.0, 105.0, 105.0, 120.0]).unwrap();
        assert!(is_kept, "{line}");
        assert_eq!(
            line,
            "predictions: medians of a round, tokens/s off by 5 % (median of 5) and 17 % (95th percentile), first token by 5 % and \
             17 % (bounds 10 and 25 %); 8 of 10 in their range"
        );
        assert!(!check(&[100.0, 100.0, 105.0, 105.0, 140.0]).unwrap().is_kept, "the 95th percentile");
        assert!(!check(&[85.0, 85.0, 85.0, 100.0, 100.0]).unwrap().is_kept, "the median");
        assert!(!check(&[100.0, 100.0, 105.0, 112.0, 112.0]).unwrap().is_kept, "the ranges");
    }

    /// Both are errors of the median of a round.
    #[test]
    fn beside_the_plans_stands_how_steady_the_machine_is() {
        let mut steady = case(100.0);
        steady.tokens_per_s.medians = vec![100.0, 84.0];
        if let Some(first) = &mut steady.ttft_ms {
            first.medians = vec![100.0, 100.0];
        }
        assert!(row(&steady).ends_with("| 100.0, 92.0 | +9 % |"), "{}", row(&steady));
        let line = verdict(&[steady]).unwrap().line;
        assert!(line.contains("tokens/s off by 10 % (median of 2) and 19 % (95th percentile)"), "{line}");
        let before =
            "; a round predicted by the median of the one before, 19 % and 19 %, 0 % and 0 %; 3 of 4 in";
        assert!(line.contains(before), "{line}");
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
