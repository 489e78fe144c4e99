//! The node that runs here, and the cluster it sees.

use exo_api::{ClusterView, InstanceState, ModelView, NodeStatus};
use exo_types::shell_word;

use super::Check;
use crate::client::Client;
use crate::commands::members::node_word;
use crate::config::Config;

/// Whether a node runs on the data folder.
pub(super) fn running(config: &Config, client: Option<&Client>) -> Check {
    const NAME: &str = "node";
    if let Some(client) = client {
        return Check::ok(NAME, format!("running, API http://{}/v1", client.address()));
    }
    match exo_node::running_api(&config.data_dir()) {
        Some(exo_node::RunningApi { address, .. }) => {
            Check::warning(NAME, format!("one said its API is at {address}, but nothing answers there"))
                .next("it ended without a goodbye or hangs; `exo` starts a new one once it is gone")
        }
        None => Check::note(NAME, "none is running on this data folder").next("`exo` starts one"),
    }
}

/// What the running node sees.
pub(super) async fn cluster(client: Option<&Client>) -> Vec<Check> {
    let Some(client) = client else {
        return vec![Check::note("demo model", "carried by this program, unpacked when a node starts")];
    };
    match seen(client).await {
        Ok(checks) => checks,
        Err(error) => vec![
            Check::broken("cluster", format!("the node does not say what it sees: {error:#}"))
                .next("restart it; `exo logs` may say more"),
        ],
    }
}

async fn seen(client: &Client) -> anyhow::Result<Vec<Check>> {
    let view: ClusterView = client.get("/exo/v1/cluster").await?;
    let models: Vec<ModelView> = client.get("/exo/v1/models").await?;
    let mut checks = vec![members(&view), coordinator(&view), join_window(&view), demo_model(&models)];
    for request in &view.join_requests {
        let found = format!("{} at {} asks to join ({})", request.name, request.address, request.check_words);
        checks.push(
            Check::note("join", found)
                .next(format!("`exo admit {}` if you know it", node_word(&request.node))),
        );
    }
    for other in &view.other_clusters {
        let found = format!("{} at {} has a cluster of its own", other.name, other.address);
        checks.push(
            Check::note("other cluster", found)
                .next("`exo invite` on one machine and `exo join CODE` on the other make them one"),
        );
    }
    for instance in &view.instances {
        if let InstanceState::Failed { reason } | InstanceState::Degraded { reason } = &instance.state {
            let found = format!("{} ({}): {reason}", instance.id, instance.model);
            checks.push(
                Check::warning("instance", found)
                    .next(format!("`exo unload {}` removes it", shell_word(&instance.id))),
            );
        }
    }
    Ok(checks)
}

fn members(view: &ClusterView) -> Check {
    let lost: Vec<_> =
        view.nodes.iter().filter(|n| n.status != NodeStatus::Alive).map(|n| n.name.as_str()).collect();
    let found = format!("{} members, {} of them here", view.nodes.len(), view.nodes.len() - lost.len());
    if lost.is_empty() {
        return Check::ok("cluster", found);
    }
    Check::warning("cluster", format!("{found}; missing: {}", lost.join(", ")))
        .next("start exo there, or `exo remove NAME` for good")
}

fn coordinator(view: &ClusterView) -> Check {
    let Some(epoch) = &view.epoch else {
        return Check::warning("coordinator", "none at the moment")
            .next("an election takes a few seconds; look again");
    };
    let name =
        view.nodes.iter().find(|n| n.id == epoch.coordinator).map_or(epoch.coordinator.as_str(), |n| &n.name);
    Check::ok("coordinator", format!("{name}, epoch {}", epoch.counter))
}

fn join_window(view: &ClusterView) -> Check {
    match (view.join_window.open, view.join_window.open_until_unix_s) {
        (true, Some(until)) => {
            let now =
                std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).map_or(0, |d| d.as_secs());
            let minutes = until.saturating_sub(now).div_ceil(60);
            Check::note(
                "join window",
                format!("open for {minutes} more minutes: new nodes on this network join by themselves"),
            )
        }
        (true, None) => Check::note("join window", "open: new nodes on this network join by themselves"),
        (false, _) => Check::ok("join window", "closed: a new node asks, and `exo admit` lets it in"),
    }
}

fn demo_model(models: &[ModelView]) -> Check {
    match models.iter().find(|m| m.name == "demo") {
        Some(model) => Check::ok("demo model", format!("there, {} layers", model.layers)),
        None => Check::warning("demo model", "the node does not list it")
            .next("restart the node: it unpacks the model anew"),
    }
}
