//! The backends that show accelerators, and which system has which.

use std::fmt;

use serde::{Deserialize, Serialize};

/// The value of the setting `backend` by which exo chooses.
pub const AUTO: &str = "auto";

/// What shows accelerators and computes on them: a vendor's own driver, or a graphics interface.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize)]
pub enum Backend {
    /// NVIDIA's driver.
    Cuda,
    /// AMD's driver.
    #[cfg(feature = "hip")]
    Hip,
    /// Linux, Windows, Android.
    Vulkan,
    /// macOS, iOS.
    Metal,
    /// Direct3D 12: Windows.
    Dx12,
}

impl Backend {
    /// Every backend of this program.
    pub const ALL: &[Self] = &[
        Self::Cuda,
        #[cfg(feature = "hip")]
        Self::Hip,
        Self::Vulkan,
        Self::Metal,
        Self::Dx12,
    ];

    /// As in the setting `backend`.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Cuda => "cuda",
            #[cfg(feature = "hip")]
            Self::Hip => "hip",
            Self::Vulkan => "vulkan",
            Self::Metal => "metal",
            Self::Dx12 => "dx12",
        }
    }

    /// The one with this name.
    pub fn parse(name: &str) -> Result<Self, BackendError> {
        let found = Self::ALL.iter().find(|backend| backend.name() == name);
        found.copied().ok_or_else(|| BackendError::Unknown { name: name.to_owned() })
    }

    /// Who makes the cards, of a vendor's own driver.
    pub(crate) const fn vendor_api(self) -> Option<exo_backend_cuda::Api> {
        match self {
            Self::Cuda => Some(exo_backend_cuda::Api::Cuda),
            #[cfg(feature = "hip")]
            Self::Hip => Some(exo_backend_cuda::Api::Hip),
            Self::Vulkan | Self::Metal | Self::Dx12 => None,
        }
    }
}

impl fmt::Display for Backend {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// The setting `backend` cannot be meant.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
#[allow(missing_docs)] // the messages say what the fields are
pub enum BackendError {
    #[error("unknown backend `{name}`{}: use auto, cpu, cuda, vulkan, {}", left_out(.name), OTHERS)]
    Unknown { name: String },
    #[error("`{name}` is a backend of {systems}; this is {own}, which has cpu, {backends}")]
    OfOtherSystem {
        name: String,
        /// Those that have it.
        systems: String,
        own: &'static str,
        backends: String,
    },
}

impl BackendError {
    /// Stable, for whoever chooses by it.
    pub const fn code(&self) -> &'static str {
        match self {
            Self::Unknown { .. } => "backend_unknown",
            Self::OfOtherSystem { .. } => "backend_of_other_system",
        }
    }
}

const OTHERS: &str = if cfg!(feature = "hip") { "metal, dx12 or hip" } else { "metal or dx12" };

/// AMD's driver is used by programs that were built for it.
fn left_out(backend: &str) -> &'static str {
    if backend == "hip" { ", as this program was built without the feature `hip`" } else { "" }
}

/// A system, as far as the order of backends depends on it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum System {
    /// And whatever else is like it.
    Linux,
    /// Windows on any processor.
    Windows,
    /// macOS and iOS.
    Apple,
    /// Android on any processor.
    Android,
}

impl System {
    const ALL: [Self; 4] = [Self::Linux, Self::Windows, Self::Apple, Self::Android];

    /// The one that this program was built for.
    pub fn own() -> Self {
        match std::env::consts::OS {
            "windows" => Self::Windows,
            "macos" | "ios" => Self::Apple,
            "android" => Self::Android,
            _ => Self::Linux,
        }
    }

    /// Whether a backend is one of this system's.
    pub fn has(self, backend: Backend) -> bool {
        self.order().contains(&backend)
    }

    /// Refuses a backend that only other systems have.
    pub fn check(self, name: &str) -> Result<(), BackendError> {
        let Ok(backend) = Backend::parse(name) else { return Ok(()) };
        if self.has(backend) {
            return Ok(());
        }
        let having: Vec<_> =
            Self::ALL.into_iter().filter(|system| system.has(backend)).map(Self::name).collect();
        let own: Vec<_> = self.order().iter().map(|backend| backend.name()).collect();
        let (systems, backends) = (having.join(", "), own.join(", "));
        Err(BackendError::OfOtherSystem { name: name.to_owned(), systems, own: self.name(), backends })
    }

    const fn name(self) -> &'static str {
        match self {
            Self::Linux => "Linux",
            Self::Windows => "Windows",
            Self::Apple => "macOS and iOS",
            Self::Android => "Android",
        }
    }

    /// Backends in the order in which they are preferred where none is clearly faster; the processor comes
    /// after them.
    pub const fn order(self) -> &'static [Backend] {
        match self {
            Self::Linux => &[
                Backend::Cuda,
                #[cfg(feature = "hip")]
                Backend::Hip,
                Backend::Vulkan,
            ],
            Self::Windows => &[Backend::Dx12, Backend::Cuda, Backend::Vulkan],
            Self::Apple => &[Backend::Metal],
            Self::Android => &[Backend::Vulkan],
        }
    }

    pub(crate) fn preference(self, backend: Backend) -> usize {
        self.order().iter().position(|known| *known == backend).unwrap_or(usize::MAX)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_backend_is_named_or_refused() {
        assert_eq!(Backend::parse("cuda"), Ok(Backend::Cuda));
        let error = Backend::parse("opencl").unwrap_err();
        assert!(error.to_string().contains("unknown backend `opencl`"), "{error}");
    }

    #[test]
    fn a_backend_of_other_systems_is_refused_with_theirs_and_ours() {
        let why = |backend| System::Linux.check(backend).map_err(|error| error.to_string());
        let metal = why("metal").unwrap_err();
        assert!(
            metal.starts_with("`metal` is a backend of macOS and iOS; this is Linux, which has cpu, cuda"),
            "{metal}"
        );
        assert!(why("dx12").unwrap_err().contains("a backend of Windows;"));
        // Those that no one has are refused in other words.
        assert!(["vulkan", "cuda", "cpu", "auto", "opencl"].into_iter().all(|backend| why(backend).is_ok()));
    }
}
