//! `cargo xtask soundness`: the tests of the CPU kernels under AddressSanitizer and Miri, both of Rust's
//! nightly compiler.
//!
//! AddressSanitizer sees the loads and stores of the vector kernels that this processor runs; it does not see
//! one that strays into a neighbour within a mapping of `memory`, so kernels are tested on vectors of their
//! own as well. Miri interprets the plain kernels, the packing and the thread pool, and sees undefined
//! behaviour of any kind and data races. No part of `cargo xtask test`: neither is in the stable compiler.

use std::path::Path;
use std::process::Command;

use anyhow::Context;
use clap::ValueEnum;

use crate::run;

/// What looks at the kernels.
#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Checker {
    Asan,
    Miri,
}

/// What Miri interprets within an hour.
const INTERPRETED: [&str; 6] = ["packed::", "products::", "pool::", "rounded::", "quant::", "simd::pairs::"];

/// Runs one of them, or both.
pub fn run(only: Option<Checker>) -> anyhow::Result<()> {
    let version = run::output("rustc", &["+nightly", "-vV"]).context(
        "this needs rustup's nightly compiler: rustup toolchain install nightly --component miri,rust-src",
    )?;
    let host = version.lines().find_map(|line| line.strip_prefix("host: ")).context("rustc tells no host")?;
    let target = run::target_dir()?.join("soundness");
    if only != Some(Checker::Miri) {
        let mut tests = nightly(&target, &["test", "--lib", "--tests", "--target", host]);
        finish("AddressSanitizer", tests.env("RUSTFLAGS", "-Zsanitizer=address"))?;
    }
    if only != Some(Checker::Asan) {
        let mut tests = nightly(&target, &["miri", "test", "--lib", "--"]);
        // Clocks, threads' names and the number of cores come from the machine.
        finish("Miri", tests.args(INTERPRETED).env("MIRIFLAGS", "-Zmiri-disable-isolation"))?;
    }
    Ok(())
}

fn nightly(target: &Path, words: &[&str]) -> Command {
    let mut command = Command::new("cargo");
    let split = words.iter().position(|word| word.starts_with('-')).unwrap_or(words.len());
    command
        .arg("+nightly")
        .args(&words[..split])
        .args(["--package", "exo-backend-cpu"])
        .args(&words[split..]);
    command.env("CARGO_TARGET_DIR", target);
    command
}

fn finish(name: &str, command: &mut Command) -> anyhow::Result<()> {
    eprintln!("the kernels under {name}");
    run::succeed(command)
}
