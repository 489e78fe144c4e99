//! Writes `openapi.json` at the root of the repository.

fn main() -> std::io::Result<()> {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../openapi.json");
    std::fs::write(path, exo_api::openapi::to_json())
}
