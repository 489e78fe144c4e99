//! What a command asks of a hub by itself, in sight of whoever waits.

use std::sync::Arc;
use std::sync::mpsc::{self, RecvTimeoutError};
use std::time::Duration;

use anyhow::{Context, bail};
use exo_hub::Cancel;

use crate::ui;

/// Between two looks at what holds it up.
const LOOK_EVERY: Duration = Duration::from_millis(200);

/// Asks in a thread of its own, and says while the hub does not answer what holds it up.
pub async fn asking<T: Send + 'static>(
    ask: impl FnOnce(&Cancel) -> anyhow::Result<T> + Send + 'static,
) -> anyhow::Result<T> {
    let cancel = Arc::new(Cancel::default());
    let wanted = cancel.clone();
    let mut work = tokio::task::spawn_blocking(move || ask(&cancel));
    let (spinner, mut lines) = (ui::spinner(), ui::WaitLines::begin());
    spinner.set_message("asking the hub");
    loop {
        if let Ok(done) = tokio::time::timeout(LOOK_EVERY, &mut work).await {
            spinner.finish_and_clear();
            return done.context("asking the hub broke off")?;
        }
        if let Some(why) = wanted.hold_up() {
            let text = format!("asking the hub: {why}");
            lines.tell(&text);
            spinner.set_message(text);
        }
    }
}

/// The same where the caller may block; of `what` it is said that it is asked for.
pub fn asking_for<T: Send>(what: &str, cancel: &Cancel, ask: impl FnOnce() -> T + Send) -> anyhow::Result<T> {
    let (answer_to, answers) = mpsc::channel();
    let (spinner, mut lines) = (ui::spinner(), ui::WaitLines::begin());
    std::thread::scope(|scope| {
        scope.spawn(move || answer_to.send(ask()));
        loop {
            let why = cancel.hold_up().map(|why| format!(": {why}")).unwrap_or_default();
            let text = format!("asking for {what}{why}");
            lines.tell(&text);
            spinner.set_message(text);
            match answers.recv_timeout(LOOK_EVERY) {
                Ok(answer) => return Ok(answer),
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => bail!("asking the hub broke off"),
            }
        }
    })
}
