//! What a command that works without a node computes on: the processor, or the device that `--backend` names.

use std::sync::Arc;

use exo_backend::Device;
use exo_node::{DeviceChoice, SystemHost};

use crate::config::Config;
use crate::run_node::{node_config, probe_driver};

/// Where steps run.
#[derive(Clone)]
pub enum Compute {
    /// The processor; whoever uses it opens it with the threads it wants.
    Processor,
    /// A graphics processor, open.
    Card(Arc<dyn Device>),
}

impl Compute {
    /// Opens what the settings `backend` and `device` name. A driver that crashes does so in a child first.
    pub async fn open(config: &Config) -> anyhow::Result<Self> {
        let settings = node_config(config)?;
        if settings.device == DeviceChoice::Processor {
            return Ok(Self::Processor);
        }
        probe_driver(&settings.device).await?;
        let opened = tokio::task::spawn_blocking(move || exo_node::open_device(&settings, &SystemHost));
        let (device, _) = opened.await?.map_err(anyhow::Error::from_boxed)?;
        Ok(Self::Card(device))
    }
}
