//! The cards that the driver shows, and why it shows none.

use cudarc::driver::sys::CUdevice_attribute as Attribute;

use crate::driver::{self, CallError, Ordinal};

/// The CUDA version whose drivers know the PTX that we ship.
const VERSION_MIN: i32 = 12_000;
/// The compute capability that the PTX was made for.
const CAPABILITY_MIN: (i32, i32) = (6, 1);

/// An NVIDIA card.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Card {
    /// Its place in the driver's list, from 0.
    pub index: usize,
    /// As the driver names it.
    pub name: String,
    /// `0000:01:00.0`
    pub pci_address: String,
    /// Compute capability: 8 and 9 for 8.9.
    pub capability: (i32, i32),
    /// Streaming multiprocessors.
    pub multiprocessors: u32,
    /// Bytes of its memory.
    pub memory_bytes: u64,
    /// Shares the machine's memory.
    pub is_integrated: bool,
    /// The newest CUDA version the driver knows, as `12.2`.
    pub driver: String,
}

impl Card {
    /// Driver and card as versions: what a measurement depends on.
    pub fn driver_text(&self) -> String {
        let (major, minor) = self.capability;
        format!("CUDA {}, compute capability {major}.{minor}", self.driver)
    }

    /// What it lacks for the kernels, if it lacks anything.
    pub fn trouble(&self) -> Option<String> {
        let (has, needs) = (self.capability, CAPABILITY_MIN);
        (has < needs).then(|| {
            format!("its compute capability is {}.{}, the kernels need {}.{}", has.0, has.1, needs.0, needs.1)
        })
    }
}

/// CUDA cannot be used on this machine.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ListError {
    /// There is no driver.
    #[error(
        "NVIDIA's driver library ({library}) is not on this machine: for an NVIDIA card install its driver, 525 or newer ({how})"
    )]
    NoDriver {
        /// The library that was looked for.
        library: &'static str,
        /// Where to get it.
        how: &'static str,
    },
    /// There is a library, but it is not the driver's, or a damaged one.
    #[error("NVIDIA's driver library answered with nonsense: install the driver again")]
    Broken,
    /// The driver is older than the kernels' PTX.
    #[error("NVIDIA's driver knows CUDA {}.{} and the kernels need 12.0: install driver 525 or newer", .version / 1000, .version % 1000 / 10)]
    TooOld {
        /// What it told, such as 11080 for 11.8.
        version: i32,
    },
    /// The driver is there and sees no card.
    #[error(
        "NVIDIA's driver sees no card: either there is none, or it is hidden by CUDA_VISIBLE_DEVICES or from this container"
    )]
    NoCard,
    /// The driver refused to say.
    #[error("NVIDIA's driver could not be asked")]
    Call(#[from] CallError),
}

/// The cards, in the driver's order; at least one.
///
/// This loads the driver into the process. Where it may be broken, call it in a child first.
pub fn list() -> Result<Vec<Card>, ListError> {
    if !driver::is_there() {
        let (library, how) = match cfg!(windows) {
            true => ("nvcuda.dll", "from nvidia.com/drivers"),
            false => ("libcuda.so.1", "Debian and Ubuntu: the package nvidia-driver"),
        };
        return Err(ListError::NoDriver { library, how });
    }
    // A library without the functions that the driver has trips an assertion inside cudarc.
    std::panic::catch_unwind(ask).unwrap_or(Err(ListError::Broken))
}

fn ask() -> Result<Vec<Card>, ListError> {
    let version = driver::version()?;
    if version < VERSION_MIN {
        return Err(ListError::TooOld { version });
    }
    match driver::init() {
        Err(error) if error.is_no_device() => return Err(ListError::NoCard),
        other => other?,
    }
    let cards = (0..driver::count()?).map(|index| describe(index, version));
    let cards: Vec<Card> = cards.collect::<Result<_, _>>()?;
    if cards.is_empty() { Err(ListError::NoCard) } else { Ok(cards) }
}

fn describe(index: i32, version: i32) -> Result<Card, CallError> {
    let card = Ordinal(index);
    let major = card.attribute(Attribute::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR)?;
    let minor = card.attribute(Attribute::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR)?;
    Ok(Card {
        index: index as usize,
        name: card.name()?,
        pci_address: card.pci_address()?,
        capability: (major, minor),
        multiprocessors: card.attribute(Attribute::CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT)? as u32,
        memory_bytes: card.memory_bytes()?,
        is_integrated: card.attribute(Attribute::CU_DEVICE_ATTRIBUTE_INTEGRATED)? != 0,
        driver: format!("{}.{}", version / 1000, version % 1000 / 10),
    })
}
