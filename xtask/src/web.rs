//! `cargo xtask web`: the page, from `dashboard/` into the folder of the server that is built into the
//! program.
//!
//! npm runs here and nowhere else: building Rust needs no Node and no network. What is built is not
//! committed.

mod licences;
mod stamp;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, bail};

use crate::{run, setup};

/// The page's sources.
pub const SOURCES: &str = "dashboard";
/// Where Vite leaves what it has built.
const BUILT: &str = "dashboard/dist";
/// What the server has built in, and reads in debug builds.
pub const BUNDLE: &str = "crates/server/dashboard";
/// Of what the files in [`BUNDLE`] were made.
const STAMP: &str = "crates/server/dashboard/.stamp";
/// All files, as they are before compression.
const BUNDLE_BYTES_MAX: u64 = 1_500_000;
/// What a first look loads, compressed.
const FIRST_BYTES_MAX: u64 = 150_000;

/// Compresses each file that gets smaller by it. Node is there, and its zlib is the same everywhere.
const COMPRESS: &str = "const fs = require('fs'), zlib = require('zlib');\
    for (const name of process.argv.slice(1)) {\
      const bytes = fs.readFileSync(name), small = zlib.gzipSync(bytes, { level: 9 });\
      if (small.length < bytes.length) fs.writeFileSync(name + '.gz', small);\
    }";

/// Checks, tests and builds the page, unless that was done for these sources; with `quick` it is only built.
pub fn run(quick: bool) -> anyhow::Result<()> {
    if quick {
        npm(&["run", "--silent", "build"])?;
        return bundle(None);
    }
    let stamp =
        stamp::of(&[SOURCES, "openapi.json", "docs/runbook.md", "xtask/src/web.rs", "xtask/src/web"])?;
    if fs::read_to_string(STAMP).is_ok_and(|done| done == stamp) {
        eprintln!("web: the page is built from these sources already");
        return Ok(());
    }
    setup::for_web()?;
    npm(&["ci", "--no-audit", "--no-fund", "--loglevel=error"])?;
    licences::check_lockfile(&Path::new(SOURCES).join("package-lock.json"))?;
    for script in ["check", "test", "build"] {
        npm(&["run", "--silent", script])?;
    }
    licences::check_bundled(&Path::new(BUILT).join("licences.json"))?;
    bundle(Some(&stamp))
}

/// Runs npm in the page's folder.
fn npm(args: &[&str]) -> anyhow::Result<()> {
    run::succeed(Command::new(npm_program()).args(args).current_dir(SOURCES))
}

/// On Windows npm is a script, which only its whole name starts.
fn npm_program() -> &'static str {
    if std::env::consts::OS == "windows" { "npm.cmd" } else { "npm" }
}

/// Puts what was built in the place of what is there, with its compressed twins.
fn bundle(stamp: Option<&str>) -> anyhow::Result<()> {
    let bundle = Path::new(BUNDLE);
    for name in files(bundle)? {
        if name != Path::new(".gitignore") {
            let path = bundle.join(&name);
            fs::remove_file(&path).with_context(|| format!("cannot remove {}", path.display()))?;
        }
    }
    let names = files(Path::new(BUILT))?;
    if !names.contains(&PathBuf::from("index.html")) {
        bail!("the build has left no index.html in {BUILT}");
    }
    for name in &names {
        let (from, to) = (Path::new(BUILT).join(name), bundle.join(name));
        let folder = to.parent().unwrap_or(bundle);
        fs::create_dir_all(folder).with_context(|| format!("cannot make {}", folder.display()))?;
        fs::copy(&from, &to).with_context(|| format!("cannot copy {}", from.display()))?;
    }
    let compressible = names.iter().filter(|name| is_text(name));
    let paths: Vec<String> = compressible.map(|name| bundle.join(name).display().to_string()).collect();
    let mut args = vec!["--eval", COMPRESS, "--"];
    args.extend(paths.iter().map(String::as_str));
    run::command("node", &args)?;
    check_sizes(bundle, &names)?;
    if let Some(stamp) = stamp {
        fs::write(STAMP, stamp).with_context(|| format!("cannot write {STAMP}"))?;
    }
    Ok(())
}

fn is_text(name: &Path) -> bool {
    let extension = name.extension().and_then(|extension| extension.to_str());
    extension.is_some_and(|extension| ["html", "js", "css", "svg", "json", "txt"].contains(&extension))
}

/// Holds the page against its bounds: all of it, and what the browser needs before it shows anything.
fn check_sizes(bundle: &Path, names: &[PathBuf]) -> anyhow::Result<()> {
    let size = |path: &Path| fs::metadata(path).map(|about| about.len()).unwrap_or(0);
    let all: u64 = names.iter().map(|name| size(&bundle.join(name))).sum();
    let index = fs::read_to_string(bundle.join("index.html")).context("cannot read the page's index.html")?;
    let first = first_loads(&index);
    if first.is_empty() {
        bail!("the page's index.html loads nothing from /assets/");
    }
    let first: u64 = first.iter().map(|name| size(&bundle.join(format!("{name}.gz")))).sum();
    eprintln!(
        "web: {} files, {all} bytes; {first} bytes of scripts and styles at first, compressed",
        names.len()
    );
    if all > BUNDLE_BYTES_MAX || first > FIRST_BYTES_MAX {
        bail!("the page may have {BUNDLE_BYTES_MAX} bytes in all and load {FIRST_BYTES_MAX} at first");
    }
    Ok(())
}

/// Scripts and styles that the page names itself, as paths within the bundle.
fn first_loads(index: &str) -> Vec<&str> {
    let attributes = index.split(['"', '\'']).filter_map(|value| value.strip_prefix('/'));
    attributes.filter(|name| name.starts_with("assets/")).collect()
}

/// All files below a folder, by their paths within it, sorted.
fn files(root: &Path) -> anyhow::Result<Vec<PathBuf>> {
    fn below(root: &Path, at: &Path, found: &mut Vec<PathBuf>) -> std::io::Result<()> {
        for entry in fs::read_dir(root.join(at))? {
            let entry = entry?;
            let name = at.join(entry.file_name());
            if entry.file_type()?.is_dir() { below(root, &name, found)? } else { found.push(name) }
        }
        Ok(())
    }
    let mut found = Vec::new();
    below(root, Path::new(""), &mut found).with_context(|| format!("cannot list {}", root.display()))?;
    found.sort();
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_first_look_loads_is_what_the_page_names() {
        let index = r#"<link rel="icon" href="/icon.svg"><script type="module" crossorigin src="/assets/i-1.js"></script>
            <link rel="modulepreload" crossorigin href="/assets/v-2.js"><link rel="stylesheet" href="/assets/i-3.css">"#;
        assert_eq!(first_loads(index), ["assets/i-1.js", "assets/v-2.js", "assets/i-3.css"]);
    }
}
