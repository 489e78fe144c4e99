//! Model files on disk: which models this node knows, their manifests, and partial copies fetched from peers.
//!
//! A [`Manifest`] lists a model's files cut into chunks with a BLAKE3 hash each; its root hash is the
//! [`ModelId`](exo_types::ModelId). A model of a hub may be known before it is fetched ([`HubSource`]). A
//! model is either *local* (the user's own file: read, never written, never deleted) or *fetched*: sparse
//! files under the data folder that hold the chunks a node needed so far ([`PartialModel`]), each verified
//! before it was written.
//!
//! Everything here blocks; `node` calls it from blocking tasks.
//!
//! **Architecture invariant:** no network. Chunks come and go as bytes; who sent them is `node`'s business.
//!
//! Start reading at [`Store`].

#![forbid(unsafe_code)]

mod budget;
mod caches;
mod chunk;
mod commits;
#[cfg(test)]
#[path = "../../formats/tests/common/mod.rs"]
mod common;
mod disk;
mod errors;
mod hashing;
mod held;
mod links;
mod local;
mod manifest;
mod partial;
mod record;
mod recorded;
mod registry;
mod sha256;
mod store;

pub use budget::{DiskBudget, DiskClaim, DiskLimits, DiskLook, NoRoom};
pub use caches::{CacheError, CachedModel, find_cached, local_caches};
pub use chunk::ChunkRef;
pub use commits::plain_name;
pub use errors::{ChunkError, FindError, ManifestError, StoreError, StoreWarning};
pub use held::HeldMap;
pub use manifest::{FileEntry, HubFile, HubSource, KnownHashes, Manifest, ModelKind};
pub use partial::{Digested, PartialModel};
pub use record::{ModelRecord, RecordProblem, Replaced, Source};
pub use sha256::Sha256State;
pub use store::Store;

/// For fuzz targets: the parsers of what other programs, members and disks say.
#[doc(hidden)]
pub mod fuzzing {
    /// Feeds bytes to each of them; none may panic.
    pub fn stored(bytes: &[u8]) {
        crate::caches::parse_layers(bytes);
        crate::recorded::parse(bytes).for_each(drop);
        let Ok(manifest) = crate::Manifest::from_bytes(bytes) else { return };
        let root = manifest.root();
        assert_eq!(crate::Manifest::from_bytes(&manifest.to_bytes()).map(|again| again.root()), Ok(root));
        // A map of this very model, with any bits.
        let mut map = crate::HeldMap::empty(&manifest).encode(root);
        map[crate::held::HEAD_BYTES..].iter_mut().zip(bytes).for_each(|(bits, byte)| *bits = *byte);
        assert!(crate::HeldMap::decode(&map, root, &manifest).is_some());
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    proptest! {
        /// Whatever lies on a disk or comes from a member, its parsers give a value or an error.
        #[test]
        fn nothing_stored_makes_a_parser_panic(
            bytes in proptest::collection::vec(any::<u8>(), 0..400),
            digest in "[a-f0-9:/.]{0,80}",
        ) {
            super::fuzzing::stored(&bytes);
            super::fuzzing::stored(format!(r#"{{"layers":[{{"mediaType":"x","digest":"{digest}"}}]}}"#).as_bytes());
        }
    }
}
