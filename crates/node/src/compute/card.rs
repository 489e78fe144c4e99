//! A graphics processor: found, lost, verified again, quarantined.

use std::path::{Path, PathBuf};
use std::time::Duration;

use exo_accelerators::{DeviceAsk, DeviceInfo, chain};
use exo_device::{Identity, Quarantine, Registry};
use exo_types::{DeviceFacts, DeviceState, SupportClass, Time};
use tokio::sync::watch;

use crate::open_device::Failure;
use crate::worker::{AskError, Guard, Verdict, WINDOW, WorkerProgram};

/// Of the reason why a device is not used: it travels with every report.
const REASON_CHARS_MAX: usize = 500;
/// For how many seconds a card is left out the first time that what it gave cannot be used. It is checked
/// then.
const FIRST_FAILURE_S: u64 = 600;

pub(super) struct Card {
    pub(super) facts: DeviceFacts,
    pub(super) identity: Identity,
    pub(super) driver: String,
    pub(super) ask: DeviceAsk,
    pub(super) program: WorkerProgram,
    guard: Guard,
    pub(super) state: watch::Sender<DeviceState>,
    /// Why it is not usable.
    pub(super) reason: String,
    /// It was lost too often: the processor stands in for it, also while it is looked at again.
    pub(super) quarantine: Option<RecordedQuarantine>,
    /// Whether what it gave could not be used, in this run.
    has_failed: bool,
}

/// A quarantine, and whether the registry on disk has it.
pub(super) struct RecordedQuarantine {
    pub(super) quarantine: Quarantine,
    pub(super) is_kept: bool,
}

/// Makes a device compute and compare in a child. Blocks.
pub type Check = Box<dyn FnOnce() -> Result<Box<DeviceInfo>, CheckError> + Send>;

/// Why a device that was lost does not come back.
#[derive(Debug, thiserror::Error)]
pub enum CheckError {
    /// It cannot be opened, or does not compute as it should.
    #[error(transparent)]
    Ask(#[from] AskError),
    /// Another is plugged in where it was, or the driver names them anew.
    #[error("{name} answers in its place")]
    Another { name: String },
    #[error("a task of this node broke off")]
    BrokenOff(#[from] tokio::task::JoinError),
}

/// What is to be done about a lost device.
pub enum Loss {
    /// After the wait, run the check.
    Verify { wait: Duration, check: Check },
    /// Keep it in the registry and open the processor in its place: both block.
    GiveUp { quarantine: Quarantine, keep: Keep },
}

/// Writes a quarantine to the registry; whether that worked.
pub type Keep = Box<dyn FnOnce(&Quarantine) -> bool + Send>;

impl Card {
    /// Those that are asked for, each asked in a process of its own what it is.
    pub(super) fn find_all(asks: Vec<DeviceAsk>, program: &WorkerProgram) -> Result<Vec<Self>, Failure> {
        let info = std::thread::scope(|scope| {
            let asking: Vec<_> =
                asks.iter().map(|ask| scope.spawn(move || crate::worker::ask(program, ask))).collect();
            let answers = asking.into_iter().map(|thread| match thread.join() {
                Ok(info) => info.map_err(Failure::from),
                Err(_) => Err("the thread that asked a graphics processor what it is panicked".into()),
            });
            answers.collect::<Result<Vec<_>, Failure>>()
        })?;
        let mut cards: Vec<Self> = Vec::with_capacity(asks.len());
        for (info, ask) in info.into_iter().zip(asks) {
            if cards.iter().any(|card| card.facts.id == info.facts.id) {
                let (name, id) = (info.facts.name, info.facts.id);
                return Err(format!("{name} ({id}) is named twice by the setting `device`").into());
            }
            cards.push(Self::found(info, ask, program.clone()));
        }
        Ok(cards)
    }

    fn found(info: DeviceInfo, ask: DeviceAsk, program: WorkerProgram) -> Self {
        let DeviceInfo { facts, identity, driver, quarantine } = info;
        let state = if quarantine.is_some() { DeviceState::Quarantined } else { DeviceState::Usable };
        let quarantine = quarantine.map(|quarantine| RecordedQuarantine { quarantine, is_kept: true });
        let (guard, (state, _), reason) = (Guard::default(), watch::channel(state), String::new());
        Self { facts, identity, driver, ask, program, guard, state, reason, quarantine, has_failed: false }
    }

    pub(super) fn set_state(&mut self, state: DeviceState) {
        let before = self.state.send_replace(state);
        if before != state {
            let (device, reason) = (&self.facts.id, &self.reason);
            tracing::info!(target: "events::device", %device, ?state, reason, "state");
        }
    }

    pub(super) fn lost(&mut self, now: Time, reason: &str) -> Loss {
        self.reason = reason.chars().take(REASON_CHARS_MAX).collect();
        match self.guard.lost(now) {
            Verdict::Verify { wait } => {
                self.set_state(DeviceState::Lost);
                Loss::Verify { wait, check: self.check() }
            }
            Verdict::GiveUp { losses } => {
                let minutes = WINDOW.as_secs() / 60;
                self.set_state(DeviceState::Lost);
                self.give_up(&format!(
                    "it was lost {losses} times within {minutes} minutes, at last because {reason}"
                ))
            }
        }
    }

    /// It is there and cannot be used: nothing has checked that, so the first time is short.
    pub(super) fn fail(&mut self, reason: &str) -> Loss {
        self.reason = reason.chars().take(REASON_CHARS_MAX).collect();
        self.set_state(DeviceState::Lost);
        let mut quarantine = Quarantine::new(reason, exo_stdx::unix_s());
        if !std::mem::replace(&mut self.has_failed, true) {
            quarantine.until_unix_s = quarantine.since_unix_s.saturating_add(FIRST_FAILURE_S);
        }
        self.set_quarantine(quarantine)
    }

    /// Looks at the registry, which blocks: whether the quarantine is over. `None` if there is none.
    pub(super) fn is_over(&self) -> Option<impl FnOnce() -> bool + Send + 'static> {
        if *self.state.borrow() != DeviceState::Quarantined {
            return None;
        }
        let RecordedQuarantine { quarantine, is_kept } = self.quarantine.as_ref()?;
        let (is_kept, until) = (*is_kept, quarantine.until_unix_s);
        let (folder, identity) = (PathBuf::from(&self.ask.data_dir), self.identity.clone());
        let (backend, driver) = (self.ask.backend.name(), self.driver.clone());
        Some(move || {
            let now = exo_stdx::unix_s();
            // What could not be written there ends by the clock.
            if !is_kept {
                return now >= until;
            }
            let registry = Registry::try_look(&folder);
            registry.is_some_and(|known| known.quarantine(&identity, backend, &driver, now).is_none())
        })
    }

    fn give_up(&mut self, reason: &str) -> Loss {
        self.set_quarantine(Quarantine::new(reason, exo_stdx::unix_s()))
    }

    /// It was looked at once more and did not come back. That makes a quarantine that still runs no longer.
    pub(super) fn extend_quarantine(&mut self, reason: &str) -> Loss {
        let now = exo_stdx::unix_s();
        let mut quarantine = Quarantine::new(&format!("it does not come back: {reason}"), now);
        if let Some(before) = self.quarantine.as_ref().map(|kept| &kept.quarantine)
            && before.until_unix_s > now
        {
            quarantine.until_unix_s = quarantine.until_unix_s.min(before.until_unix_s);
        }
        self.set_quarantine(quarantine)
    }

    fn set_quarantine(&self, quarantine: Quarantine) -> Loss {
        let (folder, identity) = (PathBuf::from(&self.ask.data_dir), self.identity.clone());
        let (backend, driver) = (self.ask.backend.name(), self.driver.clone());
        let keep = move |quarantine: &Quarantine| {
            let kept = Registry::change(&folder, |registry| {
                registry.set_quarantine(&identity, backend, &driver, quarantine.clone());
            });
            if let Err(error) = &kept {
                let error = chain(error);
                tracing::warn!(%error, "the quarantine of a device is not kept across a start");
            }
            kept.is_ok()
        };
        Loss::GiveUp { quarantine, keep: Box::new(keep) }
    }

    /// Opens it in a child, whatever the registry says of it; if that works, the registry says nothing more
    /// against it.
    pub(super) fn check(&self) -> Check {
        let ask = DeviceAsk { heeds_quarantine: false, ..self.ask.clone() };
        let (program, identity) = (self.program.clone(), self.identity.clone());
        Box::new(move || {
            let info = crate::worker::ask(&program, &ask)?;
            // What else is told of a card may differ while it is pulled.
            let places = (&identity.pci_address, &info.identity.pci_address);
            if matches!(places, (Some(before), Some(now)) if before != now) {
                return Err(CheckError::Another { name: info.facts.name });
            }
            let released = Registry::change(Path::new(&ask.data_dir), |registry| {
                registry.release(&info.identity, ask.backend.name())
            });
            if let Err(error) = released {
                let error = chain(&error);
                tracing::warn!(%error, "the end of a device's quarantine is not kept across a start");
            }
            Ok(Box::new(info))
        })
    }

    pub(super) fn facts_now(&self) -> DeviceFacts {
        match &self.quarantine {
            Some(_) => DeviceFacts {
                support: SupportClass::Unsupported,
                support_reason: format!("{} ({}) is {}", self.facts.name, self.facts.id, self.reason_now()),
                ..self.facts.clone()
            },
            None => self.facts.clone(),
        }
    }

    pub(super) fn reason_now(&self) -> String {
        match &self.quarantine {
            Some(kept) => kept.quarantine.text(exo_stdx::unix_s()),
            None => self.reason.clone(),
        }
    }
}
