//! Placing models: what is asked for, what the coordinator answers, and plans that are only shown.

use std::time::{Duration, Instant};

use exo_api::{AdminError, InstanceView, PlaceRequest, PlanQuery, PlanView, ReplanRequest, ReplanView};
use exo_cluster::wire::{ControlAsk, ControlRefusal, ControlReply, PlannerInputs};
use exo_cluster::{DryRunError, InstanceRequest};
use exo_formats::ModelConfig;
use exo_machine::Resolved;
use exo_planner::{PlanError, PlanRequest};
use exo_types::{InstanceId, KvDType};
use tokio::sync::oneshot;

use super::{ANSWER_MAX, NodeFacade, unavailable};
use crate::background;
use crate::cache::{CacheError, CacheRequest, check_context};
use crate::library::OpenModel;
use crate::planning;
use crate::questions::{name_in, other_answer, plan_facts, planner_inputs, refused};
use crate::smaller::smaller;
use exo_accelerators::chain;

/// For the searches of a plan that no one carries out; the last one may take some seconds more.
const DRY_RUN_MAX: Duration = Duration::from_secs(20);
/// For how it would fit that was refused: the refusal waits for it.
const SMALLER_MAX: Duration = Duration::from_secs(5);

impl NodeFacade {
    pub(super) async fn place_model(&self, request: PlaceRequest) -> Result<InstanceView, AdminError> {
        let resolved = self.resolve(&request.model).await.map_err(|m| m.for_admin(&request.model))?;
        let open = self.library.open(resolved.id, &resolved.holders).await?;
        self.check_draft(&resolved, &open).map_err(|error| AdminError::invalid("model", chain(&error)))?;
        let cache = self.cache_of(request.context_tokens, request.slots, request.cache_tokens, request.kv);
        let param = cache_param(&request);
        let invalid = |e: CacheError| AdminError::invalid(param, e.to_string());
        check_context(request.context_tokens, open.model.config.context_tokens_max).map_err(invalid)?;
        let mut wanted =
            instance_request(&resolved, &open, cache, request.nodes_min.unwrap_or(1)).map_err(invalid)?;
        let inputs = match request.pins.is_empty() && request.exclude.is_empty() {
            true => PlannerInputs::default(),
            false => planner_inputs(&self.node, &self.view, resolved.id, None).await?,
        };
        planning::constrain(&request, &inputs, &mut wanted)
            .map_err(|e| AdminError::invalid(e.param(), e.to_string()))?;
        self.library.check_placeable(resolved.id).await?;
        self.replace_different(&resolved, &request, &wanted).await?;
        let (needed_bytes, model) = (wanted.shape.weight_bytes(), resolved.name.clone());
        match self.ask_coordinator(ControlAsk::Place(wanted.clone())).await? {
            ControlReply::Placed { view, mut reasons, holders } => {
                self.checks.when_ready(resolved.id, view.instance());
                let instance = self.wait_for_view(view.instance()).await?;
                reasons.extend(self.sole_holder(holders));
                Ok(InstanceView { reasons, ..instance })
            }
            ControlReply::Refused(ControlRefusal::DoesNotFit(plan)) => {
                let inputs = planner_inputs(&self.node, &self.view, resolved.id, None).await?;
                let free_bytes = exo_planner::memory_free_bytes(inputs.devices.iter().map(|d| &d.facts));
                let detail = plan.text() + &self.smaller(&open.model.config, &wanted).await;
                Err(AdminError::DoesNotFit { model, needed_bytes, free_bytes, detail })
            }
            ControlReply::Refused(refusal) => Err(refused(&self.view, &refusal)),
            ControlReply::Done { .. } | ControlReply::Replanned(_) | ControlReply::PlannerInputs(_) => {
                Err(other_answer())
            }
        }
    }

    /// With what the coordinator would place it, with what `replaced` holds as free, and what its planner is
    /// asked then.
    async fn plan_request(
        &self,
        wanted: &InstanceRequest,
        replaced: Option<InstanceId>,
    ) -> Result<(PlannerInputs, PlanRequest), AdminError> {
        let inputs = planner_inputs(&self.node, &self.view, wanted.model, replaced).await?;
        let request = plan_facts(&self.node, wanted.model).await?.request(&inputs, wanted);
        Ok((inputs, request))
    }

    /// What whoever asked should know where no second member has a change on its disk.
    fn sole_holder(&self, holders: u32) -> Option<String> {
        let others = self.view.borrow().nodes.len().saturating_sub(1);
        (holders < 2 && others > 0).then(|| {
            "only the coordinator has this on its disk: no other member answered; if it is lost now, so is this placement".to_owned()
        })
    }

    /// What a caller named of the cache, and this node's settings for the rest.
    fn cache_of(
        &self,
        context_tokens: Option<u32>,
        slots: Option<u32>,
        cache_tokens: Option<u32>,
        kv: Option<KvDType>,
    ) -> CacheRequest {
        let usual = self.config.usual_cache();
        CacheRequest {
            context_tokens: context_tokens.unwrap_or(usual.context_tokens),
            context_named: context_tokens.is_some(),
            slots: slots.unwrap_or(usual.slots),
            cache_tokens: cache_tokens.or(usual.cache_tokens),
            kv: kv.unwrap_or(usual.kv),
        }
    }

    /// An instance of the model that differs in what the caller named is unloaded if that was asked for, and
    /// else an error: the coordinator would answer with it as it is.
    async fn replace_different(
        &self,
        resolved: &Resolved,
        request: &PlaceRequest,
        wanted: &InstanceRequest,
    ) -> Result<(), AdminError> {
        let instances = self.instances().await?;
        let Some(placed) = instances.iter().find(|i| i.model() == resolved.id) else { return Ok(()) };
        let differences = {
            let view = self.view.borrow();
            let shown = view.instances.iter().find(|i| i.id == placed.instance().to_string());
            planning::differences(&placed.placement, shown, request, wanted, &view)
        };
        if differences.is_empty() {
            return Ok(());
        }
        if !request.replace {
            let (name, id, what) = (&resolved.name, placed.instance(), differences.join(", "));
            let message = format!(
                "`{name}` is placed already as {id}, with {what}: the same `exo place` with --replace places it anew as asked, \
                 `exo unload {id}` takes it away"
            );
            return Err(AdminError::Conflict { message });
        }
        if resolved.is_file_gone {
            let message = format!(
                "no member has the file of `{}` any more: what is unloaded could not be loaded again; put the file back, or add it (`exo models add`)",
                resolved.name
            );
            return Err(AdminError::Conflict { message });
        }
        // What is unloaded for a plan that then fits nowhere would be lost.
        let (inputs, request) = self.plan_request(wanted, Some(placed.instance())).await?;
        let without = PlanRequest { explain: false, ..request };
        let until = Instant::now() + DRY_RUN_MAX;
        let is_over = move || Instant::now() > until;
        let planned = searched(move || exo_cluster::dry_run(&inputs, without, &is_over)).await?;
        planned.map_err(|error| AdminError::Conflict { message: error.to_string() })?;
        let instance = placed.instance();
        let remove = ControlAsk::RemoveInstance { instance };
        self.carry_out(remove, "instance", instance.to_string()).await
    }

    /// How the model would be placed now.
    pub(super) async fn plan_model(&self, query: PlanQuery) -> Result<PlanView, AdminError> {
        let resolved = self.resolve(&query.model).await.map_err(|m| m.for_admin(&query.model))?;
        let open = self.library.open(resolved.id, &resolved.holders).await?;
        let cache = self.cache_of(query.context_tokens, query.slots, query.cache_tokens, query.kv);
        check_context(query.context_tokens, open.model.config.context_tokens_max)
            .map_err(|e| AdminError::invalid("context_tokens", e.to_string()))?;
        let wanted = instance_request(&resolved, &open, cache, query.nodes_min.unwrap_or(1));
        let wanted = wanted.map_err(|e| AdminError::invalid("context_tokens", e.to_string()))?;
        // As with `--replace`, what it holds where it is placed now counts as free.
        let placed = self.instances().await?.into_iter().find(|placed| placed.model() == resolved.id);
        let placed = placed.map(|placed| placed.instance());
        let (inputs, mut request) = self.plan_request(&wanted, placed).await?;
        planning::apply(&query, &mut request).map_err(|e| AdminError::invalid(e.param(), e.to_string()))?;
        let needed_bytes = wanted.shape.weight_bytes();
        let name = resolved.name.clone();
        let free_bytes = exo_planner::memory_free_bytes(request.devices.iter().map(|d| &d.device));
        let until = Instant::now() + DRY_RUN_MAX;
        let is_over = move || Instant::now() > until;
        let (config, kv) = (open.model.config.clone(), wanted.kv);
        let work = move || {
            let answer = planning::answer_as_placed(&name, &inputs, request.clone(), &is_over);
            answer.map_err(|error| match error {
                DryRunError::NoPlan { error, text } if matches!(*error, PlanError::DoesNotFit { .. }) => {
                    let detail = text + &smaller_text(&config, kv, &inputs, &request, &is_over);
                    AdminError::DoesNotFit { model: resolved.name, needed_bytes, free_bytes, detail }
                }
                other => AdminError::Conflict { message: other.to_string() },
            })
        };
        searched(work).await?
    }

    /// How the model would fit if it were stored otherwise; empty where that is not known in time.
    async fn smaller(&self, config: &ModelConfig, wanted: &InstanceRequest) -> String {
        let until = Instant::now() + SMALLER_MAX;
        let known = async {
            let (inputs, request) = self.plan_request(wanted, None).await?;
            let (config, kv) = (config.clone(), wanted.kv);
            let is_over = move || Instant::now() > until;
            searched(move || smaller_text(&config, kv, &inputs, &request, &is_over)).await
        };
        match tokio::time::timeout(SMALLER_MAX, known).await {
            Ok(Ok(text)) => text,
            Ok(Err(error)) => {
                let error: AdminError = error;
                tracing::debug!(%error, "it is not known with what the model would fit");
                String::new()
            }
            Err(_) => {
                tracing::debug!("with what the model would fit was not known in time");
                String::new()
            }
        }
    }

    /// Whether an instance should be elsewhere, and the move there.
    pub(super) async fn replan_instance(
        &self,
        instance: InstanceId,
        request: ReplanRequest,
    ) -> Result<ReplanView, AdminError> {
        let ask = ControlAsk::Replan { instance, carry_out: !request.dry_run };
        match self.ask_coordinator(ask).await? {
            ControlReply::Replanned(report) => {
                let running = self.running_at(instance);
                Ok(planning::replan_view(&report, running, |node| name_in(&self.view, node)))
            }
            ControlReply::Refused(ControlRefusal::Unknown(_)) => {
                Err(AdminError::NotFound { what: "instance", name: instance.to_string() })
            }
            ControlReply::Refused(refusal) => Err(refused(&self.view, &refusal)),
            ControlReply::Done { .. } | ControlReply::Placed { .. } | ControlReply::PlannerInputs(_) => {
                Err(other_answer())
            }
        }
    }

    /// Answers that run at an instance, as its first stage has reported them.
    fn running_at(&self, instance: InstanceId) -> u32 {
        let (view, id) = (self.view.borrow(), instance.to_string());
        let found = view.instances.iter().find(|found| found.id == id);
        found.and_then(|found| found.load).map_or(0, |load| load.running)
    }

    /// The coordinator's news of the instance arrive beside its answer, and what it was asked for with the
    /// log: before that no weights are known.
    async fn wait_for_view(&self, instance: InstanceId) -> Result<InstanceView, AdminError> {
        let id = instance.to_string();
        let mut views = self.view.clone();
        let is_it = |i: &InstanceView| i.id == id && i.stages.iter().any(|stage| stage.weight_bytes > 0);
        let seen = tokio::time::timeout(ANSWER_MAX, views.wait_for(|v| v.instances.iter().any(is_it))).await;
        let found =
            seen.ok().and_then(Result::ok).and_then(|v| v.instances.iter().find(|i| i.id == id).cloned());
        found.ok_or_else(|| unavailable("the new instance is not known here yet"))
    }
}

/// What a search finds that must not be felt between the tokens of a stream.
pub(super) async fn searched<T: Send + 'static>(
    work: impl FnOnce() -> T + Send + 'static,
) -> Result<T, AdminError> {
    let (tell, told) = oneshot::channel();
    let failed = |message: String| AdminError::Failed { message };
    background::run("planner", move || drop(tell.send(work())))
        .map_err(|error| failed(format!("there is no thread for the planner: {error}")))?;
    told.await.map_err(|_| failed("the planner broke off".to_owned()))
}

/// The same in words behind why it does not fit, as far as there is time.
fn smaller_text(
    config: &ModelConfig,
    kv: KvDType,
    inputs: &PlannerInputs,
    request: &PlanRequest,
    is_over: &dyn Fn() -> bool,
) -> String {
    let fits = |asked: PlanRequest| !is_over() && exo_cluster::dry_run(inputs, asked, is_over).is_ok();
    let stored = "another file of it, or `exo quantize`";
    let found = smaller(config, kv, stored, request, &fits);
    found.iter().map(|what| format!("; it fits {what}")).collect()
}

/// Which parameter asks for a cache that cannot be: of what the node's settings decide no one is told as if
/// it were theirs.
fn cache_param(request: &PlaceRequest) -> &'static str {
    match request {
        PlaceRequest { cache_tokens: Some(_), .. } => "cache_tokens",
        PlaceRequest { context_tokens: Some(_), .. } => "context_tokens",
        PlaceRequest { slots: Some(_), .. } => "slots",
        _ => "model",
    }
}

/// What a placement of a model asks for, with the node's defaults where the caller left something open.
pub(super) fn instance_request(
    resolved: &Resolved,
    open: &OpenModel,
    cache: CacheRequest,
    nodes_min: u32,
) -> Result<InstanceRequest, CacheError> {
    let objective = if nodes_min > 1 {
        exo_cluster::PlaceObjective::Spread { stages_min: nodes_min }
    } else {
        exo_cluster::PlaceObjective::Fit
    };
    let holders = resolved.holder_nodes.clone();
    let (context_tokens, cache_tokens) = cache.shape(open.model.config.context_tokens_max)?;
    let shape = open.model.shape_packed(cache.kv, &exo_backend_cpu::weight_bytes);
    Ok(InstanceRequest {
        model: resolved.id,
        model_name: resolved.name.clone(),
        weight_types: planning::weight_types(&open.model, &shape).map(Box::new),
        shape,
        context_tokens,
        slots: cache.slots,
        cache_tokens,
        kv: cache.kv,
        objective,
        pins: Vec::new(),
        excluded: Vec::new(),
        holders,
        is_on_demand: false,
    })
}
