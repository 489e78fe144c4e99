//! From a reference to a model on disk: resolve, then fetch.

use std::fs::{self, File, TryLockError};
use std::path::{Path, PathBuf};
use std::time::Duration;

use ureq::http::Uri;

use crate::client::Failure;
use crate::download::{self, FileDownload, FileProgress};
use crate::fetch_plan::PlannedFile;
use crate::file_hashes::FileHashes;
use crate::nearby::Nearby;
use crate::ranges::Limit;
use crate::{
    Cancel, ChosenVariant, Client, FetchPlan, HubError, HubReference, Licence, Memory, Origin, Reference,
    ReferenceProblem, RepoFile, Snapshot, Variant, address, answers, disk, names, select,
};

/// Texts of licences are kept with a model, up to this size each.
const LICENCE_BYTES_MAX: u64 = 1 << 20;
/// Sum of all files of a model.
const MODEL_BYTES_MAX: u64 = 16 << 40;

/// How a model is fetched.
#[derive(Clone, Debug)]
pub struct PullOptions {
    /// The folder of all fetched models.
    pub root: PathBuf,
    /// Ranges of a file at once, 1 to 8.
    pub ranges_max: usize,
    /// Bytes a second over all of them.
    pub rate_max: Option<u64>,
}

/// How far a model is. Within a fetch nothing becomes fewer.
#[derive(Clone, PartialEq, Eq, Debug)]
#[allow(missing_docs)] // a field without a comment is what its name says
pub struct Progress {
    pub file: String,
    /// Bytes on disk, verified.
    pub done_bytes: u64,
    /// The same with all that has come and is not there yet. Some of that may have to come again.
    pub received_bytes: u64,
    pub total_bytes: u64,
    pub ranges: usize,
}

/// A model that is here.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Fetched {
    /// The file or folder to open.
    pub path: PathBuf,
    /// Where it came from.
    pub origin: Origin,
    /// Whether nothing had to be fetched.
    pub was_here: bool,
    /// Of the files that came.
    pub(crate) hashes: Vec<FileHashes>,
}

impl Fetched {
    /// BLAKE3 of each `block_bytes` of a file, if it came by this fetch and has not changed since.
    pub fn hashes_of(&self, path: &Path, block_bytes: u32) -> Option<Vec<[u8; 32]>> {
        FileHashes::find(&self.hashes, path, block_bytes)
    }
}

/// What a reference means now: which files of which commit. Asks the hub, and fetches no weights. Offline,
/// what is on disk already.
pub fn resolve(
    client: &Client,
    reference: &Reference,
    memory: Option<&Memory>,
    cancel: &Cancel,
) -> Result<FetchPlan, HubError> {
    match reference {
        Reference::Hub(hub) => resolve_hub(client, hub, memory, cancel),
        Reference::Registry(registry) => crate::registry::resolve(client, registry, cancel),
        Reference::Url(url) => resolve_url(client, url, cancel),
        Reference::Path(path) => {
            let text = crate::errors::quoted(&path.display().to_string());
            Err(HubError::Reference { text, reason: ReferenceProblem::Path })
        }
    }
}

const RANGES_MAX: usize = 8;

impl PullOptions {
    /// To this folder: as many ranges as help, as fast as they come.
    pub fn new(root: PathBuf) -> Self {
        Self { root, ranges_max: RANGES_MAX, rate_max: None }
    }
}

fn resolve_hub(
    client: &Client,
    hub: &HubReference,
    memory: Option<&Memory>,
    cancel: &Cancel,
) -> Result<FetchPlan, HubError> {
    let snapshot = client.snapshot(hub, cancel)?;
    plan_of(client, hub, &snapshot, memory, cancel)
}

/// What a reference means in a repository at one commit.
pub fn plan_of(
    client: &Client,
    hub: &HubReference,
    snapshot: &Snapshot,
    memory: Option<&Memory>,
    cancel: &Cancel,
) -> Result<FetchPlan, HubError> {
    let mut choice = select::choose(snapshot, hub.quantisation.as_deref(), hub.file.as_deref(), memory)?;
    if let Some(index) = select::index_of(&choice.variant) {
        let attempt = format!("read the index of {}", hub.repo);
        let uri = file_uri(client, snapshot, &index.path)?;
        let bytes = client.document(&uri, &attempt, Some(&hub.repo), cancel)?.bytes;
        let kept = select::keep_shards(&mut choice.variant, &bytes);
        kept.map_err(|problem| HubError::Answer {
            host: address::host(&uri),
            attempt,
            problem: problem.to_string(),
        })?;
    }
    let is_folder = choice.variant.label == "safetensors";
    let label = if is_folder { names::file_name(&hub.repo).to_owned() } else { choice.variant.label.clone() };
    let licences =
        snapshot.files.iter().filter(|f| names::is_licence(&f.path) && f.size <= LICENCE_BYTES_MAX);
    let wanted: Vec<RepoFile> = choice.variant.files.iter().chain(licences).cloned().collect();
    let files = wanted.iter().map(|f| planned(client, snapshot, f)).collect::<Result<Vec<_>, _>>()?;
    let folder = names::relative(&hub.repo).join(&snapshot.commit).join(names::folder_name(&label));
    let plan = FetchPlan {
        reference: hub.to_string(),
        repo: hub.repo.clone(),
        commit: Some(snapshot.commit.clone()),
        choice,
        licence: snapshot.licence.clone(),
        files,
        folder,
    };
    check_sum(plan)
}

fn check_sum(plan: FetchPlan) -> Result<FetchPlan, HubError> {
    match plan.bytes() {
        bytes if bytes > MODEL_BYTES_MAX => Err(HubError::TooLarge {
            what: format!("the size of {} in bytes", plan.repo),
            found: bytes,
            max: MODEL_BYTES_MAX,
        }),
        _ => Ok(plan),
    }
}

fn file_uri(client: &Client, snapshot: &Snapshot, path: &str) -> Result<Uri, HubError> {
    uri_at(client, &snapshot.repo, &snapshot.commit, path)
}

/// Where a hub has a file at a commit.
pub(crate) fn uri_at(client: &Client, repo: &str, commit: &str, path: &str) -> Result<Uri, HubError> {
    client.hub_uri(&format!("/{repo}/resolve/{commit}/{}", exo_types::percent_encoded(path, b"/")))
}

fn planned(client: &Client, snapshot: &Snapshot, file: &RepoFile) -> Result<PlannedFile, HubError> {
    let uri = file_uri(client, snapshot, &file.path)?;
    Ok(PlannedFile {
        name: file.path.clone(),
        size: file.size,
        sha256: file.sha256.clone(),
        git_id: file.git_id.clone(),
        uri,
        below: names::relative(&file.path),
    })
}

/// One file at an address: its size is what the host answers to a range of one byte.
fn resolve_url(client: &Client, url: &str, cancel: &Cancel) -> Result<FetchPlan, HubError> {
    let shown = address::without_query(url);
    let refused = || HubError::Reference { text: shown.clone(), reason: ReferenceProblem::NoAddress };
    let uri: Uri = url.parse().map_err(|_| refused())?;
    let (host, attempt) = (address::host(&uri), format!("ask for {shown}"));
    let answer = client.get_again(&uri, Some((0, 1)), None, &attempt, cancel)?;
    if answer.status != 206 {
        return Err(match answer.status {
            200 => HubError::Lacks {
                host,
                attempt,
                problem: "it knows no ranges, so a download could not go on where it ended".to_owned(),
            },
            _ => client.refusal(answer, &attempt, None),
        });
    }
    let range = answers::header(&answer.headers, "content-range").and_then(answers::content_range);
    let (_, _, size) = range.ok_or_else(|| HubError::Answer {
        host: host.clone(),
        attempt,
        problem: "it does not say how large the file is".to_owned(),
    })?;
    let name = names::file_name(uri.path()).to_owned();
    if let Some(reason) = names::refusal(&name) {
        return Err(HubError::Name {
            repo: host,
            path: crate::errors::quoted(&name),
            reason: reason.to_owned(),
        });
    }
    // What is signed stands in the query and changes; what the file is, the host says. Where it does not, all
    // of the address counts.
    let version =
        ["etag", "last-modified"].into_iter().find_map(|name| answers::header(&answer.headers, name));
    let whole = url.split('#').next().unwrap_or_default();
    let identity = match version {
        // Two files of one second may differ in the query alone.
        Some(version) => format!("{}\n{version}\n{size}", whole.split('?').next().unwrap_or_default()),
        None => whole.to_owned(),
    };
    let id = blake3::hash(identity.as_bytes()).to_hex()[..16].to_owned();
    let below = names::relative(&name);
    let variant = Variant {
        label: name.clone(),
        files: vec![RepoFile { path: name.clone(), size, sha256: None, git_id: None }],
        is_supported: true,
        problem: None,
    };
    let plan = FetchPlan {
        reference: shown,
        repo: host,
        commit: None,
        choice: ChosenVariant { variant, reason: "the file at the address".to_owned() },
        licence: Licence::default(),
        files: vec![PlannedFile { name, size, sha256: None, git_id: None, uri, below }],
        folder: PathBuf::from(names::ADDRESSES).join(id).join("files").join("model"),
    };
    check_sum(plan)
}

impl FetchPlan {
    /// Bytes that are still to be fetched below `root`, as earlier attempts left it.
    pub fn missing_bytes(&self, root: &Path) -> u64 {
        let folder = self.folder(root);
        let missing = |file: &PlannedFile| file.size.saturating_sub(self.held_bytes(file, &folder));
        self.files.iter().map(missing).fold(0, u64::saturating_add)
    }

    /// Bytes that are below `root` and verified, as earlier attempts left it.
    pub fn verified_bytes(&self, root: &Path) -> u64 {
        self.bytes().saturating_sub(self.missing_bytes(root))
    }

    pub(crate) fn held_bytes(&self, file: &PlannedFile, folder: &Path) -> u64 {
        download::held_bytes(file, &self.repo, self.commit.as_deref(), &folder.join(&file.below))
    }

    /// Whether the host of its files answers at all now: what is asked before a download goes on whose line
    /// was away.
    pub fn is_answered(&self, client: &Client) -> bool {
        let Some(file) = self.files.iter().find(|file| file.size > 0) else { return true };
        !matches!(client.get(&file.uri, None, Some((0, 1)), None), Err(Failure::Connection(error)) if crate::retry::is_line_away(&error))
    }
}

/// [`fetch_near`] for who has nobody near.
pub fn fetch(
    client: &Client,
    plan: &FetchPlan,
    options: &PullOptions,
    cancel: &Cancel,
    report: &mut dyn FnMut(&Progress),
) -> Result<Fetched, HubError> {
    fetch_near(client, &(), plan, options, cancel, report)
}

/// Brings all files of a plan to disk, from where an earlier attempt ended, and records where they came from:
/// of each what others near have, and the rest from the hub. Whether there is room for
/// [`FetchPlan::missing_bytes`] is for the caller to see to.
pub fn fetch_near(
    client: &Client,
    nearby: &dyn Nearby,
    plan: &FetchPlan,
    options: &PullOptions,
    cancel: &Cancel,
    report: &mut dyn FnMut(&Progress),
) -> Result<Fetched, HubError> {
    let folder = plan.folder(&options.root);
    let origin = plan.origin(&client.settings().endpoint.to_string());
    disk::create_folder(&folder)?;
    let _lock = lock(&folder)?;
    let path = plan.path(&options.root);
    if plan.is_here(&options.root) {
        return Ok(Fetched { path, origin, was_here: true, hashes: Vec::new() });
    }
    let (total_bytes, mut base) = (plan.bytes(), 0);
    let limit = Limit::new(options.rate_max);
    let (mut most, mut most_received, mut hashes) = (0, 0, Vec::new());
    for (index, file) in plan.files.iter().enumerate() {
        let later: u64 = plan.files[index + 1..].iter().map(|file| plan.held_bytes(file, &folder)).sum();
        let job = FileDownload {
            client,
            nearby,
            repo: &plan.repo,
            commit: plan.commit.as_deref(),
            file,
            path: folder.join(&file.below),
            ranges_max: options.ranges_max,
            limit: &limit,
            cancel,
        };
        let came = download::download(&job, &mut |FileProgress { done_bytes, coming_bytes, ranges }| {
            let done_bytes = base + done_bytes + later;
            most = most.max(done_bytes);
            most_received = most_received.max((done_bytes + coming_bytes).min(total_bytes)).max(most);
            let (file, received_bytes) = (file.name.clone(), most_received);
            report(&Progress { file, done_bytes: most, received_bytes, total_bytes, ranges });
        })?;
        hashes.extend(came);
        base += file.size;
    }
    origin.write(&plan.origin_path(&options.root))?;
    Ok(Fetched { path, origin, was_here: false, hashes })
}

/// Held while one process fetches a model; the system lets go of it when the process ends, however it does.
fn lock(folder: &Path) -> Result<File, HubError> {
    let path = disk::beside(folder, "lock");
    let file = File::create(&path).map_err(HubError::disk("make", &path))?;
    match file.try_lock() {
        Ok(()) => Ok(file),
        Err(TryLockError::WouldBlock) => Err(HubError::Busy { folder: folder.to_owned() }),
        Err(TryLockError::Error(error)) => {
            tracing::debug!(%error, "this disk has no locks");
            Ok(file)
        }
    }
}

/// What stays when downloads are forgotten that were never finished.
#[derive(Clone, Default, Debug)]
pub struct KeptDownloads {
    /// Folders of downloads that wait to go on, or of all that theirs may be in.
    pub waiting: Vec<PathBuf>,
    /// Files and folders of models that are known.
    pub known: Vec<PathBuf>,
}

/// A model that is whole and not known yet is about to be.
const ADDING_MAX: Duration = Duration::from_secs(3600);

/// Deletes what was never finished: the files of a model that is not whole, those that came whole included;
/// beside a model that is whole what is partial; and a model that came whole and could not be made known. Of
/// what another process fetches nothing. Returns how many files and bytes on disk that were.
pub fn forget_partial(root: &Path, kept: &KeptDownloads) -> Result<(usize, u64), HubError> {
    let known: Vec<PathBuf> = kept.known.iter().map(|path| resolved(path)).collect();
    let (mut files, mut bytes) = (0, 0);
    let waits = |folder: &PathBuf| kept.waiting.iter().any(|waiting| folder.starts_with(waiting));
    for folder in partial_folders(root).into_iter().filter(|folder| !waits(folder)) {
        let Ok(_lock) = lock(&folder) else { continue };
        let is_known = known.iter().any(|path| path.starts_with(resolved(&folder)));
        let is_wanted = is_known || is_new(&disk::beside(&folder, "origin.json"));
        let below = files_below(&folder, 4);
        let (parts, whole): (Vec<&PathBuf>, Vec<&PathBuf>) = below
            .iter()
            .filter(|path| !ends_with(path, ".part.map"))
            .partition(|path| ends_with(path, ".part"));
        files += parts.len();
        bytes += parts.iter().map(|part| allocated(part)).sum::<u64>();
        if is_wanted {
            for path in below.iter().filter(|p| ends_with(p, ".part") || ends_with(p, ".part.map")) {
                fs::remove_file(path).map_err(HubError::disk("delete", path))?;
            }
            continue;
        }
        files += whole.len();
        bytes += whole.iter().filter_map(|path| fs::metadata(path).ok()).map(|m| m.len()).sum::<u64>();
        tracing::info!(folder = %folder.display(), "a download that was never finished goes");
        fs::remove_dir_all(&folder).map_err(HubError::disk("delete", &folder))?;
        for ending in ["origin.json", "lock"] {
            let _ = fs::remove_file(disk::beside(&folder, ending));
        }
        // Of commit, repository and organisation what is empty now.
        folder
            .ancestors()
            .skip(1)
            .take_while(|above| *above != root)
            .take(3)
            .for_each(|above| _ = fs::remove_dir(above));
    }
    Ok((files, bytes))
}

fn ends_with(path: &Path, ending: &str) -> bool {
    path.file_name().is_some_and(|name| name.to_string_lossy().ends_with(ending))
}

/// Whether a file is there and was written lately.
fn is_new(path: &Path) -> bool {
    let modified = fs::metadata(path).and_then(|about| about.modified());
    modified.is_ok_and(|at| at.elapsed().map_or(true, |age| age < ADDING_MAX))
}

/// Without links, so that two names of one place are the same.
fn resolved(path: &Path) -> PathBuf {
    fs::canonicalize(path).unwrap_or_else(|_| path.to_owned())
}

/// A partial file is sparse: what its map promises is what it takes.
fn allocated(part: &Path) -> u64 {
    let records = fs::metadata(disk::beside(part, "map")).map_or(0, |m| m.len() / 40);
    fs::metadata(part).map_or(0, |m| m.len().min(records * crate::chunk_map::CHUNK_BYTES))
}

/// Folders of models below `root/org/repo/commit`.
fn partial_folders(root: &Path) -> Vec<PathBuf> {
    let mut level = vec![root.to_owned()];
    for _ in 0..4 {
        level = level.iter().flat_map(|folder| folders_in(folder)).collect();
    }
    level
}

pub(crate) fn folders_in(folder: &Path) -> Vec<PathBuf> {
    let all = fs::read_dir(folder).into_iter().flatten().flatten();
    all.filter(|e| e.file_type().is_ok_and(|t| t.is_dir())).map(|e| e.path()).take(10_000).collect()
}

fn files_below(folder: &Path, depth: usize) -> Vec<PathBuf> {
    let all = fs::read_dir(folder).into_iter().flatten().flatten().take(10_000);
    let mut files = Vec::new();
    for entry in all {
        match entry.file_type() {
            Ok(t) if t.is_dir() && depth > 0 => files.extend(files_below(&entry.path(), depth - 1)),
            Ok(t) if t.is_file() => files.push(entry.path()),
            _ => {}
        }
    }
    files
}
