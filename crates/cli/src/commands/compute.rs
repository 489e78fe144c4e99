//! What a command that works without a node computes on: what a node would, or the device that `--backend`
//! names.
//!
//! A graphics driver may end the process that it is loaded into. So a command that computes on a graphics
//! processor does so in a child, which is this program with the same arguments, and says what became of it.

use std::process::{ExitCode, ExitStatus};
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, bail};

use exo_backend::Device;
use exo_node::{DeviceChoice, DeviceMessage, SystemHost, choose_devices};
use exo_types::DeviceKind;

use super::interrupt::INTERRUPTED;
use crate::config::Config;
use crate::environment::IN_CHILD;
use crate::errors::CommandError;
use crate::run_node::{node_config, probe_driver};
use crate::stop::StopSignal;
use crate::{system, ui};

/// For a child that was told to stop: as long as a command gives its work, and to print what it has.
const STOP_MAX: Duration = Duration::from_secs(25);

/// Where steps run.
#[derive(Clone)]
pub enum Compute {
    /// The processor; whoever uses it opens it with the threads it wants.
    Processor,
    /// A graphics processor, open.
    Card(Arc<dyn Device>),
}

/// Who runs the command.
pub enum Runs {
    /// This process.
    Here(Compute),
    /// A child has; its result is the command's.
    InChild(ExitCode),
}

impl Compute {
    /// Opens what the settings `backend` and `device` name, in a child if that is a graphics processor. A
    /// driver that crashes when it is asked does so in another child first. What was chosen by itself is
    /// said, and why.
    pub async fn open(config: &Config) -> anyhow::Result<Runs> {
        let is_child = is_child()?;
        let mut settings = node_config(config)?;
        // What is wrong the parent has said.
        let is_said = move |message: &DeviceMessage| is_child && matches!(message, DeviceMessage::Warning(_));
        choose_devices(&mut settings, move |message| {
            if !is_said(&message) {
                ui::message(message)
            }
        })
        .await?;
        let (card, is_chosen) = match &settings.device {
            DeviceChoice::Processor => return Ok(Runs::Here(Self::Processor)),
            DeviceChoice::Ranked(ranking) => match ranking.candidates.first() {
                Some(best) => (best.label.clone(), true),
                None => {
                    note("the processor", &ranking.told(&[], &[]));
                    return Ok(Runs::Here(Self::Processor));
                }
            },
            _ => {
                probe_driver(&settings).await?;
                (format!("a {} device", config.text("backend")), false)
            }
        };
        if !is_child {
            return in_child(&card).await.map(Runs::InChild);
        }
        let opened = tokio::task::spawn_blocking(move || exo_node::open_device(&settings, &SystemHost));
        let (device, facts) = opened.await?.map_err(anyhow::Error::from_boxed)?;
        if is_chosen {
            note(&format!("{} ({})", facts.name, facts.backend), &facts.support_reason);
        }
        Ok(Runs::Here(if facts.kind == DeviceKind::Cpu { Self::Processor } else { Self::Card(device) }))
    }
}

/// Whether this process computes for another. A child ends with that, and one whose parent is gone does not
/// begin.
fn is_child() -> anyhow::Result<bool> {
    let Some(parent) = std::env::var_os(IN_CHILD) else { return Ok(false) };
    system::end_with_parent();
    // Where nobody tells who started this process, it was whom it computes for.
    if system::parent_id().is_some_and(|id| parent.to_str() != Some(&id.to_string())) {
        bail!("the process that this one was to compute for is gone (it was number {})", parent.display());
    }
    Ok(true)
}

/// Runs this command in a child to its end, and says so if a driver ends that.
async fn in_child(card: &str) -> anyhow::Result<ExitCode> {
    let program = std::env::current_exe().context("cannot find the exo program itself")?;
    let mut command = tokio::process::Command::new(program);
    command
        .args(std::env::args_os().skip(1))
        .env(IN_CHILD, std::process::id().to_string())
        .kill_on_drop(true);
    let mut stop = StopSignal::new()?;
    let mut child = command.spawn().context("cannot start a child to compute in")?;
    let mut is_stopped = false;
    let status = tokio::select! {
        status = child.wait() => status,
        () = stop.wait() => {
            is_stopped = true;
            system::pass_stop(&child);
            let ended = tokio::time::timeout(STOP_MAX, child.wait()).await;
            ended.with_context(|| format!("the child did not stop within {} s and is ended", STOP_MAX.as_secs()))?
        }
    };
    let status = status.context("cannot learn how the child ended")?;
    match exit_code(status) {
        Some(code) => Ok(ExitCode::from(code)),
        // Before it listens for the signal: while a driver is opened.
        None if is_stopped || system::was_interrupted(status) => Ok(ExitCode::from(INTERRUPTED)),
        None => {
            let (device, how) = (card.to_owned(), status.to_string());
            Err(CommandError::DriverEnded { device, how }.into())
        }
    }
}

/// `None` for one that did not end by itself. What a crash is called on Windows is no small number.
fn exit_code(status: ExitStatus) -> Option<u8> {
    status.code().and_then(|code| u8::try_from(code).ok())
}

/// Beside the output: a device that nobody named is named.
fn note(device: &str, why: &str) {
    if !why.is_empty() {
        ui::note(&format!("computes on {device}: {why}"));
    }
}
