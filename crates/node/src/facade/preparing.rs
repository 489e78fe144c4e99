//! Whose prompts are rendered and tokenised next: principals take turns, however many prompts one of them
//! has.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use exo_api::GenerateError;
use exo_stdx::Mutex;
use exo_types::Principal;
use tokio::sync::{AcquireError, OwnedSemaphorePermit, Semaphore, oneshot};

/// For those in front.
const TURN_MAX: Duration = Duration::from_secs(120);

/// Prompts that may be rendered and tokenised at once: several, so that a long one does not hold up short
/// ones.
const PREPARING_MAX: usize = 4;
/// A prompt that counts as long. While it is tokenised it takes some 130 times its text, so there is one of
/// them at a time.
const LONG_PROMPT_BYTES: usize = 256 << 10;

/// Turns of all prompts, and of those that are long.
pub struct PreparingTurns {
    all: Turns,
    long: Turns,
}

/// The turn of a prompt, until it is dropped.
struct PreparingTurn {
    _permits: Vec<OwnedSemaphorePermit>,
    is_long: bool,
}

impl PreparingTurns {
    pub(crate) fn new() -> Self {
        Self { all: Turns::new(PREPARING_MAX), long: Turns::new(1) }
    }

    /// Does what may take a while with a prompt of about so many bytes, in its turn. On a thread of its own:
    /// those that tasks share may all wait for a disk, and what is loaded answers whatever a disk does.
    pub(super) async fn run<T: Send + 'static>(
        &self,
        principal: Principal,
        prompt_bytes: usize,
        work: impl FnOnce() -> Result<T, GenerateError> + Send + 'static,
    ) -> Result<T, GenerateError> {
        let internal = |message: String| GenerateError::Internal { message };
        let turn = self.take(principal, prompt_bytes);
        let turn = tokio::time::timeout(TURN_MAX, turn).await.map_err(|_| {
            let (waited_ms, reason) =
                (TURN_MAX.as_millis() as u64, "other prompts were being prepared".to_owned());
            GenerateError::Deadline { waited_ms, reason }
        })?;
        let turn = turn.map_err(|e| internal(e.to_string()))?;
        let (tell, told) = oneshot::channel();
        let prepare = move || {
            let done = work();
            if turn.is_long {
                // What it took lies between other things, and the next one comes on another thread.
                exo_backend_cpu::give_freed_memory_back();
            }
            drop(turn);
            drop(tell.send(done)); // a client may have left meanwhile
        };
        let thread = std::thread::Builder::new().name("prompt".to_owned());
        thread.spawn(prepare).map_err(|e| internal(format!("there is no thread for the prompt: {e}")))?;
        told.await.map_err(|_| internal("preparing the prompt broke off".to_owned()))?
    }

    /// Waits for the turn of a prompt of about so many bytes.
    async fn take(&self, principal: Principal, prompt_bytes: usize) -> Result<PreparingTurn, AcquireError> {
        let (is_long, mut permits) = (prompt_bytes > LONG_PROMPT_BYTES, Vec::new());
        if is_long {
            permits.extend(self.long.take(principal).await?);
        }
        permits.extend(self.all.take(principal).await?);
        Ok(PreparingTurn { _permits: permits, is_long })
    }
}

/// So many at once, in the order in which they come; but of one principal no more than so many are in that
/// order, and its others wait for these.
struct Turns {
    max: usize,
    any: Arc<Semaphore>,
    own: Mutex<BTreeMap<Principal, Arc<Semaphore>>>,
}

impl Turns {
    fn new(max: usize) -> Self {
        Self { max, any: Arc::new(Semaphore::new(max)), own: Mutex::default() }
    }

    async fn take(&self, principal: Principal) -> Result<[OwnedSemaphorePermit; 2], AcquireError> {
        let own = self.own(principal).acquire_owned().await?;
        Ok([own, self.any.clone().acquire_owned().await?])
    }

    fn own(&self, principal: Principal) -> Arc<Semaphore> {
        let mut own = self.own.lock();
        // Who has a turn or waits for one has it, too.
        own.retain(|_, turns| Arc::strong_count(turns) > 1);
        own.entry(principal).or_insert_with(|| Arc::new(Semaphore::new(self.max))).clone()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_prompt_is_prepared_while_all_threads_that_tasks_share_wait_for_a_disk() {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_time()
            .max_blocking_threads(1)
            .build()
            .unwrap();
        let (answer, disk) = std::sync::mpsc::channel::<()>();
        let turns = PreparingTurns::new();
        let [done, broken_off] = runtime.block_on(async {
            tokio::task::spawn_blocking(move || disk.recv());
            let within = Duration::from_secs(20);
            let prepared = turns.run(Principal([1; 16]), 1, || Ok(7));
            let done = tokio::time::timeout(within, prepared).await;
            let panics = turns.run(Principal([1; 16]), 1, || panic!("a bug in a template"));
            [done, tokio::time::timeout(within, panics).await]
        });
        drop(answer);
        assert!(matches!(done, Ok(Ok(7))), "{done:?}");
        assert!(matches!(broken_off, Ok(Err(GenerateError::Internal { .. }))), "{broken_off:?}");
    }

    #[tokio::test]
    async fn who_has_one_long_prompt_waits_for_one_of_each_other_and_not_for_all_that_came_before() {
        let turns = Arc::new(PreparingTurns::new());
        let [many, one] = [1, 2].map(|n| Principal([n; 16]));
        let first = turns.take(many, LONG_PROMPT_BYTES + 1).await.unwrap();
        assert!(first.is_long);
        let (served, mut order) = tokio::sync::mpsc::unbounded_channel();
        for who in [many, many, many, one] {
            let (turns, served) = (turns.clone(), served.clone());
            tokio::spawn(async move {
                let turn = turns.take(who, LONG_PROMPT_BYTES + 1).await.unwrap();
                served.send(who).unwrap();
                drop(turn);
            });
            tokio::task::yield_now().await;
        }
        let short = turns.take(one, 1).await.unwrap();
        assert!(!short.is_long, "a short one waits for no long one");
        drop((first, short, served));
        let mut all = Vec::new();
        while let Some(who) = order.recv().await {
            all.push(who);
        }
        assert_eq!(all, [one, many, many, many]);
        let kept = turns.long.own.lock().len();
        assert!(kept <= 2, "{kept}");
    }
}
