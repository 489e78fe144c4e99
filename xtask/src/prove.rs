//! `cargo xtask prove`: proofs that are too long for CI. Each is bounded in time and prints one line for what
//! it proves; the exit status is 1 when a bound is missed.
//!
//! Nodes run on loopback with folders of their own, end when we do, and are ended by their own ids. A proof
//! is a file here, an arm of [`Proof`], and a line in [`run()`].

mod blackout;
mod choice;
mod concurrent;
mod constrained;
mod decode;
mod freeze;
mod keys;
mod kills;
mod moves;
mod page;
mod predictions;
mod pulls;
mod runs;
mod schemas;
mod soak;
mod speed;
mod streams;

use std::path::PathBuf;
use std::process::Command;

use anyhow::bail;
use clap::{Args, Subcommand};

use crate::{run, setup};

const FRESH_CLUSTERS: u32 = 100;

#[derive(Args)]
pub struct ProveArgs {
    /// Only this one; without, the three that take a few minutes together: token-cost, bodies, fresh-clusters
    #[command(subcommand)]
    proof: Option<Proof>,
    /// An exo binary instead of this tree's, which is built. Proofs that cargo runs as tests or programs of
    /// their own take none
    #[arg(long, value_name = "FILE", global = true)]
    exo: Option<PathBuf>,
}

#[derive(Subcommand)]
enum Proof {
    /// What a cluster has acknowledged is there when all its nodes were killed at once and started again, and
    /// it serves
    #[command(after_help = "Example: cargo xtask prove blackout --rounds 1 --slow 0 --seed 7")]
    Blackout(blackout::Options),
    /// A node limited to 1 GiB withstands three minutes of hostile bodies, gives the memory back, and answers
    /// short requests beside them within 200 ms
    Bodies,
    /// The placement that a plan chooses is as fast as the best on two nodes: alone on each, or split
    #[command(after_help = "Example: cargo xtask prove choice --model qwen3-0.6b-q8_0.gguf --link 100:5")]
    Choice(choice::Options),
    /// Answers with a schema are of it, whatever the logits; no instance of the JSON Schema Test Suite is
    /// judged otherwise than there; masks and compiling take no longer than they may; calls of tools are read
    /// back in the templates of others
    Constrained,
    /// Of two nodes one coordinates and stands still for a while: the other's streams never stop, and nobody
    /// leads a second time when it goes on
    #[command(after_help = "Example: cargo xtask prove freeze --seconds 300 --times 2")]
    Freeze(freeze::Options),
    /// Fresh clusters of three nodes each answer at the moment when the model is ready, whichever member is
    /// asked
    FreshClusters {
        /// How many, one after the other
        #[arg(long, default_value_t = FRESH_CLUSTERS, value_parser = clap::value_parser!(u32).range(1..=10_000))]
        clusters: u32,
    },
    /// Who holds one API key waits at most twice as long beside a hundred connections of another key as
    /// beside one, and is not refused
    #[command(after_help = "Example: cargo xtask prove keys --model qwen3-0.6b-q8_0.gguf")]
    Keys(keys::Options),
    /// Answers go on, with the same tokens, when the node of a stage or the coordinator is killed, or stands
    /// still, and at another node when their client's is killed
    #[command(after_help = "Examples:\n  cargo xtask prove kills --who coordinator,coordinator-stage\n  \
                            cargo xtask prove kills --who driver\n  \
                            cargo xtask prove kills --stop 30 --times 10\n  \
                            cargo xtask prove kills --model 25m-q8_0.gguf --temperature 0 --compute-share 20%")]
    Kills(kills::Options),
    /// Streams hardly pause when layers leave a node that is drained or ends, and not at all for a node that
    /// joins
    #[command(after_help = "Example: cargo xtask prove moves --only drain --times 50")]
    Moves(moves::Options),
    /// What the page takes in a browser, and what a node takes for being watched: bytes, milliseconds, parts
    /// of a core
    #[command(after_help = "Example: cargo xtask prove page --seconds 60 --pairs 20")]
    Page(page::Options),
    /// What plans say of the first token and of tokens per second comes true, on up to three nodes
    #[command(after_help = "Example: cargo xtask prove predictions --model qwen3-0.6b-q8_0.gguf --threads 1")]
    Predictions(predictions::Options),
    /// A model comes from a hub nearly as fast as `curl` or the disk lets it, fills a line on which answers
    /// break off, and loses at most eight chunks when it is killed; to three nodes it comes once, in layers.
    /// The line and the nodes need root
    #[command(after_help = "Examples:\n  cargo xtask prove pulls --only kills --kills 50 --mib 2048\n  \
                            cargo xtask prove pulls --only swarm --model qwen3-0.6b-q8_0.gguf")]
    Pulls(pulls::Options),
    /// Answers that are held to a schema come as fast as free ones, on one node and over three
    #[command(after_help = "Example: cargo xtask prove schemas --model qwen3-0.6b-q4_0.gguf")]
    Schemas(schemas::Options),
    /// Four machines on a network of their own serve right answers while one after the other is killed,
    /// ended, stopped, cut off or drained; needs root
    #[command(after_help = "Example: cargo xtask prove soak --minutes 10 --seed 7")]
    Soak(soak::Options),
    /// Decode is as fast as that of another binary, on one node and split over two
    #[command(
        after_help = "Example: cargo xtask prove speed --before /tmp/exo-before --model qwen3-0.6b-q8_0.gguf"
    )]
    Speed(speed::Options),
    /// The simulator finds each bug that is planted in the machine, and says which seed and invariant found
    /// it
    Planted(crate::sim::PlantedArgs),
    /// A token takes little of the machine's CPU time, alone and in batches, and no call of it takes long
    TokenCost,
}

impl Proof {
    /// Whether cargo builds what it runs.
    fn is_of_this_tree(&self) -> bool {
        use Proof::{Bodies, Constrained, FreshClusters, Planted, TokenCost};
        matches!(self, Bodies | Constrained | FreshClusters { .. } | Planted(_) | TokenCost)
    }
}

/// What a proof found: the line for people, and whether every bound is kept.
struct Verdict {
    line: String,
    is_kept: bool,
}

impl Verdict {
    /// Of a program that has printed what it found.
    fn of_program(what: &str, is_kept: bool) -> Self {
        let how = if is_kept { "every bound is kept" } else { "not every bound is kept, see above" };
        Self { line: format!("{what}: {how}"), is_kept }
    }

    /// Of one that cargo runs: it keeps the bounds itself, and its lines go to our terminal.
    fn of_cargo(what: &str, args: &[&str]) -> anyhow::Result<Self> {
        let status = run::status(Command::new(run::cargo_program()).args(args))?;
        Ok(Self::of_program(what, status.success()))
    }
}

/// Three minutes of hostile bodies at a node that may have 1 GiB.
fn bodies() -> anyhow::Result<Verdict> {
    const TEST: &str =
        "hostile_bodies::a_node_of_1_gib_withstands_three_minutes_of_hostile_bodies_from_sixteen_clients";
    test_of_exo("bodies", TEST, None)
}

/// So many clusters, each of which is asked for the first time when its model is ready.
fn fresh_clusters(clusters: u32) -> anyhow::Result<Verdict> {
    const TEST: &str =
        "first_request::a_request_at_the_moment_of_ready_is_answered_at_once_by_every_kind_of_member";
    test_of_exo("fresh-clusters", TEST, Some(("EXO_FRESH_CLUSTERS", clusters.to_string())))
}

/// The long form of an ordinary test of the command line, which keeps the bounds itself.
fn test_of_exo(what: &str, test: &str, env: Option<(&str, String)>) -> anyhow::Result<Verdict> {
    let mut cargo = Command::new(run::cargo_program());
    cargo.args(["test", "--quiet", "--package", "exo", "--test", "all", "--"]);
    cargo.args(["--include-ignored", "--nocapture", "--exact", test]).envs(env);
    Ok(Verdict::of_program(what, run::status(&mut cargo)?.success()))
}

/// What a token costs the machine, measured in a process of its own: it counts what it allocates, and is
/// built as the simulator is. It ends with 1 where a bound is not kept; anything else says nothing of them.
fn token_cost() -> anyhow::Result<Verdict> {
    let args = ["run", "--quiet", "--package", "exo-sim", "--bin", "token-cost"];
    let status = run::status(Command::new(run::cargo_program()).args(args))?;
    match status.code() {
        Some(code @ (0 | 1)) => Ok(Verdict::of_program("token-cost", code == 0)),
        _ => bail!("`cargo {}` failed: {status}", args.join(" ")),
    }
}

/// Runs one proof, or those that are short.
pub fn run(ProveArgs { proof, exo }: ProveArgs) -> anyhow::Result<()> {
    if exo.is_some() && proof.as_ref().is_none_or(Proof::is_of_this_tree) {
        bail!("this proof is a test or a program of its own, built from this tree: leave out --exo");
    }
    let exo = || setup::exo_binary(exo.as_deref());
    let verdicts = match proof {
        Some(Proof::Blackout(options)) => vec![blackout::prove(&exo()?, &options)?],
        Some(Proof::Bodies) => vec![bodies()?],
        Some(Proof::Choice(options)) => vec![choice::prove(&exo()?, &options)?],
        Some(Proof::Constrained) => constrained::prove()?,
        Some(Proof::Freeze(options)) => freeze::prove(&exo()?, &options)?,
        Some(Proof::FreshClusters { clusters }) => vec![fresh_clusters(clusters)?],
        Some(Proof::Keys(options)) => vec![keys::prove(&exo()?, &options)?],
        Some(Proof::Kills(options)) => kills::prove(&exo()?, &options)?,
        Some(Proof::Moves(options)) => moves::prove(&exo()?, &options)?,
        Some(Proof::Page(options)) => page::prove(&exo()?, &options)?,
        Some(Proof::Predictions(options)) => vec![predictions::prove(&exo()?, &options)?],
        Some(Proof::Pulls(options)) => pulls::prove(exo()?, &options)?,
        Some(Proof::Schemas(options)) => schemas::prove(&exo()?, &options)?,
        Some(Proof::Soak(options)) => soak::prove(exo()?, &options)?,
        Some(Proof::Speed(options)) => speed::prove(&exo()?, &options)?,
        // It prints its own lines and ends with 1 where a bug was not found.
        Some(Proof::Planted(args)) => return crate::sim::planted(&args),
        Some(Proof::TokenCost) => vec![token_cost()?],
        None => {
            eprintln!("of all proofs the short ones; the others are named: see `cargo xtask prove --help`");
            vec![token_cost()?, bodies()?, fresh_clusters(FRESH_CLUSTERS)?]
        }
    };
    for verdict in &verdicts {
        println!("{}", verdict.line);
    }
    match verdicts.iter().filter(|verdict| !verdict.is_kept).count() {
        0 => Ok(()),
        missed => bail!("{missed} of {} bounds missed", verdicts.len()),
    }
}
