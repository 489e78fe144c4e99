//! Writes the table of deadlines into `docs/failure-model.md`.

fn main() -> std::io::Result<()> {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/failure-model.md");
    let page = std::fs::read_to_string(path)?;
    let begin = page.find("| what |").unwrap_or(page.len());
    let end = page[begin..].find("\n\n").map_or(page.len(), |at| begin + at + 1);
    std::fs::write(path, format!("{}{}{}", &page[..begin], exo_machine::bounds::table(), &page[end..]))
}
