//! Between a request and its client: events wait here until the client takes them, a bounded number of them.
//!
//! Whoever computes never waits for a client. One that falls too far behind loses its request instead.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use exo_api::{GenerateError, GenerateEvent};
use tokio::sync::mpsc;
use tokio::time::{Duration, Instant};

/// Events that may wait: an answer of the usual length in whole, and less than a megabyte.
const UNREAD_MAX: usize = 4096;

/// Where many events come at once, so many unread ones are waited for, until half of them are left.
const UNREAD_AT_ONCE_MAX: usize = UNREAD_MAX / 2;

/// For a client to take that half.
const ROOM_MAX: Duration = Duration::from_secs(30);

type Item = Result<GenerateEvent, GenerateError>;

/// Where the request puts its events.
pub struct Sink {
    items: mpsc::UnboundedSender<Item>,
    unread: Arc<AtomicUsize>,
}

/// Where the client takes them.
pub struct Outlet {
    items: mpsc::UnboundedReceiver<Item>,
    unread: Arc<AtomicUsize>,
}

pub fn sink() -> (Sink, Outlet) {
    let (sender, receiver) = mpsc::unbounded_channel();
    let unread = Arc::new(AtomicUsize::new(0));
    (Sink { items: sender, unread: unread.clone() }, Outlet { items: receiver, unread })
}

impl Sink {
    /// Hands an event over without waiting. A client that left is no error: the drop of its stream has
    /// cancelled the request.
    pub fn send(&self, event: GenerateEvent) -> Result<(), GenerateError> {
        // One task sends, one takes: the count may only fall between the two lines.
        if self.unread.load(Ordering::Relaxed) >= UNREAD_MAX {
            return Err(too_slow(UNREAD_MAX));
        }
        self.unread.fetch_add(1, Ordering::Relaxed);
        let _ = self.items.send(Ok(event));
        Ok(())
    }

    /// Makes room for one of many events that come at once. A client that does not take what waits in
    /// [`ROOM_MAX`] loses its request: so one that reads nothing holds it for no longer.
    pub async fn room(&self) -> Result<(), GenerateError> {
        self.room_within(ROOM_MAX).await
    }

    async fn room_within(&self, max: Duration) -> Result<(), GenerateError> {
        let is_above = |max: usize| self.unread.load(Ordering::Relaxed) > max && !self.items.is_closed();
        if !is_above(UNREAD_AT_ONCE_MAX) {
            return Ok(());
        }
        let until = Instant::now() + max;
        while is_above(UNREAD_AT_ONCE_MAX / 2) {
            if Instant::now() >= until {
                return Err(too_slow(self.unread.load(Ordering::Relaxed)));
            }
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        Ok(())
    }

    /// The last word; there is always room for it.
    pub fn fail(self, error: GenerateError) {
        let _ = self.items.send(Err(error));
    }
}

fn too_slow(unread: usize) -> GenerateError {
    GenerateError::SlowReader { unread: unread as u32 }
}

impl Outlet {
    /// The next event; `None` after the last.
    pub async fn next(&mut self) -> Option<Item> {
        let item = self.items.recv().await?;
        if item.is_ok() {
            self.unread.fetch_sub(1, Ordering::Relaxed);
        }
        Some(item)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn event(n: usize) -> GenerateEvent {
        GenerateEvent::Started { prompt_tokens: n as u32 }
    }

    #[tokio::test]
    async fn a_reader_that_falls_behind_is_told_after_what_was_kept_for_it() {
        let (sink, mut outlet) = sink();
        for n in 0..UNREAD_MAX {
            assert_eq!(sink.send(event(n)), Ok(()));
        }
        let behind = GenerateError::SlowReader { unread: UNREAD_MAX as u32 };
        assert_eq!(sink.send(event(0)), Err(behind.clone()));
        assert_eq!(outlet.next().await, Some(Ok(event(0))));
        assert_eq!(sink.send(event(UNREAD_MAX)), Ok(()), "one was taken");
        sink.fail(behind.clone());
        for n in 1..=UNREAD_MAX {
            assert_eq!(outlet.next().await, Some(Ok(event(n))));
        }
        assert_eq!((outlet.next().await, outlet.next().await), (Some(Err(behind)), None));
    }

    /// Not before each of the events that come.
    #[tokio::test]
    async fn a_client_that_reads_nothing_is_waited_for_once() {
        const MAX: Duration = Duration::from_millis(50);
        let (sink, mut outlet) = sink();
        let mut sent = 0;
        let refused = loop {
            if let Err(error) = sink.room_within(MAX).await {
                break error;
            }
            sink.send(event(sent)).unwrap();
            sent += 1;
        };
        let unread = UNREAD_AT_ONCE_MAX + 1;
        assert_eq!((sent, refused), (unread, too_slow(unread)));
        // One that reads goes on, as soon as it has taken half.
        for n in 0..unread - UNREAD_AT_ONCE_MAX / 2 {
            assert_eq!(outlet.next().await, Some(Ok(event(n))));
        }
        assert_eq!(sink.room_within(MAX).await, Ok(()));
        drop(outlet);
        (0..UNREAD_AT_ONCE_MAX).for_each(|n| sink.send(event(n)).unwrap());
        assert_eq!(sink.room_within(MAX).await, Ok(()), "a client that left cancels its request itself");
    }
}
