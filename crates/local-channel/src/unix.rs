//! A Unix socket.

use std::fs::Permissions;
use std::io;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};

use tokio::net::{UnixListener, UnixStream};

/// Longest path of a socket that every system takes.
const PATH_BYTES_MAX: usize = 100;
/// The bit of a folder's mode by which everybody may make files in it.
const WRITABLE_BY_ALL: u32 = 0o002;

pub type ServerStream = UnixStream;

#[derive(Debug)]
pub struct Listener(UnixListener);

impl Listener {
    /// In the data folder, or, if its path is too long for a socket, in the folder for temporary files.
    pub fn open(data_dir: &Path) -> io::Result<(Self, PathBuf)> {
        let mut path = std::path::absolute(data_dir)?.join("api.sock");
        if path.as_os_str().len() > PATH_BYTES_MAX {
            let folder = blake3::hash(path.as_os_str().as_encoded_bytes()).to_hex();
            path = std::env::temp_dir().join(format!("exo-{:.16}.sock", folder.as_str()));
        }
        match std::fs::remove_file(&path) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
        let listener = UnixListener::bind(&path)?;
        std::fs::set_permissions(&path, Permissions::from_mode(0o600))?;
        Ok((Self(listener), path))
    }

    pub async fn accept(&self) -> io::Result<UnixStream> {
        let own = rustix::process::geteuid().as_raw();
        loop {
            let (stream, _) = self.0.accept().await?;
            match stream.peer_cred() {
                Ok(peer) if peer.uid() == own || peer.uid() == 0 => return Ok(stream),
                Ok(peer) => tracing::warn!(
                    uid = peer.uid(),
                    "another user came to the local channel and is not served"
                ),
                Err(error) => tracing::debug!(%error, "a connection without a name"),
            }
        }
    }
}

pub async fn connect(path: &Path) -> io::Result<UnixStream> {
    let socket = UnixStream::connect(path).await?;
    let (server, own) = (socket.peer_cred()?.uid(), rustix::process::geteuid().as_raw());
    if server == own || (own == 0 && folder_owner(path)? == Some(server)) {
        return Ok(socket);
    }
    let text = format!("it belongs to user {server}, not to the one who runs this command");
    Err(io::Error::new(io::ErrorKind::PermissionDenied, text))
}

/// Whose the folder of a socket is: there no one else could have made it. `None` for a folder that all may
/// write to.
fn folder_owner(path: &Path) -> io::Result<Option<u32>> {
    let folder = path.parent().unwrap_or(path).metadata()?;
    Ok((folder.mode() & WRITABLE_BY_ALL == 0).then(|| folder.uid()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn root_takes_a_folder_that_all_may_write_to_for_nobodys() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("api.sock");
        let own = rustix::process::geteuid().as_raw();
        assert_eq!(folder_owner(&path).unwrap(), Some(own));
        std::fs::set_permissions(folder.path(), Permissions::from_mode(0o1777)).unwrap();
        assert_eq!(folder_owner(&path).unwrap(), None);
    }
}
