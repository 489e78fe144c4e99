//! The cards that a driver shows, and why it shows none.

use std::path::Path;

use exo_device::GraphicsCard;

use crate::api::{Api, Attribute, CallError};
use crate::driver::{self, Ordinal};

/// The CUDA version whose drivers know the PTX that we ship.
const VERSION_MIN: i32 = 12_000;
/// The compute capability that the PTX was made for.
const CAPABILITY_MIN: (i32, i32) = (6, 1);

/// A card.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Card {
    /// Whose driver shows it.
    pub api: Api,
    /// Its place in the driver's list, from 0.
    pub index: usize,
    /// As the driver names it.
    pub name: String,
    /// `0000:01:00.0`
    pub pci_address: String,
    /// Compute capability: 8 and 9 for 8.9; of AMD's the version of the architecture, 10 and 3 for gfx1030.
    pub capability: (i32, i32),
    /// Streaming multiprocessors, or compute units.
    pub multiprocessors: u32,
    /// Bytes of its memory.
    pub memory_bytes: u64,
    /// Shares the machine's memory.
    pub is_integrated: bool,
    /// The newest version of CUDA or HIP that the driver knows, as `12.2`.
    pub driver: String,
    /// The system's driver of the card with its version, as `nvidia 550.54.14`, where the system tells.
    pub kernel_driver: Option<String>,
}

impl Card {
    /// Driver and card as versions: what a measurement depends on.
    pub fn driver_text(&self) -> String {
        let (major, minor) = self.capability;
        let text = match self.api {
            Api::Cuda => format!("CUDA {}, compute capability {major}.{minor}", self.driver),
            #[cfg(feature = "hip")]
            Api::Hip => format!("HIP {}, architecture {major}.{minor}", self.driver),
        };
        // Several drivers know the same version of CUDA.
        match &self.kernel_driver {
            Some(driver) => format!("{text}, {driver}"),
            None => text,
        }
    }

    /// The vendor's name for its generation; `None` for one that was made after this was written.
    pub fn architecture(&self) -> Option<&'static str> {
        match self.api {
            Api::Cuda => exo_device::nvidia_architecture(self.capability),
            #[cfg(feature = "hip")]
            Api::Hip => {
                let (major, minor) = self.capability;
                exo_device::amd_architecture(major.try_into().ok()?, minor.try_into().ok()?, None)
            }
        }
    }

    /// What it lacks for the kernels, if it lacks anything.
    pub fn trouble(&self) -> Option<String> {
        let (has, needs) = (self.capability, CAPABILITY_MIN);
        (self.api == Api::Cuda && has < needs).then(|| {
            format!("its compute capability is {}.{}, the kernels need {}.{}", has.0, has.1, needs.0, needs.1)
        })
    }
}

/// A driver cannot be used on this machine.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
#[allow(missing_docs)] // the messages say what the fields are
pub enum ListError {
    #[error(
        "{vendor}'s driver library ({library}) is not on this machine: for one of its cards install {what}"
    )]
    NoDriver {
        vendor: &'static str,
        library: &'static str,
        /// What brings it, and from where.
        what: &'static str,
    },
    /// There is a library, but it is not the driver's, or a damaged one.
    #[error("{vendor}'s driver library answered with nonsense: install the driver again")]
    Broken { vendor: &'static str },
    #[error("NVIDIA's driver knows CUDA {}.{} and the kernels need 12.0: install driver 525 or newer", .version / 1000, .version % 1000 / 10)]
    TooOld {
        /// What it told, such as 11080 for 11.8.
        version: i32,
    },
    #[error(
        "{vendor}'s driver sees no card: either there is none, or it is hidden by {variable} or from this container"
    )]
    NoCard { vendor: &'static str, variable: &'static str },
    #[error("the driver could not be asked for its cards")]
    Call(#[from] CallError),
}

/// NVIDIA's cards, in the driver's order; at least one.
///
/// This loads the driver into the process. Where it may be broken, call it in a child first.
pub fn list() -> Result<Vec<Card>, ListError> {
    let vendor = Api::Cuda.vendor_name();
    if !driver::has_cuda() {
        let (library, what) = match std::env::consts::OS {
            "windows" => ("nvcuda.dll", "its driver, 525 or newer (from nvidia.com/drivers)"),
            _ => ("libcuda.so.1", "its driver, 525 or newer (Debian and Ubuntu: the package nvidia-driver)"),
        };
        return Err(ListError::NoDriver { vendor, library, what });
    }
    let ask = || {
        let version = driver::version(Api::Cuda)?;
        if version < VERSION_MIN {
            return Err(ListError::TooOld { version });
        }
        let name = format!("{}.{}", version / 1000, version % 1000 / 10);
        ask(Api::Cuda, &name, ListError::NoCard { vendor, variable: "CUDA_VISIBLE_DEVICES" })
    };
    // A library without the functions that the driver has trips an assertion inside cudarc.
    std::panic::catch_unwind(ask).unwrap_or(Err(ListError::Broken { vendor }))
}

/// AMD's cards; as [`list`].
#[cfg(feature = "hip")]
pub fn list_amd() -> Result<Vec<Card>, ListError> {
    use crate::api::hip::{Missing, look};
    let vendor = Api::Hip.vendor_name();
    let what = "AMD's ROCm, 5.2 or newer (Debian: the package libamdhip64-5)";
    look().map_err(|missing| match missing {
        Missing::Driver => ListError::NoDriver { vendor, library: "libamdhip64.so", what },
        Missing::Functions => ListError::Broken { vendor },
    })?;
    let version = driver::version(Api::Hip)?;
    let name = format!("{}.{}", version / 10_000_000, version / 100_000 % 100);
    ask(Api::Hip, &name, ListError::NoCard { vendor, variable: "HIP_VISIBLE_DEVICES" })
}

fn ask(api: Api, version: &str, none: ListError) -> Result<Vec<Card>, ListError> {
    match driver::init(api) {
        Err(error) if error.is_no_device() => return Err(none),
        other => other?,
    }
    // Some of AMD's drivers say it only now.
    let count = match driver::count(api) {
        Err(error) if error.is_no_device() => return Err(none),
        other => other?,
    };
    let on_bus = exo_device::graphics_cards(Path::new("/"));
    let cards = (0..count).map(|device| describe(Ordinal { api, device }, version, &on_bus));
    let cards: Vec<Card> = cards.collect::<Result<_, _>>()?;
    if cards.is_empty() { Err(none) } else { Ok(cards) }
}

fn describe(card: Ordinal, version: &str, on_bus: &[GraphicsCard]) -> Result<Card, CallError> {
    let major = card.attribute(Attribute::CapabilityMajor)?;
    let minor = card.attribute(Attribute::CapabilityMinor)?;
    let pci_address = card.pci_address()?;
    let known = on_bus.iter().find(|known| known.pci_address == pci_address);
    Ok(Card {
        api: card.api,
        index: card.device as usize,
        name: card.name()?,
        kernel_driver: known.and_then(GraphicsCard::kernel_driver_text),
        pci_address,
        capability: (major, minor),
        multiprocessors: card.attribute(Attribute::Multiprocessors)? as u32,
        memory_bytes: card.memory_bytes()?,
        is_integrated: card.attribute(Attribute::Integrated)? != 0,
        driver: version.to_owned(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn another_driver_with_the_same_cuda_is_another_driver() {
        let card = |kernel_driver: Option<&str>| Card {
            api: Api::Cuda,
            index: 0,
            name: "Card".to_owned(),
            pci_address: "0000:01:00.0".to_owned(),
            capability: (8, 9),
            multiprocessors: 128,
            memory_bytes: 24 << 30,
            is_integrated: false,
            driver: "12.4".to_owned(),
            kernel_driver: kernel_driver.map(str::to_owned),
        };
        assert_eq!(card(None).driver_text(), "CUDA 12.4, compute capability 8.9");
        let newer = card(Some("nvidia 550.90.07")).driver_text();
        assert_eq!(newer, "CUDA 12.4, compute capability 8.9, nvidia 550.90.07");
    }
}
