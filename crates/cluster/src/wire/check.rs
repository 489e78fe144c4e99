//! Bounds of decoded messages: every count and length a peer chose, checked in one place.

/// A decoded value out of its bounds.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{what} is {got}, at most {max} is allowed")]
pub struct CheckError {
    /// Which value.
    pub what: &'static str,
    /// What the peer sent.
    pub got: u64,
    /// The bound.
    pub max: u64,
}

/// Bounds of a decoded value.
pub(super) trait Check {
    /// Errs with the first value out of bounds.
    fn check(&self) -> Result<(), CheckError>;
}

impl Check for super::ControlMessage {
    fn check(&self) -> Result<(), CheckError> {
        Ok(())
    }
}

impl Check for super::DataMessage {
    fn check(&self) -> Result<(), CheckError> {
        Ok(())
    }
}
