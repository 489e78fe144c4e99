use std::path::Path;

use super::Memory;

pub(super) fn memory(root: &Path) -> Option<Memory> {
    let text = std::fs::read_to_string(root.join("proc/meminfo")).ok()?;
    let kib = |key: &str| -> Option<u64> {
        let line = text.lines().find_map(|line| line.strip_prefix(key)?.strip_prefix(':'))?;
        line.split_whitespace().next()?.parse().ok()
    };
    let total_bytes = kib("MemTotal")?.checked_mul(1024)?;
    // Kernels before 3.14 lack MemAvailable; what is certainly free is MemFree.
    let available_bytes = kib("MemAvailable").or_else(|| kib("MemFree"))?.checked_mul(1024)?;
    Some(Memory { total_bytes, available_bytes: available_bytes.min(total_bytes) })
}

/// The limit of this process's group and of every group above it, for cgroup v2 and for v1's memory
/// controller. What allows all of `machine_bytes` limits nothing: version 1 has a huge number there, and what
/// such a group uses is costly to ask for.
pub(super) fn group_limits(root: &Path, machine_bytes: u64) -> Vec<Memory> {
    const V2: Files = Files {
        limit: "memory.max",
        usage: "memory.current",
        reclaimable: "inactive_file",
        mount: "sys/fs/cgroup",
    };
    const V1: Files = Files {
        limit: "memory.limit_in_bytes",
        usage: "memory.usage_in_bytes",
        reclaimable: "total_inactive_file",
        mount: "sys/fs/cgroup/memory",
    };
    let groups = std::fs::read_to_string(root.join("proc/self/cgroup")).unwrap_or_default();
    let mut limits = Vec::new();
    // "ID:controllers:path"; version 2 has the id 0 and names no controllers.
    for line in groups.lines() {
        let mut fields = line.splitn(3, ':');
        let (Some(id), Some(controllers), Some(path)) = (fields.next(), fields.next(), fields.next()) else {
            continue;
        };
        let files = match (id, controllers) {
            ("0", "") => &V2,
            (_, list) if list.split(',').any(|c| c == "memory") => &V1,
            _ => continue,
        };
        limits.extend(files.limits(root, path, machine_bytes));
    }
    limits
}

/// What `ulimit -d` leaves this process of its own memory. One that is at its limit is refused memory, and
/// ends.
pub(super) fn data_limit(root: &Path) -> Option<Memory> {
    let limits = std::fs::read_to_string(root.join("proc/self/limits")).ok()?;
    let soft = limits.lines().find_map(|line| line.strip_prefix("Max data size"))?;
    let total_bytes = soft.split_whitespace().next()?.parse().ok()?; // "unlimited" is no number
    let status = std::fs::read_to_string(root.join("proc/self/status")).unwrap_or_default();
    let used = status.lines().find_map(|line| line.strip_prefix("VmData:"));
    let used: Option<u64> = used.and_then(|used| used.split_whitespace().next()?.parse().ok());
    let available_bytes = u64::saturating_sub(total_bytes, used.unwrap_or(0).saturating_mul(1024));
    Some(Memory { total_bytes, available_bytes })
}

/// What one version of cgroups calls things.
struct Files {
    mount: &'static str,
    limit: &'static str,
    usage: &'static str,
    /// Line of `memory.stat`: page cache that is counted as used but given back at once.
    reclaimable: &'static str,
}

impl Files {
    /// From `path` up to the mount. In a container the path may lie outside what is mounted: only the mount
    /// is there.
    fn limits(&self, root: &Path, path: &str, machine_bytes: u64) -> Vec<Memory> {
        let mount = root.join(self.mount);
        let relative = Path::new(path.trim_start_matches('/'));
        let inside = relative.components().all(|part| matches!(part, std::path::Component::Normal(_)));
        let relative = if inside { relative } else { Path::new("") };
        let limits = relative.ancestors().map(|group| self.limit_of(&mount.join(group), machine_bytes));
        limits.flatten().collect()
    }

    fn limit_of(&self, group: &Path, machine_bytes: u64) -> Option<Memory> {
        let number = |file: &str| -> Option<u64> {
            std::fs::read_to_string(group.join(file)).ok()?.trim().parse().ok() // "max" is no number: no limit
        };
        let total_bytes = number(self.limit).filter(|limit| *limit < machine_bytes)?;
        let used = number(self.usage).unwrap_or(0);
        let stat = std::fs::read_to_string(group.join("memory.stat")).unwrap_or_default();
        let reclaimable = stat.lines().find_map(|line| {
            let (key, value) = line.split_once(' ')?;
            (key == self.reclaimable).then(|| value.trim().parse::<u64>().ok())?
        });
        let held = used.saturating_sub(reclaimable.unwrap_or(0));
        Some(Memory { total_bytes, available_bytes: total_bytes.saturating_sub(held) })
    }
}

#[cfg(test)]
mod tests {
    const MEMINFO: &str = "MemTotal:       16000 kB\nMemFree:         1000 kB\nMemAvailable:    9000 kB\n";

    fn check(files: &[(&str, &str)]) -> Option<(u64, u64)> {
        let root = tempfile::tempdir().unwrap();
        for (path, text) in files {
            let path = root.path().join(path);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, text).unwrap();
        }
        crate::memory(root.path()).map(|m| (m.total_bytes, m.available_bytes))
    }

    #[test]
    fn a_limit_of_this_process_counts() {
        let limits = |soft: &str| {
            format!("Limit   Soft Limit   Hard Limit   Units\nMax data size   {soft}   unlimited   bytes\n")
        };
        let found = |soft: &str| {
            let status = ("proc/self/status", "VmPeak:\t 9 kB\nVmData:\t    1000 kB\n");
            check(&[("proc/meminfo", MEMINFO), ("proc/self/limits", &limits(soft)), status])
        };
        assert_eq!(found("4096000"), Some((4_096_000, 4_096_000 - 1_024_000)));
        assert_eq!(found("1024"), Some((1024, 0)));
        assert_eq!(found("unlimited"), Some((16000 << 10, 9000 << 10)));
    }

    #[test]
    fn without_groups_the_system_counts() {
        assert_eq!(check(&[("proc/meminfo", MEMINFO)]), Some((16000 << 10, 9000 << 10)));
        assert_eq!(check(&[("proc/meminfo", "MemTotal: 8 kB\nMemFree: 3 kB\n")]), Some((8 << 10, 3 << 10)));
        assert_eq!(check(&[]), None);
        assert_eq!(check(&[("proc/meminfo", "MemTotal: x kB\n")]), None);
    }

    #[test]
    fn the_tightest_group_of_version_2_counts_and_its_cache_is_free() {
        let files = [
            ("proc/meminfo", MEMINFO),
            ("proc/self/cgroup", "0::/outer/inner\n"),
            ("sys/fs/cgroup/outer/memory.max", "4096000\n"),
            ("sys/fs/cgroup/outer/memory.current", "3000000\n"),
            ("sys/fs/cgroup/outer/memory.stat", "anon 5\ninactive_file 1000000\n"),
            ("sys/fs/cgroup/outer/inner/memory.max", "max\n"),
        ];
        assert_eq!(check(&files), Some((4_096_000, 2_096_000)));
    }

    #[test]
    fn a_container_that_sees_only_its_mount_is_bounded_by_it() {
        let files = [
            ("proc/meminfo", MEMINFO),
            ("proc/self/cgroup", "0::/../../elsewhere\n"),
            ("sys/fs/cgroup/memory.max", "1000000\n"),
            ("sys/fs/cgroup/memory.current", "2000000\n"),
        ];
        assert_eq!(check(&files), Some((1_000_000, 0)));
    }

    #[test]
    fn version_1_counts_too_and_its_boundless_limit_changes_nothing() {
        let limit = |bytes| {
            check(&[
                ("proc/meminfo", MEMINFO),
                ("proc/self/cgroup", "7:cpu,cpuacct:/a\n4:memory:/a\n"),
                ("sys/fs/cgroup/memory/a/memory.limit_in_bytes", bytes),
                ("sys/fs/cgroup/memory/a/memory.usage_in_bytes", "1000\n"),
            ])
        };
        assert_eq!(limit("9223372036854771712\n"), Some((16000 << 10, 9000 << 10)));
        assert_eq!(limit("5000\n"), Some((5000, 4000)));
    }
}
