//! The PTX that is committed: a stream of zlib for each file of kernels, and the hashes of their texts.
//!
//! A file for each, because a driver loads one at a time and a change of one kernel shall be a change of one
//! file. `hashes.txt` is what a review sees of a change: `sha256 bytes name`, of the text before it was
//! compressed.

use std::collections::BTreeMap;
use std::path::Path;

use anyhow::{Context, bail};
use sha2::{Digest, Sha256};

use crate::run;

const FOLDER: &str = "crates/backend-cuda/ptx";
const HASHES: &str = "crates/backend-cuda/ptx/hashes.txt";
const LEVEL: u8 = 9;
/// More than all of them together.
const TEXT_BYTES_MAX: usize = 16 << 20;

/// PTX by the names of its files.
pub type Texts = BTreeMap<String, Vec<u8>>;

/// What is committed. Fails where it is not what its hashes say, or a file is there without one.
pub fn read() -> anyhow::Result<Texts> {
    let mut texts = Texts::new();
    for entry in std::fs::read_dir(FOLDER).with_context(|| format!("cannot read {FOLDER}"))?.flatten() {
        let path = entry.path();
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        let Some(name) = name.strip_suffix(".z") else { continue };
        let packed = std::fs::read(&path).with_context(|| format!("cannot read {}", path.display()))?;
        let text = miniz_oxide::inflate::decompress_to_vec_zlib_with_limit(&packed, TEXT_BYTES_MAX)
            .map_err(|error| anyhow::anyhow!("{} does not unpack: {error}", path.display()))?;
        texts.insert(name.to_owned(), text);
    }
    if run::read(HASHES)? != hashes(&texts) {
        bail!("the files in {FOLDER} are not those of {HASHES}; run `cargo xtask ptx`");
    }
    Ok(texts)
}

/// Replaces what is committed; files that stay the same are left alone.
pub fn write(texts: &Texts) -> anyhow::Result<()> {
    let committed = read().unwrap_or_default();
    for name in committed.keys().filter(|name| !texts.contains_key(*name)) {
        let path = packed_path(name);
        std::fs::remove_file(&path).with_context(|| format!("cannot remove {path}"))?;
    }
    for (name, text) in texts.iter().filter(|(name, text)| committed.get(*name) != Some(text)) {
        let path = packed_path(name);
        let packed = miniz_oxide::deflate::compress_to_vec_zlib(text, LEVEL);
        std::fs::write(&path, packed).with_context(|| format!("cannot write {path}"))?;
    }
    std::fs::write(HASHES, hashes(texts)).with_context(|| format!("cannot write {HASHES}"))
}

/// The texts as files, for tools that read them.
pub fn unpack_to(folder: &Path) -> anyhow::Result<()> {
    std::fs::create_dir_all(folder).with_context(|| format!("cannot create {}", folder.display()))?;
    for (name, text) in read()? {
        let path = folder.join(name);
        std::fs::write(&path, text).with_context(|| format!("cannot write {}", path.display()))?;
    }
    Ok(())
}

fn packed_path(name: &str) -> String {
    format!("{FOLDER}/{name}.z")
}

fn hashes(texts: &Texts) -> String {
    let line = |(name, text): (&String, &Vec<u8>)| {
        let hash: String = Sha256::digest(text).iter().map(|byte| format!("{byte:02x}")).collect();
        format!("{hash}  {:7}  {name}\n", text.len())
    };
    texts.iter().map(line).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_of_hashes_is_of_the_text_before_it_is_compressed() {
        let texts = Texts::from([("add.ptx".to_owned(), b"abc".to_vec())]);
        let hash = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad";
        assert_eq!(hashes(&texts), format!("{hash}        3  add.ptx\n"));
    }
}
