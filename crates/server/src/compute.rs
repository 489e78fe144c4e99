//! What takes a processor a while, on threads of its own: those that tasks share may all wait for a disk, and
//! what is loaded answers whatever a disk does.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{Semaphore, oneshot};

use crate::errors::ApiError;

/// At once. More would end nothing sooner, and each takes memory: there may be thousands of connections.
const THREADS_MAX: usize = 32;

/// The turns of what is computed.
pub struct ComputeThreads(Arc<Semaphore>);

impl Default for ComputeThreads {
    fn default() -> Self {
        Self(Arc::new(Semaphore::new(THREADS_MAX)))
    }
}

impl ComputeThreads {
    /// Does this in its turn, and says so where that and the work take longer than this. Once begun it goes
    /// on when nobody waits for it any more.
    pub async fn run<T: Send + 'static>(
        &self,
        within: Duration,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> Result<T, ApiError> {
        let done = tokio::time::timeout(within, self.in_turn(work)).await;
        done.unwrap_or_else(|_| {
            let seconds = within.as_secs_f32();
            Err(ApiError::deadline(format!(
                "this node had not read the request within {seconds} s: it reads others"
            )))
        })
    }

    async fn in_turn<T: Send + 'static>(
        &self,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> Result<T, ApiError> {
        let turn = self.0.clone().acquire_owned().await;
        let turn = turn.map_err(|_| ApiError::internal("nothing is computed any more"))?;
        let (tell, told) = oneshot::channel();
        let compute = move || {
            let done = work();
            drop(turn);
            drop(tell.send(done)); // a client may have left meanwhile
        };
        let thread = std::thread::Builder::new().name("request".to_owned());
        let refused = |error: std::io::Error| {
            ApiError::internal(format!("there is no thread for the request: {error}"))
        };
        thread.spawn(compute).map_err(refused)?;
        told.await.map_err(|_| ApiError::internal("reading the request broke off"))
    }
}

#[cfg(test)]
mod tests {
    use tokio::sync::mpsc;

    use super::*;

    #[tokio::test]
    async fn so_many_threads_compute_at_once_and_what_panics_keeps_no_turn() {
        const LONG: Duration = Duration::from_secs(60);
        let threads = Arc::<ComputeThreads>::default();
        for _ in 0..THREADS_MAX {
            let panicked = threads.run(LONG, || -> u32 { panic!("a bug in a parser") }).await;
            assert_eq!(panicked.map_err(|error| error.code), Err("internal_error"));
        }
        let (began, mut begun) = mpsc::unbounded_channel();
        let (ends, gates): (Vec<_>, Vec<_>) =
            (0..2 * THREADS_MAX).map(|_| std::sync::mpsc::channel::<()>()).unzip();
        let begin = |gate: std::sync::mpsc::Receiver<()>| {
            let (threads, began) = (threads.clone(), began.clone());
            let work = move || {
                let _ = began.send(());
                let _ = gate.recv();
            };
            tokio::spawn(async move { threads.run(LONG, work).await.is_ok() })
        };
        let asked: Vec<_> = gates.into_iter().map(begin).collect();
        for _ in 0..THREADS_MAX {
            let has_begun = tokio::time::timeout(Duration::from_secs(20), begun.recv()).await;
            assert_eq!(has_begun, Ok(Some(())));
        }
        let one_more = tokio::time::timeout(Duration::from_millis(200), begun.recv()).await;
        assert!(one_more.is_err(), "it waits for its turn");
        let late = threads.run(Duration::from_millis(20), || ()).await;
        assert_eq!(late.map_err(|error| error.code), Err("deadline_exceeded"));
        drop(ends);
        for one in asked {
            assert_eq!(one.await.ok(), Some(true));
        }
    }
}
