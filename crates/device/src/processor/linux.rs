use std::collections::BTreeMap;
use std::path::Path;

use crate::CoreList;

pub(super) fn name(root: &Path) -> Option<String> {
    let text = std::fs::read_to_string(root.join("proc/cpuinfo")).ok()?;
    // x86 says "model name"; boards with an ARM processor often say "Model" or "Hardware" at the end.
    ["model name", "Model", "Hardware"].into_iter().find_map(|key| {
        let line = text.lines().find(|line| line.split(':').next().is_some_and(|k| k.trim() == key))?;
        Some(line.split_once(':')?.1.trim().to_owned())
    })
}

/// Of several with a cache of their own the sum: threads move between them.
pub(super) fn last_cache_bytes(root: &Path) -> Option<u64> {
    let cores = CoreList::allowed().ok()?;
    let caches = cores.numbers().iter().filter_map(|core| last_cache(root, *core));
    // By those that share it.
    Some(caches.collect::<BTreeMap<String, u64>>().into_values().fold(0, u64::saturating_add))
}

/// Who shares the last cache of a core, and its bytes.
fn last_cache(root: &Path, core: usize) -> Option<(String, u64)> {
    let folder = root.join(format!("sys/devices/system/cpu/cpu{core}/cache"));
    let caches = std::fs::read_dir(folder).ok()?.filter_map(|entry| {
        let path = entry.ok()?.path();
        let read = |name: &str| Some(std::fs::read_to_string(path.join(name)).ok()?.trim().to_owned());
        let level: u32 = read("level")?.parse().ok()?;
        let kib: u64 = read("size")?.strip_suffix('K')?.parse().ok()?;
        Some((level, read("shared_cpu_list")?, kib.checked_mul(1024)?))
    });
    let (_, shared, bytes) = caches.max_by_key(|(level, ..)| *level)?;
    Some((shared, bytes))
}

#[cfg(test)]
mod tests {
    fn cache(root: &std::path::Path, core: usize, index: usize, [level, size, shared]: [&str; 3]) {
        let folder = root.join(format!("sys/devices/system/cpu/cpu{core}/cache/index{index}"));
        std::fs::create_dir_all(&folder).unwrap();
        for (name, text) in [("level", level), ("size", size), ("shared_cpu_list", shared)] {
            std::fs::write(folder.join(name), format!("{text}\n")).unwrap();
        }
    }

    #[test]
    fn the_last_caches_count_once_for_those_that_share_them() {
        let root = tempfile::tempdir().unwrap();
        let last = || crate::processor::last_cache_bytes(root.path());
        assert_eq!(last(), None, "a system that names none");
        let cores = crate::CoreList::allowed().unwrap();
        for core in cores.numbers() {
            cache(root.path(), *core, 0, ["1", "48K", &core.to_string()]);
            cache(root.path(), *core, 3, ["3", "491520K", "0-63"]);
        }
        assert_eq!(last(), Some(480 << 20));
        for core in cores.numbers() {
            cache(root.path(), *core, 3, ["3", "32768K", &core.to_string()]);
        }
        assert_eq!(last(), Some((32 << 20) * cores.numbers().len() as u64), "of each core its own");
        cache(root.path(), cores.numbers()[0], 3, ["3", "much", "0"]);
        assert!(last().is_some(), "what is no number is passed over");
    }

    fn name_in(cpuinfo: &str) -> Option<String> {
        let root = tempfile::tempdir().unwrap();
        std::fs::create_dir(root.path().join("proc")).unwrap();
        std::fs::write(root.path().join("proc/cpuinfo"), cpuinfo).unwrap();
        crate::processor_name(root.path())
    }

    #[test]
    fn the_name_comes_from_cpuinfo() {
        let x86 = "processor\t: 0\nmodel\t\t: 85\nmodel name\t: Some CPU @ 2.10GHz\n";
        assert_eq!(name_in(x86).as_deref(), Some("Some CPU @ 2.10GHz"));
        let arm = "processor\t: 0\nBogoMIPS\t: 108.00\n\nModel\t\t: Raspberry Pi 5\n";
        assert_eq!(name_in(arm).as_deref(), Some("Raspberry Pi 5"));
        assert_eq!(name_in("model name\t:\n"), None);
        assert_eq!(name_in(""), None);
    }
}
