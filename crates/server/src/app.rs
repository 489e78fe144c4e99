//! What handlers share.

use std::sync::Arc;
use std::time::Duration;

use exo_api::{AdminError, Facade, TokensAnswer, TokensRequest};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::backlog::Backlog;
use crate::client_memory::Room;
use crate::compute::ComputeThreads;
use crate::dialect::Dialect;
use crate::errors::ApiError;
use crate::guard::{Caller, Guard};
use crate::kept::KeptResponses;
use crate::live::Live;
use crate::options::ServerOptions;
use crate::outlive::Outliving;
use crate::requests::Requests;
use crate::sessions::Sessions;

/// What handlers share.
pub struct App {
    /// The node.
    pub facade: Arc<dyn Facade>,
    /// The settings.
    pub options: ServerOptions,
    /// Who may.
    pub guard: Guard,
    /// For what clients make us hold.
    pub room: Room,
    /// For what takes a processor a while.
    pub compute: ComputeThreads,
    /// Responses that others may go on from.
    pub kept: KeptResponses,
    /// Of browsers.
    pub sessions: Arc<Sessions>,
    /// For readers of the cluster's events.
    pub live: Live,
    /// Answers that outlive their readers.
    pub outliving: Outliving,
    /// Requests that run and have run.
    pub requests: Arc<Requests>,
    /// Cancelled when the server stops: endless answers end.
    pub stopping: CancellationToken,
    /// Cancelled when they had their time: all other answers end, and say so.
    pub closing: CancellationToken,
    /// What takes the node's events for answers that are streamed.
    pub streams: TaskTracker,
}

impl App {
    /// For an answer that is streamed.
    pub fn backlog(&self) -> Backlog {
        Backlog::new(&self.room, self.options.unread_bytes_max)
    }

    /// Asks a model's tokenizer, bounded in time.
    pub async fn tokens(&self, dialect: Dialect, request: TokensRequest) -> Result<TokensAnswer, ApiError> {
        let limit = self.options.queue_wait_max;
        let answered = tokio::time::timeout(limit, self.facade.tokens(request)).await;
        let late =
            |_| ApiError::deadline(format!("the tokenizer did not answer within {} s", limit.as_secs_f32()));
        answered.map_err(late)?.map_err(|error| ApiError::of(dialect, error))
    }

    /// What a thread that may block comes to, bounded in time: all of them may wait for a disk that does not
    /// answer.
    pub async fn blocking<T: Send + 'static>(
        &self,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> Result<T, ApiError> {
        let limit = self.options.body_timeout;
        let done = tokio::time::timeout(limit, tokio::task::spawn_blocking(work)).await;
        let late = |_| {
            let limit = limit.as_secs_f32();
            ApiError::deadline(format!(
                "this node had not come to it within {limit} s: its disk may not answer; see `exo status`"
            ))
        };
        done.map_err(late)?.map_err(|error| ApiError::internal(format!("it broke off: {error}")))
    }

    /// Notes on the disk, once in a while, that a session is in use.
    pub fn note_use(&self, caller: &Caller) {
        if let Caller::Session { save: true, .. } = caller {
            let sessions = self.sessions.clone();
            // Nobody waits for it: what is lost with a power cut is ten minutes.
            tokio::task::spawn_blocking(move || {
                if let Err(error) = sessions.save() {
                    tracing::warn!(%error, "the sessions of browsers cannot be written");
                }
            });
        }
    }

    /// Runs an administrative call, bounded in time.
    pub async fn admin<T>(&self, call: impl Future<Output = Result<T, AdminError>>) -> Result<T, ApiError> {
        let limit = self.options.admin_timeout;
        let answer = tokio::time::timeout(limit, call).await;
        let late =
            |_| ApiError::deadline(format!("the node did not answer within {} s", limit.as_secs_f32()));
        Ok(answer.map_err(late)??)
    }

    /// The same for a call that must not stop half-way: it goes on when the client has gone, or has waited
    /// for `limit`.
    pub async fn admin_whole<T: Send + 'static>(
        &self,
        limit: Duration,
        call: impl Future<Output = Result<T, AdminError>> + Send + 'static,
    ) -> Result<T, ApiError> {
        let answer = tokio::time::timeout(limit, tokio::spawn(call)).await;
        let late = |_| {
            ApiError::deadline(format!("not done within {} s; it goes on without you", limit.as_secs_f32()))
        };
        let ended = answer.map_err(late)?;
        Ok(ended.map_err(|error| AdminError::Failed { message: format!("it broke off: {error}") })??)
    }
}
