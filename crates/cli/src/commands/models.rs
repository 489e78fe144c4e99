//! `exo models`: what can be run, adding and forgetting.

use std::path::Path;
use std::time::Duration;

use anyhow::{Context, bail};
use exo_api::{CheckState, KeepModelRequest, ModelCheckView, ModelTools, ModelView};
use exo_hub::Reference;
use exo_node::DataDir;
use exo_store::Store;

use super::running;
use crate::args::{Json, ModelsAction};
use crate::client::Client;
use crate::config::Config;
use crate::errors::CommandError;
use crate::ui;

const CHECK_LOOK_EVERY: Duration = Duration::from_millis(200);

/// Lists, adds, checks or removes.
pub async fn run(config: &Config, action: Option<ModelsAction>, json: Json) -> anyhow::Result<()> {
    let client = match (running(config).await, &action) {
        (Err(error), Some(ModelsAction::Remove { model })) if is_no_node(&error) => {
            return remove_without_node(config, model, error).await;
        }
        (client, _) => client?,
    };
    match action {
        None => list(&client, json).await,
        Some(ModelsAction::Add { path, name }) => {
            let before: Vec<ModelView> = client.get("/exo/v1/models").await?;
            let model = add(&client, &path, name.as_deref()).await?;
            ui::line(added_text(&before, &model));
            let all: Vec<ModelView> = client.get("/exo/v1/models").await?;
            if let Some(text) = shared_name(&all, &model.name) {
                ui::note(&format!("{text}; `exo models add PATH --name NAME` gives another name"));
            }
            Ok(())
        }
        Some(ModelsAction::Check { model }) => {
            let model = known(&client, &model).await?.unwrap_or(model);
            check(&client, &model, json).await
        }
        Some(ModelsAction::Keep { model, undo }) => {
            let model = known(&client, &model).await?.unwrap_or(model);
            let request = KeepModelRequest { model, kept: !undo };
            let model: ModelView = client.post("/exo/v1/kept_models", &request).await?;
            let how = if model.kept { "stays on this machine's disk" } else { "may go when room is needed" };
            ui::line(format!("{} {how}", model.name));
            Ok(())
        }
        Some(ModelsAction::Remove { model }) => remove(&client, &model).await,
    }
}

/// What came of adding one, with the list as it was before: the same bytes may have been known.
fn added_text(before: &[ModelView], model: &ModelView) -> String {
    let ModelView { name, architecture, .. } = model;
    let added = format!("added {name} ({architecture}, {})", ui::bytes(model.weight_bytes));
    match (before.iter().find(|known| known.id == model.id), &model.path) {
        (Some(known), Some(path)) if known.name == *name && known.path.as_ref() == Some(path) => format!(
            "these bytes are known as {name} ({path}), which stays as it is; `exo models add PATH --name NAME` gives the model that \
             path and name"
        ),
        (Some(known), _) if known.name != *name => {
            format!("{added}; the same model was called {} before", known.name)
        }
        _ => added,
    }
}

/// Forgets a model of this machine, and says which others still have it.
async fn remove(client: &Client, text: &str) -> anyhow::Result<()> {
    let models: Vec<ModelView> = client.get("/exo/v1/models").await?;
    let wanted = named(&pairs(&models), text)?.unwrap_or_else(|| text.to_owned());
    let id = models.iter().find(|m| m.request_name() == wanted || m.id == wanted).map(|m| m.id.clone());
    client.delete(&format!("/exo/v1/models/{}", exo_types::percent_encoded(&wanted, b""))).await?;
    let left: Vec<ModelView> = client.get("/exo/v1/models").await?;
    let others = left.into_iter().find(|m| Some(&m.id) == id.as_ref()).map(|m| m.nodes);
    ui::paragraph(forgot_text(text, &others.unwrap_or_default()));
    Ok(())
}

/// What others have stays in the list: they are where it is removed.
fn forgot_text(name: &str, others: &[String]) -> String {
    match others {
        [] => format!("forgot {name}"),
        others => format!(
            "forgot {name} on this machine; it stays listed because of {}, which has it or layers of it: `exo models remove` there forgets that too",
            others.join(", ")
        ),
    }
}

fn pairs(models: &[ModelView]) -> Vec<(&str, &str)> {
    models.iter().map(|m| (m.name.as_str(), m.id.as_str())).collect()
}

/// Of a name that several models have: which one it means, and how to name the others.
fn shared_name(models: &[ModelView], name: &str) -> Option<String> {
    let (others, meant): (Vec<_>, Vec<_>) =
        models.iter().filter(|model| model.name == name).partition(|model| model.needs_id);
    let others: Vec<String> =
        others.into_iter().map(|m| format!("{} (on {})", short(&m.id), m.nodes.join(", "))).collect();
    let meant = meant.first().filter(|_| !others.is_empty())?;
    let which = if meant.instances.is_empty() { "" } else { ", which is placed" };
    Some(format!(
        "several models are called {name}: the name means {}{which}; by its id is meant: {}",
        short(&meant.id),
        others.join(", ")
    ))
}

fn is_no_node(error: &anyhow::Error) -> bool {
    matches!(error.downcast_ref(), Some(CommandError::NoNode { .. }))
}

/// A node does not start on a full disk: what frees it must not need one.
async fn remove_without_node(config: &Config, model: &str, no_node: anyhow::Error) -> anyhow::Result<()> {
    let (data_dir, model) = (config.data_dir(), model.to_owned());
    if !data_dir.join("models.json").exists() {
        return Err(no_node);
    }
    let work = tokio::task::spawn_blocking(move || -> anyhow::Result<(String, u64)> {
        let _held = DataDir::open(&data_dir)?;
        let (store, _) = Store::open(&data_dir).context("cannot open the list of models")?;
        let record = store.find(&model)?;
        Ok((record.name, store.remove(record.id)?))
    });
    let (name, bytes) = work.await.context("deleting broke off")??;
    ui::line(format!("forgot {name}, {} are free again; no node runs on this folder", ui::bytes(bytes)));
    Ok(())
}

/// Begins a check or finds it under way, and waits for its end.
async fn check(client: &Client, model: &str, json: Json) -> anyhow::Result<()> {
    const PATH: &str = "/exo/v1/model_checks";
    let mut check: ModelCheckView = client.post(PATH, &serde_json::json!({"model": model})).await?;
    let spinner = ui::spinner();
    spinner.set_message(format!("the machines read {}", check.model));
    while check.state == CheckState::Running {
        tokio::time::sleep(CHECK_LOOK_EVERY).await;
        let all: Vec<ModelCheckView> = client.get(PATH).await?;
        check =
            all.into_iter().find(|c| c.id == check.id).context("the check is not in the list any more")?;
    }
    spinner.finish_and_clear();
    if json.json {
        ui::json(&check)?;
    }
    let message = check.message.unwrap_or_default();
    match check.state {
        CheckState::Matches if json.json => Ok(()),
        CheckState::Matches => {
            let others = if check.nodes.is_empty() {
                String::new()
            } else {
                format!(", with {}", check.nodes.join(", "))
            };
            ui::line(format!(
                "{} is what its hub promised: {} compared{others}",
                check.model,
                ui::bytes(check.bytes)
            ));
            Ok(())
        }
        CheckState::Differs => bail!(
            "{message}; on each machine `exo models remove {}`, and place it again",
            exo_types::shell_word(&check.model)
        ),
        CheckState::Incomplete => bail!("{message}; place the model and check it when it is ready"),
        CheckState::Running | CheckState::Failed => bail!("{} could not be checked: {message}", check.model),
    }
}

/// As long as a node reads at most.
const ADD_MAX: Duration = Duration::from_secs(3600);

/// Makes a file or folder known to the node; under a name where its own says nothing.
pub async fn add(client: &Client, path: &Path, name: Option<&str>) -> anyhow::Result<ModelView> {
    // The last part stays as it is: a link into a cache keeps its name.
    let found = path.canonicalize().with_context(|| format!("cannot find {}", path.display()))?;
    let path = if name.is_some() { found } else { std::path::absolute(path)? };
    let spinner = ui::spinner();
    spinner.set_message(format!("reading {}", path.display()));
    let body = serde_json::json!({"path": path.to_string_lossy(), "name": name});
    let model = client.post_within(ADD_MAX, "/exo/v1/models", &body).await;
    spinner.finish_and_clear();
    model
}

/// The name of a model the node knows: `model` itself, or after adding it if it is a path, one that another
/// program has on this disk, or a reference, which is fetched first.
pub async fn resolve(config: &Config, client: &Client, model: &str) -> anyhow::Result<String> {
    // What came for this very reference is meant, and not what another program has of it.
    if let Ok(reference @ (Reference::Hub(_) | Reference::Registry(_))) = model.parse::<Reference>()
        && super::pull::is_fetched(config, &reference)
    {
        return super::pull::bring(config, client, &reference).await;
    }
    if let Some(name) = resolve_here(client, model).await? {
        return Ok(name);
    }
    match model.parse::<Reference>() {
        Ok(reference) => super::pull::bring(config, client, &reference).await,
        // A text that could be a reference says what is wrong with it; a plain name is the node's to judge.
        Err(error) if model.contains([':', '/']) => Err(error.into()),
        Err(_) => Ok(model.to_owned()),
    }
}

/// The same for what is on this disk or known to the node; `None` for what would have to be fetched, or is no
/// model.
pub async fn resolve_here(client: &Client, model: &str) -> anyhow::Result<Option<String>> {
    let (path, is_path) = (Path::new(model), matches!(model.parse::<Reference>(), Ok(Reference::Path(_))));
    let is_there = path.exists();
    // A name may end as that of a file does: other programs' models are called `org/repo/file.gguf`.
    if !(is_path && is_there)
        && let Some(name) = known(client, model).await?
    {
        return Ok(Some(name));
    }
    if is_there {
        return Ok(Some(add(client, path, None).await?.request_name().to_owned()));
    }
    match super::found::find(model).await? {
        Some(found) => {
            let added = add(client, &found.path, Some(&found.name)).await?;
            Ok(Some(added.request_name().to_owned()))
        }
        None if is_path => Ok(Some(add(client, path, None).await?.request_name().to_owned())),
        None => Ok(None),
    }
}

/// What the node calls a model that is meant by its name, or by the first characters of its id.
pub async fn known(client: &Client, text: &str) -> anyhow::Result<Option<String>> {
    let models: Vec<ModelView> = client.get("/exo/v1/models").await?;
    let found = named(&pairs(&models), text)?;
    if let Some(shared) = found.as_deref().and_then(|name| shared_name(&models, name)) {
        ui::note(&shared);
    }
    Ok(found)
}

/// Of an id where it tells models of one name apart.
const ID_CHARS_SHOWN: usize = 12;

/// The beginning of an id that tells models of one name apart.
pub fn short(id: &str) -> String {
    id.chars().take(ID_CHARS_SHOWN).collect()
}

/// A model as the list shows it: with its id where others are called the same.
fn shown_name(models: &[ModelView], model: &ModelView) -> String {
    let is_shared = models.iter().any(|other| other.name == model.name && other.id != model.id);
    if is_shared { format!("{} ({})", model.name, short(&model.id)) } else { model.name.clone() }
}

/// Shorter beginnings of an id are too easily somebody's name.
const ID_CHARS_MIN: usize = 6;

/// Among names and ids.
fn named(models: &[(&str, &str)], text: &str) -> anyhow::Result<Option<String>> {
    let is_there = |wanted: &str| models.iter().any(|(name, _)| *name == wanted);
    if let Some(name) =
        [Some(text), exo_api::ollama::untagged(text)].into_iter().flatten().find(|n| is_there(n))
    {
        return Ok(Some(name.to_owned()));
    }
    let lower = text.to_ascii_lowercase();
    let is_id = lower.len() >= ID_CHARS_MIN && lower.bytes().all(|b| b.is_ascii_hexdigit());
    let found: Vec<_> = models.iter().filter(|(_, id)| is_id && id.starts_with(&lower)).collect();
    match found.as_slice() {
        [] => Ok(None),
        [(_, id)] => Ok(Some((*id).to_owned())),
        several => {
            let names: Vec<&str> = several.iter().map(|(name, _)| *name).collect();
            bail!("the ids of {} begin with {text}: give more of it, or a name", names.join(", "))
        }
    }
}

async fn list(client: &Client, json: Json) -> anyhow::Result<()> {
    let models: Vec<ModelView> = client.get("/exo/v1/models").await?;
    if json.json {
        return ui::json(&models);
    }
    let rows = models
        .iter()
        .map(|m| {
            let types: Vec<_> = m.dtypes.keys().cloned().collect();
            let layers = m.layers.to_string();
            let state = if m.instances.is_empty() { "-".to_owned() } else { m.instances.join(", ") };
            vec![
                shown_name(&models, m),
                m.architecture.clone(),
                types.join(" "),
                ui::bytes(m.weight_bytes),
                layers,
                tools_text(m.tools.as_ref()),
                m.nodes.join(", "),
                state,
                source_text(m),
            ]
        })
        .collect();
    ui::table(
        &["model", "architecture", "types", "size", "layers", "tools", "on", "instances", "source"],
        rows,
    );
    Ok(())
}

/// Where a model came from and what it may be used for, where that is known.
fn source_text(model: &ModelView) -> String {
    let text = match (&model.source, &model.licence) {
        (Some(source), Some(licence)) => format!("{source}\nlicence: {licence}"),
        (Some(source), None) => source.clone(),
        _ => "-".to_owned(),
    };
    if model.kept { format!("{text}\nkept on this disk") } else { text }
}

/// Whether a model can be given tools, how it calls them, or why not.
fn tools_text(tools: Option<&ModelTools>) -> String {
    match tools {
        None => "-".to_owned(),
        Some(tools) if tools.usable => tools.format.clone().unwrap_or_else(|| "yes".to_owned()),
        Some(tools) => format!("no: {}", tools.reason.as_deref().unwrap_or("not known why")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_model_says_how_it_calls_tools_or_why_it_cannot() {
        let tools = |usable, format: Option<&str>, reason: Option<&str>| ModelTools {
            usable,
            format: format.map(str::to_owned),
            reason: reason.map(str::to_owned),
        };
        for (tools, text) in [
            (None, "-"),
            (Some(tools(true, Some("JSON behind <tool_call>"), None)), "JSON behind <tool_call>"),
            (Some(tools(false, None, Some("it does not show tools"))), "no: it does not show tools"),
            (Some(tools(false, None, None)), "no: not known why"),
        ] {
            assert_eq!(tools_text(tools.as_ref()), text);
        }
    }

    #[test]
    fn a_name_of_several_models_says_which_one_it_means_and_who_still_has_what_was_forgotten() {
        let model = |id: &str, name: &str, needs_id: bool, instances: &[&str]| -> ModelView {
            let view = serde_json::json!({
                "id": id, "name": name, "architecture": "", "format": "", "weight_bytes": 1, "layers": 1,
                "context_tokens_max": 1, "path": null, "nodes": ["desk"], "chat": true, "needs_id": needs_id,
                "instances": instances,
            });
            serde_json::from_value(view).unwrap()
        };
        let models = [
            model("3fa9c1aa3fa9c1aa", "m", true, &[]),
            model("0123456789abcdef", "m", false, &["i1"]),
            model("ff", "n", false, &[]),
        ];
        let text = "several models are called m: the name means 0123456789ab, which is placed; by its id is meant: \
                    3fa9c1aa3fa9 (on desk)";
        assert_eq!(shared_name(&models, "m").as_deref(), Some(text));
        assert_eq!(shared_name(&models, "n"), None);
        let shown = models.each_ref().map(|model| shown_name(&models, model));
        assert_eq!(shown, ["m (3fa9c1aa3fa9)", "m (0123456789ab)", "n"]);
        assert_eq!(forgot_text("m", &[]), "forgot m");
        assert!(forgot_text("m", &["lab".to_owned()]).contains("it stays listed because of lab"));
    }

    #[test]
    fn a_model_is_known_by_its_name_or_by_six_characters_of_its_id() {
        let models = [("fa", "3fa9c1aa"), ("b", "3fa9c1bb"), ("c", "0123456789")];
        let named = |text: &str| super::named(&models, text).map_err(|e| e.to_string());
        assert_eq!(named("fa"), Ok(Some("fa".to_owned())));
        assert_eq!(named("012345"), Ok(Some("0123456789".to_owned())));
        for text in ["f", "01234", "3fa9", "x"] {
            assert_eq!(named(text), Ok(None), "{text}");
        }
        assert!(named("3FA9C1").unwrap_err().contains("fa, b"));
    }
}
