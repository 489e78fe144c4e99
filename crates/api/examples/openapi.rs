//! Writes `openapi.json` at the root of the repository, and `docs/api.md`.

fn main() -> std::io::Result<()> {
    let root = concat!(env!("CARGO_MANIFEST_DIR"), "/../..");
    std::fs::write(format!("{root}/openapi.json"), exo_api::openapi::to_json())?;
    std::fs::write(format!("{root}/docs/api.md"), exo_api::table::to_markdown())
}
