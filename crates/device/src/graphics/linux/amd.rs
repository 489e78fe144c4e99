//! What amdgpu writes of its cards, read as text.

use crate::architecture::amd_architecture;

/// Something that computes, as KFD lists it: a card, or one part of a card that is divided.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Node {
    pub pci_address: String,
    pub compute_units: Option<u32>,
    target: Option<Target>,
}

/// What compilers make code for: `gfx90a`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Target {
    major: u32,
    minor: u32,
    stepping: u32,
}

impl Node {
    pub fn architecture(&self) -> Option<String> {
        let Target { major, minor, stepping } = self.target?;
        let name = format!("gfx{major}{minor:x}{stepping:x}");
        Some(match amd_architecture(major, minor, Some(stepping)) {
            Some(family) => format!("{family} ({name})"),
            None => name,
        })
    }
}

/// Reads `properties` of a node: a name and a number in each line. `None` for a processor, and for what does
/// not say in which slot it is (before Linux 5.5).
pub fn node(properties: &str) -> Option<Node> {
    let number = |name: &str| -> Option<u64> {
        let mut lines = properties.lines().filter_map(|line| line.split_once(' '));
        lines.find(|(given, _)| *given == name)?.1.trim().parse().ok()
    };
    let simds = number("simd_count").filter(|simds| *simds > 0)?;
    let (domain, location) = (number("domain")?, number("location_id")?);
    // Above these sixteen bits is the number of the part of a divided card.
    let (bus, slot, function) = ((location >> 8) & 0xff, (location >> 3) & 0x1f, location & 7);
    let target = number("gfx_target_version").filter(|version| *version > 0).map(|version| Target {
        major: (version / 10_000) as u32,
        minor: (version / 100 % 100) as u32,
        stepping: (version % 100) as u32,
    });
    let units = number("simd_per_cu").filter(|each| *each > 0 && simds % each == 0).map(|each| simds / each);
    Some(Node {
        pci_address: format!("{domain:04x}:{bus:02x}:{slot:02x}.{function}"),
        compute_units: units.and_then(|units| units.try_into().ok()),
        target,
    })
}

/// The version of the graphics core in the list of a card's parts. It is that of the target, but for some
/// cards for computing.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Core {
    pub major: u32,
    pub minor: u32,
    pub revision: u32,
}

/// Its vendor's name for the generation.
pub fn family(core: Core) -> Option<&'static str> {
    match core {
        // Vega 20.
        Core { major: 9, minor: 4, revision: 0 } => Some("GCN 5"),
        Core { major: 9, minor: 4, revision: 1 } => Some("CDNA"),
        Core { major: 9, minor: 4, revision: 2 } => Some("CDNA 2"),
        Core { major: 9, minor: 0..=3, .. } => Some("GCN 5"),
        Core { major, minor, .. } => amd_architecture(major, minor, None),
    }
}
