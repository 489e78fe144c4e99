//! Checks the licence of every dependency against what DESIGN section 3 allows. See decision 0005.

use anyhow::bail;

use crate::run;

/// Permissive licences we accept, by SPDX name.
const ALLOWED: &[&str] = &[
    "MIT",
    "MIT-0",
    "Apache-2.0",
    "Apache-2.0 WITH LLVM-exception",
    "BSD-2-Clause",
    "BSD-3-Clause",
    "BSL-1.0",
    "CC0-1.0",
    "ISC",
    "Zlib",
    "0BSD",
    "Unlicense",
    "Unicode-3.0",
    "CDLA-Permissive-2.0",
];

/// Fails with the packages whose licence is not allowed.
pub fn run() -> anyhow::Result<()> {
    let metadata = run::metadata(false)?;
    let empty = Vec::new();
    let packages = metadata["packages"].as_array().unwrap_or(&empty);
    let mut bad = Vec::new();
    for package in packages {
        let licence = package["license"].as_str().unwrap_or("none stated");
        if !allowed(licence) {
            bad.push(format!("  {} {}: {licence}", package["name"], package["version"]));
        }
    }
    if packages.is_empty() {
        bail!("cargo metadata lists no package");
    }
    if !bad.is_empty() {
        bail!("these licences are not on the list in xtask/src/licences.rs\n{}", bad.join("\n"));
    }
    eprintln!("licences: {} packages, all allowed", packages.len());
    Ok(())
}

/// Whether an SPDX expression can be met with allowed licences: `OR` needs one side, `AND` both.
pub fn allowed(expression: &str) -> bool {
    let text = expression.trim().replace('/', " OR ");
    let text = text.trim();
    if let Some((left, right)) = split(text, " AND ") {
        return allowed(left) && allowed(right);
    }
    if let Some((left, right)) = split(text, " OR ") {
        return allowed(left) || allowed(right);
    }
    match text.strip_prefix('(').and_then(|t| t.strip_suffix(')')) {
        Some(inner) => allowed(inner),
        None => ALLOWED.contains(&text),
    }
}

/// Splits at the first operator outside parentheses.
fn split<'a>(text: &'a str, operator: &str) -> Option<(&'a str, &'a str)> {
    let mut depth = 0;
    for (i, c) in text.char_indices() {
        match c {
            '(' => depth += 1,
            ')' => depth -= 1,
            _ if depth == 0 && text[i..].starts_with(operator) => {
                return Some((&text[..i], &text[i + operator.len()..]));
            }
            _ => {}
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::allowed;

    #[test]
    fn expressions_are_read_as_spdx_means_them() {
        assert!(allowed("MIT OR Apache-2.0"));
        assert!(allowed("GPL-3.0 OR MIT"));
        assert!(allowed("MIT/Apache-2.0"));
        assert!(allowed("(MIT OR Apache-2.0) AND Unicode-3.0"));
        assert!(!allowed("MIT AND GPL-3.0"));
        assert!(!allowed("none stated"));
    }
}
