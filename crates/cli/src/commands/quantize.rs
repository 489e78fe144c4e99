//! `exo quantize`: a model file or folder to a GGUF file of another type. Runs in this process, without node
//! or API.

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use exo_quant::{Conversion, Options, Report};
use serde_json::{Value, json};

use super::interrupt::{COMPUTING_MAX, INTERRUPTED, or_interrupt};
use super::subject::Subject;
use crate::args::Quantize;
use crate::config::Config;
use crate::ui;

/// Writes the file and says what is in it. Ctrl-C leaves nothing behind.
pub async fn run(config: &Config, args: Quantize) -> anyhow::Result<ExitCode> {
    let subject = Subject::find(&args.source, &config.data_dir())?;
    let threads = config.threads()?.unwrap_or_else(exo_device::cores);
    let stop = Arc::new(AtomicBool::new(false));
    let (flag, json) = (stop.clone(), args.json.json);
    let work = tokio::task::spawn_blocking(move || convert(&subject, &args, threads, &flag));
    let Some(report) = or_interrupt(work, COMPUTING_MAX, || stop.store(true, Ordering::Relaxed)).await?
    else {
        return Ok(ExitCode::from(INTERRUPTED));
    };
    if json {
        ui::json(&document(&report))?;
    } else {
        print(&report);
    }
    Ok(ExitCode::SUCCESS)
}

fn convert(subject: &Subject, args: &Quantize, threads: usize, stop: &AtomicBool) -> anyhow::Result<Report> {
    let job = Conversion::new(subject.open()?, args.target, args.requantize)?;
    if let Some(caveat) = job.caveat() {
        ui::warning(&caveat);
    }
    let path = args.output.clone().unwrap_or_else(|| PathBuf::from(job.file_name()));
    let bar = ui::bar(0, "{bar:30} {percent:>3} % {msg:28} {eta} left");
    let mut progress = |p: exo_quant::Progress<'_>| {
        bar.set_length(p.elements_total);
        bar.set_position(p.elements_done);
        bar.set_message(p.tensor.to_owned());
    };
    let result = job.run(&path, Options { threads, replace: args.force }, &mut progress, stop);
    bar.finish_and_clear();
    Ok(result?)
}

fn print(report: &Report) {
    let rows = report.types.iter().map(|(dtype, t)| {
        vec![
            dtype.to_string(),
            t.tensors.to_string(),
            t.elements.to_string(),
            ui::bytes(t.bytes),
            format!("{:.3e}", t.rmse()),
            format!("{:.3} %", 100.0 * t.relative_rmse()),
        ]
    });
    ui::table(&["type", "tensors", "weights", "size", "RMSE", "of their size"], rows.collect());
    ui::line(format!(
        "{} · {} · {:.2} bits per weight",
        shown(&report.path),
        ui::bytes(report.file_bytes),
        report.bits_per_weight()
    ));
}

fn document(report: &Report) -> Value {
    let types = report.types.iter().map(|(dtype, t)| {
        json!({
            "type": dtype.to_string(),
            "tensors": t.tensors,
            "weights": t.elements,
            "bytes": t.bytes,
            "rmse": t.rmse(),
            "relative_rmse": t.relative_rmse(),
        })
    });
    json!({
        "path": shown(&report.path),
        "bytes": report.file_bytes,
        "weights": report.elements(),
        "bits_per_weight": report.bits_per_weight(),
        "types": types.collect::<Vec<_>>(),
    })
}

fn shown(path: &Path) -> String {
    path.display().to_string()
}
