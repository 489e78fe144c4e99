//! Which versions of the layer above a node speaks.

use std::fmt;

/// A range of protocol versions of the layer above, both ends included.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Protocols {
    /// Oldest spoken.
    pub min: u16,
    /// Newest spoken.
    pub max: u16,
}

impl Protocols {
    /// What this build speaks.
    pub const CURRENT: Self = Self { min: 1, max: 1 };

    /// The newest version both speak.
    pub fn common(self, other: Self) -> Option<u16> {
        let newest = self.max.min(other.max);
        (newest >= self.min.max(other.min)).then_some(newest)
    }
}

impl fmt::Display for Protocols {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.min == self.max {
            write!(f, "{}", self.max)
        } else {
            write!(f, "{} to {}", self.min, self.max)
        }
    }
}
