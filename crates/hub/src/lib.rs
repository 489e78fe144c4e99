//! Models from a hub: what a reference means, what a repository has, and downloads that resume and are
//! verified.
//!
//! [`Reference`] is what a person types. [`Client`] asks a hub that speaks Hugging Face's API, [`resolve`]
//! turns a reference into a [`FetchPlan`] of files at one commit, and [`fetch`] brings them to disk: up to
//! eight ranges of a file at once, each verified chunk recorded before it counts, so that a killed process
//! costs the chunks in flight and progress never runs backwards.
//!
//! What a hub says is a stranger's word: every size, name and sum has a bound, only weights, JSON, templates
//! and text are ever fetched, and the token goes to the hub it is for and nowhere else.
//!
//! Everything here blocks. Why it is a client of our own: decision 0032.
//!
//! **Architecture invariant:** nothing here knows what a tensor is; models are files with names, sizes and
//! digests.
//!
//! Start reading at [`Reference`] and [`fetch`].

#![forbid(unsafe_code)]

mod address;
mod answers;
mod body;
mod cancel;
mod chunk_bits;
mod chunk_map;
mod chunk_queue;
mod chunks;
mod client;
mod disk;
mod download;
mod errors;
mod fetch_plan;
mod file_hashes;
mod here;
mod identity;
mod licence;
mod login;
mod names;
mod nearby;
mod origin;
mod overdue;
mod part;
mod partial_files;
mod problems;
mod pull;
mod ranges;
mod redirect;
mod reference;
mod reference_problem;
mod registry;
mod repository;
mod retry;
mod select;
mod settings;
mod sharing;
mod token;
mod update;

pub use cancel::Cancel;
pub use chunk_bits::ChunkBits;
pub use chunk_map::{BLOCK_BYTES, CHUNK_BYTES};
pub use chunks::CommitFile;
pub use client::Client;
pub use errors::HubError;
pub use fetch_plan::{FetchPlan, PlannedFile, RepoCommit};
pub use file_hashes::FileHashes;
pub use licence::Licence;
pub use login::forget_token;
pub use nearby::{GivenRange, LeaveRange, Nearby, TakeRange, WantedFile};
pub use origin::{Comparison, Origin, OriginFile};
pub use overdue::SourcePace;
pub use partial_files::{BlockError, PartialFiles, PartialState};
pub use pull::{
    Fetched, KeptDownloads, Progress, PullOptions, fetch, fetch_near, forget_partial, plan_of, resolve,
};
pub use reference::{HubReference, Reference, RegistryReference};
pub use reference_problem::ReferenceProblem;
pub use repository::{FoundRepo, RepoFile, Snapshot};
pub use select::{ChosenVariant, Memory, Variant, usable, variants};
pub use settings::Settings;
pub use sharing::{OtherFetch, Sharer, Sharing, left_to_others};
pub use token::Token;
pub use update::{ChangeKind, FileChange, HaveSize, resolve_again};

/// For fuzz targets: the parsers of what strangers send.
#[doc(hidden)]
pub mod fuzzing {
    /// Feeds bytes to every parser of an answer; none may panic.
    pub fn answers(bytes: &[u8]) {
        let _ = crate::repository::parse_page(bytes);
        let _ = crate::repository::parse_info(bytes);
        let _ = crate::repository::parse_found(bytes);
        let _ = crate::select::shards_of_index(bytes);
        let _ = crate::registry::parse_manifest(bytes);
        let _ = crate::registry::parse_token(bytes);
        let _ = crate::origin::Origin::parse(bytes);
        let _ = crate::chunk_map::parse(bytes, "identity", 1 << 40);
        if let Ok(info) = serde_json::from_slice(bytes) {
            let _ = crate::Licence::of(&info);
        }
        if let Ok(value) = ureq::http::HeaderValue::from_bytes(bytes) {
            let mut headers = ureq::http::HeaderMap::new();
            for name in ["retry-after", "ratelimit", "date", "content-encoding"] {
                headers.insert(name, value.clone());
            }
            let _ = crate::retry::retry_after(&headers);
            let _ = crate::answers::is_encoded(&headers);
        }
        if let Ok(text) = std::str::from_utf8(bytes) {
            let _ = text.parse::<crate::Reference>();
            let _ = crate::registry::parse_challenge(text);
            let _ = crate::answers::content_range(text);
            let _ = crate::answers::next_link(text);
            let _ = crate::answers::etag(text);
            let _ = crate::names::refusal(text);
            let from = ureq::http::Uri::from_static("https://hub.org/a/b");
            let _ = crate::redirect::target(&from, text, true);
            let _ = crate::Licence::of_text(text);
            let _ = crate::Token::new(text);
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    proptest! {
        /// Whatever a hub sends, its parsers give a value or an error.
        #[test]
        fn no_answer_makes_a_parser_panic(
            bytes in proptest::collection::vec(any::<u8>(), 0..300),
            json in "[\\[{\"a-z:,\\]}0-9/. -]{0,120}",
            header in "(Bearer |bytes |<|//|https://|Sun, 0)?[a-zA-Z0-9=\",;:/@\\[\\]é -]{0,60}",
        ) {
            super::fuzzing::answers(&bytes);
            super::fuzzing::answers(json.as_bytes());
            super::fuzzing::answers(header.as_bytes());
        }
    }
}
