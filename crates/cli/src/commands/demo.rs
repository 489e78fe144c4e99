//! `exo demo`: a cluster of nodes on this machine, a model on one of them and then split over all, start to
//! end.
//!
//! Everything it claims it also checks: see [`verdict`].

mod ask;
mod nodes;
mod unite;
mod verdict;

use std::process::ExitCode;
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use exo_api::{ClusterView, InstanceView, ModelView, PlaceRequest};

use super::interrupt::INTERRUPTED;
use super::place::wait_ready;
use super::status::{STAGE_HEADER, stage_rows};
use crate::args::Demo;
use crate::client::Client;
use crate::config::Config;
use crate::stop::StopSignal;
use crate::ui;
use ask::{DemoPrompt, MODEL};
use nodes::{Nodes, POLL};
use unite::unite;
use verdict::{DemoRun, broken_promises, other_way};

/// For loading a model of a few megabytes that every node has.
const LOAD_MAX: Duration = Duration::from_secs(20);
/// For the cluster to agree that nothing is placed, and for fresh numbers of an instance.
const SETTLE_MAX: Duration = Duration::from_secs(10);

/// Runs the demo. Whatever happens, no process and no file of it stays.
pub async fn run(config: &Config, args: Demo) -> anyhow::Result<ExitCode> {
    let mut stop = StopSignal::new()?;
    let discovery: bool = config.parse("discovery")?;
    config.threads()?; // the nodes would refuse it one by one
    let mut nodes = Nodes::new(config, args.mixed.clone())?;
    let outcome = tokio::select! {
        outcome = show(&mut nodes, &args, discovery) => Some(outcome),
        () = stop.wait() => None,
    };
    if args.keep && matches!(outcome, Some(Ok(()))) {
        invite(&nodes)?;
        stop.wait().await;
    }
    // A second Ctrl-C does not wait for goodbyes: dropping the nodes kills them.
    let unclean = tokio::select! {
        unclean = nodes.stop() => unclean,
        () = stop.wait() => return Ok(ExitCode::from(INTERRUPTED)),
    };
    match outcome {
        None => return Ok(ExitCode::from(INTERRUPTED)),
        Some(result) => result?,
    }
    if !unclean.is_empty() {
        bail!("these nodes did not leave cleanly: {}", unclean.join(", "));
    }
    ui::line("every node has left; nothing is left behind");
    Ok(ExitCode::SUCCESS)
}

async fn show(nodes: &mut Nodes, args: &Demo, discovery: bool) -> anyhow::Result<()> {
    let began = Instant::now();
    let known = ask::known()?;
    let all = args.nodes as usize;
    ui::line(format!("exo {} · a cluster of {all} nodes on this machine\n", env!("CARGO_PKG_VERSION")));
    unite(nodes, all, discovery).await?;
    let result = compare(nodes, &known, all).await;
    // The nodes' own words say more than a refused connection.
    let (solo, split) = result.map_err(|e| anyhow::anyhow!("{e:#}{}", nodes.last_words()))?;
    summary(&solo, &split, &nodes.first()?.get("/exo/v1/cluster").await?);
    let broken = broken_promises(&known, &solo, &split, all);
    if !broken.is_empty() {
        bail!("the demo does not hold what it promises:\n  {}", broken.join("\n  "));
    }
    let same = match other_way(&solo, &split) {
        None => "the same text",
        Some(after) => {
            ui::line(format!(
                "\nthe long text goes another way after {after} characters: processors and graphics cards round differently"
            ));
            "the same answers"
        }
    };
    ui::line(format!(
        "\nchecked: split and solo gave {same}, the answers are the known ones, each node held only its share"
    ));
    ui::line(format!("took {:.1} s", began.elapsed().as_secs_f64()));
    Ok(())
}

/// The model on one node, then split over all of them.
async fn compare(nodes: &Nodes, known: &[DemoPrompt], all: usize) -> anyhow::Result<(DemoRun, DemoRun)> {
    let models: Vec<ModelView> = nodes.first()?.get("/exo/v1/models").await?;
    let model =
        models.iter().find(|m| m.name == MODEL).context("the nodes do not know the built-in model")?;
    let types: Vec<_> = model.dtypes.keys().map(String::as_str).collect();
    let (layers, size) = (model.layers, ui::bytes(model.weight_bytes));
    ui::line(format!(
        "\nmodel `{MODEL}`: {}, {layers} layers, {size}, {}",
        model.architecture,
        types.join(" ")
    ));
    ui::line("\nfirst on one node, to compare with");
    let solo = place(nodes, 1).await?;
    let solo = work(nodes, solo, known, false).await?;
    unload(nodes.first()?, &solo.instance.id).await?;
    ui::line(format!("\nnow split over {all} nodes; the plan:"));
    let split = place(nodes, all as u32).await?;
    let split = work(nodes, split, known, true).await?;
    Ok((solo, split))
}

async fn place(nodes: &Nodes, nodes_min: u32) -> anyhow::Result<InstanceView> {
    let began = Instant::now();
    let request = PlaceRequest { model: MODEL.to_owned(), nodes_min: Some(nodes_min), ..Default::default() };
    let instance: InstanceView =
        nodes.first()?.post("/exo/v1/instances", &request).await.context("the model could not be placed")?;
    if nodes_min > 1 {
        ui::table(
            &STAGE_HEADER[..5],
            stage_rows(&instance).into_iter().map(|row| row[..5].to_vec()).collect(),
        );
    }
    let ready = tokio::time::timeout(LOAD_MAX, wait_ready(nodes.first()?, &instance.id)).await;
    let instance =
        ready.with_context(|| format!("the model was not loaded within {} s", LOAD_MAX.as_secs()))??;
    let names: Vec<_> = instance.stages.iter().map(|s| s.node_name.as_str()).collect();
    ui::line(format!("loaded on {} in {:.2} s", names.join(" -> "), began.elapsed().as_secs_f64()));
    Ok(instance)
}

/// Asks the prompts and measures, at the node of the first stage: a request that arrives elsewhere adds a
/// hop.
async fn work(
    nodes: &Nodes,
    instance: InstanceView,
    known: &[DemoPrompt],
    aloud: bool,
) -> anyhow::Result<DemoRun> {
    let first = instance.stages.first().context("the instance has no stages")?;
    let client = nodes.client_of(&first.node_name)?;
    let mut answers = Vec::new();
    for DemoPrompt { prompt, .. } in known {
        if aloud {
            ui::line(format!("\n> {prompt}"));
        }
        let answers_to = ui::Answers::to_stdout(false);
        let show = &mut |text: &str| {
            if aloud {
                answers_to.print(text)
            }
        };
        answers.push(ask::chat(client, prompt, show).await?);
        if aloud {
            ui::line("");
        }
    }
    let measured = ask::measure(client).await?;
    if !aloud {
        ui::line(format!("answered {} prompts, {:.0} tokens/s", answers.len(), measured.tokens_per_s));
    }
    let instance = with_numbers(client, &instance.id).await?;
    Ok(DemoRun { instance, answers, measured })
}

/// The instance once every node has reported what it holds and how long it computed.
async fn with_numbers(client: &Client, id: &str) -> anyhow::Result<InstanceView> {
    let began = Instant::now();
    loop {
        let instance: InstanceView = client.get(&format!("/exo/v1/instances/{id}")).await?;
        let complete =
            |s: &exo_api::StageView| s.time_share.is_some_and(|t| t > 0.0) && s.weight_bytes_held > 0;
        if instance.stages.iter().all(complete) {
            return Ok(instance);
        }
        if began.elapsed() > SETTLE_MAX {
            bail!(
                "not every node said within {} s what it holds and how long it computed",
                SETTLE_MAX.as_secs()
            );
        }
        tokio::time::sleep(POLL).await;
    }
}

async fn unload(client: &Client, id: &str) -> anyhow::Result<()> {
    client.delete(&format!("/exo/v1/instances/{id}")).await.context("the model could not be unloaded")?;
    let began = Instant::now();
    while client.get::<Vec<InstanceView>>("/exo/v1/instances").await?.iter().any(|i| i.id == id) {
        if began.elapsed() > SETTLE_MAX {
            bail!("instance {id} was not gone {} s after it was unloaded", SETTLE_MAX.as_secs());
        }
        tokio::time::sleep(POLL).await;
    }
    Ok(())
}

fn summary(solo: &DemoRun, split: &DemoRun, view: &ClusterView) {
    let whole: u64 = solo.instance.stages.iter().map(|s| s.weight_bytes_held).sum();
    let rows = split.instance.stages.iter().map(|stage| {
        let share = stage.weight_bytes_held as f64 / whole.max(1) as f64 * 100.0;
        let time = stage.time_share.map_or("-".to_owned(), |t| format!("{:.0} %", t * 100.0));
        let held = format!("{} ({share:.0} %)", ui::bytes(stage.weight_bytes_held));
        let process = view.nodes.iter().find(|n| n.id == stage.node).and_then(|n| n.process_bytes);
        let process = process.map_or("-".to_owned(), ui::bytes);
        vec![
            stage.node_name.clone(),
            format!("{}..{}", stage.layers.start, stage.layers.end),
            held,
            process,
            time,
        ]
    });
    ui::line("\nwhat each node did");
    ui::table(&["node", "layers", "tensors held", "process", "share of time"], rows.collect());
    let (alone, apart) = (solo.measured.tokens_per_s, split.measured.tokens_per_s);
    // Every token goes from stage to stage and back to the first.
    let hops = split.instance.stages.len();
    let added_ms = (1e3 / apart - 1e3 / alone) / hops as f64;
    ui::line(format!("one node   {alone:>7.0} tokens/s"));
    ui::line(format!(
        "split      {apart:>7.0} tokens/s, {added_ms:.2} ms more per token and hop ({hops} hops)"
    ));
}

fn invite(nodes: &Nodes) -> anyhow::Result<()> {
    let first = nodes.first()?.address();
    let question = r#"{"model": "demo", "messages": [{"role": "user", "content": "What is 17 + 25?"}]}"#;
    ui::line("\nthe cluster stays up until Ctrl-C; ask it yourself:");
    ui::line(format!(
        "  curl http://{first}/v1/chat/completions -H 'Content-Type: application/json' -d '{question}'"
    ));
    let Some(node) = nodes.iter().next() else { return Ok(()) };
    let data_dir = exo_types::shell_word(&node.data_dir().to_string_lossy());
    ui::line(format!("  exo status --data-dir {data_dir}"));
    Ok(())
}
