//! What the hub says of a repository: its commit, its files, its licence; and searching.

use std::collections::BTreeSet;

use exo_types::percent_encoded;
use serde_json::Value;

use crate::errors::quoted;
use crate::problems::{AnswerProblem, FILE_BYTES_MAX};
use crate::reference::is_hex;
use crate::{Cancel, Client, HubError, HubReference, Licence, address, answers, names};

/// More than any repository of a model has.
const FILES_MAX: usize = 20_000;
const PAGES_MAX: usize = 100;
const FOUND_MAX: usize = 50;
const TEXT_CHARS_MAX: usize = 200;

/// A file of a repository.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct RepoFile {
    /// Its path in the repository.
    pub path: String,
    /// Its length.
    pub size: u64,
    /// SHA-256 in hex, which the hub has for large files.
    pub sha256: Option<String>,
    /// What git calls these bytes; the hub has it for every file.
    pub git_id: Option<String>,
}

/// A repository at one commit.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Snapshot {
    /// `org/repo`.
    pub repo: String,
    /// The commit that the revision was when it was asked for.
    pub commit: String,
    /// Its files, by path. Those that may not be fetched are not among them.
    pub files: Vec<RepoFile>,
    /// How many files were left out because nothing of their kind is ever fetched.
    pub left_out: usize,
    /// What it may be used for.
    pub licence: Licence,
    /// Whether the hub asks for consent before it gives the files.
    pub is_gated: bool,
    /// What the hub calls it now, where that is another name: a hub leads on from an old one.
    pub moved_to: Option<String>,
}

/// A repository that a search found.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct FoundRepo {
    /// `org/repo`.
    pub repo: String,
    /// Downloads in the last month.
    pub downloads: u64,
    /// Likes that the hub counts.
    pub likes: u64,
    /// Whether it asks for consent.
    pub is_gated: bool,
    /// Whether it has GGUF or safetensors files, by its tags.
    pub format: Option<&'static str>,
}

impl Client {
    /// The repository at the commit that the reference means now.
    pub fn snapshot(&self, reference: &HubReference, cancel: &Cancel) -> Result<Snapshot, HubError> {
        self.check_online(|| format!("`{reference}`"))?;
        let repo = &reference.repo;
        let attempt = format!("describe {repo}");
        let revision = reference.revision().replace('/', "%2F");
        let uri = self.hub_uri(&format!("/api/models/{repo}/revision/{revision}"))?;
        let info = self.document(&uri, &attempt, Some(repo), cancel)?.parsed(&attempt, parse_info)?;
        let (files, left_out) = self.files(repo, &info.commit, cancel)?;
        Ok(Snapshot {
            repo: repo.clone(),
            commit: info.commit,
            files,
            left_out,
            licence: info.licence,
            is_gated: info.is_gated,
            moved_to: info.name.filter(|name| !name.eq_ignore_ascii_case(repo)),
        })
    }

    fn files(&self, repo: &str, commit: &str, cancel: &Cancel) -> Result<(Vec<RepoFile>, usize), HubError> {
        let attempt = format!("list the files of {repo}");
        let mut uri =
            self.hub_uri(&format!("/api/models/{repo}/tree/{commit}?recursive=true&expand=false"))?;
        let (mut files, mut left_out, mut seen) = (Vec::new(), 0, BTreeSet::new());
        for _ in 0..PAGES_MAX {
            let document = self.document(&uri, &attempt, Some(repo), cancel)?;
            for file in document.parsed(&attempt, parse_page)? {
                let refusal = names::refusal(&file.path);
                // Two names that differ in case are one file on many disks.
                if refusal.is_none() && seen.insert(file.path.to_lowercase()) {
                    files.push(file);
                    continue;
                }
                left_out += 1;
                if names::is_fetchable(&file.path) {
                    let reason = refusal.unwrap_or("another file has the same name but for capitals");
                    tracing::debug!(repo, path = quoted(&file.path), reason, "a file is never asked for");
                }
            }
            let count = files.len() + left_out;
            if count > FILES_MAX {
                return Err(HubError::TooLarge {
                    what: format!("the number of files of {repo}"),
                    found: count as u64,
                    max: FILES_MAX as u64,
                });
            }
            let Some(next) = answers::header(&document.headers, "link").and_then(answers::next_link) else {
                files.sort_by(|a, b| a.path.cmp(&b.path));
                return Ok((files, left_out));
            };
            uri = self.next_page(&uri, &next, &attempt)?;
        }
        Err(HubError::TooLarge {
            what: format!("the number of pages that list {repo}"),
            found: PAGES_MAX as u64 + 1,
            max: PAGES_MAX as u64,
        })
    }

    /// The next page is on the same host: the token goes with it.
    fn next_page(
        &self,
        uri: &ureq::http::Uri,
        next: &str,
        attempt: &str,
    ) -> Result<ureq::http::Uri, HubError> {
        let to = crate::redirect::target(uri, next, true)
            .or_else(|_| crate::redirect::target(uri, next, false))?;
        if address::origin(&to) == address::origin(uri) {
            return Ok(to);
        }
        let problem = format!("its next page is on another host, {}", address::host(&to));
        Err(HubError::Answer { host: address::host(uri), attempt: attempt.to_owned(), problem })
    }

    /// Models that the hub finds for a text, most downloaded first.
    pub fn search(&self, text: &str, cancel: &Cancel) -> Result<Vec<FoundRepo>, HubError> {
        let attempt = format!("search for {}", quoted(text));
        let uri = self.hub_uri(&format!(
            "/api/models?search={}&sort=downloads&direction=-1&limit={FOUND_MAX}",
            encoded(text)
        ))?;
        self.document(&uri, &attempt, None, cancel)?.parsed(&attempt, parse_found)
    }
}

/// A text as part of a query.
pub(crate) fn encoded(text: &str) -> String {
    let text: String = text.chars().take(TEXT_CHARS_MAX).collect();
    percent_encoded(&text, b"")
}

/// What matters of a repository's description.
pub(crate) struct Info {
    pub(crate) commit: String,
    pub(crate) licence: Licence,
    pub(crate) is_gated: bool,
    pub(crate) name: Option<String>,
}

pub(crate) fn parse_info(bytes: &[u8]) -> Result<Info, AnswerProblem> {
    let value = json(bytes)?;
    let commit = value.get("sha").and_then(Value::as_str).ok_or(AnswerProblem::NoKey("sha"))?;
    if !is_hex(commit, 40) && !is_hex(commit, 64) {
        return Err(AnswerProblem::Sha(quoted(commit)));
    }
    let name = value.get("id").and_then(Value::as_str).filter(|name| is_repo(name)).map(str::to_owned);
    let licence = Licence::of(&value);
    Ok(Info { commit: commit.to_owned(), licence, is_gated: is_gated(&value), name })
}

/// Whether a reference could name it.
fn is_repo(text: &str) -> bool {
    text.split_once('/')
        .is_some_and(|(org, name)| names::repo_part_refusal(org).or(names::repo_part_refusal(name)).is_none())
}

/// `gated` is false, "auto" or "manual".
fn is_gated(value: &Value) -> bool {
    value.get("gated").is_some_and(|g| g.as_bool().unwrap_or(g.is_string()))
}

pub(crate) fn parse_page(bytes: &[u8]) -> Result<Vec<RepoFile>, AnswerProblem> {
    let value = json(bytes)?;
    let entries = value.as_array().ok_or(AnswerProblem::NoList("files"))?;
    let files = entries.iter().filter(|e| e.get("type").and_then(Value::as_str) == Some("file"));
    files.map(parse_file).collect()
}

fn parse_file(entry: &Value) -> Result<RepoFile, AnswerProblem> {
    let path = entry.get("path").and_then(Value::as_str).ok_or(AnswerProblem::NoPath)?;
    let lfs = entry.get("lfs").filter(|lfs| lfs.is_object());
    let size = lfs.and_then(|l| l.get("size")).or(entry.get("size")).and_then(Value::as_u64);
    let size = size.ok_or_else(|| AnswerProblem::NoSize(quoted(path)))?;
    if size > FILE_BYTES_MAX {
        return Err(AnswerProblem::FileTooLarge { path: quoted(path), size });
    }
    let oid = lfs.and_then(|l| l.get("oid")).and_then(Value::as_str);
    let sha256 = match oid.map(|oid| oid.strip_prefix("sha256:").unwrap_or(oid)) {
        Some(oid) if is_hex(oid, 64) => Some(oid.to_ascii_lowercase()),
        Some(oid) => {
            return Err(AnswerProblem::FileDigest { path: quoted(path), digest: quoted(oid) });
        }
        None => None,
    };
    let git_id =
        entry.get("oid").and_then(Value::as_str).filter(|id| is_hex(id, 40)).map(str::to_ascii_lowercase);
    Ok(RepoFile { path: path.to_owned(), size, sha256, git_id })
}

pub(crate) fn parse_found(bytes: &[u8]) -> Result<Vec<FoundRepo>, AnswerProblem> {
    let value = json(bytes)?;
    let entries = value.as_array().ok_or(AnswerProblem::NoList("models"))?;
    let found = entries.iter().take(FOUND_MAX).filter_map(|entry| {
        let repo = entry.get("id").or(entry.get("modelId"))?.as_str()?;
        if !is_repo(repo) {
            return None;
        }
        let has_tag = |tag: &str| {
            entry.get("tags").and_then(Value::as_array).is_some_and(|t| t.iter().any(|t| t == tag))
        };
        let format = ["gguf", "safetensors"].into_iter().find(|f| has_tag(f));
        let number = |key: &str| entry.get(key).and_then(Value::as_u64).unwrap_or(0);
        Some(FoundRepo {
            repo: repo.to_owned(),
            downloads: number("downloads"),
            likes: number("likes"),
            is_gated: is_gated(entry),
            format,
        })
    });
    Ok(found.collect())
}

fn json(bytes: &[u8]) -> Result<Value, AnswerProblem> {
    serde_json::from_slice(bytes).map_err(|error| {
        let start: String = String::from_utf8_lossy(bytes).chars().take(40).collect();
        AnswerProblem::JsonFrom { error, start: quoted(&start) }
    })
}
