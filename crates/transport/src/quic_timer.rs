//! The timers of QUIC connections.
//!
//! A timer of tokio's that is only extended still wakes the process at its old time, to find that there is
//! nothing to do. A connection at rest extends its own with each packet that is acknowledged: from the time
//! at which it would have been sent again to that of the next sign of life.

use std::future::Future;
use std::io;
use std::net::UdpSocket;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use quinn::{AsyncTimer, AsyncUdpSocket, Runtime, TokioRuntime};
use tokio::time::Sleep;

/// A timer that is put off by more than that is put up anew: a connection under load puts its own off by
/// less, and often.
const AT_REST: Duration = Duration::from_millis(250);

/// Tokio with these timers.
#[derive(Debug)]
pub(crate) struct QuicRuntime;

impl Runtime for QuicRuntime {
    fn new_timer(&self, at: Instant) -> Pin<Box<dyn AsyncTimer>> {
        Box::pin(QuicTimer(Box::pin(tokio::time::sleep_until(at.into()))))
    }

    fn spawn(&self, future: Pin<Box<dyn Future<Output = ()> + Send>>) {
        TokioRuntime.spawn(future);
    }

    fn wrap_udp_socket(&self, socket: UdpSocket) -> io::Result<Arc<dyn AsyncUdpSocket>> {
        TokioRuntime.wrap_udp_socket(socket)
    }

    fn now(&self) -> Instant {
        TokioRuntime.now()
    }
}

#[derive(Debug)]
struct QuicTimer(Pin<Box<Sleep>>);

impl AsyncTimer for QuicTimer {
    fn reset(mut self: Pin<&mut Self>, at: Instant) {
        let at = tokio::time::Instant::from_std(at);
        if at > self.0.deadline() + AT_REST {
            self.0.set(tokio::time::sleep_until(at));
        } else {
            self.0.as_mut().reset(at);
        }
    }

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<()> {
        Future::poll(self.0.as_mut(), context)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Milliseconds after which a timer is over that was put up for 200 ms and reset to these.
    async fn over_after(resets: &[u64]) -> u128 {
        let began = Instant::now();
        let mut timer = QuicRuntime.new_timer(began + Duration::from_millis(200));
        let over = std::future::poll_fn(|context| AsyncTimer::poll(timer.as_mut(), context));
        assert!(tokio::time::timeout(Duration::from_millis(1), over).await.is_err(), "it is waited for");
        for ms in resets {
            timer.as_mut().reset(began + Duration::from_millis(*ms));
        }
        std::future::poll_fn(|context| AsyncTimer::poll(timer.as_mut(), context)).await;
        began.elapsed().as_millis()
    }

    #[tokio::test]
    async fn a_timer_is_over_at_the_time_that_it_was_reset_to_last() {
        // Earlier, a little later, much later, and to and fro.
        let cases: [&[u64]; 4] = [&[20], &[300], &[600], &[60_000, 90_000, 250]];
        for resets in cases {
            let due = u128::from(*resets.last().unwrap());
            let after = tokio::time::timeout(Duration::from_secs(20), over_after(resets)).await.unwrap();
            assert!(after >= due, "{resets:?}: {after} ms");
        }
    }
}
