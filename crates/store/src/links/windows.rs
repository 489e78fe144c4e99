use std::fs::Metadata;

/// Never said: such a file counts once for each name.
pub(crate) fn shared_file(_about: &Metadata) -> Option<(u64, u64)> {
    None
}
