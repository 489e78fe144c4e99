//! Runs the simulator: in a process of its own, because it is built with other options than this one.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use anyhow::Context;
use clap::Args;

use crate::run;

/// Seeds from one second to the next: more than anybody asks for at once.
const SEEDS_OF_A_SECOND: u64 = 1_000_000;

/// What to simulate.
#[derive(Args)]
pub struct SimArgs {
    /// One seed; shrunk if it breaks something
    #[arg(long, conflicts_with = "seeds")]
    seed: Option<u64>,
    /// Seeds from A up to B
    #[arg(long, value_name = "A..B")]
    seeds: Option<String>,
    /// So many seeds that nobody has run, drawn from the time: of everything, unless `--kind` says otherwise
    #[arg(long, value_name = "COUNT", num_args = 0..=1, default_missing_value = "300",
          conflicts_with_all = ["seed", "seeds"])]
    fresh: Option<u64>,
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
    /// What the run is about: faults, everything, quiet, join, lies, wire, strangers or window
    #[arg(long)]
    kind: Option<String>,
    /// Print inputs and effects
    #[arg(long)]
    trace: bool,
}

/// Runs it.
pub fn run(args: &SimArgs) -> anyhow::Result<()> {
    let text = |number: Option<u64>| number.map(|number| number.to_string());
    let (mut seeds, mut kind) = (args.seeds.clone(), args.kind.clone());
    if let Some(count) = args.fresh {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).context("the clock is set before 1970")?;
        let range = fresh_range(now, count);
        let named = kind.get_or_insert_with(|| "everything".to_owned());
        println!("once more: cargo xtask sim --kind {named} --seeds {range}");
        seeds = Some(range);
    }
    let seeds = seeds.or_else(|| args.seed.is_none().then(|| "0..500".to_owned()));
    let options = [
        ("--seed", text(args.seed)),
        ("--seeds", seeds),
        ("--only", args.only.clone()),
        ("--clients", args.clients.clone()),
        ("--nodes", text(args.nodes)),
        ("--seconds", text(args.seconds)),
        ("--kind", kind),
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

/// So many seeds of this second, which no other second has.
fn fresh_range(since_1970: Duration, count: u64) -> String {
    let from = since_1970.as_secs() * SEEDS_OF_A_SECOND;
    format!("{from}..{}", from + count)
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

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::fresh_range;

    #[test]
    fn no_two_seconds_have_a_seed_in_common_nor_any_with_the_fixed_ones() {
        assert_eq!(fresh_range(Duration::from_millis(1_999), 300), "1000000..1000300");
        assert_eq!(fresh_range(Duration::from_secs(2), 300), "2000000..2000300");
    }
}
