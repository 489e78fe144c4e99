//! `cargo xtask portability`: type-checks for systems that this machine is not, their standard library
//! included.
//!
//! A check shows that every file of a system's own compiles; nothing is linked or run. Takes minutes a
//! system, so it is no part of `cargo xtask test`; its result and date are written to docs/platforms.md.

use std::fmt::Write as _;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::time::Instant;

use anyhow::{Context, bail};

use crate::{graph, page, run, setup};

const PAGE: &str = "docs/platforms.md";
const BEGIN: &str = "<!-- portability: written by `cargo xtask portability` -->";
const END: &str = "<!-- portability: end -->";
/// A compiler whose folder has the source of the standard library, where there is no nightly one from rustup.
const COMPILER: &str = "EXO_PORTABILITY_RUSTC";
/// Below the compiler's folder.
const STD: &str = "lib/rustlib/src/rust/library";

/// The last of what is checked for every system.
const ENGINE: &str = "exo-engine";
/// What stands before it in the list of rooms and has to do with networks and files of others.
const NOT_BELOW: [&str; 6] =
    ["exo-api", "exo-local-channel", "exo-transport", "exo-discovery", "exo-store", "exo-journal"];

/// `engine` and what is below.
fn engine_and_below() -> impl Iterator<Item = &'static str> {
    let end = graph::ORDER.iter().position(|name| *name == ENGINE).map_or(0, |position| position + 1);
    graph::ORDER[..end].iter().copied().filter(|name| !NOT_BELOW.contains(name))
}

struct System {
    name: &'static str,
    target: &'static str,
    /// Whether all of the workspace; else [`engine_and_below`].
    whole: bool,
}

const SYSTEMS: [System; 4] = [
    System { name: "Windows", target: "x86_64-pc-windows-gnu", whole: true },
    System { name: "macOS", target: "aarch64-apple-darwin", whole: false },
    System { name: "iOS", target: "aarch64-apple-ios", whole: false },
    System { name: "Android", target: "aarch64-linux-android", whole: false },
];

/// Checks the systems whose name or target contains one of `only`; all of them without.
pub fn run(only: &[String]) -> anyhow::Result<()> {
    let is_asked = |system: &&System| {
        only.is_empty() || only.iter().any(|word| system.target.contains(word) || system.name.contains(word))
    };
    let systems: Vec<_> = SYSTEMS.iter().filter(is_asked).collect();
    if systems.is_empty() {
        bail!("no system is called {}: there are {}", only.join(" or "), SYSTEMS.map(|s| s.name).join(", "));
    }
    if systems.iter().any(|system| system.whole) {
        setup::for_windows()?;
    }
    let compiler = Compiler::find()?;
    let mut failed = Vec::new();
    for system in systems {
        eprintln!("checking for {} ({})", system.name, system.target);
        let began = Instant::now();
        let result = compiler.check(system)?;
        eprintln!("{}: {} after {} s", system.name, result.text(), began.elapsed().as_secs());
        record(system, &result, &compiler.version)?;
        failed.extend((!result.passed()).then_some(system.name));
    }
    if failed.is_empty() { Ok(()) } else { bail!("does not compile for {}", failed.join(", ")) }
}

/// What a check said.
struct Checked {
    errors: usize,
}

impl Checked {
    fn passed(&self) -> bool {
        self.errors == 0
    }

    fn text(&self) -> String {
        match self.errors {
            0 => "compiles".to_owned(),
            errors => format!("**does not compile**, {errors} errors"),
        }
    }
}

/// A compiler that can make the standard library for other systems.
pub(crate) struct Compiler {
    program: Option<String>,
    version: String,
    sysroot: PathBuf,
}

impl Compiler {
    /// The one that is named, else rustup's nightly with its source.
    pub(crate) fn find() -> anyhow::Result<Self> {
        let named = std::env::var(COMPILER).ok();
        let (program, before): (&str, &[&str]) = match &named {
            Some(path) => (path, &[]),
            None => ("rustc", &["+nightly"]),
        };
        let ask = |question: &[&str]| run::output(program, &[before, question].concat());
        let wanted = format!(
            "the standard library must be compiled for each system: `rustup toolchain install nightly --component \
             rust-src`, or name a compiler that has its source with {COMPILER} ({PAGE} tells how to make one of Debian's packages)"
        );
        let sysroot = ask(&["--print", "sysroot"]).with_context(|| wanted.clone())?;
        let sysroot = PathBuf::from(sysroot.trim());
        if !sysroot.join(STD).join("std").is_dir() {
            bail!("{} has no source of the standard library: {wanted}", sysroot.display());
        }
        let version = ask(&["--version"])?;
        let version = version.split_whitespace().nth(1).unwrap_or_default().to_owned();
        Ok(Self { program: named, version, sysroot })
    }

    /// Where the source of the standard library is.
    pub(crate) fn std_source(&self) -> PathBuf {
        self.sysroot.join(STD)
    }

    /// The compiler itself, allowed what nightly ones are.
    pub(crate) fn rustc(&self) -> Command {
        let named = self.program.as_ref().map(PathBuf::from);
        let mut command = Command::new(named.unwrap_or_else(|| self.sysroot.join("bin/rustc")));
        command.env("RUSTC_BOOTSTRAP", "1");
        command
    }

    /// Its cargo.
    pub(crate) fn cargo(&self) -> Command {
        match &self.program {
            Some(program) => {
                let mut command = Command::new(run::cargo_program());
                command.env("RUSTC", program).env("RUSTC_BOOTSTRAP", "1");
                command
            }
            None => {
                // Set by the cargo that runs us, they would choose its toolchain again.
                let mut command = Command::new("cargo");
                command
                    .env_remove("RUSTUP_TOOLCHAIN")
                    .env_remove("CARGO")
                    .env_remove("RUSTC")
                    .arg("+nightly");
                command
            }
        }
    }

    fn check(&self, system: &System) -> anyhow::Result<Checked> {
        let folder = run::target_dir()?.join("portability");
        let mut command = self.cargo();
        command.args(["check", "-Zbuild-std=std,panic_abort", "--keep-going", "--target", system.target]);
        if system.whole {
            command.args(["--workspace", "--exclude", "xtask"]);
        } else {
            command.args(engine_and_below().flat_map(|name| ["--package", name]));
        }
        if !system.whole {
            // blake3's build script then leaves out its C, for which there is no compiler here.
            command.env("CARGO_FEATURE_PURE", "1");
        }
        let output = command
            .env("CARGO_TARGET_DIR", &folder)
            .stdin(Stdio::null())
            .output()
            .context("cannot start cargo")?;
        let text = String::from_utf8_lossy(&output.stderr);
        let log = folder.join(format!("{}.log", system.target));
        std::fs::write(&log, &*text).with_context(|| format!("cannot write {}", log.display()))?;
        if output.status.success() {
            return Ok(Checked { errors: 0 });
        }
        let errors = errors(&text);
        eprintln!(
            "{}\nall of it is in {}",
            errors.iter().take(20).copied().collect::<Vec<_>>().join("\n"),
            log.display()
        );
        Ok(Checked { errors: errors.len().max(1) })
    }
}

/// The first lines of cargo's complaints.
fn errors(text: &str) -> Vec<&str> {
    let is_error = |line: &&str| line.starts_with("error") && !line.starts_with("error: could not compile");
    text.lines().filter(is_error).collect()
}

/// Puts a system's row into the page; the rows of others stay.
fn record(system: &System, checked: &Checked, compiler: &str) -> anyhow::Result<()> {
    let date = run::output("date", &["+%F"])?;
    let what = if system.whole { "the whole workspace" } else { "`engine` and what is below" };
    let row = format!(
        "| {} | `{}` | {what} | {} | {compiler} | {} |",
        system.name,
        system.target,
        checked.text(),
        date.trim()
    );
    page::rewrite(PAGE, (BEGIN, END), false, |table| with_row(table, system.target, &row)).map(drop)
}

fn with_row(table: &str, target: &str, row: &str) -> String {
    let old =
        |target: &str| table.lines().find(|line| line.contains(&format!("`{target}`"))).map(str::to_owned);
    let mut text =
        "| system | target | checked | result | rustc | date |\n|---|---|---|---|---|---|\n".to_owned();
    for system in &SYSTEMS {
        let line = if system.target == target { Some(row.to_owned()) } else { old(system.target) };
        line.into_iter().for_each(|line| {
            let _ = writeln!(text, "{line}");
        });
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_row_is_put_in_its_place_and_takes_that_of_the_one_before() {
        let apple = with_row("", "aarch64-apple-ios", "| `aarch64-apple-ios` | first |");
        let both = with_row(&apple, "x86_64-pc-windows-gnu", "| `x86_64-pc-windows-gnu` |");
        let again = with_row(&both, "aarch64-apple-ios", "| `aarch64-apple-ios` | second |");
        let rows =
            "|---|---|---|---|---|---|\n| `x86_64-pc-windows-gnu` |\n| `aarch64-apple-ios` | second |\n";
        assert!(again.ends_with(rows) && !again.contains("first"), "{again}");
    }

    #[test]
    fn what_is_below_the_engine_needs_no_network() {
        let checked: Vec<_> = engine_and_below().collect();
        assert!(checked.contains(&"exo-backend-wgpu") && checked.ends_with(&["exo-models", "exo-engine"]));
        assert!(NOT_BELOW.iter().all(|name| !checked.contains(name) && graph::ORDER.contains(name)));
    }

    #[test]
    fn complaints_are_counted_without_cargos_own() {
        let text = "   Compiling a\nerror[E0425]: cannot find `x`\n  --> y\nerror: could not compile `a`\n";
        assert_eq!(errors(text), ["error[E0425]: cannot find `x`"]);
    }
}
