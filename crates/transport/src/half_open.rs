//! Handshakes in progress: bounded in number and in time.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::task::AbortHandle;

/// At most so many handshakes at once. When full the oldest is dropped, not the newest refused: an honest
/// handshake takes milliseconds, so whoever is oldest is most likely stalling.
pub(crate) struct HalfOpen {
    max: usize,
    within: Duration,
    running: Mutex<(u64, VecDeque<(u64, AbortHandle)>)>,
}

impl HalfOpen {
    pub(crate) fn new(max: usize, within: Duration) -> Arc<Self> {
        Arc::new(Self { max: max.max(1), within, running: Mutex::default() })
    }

    /// Runs one handshake as a task of its own, until done, out of time, or crowded out.
    pub(crate) fn run(self: &Arc<Self>, handshake: impl Future<Output = ()> + Send + 'static) {
        let this = self.clone();
        let mut running = self.lock();
        let id = running.0;
        running.0 += 1;
        while running.1.len() >= self.max
            && let Some((_, oldest)) = running.1.pop_front()
        {
            tracing::debug!(max = self.max, "too many handshakes at once: dropped the oldest");
            oldest.abort();
        }
        // The lock is held over the spawn, so that the task cannot take itself off the list before it is on it.
        let task = tokio::spawn(async move {
            let _ = tokio::time::timeout(this.within, handshake).await;
            this.lock().1.retain(|(other, _)| *other != id);
        });
        running.1.push_back((id, task.abort_handle()));
    }

    /// Whether more than half the places are taken.
    pub(crate) fn is_crowded(&self) -> bool {
        self.lock().1.len() * 2 > self.max
    }

    /// Ends them all.
    pub(crate) fn abort_all(&self) {
        for (_, task) in self.lock().1.drain(..) {
            task.abort();
        }
    }

    fn lock(&self) -> MutexGuard<'_, (u64, VecDeque<(u64, AbortHandle)>)> {
        self.running.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn the_newest_gets_in_and_the_oldest_stalling_ones_end() {
        let half_open = HalfOpen::new(2, Duration::from_secs(60));
        let running = Arc::new(());
        for _ in 0..10 {
            let one = running.clone();
            half_open.run(async move {
                let _one = one;
                std::future::pending().await
            });
        }
        let (tx, rx) = tokio::sync::oneshot::channel();
        half_open.run(async move {
            let _ = tx.send(());
        });
        rx.await.unwrap();
        tokio::time::sleep(Duration::from_millis(100)).await;
        // One of the ten still runs beside ours: it was the newest before us.
        assert_eq!(Arc::strong_count(&running) - 1, 1);
    }

    #[tokio::test]
    async fn a_stalled_handshake_ends_by_its_deadline() {
        let half_open = HalfOpen::new(2, Duration::from_millis(20));
        half_open.run(std::future::pending());
        assert_eq!(half_open.lock().1.len(), 1);
        tokio::time::sleep(Duration::from_millis(200)).await;
        assert_eq!(half_open.lock().1.len(), 0);
    }
}
