//! `exo place` and `exo unload`.

use std::io::IsTerminal;
use std::time::{Duration, Instant};

use anyhow::bail;
use exo_api::{ClusterView, InstanceState, InstanceView, ModelView, PlaceRequest};
use exo_types::KvDType;

use super::status::{STAGE_HEADER, progress_text, stage_rows};
use super::{members, models, running};
use crate::args::{Bounds, Json, Place};
use crate::client::{Client, Refused};
use crate::config::Config;
use crate::ui;

/// Longest load without any progress before the command gives up; the node itself gives up at 120 s.
const STALLED_MAX: Duration = Duration::from_secs(130);

/// Places a model and waits until it serves.
pub async fn place(config: &Config, args: Place) -> anyhow::Result<()> {
    let client = running(config).await?;
    let model = models::resolve(config, &client, &args.model).await?;
    // What this command was told, not what this machine's nodes are set to.
    let kv = config.flag::<KvDType>("kv")?;
    let cache_tokens = config.flag::<u32>("cache_tokens")?;
    let Bounds { context, slots, nodes, pin, exclude } = args.bounds;
    let request = PlaceRequest {
        model,
        context_tokens: context,
        slots,
        cache_tokens,
        kv,
        nodes_min: nodes,
        objective: args.objective.as_deref().map(super::plan::objective),
        streams: args.streams,
        pins: pin,
        exclude,
        replace: args.replace,
    };
    let before = if args.replace { placed_as(&client, &request.model).await?.found } else { Vec::new() };
    let costs = Vec::from_iter(ends(&before));
    if !agrees(&format!("Replace {} if it differs", request.model), &costs, args.yes)? {
        bail!("left as it is");
    }
    let mut instance: InstanceView = client.post("/exo/v1/instances", &request).await?;
    if before.iter().any(|i| i.id == instance.id) {
        ui::note("it is placed as this asks for already: nothing was replaced");
    }
    if !args.json.json {
        show(&instance);
        instance.reasons.iter().for_each(ui::paragraph);
    }
    if !args.no_wait {
        let ready = wait_ready(&client, &instance.id).await?;
        if !args.json.json && is_elsewhere(&instance, &ready) {
            ui::note("it was placed anew while it loaded:");
            show(&ready);
        }
        instance = ready;
    }
    if args.json.json {
        return ui::json(&instance);
    }
    ui::paragraph(format!("{} {}", instance.id, super::status::state_text(&instance.state)));
    Ok(())
}

fn show(instance: &InstanceView) {
    super::status::numbers_lines(instance).iter().for_each(ui::paragraph);
    ui::table(&STAGE_HEADER, stage_rows(instance));
    super::status::speed_text(instance).iter().for_each(ui::paragraph);
}

/// Whether other devices, or other layers of it, serve than were planned.
fn is_elsewhere(planned: &InstanceView, serving: &InstanceView) -> bool {
    let shards = |instance: &InstanceView| -> Vec<_> {
        let stages = instance.stages.iter();
        stages.map(|s| (s.node.clone(), s.device.clone(), s.layers.start, s.layers.end)).collect()
    };
    shards(planned) != shards(serving)
}

/// What is placed of what a person names.
pub struct PlacedAs {
    /// The instances that are meant.
    pub found: Vec<InstanceView>,
    /// All that there are, to be displayed.
    pub there: String,
    /// Where models of one name are placed, which: only an id says what ends.
    pub shared: Option<String>,
}

/// By the id of an instance; else what is placed of the model that the node answers to under this name or id,
/// though it be nothing; else, only where the node knows no such model or cannot open it, by what
/// `exo status` shows.
pub async fn placed_as(client: &Client, wanted: &str) -> anyhow::Result<PlacedAs> {
    let ClusterView { instances: placed, .. } = client.get("/exo/v1/cluster").await?;
    let mut there = Vec::from_iter(placed.iter().map(|i| format!("{} ({})", i.id, i.model))).join(", ");
    if there.is_empty() {
        there = "none".to_owned();
    }
    let shared = shared(&placed, wanted);
    let is_id = placed.iter().any(|instance| instance.id == wanted);
    let model_id = if is_id { None } else { known_model(client, &placed, wanted).await? };
    Ok(PlacedAs { found: meant(placed, model_id.as_deref(), wanted), there, shared })
}

/// The instances of several models that are called so: "i1 (model 3fa9c1aa3fa9), i2 (model 0123456789ab)".
fn shared(placed: &[InstanceView], wanted: &str) -> Option<String> {
    if placed.iter().any(|instance| instance.id == wanted) {
        return None;
    }
    let names = [Some(wanted), exo_api::ollama::untagged(wanted)];
    let is_called = |instance: &&InstanceView| names.contains(&Some(instance.model.as_str()));
    let called: Vec<&InstanceView> = placed.iter().filter(is_called).collect();
    let first = called.first()?;
    let are_several = called.iter().any(|instance| instance.model_id != first.model_id);
    let text = |i: &&InstanceView| format!("{} (model {})", i.id, models::short(&i.model_id));
    are_several.then(|| called.iter().map(text).collect::<Vec<_>>().join(", "))
}

/// The id of the model that the node knows by this name or id, if it knows one.
async fn known_model(
    client: &Client,
    placed: &[InstanceView],
    wanted: &str,
) -> anyhow::Result<Option<String>> {
    let path = format!("/exo/v1/models/{}", exo_types::percent_encoded(wanted, b""));
    let error = match client.get::<ModelView>(&path).await {
        Ok(model) => return Ok(Some(model.id)),
        Err(error) => error,
    };
    // Where its files are away or gone, it is known by what is placed alone.
    let is_shown = placed.iter().any(|instance| is_shown_as(instance, wanted));
    match error.downcast_ref::<Refused>().map(|refused| refused.status) {
        Some(404) => Ok(None),
        Some(_) if is_shown => Ok(None),
        _ => Err(error),
    }
}

/// Which of the instances are meant, where the node knows the model of this id by that name, or none.
fn meant(mut placed: Vec<InstanceView>, model_id: Option<&str>, wanted: &str) -> Vec<InstanceView> {
    let is_id = placed.iter().any(|instance| instance.id == wanted);
    placed.retain(|instance| match model_id {
        _ if is_id => instance.id == wanted,
        Some(model_id) => instance.model_id == model_id,
        None => is_shown_as(instance, wanted),
    });
    placed
}

fn is_shown_as(instance: &InstanceView, wanted: &str) -> bool {
    instance.model == wanted || instance.model_id == wanted
}

/// What ends with instances of which answers run.
fn ends(instances: &[InstanceView]) -> Option<String> {
    let running =
        instances.iter().filter_map(|instance| instance.load.as_ref()).map(|load| load.running).sum();
    match running {
        0_u32 => None,
        1 => Some("one answer that runs ends".to_owned()),
        several => Some(format!("{several} answers that run end")),
    }
}

/// Whether the person at a terminal agrees to what it costs; a script has agreed.
fn agrees(what: &str, costs: &[String], is_sure: bool) -> anyhow::Result<bool> {
    let is_asked = std::io::stdin().is_terminal() && std::io::stdout().is_terminal();
    if costs.is_empty() || is_sure || !is_asked {
        return Ok(true);
    }
    members::agrees(&format!("{what}? {}", costs.join("; ")))
}

/// Shows the load until the instance serves; an error if it fails or stalls.
pub async fn wait_ready(client: &Client, id: &str) -> anyhow::Result<InstanceView> {
    let bar = ui::bar(1000, "{spinner} loading [{bar:30}] {percent} %  {msg}");
    let mut moved = (Instant::now(), -1.0);
    let (mut trouble, mut lines) = (None, ui::WaitLines::begin());
    loop {
        let view: ClusterView = client.get("/exo/v1/cluster").await?;
        let Some(instance) = view.instances.into_iter().find(|i| i.id == id) else {
            bar.finish_and_clear();
            bail!("instance {id} was removed while it loaded{}", because(trouble.as_deref()));
        };
        match &instance.state {
            InstanceState::Ready => {
                bar.finish_and_clear();
                return Ok(instance);
            }
            InstanceState::Failed { reason } => {
                bar.finish_and_clear();
                bail!("instance {id} failed: {reason}");
            }
            InstanceState::Loading { progress } => {
                bar.set_position((progress * 1000.0) as u64);
                let stages = stages_text(&instance);
                lines.tell(&format!("loading {:.0} %{stages}", progress * 100.0));
                bar.set_message(stages.trim_start_matches(": ").to_owned());
                // Less than before is another device that begins: the coordinator bounds how often.
                if *progress != moved.1 {
                    moved = (Instant::now(), *progress);
                }
            }
            InstanceState::Degraded { reason } | InstanceState::Waiting { reason } => {
                bar.set_message(reason.clone());
                lines.tell(reason);
                // As where the hub asks to wait, and says for how long still.
                if trouble.as_ref() != Some(reason) {
                    moved.0 = Instant::now();
                }
                trouble = Some(reason.clone());
            }
            InstanceState::Placing => bar.set_message("placing"),
        }
        if moved.0.elapsed() > STALLED_MAX {
            let (seconds, trouble) = (STALLED_MAX.as_secs(), because(trouble.as_deref()));
            bail!("instance {id} made no progress for {seconds} s{trouble}");
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

/// How far each machine is that still fetches or loads.
fn stages_text(instance: &InstanceView) -> String {
    let at_work = instance.stages.iter().filter_map(|stage| Some((stage, stage.progress.as_ref()?)));
    let texts: Vec<_> =
        at_work.map(|(stage, progress)| format!("{} {}", stage.node_name, progress_text(progress))).collect();
    if texts.is_empty() { String::new() } else { format!(": {}", texts.join("; ")) }
}

fn because(trouble: Option<&str>) -> String {
    trouble.map(|reason| format!(": {reason}")).unwrap_or_default()
}

/// Unloads by the id of an instance or by any name of its model.
pub async fn unload(config: &Config, wanted: &str, is_sure: bool, json: Json) -> anyhow::Result<()> {
    let client = running(config).await?;
    let PlacedAs { found, there, shared } = placed_as(&client, wanted).await?;
    if let Some(shared) = shared {
        bail!("several models called `{wanted}` are placed: {shared}; name one by such an id");
    }
    if found.is_empty() {
        bail!("nothing called `{wanted}` is placed; there are: {there}");
    }
    let is_gone = found.iter().any(|instance| instance.is_file_gone);
    let gone = is_gone.then(|| "no machine has its file, so it could not be loaded again".to_owned());
    let costs: Vec<String> = ends(&found).into_iter().chain(gone).collect();
    if !agrees(&format!("Unload {wanted}"), &costs, is_sure)? {
        bail!("left as it is");
    }
    let mut unloaded = Vec::new();
    for InstanceView { id, model, load, .. } in found {
        client.delete(&format!("/exo/v1/instances/{id}")).await?;
        let ended_answers = load.map_or(0, |load| load.running);
        if json.json {
            unloaded.push(serde_json::json!({"id": id, "model": model, "ended_answers": ended_answers}));
            continue;
        }
        let ended = match ended_answers {
            0 => String::new(),
            1 => "; one answer that ran has ended".to_owned(),
            several => format!("; {several} answers that ran have ended"),
        };
        ui::paragraph(format!("unloaded {id} ({model}){ended}"));
    }
    if json.json { ui::json(&unloaded) } else { Ok(()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn instance(id: &str, model: &str, model_id: &str) -> InstanceView {
        let instance = serde_json::json!({
            "id": id, "model": model, "model_id": model_id, "state": {"kind": "ready"}, "placement": "p1",
            "context_tokens": 1, "slots": 1, "kv": "f16", "stages": [],
        });
        serde_json::from_value(instance).unwrap()
    }

    #[test]
    fn what_is_meant_has_the_id_or_is_of_the_known_model_or_is_shown_so() {
        // One name on two models, and a model that is called like an instance.
        let placed = [
            instance("i1", "small", "aa"),
            instance("i2", "small", "bb"),
            instance("i3", "large", "cc"),
            instance("i4", "i3", "dd"),
        ];
        let ids = |model_id: Option<&str>, wanted: &str| -> Vec<String> {
            meant(placed.to_vec(), model_id, wanted).into_iter().map(|instance| instance.id).collect()
        };
        assert_eq!(ids(None, "i3"), ["i3"]);
        assert_eq!(ids(Some("dd"), "i3"), ["i3"], "an id comes before a name");
        assert_eq!(ids(Some("cc"), "another-name"), ["i3"]);
        assert_eq!(ids(Some("bb"), "small"), ["i2"], "the other one has the name, too");
        assert!(ids(Some("ee"), "small").is_empty(), "what it names is not placed");
        assert_eq!(ids(None, "small"), ["i1", "i2"]);
        assert_eq!(ids(None, "cc"), ["i3"]);
        assert!(ids(None, "nothing").is_empty());
        // Which of two ends is not left to a rule.
        let text = "i1 (model aa), i2 (model bb)";
        for wanted in ["small", "small:latest"] {
            assert_eq!(shared(&placed, wanted).as_deref(), Some(text), "{wanted}");
        }
        for wanted in ["large", "i3", "aa", "nothing"] {
            assert_eq!(shared(&placed, wanted), None, "{wanted}");
        }
    }
}
