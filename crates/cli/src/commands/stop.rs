//! `exo stop`: end the node of a data folder.

use std::time::{Duration, Instant};

use anyhow::bail;
use exo_node::{DataDir, FilesError};

use super::{drain, no_answer};
use crate::client::Client;
use crate::config::Config;
use crate::ui;

/// Beyond the time in which its layers are loaded elsewhere: for its last answers and its files.
const END_MAX: Duration = Duration::from_secs(15);
const POLL: Duration = Duration::from_millis(50);

/// Asks the node to end and waits until it has.
pub async fn run(config: &Config) -> anyhow::Result<()> {
    let data_dir = config.data_dir();
    match DataDir::check_free(&data_dir) {
        Ok(()) => {
            ui::line(format!("no node runs on {}", data_dir.display()));
            return Ok(());
        }
        Err(FilesError::InUse { .. }) => {}
        Err(error) => return Err(error.into()),
    }
    let Some(client) = Client::running(&data_dir).await else { return Err(no_answer(&data_dir)) };
    client.post::<()>("/exo/v1/shutdown", &()).await?;
    let (began, limit) = (Instant::now(), drain::LEAVE_MAX + END_MAX);
    let spinner = ui::spinner();
    spinner.set_message("the node ends; what others depend on is loaded elsewhere first");
    while let Err(FilesError::InUse { pid, .. }) = DataDir::check_free(&data_dir) {
        if began.elapsed() > limit {
            let process = pid.map_or_else(String::new, |pid| format!(" (process {pid})"));
            bail!(
                "the node{process} was asked to end {} s ago and has not; `exo logs` may say why",
                limit.as_secs()
            );
        }
        tokio::time::sleep(POLL).await;
    }
    spinner.finish_and_clear();
    ui::line("the node has ended");
    Ok(())
}
