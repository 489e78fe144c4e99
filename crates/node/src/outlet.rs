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

/// For a client to take half of them.
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

/// Both ends.
pub fn sink() -> (Sink, Outlet) {
    let (sender, receiver) = mpsc::unbounded_channel();
    let unread = Arc::new(AtomicUsize::new(0));
    (Sink { items: sender, unread: unread.clone() }, Outlet { items: receiver, unread })
}

impl Sink {
    /// Hands an event over without waiting. A client that left is no error: the drop of its stream has cancelled the
    /// request.
    pub fn send(&self, event: GenerateEvent) -> Result<(), GenerateError> {
        // One task sends, one takes: the count may only fall between the two lines.
        if self.unread.load(Ordering::Relaxed) >= UNREAD_MAX {
            return Err(GenerateError::SlowReader { unread: UNREAD_MAX as u32 });
        }
        self.unread.fetch_add(1, Ordering::Relaxed);
        let _ = self.items.send(Ok(event));
        Ok(())
    }

    /// Waits, for many events at once, until the client has taken most of what waits. One that does not is too slow for the next event.
    pub async fn room(&self) {
        let until = Instant::now() + ROOM_MAX;
        let is_full = || self.unread.load(Ordering::Relaxed) > UNREAD_MAX / 2 && !self.items.is_closed();
        while is_full() && Instant::now() < until {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    }

    /// The last word; there is always room for it.
    pub fn fail(self, error: GenerateError) {
        let _ = self.items.send(Err(error));
    }
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
}
