//! The node as its HTTP server sees it: the bridge from [`exo_api::Facade`] to the node's machine.

use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use exo_api::{
    AdminError, BoxFuture, BoxStream, ClaimedRequest, ClusterView, Drain, Facade, GenerateError,
    GenerateRequest, GenerateStream, HealthStatus, HealthView, InstanceView, InviteRequest, InviteView,
    JoinRequest, JoinedView, MemberRole, MemberView, ModelView, PlaceRequest, PlanQuery, PlanView, Prompt,
    ReplanRequest, ReplanView, RequestPart, RequestView, Resumable, TokensAnswer, TokensQuestion,
    TokensRequest,
};
use exo_cluster::wire::{self, Backup, ControlAsk, ControlRefusal, ControlReply};
use exo_cluster::{DriverConfig, DriverStart, InstanceRequest};
use exo_hub::Origin;
use exo_machine::joining::JoinByCode;
use exo_machine::{Answer, BackupStart, Limits, ModelHolders, Question, Resolved, StartRequest, Unclaimed};
use exo_trust::Act;
use exo_types::{FailureKind, InstanceId, KvDType, ModelId, NodeId, RequestId, SequenceId, SequenceSpec};
use tokio::sync::{Semaphore, mpsc, oneshot, watch};

use crate::cache::{CacheError, CacheRequest};
use crate::config::NodeConfig;
use crate::draft::Draft;
use crate::engine_host::chain;
use crate::events::{Event, EventSender};
use crate::generate::{Prepared, Running, prepare, stream};
use crate::library::{Library, OpenModel};
use crate::pairing::{self, Invites};
use crate::planning;
use crate::run_loop::unix_s;
use crate::tokens;

/// For an answer of the machine, which never waits itself.
const ANSWER_MAX: Duration = Duration::from_secs(12);
/// For an answer of the coordinator: longer than the machine waits for it.
const COORDINATOR_MAX: Duration = Duration::from_secs(45);

/// For a join by code: longer than the machine takes.
const JOIN_MAX: Duration = Duration::from_secs(45);
/// How long a token lasts if nobody says, and at most.
const TOKEN_HOURS: u32 = 24;
const TOKEN_HOURS_MAX: u32 = 24 * 30;
/// Nodes that a token may let in: a cluster has no more.
const TOKEN_USES_MAX: u32 = 64;

/// See the module.
pub struct NodeFacade {
    pub node: EventSender,
    pub library: Arc<Library>,
    /// The small model that guesses ahead.
    pub draft: Option<Arc<Draft>>,
    pub view: watch::Receiver<ClusterView>,
    pub config: NodeConfig,
    pub stop: watch::Sender<bool>,
    pub started: Instant,
    /// Where other nodes reach this one.
    pub listen: SocketAddr,
    /// Codes that were given out.
    pub invites: Arc<Invites>,
    /// Turns of those that render and tokenise.
    pub preparing: Arc<Semaphore>,
    /// The one turn of those whose prompts are long.
    pub preparing_long: Arc<Semaphore>,
    /// Text of the largest prompt.
    pub prompt_bytes_max: usize,
}

/// Prompts that may be rendered and tokenised at once: several, so that a long one does not hold up short ones.
pub const PREPARING_MAX: usize = 4;
/// A prompt that counts as long. While it is tokenised it takes some 130 times its text, so there is one of them at a time.
const LONG_PROMPT_BYTES: usize = 256 << 10;
/// What a message counts beside its text.
const MESSAGE_BYTES: usize = 256;

impl NodeFacade {
    /// The machine's answer; `None` when the node is ending.
    async fn ask(&self, question: Question, within: Duration) -> Option<Answer> {
        let (answer, answered) = oneshot::channel();
        self.node.post(Event::Asked { question, answer });
        tokio::time::timeout(within, answered).await.ok()?.ok()
    }

    async fn resolve(&self, model: &str) -> Result<Resolved, Missing> {
        let question = Question::Resolve { model: model.to_owned() };
        match self.ask(question, ANSWER_MAX).await {
            Some(Answer::Resolved(Ok(resolved))) => Ok(*resolved),
            Some(Answer::Resolved(Err(known))) => Err(Missing::Unknown(known)),
            _ => Err(Missing::Stopping),
        }
    }

    async fn instances(&self) -> Vec<exo_cluster::InstanceView> {
        match self.ask(Question::Instances, ANSWER_MAX).await {
            Some(Answer::Instances(instances)) => instances,
            _ => Vec::new(),
        }
    }

    async fn run(&self, mut request: GenerateRequest) -> Result<GenerateStream, GenerateError> {
        let arrived = Instant::now();
        let name = request.request;
        let answers = request.answers();
        if let Some(resumed) = request.resumable.as_ref().and_then(|resumable| resumable.resumed.as_ref()) {
            request.request = resumed.run;
        }
        let (resolved, open) = self.open(&request.model).await?;
        self.check_draft(&resolved, &open)
            .map_err(|message| GenerateError::Invalid { part: RequestPart::Model, message })?;
        let (place, limits) = self.limits(&resolved, &open, request.context_tokens_min)?;
        let Limits { context_tokens, cache_tokens } = limits;
        let model = resolved.id;
        let backup = request.resumable.as_mut().map(|resumable| backup(name, model, answers, resumable));
        check_resumed(&request, model, open.model.config.vocab)?;
        let (request, prepared) = self.prepare(request, open.clone()).await?;
        let longest = prepared.prompts.iter().map(|prompt| prompt.tokens.len()).max();
        let prompt_tokens = longest.unwrap_or(0) as u64;
        if prompt_tokens >= u64::from(context_tokens) {
            let (context_tokens, cache_tokens) = (context_tokens.into(), cache_tokens.into());
            return Err(GenerateError::PromptTooLong { prompt_tokens, context_tokens, cache_tokens });
        }
        let (tx, events) = mpsc::unbounded_channel();
        let start = StartRequest {
            config: DriverConfig { queue_deadline: request.queue_wait_max, ..DriverConfig::default() },
            starts: starts(&request, &resolved, &open, &prepared, context_tokens),
            place,
            backup,
        };
        self.node.post(Event::Started { request: Box::new(start), events: tx });
        let node = self.node.clone();
        Ok(stream(Running { request, name, open, prepared, events, node, arrived }))
    }

    /// The model of a request.
    async fn open(&self, model: &str) -> Result<(Resolved, Arc<OpenModel>), GenerateError> {
        let resolved = self.resolve(model).await.map_err(|m| m.for_request(model))?;
        let open = self.library.open(resolved.id, &resolved.holders).await;
        let failed = |reason| GenerateError::LoadFailed { model: model.to_owned(), reason };
        Ok((resolved, open.map_err(failed)?))
    }

    /// How the model would be placed, and what its placement, or that one, holds: at least the context that was asked for.
    fn limits(
        &self,
        resolved: &Resolved,
        open: &OpenModel,
        context_tokens_min: Option<u32>,
    ) -> Result<(InstanceRequest, Limits), GenerateError> {
        let mut cache = self.usual_cache();
        let asked = context_tokens_min.unwrap_or(0);
        if asked > cache.context_tokens {
            (cache.context_tokens, cache.context_named) = (asked, true);
        }
        let part = if cache.context_named { RequestPart::Context } else { RequestPart::Model };
        let refused = |part, message| GenerateError::Invalid { part, message };
        // The budget was checked at the start; slots times context hangs on the model.
        let place = instance_request(resolved, open, cache, 1).map_err(|e| refused(part, e.to_string()))?;
        let would_be = Limits { context_tokens: place.context_tokens, cache_tokens: place.cache_tokens };
        let limits = resolved.limits.unwrap_or(would_be);
        let made_for = open.model.config.context_tokens_max;
        if asked > made_for {
            let message =
                format!("a context of {asked} tokens is more than the {made_for} that the model is made for");
            return Err(refused(RequestPart::Context, message));
        }
        if asked > limits.context_tokens {
            let (name, placed) = (&resolved.name, limits.context_tokens);
            let message = format!(
                "the model is placed with a context of {placed} tokens: `exo place {name} --context {asked} --replace` \
                 places it with {asked}"
            );
            return Err(refused(RequestPart::Context, message));
        }
        Ok((place, limits))
    }

    async fn answer_tokens(&self, request: TokensRequest) -> Result<TokensAnswer, GenerateError> {
        let (resolved, open) = self.open(&request.model).await?;
        let (_, limits) = self.limits(&resolved, &open, None)?;
        let text_bytes_max = self.prompt_bytes_max;
        let (text_bytes, bytes) = match &request.question {
            TokensQuestion::Encode { text, .. } => (text.len(), text.len()),
            TokensQuestion::EncodeChat(chat) | TokensQuestion::Render(chat) => {
                let text = chat_bytes(&chat.messages, chat.tools.as_ref());
                (text, text + chat.messages.len() * MESSAGE_BYTES)
            }
            TokensQuestion::Decode(tokens) => (0, size_of_val(tokens.as_slice())),
            TokensQuestion::Capabilities => (0, 0),
        };
        check_prompt_text(text_bytes, text_bytes_max)?;
        self.in_turn(bytes, move || tokens::answer(&open, request, limits.context_tokens, text_bytes_max))
            .await
    }

    /// Renders and tokenises, and lets go of what the prompt was made of: while a request runs its tokens are needed, and of that
    /// only the kind.
    async fn prepare(
        &self,
        mut request: GenerateRequest,
        open: Arc<OpenModel>,
    ) -> Result<(GenerateRequest, Prepared), GenerateError> {
        check_prompt_text(text_bytes(&request), self.prompt_bytes_max)?;
        let bytes = prompt_bytes(&request);
        let prepare = move || {
            let prepared = prepare(&open, &request)?;
            for prompt in &mut request.prompts {
                *prompt = match prompt {
                    Prompt::Chat { .. } => Prompt::Chat { messages: Vec::new() },
                    Prompt::Text(_) | Prompt::Tokens(_) | Prompt::Infill { .. } => Prompt::Tokens(Vec::new()),
                };
            }
            Ok((request, prepared))
        };
        self.in_turn(bytes, prepare).await
    }

    /// Does what may take a while with a prompt of about so many bytes; few at a time, or a flood of requests would take the
    /// processor from those that run.
    async fn in_turn<T: Send + 'static>(
        &self,
        prompt_bytes: usize,
        work: impl FnOnce() -> Result<T, GenerateError> + Send + 'static,
    ) -> Result<T, GenerateError> {
        let internal = |message: String| GenerateError::Internal { message };
        let long = match prompt_bytes > LONG_PROMPT_BYTES {
            true => {
                let turn = self.preparing_long.clone().acquire_owned().await;
                Some(turn.map_err(|e| internal(e.to_string()))?)
            }
            false => None,
        };
        let turn = self.preparing.clone().acquire_owned().await.map_err(|e| internal(e.to_string()))?;
        let done = tokio::task::spawn_blocking(move || {
            let turns = (long, turn);
            let done = work();
            if turns.0.is_some() {
                // What it took lies between other things, and the next one comes on another thread.
                exo_backend_cpu::give_freed_memory_back();
            }
            done
        });
        done.await.map_err(|e| internal(e.to_string()))?
    }

    /// Whether the small model, if there is one, can guess for this one.
    fn check_draft(&self, resolved: &Resolved, open: &OpenModel) -> Result<(), String> {
        match &self.draft {
            Some(draft) => draft.check(resolved.id, &resolved.name, &open.tokenizer),
            None => Ok(()),
        }
    }

    fn usual_cache(&self) -> CacheRequest {
        let NodeConfig { context_tokens, slots, cache_tokens, kv, .. } = self.config;
        CacheRequest { context_tokens, context_named: false, slots, cache_tokens, kv }
    }

    async fn ask_coordinator(&self, ask: ControlAsk) -> Result<ControlReply, AdminError> {
        let question = Question::Coordinator(Box::new(ask));
        let Some(Answer::Coordinator(Some(reply))) = self.ask(question, COORDINATOR_MAX).await else {
            return Err(unavailable("the coordinator did not answer"));
        };
        match *reply {
            ControlReply::Refused { refusal: ControlRefusal::NotCoordinator, message } => {
                Err(unavailable(&message))
            }
            reply => Ok(reply),
        }
    }

    async fn place_model(&self, request: PlaceRequest) -> Result<InstanceView, AdminError> {
        let resolved = self.resolve(&request.model).await.map_err(|m| m.for_admin(&request.model))?;
        let open = self.library.open(resolved.id, &resolved.holders).await;
        let open = open.map_err(|message| AdminError::Failed { message })?;
        self.check_draft(&resolved, &open)
            .map_err(|message| AdminError::Invalid { param: "model".to_owned(), message })?;
        let cache = self.cache_of(request.context_tokens, request.slots, request.cache_tokens, request.kv);
        let param = cache_param(&request);
        let invalid = |e: CacheError| AdminError::Invalid { param: param.to_owned(), message: e.to_string() };
        let mut wanted =
            instance_request(&resolved, &open, cache, request.nodes_min.unwrap_or(1)).map_err(invalid)?;
        planning::constrain(&request, &self.view.borrow(), &mut wanted)
            .map_err(|e| AdminError::Invalid { param: e.param().to_owned(), message: e.to_string() })?;
        self.replace_different(&resolved, &request, &wanted).await?;
        let (needed_bytes, model) = (wanted.shape.weight_bytes(), resolved.name.clone());
        match self.ask_coordinator(ControlAsk::Place(wanted)).await? {
            ControlReply::Placed { view, mut reasons, holders } => {
                let instance = self.wait_for_view(view.instance()).await?;
                reasons.extend(self.sole_holder(holders));
                Ok(InstanceView { reasons, ..instance })
            }
            ControlReply::Refused { refusal: ControlRefusal::DoesNotFit, message } => {
                let nodes = self.view.borrow().nodes.clone();
                let free_bytes = nodes.iter().flat_map(|n| &n.devices).map(|d| d.memory_free_bytes).sum();
                Err(AdminError::DoesNotFit { model, needed_bytes, free_bytes, detail: message })
            }
            ControlReply::Refused { message, .. } => Err(AdminError::Conflict { message }),
            ControlReply::Done { .. } | ControlReply::Replanned(_) => Err(AdminError::Failed {
                message: "the coordinator gave an answer of another kind".to_owned(),
            }),
        }
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
        kv: Option<exo_api::KvType>,
    ) -> CacheRequest {
        let usual = self.usual_cache();
        CacheRequest {
            context_tokens: context_tokens.unwrap_or(usual.context_tokens),
            context_named: context_tokens.is_some(),
            slots: slots.unwrap_or(usual.slots),
            cache_tokens: cache_tokens.or(usual.cache_tokens),
            kv: kv.map_or(usual.kv, KvDType::from),
        }
    }

    /// An instance of the model that differs in what the caller named is unloaded if that was asked for, and else an error:
    /// the coordinator would answer with it as it is.
    async fn replace_different(
        &self,
        resolved: &Resolved,
        request: &PlaceRequest,
        wanted: &InstanceRequest,
    ) -> Result<(), AdminError> {
        let instances = self.instances().await;
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
                "`{name}` is placed already as {id}, with {what}; ask for it to be replaced, or unload it"
            );
            return Err(AdminError::Conflict { message });
        }
        let without = planning::request_without(placed, wanted, &self.view.borrow());
        // Seconds of search at worst.
        let planned = tokio::task::spawn_blocking(move || exo_planner::plan(&without)).await;
        let planned =
            planned.map_err(|e| AdminError::Failed { message: format!("the planner broke off: {e}") })?;
        planned.map_err(|error| AdminError::Conflict { message: error.to_string() })?;
        let instance = placed.instance();
        let remove = ControlAsk::RemoveInstance { instance };
        self.done(remove, "instance", instance.to_string()).await
    }

    /// How the model would be placed now.
    async fn plan_model(&self, query: PlanQuery) -> Result<PlanView, AdminError> {
        let resolved = self.resolve(&query.model).await.map_err(|m| m.for_admin(&query.model))?;
        let open = self.library.open(resolved.id, &resolved.holders).await;
        let open = open.map_err(|message| AdminError::Failed { message })?;
        let cache = self.cache_of(query.context_tokens, query.slots, query.cache_tokens, query.kv);
        let invalid = |param: &str, message: String| AdminError::Invalid { param: param.to_owned(), message };
        let wanted = instance_request(&resolved, &open, cache, query.nodes_min.unwrap_or(1));
        let wanted = wanted.map_err(|e| invalid("context_tokens", e.to_string()))?;
        let mut request = planning::request_of(&wanted, &self.view.borrow());
        planning::apply(&query, &mut request).map_err(|e| invalid(e.param(), e.to_string()))?;
        let needed_bytes = wanted.shape.weight_bytes();
        let name = resolved.name.clone();
        let planned = tokio::task::spawn_blocking(move || (planning::answer(&name, &request), request));
        let (answer, request) = planned
            .await
            .map_err(|e| AdminError::Failed { message: format!("the planner broke off: {e}") })?;
        let free_bytes = request.devices.iter().map(|d| d.device.memory_free_bytes).sum();
        answer.map_err(|error| match error {
            exo_planner::PlanError::DoesNotFit { .. } => AdminError::DoesNotFit {
                model: resolved.name,
                needed_bytes,
                free_bytes,
                detail: error.to_string(),
            },
            other => AdminError::Conflict { message: other.to_string() },
        })
    }

    /// Whether an instance should be elsewhere, and the move there.
    async fn replan_instance(
        &self,
        instance: InstanceId,
        request: ReplanRequest,
    ) -> Result<ReplanView, AdminError> {
        let ask = ControlAsk::Replan { instance, carry_out: !request.dry_run };
        match self.ask_coordinator(ask).await? {
            ControlReply::Replanned(report) => {
                let nodes = self.view.borrow().nodes.clone();
                let name = |node: NodeId| {
                    let id = node.to_full();
                    nodes.iter().find(|n| n.id == id).map_or(id.clone(), |n| n.name.clone())
                };
                Ok(planning::replan_view(&report, name))
            }
            ControlReply::Refused { refusal: ControlRefusal::Unknown, .. } => {
                Err(AdminError::NotFound { what: "instance", name: instance.to_string() })
            }
            ControlReply::Refused { message, .. } => Err(AdminError::Conflict { message }),
            ControlReply::Done { .. } | ControlReply::Placed { .. } => Err(AdminError::Failed {
                message: "the coordinator gave an answer of another kind".to_owned(),
            }),
        }
    }

    /// The coordinator's news of the instance arrive beside its answer, and what it was asked for with the log: before that no
    /// weights are known.
    async fn wait_for_view(&self, instance: InstanceId) -> Result<InstanceView, AdminError> {
        let id = instance.to_string();
        let mut views = self.view.clone();
        let is_it = |i: &InstanceView| i.id == id && i.stages.iter().any(|stage| stage.weight_bytes > 0);
        let seen = tokio::time::timeout(ANSWER_MAX, views.wait_for(|v| v.instances.iter().any(is_it))).await;
        let found =
            seen.ok().and_then(Result::ok).and_then(|v| v.instances.iter().find(|i| i.id == id).cloned());
        found.ok_or_else(|| unavailable("the new instance is not known here yet"))
    }

    async fn done(&self, ask: ControlAsk, what: &'static str, name: String) -> Result<(), AdminError> {
        match self.ask_coordinator(ask).await? {
            ControlReply::Refused { refusal: ControlRefusal::Unknown, .. } => {
                Err(AdminError::NotFound { what, name })
            }
            ControlReply::Refused { message, .. } => Err(AdminError::Conflict { message }),
            ControlReply::Done { .. } | ControlReply::Placed { .. } | ControlReply::Replanned(_) => Ok(()),
        }
    }

    async fn list_models(&self, question: Question) -> Result<Vec<ModelView>, AdminError> {
        let Some(Answer::Models(held)) = self.ask(question, ANSWER_MAX).await else {
            return Err(unavailable("the node is shutting down"));
        };
        let mut views = Vec::new();
        for model in held {
            views.push(self.model_view(model).await);
        }
        Ok(views)
    }

    /// A model that only others have is shown by what they report; its details come with its first use here.
    async fn model_view(&self, held: ModelHolders) -> ModelView {
        let local = self.library.store().record(held.id).ok();
        let mut view = ModelView {
            id: held.id.to_full(),
            name: held.name,
            architecture: String::new(),
            format: String::new(),
            dtypes: BTreeMap::new(),
            weight_bytes: held.bytes,
            layers: 0,
            context_tokens_max: 0,
            path: local.as_ref().map(|r| r.path.display().to_string()),
            nodes: held.node_names,
            chat: true,
            instances: held.instances.iter().map(ToString::to_string).collect(),
            added_unix_s: 0,
            source: None,
            licence: None,
        };
        if let Some(origin) = local.as_ref().and_then(|r| Origin::beside(&r.path)) {
            (view.source, view.licence) = (Some(origin.label()), Some(origin.licence.label().to_owned()));
        }
        if local.is_some_and(|r| r.complete)
            && let Ok(details) = self.library.details(held.id).await
        {
            view.architecture = details.architecture;
            view.format = details.format.to_owned();
            view.weight_bytes = details.weight_bytes;
            view.layers = details.layers;
            view.context_tokens_max = details.context_tokens_max;
            view.chat = details.chat;
            view.dtypes = details.dtypes;
        }
        view
    }

    async fn add(&self, path: String, name: Option<String>) -> Result<ModelView, AdminError> {
        let library = self.library.clone();
        let added = tokio::task::spawn_blocking(move || {
            let (store, path) = (library.store(), PathBuf::from(path));
            let added = match &name {
                Some(name) => store.add_path_as(&path, name, &mut |_, _| {}),
                None => store.add_path(&path, &mut |_, _| {}),
            };
            added.map_err(|e| chain(&e))
        });
        let record = match added.await {
            Ok(Ok(record)) => record,
            Ok(Err(message)) => return Err(AdminError::Invalid { param: "path".to_owned(), message }),
            Err(e) => return Err(AdminError::Failed { message: e.to_string() }),
        };
        // Opened now, so that a model we cannot run is refused here and not at its first request.
        if let Err(message) = self.library.open(record.id, &[]).await {
            let _ = self.library.store().forget(record.id);
            return Err(AdminError::Invalid { param: "path".to_owned(), message });
        }
        // This node may never be asked for it: its vocabulary is read again when it is.
        self.library.release(record.id);
        let models = self.list_models(Question::ModelsAfterScan).await?;
        let id = record.id.to_full();
        let found = models.into_iter().find(|m| m.id == id);
        found
            .ok_or_else(|| AdminError::Failed { message: "the model was added but is not listed".to_owned() })
    }

    async fn remove(&self, wanted: String) -> Result<(), AdminError> {
        let resolved = self.resolve(&wanted).await.map_err(|m| m.for_admin(&wanted))?;
        let instances = self.instances().await;
        if let Some(instance) = instances.iter().find(|i| i.model() == resolved.id) {
            let message = format!("`{wanted}` is placed as {}; unload it first", instance.instance());
            return Err(AdminError::Conflict { message });
        }
        self.library.forget(resolved.id);
        let library = self.library.clone();
        let removed =
            tokio::task::spawn_blocking(move || library.store().remove(resolved.id).map_err(|e| chain(&e)));
        match removed.await {
            Ok(Ok(_)) => self.list_models(Question::ModelsAfterScan).await.map(drop),
            Ok(Err(message)) => Err(AdminError::Failed { message }),
            Err(e) => Err(AdminError::Failed { message: e.to_string() }),
        }
    }

    /// Has this node sign a change of the members, if it is an admin.
    async fn act(&self, act: Act) -> Result<(), AdminError> {
        match self.ask(Question::Act(act), ANSWER_MAX).await {
            Some(Answer::Acted(Ok(()))) => Ok(()),
            Some(Answer::Acted(Err(message))) => Err(AdminError::Conflict { message }),
            _ => Err(unavailable("the node is shutting down")),
        }
    }

    fn give_code(&self, request: &InviteRequest) -> Result<InviteView, AdminError> {
        let view = self.view.borrow().clone();
        let admins: Vec<_> = view.nodes.iter().filter(|node| node.role == MemberRole::Admin).collect();
        if !admins.iter().any(|admin| admin.is_self) {
            let names: Vec<_> = admins.iter().map(|admin| admin.name.as_str()).collect();
            let message =
                format!("this node is not an admin of its cluster; invite on {}", names.join(" or "));
            return Err(AdminError::Conflict { message });
        }
        if self.config.is_private {
            let message =
                "this node runs for one command and has no port for others; start one with `exo`".to_owned();
            return Err(AdminError::Conflict { message });
        }
        let failed = |message| AdminError::Conflict { message };
        let (code, lasting, uses) = match request {
            InviteRequest { uses: None, hours: None } => {
                (self.invites.give_digits().map_err(failed)?, pairing::CODE_LASTS, 1)
            }
            InviteRequest { uses, hours } => {
                let (uses, hours) = (uses.unwrap_or(1), hours.unwrap_or(TOKEN_HOURS));
                in_range("uses", uses, TOKEN_USES_MAX)?;
                in_range("hours", hours, TOKEN_HOURS_MAX)?;
                let lasting = Duration::from_secs(3600) * hours;
                (self.invites.give_token(uses, lasting).map_err(failed)?, lasting, uses)
            }
        };
        let expires_at_unix_s = unix_s() + lasting.as_secs();
        let node = view.self_node;
        Ok(InviteView { code, uses, expires_at_unix_s, node, addresses: self.own_addresses() })
    }

    /// Where machines of the same networks reach this node.
    fn own_addresses(&self) -> Vec<String> {
        if !self.listen.ip().is_unspecified() {
            return vec![self.listen.to_string()];
        }
        let interfaces = exo_discovery::local_interfaces().unwrap_or_default();
        let usable = interfaces.iter().map(|interface| interface.ip).filter(|ip| {
            let is_link_local = matches!(ip, IpAddr::V6(v6) if v6.is_unicast_link_local());
            !ip.is_loopback() && !is_link_local
        });
        usable.map(|ip| SocketAddr::new(ip, self.listen.port()).to_string()).collect()
    }

    async fn join_by_code(&self, request: JoinRequest) -> Result<JoinedView, AdminError> {
        let invalid = |param: &str, message: String| AdminError::Invalid { param: param.to_owned(), message };
        let code = pairing::normal(&request.code).map_err(|message| invalid("code", message))?;
        let with = request.node.map(|node| node.parse::<NodeId>()).transpose();
        let with = with.map_err(|error| invalid("node", error.to_string()))?;
        let mut addresses = Vec::new();
        for text in &request.addresses {
            let address = text.parse::<SocketAddr>();
            addresses.push(address.map_err(|error| invalid("addresses", format!("`{text}`: {error}")))?);
        }
        if self.config.is_private {
            let message = "this node runs for one command; start one that stays with `exo`".to_owned();
            return Err(AdminError::Conflict { message });
        }
        match self.ask(Question::Join(JoinByCode { code, with, addresses }), JOIN_MAX).await {
            Some(Answer::Joined(Ok(joined))) => {
                Ok(JoinedView { name: joined.name, check_words: joined.words })
            }
            Some(Answer::Joined(Err(message))) => Err(AdminError::Conflict { message }),
            _ => Err(unavailable("the node did not answer")),
        }
    }

    async fn list_members(&self) -> Result<Vec<MemberView>, AdminError> {
        let words = match self.ask(Question::CheckWords, ANSWER_MAX).await {
            Some(Answer::CheckWords(words)) => words,
            _ => Vec::new(),
        };
        let words: BTreeMap<String, String> = words.into_iter().map(|(n, w)| (n.to_full(), w)).collect();
        let view = self.view.borrow().clone();
        let member = |n: exo_api::NodeView| MemberView {
            check_words: words.get(&n.id).cloned(),
            node: n.id,
            name: n.name,
            role: n.role,
            is_self: n.is_self,
        };
        Ok(view.nodes.into_iter().map(member).collect())
    }
}

impl Facade for NodeFacade {
    fn generate(&self, request: GenerateRequest) -> BoxFuture<'_, Result<GenerateStream, GenerateError>> {
        Box::pin(self.run(request))
    }

    fn tokens(&self, request: TokensRequest) -> BoxFuture<'_, Result<TokensAnswer, GenerateError>> {
        Box::pin(self.answer_tokens(request))
    }

    fn models(&self) -> BoxFuture<'_, Result<Vec<ModelView>, AdminError>> {
        Box::pin(self.list_models(Question::Models))
    }

    fn cluster(&self) -> BoxFuture<'_, Result<ClusterView, AdminError>> {
        let view = self.view.borrow().clone();
        Box::pin(async move { Ok(view) })
    }

    fn watch(&self) -> BoxStream<ClusterView> {
        let mut view = self.view.clone();
        view.mark_changed();
        Box::pin(futures_util::stream::unfold(view, |mut view| async move {
            view.changed().await.ok()?;
            let now = view.borrow_and_update().clone();
            Some((now, view))
        }))
    }

    fn place(&self, request: PlaceRequest) -> BoxFuture<'_, Result<InstanceView, AdminError>> {
        Box::pin(self.place_model(request))
    }

    fn replan(
        &self,
        instance: InstanceId,
        request: ReplanRequest,
    ) -> BoxFuture<'_, Result<ReplanView, AdminError>> {
        Box::pin(self.replan_instance(instance, request))
    }

    fn plan(&self, query: PlanQuery) -> BoxFuture<'_, Result<PlanView, AdminError>> {
        Box::pin(self.plan_model(query))
    }

    fn unload(&self, instance: InstanceId) -> BoxFuture<'_, Result<(), AdminError>> {
        Box::pin(self.done(ControlAsk::RemoveInstance { instance }, "instance", instance.to_string()))
    }

    fn claim(
        &self,
        request: RequestId,
        proof: [u8; 32],
    ) -> BoxFuture<'_, Result<ClaimedRequest, AdminError>> {
        Box::pin(async move {
            match self.ask(Question::Claim { request, proof }, ANSWER_MAX).await {
                Some(Answer::Claimed(Ok(Backup { model, record, choices }))) => {
                    Ok(ClaimedRequest { model, record, choices })
                }
                Some(Answer::Claimed(Err(Unclaimed::Running))) => {
                    let message = format!("a node that lives answers request {request}");
                    Err(AdminError::Conflict { message })
                }
                Some(Answer::Claimed(Err(Unclaimed::Unknown))) => {
                    Err(AdminError::NotFound { what: "request", name: request.to_string() })
                }
                Some(Answer::Claimed(Err(Unclaimed::Busy))) => {
                    Err(unavailable("too many clients ask for the rest of their answers at once"))
                }
                _ => Err(unavailable("the node is shutting down")),
            }
        })
    }

    fn requests(&self) -> BoxFuture<'_, Result<Vec<RequestView>, AdminError>> {
        Box::pin(async {
            match self.ask(Question::Requests, ANSWER_MAX).await {
                Some(Answer::Requests(requests)) => Ok(requests),
                _ => Err(unavailable("the node is shutting down")),
            }
        })
    }

    fn members(&self) -> BoxFuture<'_, Result<Vec<MemberView>, AdminError>> {
        Box::pin(self.list_members())
    }

    fn admit_member(&self, node: NodeId) -> BoxFuture<'_, Result<MemberView, AdminError>> {
        Box::pin(async move {
            let Some(Answer::Invited(name)) = self.ask(Question::Invite { node }, ANSWER_MAX).await else {
                return Err(unavailable("the node is shutting down"));
            };
            let name = name?;
            let role = MemberRole::Worker;
            Ok(MemberView { node: node.to_full(), name, role, is_self: false, check_words: None })
        })
    }

    fn remove_member(&self, node: NodeId) -> BoxFuture<'_, Result<(), AdminError>> {
        let view = self.view.borrow().clone();
        let (me, name) = (view.self_node, node.to_full());
        let is_member = view.nodes.iter().any(|member| member.id == name);
        Box::pin(async move {
            if !is_member {
                return Err(AdminError::NotFound { what: "member", name });
            }
            if node.to_full() == me {
                let message = "a node does not remove itself; do it from another member".to_owned();
                return Err(AdminError::Conflict { message });
            }
            let act = Act::Remove { node, reason: "removed by an admin".to_owned() };
            self.act(act).await
        })
    }

    fn set_role(&self, node: NodeId, role: MemberRole) -> BoxFuture<'_, Result<(), AdminError>> {
        let view = self.view.borrow().clone();
        let name = node.to_full();
        Box::pin(async move {
            let Some(member) = view.nodes.into_iter().find(|member| member.id == name) else {
                return Err(AdminError::NotFound { what: "member", name });
            };
            if member.role == role {
                return Ok(());
            }
            self.act(match role {
                MemberRole::Admin => Act::Appoint { node, name: member.name },
                MemberRole::Worker => Act::Dismiss { node },
            })
            .await
        })
    }

    fn drain(&self, node: NodeId, drain: Drain) -> BoxFuture<'_, Result<(), AdminError>> {
        let drain = match drain {
            Drain::Lasting => wire::Drain::Lasting,
            Drain::Leaving => wire::Drain::Leaving,
            Drain::Over => wire::Drain::Over,
        };
        Box::pin(self.done(ControlAsk::Drain { node, drain }, "member", node.to_full()))
    }

    fn invite(&self, request: InviteRequest) -> BoxFuture<'_, Result<InviteView, AdminError>> {
        Box::pin(async move { self.give_code(&request) })
    }

    fn join(&self, request: JoinRequest) -> BoxFuture<'_, Result<JoinedView, AdminError>> {
        Box::pin(self.join_by_code(request))
    }

    fn add_model(&self, path: String, name: Option<String>) -> BoxFuture<'_, Result<ModelView, AdminError>> {
        Box::pin(self.add(path, name))
    }

    fn remove_model(&self, model: String) -> BoxFuture<'_, Result<(), AdminError>> {
        Box::pin(self.remove(model))
    }

    fn health(&self) -> HealthView {
        let status = if *self.stop.borrow() { HealthStatus::Stopping } else { HealthStatus::Ok };
        let version = env!("CARGO_PKG_VERSION").to_owned();
        HealthView { status, version, uptime_s: self.started.elapsed().as_secs() }
    }

    fn shutdown(&self) {
        self.stop.send_replace(true);
    }
}

/// Which parameter asks for a cache that cannot be: of what the node's settings decide nobody is told as if it were theirs.
fn cache_param(request: &PlaceRequest) -> &'static str {
    match request {
        PlaceRequest { cache_tokens: Some(_), .. } => "cache_tokens",
        PlaceRequest { context_tokens: Some(_), .. } => "context_tokens",
        PlaceRequest { slots: Some(_), .. } => "slots",
        _ => "model",
    }
}

/// Why a model name means nothing.
enum Missing {
    Unknown(Vec<String>),
    Stopping,
}

impl Missing {
    fn for_request(self, model: &str) -> GenerateError {
        match self {
            Self::Unknown(known) => GenerateError::ModelUnknown { model: model.to_owned(), known },
            Self::Stopping => GenerateError::Unavailable {
                reason: "the node is shutting down".to_owned(),
                retry_after_s: 5,
            },
        }
    }

    fn for_admin(self, model: &str) -> AdminError {
        match self {
            Self::Unknown(_) => AdminError::NotFound { what: "model", name: model.to_owned() },
            Self::Stopping => unavailable("the node is shutting down"),
        }
    }
}

fn in_range(param: &str, value: u32, max: u32) -> Result<(), AdminError> {
    if (1..=max).contains(&value) {
        return Ok(());
    }
    let message = format!("{param} is {value}, and a token takes 1 to {max}");
    Err(AdminError::Invalid { param: param.to_owned(), message })
}

fn unavailable(reason: &str) -> AdminError {
    AdminError::Unavailable { reason: reason.to_owned(), retry_after_s: 5 }
}

/// Tokenising takes some 130 bytes for each byte of text, so memory bounds it; above 2 GiB the tokenizer's own bound is lower.
pub fn prompt_bytes_max(memory: Option<exo_device::Memory>) -> usize {
    const MOST: usize = 2 << 20;
    let share = memory.map_or(u64::MAX, |memory| memory.total_bytes >> 10);
    usize::try_from(share).unwrap_or(MOST).clamp(128 << 10, MOST)
}

/// The text of all prompts; tokens have none.
fn text_bytes(request: &GenerateRequest) -> usize {
    let bytes = |prompt: &Prompt| match prompt {
        Prompt::Chat { messages } => chat_bytes(messages, request.tools.as_ref()),
        Prompt::Text(text) => text.len(),
        Prompt::Infill { prefix, suffix } => prefix.len() + suffix.len(),
        Prompt::Tokens(_) => 0,
    };
    request.prompts.iter().map(bytes).sum()
}

fn check_prompt_text(bytes: usize, bytes_max: usize) -> Result<(), GenerateError> {
    if bytes <= bytes_max {
        return Ok(());
    }
    let message =
        format!("the prompt has {bytes} bytes of text; this machine's memory is enough for {bytes_max}");
    Err(GenerateError::Invalid { part: RequestPart::Prompt, message })
}

/// The text that a template may show: of messages, their thoughts and calls, and of tools.
fn chat_bytes(messages: &[exo_api::ChatMessage], tools: Option<&exo_api::Tools>) -> usize {
    let of_call = |call: &exo_api::ToolCall| call.function.name.len() + json_bytes(&call.function.arguments);
    let of_message = |m: &exo_api::ChatMessage| {
        let optional = [&m.name, &m.reasoning_content, &m.tool_call_id].into_iter().flatten();
        let calls: usize = m.tool_calls.iter().map(of_call).sum();
        m.content.len() + optional.map(String::len).sum::<usize>() + calls
    };
    let tools = tools.into_iter().flat_map(|tools| &tools.definitions);
    let tools: usize = tools.map(|tool| json_bytes(&tool.definition)).sum();
    messages.iter().map(of_message).sum::<usize>() + tools
}

/// About what a document takes as text. Its depth was bounded when it was read.
fn json_bytes(value: &serde_json::Value) -> usize {
    use serde_json::Value;
    match value {
        Value::Null | Value::Bool(_) => 5,
        Value::Number(_) => 8,
        Value::String(text) => text.len() + 2,
        Value::Array(values) => values.iter().map(|value| json_bytes(value) + 1).sum(),
        Value::Object(fields) => fields.iter().map(|(name, value)| name.len() + 4 + json_bytes(value)).sum(),
    }
}

/// About what a prompt takes before it is rendered.
fn prompt_bytes(request: &GenerateRequest) -> usize {
    let beside_text = |prompt: &Prompt| match prompt {
        Prompt::Chat { messages } => messages.len() * MESSAGE_BYTES,
        Prompt::Text(_) | Prompt::Infill { .. } => 0,
        Prompt::Tokens(tokens) => size_of_val(tokens.as_slice()),
    };
    text_bytes(request) + request.prompts.iter().map(beside_text).sum::<usize>()
}

/// Tokens that another member says were there already.
fn check_resumed(request: &GenerateRequest, model: ModelId, vocab: u32) -> Result<(), GenerateError> {
    let Some(resumed) = request.resumable.as_ref().and_then(|resumable| resumable.resumed.as_ref()) else {
        return Ok(());
    };
    let wrong = |message| Err(GenerateError::Failed { kind: FailureKind::Protocol, message });
    if resumed.model != model {
        let (name, theirs) = (&request.model, resumed.model);
        return wrong(format!("`{name}` is model {model} here, and {theirs} where the answer began"));
    }
    match resumed.choices.iter().flatten().find(|token| token.token >= vocab) {
        None => Ok(()),
        Some(token) => {
            wrong(format!("the copy of the answer has token {}, the vocabulary {vocab} tokens", token.token))
        }
    }
}

/// What the machine needs for the copy of a request. The tokens that there are stay with the request as well: they are said again.
fn backup(request: RequestId, model: ModelId, choices: u16, resumable: &mut Resumable) -> BackupStart {
    let mut tokens = resumable.resumed.as_ref().map(|resumed| resumed.choices.clone()).unwrap_or_default();
    tokens.resize(usize::from(choices), Vec::new());
    let record = std::mem::take(&mut resumable.record);
    BackupStart { request, proof: resumable.proof, backup: Backup { model, record, choices: tokens } }
}

fn starts(
    request: &GenerateRequest,
    resolved: &Resolved,
    open: &OpenModel,
    prepared: &Prepared,
    context: u32,
) -> Vec<DriverStart> {
    let resumed = request.resumable.as_ref().and_then(|resumable| resumable.resumed.as_ref());
    let start = |prompt: usize, choice: u16| {
        let tokens = &prepared.prompts[prompt].tokens;
        let prompt_tokens = tokens.len() as u32;
        let room = context.saturating_sub(prompt_tokens);
        // There are no more answers than fit.
        let index = prompt as u16 * request.choices + choice;
        let there = resumed.and_then(|resumed| resumed.choices.get(usize::from(index)));
        let there = there.into_iter().flatten().map(|token| token.token);
        let mut sampling = request.sampling.clone();
        sampling.seed = sampling.seed.wrapping_add(choice.into());
        sampling.constraint = prepared.constraint.clone();
        DriverStart {
            model: resolved.id,
            spec: SequenceSpec {
                sequence: SequenceId { request: request.request, index },
                principal: request.principal,
                driver: resolved.me,
                sampling,
                history: tokens.iter().copied().chain(there).collect(),
                prompt_tokens,
            },
            max_tokens: request.max_tokens.unwrap_or(room).min(room),
            stop_tokens: open.end_ids.clone(),
            ignore_eos: request.ignore_eos,
            speculate: true,
        }
    };
    let prompts = 0..prepared.prompts.len();
    prompts
        .flat_map(|prompt| (0..request.choices).map(move |choice| (prompt, choice)))
        .map(|(p, c)| start(p, c))
        .collect()
}

/// What a placement of a model asks for, with the node's defaults where the caller left something open.
fn instance_request(
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
    Ok(InstanceRequest {
        model: resolved.id,
        model_name: resolved.name.clone(),
        shape: open.model.shape_packed(cache.kv, &exo_backend_cpu::weight_bytes),
        context_tokens,
        slots: cache.slots,
        cache_tokens,
        kv: cache.kv,
        objective,
        pins: Vec::new(),
        excluded: Vec::new(),
        holders,
    })
}
