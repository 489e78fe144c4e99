//! The list of models, one JSON file. Read whole, written whole, replaced atomically under a lock.

use std::fs::{self, File};
use std::path::{Path, PathBuf};

use exo_types::ModelId;
use serde::{Deserialize, Serialize};

use crate::disk::{Fingerprint, failed, read_bounded, write_atomic};
use crate::manifest::ModelKind;
use crate::{Manifest, StoreError, StoreWarning};

const VERSION: u32 = 1;
const REGISTRY_BYTES_MAX: u64 = 64 << 20;
const MANIFEST_BYTES_MAX: u64 = 64 << 20;
/// What a warning says of one model.
const LEFT_OUT_CHARS_MAX: usize = 200;

/// Where everything is within a data folder.
#[derive(Clone, Debug)]
pub(crate) struct Layout {
    pub(crate) data_dir: PathBuf,
}

impl Layout {
    pub(crate) fn registry(&self) -> PathBuf {
        self.data_dir.join("models.json")
    }

    pub(crate) fn manifests(&self) -> PathBuf {
        self.data_dir.join("manifests")
    }

    pub(crate) fn manifest(&self, id: ModelId) -> PathBuf {
        self.manifests().join(format!("{}.bin", id.to_full()))
    }

    pub(crate) fn fetched(&self) -> PathBuf {
        self.data_dir.join("models")
    }

    pub(crate) fn fetched_model(&self, id: ModelId) -> PathBuf {
        self.fetched().join(id.to_full())
    }

    /// Models of a hub lie here, in folders `ORG/REPO/COMMIT/LABEL`; `hub` writes them.
    pub(crate) fn hub(&self) -> PathBuf {
        self.data_dir.join("hub")
    }

    pub(crate) fn builtin(&self) -> PathBuf {
        self.data_dir.join("builtin")
    }

    fn lock(&self) -> PathBuf {
        self.data_dir.join("models.lock")
    }
}

/// One model of the list.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub(crate) struct Entry {
    #[serde(with = "id_text")]
    pub(crate) id: ModelId,
    pub(crate) name: String,
    pub(crate) kind: ModelKind,
    pub(crate) bytes: u64,
    /// The user's own copy, or the one the binary carried.
    pub(crate) local: Option<Local>,
    /// Further copies that were hashed, the last one last: their bytes are known until they change.
    #[serde(default)]
    pub(crate) copies: Vec<Local>,
    /// Whether there is a (partial) copy under the data folder.
    pub(crate) fetched: bool,
    /// Whether somebody wants it to stay.
    #[serde(default)]
    pub(crate) kept: bool,
    /// When it was last in use.
    #[serde(default)]
    pub(crate) used_unix_s: u64,
    /// Whether a newer commit has taken its place: it goes once nothing uses it.
    #[serde(default)]
    pub(crate) replaced: bool,
    /// What a person asked for, of a model that was known before it was fetched.
    #[serde(default)]
    pub(crate) reference: Option<String>,
    /// What the last check of the whole copy found, with its files as they are.
    #[serde(default)]
    pub(crate) checked: Option<bool>,
}

impl Entry {
    /// A model of which nothing is here yet, or only what came in chunks.
    pub(crate) fn fetched(id: ModelId, manifest: &Manifest) -> Self {
        Self {
            id,
            name: manifest.name.clone(),
            kind: manifest.kind,
            bytes: manifest.total_bytes(),
            local: None,
            copies: Vec::new(),
            fetched: true,
            kept: false,
            used_unix_s: 0,
            replaced: false,
            reference: None,
            checked: None,
        }
    }
}

/// A copy that is not ours to write.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub(crate) struct Local {
    /// The file or folder.
    pub(crate) path: PathBuf,
    pub(crate) is_builtin: bool,
    /// Every file of the manifest, as it was when it was hashed.
    pub(crate) files: Vec<LocalFile>,
}

#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub(crate) struct LocalFile {
    pub(crate) path: PathBuf,
    pub(crate) fingerprint: Fingerprint,
}

#[derive(Serialize, Deserialize)]
struct Document {
    version: u32,
    models: Vec<Entry>,
}

/// A list of another version, or one with an entry that this one cannot read.
#[derive(Deserialize)]
struct Foreign {
    version: u64,
    models: Vec<serde_json::Value>,
}

/// The list. Of another version of exo, what can be read of it stays; unreadable, it is made again from what
/// is on disk. In both cases the file is moved aside.
pub(crate) fn load(layout: &Layout) -> Result<(Vec<Entry>, Vec<StoreWarning>), StoreError> {
    let path = layout.registry();
    let Some(bytes) = read_bounded(&path, REGISTRY_BYTES_MAX)? else { return Ok((Vec::new(), Vec::new())) };
    match serde_json::from_slice::<Document>(&bytes) {
        Ok(document) if document.version == VERSION => Ok((document.models, Vec::new())),
        _ => match serde_json::from_slice::<Foreign>(&bytes) {
            Ok(foreign) => convert(layout, &path, foreign),
            Err(_) => rebuild(layout, &path),
        },
    }
}

/// Changes the list under the lock; the result of `change` comes back.
pub(crate) fn update<T>(layout: &Layout, change: impl FnOnce(&mut Vec<Entry>) -> T) -> Result<T, StoreError> {
    let path = layout.lock();
    let lock = File::create(&path).map_err(|e| failed("make", &path, 0, e))?;
    if let Err(error) = lock.lock() {
        // Some network file systems have no locks; two writers at once are then possible, a torn file is not.
        tracing::debug!(%error, "the list of models cannot be locked");
    }
    let (mut entries, warnings) = load(layout)?;
    for warning in warnings {
        tracing::warn!("{warning}");
    }
    let result = change(&mut entries);
    save(layout, entries)?;
    Ok(result)
}

fn save(layout: &Layout, models: Vec<Entry>) -> Result<(), StoreError> {
    let document = Document { version: VERSION, models };
    let encoded = serde_json::to_vec_pretty(&document).map_err(|e| {
        failed("write", &layout.registry(), 0, std::io::Error::other(e)) // a path that is not Unicode
    })?;
    write_atomic(&layout.registry(), &encoded)
}

/// Takes over each entry that has what this version needs, and what else is on disk.
fn convert(
    layout: &Layout,
    path: &Path,
    Foreign { version, models }: Foreign,
) -> Result<(Vec<Entry>, Vec<StoreWarning>), StoreError> {
    let (mut entries, mut left_out) = (Vec::new(), Vec::new());
    for model in models {
        let name = model["name"].as_str().unwrap_or("a model without a name").to_owned();
        match serde_json::from_value::<Entry>(model) {
            Ok(entry) => entries.push(entry),
            Err(error) => {
                left_out.push(exo_types::printable(&format!("{name:.80} ({error})"), LEFT_OUT_CHARS_MAX))
            }
        }
    }
    let moved_to = move_aside(path, &format!("version-{version}"))?;
    let (on_disk, mut warnings) = recover(layout);
    let is_new = |entry: &Entry| entries.iter().all(|known| known.id != entry.id);
    let found: Vec<Entry> = on_disk.into_iter().filter(is_new).collect();
    entries.extend(found);
    let kept = entries.len();
    warnings.insert(0, StoreWarning::RegistryOfOtherVersion { version, moved_to, kept, left_out });
    save(layout, entries.clone())?;
    Ok((entries, warnings))
}

fn move_aside(path: &Path, why: &str) -> Result<PathBuf, StoreError> {
    let moved_to = (0..1000)
        .map(|i| path.with_extension(format!("json.{why}-{i}")))
        .find(|candidate| !candidate.exists())
        .unwrap_or_else(|| path.with_extension(format!("json.{why}")));
    // It stays where it is until the new one takes its place: a disk that is full now must not lose it.
    let kept = fs::hard_link(path, &moved_to).or_else(|_| fs::copy(path, &moved_to).map(drop));
    kept.map_err(|e| failed("move aside", path, 0, e))?;
    Ok(moved_to)
}

fn rebuild(layout: &Layout, path: &Path) -> Result<(Vec<Entry>, Vec<StoreWarning>), StoreError> {
    let moved_to = move_aside(path, "damaged")?;
    let (entries, mut warnings) = recover(layout);
    warnings.insert(0, StoreWarning::RegistryRebuilt { moved_to, recovered: entries.len() });
    save(layout, entries.clone())?;
    Ok((entries, warnings))
}

/// Entries for the fetched models on disk.
fn recover(layout: &Layout) -> (Vec<Entry>, Vec<StoreWarning>) {
    let (mut entries, mut warnings) = (Vec::new(), Vec::new());
    let folders = fs::read_dir(layout.fetched()).into_iter().flatten().flatten();
    for path in folders.map(|f| f.path()) {
        let id = path.file_name().and_then(|n| n.to_str()).and_then(|n| n.parse::<ModelId>().ok());
        let read = id.ok_or_else(|| "its name is not a model id".to_owned());
        let read = read.and_then(|id| read_manifest(layout, id).map(|m| (id, m)).map_err(|e| e.to_string()));
        match read {
            Ok((id, m)) => entries.push(Entry::fetched(id, &m)),
            Err(reason) => warnings.push(StoreWarning::DamagedCopy { path, reason }),
        }
    }
    entries.sort_by(|a, b| a.name.cmp(&b.name));
    (entries, warnings)
}

/// The manifest stored for `id`, checked to be the one.
pub(crate) fn read_manifest(layout: &Layout, id: ModelId) -> Result<Manifest, StoreError> {
    let bytes =
        read_bounded(&layout.manifest(id), MANIFEST_BYTES_MAX)?.ok_or(StoreError::UnknownModel { id })?;
    let manifest = Manifest::from_bytes(&bytes).map_err(StoreError::Manifest)?;
    if manifest.root() != id {
        let field = format!("the root of {}", layout.manifest(id).display());
        let (found, expected) = (manifest.root().to_full(), id.to_full());
        return Err(StoreError::Manifest(crate::ManifestError::Field { field, found, expected }));
    }
    Ok(manifest)
}

/// Ids as people see them: a list edited or read by hand stays readable.
mod id_text {
    use exo_types::ModelId;
    use serde::{Deserialize, Deserializer, Serializer, de::Error};

    pub(super) fn serialize<S: Serializer>(id: &ModelId, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(&id.to_full())
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<ModelId, D::Error> {
        String::deserialize(deserializer)?.parse().map_err(D::Error::custom)
    }
}
