//! `exo update`: what is newer of models from a hub, shown before it is fetched.

use std::io::IsTerminal;
use std::process::ExitCode;

use exo_api::{FileChangeKind, HubToken, PullRequest, UpdateQuery, UpdateState, UpdateView};
use exo_hub::{Reference, Settings};
use exo_types::shell_word;

use super::interrupt::INTERRUPTED;
use super::pulls::{self, Followed};
use super::{members, pull, running};
use crate::args::Update;
use crate::client::Client;
use crate::config::Config;
use crate::ui;

const RANGES: u8 = 8;
/// Of a commit, to be displayed.
const COMMIT_CHARS: usize = 8;

/// Shows what is newer, asks, and has the node fetch it.
pub async fn run(config: &Config, args: Update) -> anyhow::Result<ExitCode> {
    let (client, settings) = (running(config).await?, pull::settings(config)?);
    let query = UpdateQuery {
        models: args.models,
        endpoint: Some(settings.endpoint.to_string()),
        token: settings.token.as_ref().map(|token| HubToken(token.reveal().to_owned())),
    };
    let spinner = ui::spinner();
    spinner.set_message("asking the hub");
    let updates = client.post::<Vec<UpdateView>>("/exo/v1/hub/updates", &query).await;
    spinner.finish_and_clear();
    let updates = updates?;
    let mut code = if updates.iter().any(|update| update.error.is_some()) { 1 } else { 0 };
    if args.json.json {
        return ui::json(&updates).map(|()| code.into());
    }
    if updates.is_empty() {
        ui::line("no model of this machine is from a hub; `exo pull REFERENCE` fetches one");
    }
    updates.iter().for_each(show);
    let newer: Vec<_> =
        updates.iter().filter(|u| u.state == UpdateState::Newer && u.error.is_none()).collect();
    if newer.is_empty() || !agrees(&newer, args.yes)? {
        return Ok(code.into());
    }
    for update in newer {
        match fetch(&client, &settings, update).await {
            Ok(true) => {}
            Ok(false) => return Ok(INTERRUPTED.into()),
            Err(error) => {
                ui::error(&error.context(format!("{} stays at {}", update.model, short(&update.commit))));
                code = 1;
            }
        }
    }
    Ok(code.into())
}

fn agrees(newer: &[&UpdateView], is_sure: bool) -> anyhow::Result<bool> {
    if is_sure {
        return Ok(true);
    }
    if !std::io::stdin().is_terminal() {
        ui::note("nothing is fetched, as there is no terminal to ask: add --yes");
        return Ok(false);
    }
    let bytes = newer.iter().map(|update| update.fetch_bytes).fold(0, u64::saturating_add);
    let models = if newer.len() == 1 { "1 model".to_owned() } else { format!("{} models", newer.len()) };
    members::agrees(&format!("Fetch the newer commits of {models}, {}?", ui::bytes(bytes)))
}

/// Has the node fetch, and waits; false after Ctrl-C.
async fn fetch(client: &Client, settings: &Settings, update: &UpdateView) -> anyhow::Result<bool> {
    let reference: Reference = update.reference.parse()?;
    let request = PullRequest {
        layers_only: update.layers_only,
        update_of: Some(update.id.clone()),
        commit: update.newest.clone(),
        ..pull::request(&reference, settings, RANGES, None)
    };
    let began = pulls::begin(client, &request).await?;
    let done = match pulls::follow(client, &began).await? {
        Followed::Done(done) => *done,
        Followed::Ended => {
            ui::note(pull::ENDED);
            return Ok(false);
        }
        Followed::Left => {
            ui::note("the update goes on in the node; `exo pulls` shows how far it is");
            return Ok(false);
        }
    };
    let name = done.model.unwrap_or_default();
    let commit = done.commit.as_deref().or(update.newest.as_deref()).map(short).unwrap_or_default();
    let older = match &done.replaced {
        None => String::new(),
        Some(older) if older.removed => "; the older commit is deleted".to_owned(),
        Some(older) => format!("; the older commit is called {} and goes once nothing uses it", older.name),
    };
    ui::line(format!("{name} is at {commit} now{older}"));
    if let Some(instance) = update.instances.first().filter(|_| done.replaced.is_some()) {
        let word = shell_word(&name);
        ui::note(&format!(
            "{} goes on with the older commit; `exo unload {instance}` and `exo place {word}` change that",
            update.instances.join(", ")
        ));
    }
    Ok(true)
}

fn show(update: &UpdateView) {
    let (model, reference, commit) = (&update.model, &update.reference, short(&update.commit));
    let newest = short(update.newest.as_deref().unwrap_or_default());
    match update.state {
        UpdateState::Current if newest == commit => {
            ui::line(format!("{model}: {commit} is the newest of {reference}"));
        }
        UpdateState::Current => {
            ui::line(format!("{model}: none of its files has changed between {commit} and {newest}"));
        }
        UpdateState::Pinned if commit.is_empty() => {
            ui::line(format!("{model}: stays as it is: {reference} has no revisions"));
        }
        UpdateState::Pinned => ui::line(format!("{model}: stays at {commit}, by which it was pulled")),
        UpdateState::Newer => show_newer(update, &format!("{model}: {commit} -> {newest} of {reference}")),
        UpdateState::Failed => {}
    }
    if let Some(error) = &update.error {
        ui::warning(&format!("{model}: {error}"));
        update.hint.iter().for_each(|hint| ui::note(hint));
    }
}

fn show_newer(update: &UpdateView, title: &str) {
    ui::line(title);
    for file in &update.files {
        let how = match file.kind {
            FileChangeKind::Added => "new",
            FileChangeKind::Changed => "changed",
            FileChangeKind::Removed => "gone",
        };
        ui::line(format!("  {how}: {}, {}", file.path, ui::bytes(file.size)));
    }
    let (total, left) = (ui::bytes(update.total_bytes), ui::bytes(update.fetch_bytes));
    if update.layers_only {
        ui::line(format!("  each machine fetches its layers of {total} when it is placed"));
    } else {
        let (here, chunks) = (update.chunks_here, update.chunks);
        ui::line(format!("  to fetch: {left} of {total}; {here} of {chunks} chunks are here"));
    }
    if let Some(licence) = &update.licence {
        ui::warning(&format!("its licence is {licence} now"));
    }
    update.terms.iter().for_each(|terms| ui::warning(&format!("licence {terms}")));
    for name in &update.removes {
        ui::note(&format!("{name} would be deleted from this machine's disk to make room; others have it"));
    }
}

fn short(commit: &str) -> &str {
    commit.get(..COMMIT_CHARS).unwrap_or(commit)
}
