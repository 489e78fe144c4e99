//! What the layers of an architecture look like, and why a configuration is refused.

use exo_formats::{Architecture, ModelConfig};

/// What one architecture's layers do beyond the common decoder.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Block {
    /// Q, K and V have a bias.
    pub qkv_bias: bool,
    /// Each head of Q and K is normalised before it is rotated.
    pub qk_norm: bool,
    /// A token sees this many tokens, itself included; `None`: all before it.
    pub window: Option<u32>,
}

/// A configuration we have no forward pass for.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ModelError {
    /// Not an architecture of ours.
    #[error("there is no forward pass for the architecture {architecture}")]
    Architecture {
        /// Its name.
        architecture: String,
    },
    /// An option the architecture does not have.
    #[error("{architecture} does not have {option}")]
    Option {
        /// The architecture.
        architecture: Architecture,
        /// What the configuration asks for.
        option: &'static str,
    },
    /// Numbers no layer can be made of.
    #[error("{field} is {value}: {reason}")]
    Field {
        /// Which number.
        field: &'static str,
        /// Its value.
        value: u64,
        /// What is wrong with it.
        reason: &'static str,
    },
}

/// Refuses `option` where the architecture has no such thing: computing without it would give wrong text.
pub(crate) fn refuse(config: &ModelConfig, asked: bool, option: &'static str) -> Result<(), ModelError> {
    if asked { Err(ModelError::Option { architecture: config.architecture, option }) } else { Ok(()) }
}
