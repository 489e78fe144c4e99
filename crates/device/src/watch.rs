//! Graphics cards that appear on the bus or vanish from it, by looking again.

use std::path::{Path, PathBuf};

use crate::{GraphicsCard, graphics_cards};

/// What changed between two looks.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum CardChange {
    /// Plugged in, or its kernel module was loaded.
    Appeared(GraphicsCard),
    /// Unplugged, or its kernel module went away.
    Vanished(GraphicsCard),
}

/// The cards as they were at the last look.
#[derive(Debug)]
pub struct CardWatch {
    root: PathBuf,
    cards: Vec<GraphicsCard>,
}

impl CardWatch {
    /// Looks for the first time. `root` is `/`, or a fixture.
    pub fn new(root: &Path) -> Self {
        Self { root: root.to_owned(), cards: graphics_cards(root) }
    }

    /// Looks again: some dozens of small files of sysfs. A card that another driver took vanished and appeared.
    pub fn look(&mut self) -> Vec<CardChange> {
        let now = graphics_cards(&self.root);
        let vanished = self.cards.iter().filter(|card| !has(&now, card)).cloned().map(CardChange::Vanished);
        let appeared = now.iter().filter(|card| !has(&self.cards, card)).cloned().map(CardChange::Appeared);
        let changes = vanished.chain(appeared).collect();
        self.cards = now;
        changes
    }
}

/// By what does not change while a card works.
fn has(cards: &[GraphicsCard], card: &GraphicsCard) -> bool {
    let key = |card: &GraphicsCard| {
        (card.pci_address.clone(), card.vendor, card.device, card.kernel_driver.clone())
    };
    cards.iter().any(|other| key(other) == key(card))
}

#[cfg(all(test, unix))]
mod tests {
    use std::fs;

    use super::*;

    #[allow(clippy::unwrap_used)] // a helper of tests fails by panicking
    fn plug(root: &Path, address: &str, driver: Option<&str>) {
        let folder = root.join("sys/bus/pci/devices").join(address);
        fs::create_dir_all(&folder).unwrap();
        for (file, text) in [("class", "0x030000"), ("vendor", "0x1002"), ("device", "0x744c")] {
            fs::write(folder.join(file), text).unwrap();
        }
        let _ = fs::remove_file(folder.join("driver"));
        if let Some(driver) = driver {
            std::os::unix::fs::symlink(Path::new("../../drivers").join(driver), folder.join("driver"))
                .unwrap();
        }
    }

    fn looked(watch: &mut CardWatch) -> Vec<String> {
        let line = |change| match change {
            CardChange::Appeared(card) => format!("+{} {:?}", card.pci_address, card.kernel_driver),
            CardChange::Vanished(card) => format!("-{} {:?}", card.pci_address, card.kernel_driver),
        };
        watch.look().into_iter().map(line).collect()
    }

    #[test]
    fn plugging_unplugging_and_another_driver_are_changes_and_nothing_else_is() {
        let root = tempfile::tempdir().unwrap();
        plug(root.path(), "0000:01:00.0", Some("amdgpu"));
        let mut watch = CardWatch::new(root.path());
        assert!(looked(&mut watch).is_empty());
        plug(root.path(), "0000:05:00.0", None);
        assert_eq!(looked(&mut watch), ["+0000:05:00.0 None"]);
        plug(root.path(), "0000:05:00.0", Some("vfio-pci"));
        assert_eq!(looked(&mut watch), ["-0000:05:00.0 None", "+0000:05:00.0 Some(\"vfio-pci\")"]);
        fs::remove_dir_all(root.path().join("sys/bus/pci/devices/0000:01:00.0")).unwrap();
        assert_eq!(looked(&mut watch), ["-0000:01:00.0 Some(\"amdgpu\")"]);
        assert!(looked(&mut watch).is_empty());
        fs::remove_dir_all(root.path().join("sys")).unwrap();
        assert_eq!(looked(&mut watch).len(), 1);
    }
}
