//! The vendors' own JavaScript packages on a node: one scenario for each dialect, in `tests/javascript`. The versions are those of its lock
//! file, fetched from the registry when the test runs.

#![allow(clippy::unwrap_used)] // helpers of tests fail by panicking

mod support;

use std::path::Path;
use std::process::Command;
use std::time::Duration;

use serde_json::json;
use support::{finish, skip, stderr, stdout, tools_node};

/// For the packages to be fetched.
const INSTALL_MAX: Duration = Duration::from_secs(120);
/// For one scenario on a busy machine.
const SCENARIO_MAX: Duration = Duration::from_secs(90);
/// The oldest release of Node that the packages take.
const NODE_MIN: u32 = 20;

/// What opens a thought, which the model never closes by itself.
const THINKS: &str = "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}<|im_start|>assistant\n\
                      <think>\n";

/// Why the packages cannot be had here, if they cannot.
fn install(folder: &Path) -> Result<(), String> {
    let version = Command::new("node").arg("--version").output().map_err(|_| "there is no Node")?;
    let version = stdout(&version);
    let major: u32 = version.trim().trim_start_matches('v').split('.').next().unwrap().parse().unwrap_or(0);
    if major < NODE_MIN {
        return Err(format!("Node is {}, the packages want {NODE_MIN}", version.trim()));
    }
    for file in std::fs::read_dir(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/javascript")).unwrap().flatten()
    {
        if file.file_type().unwrap().is_file() {
            std::fs::copy(file.path(), folder.join(file.file_name())).unwrap();
        }
    }
    let mut npm = Command::new("npm");
    npm.args([
        "ci",
        "--ignore-scripts",
        "--no-audit",
        "--no-fund",
        "--fetch-retries=1",
        "--fetch-timeout=30000",
    ])
    .current_dir(folder);
    let installed = finish(&mut npm, INSTALL_MAX);
    match installed.status.success() {
        true => Ok(()),
        false => Err(format!("the packages were not fetched: {}", stderr(&installed).trim())),
    }
}

#[test]
fn the_official_javascript_packages_work() {
    let folder = tempfile::tempdir().unwrap();
    if let Err(why) = install(folder.path()) {
        return skip("the_official_javascript_packages_work", &why);
    }
    let (node, models) = tools_node();
    let path = models.path().join("thinks.gguf");
    support::with_template(&path, THINKS);
    assert_eq!(node.post("/exo/v1/models", &json!({"path": path, "name": "thinks"})).status, 200);
    for scenario in ["openai", "anthropic", "ollama"] {
        let mut command = Command::new("node");
        command
            .args([format!("{scenario}.mjs"), format!("http://{}", node.address)])
            .current_dir(folder.path());
        // A proxy of the environment must not stand between the two.
        command.env("NO_PROXY", "*").env("no_proxy", "*");
        let output = finish(&mut command, SCENARIO_MAX);
        let text = stdout(&output);
        assert!(
            output.status.success() && text.trim_end().ends_with("ok"),
            "{scenario}: {text}\n{}\n{}",
            stderr(&output),
            node.log()
        );
    }
}
