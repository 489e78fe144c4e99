//! The node's secret: an Ed25519 seed in a file only its owner can read.

use std::fs;
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};

use ed25519_dalek::{Signer, SigningKey};
use exo_identity::SIGNATURE_BYTES;
use exo_types::NodeId;
use zeroize::Zeroizing;

const SEED_BYTES: usize = 32;

/// A node's Ed25519 key. Wiped from memory when dropped; never printed.
#[derive(Clone)]
pub struct NodeKey(SigningKey);

/// The key file could not be read or made.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
#[allow(missing_docs)] // the messages say what the fields are
pub enum KeyFileError {
    #[error(
        "key file {path} is a folder: move it away, and put the key of a backup in its place if there is one"
    )]
    IsFolder { path: PathBuf },
    #[error("key file {path} has mode {mode:04o}, others could read it; run `chmod 600 {path}`")]
    TooOpen { path: PathBuf, mode: u32 },
    #[error("key file {path} holds {found_bytes} bytes where a key has {SEED_BYTES}")]
    Damaged { path: PathBuf, found_bytes: u64 },
    #[error("key file {path} is missing, and the members of this node's cluster know it by that key")]
    Missing { path: PathBuf },
    #[error("cannot {doing} key file {path}")]
    Io { doing: &'static str, path: PathBuf, source: io::Error },
    #[error("the system gave no random bytes for a new key: {0}")]
    NoRandomness(String),
}

impl NodeKey {
    /// Draws a new key.
    pub fn generate() -> Result<Self, KeyFileError> {
        let mut seed = Zeroizing::new([0; SEED_BYTES]);
        getrandom::fill(seed.as_mut()).map_err(|e| KeyFileError::NoRandomness(e.to_string()))?;
        Ok(Self::from_seed(&seed))
    }

    /// The key of a known seed: key stores and tests.
    pub fn from_seed(seed: &[u8; SEED_BYTES]) -> Self {
        Self(SigningKey::from_bytes(seed))
    }

    /// Reads the key at `path`; where there is none, draws one and keeps it there with mode 0600. Two
    /// processes that race for a new file end with the same key.
    pub fn load_or_create(path: &Path) -> Result<Self, KeyFileError> {
        match load(path) {
            Err(KeyFileError::Io { source, .. }) if source.kind() == io::ErrorKind::NotFound => create(path),
            other => other,
        }
    }

    /// Reads the key at `path` of a node that had one: a new one in its place would be a stranger.
    pub fn load_existing(path: &Path) -> Result<Self, KeyFileError> {
        match load(path) {
            Err(KeyFileError::Io { source, .. }) if source.kind() == io::ErrorKind::NotFound => {
                Err(KeyFileError::Missing { path: path.to_owned() })
            }
            other => other,
        }
    }

    /// The public half, which is the node's name.
    pub fn node_id(&self) -> NodeId {
        NodeId(self.0.verifying_key().to_bytes())
    }

    /// Signs a message. The caller separates domains: no two kinds of message may share their first bytes.
    pub fn sign(&self, message: &[u8]) -> [u8; SIGNATURE_BYTES] {
        self.0.sign(message).to_bytes()
    }

    /// The seed, for the TLS layer's copy of the key.
    pub(crate) fn seed(&self) -> Zeroizing<[u8; SEED_BYTES]> {
        Zeroizing::new(self.0.to_bytes())
    }
}

impl std::fmt::Debug for NodeKey {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "NodeKey({})", self.node_id())
    }
}

fn load(path: &Path) -> Result<NodeKey, KeyFileError> {
    let io_error = |doing, source| KeyFileError::Io { doing, path: path.to_owned(), source };
    let mut file = fs::File::open(path).map_err(|e| io_error("open", e))?;
    let meta = file.metadata().map_err(|e| io_error("look at", e))?;
    if meta.is_dir() {
        return Err(KeyFileError::IsFolder { path: path.to_owned() });
    }
    if let Some(mode) = exo_stdx::mode_open_to_others(&meta) {
        return Err(KeyFileError::TooOpen { path: path.to_owned(), mode });
    }
    if meta.len() != SEED_BYTES as u64 {
        return Err(KeyFileError::Damaged { path: path.to_owned(), found_bytes: meta.len() });
    }
    let mut seed = Zeroizing::new([0; SEED_BYTES]);
    file.read_exact(seed.as_mut()).map_err(|e| io_error("read", e))?;
    Ok(NodeKey::from_seed(&seed))
}

/// Writes a whole file beside `path` first, so that a crash never leaves half a key under the real name.
fn create(path: &Path) -> Result<NodeKey, KeyFileError> {
    let io_error = |doing, source| KeyFileError::Io { doing, path: path.to_owned(), source };
    let key = NodeKey::generate()?;
    let mut suffix = [0; 8];
    getrandom::fill(&mut suffix).map_err(|e| KeyFileError::NoRandomness(e.to_string()))?;
    let draft = path.with_extension(format!("{:016x}", u64::from_le_bytes(suffix)));
    let published = write_private(&draft, &key.seed()[..]).and_then(|()| exo_stdx::publish(&draft, path));
    let _ = fs::remove_file(&draft);
    match published {
        Ok(()) => load(path),
        // Somebody else was first: theirs is the key.
        Err(e) if e.kind() == io::ErrorKind::AlreadyExists => load(path),
        Err(e) => Err(io_error("create", e)),
    }
}

fn write_private(path: &Path, bytes: &[u8]) -> io::Result<()> {
    let mut options = fs::OpenOptions::new();
    options.write(true).create_new(true);
    let mut file = exo_stdx::for_owner_only(&mut options).open(path)?;
    file.write_all(bytes)?;
    file.sync_all()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_created_key_is_found_again_and_leaves_no_draft() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("node.key");
        let first = NodeKey::load_or_create(&path).unwrap();
        assert_eq!(NodeKey::load_or_create(&path).unwrap().node_id(), first.node_id());
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 1);
    }

    #[test]
    fn a_key_that_must_be_there_is_not_made_anew() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("node.key");
        assert!(matches!(NodeKey::load_existing(&path), Err(KeyFileError::Missing { .. })));
        assert!(!path.exists());
        let key = NodeKey::load_or_create(&path).unwrap();
        assert_eq!(NodeKey::load_existing(&path).unwrap().node_id(), key.node_id());
    }

    #[test]
    fn racing_creators_agree_on_one_key() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("node.key");
        let ids: Vec<_> = std::thread::scope(|s| {
            let tasks: Vec<_> =
                (0..8).map(|_| s.spawn(|| NodeKey::load_or_create(&path).unwrap().node_id())).collect();
            tasks.into_iter().map(|t| t.join().unwrap()).collect()
        });
        assert!(ids.iter().all(|id| *id == ids[0]));
    }

    #[cfg(unix)]
    #[test]
    fn a_key_that_others_can_read_is_refused() {
        use std::os::unix::fs::PermissionsExt;
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("node.key");
        NodeKey::load_or_create(&path).unwrap();
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
        fs::set_permissions(&path, fs::Permissions::from_mode(0o640)).unwrap();
        assert!(matches!(NodeKey::load_or_create(&path), Err(KeyFileError::TooOpen { mode: 0o640, .. })));
    }

    #[cfg(unix)]
    #[test]
    fn a_folder_in_the_place_of_a_key_is_called_one() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("node.key");
        fs::create_dir(&path).unwrap();
        assert!(matches!(NodeKey::load_or_create(&path), Err(KeyFileError::IsFolder { .. })));
        assert!(path.is_dir());
    }

    #[test]
    fn a_damaged_key_is_reported_and_not_replaced() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("node.key");
        write_private(&path, b"short").unwrap();
        assert!(matches!(NodeKey::load_or_create(&path), Err(KeyFileError::Damaged { found_bytes: 5, .. })));
        assert_eq!(fs::read(&path).unwrap(), b"short");
    }
}
