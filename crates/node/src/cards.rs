//! Looks now and then whether graphics cards appeared or vanished, and at what else the system shows:
//! sensors, memory, disk, battery.

use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use exo_cluster::wire::{self, CardEvent};
use exo_device::{CardChange, CardWatch, GraphicsCard, ProcessorMeter};
use exo_stdx::unix_s;
use exo_types::Monitor;
use tokio::sync::watch;

use crate::ballast;
use crate::compute::{Sensed, SystemState};
use crate::events::{DeviceEvent, Event, EventSender};
use crate::host::Host;

/// A person who plugs a card in waits about as long.
const LOOK_EVERY: Duration = Duration::from_secs(5);
/// In one of so many looks, multicast is sent: every half minute.
const LOOKS_PER_PROBE: u32 = 6;

/// Tells the loop of every change below `root`, and of the sensors of the processor and of the cards at the
/// addresses, until the node has ended. For a node that looks for others and listens on `found_at`, whether
/// its multicast comes back is told, too.
pub fn watch(
    root: PathBuf,
    data_dir: PathBuf,
    cards: Vec<String>,
    host: Arc<dyn Host>,
    found_at: Option<IpAddr>,
    events: EventSender,
    ended: watch::Receiver<bool>,
) {
    tokio::spawn(async move {
        let looking = move || SystemWatcher {
            watch: CardWatch::new(&root),
            root,
            data_dir,
            cards,
            host,
            meter: ProcessorMeter::default(),
            multicast: found_at.map(MulticastProbe::new),
        };
        let Ok(watcher) = tokio::task::spawn_blocking(looking).await else { return };
        let tell = move |event| events.post(Event::Device(event));
        watch_every(LOOK_EVERY, watcher, tell, ended).await;
    });
}

struct SystemWatcher {
    root: PathBuf,
    data_dir: PathBuf,
    cards: Vec<String>,
    host: Arc<dyn Host>,
    watch: CardWatch,
    meter: ProcessorMeter,
    multicast: Option<MulticastProbe>,
}

/// Whether multicast of a node that listens on an address comes back to it, asked now and then.
struct MulticastProbe {
    listen: IpAddr,
    looks: u32,
    is_heard: Option<bool>,
}

impl MulticastProbe {
    fn new(listen: IpAddr) -> Self {
        Self { listen, looks: 0, is_heard: None }
    }

    fn look(&mut self) -> Option<bool> {
        if self.looks.is_multiple_of(LOOKS_PER_PROBE) {
            self.is_heard = exo_discovery::is_multicast_heard(self.listen);
        }
        self.looks = self.looks.wrapping_add(1);
        self.is_heard
    }
}

impl SystemWatcher {
    fn look(&mut self) -> Vec<DeviceEvent> {
        let sense = |address: &String| (address.clone(), exo_device::sensors(&self.root, address));
        let (utilisation, throttled) = self.meter.read(&self.root);
        let processor = exo_device::processor_sensors(Path::new(&self.root));
        let sensed = Sensed {
            processor: Monitor { utilisation, throttled, ..processor },
            memory: exo_device::memory(&self.root),
            disk_free_bytes: ballast::free_bytes(&self.data_dir),
            descriptors: exo_device::descriptors(&self.root),
            battery_percent: exo_device::battery_percent(&self.root),
            multicast_heard: self.multicast.as_mut().and_then(MulticastProbe::look),
            system: Some(SystemState::of(self.host.as_ref())),
            cards: self.cards.iter().map(sense).collect(),
        };
        let changes = self.watch.look().into_iter().map(DeviceEvent::Changed);
        changes.chain([DeviceEvent::Sensed(sensed)]).collect()
    }
}

/// Compares with what was seen last, at once and then again and again.
async fn watch_every(
    every: Duration,
    mut watcher: SystemWatcher,
    tell: impl Fn(DeviceEvent),
    mut ended: watch::Receiver<bool>,
) {
    loop {
        // Files of drivers may take their time.
        let looked = tokio::task::spawn_blocking(move || {
            let events = watcher.look();
            (watcher, events)
        });
        let Ok((back, events)) = looked.await else { return };
        watcher = back;
        events.into_iter().for_each(&tell);
        // An error means that the node is gone.
        if tokio::time::timeout(every, ended.wait_for(|ended| *ended)).await.is_ok() {
            return;
        }
    }
}

/// A change as others hear of it; `is_own` if the node computes on the card.
pub fn event(change: &CardChange, is_own: bool) -> CardEvent {
    let (change, card) = match change {
        CardChange::Appeared(card) => (wire::CardChange::Appeared, card),
        CardChange::Vanished(card) => (wire::CardChange::Vanished, card),
        CardChange::DriverChanged { now, .. } => (wire::CardChange::DriverChanged, now),
    };
    tracing::info!(target: "events::device", device = card.pci_address, what = %change);
    CardEvent { at_unix_s: unix_s(), change, is_own, card: describe(card) }
}

fn describe(card: &GraphicsCard) -> String {
    let driver = exo_device::driver_text(card, std::env::consts::OS);
    let vendor = card.vendor_name().unwrap_or("unknown");
    format!("{vendor} {:04x}:{:04x} at {} ({driver})", card.vendor, card.device, card.pci_address)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    #[cfg(target_os = "linux")] // whose list may be a fixture
    async fn a_card_that_is_plugged_in_and_pulled_is_told_of() {
        let root = tempfile::tempdir().unwrap();
        let (told, mut heard) = tokio::sync::mpsc::unbounded_channel();
        let (end, ended) = watch::channel(false);
        let watcher = SystemWatcher {
            root: root.path().to_owned(),
            data_dir: root.path().to_owned(),
            meter: ProcessorMeter::default(),
            host: Arc::new(crate::SystemHost),
            cards: vec!["0000:05:00.0".to_owned()],
            watch: CardWatch::new(root.path()),
            multicast: None,
        };
        let tell = move |event| drop(told.send(event));
        let task = tokio::spawn(watch_every(Duration::from_millis(20), watcher, tell, ended));
        // Complete before it is seen: a folder is renamed to where cards are.
        let (new, bus) = (root.path().join("new/0000:05:00.0"), root.path().join("sys/bus/pci"));
        std::fs::create_dir_all(&new).unwrap();
        std::fs::create_dir_all(&bus).unwrap();
        for (file, text) in [("class", "0x030000"), ("vendor", "0x10de"), ("device", "0x2684")] {
            std::fs::write(new.join(file), text).unwrap();
        }
        std::fs::rename(root.path().join("new"), bus.join("devices")).unwrap();
        let mut next = async || loop {
            match tokio::time::timeout(Duration::from_secs(10), heard.recv()).await.unwrap().unwrap() {
                DeviceEvent::Changed(change) => return event(&change, false).to_string(),
                DeviceEvent::Sensed(sensed) => assert!(sensed.cards["0000:05:00.0"].is_empty()),
                _ => panic!("neither a change nor sensors"),
            }
        };
        let told = next().await;
        assert!(told.contains("appeared: NVIDIA 10de:2684 at 0000:05:00.0 (no kernel module)"), "{told}");
        std::fs::rename(bus.join("devices"), root.path().join("gone")).unwrap();
        let told = next().await;
        assert!(told.contains("vanished: NVIDIA 10de:2684"), "{told}");
        drop(end);
        tokio::time::timeout(Duration::from_secs(10), task).await.unwrap().unwrap();
    }
}
