//! What a command asks of a hub by itself, in sight of whoever waits.

use std::sync::Arc;
use std::time::Duration;

use anyhow::Context;
use exo_hub::Cancel;

use crate::ui;

/// Between two looks at how often it was tried.
const LOOK_EVERY: Duration = Duration::from_millis(200);

/// Asks in a thread of its own, and says while the hub does not answer which try this is.
pub async fn asking<T: Send + 'static>(
    ask: impl FnOnce(&Cancel) -> anyhow::Result<T> + Send + 'static,
) -> anyhow::Result<T> {
    let cancel = Arc::new(Cancel::default());
    let tries = cancel.clone();
    let mut work = tokio::task::spawn_blocking(move || ask(&cancel));
    let (spinner, mut lines) = (ui::spinner(), ui::WaitLines::begin());
    spinner.set_message("asking the hub");
    loop {
        if let Ok(done) = tokio::time::timeout(LOOK_EVERY, &mut work).await {
            spinner.finish_and_clear();
            return done.context("asking the hub broke off")?;
        }
        if let Some((failed, max)) = tries.failed_tries() {
            let text = format!("asking the hub: no answer yet, try {} of {max}", failed + 1);
            lines.tell(&text);
            spinner.set_message(text);
        }
    }
}
