//! Whether the plan is the best of what there is: on two nodes the placement that a plan chooses is measured
//! beside the model alone on each node and split in several places, in either order.
//!
//! What counts is what the plan minimises, from outside: the time of a prompt and its answer, or with several
//! streams the time of a token for all of them. Rounds over all placements stand in turns; the median of a
//! placement's answers counts.
//!
//! Two more proofs stand on the same nodes: a model that neither of them can hold, and what a second stage
//! gains.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use clap::Args;
use serde_json::{Value, json};

use super::Verdict;
use super::concurrent::{self, Question, prompt_tokens};
use super::predictions::wait_measured;
use crate::cluster::{Cluster, device_and_layers};
use crate::http::Server;
use crate::lan::Lan;
use crate::pairs::median;
use crate::wire::Wire;

/// The least speed of the plan's placement, in speeds of the best that was measured.
const RATIO_MIN: f64 = 0.95;
/// The least speed of two stages, in speeds of the faster node alone, where the other is half as fast and
/// there are 32 streams.
const GAIN_MIN: f64 = 1.2;
const NODES: usize = 2;
/// Parts of the layers that the first stage of a split has.
const QUARTERS: [u64; 3] = [1, 2, 3];
const ANSWER_MAX: Duration = Duration::from_secs(300);

#[derive(Args)]
pub struct Options {
    /// A GGUF file instead of the demo model, whose steps are mostly what a plan has no rate for
    #[arg(long, value_name = "FILE")]
    model: Option<PathBuf>,
    /// Rounds over all placements
    #[arg(long, default_value_t = 2, value_parser = clap::value_parser!(u32).range(1..=100))]
    rounds: u32,
    /// Answers of a placement in a round
    #[arg(long, default_value_t = 2, value_parser = clap::value_parser!(u32).range(1..=100))]
    answers: u32,
    /// Tokens of a prompt
    #[arg(long, default_value_t = 128, value_parser = clap::value_parser!(u32).range(1..=32768))]
    prompt: u32,
    /// Tokens of an answer
    #[arg(long, default_value_t = 64, value_parser = clap::value_parser!(u32).range(1..=4096))]
    answer: u32,
    /// Machines of their own with links of so many Mbit/s and milliseconds each way, as in 100:5; needs root
    #[arg(long, value_name = "MBIT:MS")]
    link: Option<Wire>,
    /// The part of its time that the second node computes
    #[arg(long, value_name = "10%..100%", default_value = "100%")]
    last_share: String,
    /// Answers at once; with several, plans are asked for the throughput
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=64))]
    streams: u32,
    /// Instead of a choice: neither node can hold the model within so many MiB, the plan says so and splits
    /// it, and it answers
    #[arg(long, value_name = "MIB", conflicts_with = "split_gain")]
    memory_mib: Option<u64>,
    /// Instead of a choice: how much faster two stages are than the first node alone, planned and measured
    #[arg(long)]
    split_gain: bool,
}

/// Layers on nodes, in the order in which a token passes them.
#[derive(Clone, PartialEq, Debug)]
struct Placement(Vec<(String, u64, u64)>);

impl Placement {
    fn alone(device: &str, layers: u64) -> Self {
        Self(vec![(device.to_owned(), 0, layers)])
    }

    fn layers(&self) -> anyhow::Result<u64> {
        self.0.last().map(|stage| stage.2).context("the plan has no stages")
    }

    /// As a plan and an order take it.
    fn pins(&self) -> Vec<String> {
        self.0.iter().map(|(device, start, end)| format!("{device}={start}..{end}")).collect()
    }

    fn planned(plan: &Value) -> anyhow::Result<Self> {
        let stages = plan["stages"].as_array().context("the plan has no stages")?;
        Ok(Self(stages.iter().map(device_and_layers).collect::<anyhow::Result<_>>()?))
    }
}

/// The plan's, alone on each device, and split between them after each quarter in either order; each once.
fn placements(planned: &Placement, devices: &[String], layers: u64) -> Vec<Placement> {
    let mut all = vec![planned.clone()];
    all.extend(devices.iter().map(|device| Placement::alone(device, layers)));
    for (first, second) in devices.iter().zip(devices.iter().rev()) {
        for cut in QUARTERS.map(|quarters| layers * quarters / 4).into_iter().filter(|cut| *cut > 0) {
            all.push(Placement(vec![(first.clone(), 0, cut), (second.clone(), cut, layers)]));
        }
    }
    let mut once: Vec<Placement> = Vec::new();
    for placement in all {
        if !once.contains(&placement) {
            once.push(placement);
        }
    }
    once
}

/// Two nodes that know a model, and what they are asked.
struct Bench<'a> {
    cluster: Cluster,
    server: Server,
    model: String,
    options: &'a Options,
    /// Prompts so far: none is read twice.
    prompts: u32,
}

/// Prints a table; the verdict sums it up.
pub fn prove(exo: &Path, options: &Options) -> anyhow::Result<Verdict> {
    let mut bench = Bench::start(exo, options)?;
    let plan = bench.plan(&[])?;
    let verdict = match (options.memory_mib, options.split_gain) {
        (Some(memory_mib), _) => bench.larger_than_either(&plan, memory_mib)?,
        (None, true) => bench.split_gain(&plan)?,
        (None, false) => bench.choice(&plan)?,
    };
    bench.cluster.stop()?;
    Ok(verdict)
}

impl<'a> Bench<'a> {
    fn start(exo: &Path, options: &'a Options) -> anyhow::Result<Self> {
        let lan = options.link.map(|wire| Lan::with_wires(NODES, wire)).transpose()?;
        let mut cluster = Cluster::start_on(exo, NODES, lan, Vec::new(), |at| {
            let share = if at + 1 == NODES { &options.last_share } else { "100%" };
            let mut flags = vec![
                "--speculate=off".to_owned(),
                "--threads=1".to_owned(),
                format!("--compute-share={share}"),
            ];
            flags.extend(options.memory_mib.map(|mib| format!("--memory-mib={mib}")));
            flags
        })?;
        let model = cluster.model(options.model.as_deref())?;
        cluster.wait_united()?;
        wait_measured(&cluster)?;
        let server = cluster.nodes()[0].server.clone();
        Ok(Self { cluster, server, model, options, prompts: 0 })
    }

    /// What a plan and an order to place the model have in common.
    fn order(&self, pins: &[String]) -> Value {
        let Options { prompt, answer, streams, .. } = self.options;
        let mut order = json!({
            "model": self.model, "context_tokens": prompt + answer, "slots": streams, "pins": pins,
        });
        if *streams > 1 {
            order["objective"] = json!("throughput");
            order["streams"] = json!(streams);
        }
        order
    }

    fn plan(&self, pins: &[String]) -> anyhow::Result<Value> {
        let mut query = self.order(pins);
        query["prompt_tokens"] = json!(self.options.prompt);
        query["answer_tokens"] = json!(self.options.answer);
        self.server.post("/exo/v1/plan", &query, ANSWER_MAX)
    }

    /// The devices that the plan looks at, the first node's first.
    fn devices(&self, plan: &Value) -> anyhow::Result<Vec<String>> {
        let devices = plan["devices"].as_array().into_iter().flatten();
        let devices = devices.filter_map(|device| {
            Some(format!("{}/{}", device["node_name"].as_str()?, device["device"].as_str()?))
        });
        let mut devices: Vec<String> = devices.collect();
        if devices.len() != NODES {
            bail!("the plan looks at {} devices instead of {NODES}", devices.len());
        }
        let first = format!("{}/", self.cluster.nodes()[0].name);
        devices.sort_by_key(|device| !device.starts_with(&first));
        Ok(devices)
    }

    /// For each placement the median of what its objective counts, in seconds.
    fn measure(&mut self, placements: &[Placement]) -> anyhow::Result<Vec<f64>> {
        let mut took: Vec<Vec<f64>> = vec![Vec::new(); placements.len()];
        for _ in 0..self.options.rounds {
            for (placement, took) in placements.iter().zip(&mut took) {
                let mut order = self.order(&placement.pins());
                order["replace"] = json!(true);
                let instance = self.cluster.place_as(0, &order)?;
                self.cluster.wait_settled(&instance)?;
                // The first answer meets cold caches.
                for at in 0..=self.options.answers {
                    let seconds = self.answer()?;
                    took.extend((at > 0).then_some(seconds));
                }
            }
        }
        took.into_iter().map(|took| median(took).context("nothing was measured")).collect()
    }

    /// Seconds of a prompt and its answer, or of a token for every stream.
    fn answer(&mut self) -> anyhow::Result<f64> {
        let &Options { prompt, answer, streams, .. } = self.options;
        let first = self.prompts + 1;
        self.prompts += streams;
        if streams > 1 {
            let question = Question { server: &self.server, model: &self.model, prompt, answer };
            return Ok(f64::from(streams) / concurrent::tokens_per_s(&question, first, streams)?);
        }
        let body = json!({
            "model": self.model, "prompt": prompt_tokens(prompt, first), "max_tokens": answer, "temperature": 0,
            "ignore_eos": true,
        });
        let began = Instant::now();
        self.server.post("/v1/completions", &body, ANSWER_MAX)?;
        Ok(began.elapsed().as_secs_f64())
    }

    fn choice(&mut self, plan: &Value) -> anyhow::Result<Verdict> {
        let planned = Placement::planned(plan)?;
        let placements = placements(&planned, &self.devices(plan)?, planned.layers()?);
        let seconds = self.measure(&placements)?;
        verdict(&self.model, self.options.streams, &placements, &seconds)
    }

    fn larger_than_either(&mut self, plan: &Value, memory_mib: u64) -> anyhow::Result<Verdict> {
        let planned = Placement::planned(plan)?;
        let expected = objective_s(plan)?;
        let seconds = self.measure(std::slice::from_ref(&planned))?;
        let measured = seconds.first().copied().context("nothing was measured")?;
        println!(
            "| {} in {memory_mib} MiB for each node | planned s | measured s |\n|---|---|---|",
            self.model
        );
        println!("| {} | {expected:.3} | {measured:.3} |", planned.pins().join(", "));
        Ok(split_verdict(&self.model, memory_mib, &planned, holders(plan)?))
    }

    /// Both are planned before anything is placed, whose memory would not be free.
    fn split_gain(&mut self, plan: &Value) -> anyhow::Result<Verdict> {
        let devices = self.devices(plan)?;
        let first = devices.first().context("the plan looks at no device")?;
        let alone = Placement::alone(first, Placement::planned(plan)?.layers()?);
        let alone_s = objective_s(&self.plan(&alone.pins())?)?;
        // Pins without layers: the planner cuts where it is fastest.
        let split = self.plan(&devices)?;
        let (split_s, split) = (objective_s(&split)?, Placement::planned(&split)?);
        let placements = [split, alone];
        let measured = self.measure(&placements)?;
        // Those of each in its last round are among them, the last first.
        let recent = self.server.get("/exo/v1/requests/recent", ANSWER_MAX)?;
        let counted = (self.options.answers * self.options.streams) as usize;
        for placement in &placements {
            let step_ms = step_ms(&recent, placement.0.len(), counted);
            println!("{}", step_line(&step_ms.unwrap_or_default()));
        }
        gain_verdict(&self.model, self.options.streams, &placements, &[split_s, alone_s], &measured)
    }
}

/// Seconds that the plan's objective counts.
fn objective_s(plan: &Value) -> anyhow::Result<f64> {
    Ok(plan["objective_ms"].as_f64().context("the plan has no objective")? / 1e3)
}

/// How many devices can hold the whole model by the plan, which looks at each of them alone.
fn holders(plan: &Value) -> anyhow::Result<usize> {
    let alternatives = plan["alternatives"].as_array().context("the plan has no alternatives")?;
    let alone = || alternatives.iter().filter(|other| other["kind"] == "alone");
    if alone().count() < NODES {
        bail!("the plan looks at {} of {NODES} nodes alone", alone().count());
    }
    Ok(alone().filter(|other| !other["plan"].is_null()).count())
}

/// Of seconds for each placement; the plan's is the first.
fn verdict(model: &str, streams: u32, placements: &[Placement], seconds: &[f64]) -> anyhow::Result<Verdict> {
    let best = seconds.iter().copied().min_by(f64::total_cmp).context("nothing was measured")?;
    println!("| placement of {model} | {} | speed, of the best |\n|---|---|---|", what_is_told(streams));
    for (at, (placement, seconds)) in placements.iter().zip(seconds).enumerate() {
        let mark = if at == 0 { " (the plan's)" } else { "" };
        let (pins, number) = (placement.pins().join(", "), told(streams, *seconds));
        println!("| {pins}{mark} | {number} | {:.2} |", best / seconds);
    }
    let planned = best / seconds.first().context("nothing was measured")?;
    Ok(Verdict {
        line: format!(
            "choice: the plan's placement of {model} for {streams} at once has {planned:.2} of the speed of the best of {} (at least {RATIO_MIN})",
            placements.len()
        ),
        is_kept: planned >= RATIO_MIN,
    })
}

/// What a table tells of a placement: of one stream its time, of several their speed.
fn what_is_told(streams: u32) -> &'static str {
    if streams == 1 { "seconds" } else { "tokens/s" }
}

fn told(streams: u32, seconds: f64) -> String {
    if streams == 1 { format!("{seconds:.2}") } else { format!("{:.1}", f64::from(streams) / seconds) }
}

/// Of a model that answered: `holders` are devices that can hold all of it by the plan.
fn split_verdict(model: &str, memory_mib: u64, planned: &Placement, holders: usize) -> Verdict {
    let line = format!(
        "choice: of {NODES} nodes of {memory_mib} MiB {holders} can hold {model} by the plan (none), which has {} stages (at least 2) and answers",
        planned.0.len()
    );
    Verdict { line, is_kept: holders == 0 && planned.0.len() >= 2 }
}

/// Of the last `counted` answers that went through so many stages, milliseconds of a step behind the first
/// token: what each stage computed, and at the end what was left, on links and waiting. Answers before them
/// met cold caches. `None` where no answer tells.
fn step_ms(recent: &Value, stages: usize, counted: usize) -> Option<Vec<f64>> {
    let is_of_these = |one: &&Value| one["stages"].as_u64() == Some(stages as u64) && !one["times"].is_null();
    let (mut sums, mut steps) = (vec![0.0; stages + 1], 0.0);
    for one in recent.as_array()?.iter().filter(is_of_these).take(counted) {
        let times = &one["times"];
        let computed = times["stages"].as_array()?.iter().map(|stage| stage["answer_ms"].as_f64());
        let parts = computed.chain([times["between_answer_ms"].as_f64()]).collect::<Option<Vec<f64>>>()?;
        sums.iter_mut().zip(parts).for_each(|(sum, part)| *sum += part);
        steps += one["tokens"].as_f64()? - 1.0;
    }
    (steps > 0.0).then(|| sums.into_iter().map(|sum| sum / steps).collect())
}

/// Where the time of a step went. As many are on their way as there are stages, so each stage computes so
/// many times its part of a step.
fn step_line(step_ms: &[f64]) -> String {
    let Some((between, computed)) = step_ms.split_last() else {
        return "no answer tells where its time went".to_owned();
    };
    let all = step_ms.iter().sum::<f64>();
    let stage = |(at, ms): (usize, &f64)| {
        let busy = 100.0 * computed.len() as f64 * ms / all;
        format!("stage {at} computes {ms:.1} ms ({busy:.0} % of the time)")
    };
    let stages: Vec<String> = (1..).zip(computed).map(stage).collect();
    format!("a step takes {all:.1} ms: {}, {between:.1} ms are links and waiting", stages.join(", "))
}

/// Of two stages and the first node alone.
fn gain_verdict(
    model: &str,
    streams: u32,
    placements: &[Placement; 2],
    planned: &[f64; 2],
    measured: &[f64],
) -> anyhow::Result<Verdict> {
    let [_, _] = measured else { bail!("{} placements were measured instead of 2", measured.len()) };
    let what = what_is_told(streams);
    println!("| placement of {model} | {what}, planned | {what}, measured |\n|---|---|---|");
    for ((placement, planned), measured) in placements.iter().zip(planned).zip(measured) {
        let (planned, measured) = (told(streams, *planned), told(streams, *measured));
        println!("| {} | {planned} | {measured} |", placement.pins().join(", "));
    }
    let gain = |seconds: &[f64]| seconds[1] / seconds[0];
    let (planned, measured) = (gain(planned), gain(measured));
    let is_split = placements[0].0.len() == NODES;
    let line = format!(
        "choice: {model} on {} nodes is {measured:.2} times as fast as on the first alone with {streams} at once (at least {GAIN_MIN}), and {planned:.2} \
         times by the plan",
        placements[0].0.len()
    );
    Ok(Verdict { line, is_kept: is_split && measured >= GAIN_MIN })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_placement_is_there_once_and_the_plans_is_the_first() {
        let devices = ["anna/cpu", "ben/cpu"].map(str::to_owned);
        let halves = Placement(vec![("ben/cpu".to_owned(), 0, 4), ("anna/cpu".to_owned(), 4, 8)]);
        let all = placements(&halves, &devices, 8);
        assert_eq!(
            all.len(),
            8,
            "two alone, three cuts in either order, of which the plan's is one: {all:?}"
        );
        assert_eq!(all[0].pins(), ["ben/cpu=0..4", "anna/cpu=4..8"]);
        assert_eq!(all[1].pins(), ["anna/cpu=0..8"]);
        let plan = json!({ "stages": [
            { "node_name": "ben", "device": "cpu", "layers": { "start": 0, "end": 4 } },
            { "node_name": "anna", "device": "cpu", "layers": { "start": 4, "end": 8 } },
        ] });
        assert_eq!(Placement::planned(&plan).unwrap(), halves);
    }

    #[test]
    fn the_plans_placement_is_held_to_the_best() {
        let devices = ["anna/cpu", "ben/cpu"].map(str::to_owned);
        let solo = Placement(vec![("anna/cpu".to_owned(), 0, 1)]);
        let all = placements(&solo, &devices, 1);
        assert_eq!(all.len(), 2, "one layer cannot be split");
        assert!(verdict("m", 1, &all, &[1.0, 0.96]).unwrap().is_kept);
        assert!(!verdict("m", 1, &all, &[1.0, 0.9]).unwrap().is_kept);
    }
    #[test]
    fn a_model_is_larger_than_either_node_when_the_plan_splits_it_and_names_nobody_who_can_hold_it() {
        let halves = Placement(vec![("ben/cpu".to_owned(), 0, 4), ("anna/cpu".to_owned(), 4, 8)]);
        assert!(split_verdict("m", 300, &halves, 0).is_kept);
        assert!(!split_verdict("m", 300, &halves, 1).is_kept, "it fits one of them");
        assert!(!split_verdict("m", 300, &Placement::alone("ben/cpu", 8), 0).is_kept);
    }

    #[test]
    fn those_who_can_hold_a_model_alone_are_counted_among_the_plans_alternatives() {
        let other = |kind: &str, plan: Value| json!({ "kind": kind, "node_name": "anna", "plan": plan });
        let found = json!({ "objective_ms": 1.0 });
        let held = |plans: [Value; 2]| {
            let alone = plans.map(|plan| other("alone", plan));
            let others = [other("without", found.clone()), other("with", Value::Null)];
            holders(&json!({ "alternatives": alone.into_iter().chain(others).collect::<Vec<_>>() }))
        };
        assert_eq!(held([Value::Null, Value::Null]).unwrap(), 0);
        assert_eq!(held([Value::Null, found.clone()]).unwrap(), 1);
        assert_eq!(held([found.clone(), found.clone()]).unwrap(), 2);
        assert!(holders(&json!({ "alone": [] })).is_err(), "a plan that says nothing of them");
        assert!(
            holders(&json!({ "alternatives": [other("alone", Value::Null)] })).is_err(),
            "one of two nodes"
        );
    }

    #[test]
    fn where_a_step_spends_its_time_is_told_of_answers_with_as_many_stages() {
        let answer = |tokens: u32, stages: &[f64], between: f64| {
            let computed: Vec<Value> = stages.iter().map(|ms| json!({ "answer_ms": ms })).collect();
            let times = json!({ "stages": computed, "between_answer_ms": between });
            json!({ "stages": stages.len(), "tokens": tokens, "times": times })
        };
        let failed = json!({ "stages": 2, "tokens": 0, "times": null });
        let recent = json!([
            answer(3, &[80.0, 60.0], 20.0),
            failed,
            answer(3, &[50.0], 1.0),
            answer(3, &[80.0, 60.0], 20.0),
            answer(3, &[800.0, 600.0], 200.0)
        ]);
        let step = step_ms(&recent, 2, 2).unwrap();
        assert_eq!(step, [40.0, 30.0, 10.0]);
        assert_eq!(
            step_line(&step),
            "a step takes 80.0 ms: stage 1 computes 40.0 ms (100 % of the time), stage 2 computes 30.0 ms (75 % of the \
             time), 10.0 ms are links and waiting"
        );
        assert_eq!(step_ms(&recent, 1, 2), Some(vec![25.0, 0.5]));
        assert_eq!(step_ms(&recent, 3, 2), None);
        assert_eq!(step_line(&[]), "no answer tells where its time went");
    }

    #[test]
    fn what_a_second_stage_gains_is_measured_beside_what_was_planned() {
        let split = Placement(vec![("anna/cpu".to_owned(), 0, 5), ("ben/cpu".to_owned(), 5, 8)]);
        let placements = [split, Placement::alone("anna/cpu", 8)];
        let Verdict { line, is_kept } =
            gain_verdict("m", 32, &placements, &[0.4, 0.6], &[0.5, 0.65]).unwrap();
        assert!(
            is_kept && line.contains("is 1.30 times") && line.contains("1.50 times by the plan"),
            "{line}"
        );
        assert!(!gain_verdict("m", 32, &placements, &[0.4, 0.6], &[0.5, 0.55]).unwrap().is_kept);
        assert!(gain_verdict("m", 32, &placements, &[0.4, 0.6], &[0.5]).is_err());
        let solo = [placements[1].clone(), placements[1].clone()];
        assert!(!gain_verdict("m", 32, &solo, &[0.4, 0.6], &[0.5, 0.65]).unwrap().is_kept, "no second stage");
        assert_eq!((told(1, 0.5), told(32, 0.5)), ("0.50".to_owned(), "64.0".to_owned()));
    }
}
