//! The keys that open `/v1/*`: hashes, what their holders are called, and how they change while listeners
//! serve.

use std::collections::BTreeMap;
use std::sync::Arc;

use exo_stdx::Mutex;
use exo_types::Principal;

/// An API key, as its hash: what is stored cannot be used as a key.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct ApiKey {
    hash: [u8; 32],
}

impl ApiKey {
    /// The hash of a key in clear.
    pub fn from_key(key: &str) -> Self {
        Self { hash: *blake3::hash(key.as_bytes()).as_bytes() }
    }

    /// A hash that was stored, 64 hexadecimal characters; `None` if it is not one.
    pub fn from_hash(hex: &str) -> Option<Self> {
        Some(Self { hash: *blake3::Hash::from_hex(hex).ok()?.as_bytes() })
    }

    /// What to store.
    pub fn to_hash(self) -> String {
        blake3::Hash::from_bytes(self.hash).to_hex().to_string()
    }

    /// Whether `other` is the same key, in time independent of where they differ.
    pub(crate) fn matches(&self, other: &Self) -> bool {
        // blake3's own comparison is constant-time.
        blake3::Hash::from_bytes(self.hash) == blake3::Hash::from_bytes(other.hash)
    }

    /// On whose behalf its holder's requests run.
    pub(crate) fn principal(&self) -> Principal {
        let mut id = [0; 16];
        id.copy_from_slice(&self.hash[..16]);
        Principal(id)
    }
}

/// All keys of a node. Every copy sees a change at once; requests that run are not touched by it.
#[derive(Clone, Default)]
pub struct ApiKeys(Arc<Mutex<Keys>>);

#[derive(Default)]
struct Keys {
    keys: Arc<[ApiKey]>,
    /// Once there was a key, none opens nothing: the last one taken away does not open the API to all.
    are_needed: bool,
    /// By what a principal is shown without one. Those of earlier keys stay: their requests may still run.
    names: BTreeMap<String, String>,
}

impl From<Vec<ApiKey>> for ApiKeys {
    fn from(keys: Vec<ApiKey>) -> Self {
        let all = Self::default();
        all.replace(keys.into_iter().map(|key| (key, None)).collect());
        all
    }
}

impl ApiKeys {
    /// From now on these are let in, each with the name of its holder, and no others.
    pub fn replace(&self, keys: Vec<(ApiKey, Option<String>)>) {
        let mut all = self.0.lock();
        all.are_needed |= !keys.is_empty();
        all.keys = keys.iter().map(|(key, _)| *key).collect();
        all.names.extend(keys.into_iter().filter_map(|(key, name)| Some((key.principal().label(), name?))));
    }

    /// Whether a client needs a key.
    pub fn are_needed(&self) -> bool {
        self.0.lock().are_needed
    }

    /// The key among these that the client has shown.
    pub(crate) fn find(&self, given: &[ApiKey]) -> Option<ApiKey> {
        let keys = self.0.lock().keys.clone();
        let matches = |key: &ApiKey| given.iter().fold(false, |any, given| any | given.matches(key));
        // No early exit: how long it takes must not tell which key it is.
        keys.iter().fold(None, |known, key| if matches(key) { Some(*key) } else { known })
    }

    /// Writes the name of who asked where a view has the beginning of a key's hash.
    pub(crate) fn name(&self, principal: &mut String) {
        let all = self.0.lock();
        if let Some(name) = all.names.get(principal) {
            principal.clone_from(name);
        }
    }
}
