//! What the terminal sees: tables, bytes for people, colours only where a terminal is, the last error.
#![allow(clippy::print_stdout, reason = "printing is what this module is for")]

use std::io::{IsTerminal, Write};

use comfy_table::{ContentArrangement, Table, presets};
use exo_types::Monitor;
use owo_colors::OwoColorize;

use crate::hint;

/// Whether to colour what goes to this stream.
pub fn colours(stream: &impl IsTerminal) -> bool {
    stream.is_terminal() && std::env::var_os("NO_COLOR").is_none()
}

/// Prints the error with its causes, then one hint that can be acted on.
pub fn error(error: &anyhow::Error) {
    let colours = colours(&std::io::stderr());
    let text = format!("{error:#}");
    if colours {
        eprintln!("{} {text}", "error:".red().bold());
    } else {
        eprintln!("error: {text}");
    }
    if let Some(hint) = hint::of(error) {
        eprintln!("hint: {hint}");
    }
}

/// Prints what the user should know although it stops nothing.
pub fn warning(text: &str) {
    if colours(&std::io::stderr()) {
        eprintln!("{} {text}", "warning:".yellow().bold());
    } else {
        eprintln!("warning: {text}");
    }
}

/// Says beside the output what was done.
pub fn note(text: &str) {
    eprintln!("note: {text}");
}

/// Prints a line. A closed pipe is not worth a panic.
pub fn line(text: impl std::fmt::Display) {
    let _ = writeln!(std::io::stdout(), "{text}");
}

/// Prints a piece of an answer at once.
pub fn piece(text: &str) {
    let mut out = std::io::stdout().lock();
    let _ = out.write_all(text.as_bytes());
    let _ = out.flush();
}

/// Prints a document for scripts.
pub fn json(value: &impl serde::Serialize) -> anyhow::Result<()> {
    line(serde_json::to_string_pretty(value)?);
    Ok(())
}

/// Prints a table that fits the terminal.
pub fn table(header: &[&str], rows: Vec<Vec<String>>) {
    let mut table = Table::new();
    let style = presets::UTF8_HORIZONTAL_ONLY.row_separator(comfy_table::LineStyle::none());
    table.load_style(style).set_content_arrangement(ContentArrangement::Dynamic);
    table.set_header(header);
    for row in rows {
        table.add_row(row);
    }
    line(table);
}

/// Bytes in the unit people read.
pub fn bytes(n: u64) -> String {
    indicatif::HumanBytes(n).to_string()
}

/// Sensor readings in the units people read; `None` if there are none.
pub fn sensors(monitor: Monitor) -> Option<String> {
    let Monitor { temperature_c, power_w, clock_mhz, utilisation } = monitor;
    let readings = [
        temperature_c.map(|degrees| format!("{degrees:.0} °C")),
        power_w.map(|watts| format!("{watts:.0} W")),
        clock_mhz.map(|mhz| format!("{mhz:.0} MHz")),
        utilisation.map(|share| format!("{:.0} % busy", share * 100.0)),
    ];
    let told: Vec<String> = readings.into_iter().flatten().collect();
    (!told.is_empty()).then(|| told.join(", "))
}

/// A bar on standard error for work that takes a while; hidden where there is no terminal.
pub fn bar(total: u64, template: &str) -> indicatif::ProgressBar {
    let style = indicatif::ProgressStyle::with_template(template)
        .unwrap_or_else(|_| indicatif::ProgressStyle::default_bar());
    indicatif::ProgressBar::new(total).with_style(style)
}

/// A spinner on standard error with a changing message.
pub fn spinner() -> indicatif::ProgressBar {
    let spinner = indicatif::ProgressBar::new_spinner();
    spinner.enable_steady_tick(std::time::Duration::from_millis(120));
    spinner
}
