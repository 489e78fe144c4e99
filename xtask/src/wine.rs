//! `cargo xtask wine`: the tests of the list of cards and of the local channel for Windows, run under Wine.
//!
//! Wine is not Windows: that something runs here shows that the calls are put together rightly, not what
//! Windows answers. No part of `cargo xtask test`.

use std::path::Path;
use std::process::Command;

use anyhow::Context;

use crate::portability::Compiler;
use crate::{run, setup};

const TARGET: &str = "x86_64-pc-windows-gnu";
const GCC: &str = "x86_64-w64-mingw32-gcc";
const SOURCES: &str = "xtask/src/wine";
/// What runs. Of the other tests of `exo-device` some take a system whose files are Linux's.
const TESTS: [&[&str]; 2] = [
    &["--package", "exo-local-channel", "--lib", "--test", "channel"],
    &["--package", "exo-device", "--test", "windows"],
];

/// Builds the tests and what they need, and runs them.
pub fn run() -> anyhow::Result<()> {
    setup::for_wine()?;
    let compiler = Compiler::find()?;
    let target = run::target_dir()?;
    let aids = target.join("wine");
    std::fs::create_dir_all(&aids).with_context(|| format!("cannot make {}", aids.display()))?;
    compile(&aids, "random.c", &["-shared", "-o", "bcryptprimitives.dll"], "-ladvapi32")?;
    compile(&aids, "cards.c", &["-municode", "-o", "cards.exe"], "-lsetupapi")?;
    start_objects(&compiler, &aids)?;
    TESTS.iter().try_for_each(|tests| test(&compiler, tests, &target, &aids))
}

fn test(compiler: &Compiler, tests: &[&str], target: &Path, aids: &Path) -> anyhow::Result<()> {
    let flags = format!("-Lnative={}", aids.display());
    let mut command = compiler.cargo();
    command
        .args(["test", "-Zbuild-std", "--target", TARGET])
        .args(tests)
        .args(["--", "--nocapture"])
        .env("CARGO_TARGET_DIR", target.join("portability"))
        .env("CARGO_TARGET_X86_64_PC_WINDOWS_GNU_RUNNER", setup::WINE)
        .env("CARGO_TARGET_X86_64_PC_WINDOWS_GNU_RUSTFLAGS", flags)
        .env("EXO_PLAY_CARDS", aids.join("cards.exe"))
        // A Windows of its own, where our library is found and nobody's cards are.
        .env("WINEPREFIX", aids.join("prefix"))
        .env("WINEPATH", aids)
        .env("WINEDEBUG", "-all")
        .env_remove("DISPLAY");
    run::succeed(&mut command)
}

/// Makes what `output` ends with, in the folder of aids.
fn compile(aids: &Path, source: &str, output: &[&str], library: &str) -> anyhow::Result<()> {
    let source = std::path::absolute(Path::new(SOURCES).join(source))?;
    let mut command = Command::new(GCC);
    command.current_dir(aids).args(["-O1", "-Wall", "-Werror"]).args(output).arg(source).arg(library);
    run::succeed(&mut command)
}

/// What stands at the beginning and end of each program for this target: it comes with a compiled standard
/// library, not with its source.
fn start_objects(compiler: &Compiler, aids: &Path) -> anyhow::Result<()> {
    for name in ["rsbegin", "rsend"] {
        let source = compiler.std_source().join("rtstartup").join(name).with_extension("rs");
        let mut command = compiler.rustc();
        command.args(["--target", TARGET, "--crate-type", "lib", "--emit", "obj", "-o"]);
        run::succeed(command.arg(aids.join(name).with_extension("o")).arg(source))?;
    }
    Ok(())
}
