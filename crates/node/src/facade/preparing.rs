//! Whose prompts are rendered and tokenised next: principals take turns, however many prompts one of them
//! has.

use std::collections::BTreeMap;
use std::sync::Arc;

use exo_stdx::Mutex;
use exo_types::Principal;
use tokio::sync::{AcquireError, OwnedSemaphorePermit, Semaphore};

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
pub(super) struct PreparingTurn {
    _permits: Vec<OwnedSemaphorePermit>,
    pub(super) is_long: bool,
}

impl PreparingTurns {
    pub(crate) fn new() -> Self {
        Self { all: Turns::new(PREPARING_MAX), long: Turns::new(1) }
    }

    /// Waits for the turn of a prompt of about so many bytes.
    pub(super) async fn take(
        &self,
        principal: Principal,
        prompt_bytes: usize,
    ) -> Result<PreparingTurn, AcquireError> {
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
