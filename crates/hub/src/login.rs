//! A token that a person gave to exo: kept in the data folder, readable by its owner alone, for the hub that
//! it was given for.

use std::fs;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use ureq::http::Uri;

use crate::token::Token;
use crate::{HubError, address, disk};

const FILE: &str = "hub-token.json";
const VERSION: u32 = 1;
const BYTES_MAX: u64 = 8 << 10;

#[derive(Serialize, Deserialize)]
struct LoginFile {
    version: u32,
    /// Another hub gets no token.
    endpoint: String,
    token: String,
}

fn path(data_dir: &Path) -> PathBuf {
    data_dir.join(FILE)
}

/// Keeps a token for the hub at this address, in place of the one before.
pub(crate) fn keep(data_dir: &Path, endpoint: &Uri, token: &Token) -> Result<(), HubError> {
    let kept =
        LoginFile { version: VERSION, endpoint: endpoint.to_string(), token: token.reveal().to_owned() };
    disk::create_folder(data_dir)?;
    let path = path(data_dir);
    let bytes = serde_json::to_vec(&kept).map_err(std::io::Error::from);
    let written = bytes.and_then(|bytes| exo_stdx::replace_for_owner(&path, &bytes));
    written.map_err(HubError::disk("write", &path))
}

/// Deletes the token; whether there was one.
pub fn forget_token(data_dir: &Path) -> Result<bool, HubError> {
    let path = path(data_dir);
    match fs::remove_file(&path) {
        Ok(()) => Ok(true),
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(false),
        Err(error) => Err(HubError::disk("delete", &path)(error)),
    }
}

/// The token that was kept for the hub at this address.
pub(crate) fn kept(data_dir: &Path, endpoint: &Uri) -> Option<Token> {
    let bytes = match exo_stdx::read_bounded(&path(data_dir), BYTES_MAX) {
        Ok(bytes) => bytes?,
        Err(error) => {
            tracing::warn!(%error, "the token of `exo login hub` cannot be read");
            return None;
        }
    };
    let Ok(kept) = serde_json::from_slice::<LoginFile>(&bytes) else {
        tracing::warn!("the token of `exo login hub` cannot be understood: give it again");
        return None;
    };
    let its_hub: Uri = kept.endpoint.parse().ok()?;
    let is_for_it = kept.version == VERSION && address::origin(&its_hub) == address::origin(endpoint);
    is_for_it.then(|| Token::new(&kept.token)).flatten()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_token_is_for_its_owner_and_for_its_hub_alone() {
        let folder = tempfile::tempdir().unwrap();
        let data_dir = folder.path().join("data");
        let uri = |text: &str| text.parse::<Uri>().unwrap();
        let hub = uri("https://huggingface.co");
        assert_eq!(kept(&data_dir, &hub), None);
        assert!(!forget_token(&data_dir).unwrap());
        for text in ["hf_first", "hf_second"] {
            keep(&data_dir, &hub, &Token::new(text).unwrap()).unwrap();
            assert_eq!(kept(&data_dir, &hub), Token::new(text));
        }
        let about = fs::metadata(path(&data_dir)).unwrap();
        assert_eq!(exo_stdx::mode_open_to_others(&about), None);
        for other in ["https://mirror.org", "http://huggingface.co", "https://huggingface.co:444"] {
            assert_eq!(kept(&data_dir, &uri(other)), None, "{other}");
        }
        fs::write(path(&data_dir), "{").unwrap();
        assert_eq!(kept(&data_dir, &hub), None);
        assert!(forget_token(&data_dir).unwrap());
        assert_eq!(fs::read_dir(&data_dir).unwrap().count(), 0, "nothing of it stays");
    }
}
