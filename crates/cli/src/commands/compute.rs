//! What a command that works without a node computes on: what a node would, or the device that `--backend` names.

use std::sync::Arc;

use exo_backend::Device;
use exo_node::{DeviceChoice, SystemHost};
use exo_types::DeviceKind;

use crate::config::Config;
use crate::run_node::{node_config, probe_driver};
use crate::{auto, ui};

/// Where steps run.
#[derive(Clone)]
pub enum Compute {
    /// The processor; whoever uses it opens it with the threads it wants.
    Processor,
    /// A graphics processor, open.
    Card(Arc<dyn Device>),
}

impl Compute {
    /// Opens what the settings `backend` and `device` name. A driver that crashes does so in a child first. What was chosen
    /// by itself is said, and why.
    pub async fn open(config: &Config) -> anyhow::Result<Self> {
        let mut settings = node_config(config)?;
        auto::resolve(config, &mut settings).await?;
        let is_chosen = match &settings.device {
            DeviceChoice::Processor => return Ok(Self::Processor),
            DeviceChoice::Best(ranking) if ranking.candidates.is_empty() => {
                note("the processor", &ranking.told(&[], &[]));
                return Ok(Self::Processor);
            }
            DeviceChoice::Best(_) => true,
            named => {
                probe_driver(named).await?;
                false
            }
        };
        let opened = tokio::task::spawn_blocking(move || exo_node::open_device(&settings, &SystemHost));
        let (device, facts) = opened.await?.map_err(anyhow::Error::from_boxed)?;
        if is_chosen {
            note(&format!("{} ({})", facts.name, facts.backend), &facts.support_reason);
        }
        Ok(if facts.kind == DeviceKind::Cpu { Self::Processor } else { Self::Card(device) })
    }
}

/// Beside the output: a device that nobody named is named.
fn note(device: &str, why: &str) {
    if !why.is_empty() {
        ui::note(&format!("computes on {device}: {why}"));
    }
}
