//! Prints what was measured: a table for the terminal, the same in Markdown, or everything in JSON.

use std::fmt::Write as _;

use serde_json::{Value, json};

use super::measure::{BenchResults, Cost, Load, MemoryRates, Row};
use super::plan::Test;
use super::stats::Stats;
use crate::args::Format;
use crate::ui;

/// Prints everything.
pub fn print(measured: &BenchResults, format: Format) -> anyhow::Result<()> {
    let show = match format {
        Format::Json => return ui::json(&document(measured)),
        Format::Markdown => |header: &[&str], rows: Vec<Vec<String>>| ui::line(markdown(header, &rows)),
        Format::Terminal => |header: &[&str], rows: Vec<Vec<String>>| ui::table(header, rows),
    };
    if !measured.rows.is_empty() {
        show(&TESTS, measured.rows.iter().map(|row| test_cells(measured, row)).collect());
    }
    show(&LOADS, measured.loads.iter().map(load_cells).collect());
    if !measured.memory.is_empty() {
        show(&MEMORY, measured.memory.iter().map(memory_cells).collect());
    }
    Ok(())
}

/// The columns of `llama-bench`, then ours.
const TESTS: [&str; 11] = [
    "model",
    "size",
    "params",
    "backend",
    "threads",
    "kv",
    "test",
    "t/s",
    "median",
    "MB/token",
    "of the limit",
];
const LOADS: [&str; 8] = ["threads", "kv", "load", "first token", "packed", "weights", "KV", "peak RSS"];
const MEMORY: [&str; 4] = ["threads", "read, 4 KiB pages", "read, 2 MiB pages", "in 2 MiB pages"];

fn test_cells(measured: &BenchResults, row: &Row) -> Vec<String> {
    let model = measured.model.as_ref();
    let rates = row.rates();
    let limit = match row.cost {
        Cost::Bytes { .. } if row.threads.is_none() => "copy bandwidth",
        Cost::Bytes { .. } => "bandwidth",
        Cost::Products { instruction, .. } => instruction.map_or("", |i| i.name()),
    };
    vec![
        model.map_or_else(String::new, |m| format!("{} {}", m.name, m.work.dtype)),
        model.map_or_else(String::new, |m| ui::bytes(m.work.stored_bytes)),
        model.map_or_else(String::new, |m| parameters(m.work.parameters)),
        row.backend.clone(),
        row.threads.map_or_else(dash, |t| t.to_string()),
        row.kv.to_string(),
        row.test.to_string(),
        rates.map_or_else(dash, |r| format!("{:.2} ± {:.2}", r.mean, r.stddev)),
        rates.map_or_else(dash, |r| format!("{:.2}", r.median)),
        row.bytes_per_token().map_or_else(dash, |b| format!("{:.1}", b / 1e6)),
        row.share().map_or_else(dash, |s| format!("{:.0} % {limit}", s.median * 100.0)),
    ]
}

fn load_cells(load: &Load) -> Vec<String> {
    vec![
        load.threads.map_or_else(dash, |t| t.to_string()),
        load.kv.to_string(),
        format!("{:.2} s", load.load_s),
        format!("{:.2} s", load.first_token_s),
        format!("{:.2} s", load.settled_s),
        ui::bytes(load.weight_bytes),
        ui::bytes(load.kv_bytes),
        load.peak_rss_bytes.map_or_else(dash, ui::bytes),
    ]
}

fn memory_cells(rates: &MemoryRates) -> Vec<String> {
    vec![
        rates.threads.to_string(),
        format!("{:.1} GB/s ({})", rates.small.bytes_per_s / 1e9, rates.small.kernel),
        format!("{:.1} GB/s ({})", rates.huge.bytes_per_s / 1e9, rates.huge.kernel),
        rates.huge_share.map_or_else(|| "unknown".to_owned(), |share| format!("{:.0} %", share * 100.0)),
    ]
}

/// As model cards count them.
fn parameters(count: u64) -> String {
    let units = [(1_000_000_000, "B"), (1_000_000, "M"), (1000, "K")];
    match units.into_iter().find(|(unit, _)| count >= *unit) {
        Some((unit, name)) => format!("{:.2} {name}", count as f64 / unit as f64),
        None => count.to_string(),
    }
}

fn dash() -> String {
    "-".to_owned()
}

fn markdown(header: &[&str], rows: &[Vec<String>]) -> String {
    let mut text = format!("| {} |\n|{}\n", header.join(" | "), "---|".repeat(header.len()));
    for row in rows {
        let _ = writeln!(text, "| {} |", row.join(" | "));
    }
    text
}

impl Row {
    /// Tokens per second of each sample.
    fn samples_ts(&self) -> Vec<f64> {
        self.samples.iter().map(|s| f64::from(self.test.tokens()) / s.seconds).collect()
    }

    fn rates(&self) -> Option<Stats> {
        Stats::of(&self.samples_ts())
    }

    /// Bytes of weights, keys and values read for one token; several streams share the weights. Decode only.
    fn bytes_per_token(&self) -> Option<f64> {
        match self.cost {
            Cost::Bytes { weights, kv } => Some((weights + kv) / f64::from(self.test.tokens())),
            Cost::Products { .. } => None,
        }
    }

    /// Part of the limit that each sample reached, if the limit is known.
    fn share(&self) -> Option<Stats> {
        self.share_of(match self.cost {
            Cost::Bytes { weights, kv } => weights + kv,
            Cost::Products { count, .. } => count,
        })
    }

    /// The same, with `cost` bytes or products for a sample.
    fn share_of(&self, cost: f64) -> Option<Stats> {
        let shares = self.samples.iter().map(|s| Some(cost / s.seconds / s.limit?));
        Stats::of(&shares.collect::<Option<Vec<_>>>()?)
    }
}

fn document(measured: &BenchResults) -> Value {
    let model = measured.model.as_ref();
    json!({
        "model": model.map(|m| json!({
            "name": m.name,
            "architecture": m.architecture,
            "type": m.work.dtype.to_string(),
            "size": m.work.stored_bytes,
            "n_params": m.work.parameters,
            "weight_bytes_per_step": m.work.step_weight_bytes,
        })),
        "machine": model.map(|m| json!({ "cpu_info": m.processor, "cores": m.cores, "device": m.device })),
        "memory": measured.memory.iter().map(memory_json).collect::<Vec<_>>(),
        "loads": measured.loads.iter().map(load_json).collect::<Vec<_>>(),
        "tests": measured.rows.iter().map(row_json).collect::<Vec<_>>(),
    })
}

fn memory_json(rates: &MemoryRates) -> Value {
    json!({
        "n_threads": rates.threads,
        "read_4k_bytes_per_s": rates.small.bytes_per_s,
        "read_4k_by": rates.small.kernel,
        "read_2m_bytes_per_s": rates.huge.bytes_per_s,
        "read_2m_by": rates.huge.kernel,
        "huge_share": rates.huge_share,
    })
}

fn load_json(load: &Load) -> Value {
    json!({
        "n_threads": load.threads,
        "type_kv": load.kv.name(),
        "backend": load.backend,
        "load_s": load.load_s,
        "first_token_s": load.first_token_s,
        "settled_s": load.settled_s,
        "weight_bytes": load.weight_bytes,
        "kv_bytes": load.kv_bytes,
        "workspace_bytes": load.workspace_bytes,
        "peak_rss_bytes": load.peak_rss_bytes,
    })
}

/// Names as in `llama-bench -o json` where they mean the same.
fn row_json(row: &Row) -> Value {
    let (n_prompt, n_gen) = match row.test {
        Test::Prefill { tokens, .. } => (tokens, 0),
        Test::Decode { tokens, .. } => (0, tokens),
    };
    let rates = row.rates();
    let limits: Vec<_> = row.samples.iter().map(|s| s.limit).collect();
    let mut value = json!({
        "test": row.test.to_string(),
        "n_prompt": n_prompt,
        "n_gen": n_gen,
        "n_depth": row.test.depth(),
        "n_streams": row.test.streams(),
        "n_threads": row.threads,
        "type_kv": row.kv.name(),
        "backend": row.backend,
        "avg_ts": rates.map(|r| r.mean),
        "median_ts": rates.map(|r| r.median),
        "stddev_ts": rates.map(|r| r.stddev),
        "samples_ts": row.samples_ts(),
        "samples_s": row.samples.iter().map(|s| s.seconds).collect::<Vec<_>>(),
    });
    match row.cost {
        Cost::Bytes { weights, .. } => {
            value["bytes_per_token"] = json!(row.bytes_per_token());
            let limit = if row.threads.is_some() { "read_2m_bytes_per_s" } else { "copy_bytes_per_s" };
            value[limit] = json!(limits);
            value["bandwidth_share"] = json!(row.share());
            value["weight_bandwidth_share"] = json!(row.share_of(weights));
        }
        Cost::Products { count, instruction } => {
            value["products"] = json!(count);
            value["instruction"] = json!(instruction.map(|i| i.name()));
            value["peak_products_per_s"] = json!(limits);
            value["peak_share"] = json!(row.share());
        }
    }
    value
}

#[cfg(test)]
mod tests {
    use exo_types::KvDType;

    use super::super::measure::Sample;
    use super::*;

    #[test]
    fn parameters_are_counted_as_model_cards_do() {
        let counted = [999, 24_320, 596_049_920, 8_030_261_248].map(parameters);
        assert_eq!(counted, ["999", "24.32 K", "596.05 M", "8.03 B"]);
    }

    fn decode_row() -> Row {
        let sample = |seconds, limit| Sample { seconds, limit: Some(limit) };
        Row {
            test: Test::Decode { tokens: 10, depth: 0, streams: 2 },
            threads: Some(1),
            kv: KvDType::F16,
            backend: "cpu/scalar".to_owned(),
            // 10 steps of 90 bytes, 20 tokens of 5 bytes.
            cost: Cost::Bytes { weights: 900.0, kv: 100.0 },
            samples: vec![sample(2.0, 1000.0), sample(4.0, 2000.0), sample(5.0, 1000.0)],
        }
    }

    #[test]
    fn rates_and_shares_follow_from_samples() {
        let row = decode_row();
        assert_eq!(row.samples_ts(), [10.0, 5.0, 4.0]);
        assert_eq!(row.bytes_per_token(), Some(50.0));
        // 1000 bytes in 2, 4 and 5 s are 1/2, 1/8 and 1/5 of the limits.
        let share = row.share().unwrap();
        assert_eq!((share.median, share.max, share.min), (0.2, 0.5, 0.125));
        let value = row_json(&row);
        assert_eq!(
            (&value["median_ts"], &value["n_gen"], &value["n_streams"]),
            (&json!(5.0), &json!(10), &json!(2))
        );
        assert_eq!(value["weight_bandwidth_share"]["median"], json!(0.18));
    }

    #[test]
    fn a_limit_that_is_not_known_gives_no_share() {
        let mut row = decode_row();
        row.samples[1].limit = None;
        assert_eq!(row.share(), None);
        row.cost = Cost::Products { count: 1.0, instruction: None };
        assert_eq!((row.bytes_per_token(), row_json(&row)["instruction"].is_null()), (None, true));
    }

    #[test]
    fn markdown_has_a_line_per_row() {
        let text = markdown(&["a", "b"], &[vec!["1".into(), "2".into()]]);
        assert_eq!(text, "| a | b |\n|---|---|\n| 1 | 2 |\n");
    }
}
