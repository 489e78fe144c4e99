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
    forbid_named(&edges)?;
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
        forbid_planted(package)?;
        let dependencies = package["dependencies"].as_array().into_iter().flatten();
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

/// Faults that are planted for the simulator are compiled into nothing else, and not by default: elsewhere
/// they come by a feature of that name or not at all.
fn forbid_planted(package: &serde_json::Value) -> anyhow::Result<()> {
    let name = package["name"].as_str().unwrap_or_default();
    let features: BTreeMap<&str, Vec<&str>> = package["features"]
        .as_object()
        .into_iter()
        .flatten()
        .map(|(feature, enabled)| (feature.as_str(), texts(enabled)))
        .collect();
    if by_default(&features).into_iter().any(is_planted) {
        bail!("{name} enables the feature `planted` by default, which is the simulator's alone");
    }
    if name == "exo-sim" {
        return Ok(());
    }
    for (feature, enabled) in &features {
        if *feature != "planted" && enabled.iter().any(|enabled| is_planted(enabled)) {
            bail!("{name} enables the feature `planted` by `{feature}`, which is the simulator's alone");
        }
    }
    let plants = |d: &serde_json::Value| d["kind"].is_null() && texts(&d["features"]).contains(&"planted");
    if package["dependencies"].as_array().into_iter().flatten().any(plants) {
        bail!("{name} enables the feature `planted` of a dependency, which is the simulator's alone");
    }
    Ok(())
}

/// Whether what a feature enables is `planted`, its own or that of a dependency.
fn is_planted(enabled: &str) -> bool {
    enabled.rsplit('/').next() == Some("planted")
}

/// All that `default` enables, also through other features.
fn by_default<'a>(features: &BTreeMap<&'a str, Vec<&'a str>>) -> Vec<&'a str> {
    let (mut all, mut next) = (vec!["default"], 0);
    while let Some(feature) = all.get(next).copied() {
        for &enabled in features.get(feature).into_iter().flatten() {
            if !all.contains(&enabled) {
                all.push(enabled);
            }
        }
        next += 1;
    }
    all
}

fn texts(list: &serde_json::Value) -> Vec<&str> {
    list.as_array().into_iter().flatten().filter_map(serde_json::Value::as_str).collect()
}

/// Fails on an edge that points up and breaks an invariant of the architecture page all the same.
fn forbid_named(edges: &BTreeMap<String, Vec<String>>) -> anyhow::Result<()> {
    for (from, targets) in edges {
        for to in targets {
            if let Some(why) = why_forbidden(from, to) {
                bail!("{from} depends on {to}: {why}, see \"Architecture invariants\" in {PAGE}");
            }
        }
    }
    Ok(())
}

fn why_forbidden(from: &str, to: &str) -> Option<&'static str> {
    let is_device = to == "exo-device" || to.starts_with("exo-backend-");
    match (from, to) {
        ("exo-accelerators", _) => None,
        (_, "exo-backend-wgpu" | "exo-backend-cuda") => Some("exo-accelerators alone opens graphics cards"),
        ("exo-models" | "exo-engine", _) if is_device => Some("models and engine name no device"),
        ("exo-transport", "exo-backend" | "exo-formats") => Some("transport does not know what a tensor is"),
        _ => None,
    }
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

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn an_edge_that_breaks_an_invariant_is_refused_though_it_points_up() {
        let check = |from: &str, to: &str| {
            let edges = BTreeMap::from([(from.to_owned(), vec![to.to_owned()])]);
            forbid_downward(&edges).unwrap();
            forbid_named(&edges).map_err(|error| error.to_string())
        };
        for (from, to) in [
            ("exo-models", "exo-backend-cpu"),
            ("exo-engine", "exo-device"),
            ("exo-node", "exo-backend-cuda"),
            ("exo", "exo-backend-wgpu"),
            ("exo-transport", "exo-formats"),
        ] {
            assert!(check(from, to).unwrap_err().contains(to), "{from} -> {to}");
        }
        for (from, to) in [
            ("exo-accelerators", "exo-backend-cuda"),
            ("exo-node", "exo-backend-cpu"),
            ("exo-models", "exo-backend"),
        ] {
            assert_eq!(check(from, to), Ok(()), "{from} -> {to}");
        }
    }

    #[test]
    fn planted_faults_are_enabled_by_the_simulator_alone() {
        let package = |name: &str, default: &str, enabled: &str| {
            json!({
                "name": name,
                "features": {"planted": [], "default": [default]},
                "dependencies": [{"name": "exo-machine", "kind": null, "features": [enabled]}],
            })
        };
        assert!(forbid_planted(&package("exo-node", "hip", "schema")).is_ok());
        assert!(forbid_planted(&package("exo-sim", "hip", "planted")).is_ok());
        assert!(forbid_planted(&package("exo-node", "hip", "planted")).is_err());
        assert!(forbid_planted(&package("exo-machine", "planted", "schema")).is_err());
        assert!(forbid_planted(&package("exo-machine", "exo-cluster/planted", "schema")).is_err());
    }

    #[test]
    fn planted_faults_come_by_a_feature_of_that_name_alone() {
        let check = |name: &str, features: serde_json::Value| {
            forbid_planted(&json!({"name": name, "features": features, "dependencies": []})).is_ok()
        };
        assert!(check("exo-machine", json!({"planted": ["exo-cluster/planted"]})));
        assert!(check("exo-node", json!({"default": ["a"], "a": ["b"], "b": ["a"]})), "a circle ends");
        for enabled in ["planted", "exo-cluster/planted", "exo-cluster?/planted"] {
            assert!(!check("exo-node", json!({"hip": [enabled]})), "{enabled}");
            assert!(check("exo-sim", json!({"default": [], "hip": [enabled]})), "{enabled}");
            let by_default = json!({"default": ["all"], "all": ["hip"], "hip": [enabled]});
            assert!(!check("exo-sim", by_default), "{enabled}");
        }
    }
}
