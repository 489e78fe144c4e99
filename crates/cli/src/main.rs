//! `exo`: the binary. Reads the command line, runs one command, prints one error with one hint.
//!
//! The work is in `node` and `server`; commands about a running cluster only talk to its API.

#![forbid(unsafe_code)]

mod answer;
mod api_keys;
mod args;
mod client;
mod commands;
mod config;
mod environment;
mod errors;
mod hint;
mod log_writer;
mod named_keys;
mod run_node;
mod shapes;
mod stop;
mod suggest;
mod system;
mod ui;

use std::fmt;
use std::process::ExitCode;
use std::sync::OnceLock;
use std::time::Duration;

use exo_node::{LogCapture, is_free_of_secrets};
use tracing::field::Field;
use tracing_subscriber::Layer;
use tracing_subscriber::field::MakeExt;
use tracing_subscriber::filter::{FilterExt, LevelFilter, filter_fn};
use tracing_subscriber::fmt::format::{Writer, debug_fn};
use tracing_subscriber::fmt::writer::BoxMakeWriter;
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::util::SubscriberInitExt;

use args::{Cli, Command};
use config::{Config, Source};
use log_writer::{FlushWhenDropped, LogWriter};

/// The log of this process, unless it is a worker.
static LOG: OnceLock<LogWriter> = OnceLock::new();
/// For the last lines of the log to be taken when a command ends.
const LOG_END_MAX: Duration = Duration::from_millis(500);

fn main() -> ExitCode {
    exo_backend_cpu::return_freed_memory();
    let cli = args::parse();
    let ended = {
        // Before the error, and also where a panic ends the process.
        let _end = FlushWhenDropped { log: &LOG, max: LOG_END_MAX };
        run(cli)
    };
    match ended {
        Ok(_) if ui::lost_output().is_some() => {
            let why = ui::lost_output().map(ToString::to_string).unwrap_or_default();
            ui::error(&anyhow::anyhow!("the output could not be written: {why}"));
            ExitCode::FAILURE
        }
        Ok(code) => code,
        Err(error) => {
            ui::error(&error);
            ExitCode::FAILURE
        }
    }
}

fn run(cli: Cli) -> anyhow::Result<ExitCode> {
    if let Some(Command::Worker) = cli.command {
        // Its settings come from the node; no file of the user's is its business.
        start_logging(cli.settings.log().unwrap_or("warn"), &Source::Flag, None)?;
        return commands::worker::run().map(|()| ExitCode::SUCCESS);
    }
    let environment = |name: &str| std::env::var(name).ok();
    let (flags, file) = (cli.settings.flags(), cli.settings.config.as_deref());
    let config = match Config::resolve(&flags, &environment, file) {
        // It finds what is wrong, that included.
        Err(error) if matches!(cli.command, Some(Command::Doctor(_))) => {
            Config::without_file(&flags, &environment, file, &error)?
        }
        resolved => resolved?,
    };
    start_logging(config.text("log"), config.source("log"), Some(&config.log))?;
    // Workers inherit it.
    system::leave_no_core_file();
    let command = cli.command.unwrap_or(Command::Start);
    if command.computes() {
        // Before there is another thread: threads and processes inherit it.
        config.confine()?;
    }
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    let result = runtime.block_on(dispatch(command, &config));
    // A blocking read of the terminal must not hold up the exit.
    runtime.shutdown_timeout(Duration::from_secs(1));
    result
}

async fn dispatch(command: Command, config: &Config) -> anyhow::Result<ExitCode> {
    let done = |()| ExitCode::SUCCESS;
    match command {
        Command::Start => commands::start::run(config).await,
        Command::Run(args) => commands::run::run(config, args).await,
        Command::Demo(args) => commands::demo::run(config, args).await,
        Command::Open(args) => commands::open::run(config, &args).await.map(done),
        Command::Status(args) => commands::status::run(config, &args).await.map(done),
        Command::Pull(args) => commands::pull::run(config, args).await,
        Command::Pulls { action, json } => commands::pulls::run(config, action, json).await.map(done),
        Command::Show(args) => commands::pull::show(config, args).await.map(done),
        Command::Alerts(args) => commands::alerts::run(config, &args).await.map(done),
        Command::Logs(args) => commands::logs::run(config, &args).await.map(done),
        Command::Search(args) => commands::pull::search(config, args).await.map(done),
        Command::Login { to } => commands::login::run(config, to).await.map(done),
        Command::Update(args) => commands::update::run(config, args).await,
        Command::Prune(json) => commands::pull::prune(config, json).await.map(done),
        Command::Models { found: true, json, .. } => commands::found::run(json).await.map(done),
        Command::Models { action, json, .. } => commands::models::run(config, action, json).await.map(done),
        Command::Fits(args) => commands::fits::run(config, args).await,
        Command::Place(args) => commands::place::place(config, args).await.map(done),
        Command::Replan(args) => commands::replan::run(config, args).await.map(done),
        Command::Plan(args) => commands::plan::run(config, args).await,
        Command::Unload { instance, yes, json } => {
            commands::place::unload(config, &instance, yes, json).await.map(done)
        }
        Command::Remove { node, json } => commands::members::remove(config, &node, json).await.map(done),
        Command::Drain { node, undo, json } => {
            commands::drain::run(config, &node, undo, json).await.map(done)
        }
        Command::Invite { uses, hours, json } => {
            commands::pairing::invite(config, uses, hours, json).await.map(done)
        }
        Command::Join { code } => commands::pairing::join(config, &code).await.map(done),
        Command::Admin { action } => {
            let (node, role, json) = action.parts();
            commands::members::set_role(config, node, role, json).await.map(done)
        }
        Command::Admit(args) => commands::members::admit(config, &args).await.map(done),
        Command::Stop => commands::stop::run(config).await.map(done),
        Command::Leave { yes } => commands::members::leave(config, yes).map(|()| ExitCode::SUCCESS),
        Command::Bench(args) => commands::bench::run(config, args).await,
        Command::Perplexity(args) => commands::perplexity::run(config, args).await,
        Command::Quantize(args) => commands::quantize::run(config, args).await,
        Command::Devices(args) => commands::devices::run(config, args).await.map(done),
        Command::Doctor(args) => commands::doctor::run(config, &args).await,
        Command::Worker => commands::worker::run().map(done),
        Command::Config(json) => commands::settings::run(config, json).map(done),
    }
}

/// The log on standard error, and what a node keeps of it in memory.
fn start_logging(filter: &str, source: &Source, capture: Option<&LogCapture>) -> anyhow::Result<()> {
    // What it warns of is a network that is away, which links tell.
    let quiet = match filter.trim() {
        "" | "off" => filter.to_owned(),
        _ => format!("quinn_udp=error,{filter}"),
    };
    let filter = tracing_subscriber::EnvFilter::try_new(quiet)
        .map_err(|e| anyhow::anyhow!("setting `log` is `{filter}` (from {source}): {e}"))?;
    let free_of_secrets = filter_fn(is_free_of_secrets).with_max_level_hint(LevelFilter::TRACE);
    // A worker hears of no peer.
    let peers = capture.cloned().unwrap_or_default().shown_lines::<tracing_subscriber::Registry>();
    let writer = match capture {
        Some(_) => {
            let log = LOG.get_or_init(|| LogWriter::to(std::io::stderr()));
            BoxMakeWriter::new(move || log.clone())
        }
        // What a worker says last may be why its driver ends it.
        None => BoxMakeWriter::new(std::io::stderr),
    };
    let shown = tracing_subscriber::fmt::layer()
        .with_writer(writer)
        .with_ansi(ui::colours(&std::io::stderr()))
        // It would tell of a closed standard error there, and panic.
        .log_internal_errors(false)
        .fmt_fields(debug_fn(log_field).delimited(" "))
        .with_filter(filter.and(free_of_secrets).and(peers));
    tracing_subscriber::registry().with(shown).with(capture.map(LogCapture::layer)).init();
    Ok(())
}

/// Longest value in a line of the log, in characters.
const LOG_VALUE_CHARS_MAX: usize = 2000;

/// One field of a line of the log, which may hold words of other nodes: on one line, and a terminal obeys
/// nothing in it.
fn log_field(writer: &mut Writer<'_>, field: &Field, value: &dyn fmt::Debug) -> fmt::Result {
    let value = exo_types::printable(&format!("{value:?}"), LOG_VALUE_CHARS_MAX);
    match field.name() {
        "message" => write!(writer, "{value}"),
        name => write!(writer, "{name}={value}"),
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;
    use std::sync::{Arc, Mutex, PoisonError};

    use super::*;

    /// Standard error, as the test reads it.
    #[derive(Clone, Default)]
    struct Lines(Arc<Mutex<Vec<u8>>>);

    impl Write for Lines {
        fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
            self.0.lock().unwrap_or_else(PoisonError::into_inner).extend_from_slice(bytes);
            Ok(bytes.len())
        }

        fn flush(&mut self) -> std::io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn what_libraries_that_see_secrets_say_below_info_is_not_shown() {
        let lines = Lines::default();
        let to = lines.clone();
        let shown = tracing_subscriber::fmt::layer()
            .with_writer(move || to.clone())
            .with_filter(filter_fn(is_free_of_secrets));
        tracing::subscriber::with_default(tracing_subscriber::registry().with(shown), || {
            tracing::trace!(target: "ureq_proto::util", "a dump");
            tracing::debug!(target: "rustyline", "a key");
            tracing::trace!(target: "tokenizers::tokenizer::normalizer", "a letter");
            tracing::info!(target: "ureq::run", "shown 1");
            tracing::trace!(target: "exo_hub::ranges", "shown 2");
            tracing::debug!(target: "events::log", "shown 3");
        });
        let text = String::from_utf8(lines.0.lock().unwrap().clone()).unwrap();
        assert_eq!((text.lines().count(), text.matches("shown ").count()), (3, 3), "{text}");
    }

    #[test]
    fn a_line_of_the_log_stays_one_line_that_a_terminal_obeys_in_nothing() {
        let (lines, hostile) = (Lines::default(), "x\x1b[2J\u{9b}1m\nforged\u{202E}".repeat(1000));
        let to = lines.clone();
        let log = tracing_subscriber::fmt().with_ansi(false).with_writer(move || to.clone());
        tracing::subscriber::with_default(
            log.fmt_fields(debug_fn(log_field).delimited(" ")).finish(),
            || {
                let _span = tracing::warn_span!("request", name = %hostile).entered();
                tracing::warn!(reason = %hostile, quoted = hostile, "a message of {hostile}");
            },
        );
        let text = String::from_utf8(lines.0.lock().unwrap().clone()).unwrap();
        assert!(text.contains("a message of x\u{FFFD}[2J") && text.contains("reason=x\u{FFFD}[2J"), "{text}");
        assert_eq!(text.lines().count(), 1, "{text}");
        assert!(
            !text.contains(|c| exo_types::is_terminal_control(c) && c != '\n') && text.len() < 20_000,
            "{text}"
        );
    }
}
