//! Bounds of decoded messages: every count and length a peer chose is checked here before anything is
//! believed.

mod backup;
mod control;
mod data;
mod placement;
mod reasons;

pub use backup::token_bytes;

use super::limits::TEXT_BYTES_MAX;

/// A decoded value out of its bounds.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
#[allow(missing_docs)] // the messages say what the fields are
pub enum CheckError {
    #[error("{what}: {got} given, at most {max} allowed")]
    TooMany { what: &'static str, got: u64, max: u64 },
    /// A value that contradicts itself or its neighbours.
    #[error("{what}")]
    Invalid { what: &'static str },
}

/// Bounds of a decoded value.
pub(crate) trait Check {
    /// Errs with the first value out of bounds.
    fn check(&self) -> Result<(), CheckError>;
}

impl<T: Check> Check for [T] {
    fn check(&self) -> Result<(), CheckError> {
        self.iter().try_for_each(T::check)
    }
}

fn at_most(what: &'static str, got: usize, max: usize) -> Result<(), CheckError> {
    if got <= max { Ok(()) } else { Err(CheckError::TooMany { what, got: got as u64, max: max as u64 }) }
}

fn ensure(holds: bool, what: &'static str) -> Result<(), CheckError> {
    if holds { Ok(()) } else { Err(CheckError::Invalid { what }) }
}

fn text(what: &'static str, text: &str) -> Result<(), CheckError> {
    at_most(what, text.len(), TEXT_BYTES_MAX)
}
