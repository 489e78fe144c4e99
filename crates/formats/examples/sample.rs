//! Writes a small valid GGUF model: `cargo run -p exo-formats --example sample -- PATH`. A seed for fuzzing.

#[path = "../tests/common/mod.rs"]
mod common;

use std::error::Error;
use std::path::Path;

fn main() -> Result<(), Box<dyn Error>> {
    let path = std::env::args().nth(1).ok_or("usage: sample PATH")?;
    if let Some(folder) = Path::new(&path).parent() {
        std::fs::create_dir_all(folder)?;
    }
    Ok(std::fs::write(path, common::sample(exo_types::DType::Q4_0, false, |_| {}))?)
}
