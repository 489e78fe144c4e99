//! The interface between the HTTP server and the node behind it.

use exo_types::{InstanceId, ModelId, NodeId, RequestId, SampledToken};

use crate::fits::{FitsQuery, FitsView};
use crate::{
    AdminError, AlertView, BoxFuture, BoxStream, ClusterView, DoctorScope, DoctorView, Downloads, Drain,
    EmbedRequest, Embeddings, GenerateError, GenerateEvent, GenerateRequest, HealthView, InstanceView,
    InviteRequest, InviteView, JoinRequest, JoinedView, LogLevelRequest, LogQuery, LogsView, MemberRole,
    MemberView, ModelCheckView, ModelView, PlaceRequest, PlanQuery, PlanView, ReplanRequest, ReplanView,
    RequestView, SeriesQuery, SeriesView, SignOfLife, SilenceRequest, TelemetryView, TokensAnswer,
    TokensRequest,
};

/// The life of one request. **Dropping it cancels the request** and frees its slot. It ends after
/// [`GenerateEvent::Done`] or after an error; a stream that ends otherwise is reported as an internal error.
///
/// A reader may be slow (a phone on a bad network), so whatever feeds the stream must not make other requests
/// wait.
pub type GenerateStream = BoxStream<Result<GenerateEvent, GenerateError>>;

/// What a node offers to its HTTP server. Object safe; every call returns in bounded time.
pub trait Facade: Send + Sync + 'static {
    /// Starts a request. What can be refused at once (unknown model, prompt too long, bad template) is
    /// refused here; everything later arrives in the stream. A known model that is not placed is placed.
    fn generate(&self, request: GenerateRequest) -> BoxFuture<'_, Result<GenerateStream, GenerateError>>;

    /// The vectors of texts. Dropping the future cancels it. A known model that is not placed is placed.
    /// `heard` is called at every sign that the node is at work on it, at least every 20 s.
    fn embed(
        &self,
        request: EmbedRequest,
        heard: SignOfLife,
    ) -> BoxFuture<'_, Result<Embeddings, GenerateError>>;

    /// What a model's tokenizer and template make of something. Nothing is generated, and nothing placed.
    fn tokens(&self, request: TokensRequest) -> BoxFuture<'_, Result<TokensAnswer, GenerateError>>;

    /// Models this node can name, sorted by name.
    fn models(&self) -> BoxFuture<'_, Result<Vec<ModelView>, AdminError>>;

    /// One model, by any name or id that a request may use. One that is loaded and whose file is gone is in
    /// no list, and found here.
    fn model(&self, name: String) -> BoxFuture<'_, Result<ModelView, AdminError>>;

    /// The cluster as this node sees it now.
    fn cluster(&self) -> BoxFuture<'_, Result<ClusterView, AdminError>>;

    /// A view at once and another whenever something changed, at most ten a second.
    fn watch(&self) -> BoxStream<ClusterView>;

    /// Places a model and returns as soon as the plan stands; loading goes on and shows in
    /// [`Facade::cluster`].
    fn place(&self, request: PlaceRequest) -> BoxFuture<'_, Result<InstanceView, AdminError>>;

    /// How a model would be placed on the cluster as it is, and how fast it would be. Loads nothing.
    fn plan(&self, query: PlanQuery) -> BoxFuture<'_, Result<PlanView, AdminError>>;

    /// Asks the planner again where a placed model should be.
    fn replan(
        &self,
        instance: InstanceId,
        request: ReplanRequest,
    ) -> BoxFuture<'_, Result<ReplanView, AdminError>>;

    /// Unloads an instance; its running requests end with a typed error.
    fn unload(&self, instance: InstanceId) -> BoxFuture<'_, Result<(), AdminError>>;

    /// Requests of this node's clients that run or wait, the oldest first.
    fn requests(&self) -> BoxFuture<'_, Result<Vec<RequestView>, AdminError>>;

    /// A request of a node that is lost, with what is left of its answer, for the client that has the secret
    /// of this hash.
    fn claim(&self, request: RequestId, proof: [u8; 32])
    -> BoxFuture<'_, Result<ClaimedRequest, AdminError>>;

    /// Has a node begin to check a device of it that is in quarantine; how that ends shows in
    /// [`Facade::cluster`].
    fn retry_device(&self, node: NodeId, device: String) -> BoxFuture<'_, Result<(), AdminError>>;

    /// Members of the cluster.
    fn members(&self) -> BoxFuture<'_, Result<Vec<MemberView>, AdminError>>;

    /// Lets a node in that asks to join.
    fn admit_member(&self, node: NodeId) -> BoxFuture<'_, Result<MemberView, AdminError>>;

    /// Refuses a node that asks to join; it is not shown again for an hour.
    fn refuse_node(&self, node: NodeId) -> BoxFuture<'_, Result<(), AdminError>>;

    /// Lets nodes nearby that ask this node join without a question, for so many minutes.
    fn open_join_window(&self, minutes: Option<u32>) -> BoxFuture<'_, Result<(), AdminError>>;

    /// Ends that, also where a new cluster's first minutes are not over.
    fn shut_join_window(&self) -> BoxFuture<'_, Result<(), AdminError>>;

    /// Puts a member out, for good.
    fn remove_member(&self, node: NodeId) -> BoxFuture<'_, Result<(), AdminError>>;

    /// Makes a member an admin, who lets nodes in and puts them out, or a worker.
    fn set_role(&self, node: NodeId, role: MemberRole) -> BoxFuture<'_, Result<(), AdminError>>;

    /// Moves a node's stages elsewhere and places none there, or allows it again. Returns when that is
    /// decided; how far it is shows in [`Facade::cluster`].
    fn drain(&self, node: NodeId, drain: Drain) -> BoxFuture<'_, Result<(), AdminError>>;

    /// Gives out a code that lets a node in.
    fn invite(&self, request: InviteRequest) -> BoxFuture<'_, Result<InviteView, AdminError>>;

    /// Has this node join where a code was given out; returns when it lives there, or with the reason why
    /// not.
    fn join(&self, request: JoinRequest) -> BoxFuture<'_, Result<JoinedView, AdminError>>;

    /// Makes a model file or folder on this node known, under a name of the caller's choice if there is one.
    fn add_model(&self, path: String, name: Option<String>) -> BoxFuture<'_, Result<ModelView, AdminError>>;

    /// Begins to compare a model of a hub with the hub's digests, or finds the check under way.
    fn check_model(&self, model: String) -> BoxFuture<'_, Result<ModelCheckView, AdminError>>;

    /// Checks under way and over.
    fn model_checks(&self) -> Vec<ModelCheckView>;

    /// Forgets a model by name or id. Files the user added stay on disk.
    fn remove_model(&self, model: String) -> BoxFuture<'_, Result<(), AdminError>>;

    /// Keeps a model on this node's disk, however full that is, or does so no more.
    fn keep_model(&self, model: String, kept: bool) -> BoxFuture<'_, Result<ModelView, AdminError>>;

    /// Measurements of all members.
    fn telemetry(&self) -> BoxFuture<'_, Result<TelemetryView, AdminError>>;

    /// Measurements of one device, instance or node over the last hour.
    fn series(&self, query: SeriesQuery) -> BoxFuture<'_, Result<SeriesView, AdminError>>;

    /// What is wrong in the cluster, and what was within the last day, the newest first.
    fn alerts(&self) -> BoxFuture<'_, Result<Vec<AlertView>, AdminError>>;

    /// Silences an alert for a while, at this node.
    fn silence(&self, request: SilenceRequest) -> BoxFuture<'_, Result<(), AdminError>>;

    /// The last log lines of this node and of others.
    fn logs(&self, query: LogQuery) -> BoxFuture<'_, Result<LogsView, AdminError>>;

    /// Has more of one target kept in this node's log for ten minutes.
    fn raise_log_level(&self, request: LogLevelRequest) -> BoxFuture<'_, Result<(), AdminError>>;

    /// Has this node look over its machine, and all others theirs where they are asked, too.
    fn doctor(&self, of: DoctorScope) -> BoxFuture<'_, Result<DoctorView, AdminError>>;

    /// Which models fit the cluster as it is: of the catalogue, or the one that is asked for.
    fn fits(&self, query: FitsQuery) -> BoxFuture<'_, Result<FitsView, AdminError>>;

    /// Models of a hub, and their way to this node's disk.
    fn downloads(&self) -> &dyn Downloads;

    /// Whether the node works. Must not wait for anything.
    fn health(&self) -> HealthView;

    /// Asks whoever holds the node to end it, and returns.
    fn shutdown(&self);
}

/// What another node left of a request.
#[derive(Clone, PartialEq, Debug)]
pub struct ClaimedRequest {
    /// The model that answered.
    pub model: ModelId,
    /// The request, in the server's encoding.
    pub record: Vec<u8>,
    /// The tokens of each choice so far.
    pub choices: Vec<Vec<SampledToken>>,
}
