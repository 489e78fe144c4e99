//! Unfinished downloads, kept in a file so that they continue after a restart. It holds no token.

use std::fs::{self, File};
use std::io::{self, Read};
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

const FILE: &str = "pulls.json";
const VERSION: u32 = 1;
/// Far above what the list holds.
const BYTES_MAX: u64 = 1 << 20;

/// One download.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct SavedPull {
    /// What clients call it; 0 of a version that did not keep it.
    #[serde(default)]
    pub id: u64,
    pub reference: String,
    /// The commit it means, once that is known: the branch may move, and what is on the disk is of this one.
    pub commit: Option<String>,
    /// What of the repository was chosen.
    pub label: Option<String>,
    /// The first of its files, of a GGUF model: two may have the same label.
    #[serde(default)]
    pub file: Option<String>,
    pub folder: Option<PathBuf>,
    /// Another hub than the node's.
    pub endpoint: Option<String>,
    pub ranges_max: Option<u8>,
    pub rate_max_bytes_per_s: Option<u64>,
    /// Whether only the heads are read.
    #[serde(default)]
    pub layers_only: bool,
    /// Whether what was here before would have done.
    #[serde(default)]
    pub to_run: bool,
    /// The model whose newer commit it is.
    #[serde(default)]
    pub update_of: Option<String>,
    /// Whether it waits for somebody.
    pub is_paused: bool,
    /// Why it failed, with what would help: it is shown, and waits for somebody to ask again.
    #[serde(default)]
    pub failed: Option<(String, Option<String>)>,
    /// When it was asked for.
    pub started_unix_s: u64,
}

/// All that is kept.
#[derive(PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct SavedPulls {
    version: u32,
    /// The largest id so far: a script may still know a download by it that is over.
    #[serde(default)]
    pub last_id: u64,
    pub pulls: Vec<SavedPull>,
}

/// The list in the folder of fetched models; empty where it cannot be read.
pub fn read(root: &Path) -> SavedPulls {
    let path = root.join(FILE);
    match read_file(&path) {
        Ok(saved) => saved,
        Err(error) if error.kind() == io::ErrorKind::NotFound => SavedPulls::default(),
        Err(error) => {
            tracing::warn!(path = %path.display(), %error, "the list of downloads cannot be read: start them again with `exo pull`, which keeps bytes already fetched");
            SavedPulls::default()
        }
    }
}

fn read_file(path: &Path) -> io::Result<SavedPulls> {
    let mut bytes = Vec::new();
    File::open(path)?.take(BYTES_MAX).read_to_end(&mut bytes)?;
    parse(&bytes)
}

fn parse(bytes: &[u8]) -> io::Result<SavedPulls> {
    let saved: SavedPulls = serde_json::from_slice(bytes)?;
    match saved.version {
        VERSION => Ok(saved),
        other => Err(io::Error::other(format!("it has version {other}, this exo reads {VERSION}"))),
    }
}

/// Writes the list whole. Where nothing was ever fetched there is no file.
pub fn write(root: &Path, last_id: u64, pulls: Vec<SavedPull>) -> io::Result<()> {
    let path = root.join(FILE);
    if pulls.is_empty() && last_id == 0 {
        return match fs::remove_file(&path) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
            _ => Ok(()),
        };
    }
    fs::create_dir_all(root)?;
    let saved = SavedPulls { version: VERSION, last_id, pulls };
    exo_stdx::replace_for_owner(&path, &serde_json::to_vec_pretty(&saved)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_list_comes_back_and_a_damaged_one_is_empty() {
        let folder = tempfile::tempdir().unwrap();
        let root = folder.path().join("hub");
        assert_eq!(read(&root), SavedPulls::default());
        let pull = SavedPull {
            id: 3,
            reference: "hf.co/a/b".to_owned(),
            commit: Some("0".repeat(40)),
            label: Some("Q8_0".to_owned()),
            file: Some("m-Q8_0.gguf".to_owned()),
            folder: Some(PathBuf::from("a/b/0/Q8_0")),
            endpoint: None,
            ranges_max: Some(4),
            rate_max_bytes_per_s: None,
            layers_only: true,
            to_run: false,
            update_of: Some("0a".to_owned()),
            is_paused: true,
            failed: Some(("no".to_owned(), None)),
            started_unix_s: 7,
        };
        write(&root, 4, vec![pull.clone()]).unwrap();
        let saved = read(&root);
        assert_eq!((saved.last_id, saved.pulls), (4, vec![pull]));
        // With any byte changed or its end missing it is a list or an error.
        let whole = fs::read(root.join(FILE)).unwrap();
        for at in 0..whole.len() {
            assert!(parse(&whole[..at]).is_err(), "cut at {at}");
            for other in [b'-', b'9', b'"', b'{', b']', 0, 0xff] {
                let mut bytes = whole.clone();
                bytes[at] = other;
                assert!(parse(&bytes).map_or(0, |saved| saved.pulls.len()) <= 1);
            }
        }
        fs::write(root.join(FILE), "{\"version\":9,\"pulls\":[]}").unwrap();
        assert_eq!(read(&root), SavedPulls::default());
        write(&root, 4, Vec::new()).unwrap();
        let saved = read(&root);
        assert_eq!((saved.last_id, saved.pulls), (4, Vec::new()), "no id is given again");
        write(&root, 0, Vec::new()).unwrap();
        assert!(!root.join(FILE).exists());
    }
}
