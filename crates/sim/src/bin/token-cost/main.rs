//! What a token costs the machine: `cargo xtask prove token-cost`.
//!
//! Machines in one thread, with hands that do at once what they are asked to. Around each call of the first
//! one's `handle` the time that this thread computed is taken, and what it allocated. Each case runs several
//! times; of each call the shortest time counts, because all runs do the same. Tokens are routed by sequence,
//! so each token of a step of 64 sequences may cost no more messages, effects and allocations than one of a
//! smaller step. The last case empties the caches before each call, which is the worst that a model can do
//! that computes on the same cores; no bound holds for it.

#![allow(clippy::print_stdout)] // its output is for the terminal

mod clock;
mod cluster;
mod counting;
mod meter;

use std::process::ExitCode;

use self::cluster::Cluster;
use self::meter::Meter;

#[global_allocator]
static ALLOCATOR: counting::Counting = counting::Counting;

/// Tokens of each case.
const TOKENS: u64 = 10_000;
/// Runs of each case.
const RUNS: usize = 5;
/// Sequences at once.
const BATCHES: [usize; 3] = [1, 16, 64];
/// Tokens and runs with cold caches, and what is read before each call: as much as a model's weights would
/// leave behind.
const COLD: (u64, usize, usize) = (500, 2, 64 << 20);
/// Long prompts: most of their cost is in one call.
const PROMPTS: [u32; 2] = [16_000, 128_000];
/// CPU time of a token, while one node computes the model alone.
const TOKEN_NS_MAX: u64 = 20_000;
/// CPU time of the longest call.
const CALL_NS_MAX: u32 = 1_000_000;
/// What a token may cost in a larger batch, as a share of what it costs in a smaller one.
const GROWTH_MAX: f64 = 1.05;

/// A case, measured.
struct Cost {
    name: String,
    tokens: u64,
    meter: Meter,
}

fn main() -> ExitCode {
    let is_detailed = std::env::args().any(|arg| arg == "--inputs");
    match prove(is_detailed) {
        Ok(missed) if missed.is_empty() => ExitCode::SUCCESS,
        Ok(missed) => {
            missed.iter().for_each(|bound| println!("missed: {bound}"));
            ExitCode::FAILURE
        }
        Err(wrong) => {
            println!("error: {wrong}");
            ExitCode::FAILURE
        }
    }
}

/// The bounds that are missed.
fn prove(is_detailed: bool) -> Result<Vec<String>, String> {
    let mut missed = Vec::new();
    for (way, nodes) in [("solo", 1), ("first of two stages", 2)] {
        let mut costs: Vec<Cost> = Vec::new();
        for batch in BATCHES {
            let name = format!("{way}, {batch} at once");
            let cost = Case { nodes, batch, ..Case::solo(name) }.measure()?;
            cost.show(is_detailed);
            missed.extend(cost.missed(nodes == 1));
            missed.extend(costs.iter().flat_map(|smaller| smaller.grows(&cost)));
            costs.push(cost);
        }
    }
    for prompt in PROMPTS {
        let name = format!("solo, a prompt of {prompt}");
        let cost = Case { prompt, tokens: 100, ..Case::solo(name) }.measure()?;
        cost.show(is_detailed);
        missed.extend(cost.missed(false));
    }
    let (tokens, runs, cold_bytes) = COLD;
    let name = "solo, 1 at once, caches cold".to_owned();
    Case { tokens, runs, cold_bytes, ..Case::solo(name) }.measure()?.show(is_detailed);
    Ok(missed)
}

/// What is measured.
struct Case {
    name: String,
    nodes: usize,
    batch: usize,
    prompt: u32,
    tokens: u64,
    runs: usize,
    cold_bytes: usize,
}

impl Case {
    fn solo(name: String) -> Self {
        Self { name, nodes: 1, batch: 1, prompt: 32, tokens: TOKENS, runs: RUNS, cold_bytes: 0 }
    }

    fn measure(&self) -> Result<Cost, String> {
        let mut cost = self.run()?;
        for _ in 1..self.runs {
            cost.meter.shorten(&self.run()?.meter)?;
        }
        let clock_ns = meter::clock_ns(&cost.meter.cold);
        cost.meter.subtract(clock_ns);
        Ok(cost)
    }

    fn run(&self) -> Result<Cost, String> {
        let mut cluster = Cluster::new(self.nodes, self.cold_bytes)?;
        cluster.warm_up(8)?;
        // One client asks again and again.
        let rounds = if self.batch == 1 { 4 } else { 1 };
        let each = self.tokens / self.batch as u64 / rounds;
        cluster.generate(self.batch, self.prompt, each as u32, rounds * each * self.batch as u64)?;
        Ok(Cost { name: self.name.clone(), tokens: cluster.tokens, meter: cluster.meter })
    }
}

impl Cost {
    fn per_token(&self, count: u64) -> f64 {
        count as f64 / self.tokens as f64
    }

    /// What may not grow with the batch, of each token.
    fn of_a_token(&self) -> [(&'static str, f64); 4] {
        let Meter { effects, data_messages, allocations, allocated_bytes, .. } = self.meter;
        [
            ("effects", self.per_token(effects)),
            ("messages", self.per_token(data_messages)),
            ("allocations", self.per_token(allocations)),
            ("bytes allocated", self.per_token(allocated_bytes)),
        ]
    }

    fn line(&self) -> String {
        let (longest, of) = self.meter.longest();
        let [(_, effects), (_, messages), (_, allocations), (_, bytes)] = self.of_a_token();
        format!(
            "token-cost {}: {} tokens in {} steps; a token {:.2} us of CPU time, {allocations:.1} allocations of \
             {bytes:.0} bytes, {effects:.2} effects, {messages:.2} messages; longest call {:.0} us ({of})",
            self.name,
            self.tokens,
            self.meter.steps,
            self.per_token(self.meter.total_ns()) / 1e3,
            f64::from(longest) / 1e3
        )
    }

    fn show(&self, is_detailed: bool) {
        println!("{}", self.line());
        if !is_detailed {
            return;
        }
        for (input, (calls, total, longest)) in self.meter.by_input() {
            let (total, longest) = (total as f64 / 1e3, f64::from(longest) / 1e3);
            println!(
                "  {input}: {calls} calls, {total:.0} us, {:.2} us each, longest {longest:.1} us",
                total / calls as f64
            );
        }
    }

    fn missed(&self, is_solo: bool) -> Vec<String> {
        let mut missed = Vec::new();
        let token_ns = self.per_token(self.meter.total_ns());
        if is_solo && token_ns > TOKEN_NS_MAX as f64 {
            missed.push(format!(
                "{}: a token takes {:.1} us, {} are the bound",
                self.name,
                token_ns / 1e3,
                TOKEN_NS_MAX / 1000
            ));
        }
        let (longest, of) = self.meter.longest();
        if longest > CALL_NS_MAX {
            missed.push(format!(
                "{}: {of} took {} us, {} are the bound",
                self.name,
                longest / 1000,
                CALL_NS_MAX / 1000
            ));
        }
        missed
    }

    /// What grows faster than the batch.
    fn grows(&self, many: &Self) -> Vec<String> {
        let pairs = self.of_a_token().into_iter().zip(many.of_a_token());
        let grown = pairs.filter(|((_, one), (_, many))| *many > one * GROWTH_MAX);
        let line = |((what, one), (_, of_many)): ((&str, f64), (&str, f64))| {
            format!(
                "{}: {of_many:.2} {what} a token, {one:.2} alone: more than linear in the batch",
                many.name
            )
        };
        grown.map(line).collect()
    }
}
