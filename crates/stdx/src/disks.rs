//! Free space and size of a disk where there is no `statvfs`.

use std::path::Path;

/// What the disk says that is mounted deepest above the folder.
pub(crate) fn free_bytes(folder: &Path) -> Option<u64> {
    of_disk(folder, sysinfo::Disk::available_space)
}

/// The same of its size.
pub(crate) fn total_bytes(folder: &Path) -> Option<u64> {
    of_disk(folder, sysinfo::Disk::total_space)
}

fn of_disk(folder: &Path, what: impl Fn(&sysinfo::Disk) -> u64) -> Option<u64> {
    let folder = std::path::absolute(folder).ok()?;
    let disks = sysinfo::Disks::new_with_refreshed_list().ok()?;
    let above = disks.iter().filter(|disk| folder.starts_with(disk.mount_point()));
    let disk = above.max_by_key(|disk| disk.mount_point().components().count())?;
    Some(what(disk))
}
