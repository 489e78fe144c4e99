//! `exo models --found`: models that other programs have put on this disk.

use anyhow::Context;
use exo_hub::Reference;
use exo_store::{CachedModel, local_caches};

use crate::args::Json;
use crate::ui;

/// Lists them.
pub async fn run(json: Json) -> anyhow::Result<()> {
    let found = all().await?;
    if json.json {
        let all: Vec<_> = found.iter().map(exo_node::found_model_view).collect();
        return ui::json(&all);
    }
    if found.is_empty() {
        ui::line("no other program has a model on this disk, at the places that exo knows");
        return Ok(());
    }
    let rows = found.iter().map(|m| {
        let what = m.problem.clone().unwrap_or_else(|| m.path.display().to_string());
        vec![m.name.clone(), m.cache.to_owned(), ui::bytes(m.bytes), what]
    });
    ui::table(&["name", "program", "size", "where"], rows.collect());
    ui::line("`exo run NAME` runs one in place: nothing is copied, and nothing of theirs is written");
    Ok(())
}

/// The one that a name means: by its whole name, or a repository by the name of its only file. Verified where
/// its program keeps a digest.
pub async fn find(name: &str) -> anyhow::Result<Option<CachedModel>> {
    let found = all().await?;
    let bare = name.strip_prefix("hf.co/").unwrap_or(name);
    // What another program left half, or has several times, is no reason not to fetch it.
    let is_elsewhere = matches!(name.parse(), Ok(Reference::Hub(_) | Reference::Registry(_)));
    let unusable = |text: String| match is_elsewhere {
        true => {
            ui::note(&text);
            Ok(None)
        }
        false => Err(anyhow::anyhow!(text)),
    };
    // Ollama calls what it has of a hub `hf.co/…`; the others do not.
    let named = match exo_store::find_cached(&found, name) {
        Ok(None) => exo_store::find_cached(&found, bare),
        named => named,
    };
    let model = match named {
        Ok(Some(model)) => model,
        Ok(None) => return Ok(None),
        Err(error) => return unusable(exo_accelerators::chain(&error)),
    };
    if let Some(problem) = &model.problem {
        let (cache, name) = (&model.cache, &model.name);
        return unusable(format!("{cache} has `{name}` on this disk, but exo cannot use it: {problem}"));
    }
    ui::note(&format!("{} has it on this disk: {} is read in place", model.cache, model.path.display()));
    let checked = model.clone();
    let work = tokio::task::spawn_blocking(move || {
        let bar = ui::bar(checked.bytes, "{spinner} verifying [{bar:30}] {bytes} of {total_bytes}");
        let result = checked.verify(&mut |done| bar.set_position(done));
        bar.finish_and_clear();
        result
    });
    if let Err(error) = work.await.context("verifying broke off")? {
        return unusable(exo_accelerators::chain(&error));
    }
    Ok(Some(model.clone()))
}

async fn all() -> anyhow::Result<Vec<CachedModel>> {
    let home = etcetera::home_dir().context("this user has no home folder")?;
    let work = tokio::task::spawn_blocking(move || local_caches(&home, &|name| std::env::var(name).ok()));
    work.await.context("looking for models broke off")
}
