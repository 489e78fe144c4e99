//! OpenAI's own Python package against the server.

use std::path::PathBuf;
use std::time::Duration;

use crate::common::start;
use tokio::process::Command;

/// What the script exits with when the package is not installed.
const SKIPPED: i32 = 77;

/// `EXO_TEST_PYTHON`, the repository's `.venv`, or the system's.
fn python() -> PathBuf {
    let venv = PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/../../.venv/bin/python"));
    match std::env::var_os("EXO_TEST_PYTHON") {
        Some(python) => python.into(),
        None if venv.exists() => venv,
        None => "python3".into(),
    }
}

#[tokio::test]
async fn the_openai_package_works_against_it() {
    let server = start().await;
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/openai_client.py");
    let mut command = Command::new(python());
    command.args([script, &format!("http://{}/v1", server.address), "good"]).kill_on_drop(true);
    // A proxy of the environment must not stand between the two.
    command.env("NO_PROXY", "*").env("no_proxy", "*");
    let run =
        tokio::time::timeout(Duration::from_secs(60), command.output()).await.expect("ends within 60 s");
    let output = match run {
        Ok(output) => output,
        Err(error) => return println!("SKIPPED: no Python: {error}"),
    };
    let text = String::from_utf8_lossy(&output.stdout);
    if output.status.code() == Some(SKIPPED) {
        return println!("SKIPPED: {text}");
    }
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success() && text.trim_end().ends_with("ok"), "{text}\n{errors}");
}
