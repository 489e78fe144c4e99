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

/// One processor as one interface shows it. The same card may appear once per interface; its PCI address
/// tells.
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
    /// `0000:01:00.0`, or what the system has instead; `None` where the interface does not tell, or tells the
    /// same of several.
    pub pci_address: Option<String>,
    /// A software adapter, such as lavapipe.
    pub is_software: bool,
    /// Shares the machine's memory.
    pub is_integrated: bool,
    /// Driver and its version.
    pub driver: String,
    /// Bytes of the adapter's own memory, or of the memory it shares; `None` where the interface does not
    /// tell.
    pub memory_bytes: Option<u64>,
    pub(crate) inner: wgpu::Adapter,
}

/// The interface could not be asked.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{api} could not be asked for its adapters: {reason}")]
#[allow(missing_docs)] // the messages say what the fields are
pub struct ListError {
    pub api: Api,
    pub reason: String,
}

/// The adapters of one interface, in the driver's order; none where it has no driver.
///
/// This loads the system's drivers into the process. Where one of them may be broken, call it in a child
/// first.
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
    forget_shared_addresses(api, &mut adapters, |adapter| &mut adapter.pci_address);
    Ok(adapters)
}

/// Direct3D's address is that of the first card with the same numbers: of several equal cards it says which
/// none of them is. Under Vulkan a shared one is that of a card with two drivers.
fn forget_shared_addresses<T>(api: Api, all: &mut [T], address: impl Fn(&mut T) -> &mut Option<String>) {
    if api != Api::Dx12 {
        return;
    }
    let told: Vec<_> = all.iter_mut().map(|one| address(one).clone()).collect();
    for one in all {
        let own = address(one);
        if told.iter().filter(|other| *other == own).count() > 1 {
            *own = None;
        }
    }
}

impl Adapter {
    /// The chip or its generation, where the name tells: Mesa's drivers put it in brackets, Apple's names are
    /// of it.
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
    fn an_address_that_equal_cards_share_is_none_of_theirs_but_one_card_may_have_two_drivers() {
        let told = |api: Api, addresses: &[&str]| {
            let mut all: Vec<_> = addresses.iter().map(|address| Some((*address).to_owned())).collect();
            forget_shared_addresses(api, &mut all, |address| address);
            all.into_iter().map(Option::unwrap_or_default).collect::<Vec<_>>().join(" ")
        };
        assert_eq!(told(Api::Dx12, &["01", "02"]), "01 02");
        assert_eq!(told(Api::Dx12, &["01", "01", "03"]), "  03");
        assert_eq!(told(Api::Vulkan, &["01", "01"]), "01 01");
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
