use std::fs::Metadata;
use std::os::unix::fs::MetadataExt;

/// Which file it is, of one that has several names.
pub(crate) fn shared_file(about: &Metadata) -> Option<(u64, u64)> {
    (about.nlink() > 1).then(|| (about.dev(), about.ino()))
}
