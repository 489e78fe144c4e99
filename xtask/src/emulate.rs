//! `cargo xtask emulate`: the tests of the CPU kernels, executed on a processor that this machine is not.
//!
//! What a kernel computes can be checked this way, not how fast it is. Not part of CI: see docs/platforms.md.

mod bochs;
mod initramfs;

use std::path::PathBuf;
use std::process::{Command, Stdio};

use anyhow::{Context, bail};
use clap::Subcommand;

use crate::{run, setup};

const PACKAGE: &str = "exo-backend-cpu";
const NEON_TARGET: &str = "aarch64-unknown-linux-gnu";
/// Tests of what the machine gives and how fast it is: under qemu-user that is the emulator's answer.
const OF_THE_MACHINE: [&str; 2] =
    ["the_report_of_huge_pages_is_what_took_effect", "each_instruction_there_is_has_a_believable_peak"];

/// The processors that can be had.
#[derive(Subcommand)]
pub enum Machine {
    /// x86-64 with AVX-512 and VNNI: a small Linux in the Bochs emulator
    Avx512 {
        /// Only run the tests whose name contains this
        filter: Option<String>,
        /// Bochs 3 or newer, built with `--with-nogui` and without its debugger
        #[arg(long, env = "EXO_BOCHS", default_value = "bochs")]
        bochs: PathBuf,
        /// A Linux kernel image; Debian's cloud kernel is downloaded otherwise
        #[arg(long)]
        kernel: Option<PathBuf>,
        /// Give up after this long
        #[arg(long, default_value_t = 60)]
        minutes: u64,
        /// Only test programs whose name starts with this (`oracle`, `matmul`, `exo_backend_cpu`, …)
        #[arg(long)]
        program: Option<String>,
    },
    /// 64-bit Arm with dot product: qemu-user
    Neon {
        /// Only run the tests whose name contains this
        filter: Option<String>,
    },
}

/// Builds the tests for `machine` and runs them there.
pub fn run(machine: Machine) -> anyhow::Result<()> {
    match machine {
        Machine::Avx512 { filter, bochs, kernel, minutes, program } => {
            setup::for_bochs()?;
            let programs: Vec<_> = static_test_programs()?
                .into_iter()
                .filter(|path| program.as_ref().is_none_or(|p| bochs::name(path).starts_with(p)))
                .collect();
            if programs.is_empty() {
                bail!(
                    "{PACKAGE} has no test program whose name starts with `{}`",
                    program.unwrap_or_default()
                );
            }
            let kernel = kernel.map_or_else(debian_kernel, Ok)?;
            bochs::Boot { bochs, kernel, programs, filter, minutes }.run()
        }
        Machine::Neon { filter } => neon(filter.as_deref()),
    }
}

/// Where builds and images of this command lie.
fn folder() -> anyhow::Result<PathBuf> {
    let folder = run::target_dir()?.join("emulate");
    std::fs::create_dir_all(&folder).with_context(|| format!("cannot make {}", folder.display()))?;
    Ok(folder)
}

/// The test programs, optimised and without shared libraries: nothing else is in the emulated machine.
fn static_test_programs() -> anyhow::Result<Vec<PathBuf>> {
    let target = "x86_64-unknown-linux-gnu";
    let out = Command::new(run::cargo_program())
        .args(["test", "--release", "--no-run", "--package", PACKAGE, "--lib", "--tests"])
        .args(["--target", target, "--message-format", "json-render-diagnostics"])
        .arg("--target-dir")
        .arg(folder()?)
        .env("RUSTFLAGS", "-C target-feature=+crt-static -C strip=symbols")
        .stdin(Stdio::null())
        .stderr(Stdio::inherit())
        .output()
        .context("cannot start cargo")?;
    if !out.status.success() {
        bail!("the tests of {PACKAGE} could not be built for {target}: {}", out.status);
    }
    let messages = String::from_utf8_lossy(&out.stdout);
    let executable = |line: &str| {
        let message: serde_json::Value = serde_json::from_str(line).ok()?;
        message["executable"].as_str().map(PathBuf::from)
    };
    Ok(messages.lines().filter_map(executable).collect())
}

/// The kernel of Debian's cloud images, unpacked and not installed.
fn debian_kernel() -> anyhow::Result<PathBuf> {
    let folder = folder()?.join("kernel");
    let image = || -> Option<PathBuf> {
        let files = std::fs::read_dir(folder.join("boot")).ok()?;
        let names = files.flatten().map(|file| file.path());
        names.into_iter().find(|path| bochs::name(path).starts_with("vmlinuz"))
    };
    if let Some(found) = image() {
        return Ok(found);
    }
    // A metapackage: what it depends on is the kernel.
    let depends = run::output("apt-cache", &["depends", "linux-image-cloud-amd64"])?;
    let package = depends.lines().find_map(|line| line.trim().strip_prefix("Depends: "));
    let package =
        package.context("apt knows no linux-image-cloud-amd64: `apt-get update`, or use --kernel")?;
    std::fs::create_dir_all(&folder)?;
    let mut download = Command::new("apt-get");
    download.args(["download", package]).current_dir(&folder);
    run::succeed(&mut download).context("there is no kernel; use --kernel")?;
    let files = std::fs::read_dir(&folder)?.flatten().map(|file| file.path());
    let deb = files.into_iter().find(|path| path.extension().is_some_and(|e| e == "deb"));
    let deb = deb.context("apt-get downloaded no package")?;
    run::command("dpkg", &["-x", &deb.to_string_lossy(), &folder.to_string_lossy()])?;
    image().with_context(|| format!("{package} holds no boot/vmlinuz"))
}

/// Tests of every thread count and size, under qemu-user with all instructions it knows.
fn neon(filter: Option<&str>) -> anyhow::Result<()> {
    setup::for_neon()?;
    let rustc = std::env::var("RUSTC").unwrap_or_else(|_| "rustc".to_owned());
    let library = run::output(&rustc, &["--print", "target-libdir", "--target", NEON_TARGET])?;
    if !PathBuf::from(library.trim()).is_dir() {
        bail!(
            "{rustc} has no standard library for {NEON_TARGET}: `rustup target add {NEON_TARGET}`, or name a \
             compiler that has it in RUSTC (docs/platforms.md)"
        );
    }
    let mut tests = Command::new(run::cargo_program());
    tests
        .args(["test", "--release", "--package", PACKAGE, "--lib", "--tests", "--target", NEON_TARGET])
        .arg("--target-dir")
        .arg(folder()?)
        .env("CARGO_TARGET_AARCH64_UNKNOWN_LINUX_GNU_LINKER", "aarch64-linux-gnu-gcc")
        .env(
            "CARGO_TARGET_AARCH64_UNKNOWN_LINUX_GNU_RUNNER",
            "qemu-aarch64 -L /usr/aarch64-linux-gnu -cpu max",
        )
        .arg("--no-fail-fast")
        .args(filter)
        .arg("--")
        .args(OF_THE_MACHINE.into_iter().flat_map(|test| ["--skip", test]));
    run::succeed(&mut tests)
}
