//! `exo` and `exo start`: run a node until Ctrl-C.

use std::net::SocketAddr;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::{Duration, Instant};

use exo_api::{ClusterView, Facade, NodeStatus};

use super::doctor;
use super::interrupt::INTERRUPTED;
use crate::config::Config;
use crate::run_node::{self, Stay};
use crate::stop::{Stop, StopSignal};
use crate::ui;

/// For the node's first look at itself; without it the greeting is shorter, nothing else.
const VIEW_MAX: Duration = Duration::from_secs(2);
/// Between two looks for other clusters on this network.
const OTHERS_EVERY: Duration = Duration::from_secs(10);
/// An end that takes longer says how it is cut short.
const END_TOLD_AFTER: Duration = Duration::from_millis(500);

/// Starts a node, says where it is and what it has, then what happens around it.
pub async fn run(config: &Config) -> anyhow::Result<ExitCode> {
    let mut stop = StopSignal::new()?;
    let started = run_node::start(config, Stay::Long, doctor::of(config), &mut stop).await?;
    let Some(running) = started else { return Ok(ExitCode::from(INTERRUPTED)) };
    let mut notices = running.node.notices();
    greet(&running, &first_view(&running).await?);
    other_port(config, running.node.listen_addr())?.iter().for_each(|text| ui::warning(text));
    let joining = tokio::spawn(super::pairing::join_by_environment(running.client.clone()));
    let others = tokio::spawn(tell_of_others(running.node.facade()));
    let mut is_asked = false;
    loop {
        tokio::select! {
            why = stop.why() => {
                is_asked = why != Stop::Parent;
                break;
            }
            () = running.node.stopped() => break,
            notice = notices.recv() => match notice {
                Ok(notice) => ui::line(notice),
                Err(tokio::sync::broadcast::error::RecvError::Lagged(n)) => tracing::debug!(n, "notices missed"),
                Err(tokio::sync::broadcast::error::RecvError::Closed) => break,
            },
        }
    }
    joining.abort();
    others.abort();
    let is_asked_again = is_asked && super::drain::before_end(&running.client, &mut stop).await;
    ui::line("leaving the cluster");
    running.stop_until(asked_again(&mut stop, is_asked_again)).await;
    Ok(ExitCode::SUCCESS)
}

/// Waits until somebody wants the end at once; says meanwhile what it waits for.
async fn asked_again(stop: &mut StopSignal, is_asked_again: bool) {
    if is_asked_again {
        return;
    }
    if tokio::time::timeout(END_TOLD_AFTER, stop.again()).await.is_err() {
        ui::line("what runs gets a few seconds to end; Ctrl-C again ends at once");
        stop.again().await;
    }
}

/// Says, once, who else is on this network and does not join by itself: names are free, so there may be many.
async fn tell_of_others(facade: Arc<dyn Facade>) {
    loop {
        // Two new nodes may be about to join each other.
        tokio::time::sleep(OTHERS_EVERY).await;
        let Ok(view) = facade.cluster().await else { continue };
        if let Some(line) = super::status::others_line(&view) {
            return ui::line(line);
        }
    }
}

/// The node's view of itself, which is complete a moment after the start.
pub async fn first_view(running: &run_node::Running) -> anyhow::Result<ClusterView> {
    let began = Instant::now();
    loop {
        let view: ClusterView = running.client.get("/exo/v1/cluster").await?;
        if view.nodes.iter().any(|n| n.is_self && !n.devices.is_empty()) || began.elapsed() > VIEW_MAX {
            return Ok(view);
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

/// What to say where another port than the one that was named is open to other nodes.
fn other_port(config: &Config, used: SocketAddr) -> anyhow::Result<Option<String>> {
    let asked = config.listen()?;
    let is_as_asked = asked.port() == 0 || asked.port() == used.port();
    Ok((!is_as_asked && !config.is_default("listen")).then(|| {
        let (port, source) = (used.port(), config.source("listen"));
        format!(
            "{asked} of the setting `listen` (from {source}) is taken, so that other nodes reach this one at port {port}: name that \
             one with --peer elsewhere, or end the program that has the other and start exo again"
        )
    }))
}

/// Which other nodes answer, and which are only known.
fn others(view: &ClusterView) -> String {
    let others = || view.nodes.iter().filter(|node| !node.is_self);
    let names = |is_there: bool| -> String {
        let found = others().filter(|node| (node.status == NodeStatus::Alive) == is_there);
        found.map(|node| node.name.as_str()).collect::<Vec<_>>().join(", ")
    };
    match (names(true).as_str(), names(false).as_str()) {
        ("", "") => "  sees       no other node yet".to_owned(),
        ("", known) => format!("  knows      {known}; none of them has answered yet"),
        (there, "") => format!("  sees       {there}"),
        (there, known) => format!("  sees       {there}; knows {known}"),
    }
}

fn greet(running: &run_node::Running, view: &ClusterView) {
    let node = &running.node;
    ui::line(format!("exo {} · node {} ({})", env!("CARGO_PKG_VERSION"), node.name(), node.id()));
    ui::line(format!("  API        http://{}/v1", running.client.address()));
    ui::line(match exo_server::has_page() {
        true => format!("  page       http://{} · `exo open` signs in", running.client.address()),
        false => "  page       not in this program: `cargo xtask web` makes it, then build again".to_owned(),
    });
    ui::line(format!("  cluster    {} (UDP and TCP)", node.listen_addr()));
    for device in view.nodes.iter().filter(|n| n.is_self).flat_map(|n| &n.devices) {
        let free = ui::bytes(device.memory_free_bytes);
        ui::line(format!("  device     {} · {} · {free} free for models", device.name, device.backend));
        if !device.support_reason.is_empty() {
            ui::line(format!("             {}", device.support_reason));
        }
    }
    if let Some(draft) = node.draft() {
        let (weights, cache) = (ui::bytes(draft.weight_bytes), ui::bytes(draft.kv_bytes));
        let (name, slots, context) = (&draft.name, draft.slots, draft.context_tokens);
        ui::line(format!("  draft      {name} guesses ahead for {slots} sequences of {context} tokens"));
        ui::line(format!("             {weights} of weights, {cache} of keys and values"));
    }
    ui::line(others(view));
    ui::line(match view.nodes.is_empty() || view.nodes.iter().any(|node| node.is_self) {
        true => "  try        exo run demo \"What is 17 + 25?\"",
        false => {
            "  removed    this node was removed from its cluster, for good; its models stay: end it, and `exo leave` makes it a new one"
        }
    });
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;

    #[test]
    fn a_port_that_was_named_and_is_taken_is_told() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let told = |listen: Option<&str>, used: u16| {
            let flags: BTreeMap<_, _> =
                listen.map(|listen| ("listen", listen.to_owned())).into_iter().collect();
            let config = Config::resolve(&flags, &|_| None, Some(file.path())).unwrap();
            other_port(&config, SocketAddr::from(([0, 0, 0, 0], used))).unwrap()
        };
        let text = told(Some("0.0.0.0:4000"), 40123).unwrap();
        assert!(text.starts_with("0.0.0.0:4000 of the setting `listen` (from flag) is taken"), "{text}");
        assert!(text.contains("at port 40123: name that one with --peer"), "{text}");
        for (listen, used) in [(Some("0.0.0.0:4000"), 4000), (Some("0.0.0.0:0"), 40123), (None, 40123)] {
            assert_eq!(told(listen, used), None, "{listen:?}");
        }
    }
}
