//! Running other programs, and finding our own folders.

use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus, Stdio};

use anyhow::{Context, bail};

/// Makes the workspace root the current folder, wherever the command was called from.
pub fn enter_workspace() -> anyhow::Result<()> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().context("xtask lies in no workspace")?;
    std::env::set_current_dir(root).with_context(|| format!("cannot enter {}", root.display()))
}

/// Runs cargo, the one that runs us, and fails when it fails.
pub fn cargo(args: &[&str]) -> anyhow::Result<()> {
    command(&cargo_program(), args)
}

/// The cargo that runs us.
pub fn cargo_program() -> String {
    std::env::var("CARGO").unwrap_or_else(|_| "cargo".to_owned())
}

/// Runs a program with our terminal and fails when it fails.
pub fn command(program: &str, args: &[&str]) -> anyhow::Result<()> {
    succeed(Command::new(program).args(args))
}

/// The same for one that also has a folder or variables of its own.
pub fn succeed(command: &mut Command) -> anyhow::Result<()> {
    let status = status(command)?;
    if !status.success() {
        let words = [command.get_program()].into_iter().chain(command.get_args());
        let words: Vec<_> = words.map(|word| word.to_string_lossy()).collect();
        bail!("`{}` failed: {status}", words.join(" "));
    }
    Ok(())
}

/// Runs a program with our terminal; how it ended.
pub fn status(command: &mut Command) -> anyhow::Result<ExitStatus> {
    let status = command.stdin(Stdio::null()).status();
    status.with_context(|| format!("cannot start `{}`", command.get_program().display()))
}

/// Runs a program and gives what it printed.
pub fn output(program: &str, args: &[&str]) -> anyhow::Result<String> {
    let out = Command::new(program).args(args).stdin(Stdio::null()).output();
    let out = out.with_context(|| format!("cannot start `{program}`"))?;
    if !out.status.success() {
        bail!("`{program} {}` failed: {}", args.join(" "), String::from_utf8_lossy(&out.stderr).trim());
    }
    Ok(String::from_utf8_lossy(&out.stdout).into_owned())
}

/// The text of a file.
pub fn read(path: impl AsRef<Path>) -> anyhow::Result<String> {
    let path = path.as_ref();
    std::fs::read_to_string(path).with_context(|| format!("cannot read {}", path.display()))
}

/// Whether a program is on the PATH, or a file at a whole path.
pub fn has(program: &str) -> bool {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let sbin = ["/usr/sbin", "/sbin"].map(PathBuf::from);
    std::env::split_paths(&path).chain(sbin).any(|dir| dir.join(program).exists())
}

/// Where cargo builds.
pub fn target_dir() -> anyhow::Result<PathBuf> {
    let metadata = metadata(true)?;
    let dir = metadata["target_directory"].as_str().context("cargo metadata names no target directory")?;
    Ok(PathBuf::from(dir))
}

/// `cargo metadata` as JSON.
pub fn metadata(no_deps: bool) -> anyhow::Result<serde_json::Value> {
    let mut args = vec!["metadata", "--format-version", "1"];
    if no_deps {
        args.push("--no-deps");
    }
    Ok(serde_json::from_str(&output(&cargo_program(), &args)?)?)
}

/// Our own program's release build.
pub fn release_binary() -> anyhow::Result<PathBuf> {
    Ok(target_dir()?.join("release").join(format!("exo{}", std::env::consts::EXE_SUFFIX)))
}
