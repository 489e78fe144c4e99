//! Work on a thread of its own that Ctrl-C ends early.

use std::time::Duration;

use anyhow::Context;
use tokio::task::JoinHandle;

use crate::stop::StopSignal;

/// From Ctrl-C to the end of what cannot be broken off: a layer on a slow device, a batch of rows.
pub const COMPUTING_MAX: Duration = Duration::from_secs(20);
/// The same where what is half done may stay as it is: a name server does not answer, and a fetch goes on
/// another time.
pub const FETCHING_MAX: Duration = Duration::from_secs(1);
/// As shells report a program that Ctrl-C ended.
pub const INTERRUPTED: u8 = 130;

/// Waits for `work`. After Ctrl-C calls `cancel`, gives the work time to clean up, `stop_max` at most, and
/// returns `None`.
pub async fn or_interrupt<T>(
    mut work: JoinHandle<anyhow::Result<T>>,
    stop_max: Duration,
    cancel: impl FnOnce(),
) -> anyhow::Result<Option<T>> {
    let mut stop = StopSignal::new()?;
    tokio::select! {
        result = &mut work => result.context("the work broke off")?.map(Some),
        () = stop.wait() => {
            cancel();
            let _ = tokio::time::timeout(stop_max, work).await;
            Ok(None)
        }
    }
}
