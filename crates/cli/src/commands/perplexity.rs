//! `exo perplexity`: how well a model predicts a text, by the convention of `llama-perplexity`, so that the
//! numbers of both stand side by side.
//!
//! Runs without node or API, on the processor in this process, on a graphics processor in a child
//! ([`compute`](super::compute)). `chunks` cuts the text, `measure` scores it.

mod chunks;
mod measure;

use std::io::Read;
use std::path::Path;
use std::process::ExitCode;
use std::sync::Arc;

use anyhow::{Context, bail};
use exo_backend::{CancelToken, Device};
use exo_backend_cpu::{CpuDevice, CpuOptions};

use super::compute::{Compute, Runs};
use super::interrupt::{COMPUTING_MAX, INTERRUPTED, or_interrupt};
use super::subject::Subject;
use crate::args::Perplexity;
use crate::config::Config;
use crate::ui;
use measure::{Options, PerplexityResult};

/// More than a tokenizer takes at once; read no further.
const TEXT_BYTES_MAX: u64 = 64 << 20;

/// Measures and prints; nothing after Ctrl-C.
pub async fn run(config: &Config, args: Perplexity) -> anyhow::Result<ExitCode> {
    let options = Options {
        kv: config.parse("kv")?,
        context: args.context,
        chunks_max: args.chunks,
        parse_special: args.special,
    };
    // Before the text, which may come through a pipe, is read by the one process that computes.
    let compute = match Compute::open(config).await? {
        Runs::Here(compute) => compute,
        Runs::InChild(code) => return Ok(code),
    };
    let text = read_text(&args.text)?;
    let subject = Subject::find(&args.model, &config.data_dir())?;
    let device: Arc<dyn Device> = match compute {
        Compute::Card(device) => device,
        Compute::Processor => CpuDevice::open(CpuOptions {
            threads: config.threads()?,
            cores: config.cores()?,
            isa: crate::run_node::cpu_isa(config)?,
            mmap: config.parse("mmap")?,
            ..CpuOptions::default()
        })?,
    };
    let cancel = CancelToken::default();
    let token = cancel.clone();
    let work = tokio::task::spawn_blocking(move || measure::run(&subject, device, &text, &options, &token));
    let Some(measured) = or_interrupt(work, COMPUTING_MAX, || cancel.cancel()).await? else {
        return Ok(ExitCode::from(INTERRUPTED));
    };
    print(&measured, args.json.json)?;
    Ok(ExitCode::SUCCESS)
}

fn read_text(path: &Path) -> anyhow::Result<String> {
    let failed = || format!("cannot read the text {}", path.display());
    let mut bytes = Vec::new();
    let file = std::fs::File::open(path).with_context(failed)?;
    file.take(TEXT_BYTES_MAX + 1).read_to_end(&mut bytes).with_context(failed)?;
    if bytes.len() as u64 > TEXT_BYTES_MAX {
        bail!("the text {} has more than {} MiB: take a part of it", path.display(), TEXT_BYTES_MAX >> 20);
    }
    String::from_utf8(bytes).map_err(|e| {
        let at = e.utf8_error().valid_up_to();
        anyhow::anyhow!("the text {} is not UTF-8 from its byte {at} on", path.display())
    })
}

fn print(measured: &PerplexityResult, json: bool) -> anyhow::Result<()> {
    if json {
        return ui::json(&measured.document());
    }
    let m = measured;
    ui::line(format!("perplexity {:.4} ± {:.5}", m.score.perplexity(), m.score.error()));
    ui::line(format!(
        "{} · {} chunks of {} tokens, {} scored · kv {} · {} · {:.0} tokens/s",
        m.model,
        m.chunks,
        m.context,
        m.score.count(),
        m.kv,
        m.backend,
        m.tokens_per_s()
    ));
    Ok(())
}
