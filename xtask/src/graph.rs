//! The edges between rooms, printed into the architecture page: a new edge is a line in review. And modules
//! that import each other in circles ([`circles`]), of which there may be none.

mod circles;

use std::collections::BTreeMap;
use std::fmt::Write as _;

use anyhow::{Context, bail};

use crate::{page, run};

const PAGE: &str = "docs/ARCHITECTURE.md";
const START: &str = "<!-- graph: written by `cargo xtask graph` -->";
const END: &str = "<!-- graph: end -->";

/// From the words everyone shares to the faces: an edge may only point up this list.
pub const ORDER: &[&str] = &[
    "exo-types",
    "exo-stdx",
    "exo-local-channel",
    "exo-formats",
    "exo-tokenizer",
    "exo-sampler",
    "exo-constraint",
    "exo-planner",
    "exo-identity",
    "exo-trust",
    "exo-membership",
    "exo-cluster",
    "exo-api",
    "exo-telemetry",
    "exo-machine",
    "exo-backend",
    "exo-device",
    "exo-backend-cpu",
    "exo-backend-wgpu",
    "exo-backend-cuda",
    "exo-transport",
    "exo-discovery",
    "exo-store",
    "exo-hub",
    "exo-journal",
    "exo-models",
    "exo-engine",
    "exo-quant",
    "exo-accelerators",
    "exo-node",
    "exo-server",
    "exo",
];

/// Writes the graph, or checks it. Fails on an edge that points down, and on modules in a circle.
pub fn run(check: bool) -> anyhow::Result<()> {
    let edges = edges()?;
    forbid_downward(&edges)?;
    let mut graph = String::new();
    for (from, to) in &edges {
        writeln!(graph, "    {from:16} -> {}", to.join(", "))?;
    }
    let is_changed = page::rewrite(PAGE, (START, END), check, |_| graph)?;
    if is_changed && check {
        bail!("{PAGE} is out of date: run `cargo xtask graph`");
    }
    circles::run()
}

fn edges() -> anyhow::Result<BTreeMap<String, Vec<String>>> {
    let metadata = run::metadata(true)?;
    let packages = metadata["packages"].as_array().context("cargo metadata lists no packages")?;
    let mut edges = BTreeMap::new();
    for package in packages {
        let name = package["name"].as_str().unwrap_or_default();
        let dependencies = package["dependencies"].as_array().into_iter().flatten();
        forbid_planted(name, dependencies.clone())?;
        let mut ours: Vec<String> = dependencies
            .filter(|d| d["kind"].is_null() && d["path"].is_string())
            .filter_map(|d| d["name"].as_str().map(str::to_owned))
            .collect();
        ours.sort();
        if !ours.is_empty() {
            edges.insert(name.to_owned(), ours);
        }
    }
    Ok(edges)
}

/// Faults that are planted for the simulator are compiled into nothing else.
fn forbid_planted<'a>(
    name: &str,
    mut dependencies: impl Iterator<Item = &'a serde_json::Value>,
) -> anyhow::Result<()> {
    let is_planted = |d: &serde_json::Value| {
        let features = d["features"].as_array().into_iter().flatten();
        d["kind"].is_null() && features.into_iter().any(|feature| feature == "planted")
    };
    if name != "exo-sim" && dependencies.any(is_planted) {
        bail!("{name} enables the feature `planted` of a dependency, which is the simulator's alone");
    }
    Ok(())
}

fn forbid_downward(edges: &BTreeMap<String, Vec<String>>) -> anyhow::Result<()> {
    let rank = |name: &str| ORDER.iter().position(|n| *n == name);
    for (from, targets) in edges {
        for to in targets {
            let Some(above) = rank(to) else {
                bail!(
                    "{from} depends on {to}, which nothing shipped may use, or which ORDER in xtask/src/graph.rs lacks"
                );
            };
            if rank(from).is_some_and(|own| own <= above) {
                bail!(
                    "{from} depends on {to}: dependencies point towards exo-types, see docs/ARCHITECTURE.md"
                );
            }
        }
    }
    Ok(())
}
