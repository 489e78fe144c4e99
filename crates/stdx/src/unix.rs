use std::fs::{self, File, Metadata, OpenOptions, Permissions};
use std::io;
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::Path;

const FILE_MODE: u32 = 0o600;
const FOLDER_MODE: u32 = 0o700;

pub(crate) fn for_owner_only(options: &mut OpenOptions) -> &mut OpenOptions {
    options.mode(FILE_MODE)
}

pub(crate) fn restrict_to_owner(path: &Path) -> io::Result<()> {
    let mode = if fs::metadata(path)?.is_dir() { FOLDER_MODE } else { FILE_MODE };
    fs::set_permissions(path, Permissions::from_mode(mode))
}

/// `ENFILE` and `EMFILE`.
pub(crate) fn is_out_of_files(error: &io::Error) -> bool {
    matches!(error.raw_os_error(), Some(23 | 24))
}

pub(crate) fn mode_open_to_others(about: &Metadata) -> Option<u32> {
    let mode = about.permissions().mode() & 0o7777;
    (mode & 0o077 != 0).then_some(mode)
}

pub(crate) fn sync_folder(folder: &Path) -> io::Result<()> {
    File::open(folder)?.sync_all()
}

pub(crate) fn read_exact_at(file: &File, buffer: &mut [u8], offset: u64) -> io::Result<()> {
    file.read_exact_at(buffer, offset)
}

pub(crate) fn write_all_at(file: &File, bytes: &[u8], offset: u64) -> io::Result<()> {
    file.write_all_at(bytes, offset)
}

pub(crate) fn free_bytes(folder: &Path) -> Option<u64> {
    let stat = rustix::fs::statvfs(folder).ok()?;
    Some(stat.f_bavail.saturating_mul(stat.f_frsize))
}

pub(crate) fn total_bytes(folder: &Path) -> Option<u64> {
    let stat = rustix::fs::statvfs(folder).ok()?;
    Some(stat.f_blocks.saturating_mul(stat.f_frsize))
}

pub(crate) fn is_only_name(about: &Metadata) -> bool {
    about.nlink() <= 1
}

/// `EIO`, which has this number everywhere.
pub(crate) const DEVICE_FAULTS: &[i32] = &[5];

pub(crate) fn disk_bytes(about: &Metadata) -> u64 {
    // POSIX leaves the unit of `st_blocks` open; every system that we build for counts in these.
    about.blocks().saturating_mul(512)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_for_its_owner_is_open_to_nobody_else() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("secret");
        let mut options = OpenOptions::new();
        for_owner_only(options.write(true).create_new(true)).open(&path).unwrap();
        let told = |path: &Path| mode_open_to_others(&fs::metadata(path).unwrap());
        assert_eq!(told(&path), None);
        fs::set_permissions(&path, Permissions::from_mode(0o640)).unwrap();
        assert_eq!(told(&path), Some(0o640));
        fs::set_permissions(folder.path(), Permissions::from_mode(0o755)).unwrap();
        for (path, mode) in [(path.as_path(), 0o600), (folder.path(), 0o700)] {
            restrict_to_owner(path).unwrap();
            assert_eq!(fs::metadata(path).unwrap().permissions().mode() & 0o777, mode);
        }
    }

    #[test]
    fn both_ways_to_ask_for_free_space_agree() {
        let folder = tempfile::tempdir().unwrap();
        let Some(by_disk) = crate::disks::free_bytes(folder.path()) else { return };
        let by_stat = free_bytes(folder.path()).unwrap();
        // Others write meanwhile.
        assert!(by_disk.abs_diff(by_stat) < 4 << 30, "{by_disk} and {by_stat}");
        assert_eq!(crate::disks::total_bytes(folder.path()).is_some(), total_bytes(folder.path()).is_some());
        assert!(total_bytes(folder.path()).unwrap() >= by_stat);
    }

    #[test]
    fn a_hole_takes_no_disk() {
        let folder = tempfile::tempdir().unwrap();
        let file = File::create(folder.path().join("holes")).unwrap();
        file.set_len(64 << 20).unwrap();
        write_all_at(&file, &[1; 4096], 8 << 20).unwrap();
        file.sync_all().unwrap();
        let bytes = disk_bytes(&file.metadata().unwrap());
        assert!((4096..32 << 20).contains(&bytes), "{bytes}");
    }
}
