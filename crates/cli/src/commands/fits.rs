//! `exo fits`: which models fit these machines together, and how fast they would answer.

use std::path::Path;
use std::process::ExitCode;
use std::sync::Arc;

use exo_api::HubToken;
use exo_api::fits::{FitPlanView, FitVerdict, FitView, FitsQuery, FitsView};
use exo_node::fits::{self, FitsCluster, KnownModel};
use exo_types::{KvDType, ModelId, shell_word};

use super::asking::asking;
use super::doctor;
use super::interrupt::INTERRUPTED;
use super::plan::cluster_file;
use super::subject::Subject;
use crate::args::Fits;
use crate::client::Client;
use crate::config::Config;
use crate::run_node::{self, Stay};
use crate::stop::StopSignal;
use crate::ui;

/// The catalogue, or one model, on the running cluster, on a described one, or on this machine.
pub async fn run(config: &Config, args: Fits) -> anyhow::Result<ExitCode> {
    if let Some(path) = &args.cluster {
        described(config, &args, path).await?;
        return Ok(ExitCode::SUCCESS);
    }
    if let Some(client) = Client::running(&config.data_dir()).await {
        asked(config, &client, &args).await?;
        return Ok(ExitCode::SUCCESS);
    }
    let mut stop = StopSignal::new()?;
    let started = run_node::start(config, Stay::ForTheWhile, doctor::of(config), &mut stop).await?;
    let Some(running) = started else { return Ok(ExitCode::from(INTERRUPTED)) };
    let result = tokio::select! {
        result = asked(config, &running.client, &args) => result.map(|()| ExitCode::SUCCESS),
        () = stop.wait() => Ok(ExitCode::from(INTERRUPTED)),
    };
    running.stop().await;
    result
}

async fn asked(config: &Config, client: &Client, args: &Fits) -> anyhow::Result<()> {
    let spinner = ui::spinner();
    spinner.set_message(if args.reference.is_some() { "asking the hub, and planning" } else { "planning" });
    let all = match (&args.reference, args.context) {
        (None, None) => client.get("/exo/v1/fits").await,
        (reference, context_tokens) => {
            // The environment of this command counts, not that of the node.
            let settings = super::pull::settings(config)?;
            let query = FitsQuery {
                reference: reference.clone(),
                context_tokens,
                endpoint: Some(settings.endpoint.to_string()),
                token: settings.token.as_ref().map(|token| HubToken(token.reveal().to_owned())),
            };
            client.post("/exo/v1/fits", &query).await
        }
    };
    spinner.finish_and_clear();
    show(&all?, args)
}

/// On a cluster that only a file knows. No node is asked.
async fn described(config: &Config, args: &Fits, path: &Path) -> anyhow::Result<()> {
    let (devices, links) = cluster_file::open(path)?;
    let kv: KvDType = config.parse("kv")?;
    let context_tokens = args.context.unwrap_or(config.count("context_tokens")?);
    let (slots, cache_tokens) = (config.count("slots")?, config.flag::<u32>("cache_tokens")?);
    let (disks, known, fetches) = (Vec::new(), Arc::default(), None);
    let hop_s = None; // measured where nodes run
    let cluster =
        FitsCluster { devices, links, hop_s, disks, known, fetches, context_tokens, slots, cache_tokens, kv };
    let Some(reference) = args.reference.clone() else {
        return show(&fits::within_context(fits::fit_catalogue(&cluster), args.context), args);
    };
    let (settings, data_dir) = (super::pull::settings(config)?, config.data_dir());
    let work = asking(move |cancel| match known_here(&reference, &data_dir, &cluster)? {
        Some(known) => Ok(fits::fit_model(&cluster, &known)),
        None => Ok(fits::fit_one(&cluster, &reference, Ok(settings), &data_dir, cancel)?),
    });
    show(&fits::within_context(work.await?, args.context), args)
}

/// A model that this machine has whole, as `exo plan` on a described cluster finds it. The built-in one is on
/// every machine.
fn known_here(text: &str, data_dir: &Path, cluster: &FitsCluster) -> anyhow::Result<Option<KnownModel>> {
    if !fits::may_be_known(text) {
        return Ok(None);
    }
    let Ok(subject) = Subject::find(text, data_dir) else { return Ok(None) };
    let holders = match subject {
        Subject::Demo => cluster.devices.iter().map(|device| device.node).collect(),
        Subject::Path(_) | Subject::Made(_) => Vec::new(),
    };
    let (id, name, model) = (ModelId([0; 32]), text.to_owned(), subject.open()?);
    Ok(Some(KnownModel { id, name, model, holders }))
}

fn show(all: &FitsView, args: &Fits) -> anyhow::Result<()> {
    if args.json.json {
        return ui::json(all);
    }
    match (&args.reference, all.models.as_slice()) {
        (Some(_), [model]) => show_one(model),
        _ => show_all(all, args.context),
    }
    Ok(())
}

fn show_all(all: &FitsView, context: Option<u32>) {
    let machines =
        if all.machines == 1 { "1 machine".to_owned() } else { format!("{} machines", all.machines) };
    let (free, pages) = (ui::bytes(all.memory_free_bytes), fits::pages(all.context_tokens));
    let texts = match context {
        Some(tokens) => format!("asked for: texts of {tokens} tokens (about {pages}) at once"),
        None => format!("texts of up to {pages} at once"),
    };
    ui::paragraph(format!("{machines} with {free} free for models; {texts}"));
    for (verdict, title) in [
        (FitVerdict::Comfortable, "These answer at least as fast as people read:"),
        (FitVerdict::Slow, "These run, slower than people read:"),
    ] {
        let rows: Vec<_> = all.models.iter().filter(|m| m.verdict == verdict).filter_map(row).collect();
        if !rows.is_empty() {
            ui::paragraph(format!("\n{title}"));
            ui::table(&["name", "good for", "an answer", "download", "longest text"], rows);
        }
    }
    let too_large: Vec<_> = all.models.iter().filter(|m| m.verdict == FitVerdict::TooLarge).collect();
    if !too_large.is_empty() {
        ui::paragraph("\nThese are too large:");
        let row = |m: &&FitView| {
            let change = m.changes.first().map_or_else(|| m.summary.clone(), Clone::clone);
            vec![m.name.clone(), m.good_for.clone(), change]
        };
        ui::table(&["name", "good for", "would fit with"], too_large.iter().map(row).collect());
    }
    let shorter = all.models.iter().filter(|m| m.verdict == FitVerdict::ContextTooLong);
    let shorter: Vec<_> = shorter
        .map(|m| vec![m.name.clone(), m.good_for.clone(), fits::pages(m.context_tokens_max)])
        .collect();
    if !shorter.is_empty() {
        ui::paragraph("\nThese were made for shorter texts:");
        ui::table(&["name", "good for", "longest text"], shorter);
    }
    let others: Vec<_> = all.models.iter().filter(|m| m.verdict == FitVerdict::NotSupported).collect();
    if !others.is_empty() {
        let names: Vec<_> = others.iter().map(|m| m.name.as_str()).collect();
        ui::paragraph(format!("\nexo does not run these kinds of models yet: {}", names.join(", ")));
    }
    ui::paragraph("\n`exo fits NAME` says more of one, and takes any repository as in hf.co/ORG/REPO");
}

fn row(model: &FitView) -> Option<Vec<String>> {
    let best = model.best.as_ref()?;
    Some(vec![
        model.name.clone(),
        model.good_for.clone(),
        fits::answer_text(best),
        ui::bytes(best.download_bytes),
        fits::pages(best.context_tokens_max),
    ])
}

fn show_one(model: &FitView) {
    ui::paragraph(format!("{}: {}", model.title, model.summary));
    if !model.good_for.is_empty() {
        ui::paragraph(format!("good for {}", model.good_for));
    }
    match &model.terms {
        None if model.licence.is_empty() => {}
        Some(terms) => ui::paragraph(format!("licence {terms}")),
        None => ui::paragraph(format!("licence {}", model.licence)),
    }
    if let Some(best) = &model.best {
        show_best(model, best);
    }
    let size = |s: &exo_api::fits::FitSizeView| {
        let speed =
            s.tokens_per_s.map_or("does not fit".to_owned(), |t| format!("{} tokens/s", ui::figure(t)));
        vec![s.quantisation.clone(), ui::bytes(s.bytes), speed]
    };
    if !model.sizes.is_empty() {
        ui::table(&["type", "size", "speed"], model.sizes.iter().map(size).collect());
    }
    for change in &model.changes {
        ui::paragraph(format!("it would fit with {change}"));
    }
}

fn show_best(model: &FitView, best: &FitPlanView) {
    let (tokens, pages) = (best.context_tokens_max, fits::pages(best.context_tokens_max));
    let is_here = best.download_bytes == 0;
    match is_here {
        true => ui::paragraph(format!("the cluster has it, as {}", best.quantisation)),
        false => ui::paragraph(format!(
            "best as {}: {} to fetch",
            best.quantisation,
            ui::bytes(best.download_bytes)
        )),
    }
    ui::paragraph(format!("texts of up to {pages} ({tokens} tokens) fit at once"));
    let rows = best.stages.iter().map(|stage| {
        let bytes = stage.weight_bytes + stage.kv_bytes + stage.workspace_bytes;
        let layers = format!("{}..{}", stage.layers.start, stage.layers.end);
        vec![stage.node_name.clone(), stage.device.clone(), layers, ui::bytes(bytes)]
    });
    ui::table(&["machine", "device", "layers", "memory"], rows.collect());
    match is_here {
        true => ui::paragraph(format!("`exo run {}` runs it", shell_word(&model.reference))),
        false => {
            // An address of a file and a name say by themselves which type is meant.
            let is_repository = model.reference.starts_with("hf.co/");
            let label = if is_repository { format!(":{}", best.quantisation) } else { String::new() };
            let reference = shell_word(&format!("{}{label}", model.reference));
            ui::paragraph(format!("`exo run {reference}` fetches and runs it"));
        }
    }
}
