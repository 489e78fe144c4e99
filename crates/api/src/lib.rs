//! What is said over HTTP, and the one interface behind it.
//!
//! Three vocabularies: [`openai`] (the wire types of `/v1/*`, checked field by field), [`view`] (what
//! `/exo/v1/*` shows of the cluster) and [`generate`] (a request for text as the node understands it, after
//! checking). The [`Facade`] is all that `server` knows of a node and all that a node knows of `server`.
//! [`endpoints`] lists the routes, [`openapi`] describes them.
//!
//! **Architecture invariant:** plain values and one trait. No socket, no clock, no HTTP library; `node`
//! depends on this crate and never on `server`.
//!
//! Start reading at [`Facade`].

#![forbid(unsafe_code)]

pub mod alerts;
pub mod anthropic;
pub mod doctor;
pub mod downloads;
pub mod embed;
pub mod endpoints;
mod errors;
pub mod facade;
pub mod fields;
pub mod fits;
mod futures;
pub mod generate;
mod hub_token;
mod labels;
pub mod live;
pub mod logs;
pub mod ollama;
pub mod openai;
pub mod openapi;
pub mod plan;
pub mod request;
pub mod responses;
mod schemas;
pub mod session;
mod spelling;
pub mod summary;
pub mod table;
pub mod telemetry;
#[cfg(test)]
mod testing;
pub mod tokens;
mod tool_lists;
pub mod tools;
pub mod updates;
pub mod view;

pub use alerts::{AlertView, SILENCE_S_MAX, Severity, SilenceRequest};
pub use doctor::{CHECKS_MAX, CheckVerdict, CheckView, DoctorQuery, DoctorScope, DoctorView, NodeChecksView};
pub use downloads::{
    CheckState, Downloads, FoundModelView, FoundRepoView, HubLoginRequest, HubSearchRequest, HubShowRequest,
    KeepModelRequest, ModelCheckRequest, ModelCheckView, PrunedView, PullRequest, PullState, PullView,
    RemovedModelView, ReplacedModelView, RepoFileView, RepoView, VariantView,
};
pub use embed::{EmbedRequest, Embeddings, SignOfLife};
pub use errors::AdminError;
pub use facade::{ClaimedRequest, Facade, GenerateStream};
pub use fields::{BadParam, BadParamKind};
pub use futures::{BoxFuture, BoxStream};
pub use generate::{
    AnswerFormat, CallDelta, CalledFunction, ChatMessage, Delta, FinishReason, GenerateError, GenerateEvent,
    GenerateRequest, Prompt, Reasoning, RequestPart, Resumable, Resumed, Resumption, StageTimeView,
    StepTimesView, Summary, Timings, TokenPiece, ToolCall, ToolDefinition, Tools, TopToken, Usage,
};
pub use hub_token::HubToken;
pub use live::{Change, DeltaEvent, EndEvent, EndReason, LiveEvent, SnapshotEvent};
pub use logs::{
    LOG_LINES_MAX, LOG_RAISED_S, LogLevel, LogLevelRequest, LogLineView, LogQuery, LogsView, SilentNodeView,
};
pub use plan::{PlanQuery, PlanView, ReplanDecision, ReplanRequest, ReplanStageView, ReplanView};
pub use request::RequestContext;
pub use session::{CodeView, SessionAccess, SessionRequest, SessionView};
pub use summary::ExoSummary;
pub use telemetry::{
    DURATION_BOUNDS_S, DeviceTelemetryView, EndedView, Endpoint, FIRST_TOKEN_BOUNDS_S, HistogramView,
    InstanceTelemetryView, LinkTelemetryView, MemoryView, MissingView, ModelRequestsView, NodePullView,
    NodeTelemetryView, RequestEnd, ScrapeTargets, SeriesPoints, SeriesQuery, SeriesView, StageTelemetryView,
    TOKEN_BOUNDS_S, TelemetryView,
};
pub use tokens::{
    Capabilities, ChatPrompt, TokenizerInfo, TokenizerQuery, TokensAnswer, TokensQuestion, TokensRequest,
};
pub use updates::{FileChangeKind, FileChangeView, UpdateQuery, UpdateState, UpdateView};
pub use view::{
    AddModelRequest, AdmitRequest, CardEventView, ClusterView, DeviceView, Drain, DrainRequest, EpochView,
    FetchSourceView, HealthStatus, HealthView, InstanceState, InstanceView, InviteRequest, InviteView,
    JoinRequest, JoinRequestView, JoinWindowRequest, JoinWindowView, JoinedView, JournalView, LinkView,
    LoadView, LossView, MeasuredAnswerView, MeasuredTimeView, MemberRole, MemberView, ModelTools, ModelView,
    MovingView, NodeStatus, NodeView, OtherClusterView, PlaceRequest, ProvenanceView, RecentRequestView,
    RequestPhase, RequestView, RoleRequest, SensorsView, StageMeasuredView, StagePhase, StageProgressView,
    StageView, TermOffView, TypeRatesView, UnheardCoordinatorView, WarningView,
};
