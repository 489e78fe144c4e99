//! What a hub's files say of a model before its weights: their heads, in a folder that `formats` opens like
//! any model's.
//!
//! The files there have the right length and are holes behind what was read.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::time::Duration;

use exo_formats::{ConfigError, Model, OpenError};
use exo_hub::{Cancel, Client, Plan, PlannedFile, RepoCommit};

use crate::reference_error::ReferenceError;

/// Documents of a repository that say nothing of what a model is: whoever talks to it needs them.
const VOCABULARIES: [&str; 3] = ["tokenizer.json", "vocab.json", "merges.txt"];

/// Outlines of one process at once.
const OUTLINES_MAX: usize = 64;
const OUTLINES_KEPT: Duration = Duration::from_secs(3600);

/// A folder for outlines, which goes with this value.
#[derive(Debug)]
pub struct OutlineFolder(PathBuf);

impl OutlineFolder {
    /// A new one in the data folder. What a killed process left there is taken away after an hour.
    pub fn new(data_dir: &Path) -> Result<Self, ReferenceError> {
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

    /// Where it is.
    pub fn path(&self) -> &Path {
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

/// Reads heads of files, up to a bound over all of them.
pub struct HeadReader<'a> {
    client: &'a Client,
    cancel: &'a Cancel,
    folder: &'a Path,
    /// The first bytes of a GGUF file that are asked for.
    first_bytes: u64,
    bytes_max: u64,
    left: u64,
    /// Whether documents are left out that only whoever talks to a model needs.
    is_shape_only: bool,
    /// How far each file was read, by its name.
    read: BTreeMap<String, u64>,
}

impl<'a> HeadReader<'a> {
    /// Reads into a folder that is empty.
    pub fn new(
        client: &'a Client,
        cancel: &'a Cancel,
        folder: &'a Path,
        first_bytes: u64,
        bytes_max: u64,
    ) -> Self {
        let (left, read) = (bytes_max, BTreeMap::new());
        Self { client, cancel, folder, first_bytes, bytes_max, left, is_shape_only: false, read }
    }

    /// Reads what says how large a model is and of which kind: no vocabulary that is a file of its own, and
    /// no licence.
    pub fn of_shape(self) -> Self {
        Self { is_shape_only: true, ..self }
    }

    /// The model of a plan, without weights.
    pub fn open(&mut self, plan: &Plan) -> Result<Model, ReferenceError> {
        let root = self.root(plan);
        self.read.clear();
        self.settle_heads(plan)?;
        let mut wanted = self.first_bytes;
        loop {
            // Of a GGUF file nobody knows where its head ends before it is read.
            let mut is_more = false;
            for file in plan.files.iter().filter(|f| is_gguf(&f.name)) {
                self.read_to(plan, file, wanted)?;
                is_more |= wanted < file.size;
            }
            match exo_formats::open(&plan.path(&root)) {
                // Holes behind what was read can look like a description: what counts is that it ends before
                // them.
                Ok(model) if model.files.iter().all(|f| f.head_bytes <= wanted || !is_gguf(&f.name)) => {
                    return Ok(model);
                }
                Err(source)
                    if !is_more || is_unknown_architecture(&source) || self.is_head_read(plan, &root) =>
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
    fn is_head_read(&self, plan: &Plan, root: &Path) -> bool {
        let folder = plan.folder(root);
        plan.files.iter().filter(|file| is_gguf(&file.name)).all(|file| {
            let needed = exo_formats::gguf::head_bytes_needed(&folder.join(file.below()));
            needed.is_some_and(|bytes| bytes <= self.read_bytes(&file.name))
        })
    }

    /// Where the files of a plan lie.
    pub fn root(&self, plan: &Plan) -> PathBuf {
        // That of a registry may be a digest.
        self.folder.join(plan.choice.variant.label.replace(':', "-"))
    }

    /// Reads on until a file is there up to this byte, or whole; what came.
    pub fn read_to(&mut self, plan: &Plan, file: &PlannedFile, end: u64) -> Result<Vec<u8>, ReferenceError> {
        let start = self.read_bytes(&file.name);
        let end = end.min(file.size).max(start);
        let bytes = self.read(file, plan.repo_commit(), (start, end))?;
        self.write(plan, file, start, &bytes)?;
        self.read.insert(file.name.clone(), end);
        Ok(bytes)
    }

    /// How far a file was read.
    pub fn read_bytes(&self, name: &str) -> u64 {
        self.read.get(name).copied().unwrap_or(0)
    }

    /// Documents as a whole, and of safetensors files their heads, which say how long they are.
    fn settle_heads(&mut self, plan: &Plan) -> Result<(), ReferenceError> {
        for file in plan.files.iter().filter(|f| !is_gguf(&f.name)) {
            let end = match file.name.ends_with(".safetensors") {
                true => {
                    let length = self.read_to(plan, file, 8)?;
                    let length = length.first_chunk().map_or(0, |bytes| u64::from_le_bytes(*bytes));
                    length.saturating_add(8)
                }
                false if self.is_shape_only && is_for_talk(&file.name) => 0,
                false => file.size,
            };
            self.read_to(plan, file, end)?;
        }
        Ok(())
    }

    fn read(
        &mut self,
        file: &PlannedFile,
        at: Option<RepoCommit<'_>>,
        (start, end): (u64, u64),
    ) -> Result<Vec<u8>, ReferenceError> {
        let bytes = end.saturating_sub(start);
        self.left = self
            .left
            .checked_sub(bytes)
            .ok_or_else(|| ReferenceError::TooLarge { file: file.name.clone(), bytes_max: self.bytes_max })?;
        Ok(self.client.part(file, at, (start, end), self.cancel)?)
    }

    /// Into a file of the right length, which is a hole elsewhere.
    fn write(&self, plan: &Plan, file: &PlannedFile, start: u64, bytes: &[u8]) -> Result<(), ReferenceError> {
        let root = self.root(plan);
        let path = plan.folder(&root).join(file.below());
        let write = || -> std::io::Result<()> {
            if let Some(parent) = path.parent() {
                fs::create_dir_all(parent)?;
            }
            let out = File::options().create(true).truncate(false).write(true).open(&path)?;
            out.set_len(file.size)?;
            exo_stdx::write_all_at(&out, bytes, start)
        };
        write().map_err(|source| ReferenceError::Disk { folder: root.display().to_string(), source })
    }
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
