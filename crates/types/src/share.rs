//! Which part of the time a device may compute.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

/// From a tenth of the time to all of it, in per cent.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct ComputeShare(u8);

/// Not a share: what is allowed stands in the message.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error("a share of the time is 10% to 100%")]
pub struct ParseShareError;

impl ComputeShare {
    /// All of it.
    pub const FULL: Self = Self(100);
    const PERCENT_MIN: u8 = 10;

    /// From 0.1 to 1.
    pub fn part(self) -> f64 {
        f64::from(self.0) / 100.0
    }

    /// How long to rest after so much work.
    pub fn rest_after(self, busy: Duration) -> Duration {
        busy * u32::from(100 - self.0) / u32::from(self.0)
    }
}

impl Default for ComputeShare {
    fn default() -> Self {
        Self::FULL
    }
}

impl fmt::Display for ComputeShare {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}%", self.0)
    }
}

impl FromStr for ComputeShare {
    type Err = ParseShareError;

    /// `50%` or `50`.
    fn from_str(text: &str) -> Result<Self, ParseShareError> {
        let number = text.strip_suffix('%').unwrap_or(text).trim_end();
        let percent: u8 = number.parse().map_err(|_| ParseShareError)?;
        (Self::PERCENT_MIN..=100).contains(&percent).then_some(Self(percent)).ok_or(ParseShareError)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_share_is_read_shown_and_rests() {
        let half: ComputeShare = "50%".parse().unwrap();
        assert_eq!((half.to_string(), half), ("50%".to_owned(), "50".parse().unwrap()));
        assert_eq!([half, ComputeShare::FULL].map(ComputeShare::part), [0.5, 1.0]);
        let busy = Duration::from_millis(30);
        assert_eq!((half.rest_after(busy), ComputeShare::FULL.rest_after(busy)), (busy, Duration::ZERO));
        let quarter: ComputeShare = "25 %".parse().unwrap();
        assert_eq!(quarter.rest_after(busy), 3 * busy);
        for wrong in ["", "%", "9%", "101", "-5", "half", "1e2"] {
            assert_eq!(wrong.parse::<ComputeShare>(), Err(ParseShareError), "{wrong}");
        }
    }
}
