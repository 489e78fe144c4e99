//! Names of cards from the list of PCI numbers that many systems keep (`pci.ids`, package `hwdata` or
//! `pci.ids`).

use std::fs::File;
use std::io::Read;
use std::path::Path;

use super::GraphicsCard;

/// Where distributions put it.
const LISTS: [&str; 3] = ["usr/share/hwdata/pci.ids", "usr/share/misc/pci.ids", "usr/share/pci.ids"];
/// It has a megabyte and a half.
const LIST_BYTES_MAX: u64 = 16 << 20;

/// Adds names and chips to cards for which the system has none, where there is a list below `root` (`/`, or a
/// fixture). It is read as a whole: for people who look, not for looking again and again.
pub fn name_cards(root: &Path, cards: &mut [GraphicsCard]) {
    if cards.iter().all(|card| card.name.is_some() && card.architecture.is_some()) {
        return;
    }
    let Some(list) = LISTS.iter().find_map(|path| read(&root.join(path))) else { return };
    for card in cards {
        let Some(entry) = entry(&list, card.vendor, card.device) else { continue };
        let (chip, name) = parts(entry);
        card.name = card.name.take().or_else(|| Some(format!("{} {name}", card.vendor_name()?)));
        card.architecture = card.architecture.take().or_else(|| chip.map(str::to_owned));
    }
}

fn read(path: &Path) -> Option<String> {
    let mut bytes = Vec::new();
    File::open(path).ok()?.take(LIST_BYTES_MAX).read_to_end(&mut bytes).ok()?;
    Some(String::from_utf8_lossy(&bytes).into_owned())
}

/// Makers stand at the left, their devices behind a tab, cards with that device behind two.
fn entry(list: &str, vendor: u32, device: u32) -> Option<&str> {
    let (vendor, device) = (format!("{vendor:04x} "), format!("\t{device:04x} "));
    let devices = list.lines().skip_while(|line| !line.starts_with(&vendor)).skip(1);
    let mut devices =
        devices.take_while(|line| line.starts_with('\t') || line.starts_with('#') || line.is_empty());
    Some(devices.find_map(|line| line.strip_prefix(&device))?.trim())
}

/// `AD102 [GeForce RTX 4090]` is a chip and a name, `HD Graphics 620` a name.
fn parts(entry: &str) -> (Option<&str>, &str) {
    let both = entry.strip_suffix(']').and_then(|entry| entry.rsplit_once('['));
    both.map_or((None, entry), |(chip, name)| {
        (Some(chip.trim()).filter(|chip| !chip.is_empty()), name.trim())
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIST: &str = "# a list\n8086  Intel Corporation\n\t5916  HD Graphics 620\n\t56a0  DG2 [Arc A770]\n\
                        10de  NVIDIA Corporation\n\t2684  AD102 [GeForce RTX 4090]\n\t\t10de 2683  a card with it\n\n\
                        # more\n\t26b5  AD102GL [L40]\nC 03  Display controller\n\t00  VGA compatible controller\n";

    fn named(vendor: u32, device: u32) -> (Option<String>, Option<String>) {
        let root = tempfile::tempdir().unwrap();
        let path = root.path().join(LISTS[1]);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, LIST).unwrap();
        let mut cards = [GraphicsCard { vendor, device, ..GraphicsCard::default() }];
        name_cards(root.path(), &mut cards);
        let [card] = cards;
        (card.name, card.architecture)
    }

    #[test]
    fn a_list_of_the_system_names_cards_and_their_chips() {
        let told = |name: &str, chip: &str| (Some(name.to_owned()), Some(chip.to_owned()));
        assert_eq!(named(0x10de, 0x2684), told("NVIDIA GeForce RTX 4090", "AD102"));
        assert_eq!(named(0x10de, 0x26b5), told("NVIDIA L40", "AD102GL"));
        assert_eq!(named(0x8086, 0x56a0), told("Intel Arc A770", "DG2"));
        assert_eq!(named(0x8086, 0x5916), (Some("Intel HD Graphics 620".to_owned()), None));
        assert_eq!(named(0x8086, 0x2684), (None, None), "a number of another vendor's");
        assert_eq!(named(0x1002, 0x2684), (None, None));
    }

    #[test]
    fn what_the_system_tells_stays_and_a_system_without_a_list_adds_nothing() {
        let root = tempfile::tempdir().unwrap();
        let known = GraphicsCard {
            name: Some("RTX".to_owned()),
            vendor: 0x10de,
            device: 0x2684,
            ..GraphicsCard::default()
        };
        let mut cards = [known.clone()];
        name_cards(root.path(), &mut cards);
        assert_eq!(&cards[0], &known);
        std::fs::create_dir_all(root.path().join("usr/share/hwdata")).unwrap();
        std::fs::write(root.path().join(LISTS[0]), LIST).unwrap();
        name_cards(root.path(), &mut cards);
        assert_eq!(cards, [GraphicsCard { architecture: Some("AD102".to_owned()), ..known }]);
    }
}
