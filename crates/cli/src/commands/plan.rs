//! `exo plan`: how a model would be placed, how fast it would be, and why, without loading anything.

pub mod cluster_file;

use std::process::ExitCode;

use anyhow::{Context, bail};
use exo_api::plan::{
    AlternativeKind, AlternativeView, FigureView, PlanLinkView, PlanObjective, PlanRateView, PlanStageView,
    PredictionView, RangeView,
};
use exo_api::{ClusterView, PlanQuery, PlanView};
use exo_formats::ModelConfig;
use exo_hub::Reference;
use exo_node::planning;
use exo_planner::{LinkFacts, PlanDevice, PlanError, PlanRequest, WeightTypes};
use exo_types::{KvDType, ModelShape};

use super::bench::synthetic::Synthetic;
use super::interrupt::INTERRUPTED;
use super::start::first_view;
use super::subject::Subject;
use super::{doctor, models, running};
use crate::args::Plan;
use crate::client::Client;
use crate::config::Config;
use crate::errors::CommandError;
use crate::run_node::{self, Stay};
use crate::shapes::Shape;
use crate::stop::StopSignal;
use crate::ui;

/// Plans on the described cluster, or on the one that runs.
pub async fn run(config: &Config, args: Plan) -> anyhow::Result<ExitCode> {
    if let Some(path) = &args.save_cluster {
        let view: ClusterView = running(config).await?.get("/exo/v1/cluster").await?;
        std::fs::write(path, cluster_file::write(&view)?)
            .with_context(|| format!("cannot write {}", path.display()))?;
        ui::line(format!("wrote {}", path.display()));
        if args.model.is_none() && args.shape.is_none() {
            return Ok(ExitCode::SUCCESS);
        }
    }
    let plan = match (&args.cluster, &args.shape) {
        (Some(path), _) => described(config, &args, cluster_file::open(path)?)?,
        (None, Some(_)) => {
            let Some(view) = running_or_this_machine(config).await? else {
                return Ok(ExitCode::from(INTERRUPTED));
            };
            let cluster = cluster_file::read(&cluster_file::write(&view)?);
            described(config, &args, cluster.context("what the nodes report describes no cluster")?)?
        }
        (None, None) => {
            let client = running(config).await?;
            let wanted = args.model.as_deref().context("no model is named")?;
            // Nothing is fetched to make a plan: the node says which models there are.
            let model = models::resolve_here(&client, wanted).await?;
            let model = model.map_or_else(|| not_here(wanted), Ok)?;
            client.post("/exo/v1/plan", &query(config, &args, model)?).await?
        }
    };
    ui::json_or(args.json.json, &plan, || show(&plan))?;
    Ok(ExitCode::SUCCESS)
}

/// The cluster that runs; without a node what this machine has, as a node for the while sees it. `None` if
/// somebody stops that first.
async fn running_or_this_machine(config: &Config) -> anyhow::Result<Option<ClusterView>> {
    if let Some(client) = Client::running(&config.data_dir()).await {
        return client.get("/exo/v1/cluster").await.map(Some);
    }
    let mut stop = StopSignal::new()?;
    let started = run_node::start(config, Stay::ForTheWhile, doctor::of(config), &mut stop).await?;
    let Some(node) = started else { return Ok(None) };
    let view = first_view(&node).await;
    node.stop().await;
    view.map(Some)
}

/// A plain name is the node's to judge.
fn not_here(wanted: &str) -> anyhow::Result<String> {
    match wanted.parse::<Reference>() {
        Ok(Reference::Path(_)) => Ok(wanted.to_owned()),
        Ok(_) => Err(CommandError::NotFetched { reference: wanted.to_owned() }.into()),
        Err(error) if wanted.contains([':', '/']) => Err(error.into()),
        Err(_) => Ok(wanted.to_owned()),
    }
}

fn query(config: &Config, args: &Plan, model: String) -> anyhow::Result<PlanQuery> {
    Ok(PlanQuery {
        model,
        context_tokens: args.bounds.context,
        slots: args.bounds.slots,
        cache_tokens: config.flag::<u32>("cache_tokens")?,
        kv: config.flag("kv")?,
        objective: objective(&args.objective),
        nodes_min: args.bounds.nodes,
        streams: args.streams,
        prompt_tokens: args.prompt,
        answer_tokens: args.answer,
        pins: args.bounds.pin.clone(),
        exclude: args.bounds.exclude.clone(),
    })
}

/// An objective by the name that the flag has for it.
pub fn objective(name: &str) -> PlanObjective {
    if name == "throughput" { PlanObjective::Throughput } else { PlanObjective::Latency }
}

/// A plan on these devices and links. No node is asked.
fn described(
    config: &Config,
    args: &Plan,
    (devices, links): (Vec<PlanDevice>, Vec<LinkFacts>),
) -> anyhow::Result<PlanView> {
    // A search may take seconds, and this machine may serve meanwhile.
    exo_node::lower_priority();
    let kv: KvDType = config.flag("kv")?.unwrap_or(config.parse("kv")?);
    let (name, model_config, shape, weight_types) = model(config, args, kv)?;
    exo_node::check_context(args.bounds.context, shape.context_tokens_max)?;
    let context_tokens = args.bounds.context.unwrap_or(config.count("context_tokens")?);
    let context_tokens = context_tokens.min(shape.context_tokens_max.max(1));
    let slots = args.bounds.slots.unwrap_or(config.count("slots")?);
    let cache_tokens = match config.flag::<u32>("cache_tokens")? {
        Some(asked) => exo_node::cache_pages(asked, args.bounds.context)?,
        None => {
            let each = context_tokens.checked_next_multiple_of(exo_planner::PAGE_TOKENS);
            let all = each.and_then(|each| each.checked_mul(slots));
            all.context("the slots have more tokens than can be counted")?
        }
    };
    let mut request = PlanRequest {
        slots,
        cache_tokens,
        kv,
        links,
        weight_types,
        ..PlanRequest::new(shape, context_tokens, devices)
    };
    let query = query(config, args, name)?;
    planning::apply(&query, &mut request)?;
    planning::answer(&query.model, &request).or_else(|error| {
        let stored = if args.shape.is_some() { "--type" } else { "another file of it, or `exo quantize`" };
        let fits = |asked: PlanRequest| exo_planner::plan(&asked).is_ok();
        let smaller = match error {
            PlanError::DoesNotFit { .. } => exo_node::smaller(&model_config, kv, stored, &request, &fits),
            _ => Vec::new(),
        };
        let fits: String = smaller.iter().map(|what| format!("; it fits {what}")).collect();
        bail!("{error}{fits}")
    })
}

fn model(
    config: &Config,
    args: &Plan,
    kv: KvDType,
) -> anyhow::Result<(String, ModelConfig, ModelShape, Option<WeightTypes>)> {
    if let Some(shape) = args.shape.as_deref().and_then(Shape::find) {
        let (numbers, types) = Synthetic::new(&shape, args.stored, 1).described(kv);
        return Ok((format!("{} {}", shape.name, args.stored), shape.config(), numbers, Some(types)));
    }
    let Some(named) = args.model.as_deref() else { bail!("neither a model nor a shape is given") };
    let model = Subject::find(named, &config.data_dir())?.open()?;
    let shape = model.shape_packed(kv, &exo_backend_cpu::weight_bytes);
    let types = planning::weight_types(&model, &shape);
    Ok((named.to_owned(), model.config.clone(), shape, types))
}

fn show(plan: &PlanView) {
    let PlanView { model, context_tokens, slots, cache_tokens, .. } = plan;
    ui::paragraph(format!(
        "{model} · context {context_tokens} · {slots} slots · cache of {cache_tokens} tokens"
    ));
    let row = |stage: &PlanStageView| {
        let layers = format!("{}..{}", stage.layers.start, stage.layers.end);
        let bytes = [stage.weight_bytes, stage.kv_bytes, stage.workspace_bytes].map(ui::bytes);
        let [weights, cache, workspace] = bytes;
        vec![stage.node_name.clone(), stage.device.clone(), layers, weights, cache, workspace]
    };
    let header = ["node", "device", "layers", "weights", "cache", "workspace"];
    ui::table(&header, plan.stages.iter().map(row).collect());
    ui::paragraph(speeds(&plan.predicted));
    if plan.predicted.fetch_bytes > 0 {
        let (bytes, seconds) = (ui::bytes(plan.predicted.fetch_bytes), plan.predicted.fetch_ms / 1e3);
        let guessed = match plan.predicted.is_fetch_estimated {
            true => " (a guess: a link on the way is not measured yet)",
            false => "",
        };
        ui::paragraph(format!(
            "before the first answer {bytes} are fetched at least, which takes {seconds:.1} s or more{guessed}"
        ));
    }
    plan.links.iter().map(link_text).for_each(ui::paragraph);
    ui::paragraph(plan.verdict.clone());
    for device in &plan.devices {
        let (node, device, score, rates) =
            (&device.node_name, &device.device, (device.scores.total * 100.0, &device.reason), &device.rates);
        ui::paragraph(format!("{node} {device} (score {:.0}): {}", score.0, score.1));
        rates
            .iter()
            .map(|rate| format!("{node} {device}: {}", rate_text(device, rate)))
            .for_each(ui::paragraph);
    }
    if !plan.alternatives.is_empty() {
        ui::line("");
        let header = ["otherwise", "layers", "first token", "tokens/s", "fetched first"];
        ui::table(&header, plan.alternatives.iter().map(alternative_row).collect());
    }
}

/// "without desk/gpu0", "mac/gpu0 0..80", "812 ms (640 to 1,020)", "12.1 (10.0 to 14.2)" and "nothing"; or
/// what is missing for it.
fn alternative_row(other: &AlternativeView) -> Vec<String> {
    let kind = match other.kind {
        AlternativeKind::Alone => "alone on",
        AlternativeKind::Without => "without",
        AlternativeKind::With => "with",
    };
    let name = format!("{kind} {}/{}", other.node_name, other.device);
    let Some(plan) = &other.plan else {
        let missing = other.missing_bytes.map(|bytes| format!("{} are missing", ui::bytes(bytes)));
        let why = [other.why.clone(), missing].into_iter().flatten().collect::<Vec<_>>().join("; ");
        return vec![name, format!("impossible: {why}"), String::new(), String::new(), String::new()];
    };
    let stage = |stage: &PlanStageView| {
        format!("{}/{} {}..{}", stage.node_name, stage.device, stage.layers.start, stage.layers.end)
    };
    let mut layers = plan.stages.iter().map(stage).collect::<Vec<_>>().join(", ");
    if !plan.is_proven {
        layers.push_str("; a better one may exist");
    }
    let name = if plan.is_as_asked { name } else { format!("{name}, not as asked") };
    let predicted = &plan.predicted;
    let speed = if predicted.streams > 1 { predicted.total_tokens_per_s } else { predicted.tokens_per_s };
    let least = if predicted.is_fetch_estimated { "by a guess" } else { "or more" };
    let fetched = match predicted.fetch_bytes {
        0 => "nothing".to_owned(),
        bytes => format!("{}, {:.1} s {least}", ui::bytes(bytes), predicted.fetch_ms / 1e3),
    };
    vec![name, layers, range(predicted.ttft_ms, " ms"), range(speed, ""), fetched]
}

/// "Q4_K: 9.1 GB/s, 80 GFLOP/s (measured: 12 passes, 3 min ago)"
fn rate_text(device: &str, rate: &PlanRateView) -> String {
    let note = match rate.source.as_str() {
        // Other devices are measured with Q8_0 alone.
        "taken from Q8_0" if device == "cpu" => {
            "taken from Q8_0: measured when a model with enough of it is loaded there"
        }
        source => source,
    };
    // A number of now is one whose date nobody has said: a file's, say.
    let times = rate.samples.zip(rate.age_s.filter(|age_s| *age_s > 0.0));
    let times = times.map(|(samples, age_s)| format!(": {}", ui::measured(samples, age_s as u64)));
    let rates = ui::type_rates(rate.dtype, rate.read_bytes_per_s, rate.flops_per_s);
    format!("{rates} ({note}{})", times.unwrap_or_default())
}

/// "from a to b: a round trip of 0.21 ms (measured median of 9, 1 s ago), 111 MiB/s (measured once, 9 s ago)"
fn link_text(link: &PlanLinkView) -> String {
    let rtt = note(&link.rtt_ms, |samples| format!("median of {samples}"));
    let rate = note(&link.bytes_per_s, |samples| match samples {
        1 => "once".to_owned(),
        times => format!("{times} times"),
    });
    let PlanLinkView { from, to, rtt_ms, bytes_per_s } = link;
    format!(
        "from {from} to {to}: a round trip of {} ms ({rtt}), {}/s ({rate})",
        ui::figure(rtt_ms.value),
        ui::bytes(bytes_per_s.value as u64)
    )
}

fn note(figure: &FigureView, count: impl Fn(u32) -> String) -> String {
    match (figure.samples, figure.age_s) {
        (Some(samples), Some(age_s)) => format!("{} {}, {age_s:.0} s ago", figure.source, count(samples)),
        _ => figure.source.clone(),
    }
}

/// "first token of a prompt of 512 after 812 ms (640 to 1,020), 12.1 tokens/s (10.0 to 14.2)"
fn speeds(predicted: &PredictionView) -> String {
    let one = format!(
        "first token of a prompt of {} after {}, {}",
        predicted.prompt_tokens,
        range(predicted.ttft_ms, " ms"),
        range(predicted.tokens_per_s, " tokens/s")
    );
    let hops = match predicted.hop_ms.expected {
        0.0 => String::new(),
        _ => format!(", of each token {} between stages", range(predicted.hop_ms, " ms")),
    };
    let many = match predicted.streams {
        0 | 1 => String::new(),
        n => format!("; {n} streams: {}", range(predicted.total_tokens_per_s, " tokens/s")),
    };
    format!("{one}{hops}{many}")
}

/// "812 ms (640 to 1,020)"
fn range(of: RangeView, unit: &str) -> String {
    let RangeView { low, expected, high } = of;
    format!("{}{unit} ({} to {})", ui::figure(expected), ui::figure(low), ui::figure(high))
}
