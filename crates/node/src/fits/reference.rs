//! A model of a hub that is not in the catalogue: the heads of its files are read, and planned like any other.
//!
//! A skeleton of the model is made in a temporary folder: files of the right length that are holes behind their heads, so that `formats`
//! opens them as it opens any model. No weights are fetched.

use std::fs::{self, File};
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::time::Duration;

use exo_api::fits::{FitVerdict, FitView};
use exo_formats::OpenError;
use exo_hub::{Cancel, Client, HubError, HubReference, Plan, PlannedFile, Reference};

use super::{FitsCluster, SizedModel, judge};
use crate::planning;

/// Bytes that are read of a hub for one reference.
const BYTES_MAX: u64 = 20 << 20;
/// The first bytes of a file that are asked for: a small vocabulary fits.
const FIRST_BYTES: u64 = 1 << 20;
/// Outlines of one process at once.
const OUTLINES_MAX: usize = 64;
const OUTLINES_KEPT: Duration = Duration::from_secs(3600);
/// Types of a repository that are tried until one fits.
const TRIES_MAX: usize = 3;

/// Why a reference could not be looked at.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ReferenceError {
    /// The hub.
    #[error(transparent)]
    Hub(#[from] HubError),
    /// It is neither in the catalogue nor a repository.
    #[error("`{0}` is neither a name of the catalogue nor a repository of a hub, as in hf.co/ORG/REPO")]
    Unknown(String),
    /// The model's heads are larger than what is read.
    #[error("the description of {file} is larger than the {bytes_max} bytes that are read for it")]
    TooLarge {
        /// Which file.
        file: String,
        /// The bound.
        bytes_max: u64,
    },
    /// What it is, exo does not run.
    #[error("cannot read what {reference} is")]
    Open {
        /// What was asked for.
        reference: String,
        /// Why.
        #[source]
        source: Box<OpenError>,
    },
    /// The disk.
    #[error("cannot write the outline of the model to {folder}")]
    Disk {
        /// Where.
        folder: String,
        /// Why.
        #[source]
        source: std::io::Error,
    },
}

/// Whether a model of a hub fits. `folder` is empty and its content can be thrown away afterwards. Blocks.
pub fn fit_reference(
    cluster: &FitsCluster,
    client: &Client,
    hub: &HubReference,
    folder: &Path,
    cancel: &Cancel,
) -> Result<FitView, ReferenceError> {
    let snapshot = client.snapshot(hub, cancel)?;
    let variants = exo_hub::variants(&snapshot);
    let is_wanted =
        |label: &str| hub.quantisation.as_deref().is_none_or(|wanted| label.eq_ignore_ascii_case(wanted));
    let is_named = hub.quantisation.is_some() || hub.file.is_some();
    let usable = variants.iter().filter(|v| v.problem.is_none() && v.is_supported && is_wanted(&v.label));
    // What is larger than all memory needs no look, but the smallest is looked at in any case.
    let memory = cluster.memory_free_bytes();
    let mut labels: Vec<&str> = usable.clone().filter(|v| v.bytes() <= memory).map(|v| &*v.label).collect();
    if labels.is_empty() {
        labels.extend(usable.clone().next_back().map(|v| &*v.label));
    }
    let mut reader = Reader { client, cancel, folder, left: BYTES_MAX };
    let mut models = Vec::new();
    let mut plan = None;
    for label in labels.into_iter().take(if is_named { 1 } else { TRIES_MAX }) {
        let mut one = hub.clone();
        one.revision = Some(snapshot.commit.clone());
        if hub.file.is_none() {
            one.quantisation = Some(label.to_owned());
        }
        let found = exo_hub::resolve(client, &Reference::Hub(one), None, cancel)?;
        let model = match reader.sized(cluster, &found) {
            // A second description does not fit into what is read: the first one says enough.
            Err(ReferenceError::TooLarge { .. }) if !models.is_empty() => break,
            other => other?,
        };
        let fits = exo_planner::plan(&cluster.request(&model, cluster.context_tokens)).is_ok();
        models.push(model);
        plan = Some(found);
        if fits {
            break;
        }
    }
    let Some(plan) = plan else {
        let summary = "the repository has no model of a type that exo computes with".to_owned();
        return Ok(FitView { summary, ..empty(hub, &snapshot.licence) });
    };
    let shape = models.first().map(|m| &m.shape);
    let view = FitView {
        parameters: shape
            .map_or(0, |s| s.layers.iter().map(|l| l.flops_per_token / 2).sum::<u64>() + tables(s)),
        context_tokens_max: shape.map_or(0, |s| s.context_tokens_max),
        ..empty(hub, &plan.licence)
    };
    Ok(judge(cluster, view, &models))
}

/// Numbers in the tables at a model's ends.
fn tables(shape: &exo_types::ModelShape) -> u64 {
    let table = u64::from(shape.hidden) * u64::from(shape.vocab);
    if shape.tied { table } else { 2 * table }
}

fn empty(hub: &HubReference, licence: &exo_hub::Licence) -> FitView {
    FitView {
        name: hub.to_string(),
        title: hub.repo.clone(),
        reference: hub.to_string(),
        good_for: String::new(),
        licence: licence.label().to_owned(),
        terms: licence.notable_terms(),
        parameters: 0,
        context_tokens_max: 0,
        verdict: FitVerdict::NotSupported,
        summary: String::new(),
        best: None,
        sizes: Vec::new(),
        changes: Vec::new(),
    }
}

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
struct Reader<'a> {
    client: &'a Client,
    cancel: &'a Cancel,
    folder: &'a Path,
    left: u64,
}

impl Reader<'_> {
    fn sized(&mut self, cluster: &FitsCluster, plan: &Plan) -> Result<SizedModel, ReferenceError> {
        let root = self.folder.join(&plan.choice.variant.label);
        self.settle_heads(plan, &root)?;
        let mut had = 0;
        loop {
            // Of a GGUF file nobody knows where its head ends before it is read.
            let wanted = (had * 2).max(FIRST_BYTES);
            let is_more = self.gguf_heads(plan, &root, had, wanted)?;
            had = wanted;
            match exo_formats::open(&plan.path(&root)) {
                // Holes behind what was read can look like a description: what counts is that it ends before them.
                Ok(model) if model.files.iter().all(|f| f.head_bytes <= had || !is_gguf(&f.name)) => {
                    return Ok(sized(cluster, plan, &model));
                }
                Err(source) if !is_more => {
                    return Err(ReferenceError::Open {
                        reference: plan.reference.clone(),
                        source: Box::new(source),
                    });
                }
                _ => {}
            }
        }
    }

    /// Documents as a whole, and of safetensors files their heads, which say how long they are.
    fn settle_heads(&mut self, plan: &Plan, root: &Path) -> Result<(), ReferenceError> {
        for file in plan.files.iter().filter(|f| !is_gguf(&f.name)) {
            let end = match file.name.ends_with(".safetensors") {
                true => {
                    let length = self.read(file, 0, 8.min(file.size))?;
                    let length = length.first_chunk().map_or(0, |bytes| u64::from_le_bytes(*bytes));
                    length.saturating_add(8).min(file.size)
                }
                false => file.size,
            };
            let bytes = self.read(file, 0, end)?;
            self.write(plan, root, file, 0, &bytes)?;
        }
        Ok(())
    }

    /// Bytes `had..wanted` of every GGUF file; whether one of them has more.
    fn gguf_heads(
        &mut self,
        plan: &Plan,
        root: &Path,
        had: u64,
        wanted: u64,
    ) -> Result<bool, ReferenceError> {
        let mut is_more = false;
        for file in plan.files.iter().filter(|f| is_gguf(&f.name)) {
            let (start, end) = (had.min(file.size), wanted.min(file.size));
            let bytes = self.read(file, start, end)?;
            self.write(plan, root, file, start, &bytes)?;
            is_more |= end < file.size;
        }
        Ok(is_more)
    }

    fn read(&mut self, file: &PlannedFile, start: u64, end: u64) -> Result<Vec<u8>, ReferenceError> {
        let bytes = end.saturating_sub(start);
        self.left = self
            .left
            .checked_sub(bytes)
            .ok_or_else(|| ReferenceError::TooLarge { file: file.name.clone(), bytes_max: BYTES_MAX })?;
        Ok(self.client.part(file, start, end, self.cancel)?)
    }

    /// Into a file of the right length, which is a hole elsewhere.
    fn write(
        &self,
        plan: &Plan,
        root: &Path,
        file: &PlannedFile,
        start: u64,
        bytes: &[u8],
    ) -> Result<(), ReferenceError> {
        let path = plan.folder(root).join(file.below());
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

fn is_gguf(name: &str) -> bool {
    name.ends_with(".gguf")
}

fn sized(cluster: &FitsCluster, plan: &Plan, model: &exo_formats::Model) -> SizedModel {
    let shape = model.shape_packed(cluster.kv, &exo_backend_cpu::weight_bytes);
    let weight_types = planning::weight_types(model, &shape);
    let variant = &plan.choice.variant;
    let (quantisation, download_bytes) = (variant.label.clone(), variant.bytes());
    SizedModel { quantisation, download_bytes, shape, weight_types }
}
