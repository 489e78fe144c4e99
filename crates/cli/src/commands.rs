//! One file per command.

pub mod alerts;
mod asking;
pub mod bench;
pub mod compute;
pub mod demo;
pub mod devices;
pub mod doctor;
pub mod drain;
pub mod fits;
pub mod found;
mod interrupt;
pub mod login;
pub mod logs;
pub mod members;
pub mod models;
pub mod open;
pub mod pairing;
pub mod perplexity;
pub mod place;
pub mod plan;
pub mod pull;
pub mod pulls;
pub mod quantize;
pub mod replan;
pub mod run;
pub mod settings;
pub mod start;
pub mod status;
pub mod stop;
pub mod subject;
pub mod update;
mod watch;
pub mod worker;

use std::path::Path;

use exo_node::{DataDir, FilesError};

use crate::client::{Client, HEALTH_MAX};
use crate::config::Config;
use crate::errors::CommandError;

/// The running node, or the error that says how to get one.
pub async fn running(config: &Config) -> anyhow::Result<Client> {
    let data_dir = config.data_dir();
    match Client::running(&data_dir).await {
        Some(client) => Ok(client),
        None => Err(no_answer(&data_dir)),
    }
}

/// Refuses where a node has the data folder, though it does not answer.
fn check_no_node(path: &Path) -> anyhow::Result<()> {
    match no_answer(path) {
        error if matches!(error.downcast_ref(), Some(CommandError::NoNode { .. })) => Ok(()),
        error => Err(error),
    }
}

/// Why no node answers on a data folder: there is none, it is there and silent, or it is another user's.
fn no_answer(path: &Path) -> anyhow::Error {
    let data_dir = path.display().to_string();
    match DataDir::check_free(path) {
        Ok(()) => CommandError::NoNode { data_dir }.into(),
        Err(FilesError::InUse { pid, .. }) => {
            let seconds = Client::of(path).map(|_| HEALTH_MAX.as_secs());
            CommandError::NodeSilent { data_dir, pid, seconds }.into()
        }
        Err(error) => error.into(),
    }
}
