//! How files are laid out: one style of modules, comments that a window beside another shows whole.

use std::path::{Path, PathBuf};

use anyhow::Context;

/// rustfmt keeps code within it and leaves comments alone.
const COLUMNS_MAX: usize = 110;

/// Modules that are `x/mod.rs` instead of `x.rs` beside its folder, and comment lines that are too long.
pub fn untidy(files: &[PathBuf]) -> anyhow::Result<Vec<String>> {
    let mut complaints = Vec::new();
    for file in super::rust_files(files) {
        if is_old_style(file) {
            complaints.push(format!("{}: it is the `.rs` file beside its folder here", file.display()));
        }
        let text =
            std::fs::read_to_string(file).with_context(|| format!("cannot read {}", file.display()))?;
        let long = text.lines().enumerate().filter(|(_, line)| is_long_comment(line));
        complaints.extend(
            long.map(|(at, _)| format!("{}:{}: a comment past column {COLUMNS_MAX}", file.display(), at + 1)),
        );
    }
    Ok(complaints)
}

/// Helpers of test programs keep it: a file beside them would be a program of its own.
fn is_old_style(file: &Path) -> bool {
    file.ends_with("mod.rs") && file.components().any(|part| part.as_os_str() == "src")
}

/// Rows of tables, code and addresses cannot be broken.
fn is_long_comment(line: &str) -> bool {
    let Some(comment) = line.trim_start().strip_prefix("//") else { return false };
    let text = comment.trim_start_matches(['/', '!']);
    let is_whole = text.starts_with(" |") || text.starts_with("    ") || text.contains("://");
    line.chars().count() > COLUMNS_MAX && !is_whole
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_module_has_one_style_and_a_comment_an_end() {
        assert!(is_old_style(Path::new("crates/a/src/b/mod.rs")));
        assert!(!is_old_style(Path::new("crates/a/tests/common/mod.rs")));
        let words = "word ".repeat(30);
        assert!(is_long_comment(&format!("    /// {words}")));
        assert!(is_long_comment(&format!("//! {words}")));
        assert!(!is_long_comment(&format!("//! | {words} |")));
        assert!(!is_long_comment(&format!("//! see https://{}", "x".repeat(120))));
        assert!(!is_long_comment("// short"));
        assert!(!is_long_comment(&format!("let text = \"{words}\";")));
    }
}
