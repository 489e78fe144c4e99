//! What tests on adapters share.

use std::io::Write;

use exo_backend_wgpu::{Adapter, Api, list};

/// Every adapter there is. A machine without one says which test it skips, in the report of
/// `cargo xtask test`, which installs lavapipe.
pub fn adapters(test: &str) -> Vec<Adapter> {
    let found: Vec<Adapter> = Api::ALL.into_iter().flat_map(|api| list(api).unwrap()).collect();
    if found.is_empty() {
        skip(&format!("{test}: no Vulkan, Metal or Direct3D adapter on this machine"));
    }
    found
}

/// Reports what is not tested here.
pub fn skip(line: &str) {
    println!("skipped: {line}");
    if let Some(path) = std::env::var_os("EXO_TEST_SKIPS") {
        let mut file = std::fs::OpenOptions::new().create(true).append(true).open(path).unwrap();
        // In one piece: other tests write their lines at the same time.
        file.write_all(format!("{line}\n").as_bytes()).unwrap();
    }
}
