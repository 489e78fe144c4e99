use std::path::Path;

pub(super) fn name(root: &Path) -> Option<String> {
    let text = std::fs::read_to_string(root.join("proc/cpuinfo")).ok()?;
    // x86 says "model name"; boards with an ARM processor often say "Model" or "Hardware" at the end.
    ["model name", "Model", "Hardware"].into_iter().find_map(|key| {
        let line = text.lines().find(|line| line.split(':').next().is_some_and(|k| k.trim() == key))?;
        Some(line.split_once(':')?.1.trim().to_owned())
    })
}

#[cfg(test)]
mod tests {
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
