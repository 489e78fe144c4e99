//! Graphics cards that appear on the bus or vanish from it, by looking again.

use std::path::{Path, PathBuf};

use crate::GraphicsCard;
use crate::graphics::on_the_bus;

/// What changed between two looks.
#[derive(Clone, PartialEq, Eq, Debug)]
#[allow(missing_docs)] // a field without a comment is what its name says
pub enum CardChange {
    /// Plugged in.
    Appeared(GraphicsCard),
    /// A card was unplugged.
    Vanished(GraphicsCard),
    /// Another kernel module drives it, or none, or another version of it, or it began or ceased to work.
    DriverChanged { before: GraphicsCard, now: GraphicsCard },
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
        Self { root: root.to_owned(), cards: on_the_bus(root) }
    }

    /// Looks again: some dozens of small files of sysfs, or as many questions to the system.
    pub fn look(&mut self) -> Vec<CardChange> {
        let cards = on_the_bus(&self.root);
        let gone = self.cards.iter().filter(|card| find(&cards, card).is_none());
        let mut changes: Vec<_> = gone.cloned().map(CardChange::Vanished).collect();
        changes.extend(cards.iter().filter_map(|now| match find(&self.cards, now) {
            None => Some(CardChange::Appeared(now.clone())),
            Some(before) if driver(before) != driver(now) => {
                Some(CardChange::DriverChanged { before: before.clone(), now: now.clone() })
            }
            Some(_) => None,
        }));
        self.cards = cards;
        changes
    }
}

/// The same card in the same slot.
fn find<'a>(cards: &'a [GraphicsCard], card: &GraphicsCard) -> Option<&'a GraphicsCard> {
    let key = |card: &GraphicsCard| (card.pci_address.clone(), card.vendor, card.device);
    cards.iter().find(|other| key(other) == key(card))
}

fn driver(card: &GraphicsCard) -> (&Option<String>, &Option<String>, Option<u32>) {
    (&card.kernel_driver, &card.driver_version, card.problem_code)
}

#[cfg(all(test, target_os = "linux"))]
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
            CardChange::DriverChanged { before, now } => {
                format!("{} {:?} > {:?}", now.pci_address, before.kernel_driver, now.kernel_driver)
            }
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
        assert_eq!(looked(&mut watch), ["0000:05:00.0 None > Some(\"vfio-pci\")"]);
        fs::create_dir_all(root.path().join("sys/module/vfio-pci")).unwrap();
        fs::write(root.path().join("sys/module/vfio-pci/version"), "2\n").unwrap();
        assert_eq!(looked(&mut watch).len(), 1, "another version of the module");
        fs::remove_dir_all(root.path().join("sys/bus/pci/devices/0000:01:00.0")).unwrap();
        assert_eq!(looked(&mut watch), ["-0000:01:00.0 Some(\"amdgpu\")"]);
        assert!(looked(&mut watch).is_empty());
        fs::remove_dir_all(root.path().join("sys")).unwrap();
        assert_eq!(looked(&mut watch).len(), 1);
    }
}
