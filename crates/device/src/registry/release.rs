//! What keeps nodes off a device for a while, ended before its time.

use super::{Registry, Trial};

/// Something that bound nodes and does no more, with what it was about, to be displayed.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Released {
    /// The quarantine of a card with a backend.
    Quarantine(String),
    /// What a card did in place of giving a known answer.
    Trial(String),
    /// That a driver did not answer, by the name of its backend.
    Driver(String),
}

impl Registry {
    /// Ends every quarantine, forgets every failed trial and every driver that did not answer, and says which
    /// of them would still have counted.
    pub fn release_all(&mut self, now_unix_s: u64) -> Vec<Released> {
        let mut released = Vec::new();
        for device in self.devices.values_mut() {
            for (backend, known) in &mut device.backends {
                let card = || format!("{} ({backend})", device.identity.name);
                let quarantine =
                    known.quarantine.take().filter(|quarantine| quarantine.is_in_force(now_unix_s));
                released.extend(quarantine.map(|_| Released::Quarantine(card())));
                let failed = known.trial.take_if(|trial| trial.failed.is_some());
                let failed = failed.filter(|trial: &Trial| trial.is_recent(now_unix_s));
                released.extend(failed.map(|_| Released::Trial(card())));
            }
        }
        let drivers = std::mem::take(&mut self.drivers).into_iter();
        let binding = drivers.filter(|(_, driver)| driver.quarantine.is_in_force(now_unix_s));
        released.extend(binding.map(|(source, _)| Released::Driver(source)));
        released
    }
}
