//! The node as its HTTP server sees it: the bridge from [`exo_api::Facade`] to the node's machine.

mod devices;
mod embeddings;
mod fitting;
mod members;
mod model_uses;
mod models;
mod placing;
mod preparing;
mod prompts;
mod requests;

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use exo_api::fits::{FitsQuery, FitsView};
use exo_api::{
    AdminError, AlertView, BoxFuture, BoxStream, ClaimedRequest, ClusterView, DoctorScope, DoctorView, Drain,
    EmbedRequest, Embeddings, Facade, GenerateError, GenerateRequest, GenerateStream, HealthStatus,
    HealthView, InstanceView, InviteRequest, InviteView, JoinRequest, JoinedView, LogLevelRequest, LogQuery,
    LogsView, MemberRole, MemberView, ModelCheckView, ModelView, PlaceRequest, PlanQuery, PlanView,
    ReplanRequest, ReplanView, RequestPart, RequestView, SeriesQuery, SeriesView, SignOfLife, SilenceRequest,
    TelemetryView, TokensAnswer, TokensRequest,
};
use exo_cluster::wire::{self, Backup, ControlAsk, ControlRefusal, ControlReply};
use exo_machine::{Answer, Question, Resolved, Unclaimed, Unresolved};
use exo_store::RecordProblem;
use exo_transport::Endpoint;
use exo_trust::Act;
use exo_types::{InstanceId, NodeId, RequestId};
use tokio::sync::watch;

pub use self::model_uses::ModelUses;
pub use self::preparing::PreparingTurns;
pub use self::prompts::prompt_bytes_max;
use crate::checks::Checks;
use crate::config::NodeConfig;
use crate::doctor;
use crate::downloads::NodeDownloads;
use crate::draft::Draft;
use crate::events::EventSender;
use crate::library::Library;
use crate::library_error::LibraryError;
use crate::log_capture;
use crate::meters::Meters;
use crate::pairing::Invites;
use crate::questions::{
    ANSWER_MAX, NoAnswer, REMOVED, ask_coordinator, ask_node, blocking, refused, unavailable,
};
use crate::telemetry::Telemetry;

/// How often a model is looked for that no member has told of yet.
const LOOK_EVERY: Duration = Duration::from_millis(50);

pub struct NodeFacade {
    pub node: EventSender,
    pub library: Arc<Library>,
    /// The small model that guesses ahead.
    pub draft: Option<Arc<Draft>>,
    pub view: watch::Receiver<ClusterView>,
    pub config: NodeConfig,
    pub stop: watch::Receiver<bool>,
    pub ask_end: watch::Sender<bool>,
    pub started: Instant,
    /// Where other nodes reach this one.
    pub listen: SocketAddr,
    /// Codes that were given out.
    pub invites: Arc<Invites>,
    /// What is counted as the node works.
    pub meters: Arc<Meters>,
    /// What was measured, and the alerts that follow.
    pub telemetry: Arc<Telemetry>,
    /// How other nodes are asked for their log lines, and to try a device again.
    pub endpoint: Endpoint,
    /// Turns of those that render and tokenise.
    pub preparing: PreparingTurns,
    /// Text of the largest prompt.
    pub prompt_bytes_max: usize,
    /// Models on their way here.
    pub downloads: NodeDownloads,
    /// Models compared with what their hub promised.
    pub checks: Arc<Checks>,
    /// When each model was last asked for here.
    pub model_uses: ModelUses,
}

impl NodeFacade {
    async fn ask(&self, question: Question, within: Duration) -> Result<Answer, NoAnswer> {
        ask_node(&self.node, question, within).await
    }

    /// The model of that name. A node that has just started or joined may not have heard of it: until it
    /// should have, it does not say that there is none.
    async fn resolve(&self, model: &str) -> Result<Resolved, Missing> {
        match once_heard(|| self.resolve_now(model)).await {
            Err(missing @ (Missing::Unknown { .. } | Missing::Away(_))) => {
                Err(self.changed_file(model).await.unwrap_or(missing))
            }
            found => found,
        }
    }

    /// That a model of this name or id was added here, and its file is another one now: no node has it.
    async fn changed_file(&self, model: &str) -> Option<Missing> {
        let store = self.library.store().clone();
        let records = blocking(move || store.list()).await.ok()?.ok()?;
        let mut so_named = records.into_iter().filter(|r| r.name == model || r.id.to_full() == model);
        so_named.find_map(|record| match record.problem {
            Some(RecordProblem::Changed { path }) => {
                Some(Missing::Changed { message: LibraryError::Changed { path }.to_string() })
            }
            _ => None,
        })
    }

    async fn resolve_now(&self, model: &str) -> Result<Resolved, Missing> {
        let question = Question::Resolve { model: model.to_owned() };
        match self.ask(question, ANSWER_MAX).await {
            Ok(Answer::Resolved(Ok(resolved))) => Ok(*resolved),
            Ok(Answer::Resolved(Err(Unresolved::Unknown { known, may_be_told }))) => {
                Err(Missing::Unknown { known, may_be_told })
            }
            Ok(Answer::Resolved(Err(Unresolved::Away { reason }))) => Err(Missing::Away(reason)),
            Ok(Answer::Resolved(Err(Unresolved::Removed))) => Err(Missing::Removed),
            other => Err(Missing::Unsaid(NoAnswer::of(other))),
        }
    }

    async fn instances(&self) -> Result<Vec<exo_cluster::InstanceView>, AdminError> {
        match self.ask(Question::Instances, ANSWER_MAX).await {
            Ok(Answer::Instances(instances)) => Ok(instances),
            other => Err(AdminError::from(NoAnswer::of(other))),
        }
    }

    async fn ask_coordinator(&self, ask: ControlAsk) -> Result<ControlReply, AdminError> {
        ask_coordinator(&self.node, &self.view, ask).await
    }

    async fn carry_out(&self, ask: ControlAsk, what: &'static str, name: String) -> Result<(), AdminError> {
        match self.ask_coordinator(ask).await? {
            ControlReply::Refused(ControlRefusal::Unknown(_)) => Err(AdminError::NotFound { what, name }),
            ControlReply::Refused(refusal) => Err(refused(&self.view, &refusal)),
            ControlReply::Done { .. }
            | ControlReply::Placed { .. }
            | ControlReply::Replanned(_)
            | ControlReply::PlannerInputs(_) => Ok(()),
        }
    }
}

/// Administrative calls, each with what answers it.
macro_rules! answered {
    ($this:ident; $($name:ident($($arg:ident: $type:ty),*) -> $answer:ty => $call:expr;)*) => {
        $(fn $name(&$this $(, $arg: $type)*) -> BoxFuture<'_, Result<$answer, AdminError>> {
            Box::pin($call)
        })*
    };
}

impl Facade for NodeFacade {
    answered! { self;
        models() -> Vec<ModelView> => self.list_models(Question::Models);
        model(name: String) -> ModelView => self.find_model(name);
        telemetry() -> TelemetryView => async { Ok(self.telemetry.told()) };
        series(query: SeriesQuery) -> SeriesView => async move { self.telemetry.series(query) };
        alerts() -> Vec<AlertView> => async { Ok(self.telemetry.alerts()) };
        silence(request: SilenceRequest) -> () => self.telemetry.clone().silence(request);
        raise_log_level(request: LogLevelRequest) -> ()
            => async move { self.config.log.raise(&request.target, request.level) };
        place(request: PlaceRequest) -> InstanceView => self.place_model(request);
        replan(instance: InstanceId, request: ReplanRequest) -> ReplanView
            => self.replan_instance(instance, request);
        plan(query: PlanQuery) -> PlanView => self.plan_model(query);
        unload(instance: InstanceId) -> ()
            => self.carry_out(ControlAsk::RemoveInstance { instance }, "instance", instance.to_string());
        retry_device(node: NodeId, device: String) -> () => self.retry(node, device);
        members() -> Vec<MemberView> => self.list_members();
        admit_member(node: NodeId) -> MemberView => self.let_in(node);
        open_join_window(minutes: Option<u32>) -> () => self.open_door(minutes);
        shut_join_window() -> () => self.acted(Question::Door { lasting: None });
        invite(request: InviteRequest) -> InviteView => async move { self.give_code(&request) };
        join(request: JoinRequest) -> JoinedView => self.join_by_code(request);
        add_model(path: String, name: Option<String>) -> ModelView => self.add(path, name);
        keep_model(model: String, kept: bool) -> ModelView => self.keep(model, kept);
        remove_model(model: String) -> () => self.remove(model);
        fits(query: FitsQuery) -> FitsView => self.which_fit(query);
    }

    fn generate(&self, request: GenerateRequest) -> BoxFuture<'_, Result<GenerateStream, GenerateError>> {
        Box::pin(self.counted(request))
    }

    fn embed(
        &self,
        request: EmbedRequest,
        heard: SignOfLife,
    ) -> BoxFuture<'_, Result<Embeddings, GenerateError>> {
        Box::pin(self.embed_texts(request, heard))
    }

    fn tokens(&self, request: TokensRequest) -> BoxFuture<'_, Result<TokensAnswer, GenerateError>> {
        Box::pin(self.answer_tokens(request))
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

    fn logs(&self, query: LogQuery) -> BoxFuture<'_, Result<LogsView, AdminError>> {
        Box::pin(async move {
            let view = self.view.borrow().clone();
            let own = (&self.config.log, self.config.name.as_str());
            log_capture::lines_of_all(own, &self.endpoint, &view, query).await
        })
    }

    fn doctor(&self, of: DoctorScope) -> BoxFuture<'_, Result<DoctorView, AdminError>> {
        Box::pin(async move {
            let view = self.view.borrow().clone();
            Ok(doctor::checks(&self.config.doctor, &self.endpoint, &view, of).await)
        })
    }

    fn claim(
        &self,
        request: RequestId,
        proof: [u8; 32],
    ) -> BoxFuture<'_, Result<ClaimedRequest, AdminError>> {
        Box::pin(async move {
            match self.ask(Question::Claim { request, proof }, ANSWER_MAX).await {
                Ok(Answer::Claimed(Ok(Backup { model, record, choices }))) => {
                    Ok(ClaimedRequest { model, record, choices })
                }
                Ok(Answer::Claimed(Err(Unclaimed::Running))) => {
                    let message = format!("a node that lives answers request {request}");
                    Err(AdminError::Conflict { message })
                }
                Ok(Answer::Claimed(Err(Unclaimed::Unknown))) => {
                    Err(AdminError::NotFound { what: "request", name: request.to_string() })
                }
                Ok(Answer::Claimed(Err(Unclaimed::Busy))) => {
                    Err(unavailable("too many clients ask for the rest of their answers at once"))
                }
                other => Err(AdminError::from(NoAnswer::of(other))),
            }
        })
    }

    fn requests(&self) -> BoxFuture<'_, Result<Vec<RequestView>, AdminError>> {
        Box::pin(async {
            match self.ask(Question::Requests, ANSWER_MAX).await {
                Ok(Answer::Requests(requests)) => Ok(requests),
                other => Err(AdminError::from(NoAnswer::of(other))),
            }
        })
    }

    fn refuse_node(&self, node: NodeId) -> BoxFuture<'_, Result<(), AdminError>> {
        Box::pin(async move {
            match self.ask(Question::Refuse { node }, ANSWER_MAX).await {
                Ok(Answer::Invited(refused)) => refused.map(drop),
                other => Err(AdminError::from(NoAnswer::of(other))),
            }
        })
    }

    fn remove_member(&self, node: NodeId) -> BoxFuture<'_, Result<(), AdminError>> {
        let view = self.view.borrow().clone();
        let (me, name) = (view.self_node.clone(), node.to_full());
        let is_member = view.nodes.iter().any(|member| member.id == name);
        Box::pin(async move {
            if !is_member {
                return Err(AdminError::NotFound { what: "member", name });
            }
            if node.to_full() == me {
                return Err(AdminError::Conflict { message: members::not_itself(&view) });
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
        Box::pin(self.carry_out(ControlAsk::Drain { node, drain }, "member", node.to_full()))
    }

    fn check_model(&self, model: String) -> BoxFuture<'_, Result<ModelCheckView, AdminError>> {
        Box::pin(async move {
            let resolved = self.resolve(&model).await.map_err(|m| m.for_admin(&model))?;
            Ok(self.checks.begin(resolved))
        })
    }

    fn model_checks(&self) -> Vec<ModelCheckView> {
        self.checks.so_far()
    }

    fn downloads(&self) -> &dyn exo_api::Downloads {
        &self.downloads
    }

    fn health(&self) -> HealthView {
        let is_ending = *self.stop.borrow() || *self.ask_end.borrow();
        let status = if is_ending { HealthStatus::Stopping } else { HealthStatus::Ok };
        let version = env!("CARGO_PKG_VERSION").to_owned();
        HealthView { status, version, uptime_s: self.started.elapsed().as_secs() }
    }

    fn shutdown(&self) {
        self.ask_end.send_replace(true);
    }
}

/// Looks for a model again and again as long as it is unknown and may be told of.
async fn once_heard<T, F>(look: impl Fn() -> F) -> Result<T, Missing>
where
    F: Future<Output = Result<T, Missing>>,
{
    loop {
        match look().await {
            Err(Missing::Unknown { may_be_told: true, .. }) => tokio::time::sleep(LOOK_EVERY).await,
            found => return found,
        }
    }
}

/// Why a model name means nothing.
enum Missing {
    Unknown {
        known: Vec<String>,
        /// Whether members may tell of it any moment.
        may_be_told: bool,
    },
    /// It is placed, and no member that is there has its files.
    Away(String),
    /// It was added here, and its file is another one now.
    Changed {
        /// That, to be displayed.
        message: String,
    },
    /// This node was removed from its cluster.
    Removed,
    /// The machine did not say.
    Unsaid(NoAnswer),
}

impl Missing {
    fn for_request(self, model: &str) -> GenerateError {
        match self {
            Self::Unknown { known, .. } => GenerateError::ModelUnknown { model: model.to_owned(), known },
            Self::Changed { message } => GenerateError::Invalid { part: RequestPart::Model, message },
            missing => GenerateError::Unavailable { reason: missing.reason(model), retry_after_s: 5 },
        }
    }

    fn for_admin(self, model: &str) -> AdminError {
        match self {
            Self::Unknown { known, .. } => AdminError::ModelUnknown { model: model.to_owned(), known },
            Self::Changed { message } => AdminError::Conflict { message },
            Self::Unsaid(why) => why.into(),
            missing => unavailable(&missing.reason(model)),
        }
    }

    fn reason(self, model: &str) -> String {
        match self {
            Self::Unknown { .. } => format!("no model `{model}` is known here"),
            Self::Away(reason) => {
                format!("`{model}` is placed, but no member that is there has its files yet: {reason}")
            }
            Self::Changed { message } => message,
            Self::Removed => REMOVED.to_owned(),
            Self::Unsaid(why) => why.to_string(),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use super::*;

    /// Looks for a model that is known from the third look on, and of which members may tell at so many
    /// looks. Gives whether it was found, and how often it was looked for.
    async fn looks(told_for: u32) -> (bool, u32) {
        let count = Cell::new(0);
        let found = once_heard(|| {
            count.set(count.get() + 1);
            let (is_known, may_be_told) = (count.get() >= 3, count.get() <= told_for);
            let known = Vec::new();
            async move { if is_known { Ok(()) } else { Err(Missing::Unknown { known, may_be_told }) } }
        });
        (found.await.is_ok(), count.get())
    }

    #[tokio::test]
    async fn a_node_that_has_just_started_says_of_no_model_at_once_that_it_is_unknown() {
        assert_eq!(looks(9).await, (true, 3));
        assert_eq!(looks(1).await, (false, 2), "by then it has heard of all");
        assert_eq!(looks(0).await, (false, 1), "it has heard of all");
        let away = || async { Err::<(), _>(Missing::Away("loading".to_owned())) };
        let found = once_heard(away).await;
        assert!(matches!(found, Err(Missing::Away(_))), "it knows what is missing");
    }
}
