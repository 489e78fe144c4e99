//! Runs the simulator: in a process of its own, because it is built with other options than this one.

use clap::Args;

use crate::run;

/// What to simulate.
#[derive(Args)]
pub struct SimArgs {
    /// One seed; shrunk if it breaks something
    #[arg(long, conflicts_with = "seeds")]
    seed: Option<u64>,
    /// Seeds from A up to B
    #[arg(long, value_name = "A..B")]
    seeds: Option<String>,
    /// Only these faults of the seed, by number, or `none`
    #[arg(long)]
    only: Option<String>,
    /// Only these clients of the seed, by number, or `none`
    #[arg(long)]
    clients: Option<String>,
    /// So many nodes
    #[arg(long)]
    nodes: Option<u64>,
    /// So many seconds of simulated time
    #[arg(long)]
    seconds: Option<u64>,
    /// What the run is about: faults, everything, quiet, join, lies, wire or strangers
    #[arg(long)]
    kind: Option<String>,
    /// Print inputs and effects
    #[arg(long)]
    trace: bool,
}

/// Runs it.
pub fn run(args: &SimArgs) -> anyhow::Result<()> {
    let text = |number: Option<u64>| number.map(|number| number.to_string());
    let seeds = args.seeds.clone().or_else(|| args.seed.is_none().then(|| "0..500".to_owned()));
    let options = [
        ("--seed", text(args.seed)),
        ("--seeds", seeds),
        ("--only", args.only.clone()),
        ("--clients", args.clients.clone()),
        ("--nodes", text(args.nodes)),
        ("--seconds", text(args.seconds)),
        ("--kind", args.kind.clone()),
    ];
    let mut all = vec!["run", "--quiet", "--package", "exo-sim", "--bin", "sim", "--"];
    for (option, value) in &options {
        if let Some(value) = value {
            all.extend([*option, value.as_str()]);
        }
    }
    if args.trace {
        all.push("--trace");
    }
    run::cargo(&all)
}

/// Which planted bugs to hunt.
#[derive(Args)]
pub struct PlantedArgs {
    /// Only these, by name, with commas between
    #[arg(long, value_name = "NAMES")]
    bugs: Option<String>,
}

/// Hunts the bugs that are planted in the machine: prints for each which seed found it. For
/// `cargo xtask prove planted`.
pub fn planted(args: &PlantedArgs) -> anyhow::Result<()> {
    let mut all = vec![
        "run",
        "--quiet",
        "--package",
        "exo-sim",
        "--features",
        "planted",
        "--bin",
        "sim",
        "--",
        "--planted",
    ];
    if let Some(bugs) = &args.bugs {
        all.extend(["--bugs", bugs]);
    }
    run::cargo(&all)
}
