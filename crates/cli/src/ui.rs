//! What the terminal sees: tables, bytes for people, colours only where a terminal is, the last error.
//!
//! Everything that is printed goes through here, and whatever is in it, a terminal obeys none of it
//! ([`printable_lines`]). What comes from a node has been made single lines before that, see `client`.
#![allow(clippy::print_stdout, reason = "printing is what this module is for")]

use std::ffi::OsStr;
use std::io::{IsTerminal, Write};
use std::sync::OnceLock;

use comfy_table::{ColumnConstraint, ContentArrangement, Table, Width, presets};
use exo_accelerators::Message;
use exo_types::{Monitor, is_terminal_control, printable_lines};
use owo_colors::OwoColorize;

use crate::hint;

/// Lines of what is printed for people, where the output is no terminal.
const PIPE_COLUMNS: usize = 100;
/// No line is broken for less.
const COLUMNS_MIN: usize = 20;
/// A text that is longer is read as one, and not in a column of a few words a line.
const CELL_CHARS_MAX: usize = 40;
/// The least that a column of such texts is given.
const TEXT_COLUMNS_MIN: usize = 24;
/// Spaces on both sides of a cell.
const CELL_PADDING: usize = 2;

/// Whether to colour what goes to this stream.
pub fn colours(stream: &impl IsTerminal) -> bool {
    stream.is_terminal() && !forbids_colours(std::env::var_os("NO_COLOR").as_deref())
}

/// Whether a variable says that there be no colours: an empty one says nothing (no-color.org).
fn forbids_colours(no_color: Option<&OsStr>) -> bool {
    no_color.is_some_and(|value| !value.is_empty())
}

/// Prints the error with its causes, then one hint that can be acted on.
pub fn error(error: &anyhow::Error) {
    let colours = colours(&std::io::stderr());
    let text = beside(&format!("{error:#}"));
    if colours {
        beside_output(format_args!("{} {text}", "error:".red().bold()));
    } else {
        beside_output(format_args!("error: {text}"));
    }
    if let Some(hint) = hint::of(error) {
        beside_output(format_args!("hint: {hint}"));
    }
}

/// Prints what the user should know although it stops nothing.
pub fn warning(text: &str) {
    let text = beside(text);
    if colours(&std::io::stderr()) {
        beside_output(format_args!("{} {text}", "warning:".yellow().bold()));
    } else {
        beside_output(format_args!("warning: {text}"));
    }
}

/// Says beside the output what was done.
pub fn note(text: &str) {
    beside_output(format_args!("note: {}", beside(text)));
}

/// Prints a line on standard error. Where that is closed, as behind `2>&1 | head`, no one is left to be told;
/// `eprintln!` would end the process with 101.
fn beside_output(line: std::fmt::Arguments<'_>) {
    let _ = writeln!(std::io::stderr(), "{line}");
}

/// A text behind `error:` and the like. Its further lines are indented: words of a file in it cannot begin an
/// error of their own.
fn beside(text: &str) -> String {
    printable_lines(text).replace('\n', "\n  ")
}

/// Why the first write that failed did.
static LOST: OnceLock<std::io::Error> = OnceLock::new();

/// Why the output is not whole. Who closed a pipe wanted no more of it.
pub fn lost_output() -> Option<&'static std::io::Error> {
    LOST.get().filter(|error| error.kind() != std::io::ErrorKind::BrokenPipe)
}

/// Whether a write failed: a command that would go on printing ends then.
pub fn is_output_over() -> bool {
    LOST.get().is_some()
}

fn note_lost(written: std::io::Result<()>) {
    if let Err(error) = written {
        let _ = LOST.set(error);
    }
}

/// Prints a line. A closed pipe is not worth a panic.
pub fn line(text: impl std::fmt::Display) {
    note_lost(writeln!(std::io::stdout(), "{}", printable_lines(&text.to_string())));
}

/// Has the terminal pass on pasted text as it is again, which a prompt that was left in the middle did not.
pub fn leave_prompt() {
    note_lost(std::io::stdout().write_all(b"\x1b[?2004l").and_then(|()| std::io::stdout().flush()));
}

/// How a model's words are printed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Answers {
    /// As they are: `--raw`, files and pipes.
    Raw,
    /// Without what a terminal would obey.
    Printable,
}

impl Answers {
    /// How they go to standard output, if `is_raw` does not say it.
    pub fn to_stdout(is_raw: bool) -> Self {
        if is_raw || !std::io::stdout().is_terminal() { Self::Raw } else { Self::Printable }
    }

    /// Prints a piece of an answer at once.
    pub fn print(self, text: &str) {
        match self {
            Self::Raw => exactly(text),
            Self::Printable => exactly(&printable_lines(text)),
        }
    }
}

/// Prints a text as it is, at once.
pub fn exactly(text: &str) {
    let mut out = std::io::stdout().lock();
    note_lost(out.write_all(text.as_bytes()).and_then(|()| out.flush()));
}

/// Prints a QR code on a terminal that is wide enough for it, and says whether it did. A file or a pipe gets
/// none.
pub fn qr_code(text: &str) -> bool {
    let columns = if std::io::stdout().is_terminal() { Table::new().width() } else { None };
    let Some(drawn) = columns.and_then(|columns| qr_text(text, columns.into())) else { return false };
    line(drawn);
    true
}

/// A QR code in half blocks with its quiet zone, light on dark as most terminals are; `None` if it is too
/// wide or the text too long.
fn qr_text(text: &str, columns: usize) -> Option<String> {
    use qrcode::render::unicode::Dense1x2;
    let code = qrcode::QrCode::with_error_correction_level(text, qrcode::EcLevel::L).ok()?;
    let drawn = code.render().dark_color(Dense1x2::Light).light_color(Dense1x2::Dark).build();
    let fits = drawn.lines().all(|line| line.chars().count() <= columns);
    fits.then_some(drawn)
}

/// Prints a document for scripts.
pub fn json(value: &impl serde::Serialize) -> anyhow::Result<()> {
    line(escaped(&serde_json::to_string_pretty(value)?));
    Ok(())
}

/// Prints a document where a script asks for it, else has the same shown to people.
pub fn json_or(is_json: bool, document: &impl serde::Serialize, show: impl FnOnce()) -> anyhow::Result<()> {
    if is_json {
        return json(document);
    }
    show();
    Ok(())
}

/// Prints a document for scripts on one line.
pub fn json_line(value: &impl serde::Serialize) -> anyhow::Result<()> {
    line(escaped(&serde_json::to_string(value)?));
    Ok(())
}

/// The same JSON, with what a terminal obeys written as `\uXXXX`. Outside of strings JSON has only ends of
/// lines of it.
fn escaped(json: &str) -> String {
    let mut out = String::with_capacity(json.len());
    for c in json.chars() {
        match c {
            // All of these are in the basic plane.
            c if c != '\n' && is_terminal_control(c) => out.push_str(&format!("\\u{:04x}", u32::from(c))),
            c => out.push(c),
        }
    }
    out
}

/// Prints a paragraph, broken between words where it is wider than the terminal.
pub fn paragraph(text: impl std::fmt::Display) {
    line(paragraph_text(&text.to_string(), columns()));
}

fn paragraph_text(text: &str, columns: usize) -> String {
    let broken = |line: &str| {
        if line.chars().count() <= columns {
            return line.to_owned();
        }
        let text = line.trim_start();
        let start = &line[..line.len() - text.len()];
        wrapped(start, text, columns, start.chars().count() + 2)
    };
    text.split('\n').map(broken).collect::<Vec<_>>().join("\n")
}

/// Prints a text behind what it belongs to, its further lines below its first.
pub fn titled(title: &str, text: &str) {
    line(titled_text(title, text, columns()));
}

/// The same as a text.
pub fn titled_text(title: &str, text: &str, columns: usize) -> String {
    wrapped(title, text, columns, title.chars().count().min(columns / 3))
}

/// How wide lines for people are: as the terminal is. A pipe has no width, and scripts read `--json`.
fn columns() -> usize {
    // Some terminals, a serial line for one, say that they have none.
    let columns = Table::new().width().map(usize::from).filter(|columns| *columns > 0);
    columns.map_or(PIPE_COLUMNS, |columns| columns.max(COLUMNS_MIN))
}

/// The text behind `start`, broken between words so that no line is longer, unless a word is; all lines but
/// the first are indented.
fn wrapped(start: &str, text: &str, columns: usize, indent: usize) -> String {
    let (mut out, mut used, mut is_begun) = (start.to_owned(), start.chars().count(), false);
    for word in words(text, columns.saturating_sub(indent)) {
        let length = word.chars().count();
        let is_too_long = used + usize::from(is_begun) + length > columns;
        if is_too_long && (is_begun || used > indent) {
            out.truncate(out.trim_end().len());
            out.push('\n');
            out.push_str(&" ".repeat(indent));
            used = indent;
        } else if is_begun {
            out.push(' ');
            used += 1;
        }
        out.push_str(&word);
        (used, is_begun) = (used + length, true);
    }
    out
}

/// The words of a text. A command in backticks is one, so that it can be copied, unless it is longer than
/// this.
fn words(text: &str, chars_max: usize) -> Vec<String> {
    let mut words: Vec<String> = Vec::new();
    for word in text.split_whitespace() {
        let is_open = |last: &&mut String| {
            let chars = last.chars().count() + 1 + word.chars().count();
            // A stray one, as in somebody's name, opens nothing.
            let begins = last.trim_start_matches(['(', '"']).starts_with('`');
            begins && last.matches('`').count() % 2 == 1 && chars <= chars_max
        };
        match words.last_mut().filter(is_open) {
            Some(last) => *last = format!("{last} {word}"),
            None => words.push(word.to_owned()),
        }
    }
    words
}

/// The rows of a table one below the other: of each the first cell, then the others with what they are
/// called.
fn list<'a>(header: &[&str], rows: &'a [Vec<String>], columns: usize) -> String {
    let mut above = "";
    let paragraph = |row: &'a Vec<String>| {
        // Rows of one thing have its name in the first of them.
        above = row.first().map(String::as_str).filter(|name| !name.is_empty()).unwrap_or(above);
        let first = wrapped("", above, columns, 2);
        let named = header.iter().zip(row).skip(1).filter(|(_, cell)| !cell.is_empty() && *cell != "-");
        let lines = named
            .map(|(name, cell)| wrapped("  ", &format!("{name}: {}", cell.replace('\n', ", ")), columns, 4));
        std::iter::once(first).chain(lines).collect::<Vec<_>>().join("\n")
    };
    rows.iter().map(paragraph).collect::<Vec<_>>().join("\n\n")
}

/// Prints a table that fits the terminal, or [`PIPE_COLUMNS`] where there is none; a list where it would not.
pub fn table(header: &[&str], rows: Vec<Vec<String>>) {
    line(table_text(header, rows, columns()));
}

fn table_text(header: &[&str], rows: Vec<Vec<String>>, columns: usize) -> String {
    let longest =
        |parts: &mut dyn Iterator<Item = &str>| parts.map(|part| part.chars().count()).max().unwrap_or(0);
    let width = |column: usize| {
        let cells = rows.iter().filter_map(|row| row.get(column).map(String::as_str));
        let of_cell = |cell: &str| match (column, longest(&mut cell.lines())) {
            // What a row is about is read and copied whole.
            (0, whole) => whole,
            (_, CELL_CHARS_MAX..) => longest(&mut cell.split_whitespace()).max(TEXT_COLUMNS_MIN),
            _ => longest(&mut cell.split_whitespace()),
        };
        cells.chain([header[column]]).map(of_cell).max().unwrap_or(0) + CELL_PADDING
    };
    let widths: Vec<usize> = (0..header.len()).map(width).collect();
    // A name or an id that is broken is neither read nor copied.
    if widths.iter().map(|width| width + 1).sum::<usize>() > columns {
        return list(header, &rows, columns);
    }
    let mut table = Table::new();
    let style = presets::UTF8_HORIZONTAL_ONLY.row_separator(comfy_table::LineStyle::none());
    table.load_style(style).set_content_arrangement(ContentArrangement::Dynamic);
    table.set_header(header);
    for row in rows {
        table.add_row(row);
    }
    table.set_width(u16::try_from(columns).unwrap_or(u16::MAX));
    for (column, width) in table.column_iter_mut().zip(widths) {
        let width = u16::try_from(width).unwrap_or(u16::MAX);
        column.set_constraint(ColumnConstraint::LowerBoundary(Width::Fixed(width)));
    }
    table.to_string()
}

/// Bytes in the unit people read.
pub fn bytes(n: u64) -> String {
    indicatif::HumanBytes(n).to_string()
}

/// "1 file", "2 files".
pub fn files(count: u64) -> String {
    if count == 1 { "1 file".to_owned() } else { format!("{count} files") }
}

/// A number with three digits that mean something: 2140, 12.1, 0.467.
pub fn figure(value: f64) -> String {
    let power = if value == 0.0 { 0 } else { value.abs().log10().floor() as i32 };
    let unit = 10f64.powi((power - 2).max(0));
    let digits = usize::try_from(2 - power).unwrap_or(0).min(6);
    format!("{:.digits$}", if unit > 1.0 { (value / unit).round() * unit } else { value })
}

/// Operations per second in the unit people read.
pub fn flops(rate: f64) -> String {
    if rate < 1e12 { format!("{:.1} GFLOP/s", rate / 1e9) } else { format!("{:.1} TFLOP/s", rate / 1e12) }
}

/// What a device does with a type of weights.
pub fn type_rates(dtype: exo_types::DType, read_bytes_per_s: f64, flops_per_s: f64) -> String {
    format!("{dtype:?}: {:.1} GB/s, {}", read_bytes_per_s / 1e9, flops(flops_per_s))
}

/// "12 passes, 3 min ago": how often and how long ago a rate was measured.
pub fn measured(passes: u32, age_s: u64) -> String {
    let count = if passes == 1 { "1 pass".to_owned() } else { format!("{passes} passes") };
    match age_s {
        // Nodes tell it in minutes.
        0..60 => format!("{count}, just now"),
        _ => format!("{count}, {}", ago(age_s)),
    }
}

/// So many seconds ago, in the unit people read.
pub fn ago(seconds: u64) -> String {
    format!("{} ago", age(seconds))
}

/// So many seconds, in the unit people read.
pub fn age(seconds: u64) -> String {
    match seconds {
        0..60 => format!("{seconds} s"),
        60..3600 => format!("{} min", seconds / 60),
        _ => format!("{} h", seconds / 3600),
    }
}

/// A duration in the unit people read.
pub fn duration(duration: std::time::Duration) -> String {
    indicatif::HumanDuration(duration).to_string()
}

/// Sensor readings in the units people read; `None` if there are none.
pub fn sensors(monitor: Monitor) -> Option<String> {
    let Monitor { temperature_c, power_w, clock_mhz, utilisation, limit_c: _, throttled } = monitor;
    let readings = [
        temperature_c.map(|degrees| format!("{degrees:.0} °C")),
        power_w.map(|watts| format!("{watts:.0} W")),
        clock_mhz.map(|mhz| format!("{mhz:.0} MHz")),
        utilisation.map(|share| format!("{:.0} % busy", share * 100.0)),
        throttled.filter(|is| *is).map(|_| "slowed down for heat or power".to_owned()),
    ];
    let told: Vec<String> = readings.into_iter().flatten().collect();
    (!told.is_empty()).then(|| told.join(", "))
}

/// A bar on standard error for work that takes a while; hidden where there is no terminal.
pub fn bar(total: u64, template: &str) -> indicatif::ProgressBar {
    indicatif::ProgressBar::new(total).with_style(bar_style(template))
}

/// How a bar looks.
pub fn bar_style(template: &str) -> indicatif::ProgressStyle {
    indicatif::ProgressStyle::with_template(template)
        .unwrap_or_else(|_| indicatif::ProgressStyle::default_bar())
        .with_key("time_left", write_time_left)
}

/// How long the rest takes, once that can be said: without a rate it is not 0 s.
fn write_time_left(state: &indicatif::ProgressState, out: &mut dyn std::fmt::Write) {
    let left = indicatif::HumanDuration(state.eta());
    let _ = if state.per_sec() > 0.0 { write!(out, ", {left:#} left") } else { Ok(()) };
}

/// A spinner on standard error with a changing message.
pub fn spinner() -> indicatif::ProgressBar {
    // Also where what it is shown for is dropped in the middle.
    let spinner = indicatif::ProgressBar::new_spinner().with_finish(indicatif::ProgressFinish::AndClear);
    spinner.enable_steady_tick(std::time::Duration::from_millis(120));
    spinner
}

/// What a spinner says, as a line where no terminal shows one.
pub fn note_in_pipe(text: &str) {
    if !std::io::stderr().is_terminal() {
        note(text);
    }
}

/// What is waited for, in a line now and then where no terminal shows a spinner.
pub struct WaitLines {
    said: String,
    next: std::time::Instant,
}

/// Until the first of them, and between two.
const WAIT_LINES_EVERY: std::time::Duration = std::time::Duration::from_secs(5);

impl WaitLines {
    /// A wait begins.
    pub fn begin() -> Self {
        Self { said: String::new(), next: std::time::Instant::now() + WAIT_LINES_EVERY }
    }

    /// This is what is waited for now.
    pub fn tell(&mut self, text: &str) {
        let now = std::time::Instant::now();
        if now < self.next || text == self.said || std::io::stderr().is_terminal() {
            return;
        }
        note(text);
        (self.said, self.next) = (text.to_owned(), now + WAIT_LINES_EVERY);
    }
}

/// What a user should know while drivers are asked.
pub fn message(message: Message) {
    match message {
        Message::Note(text) => note(&text),
        Message::Warning(text) => warning(&text),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_variable_that_says_something_forbids_colours() {
        assert!(!forbids_colours(None) && !forbids_colours(Some(OsStr::new(""))));
        assert!(forbids_colours(Some(OsStr::new("1"))) && forbids_colours(Some(OsStr::new("0"))));
    }

    #[test]
    fn what_was_measured_says_how_often_and_how_long_ago() {
        assert_eq!(measured(1, 59), "1 pass, just now");
        assert_eq!([measured(12, 60), measured(12, 180)], ["12 passes, 1 min ago", "12 passes, 3 min ago"]);
        assert_eq!(measured(2, 50 * 3600), "2 passes, 50 h ago");
    }

    #[test]
    fn one_file_is_no_files() {
        assert_eq!([0, 1, 2].map(files), ["0 files", "1 file", "2 files"]);
    }

    #[test]
    fn a_qr_code_is_drawn_where_there_is_room_for_all_of_it() {
        let link = format!("exo://join/123-456-789@{}@192.168.1.20:52416,[fd00::20]:52416", "a".repeat(64));
        let drawn = qr_text(&link, 80).unwrap();
        let sides: Vec<usize> = drawn.lines().map(|line| line.chars().count()).collect();
        let side = sides[0];
        assert!(sides.iter().all(|other| *other == side) && sides.len() == side.div_ceil(2), "{sides:?}");
        assert_eq!(qr_text(&link, side - 1), None);
        assert_eq!(qr_text(&"x".repeat(4000), 1000), None, "no QR code holds that");
        // The finder pattern of the upper left corner, behind a quiet zone of four modules.
        let rows: Vec<Vec<char>> = drawn.lines().map(|line| line.chars().collect()).collect();
        assert!(rows[..2].iter().flatten().all(|c| *c == '█'), "{drawn}");
        let corner: Vec<String> = rows[2..6].iter().map(|row| row[4..11].iter().collect()).collect();
        assert_eq!(corner, [" ▄▄▄▄▄ ", " █   █ ", " █▄▄▄█ ", "▄▄▄▄▄▄▄"], "{drawn}");
    }

    #[test]
    fn a_figure_has_three_digits_that_mean_something() {
        let figures = [2142.7, 12.14, 0.4671, 0.0, 999.6, 40.2, 0.000_012].map(figure);
        assert_eq!(figures, ["2140", "12.1", "0.467", "0.00", "1000", "40.2", "0.000012"]);
    }

    #[test]
    fn an_error_that_quotes_a_file_has_no_second_error_in_it() {
        assert_eq!(beside("`x\r\nerror: forged\x1b[2J`"), "`x\n  error: forged\u{FFFD}[2J`");
    }

    #[test]
    fn json_means_the_same_and_holds_nothing_that_a_terminal_obeys() {
        let value = serde_json::json!({"name": "a\x1b[2J\u{9b}1m\u{202E}\n\u{2028}é"});
        let text = escaped(&serde_json::to_string_pretty(&value).unwrap());
        assert!(!text.contains(|c| c != '\n' && is_terminal_control(c)), "{text}");
        assert_eq!(serde_json::from_str::<serde_json::Value>(&text).unwrap(), value);
    }

    #[test]
    fn a_table_breaks_no_word_and_becomes_a_list_where_it_would() {
        let row = [
            "raspberrypi-x4fq (this) (coordinator)",
            "alive",
            "Intel(R) Xeon(R) Processor (cpu)",
            "11.2 GiB of 23.4 GiB",
        ];
        let rows = || vec![row.map(str::to_owned).to_vec(); 2];
        let header = ["node", "status", "device", "memory free"];
        for columns in 20..140 {
            let text = table_text(&header, rows(), columns);
            assert!(text.lines().all(|line| line.chars().count() <= columns.max(22)), "{columns}:\n{text}");
            for word in row.iter().flat_map(|cell| cell.split_whitespace()) {
                assert!(text.matches(word).count() >= 2, "{columns}: {word}\n{text}");
            }
            assert_eq!(text.contains("status:"), columns < 70, "{columns}:\n{text}");
            assert_eq!(text.matches(row[0]).count(), if columns < 37 { 0 } else { 2 }, "{columns}:\n{text}");
        }
    }

    #[test]
    fn a_text_gets_room_in_a_table_or_the_table_becomes_a_list() {
        let why = "the processor playing a graphics card; no node takes it by itself";
        let rows = || vec![["a-card-of-twenty-chars", "vulkan:0", why].map(str::to_owned).to_vec()];
        for columns in 40..120 {
            let text = table_text(&["device", "backend", "why"], rows(), columns);
            assert_eq!(text.contains("backend: "), columns < 63, "{columns}:\n{text}");
            assert!(text.lines().count() <= 8, "{columns}:\n{text}");
        }
    }

    #[test]
    fn a_list_breaks_between_words_and_leaves_out_what_nobody_tells() {
        let row = ["Card A\n0000:01:00.0", "cuda:0", "-", "it gives the known answers of the built-in model"];
        let row = row.map(str::to_owned).to_vec();
        let text = list(&["device", "backend", "memory", "why"], &[row.clone(), row], 25);
        let one = "Card A 0000:01:00.0\n  backend: cuda:0\n  why: it gives the known\n    answers of the\n    built-in model";
        assert_eq!(text, format!("{one}\n\n{one}"));
        let long = "a wordlongerthanthewholeterminal b";
        assert_eq!(wrapped("", long, 10, 1), "a\n wordlongerthanthewholeterminal\n b");
    }

    #[test]
    fn a_paragraph_is_broken_where_it_is_too_wide_and_in_no_command() {
        let text =
            "\n  the node of `attic` asks to join: `exo admit abcdefghijklmnop` lets it in, for good\nshort";
        for columns in 36..100 {
            let shown = paragraph_text(text, columns);
            assert!(shown.lines().all(|line| line.chars().count() <= columns), "{columns}:\n{shown}");
            assert!(shown.contains("`exo admit abcdefghijklmnop`"), "{columns}:\n{shown}");
            assert!(shown.starts_with("\n  the node") && shown.ends_with("\nshort"), "{columns}:\n{shown}");
            assert_eq!(words(&shown, 0), words(text, 0), "{columns}");
        }
        assert_eq!(paragraph_text(text, 100), text);
        let lines = wrapped("ok  disk  ", "12 GiB are free here", 20, 10);
        assert_eq!(lines, "ok  disk  12 GiB are\n          free here");
        assert_eq!(wrapped("warning  processor  ", "fits", 22, 4), "warning  processor\n    fits");
        assert_eq!(words("an `open one is not closed", 10), ["an", "`open one", "is", "not", "closed"]);
        assert_eq!(
            words("a box` asks: `exo admit id` now", 20),
            ["a", "box`", "asks:", "`exo admit id`", "now"]
        );
    }
}
