//! `exo pull`, `exo show`, `exo search` and `exo prune`: models of a hub.
//!
//! A node that runs fetches, and goes on if the command is killed; without one the command fetches by itself.
//! What is fetched lies in the data folder, below `hub`.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::path::Path;
use std::process::ExitCode;
use std::sync::Arc;

use anyhow::{Context, bail};
use exo_api::{HubToken, PrunedView, PullRequest, VariantView};
use exo_hub::{
    Cancel, FetchPlan, Fetched, HubError, KeptDownloads, Memory, Origin, Progress, PullOptions, Reference,
    Settings,
};
use exo_node::{DataDir, HeadReader, found_repo_view, repo_view};
use exo_store::{CachedModel, DiskBudget, ModelRecord, Store};
use serde_json::json;

use super::asking::{asking, asking_for};
use super::check_no_node;
use super::interrupt::{FETCHING_MAX, INTERRUPTED, or_interrupt};
use super::pulls::{self, Followed};
use crate::args::{Json, Pull, Search, Show};
use crate::client::Client;
use crate::config::Config;
use crate::ui;

const MIB: f64 = 1_048_576.0;
/// Parts of what was in use so many seconds ago may be of what is placed: a node notes it every ten minutes.
const RECENT_S: u64 = 24 * 60 * 60;
pub const ENDED: &str = "ended; what came stays, and the same command goes on from there";

/// Fetches a model and makes it known.
pub async fn run(config: &Config, args: Pull) -> anyhow::Result<ExitCode> {
    let reference: Reference = args.reference.parse()?;
    let rate_max = match args.limit_rate {
        Some(mib) if mib.is_finite() && mib > 0.0 => Some((mib * MIB).ceil() as u64),
        Some(mib) => bail!("--limit-rate is {mib}: give the MiB a second, more than 0"),
        None => None,
    };
    if let Some(found) = elsewhere(&args).await? {
        return in_place(config, &args, &found).await;
    }
    let settings = settings(config)?;
    // Offline nothing is fetched: what is on the disk needs no node.
    if let Some(client) = Client::running(&config.data_dir()).await.filter(|_| settings.offline.is_none()) {
        let request = request(&reference, &settings, args.ranges, rate_max);
        return with_node(&client, &args, PullRequest { layers_only: args.layers, ..request }).await;
    }
    if settings.offline.is_some()
        && options(config).on_disk(&reference).is_none()
        && let Some(name) = known_in_layers(config, &reference).await?
    {
        ui::line(format!("{name} is known, and this disk has layers of it; nothing was asked of its hub"));
        return Ok(ExitCode::SUCCESS);
    }
    if args.layers || args.detach {
        check_no_node(&config.data_dir())?;
    }
    if args.layers {
        bail!("--layers is for the machines of a cluster, and no node is running: start one with `exo`");
    }
    if args.detach {
        bail!("--detach leaves the download to a node, and none is running: start one with `exo`");
    }
    let options = PullOptions { ranges_max: args.ranges.into(), rate_max, ..options(config) };
    let Some(fetched) = fetch(reference, settings, options, budget(config)?).await? else {
        ui::note(ENDED);
        return Ok(ExitCode::from(INTERRUPTED));
    };
    let name = make_known(config, LocalModel::Fetched(fetched.clone())).await?;
    if args.json.json {
        ui::json(
            &json!({"name": name, "path": fetched.path, "was_here": fetched.was_here, "origin": fetched.origin}),
        )?;
        return Ok(ExitCode::SUCCESS);
    }
    ready(&name, fetched.was_here, fetched.origin.is_verified());
    Ok(ExitCode::SUCCESS)
}

/// What another program has on this disk of a name that does not say where to fetch it.
async fn elsewhere(args: &Pull) -> anyhow::Result<Option<CachedModel>> {
    let names_host = |text: &str| text.contains("://") || text.starts_with("hf.co/");
    if args.layers || names_host(&args.reference) {
        return Ok(None);
    }
    super::found::find(&args.reference).await
}

/// Makes known what is read where it is.
async fn in_place(config: &Config, args: &Pull, found: &CachedModel) -> anyhow::Result<ExitCode> {
    let name = match Client::running(&config.data_dir()).await {
        Some(client) => super::models::add(&client, &found.path, Some(&found.name)).await?.name,
        None => make_known(config, LocalModel::Elsewhere(found.clone())).await?,
    };
    if args.json.json {
        ui::json(&json!({"name": name, "path": found.path, "was_here": true, "origin": null}))?;
        return Ok(ExitCode::SUCCESS);
    }
    ready(&name, true, true);
    Ok(ExitCode::SUCCESS)
}

fn ready(name: &str, was_here: bool, is_verified: bool) {
    let verified = if is_verified { "verified" } else { "not verified: the address gives no digest" };
    let how = if was_here { "was here already" } else { verified };
    ui::line(format!("{name} is ready, {how}; `exo run {}` runs it", exo_types::shell_word(name)));
}

/// The environment of this command counts, not that of the node.
pub fn request(reference: &Reference, settings: &Settings, ranges: u8, rate_max: Option<u64>) -> PullRequest {
    let is_registry = matches!(reference, Reference::Registry(_));
    let endpoint = if is_registry { &settings.ollama_registry } else { &settings.endpoint };
    // A registry gives out its own tokens.
    let token = settings.token.as_ref().filter(|_| !is_registry);
    PullRequest {
        reference: text_of(reference),
        ranges_max: Some(ranges),
        rate_max_bytes_per_s: rate_max,
        endpoint: Some(endpoint.to_string()),
        token: token.map(|token| HubToken(token.reveal().to_owned())),
        ..PullRequest::default()
    }
}

/// The whole address, which is shown without its query elsewhere.
fn text_of(reference: &Reference) -> String {
    match reference {
        Reference::Url(url) => url.clone(),
        other => other.to_string(),
    }
}

async fn with_node(client: &Client, args: &Pull, request: PullRequest) -> anyhow::Result<ExitCode> {
    let began = pulls::begin(client, &request).await?;
    if args.detach {
        if args.json.json {
            return ui::json(&began.pull).map(|()| ExitCode::SUCCESS);
        }
        ui::line(format!("{} is being fetched; `exo pulls` shows how far it is", began.pull.reference));
        return Ok(ExitCode::SUCCESS);
    }
    let pull = match pulls::follow(client, &began).await? {
        Followed::Done(pull) => *pull,
        Followed::Ended => {
            ui::note(ENDED);
            return Ok(ExitCode::from(INTERRUPTED));
        }
        Followed::Left => {
            ui::note(
                "the download goes on: it was begun by another command; `exo pulls` shows how far it is",
            );
            return Ok(ExitCode::from(INTERRUPTED));
        }
    };
    let (name, path) = (pull.model.unwrap_or_default(), pull.path.unwrap_or_default());
    if args.json.json {
        let origin = Origin::beside(Path::new(&path));
        ui::json(&json!({"name": name, "path": path, "was_here": pull.was_here, "origin": origin}))?;
        return Ok(ExitCode::SUCCESS);
    }
    if request.layers_only && pull.is_verified != Some(true) {
        let word = exo_types::shell_word(&name);
        ui::line(format!(
            "{name} is known; with `exo place {word}` each machine fetches its own layers of it"
        ));
        return Ok(ExitCode::SUCCESS);
    }
    ready(&name, pull.was_here, pull.is_verified == Some(true));
    Ok(ExitCode::SUCCESS)
}

/// Whether what came for the reference is whole on this disk.
pub fn is_fetched(config: &Config, reference: &Reference) -> bool {
    options(config).fetched_for(reference).is_some()
}

/// The name of the model once it is here, fetched by the node if it is not there: what `exo run` and
/// `exo place` do with a reference.
pub async fn bring(config: &Config, client: &Client, reference: &Reference) -> anyhow::Result<String> {
    let settings = settings(config)?;
    if settings.offline.is_some() {
        if options(config).on_disk(reference).is_none()
            && let Some(name) = known_in_layers(config, reference).await?
        {
            return Ok(name);
        }
        let fetched =
            fetch(reference.clone(), settings, options(config), budget(config)?).await?.context(ENDED)?;
        return Ok(super::models::add(client, &fetched.path, None).await?.request_name().to_owned());
    }
    let ranges = u8::try_from(options(config).ranges_max).unwrap_or(1);
    let mut request = request(reference, &settings, ranges, None);
    request.layers_only = exo_node::comes_in_layers(reference, &client.get("/exo/v1/cluster").await?);
    request.to_run = true;
    let began = pulls::begin(client, &request).await?;
    match pulls::follow(client, &began).await? {
        Followed::Done(pull) => {
            pull.model.context("the node has fetched it and does not say what it is called")
        }
        Followed::Ended => bail!(ENDED),
        Followed::Left => bail!("the download goes on in the node; `exo pulls` shows how far it is"),
    }
}

/// The name of the model of which this disk has layers for the reference.
async fn known_in_layers(config: &Config, reference: &Reference) -> anyhow::Result<Option<String>> {
    let (data_dir, text) = (config.data_dir(), reference.to_string());
    let work = tokio::task::spawn_blocking(move || -> anyhow::Result<Option<String>> {
        let (store, _) = Store::open(&data_dir).context("cannot open the list of models")?;
        Ok(store.known_for(&text)?.map(|record| record.name))
    });
    work.await.context("reading the list of models broke off")?
}

/// What is on this disk and to be known.
enum LocalModel {
    /// By another program.
    Elsewhere(CachedModel),
    /// By this command.
    Fetched(Fetched),
}

/// The list of the data folder is written: no node runs.
async fn make_known(config: &Config, found: LocalModel) -> anyhow::Result<String> {
    let data_dir = config.data_dir();
    let added = tokio::task::spawn_blocking(move || -> anyhow::Result<String> {
        let (store, warnings) = Store::open(&data_dir).context("cannot open the list of models")?;
        warnings.iter().for_each(|w| ui::warning(&w.to_string()));
        let bar = ui::bar(0, "{spinner} reading [{bar:30}] {bytes} of {total_bytes}");
        let mut shown = |done, total| {
            bar.set_length(total);
            bar.set_position(done);
        };
        let record = match &found {
            LocalModel::Elsewhere(model) => store.add_path_as(&model.path, &model.name, &mut shown),
            LocalModel::Fetched(fetched) => {
                let known = |path: &Path, bytes| fetched.hashes_of(path, bytes);
                store.add_fetched(&fetched.path, &known, &mut shown)
            }
        };
        bar.finish_and_clear();
        Ok(store.takes_name(record?.id)?.name)
    });
    added.await.context("reading the model broke off")?
}

fn options(config: &Config) -> PullOptions {
    PullOptions::new(config.data_dir().join("hub"))
}

fn budget(config: &Config) -> anyhow::Result<DiskBudget> {
    Ok(DiskBudget::new(&config.data_dir(), config.disk_limits()?))
}

/// How the hub is asked.
pub fn settings(config: &Config) -> anyhow::Result<Settings> {
    let home = etcetera::home_dir().context("this user has no home folder")?;
    Ok(Settings::from_env(&home, &config.data_dir(), &|name| std::env::var(name).ok())?)
}

/// Memory that models may have here: what the machine has, less a tenth for all else.
fn memory() -> Option<Memory> {
    let total = exo_device::memory(Path::new("/"))?.total_bytes;
    Some(Memory { bytes: total - total / 10, of: "this machine".to_owned() })
}

/// Resolves and fetches, with a bar; `None` after Ctrl-C.
async fn fetch(
    reference: Reference,
    settings: Settings,
    options: PullOptions,
    budget: DiskBudget,
) -> anyhow::Result<Option<Fetched>> {
    let cancel = Arc::new(Cancel::default());
    let wish = cancel.clone();
    let work =
        tokio::task::spawn_blocking(move || fetch_here(&reference, settings, &options, &budget, &cancel));
    or_interrupt(work, FETCHING_MAX, || wish.cancel()).await
}

fn fetch_here(
    reference: &Reference,
    settings: Settings,
    options: &PullOptions,
    budget: &DiskBudget,
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
    let plan = asking_for(&reference.to_string(), cancel, || {
        exo_hub::resolve(&client, reference, memory().as_ref(), cancel)
    })?;
    let plan = match plan {
        Err(error) if error.is_line_away() => match options.on_disk(reference) {
            Some(here) => {
                let label = here.origin.label();
                ui::note(&format!("{error}: {label} is taken from this disk, and may have become older"));
                return Ok(here);
            }
            None => return Err(error.into()),
        },
        plan => plan?,
    };
    if !plan.is_here(&options.root) {
        announce(&plan);
    }
    // Without a node nobody knows what the cluster has: nothing is deleted.
    let copies = plan.copies(&options.root);
    let needed_bytes = plan.have(&options.root, &copies).missing_bytes;
    if plan.missing_bytes(&options.root) == plan.bytes() {
        let data_dir = options.root.parent().unwrap_or(&options.root);
        exo_node::check_opens(&mut HeadReader::new(&client, cancel, data_dir), &plan, needed_bytes)?;
    }
    let room = budget.take(None, needed_bytes)?;
    let linked = plan.link_unchanged(&options.root, &copies, cancel)?;
    drop(room); // where this disk has no hard links, or has damaged a file, more is fetched
    let fetched = match budget.take(None, plan.missing_bytes(&options.root)) {
        Ok(_room) => fetch_planned(&client, reference, &plan, options, cancel).map_err(anyhow::Error::from),
        Err(error) => Err(error.into()),
    };
    // The next attempt does not read these files again. After any other failure no one may come for them.
    let is_interruption =
        |error: &anyhow::Error| error.downcast_ref::<HubError>().is_some_and(HubError::is_interruption);
    if fetched.as_ref().is_err_and(|error| !is_interruption(error)) {
        linked.iter().for_each(|path| _ = std::fs::remove_file(path));
    }
    fetched
}

/// Fetches what the plan lacks on this disk, with a bar.
fn fetch_planned(
    client: &exo_hub::Client,
    reference: &Reference,
    plan: &FetchPlan,
    options: &PullOptions,
    cancel: &Cancel,
) -> Result<Fetched, HubError> {
    let bar = ui::bar(
        plan.bytes(),
        "{spinner} [{bar:30}] {bytes} of {total_bytes}, {bytes_per_sec}{time_left}  {msg}",
    );
    let mut lines = ui::WaitLines::begin();
    let fetched = exo_hub::fetch(client, plan, options, cancel, &mut |p: &Progress| {
        lines.tell(&pulls::fetched_text(reference, p.done_bytes, p.total_bytes));
        bar.set_position(p.received_bytes);
        bar.set_message(match cancel.hold_up() {
            Some(why) => format!("asks the hub: {why}"),
            None => format!("{} ({} ranges)", exo_types::printable(&p.file, 60), p.ranges),
        });
    });
    bar.finish_and_clear();
    fetched
}

/// What is about to be fetched, why, and what it may be used for. Before the first byte.
fn announce(plan: &FetchPlan) {
    let variant = &plan.choice.variant;
    let commit =
        plan.commit.as_deref().map(|c| format!(" at {}", c.get(..8).unwrap_or(c))).unwrap_or_default();
    ui::note(&format!(
        "fetching {} {}{commit}, {} in {}: {}",
        plan.repo,
        variant.label,
        ui::bytes(plan.bytes()),
        ui::files(plan.files.len() as u64),
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
pub async fn show(config: &Config, args: Show) -> anyhow::Result<()> {
    let Reference::Hub(hub) = args.reference.parse()? else {
        bail!(
            "`exo show` takes a repository, as in hf.co/ORG/REPO, which `exo search` finds; `exo models` lists what is here, and `exo models --found` what other programs have"
        );
    };
    let settings = settings(config)?;
    let work = asking(move |cancel| Ok(exo_hub::Client::new(settings).snapshot(&hub, cancel)?));
    let repo = repo_view(&work.await?);
    if args.json.json {
        return ui::json(&repo);
    }
    let gated = if repo.gated { ", gated: its page asks for consent" } else { "" };
    ui::paragraph(format!("{} at {}, licence {}{gated}", repo.repo, repo.commit, repo.licence));
    if let Some(terms) = &repo.terms {
        ui::paragraph(terms);
    }
    let memory = memory();
    let rows = repo.models.iter().map(|v| {
        vec![
            v.label.clone(),
            ui::bytes(v.bytes),
            v.files.len().to_string(),
            ui::bytes(v.memory_bytes),
            verdict(v, memory.as_ref()),
        ]
    });
    ui::table(&["quantisation", "size", "files", "memory", "here"], rows.collect());
    if repo.models.is_empty() {
        ui::note("nothing in it is a model that exo can fetch: GGUF or safetensors");
        return Ok(());
    }
    ui::note(&format!(
        "`exo fits hf.co/{0}` says how fast each would be on all machines, `exo pull hf.co/{0}:QUANTISATION` fetches one",
        repo.repo
    ));
    Ok(())
}

/// Whether a model runs on this machine, by its memory alone.
fn verdict(variant: &VariantView, memory: Option<&Memory>) -> String {
    match (&variant.problem, variant.supported, memory) {
        (Some(problem), ..) => problem.clone(),
        (None, false, _) => "exo does not compute with this type yet".to_owned(),
        (None, true, Some(memory)) if variant.memory_bytes > memory.bytes => "needs more machines".to_owned(),
        (None, true, Some(_)) => "fits this machine".to_owned(),
        (None, true, None) => "-".to_owned(),
    }
}

/// What the hub finds.
pub async fn search(config: &Config, args: Search) -> anyhow::Result<()> {
    let (settings, text) = (settings(config)?, args.text.join(" "));
    anyhow::ensure!(!text.trim().is_empty(), "name what to look for, as in `exo search qwen3 gguf`");
    let wanted = text.clone();
    let work = asking(move |cancel| Ok(exo_hub::Client::new(settings).search(&wanted, cancel)?));
    let found = work.await?;
    let found: Vec<_> = found.iter().map(found_repo_view).collect();
    if args.json.json {
        return ui::json(&found);
    }
    if found.is_empty() {
        ui::line(format!("the hub has no model for `{text}`; fewer words find more"));
        return Ok(());
    }
    let rows = found.into_iter().map(|f| {
        let gated = if f.gated { "gated" } else { "" };
        let format = f.format.unwrap_or_else(|| "-".to_owned());
        vec![
            format!("hf.co/{}", f.repo),
            format,
            f.downloads.to_string(),
            f.likes.to_string(),
            gated.to_owned(),
        ]
    });
    ui::table(&["reference", "format", "downloads", "likes", ""], rows.collect());
    Ok(())
}

/// Deletes what was never finished. A node that runs knows which downloads wait.
pub async fn prune(config: &Config, json: Json) -> anyhow::Result<()> {
    let pruned = match Client::running(&config.data_dir()).await {
        Some(client) => client.post::<PrunedView>("/exo/v1/hub/prune", &json!({})).await?,
        None => {
            check_no_node(&config.data_dir())?;
            let (data_dir, root) = (config.data_dir(), options(config).root);
            let work = tokio::task::spawn_blocking(move || prune_without_node(&data_dir, &root));
            let (files, bytes) = work.await.context("deleting broke off")??;
            PrunedView { files: files as u64, bytes }
        }
    };
    if json.json {
        return ui::json(&pruned);
    }
    ui::line(format!("deleted {} partial downloads, {}", pruned.files, ui::bytes(pruned.bytes)));
    if pruned.files == 0 {
        ui::note("models that are whole stay; `exo models remove NAME` deletes one");
    }
    Ok(())
}

/// Deletes what no node of this data folder would go on with; how much, and its bytes. What is placed is not
/// known here: parts of a model that was in use a short while ago stay.
fn prune_without_node(data_dir: &Path, root: &Path) -> anyhow::Result<(usize, u64)> {
    // A node that starts, or is too busy to answer, is not without.
    let _held = DataDir::open(data_dir)?;
    let (store, _) = Store::open(data_dir).context("cannot open the list of models")?;
    let known = store.places()?;
    let waiting = exo_node::waiting_downloads(data_dir);
    if !waiting.is_empty() {
        ui::note(&format!(
            "{} downloads are in the list of the node and stay; `exo pulls cancel` takes one from it once the node runs",
            waiting.len()
        ));
    }
    let (files, bytes) = exo_hub::forget_partial(root, &KeptDownloads { waiting, known })?;
    let now_unix_s = exo_stdx::unix_s();
    let is_recent = |record: &ModelRecord| now_unix_s.saturating_sub(record.used_unix_s) < RECENT_S;
    let recent = store.list()?.into_iter().filter(is_recent).map(|record| (record.id, record.name));
    let (recent, stays) = (recent.collect::<BTreeMap<_, _>>(), RefCell::new(Vec::new()));
    let (models, of_parts) = store.prune(&|id| {
        let name = recent.get(&id);
        stays.borrow_mut().extend(name.cloned());
        name.is_some()
    })?;
    for name in stays.into_inner() {
        ui::note(&format!(
            "parts of {name} stay: it was in use in the last day, and only a node that runs knows whether it is placed; \
             `exo models remove {}` deletes them",
            exo_types::shell_word(&name)
        ));
    }
    Ok((files + models, bytes + of_parts))
}

#[cfg(test)]
mod tests {
    use exo_mock_hub::{Faults, MockHub, Repository};
    use exo_store::{ChunkRef, DiskLimits};

    use super::*;

    #[test]
    fn what_a_fetch_that_fails_took_of_an_older_commit_does_not_stay() {
        let (folder, hub) = (tempfile::tempdir().unwrap(), MockHub::start().unwrap());
        let put = |commit: &str, second: u8| {
            let parts = ["m-Q8_0-00001-of-00002.gguf", "m-Q8_0-00002-of-00002.gguf"];
            let mut repository =
                Repository::new(&[(parts[0], vec![1; 1000]), (parts[1], vec![second; 1000])]);
            repository.commit = commit.repeat(40);
            hub.put("org/repo", repository);
        };
        let options = PullOptions::new(folder.path().join("hub"));
        let limits = DiskLimits { reserve_bytes: Some(0), ..DiskLimits::default() };
        let budget = DiskBudget::new(folder.path(), limits);
        let reference: Reference = "hf.co/org/repo".parse().unwrap();
        let fetch = || {
            let settings = Settings::of(&hub.endpoint()).unwrap();
            fetch_here(&reference, settings, &options, &budget, &Cancel::default())
        };
        put("e", 2);
        fetch().unwrap();
        put("f", 3);
        hub.set_faults(Faults { wrong_byte_at: Some(5), ..Faults::default() });
        let error = fetch().unwrap_err();
        assert!(matches!(error.downcast_ref(), Some(HubError::Digest { .. })), "{error}");
        let newer = options.root.join("org/repo").join("f".repeat(40)).join("Q8_0");
        let left: Vec<_> = std::fs::read_dir(&newer).unwrap().map(|file| file.unwrap().file_name()).collect();
        assert!(left.is_empty(), "{left:?}");
        hub.set_faults(Faults::default());
        fetch().unwrap();
    }

    #[test]
    fn without_a_nodes_answer_nothing_goes_that_a_node_may_use() {
        let folder = tempfile::tempdir().unwrap();
        let (from, data) = (folder.path().join("from"), folder.path().join("data"));
        let (sender, _) = Store::open(&from).unwrap();
        let id = sender.add_builtin("demo.gguf", exo_node::DEMO_MODEL).unwrap().id;
        let (store, _) = Store::open(&data).unwrap();
        let copy = store.prepare(&sender.manifest(id).unwrap()).unwrap();
        copy.note_finished(false);
        let parts = (40..60).map(|index| ChunkRef { file: 0, index });
        for chunk in copy.missing_head().into_iter().chain(parts) {
            copy.write_chunk(chunk, &sender.read_chunk(id, chunk).unwrap()).unwrap();
        }
        copy.flush().unwrap();
        let prune = || prune_without_node(&data, &data.join("hub")).map(|(models, _)| models);
        // A node that starts has the folder before it answers.
        let node = DataDir::open(&data).unwrap();
        let refused = prune().unwrap_err();
        assert!(
            crate::hint::of(&refused).is_some_and(|hint| hint.contains("all commands use that node")),
            "{refused}"
        );
        drop(node);
        // It may be of what is placed.
        store.used(&[id], exo_stdx::unix_s()).unwrap();
        assert_eq!(prune().unwrap(), 0);
        drop((copy, store));
        let list = std::fs::read_to_string(data.join("models.json")).unwrap();
        let mut list: serde_json::Value = serde_json::from_str(&list).unwrap();
        list["models"][0]["used_unix_s"] = (exo_stdx::unix_s() - RECENT_S - 1).into();
        std::fs::write(data.join("models.json"), list.to_string()).unwrap();
        assert_eq!(prune().unwrap(), 1);
    }
}
