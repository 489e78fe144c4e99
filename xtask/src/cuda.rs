//! The CUDA kernels: compiled ahead of time to the PTX that is committed, and checked without a card.
//!
//! What is committed is compressed ([`archive`]). NVIDIA's compiler comes from its packages on PyPI, pinned
//! in `nvrtc.txt`, into a virtual environment under `target/`.

mod archive;

use std::path::{Path, PathBuf};

use anyhow::{Context, bail};

use crate::test::{self, Outcome};
use crate::{run, setup};

const KERNELS: &str = "crates/backend-cuda/kernels";
/// The compiler of kernels to PTX. Its CUDA version decides which drivers know the PTX.
const NVRTC: &str = include_str!("cuda/nvrtc.txt");
/// The assembler that a driver has built in, by itself: optional.
const PTXAS: &str = include_str!("cuda/ptxas.txt");
/// Runs the compiler's library.
const COMPILE: &str = include_str!("cuda/compile.py");
/// Cards whose registers and memory the table shows: the oldest and two newer.
const SHOWN: [&str; 3] = ["sm_61", "sm_80", "sm_90"];
/// What clang compiles the kernels for: RDNA 3 and 2, and CDNA 2.
const AMD_CARDS: [&str; 3] = ["gfx1100", "gfx1030", "gfx90a"];

/// Compiles every kernel. With `check` nothing is written and a difference fails.
pub fn ptx(check: bool) -> anyhow::Result<()> {
    let python = tools("nvrtc", NVRTC)?;
    let made = run::target_dir()?.join("ptx");
    std::fs::create_dir_all(&made).with_context(|| format!("cannot create {}", made.display()))?;
    let out = made.to_string_lossy();
    run::command(&python.to_string_lossy(), &["-c", COMPILE, KERNELS, &out])?;
    let mut texts = archive::Texts::new();
    for name in kernels()? {
        let path = made.join(&name).with_extension("ptx");
        let text = std::fs::read(&path).with_context(|| format!("cannot read {}", path.display()))?;
        texts.insert(path.file_name().unwrap_or_default().to_string_lossy().into_owned(), text);
    }
    if !check {
        return archive::write(&texts);
    }
    let committed = archive::read()?;
    let is_other = |name: &&String| committed.get(*name) != texts.get(*name);
    let different: Vec<_> =
        texts.keys().chain(committed.keys()).filter(is_other).map(String::as_str).collect();
    if !different.is_empty() {
        bail!("not what their sources compile to: {}; run `cargo xtask ptx`", different.join(", "));
    }
    Ok(())
}

/// What `cargo xtask test` does: the hashes always; the sources where PyPI can be reached, and why not where
/// it cannot.
pub fn check_if_possible() -> anyhow::Result<Outcome> {
    archive::read()?;
    if let Err(error) = tools("nvrtc", NVRTC) {
        return Ok(Outcome::Skipped(format!("NVIDIA's compiler cannot be had from PyPI: {error:#}")));
    }
    ptx(true)?;
    Ok(Outcome::Passed)
}

/// Assembles the committed PTX for some cards, and prints what each kernel takes.
pub fn assemble() -> anyhow::Result<()> {
    tools("ptxas", PTXAS)?;
    let ptxas = find(&environment("ptxas")?, "ptxas").context("the package holds no `ptxas`")?;
    let folder = run::target_dir()?.join("ptx");
    archive::unpack_to(&folder)?;
    println!("| kernel | card | registers | spilled bytes | shared bytes |\n|---|---|---|---|---|");
    for name in kernels()? {
        let needs_tensor_cores = name.contains("mma");
        for card in SHOWN.into_iter().filter(|card| !needs_tensor_cores || *card != "sm_61") {
            let file = folder.join(&name).with_extension("ptx");
            let args = ["-v", "-arch", card, "-o", "/dev/null", &file.to_string_lossy()];
            let done = std::process::Command::new(&ptxas).args(args).output();
            let done = done.with_context(|| format!("cannot start {}", ptxas.display()))?;
            let told = String::from_utf8_lossy(&done.stderr).into_owned();
            if !done.status.success() {
                bail!("{} does not assemble for {card}: {told}", file.display());
            }
            rows(&told, card).iter().for_each(|row| println!("{row}"));
        }
    }
    Ok(())
}

/// From the assembler's words about each kernel.
fn rows(told: &str, card: &str) -> Vec<String> {
    let number_before = |line: &str, word: &str| -> Option<String> {
        let before = line.split(word).next().filter(|before| *before != line)?;
        before.split_whitespace().last().map(str::to_owned)
    };
    let (mut kernel, mut spilled) = ("", "0".to_owned());
    let mut rows = Vec::new();
    for line in told.lines() {
        if line.contains("Compiling entry function") {
            kernel = line.split('\'').nth(1).unwrap_or_default();
        } else if let Some(bytes) = number_before(line, " bytes spill stores") {
            spilled = bytes;
        } else if let Some(registers) = number_before(line, " registers") {
            let shared = number_before(line, " bytes smem").unwrap_or_else(|| "0".to_owned());
            rows.push(format!("| {kernel} | {card} | {registers} | {spilled} | {shared} |"));
        }
    }
    rows
}

/// AMD's cards: their kernels through clang, and the tests of the feature `hip`, AMD's own compiler among
/// them where it is installed, and the program's own that need it built with the feature.
pub fn hip() -> anyhow::Result<()> {
    hip_kernels()?;
    hip_tests(None)?;
    run::cargo(&["test", "--quiet", "--package", "exo", "--features", "hip", "--test", "all", "hip::"])
}

/// The crate with the feature `hip`: what `cargo xtask test` does. Tests that cannot run say so in the file
/// `skips`.
pub fn hip_tests(skips: Option<&Path>) -> anyhow::Result<()> {
    // The program has no such targets. With it cargo takes the features of dependencies that all other
    // checks and tests take, and compiles hardly any of them for this crate alone.
    let package = ["--package", "exo-backend-cuda", "--package", "exo", "--features", "exo-backend-cuda/hip"];
    let targets = ["--lib", "--test", "hip"];
    let lints = [&["clippy", "--quiet"], &targets[..], &package, &["--", "--deny", "warnings"]];
    run::cargo(&lints.concat())?;
    let tests = [&["test", "--quiet"], &targets[..], &package].concat();
    let Some(skips) = skips else { return run::cargo(&tests) };
    let (variable, cargo) = (format!("{}={}", test::SKIPS, skips.display()), run::cargo_program());
    run::command("env", &[&[variable.as_str(), cargo.as_str()], &tests[..]].concat())
}

/// Compiles the kernels for AMD's cards, of 32 and of 64 threads to a wave. Matrix instructions are NVIDIA's.
fn hip_kernels() -> anyhow::Result<()> {
    let known = ["clang++", "clang++-19", "clang++-18", "clang++-17", "clang++-16"];
    let Some(clang) = known.into_iter().find(|name| run::has(name)) else {
        bail!("clang 16 or newer is missing: install Debian's clang-19");
    };
    for name in kernels()?.iter().filter(|name| !name.contains("mma")) {
        let file = Path::new(KERNELS).join(name);
        for card in AMD_CARDS {
            let arch = format!("--offload-arch={card}");
            let target = ["-x", "hip", "--cuda-device-only", &arch, "-nogpuinc", "-nogpulib"];
            let how = ["-O2", "-std=c++17", "-ffp-contract=off", "-S", "-o", "/dev/null"];
            run::command(clang, &[&target[..], &how, &[&file.to_string_lossy()]].concat())?;
        }
        println!("{name} compiles for {}", AMD_CARDS.join(", "));
    }
    Ok(())
}

fn kernels() -> anyhow::Result<Vec<String>> {
    let entries = std::fs::read_dir(KERNELS).with_context(|| format!("cannot read {KERNELS}"))?;
    let names = entries.flatten().map(|entry| entry.file_name().to_string_lossy().into_owned());
    let mut names: Vec<String> = names.filter(|name| name.ends_with(".cu")).collect();
    names.sort();
    Ok(names)
}

fn environment(name: &str) -> anyhow::Result<PathBuf> {
    Ok(run::target_dir()?.join("cuda-tools").join(name))
}

/// The Python of an environment that has these packages and no others.
fn tools(name: &str, requirements: &str) -> anyhow::Result<PathBuf> {
    let install: Vec<&str> = ["--no-deps"].into_iter().chain(requirements.split_whitespace()).collect();
    setup::python(&environment(name)?, requirements, &install)
}

fn find(folder: &Path, name: &str) -> Option<PathBuf> {
    let entries: Vec<_> = std::fs::read_dir(folder).ok()?.flatten().map(|entry| entry.path()).collect();
    let here = entries.iter().find(|path| path.is_file() && path.ends_with(name)).cloned();
    here.or_else(|| {
        entries.iter().filter(|path| path.is_dir() && !path.is_symlink()).find_map(|path| find(path, name))
    })
}

#[cfg(test)]
mod tests {
    use super::rows;

    #[test]
    fn the_assemblers_words_become_rows() {
        let told = "ptxas info    : Compiling entry function 'add' for 'sm_61'\n\
                    ptxas info    : Function properties for add\n    \
                    0 bytes stack frame, 8 bytes spill stores, 4 bytes spill loads\n\
                    ptxas info    : Used 10 registers, 1024 bytes smem, 356 bytes cmem[0]\n";
        assert_eq!(rows(told, "sm_61"), ["| add | sm_61 | 10 | 8 | 1024 |"]);
    }
}
