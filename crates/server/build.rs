//! Builds the program again when `cargo xtask web` has made another page, and refuses a package without one.
//! It runs nothing.

use std::path::Path;

const PAGE: &str = "dashboard/index.html";

fn main() {
    // Debug builds read the folder when they run.
    let reads_it_now = std::env::var("PROFILE").is_ok_and(|profile| profile == "release");
    println!("cargo:rerun-if-changed={}", if reads_it_now { "dashboard" } else { "build.rs" });
    let is_package = std::env::var_os("CARGO_FEATURE_DASHBOARD").is_some();
    assert!(
        !is_package || Path::new(PAGE).exists(),
        "the feature `dashboard` is for packages, and there is no page to build in: run `cargo xtask web` first"
    );
}
