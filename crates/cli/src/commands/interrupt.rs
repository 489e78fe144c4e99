//! Work on a thread of its own that Ctrl-C ends early.

use std::time::Duration;

use anyhow::Context;
use tokio::task::JoinHandle;

use crate::stop::StopSignal;

/// From Ctrl-C to the end of what cannot be broken off: a layer on a slow device, a batch of rows.
const STOP_MAX: Duration = Duration::from_secs(20);
/// As shells report a program that Ctrl-C ended.
pub const INTERRUPTED: u8 = 130;

/// Waits for `work`. After Ctrl-C calls `cancel`, gives the work time to clean up, and returns `None`.
pub async fn or_interrupt<T>(
    mut work: JoinHandle<anyhow::Result<T>>,
    cancel: impl FnOnce(),
) -> anyhow::Result<Option<T>> {
    let mut stop = StopSignal::new()?;
    tokio::select! {
        result = &mut work => result.context("the work broke off")?.map(Some),
        () = stop.wait() => {
            cancel();
            let _ = tokio::time::timeout(STOP_MAX, work).await;
            Ok(None)
        }
    }
}
