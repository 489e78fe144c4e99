//! From processes to a cluster: found by mDNS, else by address.

use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use exo_api::ClusterView;

use super::nodes::Nodes;
use crate::ui;

/// How long mDNS gets before the nodes are told each other's address; it takes about four seconds where it
/// works.
const DISCOVERY_MAX: Duration = Duration::from_secs(12);
/// For nodes that know each other's address.
const JOIN_MAX: Duration = Duration::from_secs(15);
/// Starts the nodes and waits until they are one cluster: found by mDNS, else by address.
pub async fn unite(nodes: &mut Nodes, all: usize, discovery: bool) -> anyhow::Result<()> {
    if !discovery {
        ui::line("mDNS is off: joining by address");
        unite_by_address(nodes, all).await?;
    } else if !unite_by_discovery(nodes, all).await? {
        let waited = DISCOVERY_MAX.as_secs();
        ui::line(format!("mDNS did not bring them together within {waited} s: joining by address instead"));
        nodes.stop().await;
        unite_by_address(nodes, all).await?;
    }
    let view: ClusterView = nodes.first()?.get("/exo/v1/cluster").await?;
    introduce(nodes, &view);
    Ok(())
}

async fn unite_by_discovery(nodes: &mut Nodes, all: usize) -> anyhow::Result<bool> {
    let began = Instant::now();
    for _ in 0..all {
        nodes.spawn(&[])?;
    }
    nodes.wait_started().await?;
    ui::line(format!(
        "started {all} nodes in {:.1} s, each a process of its own",
        began.elapsed().as_secs_f64()
    ));
    let began = Instant::now();
    let united = nodes.wait_united(DISCOVERY_MAX).await?;
    if united {
        ui::line(format!("found each other by mDNS in {:.1} s", began.elapsed().as_secs_f64()));
    }
    Ok(united)
}

async fn unite_by_address(nodes: &mut Nodes, all: usize) -> anyhow::Result<()> {
    let alone = "--no-discovery".to_owned();
    nodes.spawn(std::slice::from_ref(&alone))?;
    nodes.wait_started().await?;
    // Alone it is united as soon as it sees itself.
    nodes.wait_united(JOIN_MAX).await?;
    let view: ClusterView = nodes.first()?.get("/exo/v1/cluster").await?;
    let first = view.nodes.iter().find(|n| n.is_self).and_then(|n| n.addresses.first()).cloned();
    let first = first.context("the first node does not say where others reach it")?;
    for _ in 1..all {
        nodes.spawn(&[alone.clone(), format!("--peer={first}")])?;
    }
    nodes.wait_started().await?;
    let began = Instant::now();
    if !nodes.wait_united(JOIN_MAX).await? {
        let waited = JOIN_MAX.as_secs();
        bail!(
            "the nodes did not become one cluster within {waited} s, even by address{}",
            nodes.last_words()
        );
    }
    ui::line(format!("joined through --peer {first} in {:.1} s", began.elapsed().as_secs_f64()));
    Ok(())
}

fn introduce(nodes: &Nodes, view: &ClusterView) {
    let leader = view.epoch.as_ref().map(|e| e.coordinator.as_str());
    for node in &view.nodes {
        let role = if leader == Some(node.id.as_str()) { " · coordinator" } else { "" };
        let api = nodes.client_of(&node.name).map(|c| c.address().to_string()).unwrap_or_default();
        let device = node.devices.first().map(|d| d.name.as_str()).unwrap_or_default();
        ui::line(format!("  {:6} API http://{api} · {device}{role}", node.name));
    }
}
