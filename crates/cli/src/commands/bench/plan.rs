//! From arguments to a list of tests, each checked before anything is loaded.

use std::fmt;

use anyhow::{Context, bail};
use exo_backend_cpu::Isa;
use exo_device::CoreList;
use exo_types::{ComputeShare, KvDType};

use crate::args::Bench;
use crate::commands::compute::Compute;

/// Larger numbers are slips: no context, batch or machine comes near.
const NUMBER_MAX: u32 = 1 << 20;
/// Cells of one list; a longer one would run for days.
const LIST_MAX: usize = 64;

/// One thing to measure.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Test {
    /// `tokens` of prompt after `depth` tokens.
    Prefill { tokens: u32, depth: u32 },
    /// `tokens` generated after `depth` tokens, by each of `streams` sequences in the same steps.
    Decode { tokens: u32, depth: u32, streams: u32 },
}

impl Test {
    /// Positions each of its sequences needs.
    pub fn context(self) -> u32 {
        match self {
            Self::Prefill { tokens, depth } => depth + tokens,
            // The first token that is fed stands for the prompt's last.
            Self::Decode { tokens, depth, .. } => depth + tokens + 1,
        }
    }

    /// Sequences it needs.
    pub fn streams(self) -> u32 {
        match self {
            Self::Prefill { .. } => 1,
            Self::Decode { streams, .. } => streams,
        }
    }

    /// Tokens already there when the clock starts.
    pub fn depth(self) -> u32 {
        match self {
            Self::Prefill { depth, .. } | Self::Decode { depth, .. } => depth,
        }
    }

    /// Tokens that one sample counts.
    pub fn tokens(self) -> u32 {
        match self {
            Self::Prefill { tokens, .. } => tokens,
            Self::Decode { tokens, streams, .. } => tokens * streams,
        }
    }
}

/// As `llama-bench` names its tests, with the number of streams where there are several.
impl fmt::Display for Test {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Prefill { tokens, .. } => write!(f, "pp{tokens}")?,
            Self::Decode { tokens, streams: 1, .. } => write!(f, "tg{tokens}")?,
            Self::Decode { tokens, streams, .. } => write!(f, "tg{tokens} x{streams}")?,
        }
        if self.depth() > 0 {
            write!(f, " @ d{}", self.depth())?;
        }
        Ok(())
    }
}

/// The settings a plan depends on.
pub struct Settings<'a> {
    /// A list here; empty for all processors.
    pub threads: &'a str,
    pub cores: Option<CoreList>,
    /// A list here.
    pub kv: &'a str,
    pub cpu_isa: Option<Isa>,
    pub mmap: bool,
    pub share: ComputeShare,
}

/// Everything that will be measured.
#[derive(Debug)]
pub struct BenchPlan {
    /// Each with an engine of its own.
    pub threads: Vec<usize>,
    /// One worker thread is kept to each; `None` lets them move.
    pub cores: Option<CoreList>,
    /// `None` for the widest instruction set.
    pub cpu_isa: Option<Isa>,
    pub kv: Vec<KvDType>,
    /// In the order they run.
    pub tests: Vec<Test>,
    pub repetitions: u32,
    /// Weights stay in their file.
    pub mmap: bool,
    /// Part of the time in which the processor computes.
    pub share: ComputeShare,
}

impl BenchPlan {
    /// Reads the lists.
    pub fn new(args: &Bench, settings: &Settings<'_>) -> anyhow::Result<Self> {
        let all = exo_device::cores().to_string();
        let threads = if settings.threads.is_empty() { &all } else { settings.threads };
        let threads = numbers("--threads", threads, 1)?;
        let (prefill, decode) = (numbers("-p", &args.prompt, 0)?, numbers("-n", &args.generate, 0)?);
        let (depths, streams) = (numbers("-d", &args.depth, 0)?, numbers("-b", &args.batch, 1)?);
        let mut tests = Vec::new();
        for &depth in &depths {
            let prompts = prefill.iter().filter(|p| **p > 0);
            tests.extend(prompts.map(|&tokens| Test::Prefill { tokens, depth }));
            for &tokens in decode.iter().filter(|n| **n > 0) {
                tests.extend(streams.iter().map(|&streams| Test::Decode { tokens, depth, streams }));
            }
        }
        Ok(Self {
            threads: threads.into_iter().map(|t| t as usize).collect(),
            cores: settings.cores.clone(),
            cpu_isa: settings.cpu_isa,
            kv: settings.kv.split(',').map(kv_dtype).collect::<anyhow::Result<_>>()?,
            tests,
            repetitions: args.repetitions,
            mmap: settings.mmap,
            share: settings.share,
        })
    }

    /// What runs, but may not mean what the user thinks.
    pub fn warnings(&self, compute: &Compute) -> Vec<String> {
        if matches!(compute, Compute::Card(_)) {
            return Vec::new();
        }
        let cores = exo_device::cores();
        let over = self.threads.iter().filter(|t| **t > cores);
        over.map(|threads| {
            format!(
                "{threads} threads on {cores} processors wait for each other; expect less than with {cores}"
            )
        })
        .collect()
    }

    /// Longest context any test needs; at least that of the first token.
    pub fn context(&self) -> u32 {
        self.tests.iter().map(|t| t.context()).fold(super::measure::FIRST_PROMPT_TOKENS + 1, u32::max)
    }

    /// Most sequences any test needs.
    pub fn streams(&self) -> u32 {
        self.tests.iter().map(|t| t.streams()).fold(1, u32::max)
    }

    /// Refuses tests that a model of this context cannot run, before anything is loaded.
    pub fn check_context(&self, context_max: u32) -> anyhow::Result<()> {
        match self.tests.iter().find(|t| t.context() > context_max) {
            Some(test) => bail!(
                "{test} needs a context of {} tokens, the model was made for {context_max}: give smaller -d, -p or -n",
                test.context()
            ),
            None => Ok(()),
        }
    }
}

/// `512,128` as numbers, each at least `min`, without repetitions.
fn numbers(option: &str, text: &str, min: u32) -> anyhow::Result<Vec<u32>> {
    let mut list = Vec::new();
    for part in text.split(',') {
        let number: u32 =
            part.trim().parse().ok().filter(|n| (min..=NUMBER_MAX).contains(n)).with_context(|| {
                format!("{option} is `{text}`: expected numbers from {min} to {NUMBER_MAX}, comma between")
            })?;
        if !list.contains(&number) {
            list.push(number);
        }
    }
    if list.len() > LIST_MAX {
        bail!("{option} lists {} numbers, at most {LIST_MAX} are run", list.len());
    }
    Ok(list)
}

fn kv_dtype(text: &str) -> anyhow::Result<KvDType> {
    text.trim().parse().with_context(|| format!("--kv is `{text}`"))
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;
    use crate::args::{Cli, Command};

    fn plan(line: &str) -> anyhow::Result<BenchPlan> {
        let words = ["exo", "bench", "demo"].into_iter().chain(line.split_whitespace());
        let cli = Cli::try_parse_from(words)?;
        let kv = cli.settings.flags().get("kv").cloned().unwrap_or_else(|| "f16".to_owned());
        let Some(Command::Bench(args)) = cli.command else { panic!("not bench") };
        let share = ComputeShare::FULL;
        BenchPlan::new(
            &args,
            &Settings { threads: "1", cores: None, kv: &kv, cpu_isa: None, mmap: false, share },
        )
    }

    fn names(line: &str) -> Vec<String> {
        plan(line).unwrap().tests.iter().map(Test::to_string).collect()
    }

    #[test]
    fn tests_are_named_as_llama_bench_names_them() {
        assert_eq!(names(""), ["pp512", "tg64"]);
        assert_eq!(
            names("-p 128,512 -n 32 -d 0,4096 -b 1,4"),
            [
                "pp128",
                "pp512",
                "tg32",
                "tg32 x4",
                "pp128 @ d4096",
                "pp512 @ d4096",
                "tg32 @ d4096",
                "tg32 x4 @ d4096"
            ]
        );
        assert_eq!(names("-p 0 -n 16,16"), ["tg16"]);
        assert!(names("-p 0 -n 0").is_empty());
    }

    #[test]
    fn the_engine_is_made_as_large_as_the_largest_test() {
        let plan = plan("-p 100 -n 7 -d 0,50 -b 1,8").unwrap();
        assert_eq!((plan.context(), plan.streams()), (150, 8));
        assert!(plan.check_context(150).is_ok());
        let error = plan.check_context(149).unwrap_err().to_string();
        assert!(
            error.contains("pp100 @ d50 needs a context of 150 tokens") && error.contains("149"),
            "{error}"
        );
    }

    #[test]
    fn slips_are_named() {
        for (line, part) in [
            ("-p 12x", "-p is `12x`"),
            ("-b 0", "-b is `0`: expected numbers from 1"),
            ("-d 99999999", "-d is `99999999`"),
            ("--kv q3", "--kv is `q3`"),
        ] {
            let error = plan(line).unwrap_err().to_string();
            assert!(error.contains(part), "{line}: {error}");
        }
        assert!(plan("--repetitions 0").is_err());
    }

    #[test]
    fn more_threads_than_processors_is_a_warning() {
        let mut plan = plan("").unwrap();
        assert!(plan.warnings(&Compute::Processor).is_empty());
        plan.threads = vec![1, 100_000];
        let warnings = plan.warnings(&Compute::Processor);
        assert!(warnings.len() == 1 && warnings[0].starts_with("100000 threads on"), "{warnings:?}");
    }
}
