//! `exo pull`, `exo show`, `exo search` and `exo prune`: models of a hub.
//!
//! The command fetches by itself, so it needs no node; a node that runs is told of the model when it is whole. What is fetched lies in
//! the data folder, below `hub`.

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;

use anyhow::{Context, bail};
use exo_hub::{Cancel, Fetched, Plan, Progress, PullOptions, Reference, Settings, Variant};
use exo_store::Store;
use serde_json::json;

use super::interrupt::{INTERRUPTED, or_interrupt};
use super::models;
use crate::args::{Pull, Search, Show};
use crate::client::Client;
use crate::config::Config;
use crate::ui;

/// Free disk that a download leaves: systems that have none misbehave.
const RESERVE_BYTES: u64 = 1 << 30;
const RANGES_MAX: usize = 8;
const MIB: f64 = 1_048_576.0;

/// Fetches a model and makes it known.
pub async fn run(config: &Config, args: Pull) -> anyhow::Result<ExitCode> {
    let reference: Reference = args.reference.parse()?;
    let mut options = options(config);
    options.ranges_max = args.ranges.into();
    options.rate_max = match args.limit_rate {
        Some(mib) if mib.is_finite() && mib > 0.0 => Some((mib * MIB).ceil() as u64),
        Some(mib) => bail!("--limit-rate is {mib}: give the MiB a second, more than 0"),
        None => None,
    };
    let Some(fetched) = fetch(reference, options).await? else {
        ui::note("ended; what came stays, and the same command goes on from there");
        return Ok(ExitCode::from(INTERRUPTED));
    };
    let name = make_known(config, &fetched.path).await?;
    if args.json.json {
        ui::json(
            &json!({"name": name, "path": fetched.path, "was_here": fetched.was_here, "origin": fetched.origin}),
        )?;
        return Ok(ExitCode::SUCCESS);
    }
    let verified =
        if fetched.origin.is_verified() { "verified" } else { "not verified: the address gives no digest" };
    let how = if fetched.was_here { "was here already" } else { verified };
    ui::line(format!("{name} is ready, {how}; `exo run {}` runs it", exo_types::shell_word(&name)));
    Ok(ExitCode::SUCCESS)
}

/// The model on this disk, fetched if it is not there: what `exo run` and `exo place` do with a reference.
pub async fn bring(config: &Config, reference: &Reference) -> anyhow::Result<PathBuf> {
    let fetched = fetch(reference.clone(), options(config)).await?;
    fetched.map(|f| f.path).context("ended; what came stays, and the same command goes on from there")
}

/// The running node is told; without one the list of the data folder is written.
async fn make_known(config: &Config, path: &Path) -> anyhow::Result<String> {
    if let Some(client) = Client::running(&config.data_dir()).await {
        return Ok(models::add(&client, path).await?.name);
    }
    let (data_dir, path) = (config.data_dir(), path.to_owned());
    let added = tokio::task::spawn_blocking(move || -> anyhow::Result<String> {
        let (store, warnings) = Store::open(&data_dir).context("cannot open the list of models")?;
        warnings.iter().for_each(|w| ui::warning(&w.to_string()));
        let bar = ui::bar(0, "{spinner} reading [{bar:30}] {bytes} of {total_bytes}");
        let record = store.add_path(&path, &mut |done, total| {
            bar.set_length(total);
            bar.set_position(done);
        });
        bar.finish_and_clear();
        Ok(record?.name)
    });
    added.await.context("reading the model broke off")?
}

fn options(config: &Config) -> PullOptions {
    let root = config.data_dir().join("hub");
    PullOptions { root, ranges_max: RANGES_MAX, rate_max: None, reserve_bytes: RESERVE_BYTES }
}

fn settings() -> anyhow::Result<Settings> {
    let home = etcetera::home_dir().context("this user has no home folder")?;
    Ok(Settings::from_env(&home, &|name| std::env::var(name).ok())?)
}

/// Memory that models may have here: what the machine has, less a tenth for all else.
fn memory_bytes() -> Option<u64> {
    exo_device::memory(Path::new("/")).map(|m| m.total_bytes - m.total_bytes / 10)
}

/// Resolves and fetches, with a bar; `None` after Ctrl-C.
async fn fetch(reference: Reference, options: PullOptions) -> anyhow::Result<Option<Fetched>> {
    let settings = settings()?;
    let cancel = Arc::new(Cancel::default());
    let wish = cancel.clone();
    let work = tokio::task::spawn_blocking(move || fetch_here(&reference, settings, &options, &cancel));
    or_interrupt(work, || wish.cancel()).await
}

fn fetch_here(
    reference: &Reference,
    settings: Settings,
    options: &PullOptions,
    cancel: &Cancel,
) -> anyhow::Result<Fetched> {
    if let (Some(why), Some(here)) = (settings.offline, options.on_disk(reference)) {
        ui::note(&format!(
            "{why}: {} is taken from this disk, and the hub was not asked whether it has a newer one",
            here.origin.label()
        ));
        return Ok(here);
    }
    let client = exo_hub::Client::new(settings);
    let spinner = ui::spinner();
    spinner.set_message(format!("asking for {reference}"));
    let plan = exo_hub::resolve(&client, reference, memory_bytes(), cancel);
    spinner.finish_and_clear();
    let plan = plan?;
    if !plan.is_here(&options.root) {
        announce(&plan);
    }
    let bar = ui::bar(
        plan.bytes(),
        "{spinner} [{bar:30}] {bytes} of {total_bytes}, {bytes_per_sec}, {eta} left  {msg}",
    );
    let fetched = exo_hub::fetch(&client, &plan, options, cancel, &mut |p: &Progress| {
        bar.set_position(p.done_bytes);
        bar.set_message(format!("{} ({} ranges)", exo_types::printable(&p.file, 60), p.ranges));
    });
    bar.finish_and_clear();
    Ok(fetched?)
}

/// What is about to be fetched, why, and what it may be used for. Before the first byte.
fn announce(plan: &Plan) {
    let variant = &plan.choice.variant;
    let commit =
        plan.commit.as_deref().map(|c| format!(" at {}", c.get(..8).unwrap_or(c))).unwrap_or_default();
    ui::note(&format!(
        "fetching {} {}{commit}, {} in {} files: {}",
        plan.repo,
        variant.label,
        ui::bytes(plan.bytes()),
        plan.files.len(),
        plan.choice.reason
    ));
    match plan.licence.notable_terms() {
        Some(terms) => ui::warning(&format!("licence {terms}")),
        None => ui::note(&format!("licence {}", plan.licence.label())),
    }
    if plan.files.iter().any(|f| f.sha256.is_none() && f.name.ends_with(".gguf")) {
        ui::warning("this address gives no digest: what comes cannot be verified");
    }
}

/// What a repository has.
pub async fn show(args: Show) -> anyhow::Result<()> {
    let Reference::Hub(hub) = args.reference.parse()? else {
        bail!(
            "`exo show` takes a repository, as in hf.co/ORG/REPO; a file on this disk is shown by `exo models add`"
        );
    };
    let settings = settings()?;
    let work = tokio::task::spawn_blocking(move || {
        Ok::<_, anyhow::Error>(exo_hub::Client::new(settings).snapshot(&hub, &Cancel::default())?)
    });
    let snapshot = work.await.context("asking the hub broke off")??;
    let variants = exo_hub::variants(&snapshot);
    if args.json.json {
        let models: Vec<_> = variants.iter().map(variant_json).collect();
        return ui::json(&json!({
            "repo": snapshot.repo, "commit": snapshot.commit, "gated": snapshot.is_gated,
            "licence": snapshot.licence, "models": models,
        }));
    }
    let gated = if snapshot.is_gated { ", gated: its page asks for consent" } else { "" };
    ui::line(format!(
        "{} at {}, licence {}{gated}",
        snapshot.repo,
        snapshot.commit,
        snapshot.licence.label()
    ));
    if let Some(terms) = snapshot.licence.notable_terms() {
        ui::paragraph(terms);
    }
    let memory = memory_bytes();
    let rows = variants.iter().map(|v| {
        vec![
            v.label.clone(),
            ui::bytes(v.bytes()),
            v.files.len().to_string(),
            ui::bytes(v.memory_bytes()),
            verdict(v, memory),
        ]
    });
    ui::table(&["quantisation", "size", "files", "memory", "here"], rows.collect());
    Ok(())
}

fn variant_json(v: &Variant) -> serde_json::Value {
    let files: Vec<_> =
        v.files.iter().map(|f| json!({"path": f.path, "size": f.size, "sha256": f.sha256})).collect();
    json!({"label": v.label, "bytes": v.bytes(), "memory_bytes": v.memory_bytes(), "supported": v.is_supported, "problem": v.problem, "files": files})
}

/// Whether a model runs on this machine, by its memory alone.
fn verdict(variant: &Variant, memory_bytes: Option<u64>) -> String {
    match (&variant.problem, variant.is_supported, memory_bytes) {
        (Some(problem), ..) => problem.clone(),
        (None, false, _) => "exo does not compute with this type yet".to_owned(),
        (None, true, Some(memory)) if variant.memory_bytes() > memory => "needs more machines".to_owned(),
        (None, true, Some(_)) => "fits this machine".to_owned(),
        (None, true, None) => "-".to_owned(),
    }
}

/// What the hub finds.
pub async fn search(args: Search) -> anyhow::Result<()> {
    let (settings, text) = (settings()?, args.text.join(" "));
    let wanted = text.clone();
    let work = tokio::task::spawn_blocking(move || {
        Ok::<_, anyhow::Error>(exo_hub::Client::new(settings).search(&wanted, &Cancel::default())?)
    });
    let found = work.await.context("asking the hub broke off")??;
    if args.json.json {
        let all: Vec<_> = found
            .iter()
            .map(|f| json!({"repo": f.repo, "downloads": f.downloads, "likes": f.likes, "gated": f.is_gated, "format": f.format}))
            .collect();
        return ui::json(&all);
    }
    if found.is_empty() {
        ui::line(format!("the hub has no model for `{text}`"));
        return Ok(());
    }
    let rows = found.iter().map(|f| {
        let gated = if f.is_gated { "gated" } else { "" };
        vec![
            format!("hf.co/{}", f.repo),
            f.format.unwrap_or("-").to_owned(),
            f.downloads.to_string(),
            f.likes.to_string(),
            gated.to_owned(),
        ]
    });
    ui::table(&["reference", "format", "downloads", "likes", ""], rows.collect());
    Ok(())
}

/// Deletes what was never finished.
pub async fn prune(config: &Config) -> anyhow::Result<()> {
    let root = options(config).root;
    let work = tokio::task::spawn_blocking(move || exo_hub::forget_partial(&root));
    let (files, bytes) = work.await.context("deleting broke off")??;
    ui::line(format!("deleted {files} partial downloads, {}", ui::bytes(bytes)));
    Ok(())
}
