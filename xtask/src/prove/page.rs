//! What the page takes in a browser, and what a node takes for being watched.
//!
//! Watched means one reader of the event stream and a scrape each five seconds. Telemetry, alerts and the
//! capture of log lines belong to every node and cannot be left out: what an idle node computes in all is
//! more than they do, and is held against their bound.

use std::io::Read;
use std::path::Path;
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use anyhow::Context;
use clap::Args;

use super::Verdict;
use super::decode;
use crate::cluster::{Cluster, Node};
use crate::http::Server;
use crate::pairs::{in_turns, median};
use crate::wait::rest;
use crate::{run, web};

const NODES: usize = 3;
/// Of the event stream of an idle cluster.
const STREAM_BYTES_PER_S: f64 = 1000.0;
const METRICS_MS: f64 = 5.0;
const METRICS_SERIES: usize = 3000;
/// Of a core, in a node that does nothing but be watched.
const CORE_SHARE: f64 = 0.005;
/// Decode while watched, beside decode.
const DECODE_RATIO: f64 = 0.98;

const SCRAPE_EVERY: Duration = Duration::from_secs(5);
/// For an answer, and the longest silence of a stream.
const ANSWER_MAX: Duration = Duration::from_secs(20);
/// Between two looks at whether to stop.
const POLL: Duration = Duration::from_millis(100);
const TOKENS: u32 = 256;
/// Of answers, in each half of a pair: more than one scrape.
const MEASURE: Duration = Duration::from_secs(6);

#[derive(Args)]
pub struct Options {
    /// How long an idle node is looked at, unwatched and watched
    #[arg(long, default_value_t = 60, value_parser = clap::value_parser!(u64).range(5..=3600))]
    seconds: u64,
    /// Pairs of decode, watched and unwatched
    #[arg(long, default_value_t = 20, value_parser = clap::value_parser!(u32).range(1..=1000))]
    pairs: u32,
    /// Only what needs no browser
    #[arg(long)]
    no_browser: bool,
}

pub fn prove(exo: &Path, options: &Options) -> anyhow::Result<Vec<Verdict>> {
    let mut verdicts = Vec::new();
    if !options.no_browser {
        web::run(false)?;
        verdicts.push(in_browser()?);
    }
    verdicts.extend(idle(exo, Duration::from_secs(options.seconds))?);
    verdicts.push(decode(exo, options.pairs)?);
    Ok(verdicts)
}

/// The bounds of the page itself, each of which is printed.
fn in_browser() -> anyhow::Result<Verdict> {
    let script = format!("{}/e2e/numbers.mjs", web::SOURCES);
    let bundle = std::env::current_dir()?.join(web::BUNDLE);
    let status = run::status(Command::new("node").arg(script).env("EXO_PAGE", bundle))?;
    Ok(Verdict::of_program("page in the browser", status.success()))
}

/// What a node computes and sends in a cluster of three that does nothing.
fn idle(exo: &Path, time: Duration) -> anyhow::Result<Vec<Verdict>> {
    let mut cluster = Cluster::start(exo, NODES, &[])?;
    cluster.wait_united()?;
    let node = &cluster.nodes()[0];
    // What follows a start is over by then.
    rest(Duration::from_secs(10));
    let alone = core_share(node, time)?;
    let watchers = Watchers::start(&node.server)?;
    rest(Duration::from_secs(2));
    let (bytes, began) = (watchers.bytes(), Instant::now());
    let watched = core_share(node, time)?;
    let bytes_per_s = (watchers.bytes() - bytes) as f64 / began.elapsed().as_secs_f64();
    watchers.stop();
    let mut times = Vec::new();
    let mut series = 0;
    for _ in 0..20 {
        let began = Instant::now();
        let text = node.server.text("/metrics", ANSWER_MAX)?;
        times.push(began.elapsed().as_secs_f64() * 1e3);
        series = text.lines().filter(|line| !line.starts_with('#')).count();
    }
    let metrics_ms = median(times).context("nothing was scraped")?;
    cluster.stop()?;
    Ok(verdicts(&Idle { alone, watched, bytes_per_s, metrics_ms, series }))
}

/// What was seen of an idle node.
struct Idle {
    /// Shares of a core.
    alone: f64,
    watched: f64,
    bytes_per_s: f64,
    metrics_ms: f64,
    series: usize,
}

fn verdicts(seen: &Idle) -> Vec<Verdict> {
    let Idle { alone, watched, bytes_per_s, metrics_ms, series } = seen;
    vec![
        Verdict {
            line: format!(
                "event stream of {NODES} idle nodes: {bytes_per_s:.0} bytes a second (bound {STREAM_BYTES_PER_S:.0})"
            ),
            is_kept: *bytes_per_s < STREAM_BYTES_PER_S,
        },
        Verdict {
            line: format!(
                "/metrics of one node: {metrics_ms:.1} ms (bound {METRICS_MS}), {series} series (bound {METRICS_SERIES})"
            ),
            is_kept: *metrics_ms < METRICS_MS && *series < METRICS_SERIES,
        },
        Verdict {
            line: format!(
                "an idle node that is watched: {:.2} % of a core in all, {:.2} % when nobody watches (bound {} %)",
                100.0 * watched,
                100.0 * alone,
                100.0 * CORE_SHARE
            ),
            is_kept: *watched < CORE_SHARE,
        },
    ]
}

/// Decode on one node, watched and not, in turns.
fn decode(exo: &Path, pairs: u32) -> anyhow::Result<Verdict> {
    let mut cluster = Cluster::start(exo, 1, &["--speculate=off"])?;
    let instance = cluster.place(0, "demo", 512)?;
    cluster.wait_settled(&instance)?;
    let server = cluster.nodes()[0].server.clone();
    let alone = || decode::tokens_per_s(&server, "demo", TOKENS, MEASURE);
    alone()?;
    let watched = || -> anyhow::Result<f64> {
        let watchers = Watchers::start(&server)?;
        let speed = alone();
        watchers.stop();
        speed
    };
    let mut ratios = Vec::new();
    for pair in 0..pairs {
        let (alone, beside) = in_turns(pair, alone, watched)?;
        ratios.push(beside / alone);
    }
    cluster.stop()?;
    let ratio = median(ratios).context("no pair was measured")?;
    let line = format!("decode while watched: {ratio:.3} x (bound {DECODE_RATIO}), median of {pairs} pairs");
    Ok(Verdict { line, is_kept: ratio >= DECODE_RATIO })
}

fn core_share(node: &Node, time: Duration) -> anyhow::Result<f64> {
    let (began, before) = (Instant::now(), node.processor_seconds()?);
    rest(time);
    Ok((node.processor_seconds()? - before) / began.elapsed().as_secs_f64())
}

/// A reader of the event stream and a scraper, until they are told to stop.
struct Watchers {
    is_over: Arc<AtomicBool>,
    bytes: Arc<AtomicU64>,
    threads: [JoinHandle<()>; 2],
}

impl Watchers {
    fn start(server: &Server) -> anyhow::Result<Self> {
        let (is_over, bytes) = (Arc::<AtomicBool>::default(), Arc::<AtomicU64>::default());
        let mut stream = server.events("/exo/v1/events", ANSWER_MAX)?;
        let (over, counted) = (is_over.clone(), bytes.clone());
        let reader = std::thread::spawn(move || {
            let mut buffer = vec![0; 64 << 10];
            // It says something at least every 5 s.
            while !over.load(Ordering::Relaxed) {
                match stream.read(&mut buffer) {
                    Ok(read) if read > 0 => counted.fetch_add(read as u64, Ordering::Relaxed),
                    _ => break,
                };
            }
        });
        let (over, server) = (is_over.clone(), server.clone());
        let scraper = std::thread::spawn(move || {
            let mut scraped: Option<Instant> = None;
            while !over.load(Ordering::Relaxed) {
                if scraped.is_none_or(|at| at.elapsed() >= SCRAPE_EVERY) {
                    scraped = Some(Instant::now());
                    if let Err(error) = server.text("/metrics", ANSWER_MAX) {
                        eprintln!("a scrape failed: {error:#}");
                    }
                }
                std::thread::park_timeout(POLL);
            }
        });
        Ok(Self { is_over, bytes, threads: [reader, scraper] })
    }

    fn bytes(&self) -> u64 {
        self.bytes.load(Ordering::Relaxed)
    }

    fn stop(self) {
        self.is_over.store(true, Ordering::Relaxed);
        for thread in self.threads {
            let _ = thread.join();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_bound_is_missed_alone() {
        let good =
            || Idle { alone: 0.002, watched: 0.0041, bytes_per_s: 412.0, metrics_ms: 1.25, series: 640 };
        let said: Vec<String> = verdicts(&good()).into_iter().map(|verdict| verdict.line).collect();
        assert_eq!(
            said,
            [
                "event stream of 3 idle nodes: 412 bytes a second (bound 1000)",
                "/metrics of one node: 1.2 ms (bound 5), 640 series (bound 3000)",
                "an idle node that is watched: 0.41 % of a core in all, 0.20 % when nobody watches (bound 0.5 %)",
            ]
        );
        let missed = |seen: Idle| verdicts(&seen).iter().map(|verdict| !verdict.is_kept).collect::<Vec<_>>();
        assert_eq!(missed(good()), [false; 3]);
        assert_eq!(missed(Idle { bytes_per_s: 1000.0, ..good() }), [true, false, false]);
        assert_eq!(missed(Idle { metrics_ms: 5.0, ..good() }), [false, true, false]);
        assert_eq!(missed(Idle { series: 3000, ..good() }), [false, true, false]);
        assert_eq!(missed(Idle { watched: 0.005, ..good() }), [false, false, true]);
    }
}
