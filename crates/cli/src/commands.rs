//! One file per command.

pub mod alerts;
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
pub mod subject;
pub mod update;
mod watch;
pub mod worker;

use crate::client::Client;
use crate::config::Config;
use crate::errors::CommandError;

/// The running node, or the error that says how to get one.
pub async fn running(config: &Config) -> anyhow::Result<Client> {
    let data_dir = config.data_dir();
    match Client::running(&data_dir).await {
        Some(client) => Ok(client),
        None => Err(CommandError::NoNode { data_dir: data_dir.display().to_string() }.into()),
    }
}
