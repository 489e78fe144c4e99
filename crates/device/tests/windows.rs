//! The list of graphics cards as Windows gives it: what is there, and, under Wine, cards that are played.
//!
//! `cargo xtask wine` sets `EXO_PLAY_CARDS`: a program that enters devices into Wine's registry and takes
//! them out.
#![cfg(windows)]

use std::path::Path;
use std::process::Command;

use exo_device::{CardChange, CardWatch, GraphicsCard, advice, driver_text, graphics_cards};

/// Nothing of it is used on Windows.
const ROOT: &str = "/";

const GEFORCE: [&str; 3] = [
    r"PCI\VEN_10DE&DEV_2684&SUBSYS_16F110DE&REV_A1",
    r"PCI\VEN_10DE&DEV_2684&CC_030000",
    r"PCI\VEN_10DE&DEV_2684&CC_0300",
];
/// Of no class until it has a driver.
const COMPUTING: [&str; 2] =
    [r"PCI\VEN_10DE&DEV_20B5&SUBSYS_153310DE&REV_A1", r"PCI\VEN_10DE&DEV_20B5&CC_030200"];
const NETWORK: [&str; 2] = [r"PCI\VEN_8086&DEV_15F3&REV_03", r"PCI\VEN_8086&DEV_15F3&CC_020000"];

struct Played {
    program: String,
}

impl Played {
    #[allow(clippy::unwrap_used)] // a helper of tests fails by panicking
    fn run(&self, words: &[&str]) {
        let status = Command::new(&self.program).args(words).status().unwrap();
        assert!(status.success(), "{words:?}: {status}");
    }

    /// `of` is bus, address, problem, service and version.
    fn plug(&self, ids: &[&str], of: [&str; 5]) {
        let instance = format!(r"{}\EXO", ids[0]);
        self.run(&[&["plug", &instance], &of[..], ids].concat());
    }

    fn pull(&self, ids: &[&str]) {
        self.run(&["pull", &format!(r"{}\EXO", ids[0])]);
    }
}

fn texts(cards: &[GraphicsCard]) -> Vec<String> {
    let text = |card: &GraphicsCard| format!("{} {}", card.pci_address, driver_text(card, "windows"));
    cards.iter().map(text).collect()
}

#[test]
fn cards_that_are_there_or_played_are_listed_change_and_vanish() {
    let there = graphics_cards(Path::new(ROOT));
    for card in &there {
        let free = exo_device::memory_free_bytes(Path::new(ROOT), &card.pci_address);
        println!("{card:#?} free: {free:?}");
        assert!(card.pci_address.len() == 12 && card.vendor_name().is_some(), "{card:?}");
    }
    match std::env::var("EXO_PLAY_CARDS") {
        Ok(program) => play(&Played { program }, &there),
        Err(_) => println!("passed over: EXO_PLAY_CARDS names no program that plays cards"),
    }
}

fn play(played: &Played, there: &[GraphicsCard]) {
    assert_eq!(there, [], "cards before any was played");
    let mut watch = CardWatch::new(Path::new(ROOT));
    played.plug(&NETWORK, ["2", "0", "0", "e2fnexpress", "2.1.4.2"]);
    played.plug(&COMPUTING, ["0x1c1", "0x1f0003", "28", "-", "-"]);
    played.plug(&GEFORCE, ["1", "0", "0", "nvlddmkm", "32.0.15.6094"]);
    let cards = graphics_cards(Path::new(ROOT));
    let bare = "0001:c1:1f.3 Device Manager reports code 28: no driver is installed";
    assert_eq!(texts(&cards), ["0000:01:00.0 driver nvlddmkm 32.0.15.6094", bare]);
    assert_eq!((cards[0].vendor, cards[0].device, cards[1].device), (0x10de, 0x2684, 0x20b5));
    assert!(advice(&cards[1], std::env::consts::OS).starts_with("install NVIDIA's driver"), "{cards:?}");
    assert_eq!(cards[0].memory_bytes, None, "Direct3D knows nothing of it");
    assert!(exo_device::sensors(Path::new(ROOT), "0000:01:00.0").is_empty());

    let appeared = watch.look();
    assert!(matches!(&appeared[..], [CardChange::Appeared(a), CardChange::Appeared(b)]
        if [a, b] == [&cards[0], &cards[1]]));
    assert_eq!(watch.look(), []);
    played.plug(&GEFORCE, ["1", "0", "43", "nvlddmkm", "32.0.15.6094"]);
    assert!(
        matches!(&watch.look()[..], [CardChange::DriverChanged { now, .. }] if now.problem_code == Some(43))
    );
    played.pull(&GEFORCE);
    assert!(matches!(&watch.look()[..], [CardChange::Vanished(card)] if card.device == 0x2684));
    played.pull(&COMPUTING);
    played.pull(&NETWORK);
    assert_eq!(graphics_cards(Path::new(ROOT)), []);
}
