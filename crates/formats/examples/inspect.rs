//! Prints what a model file says: `cargo run -p exo-formats --example inspect -- PATH`.
#![allow(clippy::print_stdout)] // a tool for people

use std::error::Error;
use std::path::Path;

use exo_types::Shard;

fn main() -> Result<(), Box<dyn Error>> {
    let path = std::env::args().nth(1).ok_or("usage: inspect PATH")?;
    let model = exo_formats::open(Path::new(&path))?;
    let mut config = model.config.clone();
    config.rope.frequencies.truncate(4);
    println!("{} ({:?})\n{config:#?}", model.name, model.kind);
    for file in &model.files {
        println!(
            "file {}: {} bytes, head {} bytes, shared {:?}",
            file.name, file.len, file.head_bytes, file.shared
        );
    }
    let whole = Shard::whole(model.config.layers);
    for name in model.tensors_of(&whole) {
        println!("{name}: {:?}", model.tensor(name)?);
    }
    println!("{} bytes of weights in {:?}", model.shape().weight_bytes(), model.byte_ranges(&whole));
    Ok(())
}
