//! `exo status --watch`: the node's event stream, shown as the status that it adds up to.

use std::io::IsTerminal;
use std::time::Duration;

use exo_api::{Change, ClusterView, LiveEvent};
use serde::Deserialize;
use serde_json::Value;

use super::status;
use crate::client::{Client, Named};
use crate::system;
use crate::ui;

/// After a stream that broke, before the next one.
const AGAIN_AFTER: Duration = Duration::from_millis(500);
/// How often one is tried again before the node counts as gone.
const TRIES: u32 = 6;
/// The cursor to the corner, and away with what stands behind it.
const CLEAR: &str = "\x1b[H\x1b[2J";

/// What the events so far add up to.
#[derive(Default)]
struct Watched {
    view: Option<ClusterView>,
    last_id: Option<String>,
}

/// Shows the cluster until Ctrl-C, until the node ends or until the output takes no more; as JSON, one event
/// a line.
pub async fn run(client: &Client, json: bool) -> anyhow::Result<()> {
    tokio::select! {
        result = watch(client, json) => result,
        () = system::unread(std::io::stdout()) => Ok(()),
    }
}

async fn watch(client: &Client, json: bool) -> anyhow::Result<()> {
    let mut watched = Watched::default();
    let mut failures = 0;
    loop {
        match follow(client, &mut watched, json, &mut failures).await {
            Ok(()) => return Ok(()),
            Err(error) if failures >= TRIES => return Err(error.context("the node's events ended")),
            Err(error) => {
                tracing::debug!(%error, "the node's events broke off");
                if failures == 0 {
                    ui::note(&format!("what is shown is not of now any more: {error:#}; it is asked again"));
                }
                failures += 1;
                tokio::time::sleep(AGAIN_AFTER).await;
            }
        }
    }
}

/// Until the node says that it ends, or the output takes no more.
async fn follow(
    client: &Client,
    watched: &mut Watched,
    json: bool,
    failures: &mut u32,
) -> anyhow::Result<()> {
    let mut events = client.events("/exo/v1/events", watched.last_id.as_deref()).await?;
    while let Some(event) = events.next_named().await? {
        *failures = 0;
        if event.name == "end" {
            if event.data["reason"] == "stopping" {
                ui::line("the node ends");
                return Ok(());
            }
            break;
        }
        // The stream also tells of downloads, which are no part of the cluster.
        if json && ["snapshot", "delta"].contains(&event.name.as_str()) {
            ui::json_line(&event.data)?;
        }
        if watched.take(event) && !json {
            watched.show();
        }
        if ui::is_output_over() {
            return Ok(());
        }
    }
    anyhow::bail!("the node ended the stream")
}

impl Watched {
    /// Takes an event in; whether there is something else to show. What a newer node adds is passed over.
    fn take(&mut self, event: Named) -> bool {
        self.last_id = event.id.or(self.last_id.take());
        match (event.name.as_str(), self.view.as_mut()) {
            ("snapshot", _) => {
                let Ok(LiveEvent::Snapshot(snapshot)) = LiveEvent::deserialize(&event.data) else {
                    return false;
                };
                self.view = Some(snapshot.cluster);
                true
            }
            ("delta", Some(view)) => {
                let changes = event.data["changes"].as_array().map(Vec::as_slice).unwrap_or_default();
                let known = |change: &Value| Change::deserialize(change).ok();
                changes.iter().filter_map(known).for_each(|change| change.apply(view));
                true
            }
            _ => false,
        }
    }

    fn show(&self) {
        let Some(view) = &self.view else { return };
        if std::io::stdout().is_terminal() {
            ui::exactly(CLEAR);
        } else {
            ui::line("");
        }
        status::whole(view);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn named(name: &str, id: &str, data: Value) -> Named {
        Named { name: name.to_owned(), id: Some(id.to_owned()), data }
    }

    #[test]
    fn events_add_up_and_what_a_newer_node_tells_is_passed_over() {
        let cluster = serde_json::json!({
            "cluster": null, "self_node": "x", "epoch": null, "nodes": [], "links": [], "instances": [],
            "join_window": {"open": false, "open_until_unix_s": null}, "join_requests": [],
            "journal": {"entries": 1, "head": ""}, "warnings": []
        });
        let mut watched = Watched::default();
        let warnings =
            serde_json::json!({"kind": "warnings", "warnings": [{"at_unix_s": 1, "text": "disk"}]});
        let delta =
            serde_json::json!({"at_unix_ms": 2, "changes": [{"kind": "weather", "sun": true}, warnings]});
        assert!(!watched.take(named("delta", "a-1", delta.clone())), "no snapshot yet");
        let snapshot = serde_json::json!({"at_unix_ms": 1, "cluster": cluster, "more": 1});
        assert!(watched.take(named("snapshot", "a-1", snapshot)));
        assert!(watched.take(named("delta", "a-2", delta)));
        assert!(!watched.take(named("news", "a-3", Value::Null)));
        let view = watched.view.unwrap();
        assert_eq!((view.warnings[0].text.as_str(), watched.last_id.as_deref()), ("disk", Some("a-3")));
    }
}
