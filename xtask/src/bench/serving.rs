//! A node beside `llama-server`: several streams, a cached prefix, an idle node.

use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use serde_json::json;

use super::Bench;
use super::args::Part;
use super::cells::{Sample, Subject, What};
use super::load::{Target, prompt};
use crate::child::{self, Running};
use crate::cluster::{self, Cluster};
use crate::http::Server;
use crate::pairs::{in_turns, median};
use crate::system;
use crate::wait::{rest, wait_for};

/// Tokens of each stream's prompt and answer.
const STREAM_PROMPT: usize = 32;
const STREAM_TOKENS: u32 = 64;
/// Prompt tokens that both prompts of a pair share, and those after them.
const PREFIX: usize = 1000;
const SUFFIX: usize = 16;
/// Longest sequence here, with room for the longest prompt.
const CONTEXT: u32 = 2048;
/// Tokens of keys and values for each stream, on both servers. A whole context for each of 32 streams would
/// be gigabytes.
const STREAM_CACHE: u32 = 512;
/// From the order to load to ready.
const LOAD_MAX: Duration = Duration::from_secs(180);
/// For an answer that needs no model.
const ANSWER_MAX: Duration = Duration::from_secs(60);
/// How long an idle node is watched at a time: at the bound of 1 %, ten of the ticks the kernel counts in.
const IDLE: Duration = Duration::from_secs(10);
/// Between two looks at a server that starts.
const POLL: Duration = Duration::from_millis(20);

/// A node with one model on it.
pub struct Node {
    cluster: Cluster,
    pub target: Target,
    /// From the order to place it to its first token.
    first_token_s: f64,
}

impl Bench {
    /// Everything that needs servers, for one model.
    pub(super) fn serve(&mut self, model: &Path, threads: usize) -> anyhow::Result<()> {
        if !self.has_time(&format!("servers for {}", model.display())) {
            return Ok(());
        }
        // Two at least: a stream and the prompt beside it.
        let slots = self.args.streams.iter().copied().fold(2, u32::max);
        let node = self.start_node(model, threads, slots, &[])?;
        let subject = Subject::new(model, &self.dtype_of(model));
        let mut add =
            |what, ours| self.cells.add(&subject, threads, what, Sample { ours, theirs: None, share: None });
        add(What::PlaceToToken, node.first_token_s);
        // First: the longest wait may well be that of a scheduler that has measured nothing yet.
        if self.has(Part::Gap) {
            self.gap(&node.target, &subject, threads)?;
        }
        if self.has(Part::Streams) {
            for streams in self.args.streams.clone() {
                self.streams(&node, &subject, model, threads, streams)?;
            }
        }
        if self.has(Part::Prefix) {
            self.cached_prefix(&node, &subject, threads)?;
        }
        if self.has(Part::Idle) {
            let share = idle_share(&node.cluster.nodes()[0])?;
            self.cells.add(&subject, threads, What::Idle, Sample { ours: share, theirs: None, share: None });
        }
        Ok(())
    }

    /// Bursts of streams at the node and at a `llama-server` with as many slots, in turns.
    fn streams(
        &mut self,
        node: &Node,
        subject: &Subject,
        model: &Path,
        threads: usize,
        streams: u32,
    ) -> anyhow::Result<()> {
        let server = self.start_llama(model, threads, streams)?;
        let burst = |target: &Target, round: u32| -> anyhow::Result<f64> {
            let burst = target.burst(streams, STREAM_PROMPT, STREAM_TOKENS, u64::from(round) + 1)?;
            Ok(burst.tokens as f64 / burst.seconds)
        };
        for round in 0..self.args.rounds {
            if !self.has_time(&format!("{streams} streams on {}", subject.name)) {
                break;
            }
            let theirs = || server.as_ref().map(|(_, target)| burst(target, round)).transpose();
            let (ours, theirs) = in_turns(round, || burst(&node.target, round), theirs)?;
            self.cells.add(subject, threads, What::Streams(streams), Sample { ours, theirs, share: None });
            let ratio = theirs.map_or_else(String::new, |t| format!(" ({:.2} x)", ours / t));
            eprintln!(
                "round {} {} {threads} threads: {streams} streams {ours:.1} t/s{ratio}",
                round + 1,
                subject.name
            );
        }
        Ok(())
    }

    /// Pairs of prompts: one that nobody asked before, one whose first 1,000 tokens somebody did.
    fn cached_prefix(&mut self, node: &Node, subject: &Subject, threads: usize) -> anyhow::Result<()> {
        for round in 0..u64::from(self.args.rounds) {
            if !self.has_time("the cached prefix") {
                break;
            }
            let prefix = prompt(PREFIX, 100_000 + round);
            let ask = |suffix: u64| {
                let tokens = [prefix.clone(), prompt(SUFFIX, 200_000 + 2 * round + suffix)].concat();
                node.target.complete(&tokens, 1).map(|(seconds, _)| seconds)
            };
            let (uncached, cached) = (ask(0)?, ask(1)?);
            let sample = Sample { ours: cached / uncached, theirs: None, share: None };
            self.cells.add(subject, threads, What::CachedPrefix, sample);
            eprintln!(
                "round {} {}: first token {uncached:.3} s, cached {cached:.3} s",
                round + 1,
                subject.name
            );
        }
        Ok(())
    }

    /// A node with `slots` for the model, started with further `flags`.
    pub(super) fn start_node(
        &self,
        model: &Path,
        threads: usize,
        slots: u32,
        flags: &[String],
    ) -> anyhow::Result<Node> {
        let flags = || [flags, &[format!("--threads={threads}")]].concat();
        let cores = &self.cores[..threads];
        // A node runs on the cores of the thread that starts it.
        let mut cluster = system::on_own_thread(|| {
            system::pin_this_thread(cores)?;
            Cluster::start_on(&self.programs.exo, 1, None, Vec::new(), |_| flags())
        })?;
        let name = cluster.model(Some(model))?;
        let began = Instant::now();
        // Prompts that are kept for the cached prefix need room beside a whole context.
        let cache_tokens = (slots * STREAM_CACHE).max(2 * CONTEXT);
        let order = json!({
            "model": name, "context_tokens": CONTEXT, "slots": slots, "cache_tokens": cache_tokens,
        });
        let instance = cluster.place_as(0, &order)?;
        let target = Target { server: cluster.nodes()[0].server.clone(), model: name, is_llama: false };
        target.complete(&prompt(8, 1), 1)?;
        let first_token_s = began.elapsed().as_secs_f64();
        // Whatever is measured next is measured on packed weights.
        cluster.wait_settled(&instance)?;
        Ok(Node { cluster, target, first_token_s })
    }

    /// `None` without llama.cpp.
    fn start_llama(
        &self,
        model: &Path,
        threads: usize,
        slots: u32,
    ) -> anyhow::Result<Option<(Running, Target)>> {
        let Some(llama) = &self.programs.llama else { return Ok(None) };
        let port = free_port()?;
        let mut command = Command::new(&llama.server);
        command.arg("-m").arg(model).args(["--host", "127.0.0.1", "--port", &port.to_string()]);
        command.args([
            "-t",
            &threads.to_string(),
            "-np",
            &slots.to_string(),
            "-c",
            &(slots * STREAM_CACHE).to_string(),
        ]);
        let mut process = child::start(command, &self.cores[..threads])?;
        let server = Server {
            address: SocketAddr::from((Ipv4Addr::LOCALHOST, port)),
            secret: String::new(),
            network: None,
        };
        wait_for("loading the model into llama-server", (LOAD_MAX, POLL), || match process.has_ended() {
            None => Ok(server.get("/health", ANSWER_MAX).ok()),
            Some((status, said)) => bail!("llama-server ended by itself ({status}): {said}"),
        })?;
        let target = Target { server, model: "any".to_owned(), is_llama: true };
        target.complete(&prompt(8, 1), 1)?;
        Ok(Some((process, target)))
    }

    /// The type of a model's weights, from the solo runs or else from its name.
    pub(super) fn dtype_of(&self, model: &Path) -> String {
        let name = Subject::new(model, "").name;
        let known = self.cells.iter().find(|c| c.subject.name == name).map(|c| c.subject.dtype.clone());
        known.unwrap_or_else(|| dtype_in(&name))
    }
}

/// `llama-3.2-1b-Q4_K_M` is mostly Q4_K.
fn dtype_in(name: &str) -> String {
    const TYPES: [&str; 10] = ["Q8_0", "Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q4_K", "Q5_K", "Q6_K", "BF16", "F16"];
    TYPES.iter().find(|t| name.contains(**t)).map_or_else(String::new, |t| (*t).to_owned())
}

/// A port nobody listens on now.
fn free_port() -> anyhow::Result<u16> {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).context("no free port")?;
    Ok(listener.local_addr()?.port())
}

/// Processor time over time of a process that is left alone: the median of three parts, so that one rare duty
/// does not stand for all.
fn idle_share(node: &cluster::Node) -> anyhow::Result<f64> {
    // What the last request left to do.
    rest(Duration::from_secs(2));
    let mut shares = Vec::new();
    for _ in 0..3 {
        let (began, before) = (Instant::now(), node.processor_seconds()?);
        rest(IDLE);
        shares.push((node.processor_seconds()? - before) / began.elapsed().as_secs_f64());
    }
    median(shares).context("an idle node was not watched")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_files_name_tells_its_type() {
        for (name, dtype) in [("a-Q4_K_M", "Q4_K"), ("b-BF16", "BF16"), ("c-F16", "F16"), ("d", "")] {
            assert_eq!(dtype_in(name), dtype);
        }
    }
}
