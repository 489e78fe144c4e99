//! Answers that are held to a schema, judged by others: the JSON Schema Test Suite, and the validator of the same package. Both are
//! downloaded from PyPI the first time.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::Context;

use super::Verdict;
use crate::run;

/// Its source has the suite in it, its wheel the validator.
const PACKAGE: &str = "jsonschema[format-nongpl]==4.25.1";

pub(super) fn prove() -> anyhow::Result<Vec<Verdict>> {
    let folder = run::target_dir()?.join("constrained");
    std::fs::create_dir_all(&folder).with_context(|| format!("cannot make {}", folder.display()))?;
    let python = validator(&folder)?;
    let suite = suite(&python, &folder)?;
    let judged = example("suite").arg(&suite).status().context("cannot start cargo")?;
    let costs = example("masks").arg("--bounds").status().context("cannot start cargo")?;
    let verdict = |what: &str, is_kept: bool| {
        let how = if is_kept { "every bound is kept" } else { "not every bound is kept, see above" };
        Verdict { line: format!("constrained, {what}: {how}"), is_kept }
    };
    Ok(vec![
        verdict("JSON Schema Test Suite", judged.success()),
        verdict("answers from random logits", answers(&python)?),
        verdict("masks and compiling", costs.success()),
    ])
}

/// An example of the crate `constraint`, as it is measured.
fn example(name: &str) -> Command {
    let mut command = Command::new(run::cargo_program());
    command.args(["run", "--quiet", "--release", "--package", "exo-constraint", "--example", name, "--"]);
    command.stdin(Stdio::null());
    command
}

/// Draws answers, and has each validated by somebody else.
fn answers(python: &Path) -> anyhow::Result<bool> {
    let mut drawing = example("answers").stdout(Stdio::piped()).spawn().context("cannot start cargo")?;
    let lines = drawing.stdout.take().context("its output is piped")?;
    let script = "crates/constraint/examples/validate.py";
    let judged = Command::new(python).arg(script).stdin(lines).status();
    // Whoever reads them may have failed: it ends with its reader.
    let drawn = drawing.wait().context("cannot wait for cargo")?;
    Ok(judged.with_context(|| format!("cannot start {}", python.display()))?.success() && drawn.success())
}

/// A Python that has the validator.
fn validator(folder: &Path) -> anyhow::Result<PathBuf> {
    let (python, mark) = (folder.join("venv/bin/python"), folder.join("installed.txt"));
    if std::fs::read_to_string(&mark).is_ok_and(|done| done == PACKAGE) {
        return Ok(python);
    }
    eprintln!("set-up: {PACKAGE} from PyPI");
    run::output("python3", &["-m", "venv", "--clear", &folder.join("venv").to_string_lossy()])?;
    let pip = ["-m", "pip", "install", "--quiet", "--disable-pip-version-check", PACKAGE];
    run::output(&python.to_string_lossy(), &pip)?;
    std::fs::write(&mark, PACKAGE).with_context(|| format!("cannot write {}", mark.display()))?;
    Ok(python)
}

/// The suite's folder of the draft that schemas are read as.
fn suite(python: &Path, folder: &Path) -> anyhow::Result<PathBuf> {
    let version = PACKAGE.rsplit("==").next().unwrap_or_default();
    let tests = folder.join(format!("jsonschema-{version}/json/tests/draft2020-12"));
    if tests.is_dir() {
        return Ok(tests);
    }
    eprintln!("set-up: the source of jsonschema {version} from PyPI");
    let into = folder.to_string_lossy();
    let wanted = format!("jsonschema=={version}");
    let pip = ["-m", "pip", "download", "--quiet", "--disable-pip-version-check", "--no-deps"];
    let what = ["--no-binary", "jsonschema", "--dest", &into, &wanted];
    run::output(&python.to_string_lossy(), &[&pip[..], &what[..]].concat())?;
    let archive = folder.join(format!("jsonschema-{version}.tar.gz"));
    run::output("tar", &["-xzf", &archive.to_string_lossy(), "-C", &into])?;
    Ok(tests)
}
