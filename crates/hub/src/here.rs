//! What is on this disk already for a reference, so that no hub need be asked to run it.

use std::fs;
use std::path::{Path, PathBuf};

use crate::pull::folders_in;
use crate::{Fetched, HubReference, Origin, PullOptions, Reference, address, names};

impl Reference {
    /// The folder, below that of all fetched models, that its files are in, whatever its hub says that it
    /// means.
    pub fn folder(&self) -> PathBuf {
        match self {
            Self::Hub(hub) => names::relative(&hub.repo),
            Self::Registry(_) => PathBuf::from(names::REGISTRIES),
            Self::Url(_) => PathBuf::from(names::ADDRESSES),
            Self::Path(path) => path.clone(),
        }
    }
}

impl PullOptions {
    /// What is whole on this disk of a reference; how an offline machine is served.
    pub fn on_disk(&self, reference: &Reference) -> Option<Fetched> {
        match reference {
            Reference::Hub(hub) => on_disk(&self.root, hub),
            Reference::Registry(_) => {
                by_reference(&self.root.join(names::REGISTRIES), &reference.to_string())
            }
            Reference::Url(url) => {
                by_reference(&self.root.join(names::ADDRESSES), &address::without_query(url))
            }
            Reference::Path(_) => None,
        }
    }

    /// What is whole on this disk and came for this very reference: the same branch or tag, and the same
    /// type, named or chosen.
    pub fn fetched_for(&self, reference: &Reference) -> Option<Fetched> {
        let hub = match reference {
            Reference::Hub(hub) => hub,
            // What stands behind an address may be another file today, and its query is not kept: its host is
            // asked.
            Reference::Url(_) => return None,
            other => return self.on_disk(other),
        };
        let text = hub.to_string();
        let mut found = Origin::below(&self.root.join(names::relative(&hub.repo)));
        found.retain(|(origin, _)| {
            origin.reference == text
                || (!hub.names_no_type() && is_of_revision(hub, origin) && is_type(hub, origin))
        });
        latest(found)
    }
}

/// The model that a reference means, if it is whole on this disk: the newest commit first where several are.
fn on_disk(root: &Path, hub: &HubReference) -> Option<Fetched> {
    let mut found = Origin::on_disk(root, &hub.repo);
    found.retain(|(origin, _)| {
        let commit = origin.commit.as_deref().unwrap_or_default();
        let was_asked = |revision: &str| asked(origin).is_some_and(|before| before.revision() == revision);
        let is_commit = hub.revision.as_ref().is_none_or(|r| was_asked(r) || commit.starts_with(r.as_str()));
        is_commit && is_type(hub, origin)
    });
    latest(found)
}

/// The newest model below the folder of registries, or of addresses, that was fetched for this reference.
fn by_reference(folder: &Path, reference: &str) -> Option<Fetched> {
    let all = folders_in(folder).into_iter().flat_map(|repo| Origin::below(&repo));
    latest(all.filter(|(origin, _)| origin.reference == reference).collect())
}

fn latest(mut found: Vec<(Origin, PathBuf)>) -> Option<Fetched> {
    found.sort_by_key(|(_, path)| fs::metadata(path).and_then(|m| m.modified()).ok());
    found.pop().map(|(origin, path)| Fetched { path, origin, was_here: true, hashes: Vec::new() })
}

/// Whether a model is of the type, or of the file, that a reference names.
fn is_type(hub: &HubReference, origin: &Origin) -> bool {
    let before = asked(origin).and_then(|before| before.quantisation);
    let is_label = |q: &String| {
        q.eq_ignore_ascii_case(&origin.label) || before.as_ref().is_some_and(|b| b.eq_ignore_ascii_case(q))
    };
    let is_file = |path: &String| origin.files.iter().any(|file| file.path == *path);
    hub.quantisation.as_ref().is_none_or(is_label) && hub.file.as_ref().is_none_or(is_file)
}

/// Whether a model was asked for by the same branch or tag, or is of the commit that is named.
fn is_of_revision(hub: &HubReference, origin: &Origin) -> bool {
    let commit = origin.commit.as_deref().unwrap_or_default();
    let is_commit = |r: &str| r.len() >= names::COMMIT_CHARS_MIN && commit.starts_with(r);
    hub.revision.as_deref().is_some_and(is_commit)
        || asked(origin).is_some_and(|before| before.revision() == hub.revision())
}

fn asked(origin: &Origin) -> Option<HubReference> {
    match origin.reference.parse() {
        Ok(Reference::Hub(before)) => Some(before),
        _ => None,
    }
}
