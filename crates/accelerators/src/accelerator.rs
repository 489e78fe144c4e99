//! One accelerator: what its backend tells of it before it is opened, and opening it.

use std::path::PathBuf;
use std::sync::Arc;

use exo_backend::Device;
use exo_backend_cuda::{Card, CudaDevice, CudaOptions};
use exo_backend_wgpu::{Adapter, Api, WgpuDevice, WgpuOptions};
use exo_device::{GraphicsCard, Identity};
use exo_types::{DeviceFacts, DeviceId, DeviceKind, SupportClass};

use crate::Backend;

/// A graphics processor or card as one backend shows it. The same card may appear once for each backend; its
/// PCI address tells.
#[derive(Clone, Debug)]
pub struct Accelerator {
    /// What shows it.
    pub backend: Backend,
    /// Its number in the backend's list, from 0.
    pub index: usize,
    /// Who it is, with what the bus knows of it.
    pub identity: Identity,
    /// Driver, with its version.
    pub driver: String,
    /// A software adapter: it computes on the processor, with more work.
    pub is_software: bool,
    /// Shares the machine's memory.
    pub is_integrated: bool,
    /// Bytes of its own memory, or of that which it shares; `None` where its backend does not tell.
    pub memory_bytes: Option<u64>,
    /// Multiprocessors, where its backend tells.
    pub compute_units: Option<u32>,
    /// Its generation or chip, as its backend tells.
    pub architecture: Option<String>,
    /// Why it cannot be used, if that is known without opening it.
    pub trouble: Option<String>,
    handle: Handle,
}

#[derive(Clone, Debug)]
enum Handle {
    Adapter(Adapter),
    Card(Card),
}

/// A backend could not be asked for its accelerators.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
#[allow(missing_docs)] // the messages say what the fields are
pub enum ListError {
    #[error(transparent)]
    Graphics(#[from] exo_backend_wgpu::ListError),
    #[error(transparent)]
    Vendor(#[from] exo_backend_cuda::ListError),
}

impl ListError {
    /// There is no driver, or no card for it: nothing is broken.
    pub const fn is_absent(&self) -> bool {
        use exo_backend_cuda::ListError::{NoCard, NoDriver};
        matches!(self, Self::Vendor(NoDriver { .. } | NoCard { .. }))
    }

    /// Stable, for whoever chooses by it.
    pub const fn code(&self) -> &'static str {
        match self {
            Self::Vendor(exo_backend_cuda::ListError::NoDriver { .. }) => "driver_missing",
            Self::Vendor(exo_backend_cuda::ListError::NoCard { .. }) => "accelerator_not_there",
            Self::Vendor(_) | Self::Graphics(_) => "driver_broken",
        }
    }
}

/// The accelerator that was asked for is not there.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{backend} shows no graphics processor {}", there(.which, .found))]
#[allow(missing_docs)] // the messages say what the fields are
pub struct NotThere {
    pub backend: Backend,
    pub which: String,
    pub found: Vec<String>,
}

fn there(which: &str, found: &[String]) -> String {
    match found {
        [] => "on this machine".to_owned(),
        found => format!("`{which}`, only: {}", found.join(", ")),
    }
}

/// An accelerator could not be opened.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
#[allow(missing_docs)] // the messages say what the fields are
pub enum OpenError {
    #[error(transparent)]
    Graphics(#[from] exo_backend_wgpu::OpenError),
    #[error(transparent)]
    Vendor(#[from] exo_backend_cuda::OpenError),
}

/// The accelerators that a backend shows, in its driver's order. `cards` is what the bus shows.
///
/// This loads the system's drivers into the process. Where one of them may be broken, do it in a child.
pub fn list(backend: Backend, cards: &[GraphicsCard]) -> Result<Vec<Accelerator>, ListError> {
    let api = match backend {
        Backend::Cuda => return Ok(from_cards(backend, exo_backend_cuda::list()?, cards)),
        #[cfg(feature = "hip")]
        Backend::Hip => return Ok(from_cards(backend, exo_backend_cuda::list_amd()?, cards)),
        Backend::Vulkan => Api::Vulkan,
        Backend::Metal => Api::Metal,
        Backend::Dx12 => Api::Dx12,
    };
    let adapters = exo_backend_wgpu::list(api)?;
    Ok(adapters.into_iter().map(|adapter| from_adapter(backend, adapter, cards)).collect())
}

fn from_cards(backend: Backend, listed: Vec<Card>, cards: &[GraphicsCard]) -> Vec<Accelerator> {
    let accelerator = |card: Card| Accelerator {
        backend,
        index: card.index,
        identity: exo_device::identity(&card.name, card.api.vendor(), 0, Some(&card.pci_address), cards),
        driver: card.driver_text(),
        is_software: false,
        is_integrated: card.is_integrated,
        memory_bytes: Some(card.memory_bytes),
        compute_units: Some(card.multiprocessors),
        architecture: card.architecture().map(str::to_owned),
        trouble: card.trouble(),
        handle: Handle::Card(card),
    };
    listed.into_iter().map(accelerator).collect()
}

fn from_adapter(backend: Backend, adapter: Adapter, cards: &[GraphicsCard]) -> Accelerator {
    let address = adapter.pci_address.as_deref();
    Accelerator {
        backend,
        index: adapter.index,
        identity: exo_device::identity(&adapter.name, adapter.vendor, adapter.device, address, cards),
        driver: adapter.driver.clone(),
        is_software: adapter.is_software,
        is_integrated: adapter.is_integrated,
        memory_bytes: adapter.memory_bytes,
        compute_units: None,
        architecture: adapter.architecture().map(str::to_owned),
        trouble: None,
        handle: Handle::Adapter(adapter),
    }
}

pub(crate) enum OpenAccelerator {
    Graphics(Arc<WgpuDevice>),
    Vendor(Arc<CudaDevice>),
}

impl OpenAccelerator {
    pub(crate) fn device(&self) -> Arc<dyn Device> {
        match self {
            Self::Graphics(device) => device.clone(),
            Self::Vendor(device) => device.clone(),
        }
    }

    /// Of the whole card, where its driver tells.
    pub(crate) fn free_bytes(&self) -> Option<u64> {
        match self {
            Self::Graphics(_) => None,
            Self::Vendor(device) => device.card_free_bytes(),
        }
    }
}

impl Accelerator {
    /// `cuda-0`: in plans, and in what a node reports.
    pub fn id(&self) -> DeviceId {
        DeviceId(format!("{}-{}", self.backend, self.index))
    }

    /// Which of them is meant: a number in the list, a part of a name, or, with nothing, the first that is
    /// likely to do.
    pub fn pick(listed: Vec<Self>, backend: Backend, which: &str) -> Result<Self, NotThere> {
        let found = listed.iter().map(|accelerator| accelerator.identity.name.clone()).collect();
        let is_likely = |accelerator: &Self| !accelerator.is_software && accelerator.trouble.is_none();
        let is_named =
            |accelerator: &Self| accelerator.identity.name.to_lowercase().contains(&which.to_lowercase());
        let position = match which {
            "" => listed.iter().position(is_likely).or(Some(0)),
            _ => which.parse().ok().or_else(|| listed.iter().position(is_named)),
        };
        let picked = position.and_then(|position| listed.into_iter().nth(position));
        picked.ok_or_else(|| NotThere { backend, which: which.to_owned(), found })
    }

    /// Opens it, with no more memory than the limit, and kernels that are kept compiled in a folder where its
    /// driver allows that.
    pub(crate) fn open(
        &self,
        id: DeviceId,
        memory_limit_bytes: Option<u64>,
        cache_dir: Option<PathBuf>,
    ) -> Result<OpenAccelerator, OpenError> {
        Ok(match &self.handle {
            Handle::Adapter(adapter) => {
                let options = WgpuOptions { memory_limit_bytes, cache_dir, ..WgpuOptions::default() };
                OpenAccelerator::Graphics(WgpuDevice::open(adapter, id, &options)?)
            }
            Handle::Card(card) => {
                let options = CudaOptions { memory_limit_bytes, ..CudaOptions::default() };
                OpenAccelerator::Vendor(CudaDevice::open(card, id, &options)?)
            }
        })
    }

    /// Whether its driver says how much of its memory others have left: graphics drivers say only what there
    /// is.
    pub(crate) const fn tells_free_memory(&self) -> bool {
        matches!(self.handle, Handle::Card(_))
    }

    /// What is known of it while it stays shut.
    pub(crate) fn facts_unopened(&self, limit: Option<u64>) -> DeviceFacts {
        let kind = if self.is_integrated { DeviceKind::IntegratedGpu } else { DeviceKind::DiscreteGpu };
        let memory_bytes = limit.or(self.memory_bytes).unwrap_or(0);
        DeviceFacts {
            memory_free_bytes: 0,
            compute_units: self.compute_units.unwrap_or(0),
            support: SupportClass::Unsupported,
            ..DeviceFacts::unmeasured(self.id(), kind, &self.identity.name, self.backend.name(), memory_bytes)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_is_picked_by_number_or_name_and_by_itself_if_it_can_be_used() {
        let card = |index: usize, name: &str, capability| Card {
            api: exo_backend_cuda::Api::Cuda,
            index,
            name: name.to_owned(),
            pci_address: format!("0000:0{index}:00.0"),
            capability,
            multiprocessors: 1,
            memory_bytes: 1 << 30,
            is_integrated: false,
            driver: "12.0".to_owned(),
            kernel_driver: None,
        };
        let listed = || from_cards(Backend::Cuda, vec![card(0, "Old", (5, 0)), card(1, "New", (8, 9))], &[]);
        let picked = |which| Accelerator::pick(listed(), Backend::Cuda, which).map(|picked| picked.index);
        assert_eq!([picked(""), picked("0"), picked("ne")], [Ok(1), Ok(0), Ok(1)]);
        let error = picked("Voodoo").unwrap_err();
        assert_eq!(error.to_string(), "cuda shows no graphics processor `Voodoo`, only: Old, New");
        let none = Accelerator::pick(Vec::new(), Backend::Vulkan, "").unwrap_err();
        assert_eq!(none.to_string(), "vulkan shows no graphics processor on this machine");
    }
}
