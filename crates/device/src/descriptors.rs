//! File descriptors of this process: each connection of a client, each link and each open file takes one.

use std::fs;
use std::path::Path;

/// How many of them are open, and how many may be.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Descriptors {
    /// Open now.
    pub open: u32,
    /// Beyond which nothing more is opened.
    pub max: u32,
}

/// From `proc/self` below `root`; `None` where the system does not tell, or sets no limit.
pub fn descriptors(root: &Path) -> Option<Descriptors> {
    // One of them is for this look itself.
    let listed = fs::read_dir(root.join("proc/self/fd")).ok()?.count();
    let open = u32::try_from(listed.saturating_sub(1)).ok()?;
    let limits = fs::read_to_string(root.join("proc/self/limits")).ok()?;
    let soft = limits.lines().find_map(|line| line.strip_prefix("Max open files"))?;
    let max = soft.split_whitespace().next()?.parse().ok()?; // "unlimited" is no number
    Some(Descriptors { open, max })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What is told of so many files in `fd` and this line of `limits`.
    fn check(files: usize, limit: &str) -> Option<Descriptors> {
        let root = tempfile::tempdir().unwrap();
        let folder = root.path().join("proc/self");
        fs::create_dir_all(folder.join("fd")).unwrap();
        for number in 0..files {
            fs::write(folder.join("fd").join(number.to_string()), "").unwrap();
        }
        let head = "Limit                     Soft Limit           Hard Limit           Units";
        fs::write(folder.join("limits"), format!("{head}\n{limit}\n")).unwrap();
        descriptors(root.path())
    }

    #[test]
    fn the_soft_limit_counts_and_one_descriptor_is_that_of_the_look() {
        let limit = "Max open files            1024                 524288               files";
        assert_eq!(check(12, limit), Some(Descriptors { open: 11, max: 1024 }));
    }

    #[test]
    fn without_a_limit_or_a_list_nothing_is_told() {
        assert_eq!(
            check(3, "Max open files            unlimited            unlimited            files"),
            None
        );
        assert_eq!(
            check(3, "Max data size             1024                 1024                 bytes"),
            None
        );
        assert_eq!(descriptors(Path::new("/nonexistent")), None);
    }
}
