//! What the page is made of, as one line: the same line, the same page.

use std::collections::hash_map::DefaultHasher;
use std::hash::{Hash, Hasher};
use std::path::Path;

use anyhow::Context;

use crate::run;

/// Of all files below these paths that git does not ignore, with their names, and of the Node that builds
/// them.
pub fn of(paths: &[&str]) -> anyhow::Result<String> {
    let mut args =
        vec!["ls-files", "-z", "--cached", "--others", "--exclude-standard", "--deduplicate", "--"];
    args.extend(paths);
    let listed = run::output("git", &args)?;
    let mut hasher = DefaultHasher::new();
    let mut count = 0;
    for name in listed.split('\0').filter(|name| !name.is_empty() && Path::new(name).is_file()) {
        let bytes = std::fs::read(name).with_context(|| format!("cannot read {name}"))?;
        (name, bytes).hash(&mut hasher);
        count += 1;
    }
    let node = run::output("node", &["--version"]).unwrap_or_default();
    Ok(format!("{:016x} of {count} files, node {}\n", hasher.finish(), node.trim()))
}
