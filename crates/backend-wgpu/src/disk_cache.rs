//! Compiled kernels of earlier runs, as the driver likes to keep them: on Vulkan alone.
//!
//! A file for each kind of adapter; the driver itself refuses what another version of it wrote. What is lost
//! or damaged costs compiling again and nothing else.

use std::io::Write as _;
use std::path::{Path, PathBuf};

/// In front of what the driver gave, with its length and sum: a file that was cut off or damaged never
/// reaches a driver.
const MAGIC: &[u8; 8] = b"exo-pso1";
const HEADER_BYTES: usize = 8 + 8 + 8;

/// What a device compiles, and the file it goes to.
#[derive(Debug)]
pub(crate) struct DiskCache {
    pub(crate) cache: wgpu::PipelineCache,
    path: PathBuf,
}

impl DiskCache {
    /// The cache in `folder` for this adapter; `None` where the interface has no such thing.
    pub(crate) fn open(device: &wgpu::Device, info: &wgpu::AdapterInfo, folder: &Path) -> Option<Self> {
        if !device.features().contains(wgpu::Features::PIPELINE_CACHE) {
            return None;
        }
        let path = folder.join(wgpu::util::pipeline_cache_key(info)?);
        let data = std::fs::read(&path).ok().and_then(|file| payload(&file).map(<[u8]>::to_vec));
        let descriptor =
            wgpu::PipelineCacheDescriptor { label: Some("exo"), data: data.as_deref(), fallback: true };
        // SAFETY: the data is what `get_data` gave to `save`, byte for byte: its length and sum were checked.
        // `wgpu` and the driver refuse what another adapter or driver version made.
        let cache = unsafe { device.create_pipeline_cache(&descriptor) };
        Some(Self { cache, path })
    }

    /// Writes the file anew, whole or not at all.
    pub(crate) fn save(&self) -> std::io::Result<()> {
        let Some(data) = self.cache.get_data() else { return Ok(()) };
        if let Some(folder) = self.path.parent() {
            std::fs::create_dir_all(folder)?;
        }
        // Processes that share the folder do not write to one file.
        let draft = self.path.with_extension(format!("{}.part", std::process::id()));
        let written = write(&draft, &data).and_then(|()| std::fs::rename(&draft, &self.path));
        if written.is_err() {
            let _ = std::fs::remove_file(&draft); // it may not be there; the first error is the one to tell
        }
        written
    }
}

fn write(path: &Path, data: &[u8]) -> std::io::Result<()> {
    let mut file = std::fs::File::create(path)?;
    for part in [&MAGIC[..], &(data.len() as u64).to_le_bytes(), &sum(data).to_le_bytes(), data] {
        file.write_all(part)?;
    }
    Ok(())
}

/// What the driver gave, if the file is whole.
fn payload(file: &[u8]) -> Option<&[u8]> {
    let (header, data) = file.split_at_checked(HEADER_BYTES)?;
    let number = |at: usize| u64::from_le_bytes(header[at..at + 8].try_into().expect("eight bytes"));
    (header.starts_with(MAGIC) && number(8) == data.len() as u64 && number(16) == sum(data)).then_some(data)
}

/// FNV-1a, 64 bits: against damage, not against malice; whoever can write the data folder owns the node.
fn sum(data: &[u8]) -> u64 {
    data.iter()
        .fold(0xcbf2_9ce4_8422_2325, |sum, byte| (sum ^ u64::from(*byte)).wrapping_mul(0x0000_0100_0000_01b3))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_whole_file_reaches_the_driver() {
        let data = b"what a driver gave";
        let mut file =
            [&MAGIC[..], &(data.len() as u64).to_le_bytes(), &sum(data).to_le_bytes(), data].concat();
        assert_eq!(payload(&file), Some(&data[..]));
        assert_eq!(payload(&file[..file.len() - 1]), None);
        assert_eq!(payload(&file[..10]), None);
        file[30] ^= 1;
        assert_eq!(payload(&file), None);
    }
}
