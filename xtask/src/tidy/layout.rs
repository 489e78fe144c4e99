//! How files are laid out: one style of modules.

use std::path::{Path, PathBuf};

/// Modules that are `x/mod.rs` instead of `x.rs` beside its folder.
pub fn untidy(files: &[PathBuf]) -> Vec<String> {
    let old = super::rust_files(files).filter(|file| is_old_style(file));
    old.map(|file| format!("{}: it is the `.rs` file beside its folder here", file.display())).collect()
}

/// Helpers of test programs keep it: a file beside them would be a program of its own.
fn is_old_style(file: &Path) -> bool {
    file.ends_with("mod.rs") && file.components().any(|part| part.as_os_str() == "src")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_module_has_one_style() {
        assert!(is_old_style(Path::new("crates/a/src/b/mod.rs")));
        assert!(!is_old_style(Path::new("crates/a/tests/common/mod.rs")));
    }
}
