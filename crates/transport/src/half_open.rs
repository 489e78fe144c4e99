//! Handshakes in progress: bounded in number and in time.

use std::collections::{BTreeMap, VecDeque};
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use exo_stdx::Mutex;
use tokio::task::AbortHandle;

use crate::join_slots::network_of;

/// At most so many handshakes at once. When full, one of the host that has most of them is dropped, its
/// oldest, and the newest is not refused: an honest handshake takes milliseconds, so whoever is oldest is
/// most likely stalling, and a host that opens many crowds out its own.
pub(crate) struct HalfOpen {
    max: usize,
    within: Duration,
    running: Mutex<Running>,
}

#[derive(Default)]
struct Running {
    last: u64,
    /// The oldest first.
    all: VecDeque<Handshake>,
}

struct Handshake {
    id: u64,
    /// Whose it is: an address, or a network of IPv6.
    host: IpAddr,
    task: AbortHandle,
}

impl Running {
    /// The handshake that makes place for another.
    fn take_one(&mut self) -> Option<Handshake> {
        let mut of_hosts = BTreeMap::<IpAddr, usize>::new();
        for handshake in &self.all {
            *of_hosts.entry(handshake.host).or_default() += 1;
        }
        let most = of_hosts.values().copied().max()?;
        let oldest = self.all.iter().position(|handshake| of_hosts[&handshake.host] == most)?;
        self.all.remove(oldest)
    }
}

impl HalfOpen {
    pub(crate) fn new(max: usize, within: Duration) -> Arc<Self> {
        Arc::new(Self { max: max.max(1), within, running: Mutex::default() })
    }

    /// Runs one handshake as a task of its own, until done, out of time, or crowded out.
    pub(crate) fn run(
        self: &Arc<Self>,
        remote: IpAddr,
        handshake: impl Future<Output = ()> + Send + 'static,
    ) {
        let (this, host) = (self.clone(), network_of(remote));
        let mut running = self.running.lock();
        running.last += 1;
        let id = running.last;
        while running.all.len() >= self.max
            && let Some(dropped) = running.take_one()
        {
            tracing::debug!(max = self.max, host = %dropped.host, "too many handshakes at once: dropped one");
            dropped.task.abort();
        }
        // The lock is held over the spawn, so that the task cannot take itself off the list before it is on
        // it.
        let task = tokio::spawn(async move {
            if tokio::time::timeout(this.within, handshake).await.is_err() {
                tracing::trace!(%host, within_s = this.within.as_secs(), "a handshake ran out of its time");
            }
            this.running.lock().all.retain(|other| other.id != id);
        });
        running.all.push_back(Handshake { id, host, task: task.abort_handle() });
    }

    /// Whether more than half the places are taken.
    pub(crate) fn is_crowded(&self) -> bool {
        self.running.lock().all.len() * 2 > self.max
    }

    pub(crate) fn abort_all(&self) {
        for handshake in self.running.lock().all.drain(..) {
            handshake.task.abort();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn host(n: u8) -> IpAddr {
        IpAddr::from([10, 0, 0, n])
    }

    #[tokio::test]
    async fn a_host_that_opens_many_crowds_out_its_own_handshakes() {
        let half_open = HalfOpen::new(4, Duration::from_secs(60));
        let (tx, rx) = tokio::sync::oneshot::channel::<()>();
        half_open.run(host(1), async move { drop(rx.await) });
        for _ in 0..50 {
            half_open.run(host(2), std::future::pending());
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
        assert!(!tx.is_closed(), "the first one still runs");
        assert_eq!(half_open.running.lock().all.iter().filter(|one| one.host == host(2)).count(), 3);
    }

    #[tokio::test]
    async fn the_newest_gets_in_and_the_oldest_stalling_ones_end() {
        let half_open = HalfOpen::new(2, Duration::from_secs(60));
        let running = Arc::new(());
        for _ in 0..10 {
            let one = running.clone();
            half_open.run(host(1), async move {
                let _one = one;
                std::future::pending().await
            });
        }
        let (tx, rx) = tokio::sync::oneshot::channel();
        half_open.run(host(2), async move {
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
        half_open.run(host(1), std::future::pending());
        assert_eq!(half_open.running.lock().all.len(), 1);
        tokio::time::sleep(Duration::from_millis(200)).await;
        assert_eq!(half_open.running.lock().all.len(), 0);
    }
}
