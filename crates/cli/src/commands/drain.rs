//! `exo drain`, and the end of a node that has layers of models: they are loaded elsewhere first.

use std::time::{Duration, Instant};

use anyhow::bail;
use exo_api::{ClusterView, Drain, DrainRequest, InstanceState, MovingView, NodeStatus, NodeView};

use super::members::{called, member, node_word};
use super::running;
use super::status::state_text;
use crate::args::Json;
use crate::client::Client;
use crate::config::Config;
use crate::stop::{Stop, StopSignal};
use crate::ui;

/// Without progress: a coordinator gives a device two minutes.
const STALLED_MAX: Duration = Duration::from_secs(150);
/// The same for what is loaded there first: a quarter of an hour more, while a hub asks to wait.
const UNREADY_MAX: Duration = Duration::from_secs(18 * 60);
/// How long a node that ends waits for its layers to be elsewhere.
pub const LEAVE_MAX: Duration = Duration::from_secs(30);
const POLL: Duration = Duration::from_millis(50);
/// Between two asks of a node that ends.
const ASK_EVERY: Duration = Duration::from_millis(500);

/// What of a node's layers is still there.
enum Left {
    Nothing,
    /// So much of what is to be loaded elsewhere is, 0 to 1.
    Moving(f64),
    /// It is being loaded there for the first time, or placed anew, as the text says: it moves afterwards.
    Unready(String),
    /// Nothing more will move: why.
    Stays(String),
}

/// Moves a node's layers elsewhere, or allows it to have some again.
pub async fn run(config: &Config, node: &str, undo: bool, json: Json) -> anyhow::Result<()> {
    let client = running(config).await?;
    let member = member(&client, node).await?;
    let id = &member.node;
    let drain = if undo { Drain::Over } else { Drain::Lasting };
    ask(&client, id, drain).await?;
    if !undo {
        wait_until_empty(&client, id).await?;
    }
    if json.json {
        return ui::json(&serde_json::json!({"node": id, "name": member.name, "is_drained": !undo}));
    }
    let (who, word) = (called(&member), node_word(id));
    ui::line(match undo {
        true => format!("{who} may have layers of models again; what is placed stays where it is"),
        false => {
            format!("{who} has no layers of models, and gets none until `exo drain {word} --undo`")
        }
    });
    Ok(())
}

/// Waits until a node has no layers; an error where some stay or nothing moves.
async fn wait_until_empty(client: &Client, id: &str) -> anyhow::Result<()> {
    let bar = ui::bar(1000, "{spinner} moving [{bar:30}] {percent} %  {msg}");
    let (mut movement, mut lines) = (Movement::begin(Instant::now()), ui::WaitLines::begin());
    loop {
        let (shown, max) = match left(&client.get("/exo/v1/cluster").await?, id) {
            Left::Nothing => break,
            Left::Stays(reason) => {
                bar.finish_and_clear();
                bail!(
                    "{reason}\nIt serves on there. Free memory on another node, unload a model (`exo unload`), or allow it again: \
                     `exo drain {} --undo`",
                    node_word(id)
                );
            }
            Left::Unready(text) => {
                lines.tell(&text);
                bar.set_message(text.clone());
                (text, UNREADY_MAX)
            }
            Left::Moving(progress) => {
                bar.set_position((progress * 1000.0) as u64);
                bar.set_message("");
                (format!("moving {:.2} %", progress * 100.0), STALLED_MAX)
            }
        };
        if movement.is_stalled(Instant::now(), &shown, max) {
            bar.finish_and_clear();
            bail!("nothing moved for {} s ({shown}); see `exo status`", max.as_secs());
        }
        tokio::time::sleep(POLL).await;
    }
    bar.finish_and_clear();
    Ok(())
}

/// What was last seen of a move, and since when.
struct Movement {
    since: Instant,
    seen: String,
}

impl Movement {
    fn begin(now: Instant) -> Self {
        Self { since: now, seen: String::new() }
    }

    /// Whether what there is to see now is what there was longer than `max` ago. Less than before is a
    /// movement, too: another device begins anew.
    fn is_stalled(&mut self, now: Instant, seen: &str, max: Duration) -> bool {
        if seen != self.seen {
            *self = Self { since: now, seen: seen.to_owned() };
        }
        now.saturating_duration_since(self.since) > max
    }
}

/// Before this node ends: its layers go elsewhere, where something takes them. A second signal ends the wait:
/// whether there was one.
pub async fn before_end(client: &Client, stop: &mut StopSignal) -> bool {
    tokio::select! {
        () = leave(client) => false,
        // The end of the parent is one reason to end, and no second word of a person.
        why = stop.why() => why != Stop::Parent,
        () = tokio::time::sleep(LEAVE_MAX) => {
            ui::line(format!("its layers are not loaded elsewhere after {} s", LEAVE_MAX.as_secs()));
            false
        }
    }
}

/// This node's id, if it has layers that another one may take: one that is there, and not about to end as
/// well.
async fn goes_on_without(client: &Client) -> Option<String> {
    let view: ClusterView = client.get("/exo/v1/cluster").await.ok()?;
    let own = view.nodes.iter().find(|node| node.is_self)?.id.clone();
    let is_other = |node: &NodeView| !node.is_self && !node.is_drained && node.status == NodeStatus::Alive;
    let has_layers = !matches!(left(&view, &own), Left::Nothing | Left::Unready(_));
    (has_layers && view.nodes.iter().any(is_other)).then_some(own)
}

async fn leave(client: &Client) {
    let mut asked = None::<Instant>;
    while let Some(own) = goes_on_without(client).await {
        if asked.is_none() {
            ui::line("moving its layers of models to other nodes; Ctrl-C again ends at once");
        }
        // Again and again: the coordinator may be the next to end, and it tells nobody.
        if asked.is_none_or(|at| at.elapsed() > ASK_EVERY) {
            asked = Some(Instant::now());
            let _ = tokio::time::timeout(ASK_EVERY, ask(client, &own, Drain::Leaving)).await;
        }
        let Ok(view) = client.get::<ClusterView>("/exo/v1/cluster").await else { return };
        match left(&view, &own) {
            Left::Stays(reason) => return ui::line(reason),
            // Nobody is answered by what is not loaded yet.
            Left::Nothing | Left::Unready(_) => return,
            Left::Moving(_) => {}
        }
        tokio::time::sleep(POLL).await;
    }
}

async fn ask(client: &Client, node: &str, drain: Drain) -> anyhow::Result<()> {
    client.post::<()>(&format!("/exo/v1/members/{node}/drain"), &DrainRequest { drain }).await
}

fn left(view: &ClusterView, node: &str) -> Left {
    let here = view.instances.iter().filter(|i| i.stages.iter().any(|stage| stage.node == node));
    let (mut least, mut stays, mut unready) = (None::<f64>, None, Vec::new());
    for instance in here {
        match (&instance.moving, &instance.state) {
            (Some(MovingView::Stays { reason }), _) => stays = Some(format!("{}: {reason}", instance.model)),
            (None, InstanceState::Failed { .. }) => {}
            (None, InstanceState::Waiting { reason }) => {
                stays = Some(format!("{}: {reason}", instance.model))
            }
            (None, InstanceState::Ready) => least = Some(0.0),
            (None, InstanceState::Loading { progress }) => {
                unready.push(format!("{} is loaded first: {:.2} %", instance.model, progress * 100.0));
            }
            (None, state) => unready.push(format!("{} is {}", instance.model, state_text(state))),
            (Some(MovingView::Loading { progress, .. }), _) => {
                least = Some(least.map_or(*progress, |least| least.min(*progress)));
            }
        }
    }
    match (least, stays) {
        (Some(progress), _) => Left::Moving(progress),
        (None, _) if !unready.is_empty() => Left::Unready(unready.join("; ")),
        (None, Some(reason)) => Left::Stays(reason),
        (None, None) => Left::Nothing,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// As where this node hears no coordinator: what it shows stays as it was.
    #[test]
    fn a_model_that_is_not_loaded_for_long_is_not_waited_for_without_end() {
        let instance = |state: serde_json::Value| {
            let stage = serde_json::json!({
                "node": "desk", "node_name": "desk", "device": "cpu", "layers": {"start": 0, "end": 1},
                "embedding": true, "head": true, "weight_bytes": 1, "weight_bytes_held": 0, "kv_bytes": 1,
            });
            let view = serde_json::json!({
                "id": "i1", "model": "m", "model_id": "aa", "state": state, "placement": "p1",
                "context_tokens": 1, "slots": 1, "kv": "f16", "stages": [stage],
            });
            serde_json::from_value::<exo_api::InstanceView>(view).unwrap()
        };
        let text = |state: serde_json::Value| {
            let view = ClusterView { instances: vec![instance(state)], ..ClusterView::default() };
            match left(&view, "desk") {
                Left::Unready(text) => text,
                _ => panic!("it is loaded"),
            }
        };
        let (began, mut movement) = (Instant::now(), Movement::begin(Instant::now()));
        let mut is_stalled = |minutes: u64, text: &str| {
            movement.is_stalled(began + Duration::from_secs(minutes * 60), text, UNREADY_MAX)
        };
        let loading = |progress: f64| text(serde_json::json!({"kind": "loading", "progress": progress}));
        assert_eq!(loading(0.123), "m is loaded first: 12.30 %");
        assert!(!is_stalled(0, &loading(0.123)) && !is_stalled(17, &loading(0.123)));
        assert!(!is_stalled(30, &loading(0.1234)), "it moved");
        let degraded = text(serde_json::json!({"kind": "degraded", "reason": "a stage is lost"}));
        assert!(!is_stalled(50, &degraded) && is_stalled(69, &degraded), "{degraded}");
    }
}
