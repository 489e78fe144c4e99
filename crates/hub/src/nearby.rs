//! Who else may have a file than its hub.

use std::time::Duration;

use crate::partial_files::PartialFiles;
use crate::{Cancel, HubError};

/// A file of which bytes are missing.
#[derive(Clone, Copy, Debug)]
pub struct WantedFile<'a> {
    /// What the hub says that it is. All of the file is compared with it before it counts.
    pub sha256: [u8; 32],
    /// Its length.
    pub size: u64,
    /// Start and end of what is missing, in the order of the file: each is given with few holes or not at
    /// all.
    pub ranges: &'a [(u64, u64)],
}

/// One of the ranges that were wanted, as others have it.
#[derive(Debug)]
pub struct GivenRange<'a> {
    /// Its start and end in the file.
    pub range: (u64, u64),
    /// As many bytes.
    pub bytes: &'a mut [u8],
    /// Start and end in the file of what nobody near gave: few, and the hub is asked for each. What `bytes`
    /// has there means nothing.
    pub holes: &'a [(u64, u64)],
}

/// Hears of a range that nobody near gives, by its start and end: the hub is asked for it from then on.
pub type LeaveRange<'a> = dyn Fn((u64, u64)) + 'a;

/// Keeps one of the ranges that were wanted.
pub type TakeRange<'a> = dyn FnMut(GivenRange<'_>) -> Result<(), HubError> + 'a;

/// Others that may have a file: members of a cluster. What they have is not asked of its hub, and what they
/// give is believed no more than what a hub sends.
pub trait Nearby: Sync {
    /// Gives what is to be had of a file to `take`. What `leave` hears of comes from the hub meanwhile, and
    /// in the end all that was not given. Fails only as `take` does, or on a wish to end. Blocks, in a thread
    /// of its own.
    fn give(
        &self,
        file: &WantedFile<'_>,
        cancel: &Cancel,
        leave: &LeaveRange<'_>,
        take: &mut TakeRange<'_>,
    ) -> Result<(), HubError>;

    /// After so long they are asked again for what nobody fetches yet; without it they are asked once.
    fn asked_again_after(&self) -> Option<Duration> {
        None
    }

    /// Of what was wanted last and was neither given nor left: what others fetch from the hub, or are about
    /// to. The hub is not asked for it here before [they are asked again](Nearby::asked_again_after).
    fn awaited(&self) -> Vec<(u64, u64)> {
        Vec::new()
    }

    /// Where what comes is given to others that fetch the same, if they are to have it.
    fn partial_files(&self) -> Option<&PartialFiles> {
        None
    }

    /// Who has given something, to be displayed.
    fn givers(&self) -> String;

    /// What they gave of a file was not the file. Who of them it was is not known.
    fn distrust_givers(&self) {}
}

/// Nobody is near.
impl Nearby for () {
    fn give(
        &self,
        _: &WantedFile<'_>,
        _: &Cancel,
        _: &LeaveRange<'_>,
        _: &mut TakeRange<'_>,
    ) -> Result<(), HubError> {
        Ok(())
    }

    fn givers(&self) -> String {
        String::new()
    }
}
