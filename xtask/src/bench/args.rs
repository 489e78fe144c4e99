//! What to run, and which programs.

use std::path::{Path, PathBuf};

use anyhow::{Context, bail};
use clap::{Args, ValueEnum};

use crate::{run, setup};

#[derive(Args, Clone)]
pub struct BenchArgs {
    /// GGUF files to measure; else those in EXO_BENCH_MODELS, a colon between
    pub models: Vec<PathBuf>,
    /// Folder with llama-bench and llama-server of llama.cpp
    #[arg(long, value_name = "DIR", env = "EXO_LLAMA_BIN")]
    pub llama: Option<PathBuf>,
    /// An exo binary to measure instead of building this tree's
    #[arg(long, value_name = "FILE")]
    pub exo: Option<PathBuf>,
    /// Three rounds of decode and the short prefill, at most five minutes
    #[arg(long)]
    pub quick: bool,
    /// Pairs of runs for each cell [default: 5]
    #[arg(long, value_parser = clap::value_parser!(u32).range(1..=100), default_value_t = 5, hide_default_value = true)]
    pub rounds: u32,
    /// Numbers of threads, and of cores
    #[arg(long, value_delimiter = ',', default_value = "1,2")]
    pub threads: Vec<usize>,
    /// Lengths of prompt
    #[arg(long, value_delimiter = ',', default_value = "512,128")]
    pub prompts: Vec<u32>,
    /// Numbers of streams for the servers
    #[arg(long, value_delimiter = ',', default_value = "4,8")]
    pub streams: Vec<u32>,
    /// A small model that guesses for the measured ones, in the part `guesses`
    #[arg(long, value_name = "FILE")]
    pub draft: Option<PathBuf>,
    /// Only these parts
    #[arg(long, value_delimiter = ',', default_value = "solo,depth,gap,streams,prefix,idle")]
    pub only: Vec<Part>,
    /// Nothing new is started after this time
    #[arg(long, default_value_t = 180, value_parser = clap::value_parser!(u64).range(1..=10_000))]
    pub minutes: u64,
    /// Folder for bench.json and bench.md [default: target/bench]
    #[arg(long, value_name = "DIR")]
    pub out: Option<PathBuf>,
}

/// What can be measured by itself.
#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
pub enum Part {
    /// Decode from an empty context, prefill, load and memory
    Solo,
    /// Decode after 4,096 tokens
    Depth,
    /// How long a stream waits for its next token while a long prompt is computed beside it
    Gap,
    /// Several streams against the servers
    Streams,
    /// First token of a prompt whose beginning is cached
    Prefix,
    /// Processor time of a node that has a model and nothing to do
    Idle,
    /// Tokens guessed ahead, against none
    Guesses,
}

impl BenchArgs {
    /// The arguments with what `--quick` and the environment fill in, checked.
    pub fn with_preset(mut self) -> anyhow::Result<Self> {
        if self.models.is_empty() {
            let list = std::env::var_os("EXO_BENCH_MODELS").unwrap_or_default();
            self.models = std::env::split_paths(&list).filter(|p| !p.as_os_str().is_empty()).collect();
        }
        if self.models.is_empty() {
            bail!("no model is given: name GGUF files, or list them in EXO_BENCH_MODELS");
        }
        for model in self.models.iter_mut().chain(&mut self.draft) {
            *model = model.canonicalize().with_context(|| format!("cannot find {}", model.display()))?;
        }
        if self.quick {
            (self.rounds, self.prompts, self.only) = (3, vec![128], vec![Part::Solo]);
            self.minutes = self.minutes.min(5);
        }
        if self.threads.contains(&0) || self.streams.contains(&0) || self.prompts.contains(&0) {
            bail!("--threads, --streams and --prompts take numbers above 0");
        }
        Ok(self)
    }

    /// Where the report goes.
    pub fn out_dir(&self) -> anyhow::Result<PathBuf> {
        match &self.out {
            Some(dir) => Ok(dir.clone()),
            None => Ok(run::target_dir()?.join("bench")),
        }
    }
}

/// The programs that are measured.
pub struct Programs {
    pub exo: PathBuf,
    pub llama: Option<Llama>,
}

/// llama.cpp's.
pub struct Llama {
    pub bench: PathBuf,
    pub server: PathBuf,
}

impl Programs {
    /// Finds llama.cpp, and builds exo unless a binary is given.
    pub fn find(args: &BenchArgs) -> anyhow::Result<Self> {
        let llama = args.llama.as_deref().map(llama_in).transpose()?;
        Ok(Self { exo: setup::exo_binary(args.exo.as_deref())?, llama })
    }
}

fn llama_in(dir: &Path) -> anyhow::Result<Llama> {
    let program = |name: &str| {
        let found = [dir.join(name), dir.join("bin").join(name)].into_iter().find(|p| p.is_file());
        found.with_context(|| {
            format!("{} holds no {name}: give the folder of llama.cpp's programs", dir.display())
        })
    };
    Ok(Llama { bench: program("llama-bench")?, server: program("llama-server")? })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_folder_without_llama_cpp_is_named() {
        let error = llama_in(Path::new("/does/not/exist")).err().unwrap().to_string();
        assert!(error.contains("/does/not/exist holds no llama-bench"), "{error}");
    }
}
