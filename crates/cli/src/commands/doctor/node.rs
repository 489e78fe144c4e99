//! The node that runs here, and the cluster it sees.

use exo_api::{ClusterView, InstanceState, InstanceView, ModelView, NodeStatus};
use exo_node::DataDir;
use exo_types::shell_word;

use super::Check;
use crate::client::Client;
use crate::commands::{members::node_word, status};
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
        None => match DataDir::check_free(&config.data_dir()) {
            Ok(()) => Check::note(NAME, "none is running on this data folder").next("`exo` starts one"),
            Err(error) => Check::warning(NAME, exo_accelerators::chain(&error))
                .next("wait if that node starts just now; else look whose folder and process it is"),
        },
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
    Ok(of_view(&view, &models))
}

fn of_view(view: &ClusterView, models: &[ModelView]) -> Vec<Check> {
    if status::removed(view).is_some() {
        // What it still has of its former cluster is over.
        return vec![removed()];
    }
    let mut checks = vec![members(view), coordinator(view), join_window(view), demo_model(models)];
    checks.extend(view.warnings.iter().map(|warning| Check::warning("warning", warning.text.clone())));
    for request in &view.join_requests {
        let found = format!("{} at {} asks to join ({})", request.name, request.address, request.check_words);
        checks.push(
            Check::note("join", found)
                .next(format!("`exo admit {}` if you know it", node_word(&request.node))),
        );
    }
    checks.extend(status::others(view).map(|(who, how)| Check::note("other cluster", who).next(how)));
    checks.extend(view.instances.iter().filter_map(instance));
    checks
}

fn removed() -> Check {
    Check::broken("cluster", "this node was removed from its cluster, for good, and uses no device")
        .next("`exo stop`, then `exo leave` makes it a new one; its models stay")
}

/// A model that nobody is answered by.
fn instance(instance: &InstanceView) -> Option<Check> {
    let unload = format!("`exo unload {}` removes it", shell_word(&instance.id));
    let (what, reason, next) = match &instance.state {
        InstanceState::Failed { reason } => ("failed", reason, unload),
        InstanceState::Degraded { reason } | InstanceState::Waiting { reason } => (
            "does not answer",
            reason,
            format!(
                "bring back what is missing, or make room: start exo on another machine, unload a model, or place it with a smaller \
                 --context; it goes on by itself then; {unload}"
            ),
        ),
        InstanceState::Placing | InstanceState::Loading { .. } | InstanceState::Ready => return None,
    };
    Some(
        Check::warning("instance", format!("{} ({}) {what}: {reason}", instance.id, instance.model))
            .next(next),
    )
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
            let minutes = until.saturating_sub(exo_stdx::unix_s()).div_ceil(60);
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

#[cfg(test)]
mod tests {
    use exo_api::CheckVerdict;
    use serde_json::{Value, json};

    use super::*;

    /// What is said of a cluster of this node and others, by the name of each check.
    fn said(cluster: Value) -> Vec<(String, CheckVerdict, String)> {
        let mut whole = json!({"self_node": "a", "nodes": [node("a", true)], "links": [], "instances": [],
            "join_window": exo_api::JoinWindowView::default(), "join_requests": [], "journal": exo_api::JournalView::default()});
        for (key, value) in cluster.as_object().unwrap() {
            whole[key] = value.clone();
        }
        let checks = of_view(&serde_json::from_value(whole).unwrap(), &[]);
        let text = |check: &Check| format!("{}; {}", check.found, check.next);
        checks.iter().map(|check| (check.check.clone(), check.verdict, text(check))).collect()
    }

    fn node(id: &str, is_self: bool) -> Value {
        json!({"id": id, "name": id, "is_self": is_self, "role": "admin", "status": "alive", "version": "1", "platform": "x",
            "devices": [], "addresses": []})
    }

    fn of(checks: &[(String, CheckVerdict, String)], name: &str) -> Vec<(CheckVerdict, String)> {
        let of = checks.iter().filter(|(check, ..)| check == name);
        of.map(|(_, verdict, text)| (*verdict, text.clone())).collect()
    }

    #[test]
    fn a_node_that_was_put_out_says_that_and_nothing_of_who_is_missing() {
        let checks = said(json!({"nodes": [node("b", false), node("c", false)]}));
        let [(name, CheckVerdict::Broken, text)] = checks.as_slice() else { panic!("{checks:?}") };
        assert!(name == "cluster" && text.contains("was removed") && text.contains("`exo leave`"), "{text}");
    }

    #[test]
    fn a_model_that_waits_is_a_warning_with_its_reason_and_what_would_help() {
        let instance = |state: Value| {
            json!([{"id": "i1", "model": "demo", "model_id": "m", "state": state, "placement": "p", "context_tokens": 1, "slots": 1,
                "kv": "f16", "stages": []}])
        };
        for kind in ["waiting", "degraded", "failed"] {
            let checks =
                said(json!({"instances": instance(json!({"kind": kind, "reason": "too little memory"}))}));
            let found = of(&checks, "instance");
            let [(CheckVerdict::Warning, text)] = found.as_slice() else { panic!("{kind}: {checks:?}") };
            assert!(text.contains("too little memory") && text.contains("`exo unload i1`"), "{text}");
            assert_eq!(text.contains("start exo on another machine"), kind != "failed", "{text}");
        }
        assert!(of(&said(json!({"instances": instance(json!({"kind": "ready"}))})), "instance").is_empty());
    }

    #[test]
    fn machines_of_other_clusters_are_one_note_and_who_says_no_is_a_warning() {
        let other = |name: &str| json!({"node": name, "name": name, "address": "10.0.0.1:1"});
        let no = "desk does not let this node in: its join window is shut";
        let checks = said(json!({
            "other_clusters": [other("desk"), other("attic")], "warnings": [{"at_unix_s": 1, "text": no}],
        }));
        let found = of(&checks, "other cluster");
        let [(CheckVerdict::Note, text)] = found.as_slice() else { panic!("{checks:?}") };
        assert!(
            text.contains("desk at 10.0.0.1:1, attic at") && text.contains("`exo join CODE` here"),
            "{text}"
        );
        assert_eq!(of(&checks, "warning"), [(CheckVerdict::Warning, format!("{no}; "))]);
    }
}
