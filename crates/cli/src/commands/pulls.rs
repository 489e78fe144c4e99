//! `exo pulls`: downloads of the node; and following one with a bar.

use std::time::Duration;

use anyhow::{Context, anyhow, bail};
use exo_api::{NodePullView, PullRequest, PullState, PullView, RemovedModelView, TelemetryView};
use indicatif::ProgressBar;
use serde_json::json;

use super::running;
use super::status::sources_text;
use crate::args::{Json, PullsAction};
use crate::client::Client;
use crate::config::Config;
use crate::errors::PullFailed;
use crate::stop::StopSignal;
use crate::ui;

const PATH: &str = "/exo/v1/pulls";
const LOOK_EVERY: Duration = Duration::from_millis(150);

/// Lists, pauses, resumes or ends.
pub async fn run(config: &Config, action: Option<PullsAction>, json: Json) -> anyhow::Result<()> {
    let client = running(config).await?;
    match action {
        None => list(&client, json).await,
        Some(PullsAction::Pause { id }) => act(&client, &id, "pause").await,
        Some(PullsAction::Resume { id }) => act(&client, &id, "resume").await,
        Some(PullsAction::Cancel { id }) => {
            client.delete(&path_of(&id)).await?;
            ui::line(format!("download {id} is ended; what came stays until `exo prune`"));
            Ok(())
        }
    }
}

fn path_of(id: &str) -> String {
    format!("{PATH}/{}", exo_types::percent_encoded(id, b""))
}

async fn act(client: &Client, id: &str, what: &str) -> anyhow::Result<()> {
    let pull: PullView = client.post(&format!("{}/{what}", path_of(id)), &json!({})).await?;
    let how = if what == "pause" { "waits until `exo pulls resume`" } else { "goes on" };
    ui::line(format!("{} {how}", pull.reference));
    Ok(())
}

async fn list(client: &Client, json: Json) -> anyhow::Result<()> {
    let pulls: Vec<PullView> = client.get(PATH).await?;
    if json.json {
        return ui::json(&pulls);
    }
    let (others, unknown) = rows_of_others(client.get("/exo/v1/telemetry").await);
    unknown.iter().for_each(|why| ui::note(why));
    if pulls.is_empty() && others.is_empty() {
        let by = if unknown.is_some() { " by this node" } else { "" };
        ui::line(format!("nothing is being fetched{by}; `exo pull REFERENCE` begins a download"));
        return Ok(());
    }
    let rows = pulls.iter().map(|p| {
        let total = p.total_bytes.map_or("?".to_owned(), ui::bytes);
        vec![
            p.id.clone(),
            p.reference.clone(),
            state_text(p),
            format!("{} of {total}", ui::bytes(p.verified_bytes)),
            p.bytes_per_s.map_or("-".to_owned(), |rate| format!("{}/s", ui::bytes(rate as u64))),
            p.seconds_left.map_or("-".to_owned(), |s| ui::duration(Duration::from_secs(s))),
            sources_text(&p.sources).unwrap_or_else(|| p.source.clone()),
        ]
    });
    let rows: Vec<Vec<String>> = rows.collect();
    if !rows.is_empty() {
        ui::table(&["id", "reference", "state", "verified", "rate", "left", "from"], rows);
    }
    if !others.is_empty() {
        ui::paragraph("other nodes, where `exo pulls` pauses, resumes and ends theirs:");
        ui::table(&["node", "reference", "state", "verified", "rate", "from"], others);
    }
    Ok(())
}

/// What other members fetch, or why that is not known: what this node fetches is shown all the same.
fn rows_of_others(told: anyhow::Result<TelemetryView>) -> (Vec<Vec<String>>, Option<String>) {
    match told {
        Ok(told) => (other_rows(&told), None),
        Err(error) => (Vec::new(), Some(format!("what other nodes fetch is not known: {error:#}"))),
    }
}

/// What the other members say of their downloads.
fn other_rows(told: &TelemetryView) -> Vec<Vec<String>> {
    let row = |name: &str, pull: &NodePullView| {
        let total = pull.total_bytes.map_or("?".to_owned(), ui::bytes);
        vec![
            name.to_owned(),
            pull.reference.clone(),
            state_word(pull.state).to_owned(),
            format!("{} of {total}", ui::bytes(pull.verified_bytes)),
            pull.bytes_per_s.map_or("-".to_owned(), |rate| format!("{}/s", ui::bytes(rate as u64))),
            sources_text(&pull.sources).unwrap_or_else(|| "-".to_owned()),
        ]
    };
    let mut rows = Vec::new();
    for node in told.nodes.iter().filter(|node| node.node != told.self_node) {
        rows.extend(node.pulls.iter().map(|pull| row(&node.name, pull)));
    }
    rows
}

fn state_word(state: PullState) -> &'static str {
    match state {
        PullState::Queued => "waits for others",
        PullState::Resolving => "asks the hub",
        PullState::Fetching => "fetches",
        PullState::Adding => "is being read",
        PullState::Done => "done",
        PullState::Paused => "paused",
        PullState::Failed => "failed",
    }
}

fn state_text(pull: &PullView) -> String {
    let state = state_word(pull.state);
    match &pull.error {
        // That of a download which is not over says what it waits for.
        Some(error) if pull.state.is_under_way() => error.clone(),
        Some(error) => format!("{state}: {error}"),
        None => state.to_owned(),
    }
}

/// A download that a command waits for.
pub struct Began {
    pub pull: PullView,
    /// Whether this command began it: Ctrl-C then ends it.
    is_ours: bool,
}

/// How waiting for a download ended.
pub enum Followed {
    /// The model is here.
    Done(Box<PullView>),
    /// Ctrl-C, and it was ours.
    Ended,
    /// Ctrl-C, and another command or a dashboard had begun it.
    Left,
}

/// Has the node fetch, or finds that it does.
pub async fn begin(client: &Client, request: &PullRequest) -> anyhow::Result<Began> {
    let before: Vec<PullView> = client.get(PATH).await?;
    let pull: PullView = client.post(PATH, request).await?;
    let is_ours = !before.iter().any(|p| p.id == pull.id && p.state.is_under_way());
    Ok(Began { pull, is_ours })
}

/// Shows how far it is until it is over, or Ctrl-C.
pub async fn follow(client: &Client, began: &Began) -> anyhow::Result<Followed> {
    let mut stop = StopSignal::new()?;
    let bar = ui::spinner();
    let followed = tokio::select! {
        followed = until_over(client, &began.pull.id, &bar) => followed,
        () = stop.wait() => tokio::select! {
            followed = leave(client, began) => followed,
            () = stop.again() => Err(anyhow!(
                "the node was asked to end the download and has not answered yet; `exo pulls` shows how it is"
            )),
        },
    };
    bar.finish_and_clear();
    followed
}

async fn leave(client: &Client, began: &Began) -> anyhow::Result<Followed> {
    if !began.is_ours {
        return Ok(Followed::Left);
    }
    client.delete(&path_of(&began.pull.id)).await.context("the download could not be ended")?;
    Ok(Followed::Ended)
}

const BAR: &str = "{spinner} [{bar:30}] {bytes} of {total_bytes}, {bytes_per_sec}{time_left}  {msg}";

async fn until_over(client: &Client, id: &str, bar: &ProgressBar) -> anyhow::Result<Followed> {
    let (mut is_announced, mut removed, mut lines) = (false, 0, ui::WaitLines::begin());
    loop {
        let pulls: Vec<PullView> = client.get(PATH).await?;
        let Some(pull) = pulls.into_iter().find(|p| p.id == id) else {
            bail!("somebody ended the download; what came stays, and the same command goes on from there");
        };
        if let (false, Some(total)) = (is_announced || pull.was_here, pull.total_bytes) {
            bar.suspend(|| announce(&pull, total));
            is_announced = true;
        }
        for model in pull.removed.iter().skip(removed) {
            bar.suspend(|| ui::note(&removed_text(model)));
        }
        removed = pull.removed.len();
        // Before that there is nothing to be a part of.
        if let Some(total) = pull.total_bytes.filter(|total| bar.length() != Some(*total)) {
            bar.set_style(ui::bar_style(BAR));
            bar.set_length(total);
        }
        bar.set_position(pull.received_bytes.max(pull.verified_bytes));
        let text = match (&pull.state, &pull.file) {
            (PullState::Fetching, Some(file)) if pull.error.is_none() => {
                format!("{} ({} ranges)", exo_types::printable(file, 60), pull.ranges)
            }
            _ => state_text(&pull),
        };
        lines.tell(&match (&pull.state, pull.total_bytes) {
            (PullState::Fetching, Some(total)) if pull.error.is_none() => {
                fetched_text(&pull.reference, pull.verified_bytes, total)
            }
            _ => format!("{}: {text}", pull.reference),
        });
        bar.set_message(text);
        match pull.state {
            PullState::Done => return Ok(Followed::Done(Box::new(pull))),
            PullState::Failed => {
                let message = pull.error.unwrap_or_else(|| "the download failed".to_owned());
                return Err(PullFailed { message, hint: pull.hint }.into());
            }
            _ => tokio::time::sleep(LOOK_EVERY).await,
        }
    }
}

/// How far a download is, where no bar shows it.
pub fn fetched_text(reference: &impl std::fmt::Display, done_bytes: u64, total_bytes: u64) -> String {
    format!("fetches {reference}: {} of {}", ui::bytes(done_bytes), ui::bytes(total_bytes))
}

/// What went to make room. Another machine has it, or it would not have gone.
fn removed_text(model: &RemovedModelView) -> String {
    let bytes = ui::bytes(model.bytes);
    format!("deleted {} ({bytes}) from this machine's disk to make room; other machines have it", model.name)
}

/// What is being fetched, why, and what it may be used for.
fn announce(pull: &PullView, total: u64) {
    let commit =
        pull.commit.as_deref().map(|c| format!(" at {}", c.get(..8).unwrap_or(c))).unwrap_or_default();
    ui::note(&format!(
        "fetching {} {}{commit}, {} in {}: {}",
        pull.reference,
        pull.label.as_deref().unwrap_or_default(),
        ui::bytes(total),
        ui::files(pull.files.into()),
        pull.reason.as_deref().unwrap_or_default()
    ));
    match &pull.terms {
        Some(terms) => ui::warning(&format!("licence {terms}")),
        None => ui::note(&format!("licence {}", pull.licence.as_deref().unwrap_or("none named"))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn downloads_of_other_nodes_are_listed_and_the_own_ones_stand_in_their_own_table() {
        let node = |id: &str| {
            serde_json::json!({
                "node": id, "name": format!("node {id}"), "status": "alive", "version": "1", "platform": "x", "transfers": 1,
                "transferred_bytes": 0, "unreached": [], "devices": [], "links": [], "stages": [], "instances": [], "requests": [],
                "pulls": [
                    {"reference": "hf.co/a/b", "state": "fetching", "verified_bytes": 1 << 20, "total_bytes": null, "bytes_per_s": null},
                    {
                        "reference": "hf.co/a/c", "state": "fetching", "verified_bytes": 1 << 20, "total_bytes": null, "bytes_per_s": null,
                        "sources": [{"member": "ann", "bytes": 3 << 20, "bytes_per_s": 2 << 20}, {"bytes": 1 << 20, "bytes_per_s": 1 << 20}]
                    }
                ]
            })
        };
        let told = serde_json::json!({"self_node": "a", "nodes": [node("a"), node("b")]});
        let (rows, unknown) = rows_of_others(Ok(serde_json::from_value(told).unwrap()));
        let row = |reference, from| ["node b", reference, "fetches", "1.00 MiB of ?", "-", from];
        let sources = "ann 3.00 MiB at 2.00 MiB/s, the hub 1.00 MiB at 1.00 MiB/s";
        assert_eq!(rows, [row("hf.co/a/b", "-"), row("hf.co/a/c", sources)]);
        assert_eq!(unknown, None);
    }

    #[test]
    fn where_nobody_tells_what_others_fetch_that_is_said_and_ends_nothing() {
        let silent = anyhow::anyhow!("no answer within 30 s").context("cannot ask the node");
        let (rows, unknown) = rows_of_others(Err(silent));
        assert!(rows.is_empty());
        let expected = "what other nodes fetch is not known: cannot ask the node: no answer within 30 s";
        assert_eq!(unknown.as_deref(), Some(expected));
    }
}
