//! What the README's two commands install for themselves on a fresh Debian machine.
//!
//! As root on Debian packages come through apt; anywhere else a precise message says what to install.

use std::path::{Path, PathBuf};

use anyhow::{Context, bail};

use crate::{run, system};

/// A Debian package and the program, by name or by path, that shows it is there.
struct Package {
    program: &'static str,
    package: &'static str,
    why: &'static str,
}

/// What a build needs beyond Rust: a C compiler for one crate's assembly.
pub fn for_build() -> anyhow::Result<()> {
    ensure(&[Package { program: "cc", package: "gcc", why: "compiles the assembly of the TLS crate" }])
}

/// What builds the page.
pub fn for_web() -> anyhow::Result<()> {
    ensure(&[
        Package { program: "node", package: "nodejs", why: "builds the page; version 20 or later" },
        Package { program: "npm", package: "npm", why: "fetches what the page is built with" },
    ])?;
    check_node(&run::output("node", &["--version"])?)
}

/// Debian 12 has Node 18, with which Vite does not run.
fn check_node(version: &str) -> anyhow::Result<()> {
    let major =
        version.trim().trim_start_matches('v').split('.').next().and_then(|major| major.parse::<u32>().ok());
    if major.is_none_or(|major| major < NODE_MAJOR_MIN) {
        bail!(
            "Node is {}, and the page needs {NODE_MAJOR_MIN} or later: install it from its makers or a newer system",
            version.trim()
        );
    }
    Ok(())
}

const NODE_MAJOR_MIN: u32 = 20;

/// The exo binary to run: the given one, or else this tree's, built.
pub fn exo_binary(given: Option<&Path>) -> anyhow::Result<PathBuf> {
    if let Some(exo) = given {
        return exo.canonicalize().with_context(|| format!("cannot find {}", exo.display()));
    }
    for_build()?;
    run::cargo(&["build", "--release", "--package", "exo"])?;
    run::release_binary()
}

/// What the tests need beyond a build. Gives the Python that has the official `openai` package.
pub fn for_tests() -> anyhow::Result<()> {
    for_build()?;
    ensure(&[
        Package {
            program: "python3",
            package: "python3",
            why: "runs the official OpenAI client against exo",
        },
        Package {
            program: "ip",
            package: "iproute2",
            why: "makes network namespaces for the multi-host tests",
        },
        Package { program: "c++", package: "g++", why: "plays an NVIDIA card where there is none" },
        Package { program: "curl", package: "curl", why: "checks the API as a user would" },
        Package {
            program: "/usr/share/vulkan/icd.d",
            package: "mesa-vulkan-drivers",
            why: "a software adapter where there is no graphics card",
        },
    ])?;
    browser()?;
    python_packages()
}

/// Opens the page in tests as a person would. Where it cannot be installed, those tests say so and are
/// skipped.
fn browser() -> anyhow::Result<()> {
    if run::has("chromium") || !system::can_apt() {
        return Ok(());
    }
    apt_install(&["chromium"])
}

/// What a machine in Bochs is put together from. Bochs itself is built by hand: Debian's has the debugger in.
pub fn for_bochs() -> anyhow::Result<()> {
    for_build()?;
    let why = "part of the emulated machine";
    ensure(&[
        Package { program: "xorriso", package: "xorriso", why },
        Package { program: "/bin/busybox", package: "busybox-static", why },
        Package { program: "/usr/lib/ISOLINUX/isolinux.bin", package: "isolinux", why },
        Package { program: "/usr/lib/syslinux/modules/bios/ldlinux.c32", package: "syslinux-common", why },
        Package { program: "/usr/share/bochs/BIOS-bochs-latest", package: "bochsbios", why },
    ])
}

/// What compiles and runs programs for 64-bit Arm.
pub fn for_neon() -> anyhow::Result<()> {
    ensure(&[
        Package { program: "qemu-aarch64", package: "qemu-user", why: "runs the tests" },
        Package {
            program: "aarch64-linux-gnu-gcc",
            package: "gcc-aarch64-linux-gnu",
            why: "links the tests",
        },
        Package {
            program: "/usr/aarch64-linux-gnu/lib/libc.so.6",
            package: "libc6-dev-arm64-cross",
            why: "the C library of the tests",
        },
    ])
}

/// What compiles the C and assembly of the TLS crate for Windows.
pub fn for_windows() -> anyhow::Result<()> {
    ensure(&[Package {
        program: "x86_64-w64-mingw32-gcc",
        package: "gcc-mingw-w64-x86-64-win32",
        why: "compiles the assembly of the TLS crate for Windows",
    }])
}

/// What makes programs for Windows and runs them.
pub fn for_wine() -> anyhow::Result<()> {
    for_windows()?;
    ensure(&[Package { program: WINE, package: "wine64", why: "runs programs for Windows" }])
}

/// Debian keeps it off the PATH.
pub const WINE: &str = "/usr/lib/wine/wine64";

fn ensure(packages: &[Package]) -> anyhow::Result<()> {
    let missing: Vec<_> = packages.iter().filter(|p| !run::has(p.program)).collect();
    if missing.is_empty() {
        return Ok(());
    }
    let names: Vec<_> = missing.iter().map(|p| p.package).collect();
    if !system::can_apt() {
        let list: Vec<_> = missing.iter().map(|p| format!("  {}: {}", p.package, p.why)).collect();
        bail!("these programs are missing; install them and run the command again\n{}", list.join("\n"));
    }
    apt_install(&names)
}

fn apt_install(names: &[&str]) -> anyhow::Result<()> {
    eprintln!("set-up: installing {}", names.join(", "));
    run::command("apt-get", &["update", "-qq"])?;
    let mut args = vec!["install", "-y", "-qq", "--no-install-recommends"];
    args.extend(names);
    run::command("apt-get", &args)
}

/// Packages that the API tests run.
const TEST_PACKAGES: &str = "crates/cli/tests/requirements.txt";

fn python_packages() -> anyhow::Result<()> {
    python(Path::new(".venv"), &run::read(TEST_PACKAGES)?, &["-r", TEST_PACKAGES]).map(drop)
}

/// The Python of a virtual environment that has these packages; they come from PyPI the first time, by what
/// `pip install` is given.
pub fn python(folder: &Path, packages: &str, install: &[&str]) -> anyhow::Result<PathBuf> {
    let (python, mark) = (folder.join("bin/python"), folder.join("installed.txt"));
    if std::fs::read_to_string(&mark).is_ok_and(|done| done == packages) {
        return Ok(python);
    }
    eprintln!("set-up: {} from PyPI", packages.split_whitespace().collect::<Vec<_>>().join(" "));
    let path = folder.to_string_lossy();
    let venv = ["-m", "venv", "--clear", &path];
    if run::command("python3", &venv).is_err() {
        // Debian splits `venv` off from Python; which package is only known after the failure.
        if !system::can_apt() {
            bail!("`python3 -m venv` does not work; install Debian's python3-venv");
        }
        apt_install(&["python3-venv"])?;
        run::command("python3", &venv)?;
    }
    let pip = ["-m", "pip", "install", "--quiet", "--disable-pip-version-check"];
    run::output(&python.to_string_lossy(), &[&pip[..], install].concat())?;
    std::fs::write(&mark, packages).with_context(|| format!("cannot write {}", mark.display()))?;
    Ok(python)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_old_node_is_named() {
        assert!(check_node("v20.20.2\n").is_ok() && check_node("v22.1.0").is_ok());
        assert!(check_node("v18.19.0\n").unwrap_err().to_string().starts_with("Node is v18.19.0,"));
        assert!(check_node("").is_err());
    }
}
