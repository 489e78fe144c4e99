//! Looks now and then whether graphics cards appeared or vanished.

use std::path::PathBuf;
use std::time::Duration;

use exo_device::{CardChange, CardWatch, GraphicsCard};
use tokio::sync::{broadcast, watch};

use crate::Notice;

/// A person who plugs a card in waits about as long.
const LOOK_EVERY: Duration = Duration::from_secs(5);

/// Tells of every change below `root` until the node has ended. What the node computes on stays what it was: a new
/// card is used after the next start, and one that is gone fails its next step.
pub fn watch(root: PathBuf, notices: broadcast::Sender<Notice>, ended: watch::Receiver<bool>) {
    tokio::spawn(async move {
        let looking = move || CardWatch::new(&root);
        let Ok(watch) = tokio::task::spawn_blocking(looking).await else { return };
        watch_every(LOOK_EVERY, watch, notices, ended).await;
    });
}

/// Compares with what `watch` saw last.
async fn watch_every(
    every: Duration,
    mut watch: CardWatch,
    notices: broadcast::Sender<Notice>,
    mut ended: watch::Receiver<bool>,
) {
    loop {
        // An error means that the node is gone.
        if tokio::time::timeout(every, ended.wait_for(|ended| *ended)).await.is_ok() {
            return;
        }
        // Files of drivers may take their time.
        let looked = tokio::task::spawn_blocking(move || {
            let changes = watch.look();
            (watch, changes)
        });
        let Ok((back, changes)) = looked.await else { return };
        watch = back;
        changes.into_iter().for_each(|change| tell(&change, &notices));
    }
}

fn tell(change: &CardChange, notices: &broadcast::Sender<Notice>) {
    let text = match change {
        CardChange::Appeared(card) => {
            tracing::info!(target: "events::device", device = card.pci_address, "appeared");
            format!("a graphics card appeared: {}; `exo devices` shows what it can do", describe(card))
        }
        CardChange::Vanished(card) => {
            tracing::warn!(target: "events::device", device = card.pci_address, "vanished");
            format!("a graphics card vanished: {}", describe(card))
        }
    };
    let _ = notices.send(Notice::Card(text));
}

fn describe(card: &GraphicsCard) -> String {
    let driver = card
        .kernel_driver
        .as_deref()
        .map_or_else(|| "no kernel module".to_owned(), |d| format!("kernel module {d}"));
    let maker = card.maker().unwrap_or("unknown");
    format!("{maker} {:04x}:{:04x} at {} ({driver})", card.vendor, card.device, card.pci_address)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_card_that_is_plugged_in_and_pulled_is_told_of() {
        let root = tempfile::tempdir().unwrap();
        let (notices, mut heard) = broadcast::channel(8);
        let (end, ended) = watch::channel(false);
        let watch = CardWatch::new(root.path());
        let task = tokio::spawn(watch_every(Duration::from_millis(20), watch, notices, ended));
        // Complete before it is seen: a folder is renamed to where cards are.
        let (new, bus) = (root.path().join("new/0000:05:00.0"), root.path().join("sys/bus/pci"));
        std::fs::create_dir_all(&new).unwrap();
        std::fs::create_dir_all(&bus).unwrap();
        for (file, text) in [("class", "0x030000"), ("vendor", "0x10de"), ("device", "0x2684")] {
            std::fs::write(new.join(file), text).unwrap();
        }
        std::fs::rename(root.path().join("new"), bus.join("devices")).unwrap();
        let mut next = async || {
            tokio::time::timeout(Duration::from_secs(10), heard.recv()).await.unwrap().unwrap().to_string()
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
