//! Members that give shares of some chunks at the same time: a few at once, and others beside those of them
//! that are slow.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;

use super::SharedChunks;

/// Members that are asked at once: more share the same line of this node, and each holds answers in memory.
const SOURCES_MAX: usize = 3;
/// Further ones, for as many as are slow: those leave the line idle.
const SLOW_SOURCES_MAX: usize = 5;
/// Between two looks whether the next one may begin.
const TURNS_LOOK_EVERY: Duration = Duration::from_millis(200);

/// What members are to do, each as a future with its share.
pub struct Givers<'s, F> {
    shared: &'s SharedChunks,
    to_begin: VecDeque<F>,
    giving: FuturesUnordered<F>,
}

impl<'s, F: Future> Givers<'s, F> {
    /// Of these chunks; the first ones begin first.
    pub fn new(shared: &'s SharedChunks, asks: Vec<F>) -> Self {
        Self { shared, to_begin: asks.into(), giving: FuturesUnordered::new() }
    }

    /// What came of the next one that is done; `None` once all are. May be dropped and called again.
    pub async fn next(&mut self) -> Option<F::Output> {
        loop {
            while self.has_turn()
                && let Some(ask) = self.to_begin.pop_front()
            {
                self.giving.push(ask);
            }
            if self.to_begin.is_empty() {
                return self.giving.next().await;
            }
            tokio::select! {
                Some(given) = self.giving.next() => return Some(given),
                () = tokio::time::sleep(TURNS_LOOK_EVERY) => {}
            }
        }
    }

    /// Whether one more may begin, and no other waits for that.
    pub fn is_idle(&self) -> bool {
        self.to_begin.is_empty() && self.has_turn()
    }

    /// Whether one more may begin for what others bring too slowly, whoever waits for a turn.
    pub fn has_room(&self) -> bool {
        self.giving.len() < SOURCES_MAX + SLOW_SOURCES_MAX
    }

    /// Has one more begin at once.
    pub fn begin(&mut self, ask: F) {
        self.giving.push(ask);
    }

    fn has_turn(&self) -> bool {
        let slow = self.shared.slow_sources(Instant::now());
        self.giving.len() < SOURCES_MAX + slow.min(SLOW_SOURCES_MAX)
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;
    use std::future::pending;

    use exo_store::ChunkRef;

    use super::*;

    #[tokio::test]
    async fn a_fourth_member_begins_when_one_of_three_is_done_or_slow() {
        let all: Vec<ChunkRef> = (0..8).map(|index| ChunkRef { file: 0, index }).collect();
        let (shared, begun) = (SharedChunks::new(&all), Cell::new(0));
        let long_ago = Instant::now().checked_sub(Duration::from_secs(6)).unwrap();
        let give = |is_done: bool, asked: Instant| {
            let share = shared.whole();
            let begun = &begun;
            async move {
                begun.set(begun.get() + 1);
                share.take_next(asked);
                if !is_done {
                    pending::<()>().await;
                }
            }
        };
        let now = Instant::now();
        let asks = vec![give(false, now), give(false, now), give(false, now), give(true, now)];
        let mut givers = Givers::new(&shared, asks);
        let looks = 2 * TURNS_LOOK_EVERY;
        assert!(tokio::time::timeout(looks, givers.next()).await.is_err(), "none is done");
        assert_eq!((begun.get(), givers.is_idle(), givers.has_room()), (3, false, true));
        drop(givers);
        begun.set(0);
        let asks = vec![give(false, now), give(false, long_ago), give(false, now), give(true, now)];
        let mut givers = Givers::new(&shared, asks);
        assert_eq!((givers.next().await, begun.get()), (Some(()), 4));
        assert!(givers.is_idle() && givers.has_room(), "no other waits for the turn of the slow one");
    }
}
