//! The adapters that the graphics interfaces of this machine show.

use std::fmt;

/// A graphics interface.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Api {
    /// Linux, Windows, Android.
    Vulkan,
    /// macOS, iOS.
    Metal,
    /// Direct3D 12: Windows.
    Dx12,
}

impl Api {
    /// Every interface, the preferred ones first.
    pub const ALL: [Self; 3] = [Self::Vulkan, Self::Metal, Self::Dx12];

    /// Lower-case name, as in settings and in [`exo_types::DeviceFacts::backend`].
    pub const fn name(self) -> &'static str {
        match self {
            Self::Vulkan => "vulkan",
            Self::Metal => "metal",
            Self::Dx12 => "dx12",
        }
    }

    const fn backends(self) -> wgpu::Backends {
        match self {
            Self::Vulkan => wgpu::Backends::VULKAN,
            Self::Metal => wgpu::Backends::METAL,
            Self::Dx12 => wgpu::Backends::DX12,
        }
    }
}

impl fmt::Display for Api {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// One processor as one interface shows it. The same card may appear once per interface; its PCI address tells.
#[derive(Clone, Debug)]
pub struct Adapter {
    /// The interface.
    pub api: Api,
    /// Its place in the interface's list, from 0.
    pub index: usize,
    /// As the driver names it.
    pub name: String,
    /// PCI vendor.
    pub vendor: u32,
    /// PCI device.
    pub device: u32,
    /// `0000:01:00.0`, or what the system has instead; `None` where the interface does not tell, or tells the same of several.
    pub pci_address: Option<String>,
    /// How many adapters of the same name and numbers, of which the interface tells no address either, stand before it.
    pub twin: usize,
    /// A program that plays a graphics card, such as lavapipe.
    pub is_software: bool,
    /// Shares the machine's memory.
    pub is_integrated: bool,
    /// Driver and its version.
    pub driver: String,
    /// Bytes of the adapter's own memory, or of the memory it shares; `None` where the interface does not tell.
    pub memory_bytes: Option<u64>,
    pub(crate) inner: wgpu::Adapter,
}

/// The interface could not be asked.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{api} could not be asked for its adapters: {reason}")]
pub struct ListError {
    /// The interface.
    pub api: Api,
    /// What happened.
    pub reason: String,
}

/// The adapters of one interface, in the driver's order; none where it has no driver.
///
/// This loads the system's drivers into the process. Where one of them may be broken, call it in a child first.
pub fn list(api: Api) -> Result<Vec<Adapter>, ListError> {
    let ask = || {
        let mut descriptor = wgpu::InstanceDescriptor::new_without_display_handle();
        descriptor.backends = api.backends();
        descriptor.flags = wgpu::InstanceFlags::empty();
        let instance = wgpu::Instance::new(descriptor);
        pollster::block_on(instance.enumerate_adapters(api.backends()))
    };
    // A driver's nonsense may trip an assertion inside wgpu.
    let adapters = std::panic::catch_unwind(ask)
        .map_err(|_| ListError { api, reason: "its driver answered with nonsense".to_owned() })?;
    let mut adapters: Vec<_> =
        adapters.into_iter().enumerate().map(|(index, adapter)| describe(api, index, adapter)).collect();
    let told: Vec<_> = adapters.iter().map(Told::of).collect();
    for (adapter, (pci_address, twin)) in adapters.iter_mut().zip(tell_apart(api, &told)) {
        (adapter.pci_address, adapter.twin) = (pci_address, twin);
    }
    Ok(adapters)
}

/// What an interface tells of an adapter that may be like another.
struct Told {
    name: String,
    numbers: (u32, u32),
    pci_address: Option<String>,
}

impl Told {
    fn of(adapter: &Adapter) -> Self {
        let numbers = (adapter.vendor, adapter.device);
        Self { name: adapter.name.clone(), numbers, pci_address: adapter.pci_address.clone() }
    }
}

/// The address of each, and its number among those that only their order tells apart. Direct3D's address is that of the first card
/// with the same numbers: of several equal cards it says which none of them is. Under Vulkan a shared one is that of a
/// card with two drivers.
fn tell_apart(api: Api, told: &[Told]) -> Vec<(Option<String>, usize)> {
    let mut apart: Vec<(Option<String>, usize)> = Vec::with_capacity(told.len());
    for own in told {
        let of_address = told.iter().filter(|other| other.pci_address == own.pci_address).count();
        let address = own.pci_address.clone().filter(|_| api != Api::Dx12 || of_address == 1);
        let is_twin = |(other, (its, _)): &(&Told, &(Option<String>, usize))| {
            its.is_none() && (&other.name, other.numbers) == (&own.name, own.numbers)
        };
        let before = told.iter().zip(&apart).filter(is_twin).count();
        let twin = if address.is_none() { before } else { 0 };
        apart.push((address, twin));
    }
    apart
}

impl Adapter {
    /// The chip or its generation, where the name tells: Mesa's drivers put it in brackets, Apple's names are of it.
    pub fn architecture(&self) -> Option<&str> {
        if self.is_software { None } else { architecture(&self.name) }
    }
}

fn architecture(name: &str) -> Option<&str> {
    if let Some(chip) = name.strip_prefix("Apple ") {
        return Some(chip).filter(|chip| !chip.is_empty());
    }
    let (_, chip) = name.strip_suffix(')')?.rsplit_once('(')?;
    let chip = chip.strip_prefix("RADV ").unwrap_or(chip);
    // "(R)" and "(TM)" are no chips.
    Some(chip).filter(|chip| chip.len() > 2)
}

fn describe(api: Api, index: usize, inner: wgpu::Adapter) -> Adapter {
    let info = inner.get_info();
    let driver = format!("{} {}", info.driver, info.driver_info).trim().to_owned();
    Adapter {
        api,
        index,
        name: info.name,
        vendor: info.vendor,
        device: info.device,
        pci_address: Some(info.device_pci_bus_id)
            .filter(|address| !address.is_empty())
            .or_else(|| crate::place::address(&inner)),
        twin: 0,
        is_software: info.device_type == wgpu::DeviceType::Cpu,
        is_integrated: info.device_type == wgpu::DeviceType::IntegratedGpu,
        driver,
        memory_bytes: crate::heap::heap_bytes(&inner),
        inner,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn equal_cards_with_one_address_are_told_apart_by_their_order() {
        let told = |line: &str| {
            let (name, address) = line.split_once('@').unwrap();
            let pci_address = (!address.is_empty()).then(|| format!("0000:{address}:00.0"));
            Told { name: name.to_owned(), numbers: (0x10de, 0x2684), pci_address }
        };
        let apart = |api: Api, lines: &[&str]| {
            let told: Vec<Told> = lines.iter().map(|line| told(line)).collect();
            let text =
                |(address, twin): (Option<String>, usize)| format!("{}/{twin}", address.unwrap_or_default());
            tell_apart(api, &told).into_iter().map(text).collect::<Vec<_>>().join(" ")
        };
        assert_eq!(apart(Api::Dx12, &["RTX@01", "RTX@02"]), "0000:01:00.0/0 0000:02:00.0/0");
        assert_eq!(apart(Api::Dx12, &["RTX@01", "RTX@01", "Arc@03"]), "/0 /1 0000:03:00.0/0");
        assert_eq!(
            apart(Api::Vulkan, &["RADV@01", "AMD@01"]),
            "0000:01:00.0/0 0000:01:00.0/0",
            "two drivers of one card"
        );
        assert_eq!(
            apart(Api::Metal, &["RTX@", "Arc@", "RTX@", "RTX@"]),
            "/0 /0 /1 /2",
            "an interface that tells none"
        );
    }

    #[test]
    fn the_chip_is_read_from_names_that_tell_it() {
        for (name, chip) in [
            ("AMD Radeon RX 6800 (RADV NAVI21)", Some("NAVI21")),
            ("Intel(R) Arc(tm) A770 Graphics (DG2)", Some("DG2")),
            ("Intel(R) UHD Graphics 630 (CFL GT2)", Some("CFL GT2")),
            ("Apple M2 Pro", Some("M2 Pro")),
            ("NVIDIA GeForce RTX 4090", None),
            ("Card(R)", None),
            ("Apple ", None),
            (")(", None),
        ] {
            assert_eq!(architecture(name), chip, "{name}");
        }
    }
}
