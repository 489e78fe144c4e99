//! Some chunks of a file at a commit that is known: what a node fetches of a model that it runs only layers
//! of.

use std::sync::atomic::{AtomicU32, AtomicU64};
use std::time::Duration;

use exo_stdx::Mutex;

use crate::chunk_queue::ChunkQueue;
use crate::download::{RANGES_START, control};
use crate::fetch_plan::{PlannedFile, RepoCommit};
use crate::pull::uri_at;
use crate::ranges::{ChunkStore, Fetch, Limit, StoreChunk};
use crate::{Cancel, Client, HubError, names};

const RANGES_MAX: usize = 8;
/// Who asks for chunks has others to ask, and comes again: a hub that is not reached is no reason for minutes
/// of silence.
const TRIES_MAX: u32 = 3;
/// A longer wait that the hub asks for is for the caller to know.
const WAIT_MAX: Duration = Duration::from_secs(20);

/// Says whether a chunk is here, whoever brought it.
pub type IsHere<'a> = dyn Fn(u32) -> bool + 'a;

/// A file of a repository at a commit, and what it must be.
#[derive(Clone, Debug)]
pub struct CommitFile {
    file: PlannedFile,
    repo: String,
    commit: String,
}

impl CommitFile {
    /// The file at a path of a repository. Whoever names it may be another node: what cannot be a name of a
    /// hub is refused.
    pub fn new(
        client: &Client,
        repo: &str,
        commit: &str,
        path: &str,
        size: u64,
        sha256: Option<String>,
    ) -> Result<Self, HubError> {
        let refuse = |reason: &str| HubError::Name {
            repo: crate::errors::quoted(repo),
            path: crate::errors::quoted(path),
            reason: reason.to_owned(),
        };
        let parts: Vec<&str> = repo.split('/').collect();
        if parts.len() != 2 {
            return Err(refuse("a repository is ORG/REPO"));
        }
        let refusal =
            parts.iter().find_map(|part| names::repo_part_refusal(part)).or_else(|| names::refusal(path));
        if let Some(reason) = refusal {
            return Err(refuse(reason));
        }
        if commit.is_empty() || !commit.bytes().all(|b| b.is_ascii_hexdigit()) {
            return Err(refuse("its commit is not hexadecimal"));
        }
        let uri = uri_at(client, repo, commit, path)?;
        let file = PlannedFile {
            name: path.to_owned(),
            size,
            sha256,
            git_id: None,
            uri,
            below: names::relative(path),
        };
        Ok(Self { file, repo: repo.to_owned(), commit: commit.to_owned() })
    }

    /// What is asked of the hub.
    pub fn planned(&self) -> &PlannedFile {
        &self.file
    }

    /// A few of its bytes, in memory: [`Client::part`].
    pub fn part(
        &self,
        client: &Client,
        (start, end): (u64, u64),
        cancel: &Cancel,
    ) -> Result<Vec<u8>, HubError> {
        let at = RepoCommit { repo: &self.repo, commit: &self.commit };
        client.part(&self.file, Some(at), (start, end), cancel)
    }

    /// Brings the chunks of `wanted` and gives each to `store`, in any order and from several threads: with
    /// ranges, stalls, limits and addresses that expire as in a download of the whole file. What `store` has
    /// taken, or `is_here` says to be here by now, does not come again; `in_flight` hears now and then how
    /// much has come of the rest. Blocks.
    pub fn fetch_chunks(
        &self,
        client: &Client,
        chunk_bytes: u32,
        wanted: &[u32],
        cancel: &Cancel,
        (store, is_here): (&StoreChunk<'_>, &IsHere<'_>),
        in_flight: &mut dyn FnMut(u64),
    ) -> Result<(), HubError> {
        let count = u32::try_from(self.file.size.div_ceil(u64::from(chunk_bytes.max(1)))).unwrap_or(u32::MAX);
        let mut is_wanted = vec![false; count as usize];
        for index in wanted {
            let Some(wanted) = is_wanted.get_mut(*index as usize) else {
                let what = format!("a chunk of {}", self.file.name);
                return Err(HubError::TooLarge { what, found: (*index).into(), max: count.into() });
            };
            *wanted = true;
        }
        let others = (0..count).filter(|index| !is_wanted[*index as usize]);
        let fetchers_max = RANGES_MAX.min(wanted.len().max(1));
        let work = ChunkQueue::new(self.file.size, chunk_bytes.into(), others, fetchers_max);
        work.set_fetchers(RANGES_START);
        let fetch = Fetch {
            client,
            file: &self.file,
            repo: &self.repo,
            commit: Some(&self.commit),
            store: ChunkStore::Whole(store),
            work: &work,
            limit: &Limit::new(None),
            cancel,
            etag: Mutex::default(),
            wrong: AtomicU32::new(0),
            chunk_rate: AtomicU64::new(0),
            tries_max: TRIES_MAX,
            wait_max: WAIT_MAX,
        };
        std::thread::scope(|scope| {
            for fetcher in 0..fetchers_max {
                let fetch = &fetch;
                scope.spawn(move || fetch.run(fetcher));
            }
            // Whoever stores them synchronises them: what is written counts.
            control(&work, cancel, &|| work.is_over() || hold_written(&work), &mut |_| {
                work.note_here(is_here);
                in_flight(work.in_flight_bytes());
            });
            work.end(None);
        });
        match work.take_failure() {
            Some(failure) => Err(failure),
            None if work.is_all_held() => Ok(()),
            None => Err(HubError::Cancelled),
        }
    }
}

/// Counts what was written; whether that is all.
fn hold_written(work: &ChunkQueue) -> bool {
    work.hold(&work.written());
    work.is_all_held()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Settings;

    #[test]
    fn what_no_hub_can_have_is_not_asked_for() {
        let client = Client::new(Settings::of("http://127.0.0.1:1").unwrap());
        let file =
            |repo: &str, commit: &str, path: &str| CommitFile::new(&client, repo, commit, path, 10, None);
        let good = file("org/repo", "0a1b", "Q8_0/model q.gguf").unwrap();
        assert_eq!(
            good.planned().uri.to_string(),
            "http://127.0.0.1:1/org/repo/resolve/0a1b/Q8_0/model%20q.gguf",
            "the host is this node's"
        );
        for (repo, commit, path) in [
            ("org/repo/..", "0a", "m.gguf"),
            ("../repo", "0a", "m.gguf"),
            ("http://evil/x", "0a", "m.gguf"),
            ("@evil/x", "0a", "m.gguf"),
            ("org/repo", "main", "m.gguf"),
            ("org/repo", "", "m.gguf"),
            ("org/repo", "0a/../..", "m.gguf"),
            ("org/repo", "0a", "../m.gguf"),
            ("org/repo", "0a", "m.py"),
        ] {
            assert!(matches!(file(repo, commit, path), Err(HubError::Name { .. })), "{repo} {commit} {path}");
        }
    }

    #[test]
    fn a_chunk_that_the_file_does_not_have_is_an_error() {
        let client = Client::new(Settings::of("http://127.0.0.1:1").unwrap());
        let file = CommitFile::new(&client, "org/repo", "0a", "m.gguf", 10, None).unwrap();
        let store = |_: u32, _: u64, _: &[u8]| Ok(());
        let fetch = |wanted: &[u32]| {
            file.fetch_chunks(&client, 4, wanted, &Cancel::default(), (&store, &|_| false), &mut |_| {})
        };
        let fetched = fetch(&[3]);
        assert!(matches!(fetched, Err(HubError::TooLarge { .. })));
        fetch(&[]).unwrap();
    }
}
