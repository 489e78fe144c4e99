//! The project's own commands. `cargo xtask --help` lists them.
//!
//! `demo` and `test` are the two commands of the README: each does its own set-up on a fresh machine.

#![forbid(unsafe_code)]

mod bench;
mod child;
mod cluster;
mod cuda;
mod emulate;
mod graph;
mod http;
mod lan;
mod licences;
mod page;
mod pairs;
mod portability;
mod prove;
mod rng;
mod run;
mod screenshots;
mod setup;
mod signals;
mod sim;
mod soundness;
mod system;
mod test;
mod tidy;
mod wait;
mod web;
mod wine;
mod wire;

use clap::{Parser, Subcommand};

#[derive(Parser)]
#[command(name = "cargo xtask", about = "The project's own commands", disable_help_subcommand = true)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Set up, build the release binary and run `exo demo`: a cluster of three nodes and a model split over
    /// them
    #[command(after_help = "Example: cargo xtask demo -- --keep")]
    Demo {
        /// Arguments for `exo demo`
        #[arg(last = true)]
        args: Vec<String>,
    },
    /// Set up, then check format, lints, docs, licences and house rules, and run every test: what CI runs
    Test {
        /// Only run the tests whose name contains this
        filter: Option<String>,
        /// Skip format, lints, docs, licences and house rules
        #[arg(long)]
        tests_only: bool,
    },
    /// Measure the release binary beside llama.cpp on the same files and cores, and hold it against the
    /// project's bounds
    #[command(
        after_help = "Examples:\n  cargo xtask bench --llama ~/llama.cpp/build/bin model-Q8_0.gguf model-Q4_0.gguf\n  \
                            cargo xtask bench --quick model-Q8_0.gguf\n  \
                            cargo xtask bench --only streams,idle --threads 2 model-Q8_0.gguf"
    )]
    Bench(bench::BenchArgs),
    /// Run proofs that are too long for CI, each bounded in time, and print a line for each
    #[command(
        after_help = "Examples:\n  cargo xtask prove\n  cargo xtask prove fresh-clusters --clusters 10\n  \
                            cargo xtask prove token-cost\n  \
                            cargo xtask prove speed --before /tmp/exo-before --model model-Q8_0.gguf"
    )]
    Prove(prove::ProveArgs),
    /// Check the house rules: long functions, dead files, broken links in docs
    Tidy,
    /// Write the dependency edges between rooms into docs/ARCHITECTURE.md
    Graph {
        /// Fail if the page is out of date instead of writing it
        #[arg(long)]
        check: bool,
    },
    /// Compile the CUDA kernels to the PTX that is committed, with NVIDIA's compiler from PyPI
    Ptx {
        /// Fail if the committed PTX is not what the kernels compile to, instead of writing it
        #[arg(long)]
        check: bool,
        /// Assemble the committed PTX for some cards and print what each kernel takes
        #[arg(long, conflicts_with = "check")]
        assemble: bool,
    },
    /// Compile the CUDA kernels for an AMD card with clang, to see that they are HIP too
    Hip,
    /// Simulate whole clusters: seeds 0 to 500, or the one that broke something
    #[command(
        after_help = "Examples:\n  cargo xtask sim --seeds 0..500\n  cargo xtask sim --seed 4711 --only 3,7 --trace\n  cargo xtask sim --fresh"
    )]
    Sim(sim::SimArgs),
    /// Check the licence of every dependency
    Licences,
    /// Run the tests of the CPU kernels on an emulated processor (docs/platforms.md)
    Emulate {
        #[command(subcommand)]
        machine: emulate::Machine,
    },
    /// Run the tests of the CPU kernels under AddressSanitizer and Miri; needs Rust's nightly compiler and up
    /// to an hour
    #[command(after_help = "Examples:\n  cargo xtask soundness\n  cargo xtask soundness asan")]
    Soundness {
        /// Only this one
        only: Option<soundness::Checker>,
    },
    /// Type-check for Windows, macOS, iOS and Android, and write the result to docs/platforms.md; takes many
    /// minutes
    #[command(after_help = "Examples:\n  cargo xtask portability\n  cargo xtask portability Windows")]
    Portability {
        /// Only these systems
        systems: Vec<String>,
    },
    /// Check, test and build the page that the program shows in browsers; needs Node 20 and npm
    #[command(
        after_help = "Examples:\n  cargo xtask web\n  cargo xtask web --quick    only build it, with the packages that are there"
    )]
    Web {
        /// Only build it: no set-up, no checks, no tests
        #[arg(long)]
        quick: bool,
    },
    /// Take the pictures of docs/dashboard.md, from three nodes on loopback; needs Chromium
    #[command(after_help = "Example: cargo xtask screenshots --exo target/debug/exo")]
    Screenshots(screenshots::ScreenshotsArgs),
    /// Run the tests of `exo-device` that are for Windows under Wine, with graphics cards that are played;
    /// takes minutes
    Wine,
}

fn main() -> std::process::ExitCode {
    match dispatch() {
        Ok(()) => std::process::ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error:#}");
            std::process::ExitCode::FAILURE
        }
    }
}

fn dispatch() -> anyhow::Result<()> {
    run::enter_workspace()?;
    match Cli::parse().command {
        Command::Demo { args } => demo(&args),
        Command::Test { filter, tests_only } => test::run(filter.as_deref(), tests_only),
        Command::Bench(args) => bench::run(args),
        Command::Prove(args) => prove::run(args),
        Command::Tidy => tidy::run(),
        Command::Graph { check } => graph::run(check),
        Command::Ptx { assemble: true, .. } => cuda::assemble(),
        Command::Ptx { check, .. } => cuda::ptx(check),
        Command::Hip => cuda::hip(),
        Command::Sim(args) => sim::run(&args),
        Command::Licences => licences::run(),
        Command::Emulate { machine } => emulate::run(machine),
        Command::Soundness { only } => soundness::run(only),
        Command::Portability { systems } => portability::run(&systems),
        Command::Web { quick } => web::run(quick),
        Command::Screenshots(args) => screenshots::run(&args),
        Command::Wine => wine::run(),
    }
}

fn demo(args: &[String]) -> anyhow::Result<()> {
    setup::for_build()?;
    web::run(false)?;
    run::cargo(&["build", "--release", "--package", "exo"])?;
    let mut demo = std::process::Command::new(run::release_binary()?);
    demo.arg("demo").args(args);
    system::become_program(demo)
}
