//! Free space where there is no `statvfs`.

use std::path::Path;

/// What the disk says that is mounted deepest above the folder.
pub(crate) fn free_bytes(folder: &Path) -> Option<u64> {
    let folder = std::path::absolute(folder).ok()?;
    let disks = sysinfo::Disks::new_with_refreshed_list().ok()?;
    let above = disks.iter().filter(|disk| folder.starts_with(disk.mount_point()));
    let disk = above.max_by_key(|disk| disk.mount_point().components().count())?;
    Some(disk.available_space())
}
