//! One process at a time: `exo bench` and `llama-bench` in turns.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::Context;
use serde_json::Value;

use super::Bench;
use super::args::Part;
use super::cells::{Sample, Subject, What};
use crate::child;
use crate::pairs::in_turns;
use crate::system;

/// Tokens that are generated from an empty context.
const DECODE_TOKENS: u32 = 64;
/// Where the deep decode starts, and how many tokens it generates there.
const DEPTH: u32 = 4096;
const DEPTH_TOKENS: u32 = 32;
/// For one run: a prompt of 4,096 tokens at ten a second.
const RUN_MAX: Duration = Duration::from_secs(900);

/// What both programs are asked for, in the arguments both take.
struct Tests {
    prompts: String,
    generate: u32,
    depth: u32,
}

impl Bench {
    /// One pair of runs.
    pub(super) fn solo(
        &mut self,
        part: Part,
        round: u32,
        model: &Path,
        threads: usize,
    ) -> anyhow::Result<()> {
        let tests = match part {
            Part::Depth => Tests { prompts: "0".to_owned(), generate: DEPTH_TOKENS, depth: DEPTH },
            _ => {
                let prompts: Vec<_> = self.args.prompts.iter().map(u32::to_string).collect();
                Tests { prompts: prompts.join(","), generate: DECODE_TOKENS, depth: 0 }
            }
        };
        if part == Part::Solo {
            warm(model)?;
        }
        let ours = || self.exo_bench(&tests, model, threads);
        let (ours, theirs) = in_turns(round, ours, || self.llama_bench(&tests, model, threads))?;
        let dtype =
            ours["model"]["type"].as_str().context("exo bench does not tell the type of the weights")?;
        let subject = Subject::new(model, dtype);
        self.note(&ours, theirs.as_ref());
        self.add_rates(&subject, threads, &ours, theirs.as_ref());
        if part == Part::Solo {
            self.add_load(&subject, threads, &ours)?;
        }
        eprintln!(
            "round {} {} {threads} threads: {}",
            round + 1,
            subject.name,
            self.last_ratios(&subject, threads)
        );
        Ok(())
    }

    fn exo_bench(&self, tests: &Tests, model: &Path, threads: usize) -> anyhow::Result<Value> {
        let mut command = Command::new(&self.programs.exo);
        command.arg("bench").arg(model).args([
            "--backend",
            "cpu",
            "-p",
            &tests.prompts,
            "-n",
            &tests.generate.to_string(),
        ]);
        command.args([
            "-d",
            &tests.depth.to_string(),
            "--threads",
            &threads.to_string(),
            "-r",
            "1",
            "--json",
        ]);
        let text = child::output(command, &self.cores[..threads], RUN_MAX)?;
        serde_json::from_str(&text).context("exo bench did not print JSON")
    }

    /// `None` without llama.cpp. Its defaults: mapped file, flash attention as it likes, F16 keys and values.
    fn llama_bench(&self, tests: &Tests, model: &Path, threads: usize) -> anyhow::Result<Option<Value>> {
        let Some(llama) = &self.programs.llama else { return Ok(None) };
        let mut command = Command::new(&llama.bench);
        command.arg("-m").arg(reference_file(model)).args([
            "-p",
            &tests.prompts,
            "-n",
            &tests.generate.to_string(),
        ]);
        command.args(["-d", &tests.depth.to_string(), "-t", &threads.to_string(), "-r", "1", "-o", "json"]);
        let text = child::output(command, &self.cores[..threads], RUN_MAX)?;
        Ok(Some(serde_json::from_str(&text).context("llama-bench did not print JSON")?))
    }

    fn add_rates(&mut self, subject: &Subject, threads: usize, ours: &Value, theirs: Option<&Value>) {
        for test in ours["tests"].as_array().into_iter().flatten() {
            let number = |name: &str| test[name].as_u64().and_then(|n| u32::try_from(n).ok()).unwrap_or(0);
            let (prompt, generate, depth) = (number("n_prompt"), number("n_gen"), number("n_depth"));
            let Some(rate) = test["median_ts"].as_f64() else { continue };
            let theirs = theirs.and_then(|t| rate_of(t, prompt, generate, depth));
            let (what, share) = match (prompt, depth) {
                (0, 0) => (What::Decode(generate), &test["weight_bandwidth_share"]),
                (0, _) => (What::DecodeAt(depth), &test["bandwidth_share"]),
                (_, _) => (What::Prefill(prompt), &test["peak_share"]),
            };
            let share = share["median"].as_f64();
            self.cells.add(subject, threads, what, Sample { ours: rate, theirs, share });
        }
    }

    fn add_load(&mut self, subject: &Subject, threads: usize, ours: &Value) -> anyhow::Result<()> {
        let load = &ours["loads"][0];
        let first = load["first_token_s"].as_f64().context("exo bench does not tell the load")?;
        let mut add =
            |what, ours| self.cells.add(subject, threads, what, Sample { ours, theirs: None, share: None });
        add(What::FirstToken, first);
        // The peak is known on Linux only.
        if let Some(peak) = load["peak_rss_bytes"].as_f64() {
            let weights =
                ours["model"]["size"].as_f64().context("exo bench does not tell the size of the weights")?;
            let kv = load["kv_bytes"].as_f64().unwrap_or(0.0);
            add(What::ExtraMemory, (peak - weights - kv) / weights);
        }
        Ok(())
    }

    /// Facts for the head of the report, from the first run that tells them.
    fn note(&mut self, ours: &Value, theirs: Option<&Value>) {
        let mut fact = |name: &str, value: Option<String>| {
            if let Some(value) = value
                && !self.facts.iter().any(|(n, _)| n == name)
            {
                self.facts.push((name.to_owned(), value));
            }
        };
        let text = |v: &Value| v.as_str().map(str::to_owned);
        fact("processor", text(&ours["machine"]["cpu_info"]));
        fact("instruction set", text(&ours["loads"][0]["backend"]));
        for memory in ours["memory"].as_array().into_iter().flatten() {
            let threads = memory["n_threads"].as_u64().unwrap_or(0);
            let rate = |name: &str| memory[name].as_f64().map(|r| format!("{:.1} GB/s", r / 1e9));
            fact(&format!("reading 4 KiB pages, {threads} threads"), rate("read_4k_bytes_per_s"));
            fact(&format!("reading 2 MiB pages, {threads} threads"), rate("read_2m_bytes_per_s"));
        }
        fact("llama.cpp", theirs.and_then(|t| text(&t[0]["build_commit"])));
    }

    fn last_ratios(&self, subject: &Subject, threads: usize) -> String {
        let cells = self.cells.iter().filter(|c| c.subject == *subject && c.threads == threads);
        let ratio = |c: &super::cells::Cell| {
            let last = c.samples.last()?;
            Some(format!("{} {:.2} x", c.what.label(), last.ours / last.theirs?))
        };
        cells.filter_map(ratio).collect::<Vec<_>>().join(", ")
    }
}

/// Touches and gives back as much memory as the model's weights will take, then reads its file: a virtual
/// machine gets memory from its host at the first touch, at 0.5 GB/s where this was found, which is no more
/// exo's time than a cold disk. Half of the free memory at most is touched: a model that needs more is
/// measured as it is.
fn warm(model: &Path) -> anyhow::Result<()> {
    let context = || format!("{} cannot be read", model.display());
    let mut file = std::fs::File::open(model).with_context(context)?;
    let bytes = file.metadata().with_context(context)?.len();
    std::hint::black_box(vec![1u8; (bytes + bytes / 4).min(system::free_memory() / 2) as usize]);
    std::io::copy(&mut file, &mut std::io::sink()).with_context(context)?;
    Ok(())
}

fn rate_of(rows: &Value, prompt: u32, generate: u32, depth: u32) -> Option<f64> {
    let is_it = |r: &&Value| r["n_prompt"] == prompt && r["n_gen"] == generate && r["n_depth"] == depth;
    rows.as_array()?.iter().find(is_it)?["avg_ts"].as_f64()
}

/// What llama.cpp runs beside `model`: the same file. A BF16 file, which is to be held against llama.cpp's
/// F16, has one of that type beside it.
fn reference_file(model: &Path) -> PathBuf {
    let name = model.file_name().map(|n| n.to_string_lossy().into_owned()).unwrap_or_default();
    let f16 = model.with_file_name(name.replace("BF16", "F16"));
    if name.contains("BF16") && f16.is_file() { f16 } else { model.to_owned() }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_row_is_found_by_what_it_measures() {
        let rows = json!([
            {"n_prompt": 512, "n_gen": 0, "n_depth": 0, "avg_ts": 50.0},
            {"n_prompt": 0, "n_gen": 64, "n_depth": 4096, "avg_ts": 7.0},
        ]);
        assert_eq!(rate_of(&rows, 512, 0, 0), Some(50.0));
        assert_eq!(rate_of(&rows, 0, 64, 4096), Some(7.0));
        assert_eq!(rate_of(&rows, 0, 64, 0), None);
    }
}
