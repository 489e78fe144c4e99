//! Bounds of what is kept of requests.

use exo_types::SampledToken;

use super::super::limits::{BACKUP_BYTES_MAX, RECORD_BYTES_MAX};
use super::super::{Backup, BackupMessage, Claimed};
use super::{Check, CheckError, at_most, ensure};

/// What the bookkeeping of a copy takes in memory.
const COPY_BYTES: usize = 512;

impl Check for BackupMessage {
    fn check(&self) -> Result<(), CheckError> {
        match self {
            Self::Begin { backup, .. } | Self::Claimed { claimed: Claimed::Kept { backup, .. }, .. } => {
                at_most("bytes of a request", backup.record.len(), RECORD_BYTES_MAX)?;
                backup.choices.iter().try_for_each(|tokens| check(tokens))?;
                at_most("bytes of a copy", backup.bytes(), BACKUP_BYTES_MAX)
            }
            Self::Tokens { tokens, .. } => check(tokens),
            Self::End { .. }
            | Self::GiveUp { .. }
            | Self::Dropped { .. }
            | Self::Claim { .. }
            | Self::Claimed { .. } => Ok(()),
        }
    }
}

fn check(tokens: &[SampledToken]) -> Result<(), CheckError> {
    ensure(tokens.iter().all(|token| token.prompt.is_none()), "a copy of an answer reports on its prompt")
}

impl Backup {
    /// About what it takes in memory.
    pub fn bytes(&self) -> usize {
        let empty = COPY_BYTES + self.choices.len() * size_of::<Vec<SampledToken>>();
        empty + self.record.len() + self.choices.iter().flatten().map(token_bytes).sum::<usize>()
    }
}

/// About what a token takes in memory.
pub fn token_bytes(token: &SampledToken) -> usize {
    size_of::<SampledToken>() + token.top.len() * size_of::<(u32, f32)>()
}
