//! What was measured: a table in Markdown for people and for `docs/benchmarks.md`, and everything in JSON.

use std::fmt::Write as _;

use anyhow::Context;
use serde_json::{Value, json};

use super::Bench;
use super::cells::{Bound, Cell, Verdict};

/// Prints the table and writes both files.
pub fn write(bench: &Bench) -> anyhow::Result<()> {
    let table = markdown(bench);
    println!("{table}");
    let dir = bench.args.out_dir()?;
    std::fs::create_dir_all(&dir).with_context(|| format!("cannot make {}", dir.display()))?;
    for (name, text) in [("bench.md", table), ("bench.json", format!("{:#}\n", document(bench)))] {
        let path = dir.join(name);
        std::fs::write(&path, text).with_context(|| format!("cannot write {}", path.display()))?;
    }
    eprintln!("written to {}", dir.display());
    Ok(())
}

fn markdown(bench: &Bench) -> String {
    let mut text = String::new();
    for (name, value) in &bench.facts {
        let _ = writeln!(text, "- {name}: {value}");
    }
    text.push_str("\n| model | threads | what | exo | llama.cpp | ratio | of the limit | asked | |\n");
    text.push_str("|---|---|---|---|---|---|---|---|---|\n");
    for cell in bench.cells.iter() {
        let _ = writeln!(text, "{}", line(cell));
    }
    let count = |verdict| bench.cells.iter().filter(|c| c.verdict() == verdict).count();
    let (passed, failed, open) = (count(Verdict::Pass), count(Verdict::Fail), count(Verdict::Open));
    let _ = writeln!(
        text,
        "\n{passed} cells pass, {failed} fail, {open} are asked nothing or had no counterpart."
    );
    for failure in &bench.failures {
        let _ = writeln!(text, "- gave no numbers: {failure}");
    }
    if bench.programs.llama.is_none() {
        text.push_str("The comparison with llama.cpp was skipped: none was given.\n");
    }
    text
}

fn line(cell: &Cell) -> String {
    let show = |value: Option<f64>| value.map_or_else(|| "-".to_owned(), |v| cell.what.show(v));
    let ratio = cell.ratio().map_or_else(|| "-".to_owned(), |r| format!("{r:.2} x"));
    let share = cell.share().map_or_else(|| "-".to_owned(), |s| format!("{:.0} %", s * 100.0));
    let asked = match cell.bound() {
        None => "-".to_owned(),
        Some(Bound::AtMost(max)) => format!("at most {}", cell.what.show(max)),
        Some(Bound::Ratio { min, or_share: None }) => format!("{min} x"),
        Some(Bound::Ratio { min, or_share: Some(share) }) => format!("{min} x or {:.0} %", share * 100.0),
    };
    let verdict = match cell.verdict() {
        Verdict::Pass => "PASS",
        Verdict::Fail => "FAIL",
        Verdict::Open => "",
    };
    let (model, threads, what) = (&cell.subject.name, cell.threads, cell.what.label());
    let (ours, theirs) = (show(cell.ours()), show(cell.theirs()));
    format!("| {model} | {threads} | {what} | {ours} | {theirs} | {ratio} | {share} | {asked} | {verdict} |")
}

fn document(bench: &Bench) -> Value {
    let facts: serde_json::Map<_, _> = bench.facts.iter().map(|(k, v)| (k.clone(), json!(v))).collect();
    json!({ "facts": facts, "cells": bench.cells.iter().map(cell_json).collect::<Vec<_>>(), "failures": bench.failures })
}

fn cell_json(cell: &Cell) -> Value {
    let bound = match cell.bound() {
        None => Value::Null,
        Some(Bound::AtMost(max)) => json!({ "at_most": max }),
        Some(Bound::Ratio { min, or_share }) => json!({ "ratio_min": min, "or_share_min": or_share }),
    };
    let samples =
        cell.samples.iter().map(|s| json!({ "exo": s.ours, "llama_cpp": s.theirs, "share": s.share }));
    json!({
        "model": cell.subject.name,
        "type": cell.subject.dtype,
        "threads": cell.threads,
        "what": cell.what.label(),
        "exo": cell.ours(),
        "llama_cpp": cell.theirs(),
        "ratio_median": cell.ratio(),
        "share_median": cell.share(),
        "bound": bound,
        "verdict": format!("{:?}", cell.verdict()).to_lowercase(),
        "samples": samples.collect::<Vec<_>>(),
    })
}

#[cfg(test)]
mod tests {
    use super::super::cells::{Sample, Subject, What};
    use super::*;

    #[test]
    fn a_line_says_what_was_asked_and_whether_it_was_kept() {
        let subject = Subject { name: "m".into(), dtype: "Q8_0".into(), file_bytes: 1 };
        let samples = vec![Sample { ours: 30.0, theirs: Some(15.0), share: Some(0.5) }];
        let mut cell = Cell { subject, threads: 1, what: What::Decode(64), samples };
        assert_eq!(
            line(&cell),
            "| m | 1 | decode 64 | 30.0 t/s | 15.0 t/s | 2.00 x | 50 % | 1.6 x or 85 % | PASS |"
        );
        cell.samples[0].theirs = None;
        assert_eq!(line(&cell), "| m | 1 | decode 64 | 30.0 t/s | - | - | 50 % | 1.6 x or 85 % |  |");
        cell.what = What::Idle;
        cell.samples[0] = Sample { ours: 0.02, theirs: None, share: None };
        assert_eq!(line(&cell), "| m | 1 | CPU of an idle node | 2.0 % | - | - | - | at most 1.0 % | FAIL |");
    }
}
