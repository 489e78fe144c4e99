//! What a hub's files say of a model before its weights: their heads, in a folder that `formats` opens like
//! any model's.
//!
//! The files there have the right length and are holes behind what was read.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{ErrorKind, Read};
use std::path::{Path, PathBuf};
use std::time::Duration;

use exo_formats::{ConfigError, Model, OpenError};
use exo_hub::{Cancel, Client, FetchPlan, PlannedFile};

use crate::reference_error::ReferenceError;

/// Documents of a repository that say nothing of what a model is: whoever talks to it needs them.
const VOCABULARIES: [&str; 3] = ["tokenizer.json", "vocab.json", "merges.txt"];

/// Outlines of one process at once.
const OUTLINES_MAX: usize = 64;
const OUTLINES_KEPT: Duration = Duration::from_secs(3600);

/// A folder for outlines, which goes with this value.
struct OutlineFolder(PathBuf);

impl OutlineFolder {
    /// A new one in the data folder. What a killed process left there is taken away after an hour.
    fn new(data_dir: &Path) -> Result<Self, ReferenceError> {
        let all = data_dir.join("outlines");
        let disk = |source| ReferenceError::Disk { folder: all.display().to_string(), source };
        fs::create_dir_all(&all).map_err(disk)?;
        for entry in fs::read_dir(&all).into_iter().flatten().flatten() {
            let age = entry.metadata().and_then(|m| m.modified()).ok().and_then(|at| at.elapsed().ok());
            if age.is_some_and(|age| age > OUTLINES_KEPT) {
                let _ = fs::remove_dir_all(entry.path());
            }
        }
        for number in 0..OUTLINES_MAX {
            let own = all.join(format!("{}-{number}", std::process::id()));
            match fs::create_dir(&own) {
                Ok(()) => return Ok(Self(own)),
                Err(error) if error.kind() == ErrorKind::AlreadyExists => {}
                Err(error) => return Err(disk(error)),
            }
        }
        Err(disk(ErrorKind::AlreadyExists.into()))
    }

    fn path(&self) -> &Path {
        &self.0
    }
}

impl Drop for OutlineFolder {
    fn drop(&mut self) {
        if let Err(error) = fs::remove_dir_all(&self.0) {
            tracing::debug!(folder = %self.0.display(), %error, "the outline of a model stays");
        }
    }
}

/// How much of a model's files is read to open it.
#[derive(Clone, Copy)]
pub struct HeadBounds {
    /// The first bytes of a GGUF file that are asked for; then twice as many until its head is whole.
    pub first_bytes: u64,
    /// Bytes that a reader reads in all.
    pub bytes_max: u64,
    /// Whether documents are left out that only whoever talks to a model needs: a vocabulary that is a file
    /// of its own, and a licence.
    pub is_shape_only: bool,
}

/// Reads heads of files, none of their bytes twice: who looks at a model before it is chosen and who then
/// fetches it share one.
pub struct HeadReader<'a> {
    /// The hub.
    pub client: &'a Client,
    /// Ends what is asked of it.
    pub cancel: &'a Cancel,
    data_dir: &'a Path,
    /// Once something was read.
    folder: Option<OutlineFolder>,
    /// Of all files together.
    read_bytes: u64,
    /// How far each file was read, by its path in the folder.
    read: BTreeMap<PathBuf, u64>,
}

impl<'a> HeadReader<'a> {
    /// Reads into a temporary folder of the data folder.
    pub fn new(client: &'a Client, cancel: &'a Cancel, data_dir: &'a Path) -> Self {
        Self { client, cancel, data_dir, folder: None, read_bytes: 0, read: BTreeMap::new() }
    }

    /// The model of a plan, without weights.
    pub fn open(&mut self, plan: &FetchPlan, bounds: HeadBounds) -> Result<Model, ReferenceError> {
        let folder = self.folder_of(plan)?;
        self.settle_heads(plan, bounds)?;
        let mut wanted = bounds.first_bytes;
        loop {
            // Of a GGUF file no one knows where its head ends before it is read.
            let mut is_more = false;
            for file in plan.files.iter().filter(|f| is_gguf(&f.name)) {
                self.read_to(plan, file, wanted, bounds.bytes_max)?;
                is_more |= wanted < file.size;
            }
            match exo_formats::open(&plan.path(self.root()?)) {
                // Holes behind what was read can look like a description: what counts is that it ends before
                // them.
                Ok(model) if model.files.iter().all(|f| f.head_bytes <= wanted || !is_gguf(&f.name)) => {
                    return Ok(model);
                }
                Err(source)
                    if !is_more || is_unknown_architecture(&source) || self.is_head_read(plan, &folder) =>
                {
                    return Err(ReferenceError::Open {
                        reference: plan.reference.clone(),
                        source: Box::new(source),
                    });
                }
                _ => wanted = wanted.saturating_mul(2),
            }
        }
    }

    /// Whether enough was read of each file for what is wrong with the model to be so.
    fn is_head_read(&self, plan: &FetchPlan, folder: &Path) -> bool {
        plan.files.iter().filter(|file| is_gguf(&file.name)).all(|file| {
            let needed = exo_formats::gguf::head_bytes_needed(&folder.join(file.below()));
            needed.is_some_and(|bytes| bytes <= self.read_bytes(plan, file))
        })
    }

    /// Below which folder the files of plans lie.
    fn root(&mut self) -> Result<&Path, ReferenceError> {
        let folder = match self.folder.take() {
            Some(folder) => folder,
            None => OutlineFolder::new(self.data_dir)?,
        };
        Ok(self.folder.insert(folder).path())
    }

    /// Where the files of a plan lie.
    pub fn folder_of(&mut self, plan: &FetchPlan) -> Result<PathBuf, ReferenceError> {
        Ok(plan.folder(self.root()?))
    }

    /// Reads on until a file is there up to this byte, or whole.
    pub fn read_to(
        &mut self,
        plan: &FetchPlan,
        file: &PlannedFile,
        end: u64,
        bytes_max: u64,
    ) -> Result<(), ReferenceError> {
        let start = self.read_bytes(plan, file);
        let end = end.min(file.size).max(start);
        let read_bytes = self.read_bytes.saturating_add(end - start);
        if read_bytes > bytes_max {
            return Err(ReferenceError::TooLarge { file: file.name.clone(), bytes_max });
        }
        let bytes = self.client.part(file, plan.repo_commit(), (start, end), self.cancel)?;
        self.write(plan, file, start, &bytes)?;
        self.read_bytes = read_bytes;
        self.read.insert(path_below(plan, file), end);
        Ok(())
    }

    /// How far a file was read.
    pub fn read_bytes(&self, plan: &FetchPlan, file: &PlannedFile) -> u64 {
        self.read.get(&path_below(plan, file)).copied().unwrap_or(0)
    }

    /// Documents as a whole, and of safetensors files their heads, which say how long they are.
    fn settle_heads(&mut self, plan: &FetchPlan, bounds: HeadBounds) -> Result<(), ReferenceError> {
        for file in plan.files.iter().filter(|f| !is_gguf(&f.name)) {
            let end = match file.name.ends_with(".safetensors") {
                true => {
                    self.read_to(plan, file, 8, bounds.bytes_max)?;
                    let mut length = [0; 8];
                    if file.size >= 8 {
                        let path = self.folder_of(plan)?.join(file.below());
                        let read = File::open(&path).and_then(|mut file| file.read_exact(&mut length));
                        read.map_err(|source| disk(&path, source))?;
                    }
                    u64::from_le_bytes(length).saturating_add(8)
                }
                false if bounds.is_shape_only && is_for_talk(&file.name) => 0,
                false => file.size,
            };
            self.read_to(plan, file, end, bounds.bytes_max)?;
        }
        Ok(())
    }

    /// Into a file of the right length, which is a hole elsewhere.
    fn write(
        &mut self,
        plan: &FetchPlan,
        file: &PlannedFile,
        start: u64,
        bytes: &[u8],
    ) -> Result<(), ReferenceError> {
        let path = self.folder_of(plan)?.join(file.below());
        let write = || -> std::io::Result<()> {
            if let Some(parent) = path.parent() {
                fs::create_dir_all(parent)?;
            }
            let out = File::options().create(true).truncate(false).write(true).open(&path)?;
            out.set_len(file.size)?;
            exo_stdx::write_all_at(&out, bytes, start)
        };
        write().map_err(|source| disk(&path, source))
    }
}

fn path_below(plan: &FetchPlan, file: &PlannedFile) -> PathBuf {
    plan.relative_folder().join(file.below())
}

fn disk(path: &Path, source: std::io::Error) -> ReferenceError {
    ReferenceError::Disk { folder: path.display().to_string(), source }
}

/// What is behind a head that was not read whole changes nothing of this.
fn is_unknown_architecture(error: &OpenError) -> bool {
    matches!(error, OpenError::Config { source: ConfigError::UnknownArchitecture { .. }, .. })
}

fn is_gguf(name: &str) -> bool {
    name.ends_with(".gguf")
}

/// Whether a document says nothing of a model's shape.
fn is_for_talk(name: &str) -> bool {
    VOCABULARIES.contains(&name) || !name.ends_with(".json")
}
